"""Runs on disk: configuration, run folder, checkpoints, display and report."""
