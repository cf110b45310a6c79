"""Decimal commas, rows without a label, and clients without one of two classes."""

import datetime
import json

import jax
import numpy as np
import pandas
import pytest

import fedax
from fedax.cli.main import run_command
from fedax.tasks import tables

pytestmark = pytest.mark.quick

STAYS = {
    "ward": ["a", "a", "a", "b", "b", "c"],
    "bmi": ["27,4", "1.250,75", None, "-3,5", "20", "1,5e2"],
    "died": ["no", "yes", None, "no", "no", "no"],
}
FITTED = {"client": "ward", "label": "died", "missing": "mean", "scaling": "none"}


def test_decimal_commas_are_numbers():
    table = fedax.fit_table(STAYS, **FITTED, decimal="comma", unlabelled="drop")
    assert table.columns[0].how == "number"
    data = table.apply(STAYS)
    assert data.client("a")["x"][:, 0] == pytest.approx([27.4, 1250.75], rel=1e-6)
    assert data.client("b")["x"][:, 0] == pytest.approx([-3.5, 20], rel=1e-6)
    assert data.client("c")["x"][:, 0] == pytest.approx([150], rel=1e-6)
    again = type(table).from_json(table.to_json())
    assert again == table
    fill = np.mean([27.4, 1250.75, -3.5, 20, 150])  # of the labelled rows
    assert again.transform(STAYS)[2, 0] == pytest.approx(fill, rel=1e-6)


def written(path, *cells):
    """A CSV file of a column v; every other row is of the other client and of the other class."""
    rows = [f"u{row % 2};{cell};{row // 2 % 2}\n" for row, cell in enumerate(cells)]
    path.write_text("user;v;y\n" + "".join(rows))
    return path


OF_V = {"client": "user", "label": "y", "missing": "mean", "unknown": "column", "scaling": "none"}


@pytest.mark.parametrize("gap", ["NA", "", "null", "?"])
def test_gaps_among_decimal_commas_are_gaps(tmp_path, gap):
    path = written(tmp_path / "a.csv", "40,5", gap, "61,2", "33", "50", "44,1")
    table = fedax.fit_table(path, decimal="comma", **OF_V)
    assert (table.columns[0].how, table.columns[0].num_gaps) == ("number", 1)
    mean = np.mean([40.5, 61.2, 33, 50, 44.1])
    assert table.columns[0].fill == pytest.approx(mean, rel=1e-12)
    # Clients one after the other: rows 0, 2, 4 and 1, 3, 5.
    assert table.transform(path)[:, 0] == pytest.approx([40.5, 61.2, 50, mean, 33, 44.1], rel=1e-6)
    found = fedax.fit_table(path, **OF_V).findings
    assert any("looks like numbers with decimal commas" in text for text in found)


def test_new_rows_are_read_with_commas_as_the_training_rows_were(tmp_path):
    """2.300 is 2300 with a comma elsewhere in the column, and in a file without one."""
    table = fedax.fit_table(
        written(tmp_path / "b.csv", "1.250,5", "2.300", "850", "12.000"), decimal="comma", **OF_V
    )
    assert type(table).from_json(table.to_json()) == table
    new = written(tmp_path / "c.csv", "2.300", "850", "12.000")
    assert table.transform(new)[:, 0].tolist() == [2300, 12000, 850]
    assert table.transform({"v": ["2.300"]})[0, 0] == 2300
    assert table.transform({"v": [2.3]})[0, 0] == np.float32(2.3)
    with pytest.raises(ValueError, match="holds 'x' in line 2, of client 'u0', but the training r"):
        table.transform(written(tmp_path / "d.csv", "x", "850"))
    # As the label, and as the test file of a task.
    spent = tmp_path / "spent.csv"
    spent.write_text("user;x;y\na;1;1.250,5\na;2;2.300\nb;3;850\nb;5;12.000\n")
    test = tmp_path / "test.csv"
    test.write_text("user;x;y\na;1;2.300\nb;2;850\n")
    task = tables.load(
        "linear", str(spent), "user", "y", decimal="comma", test=str(test), scaling="none"
    )
    assert task.test.arrays["y"].tolist() == [2300, 850]


