"""Errors of running experiments that the command line explains."""

from fedax.outside.text import Told


class ConfigError(Told, ValueError):
    """What the user asked for cannot be run; the message is a sentence."""


class CohortError(ConfigError):
    """A cohort is larger than the population.

    Args:
      message: the sentence.
      num_clients: of the population.
    """

    def __init__(self, message: str, num_clients: int) -> None:
        super().__init__(message)
        self.num_clients = num_clients
