"""PFNM: probabilistic federated neural matching, one-shot and over several rounds.

Yurochkin, Agarwal, Ghosh, Greenewald, Hoang, Khazaeni, "Bayesian Nonparametric Federated Learning
of Neural Networks", ICML 2019; released code github.com/IBM/probabilistic-federated-neural-matching
(one-shot) and matching/pfnm_communication.py of github.com/IBM/FedMA (several rounds).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Unpack, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedax.algorithm import (
    Array,
    Exchange,
    FederatedAlgorithm,
    Individual,
    Model,
    Params,
    Participation,
    Reply,
)
from fedax.algorithms.matching import Matching, Popularity, match_cohort, nearest_units
from fedax.clients.local_training import LocalMessage, LocalOptions, LocalTraining
from fedax.clients.minibatches import Minibatch, count_local_steps, fold_minibatches
from fedax.data.cohort_data import ClientExamples
from fedax.devices.internals import buffer_callback
from fedax.factories import factory
from fedax.mistakes.errors import ModelError
from fedax.models.mlp import hidden_sizes, select_units, widen
from fedax.optimizers.checks import require_optimizer
from fedax.optimizers.schedules import ScheduleOrNumber
from fedax.validate import check_choice, check_count, check_number

# Of a layer of the global network.
MOST_UNITS = 2**16


class PFNMState(NamedTuple):
    """Server state of PFNM.

    Attributes:
      params: the global network; every hidden layer has `capacity` units.
      round_index: t, int32 scalar.
      num_units: int32 [hidden layers], how many of them are in use; they come first, those that
        most clients have before the others. The rest is 0 throughout.
      class_counts: [outputs], how many examples of each class the last cohort had.
    """

    params: Params
    round_index: Array
    num_units: Array
    class_counts: Array


class PFNMMessage(NamedTuple):
    """What PFNM broadcasts: what any local training needs, and the server state."""

    local: LocalMessage
    server: PFNMState


class PFNMUpload(NamedTuple):
    """A client's network, and what the server needs to know of it.

    Attributes:
      network: after local training.
      class_counts: [outputs], the client's number of examples of each class.
      places: for each hidden layer int32 [units], from which units of the server's network its own
        started; in round 0 it started from none.
    """

    network: Params
    class_counts: Array
    places: Sequence[Array]

    def scaled(self, server: PFNMState, scale: Params) -> PFNMUpload:
        """With the change of each weight in local training times `scale`, as `fedax.elastic` asks.

        In round 0, where clients start from networks of their own, it is as it was.

        Args:
          server: the state that the client started from.
          scale: like the server's parameters.
        """
        def stretched(start: Array, factor: Array, end: Array) -> Array:
            return jnp.where(server.round_index == 0, end, start + factor * (end - start))

        start, factors = (select_units(of, self.places) for of in (server.params, scale))
        return self._replace(network=jax.tree.map(stretched, start, factors, self.network))


class PFNMClient(NamedTuple):
    """What a client keeps: the network that it trained last, and whether it ever did."""

    network: Params
    took_part: Array


@factory
def pfnm(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    *,
    variance: float | Array = 1.0,
    prior_variance: float | Array = 1.0,
    mass: float | Array = 1.0,
    num_sweeps: int = 5,
    popularity: Popularity = "derived",
    capacity: int = 4,
    labels: str | None = "y",
    client_optimizer: optax.GradientTransformation | None = None,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""PFNM (Yurochkin et al. 2019): hidden units are matched, then averaged.

    In round 0 each client trains a network from its own random start. The server models the
    clients' units as noisy copies of global units, finds the most probable assignment of one to
    the other, and averages the units v that are assigned to the same global unit i:

    .. math:: \theta_i = \frac{\sum_{v \to i} v / \sigma^2}
                              {1/\sigma_0^2 + \sum_{v \to i} 1/\sigma^2}

    One round is one-shot PFNM. In each later round a client starts from the global units that it
    was matched with, so its network keeps its size while the global network is wider by the factor
    `capacity`. The model must accept parameters of any width, as `fedax.models.mlp` and
    `character_mlp` do.

    The server must see each client's network, so secure aggregation is impossible and memory
    grows with the cohort. A client's weight (`weighting`) only decides whether it counts at all.

    Args:
      model: the clients' network. Its parameters are layers {'w': [in, out], 'b': [out]} with at
        least one hidden layer; the activation has f(0) = 0, as ReLU does.
      client_learning_rate: eta_l >= 0, a number or a schedule of the round.
      variance: sigma^2 > 0, of the clients' weights around the global ones; may be traced.
      prior_variance: sigma_0^2 > 0, of the global weights around 0; may be traced. Weights shrink
        towards 0, those of a unit that one client alone has by 1/(1 + sigma^2/sigma_0^2). A large
        prior_variance gives plain averages. The released code tries 1 and 10.
      mass: gamma_0 > 0, of the Beta process; the larger, the more new units; may be traced.
      num_sweeps: how many times each client is matched again, >= 0. The released code uses 5 for
        one round and 3 for several. The order of a sweep is drawn from the round's number.
      popularity: how much a unit gains by being shared by many clients: "derived" follows from
        the model; "released", as in the released code, is half of that and counts no unit more
        than 10 times.
      capacity: width of the global network's hidden layers, as a multiple of the client's, >= 1.
        When it is full, clients share the existing units instead of adding new ones.
      labels: name of the clients' array of integer classes. The weights into output k are
        averaged by the clients' shares of class k, as in the released code. None weights all
        clients equally.
      client_optimizer: an optax transformation, whose update is multiplied by
        client_learning_rate; None is SGD.
      **local_options: see `LocalOptions`.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced); or, when used, the
        parameters do not form such a network, or the clients do not have the array of labels.

    Example:
      >>> import fedax, jax
      >>> from fedax.models.mlp import mlp
      >>> model = fedax.classification(*mlp((784, 100, 10)))
      >>> algorithm = fedax.pfnm(model, 0.01, capacity=3, num_local_epochs=10)
      >>> state = algorithm.init(model.init(jax.random.key(0)))
      >>> [layer["w"].shape for layer in state.params]
      [(784, 300), (300, 10)]
    """
    check_number("variance", variance, above=0)
    check_number("prior_variance", prior_variance, above=0)
    check_number("mass", mass, above=0)
    check_count("num_sweeps", num_sweeps, at_least=0)
    check_count("capacity", capacity)
    check_choice("popularity", popularity, get_args(Popularity))
    require_optimizer("client_optimizer", client_optimizer)
    local = LocalTraining.checked(model, client_learning_rate, local_options)

    def init(params: Params) -> PFNMState:
        sizes = hidden_sizes(params)
        if capacity * max(sizes) > MOST_UNITS:
            raise ValueError(
                f"capacity = {capacity:,} makes layers of {capacity * max(sizes):,} units. Choose "
                f"a capacity of at most {max(MOST_UNITS // max(sizes), 1):,}."
            )
        network = widen(params, [capacity * size for size in sizes])
        return PFNMState(
            network, jnp.zeros((), jnp.int32), jnp.asarray(sizes, jnp.int32),
            jnp.zeros_like(network[-1]["b"]),
        )

    def init_client(params: Params) -> PFNMClient:
        hidden_sizes(params)  # its error, if they are none
        return PFNMClient(jax.tree.map(jnp.zeros_like, tuple(params)), jnp.zeros((), bool))

    def broadcast(state: PFNMState) -> PFNMMessage:
        return PFNMMessage(local.message(state), state)

    def client(message: PFNMMessage, state: PFNMClient, data: ClientExamples, key: Array) -> Reply:
        own_key, key = jax.random.split(key)
        server = message.server
        if labels is None:
            shares = counts = jnp.ones_like(server.class_counts)
        else:
            zeros = jnp.zeros_like(server.class_counts)
            counts = _count_classes(data, labels, zeros, local.batch_size)
            # The last cohort may have been one without this client.
            shares = counts / jnp.maximum(jnp.maximum(server.class_counts, counts), 1)
        places = _on_host(
            nearest_units,
            [jax.ShapeDtypeStruct(layer["b"].shape, jnp.int32) for layer in state.network[:-1]],
            state.network, server.params, server.num_units, shares,
        )
        places = [
            jnp.where(state.took_part, place, jnp.arange(len(place), dtype=jnp.int32))
            for place in places
        ]
        start = jax.tree.map(
            lambda own, again: jnp.where(server.round_index == 0, own.astype(again.dtype), again),
            tuple(model.init(own_key)), select_units(server.params, places),
        )
        local_message = message.local._replace(params=start)
        result = local.train(local_message, data, key, optimizer=client_optimizer)
        kept = PFNMClient(result.params, jnp.ones((), bool))
        upload = PFNMUpload(result.params, counts, places)
        reply = local.reply(upload, local_message, data, result, kept)
        return reply._replace(model_delta=None)  # units have no common order to compare them in

    def fold(state: PFNMState, individual: Individual, participation: Participation) -> PFNMState:
        del participation

        def match(individual: Individual, variances: Sequence[Any], round_index: Any) -> Any:
            networks, counts, weights = jax.tree.map(
                np.asarray,
                (individual.uploads.network, individual.uploads.class_counts, individual.weights),
            )
            return match_cohort(
                networks, None if labels is None else counts, weights > 0,
                hidden_sizes(state.params),
                Matching(*map(float, variances), num_sweeps=num_sweeps, popularity=popularity),
                np.random.default_rng(int(round_index)),
            )

        shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
            (state.params, state.num_units),
        )
        params, num_units = _on_host(
            match, shapes, individual, [variance, prior_variance, mass], state.round_index
        )
        counts = jnp.where(individual.weights[:, None] > 0, individual.uploads.class_counts, 0)
        return state._replace(
            params=params, num_units=num_units, class_counts=counts.sum(0, dtype=counts.dtype)
        )

    exchange = Exchange(broadcast, client, fold, individual=True)
    return FederatedAlgorithm(init, init_client, (exchange,))


