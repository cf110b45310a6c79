"""Transforms rows published by TensorFlow Federated to arrays of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedax.data import shakespeare
from fedax.data.errors import DataError


def emnist_images(columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """EMNIST's `pixels` (float32 in [0, 1], paper being 1) as `x` uint8 [n, 28, 28, 1], and `y`.

    Raises:
      DataError: if a pixel is not one of 256 grey values.
    """
    pixels = np.asarray(columns["pixels"], np.float32)
    grey = np.rint(pixels * 255)
    if not (np.abs(pixels * 255 - grey) < 1e-2).all() or not ((grey >= 0) & (grey <= 255)).all():
        raise DataError("EMNIST's pixels must be multiples of 1/255 in [0, 1], but some are not.")
    labels = np.asarray(columns["label"]).reshape(len(pixels)).astype(np.int32)
    return {"x": grey.astype(np.uint8).reshape(-1, 28, 28, 1), "y": labels}


def cifar100_images(columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """CIFAR-100's `image` as `x` uint8 [n, 32, 32, 3], `label` as `y` and `coarse_label`."""
    x = np.asarray(columns["image"])
    labels = {"y": columns["label"], "coarse": columns["coarse_label"]}
    if x.dtype != np.uint8 or x.shape[1:] != (32, 32, 3):
        raise DataError(f"CIFAR-100's images must be uint8[32, 32, 3], not {x.dtype}{x.shape[1:]}.")
    return {"x": x} | {
        name: np.asarray(label).reshape(len(x)).astype(np.int32) for name, label in labels.items()
    }


def shakespeare_tokens(columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Shakespeare's `snippets` as `tokens` int32 [n, 81], the tokens of `fedax.data.shakespeare`.

    As the released code of the papers does it: each snippet is begun, ended and cut into rows of
    81 tokens, of which the last is filled up with padding.
    """
    length = shakespeare.SEQUENCE_LENGTH + 1
    rows = []
    for snippet in columns["snippets"]:
        text = snippet.decode("utf-8", "replace") if isinstance(snippet, bytes) else snippet
        tokens = shakespeare.stream([text]).astype(np.int32)
        rows.append(np.pad(tokens, (0, -len(tokens) % length)).reshape(-1, length))
    return {"tokens": np.concatenate(rows)}
