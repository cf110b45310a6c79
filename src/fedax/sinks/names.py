"""The sinks by name, and what they need."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import Any, NamedTuple

from fedax.outside.text import Told
from fedax.validate import check_choice, quoted


class SinkError(Told, RuntimeError):
    """A sink cannot be used; the message says why."""


class Kind(NamedTuple):
    """A kind of sink.

    Attributes:
      module: of `fedax.sinks`, whose `open_writer` opens it.
      needs: the modules that it is written by.
      extra: what brings them, as in `fedax[EXTRA]`; None: they are there.
    """

    module: str
    needs: tuple[str, ...] = ()
    extra: str | None = None


SINKS = {
    "tensorboard": Kind("to_tensorboard", ("tensorboardX",), "tensorboard"),
    "mlflow": Kind("to_mlflow", ("mlflow", "sqlalchemy", "alembic"), "mlflow"),
    "wandb": Kind("to_wandb", ("wandb",), "wandb"),
    "csv": Kind("to_csv"),
    "parquet": Kind("to_parquet", ("pyarrow",), "parquet"),
}


def sink_names(given: Any) -> tuple[str, ...]:
    """The names of sinks, each once, in order; text has commas between them.

    Raises:
      ValueError: if a name is unknown; the message lists the sinks.

    Example:
      >>> sink_names("csv"), sink_names(["csv", "parquet", "csv"])
      (('csv',), ('csv', 'parquet'))
    """
    names = [name.strip() for name in given.split(",")] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"log must be names such as ('csv', 'tensorboard'), but is {quoted(given)}."
        )
    for name in names:
        check_choice("sink", name, SINKS)
    return tuple(dict.fromkeys(names))


def require_libraries(names: Iterable[str]) -> None:
    """Raises an error if the library of a sink is not installed.

    Raises:
      SinkError: if it is not installed; the message says how to install it.
    """
    for name in names:
        kind = SINKS[name]
        missing = [module for module in kind.needs if importlib.util.find_spec(module) is None]
        if missing:
            raise SinkError(
                f"Logging to {name} needs {missing[0]}: pip install 'fedax[{kind.extra}]'."
            )
