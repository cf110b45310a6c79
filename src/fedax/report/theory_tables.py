"""The tables of `fedax theory`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedax.report.tables import Table
from fedax.theory import charles2020 as paper
from fedax.theory import decay2021, dynamics
from fedax.theory.claims import Claim
from fedax.theory.errors import TheoryError
from fedax.theory.population import QuadraticPopulation
from fedax.theory.prescriptions import (
    corollary_20_gamma,
    largest_gamma,
    largest_K,
    theorem_17_gamma,
)
from fedax.theory.question import Question
from fedax.theory.surrogate import surrogate

# SCAFFOLD's dynamics are worked out up to this size of their state.
LARGEST_STATE = 600
# The largest gamma and K are searched, in hundreds of surrogates, up to this N d^3.
LARGEST_SEARCH = 2**24
# Coordinates of points are shown up to this dimension.
SHOWN = 4


def theory_tables(question: Question) -> list[Table]:
    """All the tables.

    Raises:
      TheoryError: if the population or the surrogate loss does not have a minimiser, or an
        argument is out of range.
    """
    return [
        _clients(question.population), _destination(question), _methods(question),
        _bounds(question), _prescriptions(question),
    ]


def _clients(population: QuadraticPopulation) -> Table:
    meanings = {
        "mu": ("mu", "smallest eigenvalue of any A_i"),
        "L": ("L", "largest eigenvalue of any A_i"),
        "kappa": ("kappa", "L / mu"),
        "sigma_A": ("sigma_A", "root mean square of |A_i - A|"),
        "sigma_c": ("sigma_c", "root mean square of |c_i - c|"),
        "G2": ("G^2, noise", "mean square of an example's gradient noise, at most"),
        "dissimilarity": ("G^2, clients", "mean square of |grad f_i - grad f| at x*"),
        "delta": ("delta", "largest |A_i - A|"),
    }
    rows: list[list[Any]] = []
    for name, (symbol, meaning) in meanings.items():
        try:
            value = (
                population.gradient_dissimilarity() if name == "dissimilarity"
                else getattr(population, name)
            )
        except TheoryError as error:
            rows.append([symbol, None, f"{meaning}. {error}"])
        else:
            rows.append([symbol, float(value), meaning])
    n, d = population.num_clients, population.dimension
    title = f"{_several(n)} in {d} dimension{'s' * (d > 1)}."
    return Table(title, ["", "value", "what it is"], rows)


def _destination(question: Question) -> Table:
    population, found = question.population, question.surrogate
    rows: list[list[Any]] = [
        ["x*", _point(population.minimiser), 0.0, 0.0, _condition(population.matrix)],
        [
            "FedAvg", _point(found.minimiser), _distance(found.gap), _distance(found.excess_loss),
            found.condition_number,
        ],
    ]
    try:
        centre = population.mean(population.centres)
    except TheoryError:
        pass  # a singular client has no minimiser of its own
    else:
        away = centre - population.minimiser
        rows.append([
            "K to infinity", _point(centre), _distance(np.linalg.norm(away)),
            _distance(away @ population.matrix @ away / 2), 1.0,
        ])
    title = (
        f"FedAvg with gamma = {question.gamma:.6g} and K = {question.K} minimises a surrogate "
        "loss. The table compares its minimiser with the true one, x*: their distance, the excess "
        "of the true loss, and the condition number of the (surrogate) loss."
    )
    bad = found.ill_behaved
    if len(bad):
        curved = (population.eigen[0][bad, 0] > 0).all()
        title += (
            f" The surrogate losses of {_several(len(bad))} ({_some(bad)}, counted from 0) are "
            f"not strictly convex{': gamma is too large for them' * bool(curved)}."
        )
    return Table(title, ["", "point", "distance", "excess loss", "condition"], rows)


def _methods(question: Question) -> Table:
    population, gamma, K = question.population, question.gamma, question.K
    methods: dict[str, Callable[[], dynamics.Affine]] = {
        "FedAvg": lambda: dynamics.fedavg(population, gamma, K),
        "FedProx, weight mu": lambda: dynamics.fedprox(population, gamma, K, population.mu),
        "MimeLite": lambda: dynamics.mimelite(population, gamma, K),
        "Mime": lambda: dynamics.mime(population, gamma, K),
        "SCAFFOLD": lambda: dynamics.scaffold(population, gamma, K),
        "server-only": lambda: dynamics.server_only(population, gamma),
    }
    title = (
        f"Where methods converge, with learning rate {gamma:.6g}, K = {K}, all clients in every "
        "round and server learning rate 1: distance of the limit from x*, factor by which the "
        "remaining distance shrinks per round, and rounds until a tenth of it is left."
    )
    if (1 + population.num_clients) * population.dimension > LARGEST_STATE:
        del methods["SCAFFOLD"]
        title += " (SCAFFOLD, which converges to x*, is left out: it is slow for many clients.)"
    rows: list[list[Any]] = []
    for name, build in methods.items():
        try:
            rounds = build()
            factor = rounds.spectral_radius
            distance = float(np.linalg.norm(rounds.fixed_point - population.minimiser))
        except TheoryError as error:
            rows.append([name, None, None, str(error)])
            continue
        slow = np.log(0.1) / np.log(factor) if 0 < factor < 1 else 1.0
        rows.append([
            name, _distance(distance), factor,
            max(int(np.ceil(slow)), 1) if factor < 1 else "diverges",
        ])
    return Table(title, ["method", "distance", "factor", "rounds to a tenth"], rows)


def _bounds(question: Question) -> Table:
    population, gamma, K = question.population, question.gamma, question.K
    epsilon = min(-np.expm1(-gamma * K * population.L), 1 - 2**-52)
    statements: dict[str, Callable[[], Any]] = {
        "Theorem 16": lambda: paper.theorem_16(population, gamma, K),
        "Theorem 17": lambda: paper.theorem_17(population, gamma, K),
        "Corollary 20": lambda: paper.corollary_20(population, gamma, K, epsilon),
        "Theorem 21": lambda: paper.theorem_21(population, 0.0, gamma, K),
        "Corollary 22": lambda: paper.corollary_22(population, 0.0, gamma, K),
        "Corollary 13": lambda: paper.corollary_13(population, gamma, K)[-1],
        "Theorem 1 of 2021": lambda: decay2021.theorem_1(population, gamma, 1, K),
        "Corollary 1 of 2021": lambda: decay2021.corollary_1(population, gamma, 1, K)[0],
    }
    title = (
        "Bounds beside exact values (Charles and Konečný 2020; decaying-steps paper 2021; with "
        "errors of the papers corrected). fedax.theory has the formulas."
    )
    headings = ["statement", "of", "exact", "bound", "exact / bound"]
    if gamma * population.L >= 1:
        return Table(f"{title} They need gamma < 1/L = {1 / population.L:.6g}.", headings, [])
    rows: list[list[Any]] = []
    for name, state in statements.items():
        of = "condition" if name == "Corollary 13" else "distance"
        try:
            claim: Claim = state()
        except TheoryError as error:
            rows.append([name, str(error), None, None, None])
        else:
            bound = float(claim.bound)
            share = float(f"{float(claim.actual) / bound:.2g}") if bound > 0 else None
            rows.append([name, of, _distance(claim.actual), bound, share])
    return Table(title, headings, rows)


def _prescriptions(question: Question) -> Table:
    population, gamma, K, wanted = (
        question.population, question.gamma, question.K, question.wanted
    )
    headings = ["way", "prescription", "distance", "rounds"]
    if wanted <= 1e-12 * (1 + np.linalg.norm(population.minimiser)):
        title = "FedAvg converges to the true minimiser; no other gamma or K is needed."
        return Table(title, headings, [])

    def rate(find: Callable[[QuadraticPopulation, float, float], float]) -> list[Any]:
        value = find(population, K, wanted)
        return [f"gamma = {value:.6g}", _distance(surrogate(population, value, K).gap), None]

    def steps() -> list[Any]:
        most = largest_K(population, gamma, wanted)
        if np.isinf(most):
            return ["any K", None, None]
        return [f"K = {most:,.0f}", _distance(surrogate(population, gamma, most).gap), None]

    b = 3 * population.kappa**2
    ways: dict[str, Callable[[], list[Any]]] = {
        f"largest gamma for K = {K}, exactly": lambda: rate(largest_gamma),
        "the same by Theorem 17": lambda: rate(theorem_17_gamma),
        "the same by Corollary 20": lambda: rate(corollary_20_gamma),
        f"largest K for gamma = {gamma:.6g}, exactly": steps,
        "decaying gamma, Theorem 29": lambda: _theorem_29(question),
        f"K decaying from {K}, Theorem 2 of 2021": lambda: _theorem_2(question, K * (b + 1)),
        "K = 1 throughout, Theorem 2 of 2021": lambda: _theorem_2(question, 1.0),
    }
    left_out = ""
    if population.num_clients * population.dimension**3 > LARGEST_SEARCH:
        ways = {name: find for name, find in ways.items() if not name.endswith(", exactly")}
        left_out = " (The exact values are left out: they are slow for many clients.)"
    rows = []
    for name, find in ways.items():
        try:
            rows.append([name, *find()])
        except TheoryError as error:
            rows.append([name, str(error), None, None])
    share = "a tenth of FedAvg's distance" if question.accuracy is None else "as wanted"
    title = (
        f"How to come within {wanted:.4g} of x* ({share}): a fixed gamma or K, and the resulting "
        "distance; or schedules, and the rounds after which the theorem guarantees the root mean "
        f"square distance. With b = 3 kappa^2 = {b:.4g}, Theorem 29 has gamma_t = "
        "min(1 / (L (b + t)), ln 2 / (K mu)), Theorem 2 K_t = max(K_0 / (b + t), 1), both eta_t = "
        f"3 / (phi_mu (b + t)); |x_1 - x*| = {_away(question):.6g}, M = {population.num_clients} "
        f"clients a round, B = {question.batch_size}.{left_out}"
    )
    return Table(title, headings, rows)


def _theorem_29(question: Question) -> list[Any]:
    """The first learning rates of its schedules, and the rounds that it needs."""
    population, K = question.population, question.K
    claim = paper.theorem_29(population, K, _start(question), 1, batch_size=question.batch_size)
    first = paper.theorem_29_schedules(population, K, 1)
    words = f"gamma_1 = {first.gammas[0]:.4g}, eta_1 = {first.etas[0]:.4g}"
    return [words, None, _rounds(claim, question)]


def _theorem_2(question: Question, K_0: float) -> list[Any]:
    """Its gamma, the first values of its schedules, and the rounds that it needs."""
    population = question.population
    claim = decay2021.theorem_2(
        population, K_0, _start(question), 1, batch_size=question.batch_size
    )
    first = decay2021.theorem_2_schedules(population, K_0, 1)
    words = f"K_0 = {K_0:.4g}, gamma = {first.gamma:.4g}, eta_1 = {first.etas[0]:.4g}"
    return [words, None, _rounds(claim, question)]


def _rounds(claim: Claim, question: Question) -> int | str:
    """The t from which a bound proportional to 1 / (b + t) is at most the distance squared."""
    b = 3 * question.population.kappa**2
    at_first = float(np.ravel(claim.bound)[0]) * (b + 1)
    rounds = at_first / question.wanted / question.wanted - b
    return max(int(np.ceil(rounds)), 1) if np.isfinite(rounds) else "none"


def _start(question: Question) -> np.ndarray:
    d = question.population.dimension
    start = np.asarray(question.start, float)
    if start.shape not in ((), (d,)):
        raise TheoryError(f"start must be a number or {d} of them, but is {question.start}.")
    return np.broadcast_to(start, (d,))


def _away(question: Question) -> float:
    return float(np.linalg.norm(_start(question) - question.population.minimiser))


def _condition(matrix: np.ndarray) -> float:
    values = np.linalg.eigvalsh(matrix)
    return float(values[-1] / values[0])


def _distance(value: Any) -> float:
    """Numbers that are 0 up to rounding become 0."""
    return float(value) if abs(float(value)) > 1e-11 else 0.0


def _point(x: np.ndarray) -> str:
    shown = ", ".join(f"{value:.6g}" for value in x[:SHOWN])
    return f"({shown}{', ...' if len(x) > SHOWN else ''})" if len(x) > 1 else shown


def _several(count: int) -> str:
    return f"{count} client{'s' * (count > 1)}"


def _some(indices: np.ndarray) -> str:
    return ", ".join(str(i) for i in indices[:5]) + (", ..." if len(indices) > 5 else "")
