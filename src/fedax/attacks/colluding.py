"""Attacks of clients that agree on what they upload."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedax.algorithm import Array
from fedax.attacks.attack import Attack
from fedax.factories import factory
from fedax.validate import check_number


@factory
def little_is_enough(z: float | Array | None = None) -> Attack:
    r"""A little is enough (Baruch, Baruch, Goldberg 2019, Algorithm 3): lies within the spread.

    .. math:: u_{ij} \leftarrow \mu_j - z \sigma_j

    where mu and sigma are the mean and standard deviation of the hostile clients' own honest
    uploads, which they share; they know nothing of the others. By default z is the largest at which
    enough honest clients are farther from the mean to give the lie a majority:

    .. math:: \Phi(z) = \frac{n - m - s}{n - m}, \qquad s = \lfloor n / 2 + 1 \rfloor - m

    with m hostile clients of n; it is 0 if that is below 0.

    Args:
      z: >= 0, or None. 1.5 in the paper's experiments. May be traced.

    Example:
      >>> import jax.numpy as jnp
      >>> from fedax.attacks import little_is_enough
      >>> hostile = jnp.array([True, True, False])
      >>> uploads = jnp.array([[1.0], [3.0], [50.0]])
      >>> little_is_enough(1.5).together(uploads, hostile, ~hostile).tolist()
      [0.5]
    """
    if z is not None:
        check_number("z", z, at_least=0)

    def together(arrays: Array, hostile: Array, honest: Array) -> Array:
        mean = _mean(arrays, hostile)
        deviation = jnp.sqrt(_mean(jnp.square(arrays - mean[None]), hostile))
        farther = jnp.asarray(_largest_z(hostile, honest) if z is None else z, arrays.dtype)
        return mean - farther * deviation

    return Attack(together=together)


@factory
def inner_product(epsilon: float | Array = 0.5) -> Attack:
    r"""Inner-product manipulation (Xie, Koyejo, Gupta 2020): the honest mean turned round.

    .. math:: u_i \leftarrow -\frac{\epsilon}{n - m} \sum_{j \text{ honest}} u_j

    The n - m honest clients' uploads are known to all hostile ones. Those with a small epsilon are
    within the spread of the others and defeat the median and Krum, those with a large one the mean.

    Args:
      epsilon: above 0. May be traced.

    Example:
      >>> import jax.numpy as jnp
      >>> from fedax.attacks import inner_product
      >>> hostile = jnp.array([True, False, False])
      >>> uploads = jnp.array([[9.0], [3.0], [5.0]])
      >>> inner_product(0.5).together(uploads, hostile, ~hostile).tolist()
      [-2.0]
    """
    check_number("epsilon", epsilon, above=0)

    def together(arrays: Array, hostile: Array, honest: Array) -> Array:
        del hostile
        return -jnp.asarray(epsilon, arrays.dtype) * _mean(arrays, honest)

    return Attack(together=together)


def _mean(arrays: Array, who: Array) -> Array:
    """The mean over some of the clients, of arrays [n, ...]."""
    who = who.reshape(-1, *[1] * (arrays.ndim - 1))
    total = jnp.where(who, arrays, 0).sum(0)
    return total / jnp.maximum(who.sum(), 1).astype(arrays.dtype)


def _largest_z(hostile: Array, honest: Array) -> Array:
    """The default z of `little_is_enough`."""
    m, others = hostile.sum(dtype=jnp.int32), honest.sum(dtype=jnp.int32)
    supporters = (m + others) // 2 + 1 - m
    share = (others - supporters).astype(float) / jnp.maximum(others, 1).astype(float)
    z = jax.scipy.stats.norm.ppf(jnp.clip(share, 0.5, 1 - 1e-6))
    return jnp.where(others > 0, z, 0)
