"""What a sweep's config.json says, believed only where it can be true, whoever wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from fedax.validate import MOST, quoted

# A unit has a place for each setting, rounded up to the number of devices, which is no larger.
MOST_DEVICES = 128
PLAIN = (bool, int, float, str, type(None))


def check_sweep(config: Mapping[str, Any]) -> None:
    """Checks what grid sweeps, searches and sweeps from Python have alike.

    Raises:
      ValueError: if something is missing or cannot be. The message is a phrase.
    """
    for key in ("choose", "identity", "task", "algorithm"):
        _require(isinstance(config.get(key), str), config, key)
    _require(_is_whole(config.get("num_rounds"), 0), config, "num_rounds")
    seeds, settings, units = (_list(config, key) for key in ("seeds", "settings", "units"))
    _require(all(_is_whole(seed, 0, 2**63 - 1) for seed in seeds), config, "seeds")
    grid = _table(config, "grid")
    _require(all(isinstance(keys, dict) and all(
        isinstance(values, list) and all(isinstance(value, PLAIN) for value in values)
        for values in keys.values()
    ) for keys in grid.values()), config, "grid")
    _require(all(
        isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) and one[0] in grid
        and isinstance(one[1], dict) and all(isinstance(v, PLAIN) for v in one[1].values())
        for one in settings
    ), config, "settings")
    _require(all(
        isinstance(one, list) and len(one) == 3 and isinstance(one[0], list) and one[0]
        and all(_is_whole(number, 0, len(settings) - 1) for number in one[0])
        and one[1] in seeds and _is_whole(one[2], len(one[0]))
        for one in units
    ), config, "units")
    longest = max((len(one[0]) for one in units), default=0)
    _require(all(one[2] < longest + MOST_DEVICES for one in units), config, "units")
    halving = config.get("halving")
    _require(
        halving is None or (
            isinstance(halving, list) and len(halving) == 3 and _is_whole(halving[0], 2)
            and _is_whole(halving[1], 1, MOST_DEVICES)
            and (halving[2] is None or _is_whole(halving[2], 1))
        ),
        config, "halving",
    )


def check_search_config(config: Mapping[str, Any]) -> None:
    """Checks what a search has besides, see `check_sweep`.

    Raises:
      ValueError: as for `check_sweep`.
    """
    asked, algorithms = _table(config, "search"), _list(config, "algorithms")
    for key in ("sampler", "pruner"):
        _require(isinstance(asked.get(key), str), asked, key)
    for key in ("trials", "batch_size"):
        _require(_is_whole(asked.get(key), 1), asked, key)
    _require(all(isinstance(word, str) for word in _list(asked, "words")), asked, "words")
    _require(isinstance(asked.get("storage"), str | None), asked, "storage")
    _require(isinstance(asked.get("storage_has_password"), bool), asked, "storage_has_password")
    spaces = _table(asked, "spaces")
    _require(all(
        isinstance(space, dict) and space and all(isinstance(of, str) for of in space.values())
        for space in spaces.values()
    ), asked, "spaces")
    _require(bool(algorithms) and algorithms == list(spaces), config, "algorithms")
    _require(bool(_list(config, "seeds")), config, "seeds")


def _require(good: bool, config: Mapping[str, Any], key: str) -> None:
    if not good:
        said = f"its {key} cannot be {quoted(config[key])}" if key in config else f"it has no {key}"
        raise ValueError(said)


def _list(config: Mapping[str, Any], key: str) -> list[Any]:
    _require(isinstance(config.get(key), list), config, key)
    return config[key]


def _table(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    _require(isinstance(config.get(key), dict), config, key)
    return config[key]


def _is_whole(value: Any, least: int, most: int = MOST) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
