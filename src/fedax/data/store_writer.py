"""Makes stores client by client in bounded memory; continues after a killed process."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import fedax.data.store as layout
from fedax.data.array_files import ArrayFiles
from fedax.data.budget import require_few_arrays
from fedax.data.checks import require_labels, require_numbers
from fedax.data.converting import Columns, Transform, arrays_of_client, clients_behind
from fedax.data.errors import DataError
from fedax.data.file_names import is_reserved
from fedax.data.grouping import check_client
from fedax.data.readers.clients import WiderKindError
from fedax.devices.locks import LEASE, Lock
from fedax.outside.paths import expanded
from fedax.theory.tables import read_table
from fedax.validate import quoted

# Called with the clients and the examples written so far.
Progress: TypeAlias = Callable[[int, int], object]

_PROGRESS = "progress.json"
_CLIENTS = "clients.jsonl"
_LOCK = "lock"
# What was written is made safe, to be gone on with, after so many bytes or seconds.
SAVE_BYTES = 2**28
SAVE_SECONDS = 10.0


def convert(
    clients: Iterable[tuple[str | int, Columns]],
    folder: Path | str,
    transform: Transform | None = None,
    *,
    source: Mapping[str, Any] | None = None,
    conversion: str = "",
    skip_empty: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Writes the clients of a reader to a store, with one client in memory at a time.

    If the process is killed or the disk is full, the same call continues where it stopped, provided
    that `source` and `conversion` are unchanged. Malformed data leave nothing behind.

    Args:
      clients: of a reader of `fedax.data.readers`, or pairs (name, arrays by name), in the same
          order each time. Consecutive pairs with the same name are parts of one client.
      folder: of the store; must not exist yet.
      transform: maps a client's columns to its arrays of numbers; a client for which it returns
          None is left out. None: the columns are already arrays of numbers.
      source: the data's origin, such as a file's name, size and SHA-256. None: the reader's own
          description.
      conversion: describes how the data were made; if it changes, the store is started again.
      skip_empty: leave out clients without examples; otherwise they are an error unless the
          transform leaves them out.
      progress: called with the clients and the examples so far.

    Returns:
      The folder.

    Raises:
      DataError: if the data are malformed, or the store cannot be written.
    """
    if source is None:
        source = getattr(clients, "source", {})
    folder = expanded(folder)
    with StoreWriter(folder, source=source, conversion=conversion) as writer:
        while True:
            try:
                for name, columns in clients_behind(clients, writer.num_read):
                    arrays = arrays_of_client(
                        name, columns, transform, skip_empty=skip_empty
                    )
                    if arrays is None:
                        writer.leave_out(name)
                    else:
                        writer.append(name, arrays)
                    if progress is not None:
                        progress(writer.num_clients, writer.num_examples)
                return writer.finish()
            except WiderKindError:  # clients that are written would have been read otherwise
                writer.begin_anew()


