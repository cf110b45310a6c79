"""A sweep on disk, read."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedax.experiment.folder import RunError, for_shell, read_summary
from fedax.outside.paths import expanded
from fedax.sweeps.choosing import Choice, choose, without_edges
from fedax.sweeps.columns import joined
from fedax.sweeps.record import Record
from fedax.tuning.folder import read_record, read_sweep_config, settings_of, units_of
from fedax.tuning.keeping import parts_so_far

if TYPE_CHECKING:
    import pandas


def load_sweep(path: str | Path) -> LoadedSweep:
    """Reads a sweep folder, whether the sweep is finished, was stopped or was killed.

    Args:
      path: the folder, made by `fedax sweep` or by `fedax.sweep(..., out=path)`.

    Raises:
      RunError: if the folder does not exist, does not contain a sweep, or is damaged.

    Example:
      >>> import fedax, tempfile
      >>> task, out = fedax.load_task("quadratics"), tempfile.mkdtemp()
      >>> rates = {"client_learning_rate": [0.01, 0.1]}
      >>> result = fedax.sweep(task, fedax.fedavg, rates, num_rounds=3, seeds=2, out=out)
      >>> sweep = load_sweep(out)
      >>> sweep.finished, sweep.results.shape[0], len(sweep.rounds)
      (True, 4, 12)
    """
    return LoadedSweep(expanded(path))


class LoadedSweep:
    """A sweep read from its folder, see `load_sweep`.

    Attributes:
      path: the folder.
      config: contents of config.json.
      summary: contents of summary.json if the sweep is finished, else None.
      record: every round of every finished run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: dict[str, Any] = read_sweep_config(path)
        self.summary = read_summary(path)
        settings = settings_of(self.config)
        record = read_record(path, settings) if self.finished else None
        if record is None:
            record = joined(settings, parts_so_far(path, len(settings)))
        self.record: Record = record

    def __repr__(self) -> str:
        runs = sum(len(unit.settings) for unit in units_of(self.config))
        runs = runs or len(self.record.setting)  # a search plans none
        return (
            f"LoadedSweep({self.config['algorithm']} on {self.config['task']}, "
            f"{len(self.record.setting)} of {runs} runs, in {self.path})"
        )

    @property
    def finished(self) -> bool:
        """Whether all runs are finished."""
        return self.summary is not None

    @functools.cached_property
    def choice(self) -> Choice:
        """The settings ranked by their scores.

        Raises:
          RunError: if no run is finished yet, or the rule was a function in Python.
        """
        if not len(self.record.setting):
            raise RunError(
                f"The sweep in {self.path} has not finished a run yet. Continue it: fedax sweep "
                f"--resume {for_shell(self.path)}"
            )
        try:
            chosen = choose(self.record, self.config["choose"])
        except ValueError as error:
            raise RunError(f"The sweep in {self.path}: {error}") from None
        return without_edges(chosen) if "search" in self.config else chosen

    @property
    def results(self) -> pandas.DataFrame:
        """A data frame with one row per run, see `Record.results`."""
        return self.record.results()

    @property
    def rounds(self) -> pandas.DataFrame:
        """A data frame with one row per round of each run, see `Record.rounds`."""
        return self.record.rounds()
