"""A user points fedax at files in a format of the field and gets a data set."""

import functools
import gzip
import os
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

import fedax
import made_data
from fedax import DataError, FederatedDataset, read_data
from fedax.data import readers
from fedax.data.reading import progress_bar
from fedax.data.store_writer import convert
from fedax.report.population_tables import population_tables

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what its own imports say is not ours
    import datasets

OPTIONS = {
    "sqlite": {"split": "all_train"}, "lzma": {"split": "all_train"},
    "csv": {"client_column": "who", "columns": {"x": ["a", "b"], "y": "y"}},
    "parquet": {"client_column": "who"},
}
NUMBERS = {name for name in made_data.FORMATS if name not in ("posts", "hdf5", "png sheets")}


@pytest.mark.quick
@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_a_format_is_recognised(name, tmp_path):
    made = made_data.FORMATS[name]
    folder = tmp_path / "data"
    folder.mkdir()
    data = read_data(made.make(folder), **OPTIONS.get(name, {}))
    assert data.names.tolist() == list(made.holds)
    for client, columns in made.holds.items():
        for key, value in columns.items():
            np.testing.assert_array_equal(data.client(client)[key], value)


@pytest.mark.parametrize("name", ["idx", "packed idx", "cifar binary", "cifar pickle", "parquet"])
def test_folders(name, tmp_path):
    made = made_data.FORMATS[name]
    folder = tmp_path / "data"
    folder.mkdir()
    made.make(folder)
    data = read_data(folder, **OPTIONS.get(name, {}), split=None if name == "parquet" else "train")
    for client, columns in made.holds.items():
        np.testing.assert_array_equal(data.client(client)["x"], columns["x"])
    if name != "parquet":
        with pytest.raises(DataError, match="There is no file t"):
            read_data(folder, split="test")
        with pytest.raises(ValueError, match="Did you mean 'train'"):
            read_data(folder, split="trian")


def test_cifar_10_in_five_batches(tmp_path):
    for number in range(1, 6):
        labels = np.full((4, 1), number, np.uint8)
        content = np.concatenate([labels, made_data.FLAT], 1).tobytes()
        (tmp_path / f"data_batch_{number}.bin").write_bytes(content)
    data = read_data(tmp_path, store=tmp_path / "store")
    assert data.client("pool")["y"].tolist() == np.repeat(range(1, 6), 4).tolist()
    np.testing.assert_array_equal(data.arrays["x"][16:], made_data.CIFAR)


def test_a_saved_data_set_of_hugging_face(tmp_path):
    rows = datasets.Dataset.from_dict({"who": made_data.IDS, "y": made_data.Y})
    datasets.DatasetDict({"train": rows}).save_to_disk(tmp_path / "both")
    rows.save_to_disk(tmp_path / "one")
    with pytest.raises(DataError, match="Unknown split 'None'"):
        read_data(tmp_path / "both", client_column="who")
    for data in (
        read_data(tmp_path / "one", client_column="who"),
        read_data(tmp_path / "both", client_column="who", split="train"),
    ):
        assert data.client("eve")["y"].tolist() == [0, 2, 5]


def test_a_folder_named_train_is_not_taken_for_cifar(tmp_path):
    (tmp_path / "leaf" / "train").mkdir(parents=True)
    with pytest.raises(DataError, match=r"The format of .*leaf was not recognised"):
        read_data(tmp_path / "leaf")
    convert([("ada", {"x": np.ones((2, 1))})], tmp_path / "got" / "train")
    with pytest.raises(DataError, match="It has the parts train and test; open one of them"):
        read_data(tmp_path / "got")


def test_text_by_a_transform(tmp_path):
    path = made_data.make_posts(tmp_path)
    vocabulary = fedax.Vocabulary.build(["how do i"])

    def transform(columns):
        texts = [text.decode() for text in columns["tokens"]]
        return {"tokens": vocabulary.sequences(texts, 4)}

    data = read_data(path, transform=transform)
    assert data.client("00000001")["tokens"].tolist() == vocabulary.sequences(
        ["how do i", "no way"], 4).tolist()
    with pytest.raises(DataError, match="Give a transform"):
        read_data(path, store=tmp_path / "other")


def test_a_name_too_long_for_a_store_is_a_sentence(tmp_path):
    path = made_data.make_csv(tmp_path).rename(tmp_path / f"{'x' * 250}.csv")
    with pytest.raises(DataError, match=r"File name too long\. Choose another with store="):
        read_data(path, client_column="who")
    assert read_data(path, client_column="who", store=tmp_path / "a").num_clients == 3


