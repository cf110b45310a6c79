"""What a person looks at: tables, pictures and the page of a run.

Draws and prints what others have found, and computes nothing of its own.
"""
