"""Errors of running experiments that the command line explains."""

from fedax.outside.text import Told


class ConfigError(Told, ValueError):
    """What the user asked for cannot be run; the message is a sentence."""
