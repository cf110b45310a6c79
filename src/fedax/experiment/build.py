"""From a task's and an algorithm's name and options, as text, to the task and the algorithm."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedax.algorithm import FederatedAlgorithm, Model
from fedax.algorithms.registry import ALGORITHMS, WRAPPERS, AlgorithmInfo
from fedax.clients.local_training import LocalOptions
from fedax.data.errors import DataError
from fedax.data.task import Task
from fedax.experiment import imports, sources
from fedax.experiment.errors import ConfigError
from fedax.experiment.settings import NEEDED, OWN, Setting, settings_of, signature_of
from fedax.experiment.sources import Source
from fedax.experiment.values import check_kind, parse
from fedax.mistakes.errors import kind_of
from fedax.outside.paths import expanded
from fedax.rounds.checks import require_task
from fedax.tasks.registry import TASKS, load_task
from fedax.validate import check_choice, unknown

RATES = ("client_learning_rate", "server_learning_rate")
# Every task has this setting, unless a user's own has another of that name.
VALIDATION = Setting(
    "validation", float | None, OWN,
    "fraction of each client's training examples to hold out for validation, such as 0.1; "
    "none, the default: only the task's own validation data, if any.", checked=False,
)


class Part(NamedTuple):
    """A method or a wrapper, by name.

    Attributes:
      name: in a run.
      factory: of a wrapper see `WRAPPERS`, of a method (model, **options) -> algorithm.
      settings: of the factory.
      takes_model: whether a wrapper takes the model as well.
    """

    name: str
    factory: Callable[..., Any]
    settings: Mapping[str, Setting]
    takes_model: bool = True


def find_task(text: str, folder: Path | None = None) -> tuple[str, Source | None]:
    """What a task is called in a run, and where it comes from if it is a user's.

    Raises:
      ConfigError: if the task is unknown or cannot be loaded.
    """
    return sources.find("task", text, TASKS, folder)


def find_algorithm(text: str, folder: Path | None = None) -> tuple[str, Source | None]:
    """What an algorithm is called in a run, wrappers included, and where a user's comes from.

    Raises:
      ConfigError: if the algorithm is unknown or cannot be loaded.
    """
    wrappers, base = _unwrapped(text)
    _check_plus(text, base, folder or Path.cwd())
    name, source = sources.find("algorithm", base, [*ALGORITHMS, *WRAPPERS], folder)
    return "+".join([*wrappers, name]), source


def algorithm_parts(text: str, source: Source | None = None) -> list[str]:
    """The wrappers of an algorithm, outermost first, and what they wrap.

    Args:
      text: what it is called in a run.
      source: where it comes from if what they wrap is a user's.

    Example:
      >>> algorithm_parts("local_update_decay+elastic+fedprox")
      ['local_update_decay', 'elastic', 'fedprox']
      >>> algorithm_parts("elastic")  # a wrapper alone wraps its default
      ['elastic', 'fedavg']

    Raises:
      ConfigError: if a name is unknown or in the wrong place.
    """
    wrappers, base = _unwrapped(str(text))
    if source is not None:
        return [*wrappers, base]
    _check_plus(text, base)
    if base in WRAPPERS:
        return [*wrappers, base, WRAPPERS[base][1]]
    if base not in ALGORITHMS:
        raise ConfigError(unknown("algorithm", base, [*ALGORITHMS, *WRAPPERS]))
    return [*wrappers, base]


def algorithm_settings(text: str, source: Source | None = None) -> dict[str, Setting]:
    """The settings of an algorithm's factories by name."""
    found: dict[str, Setting] = {}
    for part in reversed(_parts(text, source)):
        own = part.settings
        if part.name == "local_update_decay":  # it lowers the rates that there are
            own = {key: value for key, value in own.items() if key not in RATES or key in found}
        found |= own
    return found


def task_settings(name: str, source: Source | None = None) -> dict[str, Setting]:
    """The settings of a task by name."""
    if source is None:
        info = TASKS[name]
        meaning = "one of the task's models."
        model = Setting("model", Literal[*info.models], info.models[0], meaning)
        first = next(iter(signature_of(info.load).parameters))
        own = _unchecked(settings_of(info.load, (first,)))
        return {"model": model, **own, VALIDATION.name: VALIDATION}
    value = sources.load(source)
    if isinstance(value, Task):
        return {VALIDATION.name: VALIDATION}
    if not callable(value):
        raise ConfigError(
            f"{source.label} is {_a(value)}, but a task is a fedax.Task or a function that "
            "returns one."
        )
    found = _settings(source, value)
    model = found.get("model")
    if model and model.default is NEEDED and model.hint in (Any, Model):
        raise ConfigError(
            f"{source.label} takes a model, so it is a method, not a task. Write a task before it: "
            f"fedax run TASK {source.label}"
        )
    return {**found, VALIDATION.name: found.get(VALIDATION.name, VALIDATION)}


