"""Sorting by small whole numbers, and from the owner of each row to rows client by client."""

from __future__ import annotations

import numpy as np


def stable_order(values: np.ndarray, size: int) -> np.ndarray:
    """What sorts whole numbers in [0, size), equal ones in the order in which they stand.

    In linear time: NumPy sorts numbers of 16 bits by counting.

    Example:
      >>> stable_order(np.array([2, 0, 2, 1]), 3).tolist()
      [1, 3, 0, 2]
    """
    order = np.argsort(values.astype(np.uint16), kind="stable")  # by the lower 16 bits
    bits = 16
    while size > 1 << bits:
        higher = (values >> bits).astype(np.uint16)
        order = order[np.argsort(higher[order], kind="stable")]
        bits += 16
    return order


def rows_of(owner: np.ndarray, num_clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows client by client, each one's ascending, and the clients' offsets.

    Args:
      owner: [num_rows], the client that owns each row, -1 for a row that nobody owns.
      num_clients: how many there are.

    Example:
      >>> rows, offsets = rows_of(np.array([1, 0, -1, 1]), 2)
      >>> rows.tolist(), offsets.tolist()
      ([1, 0, 3], [0, 1, 3])
    """
    sizes = np.bincount(owner + 1, minlength=num_clients + 1)
    rows = stable_order(owner + 1, num_clients + 1)[sizes[0] :]
    return rows, np.append(0, np.cumsum(sizes[1:]))
