"""Attacks of clients that know nothing of each other."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from fedax.algorithm import Array
from fedax.attacks.attack import Attack
from fedax.factories import factory
from fedax.validate import check_count, check_number


@factory
def sign_flip(scale: float | Array = 1.0) -> Attack:
    """Uploads -s u in place of u (Li, Xu, Chen, Giannakis, Ling 2019, "RSA", section 5).

    A client knows its own upload only.

    Args:
      scale: s, above 0. May be traced.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from fedax.attacks import sign_flip
      >>> sign_flip(2.0).upload(jax.random.key(0), jnp.array([1.0, -3.0])).tolist()
      [-2.0, 6.0]
    """
    check_number("scale", scale, above=0)
    return Attack(upload=lambda key, array: -jnp.asarray(scale, array.dtype) * array)  # noqa: ARG005


@factory
def scaling(factor: float | Array = 10.0) -> Attack:
    """Uploads gamma u in place of u: model replacement (Bagdasaryan et al. 2020, equation 3).

    With gamma = n / eta, of n clients with server learning rate eta, the server's model becomes the
    client's. Put it around another attack, whose uploads it enlarges:
    `attacked(attacked(method, label_flip(10)), scaling(10))`. A client knows its own upload only.

    Args:
      factor: gamma, above 0. May be traced.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from fedax.attacks import scaling
      >>> scaling(10.0).upload(jax.random.key(0), jnp.array([1.0, -3.0])).tolist()
      [10.0, -30.0]
    """
    check_number("factor", factor, above=0)
    return Attack(upload=lambda key, array: jnp.asarray(factor, array.dtype) * array)  # noqa: ARG005


@factory
def gaussian(scale: float | Array = 200.0) -> Attack:
    """Uploads noise N(0, s^2) in place of u (Blanchard et al. 2017, section 6).

    A client knows nothing.

    Args:
      scale: s, above 0; 200 in the paper. May be traced.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from fedax.attacks import gaussian
      >>> float(gaussian(2.0).upload(jax.random.key(0), jnp.zeros(100_000)).std().round(2))
      2.0
    """
    check_number("scale", scale, above=0)

    def upload(key: Array, array: Array) -> Array:
        noise = jax.random.normal(key, array.shape, array.dtype)
        return jnp.asarray(scale, array.dtype) * noise

    return Attack(upload=upload)


@factory
def label_flip(num_classes: int = 10, labels: str = "y") -> Attack:
    """Trains on labels C - 1 - y in place of y (Fang, Cao, Jia, Gong 2020, section 4).

    A client knows its own examples only, and follows the method otherwise.

    Args:
      num_classes: C >= 2.
      labels: the name of the array of labels, whole numbers.

    Example:
      >>> import jax.numpy as jnp
      >>> from fedax.attacks import label_flip
      >>> label_flip(10).examples({"y": jnp.array([0, 7])})["y"].tolist()
      [9, 2]
    """
    check_count("num_classes", num_classes, at_least=2)

    def examples(arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        return {**arrays, labels: num_classes - 1 - arrays[labels]}

    return Attack(examples=examples)
