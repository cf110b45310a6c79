"""Stores: written in bounded memory, gone on with after a kill, mapped, and checked."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from fedax.data import FederatedDataset, array_files, cohort_data, store_writer
from fedax.data.errors import DataError
from fedax.data.readers import read_hdf5
from fedax.data.store import check_store, open_store
from fedax.data.store_writer import StoreWriter, convert

CLIENTS = {
    "ada": {"x": np.arange(6, dtype=np.uint8).reshape(3, 2), "y": np.array([1, 0, 2], np.int32)},
    "bob": {"x": np.full((1, 2), 9, np.uint8), "y": np.array([1], np.int32)},
    "Öz/../é": {"x": np.full((2, 2), 7, np.uint8), "y": np.array([0, 0], np.int32)},
}


def check(data):
    assert [data.name(i) for i in range(3)] == list(CLIENTS)
    for name, arrays in CLIENTS.items():
        for key, array in arrays.items():
            own = data.client(name)[key]
            assert own.dtype == array.dtype
            np.testing.assert_array_equal(own, array)


@pytest.mark.quick
def test_what_is_written_is_read_mapped(tmp_path):
    folder = convert(CLIENTS.items(), tmp_path / "train", source={"file": "a"})
    data = open_store(folder)
    check(data)
    check(check_store(folder))
    assert all(isinstance(array, np.memmap) for array in data.arrays.values())
    assert data.offsets.tolist() == [0, 3, 4, 6]
    assert np.load(folder / "x.npy").tolist() == np.asarray(data.arrays["x"]).tolist()
    assert sorted(path.name for path in folder.iterdir()) == [
        "names.npy", "offsets.npy", "store.json", "x.npy", "y.npy",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["train"]
    assert json.loads((folder / "store.json").read_text())["source"] == {"file": "a"}


def test_names_may_be_numbers_and_parts_join(tmp_path):
    one = np.ones((2, 1))
    folder = convert([(7, {"x": one}), (7, {"x": 2 * one}), (3, {"x": one})], tmp_path / "s")
    data = open_store(folder)
    assert data.names.tolist() == [7, 3]
    assert data.client("7")["x"].ravel().tolist() == [1, 1, 2, 2]


def test_a_transform_makes_arrays_and_leaves_clients_out(tmp_path):
    texts = [("a", {"text": [b"xy", b"z"]}), ("b", {"text": [b""]}), ("c", {"text": [b"xxx"]})]

    def lengths(columns):
        found = np.array([len(text) for text in columns["text"]], np.int32)
        return {"n": found} if found.any() else None

    data = open_store(convert(texts, tmp_path / "s", lengths))
    assert data.names.tolist() == ["a", "c"]
    assert data.arrays["n"].tolist() == [2, 1, 3]


@pytest.mark.parametrize("stop", [5, 6, 7, 8])
def test_a_client_of_two_parts_that_is_left_out_is_one(stop, tmp_path, monkeypatch):
    """Counted twice, another one would be missing from what is gone on with."""
    monkeypatch.setattr(store_writer, "SAVE_BYTES", 0)
    parts = [(f"c{i // 2}", {"x": np.full((2, 1), i)}) for i in range(12)]

    def transform(columns):
        if columns["x"][0, 0] == stop and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            raise KeyboardInterrupt
        return None if columns["x"][0, 0] in (2, 3) else columns

    with pytest.raises(KeyboardInterrupt):
        convert(parts, tmp_path / "s", transform)
    data = open_store(convert(parts, tmp_path / "s", transform))
    assert data.names.tolist() == ["c0", "c2", "c3", "c4", "c5"]
    assert data.client("c2")["x"].ravel().tolist() == [4, 4, 5, 5]


@pytest.mark.parametrize(("left_out", "words"), [
    ({0}, "One part of client 'a' was left out"), ({1}, "One part of client 'a' was left ou"),
    ({2}, "Two clients have the name 'a'"),
])
def test_a_part_of_a_client_is_not_left_out(left_out, words, tmp_path):
    parts = [("a", {"x": np.full(1, i)}) for i in range(2)]
    parts += [("b", {"x": np.full(1, 2)}), ("a", {"x": np.full(1, 3)})]
    with pytest.raises(DataError, match=words):
        convert(
            parts, tmp_path / "s",
            lambda columns: None if int(columns["x"][0]) in left_out else columns,
        )


def test_another_process_comes_when_a_store_is_finished(tmp_path, monkeypatch):
    """It neither takes up what is done nor empties it."""
    rename = Path.rename
    said = []

    def with_another(self, target):
        if self.name == ".s.partial":
            with pytest.raises(DataError, match="Another process is making") as error:
                StoreWriter(tmp_path / "s")
            said.append(str(error.value))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", with_another)
    check(check_store(convert(CLIENTS.items(), tmp_path / "s")))
    assert said
    assert not (tmp_path / "s" / "lock").exists()


def test_what_a_link_leads_to_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    (tmp_path / ".s.partial").symlink_to(tmp_path / "mine")
    with pytest.raises(DataError, match="is a link that fedax did not make"):
        convert(CLIENTS.items(), tmp_path / "s")
    assert (tmp_path / "mine" / "letter.txt").exists()


@pytest.mark.quick
def test_hdf5_as_published(tmp_path):
    """The layout of fed_emnist_train.h5: float32 [n, 28, 28] and int32 [n]."""
    rng = np.random.default_rng(0)
    made = {f"f{i:04d}_0{i}": rng.random((i + 2, 28, 28), np.float32) for i in (2, 0, 1)}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, pixels in made.items():
            group = file.create_group(f"examples/{name}")
            group["pixels"] = pixels
            group["label"] = np.arange(len(pixels), dtype=np.int32)
    folder = convert(read_hdf5(tmp_path / "a.h5"), tmp_path / "train")
    data = check_store(folder)
    assert data.names.tolist() == sorted(made)
    for name, pixels in made.items():
        np.testing.assert_array_equal(data.client(name)["pixels"], pixels)
        assert data.client(name)["label"].tolist() == list(range(len(pixels)))
    (source,) = json.loads((folder / "store.json").read_text())["source"]["files"]
    assert source["name"] == "a.h5"
    assert len(source["sha256"]) == 64


GOOD = {"x": np.ones((2, 3), np.float32)}


@pytest.mark.quick
@pytest.mark.parametrize(("clients", "words"), {
    "none": ([], "at least one client"),
    "twice": ([("a", GOOD), ("b", GOOD), ("a", GOOD)], "Two clients have the name 'a'"),
    "empty": ([("a", GOOD), ("b", {"x": np.ones((0, 3), np.float32)})], "'b' has no examples"),
    "dtype": ([("a", GOOD), ("b", {"x": np.ones((2, 3))})], "'x' is float64[3] an example"),
    "shape": ([("a", GOOD), ("b", {"x": np.ones((2, 2), np.float32)})], "is float32[2] an example"),
    "other": ([("a", GOOD), ("b", {"z": np.ones(2)})], "has the arrays ['z']"),
    "lengths": ([("a", {"x": np.ones(2), "z": np.ones(3)})], "unequal lengths"),
    "not finite": ([("a", {"x": np.array([1, np.nan])})], "not finite (NaN or infinity)"),
    "label": ([("a", {"y": np.array([0, 1, -3])})], "'y' of example 2 is -3, but labels must"),
    "text": ([("a", {"x": ["x", "y"]})], "'x' is text or has rows of unequal lengths"),
    "objects": ([("a", {"x": np.array([None, 1])})], "holds objects"),
    "no numbers": ([("a", {"x": np.ones((3, 0))})], "its examples are empty"),
    "scalar": ([("a", {"x": 1.0})], "first axis"),
    "escape": ([("a", {"../x": np.ones(1)})], "cannot have the name '../x'"),
    "reserved": ([("a", {"Names": np.ones(1)})], "cannot have the name 'Names'"),
    "a device": ([("a", {"Aux": np.ones(1)})], "'Aux', which Windows reserves for a device"),
    "capitals": ([("a", {"x": np.ones(1), "X": np.ones(1)})], "differ only in case"),
    "no name": ([("", GOOD)], "1 to 256 printable letters"),
    "control": ([("a\0", GOOD)], "1 to 256 printable letters"),
    "float name": ([(1.5, GOOD)], "text or a whole number"),
    "mixed names": ([("a", GOOD), (1, GOOD)], "all text or all whole numbers"),
    "long name": ([("a" * 257, GOOD)], "1 to 256 printable letters"),
}.values())
def test_malformed_clients_are_a_sentence_and_leave_nothing(clients, words, tmp_path):
    with pytest.raises(DataError) as caught:
        convert(clients, tmp_path / "s")
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_transform_that_fails_is_a_sentence(tmp_path):
    with pytest.raises(DataError, match=r"The transform of client 'a' failed.*KeyError"):
        convert([("a", GOOD)], tmp_path / "s", lambda columns: {"y": columns["y"]})
    with pytest.raises(DataError, match="must return a dictionary of arrays"):
        convert([("a", GOOD)], tmp_path / "s", lambda columns: columns["x"])
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_taken(tmp_path):
    convert([("a", GOOD)], tmp_path / "s")
    with pytest.raises(DataError, match="already exists"):
        StoreWriter(tmp_path / "s")
    with StoreWriter(tmp_path / "t") as writer, pytest.raises(DataError, match="Another process"):
        StoreWriter(tmp_path / "t")
    writer.discard()
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="Cannot make the store"):
        StoreWriter(tmp_path / "file" / "s")


@pytest.mark.quick
@pytest.mark.parametrize(("damage", "words"), {
    "gone": (lambda f: (f / "x.npy").unlink(), "lacks its file x.npy"),
    "cut": (lambda f: os.truncate(f / "x.npy", 270), "bytes instead of"),
    "longer": (lambda f: (f / "y.npy").write_bytes((f / "y.npy").read_bytes() + b"1"),
               "bytes instead of"),
    "head": (lambda f: (f / "x.npy").write_bytes(b"abc"), "x.npy is damaged"),
    "link": (lambda f: ((f / "x.npy").rename(f.parent / "x"), (f / "x.npy").symlink_to("../x")),
             "not a regular file"),
    "table": (lambda f: (f / "store.json").write_text("[]"), "this version of fedax reads"),
    "json": (lambda f: (f / "store.json").write_text("{"), "cannot be read"),
    "no table": (lambda f: (f / "store.json").unlink(), "There is no store in"),
}.values())
def test_a_damaged_store_is_a_sentence(damage, words, tmp_path):
    folder = convert(CLIENTS.items(), tmp_path / "s")
    damage(folder)
    with pytest.raises(DataError) as caught:
        open_store(folder)
    assert words in str(caught.value)


@pytest.mark.parametrize("change", [
    {"format": "other"}, {"arrays": {}}, {"arrays": []}, {"names": None},
    {"arrays": {"../x": {"dtype": "|u1", "shape": [6, 2], "sha256": ""}}},
    {"arrays": {"x": {"dtype": "|O", "shape": [6, 2], "sha256": ""}}},
    {"arrays": {"x": {"dtype": "|u1", "shape": [2**60], "sha256": ""}}},
    {"arrays": {"x": {"dtype": "|u1", "shape": [6.5], "sha256": ""}}},
    {"offsets": {"dtype": "<i8", "shape": [2], "sha256": ""}},
])
def test_a_forged_table_is_a_sentence(change, tmp_path):
    folder = convert(CLIENTS.items(), tmp_path / "s")
    table = json.loads((folder / "store.json").read_text())
    (folder / "store.json").write_text(json.dumps(table | change))
    with pytest.raises(DataError, match=str(tmp_path)):
        open_store(folder)


def test_a_changed_number_is_found_by_the_check(tmp_path):
    folder = convert(CLIENTS.items(), tmp_path / "s")
    content = bytearray((folder / "x.npy").read_bytes())
    content[-1] ^= 1
    (folder / "x.npy").write_bytes(content)
    open_store(folder)
    with pytest.raises(DataError, match=r"x\.npy has changed since it was written"):
        check_store(folder)


class Killed(BaseException):
    pass


def numbered(stop=None):
    """40 clients of 1 to 40 examples, in two parts each."""
    for i in range(40):
        if i == stop:
            raise Killed
        for part in range(2):
            yield f"c{i}", {"x": np.full((i // 2 + 1, 3), 2 * i + part, np.int32)}


@pytest.mark.quick
def test_what_was_stopped_goes_on(tmp_path, monkeypatch):
    whole = convert(numbered(), tmp_path / "whole", source={"a": 1})
    monkeypatch.setattr(store_writer, "SAVE_BYTES", 500)
    written = []
    original = StoreWriter.append
    monkeypatch.setattr(StoreWriter, "append", lambda self, name, arrays: (
        written.append(name), original(self, name, arrays))[1])
    for stop in (3, 17, 30):
        with pytest.raises(Killed):
            convert(numbered(stop), tmp_path / "s", source={"a": 1})
    assert len(written) < 80  # what was saved was not written again
    convert(numbered(), tmp_path / "s", source={"a": 1})
    for path in whole.iterdir():
        assert path.read_bytes() == (tmp_path / "s" / path.name).read_bytes(), path.name
    assert {path.name for path in tmp_path.iterdir()} == {"s", "whole"}


@pytest.mark.parametrize("change", ["source", "cut", "garbage"])
def test_what_cannot_be_gone_on_with_is_begun_anew(change, tmp_path, monkeypatch):
    whole = convert(numbered(), tmp_path / "whole", source={"a": 1})
    monkeypatch.setattr(store_writer, "SAVE_BYTES", 500)
    before = {"a": 2} if change == "source" else {"a": 1}
    with pytest.raises(Killed):
        convert(numbered(20), tmp_path / "s", source=before)
    partial = tmp_path / ".s.partial"
    if change == "cut":
        os.truncate(partial / "x.npy", 300)
    if change == "garbage":
        (partial / "progress.json").write_text('{"num_clients": 5')
    convert(numbered(), tmp_path / "s", source={"a": 1})
    for path in whole.iterdir():
        assert path.read_bytes() == (tmp_path / "s" / path.name).read_bytes(), path.name


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_a_killed_process_is_gone_on_with(tmp_path):
    """Of the same folder, by the name of the same source, to the same bytes."""
    code = """
        import os, signal, sys
        import numpy as np
        from fedax.data import FederatedDataset, cohort_data, store_writer
        store_writer.SAVE_BYTES = 1000
        def clients():
            for i in range(200):
                if i == 150:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield f"c{i}", {"x": np.full((i % 7 + 1, 5), i)}
        store_writer.convert(clients(), sys.argv[1], source={"a": 1})
    """
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "s")], check=False
    )
    assert killed.returncode == -signal.SIGKILL
    clients = [(f"c{i}", {"x": np.full((i % 7 + 1, 5), i)}) for i in range(200)]
    with StoreWriter(tmp_path / "s", source={"a": 1}) as writer:
        assert writer.num_clients > 100
    convert(clients, tmp_path / "s", source={"a": 1})
    convert(clients, tmp_path / "whole", source={"a": 1})
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "s" / path.name).read_bytes(), path.name


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full device is Linux's")
def test_a_full_disk_is_a_sentence_and_keeps_what_was_written(tmp_path, monkeypatch):
    with StoreWriter(tmp_path / "s") as writer:
        writer.append("a", GOOD)
        writer._files._path = lambda _: Path("/dev/full")
        monkeypatch.setattr(array_files, "PART_BYTES", 0)
        with pytest.raises(DataError, match=r"No space left on device\. What was written so far"):
            writer.append("b", GOOD)
    assert (tmp_path / ".s.partial").exists()


def test_342477_clients_are_a_data_set_at_once():
    names = np.array([f"client_{i:08d}" for i in range(342_477)])
    arrays = {"x": np.zeros(10_000_000, np.uint8)}
    offsets = np.append(np.arange(342_477) * 29, 10_000_000)
    began = time.process_time()
    data = FederatedDataset(arrays, offsets, names)
    assert time.process_time() - began < 1.0
    assert data.num_clients == 342_477
    names[-1] = names[7]
    with pytest.raises(ValueError, match="Two clients have the name 'client_00000007'"):
        FederatedDataset(arrays, offsets, names)


@pytest.mark.quick
def test_cohorts_of_a_mapped_store_are_those_of_its_arrays(tmp_path, monkeypatch):
    """Read ahead of, and let go again, of the whole and of a view that begins within a page."""
    monkeypatch.setattr(cohort_data, "MAPPED_BYTES", 0)
    rng = np.random.default_rng(0)
    clients = {f"c{i}": {"x": rng.random((i % 9 + 1, 300)), "y": np.arange(i % 9 + 1)}
               for i in range(200)}
    data = open_store(convert(clients.items(), tmp_path / "s"))
    offsets = data.offsets[7:] - data.offsets[7]
    view = FederatedDataset({k: a[data.offsets[7]:] for k, a in data.arrays.items()}, offsets)
    for mapped, names in ((data, list(clients)), (view, list(clients)[7:])):
        reader = cohort_data.CohortReader(mapped, resident_bytes=0)
        for _ in range(2):
            chosen = np.array([190, 3, 57])
            cohort = reader(chosen)
            for place, client in enumerate(chosen):
                start, count = int(cohort.starts[place]), int(cohort.num_examples[place])
                for key, value in clients[names[client]].items():
                    own = np.asarray(cohort.arrays[key])[start : start + count]
                    np.testing.assert_array_equal(own, value)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the memory")
def test_memory_does_not_grow_with_what_was_read_of_a_store(tmp_path):
    """100 MB in cohorts, of which at most 20 are held."""
    code = """
        import sys
        import numpy as np
        from fedax.data import cohort_data, convert, open_store
        cohort_data.MAPPED_BYTES = 20 * 2**20
        row = np.zeros((20, 25_000), np.uint8)
        convert(((f"c{i}", {"x": row}) for i in range(200)), sys.argv[1])
        reader = cohort_data.CohortReader(open_store(sys.argv[1]), resident_bytes=0)

        def held():
            lines = [l.split() for l in open("/proc/self/status")]
            return sum(int(l[1]) for l in lines if l[0] in ("RssFile:", "RssShmem:")) / 1024

        reader(np.arange(10))
        before = held()
        most = max(reader(np.arange(i, i + 10)) and held() for i in range(0, 190, 10))
        assert most - before < 40, (before, most)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "s")], capture_output=True,
        text=True, check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