@pytest.mark.quick
def test_a_store_is_made_once(tmp_path, monkeypatch):
    path = made_data.make_csv(tmp_path)
    shown = []
    data = read_data(path, client_column="who", progress=lambda *counts: shown.append(counts))
    assert shown == [(1, 3), (2, 5), (3, 6)]
    assert (tmp_path / "a.csv.store" / "store.json").exists()
    again = read_data(path, client_column="who", progress=lambda *counts: shown.append(counts))
    assert len(shown) == 3
    for key in data.arrays:
        np.testing.assert_array_equal(again.arrays[key], data.arrays[key])
    with pytest.raises(DataError, match=r"with a different client_column=.*make it again.*store="):
        read_data(path, client_column="y")
    text = path.read_text()
    os.utime(path, (0, 0))  # as a copy, or written again with the same content
    read_data(path, client_column="who", progress=lambda *counts: shown.append(counts))
    assert len(shown) == 3
    path.write_text(text[:-2] + ("7" if text[-2] != "7" else "8") + "\n")  # of the same size
    with pytest.raises(DataError, match="different files than"):
        read_data(path, client_column="who")
    path.write_text(path.read_text() + "zoe,1,2,3\n")
    with pytest.raises(DataError, match="different files than"):
        read_data(path, client_column="who")
    shutil.rmtree(tmp_path / "a.csv.store")
    assert read_data(path, client_column="who", progress=True).num_clients == 4
    assert read_data(tmp_path / "a.csv.store").num_clients == 4


@pytest.mark.quick
def test_a_store_is_of_its_transform(tmp_path):
    """Another lambda, another value in a closure and another default are another transform."""
    path = tmp_path / "heights.csv"
    path.write_text("who,height\nada,1.5\n")

    def read(transform):
        data = read_data(path, client_column="who", transform=transform)
        return data.client("ada")["height"].tolist()

    def times(factor):
        return lambda columns: {"height": columns["height"] * factor}

    class Table:
        def __init__(self, factor):
            self.factor = factor

        def scaled(self, columns):
            return {"height": columns["height"] * self.factor}

    assert read(times(10)) == [15.0]
    assert read(times(10)) == [15.0]
    for other in (
        times(100), lambda columns: {"height": columns["height"] * 10},
        lambda columns, factor=10: {"height": columns["height"] * factor},
        functools.partial(lambda factor, columns: {"height": columns["height"] * factor}, 10),
        Table(10).scaled, None,
    ):
        with pytest.raises(DataError, match="with a different transform="):
            read(other)


@pytest.mark.quick
def test_a_store_has_a_name_that_any_disk_takes(tmp_path):
    """A split is a word of the user's or of a database."""
    path = made_data.make_csv(tmp_path)
    read_data(path, client_column="who", split="all:train/x?")
    assert (tmp_path / "a.csv-all_train_x_.store" / "store.json").exists()


@pytest.mark.quick
def test_a_bar_shows_any_name_as_it_is(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as if to a terminal
    with progress_bar("made[/b] in [red].csv", 3) as show:
        show(1, 1_000)
    assert "made[/b] in [red].csv" in capsys.readouterr().err


@pytest.mark.quick
@pytest.mark.parametrize(("num_clients", "words"), [
    (1, "1 client, 6 examples"), (2, "2 clients, 6 examples"),
])
def test_one_client_is_called_so(num_clients, words):
    data = FederatedDataset.from_arrays({"x": np.zeros(6)}, np.arange(6) % num_clients)
    assert f"({words} of x float64[]; " in repr(data)
    assert population_tables("mine", data, None)[0].title == f"mine: {words}."


@pytest.mark.quick
def test_what_is_missing_or_not_known(tmp_path):
    made_data.make_csv(tmp_path)
    with pytest.raises(DataError, match=r"CSV needs client_column="):
        read_data(tmp_path / "a.csv")
    with pytest.raises(DataError, match="No such file"):
        read_data(tmp_path / "b.csv")
    with pytest.raises(DataError, match=r"The format of .* was not recognised"):
        read_data(tmp_path)
    with pytest.raises(ValueError, match="Did you mean 'csv'"):
        read_data(tmp_path / "a.csv", format="cvs")
    (tmp_path / "images").write_bytes(gzip.compress(made_data.idx(made_data.IMAGES)))
    with pytest.raises(DataError, match="read_idx"):
        read_data(tmp_path / "images", format="idx")


@pytest.mark.quick
@pytest.mark.parametrize(("module", "read", "extra"), [
    ("h5py", lambda: readers.read_hdf5("a"), "hdf5"),
    ("ijson", lambda: readers.read_leaf("a"), "leaf"),
    ("pyarrow", lambda: readers.read_parquet("a", "who"), "parquet"),
])
def test_a_package_that_is_not_installed(module, read, extra, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(DataError, match=rf"needs {module}: pip install 'fedax\[{extra}\]'"):
        read()


@pytest.mark.quick
def test_the_page_s_example_runs(tmp_path, monkeypatch, capsys):
    page = Path(__file__).parent.parent / "docs" / "data.md"
    (block,) = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    assert capsys.readouterr().out == "(2, 9)\n"
