"""Names that command a terminal, in everything that prints: none of it reaches the terminal.

Names of clients, metrics, settings, columns, files and folders hold ESC, C1 controls, BEL and
overrides of the direction of text, and marks of the library that draws tables. What a command says
to a pipe and to a terminal, beyond fedax's own colours, has none of them.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import fedax
import made_data
from attack import commands, links
from attack.outcomes import UNSEEN, FoundError
from attack.workers import scratch

SECONDS, MEGABYTES = 90.0, 800.0
# Each with letters that are never fedax's own.
EVIL = (
    "\x1b]0;EVIL\x07", "\x1b[31337mEVIL", "\x1b[2JEVIL\x1b[6n", "\x9b31mEVIL", "\x9d0;EVIL\x9c",
    "\x07EVIL", "\x7fEVIL", "\u202eEVIL", "\u2066EVIL\u2069", "EVIL\x08\x08\x08\x08",
    "\x1bPEVIL\x1b\\",
    "\x1b]8;;http://evil\x1b\\EVIL\x1b]8;;\x1b\\", "[link=http://evil]EVIL[/link]", "\x0eEVIL\x0f",
    "\x0bEVIL", "\x85EVIL", "\u2028EVIL", "[/EVIL]", "[blink]EVIL",
)
Case = tuple[list[str] | Callable[[], Any], str]


def _folder(kind: str) -> Path:
    folder = scratch() / "trial" / "stranger"
    shutil.copytree(links.template(kind), folder)
    return folder


def _use(folder: Path, kind: str, rng: random.Random) -> list[str]:
    words = rng.choice([*links.USED[kind], ("plot", "curves", "D", "--metric", "nope", "--out",
                                            "D/x.png")])
    return [word.replace("D", str(folder), 1) if word[:1] == "D" else word for word in words]


def of_path(name: str, rng: random.Random) -> list[str]:
    """A file or a folder that is called so, there or not."""
    place = scratch() / "trial" / name.replace("/", "_")
    kind = rng.choice(("none", "file", "folder", "run", "sweep", "search"))
    if kind == "file":
        place.write_text(rng.choice(("{", "a,b\n1", "task = 1")))
    elif kind == "folder":
        place.mkdir()
    elif kind != "none":
        shutil.copytree(links.template(kind), place)
        return [word.replace("D", str(place), 1) if word[:1] == "D" else word
                for word in rng.choice(links.USED[kind])]
    path = str(place)
    return rng.choice([
        ["run", "--resume", path], ["run", "--config", path], ["report", path], ["theory", path],
        ["sweep", "--resume", path], ["sweep", "--extend", path], ["theory", "--run", path],
        ["plot", "curves", path, "--out", f"{path}.png"], ["data", "check", path],
        ["run", "quadratics", "fedavg", "--rounds", "1", "--out", path],
        ["run", f"{path}.py:task", "fedavg"], ["run", "quadratics", f"{path}.py:method"],
        ["sweep", "quadratics", "fedavg", "--grid", "client_learning_rate=0.1", "--rounds", "1",
         "--out", path],
    ])


def of_words(name: str, rng: random.Random) -> list[str]:
    """A word of the command line."""
    quadratics = ["quadratics", "fedavg"]
    return rng.choice([
        ["run", name], ["run", "quadratics", name], ["run", *quadratics, "--set", f"{name}=1"],
        ["run", *quadratics, "--set", f"client_learning_rate={name}"], [name],
        ["run", *quadratics, "--preset", name], ["plot", name, "x"], ["reproduce", name],
        ["sweep", *quadratics, "--grid", f"{name}=1"],
        ["sweep", *quadratics, "--grid", f"client_learning_rate={name}"],
        ["sweep", *quadratics, "--search", f"client_learning_rate={name}(1,2)"],
        ["sweep", *quadratics, "--search", "client_learning_rate=loguniform(0.1,1)", "--storage",
         f"sqlite:////nowhere/{name}"],
        ["sweep", *quadratics, "--grid", "client_learning_rate=0.1", "--choose", name],
        ["data", "get", name], ["run", "--set", name], ["run", *quadratics, name],
        ["run", *quadratics, "--coordinator", name, "--processes", "2", "--process-id", "0"],
    ])


def of_configuration(name: str, rng: random.Random) -> list[str]:
    """A key or a value of a folder's files."""
    kind = rng.choice(("run", "sweep", "halving", "search"))
    folder = _folder(kind)
    endings = (".json", ".jsonl", ".csv", ".toml")
    files = sorted(path for path in folder.rglob("*") if path.suffix in endings)
    path = rng.choice([*files, folder / "config.json", folder / "config.json"])
    text = path.read_text("utf-8")
    if path.suffix == ".json":
        value = json.loads(text)
        for _ in range(rng.choice((1, 3))):
            holder = value
            while True:
                keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
                key = rng.choice(keys)
                inner = holder[key]
                if not isinstance(inner, dict | list) or not inner or rng.random() < 0.2:
                    break
                holder = holder[key]
            if isinstance(holder, dict) and rng.random() < 0.4:
                holder[f"{key}{name}"] = holder[key]
            else:
                holder[key] = name
        text = json.dumps(value)
    else:
        words = ("train_loss", "test_loss", "fedavg", "client_learning_rate", "quadratics")
        word = rng.choice(words)
        said = json.dumps(name)[1:-1] if path.suffix == ".jsonl" else name
        text = text.replace(word, f"{word}{said}")
    path.write_text(text, "utf-8")
    if rng.random() < 0.5:
        (folder / "summary.json").unlink(missing_ok=True)
    return _use(folder, kind, rng)


