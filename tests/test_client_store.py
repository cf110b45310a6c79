"""Client states: in memory and on the disk the same, no more memory than said, checkpoints."""

import copy
import errno
import gc
import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from fedax.algorithms.scaffold import ScaffoldState
from fedax.data.task import Task
from fedax.experiment import checkpoint
from fedax.experiment.checkpoint import CheckpointError
from fedax.experiment.train import train
from fedax.rounds.client_store import ClientStore, StoreError, row_blocks
from fedax.rounds.state import TrainingState, initial_state
from test_hard_users import quadratic, ragged, scaffold

POPULATION = 342_477
ON_POSIX = pytest.mark.skipif(sys.platform == "win32", reason="the limits of files are POSIX")
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux")

# Every kind of leaf; the sizes of a row are no multiples of the alignment.
INITIAL = {
    "f": np.arange(3, dtype=np.float32),
    "b": np.full((2, 2), 1.5, ml_dtypes.bfloat16),
    "i": np.int32(7),
    "flag": np.ones(5, bool),
    "z": np.array([1j]),
    "empty": np.zeros((2, 0)),
}


def states(draw, count):
    """States of random bits: NaN, infinities and -0 too."""
    def leaf(initial):
        initial = np.asarray(initial)
        if initial.dtype == bool:
            return draw.integers(0, 2, (count, *initial.shape)).astype(bool)
        bits = draw.integers(0, 256, (count, initial.nbytes), np.uint8)
        return bits.view(initial.dtype).reshape(count, *initial.shape)

    return jax.tree.map(leaf, INITIAL)


def bits(tree):
    arrays = map(np.asarray, jax.tree.leaves(tree))
    return [(array.shape, array.dtype, array.tobytes()) for array in arrays]


def on_disk(store):
    return store._file is not None


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where temporary files go."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.quick
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("zeros", [False, True], ids=["reserved", "zeros written"])
def test_memory_and_disk_agree_to_the_bit(seed, zeros, monkeypatch):
    if zeros:  # as on macOS and Windows
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    draw = np.random.default_rng(seed)
    population = 300
    row_bytes = 16 + 8 + 8 + 8 + 16  # 12, 8, 4, 5, 16 and 0 bytes, in whole words
    sizes = {"memory": 10**9, "disk": 0, "both": 40 * row_bytes}
    stores = {name: ClientStore(INITIAL, population, size) for name, size in sizes.items()}
    expected: dict[int, list] = {}
    capacities = {name: set() for name in stores}
    for _ in range(60):
        count = int(draw.integers(1, 12))
        ids = draw.integers(0, population, count)  # a client may be in it twice: the last counts
        new = states(draw, count)
        for index, i in enumerate(ids.tolist()):
            expected[i] = [leaf[index] for leaf in jax.tree.leaves(new)]
        asked = draw.integers(0, population, 20)
        right = [
            np.stack([expected[i][j] if i in expected else initial for i in asked.tolist()])
            for j, initial in enumerate(map(np.asarray, jax.tree.leaves(INITIAL)))
        ]
        for name, store in stores.items():
            store.write(ids, new)
            assert bits(store.read(asked)) == bits(right)
            assert on_disk(store) == (len(expected) * row_bytes > sizes[name])
            capacities[name].add(len(store._rows[0]))
            assert max(capacities[name]) <= population  # no room for clients that do not exist
    assert capacities["memory"] == {population}  # no row is ever moved
    assert len(capacities["disk"]) >= 5  # it has grown several times
    assert len(capacities["both"]) >= 5
    assert min(capacities["both"]) == 40
    assert on_disk(stores["both"])
    first, *others = (store.snapshot() for store in stores.values())
    assert sorted(first["client_ids"].tolist()) == sorted(expected)
    for other in others:
        assert (first["client_ids"] == other["client_ids"]).all()
        assert bits(first["rows"]) == bits(other["rows"])
    for index, i in enumerate(first["client_ids"].tolist()):
        assert bits([rows[index] for rows in first["rows"]]) == bits(expected[i])
    everyone = np.arange(population)
    for store in stores.values():
        copy = store.copy()
        assert on_disk(copy) == on_disk(store)
        assert bits(copy.read(everyone)) == bits(store.read(everyone))
        before = bits(store.read(everyone))
        copy.write(everyone, states(draw, population))
        assert bits(store.read(everyone)) == before
        store.restore(copy.snapshot())
        assert bits(store.read(everyone)) == bits(copy.read(everyone))


