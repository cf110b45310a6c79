"""Data as users have it: arrays, frames, Hugging Face, sparse, files; splits of each client."""

import tracemalloc
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import polars
import pytest
import scipy.sparse

import fedax
from fedax import FederatedDataset
from fedax.data import CohortReader
from fedax.data.rows import SelectedRows, SparseRows
from fedax.rounds.blocks import MOST_BYTES

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what its own imports say is not ours
    import datasets

IDS = ["eve", "ada", "eve", "bob", "ada"]
X = np.arange(10.0).reshape(5, 2)
Y = np.array([0, 1, 2, 3, 4])


def check(data, names=("eve", "ada", "bob")):
    """Clients in the order of their first row, rows in the order in which they stood."""
    assert [data.name(i) for i in range(data.num_clients)] == list(names)
    rows = [[0, 2], [1, 4], [3]]
    for index, own in enumerate(rows):
        client = data.client_at(index)
        assert client["y"].tolist() == Y[own].tolist()
        assert np.asarray(client["x"]).tolist() == X[own].tolist()


@pytest.mark.quick
@pytest.mark.parametrize("ids", [
    IDS, tuple(IDS), np.array(IDS), np.array(IDS, object), pandas.Series(IDS),
    pandas.Series(IDS, dtype="category"), polars.Series(IDS),
    np.array(IDS, np.dtypes.StringDType()),
], ids=lambda ids: type(ids).__name__)
def test_rows_in_any_order_are_grouped_by_client(ids):
    check(FederatedDataset.from_arrays({"x": X, "y": Y}, ids))


@pytest.mark.parametrize("dtype", [int, np.int32, np.uint64, object])
def test_clients_may_be_numbers(dtype):
    numbers = np.array([30, 7, 30, 2, 7]).astype(dtype)
    data = FederatedDataset.from_arrays({"x": X, "y": Y.tolist()}, numbers)
    check(data, names=("30", "7", "2"))
    assert data.names.dtype.kind in "iu"
    assert (data.index(2), data.index("2"), data.index(np.int64(30))) == (2, 2, 0)
    assert data.client("2")["y"].tolist() == [3]  # by name
    assert data.client(2)["y"].tolist() == [3]
    assert data.client(np.int64(2))["y"].tolist() == [3]
    assert data.client_at(2)["y"].tolist() == [3]
    assert data.client(30)["y"].tolist() == [0, 2]
    with pytest.raises(KeyError, match=r"no client 0\. By index, it is client_at\(0\)"):
        data.client(0)
    with pytest.raises(KeyError, match="There is no client with index 30"):
        data.client_at(30)
    with pytest.raises(KeyError, match="There is no client 3"):
        data.index(3)
    own = FederatedDataset.from_clients({30: {"x": X[:2]}, 7: {"x": X[2:]}})
    assert own.names.tolist() == [30, 7]
    assert own.client("7")["x"].tolist() == X[2:].tolist()


def test_rows_that_are_grouped_are_not_copied():
    ids = ["b", "b", "a", "c", "c"]
    data = FederatedDataset.from_arrays({"x": X, "y": Y}, ids)
    assert data.arrays["x"] is X
    assert data.names.tolist() == ["b", "a", "c"]
    assert data.offsets.tolist() == [0, 2, 3, 5]


