"""Cells and values of files: taken as they are written, or refused with their place."""

import csv
import json
import resource

import h5py
import numpy as np
import pytest

import fedax
import made_data
from fedax import DataError, FederatedDataset, Vocabulary, read_data
from fedax.data import array_files
from fedax.data.csv_cells import original_text, safe_cell
from fedax.data.partitions import parse_partition
from fedax.data.store import array_file, check_store
from fedax.pictures.client_files import read_clients
from fedax.report.clients import clients_table
from fedax.rounds.client_metrics import ClientMetrics


def table(tmp_path, text, **options):
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    return read_data(path, client_column="user", store=tmp_path / "store", **options)


@pytest.mark.parametrize("cell", [
    "1_2", "1_000.5", "\u0661\u0662", "\uff11", "n/a", "NA", "0x1f", "1,5", "1e", "--1",
    "1\u00a0000",
])
@pytest.mark.parametrize("columns", [None, {"x": ["age", "height"]}])
def test_a_cell_that_is_no_number_is_named_with_its_line(tmp_path, cell, columns):
    """1_2 was read as 12, and what was wrong was said of the first client."""
    text = f'user,age,height\nada,31,1\nbob,40,1\n\neve,"{cell}",1\nada,5,2\n'
    with pytest.raises(DataError) as caught:
        table(tmp_path, text, columns=columns)
    assert f"t.csv: line 5, of client 'eve': the column 'age' holds {cell!r}" in str(caught.value)


@pytest.mark.parametrize("cell", ["nan", "NaN", "inf", "-Infinity", "1e39", "1e400"])
def test_a_number_that_is_not_finite_is_named_with_its_line(tmp_path, cell):
    with pytest.raises(DataError, match=r"line 3, of client 'bob'.*'age' holds .*not finite"):
        table(tmp_path, f"user,age\nada,31\nbob,{cell}\n")


def test_a_transform_gets_text_and_nan(tmp_path):
    seen = {}

    def transform(columns):
        seen.update(columns)
        return {"n": np.arange(len(columns["code"]))}

    table(tmp_path, "user,code,h\nada,1_2,nan\nada,12,1\n", transform=transform)
    assert seen["code"] == ["1_2", "12"]
    assert np.isnan(seen["h"][0])
    (tmp_path / "other.csv").write_text("user,code,h\nada,1,1e39\n")
    with pytest.raises(DataError, match=r"line 2.*'1e39', which is not finite in float32"):
        read_data(tmp_path / "other.csv", client_column="user", transform=transform)


def test_numbers_that_every_program_reads_stay_numbers(tmp_path):
    data = table(tmp_path, "user,a,b\nada, 7,1e3\nada,+12,-.5\nada,007,1.\n")
    assert data.arrays["a"].tolist() == [7, 12, 7]
    assert data.arrays["b"].tolist() == [1000, -0.5, 1]


@pytest.mark.parametrize(("values", "line"), [
    (["1.5", "9007199254740993"], 3), (["18446744073709551615", "1"], 2),
    (["0.5", "-1" + "0" * 19], 3),
])
def test_a_whole_number_that_would_lose_digits_is_refused(tmp_path, values, line):
    text = "user,age\n" + "".join(f"ada,{value}\n" for value in values)
    with pytest.raises(DataError, match=rf"line {line}, .*more digits than"):
        table(tmp_path, text)


def test_large_whole_numbers_are_kept(tmp_path):
    data = table(tmp_path, "user,age\nada,9007199254740993\nada,1\n")
    assert data.arrays["age"].tolist() == [9007199254740993, 1]


def test_missing_cells_are_named_with_their_line(tmp_path):
    with pytest.raises(DataError, match=r"line 5, of client 'bob': the column 'b' has a missing"):
        table(tmp_path, 'user,a,b\nada,"x\ny",1\n\nbob,z,\n', columns=["b"])
    with pytest.raises(DataError, match=r"line 3 has no client"):
        table(tmp_path, "user,a\nada,1\n,2\n")
    with pytest.raises(DataError, match=r"the column 'a' has a missing value"):
        table(tmp_path, "user,a\nada,\nada,\n")


