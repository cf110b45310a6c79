"""A share of the clients is hostile, around any method, to rehearse a defence."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from fedax.algorithm import (
    Array,
    Exchange,
    FederatedAlgorithm,
    Individual,
    PyTree,
    Reply,
)
from fedax.attacks import Attack, sign_flip
from fedax.clients.precision import widen
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.mistakes.algorithm import require_wrappable
from fedax.mistakes.errors import kind_of
from fedax.validate import check_count, check_number

# What tells the attack's random numbers from those that the client trains with.
_ATTACK = 0xBAD
# 2^32 divided by the golden ratio: multiples of it, modulo 2^32, are spread evenly.
_GOLDEN = 2654435769


@factory
def attacked(
    algorithm: FederatedAlgorithm,
    attack: Attack | None = None,
    share: float | Array = 0.2,
    attack_seed: int = 0,
) -> FederatedAlgorithm:
    r"""Around any method: a share of the clients attacks, in a simulation.

    Client i of the population is hostile if

    .. math:: (i\, g + r) \bmod 1 < s

    with the share s, the golden ratio's fraction g = 0.618... and a random r of `attack_seed`. So
    the same clients are hostile in all rounds, whoever else takes part, and their number differs
    from share N by at most 4 for populations N of up to 10^5. In a sampled cohort it varies.

    The attack is on everything that a client uploads, in every exchange; weights, states and
    metrics stay honest. Attacks of single clients change the client's examples or upload.
    Colluding ones replace the uploads of the cohort's hostile clients before the server gets them,
    for which the simulation keeps the cohort's uploads in memory.

    It goes inside every other wrapper: `robust(attacked(...))`. Two attacks of the same share and
    seed are by the same clients: `attacked(attacked(method, label_flip(10)), scaling(10))`.

    Args:
      algorithm: the method.
      attack: one of `fedax.attacks`; None is `sign_flip(1)`.
      share: of the clients, in [0, 1]. May be traced.
      attack_seed: another seed makes other clients hostile.

    Returns:
      The algorithm. It also reports `hostile_share`, the share of the round's clients.

    Raises:
      TypeError: attack is not an `Attack`.
      ValueError: share is out of its range (unless it is traced), or the algorithm trains on the
        pool of all examples.

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> method = fedax.fedavg(character_lstm(16, 1))
      >>> lied_to = fedax.attacked(method, fedax.attacks.sign_flip(3.0), share=0.2)
      >>> algorithm = fedax.robust(lied_to, fedax.robust_means.coordinate_median())
    """
    require_wrappable(algorithm, "fedax.attacked(algorithm, attack)")
    attack = sign_flip() if attack is None else attack
    if not isinstance(attack, Attack):
        raise TypeError(
            "attack must be one of fedax.attacks, such as fedax.attacks.sign_flip(1), but is "
            f"{kind_of(attack)}."
        )
    check_number("share", share, at_least=0, at_most=1)
    check_count("attack_seed", attack_seed, at_least=0)
    if algorithm.pooled:
        raise ValueError(
            "attacked cannot wrap a method that trains on the pool of all examples: it has no "
            "clients that could lie. Wrap a federated method."
        )

    def is_hostile(client_ids: Array) -> Array:
        start = jax.random.bits(jax.random.key(attack_seed), (), jnp.uint32)
        place = jnp.asarray(client_ids).astype(jnp.uint32) * jnp.uint32(_GOLDEN) + start
        return place.astype(float) / 2.0**32 < jnp.asarray(share).astype(float)

    def around(exchange: Exchange) -> Exchange:
        def client(message: PyTree, state: PyTree, data: ClientExamples, key: Array) -> Reply:
            hostile = is_hostile(jnp.asarray(data.client_id))
            if attack.examples is not None:
                data = HostileExamples(data, hostile, attack)
            reply = exchange.client(message, state, data, key)
            one = jnp.ones((), float)
            info = {**reply.info, "hostile_share": (hostile.astype(float), one)}
            return reply._replace(
                upload=alone(reply.upload, hostile, jax.random.fold_in(key, _ATTACK)), info=info
            )

        def alone(upload: PyTree, hostile: Array, key: Array) -> PyTree:
            if attack.upload is None:
                return upload
            leaves, structure = jax.tree.flatten(upload)
            lies = [
                attack.upload(jax.random.fold_in(key, place), widen(leaf)).astype(leaf.dtype)
                for place, leaf in enumerate(leaves)
            ]
            return jax.tree.map(
                lambda leaf, lie: jnp.where(hostile, lie, leaf), upload, structure.unflatten(lies)
            )

        def collusion(individual: Individual, client_ids: Array) -> Individual:
            assert attack.together is not None
            together = attack.together
            if exchange.collusion is not None:
                individual = exchange.collusion(individual, client_ids)
            counts, hostile = individual.weights > 0, is_hostile(client_ids)
            lying = hostile & counts

            def lied(leaf: Array) -> Array:
                lie = together(widen(leaf), lying, counts & ~hostile).astype(leaf.dtype)
                return jnp.where(lying.reshape(-1, *[1] * lie.ndim), lie, leaf)

            return individual._replace(uploads=jax.tree.map(lied, individual.uploads))

        return exchange._replace(
            client=client,
            collusion=exchange.collusion if attack.together is None else collusion,
        )

    return algorithm._replace(exchanges=tuple(map(around, algorithm.exchanges)))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class HostileExamples:
    """A client's examples, as an attack changes them if the client is hostile.

    Attributes:
      data: the examples.
      hostile: bool scalar.
      attack: static.
    """

    data: ClientExamples
    hostile: Array
    attack: Attack = dataclasses.field(metadata={"static": True})

    @property
    def num_examples(self) -> Array:
        """As in `ClientData`."""
        return self.data.num_examples

    @property
    def capacity(self) -> int:
        """As in `ClientData`."""
        return self.data.capacity

    @property
    def largest(self) -> int | None:
        """As in `ClientData`."""
        return self.data.largest

    @property
    def repeat(self) -> Array | int:
        """As in `ClientData`."""
        return self.data.repeat

    @property
    def client_id(self) -> Array | int:
        """As in `ClientData`."""
        return self.data.client_id

    @property
    def everything(self) -> HostileExamples:
        """All of the client's examples."""
        return dataclasses.replace(self, data=self.data.everything)

    def examples(self, indices: Array) -> dict[str, Array]:
        """The examples with these indices (int32 [B])."""
        arrays = self.data.examples(indices)
        assert self.attack.examples is not None
        changed = self.attack.examples(arrays)
        return {name: jnp.where(self.hostile, changed[name], array)
                for name, array in arrays.items()}
