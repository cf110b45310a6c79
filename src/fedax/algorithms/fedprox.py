"""FedProx: local losses with a proximal term.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020; as Algorithm 2 in Chen et al., "Elastic Aggregation for Federated Optimization", 2023.
"""

from __future__ import annotations

from typing import Unpack

import jax.numpy as jnp
import optax

from fedax.algorithm import Array, FederatedAlgorithm, Model
from fedax.algorithms.fedopt import fedopt
from fedax.clients.local_training import LocalOptions
from fedax.factories import factory
from fedax.optimizers.schedules import ScheduleOrNumber, as_schedule
from fedax.validate import check_number


@factory
def fedprox(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 1.0,
    server_optimizer: optax.GradientTransformation | None = None,
    rho: float | Array | None = None,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""FedProx (Li et al. 2020): local losses with a proximal term, any server optimizer.

    Each local step also pulls the client's model towards the server's:

    .. math::
        x_{i,k+1} = x_{i,k} - \gamma\, (g_{i,k} + \mu\, (x_{i,k} - x_t))

    Every method with local steps has this term as the option `proximal_weight`: FedYogi with a
    proximal term is `fedyogi(model, ..., proximal_weight=0.1)`.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise.
      server_optimizer: an optax transformation; None is SGD, as published.
      rho: >= 0, the weight of the term in Algorithm 2 of Chen et al. 2023, whose step
        "+ rho (x - x_{i,k})" gamma does not multiply, so mu = rho / gamma. None uses
        `proximal_weight`.
      **local_options: see `LocalOptions`. If neither rho nor proximal_weight (mu >= 0) is given,
        proximal_weight is 0.01.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced), or rho and
        proximal_weight are both given.

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.fedprox(character_lstm(16, 1), proximal_weight=0.1)
    """
    if rho is not None:
        given = local_options.get("proximal_weight")
        if given is not None:
            raise ValueError(
                f"rho = {rho!r} and proximal_weight = {given!r} set the same weight "
                "(mu = rho / client_learning_rate). Give one of them."
            )
        check_number("rho", rho, at_least=0)
        check_number("client_learning_rate", client_learning_rate, at_least=0, schedule=True)
        rate = as_schedule(client_learning_rate)

        def proximal_weight(round_index: Array) -> Array:
            gamma = rate(round_index)
            return jnp.where(gamma > 0, jnp.asarray(rho) / jnp.where(gamma > 0, gamma, 1), 0)

        local_options["proximal_weight"] = proximal_weight
    if local_options.get("proximal_weight") is None:
        local_options["proximal_weight"] = 0.01
    return fedopt(
        model, None, server_optimizer,
        client_learning_rate=client_learning_rate,
        server_learning_rate=server_learning_rate,
        **local_options,
    )
