"""Every form in which the catalogue's data sets come, made small, got, and read back equal."""

import errno
import io
import json
import lzma
import pickle
import sys
import tarfile

import h5py
import numpy as np
import pytest
from PIL import Image

import made_data
from fedax.data import shakespeare, store_writer
from fedax.data.catalogue import PRODUCTS, SOURCES, Expected, tff
from fedax.data.downloads.files import sha256_of
from fedax.data.errors import DataError
from fedax.data.folder import data_folder, load_dataset
from fedax.data.getting import get_dataset
from fedax.data.readers.png_sheets import read_png_sheets
from fedax.data.tff import cifar100_images, emnist_images, shakespeare_tokens

RNG = np.random.default_rng(3)
GREY = RNG.integers(0, 256, (5, 28, 28)).astype(np.uint8)
LABELS = np.array([0, 61, 10, 36, 35])
SNIPPETS = [b"Hark!", b"x" * 100, b"'Twas a rough fight.\nNo?"]
POSTS = {
    "tokens": [b"how to sort a list", b"use sorted"], "title": [b"sort", b"sort"],
    "tags": [b"python|c", b"python|nothing"], "score": np.array([3, -1]),
    "creation_date": [b"2010", b"2011"], "type": [b"question", b"answer"],
}


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDAX_DATA", str(tmp_path / "data"))


def expect(monkeypatch, name, train, test):
    """Expects so many clients and examples of a data set."""
    product = PRODUCTS[name]._replace(train=Expected(*train), test=Expected(*test))
    monkeypatch.setitem(PRODUCTS, name, product)


def accept(monkeypatch, origin, *paths):
    """Has the catalogue know these files as published."""
    source = SOURCES[origin]
    known = {path.name: path for path in paths}

    def changed(files):
        return tuple(
            file._replace(sha256=sha256_of(known[file.name]), num_bytes=None)
            if file.name in known else file for file in files
        )

    monkeypatch.setitem(SOURCES, origin, source._replace(
        downloads=changed(source.downloads), known=changed(source.known)
    ))


def hdf5(path, clients):
    with h5py.File(path, "w") as file:
        for name, columns in clients.items():
            for field, values in columns.items():
                file[f"examples/{name}/{field}"] = values


def archive(path, folder, *files):
    with tarfile.open(path, "w:bz2") as out:
        for name in files:
            out.add(folder / name, name)
    return path


@pytest.mark.quick
@pytest.mark.parametrize("form", ["archive", "sqlite"])
def test_emnist(form, monkeypatch, tmp_path):
    pixels = GREY.astype(np.float32) / 255
    ada = {"pixels": pixels[:3], "label": LABELS[:3].astype(np.int32)}
    bob = {"pixels": pixels[3:], "label": LABELS[3:].astype(np.int32)}
    if form == "archive":
        hdf5(tmp_path / "fed_emnist_train.h5", {"f0001_41": ada, "f0002_10": bob})
        hdf5(tmp_path / "fed_emnist_test.h5", {"f0001_41": bob})
        given = archive(
            tmp_path / "fed_emnist.tar.bz2", tmp_path, "fed_emnist_train.h5", "fed_emnist_test.h5"
        )
        accept(monkeypatch, "emnist", given)
    else:
        given = tmp_path / "emnist_all.sqlite"

        def rows(columns):
            return [
                made_data.tf_example({"pixels": x.ravel(), "label": [y]})
                for x, y in zip(columns["pixels"], columns["label"], strict=True)
            ]

        made_data.sqlite(given, {
            "all_train": {"f0001_41": rows(ada), "f0002_10": rows(bob)},
            "all_test": {"f0001_41": rows(bob)}, "digits_only_train": {"f0001_41": rows(bob)},
        })
    with pytest.raises(DataError, match="emnist/train: there are 2 clients, but there must be 3,4"):
        get_dataset("emnist", source=given)
    expect(monkeypatch, "emnist", (2, 5), (1, 2))
    get_dataset("emnist", source=given, say=str)
    train, test = load_dataset("emnist")
    assert (train.arrays["x"][..., 0].reshape(-1, 28, 28) == GREY).all()
    assert train.arrays["y"].tolist() == LABELS.tolist()
    assert train.client_names.tolist() == ["f0001_41", "f0002_10"]
    assert train.offsets.tolist() == [0, 3, 5]
    assert (train.arrays["x"].dtype, train.arrays["x"].shape) == (np.uint8, (5, 28, 28, 1))
    assert test.arrays["y"].tolist() == LABELS[3:].tolist()