def task_value(name: str, key: str, value: Any) -> Any:
    """A setting of one of fedax's tasks as a configuration records it: a file with its folder.

    Raises:
      ConfigError: if the model is unknown.
    """
    info = TASKS[name]
    if key == "model":
        require_choice(f"model of the task {name}", value, info.models)
    if key in info.files and isinstance(value, str):
        return str(expanded(value).absolute())
    return value


def require_choice(what: str, value: Any, choices: Iterable[str]) -> None:
    """Raise a clear error unless the value is one of the choices."""
    try:
        check_choice(what, value, choices)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def reads_files(name: str, source: Source | None) -> bool:
    """Whether a task reads files of the user's, or is the user's own."""
    return source is not None or bool(TASKS[name].files)


def task_label(name: str, source: Source | None = None) -> str:
    """How a task is called in a sentence about its settings."""
    return f"Task {name}" if source is None else source.label


def check_options(
    what: str, options: Mapping[str, Any], settings: Mapping[str, Setting]
) -> dict[str, Any]:
    """The options as they are given to a factory: text parsed, types checked.

    Raises:
      ConfigError: if a value is not what its setting may be, or one that is needed is missing.
    """
    missing = [key for key, setting in settings.items()
               if setting.default is NEEDED and key not in options]
    if missing:
        which = "which has no default" if len(missing) == 1 else "which have no defaults"
        words = " ".join(f"{key}=VALUE" for key in missing)
        raise ConfigError(f"{what} needs {' and '.join(missing)}, {which}: --set {words}.")
    values = {}
    for key, value in options.items():
        setting = settings[key]
        if setting.is_default(value):
            values[key] = setting.default
            continue
        try:
            values[key] = parse(key, value, setting.hint)
            if not setting.checked and value is not setting.default:
                check_kind(key, values[key], setting.hint)
        except (SyntaxError, TypeError, ValueError) as error:
            where = "" if key in str(error) else f"{key}: "
            raise ConfigError(f"{what}: {where}{error}") from error
    return values


def build_task(name: str, options: Mapping[str, Any], source: Source | None = None) -> Task:
    """The task of that name with these options.

    Raises:
      ConfigError: if an option is wrong, or the user's function fails.
      ValueError: if the data of one of fedax's tasks are damaged, or a user's file is wrong.
    """
    settings = task_settings(name, source)
    what = task_label(name, source)
    values = check_options(what, options, settings)
    if source is None:
        try:
            return load_task(name, **values)
        except ValueError as error:
            if isinstance(error, DataError) or reads_files(name, source):
                raise
            raise ConfigError(f"{what}: {error}") from error
    # One that their own function does not have.
    validation = values.pop("validation", None) if settings["validation"] is VALIDATION else None
    value = sources.load(source)
    task = value if isinstance(value, Task) else _call(source, value, **values)
    if not isinstance(task, Task):
        raise ConfigError(f"{source.label} returned {_a(task)}, but a task is a fedax.Task.")
    try:
        require_task(task)
        return task if validation in (None, 0) else task.with_validation(validation)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{source.label}: {error}") from error


def build_algorithm(
    text: str, options: Mapping[str, Any], model: Model, source: Source | None = None
) -> FederatedAlgorithm:
    """The algorithm of that name with these options.

    Raises:
      ConfigError: if an option's value is out of its range, or the user's factory fails.
    """
    what = f"Algorithm {text}"
    values = check_options(
        source.label if source else what, options, algorithm_settings(text, source)
    )
    try:
        return _build(_parts(text, source), values, model)
    except ConfigError:
        raise
    except (SyntaxError, TypeError, ValueError) as error:
        raise ConfigError(f"{what}: {error}") from error


def _build(parts: list[Part], values: Mapping[str, Any], model: Model) -> FederatedAlgorithm:
    first, *rest = parts
    own = {key: value for key, value in values.items() if key in first.settings}
    if not rest:
        return first.factory(model, **own)
    takes = set().union(*(part.settings for part in rest))

    def inner(**rates: Any) -> FederatedAlgorithm:
        return _build(rest, {**values, **{k: v for k, v in rates.items() if k in takes}}, model)

    if first.name == "local_update_decay":
        for key in RATES:
            if key not in takes:
                own[key] = None
        return first.factory(
            lambda client_rate, server_rate: inner(
                client_learning_rate=client_rate, server_learning_rate=server_rate
            ),
            model, **own,
        )
    given = (inner(), model) if first.takes_model else (inner(),)
    return first.factory(*given, **own)


