"""Errors of running experiments that the command line explains."""

from fedax.outside.text import Told


class ConfigError(Told, ValueError):
    """A run cannot be done as configured; the message says why."""


class CohortError(ConfigError):
    """A cohort is larger than the population.

    Args:
      message: the message.
      num_clients: size of the population.
    """

    def __init__(self, message: str, num_clients: int) -> None:
        super().__init__(message)
        self.num_clients = num_clients