def test_grouping_is_that_of_a_table_client_by_client():
    rng = np.random.default_rng(0)
    ids = np.sort(rng.integers(0, 50, 400))[rng.permutation(400) // 3]  # some runs, some not
    data = FederatedDataset.from_arrays({"row": np.arange(400)}, ids)
    assert data.names.tolist() == list(dict.fromkeys(ids.tolist()))
    for index, name in enumerate(data.names):
        assert data.client_at(index)["row"].tolist() == np.flatnonzero(ids == name).tolist()


BAD_IDS = {
    "none": (["a", None, "b", "c", "d"], "Row 1 has no client"),
    "nan in a list of text": (["a", "b", float("nan"), "c", "d"], "Row 2 has no client"),
    "nan": (np.array([1, 2, np.nan, 3, 4]), "Row 2 has no client"),
    "pandas": (pandas.Series([1, 2, 3, None, 4], dtype="Int64"), "Row 3 has no client"),
    "polars": (polars.Series(["a", "b", "c", "d", None]), "Row 4 has no client"),
    "floats": (np.arange(5.0), r"are float64; convert them with client_ids\.astype\(int\)"),
    "bytes": (np.array([b"a"] * 5), r"are \|S1; decode"),
    "truth values": (np.array([True] * 5), "text or whole numbers, but are bool"),
    "mixed": (["a", "b", 3, "c", "d"], r"the one of row 2 is 3, of type int\."),
    "tuples": ([(1, 2)] * 5, r"one id for each row, but have the shape \[5, 2\]"),
    "dates": (np.array([pandas.Timestamp(0)] * 5, object), "but are Timestamp|is Timestamp"),
    "too few": (["a", "b"], r"array 'x' has 5 rows, but there are 2 client ids"),
    "empty": ([], "client_ids is empty"),
}


@pytest.mark.parametrize("case", BAD_IDS)
def test_wrong_client_ids_are_sentences(case):
    ids, sentence = BAD_IDS[case]
    with pytest.raises(ValueError, match=sentence):
        FederatedDataset.from_arrays({"x": X}, ids)


def test_wrong_arrays_are_sentences():
    holes = X.copy()
    holes[3, 1] = np.nan
    for array in (holes, scipy.sparse.csr_array(holes)):
        with pytest.raises(ValueError, match=r"'x' holds .* first in row 3, of client 'bob'\."):
            FederatedDataset.from_arrays({"x": array}, IDS)
    with pytest.raises(TypeError, match="array 'x' needs a first axis that counts the examples"):
        FederatedDataset.from_arrays({"x": 3.0}, IDS)
    with pytest.raises(TypeError, match="arrays must be a dictionary"):
        FederatedDataset.from_arrays(X, IDS)
    with pytest.raises(ValueError, match="at least one array"):
        FederatedDataset.from_arrays({}, IDS)
    with pytest.raises(ValueError, match=r"needs two axes \(examples, columns\), but has 1"):
        FederatedDataset({"x": scipy.sparse.coo_array(np.ones(5))}, np.array([0, 5]))


# Frames.


def frame(kind, **changes):
    columns = {"a": X[:, 0], "b": X[:, 1], "y": Y, "user": IDS} | changes
    return {"pandas": pandas, "polars": polars}[kind].DataFrame(columns)


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_a_frame_becomes_clients(kind):
    table = frame(kind)
    check(FederatedDataset.from_frame(table, "user", {"x": ["a", "b"], "y": "y"}))
    every = FederatedDataset.from_frame(table, "user")
    assert {name: str(array.dtype) for name, array in every.arrays.items()} == {
        "a": "float64", "b": "float64", "y": "int64"
    }
    assert list(FederatedDataset.from_frame(table, "user", ["b"]).arrays) == ["b"]


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_truth_values_categories_and_arrays_in_a_frame(kind):
    table = frame(kind, ok=[True, False, True, True, False], x=list(X))
    category = (
        pandas.Series(list("zazbz"), dtype=pandas.CategoricalDtype(["z", "a", "b"]))
        if kind == "pandas" else polars.Series(list("zazbz"), dtype=polars.Enum(["z", "a", "b"]))
    )
    table = table.assign(c=category) if kind == "pandas" else table.with_columns(c=category)
    data = FederatedDataset.from_frame(table, "user", ["ok", "x", "c", "y"])
    check(data)
    assert data.client("eve")["ok"].tolist() == [True, True]
    assert data.arrays["c"].dtype == np.int32
    assert data.client("ada")["c"].tolist() == [1, 0]


def test_nullable_columns_of_pandas_and_fixed_ones_of_polars():
    table = pandas.DataFrame({"user": IDS}).assign(y=pandas.array(Y, dtype="Int64"), x=list(X))
    check(FederatedDataset.from_frame(table, "user"))
    fixed = polars.DataFrame({"user": IDS, "y": Y}).with_columns(
        x=polars.Series(X.tolist(), dtype=polars.Array(polars.Float64, 2))
    )
    check(FederatedDataset.from_frame(fixed, "user"))


@pytest.mark.parametrize("kind", ["pandas", "polars"])
@pytest.mark.parametrize(("changes", "options", "sentence"), [
    ({"city": list("abcde")}, {},
     r"column 'city' holds text.*categories=\{'city': \[\.\.\.\]\}.*one-hot.*columns=\["),
    ({"a": [1.0, 2.0, None, 3.0, 4.0]}, {}, "column 'a' has a missing value .* in row 2"),
    ({"a": [1.0, float("nan"), 2.0, 3.0, 4.0]}, {}, "column 'a' has a missing value .* row 1"),
    ({"a": [1.0, 2.0, 3.0, float("inf"), 4.0]}, {}, "'a' holds infinity, first in row 3"),
    ({"user": ["a", "b", "c", "d", None]}, {}, "'user' has a missing value .* in row 4"),
    ({"a": [[1], [2, 3], [4], [5], [6]]}, {},
     r"'a' must have the same shape, .* \[1\] and row 1 .*\[2\]"),
    ({"a": np.zeros(5, "M8[ms]")}, {}, r"'a' holds datetime64.* Convert it to numbers"),
    ({}, {"client_column": "usr"}, r"Unknown client column 'usr'\. Did you mean 'user'"),
    ({}, {"columns": ["a", "bb"]}, r"Unknown column 'bb'\. Did you mean 'b'\?"),
    ({}, {"columns": {"x": ["a", "c"]}}, "Unknown column 'c'"),
    ({}, {"columns": []}, "The client column is the only column"),
    ({"l": list(X)}, {"columns": {"x": ["a", "l"]}}, r"the column 'l' has shape \[2\] in each row"),
])
def test_frames_that_do_not_fit_are_sentences(kind, changes, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        FederatedDataset.from_frame(frame(kind, **changes), **{"client_column": "user"} | options)


def test_what_is_no_frame_is_a_sentence():
    with pytest.raises(ValueError, match=r"not a polars\.LazyFrame; call its collect\(\) first"):
        FederatedDataset.from_frame(frame("polars").lazy(), "user")
    with pytest.raises(ValueError, match=r"of pandas or polars, not a builtins\.dict"):
        FederatedDataset.from_frame({"user": IDS}, "user")
    with pytest.raises(ValueError, match="at least one row, but none was given"):
        FederatedDataset.from_frame(frame("pandas").iloc[:0], "user")
    twice = pandas.DataFrame(np.ones((2, 3)), columns=["user", "a", "a"])
    with pytest.raises(ValueError, match="Two columns have the name 'a'"):
        FederatedDataset.from_frame(twice, "user")
    with pytest.raises(ValueError, match="names must be text, but a column has the name 0"):
        FederatedDataset.from_frame(pandas.DataFrame({"user": [1], 0: [2]}), "user")


# Hugging Face.


def hugging(features=None, **columns):
    return datasets.Dataset.from_dict(columns, features=features)


def test_a_hugging_face_dataset_becomes_clients():
    rows = hugging(user=IDS, x=X, y=Y)
    check(FederatedDataset.from_huggingface(rows, "user"))
    check(FederatedDataset.from_huggingface(rows, "user", {"x": "x", "y": "y"}))
    numbers = hugging(user=[30, 7, 30, 2, 7], x=X, y=Y)
    check(FederatedDataset.from_huggingface(numbers, "user"), names=("30", "7", "2"))
    # Rows that were chosen or shuffled, in several pieces.
    parts = datasets.concatenate_datasets([rows.select([4, 0]), rows.select([1, 2, 3])])
    back = parts.select([1, 2, 3, 4, 0])
    check(FederatedDataset.from_huggingface(back, "user"))


def test_labels_matrices_and_images_of_hugging_face():
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    features = datasets.Features({
        "user": datasets.Value("large_string"), "image": datasets.Image(),
        "label": datasets.ClassLabel(names=["no", "yes"]), "m": datasets.Array2D((2, 2), "int16"),
        "deep": datasets.Sequence(datasets.Sequence(datasets.Value("float32"), 2), 1),
        "ok": datasets.Value("bool"),
    })
    matrices = np.arange(20, dtype=np.int16).reshape(5, 2, 2)
    rows = hugging(
        features, user=IDS, image=list(images), label=[0, 1, 1, 0, 0], m=list(matrices),
        deep=matrices[:, :1].astype(float).tolist(), ok=[True, False, True, False, True],
    )
    data = FederatedDataset.from_huggingface(rows, "user")
    ada = data.client("ada")
    assert (ada["image"] == images[[1, 4]]).all()
    assert data.arrays["image"].dtype == np.uint8
    assert (ada["m"] == matrices[[1, 4]]).all()
    assert data.arrays["m"].dtype == np.int16
    assert (ada["deep"] == matrices[[1, 4], :1]).all()
    assert ada["label"].tolist() == [1, 0]
    assert ada["ok"].tolist() == [False, True]


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"x": ["a", "b", "c", "d", "e"]}, r"'x' holds text.*class_encode_column\('x'\)"),
    ({"x": [1, 2, None, 3, 4]}, "'x' has a missing value .* row 2"),
    ({"x": [[1, 2], [3, 4], [5, None], [6, 7], [8, 9]]}, "'x' has a missing value .* row 2"),
    ({"x": [[1], [2], [3], [4, 5], [6]]},
     r"'x' must have the same shape, .* \[1\] and row 3 has \[2\]"),
    ({"x": [[[1], [2]], [[3], [4]], [[5], [6, 7]], [[8], [9]], [[0], [0]]]},
     r"'x' .*same shape.* row 2 has \[2\]"),
    ({"user": ["a", "b", None, "c", "d"]}, "'user' has a missing value .* row 2"),
])
def test_hugging_face_rows_that_do_not_fit_are_sentences(changes, sentence):
    rows = hugging(**{"user": IDS, "x": Y.tolist()} | changes)
    with pytest.raises(ValueError, match=sentence):
        FederatedDataset.from_huggingface(rows, "user")


