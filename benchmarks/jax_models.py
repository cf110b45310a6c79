"""The workloads' models as `fedax.Model`s, for fedax itself and for the bare loop."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import fedax
from fedax.models import character_lstm
from fedax.models.image_cnn import image_cnn
from fedax.models.mlp import mlp
from workloads import Data


def model_of(data: Data, dropout: bool) -> fedax.Model:
    """The model, with the workload's initial parameters."""
    params = _nested({key: jnp.asarray(value) for key, value in data.params.items()})
    name = data.workload.model
    if name in ("logistic", "tiny"):
        kernel, bias = params["dense"]["kernel"], params["dense"]["bias"]
        _, apply = mlp(kernel.shape)
        return fedax.classification(lambda key: ({"w": kernel, "b": bias},), apply)  # noqa: ARG005
    if name == "lstm":
        start = {
            "embedding": params["embedding"],
            "layers": (params["lstm0"], params["lstm1"]),
            "output": params["dense"],
        }
        return character_lstm()._replace(init=lambda key: start)  # noqa: ARG005
    start = {
        ours: {"w": params[name]["kernel"], "b": params[name]["bias"]}
        for ours, name in [
            ("conv_1", "conv0"), ("conv_2", "conv1"), ("dense_1", "dense0"), ("dense_2", "dense1")
        ]
    }
    model = image_cnn(
        data.arrays["x"].shape[1:], len(data.params["dense1/bias"]),
        dropout_rates=(0.25, 0.5) if dropout else (0.0, 0.0),
    )
    return model._replace(init=lambda key: start)  # noqa: ARG005


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, last = key.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return tree