@pytest.mark.quick
def test_bytes_are_texts():
    """Bytes were taken letter by letter: every token was unknown."""
    texts = ["to be or not to be", "to do"]
    right = Vocabulary.build(texts, size=4)
    assert Vocabulary.build([text.encode() for text in texts], size=4) == right
    tokens = [[word.encode() for word in text.split()] for text in texts]
    assert Vocabulary.build(tokens, size=4) == right
    assert Vocabulary(tuple(word.encode() for word in right.known)) == right
    for given in (b"to be", [b"to", b"be"], np.array([b"to", b"be"]), (w for w in ("to", b"be"))):
        assert right.encode(given).tolist() == right.encode("to be").tolist()
    letters = Vocabulary.build(["\u00e9a"], unit="character")
    given, right = (letters.sequences([text], 2) for text in ("\u00e9".encode(), "\u00e9"))
    assert given.tolist() == right.tolist()


@pytest.mark.parametrize("bad", [None, float("nan"), 3, [3], [None], b"\xff", bytearray(b"to")])
def test_what_is_no_text_is_refused(bad):
    vocabulary = Vocabulary.build(["to be"])
    for call in (lambda: vocabulary.encode(bad), lambda: vocabulary.sequences(["to", bad], 4),
                 lambda: Vocabulary.build(["to", bad])):
        with pytest.raises(ValueError, match=r"must be a string|must be text|not UTF-8"):
            call()
    with pytest.raises(ValueError, match=r"but is a single text"):
        vocabulary.sequences(b"to be", 4)


def idx(kind, values):
    values = np.asarray(values, kind)
    codes = {"u1": 8, "i4": 12, "f4": 13, "f8": 14}
    head = bytes([0, 0, codes[values.dtype.str[1:]], values.ndim])
    return head + b"".join(n.to_bytes(4, "big") for n in values.shape) + values.tobytes()


@pytest.mark.parametrize(("labels", "said"), [
    ([0.0, 1.5], "label of example 1 is 1.5"), ([np.nan, 1], "example 0 is nan"),
    ([0, 3e9], "3000000000"),
])
@pytest.mark.parametrize("kind", [">f4", ">f8"])
def test_labels_of_idx_that_are_no_whole_numbers_are_refused(tmp_path, kind, labels, said):
    """They were cut."""
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(">u1", np.zeros((2, 2, 2))))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(kind, labels))
    with pytest.raises(DataError, match=said):
        read_data(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(kind, [3, 4]))
    assert read_data(tmp_path).arrays["y"].tolist() == [3, 4]


def test_ids_as_objects_name_the_cure(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(2), client_ids=np.array(["a", "b"], object))
    with pytest.raises(DataError, match=r"'client_ids' holds Python objects.*dtype=str"):
        read_data(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=np.zeros(2), client_ids=np.array([b"a", b"b"]))
    with pytest.raises(DataError, match=r"np\.char\.decode"):
        read_data(tmp_path / "b.npz")


def test_a_partition_names_the_option_for_labels():
    data = FederatedDataset.from_clients([{"x": np.zeros(3), "digit": np.zeros(3, int)}])
    with pytest.raises(ValueError, match=r"Unknown array 'y'.*digit.*labels: label=\."):
        parse_partition("dirichlet(0.1)", data, 2)
    with pytest.raises(ValueError, match=r"Unknown array 'coarse'.*labels: coarse=\."):
        parse_partition("pachinko(0.1, 10)", data, 2, label="digit")


@pytest.mark.parametrize("wrong", [{"x": np.zeros(3)}, None, (np.zeros(2), np.zeros(2)), [{}]])
def test_a_task_takes_data_sets_only(wrong):
    data = FederatedDataset.from_clients([{"x": np.zeros(3), "y": np.zeros(3)}])
    model = fedax.regression(lambda key: np.zeros(1), lambda params, x: x * params[0])
    with pytest.raises(TypeError, match=r"train must be a fedax\.FederatedDataset.*from_arrays"):
        fedax.Task(model, wrong)
    if wrong is not None:
        with pytest.raises(TypeError, match=r"test must be a fedax.FederatedDataset"):
            fedax.Task(model, data, wrong)
        with pytest.raises(TypeError, match=r"test must be a fedax.FederatedDataset"):
            fedax.Task(model, data)._replace(test=wrong)
    assert fedax.Task(model, data)._replace(test=data).test is data


