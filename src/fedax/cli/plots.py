"""`fedax plot`: pictures of run folders and of sweep folders."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedax import pictures
from fedax.cli.commands import Plot
from fedax.experiment.errors import ConfigError
from fedax.experiment.folder import RunError
from fedax.experiment.load import LoadedRun, load_run
from fedax.outside.text import printable
from fedax.pictures.errors import DrawingError
from fedax.pictures.grids import heat_map_size
from fedax.pictures.labels import by_setting
from fedax.report.clients import CLIENTS
from fedax.report.picture import require_format, save_picture
from fedax.report.tables import Table, print_json, print_tables
from fedax.rounds.history import History
from fedax.sweeps.choosing import Choice, choose
from fedax.sweeps.record import Record
from fedax.tuning.load import LoadedSweep, load_sweep
from fedax.tuning.results import distinct_names, is_sweep
from fedax.validate import unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# So many pictures stand side by side.
_ACROSS = 3
_SIZE = (7.0, 4.2)


class Given(NamedTuple):
    """What the folders hold."""

    runs: list[LoadedRun]
    sweeps: list[LoadedSweep]


class Kind(NamedTuple):
    """A kind of picture.

    Attributes:
      draw: on an empty figure.
      of: what it is drawn of.
      shows: a line of words.
      options: of the command, which go with it.
    """

    draw: Callable[[Figure, Given, dict[str, Any]], None]
    of: str
    shows: str
    options: tuple[str, ...]


def plot(command: Plot) -> None:
    """Draws a picture of folders, or lists the kinds.

    Raises:
      ConfigError: if the kind is unknown, or an option does not apply to it.
      RunError: if a folder does not contain a run or a sweep.
      DrawingError: if there is nothing to draw.
      PictureError: if the picture cannot be written.
    """
    if command.list:
        rows = [[name, kind.of, kind.shows, ", ".join(kind.options)]
                for name, kind in KINDS.items()]
        table = Table("Kinds of pictures, for fedax plot KIND DIR ... --out FILE:",
                      ["kind", "input", "what it shows", "options"], rows)
        (print_json if command.json else print_tables)([table])
        return
    name = (command.kind or "").replace("_", "-")
    if command.kind is None:
        raise ConfigError("fedax plot needs a kind of picture; fedax plot --list shows them.")
    if name not in KINDS:
        raise ConfigError(unknown("picture", command.kind, KINDS))
    kind = KINDS[name]
    if not command.dirs:
        raise ConfigError(
            f"fedax plot {name} needs a folder ({kind.of}): fedax plot {name} DIR --out FILE."
        )
    if command.out is None:
        raise ConfigError(
            f"fedax plot needs a file to write, such as --out {name}.png (or .svg, .pdf)."
        )
    require_format(command.out)
    given = {
        option: getattr(command, option)
        for option in ("metric", "against", "smoothing", "window", "algorithm", "x", "y")
        if getattr(command, option) is not None
    }
    wrong = sorted(set(given) - set(kind.options))
    if wrong:
        goes = ", ".join(f"--{option}" for option in kind.options) or "none"
        raise ConfigError(f"--{wrong[0]} does not apply to {name}, whose options are: {goes}.")
    loaded = _drawable(name, _load(command.dirs))
    path = save_picture(lambda figure: kind.draw(figure, loaded, given), command.out)
    print(f"Picture: {printable(str(path))}")


def _load(folders: Sequence[Path]) -> Given:
    """What the folders hold; one that was given twice is read once."""
    given = Given([], [])
    for folder in {os.path.realpath(folder): folder for folder in folders}.values():
        if is_sweep(folder):
            given.sweeps.append(load_sweep(folder))
        else:
            given.runs.append(load_run(folder))
    return given


def _drawable(name: str, given: Given) -> Given:
    """Without the runs of which there is nothing to draw, each of which gets a line.

    Raises:
      RunError: if there is nothing to draw.
    """
    lacks = {run.path: _lacks(name, run) for run in given.runs}
    if given.runs and not given.sweeps and all(lacks.values()):
        raise RunError(next(filter(None, lacks.values())))
    for why in filter(None, lacks.values()):
        print(f"Left out: {printable(why)}")
    return given._replace(runs=[run for run in given.runs if not lacks[run.path]])


def _lacks(name: str, run: LoadedRun) -> str:
    """What a run lacks for a kind of picture, a sentence; empty if nothing."""
    if name == "clients" and not (run.path / CLIENTS).is_file():
        return (
            f"The run in {run.path} does not have {CLIENTS}. It is written at the end of a run "
            "whose clients have test examples."
        )
    return "" if name == "clients" or len(run.history) else (
        f"The run in {run.path} has not finished a round yet."
    )


def _over_rounds(draw: Callable[..., Any]) -> Callable[[Figure, Given, dict[str, Any]], None]:
    """A picture of the rounds of runs, and of the best settings of sweeps."""
    def drawn(figure: Figure, given: Given, options: dict[str, Any]) -> None:
        figure.set_size_inches(*_SIZE)
        draw(_histories(given), **options, axes=figure.add_subplot())

    return drawn


def _histories(given: Given) -> Mapping[str, list[History]]:
    names = distinct_names([one.path for one in (*given.runs, *given.sweeps)])
    configs = [run.config for run in given.runs]
    found = {
        label: [given.runs[place].history for place in places]
        for label, places in by_setting(configs, names[: len(configs)]).items()
    } if configs else {}
    for sweep, name in zip(given.sweeps, names[len(configs) :], strict=True):
        for label, histories in pictures.best_of(sweep.record, sweep.choice).items():
            found[label if label not in found else f"{label} ({name})"] = histories
    return found


def _of_sweep(draw: Callable[..., Any]) -> Callable[[Figure, Given, dict[str, Any]], None]:
    """A picture of one sweep."""
    def drawn(figure: Figure, given: Given, options: dict[str, Any]) -> None:
        record, choice = _sweep(given, options)
        figure.set_size_inches(*_SIZE)
        draw(record, choice, axes=figure.add_subplot())

    return drawn


def _sweep(given: Given, options: dict[str, Any]) -> tuple[Record, Choice]:
    """The one sweep that was given, and what is chosen of it."""
    if given.runs:
        raise ConfigError(
            f"This kind of picture needs a sweep, but {given.runs[0].path} is a run."
        )
    if len(given.sweeps) != 1:
        raise ConfigError(
            f"This kind of picture needs one sweep, but there are {len(given.sweeps)}."
        )
    (sweep,) = given.sweeps
    metric = options.pop("metric", None)
    try:
        choice = sweep.choice if metric is None else choose(sweep.record, metric)
    except ValueError as error:
        raise DrawingError(str(error)) from None
    return sweep.record, choice


def _heat_maps(figure: Figure, given: Given, options: dict[str, Any]) -> None:
    """A heat map for each method of a sweep, or for the one in `algorithm`."""
    record, choice = _sweep(given, options)
    named = options.pop("algorithm", None)
    methods = record.algorithms if named is None else [named]
    sizes = [len(values) for found in choice.methods.values() for values in found.grid.values()]
    width, height = heat_map_size(max(sizes, default=0), max(sizes, default=0))
    for method, axes in zip(methods, _panels(figure, len(methods), width, height), strict=True):
        pictures.heat_map(record, choice, method, axes=axes, **options)


def _clients(figure: Figure, given: Given, options: dict[str, Any]) -> None:
    """The clients of each run."""
    if given.sweeps:
        raise ConfigError(
            f"The kind clients needs runs, but {given.sweeps[0].path} is a sweep."
        )
    paths = [run.path / CLIENTS for run in given.runs]
    names = distinct_names([run.path for run in given.runs])
    grouped = by_setting([run.config for run in given.runs], names)
    labels = {place: label for label, places in grouped.items() for place in places}
    for place, axes in enumerate(_panels(figure, len(paths), *_SIZE)):
        pictures.clients(paths[place], axes=axes, **options)
        if len(paths) > 1:
            seed = given.runs[place].config.get("seed")
            text = f"{labels[place]}, seed {seed}; {axes.get_title(loc='left')}".rstrip("; ")
            axes.set_title(text, fontsize=8, loc="left", parse_math=False)


def _panels(figure: Figure, count: int, width: float, height: float) -> list[Any]:
    """Axes of this size in inches, side by side and in rows."""
    across = min(count, _ACROSS)
    down = math.ceil(count / across)
    figure.set_size_inches(across * width, down * height)
    return [figure.add_subplot(down, across, place + 1) for place in range(count)]


_ROUNDS = "runs, sweeps"

KINDS = {
    "curves": Kind(
        _over_rounds(pictures.curves), _ROUNDS,
        "a metric over the rounds, mean and spread over seeds",
        ("metric", "against", "smoothing"),
    ),
    "heat-map": Kind(
        _heat_maps, "a sweep",
        "client against server learning rate (Reddi et al. 2021, Figure 2)",
        ("metric", "algorithm", "x", "y"),
    ),
    "best-server-rate": Kind(
        _of_sweep(pictures.best_server_rate), "a sweep",
        "the best server rate for each client rate (Reddi et al. 2021, Figure 4)", ("metric",),
    ),
    "adaptivity": Kind(
        _of_sweep(pictures.adaptivity), "a sweep",
        "the best score at each adaptivity (Reddi et al. 2021, Figure 3)", ("metric",),
    ),
    "update-norms": Kind(
        _over_rounds(pictures.update_norms), _ROUNDS,
        "norm of the server's update and its spread (Charles and Konečný 2020, Figure 3)",
        ("window",),
    ),
    "drift": Kind(
        _over_rounds(pictures.drift), _ROUNDS, "distance of the clients from the server's model",
        ("against", "smoothing"),
    ),
    "rates": Kind(
        _over_rounds(pictures.rates), _ROUNDS, "local steps K and learning rates per round", (),
    ),
    "clients": Kind(
        _clients, "runs", "a metric's distribution over clients, the worst tenth marked",
        ("metric",),
    ),
}
