"""A sweep from where it stands to its end."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax

from fedax.devices.ending import Request
from fedax.devices.processes import are_several
from fedax.devices.temporary import temporary_folder
from fedax.experiment.display import Style, make_console
from fedax.experiment.errors import ConfigError
from fedax.experiment.folder import explained
from fedax.experiment.signals import stop_on_signal
from fedax.sweeps.batch import Shared
from fedax.sweeps.choosing import Choice, Rule, choose
from fedax.sweeps.columns import Part, joined
from fedax.sweeps.planning import Entry, Halving, Unit
from fedax.sweeps.record import Record, Setting
from fedax.tuning.display import SweepDisplay
from fedax.tuning.folder import write_record, write_results, write_summary
from fedax.tuning.halving import train_rungs
from fedax.tuning.keeping import Keeper
from fedax.tuning.page import write_page
from fedax.tuning.training import Sweeping, train_units


class Work(NamedTuple):
    """A sweep, whoever described it.

    Attributes:
      settings, entries: by number.
      units: as planned.
      num_rounds: T.
      choose: the rule.
      identity: what its parts are of.
      go_on: how to go on when it was stopped, the end of a sentence.
      seeds: with which every setting is run.
      halving: how settings are given up; None: all run to the end.
    """

    settings: Sequence[Setting]
    entries: Sequence[Entry]
    units: Sequence[Unit]
    num_rounds: int
    choose: Rule
    identity: str
    go_on: str
    seeds: Sequence[int] = ()
    halving: Halving | None = None


def sit(
    work: Work, folder: Path | None, style: Style, notes: Sequence[str] = (),
    finish: Callable[[Record, Choice], None] | None = None,
) -> tuple[Record, Choice]:
    """Trains the remaining runs and writes the results.

    Args:
      work: the sweep.
      folder: where it is saved; None: nowhere.
      style: what is shown meanwhile.
      notes: sentences to begin with.
      finish: writes what only some sweeps have, such as the best settings as files.

    Raises:
      SweepStopped: Ctrl-C or SIGTERM.
      RunError: if the folder cannot be written.
      ConfigError: if this is one of several processes.
    """
    if are_several():
        raise ConfigError(
            "A sweep runs in one process. To use several machines, start a search with --storage."
        )
    began = time.perf_counter()
    console = make_console()
    if style != "nothing":
        for note in notes:
            console.print(note, markup=False)
    with (
        stop_on_signal(lambda: f"Stopped; {work.go_on}") as asked,
        explained(folder or Path(), work.go_on),
    ):
        parts = _trained(work, folder, asked, functools.partial(
            SweepDisplay, console=console, style=style, rule=work.choose,
            num_seeds=len(work.seeds),
        ))
    record = joined(work.settings, parts)
    choice = choose(record, work.choose)
    if folder is not None:
        with explained(folder, work.go_on):
            write_record(folder, record, work.identity)
            write_results(folder, record, choice)
            if finish is not None:
                finish(record, choice)
            # With its summary a sweep is finished, so what nothing else writes comes before.
            write_summary(folder, record, choice, time.perf_counter() - began)
            write_page(folder, record, choice)
    return record, choice


def _trained(
    work: Work, folder: Path | None, asked: Request, display: Callable[[int, int], SweepDisplay]
) -> list[Part]:
    """The rounds of all runs."""
    sweeping = Sweeping(
        work.settings, work.entries, jax.local_devices(), asked, work.go_on, Shared()
    )
    if work.halving is None:
        runs = sum(len(unit.settings) for unit in work.units)
        keeper = None if folder is None else Keeper(folder, work.identity)
        with display(runs, work.num_rounds) as shown:
            return train_units(sweeping, work.units, work.num_rounds, keeper, shown)
    with contextlib.ExitStack() as stack:
        place = folder or stack.enter_context(temporary_folder())
        return train_rungs(
            sweeping, work.seeds, work.num_rounds, work.choose, work.halving, place,
            work.identity, display,
        )
