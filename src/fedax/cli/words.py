"""How words of the command line become values of options, and what is said where they cannot."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from tyro.conf import arg
from tyro.constructors import PrimitiveConstructorSpec

from fedax.experiment.errors import ConfigError

# A longer word is quoted up to this length.
_MOST_LETTERS = 60


def option(metavar: str) -> Any:
    """An option without the parser's own hint; its help says what None means."""
    return arg(metavar=metavar or None, help_behavior_hint="")


def summary(command: type) -> str:
    """The first line of a command's help, for the overview of all commands."""
    return (inspect.getdoc(command) or "").partition("\n")[0]


def read_by(
    convert: Callable[[str], Any], wanted: str, nargs: int | Literal["*"] | None = None
) -> Any:
    """How words become the value of an option, and what is said where they cannot.

    Args:
      convert: of one word.
      wanted: the sentence's end, as in "--rounds: must be a whole number, but is 'ten'."
      nargs: how many words make a tuple; None: one word is the value.
    """
    def read(words: list[str]) -> Any:
        values = []
        for word in words:
            try:
                values.append(convert(word))
            except (ValueError, KeyError):
                shown = word if len(word) <= _MOST_LETTERS else word[:_MOST_LETTERS] + "..."
                raise ValueError(f"must be {wanted}, but is {shown!r}.") from None
        return values[0] if nargs is None else tuple(values)

    return PrimitiveConstructorSpec(
        nargs=1 if nargs is None else nargs, metavar="", instance_from_str=read,
        is_instance=lambda value: True,  # noqa: ARG005 - only defaults are asked about
        str_from_instance=lambda value: [str(value)],
    )


def gives(key: str, words: Iterable[str]) -> bool:
    """Whether one of these KEY or KEY=VALUE words is of this key, of one method or of all.

    Example:
      >>> gives("cohort_size", ["run.cohort_size=5"]), gives("cohort_size", ["seed=5"])
      (True, False)
    """
    return any(word.partition("=")[0].strip().rpartition(".")[2] == key for word in words)


def require_out(out: Path | None, *, overwrite: bool) -> None:
    """Raises a `ConfigError` if --overwrite is given without --out."""
    if overwrite and out is None:
        raise ConfigError("--overwrite needs --out, the folder whose run it deletes.")


def one_of(choices: tuple[str, ...]) -> Any:
    """A word that is one of these."""
    return read_by({name: name for name in choices}.__getitem__, f"one of {', '.join(choices)}")


WHOLE = read_by(int, "a whole number")
NUMBER = read_by(float, "a number")
NUMBERS = read_by(float, "numbers", "*")
