"""Successive halving: all settings for a few rounds, the best of them for more, and so on.

Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization
(2016); here with rounds as the budget, and each method's settings among themselves. A setting goes
on from where it stands: no round is run twice.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from fedax.sweeps.batch import BatchState, Shared, regrouped
from fedax.sweeps.choosing import Rule, choose
from fedax.sweeps.columns import Columns, Part, joined
from fedax.sweeps.planning import Entry, Halving, Unit, plan
from fedax.sweeps.record import Record, Setting
from fedax.tuning.display import SweepDisplay
from fedax.tuning.keeping import Keeper
from fedax.tuning.training import Sweeping, begun, filled, train_units
from fedax.validate import check_count


def rungs(num_rounds: int, factor: int, num_settings: int) -> list[int]:
    """After how many rounds settings are compared; the last is num_rounds.

    As many rungs as leave one setting at the end, but none below a round.

    Args:
      num_rounds: T >= 1.
      factor: one in `factor` settings continues; >= 2.
      num_settings: of the method that has most.

    Raises:
      ValueError: if factor is less than 2.

    Example:
      >>> rungs(200, 3, 28)
      [3, 8, 23, 67, 200]
      >>> rungs(200, 3, 2), rungs(2, 3, 28)
      ([67, 200], [1, 2])
    """
    check_count("halving", factor, at_least=2)
    found = [num_rounds]
    while len(found) <= math.ceil(math.log(max(num_settings, 1), factor) - 1e-9) and found[0] > 1:
        found.insert(0, -(-found[0] // factor))
    return found


def halved(factor: int, settings_per_batch: int | None, settings: Sequence[Setting]) -> Halving:
    """Halving on the devices of this process.

    Raises:
      ValueError: if the factor is less than 2.
    """
    rungs(1, factor, len(settings))
    return Halving(factor, jax.local_device_count(), settings_per_batch)


def survivors(record: Record, rule: Rule, factor: int, rounds: int) -> list[int]:
    """The settings that go on: of each method's that ran as far, the best in `factor`, rounded up.

    Args:
      record: the rounds so far.
      rule: by which they are compared, after `rounds` rounds.
      factor: one in `factor` settings continues.
      rounds: those of the rung.

    Example:
      >>> from fedax.sweeps.grid import settings_of
      >>> settings = settings_of({"a": {"x": [1, 2, 3]}, "b": {"x": [1]}})
      >>> losses = np.array([[3.0], [1.0], [2.0], [9.0]])
      >>> record = Record(settings, np.arange(4), np.zeros(4, int), np.zeros(4, int),
      ...                 np.ones(4, int), {"train_loss": losses})
      >>> survivors(record, "train_loss", 2, 1)
      [1, 2, 3]
    """
    choice = choose(record, rule, rounds)
    found: list[int] = []
    for chosen in choice.methods.values():
        good = [number for number in chosen.order if np.isfinite(choice.mean[number])]
        found += good[: -(-len(good) // factor)]
    return sorted(found)


def train_rungs(
    sweeping: Sweeping,
    seeds: Sequence[int],
    num_rounds: int,
    rule: Rule,
    halving: Halving,
    folder: Path,
    identity: str,
    display: Callable[[int, int], SweepDisplay],
) -> list[Part]:
    """Trains all settings to the first rung, the survivors to the next one, and so on.

    Args:
      sweeping: what they are trained with.
      seeds, num_rounds, rule: of the sweep.
      halving: how settings are given up.
      folder: where states wait for the next rung.
      identity: what the parts are of.
      display: (number of runs, rounds) -> what shows a rung.

    Returns:
      The rounds of every run, of those that were given up fewer.
    """
    settings, entries = sweeping.settings, sweeping.entries
    sizes = Counter(setting.algorithm for setting in settings)
    latest: dict[tuple[int, int], Part] = {}
    before: _Rung | None = None
    left = [setting.number for setting in settings]
    for place, rounds in enumerate(rungs(num_rounds, halving.factor, max(sizes.values()))):
        units = plan(entries, seeds, halving.num_devices, halving.settings_per_batch, left)
        keeper = Keeper(folder, identity, f"rung-{place}")
        starts = None if before is None else functools.partial(
            _from, before, entries, sweeping.shared
        )
        with display(len(left) * len(seeds), rounds) as shown:
            shown.say(f"{len(left)} of {len(settings)} settings continue to round {rounds}")
            parts = train_units(
                sweeping, units, rounds, keeper, shown, starts, goes_on=rounds < num_rounds
            )
        for part in parts:
            latest |= {(int(n), int(part.seed[0])): part.row(i)
                       for i, n in enumerate(part.setting)}
        if before is not None:
            before.keeper.forget()
        before = _Rung(keeper, units, rounds)
        if rounds == num_rounds:
            break
        left = survivors(joined(settings, latest.values()), rule, halving.factor, rounds)
        if not left:
            break
    return list(latest.values())


class _Rung(NamedTuple):
    keeper: Keeper
    units: list[Unit]
    rounds: int


def _from(
    before: _Rung, entries: Sequence[Entry], shared: Shared, unit: Unit
) -> tuple[BatchState, Columns]:
    """Where a unit starts: where its settings stood after the rung before.

    If the state of one of them is damaged, that costs the unit's rounds, and no number.
    """
    found: dict[int, tuple[BatchState, int]] = {}
    rounds: dict[int, dict[str, np.ndarray]] = {}
    for index, other in enumerate(before.units):
        own = set(unit.settings) & set(other.settings)
        if other.seed != unit.seed or not own:
            continue
        state, columns = before.keeper.restore(index, other, *begun(other, entries, shared))
        if columns.num_rounds < before.rounds:
            return begun(unit, entries, shared)
        for number in own:
            place = other.settings.index(number)
            found[number] = state, place
            rounds[number] = {name: v[place] for name, v in columns.metrics.items()}
    algorithms = [entries[number].algorithm for number in filled(unit)]
    task = entries[unit.settings[0]].task
    state = regrouped(
        [found[number] for number in filled(unit)], task, algorithms,
        shared.initial_params(task, unit.seed),
    )
    state.alive[len(unit.settings) :] = False
    names = dict.fromkeys(name for own in rounds.values() for name in own)
    length = max(len(values) for own in rounds.values() for values in own.values())
    missing = np.full(length, np.nan)
    return state, Columns(len(unit.settings), {
        name: np.stack([rounds[number].get(name, missing) for number in unit.settings])
        for name in names
    })
