"""Images and columns of Parquet and Hugging Face: what they become, or why they are refused."""

import datetime
import io
import warnings

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from fedax import DataError, FederatedDataset, read_data

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what its own imports say is not ours
    import datasets

GREY = Image.fromarray(np.array([[0, 200], [200, 0]], np.uint8))
RGB = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(2, 2, 3))
RGBA = Image.fromarray(np.arange(16, dtype=np.uint8).reshape(2, 2, 4), "RGBA")
DEEP = Image.fromarray(np.array([[0, 300], [1000, 60000]], np.uint16))
BIT = Image.fromarray(np.array([[True, False], [False, True]]))
LA = Image.merge("LA", [GREY, GREY])
CMYK = RGB.convert("CMYK")
FLOAT = Image.fromarray(np.array([[0.5, 1], [2, 3]], np.float32))
PALETTE = Image.new("P", (2, 2))
PALETTE.putpalette([0, 0, 0, 200, 100, 50])
PALETTE.putdata([0, 1, 1, 0])


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return {"bytes": buffer.getvalue(), "path": None}


CLEAR = encoded(PALETTE, transparency=0)
TURNED = Image.Exif()
TURNED[0x0112] = 6


def column(*images):
    images = [
        image if isinstance(image, dict)
        else encoded(image, "TIFF" if image.mode in ("F", "CMYK") else "PNG") for image in images
    ]
    features = {"who": datasets.Value("string"), "image": datasets.Image()}
    rows = {"who": ["ada"] * len(images), "image": images}
    return datasets.Dataset.from_dict(rows, features=datasets.Features(features))


def both(tmp_path, *images):
    """What `from_huggingface` and a Parquet file of the same rows give."""
    rows = column(*images)
    given = FederatedDataset.from_huggingface(rows, "who").arrays["image"]
    rows.to_parquet(tmp_path / "images.parquet")
    read = read_data(tmp_path / "images.parquet", client_column="who").arrays["image"]
    assert (read == given).all()
    assert read.dtype == given.dtype
    return given


@pytest.mark.parametrize(("image", "right"), [
    (GREY, np.asarray(GREY)), (RGB, np.asarray(RGB)), (RGBA, np.asarray(RGBA)),
    (DEEP, np.asarray(DEEP)), (LA, np.asarray(LA)), (FLOAT, np.asarray(FLOAT)),
    (PALETTE, np.asarray(PALETTE.convert("RGB"))),
    (CLEAR, [[[0, 0, 0, 0], [200, 100, 50, 255]], [[200, 100, 50, 255], [0, 0, 0, 0]]]),
    (BIT, [[255, 0], [0, 255]]), (CMYK, np.asarray(CMYK.convert("RGB"))),
    (encoded(RGB, exif=TURNED), np.rot90(np.asarray(RGB), -1)),
])
def test_images_become_their_colours(tmp_path, image, right):
    """A palette came as its indices, and 1 bit as truth values."""
    right = np.asarray(right, np.uint8 if isinstance(right, list) else None)
    found = both(tmp_path, image, image)
    assert found.dtype == right.dtype
    assert (found == right).all()


@pytest.mark.quick
def test_images_that_mean_the_same_may_be_mixed(tmp_path):
    for folder in ("grey", "colours"):
        (tmp_path / folder).mkdir()
    assert both(tmp_path / "grey", BIT, GREY)[1].tolist() == np.asarray(GREY).tolist()
    assert both(tmp_path / "colours", RGB, PALETTE, CMYK).shape == (3, 2, 2, 3)


@pytest.mark.parametrize(("images", "said"), [
    ((GREY, DEEP), r"the first is grey uint8\[2, 2\], the one in row 1 is grey uint16\[2, 2\]"),
    ((DEEP, GREY), "the first is grey uint16"),
    ((GREY, RGB), r"the one in row 1 is RGB uint8\[2, 2, 3\]. Convert all to one, such as RGB"),
    ((GREY, PALETTE), "the one in row 1 is RGB"),
    ((PALETTE, CLEAR), r"row 1 has \[2, 2, 4\]"),
    ((FLOAT, DEEP), "the first is grey float32"),
])
def test_images_of_several_kinds_are_refused(tmp_path, images, said):
    """A 16-bit image after an 8-bit one was cut modulo 256."""
    rows = column(*images)
    with pytest.raises(ValueError, match=said):
        FederatedDataset.from_huggingface(rows, "who")
    rows.to_parquet(tmp_path / "images.parquet")
    with pytest.raises(DataError, match=said):
        read_data(tmp_path / "images.parquet", client_column="who")


