"""Trials of a search, trained side by side, and kept in a folder."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import TrialState

from fedax.algorithm import FederatedAlgorithm
from fedax.data.task import Task
from fedax.experiment.arrays import Arrays
from fedax.experiment.folder import RunError, read_file, write_atomically
from fedax.factories import partition
from fedax.rounds.history import History
from fedax.rounds.options import Settings
from fedax.sweeps.batch import BatchTraining, beginning, varying
from fedax.sweeps.choosing import Rule, choose
from fedax.sweeps.record import Record, Setting
from fedax.tuning.optuna_search import Report, TrainBatch, Tried

Values = Mapping[str, Any]
TRIALS = "trials"


def side_by_side(
    made: Callable[[Values], tuple[Task, FederatedAlgorithm]],
    space: Mapping[str, BaseDistribution],
    num_rounds: int,
    options: Callable[[Values, int], Settings],
    every: int,
    size: int,
) -> TrainBatch:
    """A function that trains settings of a seed side by side, as `explore` wants it.

    Settings of one structure are one program, whichever of their numbers differ.

    Args:
      made: what a setting stands for; one task for all that have it alike.
      space: what is searched.
      num_rounds: T.
      options: (setting, seed) -> how its rounds are run.
      every: rounds between those after which settings may be given up.
      size: so many are computed side by side.
    """
    known: dict[Any, tuple[bool, ...]] = {}

    def train(settings: Sequence[Values], seed: int, report: Report) -> list[History]:
        histories = [History() for _ in settings]
        entries = [made(values) for values in settings]
        members: dict[Any, list[int]] = {}
        for place, (task, algorithm) in enumerate(entries):
            structure = partition(algorithm)[1]
            run = options(settings[place], seed)
            members.setdefault((id(task), structure, _kind(run)), []).append(place)
        for key, places in members.items():
            if key not in known:
                known[key] = _varies(made, space, settings[places[0]])
            for first in range(0, len(places), size):
                own = places[first : first + size]
                # So that few sizes are programs of their own.
                places_of_program = min(size, 1 << (len(own) - 1).bit_length())
                filled = [*own, *[own[-1]] * (places_of_program - len(own))]
                task, algorithms = entries[own[0]][0], [entries[place][1] for place in filled]
                run = options(settings[own[0]], seed)._replace(state_every=every)
                state = beginning(task, algorithms, seed)
                state.alive[len(own) :] = False  # what fills up is not trained
                training = BatchTraining(
                    task, algorithms, num_rounds, run, known[key], jax.local_devices()[:1], state
                )
                _follow(training, own, histories, report)
        return histories

    return train


def _follow(
    training: BatchTraining, places: Sequence[int], histories: Sequence[History], report: Report
) -> None:
    """Runs a batch, telling of each round; what is given up stops after it."""
    for turn in training:
        up: set[int] = set()
        for at in range(len(turn.metrics["num_reports"])):
            rows = {
                place: {"round": turn.first + at} | {
                    name: float(values[at, row]) for name, values in turn.metrics.items()
                    if not np.isnan(values[at, row])
                }
                for row, place in enumerate(places)
                if not np.isnan(turn.metrics["num_reports"][at, row])
            }
            for place, metrics in rows.items():
                histories[place].append(metrics)
            if rows:
                up.update(report(turn.first + at, rows))
        if up:
            training.give_up([places.index(place) for place in up])
        if not training.state.alive.any():
            return


def _varies(
    made: Callable[[Values], tuple[Task, FederatedAlgorithm]],
    space: Mapping[str, BaseDistribution],
    values: Values,
) -> tuple[bool, ...]:
    """Which numbers of a setting's structure the search may change."""
    base, structure = partition(made(values)[1])
    found = [base]
    for name, of in space.items():
        for other in _ends(of):
            numbers, its = partition(made({**values, name: other})[1])
            if its == structure:
                found.append(numbers)
    return varying(found)


