"""Trials of a search, trained side by side, and kept in a folder."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import TrialState

from fedax.algorithm import FederatedAlgorithm
from fedax.data.task import Task
from fedax.experiment.folder import RunError
from fedax.factories import partition
from fedax.files.npz import Arrays, read_npz
from fedax.files.regular import write_atomically
from fedax.rounds.history import History
from fedax.rounds.options import Settings
from fedax.sweeps.batch import BatchTraining, Shared, beginning, varying
from fedax.sweeps.choosing import Rule, choose
from fedax.sweeps.columns import Part, joined
from fedax.sweeps.planning import Entry, side_by_side
from fedax.sweeps.record import Record, Setting
from fedax.tuning.keeping import checked, require_modest
from fedax.tuning.optuna_search import Report, TrainBatch, Tried
from fedax.tuning.space import ends

Values = Mapping[str, Any]
OVER = (TrialState.COMPLETE, TrialState.PRUNED)


def trainer(
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
      size: compute at most this many side by side, see `fedax.sweeps.planning.side_by_side`.
    """
    known: dict[Any, tuple[bool, ...]] = {}
    shared = Shared()

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
            entry = Entry(*entries[places[0]], functools.partial(options, settings[places[0]]))
            most = min(size, side_by_side(entry))
            for first in range(0, len(places), most):
                own = places[first : first + most]
                # So that few sizes are programs of their own.
                places_of_program = min(most, 1 << (len(own) - 1).bit_length())
                filled = [*own, *[own[-1]] * (places_of_program - len(own))]
                task, algorithms = entries[own[0]][0], [entries[place][1] for place in filled]
                run = entry.options(seed)._replace(state_every=every)
                state = beginning(task, algorithms, shared.initial_params(task, seed))
                state.alive[len(own) :] = False  # what fills up is not trained
                training = BatchTraining(
                    task, algorithms, num_rounds, run, known[key], jax.local_devices()[:1], state,
                    shared=shared,
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
        for at in range(len(turn.metrics["seconds"])):
            rows = {
                place: {"round": turn.first + at} | {
                    name: float(values[at, row]) for name, values in turn.metrics.items()
                    if not np.isnan(values[at, row])
                }
                for row, place in enumerate(places)
                if not np.isnan(turn.metrics["seconds"][at, row])
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
        for other in ends(of):
            numbers, its = partition(made({**values, name: other})[1])
            if its == structure:
                found.append(numbers)
    return varying(found)


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
    """A function that writes the rounds of trials into a folder, a file each.

    Raises:
      OSError: if the disk is full or not writable.
    """
    def keep(tried: Sequence[Tried]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for trial in tried:
            arrays: Arrays = {
                f"{seed}:{name}": history[name] for seed, history in trial.histories.items()
                for name in sorted({name for metrics in history.rounds for name in metrics})
            }
            arrays |= {
                f"{seed}:diverged": np.array(diverged) for seed, diverged in trial.diverged.items()
            }
            file = io.BytesIO()
            np.savez(file, allow_pickle=False, **arrays)
            write_atomically(_file(folder, trial.number), file.getvalue())

    return keep


def record_of(studies: Mapping[str, tuple[optuna.Study, Path]]) -> Record:
    """The trials whose rounds a folder has, as the record of a sweep.

    A setting's number is its place among them, in the order of the methods and their trials.

    Args:
      studies: method -> its study, and the folder of its trials.

    Raises:
      RunError: if a file is damaged.
    """
    settings: list[Setting] = []
    parts: list[Part] = []
    for algorithm, (study, folder) in studies.items():
        for trial in study.get_trials(deepcopy=False, states=OVER):
            path = _file(folder, trial.number)
            if path.exists():
                setting = Setting(len(settings), algorithm, dict(trial.params))
                settings.append(setting)
                parts += _parts(path, setting.number)
    require_modest(len(settings), parts, str(next(iter(studies.values()))[1].parent))
    return joined(settings, parts)


def _parts(path: Path, setting: int) -> Iterator[Part]:
    """The runs of a trial, one a seed."""
    columns: dict[int, dict[str, np.ndarray]] = {}
    try:
        for key, values in read_npz(path).items():
            seed, _, name = key.partition(":")
            columns.setdefault(int(seed), {})[name] = values
        for seed, own in columns.items():
            diverged, rounds = own.pop("diverged"), own.pop("round", np.zeros(0))
            yield checked(Part(
                np.array([setting]), np.array([seed]), diverged[None],
                np.array([rounds.size]), {name: values[None] for name, values in own.items()},
            ))
    except (OSError, ValueError, KeyError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise RunError(
            f"{path} is damaged: {reason}. Delete it: only the trial's rounds are lost, its score "
            "is in the study."
        ) from None


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.npz"
