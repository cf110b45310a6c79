"""Recognises files in common formats and makes them a data set."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from fedax.data import readers
from fedax.data.describing import Describer, digest
from fedax.data.errors import DataError
from fedax.data.federated_dataset import FederatedDataset
from fedax.data.file_names import file_name
from fedax.data.readers.clients import Clients, file_of_folder, reading, regular_file
from fedax.data.store import TABLE, open_store, read_store_table
from fedax.data.store_writer import Progress, Transform, convert
from fedax.data.tables import Columns
from fedax.outside.paths import expanded
from fedax.validate import check_choice, unknown

Format: TypeAlias = Literal[
    "sqlite", "hdf5", "leaf", "idx", "cifar", "parquet", "csv", "numpy", "huggingface", "store"
]

_BEGINNINGS: dict[bytes, Format] = {
    b"SQLite format 3\0": "sqlite", b"\x89HDF\r\n\x1a\n": "hdf5", b"PAR1": "parquet",
    b"PK\x03\x04": "numpy",
}
_ENDINGS: dict[str, Format] = {
    ".sqlite": "sqlite", ".sqlite.lzma": "sqlite", ".sqlite.xz": "sqlite", ".h5": "hdf5",
    ".hdf5": "hdf5", ".json": "leaf", "-ubyte": "idx", "-ubyte.gz": "idx", ".bin": "cifar",
    ".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".csv.gz": "csv", ".npz": "numpy",
}
# Files in a folder -> its format; the first that is there.
_FOLDERS: dict[str, Format] = {
    TABLE: "store", f"train/{TABLE}": "store", "state.json": "huggingface",
    "dataset_dict.json": "huggingface", "*.json": "leaf", "*-ubyte*": "idx",
    "data_batch_*": "cifar", "train.bin": "cifar", "train": "cifar", "*.parquet": "parquet",
    "*.npy": "numpy",
}
# The names that MNIST's and CIFAR's files begin with.
_IDX_NAMES = {"train": "train", "test": "t10k"}
_CIFAR_NAMES = {"train": ("data_batch_", "train"), "test": ("test_batch", "test")}


def read_data(
    path: Path | str,
    *,
    format: Format | None = None,
    client_column: str | None = None,
    columns: Columns | None = None,
    split: str | None = None,
    transform: Transform | None = None,
    skip_empty: bool = False,
    store: Path | str | None = None,
    progress: bool | Progress | None = None,
) -> FederatedDataset:
    r"""Reads files in a common format as a data set, once and in bounded memory.

    The data are written to a store, a folder of memory-mapped arrays; later calls open it in less
    than a second. Remove the store to have it made again. If a call is killed, the next one
    continues it.

    Args:
      path: a file or a folder: TensorFlow Federated's SQLite or HDF5, LEAF's JSON, IDX (MNIST),
        CIFAR's batches, Parquet, CSV, NumPy's .npz or .npy, a data set saved by Hugging Face's
        `datasets`, or a store.
      format: of the files; None: recognised by their beginning and name.
      client_column: for Parquet, CSV and `datasets`, the column with each row's client. For NumPy
          files, the array; None: "client_ids".
      columns: for Parquet, CSV and `datasets`, the columns to read; see
          `FederatedDataset.from_frame`.
      split: for files with several splits, its name, such as "train" or "test".
      transform: maps a client's columns to its arrays of numbers, for example for text; a client
          for which it returns None is left out. Missing cells of Parquet, CSV and `datasets` are
          NaN, in text None. Its code and the values that it uses are recorded with the store.
      skip_empty: leave out clients without examples (in LEAF and TensorFlow Federated); otherwise
          they are an error unless the transform leaves them out.
      store: the store's folder. None: NAME.store or NAME-SPLIT.store next to the files.
      progress: True to show a bar, or a function that is called with the clients and examples so
          far. None: a bar if the standard error is a terminal.

    Raises:
      DataError: if the files are malformed or in an unknown format, an option is missing, or the
          store exists already for other files or options.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = Path(folder) / "heights.csv"
      ...     _ = path.write_text("who,height\nada,1.5\nbob,1.75\nada,1.25\n")
      ...     data = read_data(path, client_column="who")
      ...     data.client("ada")["height"].tolist()
      [1.5, 1.25]
    """
    path = expanded(path)
    kind = recognised(path) if format is None else format
    check_choice("format", kind, get_args(Format))
    if kind == "store":
        return open_store(path)
    clients = _OPENERS[kind](path, client_column, columns, split, transform is not None)
    name = path.absolute().name + (f"-{split}" if split else "")
    beside = path.absolute().with_name(file_name(f"{name}.store"))
    folder = beside if store is None else expanded(store)
    conversion = json.dumps({
        "format": kind, "client_column": client_column, "columns": columns, "split": split,
        "transform": None if transform is None else _described(transform),
        **({"skip_empty": True} if skip_empty else {}),
    })
    try:
        (folder / TABLE).stat()
        is_there = True
    except (FileNotFoundError, NotADirectoryError):
        is_there = False
    except OSError as error:
        raise DataError(
            f"The folder {folder}, which should contain the converted data, cannot be used: "
            f"{error.strerror}. Choose another with store=FOLDER."
        ) from None
    if is_there:
        return _opened(folder, path, clients, conversion)
    with _shown(progress, name, clients.num_clients) as show:
        return open_store(convert(
            clients, folder, transform, conversion=conversion, skip_empty=skip_empty, progress=show
        ))


@contextlib.contextmanager
def progress_bar(title: str, num_clients: int | None = None) -> Iterator[Progress]:
    """A bar on the standard error, for `convert(progress=...)`; it disappears when the block ends.

    Args:
      title: of the bar.
      num_clients: the total; None: not known.
    """
    from rich.progress import (  # noqa: PLC0415 - few conversions are watched
        BarColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from fedax.devices.terminal import Console, Progress  # noqa: PLC0415 - likewise

    words = TextColumn("{task.completed:,} clients, {task.fields[examples]:,} examples")
    with Progress(
        TextColumn("{task.description}", markup=False), BarColumn(), words, TimeElapsedColumn(),
        TimeRemainingColumn(), console=Console(stderr=True), transient=True,
    ) as bar:
        task = bar.add_task(title, total=num_clients, examples=0)
        yield lambda clients, examples: bar.update(task, completed=clients, examples=examples)


def _shown(
    progress: bool | Progress | None, title: str, num_clients: int | None
) -> contextlib.AbstractContextManager[Progress | None]:
    if callable(progress):
        return contextlib.nullcontext(progress)
    if progress or (progress is None and sys.stderr is not None and sys.stderr.isatty()):
        return progress_bar(title, num_clients)
    return contextlib.nullcontext()


def _opened(
    folder: Path, path: Path, clients: Clients, conversion: str
) -> FederatedDataset:
    """A store that is there, if it is of these files and options."""
    table = read_store_table(folder)
    source = table.get("source")
    files = source.get("files") if isinstance(source, Mapping) else None
    if table.get("conversion") == conversion and clients.is_of(files):
        return open_store(folder)
    differing = _differing(table.get("conversion"), conversion)
    made = (
        f"with a different {differing}="
        if differing and clients.is_of(files)
        else f"from different files than {path} now holds, or with different options"
    )
    hint = (
        " (its code and the values that it holds are compared)" if differing == "transform" else ""
    )
    raise DataError(
        f"{folder} was made {made}{hint}. Remove it to make it again, or choose another folder "
        "with store=FOLDER."
    )


def _described(transform: Transform) -> str:
    """The transform in a few letters, by its code and by what it holds."""
    describe = Describer()
    return digest([describe(transform), describe.codes])


def _differing(one: Any, other: str) -> str | None:
    """The first option in which two conversions differ, if that can be told."""
    with contextlib.suppress(TypeError, ValueError, AttributeError):  # a store of another's making
        before, now = json.loads(one), json.loads(other)
        return next((name for name in now if before.get(name) != now[name]), None)
    return None


def recognised(path: Path) -> Format:
    """The format of a file or a folder."""
    if path.is_dir():
        for pattern, kind in _FOLDERS.items():
            if any(file.is_file() for file in path.glob(pattern)):
                return kind
    else:
        with reading(path, "a file"), regular_file(path).open("rb") as file:
            content = file.read(16)
        for beginning, kind in _BEGINNINGS.items():
            if content.startswith(beginning):
                return kind
        for ending, kind in _ENDINGS.items():
            if path.name.lower().endswith(ending):
                return kind
        if path.name.startswith(tuple(name for names in _CIFAR_NAMES.values() for name in names)):
            return "cifar"
    raise DataError(
        f"The format of {path} was not recognised. Set format= to one of "
        f"{', '.join(map(repr, get_args(Format)))}."
    )


def _needs_column(client_column: str | None, kind: str) -> str:
    if client_column is None:
        raise DataError(
            f"{kind} needs client_column=, the name of the column with each row's client."
        )
    return client_column


def _parquet(
    path: Path, client_column: str | None, columns: Any, split: str | None, has_transform: bool
) -> Clients:
    paths = [path]
    if path.is_dir():
        paths = [
            file_of_folder(path, file) for file in sorted(path.glob("*.parquet"))
            if file.name.startswith(split or "")
        ]
    return readers.read_parquet(
        paths, _needs_column(client_column, "Parquet"), columns, gaps=has_transform
    )


def _csv(
    path: Path, client_column: str | None, columns: Any, _: str | None, has_transform: bool
) -> Clients:
    return readers.read_csv(
        path, _needs_column(client_column, "CSV"), columns, only_numbers=not has_transform,
        gaps=frozenset({""} if has_transform else ()),
    )


def _huggingface(
    path: Path, client_column: str | None, columns: Any, split: str | None, has_transform: bool
) -> Clients:
    folder = path
    if not (path / "state.json").is_file():
        with reading(path, "a folder"):
            found = [own.name for own in sorted(path.iterdir()) if (own / "state.json").is_file()]
        if split not in found:
            raise DataError(f"{path}: {unknown('split', split, found)} Choose one with split=.")
        folder = path / split
        if not folder.resolve().is_relative_to(path.resolve()):
            raise DataError(
                f"{folder} is a link that leads out of {path}. Give its target folder instead."
            )
    return readers.read_saved_huggingface(
        folder, _needs_column(client_column, "A data set of Hugging Face's"), columns,
        gaps=has_transform,
    )


def _idx(path: Path, split: str | None) -> Clients:
    images = path
    if path.is_dir():
        split = split or "train"
        check_choice("split", split, _IDX_NAMES)
        images = next(iter(sorted(path.glob(f"{_IDX_NAMES[split]}-images*-ubyte*"))), path)
        if images == path:
            raise DataError(f"There is no file {_IDX_NAMES[split]}-images-idx3-ubyte in {path}.")
    labels = images.name.replace("images-idx3", "labels-idx1")
    if labels == images.name:
        raise DataError(
            f"{images} must have a name like train-images-idx3-ubyte, so that its labels can be "
            "found; otherwise use fedax.data.readers.read_idx(images, labels)."
        )
    beside = images.with_name(labels)
    # A file may be a link, as in the caches of package managers; its labels are then beside what
    # it leads to.
    is_link = beside.is_symlink() and not path.is_dir()
    folder = images.resolve().parent if is_link else images.parent
    return readers.read_idx(
        file_of_folder(path, images) if path.is_dir() else images, file_of_folder(folder, beside)
    )


def _cifar(path: Path, split: str | None) -> Clients:
    paths = [path]
    if path.is_dir():
        split = split or "train"
        check_choice("split", split, _CIFAR_NAMES)
        paths = [
            file_of_folder(path, file) for file in sorted(path.iterdir())
            if file.is_file() and file.name.removesuffix(".bin").startswith(_CIFAR_NAMES[split])
        ]
        if not paths:
            raise DataError(f"There is no file {_CIFAR_NAMES[split][0]}... in {path}.")
    num_classes = 10 if "batch" in paths[0].name else 100
    if paths[0].suffix == ".bin":
        return readers.read_cifar_binary(paths, num_classes)
    return readers.read_cifar_pickle(paths, num_classes)


_OPENERS: dict[str, Callable[[Path, str | None, Any, str | None, bool], Clients]] = {
    "sqlite": lambda path, _, __, split, ___: readers.read_sqlite(path, split),
    "hdf5": lambda path, *_: readers.read_hdf5(path),
    "leaf": lambda path, *_: readers.read_leaf(path),
    "idx": lambda path, _, __, split, ___: _idx(path, split),
    "cifar": lambda path, _, __, split, ___: _cifar(path, split),
    "parquet": _parquet,
    "csv": _csv,
    "numpy": lambda path, column, *_: readers.read_numpy(path, column or "client_ids"),
    "huggingface": _huggingface,
}
