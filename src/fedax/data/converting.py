"""Selects and transforms a reader's clients for writing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, TypeAlias

from fedax.data.errors import DataError
from fedax.data.readers.clients import Clients
from fedax.mistakes.errors import checked_call, kind_of
from fedax.validate import quoted

Columns: TypeAlias = Mapping[str, Any]
Transform: TypeAlias = Callable[[Columns], Columns | None]


def clients_behind(
    clients: Iterable[tuple[str | int, Columns]], done: int
) -> Iterator[tuple[str | int, Columns]]:
    """The clients from index `start` on."""
    if isinstance(clients, Clients):
        yield from clients.after(done)
        return
    number, last = 0, object()
    for name, columns in clients:
        number, last = number + (name != last), name
        if number > done:
            yield name, columns


def arrays_of_client(
    name: str | int, columns: Columns, transform: Transform | None, *, skip_empty: bool
) -> Columns | None:
    """What to write of a client, or of a part of it; None to leave it out."""
    if all(isinstance(values, Sized) and not len(values) for values in columns.values()):
        if skip_empty:
            return None
        if transform is None or not columns:
            raise DataError(
                f"Client {quoted(name)} has no examples. To leave out such clients, set "
                "skip_empty=True."
            )
    return columns if transform is None else _transformed(transform, name, columns)


def _transformed(transform: Transform, name: str | int, columns: Columns) -> Columns | None:
    """Applies a transform to a client; its exceptions become clear errors."""
    arrays = checked_call(
        DataError, f"The transform of client {quoted(name)}", "transform(columns)", transform,
        (columns,), {},
    )
    if arrays is not None and not isinstance(arrays, Mapping):
        raise DataError(
            "The transform must return a dictionary of arrays, or None to leave out a client, "
            f"but returned {kind_of(arrays)} for client {quoted(name)}."
        )
    return arrays
