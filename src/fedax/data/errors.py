"""The error about data on a disk."""

from fedax.outside.text import Told


class DataError(Told, ValueError):
    """A file of data, or a store, is invalid; the message says where and why."""
