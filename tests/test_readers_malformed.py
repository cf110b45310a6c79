"""Malformed files of every format: one sentence, nothing left behind, nothing run or followed."""

import contextlib
import gzip
import json
import lzma
import os
import pickle
import sqlite3
import struct
import sys
import tracemalloc
import zipfile

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import made_data
from attack import data_files
from fedax.data import budget, open_store, readers
from fedax.data.errors import DataError
from fedax.data.readers import hdf5
from fedax.data.readers.tf_example import parse_example
from fedax.data.store_writer import convert

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits are POSIX")


def refused(read, tmp_path):
    """What is said of clients that cannot be converted; nothing is left of them."""
    before = sorted(tmp_path.iterdir())
    with pytest.raises(DataError) as caught:
        convert(read(), tmp_path / "store")
    assert sorted(tmp_path.iterdir()) == before
    said = str(caught.value)
    assert said.endswith(".")
    assert "\n" not in said
    return said


@pytest.mark.quick
@pytest.mark.parametrize("name", ["sqlite", "lzma", "hdf5", "leaf", "idx", "packed idx", "csv",
                                  "cifar binary", "cifar pickle", "parquet", "npz", "npy"])
def test_a_cut_file_is_a_sentence_that_names_it(name, tmp_path):
    made = made_data.FORMATS[name]
    path = made.make(tmp_path)
    file = max(tmp_path.iterdir(), key=lambda found: found.stat().st_size)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) * 2 // 3])
    if name == "csv":
        file.write_bytes(content.rsplit(b",", 1)[0])  # within a line
    said = refused(lambda: made.read(path), tmp_path)
    assert file.name in said or (name == "npy" and str(tmp_path) in said)


@pytest.mark.quick
@pytest.mark.parametrize("name", sorted(made_data.FORMATS))
def test_a_file_of_something_else(name, tmp_path):
    made = made_data.FORMATS[name]
    path = made.make(tmp_path)
    for file in tmp_path.iterdir():
        file.write_bytes(b"\x00\x01 not what it should be \xff" * 20)
    assert str(tmp_path) in refused(lambda: made.read(path), tmp_path)


@pytest.mark.quick
@pytest.mark.parametrize("name", sorted(made_data.FORMATS))
def test_no_file(name, tmp_path):
    made = made_data.FORMATS[name]
    path = made.make(tmp_path)
    for file in list(tmp_path.iterdir()):
        file.unlink()
    refused(lambda: made.read(path), tmp_path)
    if name not in ("leaf", "npy"):
        path.mkdir()
        refused(lambda: made.read(path), tmp_path)


def change(path, *statements):
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for statement, *values in statements:
            database.execute(statement, values)


INSERT = "INSERT INTO examples VALUES ('all_train', ?, ?)"


@pytest.mark.quick
@pytest.mark.parametrize(("statements", "words"), {
    "a row too many": ([(INSERT, "f0001_11", made_data.tf_example({"label": 1}))],
                       "example 3 has the features ['label'], but the first has"),
    "a row is missing": ([("DELETE FROM examples WHERE rowid = 2",)],
                         "examples, but the table client_metadata says"),
    "a client of none": ([("INSERT INTO client_metadata VALUES ('zoe', 'all_train', 0)",)],
                         "lient 'zoe' has no examples"),
    "unknown client": ([(INSERT, "zoe", b"")], "has the client 'zoe' where"),
    "client twice": ([("INSERT INTO client_metadata SELECT * FROM client_metadata LIMIT 1",)],
                     "where the table client_metadata has 'f0000_10'"),
    "no message": ([("UPDATE examples SET serialized_example_proto = ? WHERE rowid = 1",
                     b"\x0a\xff")], "is not a tf.train.Example: "),
    "text": ([("UPDATE examples SET serialized_example_proto = 'x' WHERE rowid = 1",)],
             "is not a serialized message"),
    "dtype": ([("UPDATE examples SET serialized_example_proto = ? WHERE rowid = 1",
                made_data.tf_example({"pixels": np.ones(784, int), "label": 1}))],
              "'pixels' is text, float or int64 in one example but not all"),
    "negative label": ([("UPDATE examples SET serialized_example_proto = ? WHERE rowid = 1",
                         made_data.tf_example({"pixels": np.ones(784), "label": -7}))],
                       "'label' of example 0 is -7, but labels must be 0"),
    "name": ([("UPDATE examples SET client_id = x'00' WHERE client_id = 'f0000_10'",)],
             "has the client 'f0001_11' where"),
    "no table": ([("DROP TABLE client_metadata",)], "has no table client_metadata"),
    "a view": ([("ALTER TABLE examples RENAME TO e",),
                ("CREATE VIEW examples AS SELECT * FROM e",)], "has no table examples"),
    "no column": ([("ALTER TABLE examples RENAME COLUMN client_id TO who",)],
                  "has no column 'client_id'"),
}.values())
def test_malformed_sqlite(statements, words, tmp_path):
    path = made_data.make_sqlite(tmp_path)
    change(path, *statements)
    assert words in refused(lambda: readers.read_sqlite(path, "all_train"), tmp_path)


