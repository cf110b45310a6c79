"""How many examples are evaluated at a time, if nobody says."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
from jax.dtypes import canonicalize_dtype

from fedax.algorithm import Model, Params
from fedax.mistakes.model import call_outputs
from fedax.rounds.blocks import MOST_BYTES, example_bytes

# Examples at a time on a device. On a CPU as many as have these products of numbers and the bytes
# of a block, within limits (docs/notebook/log.md): the fewer batches a block has, the less is
# copied. Elsewhere not measured.
USUAL = 512
PRODUCTS, FEWEST, MOST = 4 * 10**7, 32, 4096
# Of sequences no fewer than these, as an LSTM reads its kernels again for each position, unless
# the outputs of an example have more bytes.
FEWEST_SEQUENCES, SMALL_OUTPUTS = 128, 2**16
# Between rounds likewise, but such that a batch is over soon, in a few milliseconds.
SOON_PRODUCTS, SOON_FEWEST = 10**7, 8


def usual_batch_size(
    model: Model, params: Params, arrays: Mapping[str, Any], *, soon: bool = False
) -> int:
    """The default batch size on a device, chosen by the size of the model.

    On a CPU it is small for large models, so that a batch fits into the caches, and large where a
    dispatch costs more than the work. Other devices have not been measured.

    Args:
      model, params, arrays: of which only the shapes matter.
      soon: whether a batch should be short, because other work waits for it.
    """
    if jax.default_backend() != "cpu":
        return USUAL // 4 if soon else USUAL
    outputs = traced_outputs(model, params, arrays)
    positions = max([math.prod(leaf.shape[1:-1]) for leaf in outputs], default=1)
    products = positions * sum(leaf.size for leaf in jax.tree.leaves(params))
    small = sum(leaf.size * leaf.dtype.itemsize for leaf in outputs) <= SMALL_OUTPUTS
    fewest = FEWEST_SEQUENCES if positions > 1 and small else FEWEST
    most, fewest = (SOON_PRODUCTS, SOON_FEWEST) if soon else (PRODUCTS, fewest)
    bytes_each = example_bytes(arrays)
    size = MOST
    while size > fewest and (size * products > most or size * bytes_each > MOST_BYTES):
        size //= 2
    return size


def traced_outputs(
    model: Model, params: Params, arrays: Mapping[str, Any]
) -> list[jax.ShapeDtypeStruct]:
    """Shapes [1, ...] and dtypes of what the model gives for one example."""
    batch = {
        key: jax.ShapeDtypeStruct((1, *array.shape[1:]), canonicalize_dtype(array.dtype))
        for key, array in arrays.items()
    }
    traced = jax.eval_shape(
        functools.partial(call_outputs, model.outputs), params, batch,
        jax.ShapeDtypeStruct((1,), bool),
    )
    return jax.tree.leaves(traced)
