"""The resolved call of a run: every setting with its value, those that nobody gave, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedax.algorithm import FederatedAlgorithm
from fedax.data.describing import Describer, plain_values
from fedax.experiment.build import algorithm_settings, task_settings
from fedax.experiment.config import RunConfig, with_settings
from fedax.experiment.settings import OWN, Setting
from fedax.experiment.sources import Source


def with_defaults(config: RunConfig) -> tuple[RunConfig, dict[str, list[str]]]:
    """The configuration with the defaults of the task's and the method's settings written out.

    It builds the same. Defaults that no file can hold, such as functions, are left out; so are
    those behind the `**options` of a user's own function, which may have others.

    Returns:
      the configuration, and the names of these defaults under "task" and "algorithm".
    """
    settings = task_settings(config.task, config.task_source)
    found = {"task": _defaults(settings, config.task_options, config.task_source)}
    settings = algorithm_settings(config.algorithm, config.algorithm_source)
    found["algorithm"] = _defaults(settings, config.algorithm_options, config.algorithm_source)
    resolved = with_settings(config, {
        f"{part}.{name}": value for part, of in found.items() for name, value in of.items()
    })
    return resolved, {part: sorted(of) for part, of in found.items()}


def held_by(algorithm: FederatedAlgorithm, config: RunConfig) -> dict[str, Any]:
    """What a user's own task and method were made of and their options do not tell, for a page.

    Of the task those are the defaults that no file can hold, in words; of the method also the plain
    values that it holds.
    """
    found: dict[str, Any] = {}
    if config.task_source is not None:
        settings = task_settings(config.task, config.task_source)
        found |= _in_words(settings, config.task_options)
    if config.algorithm_source is not None:
        settings = algorithm_settings(config.algorithm, config.algorithm_source)
        described = Describer(complete=True)(algorithm)
        found |= _in_words(settings, config.algorithm_options)
        found |= {**plain_values(described), **_arguments(described)}
    given = {*config.task_options, *config.algorithm_options}
    return {name: value for name, value in found.items() if name not in given}


def _in_words(settings: Mapping[str, Setting], given: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: str(setting.row()["default"]) for name, setting in settings.items()
        if name not in given and setting.recorded is OWN and not setting.behind
        and "default" in setting.row()
    }


def _defaults(
    settings: Mapping[str, Setting], given: Mapping[str, Any], source: Source | None
) -> dict[str, Any]:
    return {
        name: setting.recorded for name, setting in settings.items()
        if name not in given and setting.recorded is not OWN and not (source and setting.behind)
    }


def _arguments(described: Any) -> dict[str, Any]:
    """The plain arguments of the factories that made a method; of equal names the outermost's."""
    if not (isinstance(described, Mapping) and "factory" in described):
        return {}
    inner: dict[str, Any] = {}
    for value in described["arguments"].values():
        inner = _arguments(value) | inner
    return inner | {
        name: value for name, value in described["arguments"].items()
        if value is None or isinstance(value, bool | int | float | str)
    }
