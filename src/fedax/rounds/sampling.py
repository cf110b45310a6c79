"""Which clients take part in a round."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from fedax.data.cohort_data import NOBODY, STAYS
from fedax.data.splitting import splitmix
from fedax.mistakes.errors import checked_call, kind_of
from fedax.validate import check_choice, check_count, check_number

Sampling: TypeAlias = Literal[
    "uniform", "with_replacement", "by_weight", "cyclic", "poisson", "full"
]
Draw: TypeAlias = Callable[[int], np.ndarray]
Available: TypeAlias = Callable[[np.ndarray, int], np.ndarray]

# What a random stream is for, so that no two are the same.
_DROPOUT, _PASS, _REPLACEMENT, _AVAILABLE, _PERSONALIZED, _TESTED, _POISSON, _GROUPS = range(8)
# A cohort of random size has places for so many standard deviations more than are expected, which
# are exceeded in one round of a million; then it is padded to as many again.
_DEVIATIONS = 5.0


def sample_cohort(
    seed: int, round_index: int, num_clients: int, cohort_size: int
) -> np.ndarray:
    """Draws a cohort uniformly without replacement; rounds are independent of each other.

    Floyd's algorithm (Bentley and Floyd 1987) on the Philox stream of (seed, round_index): the cost
    grows with the cohort, not with the population. The draw does not depend on earlier rounds, so a
    resumed run draws the same cohorts as an uninterrupted one.

    Args:
      seed: the run's seed, >= 0.
      round_index: t = 0, 1, ...
      num_clients: N, the size of the population.
      cohort_size: 1 .. N.

    Returns:
      Sorted client indices, int64 [cohort_size].

    Raises:
      ValueError: if the cohort is empty or larger than the population.

    Example:
      >>> sample_cohort(seed=0, round_index=3, num_clients=5, cohort_size=5).tolist()
      [0, 1, 2, 3, 4]
    """
    if not 1 <= cohort_size <= num_clients:
        raise ValueError(_cannot_draw(num_clients, cohort_size))
    if cohort_size == num_clients:
        return np.arange(num_clients, dtype=np.int64)
    # A spawn key, unlike a second word of entropy, collides with no other (seed, round).
    stream = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(round_index,)))
    chosen: set[int] = set()
    lasts = range(num_clients - cohort_size, num_clients)
    for word, last in zip(stream.random_raw(cohort_size).tolist(), lasts, strict=True):
        draw = (word * (last + 1)) >> 64  # uniform on 0 .. last up to 2^-64 * (last + 1)
        chosen.add(last if draw in chosen else draw)
    return np.array(sorted(chosen), dtype=np.int64)


class Cohort(NamedTuple):
    """The clients sampled for a round.

    Attributes:
      client_ids: int64 [places]; with replacement a client may occur twice.
      dropped_at: int64 [places], the exchange in which a client drops out: `STAYS` if it stays to
        the end, `NOBODY` for a place without a client, which only pads the cohort.
    """

    client_ids: np.ndarray
    dropped_at: np.ndarray


class Sampler(NamedTuple):
    """How cohorts are drawn, see `sampler`.

    Attributes:
      draw: round -> client indices.
      available: which of them are available; None: all.
      dropout: probability that a client drops out.
      seed: the run's.
      places: smaller cohorts are padded to this size, as each size needs its own compilation;
        larger ones to a multiple of it.
      expected: the expected size of a cohort whose size is drawn; None: it is not drawn.
    """

    draw: Draw
    available: Available | None
    dropout: float
    seed: int
    places: int
    expected: int | None = None

    def __call__(self, round_index: int, num_exchanges: int) -> Cohort:
        """The cohort of a round; depends only on the arguments and the seed."""
        client_ids = self.draw(round_index)
        dropped_at = np.full(len(client_ids), STAYS, np.int64)
        if self.dropout > 0:
            draw = _generator(self.seed, round_index, _DROPOUT)
            gone = draw.random(len(client_ids)) < self.dropout
            dropped_at[gone] = draw.integers(0, num_exchanges, len(client_ids))[gone]
        if self.available is not None:
            dropped_at[~_reached(self.available, client_ids, round_index)] = 0
        empty = -len(client_ids) % self.places if self.places else 0
        empty = empty if len(client_ids) else self.places
        someone = client_ids[-1] if len(client_ids) else 0
        return Cohort(
            np.append(client_ids, np.full(empty, someone)),
            np.append(dropped_at, np.full(empty, NOBODY)),
        )


def sampler(
    sampling: Sampling | Callable[[int, int], np.ndarray],
    client_sizes: np.ndarray,
    cohort_size: int,
    seed: int,
    *,
    available: Available | None = None,
    dropout: float = 0.0,
    groups: int = 1,
) -> Sampler:
    """A sampler of cohorts.

    Args:
      sampling: one of
        "uniform": without replacement within a round, independent between rounds;
        "with_replacement": uniform; a client may be drawn twice and then counts twice, with
          different minibatches; the first of its two new client states is kept;
        "by_weight": with replacement, with probability n_i / sum n; with weighting="uniform" it
          estimates the mean weighted by examples without bias;
        "cyclic": passes over the population, each in a new random order; the last cohort of a pass
          has only the remaining clients;
        "poisson": each client by itself with probability cohort_size / N, so that sizes vary, for
          `fedax.private`;
        "full": all clients in every round; cohort_size is ignored;
        or your own function (seed, round_index) -> client indices.
      client_sizes: n_i, [num_clients].
      cohort_size: number of clients per round.
      seed: the run's seed.
      available: (client_ids, round_index) -> bool array, whether each client is available, for
        example from `part_of_the_day`. It must depend on nothing else, or runs are not
        reproducible. "uniform" draws among the available clients, or takes all of them if they are
        fewer than cohort_size. With the other kinds of sampling a client that is not available
        counts as dropped.
      dropout: probability in [0, 1) that a sampled client drops out during the round; each exchange
        is equally likely to be the first that it misses.
      groups: b >= 1, for "poisson": clients are dealt at random into b groups of equal size, which
        take turns, and N mod b of them never take part. A client's rounds are then b apart or
        more.

    Raises:
      TypeError: if client_sizes are not a sequence of integers.
      ValueError: if an argument is out of range.

    Example:
      >>> draw = sampler("cyclic", np.array([5, 5, 5, 5, 5]), cohort_size=2, seed=0)
      >>> np.concatenate([draw(t, num_exchanges=1).client_ids for t in range(2)]).tolist()
      [1, 3, 0, 4]
    """
    if np.ndim(client_sizes) != 1:
        raise TypeError(
            "client_sizes must be the number of examples of each client, such as "
            f"task.train.client_sizes, but is {kind_of(client_sizes)}."
        )
    num_clients = len(client_sizes)
    check_count("cohort_size", cohort_size)
    check_number("dropout", dropout, at_least=0, below=1)
    if available is not None and not callable(available):
        raise ValueError(
            "available must be a function of (client_ids, round_index), such as "
            f"part_of_the_day(0.5), but is {available!r}."
        )
    if callable(sampling):
        draw: Draw = functools.partial(_own, sampling, seed, num_clients)
        return Sampler(draw, available, dropout, seed, places=0)
    check_choice("sampling", sampling, get_args(Sampling))
    if sampling in ("uniform", "cyclic", "poisson") and cohort_size > num_clients // groups:
        raise ValueError(_cannot_draw(num_clients // groups, cohort_size))
    if sampling == "poisson":
        return Sampler(
            _poisson(seed, num_clients, cohort_size, groups), available, dropout, seed,
            min(math.ceil(cohort_size + _DEVIATIONS * math.sqrt(cohort_size)),
                num_clients // groups),
            cohort_size,
        )
    if sampling == "uniform" and available is not None:
        draw = functools.partial(_among_available, seed, num_clients, cohort_size, available)
        return Sampler(draw, None, dropout, seed, cohort_size)
    draw = _DRAWS[sampling](seed, client_sizes, cohort_size)
    return Sampler(draw, available, dropout, seed, cohort_size if sampling == "cyclic" else 0)


def sample_clients(seed: int, num_clients: int, count: int) -> np.ndarray:
    """Draws clients once, for a measurement that is repeated on the same clients.

    Returns:
      Sorted client indices, int64 [min(count, num_clients)].
    """
    if count >= num_clients:
        return np.arange(num_clients)
    draw = _generator(seed, 0, _PERSONALIZED)
    return np.sort(draw.choice(num_clients, count, replace=False))


def sample_examples(
    seed: int, num_examples: int, count: int, round_index: int = 0
) -> np.ndarray:
    """Draws test examples: `count` sorted indices, int64; other ones for each round."""
    draw = _generator(seed, round_index, _TESTED)
    return np.sort(draw.choice(num_examples, count, replace=False, shuffle=False))


def part_of_the_day(share: float, rounds_per_day: int = 24, seed: int = 0) -> Available:
    """Clients that are available for a share of each day, each at its own time of day.

    Client i is available in round t when t / rounds_per_day + phase_i, modulo 1, is below share,
    with phase_i uniform in [0, 1).

    Args:
      share: in (0, 1].
      rounds_per_day: number of rounds after which the pattern repeats, >= 1.
      seed: seed of the phases.

    Raises:
      ValueError: if an argument is out of range.

    Example:
      >>> available = part_of_the_day(0.25)
      >>> hours = [available(np.arange(1000), t) for t in range(24)]
      >>> sorted(set(np.sum(hours, axis=0).tolist()))  # each can be reached in 6 of 24 rounds
      [6]
    """
    check_number("share", share, above=0, at_most=1)
    check_count("rounds_per_day", rounds_per_day)

    def available(client_ids: np.ndarray, round_index: int) -> np.ndarray:
        # A hash of the index, as no array over the population is kept.
        word = np.asarray(client_ids, np.uint64) + np.uint64((seed * 0x632BE59BD9B4E019) % 2**64)
        phase = (splitmix(word) >> np.uint64(11)).astype(np.float64) / 2**53
        return (round_index / rounds_per_day + phase) % 1 < share

    return available


def _uniform(seed: int, client_sizes: np.ndarray, cohort_size: int) -> Draw:
    num_clients = len(client_sizes)
    return lambda t: sample_cohort(seed, t, num_clients, cohort_size)


def _with_replacement(seed: int, client_sizes: np.ndarray, cohort_size: int) -> Draw:
    num_clients = len(client_sizes)
    return lambda t: np.sort(
        _generator(seed, t, _REPLACEMENT).integers(0, num_clients, cohort_size)
    )


def _by_weight(seed: int, client_sizes: np.ndarray, cohort_size: int) -> Draw:
    totals = np.cumsum(client_sizes, dtype=np.float64)

    def draw(round_index: int) -> np.ndarray:
        points = _generator(seed, round_index, _REPLACEMENT).random(cohort_size) * totals[-1]
        return np.sort(np.searchsorted(totals, points, side="right")).astype(np.int64)

    return draw


def _cyclic(seed: int, client_sizes: np.ndarray, cohort_size: int) -> Draw:
    num_clients = len(client_sizes)

    @functools.lru_cache(maxsize=1)
    def order(number: int) -> np.ndarray:
        return _generator(seed, number, _PASS).permutation(num_clients)

    def draw(round_index: int) -> np.ndarray:
        number, place = divmod(round_index, -(-num_clients // cohort_size))
        return np.sort(order(number)[place * cohort_size : (place + 1) * cohort_size])

    return draw


def _poisson(seed: int, num_clients: int, cohort_size: int, groups: int) -> Draw:
    """A binomial number of the group whose turn it is, then as many without replacement."""
    group_size = num_clients // groups

    @functools.cache
    def order() -> np.ndarray:
        return _generator(seed, 0, _GROUPS).permutation(num_clients)

    def draw(round_index: int) -> np.ndarray:
        generator = _generator(seed, round_index, _POISSON)
        count = int(generator.binomial(group_size, cohort_size / group_size))
        drawn = np.sort(generator.choice(group_size, count, replace=False, shuffle=False))
        if groups == 1:
            return drawn.astype(np.int64)
        first = round_index % groups * group_size
        return np.sort(order()[first + drawn])

    return draw


def _full(seed: int, client_sizes: np.ndarray, cohort_size: int) -> Draw:
    del seed, cohort_size
    everyone = np.arange(len(client_sizes), dtype=np.int64)
    return lambda t: everyone  # noqa: ARG005


_DRAWS: dict[str, Callable[[int, np.ndarray, int], Draw]] = {
    "uniform": _uniform,
    "with_replacement": _with_replacement,
    "by_weight": _by_weight,
    "cyclic": _cyclic,
    "full": _full,
}


def _among_available(
    seed: int, num_clients: int, cohort_size: int, available: Available, round_index: int
) -> np.ndarray:
    """cohort_size of those available, uniformly without replacement; all, if they are fewer.

    Candidates are drawn until enough can be reached, so the cost grows with the cohort; only
    if hardly anyone can, the whole population is looked through.
    """
    generator = _generator(seed, round_index, _AVAILABLE)
    found: dict[int, None] = {}
    for _ in range(16):
        candidates = generator.integers(0, num_clients, 4 * cohort_size)
        reached = candidates[_reached(available, candidates, round_index)].tolist()
        found |= dict.fromkeys(reached)
        if len(found) >= cohort_size:
            return np.sort(np.array(list(found)[:cohort_size], np.int64))
    everyone = np.arange(num_clients, dtype=np.int64)
    reached = everyone[_reached(available, everyone, round_index)]
    if len(reached) > cohort_size:
        reached = generator.choice(reached, cohort_size, replace=False)
    return np.sort(reached)


def _reached(available: Available, client_ids: np.ndarray, round_index: int) -> np.ndarray:
    """Who of them can be reached, checked: bool [len(client_ids)]."""
    reached = np.asarray(available(client_ids, round_index))
    if reached.dtype != bool or reached.shape != client_ids.shape:
        raise ValueError(
            f"available must return True or False for each of the {len(client_ids)} clients it is "
            f"given, but returned {reached.dtype}{list(reached.shape)}."
        )
    return reached


def _own(
    sampling: Callable[[int, int], np.ndarray], seed: int, num_clients: int, round_index: int
) -> np.ndarray:
    """The cohort of a user's own function."""
    ids = checked_call(
        ValueError, "The function given as sampling", "sampling(seed, round_index)", sampling,
        (seed, round_index), {},
    )
    return _checked_ids(ids, num_clients)


def _checked_ids(client_ids: np.ndarray, num_clients: int) -> np.ndarray:
    try:
        ids = np.asarray(client_ids)
    except (TypeError, ValueError):  # lists of unequal lengths
        ids = np.zeros(0)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids):
        raise ValueError(
            f"A sampler must return client indices, a list of integers, but returned "
            f"{client_ids!r}."
        )
    if ids.min() < 0 or ids.max() >= num_clients:
        raise ValueError(
            f"A sampler returned client {ids.max() if ids.max() >= num_clients else ids.min()}, "
            f"but the clients are 0 to {num_clients - 1}."
        )
    return ids.astype(np.int64)


def _generator(seed: int, number: int, purpose: int) -> np.random.Generator:
    # A spawn key of two words collides with none of sample_cohort's, which have one.
    sequence = np.random.SeedSequence(seed, spawn_key=(number, purpose))
    return np.random.Generator(np.random.Philox(sequence))


def _cannot_draw(num_clients: int, cohort_size: int) -> str:
    return (
        f"A cohort of {cohort_size} clients cannot be drawn from a population of "
        f"{num_clients}; choose a cohort_size from 1 to {num_clients}."
    )