def test_splits_of_sqlite_and_changes_beside_it(tmp_path):
    path = made_data.make_sqlite(tmp_path)
    assert "has the splits 'all_test', 'all_train'; choose one" in refused(
        lambda: readers.read_sqlite(path), tmp_path)
    assert "Did you mean 'all_train'?" in refused(
        lambda: readers.read_sqlite(path, "all_trian"), tmp_path)
    (tmp_path / "emnist_all.sqlite-wal").write_bytes(b"x")
    assert "holds changes that were not merged" in refused(
        lambda: readers.read_sqlite(path, "all_train"), tmp_path)


def test_lzma_that_unpacks_to_far_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "ALLOWED_BYTES", 2**20)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    path = tmp_path / "a.sqlite.lzma"
    content = b"SQLite format 3\0" + bytes(2**22)
    path.write_bytes(lzma.compress(content, lzma.FORMAT_ALONE, preset=1))
    said = refused(lambda: readers.read_sqlite(path, "train"), tmp_path)
    assert "over 200 times its size" in said


@pytest.mark.quick
@pytest.mark.parametrize("name", ["packed idx", "npz", "hdf5", "parquet", "csv"])
def test_other_files_that_unpack_to_far_too_much(name, tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "ALLOWED_BYTES", 2**16)
    zeros = np.zeros((2000, 784), np.uint8)
    path = tmp_path / "a"
    if name == "packed idx":
        path.write_bytes(gzip.compress(made_data.idx(zeros)))
        labels = tmp_path / "labels"
        labels.write_bytes(made_data.idx(zeros[:, 0]))
        read = lambda: readers.read_idx(path, labels)  # noqa: E731
    elif name == "npz":
        np.savez_compressed(path.with_suffix(".npz"), x=zeros, client_ids=zeros[:, 0])
        read = lambda: readers.read_numpy(path.with_suffix(".npz"))  # noqa: E731
    elif name == "hdf5":
        with h5py.File(path, "w") as file:
            file.create_dataset("examples/a/x", data=np.tile(zeros, (10, 1)), compression="gzip")
        read = lambda: readers.read_hdf5(path)  # noqa: E731
    elif name == "parquet":
        table = pyarrow.table({"who": zeros[:, 0], "x": zeros[:, 0].astype(np.int64)})
        pyarrow.parquet.write_table(pyarrow.concat_tables([table] * 50), path)
        read = lambda: readers.read_parquet(path, "who")  # noqa: E731
    else:
        path.write_bytes(gzip.compress(b"who,x\n" + b"a,1\n" * 200_000))
        read = lambda: readers.read_csv(path, "who")  # noqa: E731
    assert "over 200 times its size" in refused(read, tmp_path)


@pytest.mark.parametrize("message", [
    "0a", "0aff", "0a05", "0aff01", "0a80808080808080808080", "0b", "02", "0d0102", "0a020a01",
    "0a0a0a080a016112031a010a", "0a0a0a080a01611203120101", "0a070a050a01611200",
    "0a090a070a016112021205", "08ff",
])
def test_messages_that_are_none(message):
    content = bytes.fromhex(message)
    try:
        assert parse_example(content) == {}
    except ValueError as error:
        assert str(error)  # noqa: PT017 - either


