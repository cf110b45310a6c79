"""Robust means in the server of any method that averages uploads."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedax.algorithm import (
    Array,
    Exchange,
    FederatedAlgorithm,
    Individual,
    ModelUpdate,
    Params,
    Participation,
    PyTree,
    Reply,
    WrapperState,
    own_model_inside,
)
from fedax.algorithms.term import TermUpload
from fedax.clients.precision import sum_dtype
from fedax.clients.uploads import single_numbers
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.mistakes.algorithm import require_averaged, require_wrappable
from fedax.mistakes.errors import AlgorithmError, kind_of
from fedax.robust_means import RobustMean, trimmed_mean


@factory
def robust(algorithm: FederatedAlgorithm, mean: RobustMean | None = None) -> FederatedAlgorithm:
    r"""Around any method whose server averages uploads: a robust mean in place of the mean.

    With a rule R of `fedax.robust_means`, the server of the wrapped method receives

    .. math:: R(\{u_i\}) \quad\text{in place of}\quad \sum_i p_i u_i

    in all of its exchanges. Everything that a client uploads is one vector u_i; of SCAFFOLD, for
    example, the changes of the model and of the control variate. The n clients are those with a
    positive weight whose upload is finite.

    Except with `norm_bound`, the server needs single uploads. That rules out secure aggregation,
    and memory grows to about three times the cohort times the parameters. A rule that tolerates a
    share of hostile clients needs it in each cohort: if 20% of the population lie, a cohort of 10
    has 4 or more of them in 12% of the rounds. Choose a larger cohort, or a larger share.

    Rules that weigh all clients alike ignore the weights by numbers of examples; `geometric_median`
    and `norm_bound` use them.

    Wrappers inside: `robust(compressed(...))`, whose codes the server decodes first,
    `robust(elastic(...))`, `robust(personal(...))`, `robust(batch_statistics(...))` and, with the
    two rules below, `robust(local_update_decay(...))`. Outside, these need means, so they take
    `norm_bound` only. `fedax.attacked` goes inside.

    Where uploads have numbers beside the change of the model, such as the steps of `fednova`, only
    `trimmed_mean` and `coordinate_median` are possible: all others measure lengths of uploads.
    Around `scaffold`, `feddyn`, `fedadmm` and `scaffnew` do not clip (`norm_bound`,
    `centred_clipping`): clients keep what they computed and the server what was clipped, so that
    the model rests where the gradient is not 0.

    Args:
      algorithm: the wrapped algorithm, whose server sees means only.
      mean: one of `fedax.robust_means`; None is `trimmed_mean(0.2)`.

    Returns:
      The algorithm. With `centred_clipping` the last mean of each exchange is part of the server's
      state, and nothing is reported of the mean, such as FedExP's `server_step`.

    Raises:
      TypeError: mean is not a `RobustMean`.
      ValueError: the server receives uploads one by one (`pfnm`, `afl`, another `robust`) or
        trains on the pool of all examples (`centralised`).
      AlgorithmError: when it is first traced, around `ifca` and `term`, around uploads with single
        numbers with a rule that measures lengths, or with `centred_clipping` around a method with
        an upload of its own that its `Exchange` does not describe.

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> model = character_lstm(16, 1)
      >>> algorithm = fedax.robust(fedax.fedadam(model), fedax.robust_means.krum(0.2))
      >>> algorithm.exchanges[0].individual
      True
    """
    require_wrappable(algorithm, "fedax.robust(algorithm, mean)")
    mean = trimmed_mean() if mean is None else mean
    if not isinstance(mean, RobustMean):
        raise TypeError(
            "mean must be one of fedax.robust_means, such as fedax.robust_means.trimmed_mean(0.2), "
            f"but is {kind_of(mean)}."
        )
    require_averaged(algorithm, "robust")
    if mean.combine is None:
        return algorithm._replace(
            exchanges=tuple(_bounded(exchange, mean) for exchange in algorithm.exchanges)
        )

    def init(params: Params) -> WrapperState:
        memories = () if mean.init is None else tuple(
            mean.init(as_vector((exchange.upload or ModelUpdate)(params)))
            for exchange in algorithm.exchanges
        )
        return WrapperState(algorithm.init(params), memories)

    return algorithm._replace(
        init=init, own_model=own_model_inside(algorithm),
        exchanges=tuple(
            _combined(_bounded(exchange, mean), mean, index)
            for index, exchange in enumerate(algorithm.exchanges)
        ),
    )


def _bounded(exchange: Exchange, mean: RobustMean) -> Exchange:
    """The exchange whose uploads are what the rule makes of each."""

    def each(upload: PyTree) -> PyTree:
        return upload if mean.each is None else as_tree(mean.each(as_vector(upload)), upload)

    def client(message: PyTree, state: PyTree, data: ClientExamples, key: Array) -> Reply:
        reply = exchange.client(message, state, data, key)
        _require_robust(reply.upload, mean)
        return reply._replace(upload=each(reply.upload))

    def collusion(individual: Individual, client_ids: Array) -> Individual:
        assert exchange.collusion is not None
        return exchange.collusion(individual, client_ids).each(each)

    return exchange._replace(client=client, collusion=exchange.collusion and collusion)


def _combined(exchange: Exchange, mean: RobustMean, index: int) -> Exchange:
    """The exchange whose server receives uploads one by one and combines them by the rule."""
    assert mean.combine is not None
    combine = mean.combine

    def robust_mean(individual: Individual, memory: PyTree) -> tuple[PyTree, PyTree]:
        vectors = individual.each(as_vector).uploads
        found, memory = combine(vectors, individual.weights, memory)
        return as_tree(found, jax.tree.map(lambda leaf: leaf[0], individual.uploads)), memory

    def server(
        state: WrapperState, individual: Individual, participation: Participation
    ) -> WrapperState:
        if not state.own:
            upload, _ = robust_mean(individual, ())
            return state._replace(inner=exchange.server(state.inner, upload, participation))
        before = state.own[index]
        _require_layout(mean, individual.uploads, before, index)
        upload, memory = robust_mean(individual, before)
        memory = jax.tree.map(lambda new, old: new.astype(old.dtype), memory, before)
        return WrapperState(
            exchange.server(state.inner, upload, participation),
            (*state.own[:index], memory, *state.own[index + 1 :]),
        )

    def report(individual: Individual) -> Any:
        assert exchange.report is not None
        return exchange.report(robust_mean(individual, ())[0])

    return exchange._replace(
        broadcast=lambda state: exchange.broadcast(state.inner), server=server, individual=True,
        report=report if exchange.report is not None and mean.init is None else None,
    )


def as_vector(tree: PyTree) -> Array:
    """All numbers of a tree as one vector, of the widest dtype of its arrays, float32 at least."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    dtype = max((sum_dtype(leaf) for leaf in leaves), key=lambda dtype: dtype.itemsize)
    return jnp.concatenate([leaf.ravel().astype(dtype) for leaf in leaves])


