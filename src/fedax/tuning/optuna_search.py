"""Searches of continuous ranges by Optuna: trials are asked for, trained side by side, and told.

The study is a plain one of Optuna's, so that its dashboard and its other tools open it: the
parameters of a trial are the hyperparameters, its value is the score, its intermediate values are
the scores of its first seed on the way, and what else is known are user attributes.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner, NopPruner
from optuna.samplers import BaseSampler
from optuna.trial import Trial, TrialState

from fedax.rounds.history import History, mean_and_spread
from fedax.tuning.optuna_workers import OWNER, Heartbeat, explained, take_over, take_up
from fedax.tuning.samplers import SAMPLERS, batch_of, make_sampler, quiet
from fedax.tuning.studies import without_pickles

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
      num_trials: of the study, of all workers together; those of a worker that was killed, which
        are done again, count once.
      seeds: each trial is trained with all of them, and its value is the mean of the scores.
      sampler: a name of `SAMPLERS`, or one of Optuna's own; a name's draws depend on the seed and
        on what the study holds.
      pruner: gives trials up by the first seed's scores on the way.
      batch_size: trials that are trained side by side; 1 with a sampler that learns from each.
      seed: of the sampler.
      worker: a name that no other worker of the study has; it goes on where one of that name was
        killed.
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
      diverged: by seed, the round after the last; 0: it did not.
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
    study.pruner = asked.pruner or NopPruner()
    with explained():
        take_up(study, asked.worker)
        while (left := asked.num_trials - _begun(study)) > 0:
            trials = _ask(study, asked, left)
            with Heartbeat(study, trials):
                tried = _try(asked, trials, train)
                keep(tried)
                for trial, found in zip(trials, tried, strict=True):
                    _tell(study, asked, trial, found)
            yield tried


def _begun(study: optuna.Study) -> int:
    """How many trials are over, or run; those to be done again wait.

    One that is nobody's yet does not count: its worker may have been killed as it began it.
    """
    take_over(study)
    states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
    found = study.get_trials(deepcopy=False, states=states)
    return sum(t.state != TrialState.RUNNING or OWNER in t.user_attrs for t in found)


def _ask(study: optuna.Study, asked: Search, left: int) -> list[Trial]:
    """The next trials of a batch."""
    first = not study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    size = batch_of(asked.sampler, asked.batch_size, first=first)
    with quiet():
        if isinstance(asked.sampler, str):
            # By what the study holds, so that a worker that goes on draws as if it had not stopped.
            entropy = [asked.seed, asked.num_trials - left, zlib.crc32(asked.worker.encode())]
            seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
            one = SAMPLERS[asked.sampler].one_sequence
            sampler = make_sampler(asked.sampler, asked.seed if one else seed)
        else:
            sampler = asked.sampler
        study.sampler = without_pickles(sampler, study)
        trials = []
        for _ in range(min(size, left)):
            trials.append(study.ask(dict(asked.space)))
            trials[-1].set_user_attr(OWNER, asked.worker)
    return trials


def _try(asked: Search, trials: Sequence[Trial], train: TrainBatch) -> list[Tried]:
    """Trains the trials with all seeds; with the first, some are given up."""
    every = rounds_between_reports(asked.num_rounds)
    rounds: list[list[Mapping[str, float]]] = [[] for _ in trials]
    pruned: set[int] = set()

    def report(number: int, metrics: Mapping[int, Mapping[str, float]]) -> list[int]:
        for place, found in metrics.items():
            rounds[place].append(found)
        if number % every or number >= asked.num_rounds:
            return []
        for place in metrics:
            score = asked.score(History(rounds[place]))
            if not math.isnan(score):
                trials[place].report(score, number)
        found = [place for place in metrics if trials[place].should_prune()]
        pruned.update(found)
        return found

    histories: list[dict[int, History]] = [{} for _ in trials]
    for seed in asked.seeds:
        places = [place for place in range(len(trials)) if place not in pruned]
        first = seed == asked.seeds[0]
        if not places:
            break
        settings = [trials[place].params for place in places]
        done = train(settings, seed, report if first else lambda number, metrics: [])  # noqa: ARG005
        for place, history in zip(places, done, strict=True):
            histories[place][seed] = history
    return [
        Tried(
            trial.number, trial.params, of_seeds,
            {seed: 0 if len(history) >= asked.num_rounds or place in pruned else len(history) + 1
             for seed, history in of_seeds.items()},
            place in pruned,
        )
        for place, (trial, of_seeds) in enumerate(zip(trials, histories, strict=True))
    ]


def _tell(study: optuna.Study, asked: Search, trial: Trial, tried: Tried) -> None:
    """Says what a trial came to."""
    trial.set_user_attr("rounds", {str(s): len(h) for s, h in tried.histories.items()})
    if tried.given_up:
        study.tell(trial, state=TrialState.PRUNED)
        return
    scores = [
        asked.worst if tried.diverged[seed] else asked.score(history)
        for seed, history in tried.histories.items()
    ]
    if any(map(math.isnan, scores)):
        raise ValueError("A trial has no score, as it was not measured; choose another metric.")
    trial.set_user_attr("scores", [score if math.isfinite(score) else None for score in scores])
    if any(tried.diverged.values()):
        trial.set_user_attr("diverged", max(tried.diverged.values()))
    elif len(scores) > 1:
        trial.set_user_attr("spread", float(mean_and_spread(np.array(scores))[1]))
    study.tell(trial, float(np.mean(scores)))
