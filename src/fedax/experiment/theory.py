"""What `fedax theory` says of a population: tables and a picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedax.experiment.tables import Table
from fedax.theory import charles_konecny_2020 as paper
from fedax.theory import decaying_steps_2021, dynamics
from fedax.theory.claims import Claim
from fedax.theory.errors import TheoryError
from fedax.theory.files import population_from, read_population
from fedax.theory.given import as_count
from fedax.theory.population import QuadraticPopulation
from fedax.theory.prescriptions import (
    check_accuracy,
    corollary_20_gamma,
    largest_gamma,
    largest_K,
    theorem_17_gamma,
)
from fedax.theory.surrogate import Surrogate, phi, surrogate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# SCAFFOLD's dynamics are worked out up to this size of their state.
LARGEST_STATE = 600
# Coordinates of points are shown up to this dimension.
SHOWN = 4


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
      population: the clients.
      gamma: client learning rate >= 0.
      K: local steps >= 1.
      accuracy: wanted distance to x*; None: a tenth of FedAvg's.
      start: x_1, [d] or a number; only rates of convergence depend on it.
      batch_size: B, for the clients' noise.
    """

    population: QuadraticPopulation
    gamma: float
    K: int
    accuracy: float | None = None
    start: Any = 0.0
    batch_size: int = 1

    def __post_init__(self) -> None:
        as_count("K", self.K)
        as_count("batch_size", self.batch_size)
        if self.accuracy is not None:
            check_accuracy(self.accuracy)

    @property
    def surrogate(self) -> Surrogate:
        """The surrogate loss of FedAvg."""
        return surrogate(self.population, self.gamma, self.K)

    @property
    def wanted(self) -> float:
        """The wanted distance, 0 if there is no gap to close."""
        return self.surrogate.gap / 10 if self.accuracy is None else self.accuracy


# Way of giving clients by a few numbers -> the numbers that go with it.
WAYS = {
    "curvatures": ("centres", "probabilities", "noise"),
    "density_power": ("interval", "noise"),
    "random": ("mu", "L", "sigma_A", "sigma_c", "seed", "noise"),
}
NUMBERS = tuple(dict.fromkeys([*WAYS, *(name for names in WAYS.values() for name in names)]))
EXAMPLES = ("client_column", "target_column", "ridge", "intercept")
TWO_CLIENTS = {"curvatures": (1.0, 2.0), "centres": (1.0, 0.5)}


def clients_from(
    file: Path | None, numbers: Mapping[str, Any], examples: Mapping[str, Any]
) -> QuadraticPopulation:
    """The population of a command line.

    Args:
      file: see `fedax.theory.files`, or None.
      numbers: those given, by name: one of `WAYS` and what goes with it; none: the two clients
        of section 4 of paper 000.
      examples: arguments of `read_population` for examples.

    Raises:
      TheoryError: they do not go together, or are out of their range.
    """
    if file is not None:
        if numbers:
            raise TheoryError(f"{_flag(next(iter(numbers)))} does not go with a file.")
        return read_population(file, **examples)
    ways = [way for way in WAYS if way in numbers]
    if len(ways) > 1:
        raise TheoryError(f"Clients come from {' or '.join(map(_flag, ways))}, not from both.")
    if not ways:
        numbers, ways = TWO_CLIENTS | dict(numbers), ["curvatures"]
    (way,) = ways
    for name in numbers:
        if name not in (way, *WAYS[way]):
            wanted = next((w for w, names in WAYS.items() if name in names), way)
            raise TheoryError(f"{_flag(name)} goes with {_flag(wanted)}, not with {_flag(way)}.")
    values = dict(numbers)
    if way == "random":
        num_clients, dimension = values.pop("random")
        values = {"random": {"num_clients": num_clients, "dimension": dimension, **values}}
    elif way == "curvatures":
        values["matrices"] = values.pop("curvatures")
        if "centres" not in values:
            raise TheoryError("--curvatures needs --centres, as many of them.")
    elif "interval" not in values:
        raise TheoryError("--density-power needs --interval, such as --interval 1 3.")
    return population_from(values)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def ask(
    population: QuadraticPopulation, gamma: float | None, K: int | None, **others: Any
) -> Question:
    """The question, with the defaults gamma = 1 / (2 L) and K = 10."""
    if gamma is None:
        gamma = 0.5 / population.L if population.L > 0 else 0.1
    return Question(population, gamma, 10 if K is None else K, **others)


