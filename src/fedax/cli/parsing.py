"""From the words of a command line to a command; nobody's options are explained but its own."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any, get_args

import tyro
from tyro.conf import AvoidSubcommands, DisallowNone, FlagCreatePairsOff, OmitArgPrefixes

import fedax
from fedax.cli import mistyped
from fedax.cli.commands import Command
from fedax.cli.data_commands import Data, DataCommand
from fedax.devices import terminal
from fedax.experiment.errors import ConfigError
from fedax.outside.paths import expanded
from fedax.validate import unknown


def _by_name(union: Any) -> dict[str, Any]:
    """The commands of a union by their names."""
    found = {}
    for annotated in get_args(union):
        kind, named = get_args(annotated)
        found[named.name] = kind
    return found


COMMANDS = _by_name(Command)
DATA_COMMANDS = _by_name(DataCommand)


def parsed(arguments: list[str]) -> Command:
    """Parses the words of a command line.

    Raises:
      ConfigError: if the words are not a command; the message says what was probably meant.
      SystemExit: after showing help, or what is wrong with a value.
    """
    if arguments == ["--version"]:
        print(f"fedax {fedax.__version__}")
        raise SystemExit(0)
    first, *rest = arguments
    if first in ("--help", "-h"):
        return _parse(Command, "fedax", arguments, "Federated optimization. fedax COMMAND --help "
                      "describes a command; fedax --version prints the version.")[0]
    _require_command(first, "", COMMANDS, rest)
    if first == "data" and rest and rest[0] not in ("--help", "-h"):
        _require_command(rest[0], "data ", DATA_COMMANDS, rest[1:])
        name, kind, words = f"fedax data {rest[0]}", DATA_COMMANDS[rest[0]], rest[1:]
    else:
        name, words = f"fedax {first}", rest
        kind = DataCommand if first == "data" else COMMANDS[first]
    about = COMMANDS[first] if kind is DataCommand else kind
    command, others = _parse(kind, name, words, inspect.getdoc(about))
    if others:
        raise ConfigError(mistyped.explain(name, command, words, others))
    command = _expanded(command)
    mistyped.require_order(name, command)
    return Data(command) if first == "data" else command


def _require_command(word: str, of: str, commands: dict[str, Any], rest: list[str]) -> None:
    if word in commands:
        return
    if meant := mistyped.command_for(word, rest) if not of else None:
        raise ConfigError(f"Unknown command {word!r}. Did you mean: fedax {meant}?")
    if word.startswith("-"):
        raise ConfigError(f"Write the command before its options: fedax {of}COMMAND {word}. "
                          f"Commands: {', '.join(commands)}.")
    raise ConfigError(unknown(f"command{of and f' of fedax {of}'.rstrip()}", word, commands))


def _parse(kind: Any, name: str, words: list[str], about: str | None) -> tuple[Any, list[str]]:
    """The command, and the words that are none of its own."""
    # The parser colours what it writes itself, and quotes what was typed.
    colours = "\x1b" not in "".join(words) and not terminal.without_colours()
    with terminal.escaping(colours=colours):
        return tyro.cli(
            kind, args=words, prog=name, description=about, return_unknown_args=True,
            config=(OmitArgPrefixes, AvoidSubcommands, FlagCreatePairsOff, DisallowNone),
        )


def _expanded(command: Any) -> Any:
    """The command with the home folder in paths that begin with `~`, as in --out=~/runs."""
    if isinstance(command, Path):
        return _home(command)
    if isinstance(command, tuple):
        return tuple(_expanded(value) for value in command)
    if not dataclasses.is_dataclass(command) or isinstance(command, type):
        return command
    values = {field.name: getattr(command, field.name) for field in dataclasses.fields(command)}
    return dataclasses.replace(command, **{name: _expanded(v) for name, v in values.items()})


def _home(path: Path) -> Path:
    try:
        return expanded(path)
    except ValueError as error:  # there is no home folder
        raise ConfigError(str(error)) from None
