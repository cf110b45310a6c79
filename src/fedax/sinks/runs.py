"""The runs of a sweep, logged when they are done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedax.sinks.sink import Sinks
from fedax.sweeps.record import Record, Setting


def log_record(
    names: Iterable[str], folder: Path, config: Callable[[Setting, int], Mapping[str, Any]],
    record: Record, warn: Callable[[str], None],
) -> list[str]:
    """Writes every run of a sweep to sinks, each as a run of its own named `SETTING-SEED`.

    What an earlier call wrote there is replaced.

    Args:
      names: of `SINKS`.
      folder: the sweep's; a run's files are in `logs/SETTING-SEED/`, and MLflow's store, which
        they share, in `logs/mlflow/`.
      config: (setting, seed) -> the run's configuration, whose settings are logged.
      record: the runs.
      warn: is told of a sink that fails, which is then left.

    Returns:
      The names of the sinks that have all runs.
    """
    names = list(names)
    for row, number in enumerate(record.setting):
        setting, seed = record.settings[number], int(record.seed[row])
        own = {**config(setting, seed), "setting": setting.number}
        rounds = record.history(row).rounds
        with Sinks(names, folder, own, warn, rounds, run=f"{number}-{seed}") as sinks:
            names = sinks.close({"diverged": int(record.diverged[row])})
    return names