def test_federated_cifar100(monkeypatch, tmp_path):
    x = RNG.integers(0, 256, (4, 32, 32, 3)).astype(np.uint8)
    labels, coarse = np.array([[99], [0], [5], [7]]), np.array([[19], [0], [1], [1]])
    have = {"image": x, "label": labels, "coarse_label": coarse}
    hdf5(tmp_path / "fed_cifar100_train.h5", {
        "0": {key: value[:1] for key, value in have.items()},
        "10": {key: value[1:] for key, value in have.items()},
    })
    hdf5(tmp_path / "fed_cifar100_test.h5", {"0": have})
    with pytest.raises(DataError, match="there are 2 clients, but there must be 500"):
        get_dataset("cifar100-tff", source=tmp_path)
    expect(monkeypatch, "cifar100-tff", (2, 4), (1, 4))
    get_dataset("cifar100-tff", source=tmp_path, say=str)
    train = load_dataset("cifar100-tff").train
    assert (train.arrays["x"] == x).all()
    assert train.arrays["y"].tolist() == [99, 0, 5, 7]
    assert train.client("10")["coarse"].tolist() == [0, 1, 1]
    with pytest.raises(DataError, match=r"must be uint8\[32, 32, 3\], not int64"):
        cifar100_images(have | {"image": x.astype(np.int64)})


@pytest.mark.parametrize("wrong", [0.1234, -1 / 255, 256 / 255, np.nan])
def test_pixels_that_are_no_grey_values_are_refused(wrong):
    with pytest.raises(DataError, match="multiples of 1/255"):
        emnist_images({"pixels": np.full((1, 28, 28), wrong, np.float32), "label": [1]})


@pytest.mark.parametrize("packed", [False, True])
def test_shakespeare(packed, monkeypatch, tmp_path):
    rows = [made_data.tf_example({"snippets": snippet}) for snippet in SNIPPETS]
    given = tmp_path / "shakespeare.sqlite"
    made_data.sqlite(given, {"train": {"HAM": rows}, "test": {"HAM": rows[:1]}})
    if packed:
        raw, given = given, tmp_path / "shakespeare.sqlite.lzma"
        given.write_bytes(lzma.compress(raw.read_bytes(), lzma.FORMAT_ALONE))
        with pytest.raises(DataError, match=r"shakespeare\.sqlite\.lzma .* 1,329,828 were publ"):
            get_dataset("shakespeare", source=given)
        accept(monkeypatch, "shakespeare", given)
    expect(monkeypatch, "shakespeare-tff", (1, 4), (1, 1))
    get_dataset("shakespeare", source=given, say=str)
    train, test = load_dataset("shakespeare-tff")
    tokens = train.arrays["tokens"]
    assert tokens.shape == (4, 81)
    assert tokens.dtype == np.int32
    # As in the released code: begin, characters, end; rows of 81 next to each other.
    assert tokens[0, 0] == shakespeare.BEGIN
    assert tokens[0, 6:8].tolist() == [shakespeare.END, 0]
    assert [shakespeare.decode(row) for row in tokens] == [
        "Hark!", "x" * 80, "x" * 20, "'Twas a rough fight.\nNo?"
    ]
    assert test.arrays["tokens"].tolist() == tokens[:1].tolist()
    assert (shakespeare_tokens({"snippets": SNIPPETS})["tokens"] == tokens).all()


