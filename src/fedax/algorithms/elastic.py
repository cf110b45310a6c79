"""Elastic aggregation: the server damps changes of parameters to which outputs are sensitive.

Chen et al., "Elastic Aggregation for Federated Optimization", CVPR 2023, Algorithms 1 and 2 (as
printed in the supplement of the submission).
"""

from __future__ import annotations

from typing import NamedTuple, get_args

from fedax.algorithm import (
    Array,
    Exchange,
    FederatedAlgorithm,
    Individual,
    Model,
    ModelUpdate,
    Params,
    Participation,
    PyTree,
    Reply,
    WrapperState,
    own_model_inside,
)
from fedax.algorithms.division import require_whole
from fedax.algorithms.elastic_upload import (
    ElasticUpload,
    inner_of,
    mean_sensitivity,
    require_scalable,
    scaled_inner,
)
from fedax.algorithms.sensitivity import (
    Output,
    Sensitivity,
    boosted_share,
    elastic_scale,
    measurement,
)
from fedax.algorithms.statistics_message import refuse_statistics
from fedax.codecs.codec import sent_around
from fedax.data.cohort_data import ClientExamples
from fedax.data.hold_out import hold_out
from fedax.factories import factory
from fedax.mistakes.algorithm import require_wrappable
from fedax.mistakes.model import require_model
from fedax.validate import check_choice, check_count, check_number


class ElasticMessage(NamedTuple):
    """The wrapped algorithm's message, and the parameters at which sensitivity is measured."""

    inner: PyTree
    params: Params


