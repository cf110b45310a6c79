"""The configuration of a run: where its values come from, and what they build."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from fedax.experiment import sources, trust
from fedax.experiment.build import (
    algorithm_parts,
    algorithm_settings,
    check_options,
    find_algorithm,
    find_task,
    require_choice,
    task_label,
    task_settings,
    task_value,
)
from fedax.experiment.errors import ConfigError
from fedax.experiment.folder import drop_defaults, resume_command
from fedax.experiment.presets import default_algorithm, is_preset, preset_values
from fedax.experiment.settings import Setting, entries, section
from fedax.experiment.sources import Source
from fedax.experiment.values import log_names
from fedax.rounds.options import MEASURES, PERSONALIZE, Settings
from fedax.rounds.sampling import Sampling
from fedax.rounds.stopping import BY_VALIDATION, Goal
from fedax.tasks.registry import TASKS
from fedax.theory.tables import read_table
from fedax.validate import MOST, check_choice, check_count, check_number, quoted, unknown_option

NAMES = ("task", "algorithm", "preset")
SOURCES = ("task_source", "algorithm_source")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that a run does. With the same library versions, a run repeats bit for bit.

    Attributes:
      task, algorithm: names, see `fedax list`; wrappers are joined to what they wrap by "+".
      task_source, algorithm_source: where a user's own task and method come from.
      preset: the preset that supplied every setting not given: "quick", another preset of the
        task, or "none".
      seed: seed of the initial parameters, the cohorts and all local randomness.
      num_rounds: number of training rounds, T.
      cohort_size: clients per round.
      evaluate_every: rounds between evaluations; 0: never.
      evaluation_sample: number of test examples for evaluations during training, drawn once from
        the seed; the last evaluation uses all. None: always use all, which takes longer.
      evaluation_redraw: whether that sample is drawn again for each evaluation.
      evaluate_training: whether evaluations include the loss over all training clients.
      checkpoint_every: rounds between checkpoints.
      clients_per_chunk: clients trained in one batch; None: chosen by platform.
      sampling: how cohorts are drawn, see `fedax.sampler`.
      availability: fraction of a day of 24 rounds in which a client is available, in (0, 1].
      dropout: probability that a client drops out during a round, in [0, 1).
      diagnostics: whether every round reports how similar the clients' updates are.
      personalize_steps: local steps of fine-tuning on each client at evaluations, see
        `fedax.simulate`; None: no fine-tuning.
      personalize_epochs: the same in passes over the client's data; None: no fine-tuning.
      personalize_learning_rate: learning rate of fine-tuning; None: the method's
        client_learning_rate.
      personalize_clients: maximum number of clients to fine-tune; None: all.
      early_stopping: metric that stops training when it no longer improves, or "validation" for
        the validation loss, see `fedax.EarlyStopping`.
      early_stopping_patience: number of measurements without improvement before stopping.
      early_stopping_min_delta: smallest change that counts as an improvement.
      keep_best: metric; the model of its best round is saved. None: the validation loss, if any.
      log: formats and services that also get the metrics, see `fedax.sinks`.
      task_options: settings of the task, such as `model`.
      algorithm_options: arguments of the method's factory; schedules as text.
    """

    task: str = "shakespeare"
    algorithm: str = "fedadagrad"
    preset: str = "quick"
    seed: int = 0
    num_rounds: int = 100
    cohort_size: int = 10
    evaluate_every: int = 10
    evaluation_sample: int | None = 2000
    evaluation_redraw: bool = False
    evaluate_training: bool = False
    checkpoint_every: int = 20
    clients_per_chunk: int | None = None
    sampling: Sampling = "uniform"
    availability: float = 1.0
    dropout: float = 0.0
    diagnostics: bool = False
    personalize_steps: int | None = None
    personalize_epochs: int | None = None
    personalize_learning_rate: float | None = None
    personalize_clients: int | None = 100
    early_stopping: str | None = None
    early_stopping_patience: int = 5
    early_stopping_min_delta: float = 0.0
    keep_best: str | None = None
    log: tuple[str, ...] = ()
    task_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    algorithm_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    task_source: Source | None = None
    algorithm_source: Source | None = None

    @property
    def sources(self) -> list[Source]:
        """Where the task and the algorithm come from that are a user's."""
        return [source for source in (self.task_source, self.algorithm_source) if source]


