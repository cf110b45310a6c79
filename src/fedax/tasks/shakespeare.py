"""The next character of Shakespeare's plays; each role of a play is a client."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedax.algorithm import Model
from fedax.data import shakespeare
from fedax.data.folder import load_dataset
from fedax.data.task import Task
from fedax.models import character_lstm
from fedax.models.mlp import character_mlp

MODELS: Mapping[str, Callable[[], Model]] = {
    "small": lambda: character_lstm(128, 1),
    "reddi2021": lambda: character_lstm(256, 2),
    "gru": lambda: character_lstm(256, 2, cell="gru"),
    "mlp": lambda: character_mlp(context=4, hidden_sizes=(128,)),
    "paper": lambda: character_lstm(256, 2),  # reddi2021 until 0.24: fedax.tasks.renamed
}


def load(name: str, model: str) -> Task:
    """The task of that name, "shakespeare" or "shakespeare-tff", with the model of that name."""
    train, test = load_dataset(name)
    references: Mapping[str, Callable[[], Mapping[str, float]]] = {
        "a bigram table fitted centrally on the training text": lambda: {
            "test_accuracy": shakespeare.bigram_accuracy(
                train.arrays["tokens"], test.arrays["tokens"]
            )
        }
    }
    return Task(MODELS[model](), train, test, name, references)
