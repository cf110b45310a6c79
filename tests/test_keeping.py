"""Nothing that lies in a run folder is lost, believed without a reason, or followed out of it."""

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import sys
import tracemalloc
import zipfile
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.experiment import checkpoint, folder, run, sources
from fedax.experiment.checkpoint import CheckpointError, read_latest, restore_latest
from fedax.experiment.config import load_config, resolve
from fedax.experiment.display import Display
from fedax.experiment.errors import ConfigError
from fedax.experiment.folder import RunError, new_folder
from fedax.experiment.manifest import MOST_BYTES, digest_of
from fedax.experiment.metrics import MetricsLog, read_metrics, whole_lines
from fedax.experiment.params import decoded, encoded, rebuilt
from fedax.files.regular import write_atomically
from fedax.report.clients import worst_of_run
from fedax.rounds.client_store import ClientStore
from fedax.rounds.state import TrainingState
from fedax.rounds.stopping import Best, Goal
from test_run import Killed, assert_same_run, config, registry

pytestmark = [pytest.mark.quick, pytest.mark.shares_programs]

ON_POSIX = pytest.mark.skipif(sys.platform == "win32", reason="pipes and links are POSIX's")


class State(NamedTuple):
    params: Any
    round_index: Any


def state(round_index=0, num_clients=100, client=7):
    """As large as a page, with a client whose row says the round."""
    store = ClientStore({"c": np.zeros(4, np.float32)}, num_clients)
    if round_index:
        store.write(np.array([client]), {"c": np.full((1, 4), round_index, np.float32)})
    params = {"w": jnp.full((2, 3), round_index, jnp.float32)}
    return TrainingState(State(params, jnp.int32(round_index)), store)


def save(path, *rounds, **options):
    for round_index in rounds:
        checkpoint.save(path, state(round_index), "run", **options)


def names(path):
    return sorted(entry.name for entry in path.iterdir())


def restored(path):
    """The round that a resume goes on from, by the checkpoint and by what it holds; sentences."""
    found = restore_latest(path, state(), "run")
    done = int(found.state.server_state.round_index)
    row = found.state.client_store.read(np.array([7]))["c"]
    assert (np.asarray(found.state.server_state.params["w"]) == done).all()
    assert (row == done).all()
    stored = read_latest(path, "run")
    assert (0 if stored is None else stored.round_index) == done
    return done, found.refused


# ------------------------------------------------------------------------ checkpoints and others


def test_what_is_no_checkpoint_is_left_alone_and_named(tmp_path):
    """`round-best` was the newest by its name, and every new one was removed as older than it."""
    save(tmp_path, 5)
    own = {"round-best", "round-00000004-copy", "partial-results", "round-5"}
    for name in own:
        shutil.copytree(tmp_path / "round-00000005", tmp_path / name)
    for name in ("notes.txt", "round-00000099", ".DS_Store"):
        (tmp_path / name).write_text("kept")
    save(tmp_path, 10, 15, 20)
    own |= {"notes.txt", "round-00000099", ".DS_Store"}
    assert names(tmp_path) == sorted(own | {"round-00000015", "round-00000020"})
    assert names(tmp_path / "round-best") == names(tmp_path / "round-00000020")
    done, refused = restored(tmp_path)
    assert done == 20
    assert refused == [
        f"Not a checkpoint, and ignored in {tmp_path}: notes.txt, partial-results, "
        "round-00000004-copy, round-00000099, round-5 and 1 more."
    ]


def test_a_copy_under_the_name_of_a_later_round_is_none(tmp_path):
    save(tmp_path, 5)
    shutil.copytree(tmp_path / "round-00000005", tmp_path / "round-00000020")
    save(tmp_path, 10, 15)
    assert names(tmp_path) == ["round-00000010", "round-00000015", "round-00000020"]
    done, refused = restored(tmp_path)
    assert done == 15
    assert refused == [
        f"Checkpoint {tmp_path / 'round-00000020'} was renamed or copied: it belongs to round 5."
    ]
    save(tmp_path, 20)
    assert restored(tmp_path) == (20, [])


def test_only_others_is_no_checkpoint(tmp_path):
    (tmp_path / "round-best").mkdir()
    done, refused = restored(tmp_path)
    assert done == 0
    assert "round-best" in refused[0]
    assert restore_latest(tmp_path / "nowhere", state(), "run").refused == []


