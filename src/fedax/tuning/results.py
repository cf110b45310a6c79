"""What runs and sweeps came to, from folders or from Python: side by side, and as a table."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from fedax.experiment.folder import SWEEP, RunError, read_config
from fedax.experiment.load import LoadedRun
from fedax.experiment.pages import read_run
from fedax.experiment.train import TrainResult
from fedax.outside.paths import expanded
from fedax.pictures.labels import grouped
from fedax.report.results import TableError, by_label, results_table
from fedax.report.results_table import ResultsTable
from fedax.report.runs import Run
from fedax.report.sweep_page import best_runs, runs_of_settings
from fedax.rounds.history import History
from fedax.sweeps.choosing import Choice, rounds_of
from fedax.sweeps.closing import rule_in_words
from fedax.sweeps.record import Record
from fedax.tuning.load import LoadedSweep, load_sweep
from fedax.tuning.page import bases
from fedax.tuning.sweep import SweepResult

Result: TypeAlias = str | Path | LoadedRun | LoadedSweep | SweepResult | TrainResult | History
Results: TypeAlias = Result | Iterable[Result] | Mapping[str, Result | Iterable[Result]]


class Found(NamedTuple):
    """Runs, and what a reader must know of how they were found."""

    runs: list[Run]
    notes: list[str]


def table(
    results: Results,
    metric: str | Sequence[str] = (),
    *,
    target: float | None = None,
    significance: str | None = None,
    baseline: str | None = None,
    all_settings: bool = False,
) -> ResultsTable:
    """A table of results as in papers: mean and standard deviation over seeds, the best in bold.

    Runs that differ only in their seeds share one row, named by task, method and the settings that
    differ. If a seed of a setting diverged, its row says so and shows no mean.

    Args:
      results: folders of runs and sweeps, or results of `train`, `sweep`, `load_run` and
        `load_sweep`: one or a list, or a dictionary of label to one or a list (the seeds of that
        row). A sweep adds one row for the best setting of each method.
      metric: one name or several, such as "test_accuracy"; if the name does not imply which
        direction is better, write "lift:max". Default: test_accuracy, otherwise test_loss,
        otherwise train_loss. train_loss is averaged over the last 100 rounds; other metrics use
        their last value.
      target: adds the rounds, and the bytes of all clients, until the first metric reaches it.
      significance: adds the two-sided p-value of a paired "t-test" or of "wilcoxon" (signed
        ranks), for the first metric over the seeds that a row shares with the baseline.
      baseline: row to test against, by its method, or method and settings if there are several
        rows, such as "fedavg client_learning_rate=0.1"; None: the best.
      all_settings: whether to show every setting of a sweep.

    Returns:
      A table with `markdown()`, `latex()` (which needs the package booktabs), `csv()` and
      `to_pandas()`; it prints as Markdown.

    Raises:
      TableError: if the results do not have a metric, or too few seeds. It is a ValueError.
      RunError: if a folder does not contain a run or a sweep, or is damaged.
      TypeError: if the input is something else.

    Example:
      >>> rows = {
      ...     "slow": [History([{"round": 1, "test_loss": loss}]) for loss in (2.0, 4.0)],
      ...     "fast": [History([{"round": 1, "test_loss": loss}]) for loss in (1.0, 1.5)],
      ... }
      >>> print(table(rows))
      | method |         test loss |
      | :----- | ----------------: |
      | slow   |     3.000 ± 1.414 |
      | fast   | **1.250 ± 0.354** |
      <BLANKLINE>
      Test loss: mean ± sample standard deviation over 2 seeds. The best is bold.
    """
    if baseline is not None and significance is None:
        raise TableError("baseline needs significance, 't-test' or 'wilcoxon'.")
    found = _found(results, all_settings)
    metrics = [metric] if isinstance(metric, str) else metric
    with understood("these results", "table"):
        return results_table(
            found.runs, metrics, target, significance, baseline, found.notes
        )


def is_sweep(folder: Path) -> bool:
    """Whether a folder is a sweep's, or else a run's.

    Raises:
      RunError: if it is neither.
    """
    return read_config(folder).get("kind") == SWEEP


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Folders by the last part of their names, or in full where that is not enough."""
    short = [Path(os.path.realpath(folder)).name for folder in folders]
    return [
        name if short.count(name) == 1 else str(folder)
        for name, folder in zip(short, folders, strict=True)
    ]


@contextlib.contextmanager
def understood(folder: Path | str, what: str = "page") -> Iterator[None]:
    """Turns into a sentence what goes wrong with files that hold something else than we write."""
    try:
        yield
    except TableError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise RunError(
            f"Cannot make the {what} of {folder}: one of its files is damaged, or was not written "
            f"by a run. {type(error).__name__}: {error}. (--debug shows where.)"
        ) from error


