"""The softmax cross-entropy of integer labels, without gathers and scatters."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedax.algorithm import Array


def cross_entropy(logits: Array, labels: Array) -> Array:
    r"""Softmax cross-entropy: :math:`\log \sum_c e^{z_c} - z_y`.

    Equal to `optax.softmax_cross_entropy_with_integer_labels` to rounding. That one looks the
    label's logit up, so its gradient scatters; here the label is compared with all classes, which
    XLA fuses with the softmax.

    Args:
      logits: z [..., C], floating point.
      labels: y [...], integers in 0 .. C - 1.

    Returns:
      Losses [...] in the logits' dtype; NaN where the label is no class, as a loss of such
      an example says nothing (JAX would take -1 for the last class).

    Example:
      >>> cross_entropy(jnp.zeros((2, 3)), jnp.array([0, 3])).round(4).tolist()  # log 3
      [1.0986, nan]
    """
    num_classes = logits.shape[-1]
    labels = labels.astype(jnp.int32)
    classes = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    shifted = logits - jax.lax.stop_gradient(logits.max(-1, keepdims=True))
    of_label = jnp.where(labels[..., None] == classes, shifted, 0).sum(-1)
    losses = jnp.log(jnp.exp(shifted).sum(-1)) - of_label
    return jnp.where((labels >= 0) & (labels < num_classes), losses, jnp.nan)