@pytest.mark.quick
@pytest.mark.parametrize(("most", "is_on_disk"), [(6, False), (3, False), (2, True), (0, True)])
def test_the_system_has_less_memory_than_the_rows_may_take(most, is_on_disk, monkeypatch):
    store, zeros = ClientStore({"c": np.zeros(2)}, 10), np.zeros

    def up_to(shape, *others):
        if np.ndim(shape) and shape[-1] == 16 and shape[0] > most:
            raise MemoryError
        return zeros(shape, *others)

    monkeypatch.setattr(np, "zeros", up_to)
    for i in range(3):
        store.write(np.array([i]), {"c": np.full((1, 2), i + 1.0)})
    assert on_disk(store) == is_on_disk
    assert store.read(np.arange(4))["c"][:, 0].tolist() == [1.0, 2.0, 3.0, 0.0]


@pytest.mark.quick
@pytest.mark.parametrize("memory_bytes", [0, 500, 10**9])
def test_a_copy_or_pickle_has_the_used_rows_and_is_its_own(memory_bytes):
    """Room is for 20,000 rows of 400 bytes; with 500 bytes the second row goes to the disk."""
    store = ClientStore({"c": np.zeros(50)}, 20_000, memory_bytes)
    for i in (7, 3):
        store.write(np.array([i]), {"c": np.full((1, 50), float(i))})
    pickled = pickle.dumps(store)
    assert len(pickled) < 4 * 20_000 + 10_000  # of each client where its row is
    for same in (copy.deepcopy(store), pickle.loads(pickled), store.copy()):
        assert on_disk(same) == on_disk(store)
        assert same.read(np.array([3, 7, 5]))["c"][:, 0].tolist() == [3.0, 7.0, 0.0]
        same.write(np.array([3, 9]), {"c": np.ones((2, 50))})
        assert store.read(np.array([3, 9]))["c"][:, 0].tolist() == [3.0, 0.0]
        same.write(np.arange(30), {"c": np.ones((30, 50))})  # it grows, with the rows it has
        assert (same.read(np.arange(30))["c"] == 1).all()


@pytest.mark.parametrize("memory_bytes", [0, 10**9])
def test_a_client_named_twice_has_one_row_and_its_last_state(memory_bytes):
    store = ClientStore({"c": np.zeros(2)}, 10, memory_bytes)
    store.write(np.array([3, 5, 3]), {"c": np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])})
    assert store.read(np.array([5, 3, 3, 0]))["c"][:, 0].tolist() == [2.0, 3.0, 3.0, 0.0]
    snapshot = store.snapshot()
    assert snapshot["client_ids"].tolist() == [3, 5]
    assert snapshot["rows"][0].tolist() == [[3.0, 3.0], [2.0, 2.0]]
    store.write(np.array([5, 5]), {"c": jnp.array([[4.0, 4.0], [6.0, 6.0]])})
    assert store.read(np.array([5]))["c"].tolist() == [[6.0, 6.0]]
    assert len(store.snapshot()["client_ids"]) == 2


@pytest.mark.quick
@pytest.mark.parametrize("memory_bytes", [0, 10**9])
def test_a_snapshot_is_the_stores_own_rows(memory_bytes):
    store = ClientStore(INITIAL, 50, memory_bytes)
    store.write(np.array([4, 2]), states(np.random.default_rng(0), 2))
    for rows, own in zip(store.snapshot()["rows"], store._rows, strict=True):
        assert rows.size == 0 or np.shares_memory(rows, own)
        assert rows.flags.aligned
        assert type(rows) is np.ndarray


def test_a_store_without_states_stores_nothing():
    store = ClientStore((), POPULATION, 0)
    store.write(np.array([1, 2]), ())
    assert store.read(np.array([1, 2])) == ()
    assert store.copy().snapshot() == store.snapshot() | {"client_ids": pytest.approx([])}
    assert not on_disk(store)


