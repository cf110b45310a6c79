"""Small files in the formats of the field, in exactly the published layouts, and what they hold."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import pickle
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
from PIL import Image

from fedax.data import readers
from fedax.data.readers.png_sheets import read_png_sheets

RNG = np.random.default_rng(14)
IDS = ["eve", "ada", "eve", "bob", "ada", "eve"]
X = np.arange(12, dtype=np.float32).reshape(6, 2) / 4
Y = np.array([0, 1, 2, 3, 4, 5], np.int32)
SCATTERED = {
    name: {"x": X[rows], "y": Y[rows]}
    for name, rows in {"eve": [0, 2, 5], "ada": [1, 4], "bob": [3]}.items()
}


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def tf_example(features: dict[str, Any], packed: bool = True) -> bytes:
    """A serialized tf.train.Example; text as bytes, floats and whole numbers as arrays or lists."""
    entries = b""
    for name, value in features.items():
        if isinstance(value, bytes):
            feature = field(1, field(1, value))
        elif np.asarray(value).dtype.kind == "f":
            numbers = [struct.pack("<f", number) for number in np.ravel(value)]
            feature = field(2, field(1, b"".join(numbers)) if packed else b"".join(
                varint(1 << 3 | 5) + number for number in numbers))
        else:
            numbers = [varint(int(number)) for number in np.ravel(value)]
            feature = field(3, field(1, b"".join(numbers)) if packed else b"".join(
                varint(1 << 3) + number for number in numbers))
        entries += field(1, field(1, name.encode()) + field(2, feature))
    return field(1, entries)


def sqlite(path: Path, splits: dict[str, dict[str, list[bytes]]], index: bool = True) -> None:
    """TFF's tables, and the indices that its files have; rows in the order of a shuffle."""
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL, "
                     "serialized_example_proto BLOB NOT NULL)")
    database.execute("CREATE TABLE client_metadata (client_id TEXT NOT NULL, "
                     "split_name TEXT NOT NULL, num_examples INTEGER NOT NULL)")
    if index:
        database.execute("CREATE INDEX idx_examples_client_id ON examples (client_id)")
        database.execute("CREATE INDEX idx_examples_client_id_split "
                         "ON examples (split_name, client_id)")
        database.execute("CREATE INDEX idx_metadata_client_id ON client_metadata (client_id)")
    rows = []
    for split, clients in splits.items():
        for client, examples in clients.items():
            database.execute("INSERT INTO client_metadata VALUES (?, ?, ?)",
                             [client, split, len(examples)])
            rows += [(place, (split, client, example)) for place, example in enumerate(examples)]
    rows.sort(key=lambda row: row[0])  # of all clients the first example, then the second
    database.executemany("INSERT INTO examples VALUES (?, ?, ?)", [row for _, row in rows])
    database.commit()
    database.close()


EMNIST = {
    f"f{i:04d}_1{i}": {
        "pixels": RNG.random((n, 784), np.float32), "label": np.arange(n, dtype=np.int64) + 60 * i,
    } for i, n in enumerate((2, 3, 1))
}


def make_sqlite(folder: Path) -> Path:
    path = folder / "emnist_all.sqlite"
    clients = {
        name: [tf_example({"pixels": p, "label": y}) for p, y in
               zip(c["pixels"], c["label"], strict=True)] for name, c in EMNIST.items()
    }
    sqlite(path, {"all_train": clients, "all_test": dict(list(clients.items())[:1])})
    return path


def make_lzma(folder: Path) -> Path:
    path = make_sqlite(folder)
    packed = path.with_name(f"{path.name}.lzma")
    packed.write_bytes(lzma.compress(path.read_bytes(), lzma.FORMAT_ALONE, preset=1))
    path.unlink()
    return packed


POSTS = {"00000001": {"score": np.array([3, -1]), "tags": [b"c|python", b""],
                      "tokens": [b"how do i", b"no way"]},
         "00000007": {"score": np.array([2**40]), "tags": [b"r"], "tokens": [b"\xc3\xa9"]}}


def make_posts(folder: Path) -> Path:
    path = folder / "stackoverflow.sqlite"
    sqlite(path, {"train": {
        name: [tf_example({key: value[i] for key, value in c.items()}, packed=bool(i))
               for i in range(len(c["tags"]))] for name, c in POSTS.items()
    }}, index=False)
    return path


