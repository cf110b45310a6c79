"""What a codec is, error feedback, and codecs applied to every array of a tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, Params, PyTree
from fedax.factories import written

Sent: TypeAlias = Callable[[Params, PyTree, PyTree], tuple[float, float]]


class Encoded(NamedTuple):
    """An array after its way through a codec.

    Attributes:
      decoded: what the receiver makes of the message, like the array.
      bits: scalar of the default floating point dtype, the length of the message; a whole number,
        in float32 exact to 2^24 and then to seven digits.
      memory: the codec's, for the sender's next message.
    """

    decoded: Array
    bits: Array
    memory: PyTree


class Codec(NamedTuple):
    """A code for arrays of floating point numbers, as pure functions.

    Attributes:
      encode: `(key, array, memory) -> Encoded`. `array` has at least two entries and is float32 or
        wider; `encode_tree` takes care of the others. NaN or infinity in the array must reach
        `decoded` or `memory`, so that the client's upload is rejected.
      init: `(array) -> memory` before the first message, `()` if there is none; only the shape and
        dtype of the array matter.
      unbiased: whether E[decoded] = array, over the key. One that is not needs `with_feedback`.
      any_precision: whether `encode` also takes arrays of less than 32 bits.
    """

    encode: Callable[[Array, Array, PyTree], Encoded]
    init: Callable[[Array], PyTree]
    unbiased: bool
    any_precision: bool = False

    def __repr__(self) -> str:
        return f"Codec({written(self) or 'your own'})"


def no_memory(array: Array) -> tuple[()]:
    """`init` of a codec without memory."""
    del array
    return ()


def with_feedback(codec: Codec) -> Codec:
    r"""A codec with error feedback: what it leaves out of a message is added to the next one.

    .. math:: m_t = C(x_t + e_t), \qquad e_{t+1} = x_t + e_t - m_t, \qquad e_0 = 0

    So the sum of all messages and of the memory is the sum of all arrays, up to rounding: of an
    array of less than 32 bits the message, decoded to its own dtype, has that dtype's.

    Seide, Fu, Droppo, Li, Yu, "1-bit stochastic gradient descent" (Interspeech 2014); Karimireddy,
    Rebjock, Stich, Jaggi, "Error feedback fixes SignSGD" (ICML 2019), Algorithm 2.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from fedax.codecs import top_k, with_feedback
      >>> codec, x = with_feedback(top_k(0.5)), jnp.array([3.0, 2.0])
      >>> first = codec.encode(jax.random.key(0), x, codec.init(x))
      >>> second = codec.encode(jax.random.key(1), x, first.memory)
      >>> first.decoded.tolist(), second.decoded.tolist()
      ([3.0, 0.0], [0.0, 4.0])
    """

    def encode(key: Array, array: Array, memory: tuple[Array, PyTree]) -> Encoded:
        error, inner = memory
        whole = array + error
        found = codec.encode(key, whole, inner)
        return found._replace(memory=(whole - found.decoded, found.memory))

    return Codec(encode, lambda array: (jnp.zeros_like(array), codec.init(array)), codec.unbiased)


def init_tree(codec: Codec, tree: PyTree, exact: tuple[str, ...] = ()) -> tuple[PyTree, ...]:
    """The memory before the first message of each array of a tree, in the order of its leaves."""
    return tuple(
        codec.init(_taken(codec, jnp.asarray(leaf))) if is_coded else ()
        for leaf, is_coded in _leaves(tree, exact)
    )


def encode_tree(
    codec: Codec, key: Array, tree: PyTree, memory: tuple[PyTree, ...] | None = None,
    exact: tuple[str, ...] = (),
) -> tuple[PyTree, Array, tuple[PyTree, ...]]:
    """Every array of a tree after its way through a codec.

    Arrays are coded one by one. A single number is sent as it is, and an empty array costs nothing.
    Arrays of less than 32 bits are coded in float32, so a number in a message has 32 bits, and
    decoded to their own dtype; `identity` sends them as they are.

    Args:
      codec: any codec.
      key: from which each array gets a key of its own.
      tree: floating point arrays.
      memory: of each array, from `init_tree` or from the last message; None: the initial one.
      exact: names of fields whose arrays are sent as they are.

    Returns:
      The decoded tree, the bits of all messages together, and the new memory.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from fedax.codecs import encode_tree, sign
      >>> tree = {"bias": jnp.float32(2), "kernel": jnp.array([1, -3], jnp.float32)}
      >>> decoded, bits, _ = encode_tree(sign(), jax.random.key(0), tree)
      >>> decoded["kernel"].tolist(), float(bits)  # 32 for the bias, 32 for the scale, 2 signs
      ([2.0, -2.0], 66.0)
    """
    memory = init_tree(codec, tree, exact) if memory is None else memory
    total = jnp.zeros((), float)
    decoded, kept = [], []
    for place, (leaf, is_coded) in enumerate(_leaves(tree, exact)):
        found = Encoded(leaf, fixed(leaf.size * number_bits(leaf)), ())
        if is_coded:
            own = jax.random.fold_in(key, place)
            found = codec.encode(own, _taken(codec, leaf), memory[place])
        decoded.append(found.decoded.astype(leaf.dtype))
        kept.append(found.memory)
        total += found.bits
    return jax.tree.unflatten(jax.tree.structure(tree), decoded), total, tuple(kept)


def about(codec: Codec, tree: PyTree, exact: tuple[str, ...] = ()) -> float:
    """The bits of a tree of which only shapes and dtypes matter, if its entries are normal.

    Example:
      >>> from fedax.codecs import sign
      >>> about(sign(), {"kernel": jax.ShapeDtypeStruct((3, 4), jnp.float32)})
      44.0
    """

    def normal(key: Array) -> Array:
        drawn = jax.tree.map(lambda leaf: jax.random.normal(key, leaf.shape, leaf.dtype), tree)
        return encode_tree(codec, key, drawn, exact=exact)[1]

    return float(jax.jit(normal)(jax.random.key(0)))


def bits_as_they_are(tree: PyTree) -> float:
    """The bits of the arrays of a tree without a code."""
    return float(sum(leaf.size * number_bits(leaf) for leaf in jax.tree.leaves(tree)
                     if hasattr(leaf, "dtype")))


def sent_around(sent: Sent | None) -> Sent | None:
    """`Exchange.sent` of a wrapper whose upload has the wrapped one in a field `inner`."""
    if sent is None:
        return None

    def around(params: Params, message: PyTree, upload: Any) -> tuple[float, float]:
        down, up = sent(params, message, upload.inner)
        return down, up + bits_as_they_are(upload._replace(inner=()))

    return around


def _leaves(tree: PyTree, exact: tuple[str, ...]) -> list[tuple[Array, bool]]:
    """The arrays of a tree, and whether they are coded."""
    return [
        (leaf, leaf.size > 1 and not any(getattr(key, "name", None) in exact for key in path))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def number_bits(array: Any) -> int:
    """The bits of one number of an array."""
    return 8 * array.dtype.itemsize


def fixed(bits: Any) -> Array:
    """A number of bits as `Encoded` has it."""
    return jnp.asarray(bits, float)


def norm(array: Array) -> Array:
    """The Euclidean norm; its squares neither overflow nor vanish."""
    largest = jnp.abs(array).max()
    scale = jnp.where(largest > 0, largest, 1)
    return scale * jnp.sqrt(jnp.square(array / scale).sum())


def _taken(codec: Codec, leaf: Array) -> Array:
    """The array as the codec takes it."""
    narrow = number_bits(leaf) < 32 and not codec.any_precision
    return leaf.astype(jnp.float32) if narrow else leaf