def _on_host(function: Callable[..., Any], shapes: Any, *arguments: Any) -> Any:
    """What a function of NumPy arrays returns, in a traced program, client after client.

    `jax.pure_callback` copies what is larger than 100 kB with a thread of the pool that runs the
    program. On a CPU of one core, or of two when both call, it would wait for itself.
    """

    def called(*found: Any) -> Any:
        return function(*jax.tree.map(np.asarray, found))

    def in_place(_context: Any, results: Any, *buffers: Any) -> None:
        jax.tree.map(np.copyto, jax.tree.map(np.asarray, results), called(*buffers))

    return jax.lax.platform_dependent(
        *arguments,
        cpu=buffer_callback(in_place, shapes, vmap_method="sequential"),
        default=functools.partial(
            jax.pure_callback, called, shapes, vmap_method="sequential"
        ),
    )


def _count_classes(data: ClientExamples, labels: str, zeros: Array, batch_size: int) -> Array:
    """The client's number of labels of each class, shaped like `zeros` [outputs]."""

    def count(total: Array, batch: Minibatch, key: Array) -> Array:
        del key
        if labels not in batch.examples:
            raise ModelError(
                f"labels = {labels!r}, but the clients' arrays are {sorted(batch.examples)}. Give "
                "the name of the array of classes, or labels=None."
            )
        hot = jax.nn.one_hot(batch.examples[labels], len(zeros), dtype=zeros.dtype)
        hot = hot.reshape(len(hot), -1, len(zeros))  # labels may have further axes, as tokens do
        return total + jnp.where(batch.mask[:, None, None], hot, 0).sum((0, 1))

    return fold_minibatches(
        count, zeros, data, jax.random.key(0), batch_size=batch_size, order="sequential",
        num_steps=count_local_steps(data, batch_size, 1),
    )