@pytest.mark.parametrize("first", [GREY, DEEP])
def test_images_of_several_kinds_in_parts_are_refused(tmp_path, monkeypatch, first):
    other = DEEP if first is GREY else GREY
    rows = datasets.concatenate_datasets([column(first), column(other)])
    with pytest.raises(ValueError, match=r"The images of the column 'image' have different modes"):
        FederatedDataset.from_huggingface(rows, "who")
    monkeypatch.setattr("fedax.data.readers.arrow.batch_rows", lambda _: 1)
    rows.to_parquet(tmp_path / "images.parquet")
    with pytest.raises(DataError, match=r"first rows and uint(8|16) from row 1\. Convert all"):
        read_data(tmp_path / "images.parquet", client_column="who")


DAYS = [datetime.date(2020, 1, day) for day in (1, 2, 3)]
COLUMNS = {
    "text": (pyarrow.array(["a", "bb", "c"]), ["a", "c"]),
    "category": (pyarrow.array(["a", "bb", "c"]).dictionary_encode(), ["a", "c"]),
    "view": (pyarrow.array(["a", "bb", "c"], pyarrow.string_view()), ["a", "c"]),
    "bytes": (pyarrow.array([b"a\xff", b"", b"c"]), [b"a\xff", b"c"]),
    "tokens": (pyarrow.array([["to", "be"], [], ["or"]]), [["to", "be"], ["or"]]),
    "pairs": (pyarrow.array([["a", "b"]] * 3, pyarrow.list_(pyarrow.string(), 2)),
              [["a", "b"]] * 2),
    "tokens as bytes": (pyarrow.array([[b"\xff"], [], [b"or", b""]]), [[b"\xff"], [b"or", b""]]),
    "day": (pyarrow.array(DAYS), np.array([DAYS[0], DAYS[2]], "datetime64[D]").tolist()),
    "number as category": (pyarrow.array([1.5, 2.5, 1.5]).dictionary_encode(), [1.5, 1.5]),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_transform_gets_the_columns_of_parquet(tmp_path, kind):
    values, right = COLUMNS[kind]
    path = tmp_path / "t.parquet"
    clients = pyarrow.array(["ada", "bob", "ada"]).dictionary_encode()
    pyarrow.parquet.write_table(pyarrow.table({"who": clients, "c": values}), path)
    seen = []

    def transform(columns):
        seen.append(columns["c"])
        return {"n": np.arange(len(columns["c"]))}

    read_data(path, client_column="who", transform=transform)
    first = seen[0]
    assert (first.tolist() if isinstance(first, np.ndarray) else first) == right


@pytest.mark.slow
def test_a_missing_text_of_parquet_is_none_for_a_transform_and_refused_in_lists(tmp_path):
    def lengths(columns):
        return {"x": np.array([len(value or "") for value in columns["c"]])}

    words = pyarrow.array(["a", None, "ccc"])
    for name, values in {"plain": words, "coded": words.dictionary_encode()}.items():
        path = tmp_path / f"{name}.parquet"
        table = pyarrow.table({"who": ["ada", "bob", "ada"], "c": values})
        pyarrow.parquet.write_table(table, path)
        data = read_data(path, client_column="who", transform=lengths)
        assert data.arrays["x"].tolist() == [1, 3, 0]
        with pytest.raises(DataError, match=r"'c' has a missing value.* row 1"):
            read_data(path, client_column="who", store=tmp_path / "other")
    table = pyarrow.table({"who": ["ada", "bob"], "c": pyarrow.array([["a"], [None]])})
    pyarrow.parquet.write_table(table, path)
    with pytest.raises(DataError, match=r"'c' has a missing value.* row 1"):
        read_data(path, client_column="who", store=tmp_path / "lists", transform=lengths)


def test_what_parquet_cannot_give_names_a_cure_of_its_own(tmp_path):
    path = tmp_path / "t.parquet"
    values = pyarrow.array([datetime.time(hour) for hour in (1, 2)])
    pyarrow.parquet.write_table(pyarrow.table({"who": ["ada", "bob"], "c": values}), path)
    with pytest.raises(DataError, match=r"time, which .*Convert it to numbers, or") as caught:
        read_data(path, client_column="who")
    assert "class_encode" not in str(caught.value)
