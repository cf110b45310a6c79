"""What a robust mean is, and what several of them compute with."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from fedax.algorithm import Array, PyTree
from fedax.factories import written


class RobustMean(NamedTuple):
    """A rule in place of the weighted mean, as pure functions of uploads as vectors.

    Attributes:
      combine: `(uploads [n, d], weights [n], memory) -> (mean [d], memory)`, of float32 or wider. A
        client of weight 0 does not count, and its row is 0. If nobody counts, any finite vector.
        None: the weighted mean, so the server needs no single uploads.
      each: `(upload [d]) -> upload [d]`, what becomes of each upload first; None: nothing.
      init: `(upload [d]) -> memory` before the first round, of which only shape and dtype matter;
        None: the rule has no memory.
      weighted: whether the clients' weights count. If not, all that count weigh the same.
      by_coordinate: whether each number of the mean depends on that number of the uploads alone.
    """

    combine: Callable[[Array, Array, PyTree], tuple[Array, PyTree]] | None
    each: Callable[[Array], Array] | None = None
    init: Callable[[Array], PyTree] | None = None
    weighted: bool = False
    by_coordinate: bool = False

    def __repr__(self) -> str:
        return f"RobustMean({written(self) or 'your own'})"


def number_that_count(weights: Array) -> Array:
    """The number of clients with a positive weight, at least 1; int32 scalar."""
    return jnp.maximum((weights > 0).sum(dtype=jnp.int32), 1)


def part_of(share: float | Array, count: Array) -> Array:
    """A share of a number of clients, rounded up; int32 scalar.

    Example:
      >>> part_of(0.2, jnp.int32(10)).tolist(), part_of(0.2, jnp.int32(11)).tolist()
      (2, 3)
    """
    # 0.2 of 10 is 2, although in float32 it is a little more.
    part = jnp.asarray(share).astype(float) * count.astype(float)
    return jnp.ceil(part * (1 - 1e-6)).astype(jnp.int32)


def uniform_mean(uploads: Array, counts: Array) -> Array:
    """The mean of the rows [n, d] that count, bool [n]."""
    total = jnp.where(counts[:, None], uploads, 0).sum(0)
    return total / jnp.maximum(counts.sum(), 1).astype(uploads.dtype)


def norms(rows: Array) -> Array:
    """The Euclidean norm of each row [n, d]; its squares neither overflow nor vanish."""
    largest = jnp.abs(rows).max(1)
    scale = jnp.where(largest > 0, largest, 1)
    return scale * jnp.sqrt(jnp.square(rows / scale[:, None]).sum(1))
