"""A run as pages show it, and what is worth a warning in it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedax.report.curves import in_units
from fedax.report.marks import listed, words
from fedax.rounds.directions import TEST, direction, is_evaluated, shown_first
from fedax.rounds.history import describe_sample, is_sampled
from fedax.validate import so_many

# The last part of a run's rounds is compared with the part before: if the loss falls by more than
# this share of itself, and by more than twice what chance explains, the run was still improving.
_LAST_PART = 0.1
_IMPROVED = 0.01
_FEWEST_ROUNDS = 20
LAST_ROUNDS = 100


class Run(NamedTuple):
    """A run folder's content.

    Attributes:
      name: of its folder.
      config: what its config.json holds.
      rounds: the lines of its metrics.jsonl.
      summary: what it came to; None while it is not finished.
      commands: what repeats it: sentence -> a command line, or nothing.
      go_on: the command that continues it.
      worst: the metric by which clients are compared, and the worst of them.
      why_diverged: a sentence, if it ended because nothing was finite any more.
    """

    name: str
    config: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any] | None
    commands: Mapping[str, str]
    go_on: str = ""
    worst: tuple[str, Sequence[Mapping[str, Any]]] = ("", ())
    why_diverged: str = ""

    @property
    def title(self) -> str:
        """The method and the task."""
        return f"{self.config['algorithm']} on {self.config['task']}"

    @property
    def state(self) -> str:
        """How far it came."""
        done, asked = len(self.rounds), self.config["num_rounds"]
        if self.why_diverged:
            return f"diverged after {done} of {asked} rounds"
        if self.summary is None:
            return f"not finished: {done} of {asked} rounds"
        return f"stopped early: {done} of {asked} rounds" if done < asked else (
            so_many(done, "round")
        )

    @property
    def metrics(self) -> list[str]:
        """The metrics of its rounds: training loss, tests, others."""
        names = dict.fromkeys(key for metrics in self.rounds for key in metrics)
        known = [name for name in names if name not in ("round", "rejected")]
        return sorted(known, key=shown_first)

    def values(self, metric: str) -> np.ndarray:
        """A metric of all rounds, float64 [rounds]; NaN where there is none."""
        return np.array([_number(metrics.get(metric)) for metrics in self.rounds], float)

    @property
    def final(self) -> dict[str, float]:
        """The test metrics at its end, or so far."""
        if self.summary is not None:
            return dict(self.summary.get("final", {}))
        tested = (m for m in reversed(self.rounds) if any(map(is_evaluated, m)))
        return {
            name: value for name, value in next(tested, {}).items()
            if is_evaluated(name) or name.startswith("evaluated_")
        }

    @property
    def train_loss(self) -> float:
        """The mean training loss of the last 100 rounds; NaN without any."""
        losses = np.array([_number(m.get("train_loss")) for m in self.rounds[-LAST_ROUNDS:]])
        losses = losses[~np.isnan(losses)]
        return float(losses.mean()) if len(losses) else math.nan

    @property
    def diverged(self) -> bool:
        """Whether it ended as diverged, or its last training loss is not finite."""
        if self.why_diverged:
            return True
        last = self.rounds[-1] if self.rounds else {}
        lost = "train_loss" in last and not math.isfinite(_number(last["train_loss"]))
        return lost and last.get("num_reports") != 0

    @property
    def of_best(self) -> dict[str, float]:
        """`best_test_*`: the test metrics of the best model, if validation data chose it."""
        best = (self.summary or {}).get("best") or {}
        return {f"best_{name}": value for name, value in best.get("test", {}).items()}

    def result(self, metric: str) -> float | None:
        """What the run came to in a metric; None if it never measured it, NaN if not finite.

        Of the training loss that is `train_loss`, of other metrics the value at the end, or the
        last one that was measured. `best_test_*` is of the best model by validation data.
        """
        final = self.final | self.of_best
        last = next((m for m in reversed(self.rounds) if metric in m), {})
        if metric not in final and metric not in last:
            return None
        if metric == "train_loss":
            return self.train_loss
        value = _number(final.get(metric, last.get(metric)))
        return value if math.isfinite(value) else math.nan

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting of the configuration, those of task and algorithm too, by name."""
        rows: dict[str, Any] = {}
        for key, value in self.config.items():
            if key in ("made_by", "python"):  # versions, and digests, which say nothing to a reader
                continue
            if key in ("task_source", "algorithm_source"):
                rows |= {words(key): _source(value)} if value else {}
            else:
                rows |= value if isinstance(value, Mapping) else {key: value}
        return rows


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float | np.number) else math.nan


def _source(source: Mapping[str, Any]) -> str:
    """Where a user's task or method came from."""
    package = f" of {source['distribution']} {source['version']}" if source["distribution"] else ""
    rounds = " and ".join(map(str, source["changed_after"]))
    changed = f"; a different version until round {rounds}" if rounds else ""
    return f"{source['path']}: {source['name']}{package}, SHA-256 {source['sha256']}{changed}"