def leaf(tmp_path, users, name="all.json", text=None):
    path = tmp_path / name
    sizes = [len(user["x"]) for user in users.values()]
    whole = {"users": list(users), "num_samples": sizes, "user_data": users}
    path.write_bytes((json.dumps(whole) if text is None else text(json.dumps(whole))).encode())
    return path


@pytest.mark.parametrize("order", [
    ["ada", "bob", "eve"], ["eve", "bob", "ada"], ["bob", "eve", "ada"],
])
def test_whole_numbers_of_a_client_of_leaf_are_as_the_others(tmp_path, order):
    """A client with whole numbers only was int32, the next float32, and the file refused."""
    users = {"ada": {"x": [[0.5, 1]], "y": [0]}, "bob": {"x": [[4, 5]], "y": [1]},
             "eve": {"x": [[6, 7]], "y": [2]}}
    path = leaf(tmp_path, {name: users[name] for name in order})
    chosen = {"transform": lambda columns: {"x": columns["x"]}, "store": tmp_path / "t"}
    for options in ({}, chosen):
        data = read_data(path, **options)
        assert data.arrays["x"].dtype == np.float32
        assert data.client("bob")["x"].tolist() == [[4, 5]]
        assert data.client("ada")["x"].tolist() == [[0.5, 1]]
    assert read_data(path).arrays["y"].dtype == np.int32


def test_whole_numbers_of_leaf_stay_whole_and_keep_their_digits(tmp_path):
    tokens = {"ada": {"x": [[1, 2]]}, "bob": {"x": [[3, 2**40]]}}
    assert read_data(leaf(tmp_path, tokens)).arrays["x"].tolist() == [[1, 2], [3, 2**40]]
    mixed = {"ada": {"x": [[2**24 + 1]]}, "bob": {"x": [[0.5]]}}
    with pytest.raises(DataError, match=r"'ada' has whole numbers of 'x' above .* lose digits"):
        read_data(leaf(tmp_path, mixed, "b.json"))


def test_whole_numbers_of_leaf_over_several_files(tmp_path):
    leaf(tmp_path, {"ada": {"x": [[1]]}}, "a.json")
    leaf(tmp_path, {"bob": {"x": [[1.5]]}}, "b.json")
    data = read_data(tmp_path, format="leaf", store=tmp_path / "store")
    assert data.arrays["x"].tolist() == [[1], [1.5]]


def test_raw_text_of_leaf_is_left_out(tmp_path):
    users = {"ada": {"x": ["ab", "bc"], "y": ["c", "d"], "raw": "abcd"},
             "bob": {"x": ["a"], "y": ["b"], "raw": "ab"}}

    def transform(columns):
        assert set(columns) == {"x", "y"}
        return {"n": np.array([len(text) for text in columns["x"]], np.int32)}

    data = read_data(leaf(tmp_path, users), transform=transform)
    assert data.arrays["n"].tolist() == [2, 2, 1]


def test_users_of_leaf_without_examples_can_be_left_out(tmp_path):
    empty = {"x": [], "y": []}
    path = leaf(tmp_path, {"ada": empty, "bob": {"x": [[1.5]], "y": [0]}, "eve": empty})
    with pytest.raises(DataError, match=r"Client 'ada' has no examples.*skip_empty=True"):
        read_data(path)
    data = read_data(path, skip_empty=True)
    assert data.names.tolist() == ["bob"]
    left = read_data(path, store=tmp_path / "t", transform=lambda c: c if len(c["x"]) else None)
    assert left.names.tolist() == ["bob"]


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have_are_named(tmp_path, word):
    users = {"ada": {"x": [[1.5]], "y": [0]}, "bob": {"x": [[float(word)]], "y": [0]}}
    with pytest.raises(DataError, match=f"user after 'ada' has {word}, which JSON does not"):
        read_data(leaf(tmp_path, users))