@pytest.mark.parametrize("memory_bytes", [-1, 1.5, "2 GB", True])
def test_memory_is_a_whole_number_of_bytes(memory_bytes):
    with pytest.raises(ValueError, match="memory_bytes must be a whole number of at least 0, but"):
        ClientStore((), 1, memory_bytes)


def test_blocks_cut_every_row_once():
    for count, width in [(0, 3), (1, 0), (5, 10**6), (1000, 10**5), (7, 3 * 2**20)]:
        rows = [np.broadcast_to(np.zeros(()), (count, width)), np.zeros(count, np.float32)]
        blocks = list(row_blocks(rows))
        assert [i for block in blocks for i in range(block.start, block.stop)] == [*range(count)]
        row_bytes = 8 * width + 4
        for block in blocks:
            assert (block.stop - block.start) * row_bytes <= max(16 * 2**20, row_bytes)
    assert list(row_blocks([])) == []


# ------------------------------------------------------------------------------- memory


def test_a_population_of_342477_costs_no_python_object_per_client():
    everyone = np.arange(POPULATION)
    values = np.random.default_rng(0).normal(size=(POPULATION, 3)).astype(np.float32)
    gc.collect()
    tracemalloc.start()
    before = sys.getallocatedblocks()
    for memory_bytes in (0, 10**9):
        store = ClientStore({"c": np.zeros(3, np.float32)}, POPULATION, memory_bytes)
        empty = tracemalloc.get_traced_memory()[0]
        assert empty < 4 * POPULATION + 100_000
        store.write(everyone[::-1], {"c": values})
        assert sys.getallocatedblocks() - before < 1000
        assert (store.read(everyone)["c"] == values[::-1]).all()
        # Rows of 12 bytes in 16; on the disk they are no memory of the process.
        held = tracemalloc.get_traced_memory()[0] - empty
        assert held < (100_000 if memory_bytes == 0 else 16 * POPULATION + 100_000)
        del store
    tracemalloc.stop()


@pytest.mark.slow
def test_nothing_larger_than_a_block_or_the_cohort_is_held(folder):
    # 320 MB of states in rows of 2 MB, all NumPy's and Python's allocations traced.
    num_clients, size, cohort_size = 160, 500_000, 5
    store = ClientStore({"c": np.zeros(size, np.float32)}, 10**6, memory_bytes=10**6)
    state = TrainingState(ScaffoldState(jnp.ones(3), jnp.int32(4), (), jnp.ones(3)), store)
    fresh = ClientStore({"c": np.zeros(size, np.float32)}, 10**6, memory_bytes=10**6)
    states = {"c": np.ones((cohort_size, size), np.float32)}
    peaks = {}

    def peak(name, function):
        tracemalloc.start()
        result = function()
        peaks[name] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return result

    def fill():
        for start in range(0, num_clients, cohort_size):
            states["c"][:] = np.arange(start, start + cohort_size)[:, None]
            store.write(np.arange(start, start + cohort_size), states)

    peak("write", fill)
    peak("snapshot", store.snapshot)
    copy = peak("copy", store.copy)
    peak("save", lambda: checkpoint.save(folder / "checkpoints", state, "run"))
    restored = peak("restore", lambda: checkpoint.restore_latest(
        folder / "checkpoints", TrainingState(state.server_state, fresh), "run"
    ).state.client_store)
    for other in (store, copy, restored):
        values = peak("read", lambda other=other: other.read(np.array([159, 0, 77, 160])))["c"]
        assert (values == np.array([[159], [0], [77], [0]])).all()
    ids = 8 * 10**6 + 5 * 10**6  # the ids of the clients that took part, found among 10**6
    assert peaks["write"] < 2 * states["c"].nbytes
    assert peaks["snapshot"] < ids
    assert peaks["read"] < 2 * 4 * 4 * size + 10**6  # the answer, and a leaf of it once more
    assert peaks["copy"] < ids + 4 * 10**6 + 20 * 10**6  # and one block
    assert peaks["save"] < ids + 40 * 10**6
    assert peaks["restore"] < ids + 20 * 10**6


