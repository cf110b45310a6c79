"""`fedax data describe` and `fedax data partition`, as their users call them."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import scipy.spatial.distance
from matplotlib.figure import Figure

from fedax.cli.main import run_command
from fedax.data import FederatedDataset
from fedax.data.folder import load_dataset
from fedax.data.label_skew import label_skew
from fedax.data.partitions import Partition, by_key, parse_partition
from fedax.data.store_writer import convert
from fedax.outside.text import printable
from fedax.report.population_picture import draw_population

pytestmark = pytest.mark.quick

PAGE = Path(__file__).parent.parent / "docs" / "partitions.md"

rng = np.random.default_rng(0)
Y = rng.choice([2, 3, 7, 8], size=90, p=[0.5, 0.3, 0.15, 0.05])
DATA = FederatedDataset({"y": Y}, np.array([0, 10, 11, 50, 90]), np.array(["a", "b", "c", "d"]))


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A data set of two stores, as `fedax data get` leaves it."""
    folder = tmp_path_factory.mktemp("digits")
    for part, size in (("train", 120), ("test", 40)):
        labels = np.arange(size, dtype=np.int32) % 4
        convert([("pool", {"x": np.zeros((size, 2)), "y": labels})], folder / part)
    return str(folder)


def command(capsys, *words, status=0):
    assert run_command(["data", *words]) == status
    out, err = capsys.readouterr()
    return err if status else out


def tables(capsys, *words):
    found = json.loads(command(capsys, "describe", *words, "--json"))
    return [
        {row[0]: dict(zip(table["headings"], row, strict=True)) for row in table["rows"]}
        for table in found
    ]


def test_skew_is_what_each_client_says_of_itself():
    skew = label_skew(DATA)
    population = np.array([np.mean(label == Y) for label in (2, 3, 7, 8)])
    for client in range(4):
        own = DATA.client_at(client)["y"]
        shares = np.array([np.mean(own == label) for label in (2, 3, 7, 8)])
        assert skew.shares_of(np.array([client]))[0] == pytest.approx(shares)
        assert skew.top_share[client] == pytest.approx(shares.max())
        assert skew.num_labels[client] == (shares > 0).sum()
        distance = scipy.spatial.distance.cityblock(shares, population) / 2
        assert skew.distance[client] == pytest.approx(distance)
    assert skew.population.tolist() == [int(np.sum(label == Y)) for label in (2, 3, 7, 8)]
    holders = [sum(label in DATA.client_at(c)["y"] for c in range(4)) for label in (2, 3, 7, 8)]
    assert skew.num_clients_with.tolist() == holders


def test_labels_are_asked_for_or_found():
    floats = FederatedDataset({"y": np.zeros(3), "tag": np.arange(3)}, np.array([0, 3]))
    assert label_skew(floats) is None
    assert label_skew(floats, "tag").distance.tolist() == [0]
    with pytest.raises(ValueError, match="'y' must be whole numbers, but they are float64"):
        label_skew(floats, "y")
    with pytest.raises(ValueError, match=r"Unknown array 'tags'\. Did you mean 'tag'"):
        label_skew(floats, "tags")


def test_describe_says_sizes_and_skew_of_a_partition(capsys, digits):
    clients, labels, largest = tables(
        capsys, digits, "--partition", "shards(1)", "--num-clients", "8"
    )
    assert clients["examples"]["min"] == clients["examples"]["max"] == 15
    assert clients["labels"]["mean"] == clients["share of top label"]["mean"] == 1
    assert clients["distance"]["median"] == 0.75
    assert [labels[label]["clients"] for label in "0123"] == [2] * 4
    assert labels["3"]["share"] == 0.25
    assert largest["0"]["examples"] == 15
    whole = tables(capsys, digits, "--test")[0]
    assert whole["examples"]["mean"] == 40
    assert whole["distance"]["max"] == 0