def test_stack_overflow(monkeypatch, tmp_path):
    monkeypatch.setattr(tff, "read_words", lambda path: path.read_text().split()[::2])
    monkeypatch.setattr(tff, "read_tags", lambda path: list(json.loads(path.read_text())))
    have = tmp_path / "have"
    have.mkdir()
    hdf5(have / "stackoverflow_train.h5", {"7": POSTS, "12": POSTS})
    hdf5(have / "stackoverflow_test.h5", {"7": POSTS})
    hdf5(have / "stackoverflow_held_out.h5", {"9": POSTS})
    (have / "stackoverflow.word_count").write_text("sort 9\nhow 3\nto 2\n")
    lacking = r"have does not have all files of stackoverflow.*and stack"
    with pytest.raises(DataError, match=lacking):
        get_dataset("stackoverflow", source=have)
    (have / "stackoverflow.tag_count").write_text('{"python": 5, "c": 2}')
    for name in ("stackoverflow-words", "stackoverflow-tags"):
        expect(monkeypatch, name, (2, 4), (1, 2))
    said = []
    get_dataset("stackoverflow", source=have, say=said.append)
    assert [sentence.partition(":")[0] for sentence in said] == [
        "stackoverflow-words", "stackoverflow-tags"
    ]
    words = load_dataset("stackoverflow-words").train
    # Ids: sort 1, how 2, to 3, unknown 4, begin 5, end 6.
    assert words.client("7")["tokens"][0, :8].tolist() == [5, 2, 3, 1, 4, 4, 6, 0]
    tags = load_dataset("stackoverflow-tags").test
    assert tags.arrays["words"][0, :4].tolist() == [1, 2, 0, -1]
    assert tags.arrays["counts"][0, :4].tolist() == [1.0, 1.0, 2.0, 0.0]
    assert tags.arrays["tags"][:, :3].tolist() == [[0, 1, -1], [0, -1, -1]]


# CIFAR.


def cifar(folder, classes, form):
    """Files of CIFAR with a record for each class or two; the images and labels of the parts."""
    folder.mkdir()
    labels = np.arange(classes, dtype=np.uint8)
    x = RNG.integers(0, 256, (classes, 32, 32, 3)).astype(np.uint8)
    flat = x.transpose(0, 3, 1, 2).reshape(classes, -1)
    coarse = labels // 5
    heads = [labels] if classes == 10 else [coarse, labels]
    content = np.concatenate([*(head[:, None] for head in heads), flat], 1).tobytes()
    batches = [f"data_batch_{i}" for i in range(1, 6)] if classes == 10 else ["train"]
    for name in (*batches, "test_batch" if classes == 10 else "test"):
        if form == "binary":
            (folder / f"{name}.bin").write_bytes(content)
        elif form == "sheets":
            Image.fromarray(x.reshape(classes, 1024, 3)).save(folder / f"{name}.png")
        else:
            batch = {b"data": flat} | (
                {b"labels": labels.tolist()} if classes == 10 else
                {b"coarse_labels": coarse.tolist(), b"fine_labels": labels.tolist()}
            )
            (folder / name).write_bytes(pickle.dumps(batch, 2))
    if form == "sheets":
        (folder / "train_lables.json").write_text(json.dumps(labels.tolist() * 5))
        (folder / "test_lables.json").write_text(json.dumps(labels.tolist()))
    return x, labels, coarse


@pytest.mark.parametrize(("classes", "form"), [
    (10, "binary"), (10, "pickle"), (10, "sheets"), (100, "binary"), (100, "pickle"),
])
def test_cifar(classes, form, monkeypatch, tmp_path):
    name = f"cifar{classes}"
    x, labels, coarse = cifar(tmp_path / "have", classes, form)
    times = 5 if classes == 10 else 1
    with pytest.raises(DataError, match=r"The files are not those of|is not the file that was p"):
        get_dataset(name, source=tmp_path / "have")
    accept(monkeypatch, name, *(tmp_path / "have").iterdir())
    expect(monkeypatch, name, (1, times * classes), (1, classes))
    get_dataset(name, source=tmp_path / "have", say=str)
    train, test = load_dataset(name)
    assert (train.arrays["x"] == np.concatenate([x] * times)).all()
    assert train.arrays["y"].tolist() == labels.tolist() * times
    assert (test.arrays["x"] == x).all()
    if classes == 100:
        assert train.arrays["coarse"].tolist() == coarse.tolist()
        assert sorted(train.arrays) == ["coarse", "x", "y"]


def sheet(folder, content):
    (folder / "a.png").write_bytes(content)
    (folder / "labels.json").write_text("[1, 2]")
    return list(read_png_sheets([folder / "a.png"], folder / "labels.json"))


def png(shape=(2, 1024, 3), **options):
    buffer = io.BytesIO()
    image = RNG.integers(0, 256, shape).astype(np.uint8)
    Image.fromarray(image).save(buffer, "PNG", **options)
    return buffer.getvalue()


