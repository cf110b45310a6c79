"""The geometric median.

Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated Learning", IEEE Transactions on
Signal Processing 70, 2022 (RFA).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, PyTree
from fedax.factories import factory
from fedax.robust_means.coordinates import weighted_median
from fedax.robust_means.robust_mean import RobustMean, norms
from fedax.validate import check_count, check_number


@factory
def geometric_median(
    smoothing: float | Array = 1e-6, num_iterations: int = 3
) -> RobustMean:
    r"""The geometric median by the smoothed Weiszfeld algorithm (RFA, Pillutla et al. 2022).

    It approaches the point with the smallest weighted sum of distances to the uploads:

    .. math::
        \beta_i = \frac{w_i}{\max(\nu, \lVert v - u_i \rVert)}, \qquad
        v \leftarrow \frac{\sum_i \beta_i u_i}{\sum_i \beta_i}

    The clients' weights w_i count, as in the paper: a client that lies about its number of examples
    has more influence, so choose `weighting="uniform"` in the method if you do not know them. It
    tolerates clients of less than half of the weight. The paper leaves the start open. Here it is
    the weighted median of each coordinate: from the mean, a long enough lie is still in v after the
    few iterations.

    Args:
      smoothing: nu > 0, a distance; 1e-6 in the paper. May be traced.
      num_iterations: >= 1; 3 in the paper.

    Raises:
      ValueError: an argument is out of its range (unless it is traced).

    Example:
      >>> import jax.numpy as jnp
      >>> from fedax.robust_means import geometric_median
      >>> uploads = jnp.array([[0.0, 1.0], [0.0, -1.0], [2.0, 0.0], [-2.0, 0.0], [1e9, 0.0]])
      >>> found = geometric_median(num_iterations=30).combine(uploads, jnp.ones(5), ())[0]
      >>> [f"{x:.2f}" for x in found.tolist()]
      ['0.58', '0.00']
    """
    check_number("smoothing", smoothing, above=0)
    check_count("num_iterations", num_iterations)

    def combine(uploads: Array, weights: Array, memory: PyTree) -> tuple[Array, PyTree]:
        alphas = (weights / jnp.where(weights.sum() > 0, weights.sum(), 1)).astype(uploads.dtype)
        least = jnp.asarray(smoothing, uploads.dtype)

        def step(_: Array, v: Array) -> Array:
            betas = alphas / jnp.maximum(least, norms(uploads - v[None]))
            total = betas.sum()
            shares = betas / jnp.where(total > 0, total, 1)
            return jnp.dot(shares, uploads, precision="highest")

        start = weighted_median(uploads, weights)
        return jax.lax.fori_loop(0, num_iterations, step, start), memory

    return RobustMean(combine, weighted=True)