def test_a_column_with_decimal_points_stays_so_in_new_rows(tmp_path):
    """Whole numbers tell nothing of the sign, so commas are read there."""
    table = fedax.fit_table(written(tmp_path / "a.csv", "2.300", "2.5", "1.25"), decimal="comma",
                            **OF_V)
    assert table.transform(written(tmp_path / "b.csv", "2.300"))[0, 0] == np.float32(2.3)
    with pytest.raises(ValueError, match=r"holds '2,5' in line 3, .* training rows hold numbers"):
        table.transform(written(tmp_path / "c.csv", "2.300", "2,5"))
    path = written(tmp_path / "d.csv", "20", "30", "40", "50")
    whole = fedax.fit_table(path, decimal="comma", **OF_V)
    assert whole.transform(written(tmp_path / "e.csv", "27,4"))[0, 0] == np.float32(27.4)


def test_a_number_beyond_float32_is_named(tmp_path):
    with pytest.raises(fedax.data.DataError, match=r"line 3, of client 'u1'.*'1e300'.*float32"):
        fedax.fit_table(written(tmp_path / "a.csv", "1.5", "1e300", "2.5"), **OF_V)


def test_classes_of_an_older_table_are_found(tmp_path):
    """Until 0.27 numbers of CSV files were float32, so 0.1 was 0.10000000149011612."""
    path = written(tmp_path / "a.csv", "1", "2", "3", "4")
    path.write_text(path.read_text().replace(";0\n", ";0.1\n").replace(";1\n", ";0.7\n"))
    table = fedax.fit_table(path, objective="classification", **OF_V)
    assert table.label.classes == (0.1, 0.7)
    old = table.to_json().replace("0.1,", f"{float(np.float32(0.1))!r},").replace(
        " 0.7", f" {float(np.float32(0.7))!r}")
    assert type(table).from_json(old).label.classes != table.label.classes
    found = type(table).from_json(old).apply(path).arrays["y"]
    assert found.tolist() == table.apply(path).arrays["y"].tolist() == [0, 1, 0, 1]


def test_categories_of_digits_are_found_in_files_of_digits_alone(tmp_path):
    table = fedax.fit_table(written(tmp_path / "a.csv", *["01", "02", "2A", "1.0"] * 3), **OF_V)
    new = written(tmp_path / "b.csv", "01", "1.0", "7")
    assert table.features == ["v=01", "v=02", "v=1.0", "v=2A", "v=(other)"]
    assert table.transform(new).argmax(1).tolist() == [0, 4, 2]


@pytest.mark.parametrize(("first", "step"), [(1_700_000_000, 7), (100_000_001.5, 1)])
def test_a_gap_does_not_round_the_other_numbers(tmp_path, first, step):
    """float32 holds seven digits; scaling comes first."""
    numbers = [first + step * row for row in range(40)]
    path = written(tmp_path / "a.csv", *["" if row == 3 else n for row, n in enumerate(numbers)])
    table = fedax.fit_table(path, **OF_V | {"columns": ["v"], "scaling": "pooled"})
    there = np.delete(np.array(numbers, float), 3)
    filled = np.insert(there, 3, there.mean())
    scaled = (filled - filled.mean()) / filled.std()
    order = [*range(0, 40, 2), *range(1, 40, 2)]
    assert table.transform(path)[:, 0] == pytest.approx(scaled[order], abs=1e-6)


@pytest.mark.parametrize(("row", "said"), [
    ("u0;1,250;0", r"holds '1,250' in line 5, of client 'u0', but the training rows hold number"),
    ("u1;oops;1", r"holds 'oops' in line 5, of client 'u1', but the training rows hold numbers"),
    ("u1;7;x", r"has the class 'x' in line 5, of client 'u1', which is not among the 2"),
    ("u1;7;0.4", r"has the class 0\.4 in line 5, of client 'u1', which is not among the 2"),
])
def test_the_cell_that_is_wrong_is_the_one_that_is_named(tmp_path, row, said):
    """One cell of text makes its whole column text: the others are right nevertheless."""
    table = fedax.fit_table(written(tmp_path / "a.csv", "30", "41", "5", "7"), **OF_V)
    new = written(tmp_path / "b.csv", "30", "41", "5")
    new.write_text(f"{new.read_text()}{row}\n")
    with pytest.raises(ValueError, match=said):
        table.apply(new)


