"""Evaluation on a sample during training, so that no round waits long for it.

Each round is followed by a few batches of the current evaluation, which take a small part of the
round's time. The report of the evaluated round, and those after it, are held back until the
evaluation is complete, and then come in order. So timing decides when a report comes, but not what
it contains. A checkpoint is written when everything before it is complete, so a run that was killed
needs nothing from an unfinished evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

from fedax.algorithm import Params
from fedax.devices.ending import was_asked
from fedax.devices.mesh import one_copy
from fedax.rounds.evaluation import Evaluator
from fedax.rounds.measurements import add_evaluation
from fedax.rounds.report import RoundReport
from fedax.rounds.state import TrainingState
from fedax.rounds.timing import Stopwatch

# Of a round's time. A tenth is promised, and a batch may take longer than those before it.
SHARE = 0.075
# Number of reports held back with a state; before another one the evaluation is finished.
MOST_STATES = 4


class Budget:
    """How long an evaluation continues after a round: until its share of the round's time is used.

    If even a long round leaves no time for one batch, one runs after every few rounds.

    Args:
      batch_seconds: what a batch takes, at first.

    Example:
      >>> budget = Budget(0.02)
      >>> budget.rounds_took(1.0)  # a share of 0.075 s
      >>> [budget.allows(spent) for spent in (0.0, 0.05, 0.06)]
      [True, True, False]
      >>> budget.rounds_took(0.1)
      >>> budget.allows(0.0)
      False
    """

    def __init__(self, batch_seconds: float) -> None:
        self._batch = batch_seconds
        self._share = self._longest = self._saved = 0.0

    def rounds_took(self, seconds: float) -> None:
        """Records how long some rounds took together."""
        self._share = SHARE * seconds
        self._longest = max(self._share, 0.99 * self._longest)
        self._saved = self._saved + self._share if self._batch > self._longest else 0.0

    def allows(self, spent: float) -> bool:
        """Whether one more batch may run after these rounds, given the time already spent."""
        if self._saved >= self._batch:
            self._saved -= self._batch
            return True
        return spent + self._batch <= self._share

    def batch_took(self, seconds: float) -> None:
        """Records a batch; one that was delayed by something else counts for little."""
        self._batch += 0.1 * (min(seconds, 3 * self._batch) - self._batch)


class Meanwhile:
    """Adds the sample's metrics to the reports of the rounds that need `test_*`.

    For a task with validation data they are `validation_*`.

    Every round gets `delay_seconds`: how long evaluation delayed the next round. If evaluations
    need more than their share of the time, each is finished when the next one is due, and the
    rounds wait for it.

    Args:
      evaluator: of the sample.
      part: of which data that is, "validation" or "test".
      params: like those that are trained; on them the evaluation is compiled and timed.
      is_sampled: (number of a round) -> whether it is evaluated on the sample.
      state_is_wanted: (number of a round) -> whether its report needs its state.
      donated: whether a state is gone with the next round.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        part: str,
        params: Params,
        is_sampled: Callable[[int], bool],
        state_is_wanted: Callable[[int], bool],
        *,
        donated: bool,
    ) -> None:
        self._evaluator, self._part = evaluator, part
        self._is_sampled, self._state_is_wanted = is_sampled, state_is_wanted
        self._donated = donated
        self._held: list[RoundReport] = []  # the first is evaluated
        self._seconds = 0.0  # of its evaluation, so far
        watch, self._walk = Stopwatch(), evaluator.begin(params)
        self._walk.go_on(1)
        self._compiling = watch.lap().compiling
        evaluator.begin(params).go_on(1)  # of one batch there is no second
        self._budget = Budget(max(watch.lap().seconds, 1e-6))

    def __call__(self, rounds: Iterator[RoundReport]) -> Iterator[RoundReport]:
        """The reports, in their order; the last of those that ran together has its state."""
        together: list[RoundReport] = []
        try:
            for report in rounds:
                report.metrics["compile_seconds"] += self._compiling
                self._compiling = report.metrics["delay_seconds"] = 0.0
                together.append(report)
                if report.state is not None:
                    yield from self._after(together)
                    together = []
            yield from self._whole()
        except Exception:  # such as a DivergedError, or what a sampler of the caller's raises
            yield from self._whole()
            yield from together
            raise

    def _after(self, together: list[RoundReport]) -> Iterator[RoundReport]:
        """What can be reported after rounds that went to the device together."""
        *before, last = together
        number = int(last.metrics["round"])
        sampled, wanted = self._is_sampled(number), self._state_is_wanted(number)
        seconds = sum(report.metrics["seconds"] for report in together)
        if self._held:
            self._held += before
            states = sum(report.state is not None for report in self._held[1:])
            self._go_on(together, seconds, finish=sampled or (wanted and states == MOST_STATES))
            if not self._walk.batches_left:
                yield from self._whole(followed=True)
        else:
            yield from before
        if sampled:
            state = self._kept(last.state)
            last = last._replace(state=state)
            self._held, self._seconds = [last], 0.0
            self._evaluator.redraw(number)
            self._walk = self._evaluator.begin(one_copy(state.server_state.params))
            last.metrics["delay_seconds"] += last.metrics["evaluation_seconds"]  # of the rest
            self._go_on([last], seconds)
            if not self._walk.batches_left:
                yield from self._whole()
        elif self._held:
            self._held.append(last._replace(state=self._kept(last.state) if wanted else None))
        else:
            yield last

    def _kept(self, state: TrainingState | None) -> TrainingState:
        """A state that the next round leaves alone."""
        assert state is not None  # that of the last of those that ran together
        if not self._donated:
            return state
        return state._replace(server_state=jax.tree.map(jnp.copy, state.server_state))

    def _go_on(self, together: list[RoundReport], seconds: float, *, finish: bool = False) -> None:
        """Evaluates some batches, after rounds that took so long."""
        spent, watch = 0.0, Stopwatch()
        self._budget.rounds_took(seconds)
        if finish or was_asked():
            self._walk.go_on(self._walk.batches_left)
            spent = watch.lap().seconds
        while self._walk.batches_left and self._budget.allows(spent):
            self._walk.go_on(1)
            taken = watch.lap().seconds
            self._budget.batch_took(taken)
            spent += taken
        self._seconds += spent
        for report in together:
            report.metrics["delay_seconds"] += spent / len(together)

    def _whole(self, *, followed: bool = False) -> Iterator[RoundReport]:
        """The reports that were kept back, the first with its evaluation, finished if need be.

        Args:
          followed: whether another one comes at once after the last of them.
        """
        if not self._held:
            return
        watch = Stopwatch()
        self._walk.go_on(self._walk.batches_left)
        (first, *others), self._held = self._held, []
        clients = add_evaluation(
            first.metrics, self._evaluator, self._walk.result(), self._part
        )
        first.metrics["evaluation_seconds"] += self._seconds + watch.lap().seconds
        *others, last = first._replace(clients=clients), *others
        for report in others:
            yield report._replace(followed=True)
        yield last._replace(followed=followed)
