"""Where a run's time went: the parts in its summary, and a trace of some of its rounds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

# The trace begins when so many rounds have been reported, as the first ones compile, and ends with
# the first round after so many seconds. On a CPU two seconds came to 386 MB and took 35 s to write.
UNTRACED_ROUNDS = 2
TRACED_SECONDS = 0.1


class Trace:
    """Writes a trace of some rounds into a folder; none if there is no folder.

    The folder gets a Perfetto trace (`*.trace.json.gz`, for ui.perfetto.dev and chrome://tracing)
    and an XPlane (`*.xplane.pb`, for XProf and TensorBoard).

    Args:
      folder: made if it is not there.
      num_rounds: how many are to come; if they are few, all of them are traced.

    Attributes:
      outcome: a sentence on what became of it.
    """

    def __init__(self, folder: Path | None, num_rounds: int) -> None:
        self._folder = folder if num_rounds > 0 else None
        self._wait = UNTRACED_ROUNDS if num_rounds > UNTRACED_ROUNDS else 0
        self._began: float | None = None
        self.outcome = "No trace was written, because there were no rounds."

    def __enter__(self) -> Trace:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        self._begin_if_due()
        return self

    def round_done(self) -> None:
        """Takes notice of a reported round."""
        if self._began is not None and time.perf_counter() > self._began + TRACED_SECONDS:
            self.__exit__()
        self._wait -= 1
        self._begin_if_due()

    def __exit__(self, *_: object) -> None:
        if self._began is None:
            return
        try:
            jax.profiler.stop_trace()
            self.outcome = f"Trace (open with ui.perfetto.dev or TensorBoard): {self._folder}"
        except Exception as error:  # a full disk, say, which is no reason to lose the run
            self.outcome = f"The trace could not be written to {self._folder}: {error}"
        self._began = self._folder = None

    def _begin_if_due(self) -> None:
        if self._folder is not None and self._began is None and self._wait <= 0:
            jax.profiler.start_trace(self._folder)
            self._began = time.perf_counter()


def time_parts(rounds: Iterable[Mapping[str, Any]], saving: float) -> dict[str, float]:
    """Seconds of a run in its parts.

    Args:
      rounds: the metrics of its rounds.
      saving: the last checkpoint's seconds, which no round after it reports.

    Returns:
      data: waiting for clients' data, which a thread brings while the device works; compile;
      local_steps: the compiled rounds, which are local steps except for one sum over the clients
      and one server step each; evaluation; checkpoint.
    """
    rounds = list(rounds)

    def total(name: str) -> float:
        return sum(metrics.get(name) or 0.0 for metrics in rounds)

    data = total("data_seconds")
    return {
        "data": data,
        "compile": total("compile_seconds"),
        "local_steps": total("seconds") - data,
        "evaluation": total("evaluation_seconds"),
        "checkpoint": total("checkpoint_seconds") + saving,
    }


def describe_time(parts: Mapping[str, float]) -> str:
    """The parts as one line.

    Example:
      >>> describe_time({"data": 0.1, "local_steps": 0.9})
      'Time: data 0.1 s (10%), local steps 0.9 s (90%).'
    """
    whole = sum(parts.values()) or 1.0
    words = (
        f"{name.replace('_', ' ')} {value:.1f} s ({value / whole:.0%})"
        for name, value in parts.items()
    )
    return f"Time: {', '.join(words)}."
