"""What a sweep came to, as a table."""

from __future__ import annotations

from fedax.report.tables import Table
from fedax.sweeps.choosing import Choice
from fedax.sweeps.closing import rule_in_words
from fedax.sweeps.record import Record


def best_table(record: Record, choice: Choice) -> Table:
    """The best setting of each method, with mean and spread, and how many others are as good."""
    headings, rows = choice.table()
    seeds = choice.scores.shape[1]
    title = f"Best settings, chosen by {rule_in_words(record, choice)}"
    if seeds > 1:
        title += f"; mean ± standard deviation over {seeds} seeds"
    return Table(f"{title}.", headings, [list(row) for row in rows])
