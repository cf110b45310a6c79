"""A run on disk: configuration, run folder, checkpoints, resuming, what is shown meanwhile.

The rounds themselves are in `fedax.rounds`; here they are started, kept and gone on with.
"""
