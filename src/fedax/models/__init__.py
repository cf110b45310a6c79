"""Learning problems as `fedax.algorithm.Model`, and the layers they are made of."""

from fedax.models.characters import character_lstm
from fedax.models.recurrence import init_lstm, lstm

__all__ = ["character_lstm", "init_lstm", "lstm"]
