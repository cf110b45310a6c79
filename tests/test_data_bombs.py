"""A stranger's data file takes no more than its size allows, and opens nothing but itself."""

import contextlib
import gzip
import io
import json
import lzma
import os
import sqlite3
import struct
import sys
import tarfile
import zipfile

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

import made_data
from attack.outcomes import limits
from fedax import theory
from fedax.data import budget, check_data, open_store, read_data, readers
from fedax.data.downloads.archives import unpack
from fedax.data.errors import DataError
from fedax.data.partitions import Partition
from fedax.data.readers import arrow, csv, scattered
from fedax.data.readers.tf_example import parse_example
from fedax.data.store_writer import convert

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links, pipes and limits are POSIX")

IMAGES = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
datasets.disable_progress_bars()


def lengths(columns):
    """A transform of text."""
    return {"n": np.array([len(text) for text in columns["text"]], np.int32)}


def refused(read, path, seconds=60.0, megabytes=300.0):
    """What is said of clients that cannot be converted, within bounds of time and memory."""
    with limits(seconds, megabytes, str(path)), pytest.raises(DataError) as caught:
        convert(read(path), path.parent / "bomb.store", lengths)
    assert str(caught.value).endswith(".")
    return str(caught.value)


def png(*shape, mode="L"):
    file = io.BytesIO()
    Image.new(mode, shape).save(file, "PNG")
    return file.getvalue()


def write_images(path, images, nested=False):
    column = pyarrow.array([[image] for image in images], pyarrow.list_(IMAGES)) if nested else (
        pyarrow.array(images, IMAGES))
    pyarrow.parquet.write_table(
        pyarrow.table({"who": ["a"] * len(images), "x": column}), path, compression="zstd")
    return path


def parquet(path):
    return readers.read_parquet(path, "who")


@pytest.mark.quick
@pytest.mark.parametrize("nested", [False, True])
def test_an_image_column_that_names_a_file(nested, tmp_path):
    (tmp_path / "private.png").write_bytes(png(2, 2))
    path = write_images(tmp_path / "a.parquet", [
        {"bytes": png(2, 2), "path": "x.png"},
        {"bytes": None, "path": str(tmp_path / "private.png")},
    ], nested)
    assert "private.png', and fedax does not open files named in data" in refused(parquet, path)
    held = write_images(
        tmp_path / "b.parquet", [{"bytes": png(2, 2), "path": "/no/such.png"}] * 2, nested)
    ((_, columns),) = parquet(held)
    assert np.asarray(columns["x"]).size == 8


def test_images_that_become_far_too_large_or_are_none(tmp_path):
    path = write_images(tmp_path / "a.parquet", [{"bytes": png(9000, 9000), "path": None}] * 4)
    assert "an image of 9,000 x 9,000, too large for its bytes" in refused(parquet, path)
    path = write_images(tmp_path / "b.parquet", [{"bytes": b"GIF89a, not", "path": None}])
    assert "'x' holds a damaged image in row 0" in refused(parquet, path)
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 5\n"  # Pillow starts a program
    path = write_images(tmp_path / "c.parquet", [{"bytes": postscript, "path": None}])
    assert "not an image that Pillow reads" in refused(parquet, path)


@pytest.mark.parametrize("said", [
    None, 5, [], [5], [{}], [{"filename": None}], [{"filename": ".."}],
    [{"filename": "../a.arrow"}], [{"filename": "/a.arrow"}], [{"filename": "file:///a.arrow"}],
    [{"filename": "sub/a.arrow"}], [{"filename": "link.arrow"}], [{"filename": "pipe"}],
    [{"filename": "http://a/b.arrow"}], [{"filename": "a" * 5000}], [{"filename": "é" * 200}],
], ids=lambda said: str(said)[:40])
def test_a_saved_data_set_that_names_other_files(said, tmp_path):
    rows = datasets.Dataset.from_dict({"who": ["a"], "y": [7]})
    rows.save_to_disk(tmp_path / "private")
    rows.save_to_disk(tmp_path / "given")
    (tmp_path / "given" / "link.arrow").symlink_to(
        tmp_path / "private" / "data-00000-of-00001.arrow")
    os.mkfifo(tmp_path / "given" / "pipe")
    state = tmp_path / "given" / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"_data_files": said}))
    with limits(60, 300, str(said)[:40]), pytest.raises(DataError) as caught:
        read_data(tmp_path / "given", client_column="who")
    assert len(str(caught.value)) < 1000


