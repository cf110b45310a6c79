"""Per-FedAvg: the server learns a model from which one local step goes far.

Fallah, Mokhtari, Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach", NeurIPS 2020, Algorithm 1.
"""

from __future__ import annotations

from typing import Any, Literal, Unpack, get_args

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
    Reply,
    stateless,
)
from fedax.algorithms.server import Server, ServerState
from fedax.clients.gradients import Loss
from fedax.clients.local_steps import descended
from fedax.clients.local_training import LocalMessage, LocalOptions, LocalTraining, pseudo_gradient
from fedax.clients.minibatches import Minibatch, draw_minibatch
from fedax.clients.sparse_steps import descend
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.optimizers.schedules import ScheduleOrNumber
from fedax.signatures import own_defaults
from fedax.validate import check_choice, check_count, check_number

Version = Literal["FO", "HF"]


@factory
@own_defaults(weighting="uniform")
def perfedavg(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 1.0,
    inner_learning_rate: float | Array = 0.01,
    version: Version = "FO",
    difference: float | Array = 1e-3,
    num_personal_steps: int | Array = 1,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""Per-FedAvg (Fallah et al. 2020, Algorithm 1).

    It is FedAvg on the loss after one gradient step, f_i(w - alpha grad f_i(w)). A local step
    uses three minibatches D, D' and D'', drawn independently:

    .. math::
        \tilde w &= w_{i,k} - \alpha\, \nabla f_i(w_{i,k}; D), \qquad
        v = \nabla f_i(\tilde w; D') \\
        w_{i,k+1} &= w_{i,k} - \beta\,
            \bigl(v - \alpha\, \nabla^2 f_i(w_{i,k}; D'')\, v\bigr)

    version = "FO" leaves out the second derivative, and "HF" replaces its product with v by a
    difference of gradients:

    .. math:: \nabla^2 f_i(w)\, v \approx
        \frac{\nabla f_i(w + \delta v) - \nabla f_i(w - \delta v)}{2 \delta}

    With alpha = 0 this is FedAvg. `maml` differentiates through its local steps exactly, and its
    clients send one gradient instead of a model.

    Args:
      model: the learning problem.
      client_learning_rate: beta >= 0, a number or a schedule of the round.
      server_learning_rate: >= 0, likewise; 1 in the paper.
      inner_learning_rate: alpha >= 0, also of the client's own model.
      version: "FO" or "HF".
      difference: delta > 0, for "HF".
      num_personal_steps: >= 0 steps of gradient descent on all of the client's examples from the
        server's model to the client's own; 1 in the paper.
      **local_options: see `LocalOptions`. D' is FedAvg's minibatch. With order="sequential" the
        three are the same. Clients have equal weights by default, as in the paper.

    Returns:
      An algorithm with one exchange and stateless clients. `train_loss` is the loss at w-tilde.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.perfedavg(character_lstm(16, 1), 0.1, version="HF", num_local_steps=4)
    """
    local = LocalTraining.checked(model, client_learning_rate, local_options)
    server = Server.checked(None, server_learning_rate)
    check_number("inner_learning_rate", inner_learning_rate, at_least=0)
    check_choice("version", version, get_args(Version))
    check_number("difference", difference, above=0)
    check_count("num_personal_steps", num_personal_steps, at_least=0)

    def client(message: LocalMessage, state: Any, data: ClientExamples, key: Array) -> Reply:
        def another(batch: Minibatch, key: Array) -> Minibatch:
            if local.order == "sequential":
                return batch
            return draw_minibatch(data, key, batch_size=local.batch_size, order=local.order)

        def gradient(w: Params, batch: Minibatch, key: Array) -> tuple[Loss, Params]:
            draw, draw_again, noise, noise_again = jax.random.split(key, 4)
            _, at_w = local.gradient(w, another(batch, draw), noise)
            loss, v = local.gradient(descend(w, at_w, inner_learning_rate), batch, key)
            if version == "FO":
                return loss, v
            third = another(batch, draw_again)

            def at(delta: float | Array) -> Params:
                return local.gradient(descend(w, v, delta), third, noise_again)[1]

            def corrected(v: Array, below: Array, above: Array) -> Array:
                delta = jnp.asarray(difference, v.dtype)
                return v - jnp.asarray(inner_learning_rate, v.dtype) * (
                    (above - below) / (2 * delta)
                )

            return loss, jax.tree.map(corrected, v, at(difference), at(-difference))

        result = local._replace(gradient=gradient, sparse_gradient=None).train(message, data, key)
        upload = ModelUpdate(pseudo_gradient(message, result))
        return local.reply(upload, message, data, result, state)

    def fold(state: ServerState, mean: ModelUpdate, participation: Participation) -> ServerState:
        del participation
        return server.step(state, mean.pseudo_gradient)

    def own_model(state: Any, own: Any, data: ClientExamples, key: Array) -> Params:
        del own

        def gradient(params: Params) -> Params:
            return local.full_gradient(params, data, key)[1]

        return descended(gradient, state.params, inner_learning_rate, num_personal_steps)

    return FederatedAlgorithm(
        server.init, stateless, (Exchange(local.message, client, fold),), own_model=own_model
    )
