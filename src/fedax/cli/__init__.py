"""The command line: parsing and calling, and the sentences for what went wrong.

Whatever a command does is a function elsewhere.
"""