def test_the_one_just_saved_stays_whatever_is_newer(tmp_path):
    """After a resume from an older one, the damaged newer ones are still there."""
    save(tmp_path, 20, 30)
    for name in names(tmp_path):
        (tmp_path / name / "manifest.json").write_text("{}")
    save(tmp_path, 5, 10, 15)
    assert names(tmp_path) == [f"round-000000{n}" for n in (10, 15, 20, 30)]
    assert restored(tmp_path)[0] == 15
    save(tmp_path, 20, 30)
    assert restored(tmp_path) == (30, [])
    assert names(tmp_path) == ["round-00000020", "round-00000030"]


def test_the_removal_of_an_old_one_may_be_interrupted(tmp_path, monkeypatch):
    save(tmp_path, 1, 2)

    def half(path, **options):
        (path / "manifest.json").unlink()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.shutil, "rmtree", half)
        with pytest.raises(Killed):
            save(tmp_path, 3)
    assert restored(tmp_path) == (3, [])
    save(tmp_path, 4)
    assert names(tmp_path) == ["round-00000003", "round-00000004"]


# ------------------------------------------------------------------------- damaged and forged ones


def forge(path, **changes):
    """Changes the manifest, and gives it and all files the digests that they have."""
    values = json.loads((path / "manifest.json").read_text())
    files = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in path.iterdir() if file.name in (*values["files"], "best.safetensors")
    }
    values |= {"files": files} | changes | {"digest": None}
    values["digest"] = digest_of(values)
    (path / "manifest.json").write_text(json.dumps(values))


ARRAYS = {
    "server_00000": [[2, 3], "float32"], "server_00001": [[], "int32"],
    "client_ids": [[1], "int64"], "client_row_00000": [[1, 4], "float32"],
}
DIGEST = "0" * 64
FORGED = {
    "round": [-1, 2**31, "2", 2.0, True, None, [2], 3],
    "fingerprint": [None, 3, ["run"]],
    "format": [None, "2", True, 3, 10**400, [2]],
    "arrays": [
        None, [], {}, {"client_ids": [[1], "int64"]}, ARRAYS | {"server_00002": [[], "int32"]},
        ARRAYS | {"../server": [[], "int32"]}, ARRAYS | {"server_00000": [2, 3]},
        *(ARRAYS | {"server_00000": what} for what in (
            None, "float32", [[2, 3]], [6, "float32"], [[2, -3], "float32"], [[2, 3.0], "float32"],
            [[-2, -3], "float32"], [[3, 2], "float32"], [[2, 3], "int32"], [[2, 3], "object"],
            [[2, 3], "V1000"], [[2, 3], "float32,float32"], [[2, 3], ["float32"]],
            [[2, 3], "float99"], [[10**9, 10**9], "float32"], [[10**30], "float32"],
            [[1] * 99, "float32"], [[True, 6], "float32"],
        )),
        *(ARRAYS | {"client_ids": [what, "int64"]} for what in ([], [0], [2], [10**12], [1, 1])),
        *(ARRAYS | {"client_row_00000": [what, "float32"]} for what in (
            [2, 4], [1, 5], [4], [0, 4], [10**12, 4],
        )),
    ],
    "files": [
        None, {}, [], {"state.npz": DIGEST}, {"state.npz": 3}, {"../state.npz": DIGEST},
        {"/etc/passwd": DIGEST}, {"state.npz": "x" * 64},
    ],
    "metrics": [3, {}, {"num_bytes": -1, "sha256": DIGEST}, {"num_bytes": 1, "sha256": 3}],
}


@pytest.mark.parametrize("key", FORGED)
def test_a_manifest_that_says_what_cannot_be_is_refused_and_the_one_before_used(tmp_path, key):
    save(tmp_path, 1, 2)
    newest = tmp_path / "round-00000002"
    before = (newest / "manifest.json").read_text()
    for value in FORGED[key]:
        forge(newest, **{key: value})
        found = restore_latest(tmp_path, state(), "run")
        assert int(found.state.server_state.round_index) == 1, value
        assert len(found.refused) == 1
        assert found.refused[0].startswith(f"Checkpoint {newest} ")
        assert found.refused[0].endswith(".")
        assert len(found.refused[0]) < 500
        (newest / "manifest.json").write_text(before)
    assert restored(tmp_path) == (2, [])


