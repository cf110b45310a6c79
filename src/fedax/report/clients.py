"""The table of a run's clients: written as a file, and the worst of them for the page."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

from fedax.data.csv_cells import safe_cell
from fedax.pictures.client_files import read_clients
from fedax.pictures.errors import DrawingError
from fedax.rounds.client_metrics import ClientMetrics

CLIENTS = "clients.csv"
PERSONAL, OWN = "personal_", "own_"
# So many clients are on the page.
SHOWN = 10


def clients_table(
    clients: ClientMetrics, personal: ClientMetrics | None = None, own: ClientMetrics | None = None
) -> str:
    r"""The metrics client by client, as CSV.

    Columns: client, num_examples (that were evaluated), each metric, and `personal_*`, the same
    after fine-tuning, and `own_*`, of the clients' own models; a value that a client does not have
    is empty. A name that a spreadsheet would take for a formula, such as `=1+1`, begins with an
    apostrophe.

    Example:
      >>> import numpy as np
      >>> sums = {"loss": (np.array([3.0, 5.0]), np.array([3.0, 1.0]))}
      >>> clients_table(ClientMetrics(sums, np.array(["ada", "bob"]), np.array([3, 1])))
      'client,num_examples,loss\nada,3,1.0\nbob,1,5.0\n'
    """
    columns: dict[str, Any] = {metric: values.tolist() for metric, values in clients.items()}
    names = clients.names.tolist()
    for prefix, found in ((PERSONAL, personal), (OWN, own)):
        for metric, values in (found or {}).items():
            assert found is not None
            known = dict(zip(found.names.tolist(), values.tolist(), strict=True))
            columns[prefix + metric] = [known.get(name, math.nan) for name in names]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["client", "num_examples", *map(safe_cell, columns)])
    for name, size, *values in zip(
        names, clients.num_examples.tolist(), *columns.values(), strict=True
    ):
        writer.writerow([
            safe_cell(name), size, *("" if math.isnan(value) else value for value in values)
        ])
    return file.getvalue()


def worst_of_run(folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """The metric by which clients are compared, and the worst clients' rows, worst first.

    It is the model's first metric. There are no rows if the run has no table of clients, or one
    that is damaged.
    """
    try:
        clients = read_clients(folder / CLIENTS, links=False)
    except DrawingError:
        return "", []
    metric = next(iter(clients), "")
    if not metric:
        return "", []
    places = {name: place for place, name in enumerate(clients.names.tolist())}
    return metric, [
        {"client": name, "examples": int(clients.num_examples[places[name]])}
        | {other: _shown(values[places[name]]) for other, values in clients.items()}
        for name in clients.worst_clients(metric, SHOWN)
    ]


def _shown(value: float) -> float | str:
    return "" if math.isnan(value) else float(value)
