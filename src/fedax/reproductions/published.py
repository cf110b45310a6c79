"""What was published beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedax.reproductions.experiment import name_of
from fedax.reproductions.results import spread

# What a row or a column of deviations is called.
DEVIATION = "measured less published"


def beside(
    panel: str, what: str, published: Mapping[str, float], measured: Mapping[str, np.ndarray],
    columns: Sequence[str], *, alike: bool = True,
) -> list[list[str]]:
    """Rows: published, measured, and except for stand-ins, the deviation.

    Args:
      panel: of the measured values; "A for B" for a stand-in.
      what: the rows are of, besides the panel; may be empty.
      published: column -> value; empty if the paper has no such panel.
      measured: column -> values [seeds], in the same unit.
      columns: in order; what is not known is left empty.
      alike: whether levels can be compared; if not, there is no row of deviations.

    Example:
      >>> measured = {"Avg": np.array([70.0, 71.0])}
      >>> for row in beside("CIFAR-10", "", {"Avg": 72.8}, measured, ["Avg"]):
      ...     print(row)
      ['CIFAR-10, published', '72.8']
      ['CIFAR-10, measured', '70.50 ± 0.71']
      ['CIFAR-10, measured less published', '-2.30']
    """
    of = f", {what}" * bool(what)
    rows = [[
        f"{panel}{of}, measured",
        *(spread(measured[one], 2) if one in measured else "" for one in columns),
    ]]
    if published:
        values = (f"{published[one]:g}" if one in published else "" for one in columns)
        rows.insert(0, [f"{name_of(panel)}{of}, published", *values])
    if published and alike and name_of(panel) == panel:
        gaps = {one: np.mean(measured[one]) - published[one]
                for one in columns if one in published and one in measured}
        rows.append([f"{panel}{of}, {DEVIATION}", *(
            f"{gaps[one]:+.2f}" if np.isfinite(gaps.get(one, np.nan)) else "" for one in columns
        )])
    return rows
