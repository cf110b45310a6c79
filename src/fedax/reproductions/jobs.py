"""The runs of a plan, kept by their settings, so that none is trained twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fedax.data.file_names import file_name
from fedax.experiment.folder import CONFIG
from fedax.reproductions.experiment import Part, Plan
from fedax.sweeps.record import Record
from fedax.tuning.command import identity_of, resume_sweep, start_sweep
from fedax.tuning.config import SweepConfig, sweep_config
from fedax.tuning.load import load_sweep


class Job(NamedTuple):
    """A part with one of its seeds: a sweep with a folder of its own.

    Attributes:
      part: what is trained.
      seed: with which.
      config: the sweep.
      key: of everything that its numbers depend on but the versions of libraries.
    """

    part: Part
    seed: int
    config: SweepConfig
    key: str

    def folder(self, storage: Path) -> Path:
        """Where its rounds are kept."""
        part = self.part
        return storage / file_name(f"{part.task}-{part.algorithm}-{self.seed}-{self.key}")

    def is_done(self, storage: Path) -> bool:
        """Whether it is finished."""
        return (self.folder(storage) / "summary.json").exists()

    def record(self, storage: Path) -> Record | None:
        """Its rounds; None if it is not finished."""
        return load_sweep(self.folder(storage)).record if self.is_done(storage) else None

    def train(self, storage: Path) -> None:
        """Begins, or continues where it stopped.

        Raises:
          RunError: the folder cannot be used, another process is at it, or it was stopped.
          ConfigError: the data are not available, say.
        """
        folder = self.folder(storage)
        if (folder / CONFIG).exists():
            resume_sweep(folder)
        else:
            start_sweep(self.config, folder)


def jobs_of(parts: Sequence[Part]) -> Iterator[Job]:
    """The jobs, all parts with one seed before any with the next, so that a table fills evenly.

    Raises:
      ConfigError: the settings do not fit the task or the method.
    """
    whole = [(part, _whole(part)) for part in parts]
    for place in range(max((part.num_seeds for part in parts), default=0)):
        for part, config in whole:
            if place < part.num_seeds:
                seed = config.seeds[place]
                one = dataclasses.replace(config, seeds=(seed,))
                yield Job(part, seed, one, identity_of(one)[:16])


def finished(plan: Plan, storage: Path) -> list[Job]:
    """The jobs of a plan's methods that are finished, with as many seeds as all of a panel are."""
    found: list[Job] = []
    for panel in plan.panels:
        its: list[Job] = []
        whole = plan.only([panel])
        left = {job.part.label for job in jobs_of(whole.parts) if not job.is_done(storage)}
        more = whole._replace(
            parts=tuple(part for part in whole.parts if part.label not in left)
        )
        jobs = list(jobs_of(more.parts))
        while jobs and all(job.is_done(storage) for job in jobs):
            its, more = jobs, more.with_seeds(max(part.num_seeds for part in more.parts) + 1)
            jobs = list(jobs_of(more.parts))
        found += its
    return found


def _whole(part: Part) -> SweepConfig:
    return sweep_config(
        part.task, [part.algorithm], part.grid, preset=part.preset, settings=part.settings,
        num_seeds=max(part.num_seeds, 2),  # a sweep of one run is refused; a job takes one seed
    )
