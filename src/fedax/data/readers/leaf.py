"""LEAF's JSON files: users, their numbers of examples, and their data."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from fedax.data.errors import DataError
from fedax.data.readers.clients import (
    Client,
    Clients,
    WiderKindError,
    file_of_folder,
    needed,
    reading,
    regular_file,
)
from fedax.outside.paths import expanded
from fedax.validate import quoted

_DEEPEST = 50
# A user is in memory while read, where JSON takes up to twenty times its size.
_LARGEST_USER = 2**27
_BOM = b"\xef\xbb\xbf"
_NOT_JSON = re.compile(rb"[\[,:]\s*(-?(?:NaN|Infinity))\b")
_KINDS = ("int32", "int64", "float32")
# Of whole numbers, float32 keeps every digit up to here.
_LARGEST_EXACT = 2**24
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_STEPS = np.zeros(256, np.int32)
_STEPS[[*b"[{"]], _STEPS[[*b"]}"]] = 1, -1
_ERRORS = (ValueError, TypeError, OverflowError, RecursionError)


def read_leaf(paths: Sequence[Path | str] | Path | str) -> Clients:
    """Reads the clients of LEAF's files, in file order.

    Files are read as a stream, one user at a time. If a user's `x` or `y` is not an array of
    numbers, but text for example, it is returned as a list, for a transform. Whole numbers are
    int32, or float32 if another user has fractions in that column. The text `raw` of `preprocess.sh
    --raw` is left out. Users without examples have empty lists.

    Args:
      paths: a folder of .json files such as `data/train`, read in the order of their names, or a
          list of files. Each has `users`, `num_samples` and `user_data`.

    Raises:
      DataError: if a file does not exist, or ijson is not installed; during reading, if a file is
          malformed, or a user occurs twice or has a wrong number of examples.
    """
    ijson = needed("ijson", "leaf", "LEAF's JSON")
    given = [expanded(path) for path in ([paths] if isinstance(paths, Path | str) else paths)]
    files = [
        file for path in given
        for file in (
            [file_of_folder(path, file) for file in sorted(path.glob("*.json"))]
            if path.is_dir() else [regular_file(path)]
        )
    ]
    if not files:
        raise DataError(f"There is no .json file in {', '.join(map(str, given)) or 'no place'}.")
    kinds: dict[str, str] = {}
    return Clients(lambda start: _read(ijson, files, start, kinds), files)


def _read(
    ijson: Any, files: list[Path], start: int, kinds: dict[str, str]
) -> Iterator[Client]:
    errors = (ijson.JSONError, *_ERRORS)
    narrow: set[str] = set()  # columns that were given in a narrower kind than they may have
    for path in files:
        with reading(path, "one of LEAF's JSON files", *errors):
            sizes = _sizes(ijson, path)
            if len(sizes) <= start:  # of a file that was read before
                start -= len(sizes)
                continue
            seen: set[str] = set()
            with path.open("rb") as file:
                shallow = _Shallow(file)
                shallow.left = _LARGEST_USER
                for name, table in _users(ijson, shallow):
                    if name in seen or name not in sizes:
                        raise ValueError(
                            f"user {quoted(name)} "
                            + ("occurs twice in user_data" if name in seen else
                               "of user_data is not in users")
                        )
                    seen.add(name)
                    shallow.left = _LARGEST_USER
                    columns = _columns(name, table, sizes[name])
                    for key, values in columns.items():
                        columns[key] = _widened(name, key, values, kinds, narrow)
                    if len(seen) > start:
                        yield name, columns
            start = 0
            missing = next((name for name in sizes if name not in seen), None)
            if missing is not None:
                raise ValueError(f"user {quoted(missing)} has no data")


def _users(ijson: Any, shallow: _Shallow) -> Iterator[tuple[str, Any]]:
    name = None
    try:
        for name, table in ijson.kvitems(shallow, "user_data", use_float=True):
            yield name, table
    except ijson.JSONError:
        if not shallow.not_json:
            raise
        where = "the first user" if name is None else f"a user after {quoted(name)}"
        raise ValueError(
            f"{where} has {shallow.not_json}, which JSON does not have; replace it by a number "
            "or leave out the example"
        ) from None


def _sizes(ijson: Any, path: Path) -> dict[str, int]:
    """How many examples each user has, in the order of `users`."""
    users: list[Any] = []
    sizes: list[Any] = []
    with path.open("rb") as file:
        for prefix, event, value in ijson.parse(_Shallow(file), use_float=True):
            if prefix == "users.item":
                users.append(value if event == "string" else None)
            elif prefix == "num_samples.item":
                sizes.append(value if event == "number" else None)
            elif not prefix and event not in ("start_map", "map_key", "end_map"):
                raise ValueError("it lacks one of users, num_samples and user_data")
            elif event == "start_map" and prefix == "user_data" and users and (
                len(users) == len(sizes)
            ):
                break
    if not users:
        raise ValueError("it has no users")
    if len(users) != len(sizes):
        raise ValueError(f"it has {len(users)} users, but {len(sizes)} num_samples")
    found: dict[str, int] = {}
    for name, size in zip(users, sizes, strict=True):
        if name is None or type(size) is not int:
            raise ValueError("users must be text and num_samples whole numbers")
        if name in found:
            raise ValueError(f"user {quoted(name)} occurs twice in users")
        found[name] = size
    return found


def _columns(name: str, table: Any, size: int) -> dict[str, Any]:
    if not isinstance(table, dict) or not table:
        raise ValueError(f"the data of user {quoted(name)} are not a dictionary with x and y")
    if isinstance(table.get("raw"), str):
        del table["raw"]
    for key, values in table.items():
        if not isinstance(values, list) or len(values) != size:
            held = f"{len(values)} examples" if isinstance(values, list) else "no list"
            raise ValueError(
                f"user {quoted(name)} has {held} of {quoted(key)}, but num_samples says {size}"
            )
    return {key: _column(values) for key, values in table.items()}


def _column(values: list[Any]) -> Any:
    """Numbers as float32 or int32, if they are of one shape and fit; else the list."""
    if not values:
        return values
    try:
        array = np.array(values)
    except (ValueError, OverflowError):
        return values
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):  # what becomes infinite is refused with its place
            return array.astype(np.float32)
    if array.dtype.kind in "iu" and array.min(initial=0) >= -(2**31) and (
        array.max(initial=0) < 2**31
    ):
        return array.astype(np.int32)
    return array if array.dtype.kind in "biu" else values


def _widened(
    name: str, key: str, values: Any, kinds: dict[str, str], narrow: set[str]
) -> Any:
    """The numbers of a column in the widest kind that it has had.

    Raises:
      WiderKindError: if earlier clients had a narrower one. ValueError: if whole numbers lose
          digits as float32.
    """
    kind = str(values.dtype) if isinstance(values, np.ndarray) else ""
    if kind not in _KINDS:
        return values
    widest = max(kind, kinds.get(key, kind), key=_KINDS.index)
    if kinds.setdefault(key, widest) != widest:
        kinds[key] = widest
        if key in narrow:
            raise WiderKindError
    if widest == "float32" != kind and (
        np.abs(values.astype(np.float64)).max(initial=0) > _LARGEST_EXACT
    ):
        raise ValueError(
            f"user {quoted(name)} has whole numbers of {quoted(key)} above {_LARGEST_EXACT:,}, "
            "which lose digits in float32, the type of other users' fractions"
        )
    if widest != "float32":
        narrow.add(key)
    return values.astype(widest)


class _Shallow:
    """A JSON file whose lists and tables do not stand deep in each other.

    Those who write deeper ones want a parser to take long: ijson takes the square of the depth.
    """

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        if file.peek(len(_BOM))[: len(_BOM)] == _BOM:  # of editors on Windows
            file.seek(len(_BOM))
        self.not_json = ""  # a number that Python writes and JSON does not have, read last
        self._depth, self._is_text, self._rest = 0, False, b""
        self.left = sys.maxsize

    def read(self, size: int = -1) -> bytes:
        """The next bytes.

        Raises:
          ValueError: if lists are nested too deeply.
        """
        content = self._file.read(size)
        self.left -= len(content)
        if self.left < 0:
            raise ValueError(f"a user has more than {_LARGEST_USER:,} bytes")
        if b"NaN" in content or b"Infinity" in content:
            found = _NOT_JSON.search(content)
            self.not_json = found[1].decode() if found else self.not_json
        # What a backslash stands before is neither the end of a text nor a backslash.
        plain = _ESCAPED.sub(b"__", self._rest + content)
        self._rest = b"\\" if plain.endswith(b"\\") else b""
        letters = np.frombuffer(plain, np.uint8)
        is_quote = letters == ord('"')
        inside = (np.cumsum(is_quote) + self._is_text) % 2 == 1
        step = _STEPS[letters]
        step[inside] = 0
        depths = self._depth + np.cumsum(step)
        if depths.max(initial=0) > _DEEPEST:
            raise ValueError(f"its lists are nested more than {_DEEPEST} deep")
        if len(letters):
            self._depth, self._is_text = int(depths[-1]), bool(inside[-1])
        return content