def _parts(text: str, source: Source | None) -> list[Part]:
    *wrappers, base = algorithm_parts(text, source)
    found = [_part(name, WRAPPERS[name][0]) for name in wrappers]
    return [*found, _part(base, ALGORITHMS[base]) if source is None else _own_method(base, source)]


@functools.cache  # a sweep asks for every setting, and docstrings take a while to read
def _part(name: str, info: AlgorithmInfo) -> Part:
    settings = settings_of(
        info.factory, ("model", "algorithm", "build"), options=LocalOptions
    )
    return Part(name, info.factory, settings, "model" in signature_of(info.factory).parameters)


def _own_method(name: str, source: Source) -> Part:
    """A user's method: its first argument is the model, all others are settings."""
    value = sources.load(source)
    method = "a method is a function of the model that returns a fedax.FederatedAlgorithm"
    if isinstance(value, Task):
        raise ConfigError(
            f"{source.label} is a task, but a method was expected. Write the task first, then "
            "the method."
        )
    if not callable(value):
        raise ConfigError(f"{source.label} is {_a(value)}, but {method}.")
    parameters = _signature(source, value).parameters
    first = parameters.get("model", next(iter(parameters.values()), None))
    if first is None or first.default is not NEEDED:
        raise ConfigError(f"{source.label} does not take a model, but {method}.")
    by_name = first.name == "model" and first.kind is not first.POSITIONAL_ONLY

    def factory(model: Model, **options: Any) -> FederatedAlgorithm:
        given = ((), {"model": model}) if by_name else ((model,), {})
        algorithm = _call(source, value, *given[0], **given[1], **options)
        if not isinstance(algorithm, FederatedAlgorithm):
            raise ConfigError(f"{source.label} returned {_a(algorithm)}, but {method}.")
        return algorithm

    settings = _settings(source, value, (first.name,), options=LocalOptions)
    return Part(name, factory, settings)


def _settings(
    source: Source, function: Callable[..., Any], skip: Iterable[str] = (), **options: Any
) -> dict[str, Setting]:
    _signature(source, function)
    return _unchecked(settings_of(function, skip, **options))


def _unchecked(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """The settings, of whose values the factory need not say anything itself."""
    return {key: setting._replace(checked=False) for key, setting in settings.items()}


def _signature(source: Source, function: Callable[..., Any]) -> inspect.Signature:
    try:
        return signature_of(function)
    except (TypeError, ValueError):
        raise ConfigError(
            f"The arguments of {source.label} cannot be read. Use a function with a signature."
        ) from None


def _call(source: Source, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Calls a user's function where its imports find what lies beside it."""
    with imports.explained(source.label, "when it was called"), sources.beside(source):
        try:
            return function(*arguments, **named)
        except ConfigError:
            raise
        except ValueError as error:  # a check, whose message is a sentence
            raise ConfigError(f"{source.label}: {error}") from error


def _a(value: Any) -> str:
    """What something is, in words."""
    return "None (is there a return?)" if value is None else kind_of(value)


def _unwrapped(text: str) -> tuple[list[str], str]:
    """The wrappers at the beginning, and what is behind their '+', which may hold one itself."""
    wrappers = []
    while True:
        first, plus, rest = text.partition("+")
        if not plus or first not in WRAPPERS:
            return wrappers, text
        wrappers.append(first)
        text = rest


def _check_plus(text: str, base: str, folder: Path | None = None) -> None:
    """Raises a `ConfigError` for a '+' after a name that is not a wrapper, unless in a path."""
    first, plus, rest = base.partition("+")
    if "+" in text and not (base and ((first and rest) or not plus)):
        raise ConfigError(
            f"A name is missing beside '+' in {text!r}. Write, for example, 'elastic+fedavg'."
        )
    place = base.rpartition(":")[0]
    if not plus or not (first.isidentifier() or ":" in first) or (
        place and (folder is None or (folder / place).exists())
    ):
        return
    if first.isidentifier() and first not in ALGORITHMS:
        raise ConfigError(unknown("algorithm", first, [*ALGORITHMS, *WRAPPERS]))
    *others, last = WRAPPERS
    names = text.split("+")
    meant = "+".join([*(name for name in names if name != first), first])
    hint = f" Did you mean {meant}?" if {*names} <= {first, *WRAPPERS} else ""
    raise ConfigError(
        f"{first} in {text!r} is not a wrapper. Only {', '.join(others)} and {last} can be written "
        f"before '+'.{hint}"
    )