def test_what_is_no_dataset_of_hugging_face_is_a_sentence():
    rows = hugging(user=IDS, x=Y)
    with pytest.raises(ValueError, match=r"pass one of dataset\['train'\], dataset\['test'\]\."):
        FederatedDataset.from_huggingface(datasets.DatasetDict(train=rows, test=rows), "user")
    with pytest.raises(ValueError, match=r"not a streamed one.*not a datasets\.IterableDataset"):
        FederatedDataset.from_huggingface(rows.to_iterable_dataset(), "user")
    with pytest.raises(ValueError, match=r"'train'.* not a pandas\.DataFrame"):
        FederatedDataset.from_huggingface(frame("pandas"), "user")
    images = hugging(
        datasets.Features({"user": datasets.Value("string"), "x": datasets.Image()}),
        user=["a", "b"], x=[np.zeros((2, 2), np.uint8), np.zeros((3, 2), np.uint8)],
    )
    with pytest.raises(ValueError, match=r"\[2, 2\] and row 1 has \[3, 2\].*images: resize"):
        FederatedDataset.from_huggingface(images, "user")


# Sparse matrices and files.


def linear_task(x, y, ids, columns):
    model = fedax.classification(
        lambda key: {"w": jnp.zeros((columns, 2))}, lambda params, x: x @ params["w"]
    )
    data = FederatedDataset.from_arrays({"x": x, "y": y}, ids)
    train, test = data.split(0.3)
    return fedax.Task(model, train, test)