@pytest.mark.quick
@pytest.mark.parametrize(("make", "words"), {
    "link out": (lambda f: f["examples"].__setitem__("zoe", h5py.ExternalLink("b.h5", "/")),
                 "examples/zoe is a link to another file"),
    "soft link": (lambda f: f["examples/THE_PLAY_1"].__setitem__("x", h5py.SoftLink("/examples")),
                  "is a link to another file"),
    "other file": (lambda f: f["examples/THE_PLAY_1"].create_dataset(
        "x", (2,), "u1", external=[("/etc/passwd", 0, 2)]), "in another file"),
    "promise": (lambda f: f["examples/THE_PLAY_1"].create_dataset(
        "x", (2, 2**40), "f4", chunks=(1, 2**16)), "says that it has 8,796,093,022,208 bytes"),
    "lengths": (lambda f: f["examples/THE_PLAY_1"].create_dataset("x", data=np.zeros(5)),
                "needs fields of one length"),
    "empty": (lambda f: f["examples"].create_group("zoe"), "'zoe' needs fields of one length"),
    "scalar": (lambda f: f["examples/THE_PLAY_1"].create_dataset("x", data=5), "first axis counts"),
    "deeper": (lambda f: f["examples/THE_PLAY_1"].create_group("x"), "should be an array"),
    "records": (lambda f: f["examples/THE_PLAY_1"].create_dataset(
        "x", data=np.zeros(2, [("a", "i4")])), "must be numbers or text"),
    "text of two axes": (lambda f: f["examples/THE_PLAY_1"].create_dataset(
        "x", data=np.array([[b"a", b"b"]])), "is text with 2 axes"),
    "no group": (lambda f: f.move("examples", "data"), "has no group 'examples'"),
    "no clients": (lambda f: (f.__delitem__("examples"), f.create_group("examples")),
                   "has no clients"),
    "not finite": (lambda f: f["examples/THE_PLAY_0/pixels"].write_direct(
        np.full((1, 28, 28), np.nan, np.float32)), "not finite"),
    "label": (lambda f: f["examples/THE_PLAY_0/label"].write_direct(np.array([-1], np.int32)),
              "'label' of example 0 is -1"),
}.values())
def test_malformed_hdf5(make, words, tmp_path):
    path = made_data.make_hdf5(tmp_path)
    with h5py.File(path, "r+") as file:
        for client in file["examples"].values():
            del client["snippets"]  # text, for a transform
        make(file)
    assert words in refused(lambda: readers.read_hdf5(path), tmp_path)


@pytest.mark.parametrize(("program", "why"), {
    "ends": ("import os; os.abort()", "crashes on it"),
    "hangs": ("while True: pass", "does not finish reading it"),
}.values())
def test_a_library_that_crashes_or_never_ends(program, why, tmp_path, monkeypatch):
    """As HDF5's does on some damaged files."""
    path = made_data.make_hdf5(tmp_path)
    (tmp_path / "program.py").write_text(program)
    monkeypatch.setattr(hdf5, "_PROGRAM", tmp_path / "program.py")
    monkeypatch.setattr(budget, "MOST_SECONDS", 0.5)
    assert why in refused(lambda: readers.read_hdf5(path), tmp_path)


def leaf(**changes):
    good = {"users": ["a", "b"], "num_samples": [1, 2],
            "user_data": {"a": {"x": [[1.5]], "y": [0]}, "b": {"x": [[1], [2]], "y": [0, 1]}}}
    return json.dumps(good | changes)