def test_saved_data_sets_are_read_as_datasets_gives_them(tmp_path):
    features = datasets.Features({
        "who": datasets.Value("string"), "x": datasets.Array2D((2, 2), "int32"),
        "y": datasets.ClassLabel(names=["no", "yes"]), "image": datasets.Image(),
    })
    rows = datasets.Dataset.from_dict({
        "who": list("aba"), "x": np.arange(12).reshape(3, 2, 2).tolist(), "y": [0, 1, 1],
        "image": [Image.fromarray(np.full((3, 3), i, np.uint8)) for i in range(3)],
    }, features=features).filter(lambda row: row["who"] == "a")
    rows.save_to_disk(tmp_path / "saved", num_shards=2)
    data = read_data(tmp_path / "saved", client_column="who")
    assert data.client("a")["x"].tolist() == [[[0, 1], [2, 3]], [[8, 9], [10, 11]]]
    assert data.client("a")["y"].tolist() == [0, 1]
    assert data.client("a")["image"][:, 0, 0].tolist() == [0, 2]


@pytest.mark.slow
def test_arrow_s_dictionaries_and_what_takes_no_bytes(tmp_path):
    path = tmp_path / "a.parquet"
    text = pyarrow.array(["one", "three", "one"]).dictionary_encode()
    pyarrow.parquet.write_table(pyarrow.table({"who": list("aba"), "text": text}), path)
    assert [c["text"] for _, c in parquet(path)] == [["one", "one"], ["three"]]
    long = pyarrow.DictionaryArray.from_arrays(np.zeros(3000, np.int32), ["a" * 2**20])
    pyarrow.parquet.write_table(
        pyarrow.table({"who": ["a"] * 3000, "text": long}), path, compression="zstd",
        store_schema=False, dictionary_pagesize_limit=2**27)
    assert path.stat().st_size < 10**4
    assert "a.parquet " in refused(parquet, path, seconds=60)
    (tmp_path / "saved").mkdir()
    nothing = pyarrow.FixedSizeListArray.from_arrays(pyarrow.nulls(2**30), 2**30)
    table = pyarrow.table({"who": ["a"], "text": nothing})
    with pyarrow.ipc.new_stream(tmp_path / "saved" / "a.arrow", table.schema) as stream:
        stream.write_table(table)
    (tmp_path / "saved" / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}]}')
    read = lambda folder: readers.read_saved_huggingface(folder, "who")  # noqa: E731
    assert "lists without a value type" in refused(read, tmp_path / "saved")


@pytest.mark.parametrize(("program", "why"), [
    ("import os; os.abort()", "crashes on it"), ("while True: pass", "does not finish reading it"),
])
def test_arrow_s_library_crashes_or_never_ends(program, why, tmp_path, monkeypatch):
    path = made_data.make_parquet(tmp_path)
    (tmp_path / "program.py").write_text(program)
    monkeypatch.setattr(arrow, "_PROGRAM", tmp_path / "program.py")
    monkeypatch.setattr(budget, "MOST_SECONDS", 0.5)
    assert f"a.parquet is damaged: the Arrow library {why}" in refused(parquet, path)


def test_damage_is_said_of_the_file_that_has_it(tmp_path):
    path = made_data.make_parquet(tmp_path)
    (tmp_path / "b.parquet").write_bytes(path.read_bytes()[:-50])
    read = lambda folder: readers.read_parquet([path, folder / "b.parquet"], "who")  # noqa: E731
    with pytest.raises(DataError, match=r"b\.parquet is damaged"):
        read(tmp_path)