def _ends(of: BaseDistribution) -> Sequence[Any]:
    """All values of a choice, the lowest and the highest of a range."""
    if isinstance(of, CategoricalDistribution):
        return of.choices
    return [getattr(of, end) for end in ("low", "high")]


def _kind(run: Settings) -> Any:
    """What must be alike for settings that are trained side by side."""
    return tuple(value if isinstance(value, int | float | str | None) else id(value)
                 for value in run)


def scorer(rule: Rule) -> Callable[[History], float]:
    """The score of a run by a sweep's rule; NaN where it has none yet.

    Example:
      >>> scorer("train_loss")(History([{"round": 1, "train_loss": 2.0},
      ...                               {"round": 2, "train_loss": 1.0}]))
      1.5
    """
    def score(history: History) -> float:
        one, none = np.ones(1, np.int64), np.zeros(1, np.int64)
        names = {name for metrics in history.rounds for name in metrics}
        columns = {name: history[name][None] for name in names}
        record = Record([Setting(0, "", {})], none, none, none, one * len(history), columns)
        try:
            return float(choose(record, rule).scores[0, 0])
        except ValueError:  # not measured so far
            return np.nan

    return score


def keep_trials(folder: Path) -> Callable[[Sequence[Tried]], None]:
    """A function that writes the rounds of trials into a search's folder.

    Raises:
      OSError: the disk is full or not writable.
    """
    def keep(tried: Sequence[Tried]) -> None:
        (folder / TRIALS).mkdir(exist_ok=True)
        for trial in tried:
            names = {name for history in trial.histories.values()
                     for metrics in history.rounds for name in metrics}
            arrays: Arrays = {
                f"{seed}:{name}": history[name] for seed, history in trial.histories.items()
                for name in sorted(names) if any(name in metrics for metrics in history.rounds)
            }
            arrays |= {
                f"{seed}:diverged": np.array(diverged) for seed, diverged in trial.diverged.items()
            }
            file = io.BytesIO()
            np.savez(file, allow_pickle=False, **arrays)
            write_atomically(_file(folder, trial.number), file.getvalue())

    return keep


def record_of(study: optuna.Study, folder: Path, algorithm: str) -> Record:
    """The trials of a study whose rounds a folder has, as the record of a sweep.

    A setting's number is its place among them, in the order of the trials.

    Raises:
      RunError: a file is damaged.
    """
    over = (TrialState.COMPLETE, TrialState.PRUNED)
    trials = [
        trial for trial in study.get_trials(deepcopy=False, states=over)
        if _file(folder, trial.number).exists()
    ]
    settings = [
        Setting(number, algorithm, dict(trial.params)) for number, trial in enumerate(trials)
    ]
    rows: list[tuple[int, int, int, dict[str, np.ndarray]]] = []
    for setting, trial in zip(settings, trials, strict=True):
        columns: dict[int, dict[str, np.ndarray]] = {}
        for key, values in _read(_file(folder, trial.number)).items():
            seed, _, name = key.partition(":")
            columns.setdefault(int(seed), {})[name] = values
        rows += [
            (setting.number, seed, int(own.pop("diverged")), own)
            for seed, own in sorted(columns.items())
        ]
    names = dict.fromkeys(name for *_, own in rows for name in own if name != "round")
    done = [len(own.get("round", ())) for *_, own in rows]
    metrics = {name: np.full((len(rows), max(done, default=0)), np.nan) for name in names}
    for row, (*_, own) in enumerate(rows):
        for name in names:
            if name in own:
                metrics[name][row, : len(own[name])] = own[name]
    setting, seed, diverged = (
        np.array([row[at] for row in rows], np.int64) for at in range(3)
    )
    return Record(settings, setting, seed, diverged, np.array(done, np.int64), metrics)


def _file(folder: Path, number: int) -> Path:
    return folder / TRIALS / f"{number:06d}.npz"


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(io.BytesIO(read_file(path)), allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"{path} is damaged: {error}.") from None
