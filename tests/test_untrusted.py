"""A stranger's folder runs nothing, writes nothing outside itself, takes no excessive memory."""

import contextlib
import io
import json
import os
import pickle
import shutil
import sqlite3
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import fedax
from fedax.cli.main import run_command
from fedax.experiment.folder import RunError
from fedax.experiment.naming import NotNamedError, named
from fedax.files.npz import packed, read_npz
from fedax.files.regular import not_plain, open_file

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="links and pipes need rights of their own there"
)
RATE = "client_learning_rate"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A sweep, a search and a run from Python."""
    place = tmp_path_factory.mktemp("made")
    start = ["sweep", "quadratics", "fedavg", "--rounds", "2"]
    assert run_command([*start, "--grid", f"{RATE}=0.01,0.1", "--out", str(place / "sweep")]) == 0
    assert run_command([*start, "--search", f"{RATE}=loguniform(0.01,0.3)", "--trials", "2",
                        "--out", str(place / "search")]) == 0
    task = fedax.load_task("quadratics")
    fedax.train(task, fedax.fedavg(task.model, 0.1), num_rounds=2, cohort_size=2,
                out=place / "run", progress=False)
    return place


@pytest.fixture
def sweep(made, tmp_path):
    return shutil.copytree(made / "sweep", tmp_path / "sweep")


@pytest.fixture
def search(made, tmp_path):
    return shutil.copytree(made / "search", tmp_path / "search")


@pytest.fixture
def trained(made, tmp_path):
    return shutil.copytree(made / "run", tmp_path / "run")


def edit(folder, change):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def refused(capsys, *words):
    """What a command says that ends with a sentence, which is no defect."""
    assert run_command([str(word) for word in words]) in (1, 2)
    said = capsys.readouterr().err
    assert "defect" not in said
    assert "Traceback" not in said
    return said


# ---------------------------------------------------------------------------- names and code

@pytest.mark.quick
@pytest.mark.parametrize("value", [
    {"factory": "os:system", "arguments": {"command": "touch OWNED"}},
    {"factory": "fedax.files.regular:write_atomically", "arguments": {}},
    {"factory": "fedax.models.mlp:jax.numpy.save", "arguments": {}},
    {"factory": "fedax.algorithms.fedopt:jax", "arguments": {}},
    {"list": [{"dict": {"x": {"factory": "antigravity:x", "arguments": {}}}}]},
    {"function": "os:getcwd", "holds": {}},
    {"array": "S1000000000", "values": "x"}, {"array": "O", "values": 1},
    {"factory": 3, "arguments": []}, {"factory": "fedax.optimizers.schedules:constant"},
    {"tuple": 5}, {"dict": []},
])
def test_a_run_from_python_calls_only_factories(trained, value, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    edit(trained, lambda config: config["algorithm_options"].update({RATE: value}))
    loaded = fedax.load_run(trained)
    for what in ("algorithm", "state"):
        with pytest.raises(RunError, match=r"cannot be created by name|is not the one of the run"):
            getattr(loaded, what)
    assert not Path("OWNED").exists()
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("name", ["os:system", "subprocess:run", "builtins:exec", "", "fedax", 5,
                                  "fedax.algorithms.fedopt:os.system"])
def test_a_name_without_a_signature_is_not_imported(name):
    with pytest.raises(NotNamedError):
        named(name, own=False)


@pytest.mark.slow
def test_own_factories_are_called_when_this_user_wrote_the_run(tmp_path, monkeypatch):
    (tmp_path / "mine_of_untrusted.py").write_text(
        "import fedax\n\n@fedax.factory\ndef method(model, rate: float = 0.1):\n"
        "    return fedax.fedavg(model, rate)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import mine_of_untrusted

    task = fedax.load_task("quadratics")
    fedax.train(task, mine_of_untrusted.method(task.model, 0.2), num_rounds=1, cohort_size=2,
                out=tmp_path / "run", progress=False)
    assert fedax.load_run(tmp_path / "run").algorithm is not None
    edit(tmp_path / "run", lambda config: config["made_by"].pop("signature"))
    with pytest.raises(RunError, match="refers to the code mine_of_untrusted:method"):
        _ = fedax.load_run(tmp_path / "run").algorithm


class Evil:
    def __reduce__(self):
        return open, ("OWNED", "w")


@pytest.mark.slow
def test_a_study_s_pickles_are_not_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ranges = [f"{RATE}=loguniform(0.01,0.3)", "server_learning_rate=loguniform(0.1,2)"]
    start = ["sweep", "quadratics", "fedavg", "--rounds", "1", "--search", *ranges]
    of_cmaes = ["--sampler", "cmaes", "--settings-per-batch", "1", "--trials", "6"]
    assert run_command([*start, *of_cmaes, "--out", "search"]) == 0
    with contextlib.closing(sqlite3.connect("search/study.db")) as database, database:
        for key in ("cma:optimizer:0", "cma:optimizer", "cmawm:optimizer:0"):
            database.execute(
                "INSERT INTO trial_system_attributes (trial_id, key, value_json) "
                "SELECT trial_id, ?, ? FROM trials", (key, json.dumps(pickle.dumps(Evil()).hex())),
            )
    assert run_command(["sweep", "--resume", "search", "--trials", "8"]) == 0
    assert not Path("OWNED").exists()


# ------------------------------------------------------------------------------ links and places

@pytest.mark.parametrize("name", [
    "parts", "best", "methods", "methods/0", "logs", "rounds.npz", "results.csv", "summary.json",
    "report.html.partial", ".lock", "parts/part-00000", "rung-0", "checkpoints",
])
def test_links_in_a_sweep_are_refused_and_not_followed(sweep, tmp_path, capsys, name):
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("mine")
    path = sweep / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(home)
    assert f"{name} is a link" in refused(capsys, "sweep", "--resume", sweep)
    assert [path.name for path in home.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("name", [
    "trials", "trials/fedavg", "trials/fedavg/000000.npz", "study.db", "study.db-journal",
    "study.db-wal", "study.db-shm", "worker", "best/fedavg.toml.partial",
])
def test_links_in_a_search_are_refused_and_not_followed(search, tmp_path, capsys, name):
    home = tmp_path / "home"
    home.mkdir()
    path = search / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(home / "new")
    assert f"{name} is a link" in refused(capsys, "sweep", "--resume", search, "--trials", "3")
    assert not any(home.iterdir())


def test_only_links_of_wandb_are_left_alone(tmp_path):
    inside = tmp_path / "logs" / "wandb"
    inside.mkdir(parents=True)
    (inside / "latest-run").symlink_to("/elsewhere")
    assert not_plain(tmp_path) is None
    (tmp_path / "wandb").symlink_to("/elsewhere")
    assert "wandb is a link" in (not_plain(tmp_path) or "")
    (tmp_path / "wandb").unlink()
    (inside / "latest-run").unlink()
    inside.rmdir()
    inside.symlink_to("/elsewhere")
    assert "wandb is a link" in (not_plain(tmp_path) or "")


def test_files_that_are_written_in_place_have_no_other_name(search, tmp_path, capsys):
    (tmp_path / "passwords.db").write_bytes(b"mine")
    (search / "study.db").unlink()
    os.link(tmp_path / "passwords.db", search / "study.db")
    said = refused(capsys, "sweep", "--resume", search, "--trials", "3")
    assert "hard link" in said
    assert (tmp_path / "passwords.db").read_bytes() == b"mine"


def test_a_journal_does_not_have_a_file_deleted(search, tmp_path, capsys):
    """SQLite deletes the file that a journal names at its end, when it rolls that back."""
    (tmp_path / "thesis.txt").write_text("mine")
    name = str(tmp_path / "thesis.txt").encode()
    journal = bytes(512) + name + len(name).to_bytes(4, "big") + bytes(4)
    (search / "study.db-journal").write_bytes(journal + bytes.fromhex("d9d505f920a163d7"))
    assert "names a file" in refused(capsys, "sweep", "--resume", search, "--trials", "3")
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.slow
def test_a_search_keeps_its_study_elsewhere_only_if_its_user_says_so(search, tmp_path, capsys):
    other = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(other)) as database, database:
        database.execute("CREATE TABLE passwords(x)")
    url = f"sqlite:///{other}"
    edit(search, lambda config: config["search"].update(storage=url))
    said = refused(capsys, "sweep", "--resume", search, "--trials", "3")
    assert "--storage URL" in said
    with contextlib.closing(sqlite3.connect(other)) as database:
        tables = database.execute("SELECT name FROM sqlite_master").fetchall()
    assert tables == [("passwords",)]
    own = f"sqlite:///{tmp_path / 'own.db'}"
    resume = ["sweep", "--resume", str(search), "--trials", "1"]
    assert run_command([*resume, "--storage", own]) == 0
    assert run_command([*resume[:-1], "2"]) == 0  # signed now
    assert json.loads((search / "config.json").read_text())["search"]["storage"] == own


@pytest.mark.parametrize("statement", [
    "CREATE TRIGGER evil AFTER INSERT ON trials BEGIN DELETE FROM studies; END",
    "CREATE VIEW evil AS SELECT * FROM trials", "CREATE TABLE evil(x DEFAULT (zeroblob(9)))",
    "CREATE INDEX evil ON trials (hex(zeroblob(number)))",
])
def test_a_study_with_programs_in_it_is_refused(search, capsys, statement):
    with contextlib.closing(sqlite3.connect(search / "study.db")) as database, database:
        database.execute(statement)
    said = refused(capsys, "sweep", "--resume", search, "--trials", "3")
    assert "'evil'" in said
    assert "--storage sqlite:///" in said


@pytest.mark.parametrize(("statement", "said"), [
    ("UPDATE trial_params SET param_name = 'other'", "'other', which is not searched"),
    ("UPDATE trial_params SET distribution_json = 'no'", "is damaged"),
    ("UPDATE study_user_attributes SET value_json = '{'", "is damaged"),
    ("UPDATE trials SET state = 'EVIL'", "is damaged"),
    ("INSERT INTO study_system_attributes (study_id, key, value_json) VALUES "
     "(1, 'qmc:x', '4611686018427387904')", "4611686018427387904 times"),
    ("DELETE FROM trial_values", "has no score"),
])
def test_a_forged_study_is_a_sentence(search, capsys, statement, said):
    with contextlib.closing(sqlite3.connect(search / "study.db")) as database, database:
        database.execute(statement)
    assert said in refused(capsys, "sweep", "--resume", search, "--trials", "3")


# ----------------------------------------------------------------------------- sizes of arrays

def bomb(path, name, shape, compression=zipfile.ZIP_DEFLATED):
    """An archive whose one array is far larger than the file."""
    with zipfile.ZipFile(path, "w", compression) as archive, archive.open(name, "w") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for _ in range(8 * int(np.prod(shape)) // 2**20):
            file.write(bytes(2**20))


@pytest.mark.quick
def test_archives_unpack_to_little_more_than_their_size(tmp_path):
    path = tmp_path / "x.npz"
    bomb(path, "x.npy", (2**24,))
    with pytest.raises(ValueError, match="it unpacks to 134,"):
        read_npz(path)
    arrays = {"a": np.zeros(2**24), "b": np.array(["x"]), "c": np.asfortranarray(np.eye(3)),
              "d": np.array(5), "e": np.zeros((0, 3), bool)}
    path.write_bytes(packed(arrays))
    for name, found in read_npz(path).items():
        np.testing.assert_array_equal(found, arrays[name])
        assert found.dtype == arrays[name].dtype


def npy(header: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


@pytest.mark.quick
@pytest.mark.parametrize("content", [
    npy(b"{'descr': f(), 'fortran_order': 1}\n"), npy(b"{'descr': '<f8', (\n"), npy(b"\n"),
    npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n") + bytes(8), b"", b"junk",
    npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (10**9,)}\n"),
    npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000,)}\n"),
    npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -1)}\n") + bytes(8),
])
@pytest.mark.parametrize("of", ["trial", "part"])
def test_damaged_arrays_are_a_sentence(search, sweep, capsys, content, of):
    folder, path = (search, search / "trials" / "fedavg" / "000001.npz") if of == "trial" else (
        sweep, sweep / "parts" / "part-00000.npz")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("0:train_loss.npy", content)
    (folder / "summary.json").unlink()
    said = refused(capsys, "sweep", "--resume", folder)
    assert str(path) in said
    assert "Delete it" in said
    assert "malformed" not in said


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "bzip2", "names"])
def test_damaged_trials_are_a_sentence(search, capsys, damage):
    path = search / "trials" / "fedavg" / "000001.npz"
    content = path.read_bytes()
    if damage in ("bzip2", "names"):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_BZIP2 if damage == "bzip2" else 0) as archive:
            archive.writestr("x:y.npy", npy(b"{'descr': '<f8', 'fortran_order': False, "
                                            b"'shape': ()}\n") + bytes(8))
        content = file.getvalue()
    changed = {"cut": content[:500], "empty": b"", "flipped": content[:300] + b"\xff" * 40
               + content[340:]}
    path.write_bytes(changed.get(damage, content))
    said = refused(capsys, "sweep", "--resume", search, "--trials", "3")
    assert f"{path} is damaged" in said
    path.unlink()
    assert run_command(["sweep", "--resume", str(search), "--trials", "3"]) == 0


@pytest.mark.parametrize("change", [
    {"setting": np.array([-1, 0])}, {"setting": np.array([0.5, 1])},
    {"done": np.array([10**12, 1])},
    {"seed": np.zeros((2, 2), int)}, {"metric/train_loss": np.zeros(2)},
    {"metric/train_loss": np.zeros((3, 2))}, {"setting": np.array([0, 99])},
    {"metric/train_loss": np.array([["a", "b"]] * 2)},
])
def test_columns_that_do_not_belong_together_are_a_sentence(sweep, capsys, change):
    from fedax.tuning.keeping import read_columns, write_columns

    write_columns(sweep / "rounds.npz", read_columns(sweep / "rounds.npz") | change, "any")
    for words in (("sweep", "--resume", sweep), ("report", sweep), ("table", sweep)):
        assert str(sweep) in refused(capsys, *words)


@pytest.mark.slow
def test_one_long_run_does_not_make_the_others_long(sweep):
    from fedax.tuning.keeping import write_columns

    (sweep / "summary.json").unlink()
    edit(sweep, lambda config: config.update(
        settings=[["fedavg", {RATE: 0.1}]] * 1000, units=[]
    ))
    for number, rounds in enumerate([400_000, *[1] * 999]):
        one = np.array([0])
        write_columns(sweep / "parts" / f"part-{number:05d}.npz", {
            "setting": one + number, "seed": one, "diverged": one, "done": one,
            "metric/train_loss": np.zeros((1, rounds)),
        }, "any")
    with pytest.raises(RunError, match="far more than their files"):
        fedax.load_sweep(sweep)


def test_metrics_of_a_run_are_no_sparse_table(trained):
    lines = (json.dumps({"round": n, f"m{n}": 1}) + "\n" for n in range(1, 3000))
    (trained / "metrics.jsonl").write_text("".join(lines))
    with pytest.raises(RunError, match="cells for"):
        fedax.load_run(trained)


# --------------------------------------------------------------------- pipes and configurations

@pytest.mark.quick
@pytest.mark.parametrize("name", [
    "config.json", "methods/0/config.json", "rounds.npz", "summary.json", "parts/part-00000.npz",
])
def test_pipes_in_a_sweep_are_not_waited_for(sweep, capsys, name):
    (sweep / "summary.json").unlink()
    (sweep / name).unlink(missing_ok=True)
    os.mkfifo(sweep / name)
    refused(capsys, "sweep", "--resume", sweep)
    run_command(["report", str(sweep)])
    capsys.readouterr()


def test_pipes_are_not_waited_for_elsewhere(tmp_path, capsys):
    for name in ("x.json", "x.toml", "x.npz", "x.csv", "x.safetensors"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(OSError, match="not a regular file"):
            open_file(tmp_path / name)
    for name in ("x.json", "x.toml"):
        assert "not a regular file" in refused(capsys, "run", "--config", tmp_path / name)
        assert "not a regular file" in refused(capsys, "theory", tmp_path / name)
    assert "not a regular file" in refused(capsys, "theory", tmp_path / "x.npz")
    with pytest.raises(OSError, match="not a regular file"):
        fedax.load_params(tmp_path / "x.safetensors")


@pytest.mark.quick
@pytest.mark.parametrize("change", [
    {"choose": "test_mine"}, {"choose": ""}, {"grid": {}, "settings": [], "units": []},
    {"grid": {"fedavgm": {}}, "settings": [["fedavgm", {}]] * 2}, {"seeds": ["a"]},
    {"units": [[[0, 1], 0, 10**9]]}, {"units": [[[0, 1], 7, 2]]}, {"num_rounds": "3"},
    {"settings": [["fedavg", {"nosuch": 1}]] * 2}, {"settings": [["fedavg", {RATE: "x(1)"}]] * 2},
    {"made_by": 5}, {"task": 5}, {"algorithm": []}, {"identity": 5}, {"halving": [2, 1, "x"]},
    {"halving": [2, 10**9, None]},
])
def test_a_forged_sweep_is_a_sentence(sweep, capsys, change):
    (sweep / "summary.json").unlink()
    edit(sweep, lambda config: config.update(change))
    refused(capsys, "sweep", "--resume", sweep)


@pytest.mark.quick
@pytest.mark.parametrize("change", [
    {"sampler": "nosuch"}, {"sampler": 5}, {"pruner": {}}, {"trials": "many"}, {"batch_size": 0},
    {"spaces": {}}, {"spaces": {"fedavg": {}}}, {"spaces": {"fedavg": {RATE: "{}"}}},
    {"spaces": {"fedavg": {RATE: "x"}}}, {"spaces": {"other": {RATE: "{}"}}}, {"storage": 5},
    {"words": 3}, {"storage_has_password": "x"},
    {"spaces": {"fedavg": {"nosuch": json.dumps({"name": "FloatDistribution", "attributes": {
        "low": 0.0, "high": 1.0, "log": False, "step": None}})}}},
])
def test_a_forged_search_is_a_sentence(search, capsys, change):
    edit(search, lambda config: config["search"].update(change))
    refused(capsys, "sweep", "--resume", search, "--trials", "3")
    edit(search, lambda config: config.update(search=5))
    refused(capsys, "sweep", "--resume", search, "--trials", "3")


@pytest.mark.parametrize("change", [
    lambda config: config["python"].pop("algorithm"), lambda config: config["python"].pop("method"),
    lambda config: config.pop("algorithm_options"), lambda config: config.update(python=5),
    lambda config: config.pop("seed"),
])
def test_a_run_s_configuration_that_lacks_something_is_damaged(trained, change):
    edit(trained, change)
    with pytest.raises(RunError, match="is damaged"):
        fedax.load_run(trained)
