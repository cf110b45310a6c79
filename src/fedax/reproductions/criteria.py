"""Ways to say what would count as agreement, and to judge it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from fedax.reproductions.experiment import Criterion, Outcome
from fedax.reproductions.results import Results, paired, spread

# What is said of a difference that several seeds do not settle.
SMALL = "less than its spread"


def at_least(
    published: str, panel: str, better: str, worse: str, metric: str, by: float = 0.0,
    *, scale: float = 100.0, smaller_is_better: bool = False,
) -> Criterion:
    """One method's final value is better than another's, run by run of the same seeds.

    Args:
      published: what the source says, a sentence without its full stop.
      panel, better, worse: whose.
      metric: such as test_accuracy.
      by: the mean difference must be at least this, in units of the table; negative: so much worse
        is still agreement.
      scale: from the metric to the units of the table, such as 100 for per cent.
      smaller_is_better: as for losses.
    """
    needed = f"at least {by:g}" if by else "positive"
    order = f"{worse} less {better}" if smaller_is_better else f"{better} less {worse}"
    sign = -scale if smaller_is_better else scale

    def value(label: str) -> Callable[[Results], np.ndarray]:
        return lambda results: sign * results.final(panel, label, metric)

    return ahead(
        f"{panel}: {published}. Agrees if {metric} of {order} is {needed}, in the mean over seeds.",
        value(better), value(worse), by, names=(better, worse),
    )


def within(
    published: str, panel: str, labels: Sequence[str], metric: str, width: float,
    *, scale: float = 100.0,
) -> Criterion:
    """The best and the worst of some methods differ by so much at most, in the mean over seeds."""
    def judge(results: Results) -> Outcome:
        values = [scale * results.final(panel, label, metric) for label in labels]
        diverged = [label for label, of in zip(labels, values, strict=True) if np.isnan(of).any()]
        if diverged:
            return Outcome(f"{diverged[0]} diverged", False)
        gap = range_of(values)
        return Outcome(gained(gap, width), bool(gap.mean() <= width))

    return Criterion(
        f"{panel}: {published}. Agrees if the means of {metric} over seeds of {', '.join(labels)} "
        f"are within {width:g}.",
        judge,
    )


def earlier(
    published: str, panel: str, better: str, worse: str, metric: str, share: float = 0.25,
    *, scale: float = 100.0, smaller_is_better: bool = False,
) -> Criterion:
    """One method is ahead of another in the first rounds, in the mean of their curves."""
    order = f"{worse} less {better}" if smaller_is_better else f"{better} less {worse}"
    sign = -scale if smaller_is_better else scale
    return ahead(
        f"{panel}: {published}. Agrees if {metric} of {order} is positive, in the mean over seeds "
        f"and the first {share:.0%} of the rounds.",
        along(panel, better, metric, sign, share), along(panel, worse, metric, sign, share),
        names=(better, worse),
    )


def throughout(
    published: str, panel: str, ours: str, others: Sequence[str], metric: str, by: float,
    *, scale: float = 100.0, smaller_is_better: bool = False,
) -> Criterion:
    """In each quarter of the rounds a method is so far ahead of the best of others, or behind it.

    Judged where it is least ahead, in the mean over seeds.
    """
    sign = -scale if smaller_is_better else scale

    def quarters(results: Results, label: str) -> np.ndarray:
        _, values = results.curve(panel, label, metric)
        if not values.size:
            return np.array([[np.nan]])
        parts = [part for part in np.array_split(values, 4, axis=1) if part.size]
        whole = ~np.isnan(results.final(panel, label, metric))
        return np.array([np.where(whole, sign * part.mean(1), np.nan) for part in parts])

    def judge(results: Results) -> Outcome:
        every = [quarters(results, label) for label in others]
        known = [one for one in every if not np.isnan(one).all()]
        mine, *rest = paired(quarters(results, ours), *known, axis=1)
        gaps = mine - functools.reduce(np.fmax, rest, np.nan)
        if np.isnan(gaps).any():
            return Outcome(f"{ours} or one of {', '.join(others)} diverged, or was not measured",
                           False)
        least = int(gaps.mean(1).argmin())
        return Outcome(f"{gained(gaps[least], by)} in quarter {least + 1}",
                       bool(gaps[least].mean() >= by))

    other = " and ".join(others)
    return Criterion(
        f"{panel}: {published}. Agrees if in each quarter of the rounds {metric} of {ours} is at "
        f"most {-by:g} behind that of {'the better of ' * (len(others) > 1)}{other}, in the mean "
        "over seeds.",
        judge,
    )


def along(
    panel: str, label: str, metric: str, scale: float = 1.0, share: float = 1.0
) -> Callable[[Results], np.ndarray]:
    """Reads a curve's mean over the first share of the rounds, [seeds]; NaN where one diverged.

    A run that diverges later has diverged: what it was ahead by at first is worth nothing.
    """
    def read(results: Results) -> np.ndarray:
        rounds, values = results.curve(panel, label, metric)
        if not len(rounds):
            return np.array([np.nan])
        means = scale * values[:, rounds <= max(share * rounds[-1], rounds[0])].mean(1)
        return np.where(np.isnan(results.final(panel, label, metric)), np.nan, means)

    return read


def ahead(
    statement: str,
    better: Callable[[Results], np.ndarray],
    worse: Callable[[Results], np.ndarray],
    by: float = 0.0,
    *,
    names: tuple[str, str] = ("it", "what is compared with"),
) -> Criterion:
    """Values a seed, larger ones being better, exceed others; those of runs that diverged are NaN.

    If what should be worse diverged with some of the seeds, the others are compared; if with all,
    it is worse, but where it only must not be better by much, nothing is known.

    Args:
      statement: what was published, and what must be measured, in words.
      better, worse: the values from the results, [seeds].
      by: the mean difference must be more than 0, or if this is not 0, at least this.
      names: of both, for what is said of those that diverged.
    """
    def judge(results: Results) -> Outcome:
        high, low = _values(better, results), _values(worse, results)
        if np.isnan(high).any() or not len(high):
            return Outcome(f"{names[0]} diverged, or was not measured", False)
        if np.isnan(low).all():
            return Outcome(
                f"{names[1]} diverged, or was not measured", bool(len(low)) and by >= 0
            )
        both = min(len(high), len(low))  # seeds are run in order, so these are what both have
        high, low = high[:both], low[:both]
        lost = int(np.isnan(low).sum())
        gain = (high - low)[~np.isnan(low)] if lost else high - low
        words = f"; {names[1]} diverged with {lost} of {len(low)} seeds" if lost else ""
        return Outcome(gained(gain, by) + words, bool(gain.mean() >= by if by else gain.mean() > 0))

    return Criterion(statement, judge)


def between(
    statement: str, value: Callable[[Results], np.ndarray], least: float, most: float,
) -> Criterion:
    """The mean over seeds of a value is in a range.

    Args:
      statement: what was published, and what must be measured, in words.
      value: from the results, [seeds].
      least, most: the range, its ends included.
    """
    def judge(results: Results) -> Outcome:
        values = _values(value, results)
        if np.isnan(values).any() or not len(values):
            return Outcome("diverged, or was not measured", False)
        nearest = min((least, most), key=lambda end: abs(values.mean() - end))
        return Outcome(spread(values, 3) + unsettled(values, nearest),
                       bool(least <= values.mean() <= most))

    return Criterion(statement, judge)


def seed_by_seed(criterion: Criterion) -> Criterion:
    """A criterion that says, too, whether each seed alone comes to the same.

    For what is no mean of numbers, such as which setting is the best. The seeds are those that all
    methods have of the panel that its statement begins with.
    """
    panel = criterion.statement.partition(":")[0]

    def agrees(results: Results, seed: int) -> bool:
        one = [trace for trace in results.traces if trace.seed == seed]
        try:
            return criterion.judge(Results(one, results.by, maximise=results.maximise)).agrees
        except LookupError:  # all settings diverged
            return False

    def judge(results: Results) -> Outcome:
        found = criterion.judge(results)
        seeds: dict[str, set[int]] = {}
        for trace in results.traces:
            if trace.panel == panel:
                seeds.setdefault(trace.label, set()).add(trace.seed)
        common = set.intersection(*seeds.values()) if seeds else ()
        alone = [agrees(results, seed) for seed in common]
        if alone.count(found.agrees) == len(alone):
            return found
        words = f"{found.measured} ({SMALL}: of {len(alone)} seeds alone {sum(alone)} agree)"
        return found._replace(measured=words)

    return criterion._replace(judge=judge)


def _values(read: Callable[[Results], np.ndarray], results: Results) -> np.ndarray:
    """The values, or a NaN if all settings diverged."""
    try:
        return np.asarray(read(results), float)
    except LookupError:
        return np.array([np.nan])


def sooner(
    published: str, panel: str, faster: str, slower: str, metric: str, *, scale: float = 100.0,
) -> Criterion:
    """One method's curve lies above another's: its mean over all rounds, run by run."""
    return ahead(
        f"{panel}: {published}. Agrees if the mean of {metric} over all rounds of {faster} less "
        f"{slower} is positive, in the mean over seeds.",
        along(panel, faster, metric, scale), along(panel, slower, metric, scale),
        names=(faster, slower),
    )


def gains_more(
    published: str, panel: str, more: tuple[str, str], less: tuple[str, str], metric: str,
    *, scale: float = 100.0,
) -> Criterion:
    """What the first of a pair of methods gains over the second is more than in another pair."""
    def judge(results: Results) -> Outcome:
        final = {
            label: scale * results.final(panel, label, metric) for label in (*more, *less)
        }
        diverged = [label for label, values in final.items() if np.isnan(values).any()]
        if diverged:
            return Outcome(f"{diverged[0]} diverged", False)
        values = dict(zip(final, paired(*final.values()), strict=True))
        gains = [values[pair[0]] - values[pair[1]] for pair in (more, less)]
        return Outcome(
            f"{spread(gains[0])} and {spread(gains[1])}, so {gained(gains[0] - gains[1])}",
            bool(gains[0].mean() > gains[1].mean()),
        )

    return Criterion(
        f"{panel}: {published}. Agrees if {metric} of {more[0]} less {more[1]} is more than that "
        f"of {less[0]} less {less[1]}, in the mean over seeds.",
        judge,
    )


def range_of(values: Sequence[np.ndarray]) -> np.ndarray:
    """The best of some values [seeds] less the worst of them, both by their means."""
    values = paired(*values)
    return max(values, key=np.mean) - min(values, key=np.mean)


def chosen(published: str, panel: str, label: str, key: str, value: object) -> Criterion:
    """The best setting of a method has a value of a hyperparameter."""
    def judge(results: Results) -> Outcome:
        try:
            found = results.best(panel, label)[key]
        except LookupError:
            return Outcome(f"{label} diverged", False)
        return Outcome(str(found), found == value)

    return seed_by_seed(Criterion(
        f"{panel}: {published}. Agrees if the best setting of {label} has {key} = {value}.", judge
    ))


def gained(values: np.ndarray, by: float = 0.0) -> str:
    """A difference in words: mean, sample standard deviation, and whether the seeds settle it.

    Args:
      values: [seeds].
      by: what it is held against; nearer to it than its spread it is called undecided.

    Example:
      >>> gained(np.array([0.5, 0.7])), gained(np.array([-0.5, 0.7]))
      ('0.6 ± 0.14', '0.1 ± 0.85 (less than its spread)')
      >>> gained(np.array([0.1, -0.2]), -0.5), gained(np.array([-0.4, -0.5]), -0.5)
      ('-0.05 ± 0.21', '-0.45 ± 0.071 (its distance from -0.5 is less than its spread)')
      >>> gained(np.array([0.6]))
      '0.6 (one seed)'
    """
    if len(values) == 1:
        return f"{values[0]:.3g} (one seed)"
    return f"{values.mean():.3g} ± {values.std(ddof=1):.2g}{unsettled(values, by)}"


def unsettled(values: np.ndarray, by: float = 0.0) -> str:
    """Says so if the mean of some values, [seeds], is nearer to a number than their spread."""
    if len(values) < 2 or not abs(values.mean() - by) < values.std(ddof=1):
        return ""
    return f" (its distance from {by:g} is {SMALL})" if by else f" ({SMALL})"