def as_tree(vector: Array, like: PyTree) -> PyTree:
    """A vector as a tree like this one."""
    leaves, structure = jax.tree.flatten(like)
    found, start = [], 0
    for leaf in leaves:
        part = vector[start : start + leaf.size]
        found.append(part.reshape(leaf.shape).astype(leaf.dtype))
        start += leaf.size
    return structure.unflatten(found)


def _require_robust(upload: PyTree, mean: RobustMean) -> None:
    """Raises a clear error for an upload of which a robust mean would be something else."""
    parts = jax.tree_util.tree_leaves_with_path(upload)
    if any(getattr(key, "name", None) == "members" for path, _ in parts for key in path):
        raise AlgorithmError(
            "robust cannot wrap ifca: clients of different clusters would outvote each other. Use "
            "a method with one model."
        )

    def holds(kind: type) -> bool:
        found = jax.tree.leaves(upload, is_leaf=lambda part: isinstance(part, kind))
        return any(isinstance(part, kind) for part in found)

    if holds(TermUpload):
        raise AlgorithmError(
            "robust cannot wrap term, whose clients say themselves how much they weigh. Use "
            "another method."
        )
    single = [] if mean.by_coordinate else single_numbers(upload)
    if single:
        outside = " Or put local_update_decay outside, with norm_bound(...)."
        raise AlgorithmError(
            "This rule measures how long an upload is, and here each has a number beside the "
            f"change of the model ({single[0]!r}), which may be far longer. Use "
            "fedax.robust_means.trimmed_mean() or coordinate_median(), or another method."
            + outside * (single[0] == "loss")
        )


def _require_layout(mean: RobustMean, uploads: PyTree, memory: PyTree, index: int) -> None:
    """Raises a clear error unless the memory is that of such uploads."""
    assert mean.init is not None
    vector = jax.eval_shape(lambda: as_vector(jax.tree.map(lambda leaf: leaf[0], uploads)))
    wanted = jax.tree.map(lambda leaf: leaf.shape, jax.eval_shape(mean.init, vector))
    if wanted != jax.tree.map(lambda leaf: leaf.shape, memory):
        raise AlgorithmError(
            f"robust with {mean} remembers the last mean, but the client of exchange {index + 1} "
            f"uploads {vector.size} numbers, and the exchange describes something else. Give "
            "Exchange(..., upload=function), a function of the parameters that returns arrays like "
            "the upload, or use a rule without memory."
        )
