"""The core types: what a learning problem is, and what a federated algorithm is.

A round is a short tuple of exchanges. In an exchange the server broadcasts a message, every
client of the cohort answers with a `Reply`, and the server folds in the weighted mean of the
uploads:

    message = broadcast(server_state)
    reply_i = client(message, client_state_i, data_i, key_i)          for every client i
    mean    = sum_i weight_i upload_i / sum_i weight_i
    server_state = server(server_state, mean, participation)

The server sees means only, never one client's upload, so every algorithm stays compatible with
secure aggregation, differential privacy and any number of machines. An exchange that needs the
uploads one by one (PFNM's) must say so with `individual`, and is not. One with `total` gets sums,
whose denominator is its own affair (`fedax.private`).
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias, cast

import jax

from fedax.factories import defined_in, written

Array: TypeAlias = jax.Array
PyTree: TypeAlias = Any
Params: TypeAlias = PyTree
Batch: TypeAlias = Mapping[str, Array]
Metric: TypeAlias = Callable[[PyTree, Batch], tuple[Array, Array]]


@dataclasses.dataclass(frozen=True)
class Score:
    """A metric of all outputs of a data set, such as the area under the ROC curve.

    Attributes:
      function: `(outputs, labels, weights) -> number`, of NumPy arrays with the examples along the
        first axis; NaN where it is not defined, such as an AUC of one class. One of `fedax.scores`,
        or your own function.
      labels: the name of the client array with the labels.
      weights: the name of the client array of weights [n], or None: every example weighs 1.
        Examples of weight 0 are left out before the function is called.
    """

    function: Callable[[PyTree, Any, Any], Any]
    labels: str = "y"
    weights: str | None = None


class Model(NamedTuple):
    """A learning problem: initial parameters, loss, outputs and metrics.

    Attributes:
      init: `(key) -> params`, a pytree of floating point arrays.
      loss: `(params, batch, key) -> (losses [B], weights [B])`, training mode. The framework
        takes the weighted average; padding must weigh 0. `batch` maps names to arrays whose
        leading axis has length B.
      outputs: `(params, batch) -> outputs`, evaluation mode, e.g. logits [B, ...].
      metrics: name -> `(outputs, batch) -> (values [B], weights [B])`.
      check: `(params, arrays) -> None`, called on the host before the first round, or None:
        raises a `ModelError` if examples [n, ...] have invalid values that shapes do not show, such
        as labels beyond the classes.
      sparse: a tree of bools like the parameters: True for a matrix that the loss uses only in
          `fedax.models.sparse_product`. A client that trains by plain SGD then updates in place
          only the rows that occur in its minibatch. None: there is no such matrix.
      scores: name -> `Score`, or a function `(outputs, labels, weights) -> number` of all outputs,
        with the labels "y". They are measured wherever `metrics` are, over all examples and per
        client; see `fedax.scores`.
    """

    init: Callable[[Array], Params]
    loss: Callable[[Params, Batch, Array], tuple[Array, Array]]
    outputs: Callable[[Params, Batch], PyTree]
    metrics: Mapping[str, Metric]
    check: Callable[[Params, Mapping[str, Any]], None] | None = None
    sparse: PyTree | None = None
    scores: Mapping[str, Score | Callable[[PyTree, Any, Any], Any]] | None = None

    def __repr__(self) -> str:
        made = written(self) or defined_in(self.loss)
        return f"Model({made}; metrics: {', '.join([*self.metrics, *(self.scores or {})])})"


class Reply(NamedTuple):
    """What a client answers in one exchange.

    Attributes:
      upload: floating point arrays, averaged over the cohort, never seen one by one; arrays of any
        type where the exchange is `individual`.
      weight: scalar >= 0, this client's weight in the mean, e.g. its number of examples.
      client_state: stored for this client until it takes part again; `()` if there is none. Finite,
          with the structure, shapes and dtypes of the previous state.
      info: diagnostics: name -> `(value, weight)`, averaged with their own weights and
        reported, never fed back into the algorithm.
      model_delta: x_local - x_server after local training, for the round's diagnostics; None if the
          exchange trains nothing. Costs nothing unless diagnostics are enabled.
    """

    upload: PyTree
    weight: Array
    client_state: PyTree
    info: Mapping[str, tuple[Array, Array]]
    model_delta: Params | None = None


class ModelUpdate(NamedTuple):
    """The upload of a method that sends its change of the model and nothing else.

    Whatever else a method uploads, the change must be in a field of this name: `fedax.elastic` and
    the diagnostics read it there.

    Attributes:
      pseudo_gradient: like the parameters; the server uses it as a gradient: x_server - x_local, or
          a sum of gradients.
    """

    pseudo_gradient: Params


class Individual(NamedTuple):
    """What the server receives instead of the mean in an exchange with `individual`.

    Attributes:
      uploads: stacked: leaves [cohort_size, ...]; zeros for a client that does not count.
      weights: [cohort_size]; 0 for a client that does not count.
    """

    uploads: PyTree
    weights: Array

    def each(self, function: Callable[[Any], PyTree]) -> "Individual":
        """With what a function makes of every client's upload."""
        return self._replace(uploads=jax.vmap(function)(self.uploads))


