"""Server-only: a centralised optimizer fed with the cohort's full gradients, no local steps.

Karimireddy et al., "Mime: Mimicking Centralized Stochastic Algorithms in Federated
Learning" (2020), the baseline of section 6.
"""

from __future__ import annotations

from typing import Unpack

from fedax.algorithm import FederatedAlgorithm, Model, Params, stateless
from fedax.algorithms.mime import gradient_exchange
from fedax.algorithms.server import Server, ServerState
from fedax.clients.local_training import LocalOptions, LocalTraining
from fedax.factories import factory
from fedax.optimizers import base_optimizers
from fedax.optimizers.base_optimizers import BaseOptimizer
from fedax.optimizers.checks import require_base
from fedax.optimizers.schedules import ScheduleOrNumber


@factory
def server_only(
    model: Model,
    server_learning_rate: ScheduleOrNumber = 0.1,
    base: BaseOptimizer | None = None,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""Server-only (Karimireddy et al. 2020, section 6): a base optimizer without local steps.

    .. math:: c = \textstyle\sum_i p_i \nabla f_i(x_t), \qquad
        x_{t+1} = x_t - \eta\, U(c, s), \qquad s \leftarrow V(c, s)

    Each client sends the gradient of all its examples. This is large-batch training.

    Args:
      model: the learning problem.
      server_learning_rate: eta >= 0, a number or a schedule of the round.
      base: U and V, see `fedax.base_optimizers`; None is SGD with momentum 0.9.
      **local_options: see `LocalOptions`. `weighting` sets p_i, and `batch_size` affects only speed
        and memory. The others have no effect, because there are no local steps.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.server_only(character_lstm(16, 1), 0.1, fedax.base_optimizers.adam())
    """
    base = base_optimizers.sgdm() if base is None else base
    require_base(base)
    local = LocalTraining.checked(model, 0.0, local_options)
    server = Server.checked(base_optimizers.as_transformation(base), server_learning_rate)

    def fold(state: ServerState, mean: Params) -> ServerState:
        return server.step(state, mean)

    return FederatedAlgorithm(server.init, stateless, (gradient_exchange(local, fold),))
