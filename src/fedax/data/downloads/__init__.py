"""Getting published files: over HTTP, through package managers, out of archives.

Nothing half-written is left behind, and files that differ from the published ones are rejected.
`fedax.data.catalogue` describes the files.
"""
