"""What `fedax list` shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from fedax.algorithms import ALGORITHMS
from fedax.experiment.config import algorithm_keys
from fedax.tasks import DATASETS, TASKS

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
    return [
        {
            "name": name,
            "description": (factory.__doc__ or "").splitlines()[0],
            "settings": list(algorithm_keys(name)),
        }
        for name, factory in ALGORITHMS.items()
    ]


def _datasets() -> list[Row]:
    return [
        {"name": name, "description": info.description, "source": info.source}
        for name, info in DATASETS.items()
    ]


# No published table or figure is reproduced by a command yet, so that list is empty.
ROWS: dict[str, Callable[[], list[Row]]] = {
    "tasks": _tasks,
    "algorithms": _algorithms,
    "datasets": _datasets,
    "reproductions": list,
}


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Prints the rows as a table, or that there are none."""
    console = Console(soft_wrap=False)
    if not rows:
        console.print(f"There are no {title} yet.")
        return
    table = Table(box=None, pad_edge=False)
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for row in rows:
        cells = [", ".join(v) if isinstance(v, list) else str(v) for v in row.values()]
        table.add_row(*cells)
    console.print(table)
