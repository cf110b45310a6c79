"""Charles and Konečný 2020: criteria for the text of section 8, Figures 2 to 7."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fedax.reproductions.charles2020_plans import (
    LOSS,
    NORM,
    constant,
    rates_of,
    shown,
    tied,
)
from fedax.reproductions.criteria import ahead, along, between, seed_by_seed
from fedax.reproductions.experiment import Criterion, Outcome, name_of
from fedax.reproductions.results import Results, paired, spread

# "Initially" and "few rounds" are this share of the rounds.
FIRST = 0.25
AT_FIRST = "the first quarter of the rounds"
Read = Callable[[Results], np.ndarray]


def final(panel: str, label: str) -> Read:
    """Reads the loss over the last 100 rounds."""
    return lambda results: results.final(panel, label, LOSS)


def first(panel: str, label: str) -> Read:
    """Reads the mean loss over the first quarter of the rounds; NaN where a run diverged."""
    return along(panel, label, LOSS, share=FIRST)


def least(reads: Sequence[Read]) -> Read:
    """Reads the least of some losses by their mean over seeds; what diverged is not among them."""
    def read(results: Results) -> np.ndarray:
        found = []
        for one in reads:
            values = one(results)
            if len(values) and not np.isnan(values).any():
                found.append(values)
        return min(found, key=lambda values: values.mean()) if found else np.array([np.nan])

    return read


def above(read: Read, other: Read) -> Read:
    """Reads by what share losses are above others."""
    def share(results: Results) -> np.ndarray:
        own, lower = paired(read(results), other(results))
        return own / lower - 1

    return share


def less(read: Read) -> Read:
    """Reads the negative of losses, of which larger is better."""
    return lambda results: -read(results)


def crossing(published: str, panel: str, rates: Sequence[float]) -> Criterion:
    """The client rate with the lowest loss at first is larger than the one at last."""
    def judge(results: Results) -> Outcome:
        best = []
        for read in (first, final):
            means = {
                rate: values.mean() for rate in rates
                if len(values := least([read(panel, constant(rate))])(results))
                and not np.isnan(values).any()
            }
            if not means:
                return Outcome("diverged, or was not measured", False)
            best.append(min(means, key=lambda rate: means[rate]))
        return Outcome(f"first {best[0]:g}, last {best[1]:g}", best[0] > best[1])

    return seed_by_seed(Criterion(
        f"{panel}: {published}. Agrees if the gamma with the lowest mean loss over {AT_FIRST} is "
        "larger than that with the lowest over the last 100.",
        judge,
    ))


def figure_2(results: Results) -> Sequence[Criterion]:
    """Section 8.1."""
    return [
        one for panel in results.panels for one in _fixed(panel, shown(results, panel))
    ] + list(_gaps(results))


def _fixed(panel: str, rates: Sequence[float]) -> Iterator[Criterion]:
    largest = rates[-1]
    if name_of(panel) == "Shakespeare":
        everything = [final(panel, constant(rate)) for rate in rates]
        yield between(
            f"{panel}: where rounds are few there may be little to no disadvantage to gamma > 0 "
            f"(section 8.1, of all tasks). Agrees if the loss with gamma = {largest:g} over the "
            "last 100 rounds is at most 10% above the best.",
            above(final(panel, constant(largest)), least(everything)), -np.inf, 0.1,
        )
        return
    yield crossing(
        "smaller client rates eventually reach lower losses than larger ones", panel, rates
    )
    yield ahead(
        f"{panel}: the largest gamma ends in a suboptimal loss. Agrees if that with gamma = "
        f"{largest:g} over the last 100 rounds is above the best of the others.",
        less(least([final(panel, constant(rate)) for rate in rates[:-1]])),
        less(final(panel, constant(largest))),
    )


def _gaps(results: Results) -> Iterator[Criterion]:
    panels = {name_of(panel): panel for panel in results.panels}
    if "CIFAR-100" not in panels:
        return

    def gap(panel: str) -> Read:
        rates = shown(results, panel)
        return above(final(panel, constant(rates[-1])),
                     least([final(panel, constant(rate)) for rate in rates]))

    for name in ("FEMNIST", "Shakespeare"):
        if name in panels:
            yield ahead(
                f"{panels[name]}: the gap between the largest gamma and the best is much smaller "
                "than on CIFAR-100. Agrees if it is smaller than that of "
                f"{panels['CIFAR-100']}, as a share of the best loss.",
                gap(panels["CIFAR-100"]), gap(panels[name]),
            )


def figure_3(results: Results) -> Sequence[Criterion]:
    """Section 8.2: the norms of updates fall with gamma, and so does their spread."""
    found = []
    for panel in results.panels:
        rates = shown(results, panel)
        found += [
            _falling(panel, rates),
            ahead(
                f"{panel}: smaller gammas have the larger spread, too. Agrees if the mean standard "
                f"deviation within windows of a fortieth of the rounds is larger for gamma = "
                f"{rates[0]:g} than for gamma = {rates[-1]:g}.",
                _within(panel, rates[0]), _within(panel, rates[-1]),
            ),
        ]
    return found


def _falling(panel: str, rates: Sequence[float]) -> Criterion:
    def judge(results: Results) -> Outcome:
        means = [results.curve(panel, constant(rate), NORM)[1] for rate in rates]
        if not all(values.size for values in means):
            return Outcome("diverged, or was not measured", False)
        norms = np.array([values.mean() for values in means])
        falls = bool((norms[1:] <= 1.02 * norms[:-1]).all() and norms[-1] < norms[0])
        return Outcome(", ".join(f"{norm:.3g}" for norm in norms), falls)

    return seed_by_seed(Criterion(
        f"{panel}: smaller client rates lead to larger updates. Agrees if the mean norm over all "
        f"rounds falls from gamma = {rates[0]:g} to {rates[-1]:g}, and from none to the next "
        "rises by more than 2%.",
        judge,
    ))


def _within(panel: str, rate: float) -> Read:
    def read(results: Results) -> np.ndarray:
        found = results.deviations(panel, constant(rate), NORM)
        return found.mean(1) if found.size else np.array([np.nan])

    return read


def figure_4(results: Results) -> Sequence[Criterion]:
    """Section 8.2: tied rates, and section 8.3's, of which each is tuned."""
    found = []
    for panel in results.panels:
        both = [final(panel, tied(rate)) for rate in rates_of(results, panel, tied)]
        each = [final(panel, constant(rate)) for rate in shown(results, panel)]
        found += [
            ahead(
                f"{panel}: gamma = eta = 1 results in an increased loss. Agrees if that over the "
                "last 100 rounds is above that of gamma = eta = 0.1.",
                less(final(panel, tied(0.1))), less(final(panel, tied(1.0))),
            ),
            between(
                f"{panel}: gamma = eta = 0.1 outperforms 0.01 for most rounds. Agrees if its loss "
                "is lower in more than half of the windows of a fortieth of the rounds.",
                _share_below(panel, tied(0.1), tied(0.01)), 0.5 + 1e-9, 1.0,
            ),
            between(
                f"{panel}: gamma = eta does not result in the best performance, tuning each "
                "greatly improves it. Agrees if the loss over the last 100 rounds with the best "
                "tied rate is at least 5% above that with the best of both rates.",
                above(least(both), least(each)), 0.05, np.inf,
            ),
        ]
    return found