@factory
def elastic(
    algorithm: FederatedAlgorithm,
    model: Model,
    elasticity: float | Array = 0.5,
    sensitivity_decay: float | Array = 0.95,
    held_out_fraction: float | Array = 0.1,
    sensitivity: Sensitivity = "momentum",
    output: Output = "logits",
    sensitivity_batch_size: int = 20,
) -> FederatedAlgorithm:
    r"""Elastic aggregation around any algorithm that uploads a pseudo-gradient (Chen et al. 2023).

    Each client holds out a part of its examples. On them it measures, at the server's model, how
    sensitive the outputs F are to each parameter (no labels are needed):

    .. math::
        g = \nabla_x \textstyle\sum_{z \in \text{batch}} \lVert F(x; z) \rVert^2, \qquad
        \Omega_k \leftarrow \mu\, \Omega_k + (1 - \mu)\, |g| \quad\text{from 0, batch by batch,}

    The server multiplies each coordinate of the mean pseudo-gradient by zeta, then the wrapped
    algorithm takes its step:

    .. math::
        \Omega = \textstyle\sum_k p_k \Omega_k, \qquad
        \zeta = 1 + \tau - \Omega / \max_i \Omega^i \in [\tau, 1 + \tau]

    The maximum is over all parameters. If it is 0, zeta = 1 + tau.

    Algorithms 1 and 2 print a minus in the server's step, away from the clients. This is the plus
    of Algorithm 3 and equation 14. Algorithm 2's proximal term lacks the client learning rate;
    `elastic(fedprox(...), ...)` has FedProx's.

    PFNM has no mean change, because its server first matches the clients' units. Around PFNM (a
    case that the paper does not define) zeta scales the change of each client's weights since the
    start of the round, before they are matched. Nothing is scaled in round 0, where each client
    starts from a network of its own.

    Args:
      algorithm: the wrapped algorithm. The upload of its last exchange needs a field
        `pseudo_gradient`, or a method `scaled` if the server receives uploads one by one (see
        `PFNMUpload`).
      model: the model that the algorithm trains.
      elasticity: tau >= 0; 0 freezes the most sensitive coordinate. The supplement gives no
        values; the defaults, tau = 0.5 and mu = 0.95, are those of other implementations.
      sensitivity_decay: mu in [0, 1), the share of Omega_k that is kept at each batch.
      held_out_fraction: share of each client's examples that is held out, in (0, 1), see
        `fedax.data.hold_out`. The paper uses 0.1.
      sensitivity: "momentum" (above) or "average", the mean of |g| over the batches.
      output: F, "logits" (the model's outputs) or "softmax" (their softmax over the last axis).
        The paper does not say which; Memory Aware Synapses, on which it builds, uses the outputs.
      sensitivity_batch_size: examples per batch of this measurement, >= 1.

    Returns:
      The algorithm, with one more upload of the size of the parameters. Around FedAvg, a round
      then sends 3 copies of the parameters instead of 2. The weights p_k are the wrapped
      algorithm's. Each round reports `boosted_share`, the share of the parameters with zeta > 1
      (Figure 1).

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced); or, when the
        algorithm is first traced, its upload has nothing that elastic could scale.

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> model = character_lstm(16, 1)
      >>> algorithm = fedax.elastic(fedax.fedyogi(model), model, elasticity=0.3)
    """
    call = "fedax.elastic(algorithm, model, ...)"
    require_wrappable(algorithm, call)
    require_model(model, call)
    check_number("elasticity", elasticity, at_least=0)
    check_number("sensitivity_decay", sensitivity_decay, at_least=0, below=1)
    check_number("held_out_fraction", held_out_fraction, above=0, below=1)
    check_choice("sensitivity", sensitivity, get_args(Sensitivity))
    check_choice("output", output, get_args(Output))
    check_count("sensitivity_batch_size", sensitivity_batch_size)
    *before, last = algorithm.exchanges

    measure = measurement(
        model, sensitivity_decay, sensitivity, output, sensitivity_batch_size
    )

    def on_the_rest(exchange: Exchange) -> Exchange:
        """The exchange on the inner state and without the examples held out."""

        def client(message: PyTree, state: PyTree, data: ClientExamples, key: Array) -> Reply:
            return exchange.client(message, state, hold_out(data, held_out_fraction)[0], key)

        return exchange._replace(
            broadcast=lambda state: exchange.broadcast(state.inner),
            client=client,
            server=lambda state, mean, participation: state._replace(
                inner=exchange.server(state.inner, mean, participation)
            ),
        )

    def broadcast(state: WrapperState) -> ElasticMessage:
        message = require_whole(
            last.broadcast(state.inner), "Put it outside: personal(elastic(...))."
        )
        refuse_statistics(message, "elastic", "Put elastic inside: batch_statistics(elastic(...)).")
        return ElasticMessage(message, state.params)

    def client(
        message: ElasticMessage, state: PyTree, data: ClientExamples, key: Array
    ) -> Reply:
        rest, held_out = hold_out(data, held_out_fraction)
        reply = last.client(message.inner, state, rest, key)
        require_scalable(reply.upload, individual=last.individual)
        omega = measure(message.params, held_out, key)
        return reply._replace(upload=ElasticUpload(reply.upload, omega))

    def server(
        state: WrapperState, upload: ElasticUpload | Individual, participation: Participation
    ) -> WrapperState:
        zeta = elastic_scale(mean_sensitivity(upload), elasticity)
        scaled = scaled_inner(upload, zeta, state.inner)
        return state._replace(inner=last.server(state.inner, scaled, participation))

    def report(upload: ElasticUpload | Individual) -> dict[str, Array]:
        inner = {} if last.report is None else last.report(inner_of(upload))
        return {**inner, "boosted_share": boosted_share(mean_sensitivity(upload), elasticity)}

    return algorithm._replace(
        init=lambda params: WrapperState(algorithm.init(params), ()),
        own_model=own_model_inside(algorithm),
        exchanges=(
            *map(on_the_rest, before),
            last._replace(
                broadcast=broadcast, client=client, server=server, report=report,
                upload=lambda params: ElasticUpload((last.upload or ModelUpdate)(params), params),
                sent=sent_around(last.sent),
            ),
        ),
    )