@pytest.mark.parametrize(("cell", "options", "said"), [
    ("inf", {}, "'v' holds infinity in"),
    ("", {"missing": "error"}, "'v' has a missing value in"),
    ("inf", {"unlabelled": "drop"}, "'v' holds infinity in"),
])
def test_a_row_is_named_by_its_line_in_the_file(tmp_path, cell, options, said):
    """Neither the split into training and test rows nor dropped rows move it."""
    lines = written(tmp_path / "a.csv", *range(40)).read_text().splitlines()
    lines.insert(4, "")  # a blank line counts as well
    lines[38] = f"u1;{cell};1"
    if "unlabelled" in options:
        lines[2] = "u1;7;"
    path = tmp_path / "b.csv"
    path.write_text("\n".join(lines) + "\n")
    where = "line 39, of client 'u1'"
    with pytest.raises(ValueError, match=f"{said} {where}"):
        tables.load("linear", str(path), "user", "y", **options)
    with pytest.raises(ValueError, match=f"{said} {where}"):
        fedax.fit_table(path, client="user", label="y", **options)
    lines[2] = "u1;7;1"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(fedax.data.DataError, match=where):
        fedax.read_data(path, client_column="user")


@pytest.mark.parametrize("ending", ["parquet", None])
def test_a_row_without_a_line_is_named_by_its_place_before_rows_were_dropped(tmp_path, ending):
    frame = pandas.DataFrame({
        "user": ["a", "b"] * 6, "v": [*np.arange(11.0), np.nan], "y": [None, None, *range(10)],
    })
    source = frame
    if ending:
        source = tmp_path / f"a.{ending}"
        frame.to_parquet(source)
    said = "'v' has a missing value in row " + ("5 of client 'b'" if ending else "11")
    with pytest.raises(ValueError, match=said):
        fedax.fit_table(source, client="user", label="y", unlabelled="drop")


@pytest.mark.parametrize(("unknown", "found"), [("column", [[0, 0, 0, 1]]), ("error", None)])
def test_an_unknown_category_is_no_gap(unknown, found):
    """Of text that is no number the number is None, and None is the category of gaps."""
    rows = {"user": ["a", "a", "b", "b"], "v": ["blue", "red", None, "red"], "y": [0, 1, 0, 1]}
    table = fedax.fit_table(rows, client="user", label="y", missing="mean", unknown=unknown)
    assert None in table.columns[0].categories
    new = {"user": ["a"], "v": ["green"], "y": [0]}
    if found:
        assert table.transform(new).tolist() == found
        return
    for value in ("green", datetime.date(2020, 1, 1), 10**400):
        with pytest.raises(ValueError, match=r"has the category .* which is not among the 3"):
            table.transform(new | {"v": [value]})


def test_a_date_among_numbers_is_named():
    rows = {"user": ["a", "a", "b", "b"], "v": [1.0, 2.0, 3.0, 4.0], "y": [0, 1, 0, 1]}
    table = fedax.fit_table(rows, client="user", label="y")
    new = {"user": ["a"], "v": [datetime.date(2020, 1, 1)], "y": [0]}
    with pytest.raises(ValueError, match=r"holds datetime\.date\(2020, 1, 1\) in row 0"):
        table.transform(new)


@pytest.mark.parametrize("change", [
    {"num_rows": "x"}, {"decimal": "foo"}, {"columns": {"categories": [[1]]}},
    {"columns": {"categories": "rgb"}}, {"columns": {"has_other": "no"}},
    {"columns": {"decimal": 7}}, {"columns": {"name": 3}}, {"columns": {"mean": 10**400}},
    {"label": {"classes": [[1], [2]]}}, {"label": {"name": 3}}, {"label": {"mean": "x"}},
], ids=str)
def test_a_damaged_table_is_no_table(tmp_path, change):
    table = fedax.fit_table(written(tmp_path / "a.csv", "30", "41", "5", "7"), **OF_V)
    found = json.loads(table.to_json())
    ((key, value),) = change.items()
    place = found["columns"][0] if key == "columns" else found[key] if key == "label" else found
    place |= value if isinstance(value, dict) else change
    with pytest.raises(ValueError, match="not a table saved by fedax"):
        type(table).from_json(json.dumps(found))


