"""What a sweep runs: methods, each over its own grid, and seeds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedax.data.task import Task
from fedax.experiment.build import find_algorithm, find_task
from fedax.experiment.config import RunConfig, resolve, with_settings
from fedax.experiment.errors import ConfigError
from fedax.rounds.stopping import Goal
from fedax.sweeps.choosing import PAPER_RULE, Choice, default_rule, extended
from fedax.sweeps.grid import same, settings_of
from fedax.sweeps.record import Setting
from fedax.tuning.grids import (
    MOST_SETTINGS,
    Grid,
    Method,
    check_varied,
    method_of,
    of_methods,
    parse_grid,
    preset_grid,
)
from fedax.validate import check_count


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """Everything that a sweep does: every setting, with every seed, is a run.

    Attributes:
      grid: method -> hyperparameter -> values.
      settings: the product of each method's grid, and what extended it.
      seeds: with which every setting is run.
      choose: the rule by which the best setting is chosen, see `fedax.sweeps.choosing.choose`.
      bases: method -> the configuration of its first setting's run with the first seed.
      by_default: whether nobody named the rule, see `ruled`.
    """

    grid: dict[str, Grid]
    settings: tuple[Setting, ...]
    seeds: tuple[int, ...]
    choose: str
    bases: dict[str, RunConfig]
    by_default: bool = False

    @property
    def task(self) -> str:
        """The task's name."""
        return next(iter(self.bases.values())).task

    @property
    def algorithms(self) -> list[str]:
        """The methods' names."""
        return list(self.bases)

    @property
    def num_rounds(self) -> int:
        """T, the same for all."""
        return next(iter(self.bases.values())).num_rounds

    def run(self, setting: Setting, seed: int | None = None) -> RunConfig:
        """The configuration of a run.

        Args:
          setting: one of the sweep's.
          seed: None: the first.
        """
        config = with_settings(self.bases[setting.algorithm], setting.values)
        return dataclasses.replace(config, seed=self.seeds[0] if seed is None else seed)

    def ruled(self, tasks: Iterable[Task]) -> SweepConfig:
        """The sweep with the rule for its tasks if nobody named one, see `default_rule`."""
        if not self.by_default:
            return self
        evaluates = all(base.evaluate_every > 0 for base in self.bases.values())
        rule = default_rule(tasks, evaluates=evaluates)
        return dataclasses.replace(self, choose=rule, by_default=False)

    def wider(self, choice: Choice) -> SweepConfig:
        """The sweep with what the edges of its grids ask for; the settings keep their numbers.

        Raises:
          ConfigError: if a value is not possible for its hyperparameter.
        """
        more = extended(self.settings, choice)
        grid = {
            name: {
                key: [*values, *(value for edge in choice.methods[name].edges if edge.name == key
                                 for value in edge.add)]
                for key, values in of.items()
            }
            for name, of in self.grid.items()
        }
        for name, of in grid.items():
            _check_values(self.bases[name], of)
        return dataclasses.replace(self, grid=grid, settings=(*self.settings, *more))


def sweep_config(
    task: str,
    algorithms: Sequence[str],
    grid: Sequence[str] | Mapping[str, Sequence[Any]] = (),
    *,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    num_seeds: int = 1,
    choose: str | None = None,
) -> SweepConfig:
    """The configuration of a sweep.

    Args:
      task, algorithms: names, or where a user's own are.
      grid: words, see `fedax.tuning.grids.parse_grid`, or key -> values. A key is for every method
        that has it; METHOD.KEY is for one. A preset's name stands for its grid, of which every
        method takes the keys that it has; KEY=... beside it takes the place of its values.
      preset: supplies every setting that is not given; None: the preset of the grid, or else the
          task's default. "none": no preset.
      settings: fixed ones, key -> value, with the same meaning of a key. They take their keys out
        of a preset's grid.
      num_seeds: from the setting `seed` on.
      choose: the rule by which the best setting is chosen; None: the validation loss if the task
        has validation data, else "train_loss".

    Raises:
      ConfigError: if a name, a key or a value is wrong; the message quotes it.
    """
    try:
        check_count("seeds", num_seeds, at_most=10_000)
        Goal.of(choose or PAPER_RULE, None, "choose")
    except ValueError as error:
        raise ConfigError(str(error)) from None
    of, written = (None, {key: list(values) for key, values in grid.items()}) if isinstance(
        grid, Mapping
    ) else parse_grid(grid)
    task_name, task_source = find_task(task)
    methods = _methods(algorithms, task_name, task_source)
    fixed = of_methods(settings or {}, methods, "--set")
    varied = of_methods(written, methods, "--grid")
    published = preset_grid(task_name, task_source, of) if of is not None else {}
    grids = {method.name: _grid(method, published, varied, fixed) for method in methods}
    _check_size(grids, num_seeds)
    bases = {
        method.name: _base(task, method, of if preset is None else preset, fixed, grids)
        for method in methods
    }
    for name, values in grids.items():
        _check_values(bases[name], values)
    first = next(iter(bases.values()))
    seeds = tuple(range(first.seed, first.seed + num_seeds))
    return SweepConfig(
        grids, tuple(settings_of(grids)), seeds, choose or PAPER_RULE, bases, choose is None
    )


