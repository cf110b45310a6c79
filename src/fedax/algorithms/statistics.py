"""Statistics of the clients' examples in a model, such as those of batch normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from fedax.algorithm import (
    Array,
    FederatedAlgorithm,
    Model,
    Params,
    Participation,
    PyTree,
    Reply,
    with_params,
    with_pseudo_gradient,
)
from fedax.algorithms.division import require_whole
from fedax.algorithms.statistics_message import StatisticsMessage, require_mask
from fedax.clients.gradients import mean_over_client
from fedax.clients.minibatches import Minibatch
from fedax.clients.precision import sum_dtype
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.mistakes.algorithm import require_wrappable
from fedax.mistakes.errors import AlgorithmError, kind_of
from fedax.mistakes.model import call_init, call_update, require_model
from fedax.models.frozen import Where, chosen
from fedax.models.parameters import named_leaves
from fedax.validate import check_choice, check_count, quoted

Kept = Literal["averaged", "recomputed"]


@factory
def batch_statistics(
    algorithm: FederatedAlgorithm,
    model: Model,
    where: Where,
    update: Callable[..., Params],
    kept: Kept = "averaged",
    batch_size: int = 20,
) -> FederatedAlgorithm:
    r"""Around any algorithm: some arrays are statistics of the examples and are not trained.

    In training, batch normalisation uses its minibatch's mean and variance; in evaluation it uses
    statistics that the model keeps, here arrays of the parameters. The training loss does not
    depend on them, so their gradients are 0. After local training each client measures them on
    all of its examples, at its trained model x_i:

    .. math::
        s_i = \frac{\sum_b |b|\, u(x_i; b)}{\sum_b |b|}, \qquad
        s_{t+1} = \textstyle\sum_i p_i s_i

    over its minibatches b, where u(x; b) is what `update` makes of the statistics of x. With a
    momentum of 0 in `update`, these are the minibatches' statistics.

    Three choices:

    - averaged by the server: as above, `kept="averaged"`;
    - kept by the client: `personal(batch_statistics(...), model, where)` with the same `where`.
      If `where` also has the scale and offset of the normalisation, this is FedBN (Li et al. 2021);
    - recomputed before evaluation: `kept="recomputed"` gives each client the server's model with
      the statistics of its own training examples. The server's model has the initial ones.

    Clients' own models, such as Ditto's, have their statistics recomputed, too. `elastic` goes
    inside: `batch_statistics(elastic(...))`. `compressed` goes nowhere: its codes would make
    variances negative. The metric `pseudo_gradient_norm` is of the statistics' changes, too.

    Args:
      algorithm: the wrapped algorithm. The upload of its last exchange needs a field
        `pseudo_gradient`.
      model: the model that the algorithm trains.
      where: which arrays are statistics, see `fedax.models.frozen`.
      update: `(params, batch, mask) -> params`: a pass in training mode, which returns the
        parameters with new statistics. `mask` [B] is False for padding, which must not count.
      kept: "averaged" or "recomputed".
      batch_size: B >= 1, examples of a minibatch b.

    Returns:
      The algorithm. Nothing more is sent.

    Raises:
      TypeError: if `update` does not take three arguments.
      ValueError: if `where` names no array or all, an option is out of its range, or the algorithm
        is `compressed`.
      AlgorithmError: when the algorithm is first traced, if its upload has no `pseudo_gradient`.
      ModelError: likewise, if `update` returns something else than such parameters.

    Example:
      >>> import fedax
      >>> model = fedax.regression(
      ...     lambda key: {"w": jnp.ones(2), "mean": jnp.zeros(2)},
      ...     lambda params, x: (x - params["mean"]) @ params["w"])
      >>> def update(params, batch, mask):
      ...     rows = jnp.where(mask[:, None], batch["x"], 0)
      ...     return {**params, "mean": rows.sum(0) / mask.sum()}
      >>> algorithm = fedax.batch_statistics(fedax.fedavg(model), model, "mean", update)
    """
    call = "fedax.batch_statistics(algorithm, model, where, update)"
    require_wrappable(algorithm, call)
    require_model(model, call)
    check_choice("kept", kept, get_args(Kept))
    check_count("batch_size", batch_size)
    require_mask(update)
    if any(exchange.sent is not None for exchange in algorithm.exchanges):
        raise ValueError(
            "batch_statistics cannot wrap a compressed algorithm, whose codes are not of the "
            "statistics. Leave compressed out."
        )
    if any(exchange.individual for exchange in algorithm.exchanges):
        raise ValueError(
            "batch_statistics needs uploads that are averaged, but the server of the wrapped "
            "algorithm receives them one by one. Put robust outside: robust(batch_statistics(...))."
        )
    is_statistic = _chosen(model, where)

    def merged(params: Params, statistics: Params) -> Params:
        leaves, structure = jax.tree.flatten(params)
        others = jax.tree.leaves(statistics)
        return structure.unflatten([
            other.astype(leaf.dtype) if is_one else leaf
            for is_one, leaf, other in zip(is_statistic, leaves, others, strict=True)
        ])

    def measured(params: Params, data: ClientExamples, key: Array) -> Params:
        """The parameters with s_i; as they are for a client without examples."""

        def of_batch(batch: Minibatch, key: Array) -> tuple[Array, Params]:
            del key
            weight = batch.mask.sum().astype(sum_dtype(jax.tree.leaves(params)[0]))
            return weight, call_update(update, params, batch.examples, batch.mask)

        weight, mean = mean_over_client(of_batch, data, key, batch_size=batch_size)
        return merged(params, jax.tree.map(
            lambda new, old: jnp.where(weight > 0, new, old), mean, params
        ))

    inner = algorithm.own_model

    def own_model(state: Any, own: PyTree, data: ClientExamples, key: Array) -> Params:
        return measured(inner(state, own, data, key) if inner else state.params, data, key)

    algorithm = algorithm._replace(
        own_model=own_model if inner or kept == "recomputed" else None
    )
    if kept == "recomputed":
        return algorithm
    *before, last = algorithm.exchanges

    def broadcast(state: Any) -> StatisticsMessage:
        message = require_whole(
            last.broadcast(state), "Put it outside: personal(batch_statistics(...))."
        )
        return StatisticsMessage(message, state.params)

    def client(
        message: StatisticsMessage, state: PyTree, data: ClientExamples, key: Array
    ) -> Reply:
        reply = last.client(message.inner, state, data, key)
        if not hasattr(reply.upload, "pseudo_gradient"):
            raise AlgorithmError(
                "batch_statistics sends the statistics in the pseudo-gradient that clients upload, "
                f"but the upload of the wrapped algorithm's last exchange is "
                f"{kind_of(reply.upload)} without one. Upload a NamedTuple with a field "
                "pseudo_gradient, such as fedax.ModelUpdate(...)."
            )
        trained = message.params if reply.model_delta is None else jax.tree.map(
            jnp.add, message.params, reply.model_delta
        )
        trained = merged(trained, message.params)  # some methods move arrays without gradients
        change = jax.tree.map(jnp.subtract, message.params, measured(trained, data, key))
        whole = merged(reply.upload.pseudo_gradient, change)
        return reply._replace(upload=with_pseudo_gradient(reply.upload, whole))

    def server(state: Any, mean: Any, participation: Participation) -> Any:
        change = mean.pseudo_gradient
        nothing = merged(change, jax.tree.map(jnp.zeros_like, change))
        new = last.server(state, with_pseudo_gradient(mean, nothing), participation)
        moved = jax.tree.map(jnp.subtract, state.params, change)
        return with_params(new, merged(new.params, moved))

    changed = last._replace(broadcast=broadcast, client=client, server=server)
    return algorithm._replace(exchanges=(*before, changed))


def _chosen(model: Model, where: Where) -> list[bool]:
    """Whether each array of the parameters is a statistic."""
    params = jax.eval_shape(lambda: call_init(model, jax.random.key(0)))
    found = chosen(params, where)
    if all(found) or not any(found):
        raise ValueError(
            f"where must choose some arrays as statistics and leave some to train, but chooses "
            f"{sum(found)} of {len(found)}: {quoted(list(named_leaves(params)))}."
        )
    return found
