"""The workloads' models in PyTorch, for threads, pfl and flwr."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import workloads
from workloads import Data


class Net(nn.Module):
    """A model with the loss that pfl expects of it; counts its training steps.

    Its layers have the workload's names, so that `state` finds them.

    Attributes:
      memory_format: the layout of images and kernels in which a step is fastest, by measurement.
    """

    num_steps = 0
    memory_format = torch.contiguous_format

    def loss(self, *batch: torch.Tensor) -> torch.Tensor:
        self.train()
        self.num_steps += 1
        return self.mean_loss(*batch)

    @torch.no_grad()
    def evaluate(self, *batch: torch.Tensor) -> float:
        self.eval()
        return float(self.mean_loss(*batch))

    @torch.no_grad()
    def measure(self, *batch: torch.Tensor) -> torch.Tensor:
        """Each example's loss times its weight, and its weight, [2, B]."""
        values = self.losses(*batch)
        weights = self.weights(*batch)
        return torch.stack([values * weights, weights])

    def weights(self, *batch: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(batch[0]))

    def sgd_step(self, params: list[torch.Tensor], rate: float, *batch: torch.Tensor) -> None:
        """A step of plain SGD in place, for the threads."""
        grads = torch.autograd.grad(self.mean_loss(*batch), params)
        with torch.no_grad():
            torch._foreach_add_(params, grads, alpha=-rate)

    def metrics(self, *batch: torch.Tensor) -> dict:
        del batch
        return {}

    def state(self, params: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The workload's parameters as PyTorch names them and lays them out."""
        names = {"kernel": "weight", "scale": "weight", "offset": "bias", "bias": "bias"}
        layouts = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}
        found = {}
        for name, value in params.items():
            *parents, last = name.split("/")
            found[".".join([*parents, names[last]])] = value.permute(layouts[value.ndim])
        return found


class Classifier(Net):
    def __init__(self, layers: dict[str, nn.Module]) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.layers = list(layers.values())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def mean_loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self(x), y)

    def losses(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self(x), y, reduction="none")