def _share_below(panel: str, lower: str, higher: str) -> Read:
    def read(results: Results) -> np.ndarray:
        values = paired(*(results.curve(panel, label, LOSS)[1] for label in (lower, higher)))
        length = min(of.shape[1] for of in values)
        if not length:
            return np.array([np.nan])
        return (values[0][:, :length] < values[1][:, :length]).mean(1)

    return read


def figure_5(results: Results) -> Sequence[Criterion]:
    """Section 8.3: with tuned server rates."""
    return [one for panel in results.panels for one in _tuned(panel, shown(results, panel))]


def _tuned(panel: str, rates: Sequence[float]) -> Iterator[Criterion]:
    zero, positive = constant(0.0), [rate for rate in rates if rate > 0]
    large = [rate for rate in positive if rate >= 0.1]
    yield ahead(
        f"{panel}: large gammas obtain a smaller loss initially. Agrees if over {AT_FIRST} the "
        "best gamma > 0 has a lower mean loss than gamma = 0.",
        less(least([first(panel, constant(rate)) for rate in positive])), less(first(panel, zero)),
    )
    yield between(
        f"{panel}: tuning mitigates the suboptimality of gamma > 0 where rounds are few. Agrees if "
        "over the last 100 rounds the best gamma >= 0.1 has a loss at most 2% above that of "
        "gamma = 0.",
        above(least([final(panel, constant(rate)) for rate in large]), final(panel, zero)),
        -np.inf, 0.02,
    )
    everything = [constant(rate) for rate in rates]
    yield ahead(
        f"{panel}: gamma = 0 is comparable to larger gammas only near the end. Agrees if its "
        f"distance from the lowest loss, as a share, is larger over {AT_FIRST} than over the last "
        "100.",
        above(first(panel, zero), least([first(panel, label) for label in everything])),
        above(final(panel, zero), least([final(panel, label) for label in everything])),
    )
    yield between(
        f"{panel}: eventually smaller gammas perform comparably, if not better. Agrees if over the "
        "last 100 rounds the loss with gamma = 0 is at most 5% above the lowest.",
        above(final(panel, zero), least([final(panel, label) for label in everything])),
        -np.inf, 0.05,
    )


