"""EMNIST, Shakespeare and Stack Overflow as TensorFlow Federated publishes them, by client.

The SHA-256 of the HDF5 archives stand in TensorFlow Federated's source code
(`simulation/datasets/*.py` before it changed to SQLite, for which it states none); that of
Shakespeare's SQLite file in FedJAX's `downloads_test.py`. That of EMNIST's SQLite file was
measured by one project on GitHub only.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedax.data.catalogue.kinds import Expected, Form, Product, Source
from fedax.data.downloads.files import Published
from fedax.data.readers.hdf5 import read_hdf5
from fedax.data.readers.sqlite import read_sqlite
from fedax.data.tff import emnist_images, shakespeare_tokens

_URL = "https://storage.googleapis.com/tff-datasets-public/"


def _archive(name: str, sha256: str, unpacked_bytes: int) -> Published:
    return Published(name, sha256, None, (_URL + name,), unpacked_bytes)


def _hdf5(prefix: str) -> Form:
    train, test = f"{prefix}_train.h5", f"{prefix}_test.h5"
    return Form(
        (train, test), lambda files: read_hdf5(files[train]), lambda files: read_hdf5(files[test])
    )


def _sqlite(stem: str, train: str, test: str) -> tuple[Form, Form]:
    """Unpacked, and packed."""
    def form(name: str) -> Form:
        return Form(
            (name,),
            lambda files: read_sqlite(files[name], train),
            lambda files: read_sqlite(files[name], test),
        )

    return form(f"{stem}.sqlite"), form(f"{stem}.sqlite.lzma")


SOURCES: Mapping[str, Source] = {
    "emnist": Source(
        downloads=(
            _archive(
                "fed_emnist.tar.bz2",
                "fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0", 10**10,
            ),
        ),
        forms=(_hdf5("fed_emnist"), *_sqlite("emnist_all", "all_train", "all_test")),
        known=(
            Published(
                "emnist_all.sqlite.lzma",
                "c3aaf91b4cf4e69d53d81627ad119eccdc878ff906f68e66063ff10f67faad48", 170_507_172,
            ),
        ),
        instead="No package carries EMNIST with its writers.",
    ),
    "shakespeare": Source(
        downloads=(
            _archive(
                "shakespeare.tar.bz2",
                "0285be9906cb5f268092eee4edeeacfc2af4574f2941f7cc2f08a321d7f5c707", 10**9,
            ),
        ),
        forms=(_hdf5("shakespeare"), *_sqlite("shakespeare", "train", "test")),
        known=(
            Published(
                "shakespeare.sqlite.lzma",
                "d3d11fceb9e105439ac6f4d52af6efafed5a2a1e1eb24c5bd2dd54ced242f5c4", 1_329_828,
            ),
        ),
        instead=(
            "No package carries TensorFlow Federated's Shakespeare; the plays of the package "
            "shakespeare are part of fedax, as the data set shakespeare, and need no getting."
        ),
    ),
}

PRODUCTS: Mapping[str, Product] = {
    "emnist": Product(
        source="emnist",
        description="3,400 writers' digits and letters, 62 classes, 28 x 28, ink dark on white",
        train=Expected(3400, 671_585),
        test=Expected(3400, 77_483),
        transform=lambda files: emnist_images,
    ),
    "shakespeare-tff": Product(
        source="shakespeare",
        description="715 roles of TensorFlow Federated's Shakespeare, 80 characters a sequence",
        train=Expected(715, None),
        test=Expected(715, None),
        transform=lambda files: shakespeare_tokens,
    ),
}
