"""Draws labels one after the other from clients' distributions, without replacement.

Each client has its own distribution over labels, and each label a limited number of examples. In
some order each slot (one example that a client is to get) draws a label; a label whose examples
are used up is removed from all distributions, which are normalised again.

That is the same as drawing again where a label is used up, so all slots may draw at first, and
those behind the slot at which a label ends draw again if they had drawn it. Nothing is done label
by label and slot by slot, and the result has the distribution of the loop that does.
"""

from __future__ import annotations

import itertools

import numpy as np

from fedax.data.partitions.ordering import stable_order

# A draw is so many bits of PCG64's words, which NumPy promises to keep as they are; probabilities
# are rounded to them.
_BITS = 32
# Tables of probabilities have about so many entries at a time.
_TABLE = 2**18
# So many slots draw at a time, which bounds memory.
_SLOTS = 2**20
# Slots that are looked at together, at first; in windows without an end they double.
_WINDOW = 2**12

Rng = np.random.Generator


def generator(seed: int) -> Rng:
    """NumPy's PCG64, named, as its default may become another."""
    return np.random.Generator(np.random.PCG64(seed))


def log_gammas(alpha: float, shape: tuple[int, ...], rng: Rng) -> np.ndarray:
    """Logarithms of Gamma(alpha) variables; normalised, a row is one of Dir(alpha).

    As log Gamma(alpha + 1) - E / alpha with an exponential E, so that none is 0 however small
    alpha is, and what is left of a row after labels were removed can still be normalised.
    """
    with np.errstate(over="ignore"):
        logs = rng.standard_gamma(alpha + 1, shape)
        np.log(logs, out=logs)
        steps = rng.standard_exponential(shape)
        steps /= alpha
        logs -= steps
    return np.maximum(logs, -1e300, out=logs)


class LabelDistributions:
    """A distribution over labels for each client: of groups, and of the labels in each group.

    Without groups there is one with all labels. A label that ended is drawn no more; a draw that
    met it is made again within its group, and a group that ended as a whole is drawn no more.
    """

    def __init__(
        self,
        label_logs: np.ndarray,
        group_logs: np.ndarray | None = None,
        group_of: np.ndarray | None = None,
    ) -> None:
        """Takes logarithms of what is proportional to the probabilities.

        Args:
          label_logs: float64 [num_clients, num_labels].
          group_logs: float64 [num_clients, num_groups]; None: one group.
          group_of: [num_labels], ascending from 0, each label's group.
        """
        num_labels = label_logs.shape[1]
        self._labels, self._groups = label_logs, group_logs
        self._group_of = np.zeros(num_labels, np.int64) if group_of is None else group_of
        self._starts = np.flatnonzero(np.diff(self._group_of, prepend=-1))

    @property
    def num_labels(self) -> int:
        """How many labels there are, those that ended too."""
        return self._labels.shape[1]

    def draw(
        self, clients: np.ndarray, is_left: np.ndarray, rng: Rng, met: np.ndarray | None = None
    ) -> np.ndarray:
        """A label for each slot.

        Args:
          clients: [num_slots], whose slot each is.
          is_left: bool [num_labels].
          rng: where words come from.
          met: [num_slots], labels that ended, which the slots had drawn; None: they draw first.
        """
        drawn = np.empty(len(clients), np.int32)
        for start in range(0, len(clients), _SLOTS):
            some = slice(start, start + _SLOTS)
            drawn[some] = self._draw(
                clients[some], is_left, rng, None if met is None else met[some]
            )
        return drawn

    def _draw(
        self, clients: np.ndarray, is_left: np.ndarray, rng: Rng, met: np.ndarray | None
    ) -> np.ndarray:
        groups = np.zeros(len(clients), np.int64)
        if self._groups is not None:
            has_labels = np.logical_or.reduceat(is_left, self._starts)
            if met is not None:
                groups = self._group_of[met]
            again = np.full(len(clients), True) if met is None else ~has_labels[groups]
            one = np.zeros(len(has_labels), np.int64)
            groups[again] = _draw(
                self._groups, one, has_labels, clients[again], one[:1], rng
            )
        return _draw(self._labels, self._group_of, is_left, clients, groups, rng)


