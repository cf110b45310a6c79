"""The settings of a factory: its keyword arguments, and what its docstring says of them."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import math
import pkgutil
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from fedax.experiment.values import describe, kinds_of
from fedax.factories import UNREADABLE
from fedax.signatures import DEFAULTS

# The defaults of a setting that must be given, and of one that the factory fills in by itself.
NEEDED, OWN = inspect.Parameter.empty, ...


class Setting(NamedTuple):
    """A keyword argument of a factory.

    Attributes:
      name: as in KEY=VALUE.
      hint: its annotation, evaluated if that is possible; of one without, its default's type.
      default: or `NEEDED`, or `OWN`.
      meaning: from the docstring; may be empty.
      checked: whether the factory checks its value with sentences.
      behind: whether it is behind `**options`, so that the function may have another default.
    """

    name: str
    hint: Any
    default: Any
    meaning: str
    checked: bool = True
    behind: bool = False

    @property
    def recorded(self) -> Any:
        """The default as a configuration writes it down: a plain value, or text that Python reads.

        It is `OWN` if the default has no such form, or the setting has no default.
        """
        value = self.default.item() if isinstance(self.default, np.generic) else self.default
        if type(value) is float and not math.isfinite(value):  # JSON has no word for it
            return repr(value)
        if value is None or type(value) in (bool, int, float):
            return value
        if type(value) is str:  # "none" in a file is None
            return OWN if value == "none" and "'none'" not in kinds_of(self.hint) else value
        if type(value) in (tuple, list, dict, set):
            with contextlib.suppress(*UNREADABLE):
                return repr(value) if _alike(ast.literal_eval(repr(value)), value) else OWN
        return OWN

    def is_default(self, value: Any) -> bool:
        """Whether a configuration has the default, as `recorded` writes it."""
        recorded = self.recorded
        return recorded is not OWN and type(value) is type(recorded) and value == recorded

    def row(self) -> dict[str, Any]:
        """The setting as a list shows it; without "default" if that is not known."""
        row: dict[str, Any] = {"name": self.name, "type": describe(self.hint)}
        if self.default is not NEEDED and self.default is not OWN:
            plain = isinstance(self.default, bool | int | float | str | None)
            row["default"] = self.default if plain else (
                getattr(self.default, "__name__", str(self.default))
            )
        return row | {"needed": self.default is NEEDED, "meaning": self.meaning}


def settings_of(
    function: Callable[..., Any], skip: Iterable[str] = (), *, options: type | None = None
) -> dict[str, Setting]:
    """The settings of a factory by name, in the order of its arguments.

    Args:
      function: anything that can be called: also a partial, or an instance with `__call__`.
      skip: arguments that are no settings.
      options: the TypedDict that `**options` stand for if their annotation names none; None: they
        are not known.

    Raises:
      ValueError, TypeError: if its signature cannot be read.
    """
    plain = _plain(function)
    try:
        hints = typing.get_type_hints(plain, include_extras=True)
    except Exception:  # names that only a type checker sees, say
        hints = {}
    meant = meanings(function)
    parameters = signature_of(function).parameters
    behind: dict[str, Setting] = {}
    for name, parameter in signature_of(plain).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            behind = _options_of(hints.get(name), options, meant.get(f"**{name}", ""))
    found: dict[str, Setting] = {}
    for name, parameter in parameters.items():
        if name in skip or parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            continue
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            found = behind | found
        elif name in behind and name not in hints:  # `fedax.factory` shows what is behind them
            found[name] = behind[name]._replace(default=parameter.default)
        else:
            hint = hints.get(name, parameter.annotation)
            hint = _likely(parameter.default) if hint is NEEDED else hint
            meaning = meant.get(name) or (behind[name].meaning if name in behind else "")
            found[name] = Setting(name, hint, parameter.default, meaning)
    order = [*(name for name in parameters if name in found), *behind]
    return {name: found[name] for name in order if name in found}


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The signature; the names in its annotations need not exist."""
    if sys.version_info >= (3, 14):
        import annotationlib  # noqa: PLC0415 - not there before

        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)