def test_a_flipped_bit_anywhere_in_the_manifest_is_no_other_error(tmp_path):
    save(tmp_path, 1, 2)
    path = tmp_path / "round-00000002" / "manifest.json"
    content = path.read_bytes()
    draw, rounds = np.random.default_rng(0), []
    for place, bit in zip(draw.integers(len(content), size=400), draw.integers(8, size=400),
                          strict=True):
        damaged = bytearray(content)
        damaged[place] ^= 1 << bit
        path.write_bytes(damaged)
        found = restore_latest(tmp_path, state(), "run")
        rounds.append(int(found.state.server_state.round_index))
        assert (found.state.client_store.read(np.array([7]))["c"] == rounds[-1]).all()
        stored = read_latest(tmp_path, "run")
        assert stored.round_index == rounds[-1]
        assert (np.asarray(stored.params["w"]) == np.full((2, 3), rounds[-1])).all()
    assert rounds.count(1) > 350  # but for the word "digest" itself, and the case of escapes


@ON_POSIX
@pytest.mark.parametrize("how", ["pipe", "link", "folder", "device", "large", "deep", "nan"])
def test_a_manifest_that_is_no_file_of_its_own_is_refused_at_once(tmp_path, how):
    save(tmp_path, 1, 2)
    path = tmp_path / "round-00000002" / "manifest.json"
    if how == "link":
        path.rename(tmp_path / "elsewhere.json")
    else:
        path.unlink()
    if how == "pipe":
        os.mkfifo(path)
    elif how == "link":
        path.symlink_to(tmp_path / "elsewhere.json")
    elif how == "folder":
        path.mkdir()
    elif how == "device":
        path.symlink_to("/dev/zero")
    elif how == "large":
        with path.open("wb") as file:
            file.truncate(MOST_BYTES + 1)
    else:
        path.write_text("[" * 100_000 if how == "deep" else "NaN")
    done, refused = restored(tmp_path)
    assert done == 1
    assert f"Checkpoint {path.parent} is damaged: its manifest cannot be read." in refused


@ON_POSIX
@pytest.mark.parametrize("name", ["state.npz", "client_row_00000.npy"])
@pytest.mark.parametrize("how", ["pipe", "link"])
def test_arrays_that_are_no_file_of_their_own_are_refused_at_once(tmp_path, name, how):
    save(tmp_path, 1, 2)
    path = tmp_path / "round-00000002" / name
    path.rename(tmp_path / "elsewhere")
    if how == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "elsewhere")
    done, refused = restored(tmp_path)
    assert done == 1
    assert any("It is not a regular file" in sentence for sentence in refused)


def npz(path, compression, **contents):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in contents.items():
            with archive.open(f"{name}.npy", "w") as member:
                header = {"descr": "|u1", "fortran_order": False, "shape": (len(content),)}
                np.lib.format.write_array_header_1_0(member, header)
                member.write(content)


@pytest.mark.parametrize("how", ["compressed", "another length", "no archive", "not all",
                                 "rows of another length", "rows in Fortran's order", "pickled"])
