"""What runs are called in a picture and in a table: by what differs between them."""

from __future__ import annotations

import collections
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

# What a configuration says that makes no other setting of it.
_NO_SETTING = ("seed", "made_by", "command", "checkpoint_every", "preset", "kind", "log")
# Of which only what they hold has a name: the hyperparameters of the method, and the task's.
_OPTIONS = "algorithm_options"
_TASK_OPTIONS = "task_options"
# What keeps settings apart and says nothing to a reader: digests, and where files lie.
_UNSAID = ("python", "task_source", "algorithm_source")

_Parts: TypeAlias = Mapping[tuple[str, str], Mapping[str, Any]]


class Group(NamedTuple):
    """The runs of one setting: they differ in nothing but their seeds.

    Attributes:
      task, method: their names.
      differs: the settings that tell it from the other groups, name -> value.
      places: of its runs, among those that were given.
      label: all of that in words, as far as it differs between the groups.
      own_data: whether each seed has data, or a start, of its own.
    """

    task: str
    method: str
    differs: Mapping[str, Any]
    places: list[int]
    label: str
    own_data: bool = False


def grouped(configs: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Group]:
    """The groups of runs that differ in nothing but their seeds, in order.

    Of the settings of a method and of a task, those count that differ between its own runs. Where
    two groups differ in nothing that has a name, they have that of their first runs.

    Args:
      configs: of the runs, as config.json has them.
      names: of the runs, such as their folders', all different.

    Example:
      >>> rates = [(0.1, 0), (0.1, 1), (1.0, 0)]
      >>> found = grouped(
      ...     [{"algorithm": "fedavg", "seed": seed, "algorithm_options": {"rate": rate}}
      ...      for rate, seed in rates], ["a", "b", "c"])
      >>> [(group.label, group.differs, group.places) for group in found]
      [('rate=0.1', {'rate': 0.1}, [0, 1]), ('rate=1', {'rate': 1.0}, [2])]
    """
    settings = _by_setting(configs, names)
    places = list(settings.values())
    own = [_key(configs[seeds[0]]) not in key for key, seeds in settings.items()]
    firsts = [
        _without_data(configs[seeds[0]]) if alone else configs[seeds[0]]
        for seeds, alone in zip(places, own, strict=True)
    ]
    parts = [_parts(config) for config in firsts]
    several = _differing([{n: config.get(n) for n in ("algorithm", "task")} for config in firsts])
    found = _groups(firsts, parts, places, several, missing=False)
    if len({group.label for group in found}) < len(found):
        # Where that does not tell them apart, a setting does that only some of them have.
        lenient = _groups(firsts, parts, places, several, missing=True)
        counts = collections.Counter(group.label for group in found)
        found = [
            other if counts[group.label] > 1 else group
            for group, other in zip(found, lenient, strict=True)
        ]
    counts = collections.Counter(group.label for group in found)
    found = [group._replace(own_data=alone) for group, alone in zip(found, own, strict=True)]
    return [
        group if counts[group.label] == 1 else group._replace(
            differs={**group.differs, "run": names[group.places[0]]},
            label=f"{group.label} ({names[group.places[0]]})",
        ) for group in found
    ]


def _groups(
    configs: Sequence[Mapping[str, Any]], parts: Sequence[_Parts], places: Sequence[list[int]],
    several: set[str], *, missing: bool,
) -> list[Group]:
    """The groups, named by what differs between those of a method, of a task, and of all."""
    siblings: dict[Any, list[Mapping[str, Any]]] = {}
    for of_config in parts:
        for whose, options in of_config.items():
            siblings.setdefault(whose, []).append(options)
    differing = {whose: _differing(options, missing) for whose, options in siblings.items()}
    found = []
    for config, of_config, seeds in zip(configs, parts, places, strict=True):
        differs = {
            name: value for whose, options in of_config.items() for name, value in options.items()
            if name in differing[whose]
        }
        words = [str(config.get(name)) for name in ("algorithm", "task") if name in several]
        words += [f"{name}={in_short(value)}" for name, value in differs.items()]
        method = str(config.get("algorithm", ""))
        found.append(Group(
            str(config.get("task") or ""), method, differs, seeds, " ".join(words) or method
        ))
    return found


