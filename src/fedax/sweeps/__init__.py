"""Many settings of a method as one program: the rounds, what they came to, and which is best.

Nothing here knows of files, names of tasks or the command line.
"""