RESIDENT = """
import sys
import numpy as np
from fedax.rounds.client_store import ClientStore

def resident():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon"))) / 1000

states = {"c": np.ones((5, 500_000), np.float32)}
store = ClientStore({"c": np.zeros(500_000, np.float32)}, 342_477, int(sys.argv[1]))
before = resident()
for start in range(0, 150, 5):
    store.write(np.arange(start, start + 5), states)
store.read(np.arange(5))
print(resident() - before)
"""


@ON_LINUX
@pytest.mark.slow
def test_resident_memory_stays_small_while_states_are_large():
    megabytes = {}
    for memory_bytes in (10**6, 10**9):
        out = subprocess.run(
            [sys.executable, "-c", RESIDENT, str(memory_bytes)], capture_output=True, text=True,
            check=True,
        ).stdout
        megabytes[memory_bytes] = float(out)
    assert megabytes[10**9] > 290  # 150 rows of 2 MB
    assert megabytes[10**6] < 40  # what is read: 10 MB, and once more


@pytest.mark.parametrize("memory_bytes", [0, 10**9])
@pytest.mark.alone
def test_a_cohort_costs_the_same_in_a_large_population_and_a_full_store(memory_bytes):
    initial, cohort = {"c": np.zeros(1000)}, {"c": np.ones((50, 1000))}
    stores = {
        "small": ClientStore(initial, 1000, memory_bytes),
        "large": ClientStore(initial, POPULATION, memory_bytes),
        "full": ClientStore(initial, POPULATION, memory_bytes),
    }
    stores["full"].write(np.arange(20_000), {"c": np.ones((20_000, 1000))})
    draw = np.random.default_rng(0)
    seconds = dict.fromkeys(stores, np.inf)
    for _ in range(30):
        for name, store in stores.items():
            ids = draw.choice(1000 if name == "small" else 20_000, 50, replace=False)
            store.write(ids, cohort)  # pages are there, and the cohort is no longer new
            start = time.process_time()
            store.write(ids, cohort)
            store.read(ids)
            seconds[name] = min(seconds[name], time.process_time() - start)
    assert seconds["large"] < 3 * seconds["small"]
    assert seconds["full"] < 3 * seconds["small"]