def of_entry(name: str, rng: random.Random) -> list[str]:
    """Something in a folder that is called so."""
    kind = rng.choice(("run", "sweep", "search"))
    folder = _folder(kind)
    below = rng.choice([folder, *(path for path in folder.rglob("*") if path.is_dir())])
    place = below / name.replace("/", "_")
    if rng.random() < 0.5:
        place.mkdir()
    else:
        place.write_text("x")
    (folder / "summary.json").unlink(missing_ok=True)
    return _use(folder, kind, rng)


def of_study(name: str, rng: random.Random) -> list[str]:
    """Something in a search's database."""
    folder = _folder("search")
    with contextlib.closing(sqlite3.connect(folder / "study.db")) as database, database:
        table, column = rng.choice((
            ("studies", "study_name"), ("trial_params", "param_name"), ("trials", "state"),
            ("trial_params", "distribution_json"), ("study_user_attributes", "value_json"),
            ("trial_user_attributes", "key"), ("trials", "datetime_start"),
            ("version_info", "library_version"), ("alembic_version", "version_num"),
        ))
        database.execute(f"UPDATE OR IGNORE {table} SET {column} = ?", [
            rng.choice((name, json.dumps({name: name, "name": name}), f'{{"x": "{name}'))])
        if rng.random() < 0.2:
            database.execute(f"ALTER TABLE {table} RENAME TO x")
    return ["sweep", "--resume", str(folder), "--trials", "4"]


def of_table(name: str, rng: random.Random) -> list[str]:
    """Columns and clients in a question to the theory."""
    path = scratch() / "trial" / rng.choice(("t.csv", "t.json", "t.toml"))
    if path.suffix == ".csv":
        rows = [["client", f"x{name}", "y"], [f"a{name}", "1", "2"], ["b", rng.choice((name, "3")),
                                                                    "4"]]
        path.write_text("\n".join(",".join(row) for row in rows) + "\n")
        return ["theory", str(path), *rng.choice(([], ["--target-column", "none"],
                                                  ["--client-column", name]))]
    table = {rng.choice(("matrices", name)): rng.choice(([1.0, 2.0], name, [name])),
             "centres": [1.0, 0.5]}
    text = json.dumps(table) if path.suffix == ".json" else "".join(
        f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in table.items())
    path.write_text(text + rng.choice(("", "", name)))
    return ["theory", str(path)]


def of_data(name: str, rng: random.Random) -> Callable[[], Any]:
    """Names of clients, columns and fields in files of data, which errors quote."""
    folder = scratch() / "trial"
    kind = rng.choice(("csv", "hdf5", "sqlite", "leaf", "parquet", "npz", "damaged"))
    path = folder / {"leaf": "a.json", "hdf5": "a.h5"}.get(kind, f"a.{kind}")
    options: dict[str, Any] = {"client_column": "who"} if kind in ("csv", "parquet") else {}
    if kind == "csv":
        path.write_text(f"who,x{name}\na{name},1\nb,{name}\n")
    elif kind == "hdf5":
        with h5py.File(path, "w") as file:
            file["examples/c/x"] = [1.0]
            file[f"examples/c{name}/x{name}".replace("\x00", "")] = rng.choice(([1.0, 2.0], ["a"]))
            if rng.random() < 0.5:
                file[f"examples/{name}"] = h5py.SoftLink("/x")
    elif kind == "sqlite":
        rows = [made_data.tf_example({f"x{name}": [1.0]}), made_data.tf_example({name: [1.0, 2.0]})]
        made_data.sqlite(path, {name: {name: rows}, "b": {"c": rows[:1]}})
        options["split"] = rng.choice((None, "none", name))
    elif kind == "leaf":
        path.write_text(json.dumps({"users": [name], "num_samples": [2], "user_data": {
            name: {f"x{name}": [1], "y": [name]}}}))
    elif kind == "parquet":
        path.write_bytes(made_data.parquet_of({
            "who": [name, "b"], f"x{name}": rng.choice(([1.0, float("nan")], ["a", name]))}))
    elif kind == "npz":
        np.savez(path, **{f"x{name}".replace("/", "_"): np.ones(2), "client_ids": [name, "b"],
                          "z": np.ones(rng.choice((2, 3)))})
    else:
        path = folder / "a.parquet"
        content = made_data.parquet_of({f"x{name}": [1], "who": ["a"]})
        place = rng.randrange(4, len(content))
        path.write_bytes(content[:place] + name.encode() + content[place:])
        options["client_column"] = rng.choice(("who", name))
    return lambda: fedax.read_data(path, **options, store=folder / "store")


CASES = (of_path, of_words, of_configuration, of_entry, of_study, of_table, of_data)


def trial(seed: int, number: int) -> str:
    """A name somewhere, and what is said of it; returns how it ended.

    Raises:
      FoundError: something was said that commands a terminal, or no sentence.
    """
    rng = random.Random(f"{seed} escapes {number}")
    shutil.rmtree(scratch() / "trial", ignore_errors=True)
    (scratch() / "trial").mkdir()
    make, name = rng.choice(CASES), rng.choice(EVIL)
    use = make(name, rng)
    what = f"{make.__name__} {name!r}"
    if not isinstance(use, list):
        try:
            repr(use())
        except (ValueError, OSError, TypeError) as error:
            if UNSEEN.search(str(error)):
                raise FoundError(f"{what}: {str(error)!r}") from None
            return "a sentence"
        return "done"
    terminal = rng.random() < 0.5
    status, out, errors = commands.run(use, terminal)
    try:
        commands.require_plain(use, out + ("" if terminal else errors), terminal)
        if not terminal:
            commands.require_fair(use, status, errors)
    except FoundError as error:
        raise FoundError(f"{what}: {error}") from None
    return "done" if status == 0 else "a sentence"
