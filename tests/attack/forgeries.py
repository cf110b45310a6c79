"""Forged folders of runs, sweeps and searches: no code is run, nothing elsewhere is touched.

What a stranger may write into a configuration, a study or a record: names of code wherever a text
may stand, pickles, other storages, wrong types, huge numbers, damaged archives. Code that is
imported or called is noticed by a module that notes it, and by the system's own audit of calls.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pickle
import random
import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import fedax
from attack import commands, links
from attack.archives import header, npz, packed
from attack.data_files import changed, unexpected
from attack.files import _holders, as_bytes, damaged, forged
from attack.outcomes import UNSEEN, FoundError
from attack.workers import scratch

SECONDS, MEGABYTES = 90.0, 1000.0
MODULE = '''"""Notes that it was imported, and what was called."""
import os
import pathlib

def call(*arguments, **named):
    with (pathlib.Path(os.environ["ATTACK_CANARY"]) / "called").open("a") as file:
        file.write("called\\n")
    return 0.1

call("imported")
task = method = call

def __getattr__(name):
    return call
'''
FAMOUS = ("os:system", "subprocess:call", "builtins:eval", "builtins:exec", "os:remove", "os:mkdir",
          "shutil:rmtree", "pickle:loads", "runpy:run_path", "importlib:import_module",
          "fedax.experiment.folder:write_atomically", "numpy:save", "optax:sgd", "fedax:fedavg")
KINDS = ("run", "from python", "sweep", "halving", "search", "cmaes")


@functools.cache
def canary() -> Path:
    """A folder with things of one's own, and the module that notes its use."""
    folder = scratch() / "mine"
    folder.mkdir()
    modules = scratch() / "modules"
    modules.mkdir()
    (modules / "attack_canary.py").write_text(MODULE)
    sys.path.insert(0, str(modules))
    os.environ["ATTACK_CANARY"] = str(folder)
    (folder / "thesis.txt").write_text("mine")
    with contextlib.closing(sqlite3.connect(folder / "mine.db")) as database, database:
        database.execute("CREATE TABLE mine (x)")
    np.savez(folder / "mine.npz", x=np.arange(3))
    sys.addaudithook(_note)
    return folder


# What the audit saw in a trial; there is no list between trials.
_seen: list[list[str]] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if not _seen:
        return
    if event in ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen"):
        if "lscpu" not in str(arguments):
            _seen[-1].append(f"{event}{arguments!r}"[:200])
    elif event == "pickle.find_class" and "attack_canary" in str(arguments):
        _seen[-1].append(f"{event}{arguments!r}"[:200])


def code(rng: random.Random) -> Any:
    """Something that names code, as a string or as a table of a call."""
    mine = canary()
    # Half of them are noticed whatever they are called with.
    name = rng.choice(rng.choice(((
        "attack_canary:call", "attack_canary:method",
        f"{mine.parent / 'modules' / 'attack_canary.py'}:call",
    ), FAMOUS)))
    arguments: Any = rng.choice((
        {}, {"command": f"touch {mine / 'called'}"}, {"path": str(mine / "thesis.txt")},
        {"name": str(mine / "new")}, {"file": str(mine / "new"), "arr": [1.0]},
        [f"touch {mine / 'called'}"], {"x": {"factory": "attack_canary:call", "arguments": {}}},
    ))
    called = {"factory": name, "arguments": arguments}
    if rng.random() < 0.4:
        return called
    return rng.choice((
        name, name, called, {"function": name}, {"__reduce__": name},
        {"factory": "fedax:fedavg", "arguments": {"model": {"factory": name, "arguments": {}}}},
        f"{name}+fedavg", f"constant({name})", f"sqlite:///{mine / 'mine.db'}",
        f"sqlite:///{mine / 'new.db'}", str(mine / "thesis.txt"), str(mine), "postgresql://x@y/z",
        f"sqlite+attack_canary:///{mine / 'new.db'}", "../../mine", "../../mine/thesis.txt",
        pickle.dumps(_Evil()).hex(), {"_type": name}, [name], "\x1b]0;EVIL\x07",
    ))


