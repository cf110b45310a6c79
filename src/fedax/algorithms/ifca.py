"""IFCA: clients choose the model of one of several clusters, and train it.

Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning", NeurIPS
2020, Algorithm 1.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Unpack, get_args

import jax
import jax.numpy as jnp
import optax

from fedax.algorithm import (
    Array,
    Exchange,
    FederatedAlgorithm,
    Model,
    Params,
    Participation,
    Reply,
    stateless,
)
from fedax.algorithms.server import Server, ServerState
from fedax.clients.local_training import LocalMessage, LocalOptions, LocalTraining, pseudo_gradient
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.mistakes.model import call_init
from fedax.optimizers.schedules import ScheduleOrNumber
from fedax.signatures import own_defaults
from fedax.validate import check_choice, check_count, check_number

Averaging = Literal["models", "gradients"]


class IFCAState(NamedTuple):
    """Server state: `ServerState`, where params are of the heaviest cluster, and x_1, ..., x_k."""

    params: Params
    round_index: Array
    optimizer_state: optax.OptState
    clusters: tuple[Params, ...]


class IFCAUpload(NamedTuple):
    """What a client uploads: zeros for each cluster but its own.

    Attributes:
      changes: x_j - x_{i,K}, for each cluster.
      members: s_ij, 1 for its own cluster [k].
    """

    changes: tuple[Params, ...]
    members: Array


@factory
@own_defaults(weighting="uniform")
def ifca(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 1.0,
    num_clusters: int = 2,
    averaging: Averaging = "models",
    initial_spread: float | Array = 0.01,
    cluster_seed: int = 0,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""IFCA (Ghosh et al. 2020, Algorithm 1).

    The server has k models. Each client takes the one with the smallest loss on all of its
    examples and trains it; the server averages within each cluster:

    .. math::
        f_i(x_{t,j_i}) = \min_j f_i(x_{t,j}), \qquad
        x_{t+1,j} = x_{t,j} - \eta\,
            \frac{\sum_{i: j_i = j} p_i (x_{t,j} - x_{i,K})}{\sum_{i: j_i = j} p_i}

    A cluster that nobody chooses stays as it is. averaging = "gradients", the paper's option I,
    leaves out the denominator: with one local step on all examples and all m clients in the round,
    x_j moves by gamma / m times the sum of its clients' gradients; with a smaller cohort m is its
    size. With k = 1 both are FedAvg.

    The first cluster begins at the given model, and the others apart from it, at

    .. math:: x_{0,j} = z_j + \sigma\, u_j,

    where z_j is drawn by the model's own initialisation with a key that depends on `cluster_seed`
    and j, and u_j is standard normal noise. The noise tells clusters apart where the
    initialisation is the same for all keys, such as zeros.
    From a bad start all clients may choose one cluster; the metric `largest_cluster` is then 1, and
    another `cluster_seed` may help. The paper restarts, too.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise; 1 in the paper.
      num_clusters: k >= 1.
      averaging: "models" or "gradients".
      initial_spread: sigma >= 0.
      cluster_seed: >= 0, draws the initial models of all clusters except the first.
      **local_options: see `LocalOptions`. Clients have equal weights by default, as in the paper.

    Returns:
      An algorithm with one exchange and stateless clients. A client's own model is that of its
      cluster, which it chooses again at evaluation. `params` is the model of the cluster that
      weighed most in the last round, and `largest_cluster` that cluster's share of the round's
      weight. k models are sent in both directions: the server sees means only, so a client also
      sends zeros for the other clusters.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.ifca(character_lstm(16, 1), 0.1, num_clusters=3)
    """
    local = LocalTraining.checked(model, client_learning_rate, local_options)
    server = Server.checked(None, server_learning_rate)
    check_count("num_clusters", num_clusters)
    check_choice("averaging", averaging, get_args(Averaging))
    check_number("initial_spread", initial_spread, at_least=0)
    check_count("cluster_seed", cluster_seed, at_least=0)

    def drawn(params: Params, key: Array) -> Params:
        """A cluster's initial model, like the given parameters."""
        init_key, noise_key = jax.random.split(key)
        noise = optax.tree.random_like(noise_key, params, dtype=jnp.float32)
        return jax.tree.map(
            lambda p, x, n: (
                x.astype(p.dtype) + jnp.asarray(initial_spread, p.dtype) * n.astype(p.dtype)
            ),
            params, call_init(model, init_key), noise,
        )

    def init(params: Params) -> IFCAState:
        keys = jax.random.split(jax.random.key(cluster_seed), num_clusters)
        clusters = (params, *(drawn(params, key) for key in keys[1:]))
        start = server.init(clusters)
        return IFCAState(params, start.round_index, start.optimizer_state, clusters)

    def choose(clusters: tuple[Params, ...], data: ClientExamples, key: Array) -> Array:
        """j_i."""
        loss_key = jax.random.fold_in(key, 0)
        losses = jnp.stack([local.full_loss(model, data, loss_key).mean for model in clusters])
        return jnp.argmin(jnp.where(jnp.isnan(losses), jnp.inf, losses))

    def broadcast(state: IFCAState) -> LocalMessage:
        return local.message(state)._replace(params=state.clusters)

    def client(message: LocalMessage, state: Any, data: ClientExamples, key: Array) -> Reply:
        mine = choose(message.params, data, key)
        start = message._replace(params=_one_of(message.params, mine))
        result = local.train(start, data, key)
        change = pseudo_gradient(start, result)
        members = (jnp.arange(num_clusters) == mine).astype(jax.tree.leaves(change)[0].dtype)
        changes = tuple(
            jax.tree.map(lambda c, member=member: jnp.where(member > 0, c, 0), change)
            for member in members
        )
        return local.reply(IFCAUpload(changes, members), start, data, result, state)

    def fold(state: IFCAState, mean: IFCAUpload, participation: Participation) -> IFCAState:
        del participation
        changes = mean.changes
        if averaging == "models":
            shares = jnp.where(mean.members > 0, mean.members, 1)
            changes = tuple(
                jax.tree.map(lambda c, share=share: c / share.astype(c.dtype), change)
                for change, share in zip(changes, shares, strict=True)
            )
        at = ServerState(state.clusters, state.round_index, state.optimizer_state)
        moved = server.step(at, changes)
        return state._replace(
            params=_one_of(moved.params, jnp.argmax(mean.members)), clusters=moved.params,
            optimizer_state=moved.optimizer_state,
        )

    def own_model(state: Any, own: Any, data: ClientExamples, key: Array) -> Params:
        del own
        return _one_of(state.clusters, choose(state.clusters, data, key))

    exchange = Exchange(
        broadcast, client, fold, report=lambda mean: {"largest_cluster": mean.members.max()},
        upload=lambda params: IFCAUpload(
            (params,) * num_clusters, jnp.zeros(num_clusters, jax.tree.leaves(params)[0].dtype)
        ),
    )
    return FederatedAlgorithm(init, stateless, (exchange,), own_model=own_model)


def _one_of(clusters: tuple[Params, ...], place: Array) -> Params:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves)[place], *clusters)