def test_reading_broadcasts_the_initial_state_to_the_cohort_only():
    store = ClientStore({"c": np.zeros(1_000_000, np.float32)}, POPULATION)
    tracemalloc.start()
    assert store.read(np.array([1, 2, 3]))["c"].shape == (3, 1_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * 4_000_000 + 100_000


# ------------------------------------------------------------------------------- the disk


@pytest.mark.slow
@ON_LINUX
def test_the_file_has_its_space_and_goes_with_the_store(folder, monkeypatch):
    def files():
        links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return [link for link in links if str(link.readlink()).startswith(str(folder))]

    for zeros in (False, True):
        if zeros:
            monkeypatch.delattr(os, "posix_fallocate")
        initial = [np.zeros(1000, np.float32)] * 500  # as many leaves as a large model has
        store = ClientStore(initial, 100, memory_bytes=10**6)
        store.write(np.arange(3), [np.ones((3, 1000), np.float32)] * 500)
        assert len(files()) == 2  # the file, and its mapping
        status = os.fstat(store._file.fileno())
        assert status.st_size >= 3 * 4000 * 500
        assert status.st_blocks * 512 >= status.st_size  # no holes
        assert list(folder.iterdir()) == []  # so nothing stays, not even after SIGKILL
        view = store.snapshot()["rows"][499]
        del store
        gc.collect()
        assert len(files()) == 1
        assert (view == 1).all()  # a snapshot outlives its store
        del view
        gc.collect()
        assert files() == []


KILLED = """
import os, signal, sys
import numpy as np
from fedax.rounds.client_store import ClientStore
store = ClientStore({"c": np.zeros(1000)}, 100, memory_bytes=0)
store.write(np.arange(50), {"c": np.ones((50, 1000))})
if sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@ON_POSIX
@pytest.mark.parametrize("how", ["kill", "end"])
def test_no_file_is_left_behind(tmp_path, how):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", KILLED, how], check=False,
        env=os.environ | {"TMPDIR": str(tmp_path)}, capture_output=True, text=True,
    )
    assert done.returncode == (-9 if how == "kill" else 0), done.stderr
    assert "ResourceWarning" not in done.stderr
    assert list(tmp_path.iterdir()) == []


FULL = (
    r"The clients' states need a file of {size} bytes in .*, but writing it failed: {what}\. "
    "Free some space there, or set the environment variable TMPDIR to a folder on a larger disk"
)


@pytest.mark.quick
@ON_POSIX
@pytest.mark.parametrize("when", ["first", "growing"])
def test_a_full_disk_is_a_sentence_and_changes_nothing(folder, monkeypatch, when):
    memory_bytes = 3 * 16 if when == "first" else 0
    store = ClientStore({"c": np.zeros(2)}, 100, memory_bytes)
    store.write(np.arange(3), {"c": np.ones((3, 2))})
    other = ClientStore({"c": np.zeros(2)}, 100, 10**6)
    other.write(np.arange(40, 60), {"c": np.full((20, 2), 5.0)})
    assert on_disk(store) == (when == "growing")

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full, raising=False)
        for write in (lambda: store.write(np.arange(2, 6), {"c": np.full((4, 2), 9.0)}),
                      lambda: store.restore(other.snapshot())):
            with pytest.raises(StoreError, match=FULL.format(size=".*", what="No space .* device")):
                write()
            assert store.read(np.arange(8))["c"][:, 0].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
            assert store.snapshot()["client_ids"].tolist() == [0, 1, 2]
        store.write(np.array([1]), {"c": np.full((1, 2), 2.0)})  # needs no more room
    store.write(np.arange(2, 6), {"c": np.full((4, 2), 9.0)})
    assert store.read(np.arange(8))["c"][:, 0].tolist() == [1, 2, 9, 9, 9, 9, 0, 0]


LIMITED = """
import os, resource, sys
import numpy as np
from fedax.rounds.client_store import ClientStore, StoreError
if sys.argv[1] == "zeros":
    del os.posix_fallocate
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
store = ClientStore({"c": np.zeros(1000)}, 100, memory_bytes=0)
try:
    for i in range(100):
        store.write(np.array([i]), {"c": np.full((1, 1000), i)})
except StoreError as error:
    print(i, (store.read(np.arange(i))["c"].sum(1) / 1000).tolist() == list(range(i)), error)
"""


@pytest.mark.slow
@ON_POSIX
@pytest.mark.parametrize("how", ["reserved", "zeros"])
def test_a_file_that_the_kernel_refuses_is_a_sentence(how):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, how], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    # 12 rows of 8,000 bytes fit into 100,000; room grows by an eighth: 8, 9, ..., 12, 13.
    pattern = "12 True " + FULL.format(size="104,000", what="File too large")
    assert re.match(pattern, done.stdout), done.stdout


# ------------------------------------------------------------------------------- checkpoints


def server():
    return ScaffoldState(
        {"w": jnp.arange(3.0)}, jnp.int32(7), (), {"w": jnp.ones(3, jnp.bfloat16)}
    )


@pytest.mark.parametrize("memory_bytes", [0, 500, 10**9])
@pytest.mark.parametrize("num_writes", [0, 9])
def test_a_checkpoint_gives_the_store_back_to_the_bit(tmp_path, memory_bytes, num_writes):
    draw = np.random.default_rng(1)
    store = ClientStore(INITIAL, 1000, memory_bytes)
    for _ in range(num_writes):
        store.write(draw.choice(1000, 20, replace=False), states(draw, 20))
    folder = tmp_path / "checkpoints"
    checkpoint.save(folder, TrainingState(server(), store), "run")
    path = folder / "round-00000007"
    rows = store.snapshot()["rows"]
    for index, own in enumerate(rows):  # plain files: a row of bytes for each client
        saved = np.load(path / f"client_row_{index:05d}.npy")
        assert saved.dtype == np.uint8
        assert saved.tobytes() == own.tobytes()
        assert len(saved) == len(own)
    with np.load(path / "state.npz") as arrays:
        assert not [name for name in arrays.files if name.startswith("client_row_")]
    digests = json.loads((path / "manifest.json").read_text())["files"]
    assert digests == {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in path.iterdir() if file.name != "manifest.json"
    }
    for other_bytes in (0, 10**9):  # where it is kept is no part of the state
        fresh = TrainingState(server(), ClientStore(INITIAL, 1000, other_bytes))
        restored, refused, _ = checkpoint.restore_latest(folder, fresh, "run")
        assert refused == []
        assert bits(restored.server_state) == bits(server())
        everyone = np.arange(1000)
        assert bits(restored.client_store.read(everyone)) == bits(store.read(everyone))
        assert on_disk(restored.client_store) == (other_bytes == 0 and num_writes > 0)
        again = tmp_path / f"again-{other_bytes}"
        checkpoint.save(again, restored, "run")
        assert (again / path.name / "manifest.json").read_bytes() == \
            (path / "manifest.json").read_bytes()


@pytest.mark.parametrize("how", ["truncated", "flipped", "missing", "of format 1", "of float64"])
def test_damaged_or_foreign_rows_are_refused_and_the_checkpoint_before_used(tmp_path, how):
    def store():
        return ClientStore({"c": np.zeros(4, np.float32)}, 1000, 0)

    first = store()
    for round_index in (1, 2):
        first.write(np.array([round_index]), {"c": np.full((1, 4), round_index, np.float32)})
        state = TrainingState(server()._replace(round_index=jnp.int32(round_index)), first)
        checkpoint.save(tmp_path, state, "run")
    newest = tmp_path / "round-00000002"
    rows, manifest = newest / "client_row_00000.npy", newest / "manifest.json"
    values = json.loads(manifest.read_text())
    del values["digest"]
    content = rows.read_bytes()
    if how == "truncated":
        rows.write_bytes(content[:-16])
    elif how == "flipped":
        rows.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif how == "missing":
        rows.unlink()
    elif how == "of format 1":
        manifest.write_text(json.dumps({"format": 1, "fedax": "0.1.0"}))
    else:
        values["arrays"]["client_row_00000"] = [[2, 2], "float64"]
        manifest.write_text(json.dumps(values))
    sentence = {
        "truncated": "is damaged: its file client_row_00000.npy is truncated or changed.",
        "flipped": "is damaged: its file client_row_00000.npy is truncated or changed.",
        "missing": "is damaged: its file client_row_00000.npy is missing.",
        "of format 1": "was written by fedax 0.1.0 in format 1, but fedax ",
        "of float64": "is of another model or method: its array client_row_00000 is "
                      "float64[2, 2], but float32[0, 4] in this run.",
    }[how]
    fresh = TrainingState(server(), store())
    state, refused, _ = checkpoint.restore_latest(tmp_path, fresh, "run")
    assert len(refused) == 1
    assert f"Checkpoint {newest} {sentence}" in refused[0]
    assert int(state.server_state.round_index) == 1
    assert state.client_store.read(np.array([1, 2]))["c"][:, 0].tolist() == [1.0, 0.0]
    with pytest.raises(CheckpointError, match="belongs to another run"):
        checkpoint.restore_latest(tmp_path, state, "another run")


@pytest.mark.parametrize("memory_bytes", [0, 100, 10**9])
def test_training_on_the_disk_stopped_and_resumed_equals_uninterrupted(tmp_path, memory_bytes):
    model = quadratic(3)
    task = Task(model, ragged(np.random.default_rng(0).integers(1, 9, 40).tolist()))
    algorithm = scaffold(model, 0.1, 3, 2)

    def start(memory_bytes):
        state = initial_state(task, algorithm, seed=5)
        store = ClientStore(algorithm.init_client(state.server_state.params), 40, memory_bytes)
        return state._replace(client_store=store)

    def run(state, num_rounds):
        return train(
            task, algorithm, num_rounds=num_rounds, cohort_size=4, seed=5, evaluate_every=0,
            state=state,
        ).state

    def everything(state):
        return bits((state.server_state, state.client_store.read(np.arange(40))))

    expected = run(None, 12)
    assert everything(run(start(memory_bytes), 12)) == everything(expected)
    half = run(start(memory_bytes), 5)
    assert on_disk(half.client_store) == (memory_bytes < 10**9)
    checkpoint.save(tmp_path, half, "run")
    restored = checkpoint.restore_latest(tmp_path, start(memory_bytes), "run").state
    assert everything(restored) == everything(half)
    ended = run(restored, 12)
    assert everything(ended) == everything(expected)
    assert everything(ended) != everything(half)
    assert on_disk(ended.client_store) == (memory_bytes < 10**9)