class _Evil:
    """What calls the module when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        import attack_canary

        return attack_canary.call, ("unpickled",)


def spoil_json(path: Path, rng: random.Random) -> None:
    """JSON in which code is named, or something stands that nobody would write."""
    value = json.loads(path.read_text("utf-8"))
    if rng.random() < 0.4:
        path.write_bytes(as_bytes(forged(value, rng)))
        return
    inner = [value[key] for key in ("algorithm_options", "task_options", "search", "settings")
             if isinstance(value, dict) and value.get(key)]
    options = value.get("algorithm_options") if isinstance(value, dict) else None
    if options and rng.random() < 0.5:  # all else as it was, so that nothing stops it before
        options[rng.choice(list(options))] = {
            "factory": "attack_canary:call",
            "arguments": rng.choice(({}, {"x": 1}, {"command": f"touch {canary() / 'called'}"}))}
        path.write_bytes(as_bytes(value))
        return
    for _ in range(rng.choice((1, 1, 3))):
        part = rng.choice(inner) if inner and rng.random() < 0.6 else value
        holder, key = rng.choice(list(_holders(part)))
        holder[key] = code(rng)
        if rng.random() < 0.2 and isinstance(holder, dict):
            names = ("storage", "task", "algorithm", "factory", "model", "worker", "x")
            holder[rng.choice(names)] = code(rng)
    path.write_bytes(as_bytes(value))


def spoil_study(path: Path, rng: random.Random) -> None:
    """A study with other values in some cells, and pickles where samplers keep theirs."""
    evil = json.dumps(pickle.dumps(_Evil()).hex())
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        names = [row[0] for row in database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'")]
        for _ in range(rng.choice((1, 2, 5))):
            table = rng.choice(names)
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            value: Any = rng.choice((
                None, "x", -1, 2**40, 1e308, "nan", "\x1b[31mEVIL", json.dumps(code(rng)), evil,
                "[" * 5000, b"\x80", "COMPLETE", "RUNNING", "9999-99-99", "",
            ))
            try:
                database.execute(f'UPDATE {table} SET "{rng.choice(columns)}" = ?', [value])
            except sqlite3.Error:
                continue
        if rng.random() < 0.6:
            for table, owner in (("trial_system_attributes", "trial"),
                                 ("study_system_attributes", "study")):
                key = rng.choice(("cma:optimizer:0", "cma:optimizer", "cma:n_restarts", "x"))
                for (number,) in database.execute(
                    f"SELECT {owner}_id FROM {'trials' if owner == 'trial' else 'studies'}"
                ).fetchall():
                    database.execute(
                        f"INSERT OR REPLACE INTO {table} ({owner}_id, key, value_json) "
                        "VALUES (?, ?, ?)", [number, key, evil])
                database.execute(f"UPDATE {table} SET value_json = ? WHERE key LIKE 'cma%'", [evil])
        if rng.random() < 0.1:
            database.execute(
                "CREATE TRIGGER t AFTER UPDATE ON trials BEGIN "
                "INSERT INTO trial_values SELECT * FROM trial_values; END")
        if rng.random() < 0.1:
            database.execute("ALTER TABLE trial_params RENAME TO p")
            database.execute("CREATE VIEW trial_params AS SELECT a.* FROM p a, p b, p c, p d, p e")
    if rng.random() < 0.1:
        path.write_bytes(damaged(path.read_bytes(), rng))


def spoil_arrays(path: Path, rng: random.Random) -> None:
    """A record that is damaged, or promises anything."""
    if rng.random() < 0.6:
        path.write_bytes(changed(path.read_bytes(), rng))
        return
    with np.load(path) as arrays:
        names = list(arrays.files)
        members = {name: packed(header(arrays[name].dtype.str, arrays[name].shape)
                                + arrays[name].tobytes()) for name in names}
    name = rng.choice([*names, "metric/x", "x" * 3000, "../x", "metric/\x1b[31mEVIL"])
    members[name] = rng.choice((
        lambda: packed(header("<f8", (2, 2**27)), 2**31), lambda: packed(header("<f8", (2, 3))),
        lambda: packed(header("<f8", (2**40,))), lambda: packed(header("|O", (2,)) + bytes(99)),
        lambda: packed(b"\x93NUMPY\x01\x00\x10\x00((((((((((((((("), lambda: packed(b""),
        lambda: packed(header("<U3", (2, 3)) + bytes(72)), lambda: packed(header("<f8", ()) + b"8"),
    ))()
    npz(path, members)


def spoil(path: Path, rng: random.Random) -> str:
    """Forges a file of a folder by its kind."""
    if path.suffix == ".json":
        spoil_json(path, rng)
    elif path.suffix == ".db":
        spoil_study(path, rng)
    elif path.suffix == ".npz" and rng.random() < 0.8:
        spoil_arrays(path, rng)
    elif rng.random() < 0.1:
        path.unlink()
        os.mkfifo(path)
    else:
        path.write_bytes(changed(path.read_bytes(), rng))
    return str(path.name)


@functools.cache
def template(kind: str) -> Path:
    """A folder of a kind, made once in each process."""
    if kind in links.MADE:
        return links.template(kind)
    folder = scratch() / "templates" / kind.replace(" ", "-")
    if kind == "cmaes":
        words = ("sweep", "quadratics", "fedavg", "--search",
                 "client_learning_rate=loguniform(0.01,0.3)",
                 "server_learning_rate=loguniform(0.1,2)", "--sampler", "cmaes", "--trials", "8",
                 "--rounds", "2", "--settings-per-batch", "1")
        status, _, errors = commands.run([*words, "--out", str(folder)])
        assert status == 0, errors
    else:
        task = fedax.load_task("quadratics")
        fedax.train(task, fedax.fedavg(task.model, 0.1), num_rounds=2, cohort_size=2,
                    out=str(folder), progress=False)
    return folder


def _looked_at(folder: Path, what: str) -> Callable[[], Any]:
    return lambda: getattr(fedax.load_run(folder), what)


def uses(kind: str, folder: Path) -> list[list[str] | Callable[[], Any]]:
    """What is done with a stranger's folder: commands, and calls from Python."""
    place = str(folder)
    if kind in ("run", "from python"):
        looks = [_looked_at(folder, what) for what in (
            "params", "state", "algorithm", "algorithm", "history", "summary")]
        resumed = [["run", "--resume", place, "--rounds", "5"]] if kind == "run" else []
        return [*looks, *resumed, ["theory", "--run", place], ["report", place],
                ["run", "--config", f"{place}/config.json", "--out", f"{place}-new"],
                ["plot", "curves", place, "--out", f"{place}.png"]]
    goes_on = [["sweep", "--resume", place], ["sweep", "--extend", place]] if kind in (
        "sweep", "halving") else [["sweep", "--resume", place, "--trials", "10"]] * 2
    return [*goes_on, ["report", place], ["plot", "curves", place, "--out", f"{place}.png"],
            lambda: fedax.load_sweep(folder)]