def test_the_separator_is_not_looked_for_in_names(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('user;"age, y, z, k";y\nu0;1;0\nu1;2;1\nu0;3;1\n')
    assert fedax.fit_table(path, client="user", label="y").features == ["age, y, z, k"]


def test_a_file_that_is_not_utf_8_says_so(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("user,v,y\nmü,1,0\n".encode("latin-1"))
    with pytest.raises(ValueError, match="byte 10 is not UTF-8 text; save it as UTF-8"):
        fedax.fit_table(path, client="user", label="y")


def test_text_that_only_resembles_numbers_stays_text():
    rooms = STAYS | {"bmi": ["27,4", "12,34,5", "x", "3,5", "2", "1,5"]}
    table = fedax.fit_table(rooms, **FITTED, decimal="comma", unlabelled="drop")
    assert table.columns[0].how == "one_hot"
    assert not any("decimal commas" in text for text in table.findings)


def test_what_is_worth_a_look():
    table = fedax.fit_table(STAYS, **FITTED, unlabelled="drop")
    assert table.columns[0].how == "one_hot"
    assert table.findings == (
        "bmi looks like numbers with decimal commas. To read them as numbers, set decimal=comma.",
        "2 of 3 clients have no training row with the class yes.",
    )


def test_rows_without_a_label():
    with pytest.raises(ValueError, match=r'missing in 1 of 6 rows.*unlabelled="drop" \(on'):
        fedax.fit_table(STAYS, **FITTED)
    table = fedax.fit_table(STAYS, **FITTED, unlabelled="drop")
    assert table.num_rows == 5
    assert table.apply(STAYS).client_sizes.tolist() == [2, 2, 1]
    assert len(table.transform({"bmi": ["27,4", "20"]})) == 2  # new rows need no label


def test_a_column_that_new_rows_lack():
    table = fedax.fit_table(STAYS, **FITTED, unlabelled="drop")
    with pytest.raises(ValueError, match=r"does not have the column 'bmi', .* did you mean 'BMI'"):
        table.transform({"BMI": ["1"]})


def test_a_file_with_commas_and_gaps_in_the_label(tmp_path):
    file = tmp_path / "stays.csv"
    rows = [f"h{n % 3};{n % 7},5;{f'{n % 7 * 2},25' if n % 10 else ''}" for n in range(60)]
    file.write_text("\n".join(["site;bmi;los", *rows]))
    task = tables.load("linear", str(file), "site", "los", decimal="comma", unlabelled="drop")
    assert task.train.num_examples + task.test.num_examples == 54
    assert set(task.model.scores) == {"rmse", "mae", "r2"}
    perfect = task.test.arrays["y"][:, None]
    assert task.model.scores["rmse"].function(perfect, perfect[:, 0], np.ones(len(perfect))) == 0
    shifted = perfect + 1  # of a deviation, in the label's unit
    found = task.model.scores["mae"].function(shifted, perfect[:, 0], np.ones(len(perfect)))
    assert found == pytest.approx(task.train.table.label.deviation, rel=1e-6)


def test_a_label_that_cannot_be_classes():
    rows = {"who": ["a", "b"] * 150, "x": np.arange(300.0),
            "spent": [f"{n},5" for n in range(300)], "note": [f"text {n}" for n in range(300)]}
    with pytest.raises(ValueError, match=r"'spent' looks like numbers with decimal.*decimal="):
        fedax.fit_table(rows, client="who", label="spent")
    table = fedax.fit_table(rows, client="who", label="spent", decimal="comma")
    assert table.label.classes == ()
    with pytest.raises(ValueError, match="'note' has 300 different texts in 300 rows, too many"):
        fedax.fit_table(rows, client="who", label="note")


def test_an_id_of_which_one_comes_twice_is_left_out():
    rows = {"who": ["a", "b"] * 20, "customer_id": [*range(5000, 5078, 2), 5000],
            "visits": [*range(39), 0], "died": [0, 1] * 20}
    table = fedax.fit_table(rows, client="who", label="died")
    assert {column.name: column.how for column in table.columns} == {
        "customer_id": "left out", "visits": "number"}


def test_balanced_class_weights_and_auc(tmp_path):
    """Of 100 rows with 10 positives, each positive weighs 5 and each negative 5/9."""
    file = tmp_path / "rare.csv"
    rows = [f"h{n % 5},{n % 10},{'yes' if n % 10 == 9 else 'no'}" for n in range(100)]
    file.write_text("\n".join(["site,age,died", *rows]))
    task = tables.load("linear", str(file), "site", "died", test=0.0, class_weights="balanced")
    zero = jax.tree.map(np.zeros_like, task.model.init(jax.random.key(0)))
    tilt = np.array([1.0, 0.0], np.float32)
    tilted = jax.tree.map(lambda leaf: leaf + tilt if leaf.ndim == 1 else leaf, zero)
    wrong, right = np.log(1 + np.e), np.log(1 + np.e) - 1  # of a positive, of a negative

    def loss(model, params):
        return fedax.evaluate(model, params, task.train)["loss"]

    assert loss(task.model, zero) == pytest.approx(np.log(2), rel=1e-6)
    assert loss(task.model, tilted) == pytest.approx((wrong + right) / 2, rel=1e-6)
    plain = tables.load("linear", str(file), "site", "died", test=0.0).model
    assert loss(plain, tilted) == pytest.approx(0.1 * wrong + 0.9 * right, rel=1e-6)
    assert set(task.model.scores) == {"auc"}
    with pytest.raises(ValueError, match="class_weights"):
        tables.load("linear", str(file), "site", "died", class_weights="fair")


def test_a_sweep_of_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stays.csv").write_text("\n".join(
        ["ward,age,died", *(f"w{n % 4},{n % 9},{int(n % 9 > 4)}" for n in range(80))]))
    line = ["sweep", "stays.csv", "fedavg", "--client", "ward", "--label", "died", "--grid",
            "client_learning_rate=0.1,0.3", "--rounds", "2", "--out", "s"]
    assert run_command(line) == 0
    assert json.loads((tmp_path / "s" / "config.json").read_text())["task"] == "table"
    assert run_command(["sweep", "stays.csv", "fedavg", "--rounds", "2"]) == 2
    assert "fedax sweep stays.csv --client COLUMN --label COLUMN" in capsys.readouterr().err
    assert run_command(["sweep", "digits", "fedavg", "--client", "ward"]) == 2
    assert "fedax sweep FILE.csv --client COLUMN" in capsys.readouterr().err