def _parts(config: Mapping[str, Any]) -> _Parts:
    """Whose settings -> those, of the method, the task and the run."""
    own = {name: value for name, value in config.items()
           if name not in (*_NO_SETTING, *_UNSAID, _OPTIONS, _TASK_OPTIONS, "algorithm", "task")}
    return {
        ("algorithm", str(config.get("algorithm"))): config.get(_OPTIONS, {}),
        ("task", str(config.get("task"))): config.get(_TASK_OPTIONS, {}),
        ("run", ""): own,
    }


def _differing(settings: Sequence[Mapping[str, Any]], missing: bool = False) -> set[str]:
    """The names in which those that have one differ, or, if so asked, that some do not have."""
    known: dict[str, list[Any]] = {}
    for options in settings:
        for name, value in options.items():
            known.setdefault(name, []).append(value)
    return {
        name for name, values in known.items()
        if any(value != values[0] for value in values) or (missing and len(values) < len(settings))
    }


def by_setting(
    configs: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> dict[str, list[int]]:
    """Label -> the places of the runs that differ in nothing but their seeds, see `grouped`."""
    return {group.label: group.places for group in grouped(configs, names)}


def labels_of_runs(configs: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """What each run is called beside the others: its group's label, and its seed if that has more.

    Example:
      >>> labels_of_runs([{"algorithm": "a", "seed": 0}, {"algorithm": "a", "seed": 1},
      ...                 {"algorithm": "b", "seed": 0}], "xyz")
      ['a, seed 0', 'a, seed 1', 'b']
    """
    found = dict.fromkeys(range(len(configs)), "")
    for group in grouped(configs, names):
        for place in group.places:
            seed = f", seed {configs[place].get('seed')}" if len(group.places) > 1 else ""
            found[place] = group.label + seed
    return list(found.values())


def _by_setting(
    configs: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> dict[str, list[int]]:
    """A key -> the places of the runs of each setting.

    Data, or a start, that are others for each of several seeds belong to the seeds: the rest of the
    configuration is the setting.
    """
    groups: dict[str, list[int]] = {}
    taken: set[tuple[str, str]] = set()
    for place, config in enumerate(configs):
        key, seed = _key(config), repr(config.get("seed"))
        if (key, seed) in taken:  # the same run again is no other seed
            key += names[place]
        taken.add((key, seed))
        groups.setdefault(key, []).append(place)
    alike: dict[str, list[str]] = {}
    for key, places in groups.items():
        alike.setdefault(_key(_without_data(configs[places[0]])), []).append(key)
    for rest, keys in alike.items():
        places = [place for key in keys for place in groups[key]]
        seeds = {repr(configs[place].get("seed")) for place in places}
        if len(keys) == len(places) == len(seeds) > 1:
            groups = {
                rest if key == keys[0] else key: places if key == keys[0] else found
                for key, found in groups.items() if key not in keys[1:]
            }
    return groups


def _key(config: Mapping[str, Any]) -> str:
    return json.dumps(
        {name: value for name, value in config.items() if name not in _NO_SETTING},
        sort_keys=True, default=str,
    )


def _without_data(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without what tells its data and its start from others of their kind."""
    rest = dict(config)
    if isinstance(python := config.get("python"), Mapping):
        rest["python"] = {
            name: {"arrays": value.get("arrays")} if isinstance(value, Mapping) else value
            for name, value in python.items() if name != "initial_params"
        }
    if isinstance(options := config.get(_TASK_OPTIONS), Mapping):
        rest[_TASK_OPTIONS] = {
            name: value for name, value in options.items() if not name.endswith("_seed")
        }
    return rest


def in_short(value: Any) -> str:
    """A setting's value in a label."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
