"""Searches of continuous ranges by Optuna: trials are asked for, trained side by side, and told.

The study is a plain one of Optuna's, so that its dashboard and its other tools open it: the
parameters of a trial are the hyperparameters, its value is the score, its intermediate values are
the scores of its first seed on the way, and what else is known are user attributes.
"""

from __future__ import annotations

import contextlib
import functools
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, GPSampler
from optuna.trial import FrozenTrial, TrialState

from fedax.rounds.history import History, mean_and_spread
from fedax.sweeps.choosing import RuleError
from fedax.tuning.optuna_drawing import Drawing, completed
from fedax.tuning.optuna_workers import Heartbeat, Worker, begun, explained, trials_of
from fedax.tuning.samplers import SAMPLERS, batch_of, make_sampler

# So many times on its way a trial says how good it is, and may be given up.
REPORTS = 20

# (round, place -> its metrics in that round) -> the places to give up.
Report: TypeAlias = Callable[[int, Mapping[int, Mapping[str, float]]], Sequence[int]]
# (settings, seed, report) -> a history for each; one that is shorter than the others and was not
# given up has diverged.
TrainBatch: TypeAlias = Callable[[Sequence[Mapping[str, Any]], int, Report], Sequence[History]]


def rounds_between_reports(num_rounds: int) -> int:
    """After how many rounds a trial says how good it is."""
    return max(1, num_rounds // REPORTS)


class Search(NamedTuple):
    """What is searched, and how.

    Attributes:
      space: the hyperparameters' ranges, see `parse_space`.
      score: of a run's history.
      maximise: whether a higher score is better.
      num_rounds: T.
      num_trials: of the study, of all workers together.
      seeds: each trial is trained with all of them, and its value is the mean of the scores.
      sampler: a name of `SAMPLERS`, or one of Optuna's own; a name's draws depend on the seed and
        on what the study holds.
      pruner: gives trials up by the first seed's scores on the way.
      batch_size: trials that are trained side by side; 1 with a sampler that learns from each.
      seed: of the sampler.
      worker: a name that is unique in the study; it continues where a killed worker of that name
          stopped.
      lost: (settings, seed, history) -> the round from which a finished run has diverged (its loss
          is far above the untrained model's); 0: it did not diverge.
    """

    space: Mapping[str, BaseDistribution]
    score: Callable[[History], float]
    num_rounds: int
    num_trials: int
    maximise: bool = False
    seeds: Sequence[int] = (0,)
    sampler: str | BaseSampler = "tpe"
    pruner: BasePruner | None = None
    batch_size: int = 8
    seed: int = 0
    worker: str = ""
    lost: Callable[[Mapping[str, Any], int, History], int] = lambda settings, seed, history: 0  # noqa: ARG005

    @property
    def worst(self) -> float:
        """The score of a trial that diverged."""
        return -math.inf if self.maximise else math.inf


class Tried(NamedTuple):
    """A trial that is over.

    Attributes:
      number: the study's.
      values: its hyperparameters.
      histories: by seed; only the first, if it was given up.
      diverged: by seed, in which round; 0: it did not.
      given_up: whether it was.
    """

    number: int
    values: Mapping[str, Any]
    histories: Mapping[int, History]
    diverged: Mapping[int, int]
    given_up: bool


def explore(
    study: optuna.Study,
    asked: Search,
    train: TrainBatch,
    keep: Callable[[Sequence[Tried]], None] = lambda tried: None,  # noqa: ARG005
) -> Iterator[list[Tried]]:
    """Tries settings until the study has as many as asked for, and yields them batch by batch.

    Args:
      study: see `open_study`.
      asked: what to search.
      train: trains settings of a seed side by side.
      keep: is told of the trials that are over before the study is, so that what the study knows
        is kept.
    """
    worker = Worker(study, asked.worker, asked.num_trials)
    drawing = _drawing(study, asked)
    with explained():
        while True:
            left = worker.own(asked.batch_size)
            if left and all(map(_has_result, left)):  # it was killed while the study was told
                _tell(study, asked, left)
                continue
            trials, drawing = _batch(study, asked, worker, left, drawing)
            if not trials:
                return
            tried = _try(asked, worker, trials, drawing, train)
            keep(tried)
            own = [trial for trial in trials if trial.number in {one.number for one in tried}]
            for trial, found in zip(own, tried, strict=True):
                _note(worker, asked, trial, found, drawing)
            _tell(study, asked, own)
            yield tried


def _drawing(study: optuna.Study, asked: Search) -> Drawing:
    """What draws the trials of a study."""
    given = asked.sampler
    if not isinstance(given, str):
        return Drawing(
            study, asked.space, lambda number: given, asked.pruner,  # noqa: ARG005 - one for all
            remembers=not isinstance(given, GPSampler),
        )
    kind = SAMPLERS[given]

    def sampler(number: int) -> BaseSampler:
        return make_sampler(given, asked.seed if kind.one_sequence else _seed(asked, number))

    return Drawing(study, asked.space, sampler, asked.pruner, remembers=kind.remembers)


def _seed(asked: Search, number: int) -> int:
    """With which a trial is drawn: each has its own, so that none depends on where a kill was."""
    entropy = [asked.seed, number, zlib.crc32(asked.worker.encode())]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])


