"""What an attack is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from fedax.algorithm import Array
from fedax.factories import written


class Attack(NamedTuple):
    """What hostile clients do, as pure functions; None where they do nothing.

    Attributes:
      examples: `(arrays [B, ...] by name) -> arrays`, of the examples that a client trains on.
      upload: `(key, array) -> array`, of each uploaded array of one client.
      together: `(arrays [n, ...], hostile [n], honest [n]) -> array`, what all of them upload in
        place of each array, from those of the n clients of the cohort. The bools say who counts and
        on which side; arrays of clients that do not count are 0.
    """

    examples: Callable[[Mapping[str, Array]], Mapping[str, Array]] | None = None
    upload: Callable[[Array, Array], Array] | None = None
    together: Callable[[Array, Array, Array], Array] | None = None

    def __repr__(self) -> str:
        return f"Attack({written(self) or 'your own'})"
