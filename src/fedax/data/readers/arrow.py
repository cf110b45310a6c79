"""Parquet files and Hugging Face data sets: Arrow tables with a client column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from fedax.data.budget import PART_BYTES, process_memory, require_few_arrays, require_modest
from fedax.data.encoded_images import require_own_images
from fedax.data.errors import DataError
from fedax.data.file_names import is_plain_name
from fedax.data.readers.clients import (
    Client,
    Clients,
    WiderKindError,
    file_of_folder,
    needed,
    reading,
    regular_file,
)
from fedax.data.readers.processes import LibraryProcess
from fedax.data.readers.scattered import Batch, Rows, batch_rows, by_client
from fedax.data.tables import Columns, arrow_column, choose, stacked_columns
from fedax.theory.tables import read_table
from fedax.validate import quoted

# What a row takes besides its columns: its client's number.
ROW_BYTES = 8
_PROGRAM = resources.files("fedax.data.readers") / "arrow_process.py"
_ERRORS = (ValueError, TypeError, KeyError, IndexError, NotImplementedError)


def read_parquet(
    paths: Sequence[Path | str] | Path | str, client_column: str, columns: Columns | None = None,
    *, gaps: bool = False,
) -> Clients:
    """Reads the clients of Parquet files, in the order of their first row.

    Rows may be in any order. The files are read twice by row groups: first the client column,
    then all chosen columns.

    Args:
      paths: one file, or several with the same columns.
      client_column: the column with each row's client, text or whole numbers.
      columns: the columns to read, as for `FederatedDataset.from_frame`. Text becomes a list, for a
          transform.
      gaps: read missing values as NaN, in a text column as None; otherwise they are an error.

    Raises:
      DataError: if a file or column does not exist, or pyarrow is not installed; during reading, if
          a file is malformed.
    """
    needed("pyarrow", "parquet", "Parquet")
    files = [regular_file(p) for p in ([paths] if isinstance(paths, Path | str) else paths)]
    if not files:
        raise DataError("paths must name at least one file, but is empty.")
    return _of_files(files, "parquet", client_column, columns, gaps=gaps)


def read_saved_huggingface(
    folder: Path | str, client_column: str, columns: Columns | None = None, *, gaps: bool = False
) -> Clients:
    """Reads the clients of one split that `datasets` saved to disk, from its Arrow files.

    Args:
      folder: contains `state.json`, which lists the files; they must be in the folder itself.
      client_column, columns, gaps: as for `read_parquet`.

    Raises:
      DataError: as for `read_parquet`, or if `state.json` lists other files.
    """
    needed("pyarrow", "parquet", "data sets of Hugging Face's")
    folder = Path(folder)
    state = folder / "state.json"
    with reading(state, "the table of a saved data set", ValueError):
        table = read_table(file_of_folder(folder, state))
        said = table.get("_data_files") if isinstance(table, dict) else None
        if not isinstance(said, list) or not said:
            raise ValueError("it names no files")
        if table.get("_indices_data_files"):
            raise ValueError(
                "it selects rows in the way of old versions of datasets; save it again"
            )
        files = []
        for own in said:
            name = own.get("filename") if isinstance(own, dict) else own
            if not isinstance(name, str) or not is_plain_name(name):
                raise ValueError(f"it lists {quoted(name)}, which is not a file in its folder")
            files.append(file_of_folder(folder, folder / name))
    return _of_files(files, "stream", client_column, columns, gaps=gaps)


def _of_files(
    files: list[Path], kind: str, client_column: str, columns: Columns | None, *, gaps: bool
) -> Clients:
    """Clients of files that a process of its own reads."""
    source = _Files(files, kind)
    return _clients(
        source.tables, source.names, client_column, columns, source.row_bytes, files, gaps=gaps
    )


class _Files:
    """Files of Arrow's or Parquet, read in a process of their own."""

    def __init__(self, files: list[Path], kind: str) -> None:
        self._files, self._kind = files, kind
        self._what = "a Parquet file" if kind == "parquet" else "a file of Arrow's"
        self._idle: LibraryProcess | None = None
        process, said = self._start()
        self._idle = process
        self.names: list[str] = said["names"]
        self.row_bytes = max(0, said["num_bytes"]) / max(1, said["num_rows"])

    def tables(self, wanted: list[str]) -> Iterator[Any]:
        """The rows of these columns, in parts."""
        arrow = needed("pyarrow", "parquet", "Parquet")
        process, self._idle = self._idle, None
        if process is None:
            process, _ = self._start()
        packed = [path.stat().st_size for path in self._files]
        unpacked, file = [0] * len(packed), 0
        try:
            process.ask({
                "columns": wanted, "rows": batch_rows(self.row_bytes), "part_bytes": PART_BYTES,
            })
            while "done" not in (head := process.hear()):
                file = head.get("file", file)
                if "batch" not in head:
                    continue
                with arrow.ipc.open_stream(process.take(head["batch"])) as stream:
                    table = stream.read_all()
                unpacked[file] += head["bytes"] + ROW_BYTES * len(table)
                require_modest(self._files[file], packed[file], unpacked[file])
                yield table
        except BaseException:
            process.end()
            raise
        self._idle = process

    def _start(self) -> tuple[LibraryProcess, dict[str, Any]]:
        """A process that has opened the files, and what it says of them."""
        memory = process_memory(sum(path.stat().st_size for path in self._files))
        process = LibraryProcess(
            _PROGRAM, [str(memory)], self._files, "the Arrow library", self._what
        )
        process.ask({"paths": [str(path.absolute()) for path in self._files], "kind": self._kind})
        while "names" not in (said := process.hear()):
            continue
        return process, said


