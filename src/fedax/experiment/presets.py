"""What the presets of a task say, and what is said where they say nothing."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Any

from fedax.experiment.build import algorithm_parts, algorithm_settings
from fedax.experiment.errors import ConfigError
from fedax.experiment.sources import Source
from fedax.tasks.registry import SHARED, TASKS, TaskInfo, presets
from fedax.validate import quoted

_LIMITS = {"num_local_steps", "num_local_epochs"}
CHOOSE = "use --preset none and --set to choose every setting yourself"


def is_preset(task: str, preset: str | None) -> bool:
    """Whether a task has a preset, as far as is known; of a user's task nothing is."""
    return preset is None or task not in TASKS or preset in (*presets(task), "none")


def check_preset(task: str, preset: str) -> None:
    """Raises a `ConfigError` unless the task has the preset, or it is "none"."""
    if is_preset(task, preset):
        return
    found = list(presets(task))
    near = difflib.get_close_matches(preset, found, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    has = f"Available: {', '.join(found)}" if found else "It does not have presets"
    raise ConfigError(f"Unknown preset {quoted(preset)} of task {task}.{hint} {has}; {CHOOSE}.")


def default_algorithm(task: str, source: Source | None = None) -> str:
    """The default method of a task.

    Example:
      >>> default_algorithm("shakespeare"), default_algorithm("mnist")
      ('fedadagrad', 'fedyogi')
    """
    named = TASKS.get(task) if source is None else None
    return TaskInfo._field_defaults["algorithm"] if named is None else named.algorithm


def preset_values(
    task: str,
    preset: str,
    algorithm: str,
    source: Source | None = None,
    given: Collection[str] = (),
) -> dict[str, Any]:
    """The preset's values for a task and an algorithm: place.setting -> value.

    Local training stops at the smaller of two limits, `num_local_steps` and `num_local_epochs`. If
    somebody gives one of them, the preset's other one is "none", or what was given might have no
    effect.

    Args:
      task, preset: names; a user's task has the preset "none".
      algorithm: what it is called in a run, wrappers included.
      source: where it comes from if it is a user's, which no preset knows.
      given: the keys, with or without their places, that are given beside the preset.

    Raises:
      ConfigError: if the preset is unknown, or does not have settings for the algorithm.
    """
    if preset == "none":
        return {}
    check_preset(task, preset)
    tables = presets(task)[preset]
    *wrappers, base = algorithm_parts(algorithm, source)
    own = {} if source else tables.get(base)
    if own is None:
        raise ConfigError(_not_in(task, preset, base))
    known = algorithm_settings(algorithm, source)
    values = {f"run.{key}": value for key, value in tables["run"].items()}
    values |= {f"task.{key}": value for key, value in tables["task"].items()}
    chosen = {key: value for key, value in tables["local"].items() if key in known} | own
    for part in reversed(wrappers):
        chosen |= tables.get(part, {})
    limits = _LIMITS & {key.rpartition(".")[2] for key in given}
    if len(limits) == 1:
        chosen |= dict.fromkeys(chosen.keys() & (_LIMITS - limits), "none")
    return values | {
        f"algorithm.{key}" if key in known else key: value for key, value in chosen.items()
    }


def _not_in(task: str, preset: str, method: str) -> str:
    """That a preset lacks a method, what it has, and which presets have the method."""
    has = [name for name in presets(task)[preset] if name not in SHARED]
    nearest = difflib.get_close_matches(method, has, len(has), cutoff=0.0)
    others = [f"--preset {name}" for name, of in presets(task).items() if method in of]
    published = "" if preset == "quick" else ", since its source does not give any"
    return (
        f"Preset {preset!r} of task {task} does not have settings for {method}{published}. It "
        f"covers {', '.join(nearest)}. For {method}, use "
        f"{' or '.join([*others, '--preset none and --set'])}."
    )
