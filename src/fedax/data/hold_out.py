"""Holds out a part of a client's examples from local training."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from fedax.data.cohort_data import ClientExamples


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ClientPart:
    """Some of a client's examples, with the interface of `ClientData`.

    Attributes:
      data: all of the client's examples.
      num_held_out: int32 scalar, h.
      num_examples: int32 scalar, the number in this part.
      is_held_out: static, whether this is the part held out or the rest.
    """

    data: ClientExamples
    num_held_out: jax.Array
    num_examples: jax.Array
    is_held_out: bool = dataclasses.field(metadata={"static": True})

    @property
    def capacity(self) -> int:
        """Static upper bound of num_examples."""
        return self.data.capacity

    @property
    def largest(self) -> int | None:
        """As in `ClientData`."""
        return self.data.largest

    @property
    def repeat(self) -> jax.Array | int:
        """As in `ClientData`."""
        return self.data.repeat

    @property
    def client_id(self) -> jax.Array | int:
        """As in `ClientData`."""
        return self.data.client_id

    @property
    def everything(self) -> ClientExamples:
        """All of the client's examples."""
        return self.data.everything

    def examples(self, indices: jax.Array) -> dict[str, jax.Array]:
        """The examples with these indices within the part (int32 [B])."""
        n, h = self.data.num_examples, self.num_held_out
        if self.is_held_out:
            places = indices * n // jnp.maximum(h, 1)
        else:
            # Before the i-th of the rest stand those held-out places j with j n / h - j <= i.
            before = -((-(indices + 1) * h) // jnp.maximum(n - h, 1))
            places = jnp.where(h < n, indices + before, indices)
        return self.data.examples(places)


def hold_out(
    data: ClientExamples, fraction: float | jax.Array
) -> tuple[ClientPart, ClientPart]:
    """Splits a client's n examples into h held out and the rest, the same in every round.

    The held-out examples are spread evenly over the stored order (indices floor(j n / h)), so
    that examples stored class by class are not held out by class.

    Args:
      data: the client's examples.
      fraction: of them, in (0, 1): h = fraction n, rounded, at least 1 and at most n - 1, and
        at most 2^31 / n. If a client has a single example, both parts contain it.

    Returns:
      The rest and the held-out part.

    Example:
      >>> from fedax.data import ClientData
      >>> data = ClientData({"x": jnp.arange(10.0)}, jnp.int32(0), jnp.int32(10), 10)
      >>> rest, held_out = hold_out(data, 0.2)
      >>> held_out.examples(jnp.arange(2, dtype=jnp.int32))["x"].tolist()
      [0.0, 5.0]
      >>> rest.examples(jnp.arange(8, dtype=jnp.int32))["x"].tolist()
      [1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0]
    """
    n = data.num_examples
    wanted = jnp.round(jnp.asarray(fraction) * n.astype(jnp.asarray(fraction).dtype))
    most = jnp.minimum(n - 1, (2**31 - 1) // jnp.maximum(n, 1))
    h = jnp.clip(wanted.astype(jnp.int32), jnp.minimum(1, most), most)
    h = jnp.where(n == 1, 1, jnp.maximum(h, 0))
    rest = jnp.where(n == 1, n, n - h)
    return ClientPart(data, h, rest, False), spread_evenly(data, h)


def spread_evenly(data: ClientExamples, count: jax.Array) -> ClientPart:
    """`count` of the n examples, those with the indices floor(j n / count); at most 2^31 / n."""
    return ClientPart(data, count, count, True)
