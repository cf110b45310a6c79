"""Schedules: a value for each round, from the round's index t = 0, 1, 2, ...

A schedule is any pure function of `round_index` that JAX can trace, so every optax schedule is one.
Wherever fedax takes a schedule you can also pass a number. The first round is t = 0 here; the
theorems of Charles and Konečný 2020 and the decaying-steps paper (2021) start at t = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import Array
from fedax.factories import factory, parse_call
from fedax.mistakes.errors import AlgorithmError, array_words, checked_call, defined_at
from fedax.optimizers.decaying_counts import decaying_count
from fedax.validate import check_count, check_number, quoted

Schedule: TypeAlias = Callable[[Array], Array]
ScheduleOrNumber: TypeAlias = float | Array | Schedule


class Decay(NamedTuple):
    """A schedule v_0 r^n(t) that also gives exact whole numbers.

    Attributes:
      value: round_index -> v(t).
      steps: round_index -> ceil(v(t)), an int32 scalar, see `decaying_count`.
    """

    value: Schedule
    steps: Schedule

    def __call__(self, round_index: Array) -> Array:
        """v(t)."""
        return self.value(round_index)


def steps_at(schedule: Schedule, round_index: Array) -> Array:
    """A number of local steps from a schedule: an exact integer, or a number to round up.

    Raises:
      AlgorithmError: if the schedule fails or does not return one number.
    """
    if isinstance(schedule, Decay):
        return schedule.steps(round_index)
    return as_schedule(schedule)(round_index)


def as_schedule(value: ScheduleOrNumber) -> Schedule:
    """The schedule itself, with its value checked when traced, or a constant schedule.

    Raises:
      AlgorithmError: when used, if the schedule fails or does not return one number.
    """
    if not callable(value):
        return constant(value)

    def schedule(round_index: Array) -> Array:
        number = checked_call(
            AlgorithmError, "The schedule", "schedule(round_index)", value, (round_index,), {}
        )
        kinds = (int, float, np.generic, np.ndarray, jax.Array)
        if not isinstance(number, kinds) or jnp.shape(number) != ():
            raise AlgorithmError(
                f"The schedule{defined_at(value)} must return one number for a round, but returned "
                f"{array_words(number)}."
            )
        return jnp.asarray(number)

    return schedule


@factory
def constant(value: float | Array) -> Schedule:
    """The same value >= 0 in every round.

    Example:
      >>> float(constant(0.5)(jnp.asarray(7)))
      0.5
    """
    check_number("value", value, at_least=0)
    return lambda round_index: jnp.asarray(value)  # noqa: ARG005


@factory
def staircase_decay(
    initial_value: float | Array, decay_rate: float | Array = 0.1, decay_every: int | Array = 500
) -> Decay:
    """Staircase decay, ExpDecay of Reddi et al. 2021 (section 5.4): v(t) = v_0 r^floor(t / n).

    Args:
      initial_value: v_0 >= 0.
      decay_rate: r > 0; the paper uses 0.1.
      decay_every: n >= 1 rounds; the paper uses 500.

    Example:
      >>> schedule = staircase_decay(1.0)
      >>> [round(float(schedule(jnp.asarray(t))), 3) for t in (0, 499, 500, 1000)]
      [1.0, 1.0, 0.1, 0.01]
    """
    check_number("initial_value", initial_value, at_least=0)
    check_number("decay_rate", decay_rate, above=0)
    check_count("decay_every", decay_every)
    return _decay(initial_value, decay_rate, lambda round_index: round_index // decay_every)


@factory
def exponential_decay(initial_value: float | Array, decay_rate: float | Array) -> Decay:
    """Exponential decay (decaying-steps paper 2021, section 3 and Table 5): v(t) = v_0 d^t.

    As a number of local steps it is exactly K_t = ceil(K_0 d^t), see `decaying_count`.

    Args:
      initial_value: v_0 >= 0.
      decay_rate: d > 0, e.g. 0.995.

    Example:
      >>> round(float(exponential_decay(1.0, 0.5)(jnp.asarray(3))), 6)
      0.125
    """
    check_number("initial_value", initial_value, at_least=0)
    check_number("decay_rate", decay_rate, above=0)
    return _decay(initial_value, decay_rate, lambda round_index: round_index)


@factory
def inverse_time_decay(initial_value: float | Array, offset: float | Array = 1.0) -> Schedule:
    """Decay by 1/t: v(t) = v_0 b / (b + t).

    Source: Charles and Konečný 2020, Theorem 27; decaying-steps paper 2021, Theorem 2.

    The theorems' a / (b + t) starts at t = 1; here the first round is t = 0, so their schedule is
    `inverse_time_decay(a / (b + 1), b + 1)`.

    Args:
      initial_value: v_0 >= 0.
      offset: b > 0, number of rounds after which the value has halved.

    Example:
      >>> schedule = inverse_time_decay(10.0, offset=2.0)
      >>> [float(schedule(jnp.asarray(t))) for t in (0, 2, 8)]
      [10.0, 5.0, 2.0]
    """
    check_number("initial_value", initial_value, at_least=0)
    check_number("offset", offset, above=0)
    dtype = jnp.result_type(float)

    def schedule(round_index: Array) -> Array:
        value, b = (jnp.asarray(number).astype(dtype) for number in (initial_value, offset))
        return value * b / (b + jnp.asarray(round_index).astype(dtype))

    return schedule


@factory
def geometric(probability: float | Array, seed: int = 0) -> Schedule:
    r"""Random whole numbers K >= 1, for `num_local_steps`: P(K = k) = (1 - p)^{k-1} p.

    The number of local steps until a coin that all clients share, tossed after each step, says that
    they communicate; its mean is 1 / p. It depends on the round and the seed only.

    Source: Mishchenko et al. 2022, ProxSkip, Algorithm 2.

    Args:
      probability: p in (0, 1].
      seed: of the coin, a whole number of at least 0.

    Example:
      >>> schedule = geometric(0.25)
      >>> [int(schedule(jnp.asarray(t))) for t in range(6)]
      [7, 1, 9, 2, 1, 5]
    """
    check_number("probability", probability, above=0, at_most=1)
    check_count("seed", seed, at_least=0)

    def schedule(round_index: Array) -> Array:
        key = jax.random.fold_in(jax.random.key(seed), round_index)
        draw = jax.random.uniform(key, dtype=jnp.float32)  # the same in double precision
        p = jnp.asarray(probability, draw.dtype)
        return 1 + jnp.floor(jnp.log1p(-draw) / jnp.log1p(-p))

    return schedule


# By the names that a command line knows.
SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "staircase_decay": staircase_decay,
    "exponential_decay": exponential_decay,
    "geometric": geometric,
    "inverse_time_decay": inverse_time_decay,
}


def parse_schedule(text: str) -> float | Schedule:
    """Reads a number or a schedule from the text of a command line or configuration file.

    Example:
      >>> parse_schedule("0.1")
      0.1
      >>> schedule = parse_schedule("staircase_decay(0.1, 0.1, 500)")

    Raises:
      ValueError: if it is neither; the message lists the schedules.
    """
    try:
        return float(text)
    except ValueError:
        pass
    try:
        if "(" not in text:  # every schedule takes arguments
            raise SyntaxError
        return parse_call(text, SCHEDULES, "schedule")
    except SyntaxError:
        raise ValueError(
            f"{quoted(text)} is neither a number nor a schedule such as "
            "'staircase_decay(0.1, decay_rate=0.1, decay_every=500)'."
        ) from None


def _decay(
    initial_value: float | Array, rate: float | Array, exponent: Callable[[Array], Array]
) -> Decay:
    def value(round_index: Array) -> Array:
        dtype = jnp.result_type(float)
        start, base = (jnp.asarray(number).astype(dtype) for number in (initial_value, rate))
        return start * base ** jnp.asarray(exponent(round_index)).astype(dtype)

    return Decay(value, lambda t: decaying_count(initial_value, rate, exponent(t)))
