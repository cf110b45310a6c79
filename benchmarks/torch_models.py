"""The workloads' models in PyTorch, for pfl and flwr."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import nn

import workloads
from workloads import Data


class Net(nn.Module):
    """A model with the loss that pfl expects of it; counts its training steps."""

    num_steps = 0

    def loss(self, *batch: torch.Tensor) -> torch.Tensor:
        self.train()
        self.num_steps += 1
        return self.mean_loss(*batch)

    @torch.no_grad()
    def evaluate(self, *batch: torch.Tensor) -> float:
        self.eval()
        return float(self.mean_loss(*batch))

    def metrics(self, *batch: torch.Tensor) -> dict:
        del batch
        return {}


class Classifier(Net):
    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def mean_loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(x), y)


class CharacterLSTM(Net):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(90, 8)
        self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)
        self.dense = nn.Linear(256, 90)

    def mean_loss(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.embedding(tokens[:, :-1]))
        return nn.functional.cross_entropy(
            self.dense(hidden).flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0
        )


def model_of(data: Data, dropout: bool) -> Net:
    """The model, with the workload's initial parameters."""
    params = {key: torch.from_numpy(value) for key, value in data.params.items()}
    name = data.workload.model
    if name == "lstm":
        net = CharacterLSTM()
        values = {"embedding.weight": params["embedding"]}
        for layer in (0, 1):
            values[f"lstm.weight_ih_l{layer}"] = params[f"lstm{layer}/input_kernel"].T
            values[f"lstm.weight_hh_l{layer}"] = params[f"lstm{layer}/recurrent_kernel"].T
            values[f"lstm.bias_ih_l{layer}"] = params[f"lstm{layer}/bias"]
            values[f"lstm.bias_hh_l{layer}"] = torch.zeros(1024)
            # PyTorch has a second bias in each layer; it stays 0, so that the models are equal.
            getattr(net.lstm, f"bias_hh_l{layer}").requires_grad = False
        values |= {"dense.weight": params["dense/kernel"].T, "dense.bias": params["dense/bias"]}
        net.load_state_dict(values)
        return net
    if name in ("logistic", "tiny"):
        net = Classifier(nn.Sequential(nn.Linear(len(params["dense/kernel"]), 10)))
        net.load_state_dict({
            "layers.0.weight": params["dense/kernel"].T, "layers.0.bias": params["dense/bias"]
        })
        return net
    channels, classes = data.arrays["x"].shape[3], len(params["dense1/bias"])
    flat = len(params["dense0/kernel"])
    quarter, half = (0.25, 0.5) if dropout else (0.0, 0.0)
    net = Classifier(nn.Sequential(
        nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(quarter), nn.Flatten(), nn.Linear(flat, 128), nn.ReLU(), nn.Dropout(half),
        nn.Linear(128, classes),
    ))
    side = int((flat / 64) ** 0.5)
    # From rows, columns, channels to channels, rows, columns.
    dense = params["dense0/kernel"].reshape(side, side, 64, 128).permute(2, 0, 1, 3)
    net.load_state_dict({
        "layers.0.weight": params["conv0/kernel"].permute(3, 2, 0, 1),
        "layers.0.bias": params["conv0/bias"],
        "layers.2.weight": params["conv1/kernel"].permute(3, 2, 0, 1),
        "layers.2.bias": params["conv1/bias"],
        "layers.7.weight": dense.reshape(flat, 128).T,
        "layers.7.bias": params["dense0/bias"],
        "layers.10.weight": params["dense1/kernel"].T,
        "layers.10.bias": params["dense1/bias"],
    })
    return net


def tensors(arrays: dict[str, np.ndarray]) -> tuple[torch.Tensor, ...]:
    """Examples as the models take them: images with channels first, whole numbers as int64."""
    if "tokens" in arrays:
        return (torch.from_numpy(arrays["tokens"].astype(np.int64)),)
    x = arrays["x"]
    if x.ndim == 4:
        x = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return torch.from_numpy(x), torch.from_numpy(arrays["y"].astype(np.int64))


@functools.cache
def prepared(name: str, path: str) -> tuple[Data, tuple[torch.Tensor, ...]]:
    """A workload and all its examples, read once a process."""
    data = workloads.load(name, path)
    return data, tensors(data.arrays)
