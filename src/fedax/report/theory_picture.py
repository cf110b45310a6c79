"""The picture of `fedax theory`: both losses, and the distance against gamma and K."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedax.rounds.style import COLOURS
from fedax.theory.errors import TheoryError
from fedax.theory.population import QuadraticPopulation
from fedax.theory.question import Question
from fedax.theory.surrogate import phi, surrogate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
        axes.set_xlabel("From x* (0) to FedAvg's minimiser (1)")
    losses = {
        "f": population.loss(points) - population.loss(best),
        "surrogate / K": (found.loss(points) - found.loss(reached)) / question.K,
    }
    for (name, values), mark, colour in zip(losses.items(), marks, COLOURS, strict=False):
        axes.plot(shown, values, color=colour, label=name)
        axes.axvline(mark, color=colour, linestyle="--", linewidth=1)
    title = f"gamma = {question.gamma:.4g}, K = {question.K}"
    axes.set(title=title, ylabel="Loss above its minimum")
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
    for rate, colour in zip((gamma / 2, gamma, 2 * gamma), COLOURS, strict=False):
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