def _batch(
    study: optuna.Study, asked: Search, worker: Worker, left: Sequence[FrozenTrial],
    drawing: Drawing,
) -> tuple[list[FrozenTrial], Drawing]:
    """The trials to train next, and what draws those after them.

    Args:
      study, asked, worker: of the search.
      left: trials that were drawn already, as this worker was killed, or another one.
      drawing: what draws.
    """
    numbers = []
    for trial in left:
        with contextlib.suppress(UpdateFinishedTrialError):  # another worker's, since a moment ago
            _complete(asked, worker, trial)
            numbers.append(trial.number)
    trials = trials_of(study)
    size = batch_of(
        asked.sampler, asked.batch_size,
        first=not any(trial.state == TrialState.COMPLETE for trial in trials),
    )
    while len(numbers) < size and begun(trials) < asked.num_trials:
        drawing.follow(trials)
        number = len(trials)
        exactly = isinstance(asked.sampler, str) and SAMPLERS[asked.sampler].one_sequence
        found = worker.begin(
            number, drawing.draw(), asked.space, numbers[0] if numbers else number,
            exactly=exactly,
        )
        if found is not None:
            numbers.append(found)
        if found != number:  # another worker's trial has that number
            drawing = _drawing(study, asked)
        trials = trials_of(study)
    drawing.follow(trials)
    return [trials[number] for number in numbers], drawing


def _complete(asked: Search, worker: Worker, trial: FrozenTrial) -> None:
    """Draws the settings of a trial that it has not yet, such as one that somebody enqueued."""
    missing = asked.space.keys() - trial.params.keys()
    if not missing:
        return
    given = trial.system_attrs.get("fixed_params")
    fixed = dict(given) if isinstance(given, Mapping) else {}
    values = completed(fixed | trial.params, asked.space, _seed(asked, trial.number))
    for key in missing:
        of = asked.space[key]
        worker.storage.set_trial_param(
            trial._trial_id, key, of.to_internal_repr(values[key]), of
        )