def figure_6(results: Results) -> Sequence[Criterion]:
    """Section 8.4, with a fixed server rate."""
    found = []
    for panel in results.panels:
        rates = shown(results, panel)
        found += [
            _beaten(panel, rates),
            ahead(
                f"{panel}: large gammas lead to an initially smaller loss. Agrees if over "
                f"{AT_FIRST} the best gamma > 0 has a lower mean loss than gamma = 0.",
                less(least([first(panel, constant(rate)) for rate in rates[1:]])),
                less(first(panel, constant(0.0))),
            ),
            between(
                f"{panel}: similar behavior among all but the largest gamma. Agrees if over the "
                "last 100 rounds the losses of the others differ by at most 5%, as a share of the "
                "lowest.",
                _range([final(panel, constant(rate)) for rate in rates[:-1]]), 0.0, 0.05,
            ),
        ]
    return found


def _beaten(panel: str, rates: Sequence[float]) -> Criterion:
    """What is ahead at first is not at last."""
    def judge(results: Results) -> Outcome:
        means = {rate: first(panel, constant(rate))(results).mean() for rate in rates}
        if np.isnan(list(means.values())).all():
            return Outcome("diverged, or was not measured", False)
        leads = min(rates, key=lambda rate: np.nan_to_num(means[rate], nan=np.inf))
        if leads == rates[0]:
            return Outcome(f"{constant(leads)} is ahead at first", False)
        smaller = least([final(panel, constant(rate)) for rate in rates if rate < leads])
        found = between("", above(smaller, final(panel, constant(leads))), -np.inf, 0.01)
        outcome = found.judge(results)
        return outcome._replace(measured=f"{constant(leads)}: {outcome.measured}")

    return seed_by_seed(Criterion(
        f"{panel}: a large gamma, initially ahead, is eventually beaten or matched by a smaller "
        f"one. Agrees if the gamma with the lowest mean loss over {AT_FIRST} is not 0, and the "
        "best loss with a smaller one is over the last 100 at most 1% above its.",
        judge,
    ))


def _range(reads: Sequence[Read]) -> Read:
    """Reads by what share the highest of some losses is above the lowest, by means over seeds."""
    def read(results: Results) -> np.ndarray:
        values = sorted(paired(*(one(results) for one in reads)), key=np.mean)
        return values[-1] / values[0] - 1

    return read


def figure_7(results: Results) -> Sequence[Criterion]:
    """Section 8.4, with tuned server rates: the two tasks differ."""
    return [one for panel in results.panels for one in _by_yogi(panel, shown(results, panel))]


def _by_yogi(panel: str, rates: Sequence[float]) -> Iterator[Criterion]:
    size, order = (
        ("smaller", rates) if name_of(panel) == "StackOverflow TP" else ("larger", rates[::-1])
    )
    best, *others = map(constant, order)
    for read, when in ((first, AT_FIRST), (final, "the last 100")):
        yield ahead(
            f"{panel}: {size} gammas have the lower loss throughout. Agrees if the mean over "
            f"{when} with {best} is below that with each of the others.",
            less(read(panel, best)), less(least([read(panel, label) for label in others])),
        )
    if name_of(panel) == "StackOverflow NWP":
        small, large = constant(rates[0]), constant(rates[-1])
        yield ahead(
            f"{panel}: the gap between large and small gammas narrows with the rounds. Agrees if "
            f"the loss of {small} less that of {large} is larger over {AT_FIRST} than over the "
            "last 100.",
            _gap(first, panel, small, large), _gap(final, panel, small, large),
        )


def _gap(read: Callable[[str, str], Read], panel: str, label: str, other: str) -> Read:
    def gap(results: Results) -> np.ndarray:
        own, its = paired(read(panel, label)(results), read(panel, other)(results))
        return own - its

    return gap


def losses(results: Results, panel: str, label: str) -> list[str]:
    """The loss at first and at last, in words."""
    return [spread(read(panel, label)(results), 3) for read in (first, final)]
