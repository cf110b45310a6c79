"""Digits and letters by the persons who wrote them, and CIFAR-100 split anew.

The names say what is in a data set that is a part of another, or differs from the published one:
`femnist-328` has 328 of LEAF's writers, and `cifar100-split-anew` has CIFAR-100's images, but not
its division into training and test images. Results on them are not results on the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedax.data.catalogue.kinds import Expected, Files, Form, Product, Source
from fedax.data.downloads.files import Published
from fedax.data.readers.clients import Clients
from fedax.data.readers.webp_sheets import read_webp_sheets
from fedax.data.readers.writers import read_femnist_writers, read_mnist_writers
from fedax.data.store_writer import Transform

_QMNIST_URL = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
_TRAIN, _TEST = "qmnist-train-labels-idx2-int", "qmnist-test-labels-idx2-int"
_WRITERS = "mnist_writers.npz"
_FEMNIST = "femnist_writers.npz"
_SHEETS = ("cifar100_train.tar", "cifar100_test.tar")


def _digits(name: str, split: str) -> Any:
    """Reads the digits of a part by writer, from the file of that name."""
    def read(files: Files) -> Clients:
        return read_mnist_writers(Path(files["mnist"]) / split, files[name], split)

    return read


SOURCES: Mapping[str, Source] = {
    "mnist-writers": Source(
        downloads=(
            Published(
                f"{_TRAIN}.gz",
                "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f", None,
                (f"{_QMNIST_URL}{_TRAIN}.gz",),
            ),
            Published(
                f"{_TEST}.gz",
                "9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06", None,
                (f"{_QMNIST_URL}{_TEST}.gz",),
            ),
        ),
        forms=(
            Form((_TRAIN, _TEST), _digits(_TRAIN, "train"), _digits(_TEST, "test")),
            Form((_WRITERS,), _digits(_WRITERS, "train"), _digits(_WRITERS, "test")),
        ),
        instead="No package carries the writers of MNIST's digits.",
        on="mnist",
    ),
    "femnist": Source(
        downloads=(),
        forms=(
            Form(
                (_FEMNIST,),
                lambda files: read_femnist_writers(files[_FEMNIST], "train"),
                lambda files: read_femnist_writers(files[_FEMNIST], "test"),
            ),
        ),
        instead="There is no download of this part of LEAF's writers; all 3,400 writers, as "
        "TensorFlow Federated has them, are the data set emnist.",
    ),
    "cifar100-split-anew": Source(
        downloads=(),
        forms=(
            Form(
                _SHEETS,
                lambda files: read_webp_sheets(files[_SHEETS[0]]),
                lambda files: read_webp_sheets(files[_SHEETS[1]]),
            ),
        ),
        instead="There is no download of CIFAR-100 split anew; with the published split it is the "
        "data set cifar100.",
    ),
}


def _writers(only_whole: bool) -> Transform:
    """A writer's arrays; of those who may have been cut, none where only whole ones are taken."""
    def transform(columns: Mapping[str, Any]) -> dict[str, Any] | None:
        if only_whole and columns["cut"]:
            return None
        return {name: columns[name] for name in ("x", "y")}

    return transform


PRODUCTS: Mapping[str, Product] = {
    "mnist-writers": Product(
        source="mnist-writers",
        description="MNIST by the 539 persons who wrote it, 297 others for the test, 28 x 28",
        train=Expected(539, 60_000),
        test=Expected(297, 10_000),
    ),
    "femnist-328": Product(
        source="femnist",
        description="328 of LEAF's 3,597 writers, with all of their images, 62 classes, 28 x 28",
        train=Expected(328, None),
        test=Expected(328, None),
        transform=lambda _: _writers(only_whole=True),
    ),
    "femnist-396": Product(
        source="femnist",
        description="396 of LEAF's 3,597 writers, 68 of whom may lack images, 62 classes, 28 x 28",
        train=Expected(396, 54_503),
        test=Expected(396, 6_254),
        transform=lambda _: _writers(only_whole=False),
    ),
    "cifar100-split-anew": Product(
        source="cifar100-split-anew",
        description="CIFAR-100's images split anew into 50,000 and 10,000, not as published",
        train=Expected(1, 50_000, (500,) * 100),
        test=Expected(1, 10_000, (100,) * 100),
    ),
}
