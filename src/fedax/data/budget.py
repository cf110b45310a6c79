"""Limits on the size, memory and time of reading a file, checked in advance.

A file of n bytes may

- become 200 n + 64 MiB of data (`MOST_TIMES`, `ALLOWED_BYTES`), whatever it is packed with: gzip,
  LZMA, zip, Parquet's codecs and dictionaries, compressed images;
- have 4,096 arrays (`MOST_ARRAYS`), each of which becomes a file of a store;
- take 1 GiB + 2 n of memory in the process of a library that allocates by itself, such as Arrow's
  and HDF5's (`process_memory`), where the system can limit it (Linux);
- keep such a library busy for 30 seconds without a row (`MOST_SECONDS`).

fedax's own readers work on parts of about 16 MiB (`PART_BYTES`), count the small objects that they
make, and take time in proportion to what a file becomes: SQLite's pages must each have one place,
and a pickle makes each of its bytes once.
"""

from __future__ import annotations

from pathlib import Path

from fedax.data.errors import DataError

# Large clients come in parts of about this size.
PART_BYTES = 2**24
# Images become five to twenty times as large, and deflate can make a thousand bytes of one.
MOST_TIMES = 200
ALLOWED_BYTES = 2**26
MOST_ARRAYS = 2**12
MOST_SECONDS = 30.0
_PROCESS_BYTES = 2**30


def require_modest(path: Path | str, packed: int, unpacked: int) -> None:
    """Raises a clear error if a packed file becomes far larger than data do.

    Args:
      path: the file.
      packed: its size in bytes.
      unpacked: what it becomes, or is so far.

    Raises:
      DataError: if it is more than `MOST_TIMES` its size.
    """
    if unpacked > MOST_TIMES * packed + ALLOWED_BYTES:
        raise DataError(
            f"{path} unpacks to {unpacked:,} bytes or more, of {packed:,}: over {MOST_TIMES} times "
            "its size, so it was not read. If you trust it, unpack it yourself."
        )


def require_few_arrays(path: Path | str, count: int) -> None:
    """Raises a clear error if a file has more arrays than a store may have files.

    Raises:
      DataError: if it has more than `MOST_ARRAYS`.
    """
    if count > MOST_ARRAYS:
        raise DataError(
            f"{path} has {count:,} arrays, more than the {MOST_ARRAYS:,} that a data set can have. "
            "Join columns into one array, as in columns={'x': ['a', 'b']}, or use fewer columns."
        )


def process_memory(file_bytes: int) -> int:
    """The memory that a library's process may take for a file, beside what it begins with."""
    return _PROCESS_BYTES + 2 * file_bytes


def rows_at_a_time(row_bytes: int) -> int:
    """How many rows a part of a large client has."""
    return max(1, PART_BYTES // max(1, row_bytes))