def theory_tables(question: Question) -> list[Table]:
    """All the tables.

    Raises:
      TheoryError: the population has no minimiser, or the surrogate loss none, or an argument is
        out of its range.
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
        "loss. Its minimiser, the distance from the true one x* and the excess of the true loss "
        "there, and how easily it is found: condition number of the (surrogate) loss."
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
        f"Where the methods go with learning rate {gamma:.6g}, K = {K}, all clients in every round "
        "and server learning rate 1: distance of the fixed point from x*, the factor by which the "
        "way to it shrinks a round, and rounds to a tenth of it."
    )
    if (1 + population.num_clients) * population.dimension > LARGEST_STATE:
        del methods["SCAFFOLD"]
        title += " (SCAFFOLD, which goes to x*, is left out: so many clients take long.)"
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
        "Theorem 16": lambda: paper.theorem_16(population, gamma, np.ones(K)),
        "Theorem 17": lambda: paper.theorem_17(population, gamma, K),
        "Corollary 20": lambda: paper.corollary_20(population, gamma, K, epsilon),
        "Theorem 21": lambda: paper.theorem_21(population, 0.0, gamma, K),
        "Corollary 22": lambda: paper.corollary_22(population, 0.0, gamma, K),
        "Corollary 13": lambda: paper.corollary_13(population, gamma, K)[-1],
        "Theorem 1 of 2021": lambda: decaying_steps_2021.theorem_1(population, gamma, 1, K),
        "Corollary 1 of 2021": lambda: decaying_steps_2021.corollary_1(population, gamma, 1, K)[0],
    }
    title = (
        "What the bounds say (Charles, Konecny 2020; Decaying K 2021; corrected where the papers "
        "err), beside what is so. Their formulas are in fedax.theory."
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
        title = "FedAvg goes to the true minimiser; nothing need be prescribed."
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
    rows = []
    for name, find in ways.items():
        try:
            rows.append([name, *find()])
        except TheoryError as error:
            rows.append([name, str(error), None, None])
    share = "a tenth of FedAvg's distance" if question.accuracy is None else "as wanted"
    title = (
        f"To come within {wanted:.4g} of x* ({share}): a fixed gamma or K, and the distance that "
        "it leads to; or schedules, with the rounds after which the theorem promises the distance "
        f"in root mean square. With b = 3 kappa^2 = {b:.4g}, Theorem 29 has gamma_t = "
        "min(1 / (L (b + t)), ln 2 / (K mu)), Theorem 2 K_t = max(K_0 / (b + t), 1), both eta_t = "
        f"3 / (phi_mu (b + t)); |x_1 - x*| = {_away(question):.6g}, M = {population.num_clients} "
        f"clients a round, B = {question.batch_size}."
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
    claim = decaying_steps_2021.theorem_2(
        population, K_0, _start(question), 1, batch_size=question.batch_size
    )
    first = decaying_steps_2021.theorem_2_schedules(population, K_0, 1)
    words = f"K_0 = {K_0:.4g}, gamma = {first.gamma:.4g}, eta_1 = {first.etas[0]:.4g}"
    return [words, None, _rounds(claim, question)]


def _rounds(claim: Claim, question: Question) -> int | str:
    """The t from which a bound proportional to 1 / (b + t) is at most the distance squared."""
    b = 3 * question.population.kappa**2
    at_first = float(np.ravel(claim.bound)[0]) * (b + 1)
    rounds = at_first / question.wanted / question.wanted - b
    return max(int(np.ceil(rounds)), 1) if np.isfinite(rounds) else "none"


def draw_theory(figure: Figure, question: Question) -> None:
    """Draws the two loss surfaces, and the distance against gamma and against K."""
    figure.set_size_inches(14, 4.4)
    surfaces, by_gamma, by_steps = figure.subplots(1, 3)
    if question.population.dimension == 2:
        _contours(surfaces, question)
    else:
        _curves(surfaces, question)
    _against_gamma(by_gamma, question)
    _against_steps(by_steps, question)


def _curves(axes: Axes, question: Question) -> None:
    """Both losses along the line through both minimisers, above their minima."""
    population, found = question.population, question.surrogate
    best, reached = population.minimiser, found.minimiser
    direction = reached - best
    if not direction.any():
        direction = np.eye(len(best))[0]
    line = np.linspace(-1.5, 2.5, 201)
    if population.dimension == 1:
        centre = (best + reached) / 2
        width = max(abs(direction[0]), np.ptp(population.centres) / 2 if population.mu > 0 else 0.1)
        points = centre + np.linspace(-1.2, 1.2, 201)[:, None] * width
        shown, marks = points[:, 0], (best[0], reached[0])
        axes.set_xlabel("x")
    else:
        points, shown, marks = best + line[:, None] * direction, line, (0.0, 1.0)
        axes.set_xlabel("from x* (0) to FedAvg's minimiser (1)")
    losses = {
        "f": population.loss(points) - population.loss(best),
        "surrogate / K": (found.loss(points) - found.loss(reached)) / question.K,
    }
    for (name, values), mark, colour in zip(losses.items(), marks, COLOURS, strict=False):
        axes.plot(shown, values, color=colour, label=name)
        axes.axvline(mark, color=colour, linestyle="--", linewidth=1)
    title = f"gamma = {question.gamma:.4g}, K = {question.K}"
    axes.set(title=title, ylabel="loss above its minimum")
    axes.legend()
    axes.grid(alpha=0.3)


def _contours(axes: Axes, question: Question) -> None:
    population, found = question.population, question.surrogate
    best, reached = population.minimiser, found.minimiser
    points = np.vstack([best, reached, population.centres if population.mu > 0 else [best]])
    half = max(np.ptp(points, axis=0).max() / 2 * 1.1, 1e-9)
    centre = (points.max(0) + points.min(0)) / 2
    xs, ys = (np.linspace(c - half, c + half, 121) for c in centre)
    grid = np.stack(np.meshgrid(xs, ys), -1)
    for loss, colour, style in zip(
        (population.loss, found.loss), COLOURS, ("solid", "dashed"), strict=False
    ):
        values = loss(grid)
        axes.contour(xs, ys, values, levels=8, colors=colour, linestyles=style, linewidths=0.8)
    if population.mu > 0:
        axes.plot(*population.centres.T, ".", color="#999", markersize=4, label="c_i")
    axes.plot(*best, "o", color=COLOURS[0], label="x*, f (solid)")
    axes.plot(*reached, "s", color=COLOURS[1], label="FedAvg, surrogate (dashed)")
    axes.set(title=f"gamma = {question.gamma:.4g}, K = {question.K}", xlabel="x_1", ylabel="x_2")
    axes.legend(fontsize=8)


COLOURS = ("#1f6fb2", "#d95f02", "#1b9e77")


def _against_gamma(axes: Axes, question: Question) -> None:
    population, K = question.population, question.K
    top = max(0.98 / population.L, question.gamma)
    gammas = np.geomspace(top / 1000, top, 100)
    for steps, colour in zip(sorted({max(K // 2, 1), K, 2 * K}), COLOURS, strict=False):
        axes.loglog(
            gammas, [_gap(population, g, steps) for g in gammas], color=colour,
            label=f"K = {steps}",
        )
    _bound(axes, gammas, [_theorem_17(population, g, K) for g in gammas], K)
    axes.loglog(question.gamma, _gap(population, question.gamma, K), "ko")
    axes.set(title="distance of FedAvg's limit from x*", xlabel="gamma")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def _against_steps(axes: Axes, question: Question) -> None:
    population, gamma = question.population, question.gamma
    steps = np.unique(np.geomspace(2, max(100, 4 * question.K), 40).round().astype(int))
    for rate, colour in zip((gamma / 2, gamma, 2 * gamma), COLOURS, strict=True):
        axes.loglog(
            steps, [_gap(population, rate, k) for k in steps], ".-", color=colour,
            label=f"gamma = {rate:.4g}",
        )
    _bound(axes, steps, [_theorem_17(population, gamma, k) for k in steps], None)
    axes.loglog(question.K, _gap(population, gamma, question.K), "ko")
    axes.set(title="distance of FedAvg's limit from x*", xlabel="K")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def _bound(axes: Axes, x: Any, values: list[float], K: int | None) -> None:
    label = "Theorem 17" if K is None else f"Theorem 17, K = {K}"
    if np.isfinite(values).any():
        axes.loglog(x, values, ":", color="black", linewidth=1, label=label)


def _gap(population: QuadraticPopulation, gamma: float, K: float) -> float:
    """The gap, NaN where there is none or it is 0, so that a logarithm can be drawn."""
    try:
        return surrogate(population, gamma, K).gap or np.nan
    except TheoryError:
        return np.nan


def _theorem_17(population: QuadraticPopulation, gamma: float, K: float) -> float:
    """Its bound, NaN where it has none."""
    if population.mu <= 0 or gamma * population.L >= 1:
        return np.nan
    top = K * population.L - float(phi(K, population.L, gamma))
    scale = population.sigma_c * (1 + population.sigma_A / population.mu)
    return scale * top / float(phi(K, population.mu, gamma)) or np.nan


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
    """A number that is 0 but for rounding is 0."""
    return float(value) if abs(float(value)) > 1e-11 else 0.0


def _point(x: np.ndarray) -> str:
    shown = ", ".join(f"{value:.6g}" for value in x[:SHOWN])
    return f"({shown}{', ...' if len(x) > SHOWN else ''})" if len(x) > 1 else shown


def _several(count: int) -> str:
    return f"{count} client{'s' * (count > 1)}"


def _some(indices: np.ndarray) -> str:
    return ", ".join(str(i) for i in indices[:5]) + (", ..." if len(indices) > 5 else "")
