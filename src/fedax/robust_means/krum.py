"""Krum: the upload that is nearest to its neighbours.

Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent", NeurIPS 2017.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, PyTree
from fedax.factories import factory
from fedax.robust_means.robust_mean import (
    RobustMean,
    norms,
    number_that_count,
    part_of,
    uniform_mean,
)
from fedax.validate import check_number


@factory
def krum(share: float | Array = 0.2) -> RobustMean:
    r"""Krum (Blanchard et al. 2017, section 4): one upload, the nearest to its neighbours.

    With n clients, of which f = ceil(share n) may lie, a client's score is the sum over its
    n - f - 2 nearest others (at least one):

    .. math::
        s_i = \sum_{j \to i} \lVert u_i - u_j \rVert^2

    The mean is the upload u_i with the smallest s_i. Of equal ones, such as two clients that are
    each other's only neighbour, it is the shortest, so the clients' order does not matter; the
    paper takes the smallest identifier. All clients weigh the same. The paper's guarantee needs
    2f + 2 < n and clients of one distribution: if clients differ, the nearest is a typical one, and
    the others do not count at all.

    Args:
      share: of the clients that may lie, in [0, 0.5). May be traced.

    Raises:
      ValueError: share is out of its range (unless it is traced).

    Example:
      >>> import jax.numpy as jnp
      >>> from fedax.robust_means import krum
      >>> uploads = jnp.array([[1.0], [2.0], [2.5], [4.0], [1e9]])
      >>> krum(0.2).combine(uploads, jnp.ones(5), ())[0].tolist()
      [2.0]
    """
    check_number("share", share, at_least=0, below=0.5)

    def combine(uploads: Array, weights: Array, memory: PyTree) -> tuple[Array, PyTree]:
        return _nearest(uploads, weights, share, one=True), memory

    return RobustMean(combine)


@factory
def multi_krum(share: float | Array = 0.2) -> RobustMean:
    r"""Multi-Krum (Blanchard et al. 2017, section 5): the mean of the n - f uploads nearest.

    Scores, f and limits are those of `krum`; the n - f lowest scores are averaged. The paper leaves
    their number open; n - f leaves out as many as may lie.

    Args:
      share: of the clients that may lie, in [0, 0.5). May be traced.

    Raises:
      ValueError: share is out of its range (unless it is traced).

    Example:
      >>> import jax.numpy as jnp
      >>> from fedax.robust_means import multi_krum
      >>> uploads = jnp.array([[1.0], [2.0], [3.0], [4.0], [1e9]])
      >>> multi_krum(0.2).combine(uploads, jnp.ones(5), ())[0].tolist()
      [2.5]
    """
    check_number("share", share, at_least=0, below=0.5)

    def combine(uploads: Array, weights: Array, memory: PyTree) -> tuple[Array, PyTree]:
        return _nearest(uploads, weights, share, one=False), memory

    return RobustMean(combine)


def _nearest(uploads: Array, weights: Array, share: float | Array, *, one: bool) -> Array:
    """The mean of one upload or of n - f, those with the lowest scores."""
    counts, n = weights > 0, number_that_count(weights)
    hostile = jnp.minimum(part_of(share, n), n - 1)
    neighbours = jnp.minimum(jnp.maximum(n - hostile - 2, 1), n - 1)
    places = jnp.arange(uploads.shape[0], dtype=jnp.int32)

    def score(i: Array) -> Array:
        squares = jnp.square(norms(uploads - uploads[i][None]))
        nearest = jnp.sort(jnp.where(counts & (places != i), squares, jnp.inf))
        return jnp.where(places < neighbours, nearest, 0).sum()

    # One client after the other: all differences at once would be [n, n, d].
    order = jnp.lexsort((norms(uploads), jax.lax.map(score, places), ~counts))
    chosen = jnp.zeros(counts.shape, bool).at[order].set(places < (1 if one else n - hostile))
    return uniform_mean(uploads, chosen & counts)
