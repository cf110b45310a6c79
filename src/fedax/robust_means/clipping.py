"""Bounds on how far one upload can move the mean: norm bounds and centred clipping."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedax.algorithm import Array
from fedax.factories import factory
from fedax.robust_means.robust_mean import RobustMean, norms, uniform_mean
from fedax.validate import check_count, check_number


@factory
def norm_bound(bound: float | Array = 1.0) -> RobustMean:
    r"""Each upload is clipped to a norm, and the mean is the plain one (Sun et al. 2019).

    .. math:: u_i \leftarrow \frac{u_i}{\max(1, \lVert u_i \rVert / M)}

    The server needs no single uploads if the clipping can be enforced, as by a proof with secure
    aggregation. The clients' weights count. A lie within the bound counts in full, so this is
    against few clients and long uploads.

    Sun, Kairouz, Suresh, McMahan, "Can You Really Backdoor Federated Learning?", 2019, section 4;
    the paper adds noise, which `fedax.private` does with an accounting.

    Args:
      bound: M > 0; above all norms, this is the mean. May be traced.

    Raises:
      ValueError: bound is not positive (unless it is traced).

    Example:
      >>> import jax.numpy as jnp
      >>> from fedax.robust_means import norm_bound
      >>> norm_bound(5.0).each(jnp.array([6.0, 8.0])).tolist()
      [3.0, 4.0]
    """
    check_number("bound", bound, above=0)

    def each(upload: Array) -> Array:
        return upload * _factor(norms(upload[None])[0], bound)

    return RobustMean(None, each, weighted=True)


@factory
def centred_clipping(radius: float | Array = 1.0, num_iterations: int = 1) -> RobustMean:
    r"""Centred clipping (Karimireddy, He, Jaggi 2021): differences to the last mean are clipped.

    From the last round's v, at first 0, each iteration is

    .. math::
        v \leftarrow v + \frac{1}{n} \sum_i (u_i - v)
            \min\Bigl(1, \frac{\tau}{\lVert u_i - v \rVert}\Bigr)

    v is the mean and part of the server's state. All clients weigh the same. A client moves v by at
    most tau / n in an iteration. The paper's guarantee is for uploads that change little between
    rounds, such as clients' momenta.

    Karimireddy, He, Jaggi, "Learning from History for Byzantine Robust Optimization", ICML 2021,
    equation CC.

    Args:
      radius: tau > 0; above all norms, this is the uniform mean. May be traced.
      num_iterations: >= 1; 1 in the paper.

    Raises:
      ValueError: an argument is out of its range (unless it is traced).

    Example:
      >>> import jax.numpy as jnp
      >>> from fedax.robust_means import centred_clipping
      >>> rule, uploads = centred_clipping(1.0), jnp.array([[0.5], [0.5], [1e9]])
      >>> mean, centre = rule.combine(uploads, jnp.ones(3), rule.init(uploads[0]))
      >>> f"{mean[0]:.3f}", bool((mean == centre).all())
      ('0.667', True)
    """
    check_number("radius", radius, above=0)
    check_count("num_iterations", num_iterations)

    def combine(uploads: Array, weights: Array, centre: Array) -> tuple[Array, Array]:
        def step(_: Array, v: Array) -> Array:
            away = uploads - v[None]
            factors = jax.vmap(lambda norm: _factor(norm, radius))(norms(away))
            return v + uniform_mean(away * factors[:, None], weights > 0)

        v = jax.lax.fori_loop(0, num_iterations, step, centre)
        return v, v

    return RobustMean(combine, init=jnp.zeros_like)


def _factor(norm: Array, bound: float | Array) -> Array:
    """What makes a vector of this norm at most as long as the bound."""
    limit = jnp.asarray(bound, norm.dtype)
    return jnp.where(norm > limit, limit / jnp.where(norm > 0, norm, 1), 1)
