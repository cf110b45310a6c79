"""Data by writer, CIFAR-100 with another split, CINIC-10: made small, and real if present."""

import hashlib
import io
import json
import lzma
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import published
from fedax.data import read_data
from fedax.data.catalogue import PRODUCTS, SOURCES
from fedax.data.downloads import web
from fedax.data.downloads.files import require_published
from fedax.data.errors import DataError
from fedax.data.folder import data_folder, load_dataset
from fedax.data.getting import get_dataset
from fedax.data.readers.cinic import read_cinic
from fedax.data.readers.webp_sheets import COARSE, read_webp_sheets
from fedax.data.readers.writers import read_femnist_writers, read_mnist_writers
from fedax.tasks.registry import load_task

# The papers' data, which are not part of the repository: beside it, or elsewhere.
REAL = Path(
    os.environ.get("FEDAX_PAPER_DATA") or Path(__file__).parents[2] / "shared" / "data"
)


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDAX_DATA", str(tmp_path / "data"))


@pytest.mark.quick
def test_digits_come_by_writer(monkeypatch, tmp_path):
    published.put("mnist-writers", tmp_path, monkeypatch)
    pool, whole = load_dataset("mnist")
    train, test = load_dataset("mnist-writers")
    assert train.client_names.tolist() == ["0000", "0001", "0002", "0003"]
    assert test.client_names.tolist() == ["0020", "0021", "0022", "0023"]
    owner = np.arange(80) // 3 % 4
    for writer in range(4):
        own = train.client(f"{writer:04}")
        assert (own["x"] == pool.arrays["x"][owner == writer]).all()
        assert own["y"].tolist() == pool.arrays["y"][owner == writer].tolist()
    assert test.num_examples == whole.num_examples == 20  # of the table's 30


