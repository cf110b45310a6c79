"""What runs are called in a picture and in a table: by what differs between them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# What a configuration says that makes no other setting of it.
_NO_SETTING = ("seed", "made_by", "command", "checkpoint_every", "preset", "kind", "log")
# Of which only what they hold has a name: the hyperparameters of the method, and the task's.
_OPTIONS = "algorithm_options"
_TASK_OPTIONS = "task_options"
# What keeps settings apart and says nothing to a reader: digests, and where files lie.
_UNSAID = ("python", "task_source", "algorithm_source")


class Group(NamedTuple):
    """The runs of one setting: they differ in nothing but their seeds.

    Attributes:
      task, method: their names.
      differs: the settings that tell it from the other groups, name -> value.
      places: of its runs, among those that were given.
      label: all of that in words, as far as it differs between the groups.
    """

    task: str
    method: str
    differs: Mapping[str, Any]
    places: list[int]
    label: str


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
    places = _by_setting(configs, names)
    firsts = [configs[seeds[0]] for seeds in places]
    several = [name for name in ("algorithm", "task") if _differs(firsts, name)]
    found = [_group(config, seeds, firsts, several) for config, seeds in zip(
        firsts, places, strict=True
    )]
    # Where that does not tell them apart, a setting does that only some of them have.
    found = [
        group if _alone(group, found)
        else _group(config, group.places, firsts, several, missing=True)
        for group, config in zip(found, firsts, strict=True)
    ]
    return [
        group if _alone(group, found) else group._replace(
            differs={**group.differs, "run": names[group.places[0]]},
            label=f"{group.label} ({names[group.places[0]]})",
        ) for group in found
    ]


def _group(
    config: Mapping[str, Any], places: list[int], others: Sequence[Mapping[str, Any]],
    several: Sequence[str], *, missing: bool = False,
) -> Group:
    differs = _differing(config, others, missing)
    words = [str(config.get(name)) for name in several]
    words += [f"{name}={in_short(value)}" for name, value in differs.items()]
    method = str(config.get("algorithm", ""))
    return Group(
        str(config.get("task") or ""), method, differs, places, " ".join(words) or method
    )


def _alone(group: Group, groups: Sequence[Group]) -> bool:
    return sum(other.label == group.label for other in groups) == 1


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
) -> list[list[int]]:
    """The places of the runs of each setting."""
    groups: dict[str, list[int]] = {}
    taken: set[tuple[str, Any]] = set()
    for place, config in enumerate(configs):
        key = json.dumps(
            {name: value for name, value in config.items() if name not in _NO_SETTING},
            sort_keys=True, default=str,
        )
        if (key, config.get("seed")) in taken:  # the same run again is no other seed
            key += names[place]
        taken.add((key, config.get("seed")))
        groups.setdefault(key, []).append(place)
    return list(groups.values())


def _differing(
    config: Mapping[str, Any], others: Sequence[Mapping[str, Any]], missing: bool
) -> dict[str, Any]:
    """The settings of a configuration that tell it from others."""
    parts = [
        (config.get(part, {}), [
            other.get(part, {}) for other in others if other.get(whole) == config.get(whole)
        ]) for part, whole in ((_OPTIONS, "algorithm"), (_TASK_OPTIONS, "task"))
    ]
    own = {name: value for name, value in config.items()
           if name not in (*_NO_SETTING, *_UNSAID, _OPTIONS, _TASK_OPTIONS, "algorithm", "task")}
    parts.append((own, others))
    return {
        name: options[name] for options, siblings in parts for name in options
        if _differs(siblings, name, missing)
    }


def _differs(settings: Sequence[Mapping[str, Any]], name: str, missing: bool = False) -> bool:
    """Whether those that have a setting differ in it, or, if so asked, some do not have it."""
    known = [other[name] for other in settings if name in other]
    return any(value != known[0] for value in known) or (missing and len(known) < len(settings))


def in_short(value: Any) -> str:
    """A setting's value in a label."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
