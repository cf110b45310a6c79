r"""Populations of clients with quadratic losses, for which federated methods are solved exactly.

Symbols of this package, as in Charles and Konečný 2020, sections 2 and 3:

=================  ==================================================================
:math:`A_i, c_i`   matrix and centre of client i: f_i(x) = (x - c_i)^T A_i (x - c_i) / 2
:math:`b_i`        -A_i c_i, so grad f_i(x) = A_i x + b_i; exists for singular A_i too
:math:`p_i`        probability of client i; E is the mean with these weights
x*                 minimiser of f = E f_i
gamma, eta         client and server learning rate
K, Theta           number of local steps; weights of the local gradients
mu, L, kappa       smallest and largest eigenvalue of any A_i, and L / mu
sigma_A, sigma_c   root mean square of |A_i - E A| (operator norm) and of |c_i - E c|
G2                 largest E|noise|^2 of an example's gradient (Assumption 4)
M, B               clients a round, examples a minibatch
=================  ==================================================================
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedax.theory.errors import SingularError, TheoryError
from fedax.theory.given import (
    as_array,
    as_count,
    as_covariances,
    as_matrices,
    as_number,
    as_probabilities,
    as_size,
    norms,
    random_matrices,
    spread,
)

# Below this share of the largest eigenvalue a matrix counts as singular.
SINGULAR = 1e-13


@dataclasses.dataclass(frozen=True, eq=False)
class QuadraticPopulation:
    r"""Clients with losses :math:`f_i(x) = x^T A_i x / 2 + b_i^T x`, in float64.

    Build one with `from_centres`, `from_linear`, `from_density`, `random` or `from_regression`.

    Attributes:
      matrices: A_i, [N, d, d], symmetric.
      linear: b_i = -A_i c_i, [N, d].
      probabilities: p_i >= 0, [N], sum 1.
      noise: covariance of one example's gradient about its client's, [N, d, d]; independent of x.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> clients.minimiser.round(6).tolist()  # of (x - 1)^2 / 4 + (x - 1/2)^2 / 2
      [0.666667]
    """

    matrices: np.ndarray
    linear: np.ndarray
    probabilities: np.ndarray
    noise: np.ndarray

    @classmethod
    def from_linear(
        cls, matrices: Any, linear: Any, probabilities: Any = None, noise: Any = 0.0
    ) -> QuadraticPopulation:
        """From A_i and b_i, with grad f_i(x) = A_i x + b_i.

        Args:
          matrices: A_i, [N, d, d], or [N] if d is 1.
          linear: b_i, [N, d] or [N].
          probabilities: p_i >= 0, [N], scaled to sum to 1; None: all equal.
          noise: noise of an example's gradient: its covariance [d, d] or [N, d, d], or a number G2
            >= 0, its mean square, spread evenly over the directions.

        Raises:
          TheoryError: if the shapes do not fit, a value is not finite, a matrix is not symmetric,
            or probabilities or noise are out of range.
        """
        linear = as_array("linear", linear)
        if linear.ndim == 1:
            linear = linear[:, None]
        if linear.ndim != 2 or 0 in linear.shape:
            raise TheoryError(
                f"A population needs [clients, d] numbers, at least one of each, but the shape is "
                f"{linear.shape}."
            )
        num_clients, d = linear.shape
        matrices = as_matrices("matrices", matrices, num_clients, d)
        asymmetry = np.abs(matrices - matrices.swapaxes(1, 2)).max((1, 2))
        if (asymmetry > 1e-8 * np.abs(matrices).max((1, 2))).any():
            raise TheoryError(
                f"matrices must be symmetric, but client {asymmetry.argmax()}'s differs from its "
                f"transpose by {asymmetry.max():.3g}."
            )
        p = as_probabilities(probabilities, num_clients)
        covariance = as_covariances(noise, num_clients, d)
        matrices = (matrices + matrices.swapaxes(1, 2)) / 2
        return cls(matrices, linear, p, covariance)

    @classmethod
    def from_centres(
        cls, matrices: Any, centres: Any, probabilities: Any = None, noise: Any = 0.0
    ) -> QuadraticPopulation:
        """From A_i and c_i; the other arguments are those of `from_linear`.

        Args:
          matrices: A_i, [N, d, d], or [N] if d is 1.
          centres: c_i, [N, d] or [N].
          probabilities, noise: see `from_linear`.
        """
        centres = as_array("centres", centres)
        if centres.ndim == 1:
            centres = centres[:, None]
        if centres.ndim != 2:
            raise TheoryError(f"centres must be [clients, d], but the shape is {centres.shape}.")
        matrices = as_matrices("matrices", matrices, *centres.shape)
        linear = -np.einsum("nij,nj->ni", matrices, centres)
        return cls.from_linear(matrices, linear, probabilities, noise)

    @classmethod
    def from_density(
        cls,
        density: Callable[[np.ndarray], Any],
        interval: tuple[float, float],
        curvature: Callable[[np.ndarray], Any] = lambda z: z,
        centre: Callable[[np.ndarray], Any] = lambda z: 1 / z,
        num_nodes: int = 50,
        noise: Any = 0.0,
    ) -> QuadraticPopulation:
        """A continuum of clients z on an interval, by Gauss-Lobatto quadrature.

        The nodes are the clients. They include both ends of the interval, so mu and L are exact if
        the curvature is monotone. Expectations of polynomials of degree up to 2 num_nodes - 3 are
        exact, and those of analytic functions nearly so.

        Args:
          density: z [n] -> density [n] >= 0, up to a factor; finite at the ends.
          interval: its ends, left < right.
          curvature: z [n] -> A_z, [n] or [n, d, d]. Default: z.
          centre: z [n] -> c_z, [n] or [n, d]. Default: 1 / z.
          num_nodes: at least 2.
          noise: see `from_linear`.

        Example:
          >>> clients = QuadraticPopulation.from_density(lambda z: 8 * z / 15, (0.5, 2.0))
          >>> clients.minimiser.round(10).tolist()  # 5/7
          [0.7142857143]
        """
        ends = as_array("interval", interval)
        if ends.shape != (2,) or ends[0] >= ends[1]:
            raise TheoryError(f"interval must be two numbers, left < right, but is {interval}.")
        left, right = ends
        num_nodes = as_count("num_nodes", num_nodes, at_least=2)
        legendre = np.polynomial.legendre.Legendre.basis(num_nodes - 1)
        nodes = np.concatenate([[-1.0], np.sort(legendre.deriv().roots().real), [1.0]])
        weights = 2 / (num_nodes * (num_nodes - 1) * legendre(nodes) ** 2)
        z = (left + right) / 2 + (right - left) / 2 * nodes
        p = as_array("density", density(z)) * weights
        return cls.from_centres(curvature(z), centre(z), p, noise)

    @classmethod
    def random(
        cls,
        num_clients: int,
        dimension: int,
        *,
        mu: float = 1.0,
        L: float = 10.0,
        sigma_A: float | None = None,
        sigma_c: float = 1.0,
        noise: Any = 0.0,
        probabilities: Any = None,
        seed: int = 0,
    ) -> QuadraticPopulation:
        """A random population with exactly these constants.

        Args:
          num_clients: N >= 1.
          dimension: d >= 1.
          mu, L: 0 < mu <= L, the smallest and largest eigenvalue of any A_i.
          sigma_A: >= 0; None: as drawn. With d = 1 only some values are possible.
          sigma_c: >= 0; 0 for one client.
          noise, probabilities: see `from_linear`.
          seed: the same seed gives the same population.

        Raises:
          TheoryError: if an argument is out of range, or sigma_A is impossible; the message gives
            the possible range.

        Example:
          >>> clients = QuadraticPopulation.random(20, 3, mu=0.5, L=4, sigma_A=1, sigma_c=2)
          >>> round(clients.mu, 9), round(clients.L, 9), round(clients.sigma_A, 9)
          (0.5, 4.0, 1.0)
        """
        num_clients, dimension = as_size(num_clients, dimension)
        mu, L, sigma_c = (
            as_number(name, value)
            for name, value in (("mu", mu), ("L", L), ("sigma_c", sigma_c))
        )
        if not 0 < mu <= L:
            raise TheoryError(f"mu and L must have 0 < mu <= L, but are {mu:g} and {L:g}.")
        if sigma_c < 0 or (sigma_A is not None and sigma_A < 0):
            raise TheoryError(f"sigma_A and sigma_c must be >= 0, but are {sigma_A}, {sigma_c:g}.")
        rng = np.random.default_rng(as_count("seed", seed, at_least=0))
        p = as_probabilities(probabilities, num_clients)
        matrices = random_matrices(rng, p, dimension, mu, L, sigma_A)
        centres = rng.normal(size=(num_clients, dimension))
        width = spread(centres, p)
        if width > 0:
            mean = p @ centres
            centres = mean + (centres - mean) * sigma_c / width
        return cls.from_centres(matrices, centres, p, noise)

    @classmethod
    def from_regression(
        cls,
        features: Sequence[Any],
        targets: Sequence[Any],
        *,
        ridge: float = 0.0,
        intercept: bool = False,
        weighting: str = "num_examples",
        with_noise: bool = False,
    ) -> QuadraticPopulation:
        r"""From linear or ridge regression data, whose losses are already quadratic:

        .. math:: f_i(x) = \frac{1}{2 n_i} |X_i x - y_i|^2 + \frac{\lambda}{2} |x|^2.

        Args:
          features: X_i [n_i, d] of every client.
          targets: y_i [n_i] of every client.
          ridge: lambda >= 0. A client with fewer than d examples has a centre only if lambda > 0.
          intercept: whether to add a last feature that is always 1; the ridge term includes it.
          weighting: "num_examples" for p_i = n_i / n, or "uniform".
          with_noise: whether a client has its examples' gradient covariance at the pooled
            minimiser. It is exact there; elsewhere the noise of a least-squares gradient is larger.

        Raises:
          TheoryError: if a client's arrays do not fit, or an argument is out of range.

        Example:
          >>> X = [np.array([[1.0], [2.0]]), np.array([[1.0]])]
          >>> y = [np.array([1.0, 2.0]), np.array([3.0])]
          >>> clients = QuadraticPopulation.from_regression(X, y)
          >>> clients.minimiser.round(6).tolist()  # (1 + 4 + 3) / (1 + 4 + 1)
          [1.333333]
        """  # noqa: D415 - the first sentence ends in an equation
        if not np.isfinite(ridge) or ridge < 0:
            raise TheoryError(f"ridge must be a finite number >= 0, but is {ridge}.")
        if weighting not in ("num_examples", "uniform"):
            raise TheoryError(
                f"weighting must be 'num_examples' or 'uniform', but is {weighting!r}."
            )
        if len(features) != len(targets) or not len(features):
            raise TheoryError(
                f"features and targets must have an entry for every client, at least one, but "
                f"have {len(features)} and {len(targets)}."
            )
        clients = []
        for index, (given_x, given_y) in enumerate(zip(features, targets, strict=True)):
            x, y = as_array("features", given_x), as_array("targets", given_y)
            if x.ndim != 2 or y.shape != x.shape[:1] or 0 in x.shape:
                raise TheoryError(
                    f"Client {index} needs features [n, d] and targets [n] with n, d >= 1, but has "
                    f"{x.shape} and {y.shape}."
                )
            if clients and x.shape[1] + intercept != clients[0][0].shape[1]:
                raise TheoryError(
                    f"Client {index} has {x.shape[1]} features, the first one "
                    f"{clients[0][0].shape[1] - intercept}."
                )
            clients.append((np.hstack([x, np.ones((len(x), 1))]) if intercept else x, y))
        eye = np.eye(as_size(len(clients), clients[0][0].shape[1])[1])
        sizes = np.array([len(y) for _, y in clients], float)
        population = cls.from_linear(
            np.stack([x.T @ x / len(x) + ridge * eye for x, _ in clients]),
            np.stack([-x.T @ y / len(x) for x, y in clients]),
            sizes if weighting == "num_examples" else None,
        )
        if not with_noise:
            return population
        at = population.minimiser
        gradients = [x * (x @ at - y)[:, None] for x, y in clients]
        centred = [g - g.mean(0) for g in gradients]
        covariances = np.stack([g.T @ g / len(g) for g in centred])
        return dataclasses.replace(population, noise=covariances)

    @property
    def num_clients(self) -> int:
        """N."""
        return len(self.linear)

    @property
    def dimension(self) -> int:
        """The dimension d."""
        return self.linear.shape[1]

    @functools.cached_property
    def eigen(self) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues [N, d], ascending, and eigenvectors [N, d, d], as columns, of the A_i."""
        values, vectors = np.linalg.eigh(self.matrices)
        return values, vectors

    def apply(self, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """The matrix function of every A_i, [N, d, d], from the function of its eigenvalues."""
        values, vectors = self.eigen
        return (vectors * function(values)[:, None, :]) @ vectors.swapaxes(1, 2)

    def mean(self, values: np.ndarray) -> np.ndarray:
        """The mean over clients, E, of values [N, ...]."""
        with np.errstate(invalid="ignore"):  # of infinities, which `minimise` refuses
            return np.tensordot(self.probabilities, values, 1)

    @functools.cached_property
    def taking_part(self) -> np.ndarray:
        """Whether a client has a positive probability, [N]; the constants are over these."""
        return self.probabilities > 0

    @functools.cached_property
    def centres(self) -> np.ndarray:
        """c_i, [N, d].

        Raises:
          SingularError: if a client's matrix is singular, so it has no unique minimiser.
        """
        values, _ = self.eigen
        sizes = np.abs(values)
        bad = sizes.min(1) <= SINGULAR * sizes.max(1)
        if bad.any():
            client = int(bad.argmax())
            raise SingularError(
                f"Client {client}'s matrix is singular (its smallest eigenvalue is "
                f"{values[client][sizes[client].argmin()]:.3g}), so the client has no centre c_i; "
                "add a ridge term to give it one."
            )
        return -np.linalg.solve(self.matrices, self.linear[:, :, None])[:, :, 0]

    @functools.cached_property
    def matrix(self) -> np.ndarray:
        """A = E A_i, the Hessian of f, [d, d]."""
        return self.mean(self.matrices)

    @functools.cached_property
    def minimiser(self) -> np.ndarray:
        """x*, which minimises f, [d].

        Raises:
          SingularError: if f has no unique minimiser.
        """
        return minimise(self.matrix, self.mean(self.linear), "The loss f")

    def gradients(self, x: Any) -> np.ndarray:
        """Grad f_i(x) of every client, [N, d]."""
        return self.matrices @ as_point(x, self.dimension) + self.linear

    def loss(self, x: Any) -> Any:
        """f(x) = E[x^T A_i x / 2 + b_i^T x] of points [..., d]."""
        return quadratic_value(self.matrix, self.mean(self.linear), x)

    @functools.cached_property
    def mu(self) -> float:
        """The smallest eigenvalue of any A_i."""
        return float(self.eigen[0][self.taking_part].min())

    @functools.cached_property
    def L(self) -> float:  # noqa: N802 - the field's letter
        """The largest eigenvalue of any A_i."""
        return float(self.eigen[0][self.taking_part].max())

    @property
    def kappa(self) -> float:
        """L / mu; inf if mu is not positive, or if the square of L / mu overflows float64."""
        return self.L / self.mu if self.mu > self.L / 1e154 else np.inf

    @functools.cached_property
    def sigma_A(self) -> float:  # noqa: N802
        """Root of E|A_i - A|^2, operator norm (Assumption 3)."""
        return spread(self.matrices, self.probabilities)

    @functools.cached_property
    def sigma_c(self) -> float:
        """Root of E|c_i - E c|^2 (Assumption 3)."""
        return spread(self.centres, self.probabilities)

    @functools.cached_property
    def G2(self) -> float:  # noqa: N802
        """G^2 of Assumption 4: the largest E|example's gradient - grad f_i|^2."""
        return float(np.trace(self.noise, axis1=1, axis2=2)[self.taking_part].max())

    def gradient_dissimilarity(self, x: Any = None) -> float:
        """E|grad f_i(x) - grad f(x)|^2, at x* if x is None (Karimireddy et al. 2020, (A1): G^2)."""
        gradients = self.gradients(self.minimiser if x is None else x)
        return spread(gradients, self.probabilities) ** 2

    @functools.cached_property
    def delta(self) -> float:
        """max_i |A_i - A|, the Hessian dissimilarity of Karimireddy et al. 2020, (A2)."""
        return float(norms(self.matrices - self.matrix)[self.taking_part].max())


def minimise(
    matrix: np.ndarray, linear: np.ndarray, what: str, scale: float | None = None
) -> np.ndarray:
    """The minimiser of x^T H x / 2 + h^T x.

    Args:
      matrix: H.
      linear: h.
      what: the function's name, for the message.
      scale: size of the matrices whose mean is H; None: that of H.

    Raises:
      SingularError: if H is not positive definite.
    """
    if not np.isfinite(matrix).all():
        raise SingularError(f"{what} has no minimiser: its Hessian is not finite.")
    values = np.linalg.eigvalsh(matrix)
    if values[0] <= SINGULAR * (np.abs(values).max() if scale is None else scale):
        raise SingularError(
            f"{what} has no unique minimiser: its Hessian's smallest eigenvalue is "
            f"{values[0]:.3g}, the largest {values[-1]:.3g}."
        )
    return -np.linalg.solve(matrix, linear)


def quadratic_value(matrix: np.ndarray, linear: np.ndarray, x: Any) -> Any:
    """x^T H x / 2 + h^T x of points [..., d]."""
    x = as_point(x, len(linear))
    return np.einsum("...i,ij,...j->...", x, matrix, x) / 2 + x @ linear


def as_point(x: Any, d: int) -> np.ndarray:
    """Points [..., d]; a number is a point if d is 1.

    Raises:
      TheoryError: if the last axis does not have length d.
    """
    x = as_array("a point", x)
    x = x[None] if x.ndim == 0 else x
    if x.shape[-1] != d:
        raise TheoryError(f"A point has {d} coordinates here, but the shape is {x.shape}.")
    return x
