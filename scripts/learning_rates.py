"""What a sweep of client and server rates says of paper 004's findings: docs/learning-rates.md.

    python scripts/learning_rates.py docs/learning-rates-plays.csv

The file is the `results.csv` of a sweep over `client_learning_rate` and `server_learning_rate`. The
criteria stand in docs/learning-rates.md; they were written down before the sweeps were run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pandas as pd

CLIENT, SERVER, METRIC = "client_learning_rate", "server_learning_rate", "test_accuracy"
GOOD = 0.05  # as far from the best a good setting is at most, as a share of the best
UNTRAINED = 0.10  # 004, section 5.3: client rates that come so near to the worst are left out

Table: TypeAlias = pd.DataFrame  # a row a client rate, a column a server rate


def table_of(results: pd.DataFrame, method: str) -> Table:
    """The mean over seeds of a method's settings; -inf if it diverged for one of them."""
    own = results[results["algorithm"] == method]
    score = own[METRIC].where(own["diverged"].isna(), -np.inf)
    return score.groupby([own[CLIENT], own[SERVER]]).mean().fillna(-np.inf).unstack()


def spread_of(results: pd.DataFrame, method: str, client: float, server: float) -> float:
    """The sample standard deviation over a setting's seeds."""
    own = results[results["algorithm"] == method]
    return own[METRIC][(own[CLIENT] == client) & (own[SERVER] == server)].std()


def trained(table: Table) -> Table:
    """The client rates whose best accuracy is not near the worst of all, which is 0 or more."""
    worst = table.to_numpy()[np.isfinite(table)].min()
    best = table.max(axis=1)
    return table[best > worst + UNTRAINED * (best.max() - worst)]


def good_servers(table: Table) -> float:
    """How many server rates, in the mean over the client rates, are good for a client rate."""
    kept = trained(table)
    return kept.ge((1 - GOOD) * kept.max(axis=1), axis=0).sum(axis=1).mean()


def best_servers(table: Table) -> dict[float, float]:
    """Client rate -> its best server rate."""
    return trained(table).idxmax(axis=1).to_dict()


def falls(best: dict[float, float]) -> bool:
    """Whether the best server rate falls, and never rises, as the client rate rises."""
    servers = [best[client] for client in sorted(best)]
    return all(np.diff(servers) <= 0) and servers[-1] < servers[0]


def main(file: Path) -> None:
    """Prints the tables of the page."""
    results = pd.read_csv(file)
    methods = list(dict.fromkeys(results["algorithm"]))
    print("| method | best client, server rate | accuracy | good settings | good server rates | "
          "diverged | best server rate, by client rate | falls |")
    print("|---|---|---|---|---|---|---|---|")
    for method in methods:
        table = table_of(results, method)
        client, server = table.stack().idxmax()
        best = best_servers(table)
        values = table.to_numpy()
        words = ", ".join(f"{rate:.3g}: {best[rate]:.3g}" for rate in sorted(best))
        print(
            f"| {method} | {client:.3g}, {server:.3g} | {100 * table.max().max():.1f} ± "
            f"{100 * spread_of(results, method, client, server):.1f} | "
            f"{(values >= (1 - GOOD) * values.max()).mean():.0%} | {good_servers(table):.1f} of "
            f"{table.shape[1]} | {np.isneginf(values).sum()} | {words} | "
            f"{'yes' if falls(best) else 'no'} |"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
