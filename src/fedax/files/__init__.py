"""Opens, reads and writes files and folders that may be untrusted.

Whatever reads or writes a folder of fedax does it by these functions. What the files mean belongs
to the rooms above; NumPy and Python's own library are all that is needed here.
"""
