"""Tuning on a disk: the sweep folder, continuing after a kill, extending, halving, Optuna.

How the rounds of many settings are run, and which setting is best, is for `sweeps` to say.
"""
