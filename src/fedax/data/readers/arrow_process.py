"""The process that reads Parquet and Arrow files; a program of its own, which needs pyarrow only.

Arrow's library crashes on some damaged files and decodes a dictionary of a few bytes to gigabytes,
so it does not run in the process that wants the rows. Requests are lines of JSON on the standard
input; the answers, on the standard output, are lines of JSON, of which a batch is followed by its
bytes as Arrow's stream.

    python arrow_process.py MOST_MEMORY
    {"paths": [...], "kind": "parquet"}   ->  {"names": [...], "num_rows": n, "num_bytes": n}
    {"columns": [...], "rows": n, "part_bytes": n}
                                          ->  {"batch": n, "bytes": n}..., {"done": true}

Before each of the files it says at which it is: {"file": i}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as arrow
from pyarrow import parquet

_MOST_THRIFT = 2**26
_MOST_THREADS = 4
# Kinds of lists and of views, and what they are without views.
_LISTS = (
    (arrow.types.is_list, arrow.list_), (arrow.types.is_large_list, arrow.large_list),
    (arrow.types.is_list_view, arrow.list_),
    (arrow.types.is_large_list_view, arrow.large_list),
)
_VIEWS = (
    (arrow.types.is_string_view, arrow.large_string()),
    (arrow.types.is_binary_view, arrow.large_binary()),
)
# A row of encoded images becomes so many times as large.
_IMAGE_TIMES = 16


class MalformedError(Exception):
    """The file is not as it should be; the message continues after its name."""


def send(head: Mapping[str, Any], content: Any = b"") -> None:
    """Writes a line and what it describes."""
    out = sys.stdout.buffer
    out.write(json.dumps(head).encode() + b"\n")
    out.write(content)
    out.flush()


def opened_parquet(path: str) -> Any:
    """A Parquet file, of whose metadata only so much is read."""
    return parquet.ParquetFile(
        path, thrift_string_size_limit=_MOST_THRIFT, thrift_container_size_limit=_MOST_THRIFT,
    )


def described(paths: list[str], kind: str) -> dict[str, Any]:
    """Names of columns, which all files share, and how many rows and bytes they have."""
    num_rows = num_bytes = 0
    names: list[str] | None = None
    for place, path in enumerate(paths):
        send({"file": place})
        if kind == "parquet":
            with opened_parquet(path) as file:
                own, found = list(file.schema_arrow.names), file.metadata
                num_rows += found.num_rows
                num_bytes += sum(
                    found.row_group(i).total_byte_size for i in range(found.num_row_groups)
                )
        else:
            with arrow.memory_map(path) as content, arrow.ipc.open_stream(content) as stream:
                own = list(stream.schema.names)
                num_rows += sum(batch.num_rows for batch in stream)
            num_bytes += Path(path).stat().st_size
        if names is not None and names != own:
            raise MalformedError(f" has different columns from {paths[0]}")
        names = own
    return {"names": names, "num_rows": num_rows, "num_bytes": num_bytes}


def batches(path: str, kind: str, columns: list[str], rows: int) -> Iterator[Any]:
    """The rows of a file, whose offsets and lengths are what they say."""
    if kind == "parquet":
        with opened_parquet(path) as file:
            for batch in file.iter_batches(rows, columns=columns):
                batch.validate()
                yield batch
        return
    with arrow.memory_map(path) as content, arrow.ipc.open_stream(content) as stream:
        for batch in stream:
            own = batch.select(columns)
            own.validate(full=True)
            yield own


def plain(kind: Any) -> Any:
    """The type in which every value is there once for each row: no dictionaries, views or runs.

    Raises:
      MalformedError: if rows of the type take no bytes, or the type cannot become an array.
    """
    types = arrow.types
    while True:
        if isinstance(kind, arrow.BaseExtensionType):
            kind = kind.storage_type
        elif types.is_dictionary(kind) or types.is_run_end_encoded(kind):
            kind = kind.value_type
        else:
            break
    if types.is_map(kind) or types.is_union(kind):  # no arrays can be made of them
        raise MalformedError(
            f" has a column of the type {str(kind)[:100]}, which fedax does not read"
        )
    if types.is_struct(kind):
        kind = arrow.struct([(field.name, plain(field.type)) for field in kind])
    elif types.is_fixed_size_list(kind):
        inner = plain(kind.value_type)
        if types.is_null(inner) or (types.is_struct(inner) and not inner.num_fields):
            raise MalformedError(" has a column of lists without a value type")
        kind = kind if inner == kind.value_type else arrow.list_(inner, kind.list_size)
    for is_kind, make in _LISTS:
        if is_kind(kind):
            kind = make(plain(kind.value_type))
    for is_kind, own in _VIEWS:
        kind = own if is_kind(kind) else kind
    return kind


def has_images(kind: Any) -> bool:
    """Whether a column holds encoded images, or lists of them."""
    if arrow.types.is_struct(kind):
        return "bytes" in {field.name for field in kind}
    return hasattr(kind, "value_type") and has_images(kind.value_type)


def send_rows(batch: Any, part_bytes: int) -> None:
    """A batch in parts of about `part_bytes` bytes."""
    kinds = [plain(field.type) for field in batch.schema]
    schema = arrow.schema(list(zip(batch.schema.names, kinds, strict=True)))
    if any(map(has_images, kinds)):
        part_bytes //= _IMAGE_TIMES
    if kinds != [field.type for field in batch.schema]:
        batch = batch.cast(schema)
    count = max(1, -(-batch.nbytes // part_bytes))
    step = max(1, -(-batch.num_rows // count))
    for row in range(0, batch.num_rows, step):
        part = batch.slice(row, step)
        sink = arrow.BufferOutputStream()
        with arrow.ipc.new_stream(sink, schema) as stream:
            stream.write_batch(part.replace_schema_metadata())
        content = sink.getvalue()
        send({"batch": content.size, "bytes": part.nbytes}, content)


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


def serve() -> None:
    """Answers one request after the other."""
    told = json.loads(sys.stdin.readline())
    paths, kind = told["paths"], told["kind"]
    send(described(paths, kind))
    for line in sys.stdin:
        request = json.loads(line)
        for place, path in enumerate(paths):
            send({"file": place})
            for batch in batches(path, kind, request["columns"], request["rows"]):
                send_rows(batch, request["part_bytes"])
        send({"done": True})


def main() -> None:
    """Serves until nobody asks; every failure is a line too."""
    arrow.set_cpu_count(min(arrow.cpu_count(), _MOST_THREADS))
    limit_memory(int(sys.argv[1]))
    try:
        serve()
    except BrokenPipeError:
        return
    except MalformedError as error:
        send({"malformed": str(error)})
    except MemoryError:
        send({"damaged": "it needs more memory than is available"})
    except Exception as error:  # pyarrow raises whatever suits what the library says
        send({"damaged": (str(error) or type(error).__name__).strip().split("\n")[0][:300]})


if __name__ == "__main__":
    main()
