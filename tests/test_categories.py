"""Categories of text columns: numbered alike in the training and the test set, or refused."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import polars
import pytest

import fedax
from fedax import FederatedDataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what its own imports say is not ours
    import datasets

TRAIN = {
    "who": ["h1", "h2", "h1", "h2"], "ward": ["cardio", "onco", "emergency", "onco"],
    "y": [0, 1, 0, 1],
}
TEST = {"who": ["h1", "h2"], "ward": ["emergency", "onco"], "y": [0, 1]}
WARDS = ["cardio", "emergency", "onco"]


def polars_frame(rows):
    return polars.DataFrame(rows)


def polars_enum(rows):
    enum = polars.Enum(sorted(set(rows["ward"])))
    return polars.DataFrame(rows).with_columns(polars.col("ward").cast(enum))


def pandas_category(rows):
    frame = pandas.DataFrame(rows)
    return frame.assign(ward=frame["ward"].astype("category"))


def of(make, rows, **options):
    return FederatedDataset.from_frame(make(rows), "who", {"x": "ward", "y": "y"}, **options)


def model():
    return fedax.classification(
        lambda key: {"w": jnp.zeros((3, 2))}, lambda params, x: jax.nn.one_hot(x, 3) @ params["w"]
    )


@pytest.mark.parametrize("make", [pandas_category, polars_enum])
def test_two_numberings_of_a_column_are_refused(make):
    """Training accuracy was 100%, test accuracy 29%."""
    train, test = of(make, TRAIN), of(make, TEST)
    with pytest.raises(ValueError, match=r"different codes.*'emergency' is 1 in train and 0"):
        fedax.Task(model(), train, test)
    task = fedax.Task(model(), train, of(make, TEST, categories=train))
    assert task.test.arrays["x"].tolist() == [1, 2]
    with pytest.raises(ValueError, match=r"the category 'cardio' in test, but not in train"):
        fedax.Task(model(), test, train)


@pytest.mark.parametrize("make", [pandas_category, polars_enum, pandas.DataFrame, polars_frame])
def test_a_test_set_is_numbered_as_the_training_set(make):
    train = of(make, TRAIN, categories={"ward": WARDS})
    assert train.arrays["x"].tolist() == [0, 1, 2, 2]
    assert train.arrays["x"].dtype == np.int32
    assert train.categories == {"ward": tuple(WARDS)}
    parts = (train, *train.split(0.5), train.select(["h2"]), train.take([0]), train.pooled())
    for given in (*parts, make(TRAIN)):
        test = of(make, TEST, categories=given)
        assert test.arrays["x"].tolist() == [1, 2]
        assert test.categories == train.categories
    result = fedax.train(
        fedax.Task(model(), train, test), fedax.fedavg(model(), 1.0), num_rounds=20, cohort_size=2,
        progress=False,
    )
    assert fedax.evaluate(model(), result.params, test)["accuracy"] == 1


@pytest.mark.parametrize("make", [pandas_category, polars_enum, pandas.DataFrame, polars_frame])
def test_an_unknown_category_is_named(make):
    train = of(make, TRAIN, categories={"ward": WARDS})
    rows = {**TEST, "ward": ["onco", "surgery"]}
    with pytest.raises(ValueError, match=r"'surgery', first in row 1.* 3 categories: \['cardio'"):
        of(make, rows, categories=train)


def test_hugging_face_has_the_same(tmp_path):
    def given(rows, **options):
        return FederatedDataset.from_huggingface(
            datasets.Dataset.from_dict(rows), "who", {"x": "ward", "y": "y"}, **options
        )

    with pytest.raises(ValueError, match=r"holds text.*categories=\{'ward': \[...\]\}.*one_hot"):
        given(TRAIN)
    train = given(TRAIN, categories={"ward": WARDS})
    assert given(TEST, categories=train).arrays["x"].tolist() == [1, 2]
    with pytest.raises(ValueError, match=r"category 'surgery', first in row 0"):
        given({**TEST, "ward": ["surgery", "onco"]}, categories=train)
    labelled = [
        FederatedDataset.from_huggingface(
            datasets.Dataset.from_dict(rows).class_encode_column("ward"), "who",
            {"x": "ward", "y": "y"}, categories=categories,
        ) for rows, categories in ((TRAIN, None), (TEST, None), (TEST, {"ward": WARDS}))
    ]
    with pytest.raises(ValueError, match=r"different codes"):
        fedax.Task(model(), *labelled[:2])
    assert labelled[2].arrays["x"].tolist() == [1, 2]
    assert labelled[0].arrays["x"].tolist() == [0, 1, 2, 2]


@pytest.mark.quick
def test_the_message_of_a_text_column_names_the_cure():
    with pytest.raises(ValueError, match=r"holds text.*=\{'ward': \[...\]\} and.*=train;.*one-hot"):
        of(pandas.DataFrame, TRAIN)


@pytest.mark.parametrize(("categories", "said"), [
    ({"wrad": WARDS}, "Unknown column 'wrad' in categories.*ward"),
    ({"ward": ["a", "a"]}, "'a' occurs twice"),
    ({"ward": "cardio"}, "must be a list"),
    (WARDS, "categories must be"),
])
def test_categories_that_cannot_be(categories, said):
    with pytest.raises(ValueError, match=said):
        of(pandas.DataFrame, TRAIN, categories=categories)


def test_a_training_set_without_categories_is_refused():
    plain = FederatedDataset.from_frame(pandas.DataFrame(TRAIN), "who", ["y"])
    with pytest.raises(ValueError, match=r"it has no categories"):
        of(pandas.DataFrame, TEST, categories=plain)


def test_categories_may_be_numbers():
    frame = pandas.DataFrame({"who": ["a", "b", "a"], "year": [2021, 2019, 2021]})
    years = {"year": np.array([2019, 2020, 2021])}
    data = FederatedDataset.from_frame(frame, "who", categories=years)
    assert data.client("a")["year"].tolist() == [2, 2]
