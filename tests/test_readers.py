"""Readers: files in the published layouts are read back equal; malformed ones are a sentence."""

import warnings

import numpy as np
import pytest

import made_data
from fedax.data import readers
from fedax.data.errors import DataError
from fedax.data.readers import scattered
from fedax.data.readers.tf_example import parse_example, stacked
from made_data import FORMATS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what its own imports say is not ours
    import datasets


def joined(clients):
    """Clients whose parts are put together, in their order."""
    found = {}
    last = None
    for name, columns in clients:
        if name == last:
            found[name] = {
                key: np.concatenate([found[name][key], value]) if isinstance(value, np.ndarray)
                else found[name][key] + value for key, value in columns.items()
            }
        else:
            assert name not in found
            found[name] = dict(columns)
        last = name
    return found


def require_same(found, holds):
    assert list(found) == list(holds)
    for name, columns in holds.items():
        assert set(found[name]) == set(columns)
        for key, value in columns.items():
            own = found[name][key]
            if isinstance(value, list):
                assert own == value
            else:
                np.testing.assert_array_equal(own, value)
                assert own.dtype.kind == value.dtype.kind


@pytest.mark.quick
@pytest.mark.parametrize("name", FORMATS)
def test_a_file_as_published_is_read(name, tmp_path):
    made = FORMATS[name]
    clients = made.read(made.make(tmp_path))
    require_same(joined(clients), made.holds)
    require_same(joined(clients), made.holds)  # again from the beginning
    if len(made.holds) > 1:
        rest = dict(list(made.holds.items())[1:])
        require_same(joined(clients.after(1)), rest)
    assert all(len(file["sha256"]) == 64 for file in clients.source["files"])


def test_a_serialized_example_of_tensorflows_guide():
    """What `serialize_example(False, 4, b'goat', 0.9876)` gives there."""
    message = (
        b"\nR\n\x14\n\x08feature2\x12\x08\n\x06\n\x04goat\n\x11\n\x08feature0\x12\x05\x1a\x03\n"
        b"\x01\x00\n\x14\n\x08feature3\x12\x08\x12\x06\n\x04[\xd3|?\n\x11\n\x08feature1\x12\x05"
        b"\x1a\x03\n\x01\x04"
    )
    found = parse_example(message)
    assert found["feature2"] == [b"goat"]
    assert found["feature0"].tolist() == [0]
    assert found["feature1"].tolist() == [4]
    assert found["feature3"] == np.float32(0.9876)


@pytest.mark.parametrize("packed", [True, False])
def test_numbers_of_an_example_packed_or_not(packed):
    numbers = [0, 1, 127, 128, 300, 2**31, 2**63 - 1, -1, -(2**63)]
    floats = np.array([0.5, -3e38, 1e-40], np.float32)
    message = made_data.tf_example({"n": np.array(numbers), "f": floats, "b": b"x"}, packed)
    found = parse_example(message)
    assert found["n"].tolist() == numbers
    assert found["n"].dtype == np.int64
    np.testing.assert_array_equal(found["f"], floats)
    assert list(found) == ["n", "f", "b"]


def test_examples_of_unequal_lengths_are_lists():
    columns = stacked([
        {"n": np.array([1]), "t": [b"a", b"b"]}, {"n": np.array([1, 2]), "t": [b"c"]},
    ])
    assert [value.tolist() for value in columns["n"]] == [[1], [1, 2]]
    assert columns["t"] == [[b"a", b"b"], [b"c"]]


@pytest.mark.parametrize(("kind", "ids"), [
    ("arrow", made_data.IDS), ("streamed", made_data.IDS), ("numbers", [7, 3, 7, 1, 3, 7]),
])
def test_hugging_face(kind, ids):
    rows = datasets.Dataset.from_dict({
        "who": ids, "x": made_data.X.tolist(), "y": made_data.Y, "t": list("abcdef"),
        "n": [[1], [2, 3], [], [4], [5], [6]],
    })
    rows = rows.to_iterable_dataset(2) if kind == "streamed" else rows
    found = joined(readers.read_huggingface(rows, "who", ["x", "y", "t", "n"]))
    assert list(found) == list(dict.fromkeys(ids))
    first, second, _ = found.values()
    assert first["y"].tolist() == [0, 2, 5]
    assert np.asarray(first["x"]).tolist() == made_data.X[[0, 2, 5]].tolist()
    assert first["t"] == ["a", "c", "f"]
    assert [list(value) for value in second["n"]] == [[2, 3], [5]]


@pytest.mark.parametrize("order", ["shuffled", "grouped"])
@pytest.mark.parametrize("size", [64, 2**20])
def test_rows_in_any_order_become_clients(order, size, monkeypatch):
    """With small temporary files, clients are dealt to many of them."""
    monkeypatch.setattr(scattered, "_FILE_BYTES", size)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 40, 500)
    ids = np.sort(ids) if order == "grouped" else ids
    x = rng.random((500, 2))
    text = [f"t{i}" for i in range(500)]
    ragged = [np.arange(i % 3) for i in range(500)]

    def batches():
        for i in range(0, 500, 70):
            rows = slice(i, i + 70)
            yield [f"c{n}" for n in ids[rows]], {
                "x": x[rows], "text": text[rows], "b": [t.encode() for t in text[rows]],
                "ragged": ragged[rows],
            }

    rows = scattered.Rows(lambda: (own for own, _ in batches()), batches, 40, "The table")
    names = list(dict.fromkeys(f"c{n}" for n in ids))
    for start in (0, 7, 39):
        found = {}
        for name, columns in scattered.by_client(rows, start):
            found.setdefault(name, []).append(columns)
        assert list(found) == names[start:]
        for name, parts in found.items():
            own = np.flatnonzero(ids == int(name[1:]))
            np.testing.assert_array_equal(np.concatenate([p["x"] for p in parts]), x[own])
            assert [t for p in parts for t in p["text"]] == [text[i] for i in own]
            assert [t for p in parts for t in p["b"]] == [text[i].encode() for i in own]
            assert [r.tolist() for p in parts for r in p["ragged"]] == [
                ragged[i].tolist() for i in own]


def test_a_table_with_a_row_of_nobody():
    rows = scattered.Rows(lambda: [["a", None]], lambda: [], 1, "The table")
    with pytest.raises(DataError, match=r"The table: row 1 has no client"):
        list(scattered.by_client(rows))
