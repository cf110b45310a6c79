"""Draws the next settings of a search, and says which trials fall behind, from a study in memory.

Samplers and pruners see a copy of the study that holds what they may depend on: the trials in
their order, and which of them were over when each was drawn. So a search that was killed draws as
one that was not, and nothing that a sampler keeps for itself is read from a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from fedax.tuning.samplers import quiet

# User attribute of a trial: the number of the first one of its batch.
BATCH = "batch"
# How the attributes begin that a halving pruner reads of other trials.
_RUNG = "completed_rung_"


def first_of_batch(trial: FrozenTrial) -> int:
    """The number of the first trial of a trial's batch."""
    first = trial.user_attrs.get(BATCH)
    return first if type(first) is int and 0 <= first <= trial.number else trial.number


def completed(
    fixed: Mapping[str, Any], space: Mapping[str, BaseDistribution], seed: int
) -> dict[str, Any]:
    """Settings of which some are fixed; the others are drawn at random."""
    with quiet():
        study = optuna.create_study(sampler=RandomSampler(seed=seed))
        study.enqueue_trial({key: value for key, value in fixed.items() if key in space})
        return study.ask(dict(space)).params


class Drawing:
    """A copy of a study in memory.

    Args:
      study: whose trials `follow` will be given.
      space: what is searched.
      sampler: (number of a trial) -> what draws it.
      pruner: which trials to give up.
      remembers: whether draws depend on earlier draws, and not only on trials that are over.
    """

    def __init__(
        self, study: optuna.Study, space: Mapping[str, BaseDistribution],
        sampler: Callable[[int], BaseSampler], pruner: BasePruner | None, *, remembers: bool,
    ) -> None:
        self._space, self._sampler, self._remembers = dict(space), sampler, remembers
        with quiet():
            self._copy = optuna.create_study(
                study_name=study.study_name, direction=study.direction,
                pruner=pruner or NopPruner(),
            )
            # Hyperband knows its brackets, by which samplers choose, from its first call on.
            self._copy.pruner.prune(self._copy, create_trial(state=TrialState.RUNNING))
        self._open: dict[int, Trial] = {}
        self.count = 0

    def follow(self, trials: Sequence[FrozenTrial]) -> None:
        """Takes notice of the study's trials, in the order in which they were drawn and told.

        Args:
          trials: all of the study, by number.
        """
        with quiet():
            for trial in trials[self.count :]:
                self._close(trials[: first_of_batch(trial)])
                self._add(trial)
            self._close(trials)

    def draw(self) -> dict[str, Any]:
        """The settings of the next trial."""
        with quiet():
            return self._ask().params

    def report(self, number: int, score: float, at_round: int) -> bool:
        """Takes notice of a trial's score on the way; returns whether to give the trial up."""
        with quiet():
            self._open[number].report(score, at_round)
            return self._open[number].should_prune()

    def rungs(self, number: int) -> dict[str, float]:
        """The attributes that a halving pruner will read of a trial."""
        trial = self._copy._storage.get_trial(self._open[number]._trial_id)
        return _rungs(trial.system_attrs)

    def _ask(self) -> Trial:
        self._copy.sampler = self._sampler(self.count)
        trial = self._open[self.count] = self._copy.ask(self._space)
        self.count += 1
        return trial

    def _add(self, trial: FrozenTrial) -> None:
        """Takes notice of a trial that was drawn elsewhere, or by an earlier process."""
        if self._remembers or not trial.state.is_finished():
            # Drawn once more, as a sampler would not take notice of settings that are given.
            self._settle(self._ask(), trial)
            return
        params = {key: value for key, value in trial.params.items() if key in self._space}
        self._copy.add_trial(create_trial(
            state=trial.state, value=trial.value, params=params,
            distributions={key: self._space[key] for key in params},
            intermediate_values=trial.intermediate_values, system_attrs=_rungs(trial.system_attrs),
        ))
        self.count += 1

    def _close(self, trials: Sequence[FrozenTrial]) -> None:
        """Takes notice of those that are over."""
        storage = self._copy._storage
        for number in [n for n in self._open if n < len(trials) and trials[n].state.is_finished()]:
            trial, mine = trials[number], self._open.pop(number)
            self._settle(mine, trial)
            for at_round, score in trial.intermediate_values.items():
                storage.set_trial_intermediate_value(mine._trial_id, at_round, score)
            for key, value in _rungs(trial.system_attrs).items():
                storage.set_trial_system_attr(mine._trial_id, key, value)
            value = trial.value if trial.state == TrialState.COMPLETE else None
            self._copy.tell(mine, value, trial.state)

    def _settle(self, mine: Trial, trial: FrozenTrial) -> None:
        """Gives a trial of the copy the settings that it has in the study."""
        for key in self._space.keys() & trial.params.keys():
            if mine.params.get(key) != trial.params[key]:
                value = self._space[key].to_internal_repr(trial.params[key])
                self._copy._storage.set_trial_param(mine._trial_id, key, value, self._space[key])


def _rungs(attributes: Mapping[str, Any]) -> dict[str, float]:
    return {
        key: value for key, value in attributes.items()
        if key.startswith(_RUNG) and isinstance(value, float)
    }
