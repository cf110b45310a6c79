"""Many settings of a method as one program: rounds, results and the best setting.

Independent of files, task names and the command line.
"""