def test_names_of_columns_like_numbers_are_taken_as_written(tmp_path, monkeypatch, capsys):
    """1_0 is ten for Python, and 007 is seven."""
    monkeypatch.chdir(tmp_path)
    rows = [f"c{row % 3},{row % 2},{row / 7:.2f},{'ab'[row % 2]}" for row in range(24)]
    (tmp_path / "t.csv").write_text("\n".join(["who,10,1_0,007", *rows]))
    for label, kind in (("1_0", "regression"), ("10", "classification"), ("007", "classification")):
        words = ["run", "t.csv", "fedavg", "--client", "who", "--label", label, "--rounds", "1"]
        assert run_command([*words, "--out", label]) == 0
        config = json.loads((tmp_path / label / "config.json").read_text())
        assert config["task_options"]["label"] == label
        assert f"Label {label}: {kind}" in capsys.readouterr().out


def test_a_column_of_gaps_alone_is_filled():
    """A regression looks for columns that give away the label."""
    rows = {"w": ["a", "a", "b", "b"], "age": np.full(4, np.nan), "y": [0.1, 0.2, 0.3, 0.7]}
    table = fedax.fit_table(rows | {"b": [1.0, 2, 3, 5]}, client="w", label="y",
                            columns=["age", "b"], missing=0.0)
    assert [(column.num_gaps, column.fill) for column in table.columns] == [(4, 0.0), (0, 0.0)]