def trial(seed: int, number: int) -> str:
    """A forged folder and one use of it; returns how it ended.

    Raises:
      FoundError: code was run, something else changed, or there was no sentence.
    """
    rng = random.Random(f"{seed} forgeries {number}")
    mine = canary()
    kind = rng.choice(KINDS)
    place = scratch() / "trial"
    shutil.rmtree(place, ignore_errors=True)
    folder = place / "stranger"
    shutil.copytree(template(kind), folder)
    if rng.random() < 0.5:
        for name in links.STOPPED:
            (folder / name).unlink(missing_ok=True)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in (
        ".json", ".jsonl", ".db", ".npz", ".safetensors", ".csv")]
    main = "study.db" if kind == "cmaes" else "config.json"
    first = [path for path in files if path.name in (main, "study.db")]
    done = [spoil(rng.choice(first if rng.random() < 0.6 else files), rng)]
    use = rng.choice(uses(kind, folder))
    what = f"{kind} with a forged {done[0]}, {use if isinstance(use, list) else 'from Python'}"
    sys.modules.pop("attack_canary", None)
    before = commands.digest(mine)
    _seen.append([])
    try:
        ended = _used(use)
    except FoundError as error:
        raise FoundError(f"{what}: {error}") from None
    finally:
        seen = _seen.pop()
        was = "attack_canary" in sys.modules
        sys.modules.pop("attack_canary", None)
        try:
            commands.require_same(before, mine, f"{what}, {seen}")
        finally:
            (mine / "called").unlink(missing_ok=True)
            (mine / "new.db").unlink(missing_ok=True)
    if was or seen:
        raise FoundError(f"{what}: code was run: {seen}")
    return ended


def _used(use: list[str] | Callable[[], Any]) -> str:
    """How a use of the folder ended."""
    if isinstance(use, list):
        status, out, errors = commands.run(use)
        commands.require_fair(use, status, errors)
        commands.require_plain(use, out + errors, terminal=False)
        return "done" if status == 0 else "a sentence"
    try:
        use()
    except (ValueError, OSError, LookupError, RuntimeError) as error:  # fedax's own are of these
        text = str(error)
        if not type(error).__module__.startswith("fedax") or "\n" in text.strip():
            raise FoundError(f"no sentence: {unexpected(error)[:1500]!r}") from None
        if UNSEEN.search(text):
            raise FoundError(f"commands a terminal: {text[:500]!r}") from None
        return "a sentence"
    except Exception as error:
        raise FoundError(unexpected(error)) from error
    return "done"