def _try(
    asked: Search, worker: Worker, trials: Sequence[FrozenTrial], drawing: Drawing,
    train: TrainBatch,
) -> list[Tried]:
    """Trains the trials with all seeds; with the first, some are given up.

    Those that another worker has taken over meanwhile, as this one was paused, are left out.
    """
    every = rounds_between_reports(asked.num_rounds)
    rounds: list[list[Mapping[str, float]]] = [[] for _ in trials]
    pruned: set[int] = set()
    lost: set[int] = set()

    def lose() -> None:
        numbers = worker.lost([trial.number for trial in trials])
        lost.update(place for place, trial in enumerate(trials) if trial.number in numbers)

    def report(
        number: int, metrics: Mapping[int, Mapping[str, float]], places: Sequence[int], *,
        first: bool,
    ) -> list[int]:
        if heartbeat.missed():
            lose()
        gone = [own for own in metrics if places[own] in lost]
        if not first:
            return gone
        for own, found in metrics.items():
            rounds[own].append(found)
        if number % every or number >= asked.num_rounds:
            return gone
        for own in metrics.keys() - set(gone):
            score, trial = asked.score(History(rounds[own])), trials[own]
            if math.isnan(score):
                continue
            try:
                worker.storage.set_trial_intermediate_value(trial._trial_id, number, score)
            except UpdateFinishedTrialError:  # paused just now, so that another worker was faster
                lost.add(places[own])
                gone.append(own)
                continue
            if drawing.report(trial.number, score, number):
                pruned.add(own)
        return [*gone, *(own for own in metrics if own in pruned)]

    histories: list[dict[int, History]] = [{} for _ in trials]
    with Heartbeat(worker.storage, [trial._trial_id for trial in trials]) as heartbeat:
        for seed in asked.seeds:
            places = [place for place in range(len(trials)) if place not in pruned | lost]
            if not places:
                break
            settings = [trials[place].params for place in places]
            telling = functools.partial(report, places=places, first=seed == asked.seeds[0])
            done = train(settings, seed, telling)
            for place, history in zip(places, done, strict=True):
                histories[place][seed] = history
        lose()
    return [
        Tried(
            trial.number, trial.params, of_seeds,
            {seed: 0 if place in pruned else len(history) + 1 if len(history) < asked.num_rounds
             else asked.lost(trial.params, seed, history) for seed, history in of_seeds.items()},
            place in pruned,
        )
        for place, (trial, of_seeds) in enumerate(zip(trials, histories, strict=True))
        if place not in lost
    ]


def _note(
    worker: Worker, asked: Search, trial: FrozenTrial, tried: Tried, drawing: Drawing
) -> None:
    """Writes what a trial came to as its attributes, before the study is told of any of a batch.

    So a worker that is killed meanwhile tells the study of all, or of none and trains them again.
    """
    said: dict[str, Any] = {}
    if tried.given_up:
        said["given_up"] = True
    else:
        scores = [
            asked.worst if tried.diverged[seed] else asked.score(history)
            for seed, history in tried.histories.items()
        ]
        if any(map(math.isnan, scores)):
            raise RuleError(
                f"Trial {trial.number} does not have a score: the metric was not measured, or is "
                "undefined, like an AUC with only one class. Choose another metric."
            )
        said["scores"] = [score if math.isfinite(score) else None for score in scores]
        if any(tried.diverged.values()):
            said["diverged"] = max(tried.diverged.values())
        elif len(scores) > 1:
            said["spread"] = float(mean_and_spread(np.array(scores))[1])
    said["rounds"] = {str(s): len(h) for s, h in tried.histories.items()}  # the last, see below
    with contextlib.suppress(UpdateFinishedTrialError):  # another worker's, since a moment ago
        for key, rung in drawing.rungs(trial.number).items():
            worker.storage.set_trial_system_attr(trial._trial_id, key, rung)
        for key, value in said.items():
            worker.storage.set_trial_user_attr(trial._trial_id, key, value)


def _has_result(trial: FrozenTrial) -> bool:
    """Whether all is noted of a trial that the study is to be told."""
    said = trial.user_attrs
    return "rounds" in said and ("scores" in said or "given_up" in said)


def _tell(study: optuna.Study, asked: Search, trials: Sequence[FrozenTrial]) -> None:
    """Tells the study what was noted of trials."""
    known = trials_of(study)
    for trial in trials:
        said = known[trial.number].user_attrs
        with contextlib.suppress(UpdateFinishedTrialError):  # another worker's, since a moment ago
            if said.get("given_up"):
                study.tell(trial.number, state=TrialState.PRUNED, skip_if_finished=True)
                continue
            scores = [asked.worst if score is None else score for score in said["scores"]]
            study.tell(trial.number, float(np.mean(scores)), skip_if_finished=True)
