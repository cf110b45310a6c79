"""What goes out to people and what comes from them: text, paths, mistyped names, the version.

Knows Python alone, so every other room may use it.
"""
