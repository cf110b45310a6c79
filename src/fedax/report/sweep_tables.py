"""What a sweep came to, as a table."""

from __future__ import annotations

import math

from fedax.report.tables import Table
from fedax.sweeps.choosing import CLOSE, Choice
from fedax.sweeps.closing import rule_in_words
from fedax.sweeps.record import Record


def best_table(record: Record, choice: Choice) -> Table:
    """The best setting of each method, with mean and spread, and how many others are as good."""
    rows: list[list[str]] = []
    for method, chosen in choice.methods.items():
        count = len(chosen.order)
        label = score = close = ""
        if chosen.best is None:
            label = "none"
        else:
            label = record.settings[chosen.best].label
            score, spread = f"{choice.mean[chosen.best]:.4g}", choice.spread[chosen.best]
            score += "" if math.isnan(spread) else f" ± {spread:.2g}"
            close = f"{round(chosen.sensitivity * count)} of {count}" if count > 1 else ""
        rows.append([method, label, score, close, str(len(chosen.diverged) or "")])
    seeds = choice.scores.shape[1]
    title = f"Best settings, chosen by {rule_in_words(record, choice)}"
    if seeds > 1:
        title += f"; mean ± standard deviation over {seeds} seeds"
    headings = ["method", "best setting", choice.rule, f"within {CLOSE:.0%}", "diverged"]
    return Table(f"{title}.", headings, [list(row) for row in rows])
