"""Files of data in every format, damaged and forged: a store, or a sentence and nothing left."""

from __future__ import annotations

import collections
import functools
import gzip
import io
import json
import lzma
import pickle
import random
import shutil
import sqlite3
import struct
import tempfile
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
from PIL import Image

import fedax
import made_data
from attack.files import damaged, forge_json
from attack.outcomes import UNSEEN, FoundError
from attack.workers import Worker, fork_programs, ran_out, scratch
from fedax.data import budget
from fedax.data.errors import DataError
from fedax.data.store import check_store
from fedax.data.store_writer import convert

SECONDS, MEGABYTES = 20.0, 400.0
LONGEST_SENTENCE = 2000
# What lies in the folder of the trials: files to damage, and a bomb.
SOURCES = {"source", "bomb"}

NUMBERS = (0, 1, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
WORDS = (b"-1", b"1e999", b"nan", b"", b"9" * 400, b"null", b'"', b"'", b"[", b"{", b"]" * 50,
         b"[" * 5000, b"\0", b"\xff\xfe", b"\n", b",,", b"..", b"../../x", b"1.5", b"true",
         "é".encode("latin-1"), b"\xed\xa0\x80", b"a" * 3000)


def changed(content: bytes, rng: random.Random) -> bytes:
    """After an accident, or with a number or a word in it that nobody would write."""
    kind = rng.random()
    if kind < 0.5 or not content:
        return damaged(content, rng)
    found = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(found))
        if kind < 0.75:
            size = rng.choice((1, 2, 4, 8))
            order = rng.choice(("little", "big"))
            number = rng.choice(NUMBERS) % 2 ** (8 * size)
            found[place : place + size] = number.to_bytes(size, order)
        elif kind < 0.9:
            found[place : place + rng.choice((0, 1, 4))] = rng.choice(WORDS)
        else:
            other = rng.randrange(len(found))
            found[place : place + 32] = found[other : other + 32]
    return bytes(found)


def inside_gzip(content: bytes, rng: random.Random) -> bytes:
    return gzip.compress(changed(gzip.decompress(content), rng), 1)


def inside_lzma(content: bytes, rng: random.Random) -> bytes:
    inner = inside_sqlite if rng.random() < 0.5 else changed
    return lzma.compress(inner(lzma.decompress(content), rng), lzma.FORMAT_ALONE, preset=0)


