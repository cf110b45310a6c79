"""What was probably meant by words of a command line that are no command and no option of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from fedax.algorithms.registry import ALGORITHMS, WRAPPERS
from fedax.cli.commands import Run, Sweep
from fedax.experiment.build import algorithm_settings, task_settings
from fedax.experiment.config import run_settings
from fedax.experiment.errors import ConfigError
from fedax.experiment.presets import default_algorithm
from fedax.outside import guesses
from fedax.outside.guesses import FIELD, Word, compact
from fedax.tasks.registry import TASKS
from fedax.validate import quoted

# What other tools call a command.
SYNONYMS = {
    "train": "run", "fit": "run", "start": "run", "simulate": "run", "resume": "run --resume",
    "tune": "sweep", "search": "sweep", "grid": "sweep", "optimize": "sweep", "hpo": "sweep",
    "compare": "report", "results": "table", "ls": "list", "show": "list", "tasks": "list tasks",
    "algorithms": "list algorithms", "methods": "list algorithms", "datasets": "list datasets",
    "download": "data get", "get": "data get", "partition": "data partition",
    "describe": "data describe", "check": "data check", "draw": "plot", "figure": "plot",
    "help": "--help", "version": "--version", "-v": "--version", "-V": "--version",
}
# The options that are called otherwise than the setting that they give.
OPTIONS = {"num_rounds": "rounds"}
# So many options are explained.
_MOST = 3


def command_for(word: str, rest: Sequence[str]) -> str | None:
    """The words after `fedax` that were probably meant, for a word that is no command."""
    if word in TASKS or is_algorithm(word):
        return shlex.join(["run", word, *rest])
    return shlex.join([*SYNONYMS[word].split(), *rest]) if word in SYNONYMS else None


def is_algorithm(word: str | None) -> bool:
    """Whether it is a method's name, or several with commas, with or without wrappers."""
    names = [part for name in (word or "").split(",") for part in name.split("+")]
    return all(name in ALGORITHMS or name in WRAPPERS for name in names)


def require_order(name: str, command: Any) -> None:
    """Checks that the task comes before the method, and that a run has one method.

    Raises:
      ConfigError: if not.
    """
    if not isinstance(command, Run | Sweep):
        return
    methods = command.algorithm if isinstance(command, Run) else command.algorithms
    if is_algorithm(command.task) and command.task not in TASKS:
        task = methods if methods is not None and not is_algorithm(methods) else "TASK"
        raise ConfigError(f"{command.task} is a method; write the task before it: {name} "
                          f"{task} {command.task}.")
    if isinstance(command, Run) and is_algorithm(methods) and "," in (methods or ""):
        raise ConfigError(_several(command.task or "TASK", (methods or "").split(",")))


def explain(name: str, command: Any, words: Sequence[str], others: Sequence[str]) -> str:
    """The sentence for words that a command does not have.

    Args:
      name: of the command, such as "fedax run".
      command: what was parsed of the other words.
      words: all of them.
      others: those that are not the command's.
    """
    options = [word for word in others if re.match(r"--?[A-Za-z]", word)]
    if options:
        found = [_explain_option(name, command, words, option) for option in options[:_MOST]]
        return " ".join(found)
    if isinstance(command, Run | Sweep):
        settings = [word for word in others if "=" in word]
        if settings:
            return f"Write --set before the setting {quoted(settings[0])}: {name} ... --set " + \
                shlex.join(settings) + "."
        methods = command.algorithm if isinstance(command, Run) else command.algorithms
        if methods and all(is_algorithm(word) for word in others):
            if isinstance(command, Run):
                return _several(command.task or "TASK", [methods, *others])
            both = ",".join([methods, *others])
            return f"Separate methods by commas: {name} {command.task} {both}."
        return (f"{name} takes a task and a method, but also got {quoted(others[0])}. "
                f"See {name} --help.")
    return f"{name} got an unexpected {quoted(others[0])}. See {name} --help."


def _several(task: str, methods: Sequence[str]) -> str:
    return (
        f"fedax run trains one method. To compare {' and '.join(methods)}, use fedax sweep {task} "
        f"{','.join(methods)} --seeds 3, or run each one and then fedax report DIR DIR."
    )


def _explain_option(name: str, command: Any, words: Sequence[str], option: str) -> str:
    """The sentence for one option."""
    typed, _, value = option.partition("=")
    if not value:
        after = words[words.index(option) + 1 :][:1]
        value = after[0] if after and not re.match(r"--?[A-Za-z]", after[0]) else ""
    own = options_of(type(command))
    settings = _settings(command)
    word = typed.lstrip("-").replace("-", "_")
    found = guesses.meant(word, [*own, *settings])
    begin = f"{name} has no option {typed}."
    if found is None:
        about = guesses.hint(word, []) if settings else ""
        return f"{begin} {about or f'See {name} --help.'}"
    meaning = FIELD.get(compact(word), Word())
    shown = shlex.quote(value) if value and not meaning.converted else "VALUE"
    note = f" {meaning.note}" if meaning.note and found in meaning.names else ""
    as_option = OPTIONS.get(found, found)
    if as_option in own:
        flag = own[as_option]
        instead = f"--{as_option.replace('_', '-')}" + (f" {shown}" if not flag else "")
    else:
        way = "--grid" if isinstance(command, Sweep) and "," in value else "--set"
        instead = f"{way} {found}={shown}"
    return f"{begin} Did you mean {instead}?{note}"


def options_of(kind: type) -> dict[str, bool]:
    """The options of a command by name, and whether they take no value."""
    found = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        parts = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if "Positional" in str(parts):
            continue
        called = next((part.name for part in parts[1:] if getattr(part, "name", None)), name)
        found[called] = parts[0] is bool
    return found


def _settings(command: Any) -> list[str]:
    """What --set takes with a command: of its built-in task and method, and of every run."""
    if not isinstance(command, Run | Sweep):
        return []
    methods = command.algorithm if isinstance(command, Run) else command.algorithms
    task = command.task if command.task in TASKS else "digits"
    names = methods if methods is not None and is_algorithm(methods) else (
        default_algorithm(task, None)
    )
    found = [*run_settings()]
    for name in names.split(","):
        found += algorithm_settings(name)
    return [*found, *task_settings(task)]
