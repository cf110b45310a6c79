"""Optimizers with random keys in their states, such as `optax.noisy_sgd`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedax.algorithm import Array, PyTree

# Far from the small numbers that a client's other draws fold into its key.
_NOISE = 0x6E6F6973


def is_key(leaf: Any) -> bool:
    """Whether an array of an optimizer's state is a PRNG key, typed or raw.

    Example:
      >>> is_key(jax.random.key(0)), is_key(jax.random.PRNGKey(0)), is_key(jnp.zeros(2))
      (True, True, False)
    """
    if _is_typed(leaf):
        return True
    raw = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    return leaf.dtype == raw.dtype and leaf.shape[-1:] == raw.shape


def with_own_keys(state: PyTree, key: Array) -> PyTree:
    """An optimizer's state in which every key also depends on this one.

    So clients and rounds draw different noise, which depends only on the run's seed, the round and
    the client.

    Args:
      state: of the optimizer; a state without keys is returned as it is.
      key: key of the client for this exchange.
    """
    leaves, structure = jax.tree.flatten(state)
    places = [place for place, leaf in enumerate(leaves) if is_key(leaf)]
    for place in places:
        number = jax.random.bits(jax.random.fold_in(key, _NOISE), dtype=jnp.uint32)
        typed = _is_typed(leaves[place])
        own = leaves[place] if typed else jax.random.wrap_key_data(leaves[place])
        folded = _fold_in(own, number)
        leaves[place] = folded if typed else jax.random.key_data(folded)
    return structure.unflatten(leaves)


def _fold_in(keys: Array, number: Array) -> Array:
    """The keys with a number folded in, whatever their shape."""
    fold = jax.random.fold_in
    for _ in range(keys.ndim):
        fold = jax.vmap(fold, (0, None))
    return fold(keys, number)


def with_raw_keys(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimizer with raw instead of typed keys in its state, for files and sums.

    Its update needs the parameters.
    """

    def init(params: PyTree) -> PyTree:
        return jax.tree.map(_raw, optimizer.init(params))

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        if not any(map(is_key, jax.tree.leaves(state))):
            return optimizer.update(updates, state, params)
        like = optimizer.init(params)  # which of the keys are typed, and how
        updates, state = optimizer.update(updates, jax.tree.map(_like, state, like), params)
        return updates, jax.tree.map(_raw, state)

    return optax.GradientTransformation(init, update)


def _is_typed(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _raw(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_typed(leaf) else leaf


def _like(leaf: Any, like: Any) -> Any:
    """The leaf as a key, where it was one."""
    if not _is_typed(like):
        return leaf
    return jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(like))
