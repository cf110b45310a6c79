"""Pictures of runs and sweeps, as functions that draw on Matplotlib's Axes and return them.

They take histories, records or frames. Nothing here computes rounds or knows of folders.
"""
