"""The error about data on a disk."""


class DataError(ValueError):
    """A file of data, or a store, is not what it should be; the message is a sentence."""
