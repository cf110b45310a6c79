"""The workloads' models as `fedax.Model`s, for fedax itself and for the bare loop."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import fedax
from fedax import models
from workloads import Data


def model_of(data: Data, dropout: bool) -> fedax.Model:
    """The model, with the workload's initial parameters."""
    params = _nested({key: jnp.asarray(value) for key, value in data.params.items()})
    make = MODELS[data.workload.model]
    model, start = make(data, params, dropout and data.workload.dropout)
    return model._replace(init=lambda key: start)  # noqa: ARG005


def _cnn(data: Data, params: Any, dropout: bool) -> tuple[fedax.Model, Any]:
    model = models.image_cnn(
        data.arrays["x"].shape[1:], len(data.params["dense1/bias"]),
        dropout_rates=(0.25, 0.5) if dropout else (0.0, 0.0),
    )
    names = {"conv_1": "conv0", "conv_2": "conv1", "dense_1": "dense0", "dense_2": "dense1"}
    return model, {ours: _layer(params[name]) for ours, name in names.items()}


def _mlp(data: Data, params: Any, dropout: bool) -> tuple[fedax.Model, Any]:
    del data, dropout
    layers = _dense_layers(params)
    sizes = [len(layer["w"]) for layer in layers]
    classes = len(layers[-1]["b"])
    return models.mlp_classifier(sizes[0], sizes[1:], classes), layers


def _autoencoder(data: Data, params: Any, dropout: bool) -> tuple[fedax.Model, Any]:
    del data, dropout
    return models.autoencoder(), _dense_layers(params)


def _resnet18(data: Data, params: Any, dropout: bool) -> tuple[fedax.Model, Any]:
    del data, dropout
    stem, blocks = params["stem"], params["blocks"]
    return models.resnet18(), {
        "stem": {"w": stem["kernel"], "norm": stem["norm"]},
        "blocks": tuple(
            {name: part.get("kernel", part) for name, part in blocks[str(place)].items()}
            for place in range(len(blocks))
        ),
        "norm": params["norm"],
        "dense": _layer(params["dense"]),
    }


def _recurrent(data: Data, params: Any, dropout: bool) -> tuple[fedax.Model, Any]:
    del dropout
    cell = data.workload.model
    return models.character_lstm(cell=cell), {
        "embedding": params["embedding"],
        "layers": (params[f"{cell}0"], params[f"{cell}1"]),
        "output": params["dense"],
    }


def _tags(data: Data, params: Any, dropout: bool) -> tuple[fedax.Model, Any]:
    del data, dropout
    return models.tag_logistic_regression(), _layer(params["dense"])


MODELS = {
    "logistic": _mlp, "tiny": _mlp, "mlp": _mlp, "autoencoder": _autoencoder,
    "emnist_cnn": _cnn, "cifar_cnn": _cnn, "resnet18": _resnet18,
    "lstm": _recurrent, "gru": _recurrent, "tags": _tags,
}


def _layer(layer: Any) -> Any:
    return {"w": layer["kernel"], "b": layer["bias"]}


def _dense_layers(params: Any) -> tuple[Any, ...]:
    return tuple(_layer(params[name]) for name in sorted(params))


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, last = key.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return tree