class CNN(Classifier):
    memory_format = torch.channels_last  # as fast for EMNIST, and 0.85 of the time for CIFAR-10

    def __init__(self, data: Data, dropout: bool) -> None:
        channels, classes = data.arrays["x"].shape[3], len(data.params["dense1/bias"])
        flat = len(data.params["dense0/kernel"])
        quarter, half = (0.25, 0.5) if dropout else (0.0, 0.0)
        super().__init__({
            "conv0": nn.Conv2d(channels, 32, 3), "relu0": nn.ReLU(),
            "conv1": nn.Conv2d(32, 64, 3), "relu1": nn.ReLU(), "pool": nn.MaxPool2d(2),
            "dropout1": nn.Dropout(quarter), "flat": nn.Flatten(),
            "dense0": nn.Linear(flat, 128), "relu2": nn.ReLU(),
            "dropout2": nn.Dropout(half), "dense1": nn.Linear(128, classes),
        })

    def state(self, params: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        kernel = params["dense0/kernel"]
        side = int((len(kernel) / 64) ** 0.5)
        # From rows, columns, channels to channels, rows, columns.
        turned = kernel.reshape(side, side, 64, 128).permute(2, 0, 1, 3).reshape(kernel.shape)
        return super().state(params | {"dense0/kernel": turned})


class MLP(Classifier):
    """Dense layers with an activation between them, but none after `linear`."""

    def __init__(self, data: Data, activation: type[nn.Module], linear: int = -1) -> None:
        kernels = {
            name.split("/")[0]: array.shape for name, array in sorted(data.params.items())
            if array.ndim == 2
        }
        layers: dict[str, nn.Module] = {}
        for place, (name, shape) in enumerate(kernels.items()):
            layers[name] = nn.Linear(*shape)
            if place != linear:
                layers[f"activation{place}"] = activation()
        super().__init__(layers)


class Perceptron(MLP):
    def __init__(self, data: Data, dropout: bool) -> None:
        del dropout
        num_layers = sum(array.ndim == 2 for array in data.params.values())
        super().__init__(data, nn.ReLU, linear=num_layers - 1)


class Autoencoder(MLP):
    def __init__(self, data: Data, dropout: bool) -> None:
        del dropout
        super().__init__(data, nn.Sigmoid, linear=3)  # the code

    def mean_loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        del y
        return functional.mse_loss(self(x), x)

    def losses(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        del y
        return functional.mse_loss(self(x), x, reduction="none").mean(1)


class SameConv(nn.Conv2d):
    """A convolution without bias and with JAX's padding, which puts the larger half at the end."""

    def __init__(self, before: int, after: int, size: int, stride: int, side: int) -> None:
        total = max((-(-side // stride) - 1) * stride + size - side, 0)
        self.uneven = total % 2
        super().__init__(before, after, size, stride, total // 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.uneven:
            return super().forward(x)
        low, high = self.padding[0], self.padding[0] + 1
        x = functional.pad(x, (low, high, low, high))
        return functional.conv2d(x, self.weight, None, self.stride)


def norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(2, channels, eps=1e-3)


class Block(nn.Module):
    """A block of ResNet-18 in the pre-activation form."""

    def __init__(self, before: int, after: int, stride: int, side: int, is_first: bool) -> None:
        super().__init__()
        if not is_first:
            self.norm_1 = norm(before)
        self.is_first = is_first
        self.conv_1 = SameConv(before, after, 3, stride, side)
        self.norm_2 = norm(after)
        self.conv_2 = SameConv(after, after, 3, 1, -(-side // stride))
        self.changes = before != after
        if self.changes:
            self.shortcut = SameConv(before, after, 1, stride, side)
            self.shortcut_norm = norm(after)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x if self.is_first else functional.relu(self.norm_1(x), inplace=True)
        hidden = functional.relu(self.norm_2(self.conv_1(hidden)), inplace=True)
        if self.changes:
            x = self.shortcut_norm(self.shortcut(x))
        return self.conv_2(hidden) + x


class ResNet18(Classifier):
    memory_format = torch.channels_last

    def __init__(self, data: Data, dropout: bool) -> None:
        del dropout
        blocks, before, side = [], 64, 6
        for place, after in enumerate((64, 64, 128, 128, 256, 256, 512, 512)):
            stride = 1 if before == after else 2
            blocks.append(Block(before, after, stride, side, place == 0))
            before, side = after, -(-side // stride)
        stem = SameConv(3, 64, 7, 2, 24)
        stem.norm = norm(64)
        super().__init__({
            "stem": stem, "blocks": nn.Sequential(*blocks), "norm": norm(512),
            "dense": nn.Linear(512, len(data.params["dense/bias"])),
        })

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.stem.norm(self.stem(x)), inplace=True)
        hidden = functional.max_pool2d(hidden, 3, 2, ceil_mode=True)  # pads the end, as JAX does
        hidden = functional.relu(self.norm(self.blocks(hidden)), inplace=True)
        return self.dense(hidden.mean((2, 3)))


class Recurrent(Net):
    """Shakespeare's model, with `cell` for its two layers."""

    def __init__(self, data: Data, dropout: bool) -> None:
        del dropout
        super().__init__()
        self.cell = data.workload.model
        layers = {"lstm": nn.LSTM, "gru": nn.GRU}[self.cell]
        self.embedding = nn.Embedding(90, 8)
        self.layers = layers(8, 256, num_layers=2, batch_first=True)
        self.dense = nn.Linear(256, 90)
        if self.cell == "lstm":
            # PyTorch has a second bias in each layer; it stays 0, so that the models are equal.
            for layer in (0, 1):
                getattr(self.layers, f"bias_hh_l{layer}").requires_grad = False

    def mean_loss(self, tokens: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        hidden, _ = self.layers(self.embedding(tokens[:, :-1]))
        return functional.cross_entropy(
            self.dense(hidden).flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0,
            reduction=reduction,
        )

    def losses(self, tokens: torch.Tensor) -> torch.Tensor:
        sums = self.mean_loss(tokens, "none").reshape(len(tokens), -1).sum(1)
        return sums / self.weights(tokens).clamp(min=1)

    def weights(self, *batch: torch.Tensor) -> torch.Tensor:
        return (batch[0][:, 1:] != 0).sum(1).float()

    def state(self, params: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        values = {"embedding.weight": params["embedding"]}
        for layer in (0, 1):
            of_layer = f"{self.cell}{layer}"
            bias = params[f"{of_layer}/bias"]
            values[f"layers.weight_ih_l{layer}"] = params[f"{of_layer}/input_kernel"].T
            values[f"layers.weight_hh_l{layer}"] = params[f"{of_layer}/recurrent_kernel"].T
            values[f"layers.bias_ih_l{layer}"] = bias
            values[f"layers.bias_hh_l{layer}"] = params.get(
                f"{of_layer}/recurrent_bias", torch.zeros_like(bias)
            )
        return values | {
            "dense.weight": params["dense/kernel"].T, "dense.bias": params["dense/bias"]
        }


class Tags(Net):
    """The tag logistic regression: the mean of the rows of the words that an example has."""

    def __init__(self, data: Data, dropout: bool) -> None:
        del dropout
        super().__init__()
        self.words = nn.EmbeddingBag(*data.params["dense/kernel"].shape, mode="mean", sparse=True)
        self.bias = nn.Parameter(torch.zeros(len(data.params["dense/bias"])))

    def mean_loss(
        self, words: torch.Tensor, tags: torch.Tensor, reduction: str = "mean"
    ) -> torch.Tensor:
        return self.loss_of(self.words(words) + self.bias, tags, reduction)

    def loss_of(
        self, logits: torch.Tensor, tags: torch.Tensor, reduction: str = "mean"
    ) -> torch.Tensor:
        targets = torch.zeros_like(logits).scatter_(1, tags, 1.0)
        return functional.binary_cross_entropy_with_logits(logits, targets, reduction=reduction)

    def sgd_step(self, params: list[torch.Tensor], rate: float, *batch: torch.Tensor) -> None:
        """Adds to the words' rows: 0.46 of the time of the sparse gradient, 0.44 of a dense one."""
        del params  # this model's own
        words, tags = batch
        with torch.no_grad():
            logits = self.words(words) + self.bias
        logits.requires_grad_()
        (gradient,) = torch.autograd.grad(self.loss_of(logits, tags), logits)
        with torch.no_grad():
            rows = gradient.repeat_interleave(words.shape[1], 0)
            self.words.weight.index_add_(0, words.flatten(), rows, alpha=-rate / words.shape[1])
            self.bias.sub_(gradient.sum(0), alpha=rate)

    def losses(self, words: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        return self.mean_loss(words, tags, "none").mean(1)

    def state(self, params: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"words.weight": params["dense/kernel"], "bias": params["dense/bias"]}


MODELS = {
    "logistic": Perceptron, "tiny": Perceptron, "mlp": Perceptron, "autoencoder": Autoencoder,
    "emnist_cnn": CNN, "cifar_cnn": CNN, "resnet18": ResNet18,
    "lstm": Recurrent, "gru": Recurrent, "tags": Tags,
}


def model_of(data: Data, dropout: bool) -> Net:
    """The model, with the workload's initial parameters."""
    net = MODELS[data.workload.model](data, dropout and data.workload.dropout)
    net.load_state_dict(net.state({
        key: torch.from_numpy(value) for key, value in data.params.items()
    }))
    return net


def tensors(arrays: dict[str, np.ndarray]) -> tuple[torch.Tensor, ...]:
    """Examples as the models take them: images with channels first, whole numbers as int64."""

    def laid_out(array: np.ndarray) -> np.ndarray:
        if array.ndim == 4:
            return np.ascontiguousarray(array.transpose(0, 3, 1, 2))
        return array.astype(np.int64) if array.dtype.kind in "iu" else array

    return tuple(torch.from_numpy(laid_out(array)) for array in arrays.values())


@functools.cache
def prepared(name: str, path: str) -> tuple[Data, tuple[torch.Tensor, ...]]:
    """A workload and all its examples, read once a process."""
    data = workloads.load(name, path)
    return data, tensors(data.arrays)
