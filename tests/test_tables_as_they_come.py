"""Decimal commas, rows without a label, and clients without one of two classes."""

import numpy as np
import pytest

import fedax
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


def test_text_that_only_resembles_numbers_stays_text():
    rooms = STAYS | {"bmi": ["27,4", "12,34,5", "x", "3,5", "2", "1,5"]}
    table = fedax.fit_table(rooms, **FITTED, decimal="comma", unlabelled="drop")
    assert table.columns[0].how == "one_hot"
    assert not any("decimal commas" in text for text in table.findings)


def test_what_is_worth_a_look():
    table = fedax.fit_table(STAYS, **FITTED, unlabelled="drop")
    assert table.columns[0].how == "one_hot"
    assert table.findings == (
        "bmi looks like numbers with decimal commas. To read them as numbers, set decimal to "
        "comma.",
        "2 of 3 clients have no training row with the class yes.",
    )


def test_rows_without_a_label():
    with pytest.raises(ValueError, match=r'the label. Fill it in, .* or give unlabelled="drop"'):
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