def make_hdf5(folder: Path) -> Path:
    path = folder / "shakespeare_train.h5"
    with h5py.File(path, "w") as file:
        for name, columns in HDF5.items():
            group = file.create_group(f"examples/{name}")
            group["pixels"] = columns["pixels"]
            group["label"] = columns["label"]
            group.create_dataset("snippets", data=columns["snippets"], dtype=h5py.string_dtype())
    return path


HDF5 = {f"THE_PLAY_{i}": {
    "pixels": RNG.random((i + 1, 28, 28), np.float32), "label": np.arange(i + 1, dtype=np.int32),
    "snippets": [f"line {j} é".encode() for j in range(i + 1)],
} for i in range(3)}

LEAF = {f"f{i}": {"x": RNG.random((i + 1, 4)).astype(np.float32), "y": np.arange(i + 1)}
        for i in range(5)}


def make_leaf(folder: Path) -> Path:
    for part, users in enumerate((["f0", "f1", "f2"], ["f3", "f4"])):
        (folder / f"all_data_{part}.json").write_text(json.dumps({
            "users": users, "num_samples": [len(LEAF[user]["y"]) for user in users],
            "user_data": {user: {key: value.tolist() for key, value in LEAF[user].items()}
                          for user in users},
        }))
    return folder


IMAGES = RNG.integers(0, 256, (6, 5, 4), np.uint8)
LABELS = np.array([9, 0, 1, 3, 255, 6], np.uint8)


def idx(array: np.ndarray) -> bytes:
    code = {"|u1": 8, "|i1": 9, ">i2": 11, ">i4": 12, ">f4": 13, ">f8": 14}[array.dtype.str]
    head = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
    return head + array.tobytes()


def make_idx(folder: Path) -> Path:
    (folder / "train-images-idx3-ubyte").write_bytes(idx(IMAGES))
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(LABELS))
    return folder / "train-images-idx3-ubyte"


def make_packed_idx(folder: Path) -> Path:
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(IMAGES)))
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(LABELS)))
    return folder / "train-images-idx3-ubyte.gz"


CIFAR = RNG.integers(0, 256, (4, 32, 32, 3), np.uint8)
FLAT = np.ascontiguousarray(CIFAR.transpose(0, 3, 1, 2)).reshape(4, 3072)
FINE, COARSE = np.array([6, 9, 99, 0]), np.array([1, 19, 0, 4])


def make_cifar_binary(folder: Path) -> Path:
    records = np.concatenate([COARSE[:, None], FINE[:, None], FLAT], 1).astype(np.uint8)
    (folder / "train.bin").write_bytes(records.tobytes())
    return folder / "train.bin"


def pickled_batch(**labels: list[int]) -> bytes:
    """As Python 2 wrote it: text is bytes, and names of modules are NumPy 1's."""
    batch = {b"batch_label": b"training batch 1 of 5", b"data": FLAT, b"filenames": [b"a.png"] * 4}
    batch |= {key.encode(): values for key, values in labels.items()}
    content = pickle.dumps(batch, protocol=2)
    # Bytes are Latin-1 text that is encoded; Python 2 had them as they are.
    return content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def make_cifar_pickle(folder: Path) -> Path:
    (folder / "train").write_bytes(
        pickled_batch(fine_labels=FINE.tolist(), coarse_labels=COARSE.tolist())
    )
    return folder / "train"


def make_sheets(folder: Path) -> Path:
    Image.fromarray(CIFAR.reshape(len(CIFAR), 1024, 3)).save(folder / "batch.png")
    (folder / "labels.json").write_text(json.dumps((COARSE % 10).tolist()))
    return folder / "batch.png"


def make_csv(folder: Path) -> Path:
    lines = ["who,a,b,y", *(f"{i},{x[0]},{x[1]},{y}" for i, x, y in zip(IDS, X, Y, strict=True))]
    (folder / "a.csv").write_text("\n".join(lines) + "\n")
    return folder / "a.csv"


def make_parquet(folder: Path) -> Path:
    table = pyarrow.table({"who": IDS, "x": pyarrow.FixedSizeListArray.from_arrays(X.ravel(), 2),
                           "y": Y})
    pyarrow.parquet.write_table(table, folder / "a.parquet", row_group_size=2)
    return folder / "a.parquet"


def make_npz(folder: Path) -> Path:
    np.savez_compressed(folder / "a.npz", x=X, y=Y, client_ids=IDS)
    return folder / "a.npz"


def make_npy(folder: Path) -> Path:
    for name, array in {"x": X, "y": Y, "client_ids": IDS}.items():
        np.save(folder / f"{name}.npy", array)
    return folder


class Format(NamedTuple):
    """How a file is made and read, and the clients that it then holds, in their order."""

    make: Callable[[Path], Path]
    read: Callable[[Path], readers.Clients]
    holds: dict[str, dict[str, Any]]


