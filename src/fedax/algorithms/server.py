"""The server's part of every method that steps along a mean: state, optimizer, learning rate."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import jax
import numpy as np
import optax

from fedax.algorithm import Array, Params
from fedax.optimizers.checks import require_optimizer
from fedax.optimizers.drawing import with_raw_keys
from fedax.optimizers.schedules import Schedule, ScheduleOrNumber, as_schedule
from fedax.validate import check_number


class ServerState(NamedTuple):
    """Server state of a method whose server has an optimizer.

    Attributes:
      params: x_t.
      round_index: t, int32 scalar.
      optimizer_state: the server optimizer's state.
    """

    params: Params
    round_index: Array
    optimizer_state: optax.OptState


class Server(NamedTuple):
    """A server optimizer (an optax transformation) and the schedule that multiplies its update."""

    optimizer: optax.GradientTransformation
    learning_rate: Schedule

    @classmethod
    def checked(
        cls, optimizer: optax.GradientTransformation | None, learning_rate: ScheduleOrNumber
    ) -> Self:
        """With SGD where no optimizer is given.

        Raises:
          TypeError: the optimizer is none.
          ValueError: a concrete learning rate is out of its range.
        """
        require_optimizer("server_optimizer", optimizer)
        check_number("server_learning_rate", learning_rate, at_least=0, schedule=True)
        optimizer = optax.sgd(1.0) if optimizer is None else with_raw_keys(optimizer)
        return cls(optimizer, as_schedule(learning_rate))

    def init(self, params: Params) -> ServerState:
        """The state before the first round."""
        return ServerState(params, jax.device_put(np.int32(0)), self.optimizer.init(params))

    def step(self, state: Any, gradient: Params) -> Any:
        """x_{t+1} = x_t + eta_t * optimizer(gradient); the state may have further fields."""
        updates, optimizer_state = self.optimizer.update(
            gradient, state.optimizer_state, state.params
        )
        rate = self.learning_rate(state.round_index)
        params = jax.tree.map(
            lambda p, u: p + rate.astype(p.dtype) * u.astype(p.dtype), state.params, updates
        )
        return state._replace(params=params, optimizer_state=optimizer_state)