class StoreWriter:
    """A store that is being made, beside its place: `.NAME.partial` until `finish` renames it.

    As a context manager it removes what was written if an error occurs, except after a kill, Ctrl-C
    or a full disk: then a writer with the same `source` and `conversion` continues.

    Attributes:
      num_clients, num_examples: written so far, including by an earlier process.
      num_read: clients written or left out so far.

    Args:
      folder: of the store; must not exist yet.
      source: the data's origin; saved in `store.json`.
        conversion: how the data are made; saved likewise.

    Raises:
      DataError: if the folder exists, another process is writing it, or it cannot be written.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as parent:
      ...     with StoreWriter(Path(parent) / "train") as writer:
      ...         writer.append("ada", {"x": np.arange(3.0)})
      ...         writer.append("bob", {"x": np.arange(2.0)})
      ...         store = writer.finish()
      ...     layout.open_store(store).client_sizes.tolist()
      [3, 2]
    """

    def __init__(
        self, folder: Path | str, *, source: Mapping[str, Any] | None = None, conversion: str = ""
    ) -> None:
        self.folder = expanded(folder).absolute()
        self._partial = self.folder.with_name(f".{self.folder.name}.partial")
        self._about = {"source": dict(source or {}), "conversion": conversion}
        self.num_clients = self.num_examples = self.num_read = 0
        self._names: list[str | int] = []
        self._left_out: str | int | None = None  # the reader's last client, if it is not written
        self._known: set[str] = set()
        self._sizes: list[int] = []
        self._like: dict[str, np.ndarray] = {}
        self._files = ArrayFiles(self._path)
        self._digests: dict[str, Any] = {}
        self._unsaved, self._saved_at = 0, time.monotonic()
        if os.path.lexists(self.folder):
            raise DataError(
                f"{self.folder} already exists. Remove it, or choose another folder."
            )
        if self._partial.is_symlink():  # what it leads to would be emptied
            raise DataError(f"{self._partial} is a link that fedax did not make. Remove it.")
        try:
            self._partial.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self._partial / _LOCK)
            if not self._lock.take():
                raise DataError(f"Another process is making {self.folder}; wait for it.")
            if os.path.lexists(self.folder):  # made by another process a moment ago
                self.discard()
                raise DataError(f"Another process has just made {self.folder}.")
        except OSError as error:
            raise DataError(
                f"Cannot make the store {self.folder}: {error.strerror or error}."
            ) from None
        try:
            self._resume()
        except OSError as error:
            self._close()
            raise self._failed(error) from None

    def append(self, name: str | int, arrays: Columns) -> None:
        """Adds a client's examples; repeat the name to add more for the same client.

        Args:
          name: the client's.
          arrays: name -> array of numbers [n_i, ...], the same of every client.

        Raises:
          DataError: if the name was used before, the arrays differ from the first client's in name,
              shape or dtype, or they are not numbers. The message names the client.
        """
        layout.check_client_name(name)
        rows = {key: self._rows(name, key, value) for key, value in arrays.items()}
        try:
            check_client(name, rows, self._like or rows)
        except ValueError as error:
            raise DataError(str(error)) from None
        require_labels(name, rows)
        if name == self._left_out:
            raise _left_out_in_part(name)
        if not self._names or self._names[-1] != name or self._left_out is not None:
            self._save_now_and_then()
            if str(name) in self._known:
                raise DataError(f"Two clients have the name {name!r}; names must be unique.")
            if self._names and isinstance(name, str) != isinstance(self._names[0], str):
                raise DataError(
                    f"Clients' names must be all text or all whole numbers, but {name!r} follows "
                    f"{self._names[0]!r}."
                )
            self._names.append(name if isinstance(name, str) else int(name))
            self._known.add(str(name))
            self._sizes.append(0)
            self._left_out = None
            self.num_clients += 1
            self.num_read += 1
        if not self._like:
            self._begin(rows)
        for key, value in rows.items():
            content = value.tobytes()
            self._write(key, content)
            self._digests[key].update(content)
            self._unsaved += len(content)
        count = len(next(iter(rows.values())))
        self._sizes[-1] += count
        self.num_examples += count

    def leave_out(self, name: str | int) -> None:
        """Skips the reader's next client, or another part of it.

        Raises:
          DataError: if part of it was written.
        """
        if self._left_out is None and self._names and self._names[-1] == name:
            raise _left_out_in_part(name)
        if name != self._left_out:
            self._left_out = name
            self.num_read += 1

    def finish(self) -> Path:
        """Completes the store and moves it into place in one step.

        Raises:
          DataError: if no client was written, or the disk fails.
        """
        if not self._names:
            raise DataError("A data set needs at least one client, but none was given.")
        try:
            table = self._completed()
            content = json.dumps({"format": layout.FORMAT, **table, **self._about}, indent=2)
            layout.write_whole(self._partial / layout.TABLE, content.encode())
            for name in (_PROGRESS, _CLIENTS):
                (self._partial / name).unlink(missing_ok=True)
            if os.name == "nt":  # where a folder with an open file has its name for good
                self._close()
            self._partial.rename(self.folder)
            for name in (_LOCK, _LOCK + LEASE):
                (self.folder / name).unlink(missing_ok=True)
            self._close()
            layout.sync_folder(self.folder.parent)
        except OSError as error:
            self._close()
            raise self._failed(error) from None
        return self.folder

    def discard(self) -> None:
        """Removes what was written."""
        self._close()
        shutil.rmtree(self._partial, ignore_errors=True)

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, traceback: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, _DiskError):
            self.discard()
        self._close()

    def _rows(self, name: str | int, key: Any, value: Any) -> np.ndarray:
        """An array of a client in this machine's byte order, one after the other in memory."""
        layout.check_array_name(key)
        if isinstance(value, list | tuple) and any(not np.isscalar(v) or isinstance(v, str | bytes)
                                                   for v in value[:1]):
            raise DataError(
                f"Client {quoted(name)}: {key!r} is text or has rows of unequal lengths, but a "
                "store holds arrays of numbers. Give a transform that makes them numbers, or leave "
                "out the "
                "column."
            )
        try:
            rows = np.asarray(value)
            if not rows.dtype.isnative:
                rows = rows.astype(rows.dtype.newbyteorder("="))
            require_numbers(f"Client {quoted(name)}: array {key!r}", rows.dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(str(error)) from None
        if 0 in rows.shape[1:]:
            raise DataError(
                f"Client {quoted(name)}: array {key!r} is {rows.dtype}{list(rows.shape)}, so "
                "its examples are empty. Leave it out."
            )
        if rows.dtype.kind not in "biufc":
            raise DataError(
                f"Client {quoted(name)}: array {key!r} is {rows.dtype}, which a store does not "
                "hold. Convert it to float32."
            )
        return np.ascontiguousarray(rows) if rows.ndim else rows

    def _begin(self, rows: Mapping[str, np.ndarray]) -> None:
        """Begins files for the first client's arrays."""
        require_few_arrays(f"The data of {self.folder.name}", len(rows))
        if len({key.lower() for key in rows}) < len(rows):
            raise DataError(
                f"The arrays {sorted(rows)} have names that differ only in case, and some "
                "file systems cannot keep both. Rename one."
            )
        for key in filter(is_reserved, rows):
            raise DataError(
                f"An array of a store cannot have the name {key!r}, which Windows reserves for a "
                "device. Rename it."
            )
        try:
            for key, value in rows.items():
                self._like[key] = value[:0]
                self._files.begin(key, bytes(layout.HEADER_BYTES))
                self._digests[key] = hashlib.sha256()
        except OSError as error:
            raise self._failed(error) from None

    def _write(self, key: str, content: bytes) -> None:
        try:
            self._files.append(key, content)
        except OSError as error:
            raise self._failed(error) from None

    def _save_now_and_then(self) -> None:
        """Makes the clients so far safe; a client is not saved in part."""
        late = time.monotonic() - self._saved_at > SAVE_SECONDS
        if self._names and (late or self._unsaved > SAVE_BYTES):
            try:
                self._save()
            except OSError as error:
                raise self._failed(error) from None

    def _save(self) -> None:
        self._files.save()
        pairs = zip(self._names, self._sizes, strict=True)
        lines = "".join(json.dumps(pair) + "\n" for pair in pairs)
        layout.write_whole(self._partial / _CLIENTS, lines.encode())
        arrays = {key: [value.dtype.str, value.shape[1:]] for key, value in self._like.items()}
        layout.write_whole(self._partial / _PROGRESS, json.dumps({
            "num_read": self.num_read, "num_clients": self.num_clients, "arrays": arrays,
            **self._about,
        }).encode())
        self._unsaved, self._saved_at = 0, time.monotonic()

    def _resume(self) -> None:
        """Continues what an earlier process saved, if it made the same; else starts over."""
        try:
            saved = read_table(self._partial / _PROGRESS)
            text = (self._partial / _CLIENTS).read_text("utf-8")
            pairs = [json.loads(line) for line in text.splitlines()[: saved["num_clients"]]]
            about = json.loads(json.dumps(self._about))
            same = all(saved[key] == value for key, value in about.items())
            if not same or not pairs or len(pairs) != saved["num_clients"]:
                raise ValueError("it is of something else")
            names, sizes = [name for name, _ in pairs], [size for _, size in pairs]
            for key, (kind, shape) in saved["arrays"].items():
                self._like[key] = np.zeros((0, *shape), np.dtype(kind))
                self._take_up(key, sum(sizes))
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            self.begin_anew()
            return
        self._names, self._sizes, self._known = names, sizes, set(map(str, names))
        self.num_clients, self.num_examples = len(names), sum(sizes)
        self.num_read = saved["num_read"]

    def _take_up(self, key: str, num_examples: int) -> None:
        """Opens an array's file behind its first examples, whose digest is computed again.

        Raises:
          ValueError: the file is shorter.
        """
        like = self._like[key]
        size = num_examples * like.dtype.itemsize * math.prod(like.shape[1:])
        self._digests[key] = hashlib.sha256()
        with self._path(key).open("r+b") as file:
            file.seek(layout.HEADER_BYTES)
            for place in range(0, size, layout.PIECE_BYTES):
                piece = file.read(min(layout.PIECE_BYTES, size - place))
                self._digests[key].update(piece)
            if file.tell() != layout.HEADER_BYTES + size:
                raise ValueError("it is shorter")
            file.truncate()
        self._files.go_on(key)

    def begin_anew(self) -> None:
        """Removes what was written, to write other clients."""
        self._files.forget()
        self._digests, self._like = {}, {}
        self._names, self._sizes, self._known, self._left_out = [], [], set(), None
        self.num_clients = self.num_examples = self.num_read = 0
        for path in self._partial.iterdir():
            if path.name not in (_LOCK, _LOCK + LEASE):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _completed(self) -> dict[str, Any]:
        """Writes headers, offsets and names; what `store.json` says of all files."""
        table: dict[str, Any] = {"arrays": {}}
        self._files.save()
        for key, like in self._like.items():
            shape = (self.num_examples, *like.shape[1:])
            with self._path(key).open("r+b") as file:
                layout.write_header(file, like.dtype, shape)
                file.flush()
                os.fsync(file.fileno())
            table["arrays"][key] = _entry(like.dtype, shape, self._digests[key])
        offsets = np.append(0, np.cumsum(self._sizes)).astype(np.int64)
        for key, array in ((layout.OFFSETS, offsets), (layout.NAMES, np.array(self._names))):
            with self._path(key).open("wb") as file:
                layout.write_header(file, array.dtype, array.shape)
                file.write(array.tobytes())
                file.flush()
                os.fsync(file.fileno())
            table[key] = _entry(array.dtype, array.shape, hashlib.sha256(array.tobytes()))
        return table

    def _path(self, key: str) -> Path:
        return self._partial / layout.array_file(key)

    def _close(self) -> None:
        self._files.forget()
        self._lock.release()

    def _failed(self, error: OSError) -> DataError:
        return _DiskError(
            f"Cannot write the store {self.folder}: {error.strerror or error}. What was written so "
            f"far is saved in {self._partial}; the same call continues from there."
        )


def _left_out_in_part(name: str | int) -> DataError:
    return DataError(
        f"One part of client {name!r} was left out, but another was written. Leave out all or none."
    )


class _DiskError(DataError):
    """The data are well, but the disk is not."""


def _entry(dtype: np.dtype, shape: tuple[int, ...], digest: Any) -> dict[str, Any]:
    return {"dtype": dtype.str, "shape": list(shape), "sha256": digest.hexdigest()}
