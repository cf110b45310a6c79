"""Chooses examples or whole clients for validation and testing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np

from fedax.validate import check_choice, check_number, check_seed

SplitBy: TypeAlias = Literal["examples", "clients"]

# What a row is for.
TRAIN, VALIDATION, TEST = 0, 1, 2


def split_rows(
    names: Sequence[str], sizes: np.ndarray, test: float, validation: float | None, seed: int,
    by: SplitBy,
) -> np.ndarray:
    """What each example is for, see `FederatedDataset.split`.

    Raises:
      ValueError: if an argument is out of range, or a part would be empty.
    """
    check_choice("split kind (by)", by, get_args(SplitBy))
    check_number("fraction", test, above=0, below=1)
    if validation is not None:
        check_number("validation", validation, above=0, below=1)
        if test + validation >= 1:
            raise ValueError(
                f"The fractions for testing, {test:g}, and for validation, {validation:g}, leave "
                "nothing to train with; together they must be below 1."
            )
    check_seed(seed)
    if by == "clients":
        return np.repeat(parts_of_clients(names, test, validation or 0.0, seed), sizes)
    parts = parts_of_rows(names, sizes, test, validation or 0.0, seed)
    if not (parts == TEST).any():
        raise ValueError("No client has two or more examples, so there is nothing to split.")
    if validation is not None and not (parts == VALIDATION).any():
        raise ValueError(
            "No client has three or more examples, so none are left for validation after the test "
            "part. Hold out whole clients: by='clients'."
        )
    return parts


def parts_of_rows(
    names: Sequence[str], sizes: np.ndarray, test: float, validation: float, seed: int
) -> np.ndarray:
    """The part of each example: `TRAIN`, `VALIDATION` or `TEST`.

    Of a client's n examples, each part gets round(fraction n), but at least one, and at least one
    is for training. A client with two examples has none for validation; a single example is for
    training. The test part does not depend on the validation part.

    Args:
      names: of the clients.
      sizes: n_i, int64 [num_clients].
      test, validation: fractions, in [0, 1), together below 1; 0: no such part.
      seed: >= 0.

    Returns:
      int8 [sum n_i].

    Example:
      >>> parts_of_rows(["ada", "bob"], np.array([5, 1]), 0.2, 0.4, seed=0).tolist()
      [0, 0, 2, 1, 1, 0]
    """
    for_test, both = np.zeros_like(sizes), np.zeros_like(sizes)
    if test:
        for_test = both = _count(test, sizes)
    if validation:
        both = for_test + np.minimum(_count(validation, sizes), np.maximum(sizes - 1 - for_test, 0))
    owner, rank = _ranks(names, sizes, seed)
    parts = np.full(len(owner), TRAIN, np.int8)
    parts[rank < both[owner]] = VALIDATION
    parts[rank < for_test[owner]] = TEST
    return parts


def parts_of_clients(
    names: Sequence[str], test: float, validation: float, seed: int
) -> np.ndarray:
    """The part of each client: `TRAIN`, `VALIDATION` or `TEST`.

    Of N clients, each part gets round(fraction N), but at least one. The test clients
    do not depend on the validation part.

    Args:
      names: of the clients.
      test, validation, seed: as for `parts_of_rows`.

    Returns:
      int8 [num_clients].

    Raises:
      ValueError: if no client is left for training.

    Example:
      >>> parts_of_clients(["ada", "bob", "eve", "joe"], 0.25, 0.25, seed=0).tolist()
      [0, 0, 1, 2]
    """
    total = len(names)
    for_test, for_validation = (
        max(round(fraction * total), 1) if fraction else 0 for fraction in (test, validation)
    )
    if for_test + for_validation >= total:
        raise ValueError(
            f"Of {total} clients {for_test + for_validation} would be held out, so none is left to "
            "train. Give smaller fractions, or split each client's examples with by='examples'."
        )
    words = splitmix(np.array([_word(f"{seed}/{name}") for name in names], np.uint64))
    order = np.argsort(words, kind="stable")
    parts = np.full(total, TRAIN, np.int8)
    parts[order[: for_test + for_validation]] = VALIDATION
    parts[order[:for_test]] = TEST
    return parts


def _count(fraction: float, sizes: np.ndarray) -> np.ndarray:
    """How many of each client's examples are held out."""
    count = np.clip(np.rint(fraction * sizes).astype(np.int64), 1, np.maximum(sizes - 1, 1))
    count[sizes < 2] = 0
    return count


def _ranks(
    names: Sequence[str], sizes: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Each example's client, and its rank among that client's by a hash of seed, name and place."""
    words = np.array([_word(f"{seed}/{name}") for name in names], np.uint64)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(owner)) - (np.cumsum(sizes) - sizes)[owner]
    # The examples with a client's smallest words; equal words of one client: the earlier example.
    order = np.lexsort((splitmix(words[owner] + place.astype(np.uint64)), owner))
    rank = np.empty(len(owner), np.int64)
    rank[order] = place
    return owner, rank


def held_out_rows(
    names: Sequence[str], sizes: np.ndarray, fraction: float, seed: int
) -> np.ndarray:
    """Draws a part of each client's examples without replacement.

    Draws round(fraction n) of a client's n examples, but at least one and at most n - 1; none from
    a client with a single example. The draw depends only on the seed, the client's name, n and the
    fraction. A larger fraction includes all examples of a smaller one.

    Args:
      names: of the clients.
      sizes: n_i, int64 [num_clients].
      fraction: in (0, 1).
      seed: >= 0.

    Returns:
      bool [sum n_i], True for the examples drawn.

    Example:
      >>> held_out_rows(["ada", "bob"], np.array([4, 1]), 0.5, seed=0).tolist()
      [False, False, True, True, False]
    """
    return parts_of_rows(names, sizes, fraction, 0.0, seed) == TEST


def splitmix(words: np.ndarray) -> np.ndarray:
    """A hash of whole numbers, uint64 (Steele et al. 2014): neighbours get unrelated words."""
    words = words * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return words ^ (words >> np.uint64(31))


def _word(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