@pytest.mark.quick
@pytest.mark.parametrize(("text", "words"), {
    "twice": (leaf(users=["a", "a"]), "user 'a' occurs twice in users"),
    "twice in the data": (leaf().replace('"b": {', '"a": {'), "'a' occurs twice in user_data"),
    "unknown": (leaf(users=["a", "c"]), "user 'b' of user_data is not in users"),
    "missing": (leaf(users=["a", "c"], num_samples=[1, 2],
                     user_data={"a": {"x": [1]}}), "'c' has no data"),
    "sizes": (leaf(num_samples=[1]), "2 users, but 1 num_samples"),
    "promised": (leaf(num_samples=[1, 3]), "2 examples of 'x', but num_samples says 3"),
    "kinds": (leaf(num_samples=[1, "2"]), "num_samples whole numbers"),
    "empty": (leaf(user_data={"a": {"x": [], "y": []}}, users=["a"], num_samples=[0]),
              "has no examples"),
    "no table": (leaf(user_data={"a": 5}, users=["a"], num_samples=[1]),
                 "not a dictionary with x and y"),
    "list": ("[1, 2]", "lacks one of users"),
    "deep": ("[" * 100_000, "more than 50 deep"),
    "deep inside": (leaf(user_data={"a": {"x": [1]}}).replace("[1]", "[" * 60 + "]" * 60),
                    "more than 50 deep"),
    "not so deep": (leaf(user_data={"a": {"x": ["[" * 60 + '\\"' + "[" * 60]}}, users=["a"],
                         num_samples=[1]), "is text or has rows of unequal lengths"),
    "ragged": (leaf(user_data={"a": {"x": [[1], [1, 2]]}}, users=["a"], num_samples=[2]),
               "is text or has rows of unequal lengths"),
    "label": (leaf(user_data={"a": {"x": [1], "y": [-1]}}, users=["a"], num_samples=[1]),
              "labels must be 0 or more"),
    "beyond float32": (leaf(user_data={"a": {"x": [1e300]}}, users=["a"], num_samples=[1]),
                       "not finite"),
    "huge": (leaf(user_data={"a": {"x": [10**400]}}, users=["a"], num_samples=[1]),
             "integer overflow"),
}.values())
def test_malformed_leaf(text, words, tmp_path):
    (tmp_path / "a.json").write_text(text)
    said = refused(lambda: readers.read_leaf(tmp_path), tmp_path)
    assert words in said


@pytest.mark.quick
@pytest.mark.parametrize(("content", "words"), {
    "magic": (b"\x00\x01\x08\x03" + bytes(12), "begins with the magic number 00010803"),
    "kind": (b"\x00\x00\x07\x03" + bytes(12), "magic number 00000703"),
    "longer": (made_data.idx(made_data.IMAGES) + b"x", "but it has 137"),
    "shorter": (made_data.idx(made_data.IMAGES)[:-1], "but it has 135"),
    "promise": (struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1), "header says"),
    "packed promise": (gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 2**31, 28, 28), mtime=0),
                       "over 200 times its size"),
    "packed longer": (gzip.compress(made_data.idx(made_data.IMAGES) + bytes(100), mtime=0),
                      "has bytes after its end"),
    "other number": (made_data.idx(made_data.IMAGES[:5]), "and labels [n]"),
    "labels": (made_data.idx(made_data.LABELS), "they must be images"),
}.values())
def test_malformed_idx(content, words, tmp_path):
    path = made_data.make_idx(tmp_path)
    path.write_bytes(content)
    labels = made_data._labels(path)
    assert words in refused(lambda: readers.read_idx(path, labels), tmp_path)


def test_a_label_of_cifar_that_is_none(tmp_path):
    path = made_data.make_cifar_binary(tmp_path)
    content = bytearray(path.read_bytes())
    content[3074] = 20  # the coarse label of the second image
    path.write_bytes(content)
    said = refused(lambda: readers.read_cifar_binary(path, 100), tmp_path)
    assert "the label 'coarse' of image 1 is 20, but the classes are 0 to 19" in said
    assert "not a multiple of" in refused(lambda: readers.read_cifar_binary(path, 10), tmp_path)
    assert "num_classes must be 10 or 100" in refused(
        lambda: readers.read_cifar_binary(path, 50), tmp_path)


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil",)


