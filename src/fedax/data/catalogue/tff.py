"""EMNIST, CIFAR-100, Shakespeare, Stack Overflow as TensorFlow Federated has them, by client.

The SHA-256 of the HDF5 archives are in TensorFlow Federated's source code
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
from fedax.data.stackoverflow import bags_and_tags, read_tags, read_words, word_sequences
from fedax.data.tff import cifar100_images, emnist_images, shakespeare_tokens

_HDF5 = ("h5py", "hdf5", "HDF5")
_WORD_COUNT, _TAG_COUNT = "stackoverflow.word_count", "stackoverflow.tag_count"
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
        reader=_HDF5,
    ),
    "cifar100-tff": Source(
        downloads=(
            _archive(
                "fed_cifar100.tar.bz2",
                "e8575e22c038ecef1ce6c7d492d7abee7da13b1e1ba9b70a7fc18531ba7590de", 10**9,
            ),
        ),
        forms=(_hdf5("fed_cifar100"),),
        instead="No package carries CIFAR-100.",
        reader=_HDF5,
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
        reader=_HDF5,
    ),
    "stackoverflow": Source(
        downloads=(
            _archive(
                "stackoverflow.word_count.tar.bz2",
                "1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c", 10**9,
            ),
            _archive(
                "stackoverflow.tag_count.tar.bz2",
                "6fe281cec490d9384a290d560072438e7e2b377bbb823876ce7bd6f82696772d", 10**9,
            ),
            _archive(
                "stackoverflow.tar.bz2",
                "99eca2f8b8327a09e5fc123979df2d237acbc5e52322f6d86bf523ee47b961a2", 10**11,
            ),
        ),
        forms=(_hdf5("stackoverflow"), *_sqlite("stackoverflow", "train", "test")),
        instead="No package carries Stack Overflow.",
        reader=_HDF5,
    ),
}

_POSTS_TRAIN, _POSTS_TEST = Expected(342_477, 135_818_730), Expected(204_088, 16_586_035)

PRODUCTS: Mapping[str, Product] = {
    "emnist": Product(
        source="emnist",
        description="3,400 writers' digits and letters, 62 classes, 28 x 28, ink dark on white",
        train=Expected(3400, 671_585),
        test=Expected(3400, 77_483),
        transform=lambda _: emnist_images,
    ),
    "cifar100-tff": Product(
        source="cifar100-tff",
        description="CIFAR-100 dealt to 500 clients by Pachinko allocation, as papers used it",
        train=Expected(500, 50_000, (500,) * 100),
        test=Expected(100, 10_000, (100,) * 100),
        transform=lambda _: cifar100_images,
    ),
    "shakespeare-tff": Product(
        source="shakespeare",
        description="715 roles of TensorFlow Federated's Shakespeare, 80 characters a sequence",
        train=Expected(715, None),
        test=Expected(715, None),
        transform=lambda _: shakespeare_tokens,
    ),
    "stackoverflow-words": Product(
        source="stackoverflow",
        description="342,477 users' sentences of 20 words, for next-word prediction",
        train=_POSTS_TRAIN,
        test=_POSTS_TEST,
        transform=lambda files: word_sequences(read_words(files[_WORD_COUNT])),
        needs=(_WORD_COUNT,),
    ),
    "stackoverflow-tags": Product(
        source="stackoverflow",
        description="342,477 users' posts as bags of words, with their tags",
        train=_POSTS_TRAIN,
        test=_POSTS_TEST,
        transform=lambda files: bags_and_tags(
            read_words(files[_WORD_COUNT]), read_tags(files[_TAG_COUNT])
        ),
        needs=(_WORD_COUNT, _TAG_COUNT),
    ),
}