def meanings(function: Callable[..., Any]) -> dict[str, str]:
    """What the section `Args:` of the docstring says of each argument.

    Where it says "as for `other`", it is what the docstring of `other` says.

    Example:
      >>> from fedax import fedavgm
      >>> meanings(fedavgm)["momentum"]
      'beta in [0, 1).'
    """
    plain = _plain(function)
    text = inspect.getdoc(plain) or ""
    if not inspect.isroutine(function) and not isinstance(function, functools.partial):
        text += "\n" + (inspect.getdoc(function) or "")
    found = entries(section("Args", text))
    for name, meaning in found.items():
        found[name] = _elsewhere(meaning, plain).get(name, meaning)
    return _elsewhere(text, plain, r"[Aa]rguments[^.]*") | found


def section(title: str, documented: Any) -> str:
    """The lines of a docstring's section, or of all sections of that title in a text."""
    text = documented if isinstance(documented, str) else inspect.getdoc(documented) or ""
    pattern = rf"^{title}:\n((?:[ \t]+\S.*\n|[ \t]*\n)*)"
    return "\n".join(map(textwrap.dedent, re.findall(pattern, text + "\n", re.MULTILINE)))


def entries(text: str) -> dict[str, str]:
    r"""Name -> meaning of lines such as "name, other: meaning", which deeper lines continue.

    Example:
      >>> entries("Title.\n\nrate: how far\n  to go.\nsteps, epochs: how often.")
      {'rate': 'how far to go.', 'steps': 'how often.', 'epochs': 'how often.'}
    """
    found: dict[str, str] = {}
    names: list[str] = []
    for line in text.splitlines():
        entry = re.match(r"([*\w]+(?:, [*\w]+)*)(?: \([^)]*\))?:\s*(.*)", line)
        if entry:
            names = entry[1].split(", ")
            found |= dict.fromkeys(names, entry[2])
        elif line.startswith((" ", "\t")):
            found |= {name: f"{found[name]} {line.strip()}".strip() for name in names}
        else:
            names = []
    return found


def _options_of(hint: Any, options: type | None, remark: str) -> dict[str, Setting]:
    """The settings behind `**options`, of which a docstring may have something to remark."""
    if typing.get_origin(hint) is typing.Unpack:
        options = typing.get_args(hint)[0]
    if options is None:
        return {}
    defaults = getattr(options, DEFAULTS, {})
    needed: frozenset[str] = getattr(options, "__required_keys__", frozenset())
    meant = entries(inspect.getdoc(options) or "")
    for name in meant:
        if re.search(rf"\b{name}\b", remark):
            meant[name] += " Here: " + re.sub(r"^see `\w+`[;.,] *", "", remark)
    return {
        name: Setting(
            name, hint, NEEDED if name in needed else defaults.get(name, OWN),
            meant.get(name, ""), behind=True,
        )
        for name, hint in typing.get_type_hints(options).items()
    }


def _alike(read: Any, value: Any) -> bool:
    """Whether what was read is the value, with whole numbers where it has whole numbers."""
    return type(read) is type(value) and read == value and repr(read) == repr(value)


def _likely(default: Any) -> Any:
    """The annotation that an argument without one probably would have."""
    if default is None or default is NEEDED:
        return Any
    return float if type(default) is int else type(default)


def _plain(function: Any) -> Any:
    """The function with annotations and a docstring that is behind what is called."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and not inspect.isclass(function):
        function = type(function).__call__
    return inspect.unwrap(function)


def _elsewhere(meaning: str, function: Any, before: str = "") -> dict[str, str]:
    """The meanings in the docstring to which a meaning refers."""
    other = re.search(rf"{before}\bas\s+for\s+`([\w.]+)`", meaning)
    if not other:
        return {}
    try:
        found = getattr(function, "__globals__", {}).get(other[1])
        return meanings(found or pkgutil.resolve_name(other[1]))
    except (AttributeError, ImportError, ValueError):
        return {}
