"""The process that reads an HDF5 file; a program of its own, which needs h5py and NumPy only.

The HDF5 library crashes or never ends on some damaged files, so it does not run in the process
that wants their clients. What it reads goes to the standard output: lines of JSON, each followed by
the bytes of the arrays that it describes.

    python hdf5_process.py PATH START PART_BYTES MOST_BYTES MOST_MEMORY
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

_GROUP = "examples"
# Deflate makes 1,032 bytes of one at most; what was never written makes any number of none.
_MOST_TIMES = 1100


class MalformedError(Exception):
    """The file is not as published; the message continues after its name."""


def send(head: Mapping[str, Any], *contents: bytes) -> None:
    """Writes a line and what it describes."""
    out = sys.stdout.buffer
    out.write(json.dumps(head).encode() + b"\n")
    for content in contents:
        out.write(content)
    out.flush()


def read(path: str, start: int, part_bytes: int, most_bytes: int) -> None:
    """Sends the clients, without the first `start`."""
    unpacked = 0
    with h5py.File(path, "r") as file:
        clients = group(file, _GROUP)
        names = sorted(clients)
        if not names:
            raise MalformedError(f" has no clients: its group {_GROUP!r} is empty")
        send({"num_clients": len(names)})
        for name in names[start:]:
            fields = group(clients, name)
            found = {field: data(fields, field, name) for field in sorted(fields)}
            lengths = {field: values.shape[0] for field, values in found.items()}
            if len(set(lengths.values())) != 1:
                raise MalformedError(
                    f": client {name!r} needs fields of one length, but has {lengths or 'none'}"
                )
            (length,) = set(lengths.values())
            row_bytes = sum(
                int(np.prod(values.shape[1:], dtype=object)) * values.dtype.itemsize
                for values in found.values()
            )
            unpacked += length * row_bytes
            if unpacked > most_bytes:
                send({"unpacks": unpacked})
                return
            step = max(1, part_bytes // max(1, row_bytes))
            for row in range(0, max(1, length), step):  # a client without examples is told too
                send_rows(name, {
                    field: values[row : row + step] for field, values in found.items()
                })
        send({"done": True})


def send_rows(name: str, columns: Mapping[str, np.ndarray]) -> None:
    """A part of a client: arrays as they are, text as lengths and letters."""
    said, contents = {}, []
    for field, values in columns.items():
        if values.dtype.kind in "SO":
            texts = [
                value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)
                for value in values.ravel().tolist()
            ]
            said[field] = {"lengths": [len(text) for text in texts]}
            contents.append(b"".join(texts))
        else:
            said[field] = {"dtype": values.dtype.str, "shape": values.shape}
            contents.append(values.tobytes())
    send({"client": name, "columns": said}, *contents)


def group(parent: Any, name: str) -> Any:
    """A group in another one; what a link leads to is not followed."""
    if name not in parent:
        raise MalformedError(f" has no group {name!r}, which should contain the clients")
    found = own(parent, name)
    if not isinstance(found, h5py.Group):
        raise MalformedError(f": {found.name!r} should be a group, but is a data set")
    return found


def own(parent: Any, name: str) -> Any:
    """A member of a group, not followed through links."""
    if not isinstance(parent.get(name, getlink=True), h5py.HardLink):
        raise MalformedError(
            f": {parent.name}/{name} is a link to another file, which fedax does not follow"
        )
    return parent[name]


def data(fields: Any, field: str, client: str) -> Any:
    """A field's data set, if its numbers are in this file and as many as it says."""
    found = own(fields, field)
    what = f": field {field!r} of client {client!r}"
    if not isinstance(found, h5py.Dataset) or not found.shape:
        raise MalformedError(f"{what} should be an array whose first axis counts the examples")
    if found.is_virtual or found.external:
        raise MalformedError(
            f"{what} stores its numbers in another file, which fedax does not read"
        )
    if found.dtype.kind not in "biufSO" or (
        found.dtype.kind == "O" and h5py.check_string_dtype(found.dtype) is None
    ):
        raise MalformedError(f"{what} is {found.dtype}, but must be numbers or text")
    if found.dtype.kind in "SO" and len(found.shape) > 1:
        raise MalformedError(
            f"{what} is text with {len(found.shape)} axes, but text must have one, of the examples"
        )
    size = int(np.prod(found.shape, dtype=object)) * found.dtype.itemsize
    stored = found.id.get_storage_size()
    if size > _MOST_TIMES * stored + 2**16:
        raise MalformedError(
            f"{what} says that it has {size:,} bytes, but the file holds only {stored:,}"
        )
    return found


def limit_memory(beside: int) -> None:
    """Limits the process's memory, where the system can, against damaged sizes.

    Args:
      beside: bytes allowed in addition to the current memory.
    """
    try:
        import resource  # noqa: PLC0415 - not on Windows

        held = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    except (ImportError, OSError, ValueError):
        return
    most = held + beside
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Reads the file that the arguments name; every failure is a line too."""
    start, part_bytes, most_bytes, most_memory = map(int, sys.argv[2:6])
    limit_memory(most_memory)
    try:
        read(sys.argv[1], start, part_bytes, most_bytes)
    except BrokenPipeError:
        return
    except MalformedError as error:
        send({"malformed": str(error)})
    except MemoryError:
        send({"damaged": "it needs more memory than is available"})
    except Exception as error:  # h5py raises whatever suits what the library says
        send({"damaged": (str(error) or type(error).__name__).split("\n")[0][:300]})


if __name__ == "__main__":
    main()