def read_huggingface(
    dataset: Any, client_column: str, columns: Columns | None = None
) -> Clients:
    """Reads the clients of a `datasets.Dataset`, streamed or not, in the order of their first row.

    Args:
      dataset: one split, one row per example; it is read twice.
      client_column, columns: as for `read_parquet`.

    Raises:
      DataError: if a column does not exist, or the rows are malformed.
    """
    names = getattr(dataset, "column_names", None)
    if isinstance(names, Mapping) or not hasattr(dataset, "with_format") or not names:
        raise DataError(
            "Give one split of a Hugging Face data set with known columns, such as "
            "datasets.load_dataset(..., split='train') returns, not "
            f"{type(dataset).__name__}."
        )

    def tables(wanted: list[str]) -> Iterator[Any]:
        with reading("The data set", "one of Hugging Face's", ValueError, TypeError):
            yield from dataset.select_columns(wanted).with_format("arrow").iter(2**12)

    size = getattr(dataset, "dataset_size", None) or getattr(dataset, "size_in_bytes", None)
    length = len(dataset) if hasattr(dataset, "__len__") else None
    row_bytes = size / length if size and length else 1000.0
    return _clients(tables, list(names), client_column, columns, row_bytes, [])


def _clients(
    tables: Callable[[list[str]], Iterator[Any]], names: list[str], client_column: str,
    columns: Columns | None, row_bytes: float, paths: Sequence[Path], *, gaps: bool = False,
) -> Clients:
    where = str(paths[0]) if paths else "The data set"
    try:
        chosen = choose(names, client_column, columns)
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None
    require_few_arrays(where, len(chosen))
    taken = {name for group in chosen.values()
             for name in ([group] if isinstance(group, str) else group)}
    packed = sum(path.stat().st_size for path in paths)
    with_gaps: set[str] = set()  # arrays of whole numbers or truth values that have gaps somewhere

    def ids() -> Iterator[list[Any]]:
        for table in tables([client_column]):
            yield _ids(table, client_column, where)

    def batches() -> Iterator[Batch]:
        row = unpacked = 0
        kinds: dict[str, Any] = {}
        for table in tables([name for name in names if name in taken | {client_column}]):
            if not len(table):
                continue
            try:
                if paths:  # a data set in memory is the user's own
                    for name in taken:
                        require_own_images(table.column(name), name)
                arrays = stacked_columns(
                    chosen,
                    lambda name, table=table: arrow_column(table.column(name), name, gaps=gaps),
                )
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{where} is damaged: from row {row} on, a text is not UTF-8 ({error})."
                ) from None
            except (ValueError, TypeError) as error:
                raise DataError(f"{where}, counted from row {row}: {error}") from None
            if paths:
                unpacked += sum(getattr(array, "nbytes", 0) for array in arrays.values())
                require_modest(where, packed, unpacked)
            for key in with_gaps:
                arrays[key] = np.asarray(arrays[key], np.float64)
            for key, array in arrays.items():
                kind = getattr(array, "dtype", None)
                if gaps and kind and kind.kind in "biuf" and kinds.get(key, kind) != kind:
                    with_gaps.add(key)
                    raise WiderKindError
                if kind and kinds.setdefault(key, kind) != kind:  # images of several kinds
                    raise DataError(
                        f"{where}: {key!r} is {kinds[key]} in the first rows and {kind} from row "
                        f"{row}. Convert all to one."
                    )
            yield _ids(table, client_column, where), arrays
            row += len(table)

    def read(start: int) -> Iterator[Client]:
        with reading(where, "a table of Arrow's", *_ERRORS):
            yield from by_client(Rows(ids, batches, row_bytes, where), start)

    return Clients(read, paths)


def _ids(table: Any, name: str, where: str) -> list[Any]:
    ids = table.column(name).to_pylist()
    for value in ids:
        if value is not None and (not isinstance(value, str | int) or isinstance(value, bool)):
            raise DataError(
                f"{where}: the client column {name!r} must hold text or whole numbers, but holds "
                f"a {type(value).__name__}."
            )
    return ids