def test_leaf_with_a_byte_order_mark(tmp_path):
    path = leaf(tmp_path, {"NaN": {"x": [[1.5]], "y": [0]}}, text=lambda text: "\ufeff" + text)
    assert read_data(path).names.tolist() == ["NaN"]


def test_clients_of_tff_without_examples_can_be_left_out(tmp_path):
    example = made_data.tf_example({"label": [3]})
    clients = {"ada": [], "bob": [example], "eve": [], "zoe": []}
    made_data.sqlite(tmp_path / "a.sqlite", {"train": clients})
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, own in clients.items():
            file[f"examples/{name}/label"] = np.full(len(own), 3)
    for path in (tmp_path / "a.sqlite", tmp_path / "a.h5"):
        with pytest.raises(DataError, match=r"Client 'ada' has no examples.*skip_empty=True"):
            read_data(path)
        data = read_data(path, skip_empty=True)
        assert data.names.tolist() == ["bob"]
        assert data.arrays["label"].tolist() == [3] or data.arrays["label"].tolist() == [[3]]


NAMES = ["sepal length (cm)", "v1.5", "gr\u00f6\u00dfe", "a%20b", "-x", "e-mail", "CON.x"]


def test_names_of_columns_may_have_blanks_and_dots(tmp_path):
    names = NAMES[:-1]
    data = table(tmp_path, ",".join(["user", *names]) + "\n" + "ada" + ",1" * len(names) + "\n")
    assert list(data.arrays) == names
    again = read_data(tmp_path / "t.csv", client_column="user", store=tmp_path / "store")
    assert all(again.arrays[name].tolist() == [1] for name in names)
    assert check_store(tmp_path / "store").num_examples == 1
    assert len({array_file(name).lower() for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize("name", [
    "", "km/h", "a\\b", "names", "Offsets", "x" * 65, "a\tb", "\u00e9" * 60,
])
def test_other_names_of_columns_name_the_cure(tmp_path, name):
    with pytest.raises(DataError, match=r"columns=\{'other': 'column'\}"):
        table(tmp_path, f'user,"{name}"\nada,1\n')
    if name:
        data = table(tmp_path, f'user,"{name}"\nada,1\n', columns={"other": name})
        assert data.arrays["other"].tolist() == [1]


@pytest.mark.parametrize("ends", ["at once", "late"])
def test_more_columns_than_files_that_may_be_open(tmp_path, monkeypatch, ends):
    if ends == "late":
        monkeypatch.setattr(array_files, "PART_BYTES", 1000)  # written in between
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    rows = np.arange(300 * 8).reshape(8, 300)
    lines = [f"{'ab'[i // 4]}," + ",".join(map(str, row)) + "\n" for i, row in enumerate(rows)]
    (tmp_path / "t.csv").write_text(
        "user," + ",".join(f"c{i}" for i in range(300)) + "\n" + "".join(lines)
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        for _ in range(2):
            data = read_data(tmp_path / "t.csv", client_column="user")
            assert {name: a.tolist() for name, a in data.arrays.items()} == {
                f"c{i}": rows[:, i].tolist() for i in range(300)
            }
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("text", "cell"), [
    ("=1+1", "'=1+1"), ("@SUM(A1)", "'@SUM(A1)"), ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
    ("-1+1", "'-1+1"), ("\t=1", "'\t=1"), ("'=1", "''=1"), ("-5", "-5"), ("+1e3", "+1e3"),
    ("ada", "ada"), ("'tis", "'tis"), ("", ""), ("a=b", "a=b"),
])
def test_spreadsheets_do_not_run_names(tmp_path, text, cell):
    assert safe_cell(text) == cell
    assert original_text(cell) == text
    sums = {"=loss": (np.array([3.0, 5.0]), np.array([3.0, 1.0]))}
    clients = ClientMetrics(sums, np.array([text, "bob"]), np.array([3, 1]))
    (tmp_path / "clients.csv").write_text(clients_table(clients), encoding="utf-8")
    with (tmp_path / "clients.csv").open(encoding="utf-8", newline="") as file:
        head, first, _ = csv.reader(file)
    assert (head[2], first[0]) == ("'=loss", cell)
    read = read_clients(tmp_path / "clients.csv")
    assert (read.names[0], list(read)) == (text, ["=loss"])
