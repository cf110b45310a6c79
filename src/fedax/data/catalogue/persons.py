"""Digits and letters by the persons who wrote them, and CIFAR-100 with another split.

The names say what is in a data set that is a part of another, or differs from the published one:
`femnist-328` has 328 of LEAF's writers, and `cifar100-resplit` has CIFAR-100's images, but not
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
    "cifar100-resplit": Source(
        downloads=(),
        forms=(
            Form(
                _SHEETS,
                lambda files: read_webp_sheets(files[_SHEETS[0]]),
                lambda files: read_webp_sheets(files[_SHEETS[1]]),
            ),
        ),
        instead="There is no download of CIFAR-100 with another split; with the published split it "
        "is the data set cifar100.",
    ),
}


def _writers(only_whole: bool) -> Transform:
    """A writer's arrays; of those who may have been cut, none where only whole ones are taken."""
    def transform(columns: Mapping[str, Any]) -> dict[str, Any] | None:
        if only_whole and columns["cut"]:
            return None
        return {name: columns[name] for name in ("x", "y")}

    return transform


def _expected(num_clients: int, num_examples: int, *, x: str, y: str) -> Expected:
    """What was measured on the real files."""
    return Expected(num_clients, num_examples, digests={"x": x, "y": y})


PRODUCTS: Mapping[str, Product] = {
    "mnist-writers": Product(
        source="mnist-writers",
        description="MNIST by the 539 persons who wrote it, 297 others for the test, 28 x 28",
        train=_expected(
            539, 60_000,
            x="9129bc916ae3e6324e39d9468dc89e519f5bcb9a9575b501a0f2c69d24f85c38",
            y="8c1d78b21cbf8bc308adecba370ddfaf655601b9b528f219d37aec438aef1cd4",
        ),
        test=_expected(
            297, 10_000,
            x="f35627ab90a6ace91a6131a2454525ee5cb9ded914ec58ea958aaa22f088f1c3",
            y="553d4321a5186ab0b53188d315e9451bef8e6f8899cba49773b227410da505aa",
        ),
    ),
    "femnist-328": Product(
        source="femnist",
        description="328 of LEAF's 3,597 writers, with all of their images, 62 classes, 28 x 28",
        train=_expected(
            328, 48_636,
            x="1adebc10b253005576ef798805b0bda3f27bd382f8d23307607799508ed91db3",
            y="da2cadfaa55761af4edd4ff09d09612de132e2d592fc29b48916ce7b2f2d5883",
        ),
        test=_expected(
            328, 5_572,
            x="085c059301a3c3c22d0e2cc54cd8afac4003439dd039d7d82718f3e62d5d11e0",
            y="0c4f549c07de92802702472c805a0765f5070fcb77dcc63c414850194cfcfdd4",
        ),
        transform=lambda _: _writers(only_whole=True),
    ),
    "femnist-396": Product(
        source="femnist",
        description="396 of LEAF's 3,597 writers, 68 of whom may lack images, 62 classes, 28 x 28",
        train=_expected(
            396, 54_503,
            x="4181731d2c67069d789f624af4cb6ba800eff2c3da608ca29c16f32a6a30b607",
            y="e5d3af3abd48fcdd31864c229bce2d2618ac686f0eceee2c1e048724ba43deff",
        ),
        test=_expected(
            396, 6_254,
            x="d8a8b95a9017528853e351032b246db0c68b0b904e026f976c963247752ecbe4",
            y="53035d2736d1c796272856c36c4ea7ddd58a01abe8a6609cbc4538664399e4c7",
        ),
        transform=lambda _: _writers(only_whole=False),
    ),
    "cifar100-resplit": Product(
        source="cifar100-resplit",
        description="CIFAR-100's images with another split, 50,000 and 10,000",
        train=_expected(
            1, 50_000,
            x="2b1d59c1609b470ab761575f182fd77d350c4c352dec9acab5bb1cae7350619c",
            y="ef22a5edb440b10e2f240f1c384722086b1ec2e2f04d7bd74b31d73e0e75c00b",
        ),
        test=_expected(
            1, 10_000,
            x="dc67e74d8aebc149a2eebc0253e0a0ea0e8e56ca3416f72ca188ff0a2b23d80c",
            y="d7f763fbcd45c38746bf3680b426fae7f4002c1f6a96601b2e7e8ad7c646ca08",
        ),
    ),
}