class Participation(NamedTuple):
    """The number of clients behind a mean (SCAFFOLD needs |S|/N).

    int32 scalars, but the last two: cast them to the parameters' dtype before dividing.

    Attributes:
      num_clients: N, the size of the population.
      cohort_size: the number of clients in the cohort.
      num_reports: |S|, the number whose finite upload with a positive weight entered the mean.
      expected: float32 scalar, the expected number of clients in a round, which no draw changes;
        only for an exchange with `total`, otherwise None.
      key: from which the server of such an exchange draws; otherwise None.
    """

    num_clients: Array
    cohort_size: Array
    num_reports: Array
    expected: Array | None = None
    key: Array | None = None


class Exchange(NamedTuple):
    """One exchange: a broadcast, each client's reply, and the server's update with their mean.

    Attributes:
      broadcast: `(server_state) -> message`.
      client: `(message, client_state, data, key) -> Reply`, with `data` a
        `fedax.data.ClientData`.
      server: `(server_state, mean_upload, participation) -> server_state`.
      individual: the server receives an `Individual` instead of the mean. This gives up secure
        aggregation, and memory grows with the cohort.
      total: the server receives sum_i weight_i upload_i in place of the mean, in float32 at least,
        and its step is taken in every round, also if nobody reports. Who takes part, and what
        clients say of themselves, is told to nobody.
      report: `(mean_upload) -> {name: value}`, diagnostics computed from the mean, floating point
          scalars; reported with the clients' info, never fed back. None: no such diagnostics. Under
        `fedax.personal` the mean has None for personal arrays.
      upload: `(params) -> arrays like an upload`, of which only shapes and dtypes matter, for
        wrappers that remember something of each upload (`fedax.compressed` with a biased codec).
        None: a `ModelUpdate`.
      sent: `(params, message, upload) -> (bits, bits)`, about how many bits a code of the message
        and of the upload takes, from the arrays' shapes and dtypes, for `fedax.communication`. Of
        the message it gets the arrays that the client does not have. None: there is no code.
    """

    broadcast: Callable[[PyTree], PyTree]
    client: Callable[[PyTree, PyTree, Any, Array], Reply]
    server: Callable[[PyTree, PyTree, Participation], PyTree]
    individual: bool = False
    total: bool = False
    report: Callable[[PyTree], Mapping[str, Array]] | None = None
    upload: Callable[[Params], PyTree] | None = None
    sent: Callable[[Params, PyTree, PyTree], tuple[float, float]] | None = None


class FederatedAlgorithm(NamedTuple):
    """A federated algorithm as pure functions over pytrees.

    Attributes:
      init: `(params) -> server_state`, a NamedTuple with at least the fields `params` and
        `round_index` (int32 scalar, 0 before the first round), or a `WrapperState` around one.
        The engine advances `round_index`; an algorithm only reads it.
      init_client: `(params) -> client_state` of a client that never took part; `()` if clients have
          no state.
      exchanges: the exchanges of one round, in order. All use the same cohort.
      pooled: whether the algorithm trains on all clients' examples in one place, like a single
          client.
      own_model: `(server_state, client_state, data, key) -> params`, a client's own model, with
        its training examples, see `fedax.evaluate_own_models`; None if clients have none.
    """

    init: Callable[[Params], PyTree]
    init_client: Callable[[Params], PyTree]
    exchanges: tuple[Exchange, ...]
    pooled: bool = False
    own_model: Callable[[Any, PyTree, Any, Array], Params] | None = None

    def __repr__(self) -> str:
        count = f"{len(self.exchanges)} exchange{'s' * (len(self.exchanges) != 1)}"
        return f"FederatedAlgorithm({written(self) or defined_in(self.init)}; {count})"


class WrapperState(NamedTuple):
    """Server state of an algorithm that wraps another.

    Attributes:
      inner: the wrapped algorithm's state.
      own: what the wrapper adds.
    """

    inner: Any
    own: PyTree

    @property
    def params(self) -> Params:
        """The wrapped algorithm's parameters."""
        return self.inner.params

    @property
    def round_index(self) -> Array:
        """The wrapped algorithm's round index."""
        return self.inner.round_index


def at_round(server_state: Any, round_index: PyTree) -> Any:
    """The server state with this in place of its `round_index`."""
    if isinstance(server_state, WrapperState):
        return server_state._replace(inner=at_round(server_state.inner, round_index))
    return server_state._replace(round_index=round_index)


def with_params(server_state: Any, params: Params) -> Any:
    """The server state with these in place of its `params`."""
    if isinstance(server_state, WrapperState):
        return server_state._replace(inner=with_params(server_state.inner, params))
    return server_state._replace(params=params)


def with_pseudo_gradient(upload: Any, pseudo_gradient: Params) -> Any:
    """The upload with another pseudo-gradient; a wrapper's has it in the upload inside."""
    if dataclasses.is_dataclass(upload):
        return dataclasses.replace(cast(Any, upload), pseudo_gradient=pseudo_gradient)
    if "pseudo_gradient" in upload._fields:
        return upload._replace(pseudo_gradient=pseudo_gradient)
    return upload._replace(inner=with_pseudo_gradient(upload.inner, pseudo_gradient))


def own_model_inside(algorithm: FederatedAlgorithm) -> Callable[..., Params] | None:
    """A wrapped algorithm's `own_model` for its wrapper, whose server state is a `WrapperState`."""
    inner = algorithm.own_model
    return inner and (lambda state, own, data, key: inner(state.inner, own, data, key))


def stateless(params: Params) -> tuple[()]:
    """`init_client` of an algorithm whose clients have no state."""
    del params
    return ()
