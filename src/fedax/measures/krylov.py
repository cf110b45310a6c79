"""Clients' Hessians on small subspaces, found by Hessian-vector products."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import Array, Model, Params
from fedax.clients.gradients import Loss, full_gradient, loss_gradient
from fedax.clients.local_training import Weighting
from fedax.data.cohort_data import ClientData, CohortData
from fedax.data.hold_out import spread_evenly

# What is left of a vector counts as rounding below this share of it.
DEPENDENT = 1e-6


class ClientLosses:
    """Derivatives of the clients' losses at x, with vectors in float64 on the host.

    Clients without examples are left out; i counts the others.

    Args:
      model: the learning problem.
      params: x.
      cohort: the clients.
      key: for random losses; every derivative uses the same draws.
      batch_size: examples per batch.
      max_examples: maximum number of examples per client, evenly spaced; None: all.

    Attributes:
      gradients: g_i, [N, P].

    Raises:
      ValueError: if no client has examples, or a gradient is not finite.
    """

    def __init__(
        self,
        model: Model,
        params: Params,
        cohort: CohortData,
        key: Array,
        *,
        batch_size: int,
        max_examples: int | None,
    ) -> None:
        sizes = np.asarray(cohort.num_examples)
        places = np.flatnonzero(sizes > 0)
        if not len(places):
            raise ValueError(f"No client of the cohort has examples; num_examples is {sizes}.")
        gradient = loss_gradient(model)

        def client_gradient(x: Params, place: Array) -> tuple[Loss, Params]:
            data = ClientData(
                cohort.arrays, cohort.starts[place], cohort.num_examples[place], cohort.capacity,
                largest=cohort.largest,
            )
            if max_examples is not None:
                data = spread_evenly(data, jnp.minimum(data.num_examples, max_examples))
            return full_gradient(gradient, x, data, key, batch_size=batch_size)

        def product(x: Params, v: Params, place: Array) -> Params:
            return jax.jvp(lambda x: client_gradient(x, place)[1], (x,), (v,))[1]

        self._params, self._places = params, [jnp.int32(place) for place in places]
        self._names = np.asarray(cohort.client_ids)[places]
        self._gradient, self._product = jax.jit(client_gradient), jax.jit(product)
        found = [self._gradient(params, place) for place in self._places]
        self.gradients = np.stack([flat(tree) for _, tree in found])
        for i, vector in enumerate(self.gradients):
            self._require_finite(i, vector, "gradient")
        self._sizes = sizes[places].astype(float)
        self._tokens = np.array([float(loss.weight) for loss, _ in found])

    def probabilities(self, weighting: Weighting) -> np.ndarray:
        """p_i, [N], as in `LocalOptions`; tokens are counted in the examples used.

        Raises:
          ValueError: if all weights are 0.
        """
        weights = {
            "num_examples": self._sizes, "num_tokens": self._tokens,
            "uniform": np.ones_like(self._sizes),
        }[weighting]
        if not weights.sum() > 0:
            raise ValueError(f"With weighting {weighting!r} every client has weight 0.")
        return weights / weights.sum()

    def mean(self, params: Params, p: np.ndarray) -> float:
        """sum_i p_i f_i at any parameters."""
        losses = [self._gradient(params, place)[0].mean for place in self._places]
        return float(p @ np.array([float(loss) for loss in losses]))

    def product(self, i: int, v: np.ndarray) -> np.ndarray:
        """H_i v, with H_i the Hessian of f_i at x.

        Raises:
          ValueError: if it is not finite.
        """
        found = flat(self._product(self._params, like(v, self._params), self._places[i]))
        return self._require_finite(i, found, "Hessian")

    def _require_finite(self, i: int, vector: np.ndarray, what: str) -> np.ndarray:
        if not np.isfinite(vector).all():
            raise ValueError(
                f"The {what} of client {self._names[i]} is not finite at these parameters."
            )
        return vector


def krylov_space(
    product: Callable[[int, np.ndarray], np.ndarray],
    p: np.ndarray,
    starts: Sequence[np.ndarray],
    otherwise: Iterator[np.ndarray],
    num_directions: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The block Krylov space of sum_i p_i H_i, and every H_i on it.

    The rows of V span the first m of s_1, s_2, ..., H s_1, H s_2, ..., H^2 s_1, ... With one start
    this is the Lanczos process; with one H_i its eigenvalues on V are the Ritz values.

    Args:
      product: (i, v) -> H_i v.
      p: [N].
      starts: s_j, [P] each.
      otherwise: an endless iterator of vectors, for when the space is exhausted.
      num_directions: m, 1 <= m <= P.

    Returns:
      V [m, P], orthonormal rows, and the V H_i V^T [N, m, m].

    Example:
      >>> H = np.diag([1.0, 2.0, 5.0])
      >>> V, (T,) = krylov_space(
      ...     lambda i, v: H @ v, np.ones(1), [np.array([1.0, 1.0, 0.0])], iter([np.ones(3)]), 3
      ... )
      >>> np.abs(V).round(4).tolist()  # the third is from outside
      [[0.7071, 0.7071, 0.0], [0.7071, 0.7071, 0.0], [0.0, 0.0, 1.0]]
      >>> np.linalg.eigvalsh(T).round(4).tolist()
      [1.0, 2.0, 5.0]
    """
    queue = collections.deque(starts)
    basis = None
    matrices = np.zeros((len(p), num_directions, num_directions))
    count = 0
    while count < num_directions:
        candidate = queue.popleft() if queue else next(otherwise)
        if basis is None:
            basis = np.zeros((num_directions, len(candidate)))
        v = _orthonormal(candidate, basis[:count])
        if v is None:
            continue
        basis[count] = v
        count += 1
        mean = np.zeros_like(v)
        for i, weight in enumerate(p):
            image = product(i, v)
            matrices[i, :count, count - 1] = basis[:count] @ image
            mean += weight * image
        queue.append(mean)
    assert basis is not None
    return basis, np.triu(matrices) + np.triu(matrices, 1).swapaxes(1, 2)


def _orthonormal(vector: np.ndarray, basis: np.ndarray) -> np.ndarray | None:
    """The part of the vector orthogonal to the rows, scaled to 1; None if that is rounding."""
    left = vector
    for _ in range(2):  # once leaves rounding that grows as what is left is scaled up
        left = left - (basis @ left) @ basis
    length = np.linalg.norm(left)
    return left / length if length > DEPENDENT * np.linalg.norm(vector) else None


def flat(tree: Params) -> np.ndarray:
    """All leaves in one float64 vector."""
    leaves = jax.device_get(jax.tree.leaves(tree))
    return np.concatenate([np.asarray(leaf).astype(float).ravel() for leaf in leaves])


def like(vector: np.ndarray, tree: Params) -> Params:
    """The tree with the vector's numbers in it, in the tree's own precision."""
    leaves, structure = jax.tree.flatten(tree)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
    parts = zip(np.split(vector, ends), leaves, strict=True)
    return structure.unflatten(
        [jnp.asarray(part.reshape(leaf.shape), leaf.dtype) for part, leaf in parts]
    )
