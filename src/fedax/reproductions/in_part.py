"""Results of a part of a plan: which methods of its panels were run, and which were not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedax.reproductions.experiment import Part, Plan
from fedax.reproductions.results import Results, Trace


class NotRunError(Exception):
    """Something was asked of methods that were not run; the message names them."""


class InPart(Results):
    """Results that know which methods are missing, and tell whoever asks for one.

    Args:
      results: what was run.
      missing: panel -> its methods that were not run.
    """

    def __init__(self, results: Results, missing: Mapping[str, Sequence[str]]) -> None:
        super().__init__(results.traces, results.by, maximise=results.maximise)
        self._missing = missing

    def labels(self, panel: str) -> list[str]:
        """The methods of a panel, in order.

        Raises:
          NotRunError: there are more of them, so what is true of all of them is not known.
        """
        if panel in self._missing:
            raise NotRunError(_names(self._missing[panel]))
        return super().labels(panel)

    def _of(self, panel: str, label: str) -> list[Trace]:
        if label in self._missing.get(panel, ()):
            raise NotRunError(_names([label]))
        return super()._of(panel, label)


def missing_methods(plan: Plan, results: Results) -> dict[str, list[str]]:
    """Panel -> its methods of which there is no run, of panels that have some."""
    found: dict[str, list[str]] = {}
    for part in _missing_parts(plan, results):
        found.setdefault(part.panel, []).append(part.label)
    return found


def as_if_whole(plan: Plan, results: Results) -> Results:
    """The results with an empty run of each missing method, to list all criteria of a panel."""
    empty = [
        Trace(part.panel, part.label, {key: values[0] for key, values in part.grid.items()}, 0, 0,
              0, {}, {})
        for part in _missing_parts(plan, results)
    ]
    return Results([*results.traces, *empty], results.by, maximise=results.maximise)


def _missing_parts(plan: Plan, results: Results) -> list[Part]:
    run = {(trace.panel, trace.label) for trace in results.traces}
    panels = {panel for panel, _ in run}
    return [part for part in plan.parts
            if part.panel in panels and (part.panel, part.label) not in run]


def _names(labels: Sequence[str]) -> str:
    return f"not run: {'; '.join(labels)}"
