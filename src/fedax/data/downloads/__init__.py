"""Getting published files: over HTTP, through package managers, out of archives.

Nothing half-written is left behind, and nothing is taken that is not what was published. What the
files mean is said in `fedax.data.catalogue`.
"""