def warnings(run: Run) -> Iterator[str]:
    """Sentences about what a reader of the result must know; before a colon their kind."""
    if run.why_diverged:
        yield f"Diverged: {run.why_diverged}"
    elif run.summary is None:
        yield (
            f"Not finished: {len(run.rounds)} of {run.config['num_rounds']} rounds done."
            + (f" Continue with: {run.go_on}" if run.go_on else "")
        )
    elif run.summary.get("stopped"):
        yield f"Stopped early: {run.summary['stopped']}"
    yield from _of_losses(run)
    yield from _of_rejections(run)
    yield from _of_tests(run)


def _of_losses(run: Run) -> Iterator[str]:
    losses = run.values("train_loss")
    lost = [
        int(metrics["round"]) for metrics in run.rounds
        if "train_loss" in metrics and metrics["train_loss"] is None and metrics.get("num_reports")
    ]
    if lost:
        yield (
            f"Diverged: the training loss is not finite in {len(lost)} "
            f"round{'s' * (len(lost) > 1)}, first in round {lost[0]}. Try lower learning rates."
        )
    elif above_its_start(losses):
        yield f"Worse than at the start: {above_its_start(losses)} Try lower learning rates."
    elif still_improving(losses) and not (run.summary or {}).get("stopped"):
        yield f"Still improving at the end: {still_improving(losses)}"


def above_its_start(losses: np.ndarray) -> str:
    """A sentence if every training loss of the last tenth of the rounds is above the first, or "".

    Rates that are too high need not end in what is not finite.

    Example:
      >>> above_its_start(np.linspace(2.0, 400.0, 20))
      'the mean training loss of the last 2 rounds is 389.5; in the first round it was 2.'
      >>> above_its_start(np.ones(20))
      ''
    """
    losses = losses[np.isfinite(losses)]
    last = losses[-_last_part(losses) :]
    if len(losses) < _FEWEST_ROUNDS or last.min() <= losses[0]:
        return ""
    return (
        f"the mean training loss of the last {len(last)} rounds is {last.mean():.4g}; in the first "
        f"round it was {losses[0]:.4g}."
    )


def _last_part(losses: np.ndarray) -> int:
    return max(int(len(losses) * _LAST_PART), 2)


def still_improving(losses: np.ndarray) -> str:
    """A sentence if the training loss was still falling in the last tenth of the rounds, else "".

    It compares the mean of the last tenth of the rounds with that of the tenth before, and asks for
    a fall of 1%, and of twice its standard error.

    Example:
      >>> still_improving(1 / np.arange(1.0, 101))
      'the mean training loss of the last 10 rounds is 10.5% below that of the 10 before.'
      >>> still_improving(np.ones(100)), still_improving(np.array([2.0, 1.0]))
      ('', '')
    """
    losses = losses[np.isfinite(losses)]
    if len(losses) < _FEWEST_ROUNDS:
        return ""
    count = _last_part(losses)
    last, before = losses[-count:], losses[-2 * count : -count]
    fall = before.mean() - last.mean()
    error = math.sqrt((last.var(ddof=1) + before.var(ddof=1)) / count)
    if fall <= max(_IMPROVED * abs(before.mean()), 2 * error):
        return ""
    share = fall / abs(before.mean())
    return (
        f"the mean training loss of the last {count} rounds is {share:.1%} below that of the "
        f"{count} before."
    )


def _of_rejections(run: Run) -> Iterator[str]:
    count = int(np.nansum(run.values("num_rejected"))) if run.rounds else 0
    if count:
        clients = (run.summary or {}).get("rejected_clients", {})
        named = f" (clients {listed(clients)})" if clients else ""
        yield f"Uploads rejected: {count:,} contained NaN or infinity{named} and got weight 0."


def _of_tests(run: Run) -> Iterator[str]:
    tested = [m for m in run.rounds if any(map(is_evaluated, m))]
    if not tested:
        if run.rounds:
            yield "No test metrics: nothing was evaluated on test data."
        return
    # On the way it is said beside the curves.
    final = run.final
    if is_sampled(final):
        part = "test" if any(name.startswith(TEST) for name in final) else "validation"
        yield f"Evaluated on a sample: final {part} metrics use {describe_sample(final)}."
    for text, metrics in (run.summary or {}).get("references", {}).items():
        for name, value in metrics.items():
            own, goal = run.final.get(name), direction(name)
            if own is None or value is None or goal is None:
                continue
            if own < value if goal == "max" else own > value:
                yield (
                    f"Worse than {text}: {words(name)} {in_units(name, own)}, compared with "
                    f"{in_units(name, value)}."
                )
