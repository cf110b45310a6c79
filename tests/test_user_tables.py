"""Tables with gaps and text: what the columns become is decided once and applied everywhere."""

import csv
import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas
import polars
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

import fedax
from fedax.cli.main import run_command
from fedax.data.errors import DataError
from fedax.data.preparing.fitting import MOST_FEATURES

WARDS = ["icu", "internal", "surgery"]


def stays(num_rows=240, seed=0, gaps=True, num_clients=6):
    r = np.random.default_rng(seed)
    age = r.integers(20, 95, num_rows).astype(float)
    frame = pandas.DataFrame({
        "hospital": [f"H{i % num_clients}" for i in range(num_rows)],
        "age": age,
        "ward": r.choice(WARDS, num_rows),
        "bmi": r.normal(26, 4, num_rows),
        "died": (r.random(num_rows) < 1 / (1 + np.exp(-(age - 80) / 6))).astype(int),
    })
    if gaps:
        frame.loc[::7, "age"] = np.nan
        frame.loc[::11, "bmi"] = np.nan
        frame.loc[::13, "ward"] = None
    return frame


@pytest.mark.quick
@pytest.mark.parametrize("encoding", ["one_hot", "ordinal"])
def test_filling_and_scaling_are_those_of_scikit_learn(encoding):
    train, test = stays(seed=1), stays(seed=2)
    for frame in (train, test):
        frame["ward"] = frame["ward"].fillna("icu")
    table = fedax.fit_table(
        train, client="hospital", label="died", columns=["age", "bmi", "ward"], missing="mean",
        encoding=encoding,
    )
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    text = OneHotEncoder(sparse_output=False) if encoding == "one_hot" else (
        make_pipeline(OrdinalEncoder(), StandardScaler())
    )
    oracle = ColumnTransformer([("n", numbers, ["age", "bmi"]), ("t", text, ["ward"])])
    oracle.fit(train)
    scaler = oracle.named_transformers_["n"]
    found = [(c.fill, c.mean, c.deviation) for c in table.columns if c.name in ("age", "bmi")]
    expected = zip(scaler[0].statistics_, scaler[1].mean_, scaler[1].scale_, strict=True)
    np.testing.assert_allclose(found, list(expected), rtol=1e-12)
    for frame in (train, test):
        wanted = oracle.transform(frame).astype(np.float32)
        np.testing.assert_allclose(table.transform(frame), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.quick
def test_scaling_by_client_is_a_scaler_for_each_and_of_all_for_others():
    train = stays(gaps=False)
    table = fedax.fit_table(
        train, client="hospital", columns=["age", "bmi"], scaling="client"
    )
    data = table.apply(train)
    for name, rows in train.groupby("hospital"):
        wanted = StandardScaler().fit_transform(rows[["age", "bmi"]])
        np.testing.assert_allclose(data.client(name)["x"], wanted, rtol=1e-5, atol=1e-6)
    stranger = train.assign(hospital="elsewhere")
    wanted = StandardScaler().fit_transform(train[["age", "bmi"]])
    np.testing.assert_allclose(table.transform(stranger), wanted, rtol=1e-5, atol=1e-6)
    without = train.drop(columns="hospital")
    np.testing.assert_allclose(table.transform(without), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.quick
def test_a_frame_of_pandas_one_of_polars_columns_and_files_are_alike(tmp_path):
    frame = stays()
    frame["age"] = frame["age"].astype("Int64")
    frame["bmi"] = frame["bmi"].astype(np.float32)
    frame.to_csv(tmp_path / "stays.csv", index=False)
    frame.to_csv(tmp_path / "stays.csv.gz", index=False)
    frame.to_csv(tmp_path / "na.csv", index=False, na_rep="NA")
    frame.to_parquet(tmp_path / "stays.parquet", row_group_size=7)
    columns = {
        name: [None if pandas.isna(value) else value for value in frame[name]] for name in frame
    }
    options = {"client": "hospital", "label": "died", "missing": "mean"}
    expected = fedax.fit_table(frame, **options).apply(frame)
    assert expected.arrays["x"].shape == (240, 6)
    others = [polars.from_pandas(frame), columns, *map(str, tmp_path.glob("stays.*"))]
    assert len(others) == 5
    for source in others:
        found = fedax.fit_table(source, **options).apply(source)
        assert found.names.tolist() == expected.names.tolist()
        for key in ("x", "y"):
            np.testing.assert_allclose(
                found.arrays[key], expected.arrays[key], rtol=1e-5, atol=1e-6
            )
    # In numbers NA is a gap; in text it stays what it is.
    na = fedax.fit_table(tmp_path / "na.csv", **options)
    assert [c.num_gaps for c in na.columns] == [35, 0, 22]
    assert "NA" in na.columns[1].categories


@pytest.mark.quick
def test_gaps_of_the_test_rows_are_filled_by_the_training_rows():
    train = {"who": ["a", "a", "b"], "x": [1.0, 3.0, None], "t": ["u", "v", "u"]}
    test = {"who": ["a", "b"], "x": [None, 7.0], "t": ["v", "u"]}
    table = fedax.fit_table(train, client="who", missing="mean", scaling="none")
    assert table.transform(test).tolist() == [[2.0, 0.0, 1.0], [7.0, 1.0, 0.0]]
    table = fedax.fit_table(train, client="who", missing=-1, scaling="none")
    assert table.transform(test)[0, 0] == -1
    table = fedax.fit_table(train, client="who", missing={"x": "mean"}, scaling="none")
    with pytest.raises(ValueError, match="'t' has a missing value in row 0"):
        table.apply(test | {"t": [None, "u"]})
    full = train | {"x": [1.0, 3.0, 2.0]}
    table = fedax.fit_table(full, client="who")
    with pytest.raises(ValueError, match=r"'x' has a missing value in row 0.*missing=\"mean\""):
        table.apply(test)
    with pytest.raises(ValueError, match="'x' has a missing value in row 2"):
        fedax.fit_table(train, client="who")


@pytest.mark.quick
def test_unknown_text_is_an_error_or_has_a_place_of_its_own():
    train = {"who": ["a", "a", "b"], "t": ["u", "v", "u"], "x": [0.0, 1.0, 2.0]}
    new = {"who": ["a", "a"], "t": ["w", None], "x": [0.0, 0.0]}
    table = fedax.fit_table(train, client="who")
    with pytest.raises(ValueError, match=r"category 'w' in row 0.*among the 2 .*\['u', 'v'\]"):
        table.apply(new)
    table = fedax.fit_table(train, client="who", unknown="column", columns=["t"])
    assert table.features == ["t=u", "t=v", "t=(other)"]
    assert table.transform(new).tolist() == [[0, 0, 1], [0, 0, 1]]
    table = fedax.fit_table(
        train, client="who", unknown="column", columns=["t"], encoding="ordinal", scaling="none",
        categories={"t": ["v", "u"]},
    )
    assert table.transform(train | {"t": ["u", "v", "w"]}).ravel().tolist() == [1, 0, 2]
    with pytest.raises(ValueError, match="'u' in row 0"):
        fedax.fit_table(train, client="who", categories={"t": ["v"]})
    # A column of text may hold only digits in another file.
    table = fedax.fit_table(train | {"t": ["1", "2", "x"]}, client="who", columns=["t"])
    digits = {"who": ["a", "b"], "t": [2, 1.0], "x": [0, 0]}
    assert table.transform(digits).argmax(1).tolist() == [1, 0]


@pytest.mark.quick
def test_categories_of_a_frame_keep_their_order():
    frame = pandas.DataFrame({
        "who": ["a", "b"], "size": pandas.Categorical(["S", "L"], ["S", "M", "L"]),
    })
    table = fedax.fit_table(frame, client="who", columns=["size"])
    assert table.features == ["size=S", "size=M", "size=L"]
    ordinal = fedax.fit_table(
        polars.DataFrame({"who": ["a", "b"], "size": ["S", "L"]}).with_columns(
            polars.col("size").cast(polars.Enum(["S", "M", "L"]))
        ), client="who", columns=["size"], encoding="ordinal", scaling="none",
    )
    assert ordinal.transform(frame).ravel().tolist() == [0, 2]


@pytest.mark.quick
def test_what_a_label_is():
    def label(values, **options):
        who = ["a", "b"] * (len(values) // 2)
        table = {"who": who, "x": np.arange(len(values)) / 7, "y": values}
        return fedax.fit_table(table, client="who", label="y", **options).label

    assert label(["no", "yes"] * 2).classes == ("no", "yes")
    assert label(["no", "yes"] * 2, positive="no").classes == ("yes", "no")
    assert label([True, False] * 2).classes == (False, True)
    assert label([2.0, 1.0, 1.0, 3.0]).classes == (1, 2, 3)
    assert label([2.0, 1.0, 1.0, 3.0]).counts == (2, 1, 1)
    assert label([0.5, 1.0, 1.0, 3.0]).classes == ()
    assert label(list(range(30))).classes == ()
    assert label(list(range(30)), objective="classification").classes == tuple(range(30))
    number = label([1, 2, 3, 6], objective="regression")
    assert (number.mean, number.deviation) == (3.0, pytest.approx(np.std([1, 2, 3, 6])))
    with pytest.raises(ValueError, match="label 'y' is 1 in every training row"):
        label([1, 1])
    with pytest.raises(ValueError, match="positive='maybe' is not one of two classes"):
        label(["no", "yes"], positive="maybe")
    with pytest.raises(ValueError, match=r"'y' has a missing value in row 1. It is the label"):
        label([1.0, None])


@pytest.mark.quick
def test_ids_constants_dates_and_names_of_clients_are_left_out_unless_named():
    frame = stays(gaps=False)
    frame["patient_id"] = np.arange(len(frame)) * 17
    frame["code"] = [f"P{i:04d}" for i in range(len(frame))]
    frame["unit"] = "mg"
    frame["admitted"] = [f"2024-01-{i % 28 + 1:02d}" for i in range(len(frame))]
    frame["city"] = frame["hospital"].map(lambda name: f"city of {name}")
    frame["nothing"] = None
    frame["when"] = pandas.Timestamp("2024-01-01")
    frame["money"] = np.random.default_rng(0).permutation(10**6)[: len(frame)]
    frame["verdict"] = np.where(frame["died"] == 1, "late", "home")
    table = fedax.fit_table(frame, client="hospital", label="died")
    why = {column.name: column.why for column in table.columns if column.how == "left out"}
    assert why == {
        "patient_id": "has a different value in every row, like an id",
        "code": "has a different value in every row, like an id",
        "unit": "has the same value in every row", "admitted": "holds dates",
        "city": "only names the client", "nothing": "has no values", "when": "holds Timestamp",
    }
    assert len(table.findings) == 1
    assert table.findings[0].startswith("verdict gives away the label: each of its 2 values")
    text = str(table)
    assert "Label died: classification, as it has 2 whole numbers: 0 " in text
    assert "the positive class is 1" in text
    assert "money: number; scaled by mean" in text
    assert "unit is left out: it has the same value in every row" in text
    named = fedax.fit_table(frame, client="hospital", columns=["patient_id", "unit"])
    assert named.features == ["patient_id", "unit=mg"]
    with pytest.raises(ValueError, match="No feature column remains: 'unit' has the same value"):
        fedax.fit_table(frame[["hospital", "unit"]], client="hospital")


@pytest.mark.quick
def test_predictions_are_values_again():
    table = fedax.fit_table(stays(), client="hospital", label="died", missing="mean")
    assert table.predictions([[0.1, 2.0], [3.0, 1.0]]).tolist() == [1, 0]
    frame = stays(gaps=False)
    number = fedax.fit_table(frame, client="hospital", label="bmi")
    y = number.apply(frame).arrays["y"]
    np.testing.assert_allclose(np.sort(number.predictions(y)), np.sort(frame["bmi"]), rtol=1e-5)
    with pytest.raises(ValueError, match=r"have shape \[num_rows, 2\], but they have shape \[3\]"):
        table.predictions([1.0, 2.0, 3.0])


@pytest.mark.quick
def test_a_table_is_the_same_from_its_json_and_a_damaged_one_is_refused():
    table = fedax.fit_table(
        stays(), client="hospital", label="died", missing="mean", scaling="client",
        unknown="column",
    )
    assert fedax.Table.from_json(table.to_json()) == table
    written = json.loads(table.to_json())
    damaged = [
        b"", b"[]", b"{}", b'{"format": 2}', "[" * 10**5,
        json.dumps(written | {"format": 9}), json.dumps(written | {"columns": [{}]}),
        json.dumps(written | {"more": 1}), json.dumps(written | {"clients": {"a": [[1], [0]]}}),
        table.to_json().replace('"number"', '"__import__"'),
        json.dumps(written | {"columns": [written["columns"][0] | {"deviation": 0.0}]}),
        json.dumps(written | {"columns": [written["columns"][0] | {"mean": "one"}]}),
    ]
    for text in damaged:
        with pytest.raises(ValueError, match="not a table saved by fedax"):
            fedax.Table.from_json(text)


@pytest.mark.quick
@pytest.mark.parametrize(("source", "options", "match"), [
    ({"who": ["a"], "x": [1.0, 2.0]}, {}, "same number of rows"),
    ({"who": [], "x": []}, {}, "at least one row"),
    ({"you": ["a"], "x": [1.0]}, {}, "Unknown client column 'who'.*Did you mean|Known: 'you'"),
    ({"who": ["a", "b"], "x": [1.0, np.inf]}, {}, "'x' holds infinity in row 1"),
    ({"who": ["a", "b"], "x": [1.0, 2.0]}, {"columns": ["xx"]}, "Did you mean 'x'"),
    ({"who": ["a", "b"], "x": [1.0, 2.0]}, {"label": "y"}, "Unknown label column 'y'"),
    ({"who": ["a", "b"], "x": [1.0, 2.0]}, {"missing": "median"}, "missing must be"),
    ({"who": ["a", "b"], "x": [1.0, 2.0]}, {"missing": {"z": 0}}, "column 'z' in missing"),
    ({"who": ["a", "b"], "x": [1.0, 2.0]}, {"scaling": "robust"}, "scaling"),
    ({"who": ["a", "b"], "x": [1, "u"]}, {"columns": ["x"]}, "'x' holds 1, of type int"),
    ({"who": ["a", "b"], "x": [[1], [2]]}, {"columns": ["x"]}, "'x' holds .* of type list"),
    ({"who": ["a", None], "x": [1.0, 2.0]}, {}, "Row 1 has no client"),
    (3, {}, "A table must be a file"),
    (pandas.DataFrame({"who": ["a", "b"], "x": [1, 2]}), {"categories": {"x": "ab"}}, "a list"),
    (polars.DataFrame({"who": ["a"], "x": [1]}).lazy(), {}, "collect"),
])
def test_what_does_not_fit_is_said(source, options, match):
    with pytest.raises(ValueError, match=match):
        fedax.fit_table(source, client="who", **options)


@pytest.mark.quick
def test_too_many_features_are_refused():
    many = {"who": ["a"] * (MOST_FEATURES + 1), "t": [str(i) for i in range(MOST_FEATURES + 1)]}
    with pytest.raises(ValueError, match=r"have 16,385 features.*ordinal"):
        fedax.fit_table(many, client="who", columns=["t"])


@pytest.mark.quick
def test_new_rows_of_another_kind_are_named():
    table = fedax.fit_table({"who": ["a", "b"], "x": [1.0, 2.0]}, client="who")
    with pytest.raises(ValueError, match="'x' holds 'high' in row 1, but the training rows hold"):
        table.apply({"who": ["a", "b"], "x": [1.0, "high"]})
    with pytest.raises(ValueError, match="does not have the column 'x', which the training"):
        table.apply({"who": ["a"], "z": [1.0]})
    assert set(table.apply({"who": ["a"], "x": [1]}).arrays) == {"x"}


@pytest.mark.quick
def test_a_part_of_a_data_set_keeps_its_table():
    frame = stays()
    data = fedax.fit_table(frame, client="hospital", label="died", missing="mean").apply(frame)
    train, test = data.split(0.2)
    parts = [train, test, data.take([0]), data.select(["H1"]), data.pooled()]
    assert all(part.table is data.table for part in parts)


@pytest.mark.quick
@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("is_grouped", [True, False])
def test_a_transform_sees_missing_cells(tmp_path, ending, is_grouped):
    frame = pandas.DataFrame({
        "who": ["a", "a", "b"] if is_grouped else ["a", "b", "a"],
        "n": pandas.array([1, None, 3], "Int64"), "f": [0.5, None, 1.5], "t": ["u", None, "w"],
        "flag": pandas.array([None, 1, 0], "Int64"), "none": [None, None, None],
    })
    path = tmp_path / f"t.{ending}"
    frame.to_csv(path, index=False) if ending == "csv" else (
        frame.to_parquet(path, row_group_size=1)
    )
    seen = {"n": [], "f": [], "t": [], "flag": [], "none": []}

    def transform(columns):
        for name, values in columns.items():
            seen[name] += list(values)
        return {"x": np.nan_to_num(columns["n"])}

    order = [0, 1, 2] if is_grouped else [0, 2, 1]
    data = fedax.read_data(path, client_column="who", transform=transform)
    values = np.array([1.0, 0.0, 3.0])[order]
    assert data.arrays["x"].tolist() == values.tolist()
    last = {name: column[-3:] for name, column in seen.items()}  # a file may be begun again
    np.testing.assert_array_equal(last["n"], np.array([1, np.nan, 3])[order])
    np.testing.assert_array_equal(last["f"], np.array([0.5, np.nan, 1.5])[order])
    np.testing.assert_array_equal(last["flag"], np.array([np.nan, 1, 0])[order])
    assert last["t"] == [["u", None, "w"][i] for i in order]
    assert last["none"] == [None] * 3
    with pytest.raises(DataError, match="missing value"):
        fedax.read_data(path, client_column="who", store=tmp_path / "other")


@pytest.fixture
def table_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stays().to_csv("stays.csv", index=False)
    return ["run", "stays.csv", "--client", "hospital", "--label", "died", "--rounds", "2",
            "--cohort-size", "3"]


@pytest.mark.slow
def test_a_file_is_a_task_at_the_command_line(table_file, tmp_path, monkeypatch, capsys):
    assert run_command([*table_file, "--out", "run", "--set", "test=0.25"]) == 0
    said = capsys.readouterr().out
    for line in (
        "Label died: classification, as it has 2 whole numbers: 0 ", "the positive class is 1",
        "ward: one-hot of 3 categories: icu, internal, surgery; ", "Test rows: 60, 25% of",
        "the most frequent class: test accuracy",
    ):
        assert line in " ".join(said.split())
    run = fedax.load_run("run")
    assert run.table == run.task.train.table
    new = run.table.apply(stays(seed=9))
    assert set(fedax.evaluate(run.task.model, run.params, new)) == {"accuracy", "auc", "loss"}
    # The test rows took no part: the table is that of the training rows alone.
    frame = stays()
    ids = fedax.FederatedDataset.from_arrays({"row": np.arange(240)}, frame["hospital"])
    # A file's rows come client by client, in the order of their first row.
    rows = ids.arrays["row"][np.argsort(np.repeat(np.arange(6), 40), kind="stable")]
    train, _ = fedax.FederatedDataset.from_arrays(
        {"row": rows}, frame["hospital"].to_numpy()[rows]
    ).split(0.25)
    kept = frame.iloc[train.arrays["row"]]
    assert run.table.columns[0].mean == pytest.approx(kept["age"].mean(), rel=1e-6)
    # Elsewhere, and by its configuration, it is the same run.
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run_command(["run", "--resume", "../run", "--rounds", "3"]) == 0
    assert run_command(["run", "--config", "../run/config.json", "--out", "again"]) == 0
    losses = [fedax.load_run(folder).history["train_loss"] for folder in ("again", "../run")]
    np.testing.assert_array_equal(*losses)
    lines = (tmp_path / "stays.csv").read_text().splitlines()
    (tmp_path / "stays.csv").write_text("\n".join([*lines[:-1], lines[1]]) + "\n")
    capsys.readouterr()
    assert run_command(["run", "--resume", "../run", "--rounds", "4"]) == 1
    assert "has changed: the contents of" in capsys.readouterr().err
    (tmp_path / "run" / "table.json").write_text("{}")
    with pytest.raises(fedax.RunError, match=r"table\.json cannot be read"):
        _ = fedax.load_run("../run").table


@pytest.mark.slow
def test_a_regression_a_second_file_and_a_network(table_file, capsys):
    stays(60, seed=5).to_csv("second.csv", index=False)
    stays(gaps=False).to_csv("stays.csv", index=False)
    line = ["bmi" if word == "died" else word for word in table_file]
    words = ["test=second.csv", "model=mlp", "leave_out=died", "missing=0"]
    stays(60, seed=5, gaps=False).to_csv("second.csv", index=False)
    assert run_command([*line, "--out", "run", "--set", *words]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Label bmi: regression, as its values are numbers with decimals; scaled by" in said
    assert "Test rows: 60, those of" in said
    assert "the mean: test loss" in said
    run = fedax.load_run("run")
    assert run.task.test.num_examples == 60
    assert run.table.features == ["age", "ward=icu", "ward=internal", "ward=surgery",
                                  "ward=(other)"]
    assert Path(run.config["task_options"]["test"]).is_absolute()


@pytest.mark.quick
@pytest.mark.parametrize(("words", "status", "match"), [
    (["stays.csv"], 2, "needs the column of clients and the column to predict"),
    (["stays.csv", "--client", "hospital"], 2, "--client COLUMN --label COLUMN"),
    (["nothing.csv", "--client", "a", "--label", "b"], 1, "nothing.csv: No such file"),
    (["stays.csv", "--client", "hospitals", "--label", "died"], 1, "Did you mean 'hospital'"),
    (["stays.csv", "--client", "hospital", "--label", "dead"], 1, "Unknown label column 'dead'"),
    (["digits", "--client", "hospital"], 2, "are for a table, but digits is a task"),
    (["stays.csv", "--client", "hospital", "--label", "died", "--set", "test=2"], 1, "test"),
    (["stays.csv", "--client", "hospital", "--label", "died", "--set", "missing=error"], 1,
     "'age' has a missing value in line 2, of client 'H0'. Fit the table with missing=\"mean\" or "
     "with a number (on the command line: --set missing=mean)"),
    (["stays.csv", "--client", "hospital", "--label", "died", "--set", "leave_out=xyz"], 1,
     "Unknown column 'xyz' in leave_out"),
    (["stays.csv", "--client", "hospital", "--label", "died", "--set", "test=gone.csv"], 1,
     "Cannot read"),
])
@pytest.mark.usefixtures("table_file")
def test_mistakes_at_the_command_line(words, status, match, capsys):
    assert run_command(["run", *words]) == status
    said = capsys.readouterr().err
    assert match in said
    assert said.count("\n") == 1


@pytest.mark.quick
@pytest.mark.parametrize(("words", "end"), [
    ([], "Add --client COLUMN --label COLUMN to see the preset's values."),
    (["--set", "client=hospital"],
     "Add --client COLUMN --label COLUMN to see the preset's values."),
    (["--client", "hospital", "--label", "died"], None),
    (["--set", "client=hospital", "label=died", "client_learning_rate=0.5"], None),
])
@pytest.mark.usefixtures("table_file")
def test_help_of_a_file_shows_the_presets_values(words, end, capsys):
    with pytest.raises(SystemExit) as stopped:
        run_command(["run", "stays.csv", *words, "--help"])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    assert "  file  text; required\n" in said  # it is the user's, not the preset's
    assert ("; preset quick: " in said) == (end is None)
    assert end is None or said.endswith(f"\n\n{end}\n")
    rate, = (line for line in said.splitlines() if line.startswith("  client_learning_rate  "))
    assert "preset" not in rate or "client_learning_rate=0.5" not in words


@pytest.mark.quick
def test_names_that_command_a_terminal_are_written_out(tmp_path):
    path = tmp_path / "odd.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["who", "a\x1b[2Jb", "y"])
        writer.writerows([[f"c{i % 2}", f"t\x1b[2J{i % 3}", i % 2] for i in range(12)])
    table = fedax.fit_table(path, client="who", label="y")
    assert "\x1b" not in str(table)
    assert dataclasses.replace(table) == table


@pytest.mark.slow
def test_a_task_of_ones_own_with_a_table_trains_on_the_command_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("""
import fedax
def task():
    rows = {"who": ["a"] * 6 + ["b"] * 6, "x": [0.0, 1.0, 2.0] * 4, "died": ["no", "yes"] * 6}
    data = fedax.fit_table(rows, client="who", label="died").apply(rows)
    train, test = data.split(0.34)
    inputs = data.arrays["x"].shape[1]
    return fedax.Task(fedax.models.mlp_classifier(inputs, (4,), 2), train, test)
""")
    assert run_command(["run", "own.py:task", "fedavg", "--rounds", "2", "--out", "out",
                        "--set", "client_learning_rate=0.1"]) == 0
    assert "Test rows: 4" in capsys.readouterr().out
