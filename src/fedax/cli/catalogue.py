"""What `fedax list` shows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from fedax.algorithms.registry import ALGORITHMS, PAPERS, WRAPPERS
from fedax.experiment.build import algorithm_keys, build_algorithm
from fedax.experiment.config import resolve
from fedax.experiment.errors import ConfigError
from fedax.measures.communication import communication
from fedax.report.picture import save_picture
from fedax.report.tables import print_json, print_tables
from fedax.reproductions import REPRODUCTIONS
from fedax.tasks.registry import DATASETS, TASKS, load_task
from fedax.validate import unknown

Row = dict[str, Any]


def _tasks() -> list[Row]:
    return [
        {
            "name": name,
            "description": info.description,
            "models": list(info.models),
            "dataset": info.dataset,
        }
        for name, info in TASKS.items()
    ]


def _algorithms() -> list[Row]:
    """Every algorithm with what it sends and keeps, computed on the embedded task."""
    tasks = functools.cache(lambda model: load_task("shakespeare", model=model))
    infos = ALGORITHMS | {name: info for name, (info, _) in WRAPPERS.items()}
    rows = []
    for name, info in infos.items():
        config = resolve(task="shakespeare", algorithm=name)
        task = tasks(config.task_options["model"])
        algorithm = build_algorithm(name, config.algorithm_options, task.model)
        sent = communication(algorithm, task.model, task.train.client(0))
        params = jax.eval_shape(task.model.init, jax.random.key(0))
        keeps = bool(jax.tree.leaves(jax.eval_shape(algorithm.init_client, params)))
        rows.append(
            {
                "name": name if name in ALGORITHMS else f"{name}+",
                "description": (info.factory.__doc__ or "").splitlines()[0],
                "paper": info.paper,
                "exchanges": len(algorithm.exchanges),
                "client_state": keeps,
                "individual_uploads": any(e.individual for e in algorithm.exchanges),
                "bytes_down": sent.bytes_down,
                "bytes_up": sent.bytes_up,
                "copies": round(sent.copies, 2),
                "extra_gradients": info.extra_gradients,
                "settings": list(algorithm_keys(name)),
            }
        )
    return rows


def _reproductions() -> list[Row]:
    return [
        {"name": name, "description": info.description, "source": info.source}
        for name, info in REPRODUCTIONS.items()
    ]


def _datasets() -> list[Row]:
    return [
        {"name": name, "description": info.description, "source": info.source}
        for name, info in DATASETS.items()
    ]


ROWS: dict[str, Callable[[], list[Row]]] = {
    "tasks": _tasks,
    "algorithms": _algorithms,
    "datasets": _datasets,
    "reproductions": _reproductions,
}


# What a terminal shows of a row that has more: key -> heading.
SHOWN = {
    "algorithms": {
        "name": "name", "paper": "paper", "exchanges": "ex.", "client_state": "state",
        "copies": "sent", "extra_gradients": "extra",
    },
}
NOTES = {
    "algorithms": (
        "ex.: exchanges a round. state: whether clients keep any. sent: bytes down and up for a "
        "client and round, in copies of the parameters; FedAvg's are 2x, pfnm's count the "
        "server's network at its capacity. extra: gradients besides one a local step; a pass is "
        "one over the client's data. A name ending in + wraps another, as in "
        "local_update_decay+elastic+fedprox; one ending in * shows the server every upload by "
        "itself, all others only the mean. Settings and bytes: --json. "
        + " ".join(f"{short}: {paper}." for short, paper in PAPERS.items())
    ),
}


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Prints the rows as a table, or that there are none."""
    console = Console(soft_wrap=False)
    if not rows:
        console.print(f"There are no {title} yet.")
        return
    shown = SHOWN.get(title, {name: name for name in rows[0]})
    table = Table(box=None, pad_edge=False)
    for heading in shown.values():
        table.add_column(heading, overflow="fold")
    for row in rows:
        cells = [_cell(key, row[key]) for key in shown]
        if row.get("individual_uploads"):
            cells[0] += "*"
        table.add_row(*cells)
    console.print(table)
    if title in NOTES:
        console.print(NOTES[title], style="dim")


def reproduce(name: str, out: Path | None = None, *, as_json: bool = False) -> None:
    """Computes a reproduction in float64, prints its tables and writes its picture.

    Args:
      name: which.
      out: folder for the picture; None: `fedax-reproductions`.
      as_json: print the tables as JSON, and draw nothing unless there is a folder.

    Raises:
      ConfigError: there is no reproduction of that name.
      PictureError: the picture cannot be written.
    """
    if name not in REPRODUCTIONS:
        raise ConfigError(unknown("reproduction", name, REPRODUCTIONS))
    with jax.enable_x64(True):
        found = REPRODUCTIONS[name].compute()
    if as_json:
        print_json(found.tables)
    else:
        print(f"{REPRODUCTIONS[name].description} ({REPRODUCTIONS[name].source})\n")
        print_tables(found.tables)
    if out is not None or not as_json:
        path = save_picture(found.draw, (out or Path("fedax-reproductions")) / f"{name}.png")
        if not as_json:
            print(f"Picture: {path}")


def _cell(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    if key == "copies":
        return f"{value:.4g}x"
    return ", ".join(value) if isinstance(value, list) else str(value)
