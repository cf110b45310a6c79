"""Checks of a population's arguments, and random matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedax.theory.errors import TheoryError

# Limit on the numbers in the clients' matrices, N d^2: 64 MiB, of which a computation holds several
# at a time.
MOST_NUMBERS = 2**23

# Number of letters quoted of a refused value.
_MOST_LETTERS = 200


def as_population(value: Any) -> Any:
    """The population, or an error if it is not one."""
    if not hasattr(value, "probabilities") or not hasattr(value, "linear"):
        raise TheoryError(
            "The clients must be a QuadraticPopulation, such as from "
            "QuadraticPopulation.from_centres, .from_linear or .random, but are of type "
            f"{type(value).__name__}."
        )
    return value


def as_array(name: str, value: Any) -> np.ndarray:
    """Finite numbers as a new float64 array."""
    try:
        array = np.array(value, float)
    except OverflowError:
        raise TheoryError(f"{name} must be finite, but one is beyond float64.") from None
    except (TypeError, ValueError) as error:
        shown = repr(value)
        shown = shown if len(shown) <= _MOST_LETTERS else f"{shown[:_MOST_LETTERS]}..."
        raise TheoryError(f"{name} must be numbers, but is {shown}: {error}.") from None
    if not np.isfinite(array).all():
        raise TheoryError(f"{name} must be finite, but one is {array[~np.isfinite(array)][0]}.")
    return array


def as_number(name: str, value: Any) -> float:
    """A finite real number as a float."""
    array = as_array(name, value)
    if array.ndim:
        raise TheoryError(f"{name} must be a number, but is {value}.")
    return float(array)


def as_count(name: str, value: Any, at_least: int = 1) -> int:
    """A whole number of at least `at_least`."""
    number = as_number(name, value)
    if number != int(number) or number < at_least:
        raise TheoryError(f"{name} must be a whole number of at least {at_least}, but is {value}.")
    return int(number)


def as_size(num_clients: Any, dimension: Any) -> tuple[int, int]:
    """The number N of clients and the dimension d.

    Raises:
      TheoryError: if they are not positive integers, or the matrices would be too large (N d^2
        numbers).
    """
    num_clients, d = as_count("num_clients", num_clients), as_count("dimension", dimension)
    if num_clients * d**2 > MOST_NUMBERS:
        raise TheoryError(
            f"{num_clients:,} clients in {d:,} dimensions have matrices of "
            f"{num_clients * d**2:,} numbers, more than the limit of {MOST_NUMBERS:,}. "
            "Use fewer clients or fewer dimensions."
        )
    return num_clients, d


def as_matrices(name: str, value: Any, num_clients: int, d: int) -> np.ndarray:
    """A matrix for every client, [N, d, d], from numbers [N] where d is 1."""
    as_size(num_clients, d)
    matrices = as_array(name, value)
    if matrices.ndim == 1 and d == 1:
        matrices = matrices[:, None, None]
    if matrices.shape != (num_clients, d, d):
        raise TheoryError(
            f"{name} must be [{num_clients}, {d}, {d}] for {num_clients} clients with centres in "
            f"{d} dimensions, but the shape is {matrices.shape}."
        )
    return matrices


def as_probabilities(value: Any, num_clients: int) -> np.ndarray:
    """Weights >= 0, [N], scaled to sum to 1; None: all equal."""
    p = np.ones(num_clients) if value is None else as_array("probabilities", value)
    with np.errstate(over="ignore"):
        total = p.sum()
    if p.shape != (num_clients,) or (p < 0).any() or not 0 < total < np.inf:
        raise TheoryError(
            f"probabilities must be {num_clients} numbers >= 0, not all 0, whose sum is finite, "
            f"but are {p}."
        )
    return p / p.sum()


def as_covariances(noise: Any, num_clients: int, d: int) -> np.ndarray:
    """The noise's covariance for every client, [N, d, d]."""
    given = as_array("noise", noise)
    if given.ndim == 0:
        given = given * np.eye(d) / d
    if given.shape not in ((d, d), (num_clients, d, d)) or not _are_covariances(given):
        raise TheoryError(
            f"noise must be a number >= 0 or a covariance [{d}, {d}], symmetric and without "
            f"negative eigenvalues, one for all clients or one for each, but is {noise}."
        )
    return np.array(np.broadcast_to(given, (num_clients, d, d)))