def _labels(path: Path) -> Path:
    return path.with_name(path.name.replace("images-idx3", "labels-idx1"))


MNIST = {"pool": {"x": IMAGES[..., None], "y": LABELS.astype(np.int32)}}
CIFAR100 = {"pool": {"x": CIFAR, "y": FINE, "coarse": COARSE}}
FORMATS = {
    "sqlite": Format(make_sqlite, lambda p: readers.read_sqlite(p, "all_train"), EMNIST),
    "lzma": Format(make_lzma, lambda p: readers.read_sqlite(p, "all_train"), EMNIST),
    "posts": Format(make_posts, readers.read_sqlite, POSTS),
    "hdf5": Format(make_hdf5, readers.read_hdf5, HDF5),
    "leaf": Format(make_leaf, readers.read_leaf, LEAF),
    "idx": Format(make_idx, lambda p: readers.read_idx(p, _labels(p)), MNIST),
    "packed idx": Format(make_packed_idx, lambda p: readers.read_idx(p, _labels(p)), MNIST),
    "cifar binary": Format(
        make_cifar_binary, lambda p: readers.read_cifar_binary(p, 100), CIFAR100),
    "cifar pickle": Format(
        make_cifar_pickle, lambda p: readers.read_cifar_pickle(p, 100), CIFAR100),
    "png sheets": Format(
        make_sheets, lambda p: read_png_sheets([p], p.with_name("labels.json")),
        {"pool": {"x": CIFAR, "y": COARSE % 10}}),
    "csv": Format(make_csv, lambda p: readers.read_csv(p, "who", {"x": ["a", "b"], "y": "y"}),
                  SCATTERED),
    "parquet": Format(make_parquet, lambda p: readers.read_parquet(p, "who"), SCATTERED),
    "npz": Format(make_npz, readers.read_numpy, SCATTERED),
    "npy": Format(make_npy, readers.read_numpy, SCATTERED),
}


PICTURE = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])


def _png(index: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(IMAGES[index]).save(buffer, "PNG")
    return buffer.getvalue()


# As Hugging Face keeps them: the file's bytes, and the name that it had.
PICTURES = [{"bytes": _png(i), "path": f"{i}.png"} for i in range(6)]


def parquet_of(columns: dict[str, Any], **options: Any) -> bytes:
    """The bytes of a Parquet file."""
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer, **options)
    return buffer.getvalue()


def make_pictures(folder: Path) -> Path:
    path = folder / "pictures.parquet"
    path.write_bytes(parquet_of({"who": IDS, "picture": pyarrow.array(PICTURES, PICTURE), "y": Y}))
    return path


def make_texts(folder: Path) -> Path:
    """Text, categories, lists and moments, which a transform makes numbers of."""
    path = folder / "texts.parquet"
    words = pyarrow.array(["a", "b", "é", "", "a", "b"])
    path.write_bytes(parquet_of({
        "who": pyarrow.array(IDS).dictionary_encode(), "text": words,
        "category": words.dictionary_encode(), "words": pyarrow.array([["a", "b"], []] * 3),
        "when": pyarrow.array(range(6), pyarrow.timestamp("ms")),
    }))
    return path


def make_huggingface(folder: Path) -> Path:
    """As `datasets.Dataset.save_to_disk` writes it, without the package, which imports slowly."""
    table = pyarrow.table({
        "who": IDS, "x": pyarrow.array(X.tolist(), pyarrow.list_(pyarrow.float32())), "y": Y,
    })
    path = folder / "saved"
    path.mkdir()
    with pyarrow.ipc.new_stream(path / "data-00000-of-00001.arrow", table.schema) as stream:
        stream.write_table(table)
    value = {"_type": "Value"}
    (path / "dataset_info.json").write_text(json.dumps({
        "citation": "", "description": "", "features": {
            "who": {"dtype": "string", **value}, "y": {"dtype": "int32", **value},
            "x": {"feature": {"dtype": "float32", **value}, "_type": "List"},
        }, "homepage": "", "license": "",
    }))
    (path / "state.json").write_text(json.dumps({
        "_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_fingerprint": "0123456789",
        "_format_columns": None, "_format_kwargs": {}, "_format_type": None,
        "_output_all_columns": False, "_split": None,
    }))
    return path


# What `fedax.read_data(path, client_column="who")` reads, most of it with a transform.
TABLES = {"pictures": make_pictures, "texts": make_texts, "huggingface": make_huggingface}
