"""Which of each client's examples are for testing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np


def held_out_rows(
    names: Sequence[str], sizes: np.ndarray, fraction: float, seed: int
) -> np.ndarray:
    """Draws a part of each client's examples without replacement.

    Of a client's n examples it draws n times the fraction, rounded, but at least one and at most
    n - 1; none of a client with a single example. What is drawn depends on the seed, the client's
    name, n and the fraction only. A larger fraction holds what a smaller one does.

    Args:
      names: of the clients.
      sizes: n_i, int64 [num_clients].
      fraction: in (0, 1).
      seed: >= 0.

    Returns:
      bool [sum n_i], True for the examples drawn.

    Example:
      >>> held_out_rows(["ada", "bob"], np.array([4, 1]), 0.5, seed=0).tolist()
      [False, False, True, True, False]
    """
    count = np.clip(np.rint(fraction * sizes).astype(np.int64), 1, np.maximum(sizes - 1, 1))
    count[sizes < 2] = 0
    words = np.array([_word(f"{seed}/{name}") for name in names], np.uint64)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    starts = np.cumsum(sizes) - sizes
    place = np.arange(len(owner)) - starts[owner]
    # The examples with a client's smallest words; equal words of one client: the earlier example.
    order = np.lexsort((splitmix(words[owner] + place.astype(np.uint64)), owner))
    is_held_out = np.zeros(len(owner), bool)
    is_held_out[order[place < count[owner]]] = True
    return is_held_out


def splitmix(words: np.ndarray) -> np.ndarray:
    """A hash of whole numbers, uint64 (Steele et al. 2014): neighbours get unrelated words."""
    words = words * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return words ^ (words >> np.uint64(31))


def _word(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