def _are_covariances(matrices: np.ndarray) -> bool:
    """Whether matrices [..., d, d] are symmetric, without negative eigenvalues."""
    asymmetry = np.abs(matrices - matrices.swapaxes(-1, -2)).max()
    return bool(
        asymmetry <= 1e-8 * np.abs(matrices).max()
        and np.linalg.eigvalsh(matrices).min() >= -1e-12
    )


def spread(values: np.ndarray, p: np.ndarray) -> float:
    """Root of E|v_i - E v|^2, with the Euclidean norm of vectors, the operator norm of matrices."""
    return float(np.sqrt(p @ norms(values - np.tensordot(p, values, 1)) ** 2))


def norms(values: np.ndarray) -> np.ndarray:
    """The norm of each vector or matrix; infinite where one is beyond float64."""
    axes = tuple(range(1, values.ndim))
    finite = np.isfinite(values).all(axes)
    found = np.full(len(values), np.inf)
    found[finite] = np.linalg.norm(values[finite], 2, axis=axes)
    return found


def random_matrices(
    rng: np.random.Generator, p: np.ndarray, d: int, mu: float, L: float, sigma_A: float | None
) -> np.ndarray:
    """Symmetric matrices whose extreme eigenvalues are mu and L, with this sigma_A."""
    num_clients = len(p)
    if d == 1 and num_clients == 1 and mu < L:
        raise TheoryError(
            f"One client of dimension 1 has one eigenvalue, so mu = {mu:g} must equal L = {L:g}."
        )
    if d == 1:
        # Two clients at the ends; q sends the others from the ends (0) to the middle (infinity).
        u = rng.uniform(-1, 1, num_clients)
        u[: min(2, num_clients)] = [-1, 1][: num_clients]

        def family(s: float) -> np.ndarray:
            return (np.sign(u) * np.abs(u) ** (1 / s - 1 if s > 0 else np.inf))[:, None, None]
    else:
        rotations = np.linalg.qr(rng.normal(size=(num_clients + 1, d, d)))[0]
        spectra = rng.uniform(size=(num_clients + 1, d))
        spectra[:, 0], spectra[:, -1] = 0, 1
        drawn = (rotations * spectra[:, None, :]) @ rotations.swapaxes(1, 2)

        def family(s: float) -> np.ndarray:  # from all alike to all at random
            return (1 - s) * drawn[0] + s * drawn[1:]

    def scaled(s: float) -> np.ndarray:
        """The family's member, moved to have its extreme eigenvalues at mu and L."""
        matrices = family(s)
        values = np.linalg.eigvalsh(matrices)
        low, high = values.min(), values.max()
        if high == low:
            return np.broadcast_to(np.eye(d) * mu, matrices.shape)
        unit = (matrices - low * np.eye(d)) / (high - low)
        return mu * np.eye(d) + (L - mu) * unit

    if sigma_A is None:
        return scaled(0.5 if d == 1 else 1.0)
    least, most = (spread(scaled(s), p) for s in (0.0, 1.0))
    tolerance = 1e-12 * L
    if not least - tolerance <= sigma_A <= most + tolerance:
        raise TheoryError(
            f"sigma_A cannot be {sigma_A:g} for {num_clients} clients of dimension {d} with "
            f"eigenvalues in [{mu:g}, {L:g}]; this draw can have {least:.4g} to {most:.4g}."
        )
    if most - least <= tolerance:
        return scaled(0.0)
    from scipy.optimize import brentq  # noqa: PLC0415 - slow to import

    wanted = min(max(sigma_A, least), most)
    share: Any = brentq(lambda s: spread(scaled(s), p) - wanted, 0, 1, xtol=1e-15)
    return scaled(share)