def zipped(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in members:
            content = io.BytesIO()
            np.save(content, array)
            archive.writestr(f"{name}.npy", content.getvalue())
    return path


@pytest.mark.slow
def test_archives_of_many_arrays_and_of_many_zeros(tmp_path):
    ids = ("client_ids", np.array(["a"] * 2**19))
    many = zipped(tmp_path / "many.npz", [ids, *((f"x{i}", np.zeros(1)) for i in range(5000))])
    assert "has 5,001 arrays, more than the 4,096" in refused(readers.read_numpy, many)
    sizes = [(f"x{i}", np.zeros((2**19, 16), np.uint8)) for i in range(12)]  # 8 MiB each
    large = zipped(tmp_path / "large.npz", [ids, *sizes])
    assert "over 200 times its size" in refused(readers.read_numpy, large)
    entry = struct.pack("<4s6H3I5H2I", b"PK\1\2", *[20] * 2, *[0] * 13, 0) + b""
    (tmp_path / "list.npz").write_bytes(
        entry * 10**5 + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 9, 9, len(entry) * 10**5, 0, 0))
    assert "list of arrays has 4,600,000 bytes" in refused(
        readers.read_numpy, tmp_path / "list.npz")


def test_tables_of_many_columns(tmp_path):
    path = tmp_path / "a.csv"
    names = [f"c{i}" for i in range(20_000)]
    path.write_text(",".join(["who", *names]) + "\n" + "a" + ",1" * 20_000 + "\n")
    assert "has 20,000 arrays" in refused(lambda p: readers.read_csv(p, "who"), path)
    with limits(60, 300, "columns side by side"):
        ((_, columns),) = readers.read_csv(path, "who", {"x": names})
    assert columns["x"].shape == (1, 20_000)
    table = pyarrow.table({"who": ["a"], **{name: [1] for name in names[:5000]}})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert "has 5,000 arrays" in refused(parquet, tmp_path / "a.parquet")