# The run's own keys of --set. A key that fits several parts has a prefix: run.seed, task.seed.
COUNTS = ("seed", "num_rounds", "cohort_size", "evaluate_every", "evaluation_sample",
          "checkpoint_every", "clients_per_chunk", "early_stopping_patience")
# Folders that were made before 0.5 lack these.
STOPPING = ("early_stopping", "early_stopping_patience", "early_stopping_min_delta", "keep_best")
RUN_KEYS = tuple(dict.fromkeys(
    (*COUNTS, "sampling", "availability", "dropout", "diagnostics", *STOPPING, *PERSONALIZE,
     *MEASURES)
))
# With what has an option of its own.
FILE_KEYS = (*RUN_KEYS, "log")


def resolve(
    *,
    task: str | None = None,
    algorithm: str | None = None,
    preset: str | None = None,
    config_file: Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Returns the configuration from its sources: preset, then file, then settings; the last wins.

    Args:
      task, algorithm, preset: names, or where a user's own are. None: what the file says,
        otherwise the default. A user's task does not have presets.
      config_file: a TOML file, or a run folder's config.json. Paths in it are relative to it.
      settings: key -> value of the run, the task or the algorithm.

    Raises:
      ConfigError: if a name, a key or a value is wrong; the message quotes it.
    """
    values = _read_file(config_file) if config_file else {}
    if config_file and config_file.suffix == ".json":
        written = [key for key, name in zip(NAMES, (task, algorithm), strict=False) if name is None]
        cure = f"give task and method yourself: fedax run TASK METHOD --config {config_file}"
        trust.require_own(values, written, cure, config_file)
    drop_defaults(values, values.pop("made_by", None), task=task, algorithm=algorithm)
    named = {"task": _found(find_task, "task", task, values, config_file)}
    values.setdefault("algorithm", default_algorithm(*named["task"]))
    named["algorithm"] = _found(find_algorithm, "algorithm", algorithm, values, config_file)
    names: dict[str, Any] = {key: name for key, (name, _) in named.items()}
    names |= {f"{key}_source": source for key, (_, source) in named.items()}
    asked = values.pop("preset", None)
    if config_file and config_file.suffix == ".json" and not is_preset(names["task"], asked):
        asked = "none"  # of an older fedax; the run has recorded every setting
    names["preset"] = _preset(names, asked if preset is None else preset)
    config = RunConfig(**names)
    _check_names(config)
    written = (_of_the_run(values), settings or {})
    from_preset = preset_values(
        config.task, config.preset, config.algorithm, config.algorithm_source,
        given=[key for source in written for key, _ in _flatten(source)],
    )
    for source, file in ((from_preset, None), (written[0], config_file), (written[1], None)):
        config = _with(config, source, file)
    _check_values(config)
    return config


def with_settings(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """Returns the configuration with other values of some settings.

    Raises:
      ConfigError: if a key or a value is wrong; the message quotes it.
    """
    changed = _with(config, settings)
    _check_values(changed)
    return changed


def _found(
    find: Callable[[str, Path | None], tuple[str, Source | None]],
    key: str,
    asked: str | None,
    values: dict[str, Any],
    file: Path | None,
) -> tuple[str, Source | None]:
    """What the task or the algorithm is called, and where it comes from; takes it from the values.

    A file's words are relative to the file, those of the command line to the working folder.
    """
    written = values.pop(key, getattr(RunConfig, key))
    recorded = sources.from_record(values.pop(f"{key}_source", None), f"{key}_source in {file}")
    if asked is not None:
        return find(asked, None)
    if not isinstance(written, str):
        raise ConfigError(f"{key} in {file} must be a name, but is {quoted(written)}.")
    if recorded is not None:
        return written, dataclasses.replace(sources.current(recorded), changed_after=())
    return find(written, file.resolve().parent if file else None)


def _preset(names: Mapping[str, Any], asked: str | None) -> str:
    """The preset that was asked for, or the one to take if none was."""
    if not isinstance(asked, str | None):
        raise ConfigError(f"preset must be a name, but is {quoted(asked)}.")
    if names["task_source"] is None or asked == "none":
        return asked or RunConfig.preset
    if asked is not None:
        raise ConfigError(
            f"Your own task {names['task']} does not have presets, so --preset {asked} is unknown. "
            "Leave it out, and give settings with --set."
        )
    return "none"


def changed_since(config_file: Path, config: RunConfig) -> list[str]:
    """Returns a sentence for each source that has changed since the run was recorded."""
    recorded = _read_file(config_file)
    found = []
    for key in SOURCES:
        then = sources.from_record(recorded.get(key), f"{key} in {config_file}")
        now = getattr(config, key)
        if then and now and then.path == now.path:
            found += [f"Changed since {config_file} was written: {path}" for path in
                      sources.changes(then)]
    return found


def load_config(path: Path, *, force: bool = False, cure: str | None = None) -> RunConfig:
    """Reads the configuration of a run folder.

    Args:
      path: its config.json.
      force: continue although a source has changed since it was recorded.
      cure: advice in that case; None: how to continue a run with --force.

    Raises:
      ConfigError: if the file or a value in it is wrong, or a source has changed.
    """
    written = _read_file(path, links=False)
    values = {key: value for key, value in written.items() if key != "made_by"}
    fields = {field.name for field in dataclasses.fields(RunConfig)}
    values.setdefault("evaluation_sample", None)  # as it was before 0.7
    missing = fields - {*SOURCES, *STOPPING, *PERSONALIZE, *MEASURES, "log"} - set(values)
    if missing:
        raise ConfigError(
            f"{path} is not the configuration of a run: {sorted(missing)[0]!r} is missing."
        )
    names: dict[str, Any] = {name: values.pop(name) for name in NAMES}
    for key, name in names.items():
        if not isinstance(name, str):
            raise ConfigError(f"{key} in {path} must be a name, but is {quoted(name)}.")
    names |= {
        key: sources.from_record(values.pop(key, None), f"{key} in {path}") for key in SOURCES
    }
    config = RunConfig(**names)
    if not force:
        by_force = f"{resume_command(path.parent)} --force"
        trust.require_own(written, list(NAMES[:2]), cure or by_force, path)
    sources.require_unchanged(config.sources, path.parent, force=force, cure=cure)
    _check_names(config)
    config = _with(config, _of_the_run(values))
    _check_values(config)
    return config


def with_sources_of_now(config: RunConfig, done: int) -> RunConfig:
    """The configuration with its sources as they are now; changes are noted with the round."""
    now = {}
    for key in SOURCES:
        source = getattr(config, key)
        if source is not None:
            changed = (done,) if sources.changes(source) else ()
            now[key] = dataclasses.replace(
                sources.current(source), changed_after=(*source.changed_after, *changed)
            )
    return dataclasses.replace(config, **now)


def describe_sources(config: RunConfig) -> list[str]:
    """What a run says of a user's task or method before it begins."""
    lines = [f"{source.name} is from {sources.shown(Path(source.path))}"
             for source in config.sources]
    if config.task_source is not None:
        lines.append(f"Your task {config.task} does not have presets; settings have defaults")
    elif config.algorithm_source is not None and config.preset != "none":
        lines.append(
            f"Preset {config.preset} supplies the settings of the run and of local training; "
            f"{config.algorithm_source.name}'s own settings have their defaults"
        )
    return lines


def run_settings() -> dict[str, Setting]:
    """The run's own settings."""
    meant = dict.fromkeys(RUN_KEYS, "") | entries(section("Attributes", RunConfig))  # "" in -OO
    hints = get_type_hints(RunConfig)
    return {key: Setting(key, hints[key], getattr(RunConfig, key), meant[key]) for key in RUN_KEYS}


def _check_names(config: RunConfig) -> None:
    if config.task_source is None:
        require_choice("task", config.task, TASKS)
    algorithm_parts(config.algorithm, config.algorithm_source)


def _check_values(config: RunConfig) -> None:
    try:
        for key in COUNTS:
            value = getattr(config, key)
            if not (key in ("clients_per_chunk", "evaluation_sample") and value is None):
                least = 0 if key in ("seed", "num_rounds", "evaluate_every") else 1
                check_count(key, value, at_least=least, at_most=None if key == "seed" else MOST)
        check_choice("sampling", config.sampling, get_args(Sampling))
        check_number("availability", config.availability, above=0, at_most=1)
        check_number("dropout", config.dropout, at_least=0, below=1)
        check_number("early_stopping_min_delta", config.early_stopping_min_delta, at_least=0)
        for key in ("early_stopping", "keep_best"):
            if getattr(config, key) not in (None, BY_VALIDATION):
                Goal.of(getattr(config, key), None, key)
        for key in ("diagnostics", *MEASURES):
            if not isinstance(value := getattr(config, key), bool):
                raise ValueError(f"{key} must be true or false, but is {quoted(value)}.")
        personalization(config).check_personalization()
    except ValueError as error:
        raise ConfigError(str(error)) from None
    settings = task_settings(config.task, config.task_source)
    check_options(task_label(config.task, config.task_source), config.task_options, settings)
    settings = algorithm_settings(config.algorithm, config.algorithm_source)
    source = config.algorithm_source
    what = source.label if source else f"Algorithm {config.algorithm}"
    check_options(what, config.algorithm_options, settings)


def personalization(config: RunConfig) -> Settings:
    """What the configuration says of fine-tuning, as `simulate` takes it."""
    return Settings(**{key: getattr(config, key) for key in PERSONALIZE})


def _with(config: RunConfig, values: Mapping[str, Any], file: Path | None = None) -> RunConfig:
    """The configuration with these values in their places; a file's errors name it."""
    places: dict[str, Any] = {
        "run": FILE_KEYS,
        "task": task_settings(config.task, config.task_source),
        "algorithm": algorithm_settings(config.algorithm, config.algorithm_source),
    }
    found: dict[str, dict[str, Any]] = {
        "run": {}, "task": dict(config.task_options), "algorithm": dict(config.algorithm_options)
    }
    for word, given in _flatten(values):
        value = None if given == "none" else given  # TOML has no word of its own for it
        place, dot, key = word.rpartition(".")
        fits = [name for name, keys in places.items() if key in keys and place in ("", name)]
        if not fits or (dot and place not in places):
            known = [name for at, keys in places.items() if place in ("", at) for name in keys]
            task, algorithm = config.task, config.algorithm
            of = {"run": "the run", "task": f"the task {task}", "algorithm": algorithm}
            what = f"setting of {of.get(place, f'a run of {algorithm} on {task}')}"
            if file and not dot:  # the task may not be the one that was meant
                what, known = "key", [*NAMES, *known]
            message = unknown_option(what, key if known else word, known or places)
            raise ConfigError(f"{file}: {message}" if file else message)
        if len(fits) > 1:
            ways = " or ".join(f"{name}.{key}" for name in fits)
            whose = " and the ".join(fits)
            raise ConfigError(f"Setting {key!r} belongs to the {whose}; write {ways}.")
        if fits == ["task"] and config.task_source is None:
            value = task_value(config.task, key, value)
        found[fits[0]][key] = value
    if "log" in found["run"]:
        found["run"]["log"] = log_names(found["run"]["log"])
    return dataclasses.replace(
        config, task_options=found["task"], algorithm_options=found["algorithm"], **found["run"]
    )


def _flatten(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Key, value; the tables task_options and algorithm_options are opened."""
    for key, value in values.items():
        if key in ("task_options", "algorithm_options"):
            if not isinstance(value, Mapping):
                raise ConfigError(
                    f"{key} must be a table of names and values, but is {quoted(value)}."
                )
            place = key.removesuffix("_options")
            yield from ((f"{place}.{name}", item) for name, item in value.items())
        else:
            yield key, value


def _of_the_run(values: Mapping[str, Any]) -> dict[str, Any]:
    """A file's values: what can be the run's is, as the others have tables of their own."""
    return {f"run.{key}" if key in FILE_KEYS else key: value for key, value in values.items()}


def _read_file(path: Path, *, links: bool = True) -> dict[str, Any]:
    """The values in a TOML file or a config.json."""
    try:
        values = read_table(Path(path), links=links)
    except OSError as error:
        raise ConfigError(f"Cannot read the configuration {path}: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigError(f"The configuration {path} cannot be parsed: {error}.") from None
    if not isinstance(values, dict):
        raise ConfigError(f"The configuration {path} is not a table of names and values.")
    if "python" in values:
        raise ConfigError(
            f"{path} belongs to a run started from Python, with objects that the command line "
            "cannot create. To continue it, call fedax.train again in that program; "
            "fedax.load_run reads it."
        )
    return values
