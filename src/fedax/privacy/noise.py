r"""Gaussian noise of sums, new in each round or correlated over rounds (DP-FTRL).

With b bands the noise of round t is row t of C^-1 Z, where Z are independent Gaussians and C is the
lower triangular matrix of b bands whose columns have norm 1 that makes the error of all prefix sums
small (Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization"; the Toeplitz form of
McKenna 2024, "Scaling up the Banded Matrix Factorization Mechanism"). Noise of one round is taken
back in part in the next ones, so a model, which is a sum over rounds, gets less of it. A client
whose rounds are at least b apart meets orthogonal columns, and each of its uploads costs as much as
with independent noise.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import Array, PyTree
from fedax.privacy.library import require_libraries


class Noise(NamedTuple):
    """How noise is added to a sum.

    Attributes:
      coefficients: the first column of C; one number for independent noise.
    """

    coefficients: np.ndarray

    @classmethod
    def of(cls, bands: int, horizon: int) -> Noise:
        """The noise of so many bands, best for so many rounds."""
        return cls(np.ones(1) if bands == 1 else banded(bands, max(horizon, bands)))

    def init(self, like: PyTree) -> PyTree:
        """What is kept between rounds for sums like this: b - 1 earlier rounds of noise."""
        return self._matrix(like).init_multiply(like)

    def add(self, total: PyTree, deviation: Array, kept: PyTree, key: Array) -> tuple[Any, PyTree]:
        """The sum with noise of this standard deviation, and what is kept for the next round."""
        require_libraries()
        from jax_privacy.noise_addition import (  # noqa: PLC0415 - optional, and slow to import
            matrix_factorization_privatizer,
        )

        privatizer: Any = matrix_factorization_privatizer(
            self._matrix(total), stddev=1.0, prng_key=key
        )
        zeros = jax.tree.map(jnp.zeros_like, total)
        with jax.numpy_dtype_promotion("standard"):
            noise, (_, kept) = privatizer.update(zeros, (key, kept))
        noisy = jax.tree.map(
            lambda whole, added: whole + deviation.astype(whole.dtype) * added, total, noise
        )
        return noisy, kept

    def _matrix(self, like: PyTree) -> Any:
        """C^-1, row by row, in the precision of such arrays."""
        require_libraries()
        from jax_privacy.matrix_factorization import (  # noqa: PLC0415 - optional
            streaming_matrix,
            toeplitz,
        )

        if len(self.coefficients) == 1:
            return streaming_matrix.identity()
        dtype = jax.tree.leaves(like)[0].dtype
        return toeplitz.inverse_as_streaming_matrix(jnp.asarray(self.coefficients, dtype))


@functools.lru_cache(maxsize=32)
def banded(bands: int, horizon: int) -> np.ndarray:
    """The coefficients of C, its first column: float64 [bands], of norm 1.

    Example:
      >>> banded(2, 100).round(3).tolist()
      [0.796, 0.606]
    """
    require_libraries()
    from jax_privacy.matrix_factorization import toeplitz  # noqa: PLC0415 - optional

    # Also while a round is traced, and where a user wants strict dtypes.
    with jax.ensure_compile_time_eval(), jax.numpy_dtype_promotion("standard"):
        return np.asarray(toeplitz.optimize_banded_toeplitz(horizon, bands), np.float64)
