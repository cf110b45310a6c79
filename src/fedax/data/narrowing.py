"""Numbers of 64 bits that JAX keeps in fewer: those that would become others are refused."""

from __future__ import annotations

import numpy as np
from jax.dtypes import canonicalize_dtype

from fedax.mistakes.errors import ModelError


def is_narrowed(dtype: np.dtype) -> bool:
    """Whether JAX has numbers of this dtype in fewer bits: without x64 those of 64."""
    return dtype.kind in "iuf" and canonicalize_dtype(dtype) != dtype


def require_same_in_jax(name: str, values: np.ndarray) -> None:
    """Raises a clear error if JAX would keep a number as another one, or as infinity.

    Args:
      name: what the array is called.
      values: of any dtype.

    Raises:
      ModelError: if an integer does not fit into the dtype that JAX uses, or a finite number does
        not.

    Example:
      >>> require_same_in_jax("x", np.array([1.0, np.inf, 3e38]))
    """
    if not is_narrowed(values.dtype):
        return
    narrow, real = canonicalize_dtype(values.dtype), values.dtype.kind == "f"
    limits = np.finfo(narrow) if real else np.iinfo(narrow)
    least, most = values.min(initial=0), values.max(initial=0)
    if real and not (limits.min <= least and most <= limits.max):  # or one is NaN
        finite = values[np.isfinite(values)]
        least, most = finite.min(initial=0), finite.max(initial=0)
    if limits.min <= least and most <= limits.max:
        return
    if real:
        raise ModelError(
            f"The array {name!r} has numbers from {least:g} to {most:g}, but JAX stores numbers in "
            f"{limits.bits} bits, of which the largest is {limits.max:g}, and they would become "
            "infinite. Scale the values, or set JAX_ENABLE_X64=1."
        )
    raise ModelError(
        f"The array {name!r} has integers from {least} to {most}, but JAX stores integers in "
        f"{limits.bits} bits and would silently change them. Number the values from 0, convert "
        "them to floating point, or set JAX_ENABLE_X64=1."
    )
