"""FedSGD with a decaying number of local steps, decaying client rate, decaying server rate.

"Faster Federated Learning with Decaying Number of Local SGD Steps" (anonymous, submitted to ICLR
2021), Algorithms 1 and 2 (section 2.1), Algorithm 3 and Table 5 (Appendix B).
"""

from __future__ import annotations

from typing import Unpack

import jax.numpy as jnp
import optax

from fedax.algorithm import Array, FederatedAlgorithm, Model
from fedax.algorithms.fedopt import fedopt
from fedax.clients.local_training import LocalOptions
from fedax.factories import factory
from fedax.optimizers.schedules import ScheduleOrNumber, as_schedule, exponential_decay
from fedax.signatures import own_defaults
from fedax.validate import check_number


@factory
@own_defaults(num_local_steps=10)
def fedsgd(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 1.0,
    steps_decay: float | Array = 1.0,
    client_decay: float | Array = 1.0,
    server_decay: float | Array = 1.0,
    server_optimizer: optax.GradientTransformation | None = None,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""FedSGD with decaying local steps and rates (decaying-steps paper 2021, Algorithms 1, 2).

    .. math::
        K_t = \lceil K_0 d_K^t \rceil, \qquad \gamma_t = \gamma_0 d_\gamma^t, \qquad
        \eta_t = \eta_0 d_\eta^t, \qquad
        x_{t+1} = x_t - \eta_t \textstyle\sum_i p_i (x_t - x_{i,K_t})

    for t = 0, 1, ... Fewer local steps take less time. Other methods decay the same three settings
    with `fedax.schedules`; the 1/t of the paper's Theorem 2 is `inverse_time_decay`.

    Args:
      model: the learning problem.
      client_learning_rate: gamma_0 >= 0, or a schedule, which the decay multiplies.
      server_learning_rate: eta_0 >= 0, likewise.
      steps_decay, client_decay, server_decay: d_K, d_gamma, d_eta > 0; 1 is no decay. Table 5 has
        0.9996 and 0.999 for d_K, and 0.9996, 0.999 and 0.996 for d_gamma and d_eta. The example
        of section 3 has 0.99, 0.995 and 0.9995 for d_K, and 0.995 for d_gamma.
      server_optimizer: an optax transformation; None is SGD. The paper's FedAdam (Algorithm 3) is
        `optimizers.adam(1e-8, 0.9, 0.999, 0.0, "standard")` with weighting="uniform".
      **local_options: see `LocalOptions`. num_local_steps is K_0, 10 by default, or a schedule,
        which the decay multiplies. The paper weights clients by their number of examples.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.fedsgd(character_lstm(16, 1), num_local_steps=10, steps_decay=0.995)
    """
    for name, value in (
        ("steps_decay", steps_decay), ("client_decay", client_decay),
        ("server_decay", server_decay),
    ):
        check_number(name, value, above=0)
    check_number("client_learning_rate", client_learning_rate, at_least=0, schedule=True)
    check_number("server_learning_rate", server_learning_rate, at_least=0, schedule=True)
    steps = local_options.pop("num_local_steps")
    if steps is not None:
        check_number("num_local_steps", steps, at_least=0, schedule=True)
        local_options["num_local_steps"] = _decayed(steps, steps_decay)
    return fedopt(
        model, None, server_optimizer,
        client_learning_rate=_decayed(client_learning_rate, client_decay),
        server_learning_rate=_decayed(server_learning_rate, server_decay),
        **local_options,
    )


def _decayed(value: ScheduleOrNumber, decay: float | Array) -> ScheduleOrNumber:
    """value(t) * decay^t."""
    if not callable(value):
        return exponential_decay(value, decay)
    schedule, factor = as_schedule(value), exponential_decay(1.0, decay)
    return lambda t: jnp.asarray(schedule(t)).astype(factor(t).dtype) * factor(t)
