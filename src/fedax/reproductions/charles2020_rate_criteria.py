"""Charles and Konečný 2020: criteria for section 9, Figures 8 and 9, and Tables 2 to 7."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fedax.reproductions.charles2020_criteria import (
    AT_FIRST,
    Read,
    above,
    final,
    first,
    least,
    less,
)
from fedax.reproductions.charles2020_plans import (
    DATA,
    LOSS,
    constant,
    lengths_of,
    rates_of,
    reduced,
    shown,
)
from fedax.reproductions.criteria import ahead, between, seed_by_seed
from fedax.reproductions.experiment import Criterion, Outcome, name_of
from fedax.reproductions.results import Results

# Server rates of (23) are 10^0.5 apart.
STEP = 10 ** 0.5
# A loss up to so many times that of the untrained model has not diverged.
BEARABLE = 1.2
PUBLISHED_COOLDOWN = 100


def figure_8(results: Results) -> Sequence[Criterion]:
    """Section 9.2: LocalUpdateDecay against the best constant client rate."""
    return [
        _if_it_decays(panel, one)
        for panel in results.panels for one in _decayed(panel, rates_of(results, panel))
    ]


def _if_it_decays(panel: str, criterion: Criterion) -> Criterion:
    """Where no rate was ever lowered LocalUpdateDecay is compared with itself."""
    def judge(results: Results) -> Outcome:
        try:
            rate = begins_at(results, panel)
        except LookupError:
            return criterion.judge(results)
        own, other = (
            results.curve(panel, label, LOSS)[1] if label in results.labels(panel) else None
            for label in (reduced(rate), constant(rate))
        )
        if own is None or other is None or not np.array_equal(own, other):
            return criterion.judge(results)
        return Outcome(f"it never decayed, so that it is the run with {constant(rate)}", False,
                       inconclusive=True)

    return criterion._replace(judge=judge)


def _decayed(panel: str, rates: Sequence[float]) -> Iterator[Criterion]:
    name = name_of(panel)
    constants = [constant(rate) for rate in rates]
    yield between(
        f"{panel}: LocalUpdateDecay eventually does as well as LocalUpdate with tuned gamma. "
        "Agrees if its loss over the last 100 rounds is at most 5% above the best constant one's.",
        above(decayed(panel, final), least([final(panel, label) for label in constants])),
        -np.inf, 0.05,
    )
    if name in ("FEMNIST", "Shakespeare"):
        yield between(
            f"{panel}: it almost immediately does better, and at least as well throughout. Agrees "
            "if after the first tenth of the rounds its mean loss is at most 2% above the lowest "
            "of the constant ones in at least 80% of the windows of a fortieth of the rounds.",
            _throughout(panel, constants), 0.8, 1.0,
        )
    if name == "CIFAR-100":
        yield between(
            f"{panel}: the client rate is suboptimal initially. Agrees if over {AT_FIRST} its mean "
            "loss is above the best constant one's.",
            above(decayed(panel, first), least([first(panel, label) for label in constants])),
            1e-9, np.inf,
        )
    if name == "StackOverflow TP":
        yield ahead(
            f"{panel}: the rate that it begins with clearly has the higher loss. Agrees if the "
            f"loss of {constants[-1]} over the last 100 rounds is above its.",
            less(decayed(panel, final)), less(final(panel, constants[-1])),
        )


def begins_at(results: Results, panel: str) -> float:
    """The client rate of LocalUpdateDecay: the largest whose loss does not diverge.

    That is, with the best server rate no seed diverged, and of no seed the mean loss of a window
    in the first C rounds, in which no rate can fall yet, is above BEARABLE times the loss of the
    untrained model.

    Raises:
      LookupError: all diverged.
    """
    first = lengths_of(panel).get("cooldown", PUBLISHED_COOLDOWN)
    for rate in sorted(rates_of(results, panel, reduced), reverse=True):
        rounds, values = results.curve(panel, reduced(rate), LOSS)
        if not values.size or np.isnan(results.final(panel, reduced(rate), LOSS)).any():
            continue
        early = values[:, rounds <= first]
        if (early <= BEARABLE * results.begin(panel, reduced(rate), LOSS)[:, None]).all():
            return rate
    raise LookupError(f"LocalUpdateDecay diverged with all client rates in {panel}.")


def decayed(panel: str, read: Callable[[str, str], Read]) -> Read:
    """Reads something of LocalUpdateDecay with the client rate that it begins with."""
    return lambda results: read(panel, reduced(begins_at(results, panel)))(results)


def _throughout(panel: str, constants: Sequence[str]) -> Read:
    def read(results: Results) -> np.ndarray:
        rounds, own = results.curve(panel, reduced(begins_at(results, panel)), LOSS)
        others = []
        for label in constants:
            _, values = results.curve(panel, label, LOSS)
            if values.size:  # did not diverge
                others.append(values.mean(0))
        length = min([len(rounds), *map(len, others)])
        late = rounds[:length] > rounds[-1] / 10
        lowest = np.min([of[:length] for of in others], axis=0)
        return np.array([(own.mean(0)[:length] <= 1.02 * lowest)[late].mean()])

    return read


def table_2(results: Results) -> Sequence[Criterion]:
    """Table 2: the rates of LocalUpdateDecay."""
    found = []
    for panel in results.panels:
        gamma, eta = DATA[panel].reduce
        found.append(between(
            f"{panel}: the largest gamma that does not diverge was {gamma:g}. Agrees if it is the "
            "same.",
            lambda results, panel=panel: np.array([begins_at(results, panel)]),
            gamma * 0.99, gamma * 1.01,
        ))
        found.append(_same_rate(panel, None, eta))
    return found


def tables_3_to_7(results: Results) -> Sequence[Criterion]:
    """The best server rate for each client rate: the same on the same data, else its order."""
    found = []
    for panel in results.panels:
        data = DATA[name_of(panel)]
        if panel != name_of(panel):
            rates = shown(results, panel)
            found.append(_rising(panel, [rate for rate in rates if rate <= data.monotone]))
            found += [
                _falls(panel, rate, other) for rate, other in itertools.pairwise(rates)
                if data.best[other] < 0.99 * data.best[rate]
            ]
        else:
            found += [_same_rate(panel, rate, data.best[rate]) for rate in shown(results, panel)]
    return found


def _same_rate(panel: str, rate: float | None, eta: float) -> Criterion:
    """The best server rate is within a step of the grid; None: LocalUpdateDecay's."""
    def judge(results: Results) -> Outcome:
        label = reduced(begins_at(results, panel)) if rate is None else constant(rate)
        best = results.best(panel, label)["server_learning_rate"]
        return Outcome(f"{best:.3g}", bool(eta / STEP / 1.01 <= best <= eta * STEP * 1.01))

    whose = "of LocalUpdateDecay" if rate is None else f"for gamma = {rate:g}"
    if rate is None and name_of(panel) == "Shakespeare":
        whose += ", printed as 10^(3/2) and read as 10^(-3/2),"
    return seed_by_seed(Criterion(
        f"{panel}: the best eta {whose} was {eta:.3g}. Agrees if it is that or its neighbour in "
        "the grid.",
        judge,
    ))