SHEETS = {
    "cut": (png()[:2000], "is damaged, or not a PNG sheet of images"),
    "text": (b"hello", "is damaged, or not a PNG sheet of images: cannot identify"),
    "empty": (b"", "is damaged, or not a PNG sheet"),
    "narrow": (png((2, 1000, 3)), "its mode is RGB and its size 1000 x 2"),
    "grey": (png((2, 1024)), "its mode is L and its size 1024 x 2"),
    "too few images": (png((1, 1024, 3)), "has 2 labels, but there are 1 images"),
    "too many images": (png((3, 1024, 3)), "has 2 labels, fewer than there are images"),
}


@pytest.mark.parametrize("case", SHEETS)
def test_bad_sheets_are_sentences(case, tmp_path):
    content, sentence = SHEETS[case]
    with pytest.raises(DataError, match=sentence):
        sheet(tmp_path, content)


@pytest.mark.parametrize("labels", ["[1, 10]", "[1, -1]", "[1, 2.0]", "[true, 1]", "{}", "[", "x"])
def test_bad_labels_of_sheets_are_sentences(labels, tmp_path):
    (tmp_path / "a.png").write_bytes(png())
    (tmp_path / "labels.json").write_text(labels)
    with pytest.raises(DataError, match=r"labels\.json is damaged, or not a list of labels"):
        list(read_png_sheets([tmp_path / "a.png"], tmp_path / "labels.json"))


def test_another_picture_under_the_name_is_refused(tmp_path):
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((2, 1024, 3), np.uint8)).save(buffer, "BMP")
    with pytest.raises(DataError, match="cannot identify"):
        sheet(tmp_path, buffer.getvalue())


def test_random_sheets_end_in_a_sentence_or_two_images(tmp_path):
    whole = bytearray(png(compress_level=1))
    outcomes = set()
    for seed in range(150):
        rng = np.random.default_rng(seed)
        content = bytearray(whole)
        for place in rng.integers(0, 200 if seed % 2 else len(whole), 1 + seed % 5):
            content[place] = rng.integers(256)
        if seed % 7 == 0:
            content = content[: rng.integers(len(whole))]
        try:
            found = sheet(tmp_path, bytes(content))
        except DataError as error:
            found = str(error)
        outcomes.add(type(found))
        assert 20 < len(found) < 500 if isinstance(found, str) else (
            found[0][1]["x"].shape == (2, 32, 32, 3)
        )
    assert str in outcomes


def test_a_missing_reader_is_said_before_the_download(monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match=r"^Reading HDF5 needs h5py: pip install 'fedax\[hdf5\]'"):
        get_dataset("emnist")


def test_a_full_disk_while_writing_is_a_sentence(monkeypatch, tmp_path):
    cifar(tmp_path / "have", 10, "binary")
    accept(monkeypatch, "cifar10", *(tmp_path / "have").iterdir())
    expect(monkeypatch, "cifar10", (1, 50), (1, 10))

    def full(digest, *piece):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store_writer.layout, "write_whole", full)
    monkeypatch.setattr(store_writer, "SAVE_BYTES", 0)
    with pytest.raises(DataError, match=r"The disk of .* is full\. Partial files were"):
        get_dataset("cifar10", source=tmp_path / "have")
    assert [path for path in data_folder().rglob("*") if path.suffix == ".npy"] == []


def test_an_archive_that_is_known_is_unpacked_from_a_folder(monkeypatch, tmp_path):
    """Of a folder with the archive, as one downloads it with a browser."""
    cifar(tmp_path / "in", 10, "binary")
    have = tmp_path / "have"
    have.mkdir()
    with tarfile.open(have / "cifar-10-binary.tar.gz", "w:gz") as out:
        out.add(tmp_path / "in", "cifar-10-batches-bin")
    accept(monkeypatch, "cifar10", have / "cifar-10-binary.tar.gz")
    expect(monkeypatch, "cifar10", (1, 50), (1, 10))
    get_dataset("cifar10", source=have, say=str)
    assert load_dataset("cifar10").test.num_examples == 10
    table = json.loads((data_folder() / "cifar10" / "dataset.json").read_text())
    assert table["got"] == "files given by the user"
    assert [file["name"] for file in table["files"]][-1] == "test_batch.bin"
