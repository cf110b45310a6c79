"""The controller that lowers learning rates when a loss stops falling.

Charles, Konečný, "On the Outsized Importance of Learning Rates in Local Update Methods" (2020),
section 9, Algorithms 3 and 4, equation (25).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from fedax.algorithm import Array
from fedax.validate import check_choice, check_count, check_number, quoted

PlateauRule = Literal["paper", "released"]


class Rates(NamedTuple):
    """This round's client and server learning rate; None if the algorithm has no such rate."""

    client: Any
    server: Any


class Plateau(NamedTuple):
    """The controller's state; scalars, except for the window.

    Attributes:
      losses: the last W losses, [W], the newest last; infinite before there are W.
      best: what a window's mean is compared with.
      num_bad: rounds in a row without progress, int32.
      cooldown: rounds to come in which the rates do not fall, int32.
      num_decays: how often they fell, int32.
    """

    losses: Array
    best: Array
    num_bad: Array
    cooldown: Array
    num_decays: Array


class Controller(NamedTuple):
    """Which learning rates a round has; see `local_update_decay`.

    Attributes:
      start: of the first round.
      decays: what they are multiplied by in a fall.
      window, patience, cooldown: W, P and C.
      threshold: Delta.
      rule: of the paper, or of its released code.
    """

    start: Rates
    decays: Rates
    window: int
    patience: int | Array
    cooldown: int | Array
    threshold: float | Array
    rule: PlateauRule

    @classmethod
    def checked(
        cls, start: Rates, decays: Rates, window: int, patience: int | Array,
        cooldown: int | Array, threshold: float | Array, rule: PlateauRule,
    ) -> Controller:
        """A controller of these settings.

        Raises:
          ValueError: if one is out of its range, unless it is traced.
        """
        for side, rate in start._asdict().items():
            if callable(rate) or isinstance(rate, str):
                raise ValueError(
                    f"{side}_learning_rate must be a number, because local_update_decay changes "
                    f"it, but is {quoted(rate)}."
                )
        if start.client is not None:
            check_number("client_learning_rate", start.client, at_least=0)
        if start.server is not None:
            check_number("server_learning_rate", start.server, above=0)
        if all(rate is None for rate in start):
            raise ValueError("client_learning_rate and server_learning_rate are both None, so "
                             "local_update_decay has nothing to lower. Give at least one.")
        check_number("client_decay", decays.client, above=0, at_most=1)
        check_number("server_decay", decays.server, above=0, at_most=1)
        check_count("window", window)
        check_count("patience", patience)
        check_count("cooldown", cooldown, at_least=0)
        check_number("threshold", threshold, at_least=0)
        check_choice("rule", rule, get_args(PlateauRule))
        start = jax.tree.map(jnp.asarray, start)
        return cls(start, decays, window, patience, cooldown, threshold, rule)

    def beginning(self, dtype: Any) -> Plateau:
        """The state before the first round, with losses of this dtype."""
        zero = jnp.zeros((), jnp.int32)
        infinite = jnp.asarray(jnp.inf, dtype)
        return Plateau(
            jnp.full(self.window, infinite), infinite, zero,
            jnp.asarray(self.cooldown, jnp.int32), zero,
        )

    def rates(self, plateau: Plateau) -> Rates:
        """The rates of the next round."""
        dtype = plateau.losses.dtype
        n = plateau.num_decays.astype(dtype)
        return Rates(*(
            None if rate is None else rate.astype(dtype) * jnp.asarray(decay, dtype) ** n
            for rate, decay in zip(self.start, self.decays, strict=True)
        ))

    def after(self, plateau: Plateau, loss: Array) -> Plateau:
        """The state after one more loss."""
        return next_plateau(
            plateau, loss, self.patience, self.cooldown, self.threshold, self.rule
        )


def plateau_lengths(num_clients: int, cohort_size: int) -> dict[str, int]:
    r"""The default W = P = C = ceil(N / M) of Charles and Konečný 2020, section 9.1.

    N clients, chosen at random, should represent the population; at M a round they take ceil(N / M)
    rounds, so a window's mean is over about N clients. N is the user's guess, and may be smaller
    than the number of clients. The paper's own experiments use 100 throughout.

    Args:
      num_clients: N >= 1.
      cohort_size: M >= 1, the clients of a round.

    Returns:
      `window`, `patience` and `cooldown` for `local_update_decay`.

    Raises:
      ValueError: an argument is not a whole number >= 1.

    Example:
      >>> plateau_lengths(num_clients=715, cohort_size=10)
      {'window': 72, 'patience': 72, 'cooldown': 72}
    """
    check_count("num_clients", num_clients)
    check_count("cohort_size", cohort_size)
    return dict.fromkeys(("window", "patience", "cooldown"), -(-num_clients // cohort_size))


def next_plateau(
    plateau: Plateau,
    loss: Array,
    patience: int | Array,
    cooldown: int | Array,
    threshold: float | Array,
    rule: PlateauRule = "paper",
) -> Plateau:
    """The controller's state after one more loss; see `local_update_decay`."""
    dtype = plateau.losses.dtype
    losses = jnp.concatenate([plateau.losses[1:], loss.astype(dtype)[None]])
    mean = losses.mean()
    # The difference is compared, as best - threshold may round to best; inf - inf is no number.
    first = jnp.isinf(plateau.best)
    fall = jnp.where(first, 0, plateau.best - mean)
    least = jnp.asarray(threshold, dtype)
    if rule == "paper":
        best = jnp.minimum(plateau.best, mean)
        # Before there are W losses, and when there are W for the first time, there is no minimum.
        count = jnp.where(first | (fall >= least), 0, plateau.num_bad + 1)
        decays = (count >= jnp.asarray(patience, jnp.int32)) & (plateau.cooldown == 0)
        waiting = jnp.maximum(plateau.cooldown - 1, 0)
    else:
        progress = jnp.where(first, jnp.isfinite(mean), fall > least)
        best = jnp.where(progress, mean, plateau.best)
        waiting = jnp.maximum(plateau.cooldown - 1, 0)
        count = jnp.where(progress | (waiting > 0), 0, plateau.num_bad + 1)
        decays = count >= jnp.asarray(patience, jnp.int32)
    return Plateau(
        losses,
        best,
        jnp.where(decays, 0, count),
        jnp.where(decays, jnp.asarray(cooldown, jnp.int32), waiting),
        plateau.num_decays + decays.astype(jnp.int32),
    )