def test_a_file_that_asks_for_more_than_it_has_takes_no_memory(tmp_path, how):
    """A forged array of 5.8 MB took 6 GB."""
    save(tmp_path, 1, 2)
    newest = tmp_path / "round-00000002"
    large, arrays = bytes(10**8), dict(ARRAYS)
    contents = {"server_00000": large, "server_00001": bytes(4), "client_ids": bytes(8)}
    if how == "compressed":
        arrays["server_00000"] = [[5, 5 * 10**6], "float32"]
        npz(newest / "state.npz", zipfile.ZIP_DEFLATED, **contents)
    elif how == "another length":
        npz(newest / "state.npz", zipfile.ZIP_STORED, **contents | {"server_00000": bytes(99)})
    elif how == "no archive":
        (newest / "state.npz").write_bytes(b"PK\5\6" + bytes(18))
    elif how == "not all":
        npz(newest / "state.npz", zipfile.ZIP_STORED, server_00000=bytes(24))
    elif how == "pickled":
        np.save(newest / "client_row_00000.npy", np.array([{}]), allow_pickle=True)
    else:
        with (newest / "client_row_00000.npy").open("wb") as file:
            fortran = how == "rows in Fortran's order"
            shape = (1, 16) if fortran else (10**7, 16)
            header = {"descr": "|u1", "fortran_order": fortran, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            file.write(bytes(16))
            arrays["client_row_00000"] = [[shape[0], 4], "float32"]
            arrays["client_ids"] = [[1], "int64"]
    forge(newest, arrays=arrays)
    del large, contents
    tracemalloc.start()
    stored = read_latest(tmp_path, "run")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert stored.round_index == 1
    assert peak < 10**7
    assert restored(tmp_path)[0] == 1


@pytest.mark.parametrize("options", [{"num_clients": 1000, "client": 999}])
def test_clients_that_the_run_has_not_are_refused(tmp_path, options):
    checkpoint.save(tmp_path, state(1, **options), "run")
    with pytest.raises(CheckpointError, match=r"its clients are not in this run\. No usable"):
        restore_latest(tmp_path, state(), "run")


def test_arrays_of_another_round_are_refused(tmp_path):
    save(tmp_path, 1, 2)
    (tmp_path / "round-00000002").rename(tmp_path / "round-00000003")
    forge(tmp_path / "round-00000003", round=3)
    found = restore_latest(tmp_path, state(), "run")
    assert int(found.state.server_state.round_index) == 1
    assert found.refused[0].endswith("is damaged: its arrays are of round 2.")


GOOD = {"metric": "test_loss", "mode": "min", "round": 1, "value": 0.5}


@pytest.mark.parametrize("what", [
    {"metric": 3}, {"mode": "up"}, {"mode": ["min"]}, {"round": 3}, {"round": "1"},
    {"round": True}, {"value": "low"}, "other parameters", "another file", "no header",
])
def test_a_best_model_that_cannot_be_is_refused(tmp_path, what):
    params = {"w": jnp.ones((2, 3), jnp.float32)}
    best = Best(Goal("test_loss", "min"), 1, 0.5, params)
    save(tmp_path, 1, 2, best=checkpoint.encoded_best(best))
    contents = {
        "other parameters": encoded({"w": jnp.ones(3, jnp.float32)}, **GOOD),
        "another file": b"{" * 100, "no header": encoded(params),
    }
    newest = tmp_path / "round-00000002"
    content = encoded(params, **GOOD | what) if isinstance(what, dict) else contents[what]
    (newest / "best.safetensors").write_bytes(content)
    assert restored(tmp_path)[0] == 1  # by its digest
    forge(newest)
    assert restored(tmp_path)[0] == 1
    assert read_latest(tmp_path, "run").best.value == 0.5


def test_a_best_model_that_nobody_wrote_is_not_read(tmp_path):
    save(tmp_path, 1)
    (tmp_path / "round-00000001" / "best.safetensors").write_bytes(b"{" * 100)
    assert restored(tmp_path) == (1, [])


@pytest.mark.parametrize("structure", [
    3, "v", ["w"], {}, {"list": 3}, {"list": ["w"], "tuple": ["w"]}, {"dict": ["w"]},
    {"namedtuple": "w"}, {"namedtuple": ["a b", {"w": "w"}]}, {"namedtuple": ["a", {"1": "w"}]},
    {"set": ["w"]}, "deep",
])
def test_a_structure_of_parameters_that_cannot_be_is_a_sentence(structure):
    if structure == "deep":
        structure = "w"
        for _ in range(5000):
            structure = {"list": [structure]}
    with pytest.raises(ValueError, match=r"^(A structure|Type names|Field names)"):
        rebuilt(structure, {"w": 1.0})


def test_a_structure_in_a_manifest_that_cannot_be_is_refused(tmp_path):
    save(tmp_path, 1, 2)
    for structure in (3, "v", ["w"], {"list": 3}, {"namedtuple": ["a b", {"w": "server_00000"}]}):
        forge(tmp_path / "round-00000002", params=structure)
        assert read_latest(tmp_path, "run").round_index == 1


@pytest.mark.parametrize("header", ["[", "[" * 100_000, "3", "null"])
def test_a_header_of_parameters_that_is_damaged_is_a_sentence(header):
    text = json.dumps({"__metadata__": {"fedax": header}}).encode()
    with pytest.raises(ValueError, match=r"^here is damaged: 'fedax' in its header"):
        decoded(len(text).to_bytes(8, "little") + text, "here")


# ------------------------------------------------------------------------------------- metrics


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of twelve rounds with checkpoints of rounds 9 and 12."""
    with pytest.MonkeyPatch.context() as patch:
        registry.__wrapped__(patch)
        yield run.start(config(), tmp_path_factory.mktemp("runs") / "finished")


@pytest.fixture
def copied(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def altered(path, number):
    """Changes a digit of the loss of a round."""
    lines = (path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    place = lines[number - 1].index(b'"train_loss": ') + len(b'"train_loss": ') + 4
    digit = b"1" if lines[number - 1][place : place + 1] != b"1" else b"2"
    lines[number - 1] = lines[number - 1][:place] + digit + lines[number - 1][place + 1 :]
    (path / "metrics.jsonl").write_bytes(b"".join(lines))


def test_an_altered_digit_is_noticed_and_its_round_run_again(finished, copied, capsys):
    altered(copied, 11)
    assert len(read_metrics(copied)) == 12
    run.resume(copied)
    out = " ".join(capsys.readouterr().out.split())
    assert "round-00000012 cannot be used:" in out
    assert "was changed: its first 12 lines differ" in out
    assert "Continuing after round 9." in out
    assert_same_run(copied, finished)


def test_an_altered_digit_before_every_checkpoint_is_a_sentence(copied):
    altered(copied, 3)
    before = (copied / "metrics.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match=r"first 12 lines.*first 9 lines.*start the run"):
        run.resume(copied)
    assert (copied / "metrics.jsonl").read_bytes() == before
    assert fedax.load_run(copied).best_params is None  # which can be read all the same


def test_a_checkpoint_of_before_the_digest_is_read(finished, copied):
    for path in (copied / "checkpoints").iterdir():
        values = json.loads((path / "manifest.json").read_text())
        del values["metrics"], values["digest"]
        (path / "manifest.json").write_text(json.dumps(values))
    run.resume(copied)
    assert_same_run(copied, finished)


def test_lines_are_kept_as_they_are_and_hashed_as_they_come(tmp_path):
    lines = [b'{"round":1,  "loss": 1.50}\n', b'{"loss": 1e0, "round": 2}\n', b'{"round": 3}\n',
             b'{"round": 4']
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(lines))
    assert [line for line, _ in whole_lines(tmp_path)] == lines[:3]
    with MetricsLog(tmp_path, 2) as log:
        log.write({"round": 3, "loss": float("nan")})
        log.flush()
        content = b"".join(lines[:2]) + b'{"round": 3, "loss": null}\n'
        assert (tmp_path / "metrics.jsonl").read_bytes() == content
        assert log.prefix == (len(content), hashlib.sha256(content).hexdigest())
    with pytest.raises(RunError, match="has 3 complete lines, but the checkpoint is of round 4"):
        MetricsLog(tmp_path, 4)


@pytest.mark.parametrize("content", [
    b"[" * 100_000, b'{"round": 1}', b"3\n", b'{"round": 2}\n', b'{"round": 1, "a": "x"}\n',
    b'{"round": 1, "a": {}}\n', b'{"round": 1, "rejected": 3}\n',
    b'{"round": 1, "rejected": [[]]}\n',
])
def test_a_line_that_is_none_ends_the_metrics(tmp_path, content):
    (tmp_path / "metrics.jsonl").write_bytes(content)
    assert read_metrics(tmp_path) == []


def test_a_line_without_its_fields_is_summed_up_without_them(tmp_path):
    """Folders of other versions; a checkpoint's digest notices what was taken out since."""
    folder = run.start(config(), tmp_path / "run")
    path = folder / "metrics.jsonl"
    names = ("num_rejected", "num_dropped", "seconds", "train_loss", "total_local_steps")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(
        json.dumps({k: v for k, v in line.items() if k not in names}) + "\n" for line in lines
    ))
    for manifest in folder.glob("checkpoints/*/manifest.json"):
        said = json.loads(manifest.read_text())
        del said["metrics"], said["digest"]
        manifest.write_text(json.dumps(said))
    run.resume(folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["num_rejected"], summary["train_loss_last_100_rounds"]) == (0, None)
    page = (folder / "report.html").read_text("utf-8")
    assert f"train loss, mean of the last {len(lines)} rounds" in page


