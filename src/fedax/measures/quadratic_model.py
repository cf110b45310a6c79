r"""A quadratic model of any problem at one point, and the advice it gives.

On the rows of V, [m, P], which are orthonormal, the clients' losses around x become

.. math::
    f_i(x + V^T z) \approx f_i(x) + b_i^T z + \tfrac12 z^T A_i z, \qquad
    b_i = V \nabla f_i(x), \quad A_i = V \nabla^2 f_i(x) V^T,

and these clients form a `QuadraticPopulation`, to which all of `fedax.theory` applies.

V is a block Krylov space of the mean Hessian. With g_i and H_i the clients' gradients and Hessians
at x, it starts from E g_i, E H_i g_i and the g_i themselves (for many clients, random mixtures of
them). E g_i leads to x*. E H_i g_i leads from there to the minimiser of FedAvg: its surrogate's
gradient is K E g_i - gamma K (K - 1) / 2 E H_i g_i + O(gamma^2) (Charles and Konečný 2020, Theorem
3), which the model could not represent without it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import Array, Model, Params
from fedax.clients.local_training import Weighting
from fedax.data.cohort_data import CohortData, require_cohort
from fedax.measures.krylov import ClientLosses, flat, krylov_space, like
from fedax.mistakes.model import require_model
from fedax.theory.charles2020 import theorem_17
from fedax.theory.errors import SingularError
from fedax.theory.population import QuadraticPopulation
from fedax.theory.surrogate import phi, surrogate
from fedax.validate import check_choice, check_count, check_number

# Rounding of what is computed from many examples, in units of the parameters' precision.
ROUNDING = 10
# The share of the predicted fall of the loss that must be real for the model to hold.
HOLDS = 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class QuadraticModel:
    """Clients' losses to second order around x, in m directions; see `quadratic_model`.

    Ritz values are eigenvalues of a matrix on a subspace. They are between the matrix's own extreme
    eigenvalues, so L is estimated from below, mu from above, and a negative one proves negative
    curvature.

    Attributes:
      params: x, where z = 0.
      basis: V, [m, P], orthonormal rows; the P columns are the parameters, leaf after leaf.
      matrices: A_i as measured, [N, m, m]; they may have negative eigenvalues.
      linear: b_i, [N, m].
      probabilities: p_i, [N].
      ritz_values: smallest and largest from each client's own Lanczos process, [N, 2].
      damping: smallest eigenvalue of the population's matrices; 0: as measured.
      agreement: (f(x) - f(x + V^T z*)) / (f(x) - its model's minimum), where z* is the model's
        minimiser. It is 1 if the model is exact, and negative if its minimum is worse than x; NaN
        if not measured.
    """

    params: Params
    basis: np.ndarray
    matrices: np.ndarray
    linear: np.ndarray
    probabilities: np.ndarray
    ritz_values: np.ndarray
    damping: float
    agreement: float

    @functools.cached_property
    def population(self) -> QuadraticPopulation:
        """The clients b_i^T z + z^T A_i z / 2, eigenvalues of A_i below `damping` raised to it."""
        values, vectors = np.linalg.eigh(self.matrices)
        lifted = (vectors * np.maximum(values, self.damping)[:, None, :]) @ vectors.swapaxes(1, 2)
        touched = (values[:, 0] < self.damping) & (self.damping > 0)
        matrices = np.where(touched[:, None, None], lifted, self.matrices)
        return QuadraticPopulation.from_linear(matrices, self.linear, self.probabilities)

    @functools.cached_property
    def spectra(self) -> np.ndarray:
        """Eigenvalues of the A_i as measured, ascending, [N, m]."""
        return np.linalg.eigvalsh(self.matrices)

    @property
    def mean_spectrum(self) -> np.ndarray:
        """Eigenvalues of E A_i as measured, Ritz values of the mean Hessian, ascending, [m]."""
        return np.linalg.eigvalsh(np.tensordot(self.probabilities, self.matrices, 1))

    @property
    def L(self) -> float:  # noqa: N802 - the field's letter
        """The largest Ritz value of any client's Hessian."""
        return float(max(self.ritz_values.max(), self.spectra.max()))

    @property
    def mu(self) -> float:
        """The smallest Ritz value of any client's Hessian, before damping."""
        return float(min(self.ritz_values.min(), self.spectra.min()))

    @property
    def rounding(self) -> float:
        """Eigenvalues up to this size cannot be distinguished from 0."""
        return _rounding(self.params, max(self.L, -self.mu))

    @property
    def negative_share(self) -> float:
        """The share of the A_i's eigenvalues that are below 0 by more than rounding."""
        return float((self.spectra < -self.rounding).mean())

    @property
    def lifted_share(self) -> float:
        """The share of the A_i's eigenvalues that are raised to `damping`."""
        return float((self.spectra < self.damping).mean()) if self.damping > 0 else 0.0

    def with_damping(self, damping: float) -> QuadraticModel:
        """The same measurements with a different damping >= 0; agreement is not measured again."""
        check_number("damping", damping, at_least=0)
        return dataclasses.replace(self, damping=float(damping), agreement=np.nan)

    def params_at(self, z: np.ndarray) -> Params:
        """The parameters x + V^T z."""
        return like(flat(self.params) + z @ self.basis, self.params)


def quadratic_model(
    model: Model,
    params: Params,
    cohort: CohortData,
    key: Array,
    *,
    num_directions: int = 20,
    num_lanczos_steps: int = 10,
    batch_size: int = 20,
    max_examples: int | None = None,
    weighting: Weighting = "num_examples",
    damping: float | None = None,
) -> QuadraticModel:
    """Measures a second-order model of a cohort's losses around the parameters.

    With as many directions as parameters V is the whole space, and quadratic losses are modelled
    exactly. With fewer, anything outside V is ignored.

    Real Hessians have negative eigenvalues, for which a quadratic has no minimum, and many near 0,
    for which the minimum is far outside the region where the model is valid. The population
    therefore has max(l, damping) instead of an eigenvalue l: this is the matrix nearest to A_i
    without smaller eigenvalues (|l| would be twice as far). The damping is the smallest of 0 (if
    all eigenvalues are positive) and 1e-4, 2e-4, 4e-4, ... times L for which the loss at the
    model's minimiser falls by at least half of the predicted amount. A quantity that changes much
    if damping is halved or doubled, such as sigma_c, is uncertain to that extent.

    Each client computes num_directions + num_lanczos_steps + 1 Hessian-vector products. One float64
    vector like the parameters is kept on the host for every direction and client.

    Args:
      model: the learning problem; its loss must be differentiable twice.
      params: x.
      cohort: the clients, from a `fedax.data.CohortReader`. Clients with num_examples 0 are left
        out.
      key: for the starts of the clients' own Lanczos processes, and for random losses.
      num_directions: m >= 1; at most the number of parameters is used.
      num_lanczos_steps: steps of each client's own Lanczos process, >= 1.
      batch_size: examples per batch; affects only rounding, speed and memory, unless the loss is
        random.
      max_examples: maximum number of examples per client, evenly spaced; None: all.
      weighting: p_i, as in `LocalOptions`; tokens are counted in the examples used.
      damping: as a share of L, >= 0; 0: eigenvalues as measured; None: chosen automatically.

    Raises:
      ValueError: if no client has examples, a client's derivatives are not finite, or an argument
        is out of range.

    Example:
      >>> import fedax
      >>> from fedax.data import CohortReader
      >>> from fedax.models.quadratic import quadratic
      >>> arrays = {"A": np.array([[[1.0]], [[2.0]]]), "b": np.array([[-1.0], [-1.0]])}
      >>> data = fedax.FederatedDataset(arrays, np.array([0, 1, 2]))  # centres 1 and 1/2
      >>> found = quadratic_model(
      ...     quadratic(jnp.zeros(1)), {"x": jnp.zeros(1)}, CohortReader(data)(np.arange(2)),
      ...     jax.random.key(0),
      ... )
      >>> round(found.mu, 4), round(found.L, 4), round(found.population.sigma_c, 4)
      (1.0, 2.0, 0.25)
      >>> found.params_at(found.population.minimiser)["x"].round(4).tolist()
      [0.66670...]
    """
    require_model(model, "fedax.quadratic_model(model, params, cohort, key)")
    require_cohort(cohort)
    for name, count in (("num_directions", num_directions), ("batch_size", batch_size),
                        ("num_lanczos_steps", num_lanczos_steps), ("max_examples", max_examples)):
        if count is not None:
            check_count(name, count)
    check_choice("weighting", weighting, get_args(Weighting))
    if damping is not None:
        check_number("damping", damping, at_least=0)
    start_key, loss_key = jax.random.split(key)
    rng = np.random.default_rng(np.asarray(jax.random.bits(start_key, (4,), jnp.uint32)))
    losses = ClientLosses(
        model, params, cohort, loss_key, batch_size=batch_size, max_examples=max_examples
    )
    gradients, p = losses.gradients, losses.probabilities(weighting)
    num_clients, num_parameters = gradients.shape

    def random() -> Iterator[np.ndarray]:
        while True:
            yield rng.normal(size=num_parameters)

    curved = np.sum([p[i] * losses.product(i, gradients[i]) for i in range(num_clients)], axis=0)
    own = gradients
    if num_clients > num_directions // 2:  # the other half is for what the Hessian makes of them
        own = (p * rng.normal(size=(num_directions // 2, num_clients))) @ gradients
    basis, matrices = krylov_space(
        losses.product, p, [p @ gradients, curved, *own], random(),
        min(num_directions, num_parameters),
    )
    num_steps = min(num_lanczos_steps, num_parameters)
    lanczos = np.stack([
        krylov_space(lambda _, v, i=i: losses.product(i, v), np.ones(1), [], random(), num_steps)[1]
        for i in range(num_clients)
    ])
    ritz_values = np.linalg.eigvalsh(lanczos[:, 0])[:, [0, -1]]
    found = QuadraticModel(
        params, basis, matrices, gradients @ basis.T, p, ritz_values, 0.0, np.nan
    )
    if damping is not None:
        shares = [damping]
    else:
        shares = [] if found.spectra.min() <= found.rounding else [0.0]
        shares += [1e-4 * 2**k for k in range(14)]
    for share in shares:
        found = found.with_damping(share * max(found.L, -found.mu))
        found = dataclasses.replace(found, agreement=_agreement(found, losses))
        if found.agreement >= HOLDS:
            break
    return found


class AdviceRow(NamedTuple):
    """Prediction of a quadratic model for FedAvg with one gamma and K.

    Attributes:
      client_learning_rate: gamma.
      num_local_steps: K.
      relative_rate: gamma L, with L over all clients' Ritz values. In the steepest direction local
        steps overshoot above 1 and diverge above 2.
      gap: |x*(gamma, K) - x*|, the distance between FedAvg's minimiser and the true one. NaN if
        FedAvg diverges, because its surrogate loss is not convex or its averaged models overshoot:
        not all eigenvalues of gamma E[Q_i A_i] are in (0, 2).
      excess_loss: f(x*(gamma, K)) - f(x*); NaN if FedAvg diverges.
      condition_number: condition number of the surrogate loss; inf if FedAvg diverges.
      bound: Theorem 17's bound on the gap; NaN if gamma L >= 1, which it does not cover.
      num_not_convex: clients whose own surrogate loss is not convex.
    """

    client_learning_rate: float
    num_local_steps: int
    relative_rate: float
    gap: float
    excess_loss: float
    condition_number: float
    bound: float
    num_not_convex: int


def advise(
    quadratic: QuadraticModel, client_learning_rate: float, num_local_steps: int
) -> list[AdviceRow]:
    """Predicts FedAvg's surrogate gap for gamma and K, and for half and double of each.

    Args:
      quadratic: the clients, from `quadratic_model`.
      client_learning_rate: gamma >= 0.
      num_local_steps: K >= 1. Half of it is rounded up.

    Returns:
      The rows (gamma, K), (gamma / 2, K), (2 gamma, K), (gamma, K / 2), (gamma, 2 K), without
      repetitions.

    Raises:
      ValueError: if gamma or K is out of range.
      SingularError: if the model of the loss has no unique minimiser, which can happen with damping
        0.

    Example:
      >>> two = QuadraticModel(  # curvatures 1 and 2, centres 1 and 1/2
      ...     {"x": jnp.zeros(1)}, np.eye(1), np.array([[[1.0]], [[2.0]]]),
      ...     np.array([[-1.0], [-1.0]]), np.array([0.5, 0.5]), np.array([[1.0, 1.0], [2.0, 2.0]]),
      ...     0.0, 1.0,
      ... )
      >>> rows = advise(two, 0.5, 2)
      >>> [(row.client_learning_rate, row.num_local_steps, round(row.gap, 4)) for row in rows]
      [(0.5, 2, 0.0476), (0.25, 2, 0.0175), (1.0, 2, 0.3333), (0.5, 1, 0.0), (0.5, 4, 0.0753)]
    """
    check_number("client_learning_rate", client_learning_rate, at_least=0)
    check_count("num_local_steps", num_local_steps)
    _ = quadratic.population.minimiser  # of all rows, so its error comes before any
    gamma, K = float(client_learning_rate), int(num_local_steps)
    pairs = [(gamma, K), (gamma / 2, K), (2 * gamma, K), (gamma, (K + 1) // 2), (gamma, 2 * K)]
    return [_predict(quadratic, *pair) for pair in dict.fromkeys(pairs)]


def _predict(quadratic: QuadraticModel, gamma: float, K: int) -> AdviceRow:
    clients = quadratic.population
    relative_rate = gamma * quadratic.L
    gap = excess_loss = bound = np.nan
    condition_number = np.inf
    own = phi(K, clients.eigen[0], gamma)
    if np.isfinite(own).all():  # (1 - gamma l)^K overflows where local steps diverge
        found = surrogate(clients, gamma, K)
        if found.spectrum[0] > 0 and gamma * found.spectrum[-1] < 2:
            gap, excess_loss = found.gap, found.excess_loss
            condition_number = found.condition_number
    if relative_rate < 1 and clients.mu > 0:
        bound = theorem_17(clients, gamma, K).bound
    return AdviceRow(
        gamma, K, relative_rate, gap, excess_loss, condition_number, bound,
        int((own <= 0).any(1).sum()),
    )


def _agreement(quadratic: QuadraticModel, losses: ClientLosses) -> float:
    """See `QuadraticModel`; 1 if the model sees nothing to gain, NaN if it has no minimiser."""
    try:
        z = quadratic.population.minimiser
    except SingularError:
        return np.nan
    before = losses.mean(quadratic.params, quadratic.probabilities)
    predicted = -float(quadratic.population.loss(z))
    if predicted <= _rounding(quadratic.params, abs(before)):
        return 1.0
    return (before - losses.mean(quadratic.params_at(z), quadratic.probabilities)) / predicted


def _rounding(params: Params, scale: float) -> float:
    """What is not told from 0 among numbers of this size, computed like the parameters."""
    return ROUNDING * scale * max(float(jnp.finfo(x.dtype).eps) for x in jax.tree.leaves(params))
