"""Evaluation on a sample while training goes on, so that no round waits long for it.

After a round comes a piece of the evaluation that is under way: as many batches as take a small
part of the round's time. The report of the evaluated round, and those behind it, are kept back
until the evaluation is whole, and then come in their order. So the clock decides when a report
comes, and nothing that is in it. A checkpoint is written when all before it is whole, so a run
that was killed needs nothing of an evaluation that was under way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from fedax.algorithm import Params
from fedax.devices.ending import was_asked
from fedax.devices.mesh import one_copy
from fedax.rounds.evaluation import Evaluator
from fedax.rounds.measurements import add_tests
from fedax.rounds.report import DivergedError, RoundReport
from fedax.rounds.state import TrainingState
from fedax.rounds.timing import Stopwatch

# Of a round's time. A tenth is promised, and a batch may take longer than those before it.
SHARE = 0.075
# So many reports are kept back with a state; before another one the evaluation is finished.
MOST_STATES = 4


class Budget:
    """How many batches of an evaluation go into the time after a round.

    As many as take its share of that round's time. Where even a long round has no room for one, one
    goes after every few rounds.

    Args:
      batch_seconds: what a batch takes, at first.

    Example:
      >>> budget = Budget(0.01)
      >>> budget.batches(1.0), budget.batches(0.1)  # 0.075 s, 0.0075 s
      (7, 0)
      >>> budget = Budget(0.02)
      >>> [budget.batches(0.1) for _ in range(6)]
      [0, 0, 1, 0, 0, 1]
    """

    def __init__(self, batch_seconds: float) -> None:
        self._batch = batch_seconds
        self._longest = 0.0  # share of late
        self._saved = 0.0

    def batches(self, seconds: float) -> int:
        """How many go after rounds that took so long together."""
        share = SHARE * seconds
        self._longest = max(share, 0.98 * self._longest)
        if self._batch <= self._longest:
            self._saved = 0.0
            return int(share / self._batch)
        self._saved += share
        if self._saved < self._batch:
            return 0
        self._saved -= self._batch
        return 1

    def learn(self, seconds: float, count: int) -> None:
        """Takes notice of how long `count` batches took, of slow ones sooner than of fast ones."""
        mean = min(max(seconds, 1e-6) / count, 2 * self._batch)
        self._batch = max(mean, 0.95 * self._batch + 0.05 * mean)


class Meanwhile:
    """Adds the sample's `test_*` to the reports of the rounds that are to have them.

    Every round gets `delay_seconds`, by how much evaluation delayed the next one. Where evaluations
    ask for more than their share of the time, each is finished when the next one is due, and the
    rounds wait for that.

    Args:
      evaluator: of the sample.
      params: like those that are trained; on them the evaluation is compiled and timed.
      is_sampled: (number of a round) -> whether it is evaluated on the sample.
      state_is_wanted: (number of a round) -> whether its report needs its state.
      donated: whether a state is gone with the next round.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        params: Params,
        is_sampled: Callable[[int], bool],
        state_is_wanted: Callable[[int], bool],
        *,
        donated: bool,
    ) -> None:
        self._evaluator = evaluator
        self._is_sampled, self._state_is_wanted = is_sampled, state_is_wanted
        self._donated = donated
        self._held: list[RoundReport] = []  # the first is evaluated
        self._seconds = 0.0  # of its evaluation, so far
        watch, walk = Stopwatch(), evaluator.begin(params)
        self._walk = walk
        walk.go_on(1)
        self._compiling = watch.lap().compiling
        walk.go_on(1)
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
        except DivergedError:
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
                yield from self._whole()
        else:
            yield from before
        if sampled:
            last = last._replace(state=self._kept(last.state))
            self._held, self._seconds = [last], 0.0
            self._walk = self._evaluator.begin(one_copy(last.state.server_state.params))
            last.metrics["delay_seconds"] += last.metrics["evaluation_seconds"]  # of the rest
            self._go_on([last], seconds)
            if not self._walk.batches_left:
                yield from self._whole()
        elif self._held:
            self._held.append(last._replace(state=self._kept(last.state) if wanted else None))
        else:
            yield last

    def _kept(self, state: Any) -> TrainingState:
        """A state that the next round leaves alone."""
        if not self._donated:
            return state
        return state._replace(server_state=jax.tree.map(jnp.copy, state.server_state))

    def _go_on(self, together: list[RoundReport], seconds: float, *, finish: bool = False) -> None:
        """Evaluates some batches, after rounds that took so long."""
        count = min(self._budget.batches(seconds), self._walk.batches_left)
        if finish or was_asked():
            count = self._walk.batches_left
        watch = Stopwatch()
        self._walk.go_on(count)
        taken = watch.lap().seconds
        if count:
            self._budget.learn(taken, count)
        self._seconds += taken
        for report in together:
            report.metrics["delay_seconds"] += taken / len(together)

    def _whole(self) -> Iterator[RoundReport]:
        """The reports that were kept back, the first with its evaluation, finished if need be."""
        if not self._held:
            return
        watch = Stopwatch()
        self._walk.go_on(self._walk.batches_left)
        (first, *others), self._held = self._held, []
        clients = add_tests(first.metrics, self._evaluator, self._walk.result())
        first.metrics["evaluation_seconds"] += self._seconds + watch.lap().seconds
        yield first._replace(clients=clients)
        yield from others
