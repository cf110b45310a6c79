"""Communication of an algorithm: bytes to and from a client in a round, computed from its types.

Chen et al. 2023 ("Elastic Aggregation for Federated Optimization"), section 5, counts in copies of
the parameters: FedAvg, FedAvgM, FedProx and AdaOpt 2x (1 down, 1 up), SCAFFOLD 4x, Elastic 3x.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import (
    FederatedAlgorithm,
    Individual,
    Model,
    Participation,
    PublicParticipation,
)
from fedax.data.cohort_data import ClientData
from fedax.mistakes.algorithm import (
    call_broadcast,
    call_client,
    call_server,
    call_state_inits,
    require_algorithm,
)
from fedax.mistakes.errors import kind_of
from fedax.mistakes.model import call_init, require_model


class Communication(NamedTuple):
    """Bytes for one client in one round.

    Attributes:
      exchanges: (bytes sent to the client, bytes sent by it) in each exchange.
      model_bytes: size of the parameters.
      reported: names of the numbers that clients report, such as `train_loss`; none if they are
        withheld, as of `fedax.private`.
    """

    exchanges: tuple[tuple[int, int], ...]
    model_bytes: int
    reported: tuple[str, ...] = ()

    @property
    def bytes_down(self) -> int:
        """Bytes sent to the client, over all exchanges."""
        return sum(down for down, _ in self.exchanges)

    @property
    def bytes_up(self) -> int:
        """Bytes sent by the client, over all exchanges."""
        return sum(up for _, up in self.exchanges)

    def with_cohort(self, dropped_at: np.ndarray, measured: Mapping[str, Any]) -> dict[str, Any]:
        """Bytes down to and up from a cohort with its `dropped_at`, see `CohortData`.

        A client that drops out of an exchange has received its message but does not answer.

        Args:
          dropped_at: int [cohort_size].
          measured: metrics of the round; of a code `bits_down` and `bits_up`, the clients' mean.
        """
        numbered = list(enumerate(self.exchanges))
        found: dict[str, Any] = {
            "bytes_down": sum(d * int((dropped_at >= at).sum()) for at, (d, _) in numbered),
            "bytes_up": sum(up * int((dropped_at > at).sum()) for at, (_, up) in numbered),
        }
        for way, one in (("down", self.bytes_down), ("up", self.bytes_up)):
            if f"bits_{way}" in measured:
                found[f"bytes_{way}"] *= measured[f"bits_{way}"] / (8 * one)
        return found

    @property
    def copies(self) -> float:
        """Bytes in both directions over the parameters' size: FedAvg's 2, SCAFFOLD's 4."""
        return (self.bytes_down + self.bytes_up) / max(self.model_bytes, 1)


def communication(
    algorithm: FederatedAlgorithm, model: Model, examples: dict[str, Any], params: Any = None
) -> Communication:
    """Counts the bytes that an algorithm sends, without running it.

    All arrays count with the size of their dtype, including learning rates and the like. Arrays
    that a client has already received in this round, unchanged, are not sent again. Weights and
    reported info do not count. A pooled algorithm, which is not federated, sends nothing.

    With `fedax.compressed`, codes count, as long as they are for normally distributed numbers. What
    a run really sends is in its metrics `bits_up` and `bits_down`.

    Args:
      algorithm: any federated algorithm.
      model: the learning problem.
      examples: name -> array [n, ...] with a client's examples; only shapes and dtypes matter.
      params: parameters, of which only shapes and dtypes matter; None: those of the model's init,
        which is then traced.

    Raises:
      TypeError: if an argument has the wrong type.
      ModelError, AlgorithmError: if a function of the model or the algorithm fails.

    Example:
      >>> import fedax
      >>> task = fedax.load_task("shakespeare", model="small")
      >>> for algorithm in (fedax.fedavg(task.model), fedax.scaffold(task.model)):
      ...     sent = communication(algorithm, task.model, task.train.client_at(0))
      ...     print(round(sent.copies, 2))
      2.0
      4.0
    """
    counts: list[tuple[int, int]] = []
    coded: dict[int, tuple[Any, Any]] = {}  # by number of the exchange: its message, its upload
    reported: dict[str, None] = {}

    def one_round(params: Any, arrays: Any, key: Any) -> None:
        state, own = call_state_inits(algorithm, params)
        # Distinct tracers, as a state's fields may share an array before the first round.
        state, own = jax.tree.map(jnp.copy, (state, own))
        rows = jax.tree.leaves(arrays)[0].shape[0]
        data = ClientData(arrays, jnp.int32(0), jnp.int32(rows), rows)
        one = jnp.int32(1)
        sent: list[Any] = []
        for number, exchange in enumerate(algorithm.exchanges, 1):
            place = f"exchange {number} of {len(algorithm.exchanges)}"
            message = call_broadcast(exchange, place, state)
            before = len(sent)
            for leaf in jax.tree.leaves(message):
                if isinstance(leaf, jax.Array) and not any(leaf is known for known in sent):
                    sent.append(leaf)
            reply = call_client(exchange, place, message, own, data, key)
            own = reply.client_state
            reported.update(dict.fromkeys(reply.info))
            counts.append((_nbytes(sent[before:]), _nbytes(reply.upload)))
            if exchange.sent is not None:
                coded[number - 1] = _shapes((sent[before:], reply.upload))
            upload = reply.upload
            if exchange.individual:
                upload = Individual(*jax.tree.map(lambda x: x[None], (upload, reply.weight)))
            who = Participation(one, one, one)
            if exchange.total:
                who = PublicParticipation(one, jnp.float32(1), key)
            state = call_server(exchange, place, state, upload, who)

    require_algorithm(algorithm, "fedax.communication(algorithm, model, examples)")
    require_model(model, "fedax.communication(algorithm, model, examples)")
    if not isinstance(examples, Mapping):
        raise TypeError(
            "examples must be one client's arrays by name, such as dataset.client_at(0), but is "
            f"{kind_of(examples)}."
        )
    if params is None:
        params = jax.eval_shape(lambda key: call_init(model, key), jax.random.key(0))
    if not algorithm.pooled:
        arrays = {
            name: jax.ShapeDtypeStruct(np.shape(array), jnp.asarray(array[:1]).dtype)
            for name, array in examples.items()
        }
        jax.eval_shape(one_round, params, arrays, jax.random.key(0))
    for index, (message, upload) in coded.items():
        sent = algorithm.exchanges[index].sent
        assert sent is not None
        bits = sent(_shapes(params), message, upload)
        counts[index] = (math.ceil(bits[0] / 8), math.ceil(bits[1] / 8))
    withheld = any(exchange.total for exchange in algorithm.exchanges)
    return Communication(tuple(counts), _nbytes(params), () if withheld else tuple(reported))


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def _nbytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