def test_plain_text_in_a_pipe_and_in_a_narrow_terminal(capsys, digits, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    text = command(capsys, "describe", digits, "--partition", "iid", "--num-clients", "7")
    assert "\x1b" not in text
    lines = [line.split() for line in text.splitlines() if line.startswith("examples ")]
    numbers = [number for _, *part in lines for number in part]
    assert numbers == ["17.1429", "17", "17", "17", "17.7", "18"]
    assert len(lines) > 1  # a narrow terminal gets the columns in parts


def test_names_from_data_reach_no_terminal_as_commands(capsys, digits, tmp_path):
    assert printable("a\x1b[2J\n\u202e") == "a\\x1b[2J\\n\\u202e"
    evil = "ada\x1b[2J[bold]$\\frac"
    by_key([evil, "bob"] * 60, "\x1b[31m").save(tmp_path / "p.npz")
    text = command(capsys, "describe", digits, "--partition", str(tmp_path / "p.npz"))
    assert "ada\\x1b[2J[bold]$\\frac" in text
    assert "\x1b" not in text


def test_a_partition_is_written_described_and_split(capsys, digits, tmp_path):
    out = tmp_path / "p.npz"
    words = ["partition", digits, "dirichlet(0.5)", "--num-clients", "6", "--seed", "4"]
    assert "6 clients, 120 of 120 examples" in command(capsys, *words, "--out", str(out))
    saved = Partition.load(out)
    train = FederatedDataset({"y": np.arange(120) % 4}, np.array([0, 120]))
    expected = parse_partition("dirichlet(0.5)", train, 6, seed=4)
    assert (saved.rows == expected.rows).all()
    drawn = ["--partition", "dirichlet(0.5)", "--num-clients", "6", "--seed", "4"]
    assert tables(capsys, digits, "--partition", str(out)) == tables(capsys, digits, *drawn)
    parts = tmp_path / "parts.npz"
    command(capsys, *words, "--out", str(parts), "--test-fraction", "0.25")
    rest, held_out = Partition.load(parts), Partition.load(tmp_path / "parts.test.npz")
    assert held_out.client_sizes.tolist() == [5] * 6
    assert sorted([*rest.rows, *held_out.rows]) == list(range(120))


def test_a_task_in_a_file_is_described_as_its_data_are(capsys, digits, tmp_path):
    path = tmp_path / "own.py"
    path.write_text(f"""
import fedax
from fedax.data.store import open_store
from fedax.models.mlp import mlp

def task(hidden_units=4):
    model = fedax.classification(*mlp([2, hidden_units, 4]))
    return fedax.Task(model, open_store({digits + "/train"!r}))
""", "utf-8")
    assert tables(capsys, f"{path}:task") == tables(capsys, digits)
    assert "has no test part" in command(capsys, "describe", f"{path}:task", "--test", status=2)
    assert "tusk" in command(capsys, "describe", f"{path}:tusk", status=2)
    assert f"{path}:task" in command(capsys, "describe", str(path), status=2)


WRONG = {
    ("describe", "digitss"): (2, "Unknown data set 'digitss'. Did you mean 'digits'?"),
    ("describe", "{digits}", "--seed", "1"): (2, "need --partition"),
    ("describe", "{digits}", "--partition", "shard(2)"): (2, "Did you mean 'shards'?"),
    ("describe", "{digits}", "--partition", "none.npz"): (1, "Cannot read the partition none.npz"),
    ("describe", "{digits}", "--partition", "n.npz", "--seed", "1"): (2, "is a finished partition"),
    ("describe", "{digits}", "--label", "z"): (2, "Unknown array 'z'"),
    ("describe", "{digits}", "--out", "p.xyz"): (1, "its name must end in one of"),
    ("describe", "{digits}/train", "--test"): (2, "is a single store without a test part"),
    ("describe", "{digits}/.."): (2, "does not contain a store"),
    ("describe", "."): (2, "does not contain a store"),
    ("describe", "{digits}/nowhere"): (2, "The folder "),
    ("describe", r"C:\data\digits"): (2, "The folder "),
    ("describe", r"C:\data\tasks.py:"): (2, "neither FILE.py:NAME nor package.module:NAME"),
    ("describe", "{digits}/train/y.npy"): (
        2, "y.npy is a file. Convert it to a store with fedax.read_data",
    ),
    ("partition", "{digits}", "iid", "--out", "p.npz"): (2, "'iid' needs num_clients"),
    ("partition", "{digits}", "iid", "--num-clients", "121", "--out", "p.npz"): (
        2, "num_clients is 121, but there are 120 examples",
    ),
    ("partition", "{digits}", "iid", "--num-clients", "3", "--out", "p.csv"): (
        1, "must end in .npz",
    ),
}


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_mistakes_meet_sentences(capsys, digits, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, sentence = WRONG[words]
    words = [word.format(digits=digits) for word in words]
    assert sentence in command(capsys, *words, status=status)
    assert list(tmp_path.iterdir()) == []


def test_the_picture_shows_the_shares(capsys, digits, tmp_path):
    path = tmp_path / "p.png"
    command(capsys, "describe", digits, "--out", str(path), "--json")
    assert path.read_bytes().startswith(b"\x89PNG")
    figure, skew = Figure(), label_skew(DATA)
    draw_population(figure, "$\\frac{", DATA, skew)
    shares, *histograms = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    drawn = shares.images[0].get_array()
    assert np.array_equal(drawn.T, skew.shares_of(np.arange(4)))
    assert [tick.get_text() for tick in shares.get_yticklabels()] == ["2", "3", "7", "8"]
    figure.savefig(tmp_path / "math.svg")  # a name is no formula
    heights = [sum(bar.get_height() for bar in axes.patches) for axes in histograms]
    assert heights == [4, 4]


@pytest.mark.parametrize(("names", "upright"), [
    (["ada", "bob", "$x"], False),
    ([f"hospital-{i}" for i in range(30)], True),
    (range(1000, 1012), False),
])
def test_clients_are_called_by_their_names_where_there_is_room(names, upright, tmp_path):
    data = FederatedDataset.from_clients({name: {"y": np.arange(3)} for name in names})
    figure = Figure()
    draw_population(figure, "named", data, label_skew(data))
    ticks = figure.axes[0].get_xticklabels()
    assert [tick.get_text() for tick in ticks] == [str(name) for name in data.client_names]
    assert {tick.get_rotation() for tick in ticks} == {90 if upright else 0}
    figure.savefig(tmp_path / "named.svg")


def test_clients_with_long_names_are_numbered():
    data = FederatedDataset.from_clients({f"{'a' * 30}{i}": {"y": np.arange(3)} for i in range(5)})
    figure = Figure()
    draw_population(figure, "long", data, label_skew(data))
    ticks = figure.axes[0].get_xticklabels()
    assert [tick.get_text() for tick in ticks] == ["0", "1", "2", "3", "4"]


def test_a_picture_of_many_clients_and_labels_has_some_of_them(tmp_path):
    labels = np.arange(3000) % 500
    many = parse_partition("iid", FederatedDataset({"y": labels}, np.array([0, 3000])), 1000)
    data = many.of(FederatedDataset({"y": labels}, np.array([0, 3000])))
    figure = Figure()
    draw_population(figure, "many", data, label_skew(data))
    axes = figure.axes[0]
    assert axes.images[0].get_array().shape == (100, 100)
    assert axes.get_xlabel() == "client (100 of 1,000)"
    assert axes.get_ylabel() == "label (100 of 500)"
    assert [tick.get_text() for tick in axes.get_xticklabels()][:3] == ["0", "100", "200"]


def test_the_page_runs_and_its_numbers_of_the_digits_are_these(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text("utf-8")
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        if language == "python":
            exec(compile(code, str(PAGE), "exec"), {})
            continue
        for line in code.splitlines():
            command(capsys, *shlex.split(line)[2:])
    assert {path.name for path in tmp_path.iterdir()} == {"digits.npz", "digits.png", "train.npz"}
    data = load_dataset("digits").train
    rows = re.findall(r"^\| digits \| `(.*?)` \| (.*?) \|$", page, re.MULTILINE)
    assert len(rows) == 7
    for text, numbers in rows:
        clients = parse_partition(text, data, 50).of(data)
        sizes, skew = clients.client_sizes, label_skew(clients)
        assert numbers == " | ".join([
            f"{sizes.min():,} to {sizes.max():,}", f"{skew.num_labels.mean():.2f}",
            f"{skew.top_share.mean():.3f}", f"{skew.distance.mean():.3f}",
        ])
