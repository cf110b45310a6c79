"""Checks of labels and of the number of clients."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedax.validate import check_count, check_number, check_seed, quoted

# Labels up to here, or up to the number of rows, are counted and not sorted.
_FEW = 2**16


class Classes(NamedTuple):
    """The labels that occur, numbered from 0 in ascending order.

    Attributes:
      codes: [num_rows], the number of each row's label.
      counts: int64 [num_labels], how many rows have it.
      labels: [num_labels], the labels themselves.
    """

    codes: np.ndarray
    counts: np.ndarray
    labels: np.ndarray


def classes_of(labels: Any, what: str = "labels") -> Classes:
    """The labels that occur.

    Args:
      labels: whole numbers >= 0, [num_rows].
      what: their name in messages.

    Raises:
      ValueError: if they are something else. The message names the row.
    """
    values = np.asarray(labels)
    if values.ndim != 1:
        raise ValueError(
            f"{what} must be one label for each row, but they have shape {list(values.shape)}."
        )
    if not len(values):
        raise ValueError(f"{what} is empty: there are no examples to partition.")
    if values.dtype.kind not in "iu":
        kind = "text" if values.dtype.kind in "UST" else str(values.dtype)
        cure = {
            "f": "convert them with labels.astype(np.int32)",
            "b": "convert them with labels.astype(np.int32)",
        }.get(values.dtype.kind, "number them with np.unique(labels, return_inverse=True)[1]")
        raise ValueError(
            f"{what} must be whole numbers, but they are {kind}, such as "
            f"{quoted(values[0].item())}; "
            f"{cure}."
        )
    if values.dtype.kind == "i" and values.min() < 0:
        row = int((values < 0).argmax())
        raise ValueError(
            f"{what} must be at least 0, but the label of row {row} is {values[row]}. Leave out "
            "rows without a label, or number the labels from 0."
        )
    if int(values.max()) < max(_FEW, len(values)):
        counts = np.bincount(values.astype(np.int64, copy=False))
        found = np.flatnonzero(counts)
        number = np.cumsum(counts > 0) - 1
        return Classes(number.astype(np.int32)[values], counts[found], found)
    found, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    return Classes(codes.astype(np.int32), counts, found)


def check_population(num_examples: int, num_clients: Any, seed: Any) -> None:
    """Raises a clear error if there are fewer examples than clients."""
    check_count("num_clients", num_clients)
    check_seed(seed)
    if num_examples < 1:
        raise ValueError("There are no examples to partition.")
    if num_clients > num_examples:
        raise ValueError(
            f"num_clients is {num_clients:,}, but there are {num_examples:,} examples, and each "
            f"client needs at least one. Use at most {num_examples:,} clients."
        )


def check_alpha(name: str, value: Any) -> None:
    """Raises a clear error unless it is a concentration of a Dirichlet distribution."""
    check_number(name, value, above=0)


def even_sizes(
    num_examples: int, num_clients: int, examples_per_client: int | None = None
) -> np.ndarray:
    """Sizes of clients that differ by at most one; or all equal, with some examples left over.

    Raises:
      ValueError: if there are too few examples.
    """
    if examples_per_client is None:
        quotient, rest = divmod(num_examples, num_clients)
        return quotient + (np.arange(num_clients) < rest).astype(np.int64)
    check_count("examples_per_client", examples_per_client)
    if num_clients * examples_per_client > num_examples:
        raise ValueError(
            f"{num_clients:,} clients with {examples_per_client:,} examples each need "
            f"{num_clients * examples_per_client:,}, but there are {num_examples:,}."
        )
    return np.full(num_clients, examples_per_client, np.int64)


def call_text(name: str, *values: Any, examples_per_client: int | None = None) -> str:
    """A partition as one would write it."""
    words = [repr(value) if isinstance(value, str) else _shortest(value) for value in values]
    if examples_per_client is not None:
        words.append(f"examples_per_client={examples_per_client}")
    return f"{name}({', '.join(words)})" if words else name


def _shortest(number: Any) -> str:
    """The number as text that reads as the same number."""
    if isinstance(number, int | np.integer):
        return str(number)
    short = f"{number:g}"
    return short if float(short) == number else repr(float(number))