def runs_in(folder: Path) -> list[Run]:
    """A run, of which the folder's name is name enough, or the best ones of a sweep.

    Raises:
      RunError: if it is neither, or the sweep has no best setting yet.
    """
    if not is_sweep(folder):
        return [read_run(folder)._replace(name="")]
    sweep = load_sweep(folder)
    found = best_runs(sweep.record, sweep.choice, sweep.config, bases(folder, sweep.config))
    if not found:
        raise RunError(f"No setting of the sweep in {folder} has a finite score yet.")
    return found


def _found(results: Any, all_settings: bool) -> Found:
    if isinstance(results, Mapping):
        return _labelled(results, all_settings)
    one = isinstance(results, str | Path | History | TrainResult | SweepResult)
    several = isinstance(results, Iterable) and not one
    found = Found([], [])
    for place, result in enumerate(_once(results) if several else [results]):
        runs, notes = _of_one(result, place, all_settings)
        found.runs.extend(run._replace(name=f"{run.name} ({place})") if run.name in {
            known.name for known in found.runs
        } else run for run in runs)
        found.notes.extend(notes)
    return found


def _once(results: Iterable[Any]) -> Iterator[Any]:
    """The results, a folder that was given twice once."""
    known: set[Path] = set()
    for result in results:
        if isinstance(result, str | Path):
            folder = Path(os.path.realpath(expanded(result)))
            if folder in known:
                continue
            known.add(folder)
        yield result


def _labelled(results: Mapping[Any, Any], all_settings: bool) -> Found:
    labelled: dict[str, list[Run]] = {}
    notes: list[str] = []
    for label, some in results.items():
        found = _found(some, all_settings)
        rows = grouped([run.config for run in found.runs], [run.name for run in found.runs])
        methods = {group.method for group in rows}
        for group in rows:
            name = f"{label} {group.label}" if len(methods) > 1 or all_settings else str(label)
            labelled.setdefault(name, []).extend(found.runs[place] for place in group.places)
        notes += found.notes
    return Found(by_label(labelled), notes)


def _of_one(result: Any, place: int, all_settings: bool) -> Found:
    if isinstance(result, LoadedRun):
        result = result.path
    if isinstance(result, str | Path):
        folder = expanded(result)
        with understood(folder, "table"):
            if not is_sweep(folder):
                return Found([read_run(folder)], [])
            result = load_sweep(folder)
    if isinstance(result, LoadedSweep):
        with understood(result.path, "table"):
            return _of_sweep(
                result.record, result.choice, result.config, bases(result.path, result.config),
                all_settings,
            )
    if isinstance(result, SweepResult):
        rounds = {"num_rounds": rounds_of(result.record)}
        return _of_sweep(result.record, result.choice, rounds, {}, all_settings)
    if isinstance(result, TrainResult | History):
        history = result.history if isinstance(result, TrainResult) else result
        summary: dict[str, Any] = {}
        if isinstance(result, TrainResult):
            if result.stopped:  # tested after its last round, which the history lacks
                summary["final"] = dict(result.test)
            summary["best"] = {"test": result.best_test or {}}
        config = {"algorithm": "", "task": "", "seed": place}
        return Found([Run(f"run {place}", config, history.rounds, summary, {})], [])
    raise TypeError(
        "The input of a table must be folders of runs and sweeps, results of fedax.train, "
        "fedax.sweep, fedax.load_run or fedax.load_sweep, a list of these, or a dictionary of "
        f"label to one or a list, but is of type {type(result).__name__}."
    )


def _of_sweep(
    record: Record, choice: Choice, config: Mapping[str, Any],
    methods: Mapping[str, Mapping[str, Any]], all_settings: bool,
) -> Found:
    """The runs of each method's best setting, or of all settings that were run."""
    if all_settings:
        numbers = [number for number in range(len(record.settings)) if len(record.rows_of(number))]
        return Found(runs_of_settings(record, numbers, config, methods), [])
    rule = rule_in_words(record, choice).partition(";")[0]
    notes = [
        f"{method}: {record.settings[chosen.best].label} is the best of {len(chosen.order)} "
        f"settings by {rule}."
        for method, chosen in choice.methods.items()
        if chosen.best is not None and len(chosen.order) > 1
    ] + [
        f"{method}: no setting has a finite score."
        for method, chosen in choice.methods.items() if chosen.best is None
    ]
    if choice.rule.startswith("test_"):
        notes.append(
            f"The settings were chosen by {choice.rule}, so their {choice.rule} is too optimistic."
        )
    return Found(best_runs(record, choice, config, methods), notes)
