"""Small files that want gigabytes or minutes: refused, or read within the budget of the trial.

Each maker writes a file into a folder, in a process of its own, whose memory counts for nothing; and
gives the arguments of `fedax.read_data`, or the name of another reader. Sizes and kinds are drawn,
so that no one limit answers all.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import lzma
import os
import random
import shutil
import socket
import sqlite3
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet

import fedax
import made_data
from attack.archives import header, npz, packed
from attack.data_files import numbers, require_refusal, unexpected
from attack.outcomes import FoundError
from attack.workers import Forked, budget, scratch
from fedax.data.errors import DataError
from fedax.data.partitions.partition import Partition
from fedax.data.store import check_store
from fedax.data.store_writer import convert

SECONDS, MEGABYTES = 30.0, 1000.0
GIGA = 2**31  # bytes that a bomb wants, more than a trial may have

Made = tuple[Path, dict[str, Any]]
TABLE = {"client_column": "who"}
TEXT = TABLE | {"transform": "numbers"}
ROWS = 16_384


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
    start, again = {"one line": (b"who,x\na,", b"1" * 2**20), "a text": (b'who,x\na,"', b"\n" * 2**20),
                    "many lines": (b"who,x\n", b"a,1\n" * 2**18)}[kind]
    (folder / "a.csv.gz").write_bytes(_gzip(start, again, GIGA))
    return folder / "a.csv.gz", TABLE


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
    path.write_bytes(_gzip(head, bytes(2**20), GIGA))
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
    (folder / "a.png").write_bytes(_png(*size, bits=rng.choice((1, 8)), chunk=rng.random() < 0.3))
    (folder / "labels.json").write_text("[0, 1, 2, 3]")
    return folder / "a.png", {"read": "png sheets"}


def pictures(folder: Path, rng: random.Random) -> Made:
    count = rng.choice((1, 8, 40))
    cell = {"bytes": _png(13_000, 13_000, bits=rng.choice((1, 8))), "path": None}
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
    with sqlite3.connect(path) as database:
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
    database.close()
    return path, {"split": "all_train"}


def sqlite_pages(folder: Path, rng: random.Random) -> Made:
    """A tree whose every branch is the same page: rows without number in a few pages."""
    path = folder / "a.sqlite"
    made_data.sqlite(path, {"train": {"a": [made_data.tf_example({"x": [1.0]})]}}, index=False)
    table = rng.choice(("client_metadata", "examples"))
    with sqlite3.connect(path) as database:
        (size,) = database.execute("PRAGMA page_size").fetchone()
        (root,) = database.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = ?", [table]).fetchone()
    database.close()
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


def _parquet(folder: Path, columns: dict[str, Any], **options: Any) -> Path:
    path = folder / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path, **options)
    return path


def _gzip(start: bytes, again: bytes, size: int) -> bytes:
    """A stream of the start and then the same bytes again and again, up to a size."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = deflate.compress(start) + deflate.flush(zlib.Z_FULL_FLUSH)
    block = deflate.compress(again) + deflate.flush(zlib.Z_FULL_FLUSH)
    head = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    count = size // len(again)
    return head + first + block * count + b"\x03\0" + struct.pack(
        "<II", 0, (len(start) + count * len(again)) % 2**32)


@functools.cache
def _png(width: int, height: int, bits: int = 8, chunk: bool = False) -> bytes:
    """A picture of zeros, or one with a text that unpacks to much."""

    def part(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(
            ">I", zlib.crc32(kind + content))

    if chunk:
        width = height = 4
    row = bytes(1 + -(-width * bits // 8))
    deflate, rows = zlib.compressobj(9), max(1, 2**20 // len(row))
    content = b"".join(deflate.compress(row * min(rows, height - i)) for i in range(0, height, rows))
    text = b"k\0\0" + zlib.compress(bytes(2**29), 9) if chunk else b""
    return b"\x89PNG\r\n\x1a\n" + part(
        b"IHDR", struct.pack(">2I5B", width, height, bits, 0, 0, 0, 0)
    ) + (part(b"zTXt", text) if chunk else b"") + part(
        b"IDAT", content + deflate.flush()) + part(b"IEND", b"")


BOMBS: dict[str, Callable[[Path, random.Random], Made]] = {
    maker.__name__: maker for maker in (
        npz_zeros, npz_members, npz_overlapping, npz_header, npy_header, csv_columns, csv_text,
        csv_name, csv_packed, leaf_json, idx_packed, cifar_pickle, png_sheets, pictures,
        parquet_texts, parquet_numbers, sqlite_example, sqlite_views, sqlite_pages, hdf5_file,
        huggingface, store, safetensors, partition, no_files,
    )
}


# Readers other than `fedax.read_data`, and what their sentences are raised as.
OTHERS: dict[str, Callable[[Path], Any]] = {
    "parameters": fedax.load_params, "a partition": Partition.load,
} | {
    name: functools.partial(lambda made, path: check_store(convert(
        made.read(path), scratch() / "store", numbers)), made)
    for name, made in made_data.FORMATS.items()
}


def trial(name: str, seed: int, number: int) -> str:
    """One bomb, made and read; returns how it ended.

    Raises:
      FoundError: neither read nor refused with one sentence within the budget.
    """
    source, told = scratch() / "source", scratch() / "told"
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
        shutil.rmtree(scratch())
        scratch().mkdir()


def _read(path: Path, options: dict[str, Any]) -> str:
    other, store = options.pop("read", None), scratch() / "store"
    try:
        if other is None:
            if "transform" in options:
                options["transform"] = numbers
            fedax.read_data(path, **options, **({} if path.suffix == ".store" else {"store": store}))
        else:
            OTHERS[other](path)
    except (DataError, *((ValueError,) if other in ("parameters", "a partition") else ())) as error:
        return require_refusal(error)
    except Exception as error:
        raise FoundError(unexpected(error)) from error
    return "read"