def draw_labels(
    distributions: LabelDistributions,
    clients: np.ndarray,
    counts: np.ndarray,
    rng: Rng,
) -> np.ndarray:
    """Draws a label for each slot, of each label no more than there are.

    Args:
      distributions: of the clients.
      clients: [num_slots], whose each is, in the order in which they draw.
      counts: int64 [num_labels], examples of each label, at least num_slots in all.
      rng: where words come from.

    Returns:
      [num_slots], the labels.
    """
    left = counts.copy()
    is_left = counts > 0
    labels = distributions.draw(clients, is_left, rng)
    start, window = 0, _WINDOW
    while start < len(labels):
        found = labels[start : start + window]
        ended = np.flatnonzero(~is_left[found])
        if len(ended):
            found[ended] = distributions.draw(
                clients[start : start + window][ended], is_left, rng, found[ended]
            )
        drawn = np.bincount(found, minlength=len(left))
        over = np.flatnonzero(drawn > left)
        if not len(over):
            left -= drawn
            start, window = start + window, 2 * window
            continue
        # Where each label that is drawn too often ends; what stands before the first end is done.
        order = stable_order(found, len(left))
        begins = np.cumsum(drawn) - drawn
        ends = order[begins[over] + left[over]]
        first = ends.min()
        left -= np.bincount(found[:first], minlength=len(left))
        is_left[over[ends.argmin()]] = False
        start, window = start + int(first), max(_WINDOW, window // 4)
    return labels


def take_labelled(
    labels: np.ndarray, codes: np.ndarray, counts: np.ndarray, rng: Rng
) -> np.ndarray:
    """A row with its label for each slot, drawn at random without replacement.

    Args:
      labels: [num_slots], of each no more than there are rows.
      codes: [num_rows], the rows' labels.
      counts: int64 [num_labels], how many rows each has.
      rng: orders the rows.
    """
    shuffled = rng.permutation(len(codes))
    by_label = shuffled[stable_order(codes[shuffled], len(counts))]
    drawn = np.bincount(labels, minlength=len(counts))
    begins = np.repeat(np.cumsum(counts) - counts, drawn)
    place = np.arange(len(labels)) - np.repeat(np.cumsum(drawn) - drawn, drawn)
    rows = np.empty(len(labels), np.int64)
    rows[stable_order(labels, len(counts))] = by_label[begins + place]
    return rows


def _draw(
    logs: np.ndarray,
    group_of: np.ndarray,
    is_left: np.ndarray,
    clients: np.ndarray,
    groups: np.ndarray,
    rng: Rng,
) -> np.ndarray:
    """Draws, for each slot, a column of its client's row, among those of one group.

    Args:
      logs: [num_clients, num_columns].
      group_of: [num_columns], ascending.
      is_left: bool [num_columns], which may be drawn.
      clients: [num_slots].
      groups: [num_slots] or [1], where to draw.
      rng: where words come from.
    """
    words = (rng.bit_generator.random_raw(len(clients)) >> np.uint64(64 - _BITS)).astype(np.int64)
    columns = np.flatnonzero(is_left)
    own = group_of[columns]
    num_groups = int(group_of[-1]) + 1
    targets = (groups << _BITS) + words
    drawn = np.empty(len(clients), np.int64)
    is_sorted = bool((clients[1:] >= clients[:-1]).all())
    order = slice(None) if is_sorted else stable_order(clients, len(logs))
    ordered, targets = clients[order], targets[order]
    is_first = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    place, present = np.cumsum(is_first) - 1, ordered[is_first]
    found = np.empty(len(clients), np.int64)
    size = max(1, _TABLE // max(1, len(columns)))
    begins = np.append(np.flatnonzero(is_first)[::size], len(ordered))
    for block, (begin, end) in enumerate(itertools.pairwise(begins)):
        some = present[block * size : (block + 1) * size]
        edges = _edges(logs[np.ix_(some, columns)], own)
        edges += (np.arange(len(some)) * num_groups << _BITS)[:, None]
        local = place[begin:end] - block * size
        at = np.searchsorted(
            edges.reshape(-1), targets[begin:end] + (local * num_groups << _BITS), side="right"
        )
        found[begin:end] = columns[at - local * len(columns)]
    drawn[order] = found
    return drawn


def _edges(logs: np.ndarray, group_of: np.ndarray) -> np.ndarray:
    """The rows' cumulated probabilities within groups, whole numbers; those of group g above g."""
    starts = np.flatnonzero(np.diff(group_of, prepend=-1))
    lengths = np.diff(np.append(starts, len(group_of)))
    highest = np.repeat(np.maximum.reduceat(logs, starts, axis=1), lengths, axis=1)
    sums = np.cumsum(np.exp(logs - highest), axis=1)
    below = np.concatenate([np.zeros((len(sums), 1)), sums], axis=1)[:, starts]
    above = sums[:, starts + lengths - 1]
    shares = (sums - np.repeat(below, lengths, axis=1)) / np.repeat(above - below, lengths, axis=1)
    return (np.rint(shares * 2.0**_BITS)).astype(np.int64) + (group_of << _BITS)
