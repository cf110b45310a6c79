"""Local data with some of a paper's clients, or with another split: published settings on them.

`femnist-328` has 328 of LEAF's 3,597 writers, `cifar100-resplit` CIFAR-100's images with another
split. What is trained on them has the published settings, with fewer rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Partial(NamedTuple):
    """Data that replace a task's at the scale "paper".

    Attributes:
      task: its name.
      rounds: fewer than published; None: the published ones.
      hours: of a run, on 2 cores and guessed on a GPU; None: those of the paper's data.
      evaluate_every: rounds from one evaluation to the next; None: as published.
    """

    task: str
    rounds: int | None = None
    hours: tuple[float, float] | None = None
    evaluate_every: int | None = 20

    @property
    def settings(self) -> Mapping[str, Any]:
        """Of every method."""
        given = {"evaluate_every": self.evaluate_every, "num_rounds": self.rounds}
        return {key: value for key, value in given.items() if value is not None}
