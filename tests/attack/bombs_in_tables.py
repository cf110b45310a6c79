"""Tables that want gigabytes or minutes: CSV, Parquet, SQLite, HDF5, and pictures in columns."""

from __future__ import annotations

import contextlib
import functools
import lzma
import random
import shutil
import sqlite3
import struct
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet

import made_data

GIGA = 2**31  # bytes that a bomb wants, more than a trial may have

Made = tuple[Path, dict[str, Any]]
TABLE = {"client_column": "who"}
TEXT = TABLE | {"transform": "numbers"}
ROWS = 16_384


def csv_columns(folder: Path, rng: random.Random) -> Made:
    count = rng.choice((5_000, 65_000, 150_000))
    (folder / "a.csv").write_text(
        "who," + ",".join(f"c{i}" for i in range(count)) + "\na," + ",".join("1" * count) + "\n")
    return folder / "a.csv", TABLE | ({"columns": ["c1"]} if rng.random() < 0.5 else {})


def csv_text(folder: Path, rng: random.Random) -> Made:
    longest = rng.choice((30_000, 60_000, 130_000))
    where = rng.randrange(ROWS)
    lines = (f"u{i},{'x' * (longest if i == where else 10)}\n" for i in range(ROWS))
    (folder / "a.csv").write_text("who,text\n" + "".join(lines))
    return folder / "a.csv", TEXT


def csv_name(folder: Path, rng: random.Random) -> Made:
    longest = rng.choice((60_000, 120_000))
    lines = (f"{'u' * (longest if i == 7 else 5)}{i},1\n" for i in range(ROWS))
    (folder / "a.csv").write_text("who,x\n" + "".join(lines))
    return folder / "a.csv", TABLE


def csv_packed(folder: Path, rng: random.Random) -> Made:
    kind = rng.choice(("one line", "a text", "many lines"))
    start, again = {
        "one line": (b"who,x\na,", b"1" * 2**20), "a text": (b'who,x\na,"', b"\n" * 2**20),
        "many lines": (b"who,x\n", b"a,1\n" * 2**18),
    }[kind]
    # What may become 100 MiB of lines, which are read twice, takes a few seconds.
    size = 2**28 if kind == "many lines" else GIGA
    (folder / "a.csv.gz").write_bytes(gzipped(start, again, size))
    return folder / "a.csv.gz", TABLE


def pictures(folder: Path, rng: random.Random) -> Made:
    count = rng.choice((1, 8, 40))
    cell = {"bytes": png(13_000, 13_000, bits=rng.choice((1, 8))), "path": None}
    return _parquet(folder, {"who": ["a"] * count, "picture": pyarrow.array(
        [cell] * count, made_data.PICTURE)}, compression="zstd"), TABLE


def parquet_texts(folder: Path, rng: random.Random) -> Made:
    text = "a" * rng.choice((2**10, 2**20))
    count = 4 * GIGA // len(text)
    kind = rng.choice(("dictionary", "names", "list"))
    texts = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array(np.zeros(count, np.int32)), pyarrow.array([text]))
    columns: dict[str, Any] = {"who": pyarrow.array(np.zeros(count, np.int8)), "text": texts}
    if kind == "names":
        columns = {"who": texts, "x": pyarrow.array(np.zeros(count, np.int8))}
    elif kind == "list":
        several = pyarrow.ListArray.from_arrays(pyarrow.array([0, count], pyarrow.int32()), texts)
        columns = {"who": ["a"], "text": several}
    options = {"dictionary_pagesize_limit": 2**27, "store_schema": False}
    return _parquet(folder, columns, compression="zstd", **options), TEXT