def _methods(algorithms: Sequence[str], task: str, source: Any) -> list[Method]:
    """The methods by name, each once."""
    found: list[Method] = []
    for text in algorithms:
        if not text:
            raise ConfigError(
                "The name of a method is empty. Separate methods by commas, without spaces: "
                "fedavg,fedavgm"
            )
        name, own = find_algorithm(text)
        if any(name == other.name for other in found):
            raise ConfigError(f"Method {name} is given twice.")
        found.append(method_of(name, text, own, task, source))
    if not found:
        raise ConfigError("A sweep needs a method, such as fedavg: see fedax list algorithms.")
    return found


def _grid(
    method: Method,
    published: Mapping[str, Any],
    varied: Mapping[str, Mapping[str, list[Any]]],
    fixed: Mapping[str, Mapping[str, Any]],
) -> Grid:
    """The grid of a method: what a preset has, and what was written over it."""
    own = varied[method.name]
    for key, values in own.items():
        check_varied(key)
        if not values:
            raise ConfigError(f"The grid of {key} is empty.")
        if any(same(value, other) for at, value in enumerate(values) for other in values[:at]):
            raise ConfigError(f"The grid of {key} has a value twice: {values}.")
        if key in fixed[method.name]:
            raise ConfigError(
                f"{key} of {method.name} is given by both --grid and --set. Leave one of them out."
            )
    has = method.places["algorithm"]
    start: Grid = {
        key: list(values) for key, values in published.items()
        if key in has and key not in fixed[method.name]
    }
    return {**start, **own}


def _base(
    task: str,
    method: Method,
    preset: str | None,
    fixed: Mapping[str, Mapping[str, Any]],
    grids: Mapping[str, Grid],
) -> RunConfig:
    """The configuration of a method's first setting.

    Raises:
      ConfigError: if it is wrong, or a sweep does not support it.
    """
    first = {key: values[0] for key, values in grids[method.name].items()}
    config = resolve(
        task=task, algorithm=method.text, preset=preset, settings={**fixed[method.name], **first}
    )
    for name in ("early_stopping", "keep_best", "personalize_steps", "personalize_epochs"):
        if getattr(config, name) is not None:
            raise ConfigError(
                f"{name} is for single runs: all settings of a sweep run the same rounds, and "
                "their models are not saved. Leave it out, then run the best setting with it."
            )
    return config


def _check_values(base: RunConfig, grid: Grid) -> None:
    """Raises an error if a hyperparameter cannot have one of its values."""
    for key, values in grid.items():
        for value in values:
            with_settings(base, {key: value})


def _check_size(grids: Mapping[str, Grid], num_seeds: int) -> None:
    """Raises an error if there are too many settings, or there is nothing to compare."""
    counts = {name: math.prod(map(len, grid.values())) for name, grid in grids.items()}
    count = sum(counts.values())
    if count > MOST_SETTINGS:
        raise ConfigError(
            f"The grids have {count:,} settings, more than the maximum of {MOST_SETTINGS:,}. Give "
            "fewer values, or fix some hyperparameters with --set."
        )
    if count * num_seeds == 1:
        raise ConfigError(
            "This sweep has only one run: one method, one setting, one seed. Give --grid "
            "KEY=VALUE,VALUE, --grid reddi2021, several methods or --seeds."
        )
