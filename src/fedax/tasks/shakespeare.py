"""The next character of Shakespeare's plays, a client being a role of a play."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fedax.data import shakespeare
from fedax.data.federated_dataset import FederatedDataset
from fedax.data.task import Task
from fedax.models import character_lstm
from fedax.models.mlp import character_mlp


def load(model: str) -> Task:
    """The task with the model of that name."""
    train, test = (
        FederatedDataset(clients.arrays, clients.offsets, np.asarray(clients.names))
        for clients in shakespeare.load()
    )
    models = {
        "small": lambda: character_lstm(128, 1),
        "paper": lambda: character_lstm(256, 2),
        "mlp": lambda: character_mlp(context=4, hidden_sizes=(128,)),
    }
    references: Mapping[str, Callable[[], Mapping[str, float]]] = {
        "a bigram table fitted centrally on the training text": lambda: {
            "test_accuracy": shakespeare.bigram_accuracy(
                train.arrays["tokens"], test.arrays["tokens"]
            )
        }
    }
    return Task(models[model](), train, test, "shakespeare", references)
