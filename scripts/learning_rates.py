"""Client and server rates, and the findings of Reddi et al. 2021: docs/notebook/learning-rates.md.

    python scripts/learning_rates.py docs/notebook/learning-rates-plays.csv  # the table
    python scripts/learning_rates.py plays plays.png                # the picture, of a sweep folder

The file is the `results.csv` of a sweep over `client_learning_rate` and `server_learning_rate`. The
criteria are in docs/notebook/learning-rates.md and were written before the sweeps were run.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

import fedax
from fedax import pictures
from fedax.sweeps.choosing import choose

CLIENT, SERVER, METRIC = "client_learning_rate", "server_learning_rate", "test_accuracy"
GOOD = 0.05  # as far from the best a good setting is at most, as a share of the best
# Client rates whose result is this near to the worst are left out (Reddi et al. 2021, section 5.3).
UNTRAINED = 0.10


class Table(NamedTuple):
    """What a method's pairs of rates came to.

    Attributes:
      client, server: the rates, rising.
      mean: [client, server] over the seeds; -inf of one that diverged for a seed.
      spread: [client, server] the sample standard deviation over the seeds.
    """

    client: np.ndarray
    server: np.ndarray
    mean: np.ndarray
    spread: np.ndarray

    @property
    def trained(self) -> np.ndarray:
        """The places of the client rates whose best is not near the worst of all."""
        worst = self.mean[np.isfinite(self.mean)].min()
        best = self.mean.max(axis=1)
        return np.flatnonzero(best > worst + UNTRAINED * (best.max() - worst))

    @property
    def good_share(self) -> float:
        """The share of all settings that are near the best one."""
        return float((self.mean >= (1 - GOOD) * self.mean.max()).mean())

    @property
    def good_servers(self) -> float:
        """How many server rates, in the mean over the client rates, are good for a client rate."""
        kept = self.mean[self.trained]
        return float((kept >= (1 - GOOD) * kept.max(axis=1, keepdims=True)).sum(axis=1).mean())

    @property
    def best_servers(self) -> np.ndarray:
        """The best server rate of each client rate that trains."""
        return self.server[self.mean[self.trained].argmax(axis=1)]

    @property
    def falls(self) -> bool:
        """Whether the best server rate falls, and never rises, as the client rate rises."""
        best = self.best_servers
        return bool((np.diff(best) <= 0).all() and best[-1] < best[0])


def read(file: Path) -> dict[str, Table]:
    """Method -> its table."""
    scores: dict[str, dict[tuple[float, float], list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    with file.open(newline="") as lines:
        for row in csv.DictReader(lines):
            score = -np.inf if row["diverged"] else float(row[METRIC])
            scores[row["algorithm"]][float(row[CLIENT]), float(row[SERVER])].append(score)
    tables = {}
    for method, of in scores.items():
        client, server = (np.unique([pair[place] for pair in of]) for place in (0, 1))
        runs = np.array([[of[x, y] for y in server] for x in client])
        with np.errstate(invalid="ignore"):
            tables[method] = Table(client, server, runs.mean(axis=2), runs.std(axis=2, ddof=1))
    return tables


def draw(folder: Path, out: Path) -> None:
    """Draws a sweep's heat maps by the last test accuracy, and the best server rates."""
    record = fedax.load_sweep(folder).record
    choice = choose(record, METRIC)
    figure = Figure(figsize=(16, 16), layout="constrained")
    panels = figure.subplots(3, 2).flat
    for method, axes in zip(record.algorithms, panels, strict=False):
        pictures.heat_map(record, choice, method, axes=axes)
    pictures.best_server_rate(record, choice, axes=figure.axes[5])
    figure.savefig(out, dpi=70)


def page(file: Path) -> str:
    """The table of the page."""
    lines = [
        "| method | best client, server rate | accuracy | good settings | good server rates | "
        "diverged | best server rate, by client rate | falls |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for method, table in read(file).items():
        at = np.unravel_index(table.mean.argmax(), table.mean.shape)
        words = ", ".join(
            f"{client:.3g}: {server:.3g}"
            for client, server in zip(table.client[table.trained], table.best_servers, strict=True)
        )
        lines.append(
            f"| {method} | {table.client[at[0]]:.3g}, {table.server[at[1]]:.3g} | "
            f"{100 * table.mean[at]:.1f} ± {100 * table.spread[at]:.1f} | {table.good_share:.0%} | "
            f"{table.good_servers:.1f} of {len(table.server)} | {np.isneginf(table.mean).sum()} | "
            f"{words} | {'yes' if table.falls else 'no'} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    paths = [Path(name) for name in sys.argv[1:]]
    if len(paths) == 2:
        draw(*paths)
    else:
        print(page(*paths))
