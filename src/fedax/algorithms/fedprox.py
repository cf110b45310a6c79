"""FedProx: local losses with a proximal term.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020; in paper 002 ("Elastic Aggregation for Federated Optimization"), Algorithm 2.
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

    .. math::
        x_{i,k+1} = x_{i,k} - \gamma\, (g_{i,k} + \mu\, (x_{i,k} - x_t))

    The term is an option of every method with local steps (`proximal_weight`), so FedYogi with it
    is `fedyogi(model, ..., proximal_weight=0.1)`.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise.
      server_optimizer: an optax transformation; None is SGD, FedProx proper.
      rho: paper 002's strength of the term, mu = rho / gamma: its Algorithm 2 prints a step
        "+ rho (x - x_{i,k})" that gamma does not multiply. None: `proximal_weight` says it.
      **local_options: see `LocalOptions`; proximal_weight, mu >= 0, is 0.01 here if it is None
        and rho too.

    Raises:
      ValueError: a concrete hyperparameter is out of its range, or rho and proximal_weight are
        both given.

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.fedprox(character_lstm(16, 1), proximal_weight=0.1)
    """
    if rho is not None:
        given = local_options.get("proximal_weight")
        if given is not None:
            raise ValueError(
                f"rho = {rho!r} and proximal_weight = {given!r} say the same thing "
                "(mu = rho / client_learning_rate); give one of them."
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
