"""Small files that want gigabytes or minutes: refused, or read within the budget of the trial.

Each maker writes a file into a folder, in a process of its own, whose memory counts for nothing,
and gives the arguments of `fedax.read_data`, or the name of another reader. Sizes and kinds are
drawn, so that no one limit answers all.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
import random
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fedax
import made_data
from attack import bombs_in_tables, data_files
from attack.archives import header, npz, packed
from attack.bombs_in_tables import GIGA, TEXT, Made, gzipped, png
from attack.data_files import numbers, require_refusal, unexpected
from attack.outcomes import FoundError
from attack.workers import Forked, budget, scratch
from fedax.data.errors import DataError
from fedax.data.partitions.partition import Partition
from fedax.data.store import check_store
from fedax.data.store_writer import convert

SECONDS, MEGABYTES = 30.0, 1000.0

def npz_zeros(folder: Path, rng: random.Random) -> Made:
    rows = rng.choice((1, 8, GIGA // 8))
    shape = (rows, GIGA // 8 // rows)
    ids = header("|i1", (rows,)) if rows > 8 else header("<i8", (rows,))
    npz(folder / "a.npz", {"client_ids": packed(ids, rows * (1 if rows > 8 else 8)),
                           "x": packed(header("<f8", shape), GIGA)})
    return folder / "a.npz", {}


def npz_members(folder: Path, rng: random.Random) -> Made:
    ids = header("<i8", (1,)) + bytes(8)
    one = header("<f4", (1,)) + bytes(4)
    names = {f"x{i}": packed(one) for i in range(rng.choice((5_000, 20_000, 60_000)))}
    npz(folder / "a.npz", {"client_ids": packed(ids)} | names)
    return folder / "a.npz", {}


def npz_overlapping(folder: Path, rng: random.Random) -> Made:
    rows = 2**24
    npz(folder / "a.npz", {"client_ids": packed(header("|i1", (rows,)), rows)},
        {f"x{i:02}": packed(header("<f4", (rows,)), 4 * rows) for i in range(rng.choice((20, 40)))})
    return folder / "a.npz", {}


def npz_header(folder: Path, rng: random.Random) -> Made:
    head = rng.choice((
        header("<f8", (2**40,)), header("<U1000000000", (2,)), header("<f8", (2**62, 4)),
        header("<f8", (1,) * 64 + (2**30,)), header("|V2000000000", (1,)),
        b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**20) + b"(" * 2**20,
        b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b" " * 2**20,
    ))
    npz(folder / "a.npz", {"client_ids": packed(header("<i8", (1,)) + bytes(8)),
                           "x": packed(head + bytes(64))})
    return folder / "a.npz", {}


def npy_header(folder: Path, rng: random.Random) -> Made:
    made_data.make_npy(folder)
    (folder / "x.npy").write_bytes(header("<f4", rng.choice(((6, 2**40), (2**60, 0), (6, 2**29)))))
    if rng.random() < 0.5:  # a hole, which is on no disk
        os.truncate(folder / "x.npy", GIGA)
    return folder, {}


def leaf_json(folder: Path, rng: random.Random) -> Made:
    many = rng.choice((10**5, 10**6))
    text = rng.choice((
        '{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [' + "9" * many + ']}}}',
        '{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": ' + "[" * many + "}}}",
        '{"users": [' + '"a",' * many + '"a"], "num_samples": [1], "user_data": {}}',
        '{"users": ["a"], "num_samples": [1e' + "9" * 20 + '], "user_data": {"a": {"x": [1]}}}',
        '{"users": ["a"], "num_samples": [1], "user_data": {' + '"a": {"x": [1]},' * many
        + '"a": {"x": [1]}}}',
    ))
    (folder / "a.json").write_text(text)
    return folder / "a.json", {"format": "leaf"}


def idx_packed(folder: Path, rng: random.Random) -> Made:
    shape = rng.choice(((GIGA, 1, 1), (1, GIGA, 1), (GIGA // 784, 28, 28), (2**32 - 1,) * 3))
    head = struct.pack(">HBB3I", 0, 8, 3, *(min(n, 2**32 - 1) for n in shape))
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzipped(head, bytes(2**20), GIGA))
    labels = rng.choice((made_data.idx(made_data.LABELS), made_data.idx(made_data.LABELS[:1])))
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    return path, {}


def cifar_pickle(folder: Path, rng: random.Random) -> Made:
    text = b"a" * rng.choice((2**14, 2**20))
    several = min(GIGA * 4 // len(text), 60_000)
    put = b"X" + struct.pack("<I", len(text)) + text + b"r\x01\0\0\0"
    encoded = b"c_codecs\nencode\nj\x01\0\0\0X\x06\0\0\0latin1\x86R"
    laughs = b"]" + b"".join(b"q" + bytes([i]) + b"0](h" + bytes([i]) + b"h" + bytes([i]) + b"e"
                             for i in range(60))
    body = {
        "encoded again and again": b"](" + put + encoded * several + b"e",
        "the same list twice, and so on": laughs,
        "a long number": b"\x8b" + struct.pack("<i", 2**22) + b"\x7f" * 2**22,
        "as decimal digits": b"I" + b"9" * 10**6 + b"\n",
        "deep": b"]" * 10**6 + b"a" * (10**6 - 1),
        "many in the memory": b"](" + b"".join(
            b"]r" + struct.pack("<I", i) for i in range(300_000)) + b"e",
    }[rng.choice(("encoded again and again", "the same list twice, and so on", "a long number",
                  "as decimal digits", "deep", "many in the memory"))]
    key = b"X\x04\0\0\0data" if rng.random() < 0.7 else b"X\x06\0\0\0labels"
    (folder / "data_batch_1").write_bytes(b"\x80\x02}" + key + body + b"s.")
    return folder / "data_batch_1", {"format": "cifar"}


def png_sheets(folder: Path, rng: random.Random) -> Made:
    size = rng.choice(((1024, 2**20), (30_000, 30_000), (1024, 2**18)))
    (folder / "a.png").write_bytes(png(*size, bits=rng.choice((1, 8)), chunk=rng.random() < 0.3))
    (folder / "labels.json").write_text("[0, 1, 2, 3]")
    return folder / "a.png", {"read": "png sheets"}


def store(folder: Path, rng: random.Random) -> Made:
    path = folder / "a.store"
    convert([("a", {"x": made_data.X})], path)
    array = next(path.glob("x*.npy"))
    array.write_bytes(header("<f4", rng.choice(((6, 2**40), (2**40, 2), (6, 2**28)))))
    if rng.random() < 0.5:
        os.truncate(array, 2**33)
    return path, {}


def safetensors(folder: Path, rng: random.Random) -> Made:
    path = folder / "a.safetensors"
    kind = rng.choice(("overlapping", "many", "deep", "header", "hole"))
    entry = {"dtype": "F32", "shape": [2**24], "data_offsets": [0, 2**26]}
    head: Any = {f"p{i}": entry for i in range(100)}
    if kind == "many":
        head = {f"p{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
                for i in range(200_000)}
    elif kind == "hole":
        head = {"p": {"dtype": "F32", "shape": [2**31], "data_offsets": [0, 2**33]}}
    text = b"[" * 10**7 if kind == "deep" else json.dumps(head).encode()
    length = 2**40 if kind == "header" else len(text)
    path.write_bytes(length.to_bytes(8, "little") + text)
    size = {"overlapping": 2**26, "hole": 2**33}.get(kind, 0)
    os.truncate(path, 8 + len(text) + size)
    return path, {"read": "parameters"}


def partition(folder: Path, rng: random.Random) -> Made:
    npz(folder / "a.npz", {"names": packed(header("<U9", (2,)), 72),
                           "parts": packed(header("<i8", (GIGA // 8,)), GIGA),
                           "offsets": packed(header("<i8", rng.choice(((3,), (2**40,)))), 24)})
    return folder / "a.npz", {"read": "a partition"}


def no_files(folder: Path, rng: random.Random) -> Made:
    """In the place of a file something else: a pipe, a socket, a device or a folder."""
    name = rng.choice([*made_data.FORMATS, *made_data.TABLES])
    made = made_data.FORMATS.get(name)
    path = (made.make if made else made_data.TABLES[name])(folder)
    file = rng.choice([found for found in folder.rglob("*") if found.is_file()])
    file.unlink()
    kind = rng.choice(("pipe", "socket", "device", "zero", "folder", "loop"))
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "socket":
        here = Path.cwd()
        os.chdir(file.parent)  # as its path may be too long
        with socket.socket(socket.AF_UNIX) as made_socket:
            made_socket.bind(file.name)
        os.chdir(here)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to({"device": "/dev/random", "zero": "/dev/zero", "loop": file.name}[kind])
    if made is None or rng.random() < 0.5:
        return path, TEXT if made is None or name in ("parquet", "csv") else {}
    return path, {"read": name}


BOMBS: dict[str, Callable[[Path, random.Random], Made]] = {
    maker.__name__: maker for maker in (
        npz_zeros, npz_members, npz_overlapping, npz_header, npy_header, leaf_json, idx_packed,
        cifar_pickle, png_sheets, store, safetensors, partition, no_files, *bombs_in_tables.MAKERS,
    )
}


# Readers other than `fedax.read_data`, and what their sentences are raised as.
OTHERS: dict[str, Callable[[Path], Any]] = {
    "parameters": fedax.load_params, "a partition": Partition.load,
} | {
    name: functools.partial(lambda made, path: check_store(convert(
        made.read(path), scratch("data") / "store", numbers)), made)
    for name, made in made_data.FORMATS.items()
}


def trial(name: str, seed: int, number: int) -> str:
    """One bomb, made and read; returns how it ended.

    Raises:
      FoundError: neither read nor refused with one sentence within the budget.
    """
    source, told = scratch("data") / "bomb", scratch() / "told"
    source.mkdir()

    def make() -> None:
        path, options = BOMBS[name](source, random.Random(f"{seed} {name} {number}"))
        told.write_text(json.dumps([str(path), options]))

    try:
        if Forked(make).wait():
            raise RuntimeError("the bomb could not be made")
        path, options = json.loads(told.read_text())
        told.unlink()
        with budget(SECONDS, MEGABYTES):
            return _read(Path(path), options)
    finally:
        shutil.rmtree(source)
        for left in scratch("data").iterdir():
            if left.name not in data_files.SOURCES:
                shutil.rmtree(left)


def _read(path: Path, options: dict[str, Any]) -> str:
    other, store = options.pop("read", None), scratch("data") / "store"
    # What a sentence is raised as; a DataError is one of these.
    ours: type[Exception] = ValueError if other in ("parameters", "a partition") else DataError
    try:
        if other is None:
            if "transform" in options:
                options["transform"] = numbers
            if path.suffix != ".store":
                options["store"] = store
            fedax.read_data(path, **options)
        else:
            OTHERS[other](path)
    except ours as error:
        return require_refusal(error)
    except Exception as error:
        raise FoundError(unexpected(error)) from error
    return "read"