@pytest.mark.quick
@pytest.mark.parametrize(("batch", "words"), {
    "code": (Evil(), "it names posix.system, which is not data"),
    "eval": ({"data": eval}, ".eval, which is not data"),
    "a class": ({"data": data_files.FoundError()}, "it names attack.outcomes.FoundError"),
    "objects": ({"data": np.zeros(3, object)}, "no constructor of bytes or of NumPy's numbers"),
    "list": ([1], "does not hold a dictionary"),
    "shape": ({"data": np.zeros((2, 3), np.uint8)}, "'data' is not uint8[n, 3072]"),
    "dtype": ({"data": np.zeros((2, 3072), np.int32)}, "'data' is not uint8[n, 3072]"),
    "labels": ({"data": made_data.FLAT, "labels": [1, 2, 3]}, "4 images and 3 labels"),
    "label": ({"data": made_data.FLAT, "labels": [1, 2, 3, -1]}, "of image 3 is -1"),
    "kind": ({"data": made_data.FLAT, "labels": [1, 2, 3, 1.5]}, "not a list of whole numbers"),
    "no labels": ({"data": made_data.FLAT}, "'labels' is not a list"),
}.values())
def test_malformed_pickles_and_code_that_is_not_run(batch, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for protocol in (2, 4):
        (tmp_path / "a").write_bytes(pickle.dumps(batch, protocol))
        assert words in refused(lambda: readers.read_cifar_pickle(tmp_path / "a"), tmp_path)


def test_a_pickle_that_laughs(tmp_path):
    """Lists of one list, 2^60 in all, and one in itself."""
    laughs = [1]
    for _ in range(60):
        laughs = [laughs, laughs]
    endless = []
    endless.append(endless)
    for value in (laughs, endless):
        (tmp_path / "a").write_bytes(pickle.dumps({"data": value}, 4))
        said = refused(lambda: readers.read_cifar_pickle(tmp_path / "a"), tmp_path)
        assert "nested too deep" in said


@pytest.mark.quick
@pytest.mark.parametrize(("text", "words"), {
    "no client": ("who,x\na,1\n,2\n", "has no client"),
    "missing": ("who,x\na,1\nb,\n", "'x' has a missing value"),
    "short": ("who,x\na,1\nb\n", "line 3 has 1 values, but the first names 2"),
    "text": ("who,x\na,1\nb,two\n", "'x' is text or has rows of unequal lengths"),
    "no rows": ("who,x\n", "has no rows"),
    "nothing": ("", "its first line must name the columns"),
    "no column": ("name,x\na,1\n", "Unknown client column 'who'"),
    "twice": ("who,x,x\na,1,2\n", "Two columns have the name 'x'"),
    "not finite": ("who,x\na,1.5\na,inf\n", "not finite"),
    "beyond float32": ("who,x\na,1.5\na,1e300\n", "not finite"),
    "quote": ('who,x\na,"1\n', "a.csv is damaged"),
    "label": ("who,y\na,0\na,-2\n", "'y' of example 1 is -2"),
    "name": ("who,x\na\x01,1\n", "1 to 256 printable letters"),
    "array": ("who,../x\na,1\n", "cannot have the name '../x'"),
    "endless": ("who,x\na," + "1" * 2**24, "a line that begins with 'a,111111"),
}.values())
def test_malformed_csv(text, words, tmp_path):
    (tmp_path / "a.csv").write_text(text)
    assert words in refused(lambda: readers.read_csv(tmp_path / "a.csv", "who"), tmp_path)


@pytest.mark.quick
@pytest.mark.parametrize(("columns", "words"), {
    "no client": ({"who": ["a", None], "x": [1, 2]}, "row 1 has no client"),
    "missing": ({"who": ["a", "b"], "x": [1, None]}, "'x' has a missing value"),
    "text": ({"who": ["a", "b"], "x": ["1", "2"]}, "'x' is text or has rows of unequal lengths"),
    "floats": ({"who": [1.5, 2.5], "x": [1, 2]}, "must hold text or whole numbers"),
    "no rows": ({"who": pyarrow.array([], "string"), "x": pyarrow.array([], "int32")},
                "has no rows"),
    "no column": ({"name": ["a"], "x": [1]}, "Unknown client column 'who'"),
    "tables": ({"who": ["a"], "x": [{"a": 1}]}, "'x' holds"),
    "ragged": ({"who": ["a", "a"], "x": [[1], [1, 2]]}, "of unequal lengths"),
    "label": ({"who": ["a", "a"], "y": [0, -1]}, "'y' of example 1 is -1"),
}.values())
def test_malformed_parquet(columns, words, tmp_path):
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    assert words in refused(
        lambda: readers.read_parquet(tmp_path / "a.parquet", "who"), tmp_path)


@pytest.mark.quick
def test_parquet_whose_text_is_not_utf_8(tmp_path):
    text = pyarrow.array([b"fine", b"\xa9\x80"]).cast(pyarrow.string(), safe=False)
    table = pyarrow.table({"who": [1, 2], "x": text})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    said = refused(lambda: readers.read_parquet(tmp_path / "a.parquet", "who"), tmp_path)
    assert "a.parquet is damaged: from row 0 on, a text is not UTF-8" in said


def test_parquet_whose_text_is_none(tmp_path):
    text = pyarrow.Array.from_buffers(pyarrow.string(), 2, [
        None, pyarrow.py_buffer(np.array([0, 1, 2], np.int32)), pyarrow.py_buffer(b"a\xff")])
    pyarrow.parquet.write_table(pyarrow.table({"who": text, "x": [1, 2]}), tmp_path / "a.parquet")
    said = refused(lambda: readers.read_parquet(tmp_path / "a.parquet", "who"), tmp_path)
    assert "byte 0 is not UTF-8 text; save it as UTF-8" in said


def forged_npz(path, shape, held):
    """An array whose header promises a shape and which holds so many zeros."""
    head = bytearray(b"\x93NUMPY\x01\x00")
    words = repr({"descr": "|u1", "fortran_order": False, "shape": shape}).encode().ljust(117)
    head += struct.pack("<H", len(words) + 1) + words + b"\n"
    np.savez(path, client_ids=np.array(["a"]))
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(head) + bytes(held))


