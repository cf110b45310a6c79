"""FedRep: clients train their own head first, then the shared representation.

Collins, Hassani, Mokhtari, Shakkottai, "Exploiting Shared Representations for Personalized
Federated Learning", ICML 2021, Algorithm 1.
"""

from __future__ import annotations

from typing import Any, Unpack

import jax

from fedax.algorithm import (
    Array,
    Exchange,
    FederatedAlgorithm,
    Model,
    ModelUpdate,
    Params,
    Participation,
    Reply,
    stateless,
)
from fedax.algorithms.division import divided
from fedax.algorithms.personal import personal
from fedax.algorithms.server import Server, ServerState
from fedax.clients.local_training import LocalMessage, LocalOptions, LocalTraining, pseudo_gradient
from fedax.clients.minibatches import Minibatch
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.models.frozen import Where
from fedax.optimizers.schedules import ScheduleOrNumber
from fedax.signatures import own_defaults
from fedax.validate import check_count


@factory
@own_defaults(weighting="uniform")
def fedrep(
    model: Model,
    where: Where = "",
    client_learning_rate: ScheduleOrNumber = 0.1,
    num_head_steps: int | Array = 10,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""FedRep (Collins et al. 2021, Algorithm 1).

    With shared arrays u, the representation, and personal arrays v_i, the client's head:

    .. math::
        v_{i,h+1} &= v_{i,h} - \gamma\, \nabla_v f_i(u_t, v_{i,h}), \qquad h < \tau \\
        u_{i,k+1} &= u_{i,k} - \gamma\, \nabla_u f_i(u_{i,k}, v_{i,\tau}), \qquad k < K \\
        u_{t+1} &= \textstyle\sum_i p_i u_{i,K}

    With the two phases at the same time it would be FedPer, see `personal`.

    Args:
      model: the learning problem.
      where: which arrays are personal: the name of an array or of a group, such as "head", several
        names (in text: with commas in between), or a function `(name) -> bool`. It must be given.
        With an empty sequence, `()`, the method is FedAvg with equal weights.
      client_learning_rate: gamma >= 0, a number or a schedule of the round.
      num_head_steps: tau >= 0 minibatches for the head; 10 is the default here.
      **local_options: see `LocalOptions`, for the representation's steps. The head's have the same
        batch size and order. Clients have equal weights by default, as in the paper.

    Returns:
      An algorithm with one exchange. Each client keeps its personal arrays.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced), or `where` is missing,
        chooses no array or leaves none to share.

    Example:
      >>> import fedax
      >>> model = fedax.models.mlp_classifier(4, [3], 2)
      >>> algorithm = fedax.fedrep(model, where="1", num_local_steps=5)
    """
    local = LocalTraining.checked(model, client_learning_rate, local_options)
    server = Server.checked(None, 1.0)
    check_count("num_head_steps", num_head_steps, at_least=0)
    division = divided(model, where)

    def only(heads: bool) -> Any:
        def correct(grads: Params, params: Params, batch: Minibatch, key: Array) -> Params:
            del params, batch, key
            part = division.part(grads, personal=heads)
            return division.filled(part, personal=heads)

        return correct

    head = local._replace(num_local_epochs=None)

    def client(message: LocalMessage, state: Any, data: ClientExamples, key: Array) -> Reply:
        start = message
        if any(division.personal):
            first = message._replace(num_local_steps=num_head_steps, proximal_weight=None)
            with_head = head.train(
                first, data, jax.random.fold_in(key, 0), correction=only(heads=True)
            )
            start = message._replace(params=with_head.params)
        result = local.train(
            start, data, key, correction=only(heads=False) if any(division.personal) else None
        )
        return local.reply(
            ModelUpdate(pseudo_gradient(message, result)), message, data, result, state
        )

    def fold(state: ServerState, mean: ModelUpdate, participation: Participation) -> ServerState:
        del participation
        return server.step(state, mean.pseudo_gradient)

    exchange = Exchange(local.message, client, fold)
    return personal(FederatedAlgorithm(server.init, stateless, (exchange,)), model, where)