@pytest.mark.parametrize("key", ["task", "algorithm", "preset"])
@pytest.mark.parametrize("name", [None, 1e308, True, 2**63, [0] * 1000])
def test_names_in_a_configuration_are_text(tmp_path, key, name):
    """They ended as TypeErrors; what is long is cut."""
    folder = run.start(config(num_rounds=1), tmp_path / "run")
    said = json.loads((folder / "config.json").read_text()) | {key: name}
    (folder / "config.json").write_text(json.dumps(said))
    with pytest.raises(ConfigError, match=f"{key} in .* must be a name, but is ") as error:
        load_config(folder / "config.json")
    assert len(str(error.value)) < 400


def test_a_preset_of_an_older_fedax_is_a_word_in_a_folder(tmp_path, registry):
    """Every setting is recorded, so a preset that was renamed since does not keep from going on."""
    whole = run.start(config(num_rounds=4), tmp_path / "whole")
    old = run.start(config(num_rounds=2), tmp_path / "old")
    said = json.loads((old / "config.json").read_text())
    (old / "config.json").write_text(json.dumps(said | {"preset": "paper"}))
    run.resume(old, 4)
    for found, wanted in zip(
        jax.tree.leaves(fedax.load_run(old).params), jax.tree.leaves(fedax.load_run(whole).params),
        strict=True,
    ):
        np.testing.assert_array_equal(found, wanted)
    again, first = (resolve(config_file=one / "config.json") for one in (old, whole))
    assert (again.preset, first.preset) == ("none", config().preset)
    assert dataclasses.replace(again, preset=first.preset, num_rounds=4) == first


