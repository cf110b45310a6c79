"""Describes what a table does with each column, and possible mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from fedax.data.preparing.cells import Cells, gaps_of, has_commas, is_number
from fedax.outside.text import printable
from fedax.validate import so_many

if TYPE_CHECKING:
    from fedax.data.preparing.table import Column, Label, Table

# A list shows so many columns and values.
MOST_LINES = 40
MOST_VALUES = 6
MOST_CLASSES_SHOWN = 10
_RARE = 0.1


def findings_of(table: Table, cells: Cells) -> tuple[str, ...]:
    """Possible mistakes: columns that give the label away, or rare classes."""
    commas = [column.name for column in table.columns if has_commas(cells.columns[column.name])]
    found = [
        f"{quoted_name(name)} looks like numbers with decimal commas. To read them as numbers, set "
        "decimal=comma."
        for name in commas
    ]
    if table.label is not None:
        found += [*_without_a_class(cells, table.label), *_leaks(table, cells, table.label)]
    return tuple(found)


def _without_a_class(cells: Cells, label: Label) -> Iterator[str]:
    """Reports clients without one of the two classes, which cannot learn it alone."""
    if len(label.classes) != 2 or cells.clients is None:
        return
    values = cells.columns[label.name]
    names, owner = np.unique(cells.clients, return_inverse=True)
    for value in label.classes:
        lacking = int((np.bincount(owner, values == value) == 0).sum())
        if lacking:
            yield (
                f"{lacking} of {so_many(len(names), 'client')} "
                f"{'has' if lacking == 1 else 'have'} no training row with the class "
                f"{_word(value)}."
            )


def _leaks(table: Table, cells: Cells, label: Label) -> Iterator[str]:
    values = cells.columns[label.name]
    for column in table.columns:
        if column.how == "left out":
            continue
        own = cells.columns[column.name]
        gaps = gaps_of(own)
        if label.classes:
            pairs = set(zip(own[~gaps].tolist(), values[~gaps].tolist(), strict=True))
            distinct = {value for value, _ in pairs}
            few = len(distinct) <= (~gaps).sum() / 4
            if 2 <= len(distinct) == len(pairs) and few and len({of for _, of in pairs}) > 1:
                yield (
                    f"{quoted_name(column.name)} gives away the label: each of its "
                    f"{len(distinct)} values occurs with one class only. Leave it out if it is not "
                    "known at prediction time."
                )
        elif column.how == "number" and is_number(own) and not gaps.all() and (
            np.ptp(own[~gaps]) and np.ptp(values)
        ):
            with np.errstate(all="ignore"):
                alike = np.corrcoef(own[~gaps].astype(float), values[~gaps].astype(float))[0, 1]
            if abs(alike) > 0.9999:
                yield (
                    f"{quoted_name(column.name)} gives away the label: its correlation with the "
                    f"label is {alike:.4f}. Leave it out if it is not known at prediction time."
                )


def described(table: Table) -> list[str]:
    """What a table does: a line for the label, for each column and for each finding."""
    lines = [] if table.label is None else [_of_label(table.label, table.num_rows)]
    taken = [column for column in table.columns if column.how != "left out"]
    left = [column for column in table.columns if column.how == "left out"]
    lines += [_of_column(column, table) for column in taken[:MOST_LINES]]
    if len(taken) > MOST_LINES:
        lines.append(f"and {so_many(len(taken) - MOST_LINES, 'more column')}, see table.json")
    lines += [f"{quoted_name(c.name)} is left out: it {c.why}" for c in left[:MOST_LINES]]
    if len(left) > MOST_LINES:
        lines.append(f"and {so_many(len(left) - MOST_LINES, 'more column')} left out")
    return [*lines, *(f"Note: {text}" for text in table.findings)]


def _of_label(label: Label, num_rows: int) -> str:
    name = quoted_name(label.name)
    if not label.classes:
        scaled = "" if (label.mean, label.deviation) == (0.0, 1.0) else (
            f"; scaled by mean {label.mean:.4g} and deviation {label.deviation:.4g}"
        )
        return f"Label {name}: regression, as {label.why}{scaled}"
    shares = [
        f"{_word(value)} {count:,} ({count / max(num_rows, 1):.1%})"
        for value, count in zip(label.classes, label.counts, strict=True)
    ]
    shown = ", ".join(shares[:MOST_CLASSES_SHOWN])
    if len(shares) > MOST_CLASSES_SHOWN:
        shown += f" and {len(shares) - MOST_CLASSES_SHOWN} more"
    positive = f"; the positive class is {_word(label.classes[1])}" if len(shares) == 2 else ""
    rare = ""
    if len(shares) == 2 and min(label.counts) < _RARE * num_rows:
        rare = f"; {max(label.counts) / num_rows:.1%} accuracy for a constant prediction"
    return f"Label {name}: classification, as {label.why}: {shown}{positive}{rare}"


def _of_column(column: Column, table: Table) -> str:
    gaps = column.num_gaps and (
        f"{so_many(column.num_gaps, 'gap')} ({column.num_gaps / max(table.num_rows, 1):.1%})"
    )
    parts = []
    if column.how == "number":
        parts.append("number")
        if gaps:
            parts.append(f"{gaps} filled with {column.fill:.4g}")
    else:
        kind = "one-hot" if column.how == "one_hot" else "ordinal"
        words = [_word(value) for value in column.categories if value is not None]
        shown = ", ".join(words[:MOST_VALUES])
        more = f" and {len(words) - MOST_VALUES} more" if len(words) > MOST_VALUES else ""
        parts.append(f"{kind} of {len(words)} categories: {shown}{more}")
        if None in column.categories:
            parts.append(f"{gaps} as a category" if gaps else "gaps as a category")
        if column.has_other:
            parts.append("others have a place of their own")
    if (column.mean, column.deviation) != (0.0, 1.0):
        by = " (of a client its own)" if table.clients else ""
        parts.append(f"scaled by mean {column.mean:.4g} and deviation {column.deviation:.4g}{by}")
    return f"{quoted_name(column.name)}: {'; '.join(parts)}"


def quoted_name(name: str) -> str:
    """A column's name, cut where it is long."""
    text = printable(name)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _word(value: object) -> str:
    return quoted_name("missing" if value is None else str(value))