@pytest.mark.quick
def test_malformed_arrays(tmp_path):
    path = tmp_path / "a.npz"
    for arrays, words in [
        ({"x": np.ones(2)}, "Unknown client id array 'client_ids'"),
        ({"x": np.ones(2), "client_ids": [1, 2, 3]}, "with 3 rows"),
        ({"x": np.ones(2), "client_ids": [1.5, 2]}, "must be text or whole numbers"),
        ({"x": np.array(["a"]), "client_ids": [1]}, "must be numbers with 1 rows"),
        ({"x": np.array([None]), "client_ids": [1]}, "not numbers [n, ...]"),
        ({"client_ids": [1]}, "no array except"),
        ({"x": np.zeros(0), "client_ids": np.zeros(0, int)}, "has no rows"),
        ({"x": np.ones((2, 2), order="F"), "client_ids": [1, 2]}, "stored in column-major order"),
    ]:
        np.savez(path, **arrays)
        assert words in refused(lambda: readers.read_numpy(path), tmp_path)
    np.savez(path, x=[1], client_ids=np.frombuffer(b"\xff" * 4, "U1"))  # a letter that is none
    assert "a.npz is damaged" in refused(lambda: readers.read_numpy(path), tmp_path)
    for shape, held in (((1, 2**40), 100), ((1,), 2)):
        forged_npz(path, shape, held)
        assert "'x' says that it is uint8" in refused(lambda: readers.read_numpy(path), tmp_path)


@pytest.mark.slow
def test_a_file_is_converted_in_less_memory_than_it_has_bytes(tmp_path):
    """150 MB of scattered rows. Only what is asked for is counted: what the system lays aside for
    threads differs from machine to machine.
    """
    ids = np.arange(150_000) % 1000
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, (150_000, 1000))
    x[:] = (np.arange(150_000) % 251)[:, None]
    del x
    np.save(tmp_path / "client_ids.npy", ids)
    tracemalloc.start()
    try:
        convert(readers.read_numpy(tmp_path), tmp_path / "store")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 120 * 2**20
    data = open_store(tmp_path / "store")
    for client in (0, 1, 999):
        own = data.client(client)["x"]
        assert (own == (np.arange(client, 150_000, 1000) % 251)[:, None]).all()



