"""What goes out to people and what comes from them: text on a terminal, paths, the version.

Knows Python alone, so every other room may use it.
"""