def some_rows(rows=60, columns=20, clients=5):
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((rows, columns)) < 0.2, rng.normal(size=(rows, columns)), 0.0)
    return dense, (dense.sum(1) > 0).astype(np.int32), rng.integers(0, clients, rows)


@pytest.mark.slow
@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("kind", ["coo_matrix", "file"])
def test_a_run_is_that_of_the_dense_array_to_the_bit(kind, resident, monkeypatch, tmp_path):
    dense, y, ids = some_rows()
    if kind == "file":
        np.save(tmp_path / "x.npy", dense)
        other = np.load(tmp_path / "x.npy", mmap_mode="r")
    else:
        other = getattr(scipy.sparse, kind)(dense)
    if not resident:
        for name in ("RESIDENT_BYTES", "SPARSE_RESIDENT_BYTES"):
            monkeypatch.setattr(f"fedax.data.cohort_data.{name}", 0)
        monkeypatch.setattr(CohortReader.__init__, "__defaults__", (0, None))
    found = []
    for x in (dense, other):
        task = linear_task(x, y, ids, dense.shape[1])
        found.append(fedax.train(
            task, fedax.fedavg(task.model, 0.5, batch_size=4), num_rounds=3, cohort_size=3
        ))
    lazy = SelectedRows if kind == "file" else SparseRows
    assert isinstance(task.train.arrays["x"], lazy)
    assert CohortReader(task.train).is_resident == resident
    a, b = (result.params["w"].tolist() for result in found)
    assert a == b
    assert found[0].history["test_loss"][-1] == found[1].history["test_loss"][-1]