def inside_sqlite(content: bytes, rng: random.Random) -> bytes:
    """A whole database with rows, values and tables that should not be."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.sqlite"
        path.write_bytes(content)
        database = sqlite3.connect(path)
        rows = database.execute(
            "SELECT rowid, serialized_example_proto FROM examples").fetchall()
        row, message = rng.choice(rows)
        odd: Any = rng.choice((None, 5, 2**62, "", "x", b"", "a\0b", 1.5, b"\n\x00", "é" * 300))
        statements: list[tuple[str, list[Any]]] = [
            ("UPDATE examples SET serialized_example_proto = ? WHERE rowid = ?",
             [changed(message, rng), row]),
            ("UPDATE examples SET serialized_example_proto = ? WHERE rowid = ?", [odd, row]),
            ("UPDATE examples SET client_id = ? WHERE rowid = ?", [odd, row]),
            ("UPDATE examples SET split_name = ? WHERE rowid = ?", [odd, row]),
            ("UPDATE client_metadata SET num_examples = ? WHERE rowid = 1", [odd]),
            ("UPDATE client_metadata SET client_id = ? WHERE rowid = 2", [odd]),
            ("INSERT INTO client_metadata SELECT * FROM client_metadata LIMIT 1", []),
            ("DELETE FROM examples WHERE rowid = ?", [row]),
            ("DELETE FROM client_metadata WHERE rowid = 1", []),
            ("DROP TABLE client_metadata", []),
            ("ALTER TABLE examples RENAME COLUMN client_id TO c", []),
        ]
        for statement, values in rng.sample(statements, rng.choice((1, 1, 1, 3))):
            try:
                database.execute(statement, values)
            except sqlite3.Error:
                continue
        if rng.random() < 0.1:
            database.execute("DROP TABLE IF EXISTS examples")
            database.execute(
                "CREATE VIEW examples(split_name, client_id, serialized_example_proto) AS WITH "
                "RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
                "SELECT 'all_train', 'a', zeroblob(1000) FROM n"
            )
        database.commit()
        database.close()
        return path.read_bytes()


def inside_hdf5(content: bytes, rng: random.Random) -> bytes:  # noqa: PLR0912
    """A whole file with groups, links and data sets that should not be."""
    del content
    with tempfile.TemporaryDirectory() as folder:
        path = made_data.make_hdf5(Path(folder))
        with h5py.File(path, "r+") as file:
            clients = file["examples"]
            client = clients[rng.choice(list(clients))]
            field = rng.choice(list(client))
            kind = rng.randrange(12)
            if kind == 0:
                del client[field]
            elif kind == 1:
                client["link"] = h5py.ExternalLink("/etc/passwd", "/")
            elif kind == 2:
                clients["link"] = h5py.SoftLink("/examples")
            elif kind == 3:
                clients["link"] = clients  # a group in itself
            elif kind == 4:
                clients.create_group(rng.choice(("empty", "é", "\x01", "a" * 300)))
            else:
                del client[field]
                length = len(next(iter(client.values())))
                if kind == 5:
                    client.create_dataset(field, (length, 2**40), "f4", chunks=(1, 2**16))
                elif kind == 6:
                    client.create_dataset(field, data=np.full((length, 4), rng.choice(
                        (np.nan, np.inf, -1, 2.0**63))))
                elif kind == 7:
                    client.create_dataset(field, data=np.zeros(length, rng.choice(
                        (">f4", "<i8", "f2", "c8", "S3", [("a", "i4")], "b1", "u8"))))
                elif kind == 8:
                    client[field] = rng.choice((5, "x", -1))
                elif kind == 9:
                    client.create_dataset(field, data=np.zeros((length + 1, 2)))
                elif kind == 10:
                    client.create_dataset(
                        field, (length,), "f8", external=[("/etc/passwd", 0, 8 * length)])
                else:
                    client.create_dataset(field, data=np.zeros((length, 2**20)),
                                          compression="gzip", chunks=(1, 2**20))
        return path.read_bytes()


def inside_pickle(content: bytes, rng: random.Random) -> bytes:
    """A pickle of what is no batch."""
    batch = pickle.loads(content)
    odd: Any = rng.choice((
        None, [], {}, [[]], "x", b"", 5, -1, 2**100, 1.5, [1, 2, 300, -5], print, np.float64(3),
        np.zeros((4, 3072)), np.zeros((4, 3072), ">i4"), np.array(["a"]), np.zeros(3, object),
        np.zeros((0, 3072), np.uint8), np.asfortranarray(made_data.FLAT), np.ma.masked, {1, 2},
        np.uint8, [2**40] * 4, functools.reduce(lambda v, _: [v, v], range(60), 1),
        np.zeros(4, [("a", int)]), np.datetime64("now"), ...,
    ))
    key = rng.choice([*batch, "data", (1, 2)])
    batch[key] = odd
    if rng.random() < 0.1:
        batch = odd
    return pickle.dumps(batch, protocol=rng.choice((0, 2, 3, 4, 5)))


def inside_npz(content: bytes, rng: random.Random) -> bytes:
    """Arrays that should not be, under headers that promise anything."""
    del content
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.npz"
        ids = rng.choice((
            made_data.IDS, [1, 2, 1, 2, 1, 3], [1.5] * 6, [], ["a"] * 5, [None] * 6, [b"a"] * 6,
            ["a\n"] * 6, [["a"] * 2] * 3,
        ))
        x = rng.choice((
            made_data.X, np.zeros((6, 0)), np.full(6, np.nan), np.zeros(6, "U2"), np.float64(5),
            np.zeros(6, ">i2"), np.zeros((6, 2), order="F"), np.zeros(6, object), np.zeros((5, 2)),
            np.zeros((6, 2**18)), np.zeros(6, "M8[s]"),
        ))
        y = rng.choice((made_data.Y, -made_data.Y, made_data.Y.astype(">i8")))
        names = ("x", rng.choice(("y", "../y", "y/z", "names", "é", "")), rng.choice(
            ("client_ids", "client_ids", "client_ids", "ids")))
        np.savez_compressed(path, **dict(zip(names, (x, y, np.array(ids)), strict=True)))
        return path.read_bytes()


def inside_png(content: bytes, rng: random.Random) -> bytes:
    """A whole picture that is no sheet, or labels that are none."""
    if not content.startswith(b"\x89PNG"):
        labels = rng.choice(([0] * 3, [0] * 4, [0] * 5, [10] * 4, [-1] * 4, [2**70] * 4, [1.0] * 4,
                             [True] * 4, {}, None, [[0]] * 4, "0000"))
        return json.dumps(labels).encode()
    shape = rng.choice(((4, 1024), (4, 1023, 3), (4, 1024, 4), (1024, 4, 3), (2**14, 1024, 3)))
    buffer = io.BytesIO()
    Image.fromarray(np.zeros(shape, np.uint8)).save(buffer, rng.choice(("PNG", "TIFF")))
    return buffer.getvalue()


def inside_huggingface(content: bytes, rng: random.Random) -> bytes:
    """What says where the tables are, forged; of tables themselves, damaged."""
    return forge_json(content, rng) if content[:1] == b"{" else changed(content, rng)


def inside_pictures(content: bytes, rng: random.Random) -> bytes:
    """A column of pictures that are none, of several kinds, or elsewhere."""
    del content
    buffer = io.BytesIO()
    mode = rng.choice(("L", "P", "1", "RGB", "RGBA", "CMYK", "I;16", "LA", "F", "I"))
    Image.new(mode, rng.choice(((4, 3), (1, 1), (2, 2)))).save(
        buffer, "TIFF" if mode in ("CMYK", "F", "I") else "PNG"
    )
    odd = rng.choice((None, b"", b"x", changed(buffer.getvalue(), rng), buffer.getvalue()))
    cells: list[Any] = [{"bytes": odd, "path": rng.choice((None, "", "/etc/passwd", "\0", "x.png"))}
                        for _ in range(6)]
    cells[rng.randrange(6)] = None if rng.random() < 0.2 else made_data.PICTURES[0]
    return made_data.parquet_of({"who": made_data.IDS, "picture": pyarrow.array(
        cells, made_data.PICTURE)})


FORGERS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "sqlite": inside_sqlite, "posts": inside_sqlite, "lzma": inside_lzma, "hdf5": inside_hdf5,
    "packed idx": inside_gzip, "png sheets": inside_png, "cifar pickle": inside_pickle,
    "npz": inside_npz, "huggingface": inside_huggingface, "pictures": inside_pictures,
}


def bomb(name: str, rng: random.Random) -> bytes | None:
    """Much in a little file, or a promise of it."""
    if name == "packed idx":
        shape = rng.choice(((2**31, 28, 28), (2**20, 28), (6, 5, 2**30)))
        head = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
        return gzip.compress(head + bytes(2**22), 1)
    if name == "png sheets":
        size = rng.choice(((1024, 2**31 - 1), (1024, 10**6), (2**31 - 1, 2**31 - 1)))
        head = struct.pack(">4s2I5B", b"IHDR", *size, 8, 2, 0, 0, 0)
        start = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head
        return start + struct.pack(">I", zlib.crc32(head)) + bytes(100)
    if name == "idx":
        return struct.pack(">HBB3I", 0, 8, 3, *rng.choice(((2**32 - 1,) * 3, (2**31, 1, 1))))
    return None


def numbers(columns: Any) -> dict[str, Any]:
    """A transform: of what is text, or of unequal lengths, the lengths."""
    return {
        key: np.array([len(value) for value in column]) if isinstance(column, list) else column
        for key, column in columns.items()
    }


def attack(
    worker: Worker, name: str, seed: int, count: int
) -> tuple[collections.Counter[str], list[str]]:
    """How so many damaged and forged files of a format ended, and what they must not come to."""
    ended: collections.Counter[str] = collections.Counter()
    found = []
    for number in range(count):
        try:
            ended[worker.ask("attack.data_files:trial", name, seed, number)] += 1
        except FoundError as error:
            found.append(f"{name}, trial {number}: {error}")
    return ended, found


@functools.cache
def _source(name: str) -> tuple[Path, dict[Path, bytes]]:
    """What is read, and the files of the format, made once in each process."""
    budget.MOST_SECONDS = 10.0
    fork_programs()
    source = scratch("data") / "source" / name
    source.mkdir(parents=True)
    make = made_data.FORMATS[name].make if name in made_data.FORMATS else made_data.TABLES[name]
    path = make(source)
    return path, {file: file.read_bytes() for file in sorted(source.rglob("*")) if file.is_file()}


def trial(name: str, seed: int, number: int) -> str:
    """One file of a format, damaged or forged; returns how it ended.

    Raises:
      FoundError: neither with a whole store nor with one sentence and nothing left behind.
    """
    path, files = _source(name)
    rng = random.Random(f"{seed} {name} {number}")
    file = rng.choice(list(files))
    kind = rng.random()
    content = bomb(name, rng) if kind < 0.02 else None
    if content is None and kind < 0.5 and name in FORGERS:
        content = FORGERS[name](files[file], rng)
    file.write_bytes(changed(files[file], rng) if content is None else content)
    try:
        return _outcome(name, path)
    finally:
        file.write_bytes(files[file])
        for left in scratch("data").iterdir():
            if left.name not in SOURCES:
                shutil.rmtree(left, ignore_errors=True)


def _outcome(name: str, path: Path) -> str:
    store = scratch("data") / "store"
    try:
        if name in made_data.FORMATS:
            check_store(convert(made_data.FORMATS[name].read(path), store, numbers))
        else:
            fedax.read_data(path, client_column="who", transform=numbers, store=store)
            check_store(store)
    except DataError as error:
        return require_refusal(error)
    except Exception as error:
        raise FoundError(unexpected(error)) from error
    shutil.rmtree(store)
    require_nothing_left()
    return "a store"


def require_refusal(error: Exception) -> str:
    """Raises FoundError unless it is a sentence that a lack of memory did not cause."""
    text = str(error)
    if not text.endswith(".") or len(text) > LONGEST_SENTENCE or UNSEEN.search(text):
        raise FoundError(f"no sentence: {text[:300]!r}")
    if ran_out(error):
        raise FoundError(f"ran out of memory: {text[:300]!r}")
    require_nothing_left()
    return "a sentence"


def require_nothing_left() -> None:
    """Raises FoundError if something lies beside the sources."""
    left = sorted({found.name for found in scratch("data").iterdir()} - SOURCES)
    if left:
        raise FoundError(f"left {left}")


def unexpected(error: BaseException) -> str:
    """An error that is none of the library's own."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} from {frame.filename}, line {frame.lineno}: {error}"
