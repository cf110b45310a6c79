"""Partitions of data sets, saved with how they were made; what is no partition is refused."""

import json
import zipfile

import numpy as np
import pytest

from fedax.data import FederatedDataset
from fedax.data.errors import DataError
from fedax.data.partitions import Partition, by_key, dirichlet, parse_partition
from fedax.data.rows import SelectedRows

pytestmark = pytest.mark.quick

Y = np.arange(60) % 3
DATA = FederatedDataset({"x": np.arange(60.0), "y": Y}, np.array([0, 20, 60]))


def same(one, other):
    names = one.names is other.names or one.names.tolist() == other.names.tolist()
    return (one.rows == other.rows).all() and (one.offsets == other.offsets).all() and names


def test_saved_with_its_seed_and_read_back(tmp_path):
    partition = parse_partition("dirichlet(0.5)", DATA, 6, seed=11)
    again = Partition.load(partition.save(tmp_path / "new" / "p.npz"))
    assert same(partition, again)
    assert again.made == partition.made
    assert (again.made["partition"], again.made["seed"], again.made["num_clients"]) == (
        "dirichlet(0.5)", 11, 6,
    )
    first = (tmp_path / "new" / "p.npz").read_bytes()
    parse_partition("dirichlet(0.5)", DATA, 6, seed=11).save(tmp_path / "new" / "p.npz")
    assert (tmp_path / "new" / "p.npz").read_bytes() == first
    named = by_key(["zoë", "b", "zoë"])
    assert same(named, Partition.load(named.save(tmp_path / "named.npz")))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["named.npz", "new"]


def test_rows_of_a_file_are_read_in_place(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(60.0))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    partition = dirichlet(Y, 6, 0.5)
    found = partition.of(FederatedDataset({"x": mapped, "y": Y}, np.array([0, 60])))
    assert isinstance(found.arrays["x"], SelectedRows)
    for client in range(6):
        rows = partition.rows[partition.offsets[client] : partition.offsets[client + 1]]
        assert found.client(client)["x"].tolist() == rows.tolist()
        assert found.client(client)["y"].tolist() == Y[rows].tolist()


def test_only_the_data_set_that_it_was_made_of():
    partition = parse_partition("shards(1)", DATA, 6)
    assert partition.of(DATA.pooled()).num_clients == 6
    with pytest.raises(ValueError, match="made for 60 examples, but the data set has 59"):
        partition.of(FederatedDataset({"y": Y[:59]}, np.array([0, 59])))
    with pytest.raises(ValueError, match="its array 'y' was different"):
        partition.of(FederatedDataset({"y": np.roll(Y, 1)}, np.array([0, 60])))
    with pytest.raises(ValueError, match="depends on the array 'y', which this data set does not"):
        partition.of(FederatedDataset({"x": Y}, np.array([0, 60])))
    other = FederatedDataset({"y": Y.astype(np.uint8)}, np.array([0, 60]))  # the same labels
    assert partition.of(other).num_examples == 60


def test_the_split_is_the_data_sets_own():
    partition = parse_partition("dirichlet_lognormal(0.5, 1.5)", DATA, 12)
    whole = partition.of(DATA)
    for part, expected in zip(partition.split(0.3, 5), whole.split(0.3, 5), strict=True):
        found = part.of(DATA)
        assert found.arrays["x"].tolist() == expected.arrays["x"].tolist()
        assert found.offsets.tolist() == expected.offsets.tolist()
        assert found.names.tolist() == expected.names.tolist()
        assert part.made["split_seed"] == 5
        assert part.made["fraction"] == 0.3
    with pytest.raises(ValueError, match="No client has two or more examples"):
        dirichlet(Y[:3], 3, 1.0).split()
    with pytest.raises(ValueError, match="fraction must be a finite number above 0 and below 1"):
        partition.split(1.0)


def written(path, **changes):
    """A file whose arrays are a partition's, but for the changes; None leaves one out."""
    made = {"format": "fedax partition 1", "num_examples": 4} | changes.pop("table", {})
    arrays = {
        "rows": np.arange(4), "offsets": np.array([0, 2, 4]),
        "made": np.frombuffer(json.dumps(made).encode(), np.uint8),
    } | changes
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return path


DAMAGED = {
    "a row twice": ({"rows": np.array([0, 1, 1, 2])}, "a row has two owners"),
    "a row too far": ({"rows": np.array([0, 1, 2, 4])}, "a row is not one of 4"),
    "a negative row": ({"rows": np.array([-1, 1, 2, 3])}, "a row is not one of 4"),
    "floats": ({"rows": np.arange(4.0)}, "whole numbers of 64 bits"),
    "empty client": ({"offsets": np.array([0, 2, 2, 4])}, "a client has no rows"),
    "offsets": ({"offsets": np.array([0, 2, 5])}, "offsets do not go from 0"),
    "no clients": ({"offsets": np.array([0])}, "offsets do not go from 0"),
    "no rows": ({"rows": None}, "it has no rows"),
    "matrix": ({"rows": np.zeros((4, 1), int)}, "rows.npy is not a one-dimensional array"),
    "names": ({"names": np.array(["a"])}, "does not have one name for each client"),
    "two names": ({"names": np.array(["a", "a"])}, "two clients have the name 'a'"),
    "format": ({"table": {"format": "other"}}, "does not say that it is a fedax partition 1"),
    "count": ({"table": {"num_examples": "4"}}, "their count is missing"),
    "json": ({"made": np.frombuffer(b"{", np.uint8)}, "Expecting property name"),
    "pickle": ({"rows": np.array([{}], object)}, "rows.npy is not a one-dimensional array"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_what_is_no_partition_meets_a_sentence(case, tmp_path):
    changes, words = DAMAGED[case]
    path = written(tmp_path / "p.npz", **changes)
    with pytest.raises(DataError, match=words) as caught:
        Partition.load(path)
    assert "is not a partition, or is damaged" in str(caught.value)


def test_a_damaged_file_takes_no_memory_and_meets_a_sentence(tmp_path):
    whole = dirichlet(Y, 6, 0.5).save(tmp_path / "p.npz").read_bytes()
    for end in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.npz").write_bytes(whole[:end])
        with pytest.raises(DataError, match="is not a partition, or is damaged"):
            Partition.load(tmp_path / "cut.npz")
    bomb = tmp_path / "bomb.npz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rows.npy", bytes(10**7))
    with pytest.raises(DataError, match="is shorter than its header says"):
        Partition.load(bomb)
    with pytest.raises(DataError, match=r"Cannot read the partition .*: No such file"):
        Partition.load(tmp_path / "none.npz")


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path):
    partition = dirichlet(Y, 6, 0.5)
    with pytest.raises(DataError, match=r"must end in \.npz, but it is"):
        partition.save(tmp_path / "p.csv")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="Cannot write the partition"):
        partition.save(tmp_path / "file" / "p.npz")
    (tmp_path / "taken.npz").mkdir()
    with pytest.raises(DataError, match="Cannot write the partition"):
        partition.save(tmp_path / "taken.npz")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "taken.npz"]
