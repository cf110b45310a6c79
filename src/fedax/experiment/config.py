"""The configuration of a run: where its values come from, and what they build."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from fedax.experiment.build import algorithm_keys, algorithm_parts
from fedax.experiment.errors import ConfigError
from fedax.rounds.sampling import Sampling
from fedax.rounds.stopping import Goal
from fedax.tasks.registry import TASKS, presets
from fedax.validate import check_choice, check_count, check_number, unknown

PRESETS = ("quick", "paper", "none")
NAMES = ("task", "algorithm", "preset")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that a run does. With the same versions of the libraries it repeats to the bit.

    Attributes:
      task, algorithm: names, see `fedax list`; wrappers are joined to what they wrap by "+".
      preset: where the values came from that nobody set: "quick", "paper" or "none".
      seed: fixes the initial parameters, the cohorts and all local randomness.
      num_rounds: T.
      cohort_size: clients a round.
      evaluate_every: rounds between evaluations; 0: never.
      checkpoint_every: rounds between checkpoints.
      clients_per_chunk: clients trained batched at a time; None: chosen by platform.
      sampling: how cohorts are drawn, see `fedax.sampler`.
      availability: share of a day of 24 rounds in which a client can be reached, in (0, 1].
      dropout: probability that a client drops out in the middle of a round, in [0, 1).
      diagnostics: whether every round reports how the clients' updates lie to each other.
      early_stopping: a metric; when it has not improved for a while training stops, see
        `fedax.EarlyStopping`; None: it does not.
      early_stopping_patience, early_stopping_min_delta: that while in measurements, and by more
        than what a value counts as better.
      keep_best: a metric, the model with the best of which is kept; None: none is.
      task_options: arguments of `fedax.load_task`.
      algorithm_options: arguments of the algorithm's factory; schedules as text.
    """

    task: str = "shakespeare"
    algorithm: str = "fedyogi"
    preset: str = "quick"
    seed: int = 0
    num_rounds: int = 100
    cohort_size: int = 10
    evaluate_every: int = 10
    checkpoint_every: int = 20
    clients_per_chunk: int | None = None
    sampling: Sampling = "uniform"
    availability: float = 1.0
    dropout: float = 0.0
    diagnostics: bool = False
    early_stopping: str | None = None
    early_stopping_patience: int = 5
    early_stopping_min_delta: float = 0.0
    keep_best: str | None = None
    task_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    algorithm_options: dict[str, Any] = dataclasses.field(default_factory=dict)


# The run's own keys of --set; the task's and the algorithm's come from their factories.
COUNTS = ("seed", "num_rounds", "cohort_size", "evaluate_every", "checkpoint_every",
          "clients_per_chunk", "early_stopping_patience")
# Folders that were made before 0.5 lack these.
STOPPING = ("early_stopping", "early_stopping_patience", "early_stopping_min_delta", "keep_best")
RUN_KEYS = (*COUNTS, "sampling", "availability", "dropout", "diagnostics", *STOPPING)
TASK_KEYS = ("model",)


