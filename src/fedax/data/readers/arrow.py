"""Parquet, and Hugging Face's `datasets`: tables of Arrow with a client column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedax.data.errors import DataError
from fedax.data.readers.clients import (
    Client,
    Clients,
    needed,
    reading,
    regular_file,
    require_modest,
)
from fedax.data.readers.scattered import Batch, Rows, batch_rows, by_client
from fedax.data.tables import Columns, arrow_column, choose, stacked_columns

_MOST_THRIFT = 2**26
_ERRORS = (ValueError, TypeError, KeyError, IndexError, NotImplementedError)


def read_parquet(
    paths: Sequence[Path | str] | Path | str, client_column: str, columns: Columns | None = None
) -> Clients:
    """The clients of one or more files, in the order of their first row; rows in any order.

    Read by groups of rows, twice: the client column, and then all that is taken.

    Args:
      paths: one file, or several with the same columns.
      client_column: says whose example a row is; text or whole numbers.
      columns: which to take, as for `FederatedDataset.from_frame`. Text becomes a list, for a
        transform.

    Raises:
      DataError: there is no such file or column, or pyarrow is not installed; while it is read:
        it is malformed.
    """
    arrow = needed("pyarrow", "parquet", "Parquet")
    parquet = needed("pyarrow.parquet", "parquet", "Parquet")
    files = [regular_file(p) for p in ([paths] if isinstance(paths, Path | str) else paths)]
    if not files:
        raise DataError("paths must name at least one file, but is empty.")
    errors = (arrow.ArrowException, ValueError, OSError, TypeError)

    def opened(path: Path) -> Any:
        return parquet.ParquetFile(
            path, thrift_string_size_limit=_MOST_THRIFT, thrift_container_size_limit=_MOST_THRIFT,
        )

    num_rows = num_bytes = 0
    names: list[str] = []
    for path in files:
        with reading(path, "a Parquet file", *errors), opened(path) as file:
            if names and list(file.schema_arrow.names) != names:
                raise DataError(f"{path} has other columns than {files[0]}.")
            names = list(file.schema_arrow.names)
            metadata = file.metadata
            num_rows += metadata.num_rows
            num_bytes += sum(
                metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)
            )
    row_bytes = num_bytes / max(1, num_rows)

    def tables(wanted: list[str]) -> Iterator[Any]:
        for path in files:
            packed, unpacked = path.stat().st_size, 0
            with reading(path, "a Parquet file", *errors), opened(path) as file:
                for batch in file.iter_batches(batch_rows(row_bytes), columns=wanted):
                    unpacked += batch.nbytes
                    require_modest(path, packed, unpacked)
                    yield arrow.Table.from_batches([batch])

    return _clients(tables, names, client_column, columns, row_bytes, files)


def read_huggingface(
    dataset: Any, client_column: str, columns: Columns | None = None
) -> Clients:
    """The clients of a `datasets.Dataset` or of a streamed one, in the order of their first row.

    Args:
      dataset: one split; one row an example. It is read twice.
      client_column, columns: as for `read_parquet`.

    Raises:
      DataError: there is no such column, or the rows are malformed.
    """
    names = getattr(dataset, "column_names", None)
    if isinstance(names, Mapping) or not hasattr(dataset, "with_format") or not names:
        raise DataError(
            "A split of a Hugging Face data set is needed, such as "
            "datasets.load_dataset(..., split='train') gives, with known columns, not "
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
    columns: Columns | None, row_bytes: float, paths: Sequence[Path],
) -> Clients:
    where = str(paths[0]) if paths else "The data set"
    try:
        chosen = choose(names, client_column, columns)
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None
    taken = {name for group in chosen.values()
             for name in ([group] if isinstance(group, str) else group)}

    def ids() -> Iterator[list[Any]]:
        for table in tables([client_column]):
            yield _ids(table, client_column, where)

    def batches() -> Iterator[Batch]:
        row, kinds = 0, {}
        for table in tables([name for name in names if name in taken | {client_column}]):
            if not len(table):
                continue
            try:
                arrays = stacked_columns(
                    chosen, lambda name, table=table: arrow_column(table.column(name), name)
                )
            except (ValueError, TypeError) as error:
                raise DataError(f"{where}, counted from row {row}: {error}") from None
            for key, array in arrays.items():
                kind = getattr(array, "dtype", None)
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
