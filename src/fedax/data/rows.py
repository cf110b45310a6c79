"""Arrays that are read a few rows at a time: sparse arrays, and rows of a file.

Both have an array's shape, dtype and indexing by rows, and give ordinary arrays. What a round
needs is read when its cohort is, so memory holds the cohort's rows and not the whole.
"""

from __future__ import annotations

import abc
import mmap
import sys
from typing import Any

import numpy as np

from fedax.data.checks import require_numbers
from fedax.devices.memory import aligned_zeros
from fedax.mistakes.errors import kind_of


class LazyRows(abc.ABC):
    """Reads like an array [rows, ...]; `array[rows]` is an ordinary one.

    Attributes:
      shape, dtype: of the whole.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.shape = shape
        self.dtype = dtype

    @abc.abstractmethod
    def __getitem__(self, rows: Any) -> np.ndarray:
        """The rows at a slice or at indices, copied."""

    @abc.abstractmethod
    def take(self, rows: np.ndarray | slice) -> LazyRows:
        """These rows, not read yet."""

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The size in bytes as an ordinary array."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"{self!r} can become an array only by copying all of it.")
        return self[:] if dtype is None else self[:].astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dtype}{list(self.shape)})"


class SparseRows(LazyRows):
    """A SciPy sparse matrix [rows, columns], kept in the CSR format; rows are read dense.

    Example:
      >>> import scipy.sparse
      >>> rows = SparseRows(scipy.sparse.csr_array(np.diag([1.0, 2.0, 3.0])))
      >>> rows[1:].tolist()
      [[0.0, 2.0, 0.0], [0.0, 0.0, 3.0]]
    """

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix.tocsr()
        super().__init__(tuple(self.matrix.shape), self.matrix.dtype)

    def __getitem__(self, rows: Any) -> np.ndarray:
        if isinstance(rows, slice) or np.ndim(rows):
            return self.matrix[rows].toarray()
        return self.matrix[[rows]].toarray()[0]

    def take(self, rows: np.ndarray | slice) -> SparseRows:
        """These rows, sparse, copied."""
        return SparseRows(self.matrix[rows])


class SelectedRows(LazyRows):
    """Rows of an array in a file, in any order; only indexed rows are read.

    Example:
      >>> SelectedRows(np.arange(10.0), np.array([7, 2, 5]))[1:].tolist()
      [2.0, 5.0]
    """

    def __init__(self, array: np.ndarray, rows: np.ndarray) -> None:
        self._array = np.asarray(array)
        self._rows = rows
        super().__init__((len(rows), *array.shape[1:]), array.dtype)

    def __getitem__(self, rows: Any) -> np.ndarray:
        return self._array[self._rows[rows]]

    def take(self, rows: np.ndarray | slice) -> SelectedRows:
        """These rows of it."""
        return SelectedRows(self._array, self._rows[rows])


def is_sparse(value: Any) -> bool:
    """Whether it is a SciPy sparse matrix; SciPy, slow to import, is left alone if nobody has it.

    Example:
      >>> import scipy.sparse
      >>> is_sparse(scipy.sparse.eye_array(2)), is_sparse(np.eye(2))
      (True, False)
    """
    scipy_sparse = sys.modules.get("scipy.sparse")
    return scipy_sparse is not None and scipy_sparse.issparse(value)


def as_rows(value: Any, what: str) -> Any:
    """An array; a SciPy sparse matrix as `SparseRows`.

    Args:
      value: an array, or what NumPy makes one of.
      what: the array, such as "The array 'x'".

    Raises:
      ValueError: if it cannot become an array of numbers, or a sparse array does not have two axes.
    """
    rows = value
    if is_sparse(value):
        if value.ndim != 2:
            raise ValueError(
                f"{what} is sparse, so it needs two axes (examples, columns), but has "
                f"{value.ndim}."
            )
        rows = SparseRows(value)
    elif not isinstance(value, np.ndarray | LazyRows):
        try:
            rows = np.asarray(value)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{what} is {kind_of(value)} that cannot become an array: {error}. All examples "
                "must have the same shape; pad or cut them."
            ) from None
    if np.ma.is_masked(rows):
        raise ValueError(
            f"{what} is masked, but a model would use the values behind the mask. Fill it, "
            "as in array.filled(0), or leave out these examples."
        )
    if rows.ndim:  # of others it is said that they have no examples
        require_numbers(what, rows.dtype)
    return rows


def take_rows(array: Any, rows: np.ndarray | slice) -> Any:
    """These rows: of an array in memory a copy, of one in a file what reads them when asked."""
    if isinstance(array, LazyRows):
        return array.take(rows)
    if isinstance(rows, slice):
        return array[rows]
    if is_in_a_file(array):
        return SelectedRows(array, rows)
    plain = type(array) is np.ndarray and not array.dtype.hasobject and rows.dtype.kind == "i"
    if not plain or not len(rows) or rows.min() < 0 or rows.max() >= len(array):
        return array[rows]
    # Where a CPU's devices read it, so that a run does not copy it again.
    taken = aligned_zeros((len(rows), *array.shape[1:]), array.dtype)
    return np.take(array, rows, axis=0, out=taken, mode="clip")  # "raise" would copy it twice


def join_rows(parts: list[Any]) -> Any:
    """The rows of all parts, one after the other; sparse if a part is."""
    if any(isinstance(part, SparseRows) for part in parts):
        import scipy.sparse  # noqa: PLC0415 - slow to import

        return SparseRows(scipy.sparse.vstack(
            [p.matrix if isinstance(p, SparseRows) else scipy.sparse.csr_array(p) for p in parts],
            format="csr",
        ))
    kind = np.result_type(*parts)
    if kind.hasobject:
        return np.concatenate(parts)
    joined = aligned_zeros((sum(map(len, parts)), *parts[0].shape[1:]), kind)
    return np.concatenate(parts, out=joined)


def is_in_a_file(array: Any) -> bool:
    """Whether an array is mapped from a file, itself or what it is a view of."""
    while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        array = array.base
    return isinstance(array, np.memmap | mmap.mmap | SelectedRows)


def read_ahead(array: Any, first: np.ndarray, sizes: np.ndarray) -> None:
    """Has the system read stretches of a mapped file, all at once; of other arrays nothing.

    Who then copies them waits for the disk once and not for each of them, one after the other.

    Args:
      array: perhaps mapped.
      first: the first row of each stretch.
      sizes: its rows.
    """
    mapped = getattr(array, "_mmap", None)
    if not isinstance(mapped, mmap.mmap) or not hasattr(mmap, "MADV_WILLNEED") or (
        not array.flags.c_contiguous
    ):
        return
    begin = array.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
    places = begin + first * array.strides[0]
    pages = places - places % mmap.PAGESIZE
    lengths = places + sizes * array.strides[0] - pages
    for page, length in zip(pages.tolist(), lengths.tolist(), strict=True):
        mapped.madvise(mmap.MADV_WILLNEED, page, length)


def release(array: Any) -> None:
    """Has a process no longer count what it read of a file that it mapped; of others nothing.

    The system keeps what was read as long as it has room, but it is not this process's memory,
    which otherwise grows towards the size of the file.
    """
    mapped = getattr(array, "_mmap", None)
    is_only_read = getattr(array, "mode", None) == "r"  # what was written would be lost
    if isinstance(mapped, mmap.mmap) and is_only_read and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def first_not_finite(array: Any) -> int | None:
    """The first row with NaN or infinity; None if there is none."""
    values = array.matrix.data if isinstance(array, SparseRows) else np.asarray(array)
    if not np.issubdtype(values.dtype, np.inexact):
        return None
    finite = np.isfinite(values)
    if finite.all():
        return None
    place = int(np.argwhere(~finite)[0][0])
    if isinstance(array, SparseRows):
        return int(np.searchsorted(array.matrix.indptr, place, side="right")) - 1
    return place
