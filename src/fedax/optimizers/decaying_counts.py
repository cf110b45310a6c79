"""Whole numbers of decaying schedules: ceil(v_0 r^n), computed exactly.

In float32 neither a rate such as 0.9996 nor a power of it is exact enough: rounded up, v_0 r^n
would be off by one in a few rounds of a thousand. So powers are computed in fixed point, with 16
bits in each of seven integers, which no compiler rearranges. float64 does not need this.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import Array

WHOLE, FRACTION = 2, 5  # integers of 16 bits before the point, and behind it
PLACES = 10**6  # six decimal places: what float32 always tells apart
MOST = float(2**31 - 128)  # int32, as float32

# Which product of digits i and j goes to the digit k of the result: its low and its high half.
_I, _J = np.indices((WHOLE + FRACTION, WHOLE + FRACTION))
_K = np.arange(WHOLE + FRACTION)[:, None, None]
_LOW = (_I + _J == _K + WHOLE - 1).astype(np.uint32)
_HIGH = (_I + _J == _K + WHOLE).astype(np.uint32)


def decaying_count(initial_value: float | Array, rate: float | Array, exponent: Array) -> Array:
    """ceil(v_0 r^n), an int32 scalar.

    In float32 a rate 0 < r <= 1 that equals a decimal of at most six places up to rounding is read
    as that decimal, so 0.9996 is exact. For any other rate, such as 1/3, a value that exceeds a
    whole number only by rounding counts as that number.

    Args:
      initial_value: v_0 >= 0.
      rate: r > 0.
      exponent: n >= 0, an integer scalar.
    """
    dtype = jnp.result_type(float)
    value, base = (jnp.asarray(number).astype(dtype) for number in (initial_value, rate))
    exponent = jnp.asarray(exponent)
    power = value * base ** exponent.astype(dtype)
    count = rounded_up(jnp.where(power < MOST, power, MOST))
    if dtype == jnp.float32:
        count = jnp.where(base > 1, count, _fixed_point_count(value, base, exponent))
    return jnp.maximum(count, (value > 0).astype(jnp.int32))  # where the power is too small


def rounded_up(count: Array) -> Array:
    """A real number as int32, with fractions rounded up; an excess due to rounding is ignored."""
    # Rounding may lift a whole number, such as 27 / 3^2, above itself.
    return jnp.ceil(count * (1 - 4 * jnp.finfo(count.dtype).eps)).astype(jnp.int32)


def _fixed_point_count(value: Array, base: Array, exponent: Array) -> Array:
    """The same of float32 scalars with r <= 1; what is cut off only makes it less."""
    scaled = base * PLACES
    nearest = jnp.round(scaled)
    is_decimal = jnp.abs(scaled - nearest) <= nearest * float(np.finfo(np.float32).eps)
    digits = jnp.where(is_decimal, _decimal(nearest), _digits(jnp.minimum(base, 1)))
    slack = 1 - 4 * float(np.finfo(np.float32).eps)
    value = jnp.minimum(value, MOST)

    def step(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        left, square, power = carry
        power = jnp.where(left % 2 == 1, _product(power, square), power)
        return left // 2, _product(square, square), power

    start = (exponent.astype(jnp.int32), digits, _digits(jnp.ones_like(value)))
    power = jax.lax.while_loop(lambda carry: carry[0] > 0, step, start)[2]
    result = _product(_digits(jnp.where(is_decimal, value, value * slack)), power)
    whole = (result[0] << 16) | result[1]
    return (whole + (result[WHOLE:] > 0).any().astype(jnp.uint32)).astype(jnp.int32)


def _digits(number: Array) -> Array:
    """A float32 scalar >= 0, uint32 [7] of 16 bits each, the highest first."""
    digits = []
    number = number * 2.0 ** (-16 * WHOLE)
    for _ in range(WHOLE + FRACTION):
        number = number * 2.0**16
        digit = jnp.floor(number)
        digits.append(digit.astype(jnp.uint32))
        number = number - digit
    return jnp.stack(digits)


def _decimal(millionths: Array) -> Array:
    """Millionths, likewise: long division, a byte at a time."""
    places = np.uint32(PLACES)
    left = millionths.astype(jnp.uint32)
    digits, left = [jnp.zeros_like(left), left // places], left % places
    for _ in range(FRACTION):
        digit = jnp.zeros_like(left)
        for _ in range(2):
            left = left << 8
            digit, left = (digit << 8) | (left // places), left % places
        digits.append(digit)
    return jnp.stack(digits)


def _product(a: Array, b: Array) -> Array:
    """The product, likewise; what is beyond the last digit is cut off."""
    products = a[:, None] * b[None, :]
    low, high = products & 0xFFFF, products >> 16
    sums = (low[None] * _LOW + high[None] * _HIGH).sum((1, 2), dtype=jnp.uint32)
    digits, carried = [], jnp.zeros_like(sums[0])
    for k in range(WHOLE + FRACTION - 1, -1, -1):
        total = sums[k] + carried
        digits.append(total & 0xFFFF)
        carried = total >> 16
    return jnp.stack(digits[::-1])
