"""What is written of a reader's clients: which of them, and what a transform makes of each."""

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
    """The clients without the first so many."""
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
                f"Client {quoted(name)} has no examples. Leave such clients out: skip_empty=True."
            )
    return columns if transform is None else _transformed(transform, name, columns)


def _transformed(transform: Transform, name: str | int, columns: Columns) -> Columns | None:
    """What a transform makes of a client; what it raises becomes a sentence."""
    arrays = checked_call(
        DataError, f"The transform of client {quoted(name)}", "transform(columns)", transform,
        (columns,), {},
    )
    if arrays is not None and not isinstance(arrays, Mapping):
        raise DataError(
            f"The transform must give a dictionary of arrays, or None for a client to leave out, "
            f"but gave {kind_of(arrays)} for client {quoted(name)}."
        )
    return arrays
