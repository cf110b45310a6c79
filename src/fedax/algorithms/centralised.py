"""The centralised baseline: the same model and metrics, all clients' examples in one place."""

from __future__ import annotations

from typing import Unpack

import optax

from fedax.algorithm import FederatedAlgorithm, Model
from fedax.algorithms.local_adaptive import local_adaptive
from fedax.clients.local_training import LocalOptions
from fedax.factories import factory
from fedax.optimizers.schedules import ScheduleOrNumber


@factory
def centralised(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    optimizer: optax.GradientTransformation | None = None,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""Centralised training on all clients' examples, the baseline of Reddi et al. 2021.

    .. math:: x \leftarrow x + \gamma\, \text{Opt}(g)

    The examples of all clients are pooled and shuffled. A round takes num_local_steps minibatches
    of the pool, or num_local_epochs passes over it, and the optimizer keeps its state from round
    to round. Sampling and cohort size have no effect.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0, a number or a schedule of the round. Its name is that of the
        federated methods.
      optimizer: an optax transformation, whose update is multiplied by gamma; None is SGD.
      **local_options: see `LocalOptions`.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> model = character_lstm(16, 1)
      >>> algorithm = fedax.centralised(model, 0.5, batch_size=40, num_local_steps=50)
      >>> algorithm.pooled
      True
    """
    algorithm = local_adaptive(
        model, optax.sgd(1.0) if optimizer is None else optimizer, client_learning_rate, 1.0,
        **local_options,
    )
    return algorithm._replace(pooled=True)
