"""The next character of Shakespeare's plays; each role of a play is a client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedax.algorithm import Model
from fedax.data import shakespeare
from fedax.data.federated_dataset import FederatedDataset
from fedax.data.folder import load_dataset
from fedax.data.rows import SelectedRows
from fedax.data.task import Task
from fedax.models import character_lstm
from fedax.models.mlp import character_mlp
from fedax.models.next_token import last_token
from fedax.validate import check_count

MODELS: Mapping[str, Callable[[], Model]] = {
    "small": lambda: character_lstm(128, 1),
    "reddi2021": lambda: character_lstm(256, 2),
    "gru": lambda: character_lstm(256, 2, cell="gru"),
    "mlp": lambda: character_mlp(context=4, hidden_sizes=(128,)),
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


def load_leaf(model: str, num_clients: int | None = 1000) -> Task:
    """The plays in LEAF's parse, as in the decaying-steps paper (2021).

    Each 80 consecutive characters of a role predict the next one, as in LEAF's preprocessing; lines
    are joined by spaces. The last 20% of a role's lines are for the test. The plays are those of
    the task `shakespeare`.

    Args:
      model: as for `shakespeare`, with a loss at the last character only; "gru" is that paper's.
      num_clients: the most roles to take, those with the most examples first, as in that paper.
        Of 1,219 roles 889 have more than 80 characters in both parts.
    """
    roles = shakespeare.load_lines()
    names, parts = np.array(list(roles)), map(shakespeare.split_lines, roles.values())
    texts = [[shakespeare.encode(" ".join(lines)) for lines in role] for role in parts]
    counts = np.array([[len(text) - shakespeare.SEQUENCE_LENGTH for text in role]
                       for role in texts])
    enough = np.flatnonzero((counts > 0).all(1))
    if num_clients is not None:
        check_count("num_clients", num_clients)
        largest = enough[np.argsort(-counts[enough].sum(1), kind="stable")]
        enough = np.sort(largest[:num_clients])
    train, test = (
        _windows([texts[role][part] for role in enough], names[enough]) for part in (0, 1)
    )
    return Task(last_token(MODELS[model]()), train, test, "shakespeare-leaf")


def _windows(texts: Sequence[np.ndarray], names: np.ndarray) -> FederatedDataset:
    """All stretches of 81 tokens within the texts, cut out of them when they are used."""
    length = shakespeare.SEQUENCE_LENGTH + 1
    joined = np.lib.stride_tricks.sliding_window_view(np.concatenate(texts), length)
    begins = np.cumsum([0, *map(len, texts)])
    starts = [np.arange(begin, begin + len(text) - length + 1)
              for begin, text in zip(begins[:-1], texts, strict=True)]
    offsets = np.cumsum([0, *map(len, starts)])
    tokens: Any = SelectedRows(joined, np.concatenate(starts))
    return FederatedDataset({"tokens": tokens}, offsets, names)