def parquet_numbers(folder: Path, rng: random.Random) -> Made:
    width = rng.choice((2**20, 2**27))
    count = GIGA // width
    values = pyarrow.array(np.zeros(GIGA // 2, np.int8))
    kind = rng.choice(("lists", "fixed", "columns", "nulls"))
    if kind == "columns":
        return _parquet(folder, {"who": ["a"]} | {f"c{i}": [1] for i in range(
            rng.choice((3_000, 20_000)))}), TABLE
    if kind == "nulls":
        return _parquet(folder, {"who": pyarrow.array(np.zeros(2**28, np.int8)),
                                 "x": pyarrow.nulls(2**28, pyarrow.int8())}), TABLE
    lists: Any = pyarrow.FixedSizeListArray.from_arrays(values, width // 2)
    if kind == "lists":
        lists = lists.cast(pyarrow.large_list(pyarrow.int8()))
    return _parquet(folder, {"who": ["a"] * count, "x": lists}, compression="zstd"), TABLE


def sqlite_example(folder: Path, rng: random.Random) -> Made:
    count = rng.choice((4, 30)) * 2**20
    kind = rng.choice(("numbers", "packed", "floats", "texts", "names"))
    body = {
        "numbers": lambda: made_data.field(3, b"\x08\x01" * count),
        "packed": lambda: made_data.field(3, made_data.field(1, b"\x01" * (count * 2))),
        "floats": lambda: made_data.field(2, b"\x0d\0\0\0\0" * (count // 2)),
        "texts": lambda: made_data.field(1, b"\x0a\0" * count),
        "names": lambda: made_data.field(3, b"\x08\x01"),
    }[kind]()
    entry = made_data.field(1, made_data.field(1, b"x") + made_data.field(2, body))
    if kind == "names":  # as many fields as there is room for
        entry = b"".join(made_data.field(1, made_data.field(1, str(i).encode()) + made_data.field(
            2, body)) for i in range(count // 16))
    path = folder / "a.sqlite"
    made_data.sqlite(path, {"train": {"a": [made_data.field(1, entry)]}})
    packed_path = path.with_name("a.sqlite.lzma")
    with path.open("rb") as file, lzma.open(packed_path, "wb", format=lzma.FORMAT_ALONE,
                                            preset=0) as out:
        shutil.copyfileobj(file, out)
    return (packed_path if rng.random() < 0.7 else path), {}


def sqlite_views(folder: Path, rng: random.Random) -> Made:
    path = made_data.make_sqlite(folder)
    deep = rng.choice((8, 20, 60))
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        table = rng.choice(("examples", "client_metadata"))
        kind = rng.choice(("nested", "recursive", "generated", "index"))
        if kind == "nested":
            database.execute(f"ALTER TABLE {table} RENAME TO v0")
            for i in range(1, deep + 1):
                name = table if i == deep else f"v{i}"
                database.execute(f"CREATE VIEW {name} AS SELECT a.* FROM v{i - 1} a, v{i - 1} b")
        elif kind == "recursive":
            database.execute(f"DROP TABLE {table}")
            database.execute(
                f"CREATE VIEW {table} AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 "
                "FROM n) SELECT 'all_train' split_name, 'a' client_id, i num_examples, "
                "zeroblob(100000000) serialized_example_proto FROM n")
        elif kind == "generated":
            database.execute(f"ALTER TABLE {table} ADD COLUMN g AS (zeroblob(900000000))")
        else:
            database.execute(f"CREATE INDEX slow ON {table}(client_id) WHERE client_id > '0'")
    return path, {"split": "all_train"}


def sqlite_pages(folder: Path, rng: random.Random) -> Made:
    """A tree whose every branch is the same page: rows without number in a few pages."""
    path = folder / "a.sqlite"
    made_data.sqlite(path, {"train": {"a": [made_data.tf_example({"x": [1.0]})]}}, index=False)
    table = rng.choice(("client_metadata", "examples"))
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        (size,) = database.execute("PRAGMA page_size").fetchone()
        (root,) = database.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = ?", [table]).fetchone()
    content = bytearray(path.read_bytes())
    count = len(content) // size
    extra = [bytes(content[(root - 1) * size : root * size])]

    def interior(child: int) -> bytes:
        page, place = bytearray(size), size
        for i in range(400):
            cell = struct.pack(">I", child) + bytes([i % 127 + 1])
            place -= len(cell)
            page[place : place + len(cell)] = cell
            struct.pack_into(">H", page, 12 + 2 * i, place)
        struct.pack_into(">BHHHBI", page, 0, 5, 0, 400, place, 0, child)
        return bytes(page)

    for _ in range(rng.choice((3, 6))):
        extra.append(interior(count + len(extra)))
    content[(root - 1) * size : root * size] = extra.pop()
    content += b"".join(extra)
    struct.pack_into(">I", content, 28, count + len(extra))
    path.write_bytes(content)
    return path, {}


def hdf5_file(folder: Path, rng: random.Random) -> Made:
    path = folder / "a.h5"
    with h5py.File(path, "w") as file:
        kind = rng.choice(("zeros", "never written", "clients", "deep", "virtual", "texts"))
        group = file.create_group("examples/a")
        if kind == "zeros":
            data = group.create_dataset("x", (4, 2**29), "i1", chunks=(1, 2**27), compression=9)
            block = zlib.compress(bytes(2**27), 9)
            for i in range(4):
                for j in range(4):
                    data.id.write_direct_chunk((i, j * 2**27), block)
        elif kind == "never written":
            group.create_dataset("x", (2, GIGA), "i1", chunks=(1, 2**16), fillvalue=1)
        elif kind == "clients":
            for i in range(3_000):
                file[f"examples/{i}"] = group
        elif kind == "deep":
            for _ in range(2_000):
                group = group.create_group("x")
        elif kind == "virtual":
            layout = h5py.VirtualLayout((2**20, 2**20), "i1")
            layout[0] = h5py.VirtualSource("/etc/passwd", "x", (2**20,))
            group.create_virtual_dataset("x", layout)
        else:
            group.create_dataset("x", (2**22,), h5py.string_dtype(), fillvalue="a" * 1000)
    return path, {}


def huggingface(folder: Path, rng: random.Random) -> Made:
    path = made_data.make_huggingface(folder)
    count = 2**27
    table = pyarrow.table({"who": pyarrow.array(np.zeros(count, np.int8)),
                           "x": pyarrow.array(np.zeros(count, np.float64))})
    options = pyarrow.ipc.IpcWriteOptions(compression=rng.choice(("zstd", "lz4")))
    with pyarrow.ipc.new_stream(
        next(path.glob("*.arrow")), table.schema, options=options
    ) as stream:
        stream.write_table(table)
    return path, TABLE


def _parquet(folder: Path, columns: dict[str, Any], **options: Any) -> Path:
    path = folder / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path, **options)
    return path


def gzipped(start: bytes, again: bytes, size: int) -> bytes:
    """A stream of the start and then the same bytes again and again, up to a size."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = deflate.compress(start) + deflate.flush(zlib.Z_FULL_FLUSH)
    block = deflate.compress(again) + deflate.flush(zlib.Z_FULL_FLUSH)
    head = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    count = size // len(again)
    return head + first + block * count + b"\x03\0" + struct.pack(
        "<II", 0, (len(start) + count * len(again)) % 2**32)


@functools.cache
def png(width: int, height: int, bits: int = 8, chunk: bool = False) -> bytes:
    """A picture of zeros, or one with a text that unpacks to much."""

    def part(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(
            ">I", zlib.crc32(kind + content))

    if chunk:
        width = height = 4
    row = bytes(1 + -(-width * bits // 8))
    deflate, rows = zlib.compressobj(9), max(1, 2**20 // len(row))
    content = b"".join(
        deflate.compress(row * min(rows, height - i)) for i in range(0, height, rows))
    text = b"k\0\0" + zlib.compress(bytes(2**29), 9) if chunk else b""
    return b"\x89PNG\r\n\x1a\n" + part(
        b"IHDR", struct.pack(">2I5B", width, height, bits, 0, 0, 0, 0)
    ) + (part(b"zTXt", text) if chunk else b"") + part(
        b"IDAT", content + deflate.flush()) + part(b"IEND", b"")


MAKERS = (
    csv_columns, csv_text, csv_name, csv_packed, pictures, parquet_texts, parquet_numbers,
    sqlite_example, sqlite_views, sqlite_pages, hdf5_file, huggingface,
)
