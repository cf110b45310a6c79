"""Tiny data sets in the layouts in which the real ones are published, got as a user gets them."""

import io
import json
import struct
import tarfile

import h5py
import numpy as np
from PIL import Image

from fedax.data.catalogue import PRODUCTS, SOURCES, Expected
from fedax.data.downloads.files import sha256_of
from fedax.data.getting import get_dataset

WRITERS, ROLES, USERS, DEALT = 3, 2, 3, 4


def put(name, tmp_path, monkeypatch):
    """Writes the files of a data set, and gets it from them into a FEDAX_DATA of its own."""
    monkeypatch.setenv("FEDAX_DATA", str(tmp_path / "data"))
    product = PRODUCTS[name]
    if SOURCES[product.source].on:
        put(SOURCES[product.source].on, tmp_path, monkeypatch)
    source = product.source
    files = tmp_path / f"files of {source}"
    files.mkdir(exist_ok=True)
    num_clients = WRITE[source](files, np.random.default_rng(14))
    any_number = Expected(num_clients, None)
    numbers = {"femnist-396": Expected(3, None)}  # with the writer who may lack images
    for other, own in PRODUCTS.items():
        if own.source == source:
            number = numbers.get(other, any_number)
            monkeypatch.setitem(PRODUCTS, other, own._replace(train=number, test=number))
    downloads = tuple(
        file._replace(sha256=sha256_of(files / file.name), num_bytes=None)
        if (files / file.name).exists() else file
        for file in SOURCES[source].downloads
    )
    changed = SOURCES[source]._replace(known=(), downloads=downloads)
    monkeypatch.setitem(SOURCES, source, changed)
    get_dataset(name, source=files, say=lambda words: None)


