"""Which settings of a sweep train together, and in which order."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from fedax.algorithm import FederatedAlgorithm
from fedax.data.task import Task
from fedax.factories import partition
from fedax.rounds.options import Settings
from fedax.sweeps.batch import varying
from fedax.validate import check_count

# On a CPU a device trains settings together whose parameters have at most these bytes, which stay
# in its cache, and at most this number of settings (docs/notebook/log.md).
CPU_BYTES = 2**18
CPU_MOST = 16


class Entry(NamedTuple):
    """The run that a setting describes.

    Attributes:
      task: model and data.
      algorithm: the algorithm.
      options: (seed) -> options of the run.
      kind: equal for settings with the same options.
    """

    task: Task
    algorithm: FederatedAlgorithm
    options: Callable[[int], Settings]
    kind: Hashable = None


class Unit(NamedTuple):
    """Settings that train together with one seed.

    Attributes:
      settings: their numbers.
      seed: their seed.
      size: number of places in the program, at least one per setting; the last setting is repeated
        in the remaining places, so that all units of a kind share one program.
    """

    settings: tuple[int, ...]
    seed: int
    size: int


class Halving(NamedTuple):
    """How a sweep stops settings early, and what determines its units.

    Attributes:
      factor: one setting in `factor` continues to the next rung.
      num_devices, settings_per_batch: as for `plan`.
    """

    factor: int
    num_devices: int
    settings_per_batch: int | None


class Group(NamedTuple):
    """The settings that one program is for.

    Attributes:
      settings: their numbers.
      varies: which of the structure's numbers differ between them.
    """

    settings: tuple[int, ...]
    varies: tuple[bool, ...]


def groups(entries: Sequence[Entry], numbers: Iterable[int] | None = None) -> list[Group]:
    """The programs of a sweep: settings with one task and structure, run in one way.

    Args:
      entries: of all settings, in the order of their numbers.
      numbers: numbers of the settings to include; None: all.
    """
    found: dict[Any, list[tuple[int, list[jax.Array]]]] = {}
    for number in range(len(entries)) if numbers is None else numbers:
        entry = entries[number]
        values, structure = partition(entry.algorithm)
        key = (id(entry.task), structure, entry.kind)
        found.setdefault(key, []).append((number, values))
    return [
        Group(tuple(number for number, _ in members), varying([values for _, values in members]))
        for members in found.values()
    ]


def plan(
    entries: Sequence[Entry],
    seeds: Sequence[int],
    num_devices: int = 1,
    settings_per_batch: int | None = None,
    numbers: Iterable[int] | None = None,
) -> list[Unit]:
    """The units of a sweep, in the order in which they are trained.

    Args:
      entries: of all settings.
      seeds: seeds of each setting.
      num_devices: number of devices for the settings of a unit.
      settings_per_batch: number of settings computed together on each device; None: chosen by the
        platform and the size of the model, see `side_by_side`.
      numbers: numbers of the settings to plan; None: all.

    Raises:
      ValueError: if settings_per_batch is not a whole number >= 1.
    """
    if settings_per_batch is not None:
        check_count("settings_per_batch", settings_per_batch)
    units = []
    for group in groups(entries, numbers):
        most = settings_per_batch or side_by_side(entries[group.settings[0]])
        most = min(most * num_devices, -(-len(group.settings) // num_devices) * num_devices)
        count = -(-len(group.settings) // most)
        size = -(-len(group.settings) // count)
        size = -(-size // num_devices) * num_devices
        units += [
            Unit(group.settings[start : start + size], seed, size)
            for seed in seeds for start in range(0, len(group.settings), size)
        ]
    return units


def side_by_side(entry: Entry) -> int:
    """The default number of settings that a device computes at a time.

    On a CPU, operations of a small model cost more to start than to run, so several settings share
    them; those of a large model would not fit into the cache (docs/notebook/log.md). On other
    devices it is the number that fits into memory with one client each, at most 64.
    """
    params = jax.eval_shape(entry.task.model.init, jax.random.key(0))
    size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
    if jax.default_backend() == "cpu":
        return max(1, min(CPU_MOST, CPU_BYTES // max(size, 1)))
    memory = jax.local_devices()[0].memory_stats() or {}
    free = memory.get("bytes_limit", 2**33) - memory.get("bytes_in_use", 0)
    # Not measured: a setting's state, its clients' models and what their steps need.
    return max(1, min(64, free // max(64 * size, 1)))