def _rising(panel: str, rates: Sequence[float]) -> Criterion:
    published = DATA[name_of(panel)].best
    rises = published[rates[0]] < published[rates[-1]]

    def judge(results: Results) -> Outcome:
        best = [results.best(panel, constant(rate))["server_learning_rate"] for rate in rates]
        falls = any(high < low / 1.01 for low, high in itertools.pairwise(best))
        return Outcome(
            ", ".join(f"{eta:.3g}" for eta in best),
            not falls and (best[0] < best[-1] / 1.01) == rises,
        )

    claim, needed = (
        ("a larger gamma enables a larger eta (section 8.2), as in the paper's table",
         "falls nowhere from gamma = 0 to there, and rises somewhere") if rises else
        ("the best eta is the same for every gamma in the paper's table",
         "is the same for every gamma from 0 to there")
    )
    return seed_by_seed(Criterion(
        f"{panel}: {claim} up to gamma = {rates[-1]:g}. Agrees if the best eta {needed}.", judge
    ))


def _falls(panel: str, rate: float, larger: float) -> Criterion:
    best = DATA[name_of(panel)].best

    def judge(results: Results) -> Outcome:
        found = [results.best(panel, constant(one))["server_learning_rate"]
                 for one in (rate, larger)]
        return Outcome(f"{found[0]:.3g}, {found[1]:.3g}", found[1] < 0.99 * found[0])

    return seed_by_seed(Criterion(
        f"{panel}: from gamma = {rate:g} to {larger:g} the best eta fell from {best[rate]:.3g} to "
        f"{best[larger]:.3g}. Agrees if it falls.", judge,
    ))