def idx(folder, rng):
    for part, count in (("train", 80), ("t10k", 20)):
        images = rng.integers(0, 256, (count, 28, 28), np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 10
        head = struct.pack(">HBBIII", 0, 8, 3, count, 28, 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        head = struct.pack(">HBBI", 0, 8, 1, count)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())
    return 1


def cifar10(folder, rng):
    for batch in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        records = rng.integers(0, 256, (20, 3073), np.uint8)
        records[:, 0] = np.arange(20) % 10
        (folder / f"{batch}.bin").write_bytes(records.tobytes())
    return 1


def cifar100(folder, rng):
    for part in ("train", "test"):
        records = rng.integers(0, 256, (100, 3074), np.uint8)
        records[:, 1] = np.arange(100)
        records[:, 0] = np.arange(100) // 5
        (folder / f"{part}.bin").write_bytes(records.tobytes())
    return 1


def cifar100_tff(folder, rng):
    for part in ("train", "test"):
        with h5py.File(folder / f"fed_cifar100_{part}.h5", "w") as file:
            for client in range(DEALT):
                group = file.create_group(f"examples/{client}")
                group["image"] = rng.integers(0, 256, (6, 32, 32, 3), np.uint8)
                label = rng.integers(0, 100, (6, 1))
                group["label"], group["coarse_label"] = label, label // 5
    return DEALT


def emnist(folder, rng):
    for part in ("train", "test"):
        with h5py.File(folder / f"fed_emnist_{part}.h5", "w") as file:
            for writer in range(WRITERS):
                group = file.create_group(f"examples/f{writer:04}_01")
                count = 8 + writer
                grey = rng.integers(0, 256, (count, 28, 28))
                group["pixels"] = (grey / 255).astype(np.float32)
                group["label"] = rng.integers(0, 62, count).astype(np.int32)
    return WRITERS


def shakespeare(folder, rng):
    for part in ("train", "test"):
        with h5py.File(folder / f"shakespeare_{part}.h5", "w") as file:
            for role in range(ROLES):
                said = ["To be, or not to be: that is the question.", "Words, words, words. " * 6]
                group = file.create_group(f"examples/THE_PLAY_{role}")
                group.create_dataset("snippets", data=said, dtype=h5py.string_dtype())
    return ROLES


def stackoverflow(folder, rng):
    words = [f"w{i}" for i in range(10_000)]
    (folder / "stackoverflow.word_count").write_text(
        "".join(f"{word} {10**6 - i}\n" for i, word in enumerate(words))
    )
    tags = {f"t{i}": 10**6 - i for i in range(500)}
    (folder / "stackoverflow.tag_count").write_text(json.dumps(tags))
    text = h5py.string_dtype()
    for part in ("train", "test"):
        with h5py.File(folder / f"stackoverflow_{part}.h5", "w") as file:
            for user in range(USERS):
                group = file.create_group(f"examples/{1000 + user:08}")
                posts = [
                    " ".join(f"w{i}" for i in rng.integers(0, 10_200, rng.integers(1, 30)))
                    for _ in range(6)
                ]
                columns = {
                    "tokens": posts, "title": ["w1 w2"] * 6, "tags": ["t3|t4", "t499|none"] * 3,
                    "creation_date": ["2010"] * 6, "type": ["question"] * 6,
                }
                for name, values in columns.items():
                    group.create_dataset(name, data=values, dtype=text)
                group["score"] = np.zeros(6, np.int64)
    return USERS


def mnist_writers(folder, rng):
    """Tables of QMNIST for the digits of `idx`; that of the test has more rows, as published."""
    for part, count in (("train", 80), ("test", 30)):
        table = rng.integers(0, 100, (count, 8)).astype(">i4")
        table[:, 0] = np.arange(count) % 10
        table[:, 2] = np.arange(count) // 3 % 4 + 20 * (part == "test")
        head = struct.pack(">HBBII", 0, 12, 2, count, 8)
        (folder / f"qmnist-{part}-labels-idx2-int").write_bytes(head + table.tobytes())
    return 4


def femnist(folder, rng):
    """Four writers, of whom one has only a test part and another may lack images."""
    count = 60
    np.savez_compressed(
        folder / "femnist_writers.npz", images=rng.integers(0, 256, (count, 28, 28), np.uint8),
        labels=rng.integers(0, 62, count).astype(np.uint8),
        writer=(np.arange(count) % 4).astype(np.uint16),
        split=(np.arange(count) // 4 % 5 == 0).astype(np.uint8),
        writer_ids=np.array(["f0001_1", "f0002_2", "f0003_3", "f0004_4"]),
        writer_complete=np.array([True, False, True, True]),
        writer_cut=np.array([False, False, True, False]),
    )
    return 2


def cinic10(folder, rng):
    with tarfile.open(folder / "CINIC-10.tar.gz", "w:gz") as tar:
        for part in ("test", "train", "valid"):
            for label in ("airplane", "truck"):
                for number in range(10):
                    image = io.BytesIO()
                    pixels = rng.integers(0, 256, (32, 32, 3), np.uint8)
                    Image.fromarray(pixels).save(image, "PNG")
                    info = tarfile.TarInfo(f"{part}/{label}/cifar10-{part}-{number}.png")
                    info.size = image.tell()
                    image.seek(0)
                    tar.addfile(info, image)
    return 1


def cifar100_sheets(folder, rng):
    for part in ("train", "test"):
        with tarfile.open(folder / f"cifar100_{part}.tar", "w") as tar:
            for name in (f"{label:02}_0.webp" for label in range(3)):
                sheet = io.BytesIO()
                pixels = rng.integers(0, 256, (320, 320, 3), np.uint8)
                Image.fromarray(pixels).save(sheet, "WEBP", lossless=True)
                info = tarfile.TarInfo(name)
                info.size = sheet.tell()
                sheet.seek(0)
                tar.addfile(info, sheet)
    return 1


WRITE = {
    "cinic10": cinic10, "mnist-writers": mnist_writers, "femnist": femnist,
    "cifar100-resplit": cifar100_sheets,
    "mnist": idx, "fashion-mnist": idx, "cifar10": cifar10, "cifar100": cifar100,
    "cifar100-tff": cifar100_tff,
    "emnist": emnist, "shakespeare": shakespeare, "stackoverflow": stackoverflow,
}