@pytest.mark.parametrize("length", [60_000, 140_000])
def test_one_long_text_among_short_ones(length, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("user,text\n" + "".join(
        f"u{i},{'x' * (length if i == 5 else 10)}\n" for i in range(16_384)))
    with limits(60, 200, str(length)):
        data = read_data(path, client_column="user", transform=lengths)
    assert data.client("u5")["n"].tolist() == [length]
    assert data.num_examples == 16_384


@pytest.mark.slow
def test_csv_is_read_in_blocks_of_bounded_size(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_text("who,a,b\n" + "".join(f"w{i % 7},{i},{-i}\n" for i in range(1000)))
    whole = {name: columns["a"].tolist() for name, columns in readers.read_csv(path, "who")}
    for limit, value in (("_CELLS", 30), ("PART_BYTES", 50), ("_LINES", 1)):
        monkeypatch.setattr(csv, limit, value)
        found = {}
        for name, columns in readers.read_csv(path, "who"):
            found.setdefault(name, []).extend(columns["a"].tolist())
        assert found == whole


@pytest.mark.quick
def test_a_pickle_that_makes_the_same_bytes_again(tmp_path):
    text = b"X" + struct.pack("<I", 2**18) + b"a" * 2**18 + b"q\1"
    again = b"c_codecs\nencode\nh\1X\6\0\0\0latin1\x86R" * 4000
    (tmp_path / "encode").write_bytes(b"\x80\2}X\1\0\0\0k](" + text + again + b"es.")
    assert "makes more of its bytes" in refused(readers.read_cifar_pickle, tmp_path / "encode")
    (tmp_path / "lists").write_bytes(b"\x80\2" + b"]" * 5_000_000 + b".")
    assert "more than 4,194,304 instructions" in refused(
        readers.read_cifar_pickle, tmp_path / "lists", megabytes=600)


def sqlite(path):
    return readers.read_sqlite(path, "all_train")


def test_pages_of_a_database_that_stand_in_many_places(tmp_path):
    """An interior page whose children are one page, six levels deep: 400^6 rows in 40 kB."""
    path = made_data.make_sqlite(tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        (size,) = database.execute("PRAGMA page_size").fetchone()
        (root,) = database.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'client_metadata'").fetchone()
    pages = bytearray(path.read_bytes())
    pages += pages[(root - 1) * size : root * size]
    for _ in range(6):
        child, page = len(pages) // size, bytearray(size)
        page[:12] = struct.pack(">BHHHBI", 5, 0, 400, size - 2000, 0, child)
        for cell in range(400):
            place = size - 5 * (cell + 1)
            page[12 + 2 * cell : 14 + 2 * cell] = place.to_bytes(2, "big")
            page[place : place + 5] = child.to_bytes(4, "big") + bytes([cell % 127 + 1])
        pages += page
    pages[(root - 1) * size : root * size] = pages[-size:]
    pages[28:32] = (len(pages) // size).to_bytes(4, "big")
    path.write_bytes(pages)
    assert "the table client_metadata is not whole" in refused(sqlite, path)


@pytest.mark.parametrize("kind", ["view", "table"])
def test_views_in_views(kind, tmp_path):
    path = made_data.make_sqlite(tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("ALTER TABLE examples RENAME TO v0")
        for i in range(1, 30):
            database.execute(f"CREATE VIEW v{i} AS SELECT a.* FROM v{i - 1} a, v{i - 1} b")
        database.execute("CREATE VIEW examples AS SELECT * FROM v29")
        database.execute("PRAGMA writable_schema = ON")
        database.execute("UPDATE sqlite_master SET type = ? WHERE name = 'examples'", [kind])
    assert "emnist_all.sqlite " in refused(sqlite, path)


@pytest.mark.quick
def test_computed_columns_are_not_run(tmp_path):
    path = made_data.make_sqlite(tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("ALTER TABLE examples ADD COLUMN z AS (hex(zeroblob(30000000)))")
    assert "the column 'z' of the table examples is computed" in refused(sqlite, path)


@pytest.mark.quick
@pytest.mark.parametrize(("feature", "words"), [
    (made_data.field(3, b"\x08\x01" * 2**21), "has over 1,048,576 values"),
    (made_data.field(1, b"\x0a\x00" * 2**21), "has over 1,048,576 values"),
    (made_data.field(3, made_data.field(1, b"\x01" * 2**24)), "take more than 67,108,864 bytes"),
    (made_data.field(3, made_data.field(1, b"\x01" * 2**22) * 3), "take more than 67,108,864"),
], ids=["numbers", "texts", "packed", "packed in parts"])
def test_examples_that_become_far_too_large(feature, words):
    entry = made_data.field(1, b"x") + made_data.field(2, feature)
    with limits(60, 500, words), pytest.raises(ValueError, match=words):
        parse_example(made_data.field(1, made_data.field(1, entry)))


def test_numbers_in_many_pieces():
    numbers = np.random.default_rng(0).integers(-(2**40), 2**62, 300_000)
    message = made_data.tf_example({"x": numbers})
    assert len(message) > 2**21
    np.testing.assert_array_equal(parse_example(message)["x"], numbers)


def test_rows_that_are_larger_than_was_said(monkeypatch):
    """A temporary file that does not fit is dealt again."""
    monkeypatch.setattr(scattered, "_FILE_BYTES", 2**12)
    ids = np.random.default_rng(0).permutation(np.arange(600) % 60).tolist()
    rows = [np.full(4 if i else 2000, i) for i in ids]

    def batches():
        for i in range(0, 600, 50):
            yield ids[i : i + 50], {"x": rows[i : i + 50]}

    table = scattered.Rows(lambda: (own for own, _ in batches()), batches, 0.0, "The table")
    for start in (0, 17):
        found = {}
        for name, columns in scattered.by_client(table, start):
            found.setdefault(name, []).extend(columns["x"])
        assert list(found) == list(dict.fromkeys(ids))[start:]
        for name, values in found.items():
            assert len(values) == 10
            assert all((value == name).all() for value in values)


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.npz", "a.sqlite", "a.h5", "a.json"])
def test_pipes_are_no_data(name, tmp_path):
    os.mkfifo(tmp_path / name)
    with limits(60, 200, name), pytest.raises(DataError, match=r"it is not a regular file\.$"):
        read_data(tmp_path / name, client_column="who")


def test_pipes_in_folders_and_partitions(tmp_path):
    os.mkfifo(tmp_path / "dataset.json")
    os.mkfifo(tmp_path / "p.npz")
    with limits(60, 200, "pipes"):
        with pytest.raises(DataError, match="it is not a regular file"):
            check_data(tmp_path)
        with pytest.raises(DataError, match="it is not a file"):
            Partition.load(tmp_path / "p.npz")


@pytest.mark.parametrize("name", ["parquet", "npy", "idx", "leaf", "cifar pickle"])
def test_links_that_lead_out_of_a_folder(name, tmp_path):
    given, private = tmp_path / "given", tmp_path / "private"
    given.mkdir(), private.mkdir()
    made_data.FORMATS[name].make(given)
    file = max(given.iterdir(), key=lambda path: path.stat().st_size)
    file.rename(private / file.name)
    file.symlink_to(private / file.name)
    with pytest.raises(DataError, match=r"it is a link to .*, outside"):
        read_data(given, client_column="who" if name == "parquet" else None)
    (private / file.name).rename(given / "real")
    file.unlink()
    file.symlink_to("real")
    data = read_data(given, client_column="who" if name == "parquet" else None)
    assert data.num_examples
    if name == "parquet":  # a link that the user names
        (tmp_path / "mine.parquet").symlink_to(given / "real")
        assert read_data(tmp_path / "mine.parquet", client_column="who").num_examples


@pytest.mark.quick
@pytest.mark.parametrize("words", [
    "((3, 2", "(3, 2)+open", "(-3, 2)", "(True, 2)", "{3: 2}", "(3,'2'",
])
def test_headers_that_are_none(words, tmp_path):
    convert([("a", {"x": np.ones((3, 2), np.float32)})], tmp_path / "s")
    file = tmp_path / "s" / "x.npy"
    damaged = file.read_bytes().replace(b"(3, 2)", words.encode())
    file.write_bytes(damaged)
    with pytest.raises(DataError, match=r"x\.npy is damaged: its header .*Make the store again"):
        open_store(tmp_path / "s")
    (tmp_path / "client_ids.npy").write_bytes(b"\x93NUMPY\1\0\x03\0{((")
    (tmp_path / "x.npy").write_bytes(damaged)
    with pytest.raises(DataError, match="'client_ids' is damaged: its header does not hold a dty"):
        readers.read_numpy(tmp_path)
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("matrices.npy", damaged)
    with pytest.raises(theory.TheoryError, match=r"'matrices' is damaged: its header"):
        theory.read_population(tmp_path / "d.npz")


def test_archives_whose_headers_are_bombs(tmp_path):
    debian = b"!<arch>\n" + f"{'x':<48}{-60:<10}`\n".encode()
    (tmp_path / "a.deb").write_bytes(debian)
    head = tarfile.TarInfo("././@LongLink")
    head.type, head.size = tarfile.GNUTYPE_LONGNAME, 2**28
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(head.tobuf() + bytes(2**28), 1))
    (tmp_path / "c.tar.xz").write_bytes(lzma.compress(b"\xff" * 5000))
    for name, words in (("a.deb", "an entry without a size"), ("b.tar.gz", "unpacks to more than"),
                        ("c.tar.xz", "is damaged, or not an archive")):
        with limits(60, 200, name), pytest.raises(DataError, match=words):
            unpack(tmp_path / name, {"x"}, tmp_path, 2**20)


def test_a_client_of_more_arrays_than_a_store_may_have(tmp_path):
    arrays = {f"x{i}": np.zeros(1) for i in range(budget.MOST_ARRAYS + 1)}
    with pytest.raises(DataError, match=r"has 4,097 arrays, more than the 4,096"):
        convert([("ada", arrays)], tmp_path / "store")