def resolve(
    *,
    task: str | None = None,
    algorithm: str | None = None,
    preset: str | None = None,
    config_file: Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> RunConfig:
    """The configuration from its sources, later ones winning: preset, file, settings.

    Args:
      task, algorithm, preset: names; None means what the file says, or else the default.
      config_file: a TOML file, or a run folder's config.json.
      settings: key -> value of the run, the task or the algorithm.

    Raises:
      ConfigError: a name, a key or a value is wrong; the sentence quotes it.
    """
    values = _read_file(config_file) if config_file else {}
    settings = dict(settings or {})
    in_file = {key: values.pop(key, getattr(RunConfig, key)) for key in NAMES}
    config = RunConfig(
        task=task or in_file["task"],
        algorithm=algorithm or in_file["algorithm"],
        preset=preset or in_file["preset"],
    )
    _check_names(config)
    for source in (_preset_values(config), values, settings):
        config = _with(config, source)
    _check_values(config)
    return config


def parse_settings(words: Sequence[str]) -> dict[str, Any]:
    """Reads KEY=VALUE words; a value is a number, true, false, none, or else text.

    Raises:
      ConfigError: a word has no '='.

    Example:
      >>> parse_settings(["client_learning_rate=0.1", "num_local_steps=none", "model=small"])
      {'client_learning_rate': 0.1, 'num_local_steps': None, 'model': 'small'}
    """
    settings = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set takes KEY=VALUE, such as num_rounds=50, but got {word!r}.")
        settings[key.strip()] = _parse_value(value.strip())
    return settings


def load_config(path: Path) -> RunConfig:
    """Reads the configuration of a run folder.

    Raises:
      ConfigError: it is not one, or a value in it is wrong.
    """
    values = _read_file(path)
    fields = {field.name for field in dataclasses.fields(RunConfig)}
    missing = fields - set(values) - set(STOPPING)
    if missing:
        raise ConfigError(f"{path} lacks {sorted(missing)[0]!r}, so it is no run's configuration.")
    config = RunConfig(**{name: values.pop(name) for name in NAMES})
    _check_names(config)
    config = _with(config, values)
    _check_values(config)
    return config


def _check_names(config: RunConfig) -> None:
    _require("task", config.task, TASKS)
    _require("preset", config.preset, PRESETS)
    algorithm_parts(config.algorithm)


def _check_values(config: RunConfig) -> None:
    try:
        for key in COUNTS:
            value = getattr(config, key)
            if not (key == "clients_per_chunk" and value is None):
                least = 0 if key in ("seed", "num_rounds", "evaluate_every") else 1
                check_count(key, value, at_least=least)
        check_choice("sampling", config.sampling, get_args(Sampling))
        check_number("availability", config.availability, above=0, at_most=1)
        check_number("dropout", config.dropout, at_least=0, below=1)
        check_number("early_stopping_min_delta", config.early_stopping_min_delta, at_least=0)
        for key in ("early_stopping", "keep_best"):
            if getattr(config, key) is not None:
                Goal.of(getattr(config, key), None, key)
        if not isinstance(config.diagnostics, bool):
            raise ValueError(f"diagnostics must be true or false, but is {config.diagnostics!r}.")
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _with(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """The configuration with these values in their places."""
    algorithm_options = dict(config.algorithm_options)
    task_options = dict(config.task_options)
    run = {}
    known = [*RUN_KEYS, *TASK_KEYS, *algorithm_keys(config.algorithm)]
    for key, given in _flatten(values):
        value = None if given == "none" else given  # TOML has no word of its own for it
        if key in RUN_KEYS:
            run[key] = value
        elif key in TASK_KEYS:
            _require(f"model of the task {config.task}", value, TASKS[config.task].models)
            task_options[key] = value
        elif key in algorithm_keys(config.algorithm):
            algorithm_options[key] = value
        else:
            raise ConfigError(unknown(f"setting for {config.algorithm}", key, known))
    return dataclasses.replace(
        config, task_options=task_options, algorithm_options=algorithm_options, **run
    )


def _flatten(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Key, value; the tables task_options and algorithm_options are opened."""
    for key, value in values.items():
        if key in ("task_options", "algorithm_options"):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{key} must be a table of names and values, but is {value!r}.")
            yield from value.items()
        else:
            yield key, value


def _preset_values(config: RunConfig) -> dict[str, Any]:
    """The preset's values for this task and algorithm."""
    if config.preset == "none":
        return {}
    tables = presets(config.task).get(config.preset)
    if tables is None:
        raise ConfigError(
            f"The task {config.task} has no preset {config.preset!r}; use --preset none and --set."
        )
    *wrappers, base = algorithm_parts(config.algorithm)
    if base not in tables:
        raise ConfigError(
            f"The preset {config.preset!r} of the task {config.task} has no settings for {base}; "
            "use --preset quick, or --preset none and --set."
        )
    known = algorithm_keys(config.algorithm)
    values = {key: value for key, value in tables["local"].items() if key in known}
    for part in (base, *reversed(wrappers)):
        values |= tables.get(part, {})
    return tables["run"] | tables["task"] | values


def _read_file(path: Path) -> dict[str, Any]:
    """The values in a TOML file or a config.json (whose record of versions is left out)."""
    try:
        text = Path(path).read_text("utf-8-sig")  # some editors begin a file with a mark
        values = json.loads(text) if Path(path).suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"Cannot read the configuration {path}: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration {path} cannot be parsed: {error}.") from None
    if not isinstance(values, dict):
        raise ConfigError(f"The configuration {path} is not a table of names and values.")
    if "python" in values:
        raise ConfigError(
            f"{path} is of a run that a Python program made, with objects of its own. It goes on "
            "when that program calls fedax.train again, and fedax.load_run reads it."
        )
    values.pop("made_by", None)
    return values


def _parse_value(text: str) -> Any:
    words = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def _require(what: str, name: Any, choices: Any) -> None:
    try:
        check_choice(what, name, choices)
    except ValueError as error:
        raise ConfigError(str(error)) from None