# -------------------------------------------------------------------------------------- folders


def test_names_are_taken_atomically_as_many_as_it_needs(tmp_path, monkeypatch):
    """Of twelve runs in the same second seven failed for want of a name."""
    monkeypatch.chdir(tmp_path)
    now = SimpleNamespace(now=lambda: SimpleNamespace(strftime=lambda _: "now"))
    monkeypatch.setattr(run, "datetime", SimpleNamespace(datetime=now))
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        folders = list(pool.map(lambda _: run._unused_folder(config()), range(12)))
    expected = {"quadratic-fedyogi-now", *(f"quadratic-fedyogi-now-{i}" for i in range(2, 13))}
    assert {path.name for path in folders} == expected == set(names(tmp_path / "fedax-runs"))


@pytest.mark.parametrize(("task", "folder"), [
    ('lab:x/y|z<1>?*"\\', "lab_x_y_z_1_____-fedyogi-now"),
    ("con", "con-fedyogi-now"),
    ("COM1.a", "_COM1.a-fedyogi-now"),
])
def test_folders_have_names_that_windows_takes(task, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    now = SimpleNamespace(now=lambda: SimpleNamespace(strftime=lambda _: "now"))
    monkeypatch.setattr(run, "datetime", SimpleNamespace(datetime=now))
    assert run._unused_folder(dataclasses.replace(config(), task=task)).name == folder


def test_a_folder_for_runs_that_cannot_be_made_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fedax-runs").write_text("")
    with pytest.raises(RunError, match=r"^Cannot make the run folder fedax-runs.*\.$"):
        run._unused_folder(config())


def test_what_a_killed_start_leaves_is_taken_by_out_and_explained_to_resume(tmp_path, monkeypatch):
    def kill(*arguments):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(folder.os, "fsync", kill)  # the first is the configuration's
        with pytest.raises(Killed):
            run.start(config(), tmp_path / "run")
    assert "config.json.partial" in names(tmp_path / "run")
    with pytest.raises(RunError, match=r"config\.json\. A run was stopped there before it "
                                       r"started; start it with --out .*run\."):
        run.resume(tmp_path / "run")
    run.start(config(num_rounds=0), tmp_path / "run")


def test_a_folder_that_another_took_in_the_meantime_is_not_empty(tmp_path, monkeypatch):
    locked = folder.locked

    @contextlib.contextmanager
    def late(path, go_on, **options):
        (path / "config.json").write_text("{}")
        with locked(path, go_on, **options):
            yield

    monkeypatch.setattr(folder, "locked", late)
    with (pytest.raises(RunError, match=r"is not empty; continue it with --resume"),
          new_folder(tmp_path / "run")):
        raise AssertionError


@ON_POSIX
@pytest.mark.parametrize("how", ["deleted", "moved", "metrics deleted", "metrics replaced"])
def test_a_folder_that_goes_away_is_noticed_and_not_made_anew(tmp_path, monkeypatch, how):
    path, show = tmp_path / "run", Display.show

    def vanish(self, report):
        show(self, report)
        if report.metrics["round"] == 4:
            if how == "deleted":
                shutil.rmtree(path)
            elif how == "moved":
                path.rename(tmp_path / "elsewhere")
            else:
                (path / "metrics.jsonl").unlink()
            if how == "metrics replaced":
                (path / "metrics.jsonl").write_text("")

    with monkeypatch.context() as patch:
        patch.setattr(Display, "show", vanish)
        sentence = "was deleted or replaced" if "metrics" in how else r"was deleted or moved"
        with pytest.raises(RunError, match=sentence):
            run.start(config(num_rounds=8), path)
    assert path.exists() == ("metrics" in how)
    if how == "moved":
        run.resume(tmp_path / "elsewhere")
        assert len(read_metrics(tmp_path / "elsewhere")) == 8


@ON_POSIX
@pytest.mark.parametrize("name", [
    "metrics.jsonl.partial", "report.html", "report.html.partial", "summary.json",
    "config.json.partial", "best.safetensors.partial", "clients.csv.partial",
])
def test_links_out_of_the_folder_are_refused(copied, tmp_path, name):
    outside = tmp_path / "outside"
    outside.write_text("kept")
    (copied / name).unlink(missing_ok=True)
    (copied / name).symlink_to(outside)
    with pytest.raises(RunError, match=f"{name} is a link that fedax did not make"):
        run.resume(copied, num_rounds=13)
    assert outside.read_text() == "kept"


@ON_POSIX
@pytest.mark.parametrize(("name", "sentence"), [
    ("metrics.jsonl", r"metrics\.jsonl is a link that fedax did not make"),
    (".lock", r"\.lock is a link that fedax did not make"),
    ("checkpoints", r"checkpoints is a link that fedax did not make"),
])
def test_links_that_would_be_written_to_are_refused(copied, tmp_path, name, sentence):
    outside = tmp_path / "outside"
    (copied / name).rename(outside)
    (copied / name).symlink_to(outside)
    before = names(outside) if outside.is_dir() else outside.read_bytes()
    with pytest.raises(RunError, match=sentence):
        run.resume(copied, num_rounds=13)
    assert before == (names(outside) if outside.is_dir() else outside.read_bytes())


@ON_POSIX
def test_metrics_that_are_a_pipe_are_a_sentence_at_once(copied):
    (copied / "metrics.jsonl").unlink()
    os.mkfifo(copied / "metrics.jsonl")
    with pytest.raises(RunError, match=r"metrics\.jsonl is not a regular file"):
        run.resume(copied)
    with pytest.raises(RunError, match="It is not a regular file"):
        fedax.load_run(copied)


@ON_POSIX
def test_writing_a_file_replaces_what_lies_where_it_is_begun(tmp_path):
    (tmp_path / "outside").write_text("kept")
    (tmp_path / "file.partial").symlink_to(tmp_path / "outside")
    (tmp_path / "file").symlink_to(tmp_path / "outside")
    write_atomically(tmp_path / "file", b"new")
    assert names(tmp_path) == ["file", "outside"]
    assert (tmp_path / "outside").read_text() == "kept"
    (tmp_path / "file.partial").mkdir()
    with pytest.raises(OSError, match=r"file\.partial"):
        write_atomically(tmp_path / "file", b"newer")
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize("content", [
    b"", b"client", b"client,num_examples,loss\nada,3\n", b"client,num_examples,loss\nada,3,low\n",
    b"\xff\xfe", b"client,num_examples,loss\nada,3," + b"1" * 200_000, "a pipe",
])
def test_a_damaged_table_of_clients_is_no_table(tmp_path, content):
    if content == "a pipe" and sys.platform != "win32":
        os.mkfifo(tmp_path / "clients.csv")
    else:
        (tmp_path / "clients.csv").write_bytes(content)
    assert worst_of_run(tmp_path) == ("", [])


@ON_POSIX
def test_a_copy_of_a_source_is_whole_and_in_the_folder(tmp_path):
    source = tmp_path / "mine.py"
    source.write_text("RATE = 1\n")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    path = tmp_path / "run"
    copy = sources.copy_of(path, str(source), digest)
    copy.parent.mkdir(parents=True)
    copy.symlink_to(tmp_path / "outside")
    sources.keep_copies(path, [sources.Source("f", str(source), digest)])
    assert copy.read_text() == "RATE = 1\n"
    assert not copy.is_symlink()
    assert not (tmp_path / "outside").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right of their own there")
def test_a_trace_does_not_follow_a_link(tmp_path):
    folder = run.start(config(num_rounds=3), tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    (folder / "profile").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="profile is a link that fedax did not make"):
        run.resume(folder, 6, profile=True)
    assert not any((tmp_path / "elsewhere").iterdir())
