"""What runs are called in a picture: by what differs between them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

# What a configuration says that makes no other setting of it.
_NO_SETTING = ("seed", "made_by", "command", "checkpoint_every", "preset", "kind")
# Of which only what they hold has a name: the hyperparameters of the method, and the task's.
_OPTIONS = "algorithm_options"
_TASK_OPTIONS = "task_options"
# What keeps settings apart and says nothing to a reader: digests, and where files lie.
_UNSAID = ("python", "task_source", "algorithm_source")


def by_setting(
    configs: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> dict[str, list[int]]:
    """Label -> the places of the runs that differ in nothing but their seeds.

    A label is what differs from the other labels' runs: the method, the task and other settings of
    the run and of the task, and of a method's hyperparameters those that differ between its own
    runs. Where nothing of that does, it has the run's name.

    Args:
      configs: of the runs, as config.json has them.
      names: of the runs, such as their folders', all different.

    Example:
      >>> rates = [(0.1, 0), (0.1, 1), (1.0, 0)]
      >>> by_setting([{"algorithm": "fedavg", "seed": seed, "algorithm_options": {"rate": rate}}
      ...             for rate, seed in rates], ["a", "b", "c"])
      {'rate=0.1': [0, 1], 'rate=1': [2]}
    """
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
    places = list(groups.values())
    labels = _labels([configs[seeds[0]] for seeds in places])
    return {
        label if labels.count(label) == 1 else f"{label} ({names[seeds[0]]})": seeds
        for label, seeds in zip(labels, places, strict=True)
    }


def _labels(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    settings = [
        config.get(_TASK_OPTIONS, {})
        | {name: value for name, value in config.items()
           if name not in (*_NO_SETTING, *_UNSAID, _OPTIONS, _TASK_OPTIONS, "algorithm", "task")}
        for config in configs
    ]
    labels = []
    for config, own in zip(configs, settings, strict=True):
        method = config.get("algorithm")
        siblings = [
            other.get(_OPTIONS, {}) for other in configs if other.get("algorithm") == method
        ]
        options = config.get(_OPTIONS, {})
        several = [name for name in ("algorithm", "task") if _differs(configs, name)]
        words = [str(config.get(name)) for name in several]
        words += [f"{name}={_text(options[name])}" for name in options if _differs(siblings, name)]
        words += [f"{name}={_text(own[name])}" for name in own if _differs(settings, name)]
        labels.append(" ".join(words) or str(method))
    return labels


def _differs(settings: Sequence[Mapping[str, Any]], name: str) -> bool:
    first = settings[0].get(name)
    return any(other.get(name) != first for other in settings)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
