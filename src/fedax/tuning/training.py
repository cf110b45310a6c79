"""Training the units of a sweep one after the other, so that a kill costs little."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedax.devices.ending import Request
from fedax.experiment.folder import RunError
from fedax.rounds.untrained import lost_in
from fedax.sweeps.batch import BatchState, BatchTraining, Shared, beginning
from fedax.sweeps.columns import Columns, Part
from fedax.sweeps.planning import Entry, Unit, groups
from fedax.sweeps.record import Setting
from fedax.tuning.display import SweepDisplay
from fedax.tuning.keeping import Keeper

# The state of a unit under way is written at most so often, and so that writing takes at most
# about this share of the time: SCAFFOLD's clients, say, may keep gigabytes.
SECONDS_BETWEEN_CHECKPOINTS = 30.0
SHARE_OF_CHECKPOINTS = 0.1


class SweepStopped(RunError):  # noqa: N818 - it is asked for
    """A signal stopped the sweep; the message says how to go on.

    Attributes:
      by: the signal's number.
    """

    def __init__(self, message: str, by: int | None) -> None:
        super().__init__(message)
        self.by = by


class Sweeping(NamedTuple):
    """What all units of a sweep are trained with.

    Attributes:
      settings, entries: of the sweep, by number.
      devices: over which the settings of a unit are spread.
      asked: whether to stop.
      go_on: how to go on then, the end of a sentence.
      shared: what its units have in common.
    """

    settings: Sequence[Setting]
    entries: Sequence[Entry]
    devices: Sequence[Any]
    asked: Request
    go_on: str
    shared: Shared

    def stopped(self, where: str) -> SweepStopped:
        """What is raised when it stops there."""
        return SweepStopped(
            f"Stopped after {where}. {self.go_on[0].upper()}{self.go_on[1:]}", self.asked.by
        )


def train_units(
    sweeping: Sweeping,
    units: Sequence[Unit],
    num_rounds: int,
    keeper: Keeper | None,
    display: SweepDisplay,
    starts: Callable[[Unit], tuple[BatchState, Columns]] | None = None,
    *,
    goes_on: bool = False,
) -> list[Part]:
    """Trains all units that are not done yet; returns the rounds of all.

    Args:
      sweeping: what they are trained with.
      units: as planned.
      num_rounds: T.
      keeper: where units are kept; None: nowhere.
      display: shows how far it is.
      starts: where units start; None: at the beginning.
      goes_on: the units' last states are kept for what starts from them.

    Raises:
      SweepStopped: Ctrl-C or SIGTERM; what was done is kept.
      OSError: if the disk is full or not writable.
    """
    varies = {
        number: group.varies
        for group in groups(sweeping.entries) for number in group.settings
    }
    parts = []
    for index, unit in enumerate(units):
        own = [sweeping.settings[number] for number in unit.settings]
        part = None if keeper is None else keeper.part(index, unit)
        if part is None:
            part = _trained(
                sweeping, index, unit, varies[unit.settings[0]], num_rounds, keeper, display,
                starts, goes_on=goes_on,
            )
            if keeper is not None:
                keeper.finish(index, unit, part, goes_on=goes_on)
        parts.append(part)
        display.finished(own, Columns(len(own), part.metrics), len(own))
        if sweeping.asked and index + 1 < len(units):
            raise sweeping.stopped(f"{index + 1} of {len(units)} parts")
    return parts


def _trained(
    sweeping: Sweeping,
    index: int,
    unit: Unit,
    varies: Sequence[bool],
    num_rounds: int,
    keeper: Keeper | None,
    display: SweepDisplay,
    starts: Callable[[Unit], tuple[BatchState, Columns]] | None,
    *,
    goes_on: bool,
) -> Part:
    """The rounds of a unit, from where it stands."""
    count, entries, asked = len(unit.settings), sweeping.entries, sweeping.asked
    devices = sweeping.devices[: _sharing(unit, sweeping.devices)]
    first = entries[unit.settings[0]]
    options = first.options(unit.seed)
    algorithms = [entries[number].algorithm for number in filled(unit)]
    state, columns = begun(unit, entries, sweeping.shared) if starts is None else starts(unit)
    if keeper is not None:
        state, columns = keeper.restore(index, unit, state, columns)
    training = BatchTraining(
        first.task, algorithms, num_rounds, options, varies, devices, state, goes_on=goes_on,
        shared=sweeping.shared,
    )
    saved, wait = time.monotonic(), SECONDS_BETWEEN_CHECKPOINTS
    for report in training:
        columns.add(report.metrics)
        number = columns.num_rounds
        display.show(number, int(training.state.alive[:count].sum()))
        compiling = float(np.nansum(report.metrics["compile_seconds"]))
        asked.round_done(compiling)
        if number == num_rounds or not training.state.alive.any():
            break
        if keeper is not None and (asked or time.monotonic() - saved > wait):
            began = time.monotonic()
            keeper.save(index, unit, training.state, columns)
            saved = time.monotonic()
            wait = max(
                SECONDS_BETWEEN_CHECKPOINTS, (saved - began) * (1 / SHARE_OF_CHECKPOINTS - 1)
            )
        if asked:
            raise sweeping.stopped(f"round {number} of {num_rounds} of part {index + 1}")
    if goes_on and keeper is not None:
        keeper.save(index, unit, training.state, columns)
    reported = columns.metrics.get("seconds", np.zeros((count, 0)))
    return Part(
        np.array(unit.settings), np.full(count, unit.seed),
        _diverged(
            training.state.diverged[:count], columns,
            lambda: sweeping.shared.untrained_loss(first.task, unit.seed),
        ),
        (~np.isnan(reported)).sum(axis=1), columns.metrics,
    )


def _diverged(
    diverged: np.ndarray, columns: Columns, untrained_loss: Callable[[], float]
) -> np.ndarray:
    """In which round each run diverged, those included whose loss ended far above the untrained."""
    losses = columns.metrics.get("train_loss")
    if losses is None or diverged.all():
        return diverged
    untrained = untrained_loss()
    return np.array([
        round_ or lost_in(of_run, untrained)
        for round_, of_run in zip(diverged, losses, strict=True)
    ])


def begun(
    unit: Unit, entries: Sequence[Entry], shared: Shared
) -> tuple[BatchState, Columns]:
    """A unit before its first round."""
    algorithms = [entries[number].algorithm for number in filled(unit)]
    task = entries[unit.settings[0]].task
    state = beginning(task, algorithms, shared.initial_params(task, unit.seed))
    state.alive[len(unit.settings) :] = False  # what fills up is not trained
    return state, Columns(len(unit.settings))


def _sharing(unit: Unit, devices: Sequence[Any]) -> int:
    """How many devices share a unit equally, which may have been planned for another number."""
    return max(d for d in range(1, len(devices) + 1) if unit.size % d == 0)


def filled(unit: Unit) -> list[int]:
    """The settings in a unit's places."""
    return [*unit.settings, *[unit.settings[-1]] * (unit.size - len(unit.settings))]
