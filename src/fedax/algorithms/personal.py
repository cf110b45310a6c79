"""Personal arrays: some arrays of the model belong to each client, the others are shared.

Arivazhagan, Aggarwal, Singh, Choudhary, "Federated Learning with Personalization Layers", 2019,
Algorithms 1 and 2 (FedPer, with the last layers personal); Li, Jiang, Zhang, Kamp, Dou, "FedBN:
Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021, Algorithm 1 (with
the normalisation's arrays personal).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedax.algorithm import (
    Array,
    Exchange,
    FederatedAlgorithm,
    Model,
    ModelUpdate,
    Params,
    Participation,
    PyTree,
    Reply,
    WrapperState,
    at_round,
)
from fedax.algorithms.division import Division, PersonalMessage, divided
from fedax.algorithms.fedexp import with_own_norm
from fedax.algorithms.plateau import Plateau
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.mistakes.algorithm import require_averaged, require_wrappable
from fedax.mistakes.model import call_init, require_model
from fedax.models.frozen import Where


class PersonalState(NamedTuple):
    """A client's state.

    Attributes:
      server: what the wrapped algorithm's server would keep of this client's personal arrays: its
        state with the personal `Part` of each tree that is like the parameters.
      inner: the client's state of the wrapped algorithm.
    """

    server: PyTree
    inner: PyTree


@factory
def personal(
    algorithm: FederatedAlgorithm, model: Model, where: Where = ""
) -> FederatedAlgorithm:
    r"""Around any algorithm: some arrays are personal, the others are shared.

    With parameters x = (u, v_i), where u are the shared arrays and v_i the client's own, the
    wrapped algorithm trains both on the client. Only u is sent and averaged. Around FedAvg with
    server learning rate 1 this is FedPer (Arivazhagan et al. 2019, Algorithms 1 and 2) if v are the
    last layers, and FedBN (Li et al. 2021) if they are those of the normalisation:

    .. math::
        (u_i, v_i) \leftarrow \text{local steps from } (u_t, v_i), \qquad
        u_{t+1} = \textstyle\sum_i p_i u_i

    In general each client is a federation of its own on its personal arrays: it takes the wrapped
    algorithm's server step on them, with its own upload as the mean. A control of SCAFFOLD then
    corrects nothing there, and momenta, second moments and the server learning rate act on v_i as
    they do on u. The personal arrays of a client that never took part are the initial ones.

    The norm of a client's update is of all its arrays in `qfedavg`, and of the shared ones in
    `fedexp`. What a server reports of the mean, such as `boosted_share` of
    `elastic`, is of the shared arrays. Other wrappers: `personal(elastic(...))` and
    `compressed(personal(...))`, the latter without `downlink`.

    Args:
      algorithm: the wrapped algorithm, whose server sees means only.
      model: the model that the algorithm trains.
      where: which arrays are personal: the name of an array or of a group, such as "head", several
        names (in text: with commas in between), or a function `(name) -> bool`, as in
        `fedax.models.frozen`. It must be given. With an empty sequence, `()`, nothing is personal,
        and the result is the wrapped algorithm.

    Returns:
      The algorithm. Each client keeps its personal arrays, with what the algorithm's server keeps
      beside them. The server's personal arrays stay as they were at the beginning.

    Raises:
      TypeError: if `where` is neither names nor a function.
      ValueError: if `where` is missing, chooses no array or leaves none to share, the algorithm's
        server sees uploads one by one or trains on the pool of all examples, or the algorithm is
        `compressed`, `personal` or `local_update_decay`.

    Example:
      >>> import fedax, jax
      >>> model = fedax.models.mlp_classifier(4, [3], 2)
      >>> fedper = fedax.personal(fedax.fedavg(model), model, where="1")
      >>> fedper.init_client(model.init(jax.random.key(0))).server.params.arrays[0].shape
      (2,)
    """
    call = "fedax.personal(algorithm, model, where)"
    require_wrappable(algorithm, call)
    require_model(model, call)
    division = divided(model, where)
    if not any(division.personal):
        return algorithm
    require_averaged(algorithm, "personal")

    _require_shared_control(algorithm, model)

    def init_client(params: Params) -> PersonalState:
        return PersonalState(
            division.part(algorithm.init(params), personal=True), algorithm.init_client(params)
        )

    def own_model(state: Any, own: PersonalState, data: ClientExamples, key: Array) -> Params:
        whole = division.joined(division.part(state, personal=False), own.server)
        if algorithm.own_model is None:
            return whole.params
        return algorithm.own_model(whole, own.inner, data, key)

    return algorithm._replace(
        init_client=init_client,
        exchanges=tuple(_around(exchange, division) for exchange in algorithm.exchanges),
        own_model=own_model,
    )


def _around(exchange: Exchange, division: Division) -> Exchange:
    """The exchange of shared arrays, with the server's step on personal ones at the client."""

    def broadcast(state: Any) -> PersonalMessage:
        message = division.part(exchange.broadcast(state), personal=False)
        return PersonalMessage(message, state.round_index)

    def client(
        message: PersonalMessage, state: PersonalState, data: ClientExamples, key: Array
    ) -> Reply:
        own = at_round(division.filled(state.server, personal=True), message.round_index)
        mine = division.part(exchange.broadcast(own), personal=True)
        reply = exchange.client(division.joined(message.inner, mine), state.inner, data, key)
        one = jnp.int32(1)
        own = exchange.server(own, reply.upload, Participation(one, one, one))
        return reply._replace(
            upload=with_own_norm(division.part(reply.upload, personal=False)),
            client_state=PersonalState(division.part(own, personal=True), reply.client_state),
            model_delta=division.part(reply.model_delta, personal=False),
        )

    def server(state: Any, mean: PyTree, participation: Participation) -> Any:
        new = exchange.server(state, division.filled(mean, personal=False), participation)
        return division.joined(
            division.part(new, personal=False), division.part(state, personal=True)
        )

    def upload(params: Params) -> PyTree:
        return division.part((exchange.upload or ModelUpdate)(params), personal=False)

    def report(mean: PyTree) -> Any:
        assert exchange.report is not None
        return exchange.report(division.filled(mean, personal=False, zeros=False))

    return exchange._replace(
        broadcast=broadcast, client=client, server=server, upload=upload,
        report=None if exchange.report is None else report,
    )


def _require_shared_control(algorithm: FederatedAlgorithm, model: Model) -> None:
    """Raises a ValueError around a wrapper that would act on each client apart."""
    def first(key: Array) -> tuple[Any, PyTree]:
        state = algorithm.init(call_init(model, key))
        return state, algorithm.exchanges[0].broadcast(state)

    state, message = jax.eval_shape(first, jax.random.key(0))
    if any(exchange.sent is not None for exchange in algorithm.exchanges):
        raise ValueError(
            "personal cannot wrap a compressed algorithm, which would code what a client keeps. "
            "Put compressed outside: compressed(personal(...))."
        )
    if isinstance(message, PersonalMessage):
        raise ValueError(
            "personal cannot wrap an algorithm with personal arrays. Name all of them in one where."
        )

    def lowers_rates(state: Any) -> bool:
        return isinstance(state, WrapperState) and (
            isinstance(state.own, Plateau) or lowers_rates(state.inner)
        )

    if lowers_rates(state):
        raise ValueError(
            "personal cannot wrap local_update_decay, as each client would lower the rates by "
            "itself. Give the wrapped method a schedule, such as client_learning_rate="
            "'exponential_decay(0.1, 0.99)'."
        )
