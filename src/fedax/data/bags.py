"""Bags of words: sparse rows as arrays of columns and values."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedax.data.rows import SparseRows, is_sparse
from fedax.mistakes.errors import kind_of


def bags_of_words(matrix: Any) -> tuple[np.ndarray, np.ndarray]:
    """Converts a SciPy sparse matrix [n, N] to words and counts for `tag_logistic_regression`.

    Args:
      matrix: in any format; duplicate entries are summed, and zeros are left out.

    Returns:
      The columns of each row's numbers, ascending, int32 [n, m], padded with -1; and the numbers,
      float32 [n, m], padded with 0. m is the largest number of entries in a row, at least 1.

    Raises:
      TypeError: if it is not a sparse matrix with two axes.

    Example:
      >>> import scipy.sparse
      >>> words, counts = bags_of_words(scipy.sparse.csr_array([[0, 2, 1], [0, 0, 0]]))
      >>> words.tolist(), counts.tolist()
      ([[1, 2], [-1, -1]], [[2.0, 1.0], [0.0, 0.0]])
    """
    if isinstance(matrix, SparseRows):
        matrix = matrix.matrix
    if not is_sparse(matrix) or matrix.ndim != 2:
        raise TypeError(
            f"bags_of_words takes a SciPy sparse matrix [n, N], but got {kind_of(matrix)}. "
            "Convert a dense array with scipy.sparse.csr_array."
        )
    import scipy.sparse  # noqa: PLC0415 - slow to import

    rows = scipy.sparse.csr_array(matrix, copy=True)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    sizes = np.diff(rows.indptr)
    filled = np.arange(max(1, sizes.max(initial=0))) < sizes[:, None]
    words = np.full(filled.shape, -1, np.int32)
    counts = np.zeros(filled.shape, np.float32)
    words[filled], counts[filled] = rows.indices, rows.data
    return words, counts
