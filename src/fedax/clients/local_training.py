"""Shared by methods with local steps: options, broadcast message and local training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self, TypeAlias, TypedDict, cast, get_args

import jax
import jax.numpy as jnp
import optax

from fedax.algorithm import Array, Model, Params, PyTree, Reply
from fedax.clients.gradients import Gradient, Loss, full_gradient, full_loss, loss_gradient
from fedax.clients.local_steps import LocalResult, train_locally
from fedax.clients.minibatches import Minibatch, Order, count_local_steps, within_one_epoch
from fedax.clients.sparse_steps import sparse_gradient
from fedax.data.cohort_data import ClientExamples
from fedax.mistakes.model import require_model
from fedax.optimizers.schedules import Schedule, ScheduleOrNumber, as_schedule, steps_at
from fedax.signatures import has_defaults
from fedax.validate import check_choice, check_count, check_number, unknown_option

Weighting: TypeAlias = Literal["num_examples", "num_tokens", "uniform"]

# (gradient, y, minibatch, key) -> gradient: a further term of the local gradient, such as a
# control variate.
Correction: TypeAlias = Callable[[Params, Params, Minibatch, Array], Params]


class LocalOptions(TypedDict, total=False):
    """How clients train; factories take these as keyword arguments.

    batch_size: B >= 1, an integer that cannot be traced; default 20.
    num_local_epochs: E >= 0 passes over the client's examples, each in a new random order. Default
      1 if num_local_steps is not given either.
    num_local_steps: K >= 0 minibatches; may be a schedule, whose values are rounded up. If both are
      given, the smaller count applies.
    weighting: a client's weight in the mean. "num_examples" (default) is n_i, as in Reddi et al.
      2021, Algorithm 5; "uniform" is 1, as in Algorithm 2; "num_tokens" is the sum of the weights
      of its losses, as in the code released with that paper for language models.
    order: the order of the minibatches. "shuffled" (default) makes each pass in a new random order,
      "sequential" in the stored order; "iid" draws every minibatch with replacement.
    proximal_weight: mu >= 0 of FedProx (Li et al. 2020), which adds mu/2 |x - x_t|^2 to the local
      loss and so mu (x - x_t) to every local gradient. A number or a schedule; default: no such
      term.
    """

    batch_size: int
    num_local_epochs: int | Array | None
    num_local_steps: ScheduleOrNumber | None
    weighting: Weighting
    order: Order
    proximal_weight: ScheduleOrNumber | None


class LocalMessage(NamedTuple):
    """Message of `LocalTraining.message`: the model and the settings of this round.

    A method that broadcasts more uses this as a field of its own message.

    Attributes:
      params: x_t, the server's model.
      client_learning_rate: gamma_t, scalar; a schedule's value in round t.
      num_local_steps: K_t, the setting (int or int32 scalar), or None if it was not given. The
        number of steps that a client took is `LocalResult.num_steps`.
      proximal_weight: mu_t, scalar, or None.
    """

    params: Params
    client_learning_rate: Array
    num_local_steps: Any
    proximal_weight: Any


class LocalTraining(NamedTuple):
    """How clients train: `LocalOptions` with their defaults, the model and its learning rate.

    Create it with `LocalTraining.checked`. A method with local steps needs three calls: `message`
    is its broadcast, `train` returns a `LocalResult`, and `reply` builds the client's reply from
    it. `full_loss` and `full_gradient` evaluate all of a client's examples without training.

    Attributes:
      gradient: (params, minibatch, key) -> (loss, gradient).
      sparse_gradient: used by plain SGD instead of `gradient` if the model has sparse parameters.

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> local = fedax.LocalTraining.checked(character_lstm(16, 1), 0.3, {"num_local_epochs": 2})
      >>> def client(message, state, data, key):
      ...     before = local.full_loss(message.params, data, jax.random.fold_in(key, 0))
      ...     result = local.train(message, data, jax.random.fold_in(key, 1))
      ...     change = jax.tree.map(jnp.subtract, message.params, result.params)
      ...     reply = local.reply(fedax.ModelUpdate(change), message, data, result, state)
      ...     return reply._replace(info={**reply.info, "loss_before": before})
    """

    model: Model
    gradient: Gradient
    client_learning_rate: Schedule
    batch_size: int = 20
    num_local_epochs: int | Array | None = None
    num_local_steps: Any = None
    weighting: Weighting = "num_examples"
    order: Order = "shuffled"
    proximal_weight: Any = None
    sparse_gradient: Gradient | None = None

    @classmethod
    def checked(
        cls, model: Model, client_learning_rate: ScheduleOrNumber, options: LocalOptions
    ) -> Self:
        """The options with their defaults.

        Raises:
          ValueError: if a concrete value is out of range.
          TypeError: if an option is unknown.
        """
        require_model(model)
        known = LocalOptions.__annotations__
        for name in options:
            if name not in known:
                rates = ["client_learning_rate", "server_learning_rate"]
                raise TypeError(unknown_option("option", name, [*rates, *known]))
        check_number("client_learning_rate", client_learning_rate, at_least=0, schedule=True)
        local = cls(
            model, loss_gradient(model), as_schedule(client_learning_rate),
            sparse_gradient=None if model.sparse is None else sparse_gradient(model), **options,
        )
        check_count("batch_size", local.batch_size)
        for name in ("num_local_epochs", "num_local_steps"):
            value = getattr(local, name)
            if value is not None:
                check_count(name, value, at_least=0, schedule=name == "num_local_steps")
        if local.proximal_weight is not None:
            check_number("proximal_weight", local.proximal_weight, at_least=0, schedule=True)
        check_choice("weighting", local.weighting, get_args(Weighting))
        check_choice("order", local.order, get_args(Order))
        return local

    def message(self, state: Any) -> LocalMessage:
        """The message to broadcast for a server state."""
        t, steps, proximal = state.round_index, self.num_local_steps, self.proximal_weight
        if callable(steps):
            steps = steps_at(cast(Schedule, steps), t)
        if callable(proximal):
            proximal = as_schedule(cast(Schedule, proximal))(t)
        rate = self.client_learning_rate(t)
        return LocalMessage(state.params, rate, steps, proximal)

    def train(
        self,
        message: LocalMessage,
        data: ClientExamples,
        key: Array,
        *,
        optimizer: optax.GradientTransformation | None = None,
        optimizer_state: Any = None,
        correction: Correction | None = None,
        gradient_weight: Callable[[Array, Array], Array] | None = None,
    ) -> LocalResult:
        """Trains from the message's model.

        Args:
          message: the broadcast message.
          data: the client's examples.
          key: this client's key for this exchange.
          optimizer: local optimizer; None is SGD.
          optimizer_state: its initial state; None: a new one.
          correction: applied to every local gradient, after the proximal term.
          gradient_weight: (k, K) -> theta_k, to also compute the weighted sum of gradients.
        """
        num_steps = count_local_steps(
            data, self.batch_size, self.num_local_epochs, message.num_local_steps
        )

        def gradient(params: Params, batch: Minibatch, key: Array) -> tuple[Loss, Params]:
            loss, grads = self.gradient(params, batch, key)
            if message.proximal_weight is not None:
                grads = jax.tree.map(
                    lambda g, y, x: g + jnp.asarray(message.proximal_weight, g.dtype) * (y - x),
                    grads, params, message.params,
                )
            if correction is not None:
                grads = correction(grads, params, batch, key)
            return loss, grads

        is_plain = (
            optimizer is None and message.proximal_weight is None
            and correction is None and gradient_weight is None
        )

        def theta(k: Array) -> Array:
            assert gradient_weight is not None
            return gradient_weight(k, jnp.asarray(num_steps, jnp.int32))

        return train_locally(
            message.params, data, key,
            gradient=self.sparse_gradient if is_plain and self.sparse_gradient else gradient,
            optimizer=optimizer,
            learning_rate=message.client_learning_rate,
            batch_size=self.batch_size,
            num_steps=num_steps,
            order=self.order,
            one_epoch=within_one_epoch(self.num_local_epochs, message.num_local_steps),
            optimizer_state=optimizer_state,
            gradient_weight=None if gradient_weight is None else theta,
        )

    def full_loss(self, params: Params, data: ClientExamples, key: Array) -> Loss:
        """The loss F_i(params) over all of the client's examples: its `mean` and `weight`.

        One pass, `batch_size` examples at a time. The mean uses the model's weights; it and its
        weight are 0 for a client without examples.

        Args:
          params: the model, such as `message.params`.
          data: the client's examples.
          key: for a random loss, such as one with dropout; use `jax.random.fold_in(key, 0)` if the
            same client also trains.
        """
        return full_loss(self.model, params, data, key, batch_size=self.batch_size)

    def full_gradient(
        self, params: Params, data: ClientExamples, key: Array
    ) -> tuple[Loss, Params]:
        """As `full_loss`, with the gradient of the mean, without corrections or other terms."""
        return full_gradient(self.gradient, params, data, key, batch_size=self.batch_size)

    def weight(self, data: ClientExamples, loss: Loss) -> Array:
        """A client's weight in the mean, see `LocalOptions`; 0 for a client without examples.

        Args:
          data: the client's examples.
          loss: the loss; its weight is the number of tokens that the client processed.
        """
        if self.weighting == "num_examples":
            return data.num_examples.astype(loss.weight.dtype)
        if self.weighting == "num_tokens":
            return loss.weight
        return (data.num_examples > 0).astype(loss.weight.dtype)

    def reply(
        self,
        upload: PyTree,
        message: LocalMessage,
        data: ClientExamples,
        result: LocalResult,
        client_state: PyTree = (),
    ) -> Reply:
        """The client's reply after training, with its weight and info."""
        return Reply(
            upload=upload,
            weight=self.weight(data, result.loss),
            client_state=client_state,
            info=local_info(result),
            model_delta=jax.tree.map(jnp.subtract, result.params, message.params),
        )


has_defaults(LocalOptions, LocalTraining._field_defaults)


def pseudo_gradient(message: LocalMessage, result: LocalResult) -> Params:
    """x_t - x_K."""
    return jax.tree.map(jnp.subtract, message.params, result.params)


def local_info(result: LocalResult) -> dict[str, tuple[Array, Array]]:
    """The info that clients report about local training."""
    one = jnp.ones_like(result.loss.weight)
    return {
        "train_loss": (result.loss.mean, result.loss.weight),
        "num_local_steps": (result.num_steps.astype(one.dtype), one),
    }
