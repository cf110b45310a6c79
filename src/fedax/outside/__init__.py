"""What goes out to people and what comes from them: text, paths, the version, guesses.

Knows Python alone, so every other room may use it.
"""