def test_sparse_rows_read_like_an_array():
    dense, _, _ = some_rows()
    rows = SparseRows(scipy.sparse.csr_array(dense))
    assert (rows.shape, rows.dtype, rows.ndim, len(rows)) == (dense.shape, dense.dtype, 2, 60)
    assert rows.nbytes == dense.nbytes
    for which in (slice(3, 9), np.array([5, 5, 0]), 7, slice(None), np.arange(60) % 2 == 0):
        assert (rows[which] == dense[which]).all()
    assert (np.asarray(rows) == dense).all()
    assert np.asarray(rows, np.float32).dtype == np.float32
    assert repr(rows) == "SparseRows(float64[60, 20])"
    with pytest.raises(ValueError, match="can become an array only by copying"):
        np.asarray(rows, copy=False)
    clients = FederatedDataset.from_clients(
        {"a": {"x": scipy.sparse.csr_array(dense[:9])}, "b": {"x": dense[9:]}}
    )
    assert isinstance(clients.arrays["x"], SparseRows)
    assert (clients.client("b")["x"] == dense[9:]).all()


def peak_of(function):
    """Bytes that a call held at most, pages of files not counted: they are the system's."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sparse", "file"])
def test_memory_does_not_grow_with_the_dense_size(kind, tmp_path):
    """3.2 GB dense: what is held at most is a cohort's rows, or an evaluation's block."""
    rows, columns, clients = 20_000, 20_000, 2_000
    ids = np.random.default_rng(0).permutation(rows) % clients
    if kind == "sparse":
        x = scipy.sparse.csr_array(
            (np.ones(rows), np.arange(rows) % columns, np.arange(rows + 1)), (rows, columns)
        )
    else:  # a file of holes, which takes no disk
        x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", float, (rows, columns))
    y = np.zeros(rows, np.int32)
    held = {}

    def make():
        held["task"] = linear_task(x, y, ids, columns)

    def read():
        held["cohort"] = CohortReader(held["task"].train, 2**30)(np.arange(20))

    def evaluate():
        few = held["task"].test.take(np.arange(20))
        held["value"] = fedax.evaluate(held["task"].model, {"w": jnp.zeros((columns, 2))}, few, 8)

    assert peak_of(make) < 5e6
    assert peak_of(read) < 1.1 * 1024 * columns * 8  # the shortest buffer has 1024 rows
    assert held["cohort"].arrays["x"].shape == (1024, columns)
    assert peak_of(evaluate) < 3 * MOST_BYTES  # the block, the one before, and what is read of it
    assert held["value"]["loss"] == pytest.approx(np.log(2))


def test_a_mapped_file_is_read_in_place(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(4_000_000.0).reshape(-1, 4))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    ids = np.arange(len(x)) // 1000
    data = FederatedDataset.from_arrays({"x": x}, ids)
    assert data.arrays["x"] is x
    assert peak_of(lambda: CohortReader(data)) < 1e6  # the device reads the file's pages too
    few = data.take([3, 1])
    assert few.client_at(0)["x"][0, 0] == 12_000
    view = FederatedDataset.from_arrays({"x": x[::2]}, ids[::2][::-1])
    assert view.client_at(0)["x"][0, 0] == 0
    shuffled = FederatedDataset.from_arrays({"x": x[:10]}, [1, 2] * 5)
    assert isinstance(shuffled.arrays["x"], SelectedRows)
    assert shuffled.client_at(1)["x"][:, 0].tolist() == [4, 12, 20, 28, 36]


# Splits and choices.


def sizes_data(sizes=(1, 2, 3, 10, 25), names=None):
    offsets = np.append(0, np.cumsum(sizes))
    return FederatedDataset({"x": np.arange(offsets[-1])}, offsets, names)


@pytest.mark.quick
@pytest.mark.parametrize("fraction", [0.01, 0.2, 0.5, 0.99])
def test_a_split_parts_each_client_s_examples(fraction):
    data = sizes_data()
    train, test = data.split(fraction, seed=3)
    assert train.names.tolist() == [0, 1, 2, 3, 4]
    assert test.names.tolist() == [1, 2, 3, 4]
    for name, size in enumerate(data.client_sizes):
        own = data.client(name)["x"]
        kept = train.client(str(name))["x"]
        held = test.client(str(name))["x"] if size > 1 else np.zeros(0, int)
        expected = min(max(round(fraction * size), 1), size - 1)
        assert len(held) == expected
        assert sorted([*kept, *held]) == own.tolist()
        assert (np.diff(kept) > 0).all()  # the order stays
        assert (np.diff(held) > 0).all()


def test_a_split_depends_on_seed_and_name_alone():
    names = np.array(["a", "b", "c", "d", "e"])
    data = sizes_data(names=names)
    train, test = data.split(0.4, seed=1)
    again, other = data.split(0.4, seed=1)[1], data.split(0.4, seed=2)[1]
    assert test.arrays["x"].tolist() == again.arrays["x"].tolist()
    assert test.arrays["x"].tolist() != other.arrays["x"].tolist()
    alone = data.select(["e", "c"]).split(0.4, seed=1)[1]
    for name in ("e", "c"):
        assert alone.client(name)["x"].tolist() == test.client(name)["x"].tolist()
    # The same sizes: clients draw apart from each other, each example as often as another.
    same = FederatedDataset({"x": np.arange(40_000) % 10}, np.arange(0, 40_001, 10))
    counts = np.bincount(same.split(0.3)[1].arrays["x"], minlength=10)
    assert counts.sum() == 12_000
    assert abs(counts - 1200).max() < 5 * np.sqrt(4000 * 0.3 * 0.7)
    model = fedax.regression(lambda key: jnp.zeros(1), lambda params, x: x * params[0])
    assert fedax.Task(model, train, test).test is test


def test_a_selection_keeps_names_and_takes_what_names_them():
    data = sizes_data(names=np.array(["a", "b", "c", "d", "e"]))
    for few in (data.take([3, 1]), data.select(["d", "b"]), data.take(np.array([3, 1]))):
        assert few.names.tolist() == ["d", "b"]
        assert few.arrays["x"].tolist() == [*range(6, 16), 1, 2]
    large = data.select(data.client_sizes > 2)
    assert large.names.tolist() == ["c", "d", "e"]
    with pytest.raises(KeyError, match="no client 'f'"):
        data.select(["f"])
    with pytest.raises(ValueError, match="one value for each of the 5 clients, but the array"):
        data.select(np.array([True]))
    with pytest.raises(ValueError, match="at least one client, but none was given"):
        data.select([])
    with pytest.raises(ValueError, match="Two clients have the name 'a'"):
        data.take([0, 0])
    with pytest.raises(KeyError, match=r"no client 3\. By index, .*client_at\(3\); take\(\[3\]\)"):
        data.select([3])
    with pytest.raises(KeyError, match="There is no client with index -1"):
        data.take([-1])
    for wrong in (["a"], [1.0], 2, [[1]], [True]):
        with pytest.raises(ValueError, match=r"list of whole numbers.*use client"):
            data.take(wrong)
    with pytest.raises(ValueError, match=r"list of names, but got an array of shape \[1, 1\]"):
        data.select([["a"]])
    assert data.select("c").names.tolist() == ["c"]


@pytest.mark.parametrize("names", [
    np.array([2, 0, 1]), np.array([2, 0, 1], np.uint8), np.array(["2", "0", "1"]),
    np.array([-1, 5, 0]), np.array(["ada", "0", "-1"]), None,
])
def test_selecting_the_names_of_a_data_set_gives_it_back(names):
    """Whole-number names were taken as indices: select(data.names) was another order."""
    data = FederatedDataset({"x": np.array([2, 2, 0, 1, 1])}, np.array([0, 2, 3, 5]), names)
    own = data.client_names
    for given in (own, own.tolist(), own.astype(str), own.astype(object), pandas.Series(own)):
        again = data.select(given)
        assert again.client_names.tolist() == own.tolist()
        assert again.arrays["x"].tolist() == data.arrays["x"].tolist()
    for place, name in enumerate(own):
        assert data.client(name)["x"].tolist() == data.client_at(place)["x"].tolist()
        assert data.select([name]).arrays["x"].tolist() == data.client(str(name))["x"].tolist()
        assert data.select(own[own == name]).names.tolist() == [name]
        assert data.take([place]).names.tolist() == [name]


def test_names_of_a_split_and_of_metrics_select_the_same_clients():
    train, test = FederatedDataset.from_clients(
        [{"x": np.full(n, 10.0 * i)} for i, n in enumerate([4, 1, 4, 4])]
    ).split(0.5)
    assert test.select(test.names[1:]).arrays["x"].tolist() == [20.0, 20.0, 30.0, 30.0]
    assert train.select(test.names).names.tolist() == [0, 2, 3]
    model = fedax.Model(
        lambda key: jnp.zeros(1), None, lambda p, b: b["x"],
        {"v": lambda o, b: (b["x"], jnp.ones(len(o)))},
    )
    data = FederatedDataset.from_arrays({"x": np.array([20.0, 20, 0, 10, 10])}, [2, 2, 0, 1, 1])
    measured = fedax.evaluate_clients(model, jnp.zeros(1), data)
    assert data.select(measured.names[measured["v"] > 15]).arrays["x"].tolist() == [20.0, 20.0]


def test_splits_that_cannot_be_are_sentences():
    with pytest.raises(ValueError, match="No client has two or more examples"):
        sizes_data((1, 1)).split()
    with pytest.raises(ValueError, match=r"fraction must be .* above 0 and below 1, but is 1"):
        sizes_data().split(1)
    with pytest.raises(ValueError, match="seed must be a whole number of at least 0, but is -1"):
        sizes_data().split(seed=-1)


def test_float64_arrays_come_to_the_device_in_its_precision():
    with jax.enable_x64(False):
        data = FederatedDataset({"x": X, "y": Y}, np.array([0, 5]))
        for limit in (2**30, 0):
            arrays = CohortReader(data, limit)(np.array([0])).arrays
            assert (arrays["x"].dtype, arrays["y"].dtype) == (jnp.float32, jnp.int32)