def test_writers_of_an_npz_file_are_the_same(monkeypatch, tmp_path):
    published.put("mnist-writers", tmp_path, monkeypatch)
    first = [part.arrays for part in load_dataset("mnist-writers")]
    shutil.rmtree(data_folder() / "mnist-writers")
    content = io.BytesIO()
    np.savez_compressed(
        content, train_label=np.arange(80, dtype=np.uint8) % 10,
        train_writer=(np.arange(80) // 3 % 4).astype(np.uint16),
        test_label=np.arange(20, dtype=np.uint8) % 10,
        test_writer=(np.arange(20) // 3 % 4 + 20).astype(np.uint16),
    )
    have = tmp_path / "have"
    have.mkdir()
    (have / "mnist_writers.npz.xz").write_bytes(lzma.compress(content.getvalue()))
    get_dataset("mnist-writers", source=have, say=str)
    for one, other in zip(first, load_dataset("mnist-writers"), strict=True):
        assert (one["x"] == other.arrays["x"]).all()
    shutil.rmtree(data_folder() / "mnist-writers")
    (have / "mnist_writers.npz.xz").write_bytes(lzma.compress(content.getvalue())[:-40])
    with pytest.raises(DataError, match=r"npz\.xz is damaged, or not a file comp"):
        get_dataset("mnist-writers", source=have / "mnist_writers.npz.xz")


def test_writers_need_their_digits(monkeypatch, tmp_path):
    published.put("mnist-writers", tmp_path, monkeypatch)
    table = tmp_path / "files of mnist-writers" / "qmnist-train-labels-idx2-int"
    content = bytearray(table.read_bytes())
    content[12 + 3] ^= 1  # the first label
    table.write_bytes(content)
    with pytest.raises(DataError, match=r"is not of these digits: its labels differ from M"):
        list(read_mnist_writers(data_folder() / "mnist" / "train", table, "train"))
    shutil.rmtree(data_folder())
    with pytest.raises(DataError, match=r"completes the data set mnist, which is not availabl"):
        get_dataset("mnist-writers", source=table.parent)
    with pytest.raises(DataError, match="No package carries the writers of MNIST's digits"):
        get_dataset("mnist-writers", via="packages")


@pytest.mark.quick
def test_what_has_no_download_says_how_to_get_it(monkeypatch):
    def never(*_):
        raise AssertionError

    monkeypatch.setattr(web, "download", never)
    with pytest.raises(DataError, match=r"femnist-328 cannot be downloaded\. Get it: fedax data "
                       r"get femnist-328 --from FILE_OR_DIR, .*\. There is no download"):
        get_dataset("femnist-328")
    with pytest.raises(DataError, match="with the published split it is the data set cifar100"):
        get_dataset("cifar100-resplit", via="packages")


@pytest.mark.quick
def test_whole_writers_and_all_whose_training_part_is_there(monkeypatch, tmp_path):
    published.put("femnist-396", tmp_path, monkeypatch)
    get_dataset("femnist-328", source=tmp_path / "files of femnist", say=str)
    file = np.load(tmp_path / "files of femnist" / "femnist_writers.npz")
    for name, writers in (("femnist-328", [0, 3]), ("femnist-396", [0, 2, 3])):
        parts = load_dataset(name)
        for number, part in enumerate(parts):
            assert part.client_names.tolist() == file["writer_ids"][writers].tolist()
            for writer in writers:
                rows = (file["writer"] == writer) & (file["split"] == number)
                own = part.client(file["writer_ids"][writer])
                assert (own["x"][..., 0] == file["images"][rows]).all()
                assert own["y"].tolist() == file["labels"][rows].tolist()


def test_a_fifth_of_each_writer_is_held_out(monkeypatch, tmp_path):
    published.put("femnist-328", tmp_path, monkeypatch)
    train, test = load_dataset("femnist-328")
    task = load_task("femnist-328", model="logistic", held_out=0.2)
    assert task.train.client_sizes.tolist() == [12, 12]
    assert task.test.client_sizes.tolist() == [3, 3]
    for name in train.client_names:
        both = [*train.client(name)["x"], *test.client(name)["x"]]
        again = [*task.train.client(name)["x"], *task.test.client(name)["x"]]
        assert sorted(x.tobytes() for x in both) == sorted(x.tobytes() for x in again)


def npz(path, **changes):
    arrays = dict(np.load(path)) | changes
    np.savez_compressed(path, **{key: own for key, own in arrays.items() if own is not None})
    return path


ARRAYS = {
    "no images": ({"images": None}, "lacks the array 'images'"),
    "grey of floats": ({"images": np.zeros((60, 28, 28))}, "lacks the array 'images' of non-neg"),
    "another size": ({"images": np.zeros((60, 28, 27), np.uint8)}, "are not uint8"),
    "a label too high": ({"labels": np.full(60, 62, np.uint8)}, "that does not exist"),
    "a writer too high": ({"writer": np.full(60, 4, np.uint16)}, "that does not exist"),
    "a third part": ({"split": np.full(60, 2, np.uint8)}, "that does not exist"),
    "fewer labels": ({"labels": np.zeros(59, np.uint8)}, "have different lengths"),
    "names twice": ({"writer_ids": np.array(["a", "b", "a", "c"])}, "have the same name"),
    "names of bytes": ({"writer_ids": np.array([b"a", b"b", b"c", b"d"])}, "are not text"),
    "objects": ({"labels": np.array([1, "a"], object)}, "holds Python objects"),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_bad_files_of_writers_are_sentences(case, tmp_path):
    published.femnist(tmp_path, np.random.default_rng(0))
    changes, sentence = ARRAYS[case]
    with pytest.raises(DataError, match=f"femnist_writers.npz is damaged.*{sentence}"):
        list(read_femnist_writers(npz(tmp_path / "femnist_writers.npz", **changes), "train"))


@pytest.mark.quick
def test_sheets_are_cut_into_images(tmp_path):
    published.cifar100_sheets(tmp_path, np.random.default_rng(1))
    parts = list(read_webp_sheets(tmp_path / "cifar100_train.tar"))
    pixels = np.random.default_rng(1).integers(0, 256, (320, 320, 3), np.uint8)
    assert (parts[0][1]["x"][23] == pixels[64:96, 96:128]).all()
    assert [part["y"].tolist() for _, part in parts] == [[label] * 100 for label in range(3)]
    assert parts[1][1]["coarse"].tolist() == [1] * 100
    assert np.bincount(COARSE).tolist() == [5] * 20


def test_cinic_is_read_as_a_stream(monkeypatch, tmp_path):
    published.put("cinic10", tmp_path, monkeypatch)
    train, test = load_dataset("cinic10")
    assert train.arrays["y"].tolist() == test.arrays["y"].tolist() == [0] * 10 + [9] * 10
    rng = np.random.default_rng(14)
    pixels = np.stack([rng.integers(0, 256, (32, 32, 3), np.uint8) for _ in range(40)])
    assert (test.arrays["x"] == pixels[:20]).all()
    assert (train.arrays["x"] == pixels[20:]).all()
    (part,) = read_cinic(tmp_path / "files of cinic10" / "CINIC-10.tar.gz", "valid")
    assert part[1]["x"].shape == (20, 32, 32, 3)


CINIC = {
    "another class": ([("train/cow/a.png", b"x")], "that is not an image"),
    "another format": ([("train/dog/a.png", b"hello")], "is not a whole PNG image"),
    "too large": ([("train/dog/a.png", bytes(2**16 + 1))], "that is not an image"),
}


@pytest.mark.parametrize("case", CINIC)
def test_bad_archives_of_cinic_are_sentences(case, tmp_path):
    entries, sentence = CINIC[case]
    with pytest.raises(DataError, match=sentence):
        list(read_cinic(tar(tmp_path / "a.tar", entries), "train"))
    small = io.BytesIO()
    Image.new("L", (31, 32)).save(small, "PNG")
    path = tar(tmp_path / "b.tar", [("CINIC-10/train/dog/a.png", small.getvalue())])
    with pytest.raises(DataError, match="not 32 x 32"):
        list(read_cinic(path, "train"))


def test_another_file_under_cinics_name_is_refused(tmp_path):
    (tmp_path / "CINIC-10.tar.gz").write_bytes(b"x" * 10)
    published_file = SOURCES["cinic10"].downloads[0]._replace(num_bytes=None)
    with pytest.raises(DataError, match=r"its MD5 begins .*, but should begin 6ee4d0c996905fe9"):
        require_published(tmp_path / "CINIC-10.tar.gz", published_file, "here")


def tar(path, entries):
    with tarfile.open(path, "w") as out:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return path


def image(size=(320, 320), mode="RGB", form="WEBP"):
    out = io.BytesIO()
    Image.new(mode, size).save(out, form, lossless=True)
    return out.getvalue()


SHEETS = {
    "another name": ([("../00_0.webp", image())], "that is not a sheet"),
    "twice": ([("00_0.webp", image())] * 2, "has 00_0.webp twice"),
    "another format": ([("00_0.webp", image(form="PNG"))], "is not a whole WebP image"),
    "cut": ([("00_0.webp", image()[:20])], "is not a whole WebP image"),
    "another size": ([("00_0.webp", image((64, 320)))], "not RGB of 320 x 320"),
    "too large": ([("00_0.webp", bytes(2**20 + 1))], "that is not a sheet"),
    "empty": ([], "it is empty"),
}


@pytest.mark.parametrize("case", SHEETS)
def test_bad_archives_of_sheets_are_sentences(case, tmp_path):
    entries, sentence = SHEETS[case]
    with pytest.raises(DataError, match=sentence):
        list(read_webp_sheets(tar(tmp_path / "a.tar", entries)))


def test_random_damage_ends_in_a_sentence_or_in_images(tmp_path):
    published.cifar100_sheets(tmp_path, np.random.default_rng(1))
    whole = (tmp_path / "cifar100_train.tar").read_bytes()
    for seed in range(60):
        rng = np.random.default_rng(seed)
        content = bytearray(whole)
        for place in rng.integers(0, 600 if seed % 2 else len(whole), 1 + seed % 5):
            content[place] = rng.integers(256)
        end = rng.integers(len(whole)) if seed % 7 else len(whole)
        (tmp_path / "b.tar").write_bytes(content[:end])
        try:
            found = [part["x"].shape for _, part in read_webp_sheets(tmp_path / "b.tar")]
        except DataError:
            continue
        assert set(found) == {(100, 32, 32, 3)}


if REAL.is_dir():

    def digest(array):
        return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()

    def unpacked(path):
        return np.load(io.BytesIO(lzma.decompress(path.read_bytes())))

    def test_the_real_writers_are_those_of_their_checksums():
        folder = REAL / "femnist"
        get_dataset("femnist", source=folder, say=str)
        said = json.loads((folder / "sha256.json").read_text())
        file = unpacked(folder / "femnist_writers.npz.xz")
        assert digest(file["images"]) == said["images"]["sha256"]
        train, test = load_dataset("femnist-396")
        chosen = np.flatnonzero(file["writer_complete"])
        for number, part in enumerate((train, test)):
            assert part.client_names.tolist() == file["writer_ids"][chosen].tolist()
            rows = np.concatenate([
                np.flatnonzero((file["writer"] == writer) & (file["split"] == number))
                for writer in chosen
            ])
            assert (part.arrays["x"][..., 0] == file["images"][rows]).all()
        assert load_dataset("femnist-328").train.num_examples == 48_636

    def test_leafs_own_files_are_read(tmp_path):
        """Each image is byte / 255 in LEAF's JSON; whole writers are also in the collection."""
        get_dataset("femnist-396", source=REAL / "femnist", say=str)
        collected = load_dataset("femnist-396")
        counts = {"train": [], "test": []}
        for split, own in zip(counts, collected, strict=True):
            (packed,) = (REAL / "femnist" / "leaf_original").glob(f"*_{split}_*.json.xz")
            path = tmp_path / split / packed.stem
            path.parent.mkdir()
            path.write_bytes(lzma.decompress(packed.read_bytes()))
            data = read_data(path.parent, format="leaf", progress=False)
            known = set(own.client_names.tolist())
            for name in data.client_names.tolist():
                x = np.rint(data.client(name)["x"].astype(np.float64) * 255)
                assert np.abs(x / 255 - data.client(name)["x"]).max() < 1e-7
                if name in known:
                    assert (x == own.client(name)["x"].reshape(len(x), -1)).all()
                    counts[split].append(len(x))
                    assert data.client(name)["y"].tolist() == own.client(name)["y"].tolist()
        assert min(map(len, counts.values())) > 0

    def test_the_real_images_of_cifar100_are_those_of_their_checksums():
        folder = REAL / "cifar100"
        get_dataset("cifar100-resplit", source=folder, say=str)
        said = json.loads((folder / "sha256.json").read_text())
        for split, part in load_dataset("cifar100-resplit")._asdict().items():
            assert digest(part.arrays["x"].transpose(0, 3, 1, 2)) == said[split]["images_sha256"]
            labels = part.arrays["y"].astype(np.uint8)
            assert digest(labels) == said[split]["labels_sha256"]

    def test_the_real_roles_of_shakespeare_are_read():
        get_dataset("shakespeare-tff", source=REAL / "shakespeare_tff", say=str)
        train, test = load_dataset("shakespeare-tff")
        assert (train.num_clients, test.num_clients) == (715, 715)
        assert (train.num_examples, test.num_examples) == (37_784, 5_490)

    def test_the_real_table_of_writers_matches_the_catalogue():
        """Without MNIST's images, which are not in the folder: the table alone."""
        file = unpacked(REAL / "mnist_writers" / "mnist_writers.npz.xz")
        for split, count in (("train", 539), ("test", 297)):
            expected = getattr(PRODUCTS["mnist-writers"], split)
            order = np.argsort(file[f"{split}_writer"], kind="stable")
            labels = file[f"{split}_label"][order].astype("<i4")
            assert len(np.unique(file[f"{split}_writer"])) == count == expected.num_clients
            assert digest(labels) == expected.digests["y"]
