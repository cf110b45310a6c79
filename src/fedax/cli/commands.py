"""The commands and their options; the docstrings are what `--help` shows."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, get_args

from tyro.conf import Positional, UseAppendAction, subcommand

from fedax.cli.data_commands import Data
from fedax.cli.showing import Plot, Report, Table
from fedax.cli.words import NUMBER, NUMBERS, WHOLE, one_of, option, read_by
from fedax.sinks import SINKS

SHELLS = ("bash", "zsh")
Lists: TypeAlias = Literal["tasks", "algorithms", "datasets", "reproductions"]


@dataclasses.dataclass(frozen=True)
class Run:
    """Train. With no argument: Shakespeare's plays with FedAdagrad, a quick look of a minute.

    Settings come from the preset, then from --config, then from the options and --set.
    """

    task: Annotated[Positional[str | None], option("[TASK]")] = None
    """What to learn: see `fedax list tasks`; or your own, as FILE.py:NAME or package.module:NAME;
    or a table, as FILE.csv or FILE.parquet with --client and --label. Default: shakespeare."""
    algorithm: Annotated[Positional[str | None], option("[ALGORITHM]")] = None
    """How: see `fedax list algorithms`; or your own. With both, --help shows all that can be set.
    Default: fedadagrad on Shakespeare's plays, fedyogi elsewhere."""
    client: Annotated[str | None, option("COLUMN")] = None
    """Of a table: the column that says whose each row is."""
    label: Annotated[str | None, option("COLUMN")] = None
    """Of a table: the column to learn."""
    rounds: Annotated[int | None, WHOLE, option("N")] = None
    """Number of rounds; with --resume, the new total."""
    cohort_size: Annotated[int | None, WHOLE, option("N")] = None
    """Clients a round."""
    seed: Annotated[int | None, WHOLE, option("N")] = None
    """Fixes everything random. Default: 0."""
    out: Annotated[Path | None, option("DIR")] = None
    """The run folder to make. Default: one under fedax-runs/."""
    overwrite: Annotated[bool, option("")] = False
    """With --out: delete the run or sweep that is there, and begin again."""
    preset: Annotated[str | None, option("quick|reddi2021|none|...")] = None
    """Where settings come from that nobody set: see `fedax list tasks`. Default: quick."""
    set: Annotated[UseAppendAction[tuple[tuple[str, ...], ...]], option("KEY=VALUE ...")] = ()
    """Settings of the run, the task or the algorithm, such as server_learning_rate=0.03; if a key
    fits two of them: task.KEY=VALUE."""
    config: Annotated[Path | None, option("FILE")] = None
    """A TOML file of settings, or another run's config.json to repeat it."""
    resume: Annotated[Path | None, option("DIR")] = None
    """Go on with the run in this folder, exactly where it stopped."""
    force: Annotated[bool, option("")] = False
    """With --resume: although the file of your task or method has changed since, or the run is not
    from this machine: the code that it names is run. With --devices: although there are fewer
    cores."""
    log: Annotated[UseAppendAction[tuple[str, ...]], option("|".join(SINKS))] = ()
    """Write the metrics there, too; may be repeated. With --resume: from now on, all rounds."""
    profile: Annotated[bool, option("")] = False
    """Trace some rounds into the run folder's profile/, and say where time went."""
    devices: Annotated[int | None, WHOLE, option("N")] = None
    """On a CPU: so many cores train clients side by side. Default: all. 1: as one device."""
    coordinator: Annotated[str | None, option("HOST:PORT")] = None
    """Train with several processes: where process 0 can be reached."""
    processes: Annotated[int | None, WHOLE, option("N")] = None
    """How many there are."""
    process_id: Annotated[int | None, WHOLE, option("I")] = None
    """Which one this is, from 0."""
    cluster: Annotated[bool, option("")] = False
    """Find the other processes from SLURM, Kubernetes or Open MPI."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback of a failure."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Tune: methods, each over its own grid, with several seeds; says which setting is best.

    Such as: fedax sweep shakespeare fedavg,fedavgm --grid client_learning_rate=0.1,0.316,1
    server_learning_rate=0.1,1 fedavgm.momentum=0.5,0.9 --seeds 3 --rounds 200
    """

    task: Annotated[Positional[str | None], option("[TASK]")] = None
    """What to learn: see `fedax list tasks`; or your own, as FILE.py:NAME."""
    algorithms: Annotated[Positional[str | None], option("[ALGORITHM,...]")] = None
    """How, with commas between them: see `fedax list algorithms`; or your own."""
    grid: Annotated[UseAppendAction[tuple[tuple[str, ...], ...]], option("KEY=VALUE,... ...")] = ()
    """What to vary: KEY=VALUE,VALUE,... or "KEY=logspace(-3, 0.5, 8)", of every method that has
    the setting; METHOD.KEY=... of one. The name of a preset, such as reddi2021, is the grid that
    its source searched."""
    search: Annotated[UseAppendAction[tuple[tuple[str, ...], ...]], option("KEY=RANGE ...")] = ()
    """What to search by Optuna, in place of a grid: "KEY=loguniform(0.001, 10)", "uniform(0, 1)",
    "int(1, 20)", "logint(1, 100)" or "choice(A, B)"."""
    trials: Annotated[int | None, WHOLE, option("N")] = None
    """Of a search: so many trials of each method; with --resume, the new total. Default: 50."""
    sampler: Annotated[str | None, option("tpe|random|qmc|cmaes|gp")] = None
    """Of a search: how trials are drawn. Default: tpe."""
    pruner: Annotated[str | None, option("none|median|hyperband|halving")] = None
    """Of a search: when trials that are behind are given up. Default: none."""
    storage: Annotated[str | None, option("URL")] = None
    """Of a search: a database that several machines share. Default: SQLite in the folder."""
    seeds: Annotated[int, WHOLE, option("N")] = 1
    """Run every setting with so many seeds. Default: 1."""
    rounds: Annotated[int | None, WHOLE, option("N")] = None
    """Number of rounds of every run."""
    cohort_size: Annotated[int | None, WHOLE, option("N")] = None
    """Clients a round."""
    preset: Annotated[str | None, option("quick|reddi2021|none|...")] = None
    """Where settings come from that nobody set. Default: where the grid comes from, or else
    quick."""
    set: Annotated[UseAppendAction[tuple[tuple[str, ...], ...]], option("KEY=VALUE ...")] = ()
    """Settings that all runs have; METHOD.KEY=VALUE for one method. They take their keys out of a
    preset's grid."""
    choose: Annotated[str | None, option("METRIC")] = None
    """What is best: by the last value of a metric, such as validation_accuracy, or NAME:max. With
    --resume: choose anew. Default: validation_loss if the task has validation data; otherwise
    train_loss, its mean over the last 100 rounds."""
    out: Annotated[Path | None, option("DIR")] = None
    """The sweep folder to make. Default: one under fedax-runs/."""
    overwrite: Annotated[bool, option("")] = False
    """With --out: delete the run or sweep that is there, and begin again."""
    resume: Annotated[Path | None, option("DIR")] = None
    """Go on with the sweep in this folder where it stopped."""
    extend: Annotated[Path | None, option("DIR")] = None
    """Go on with a finished sweep beyond the edges of its grids where the best settings lie."""
    halving: Annotated[int | None, WHOLE, option("N")] = None
    """Successive halving: all settings run for a few rounds, the best one in N of each method for N
    times as many, and so on. Default: all run to the end."""
    settings_per_batch: Annotated[int | None, WHOLE, option("N")] = None
    """So many settings are computed side by side. Default: chosen by platform and memory."""
    log: Annotated[UseAppendAction[tuple[str, ...]], option("|".join(SINKS))] = ()
    """When all is done, write every run there, too; may be repeated."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback of a failure."""


@dataclasses.dataclass(frozen=True)
class List:
    """Show what there is."""

    what: Annotated[Positional[Lists], one_of(get_args(Lists)), option("|".join(get_args(Lists)))]
    """What to list."""
    name: Annotated[Positional[str | None], option("[NAME]")] = None
    """Of tasks and algorithms: only this one, with its settings; may be your own."""
    settings: Annotated[bool, option("")] = False
    """Of tasks and algorithms: show what can be set, with types, defaults and meaning."""
    json: Annotated[bool, option("")] = False
    """Print JSON."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback of a failure."""


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """Run a published table or figure anew: the numbers beside the paper's, and a verdict.

    Some are computed, in seconds. Others are trained: by processes side by side, resumable, every
    run kept by its settings, so that none is trained twice. The same command goes on where it was
    stopped, and several machines may share its --storage.
    """

    name: Annotated[Positional[str | None], option("[NAME]")] = None
    """Which, see --list."""
    list: Annotated[bool, option("")] = False
    """Show what can be reproduced."""
    plan: Annotated[bool, option("")] = False
    """Only say what would be trained, how long it takes and what would count as agreement."""
    scale: Annotated[str, one_of(("small", "paper")), option("small|paper")] = "small"
    """The published setting in full, or reduced to what takes an hour on 2 cores."""
    stand_in: Annotated[bool, option("")] = False
    """Ask the same question of data that can be had in place of the paper's."""
    only: Annotated[tuple[str, ...], read_by(str, "names", "*"), option("PANEL ...")] = ()
    """Only these panels or rows of it, in quotes: "EMNIST CR". Default: all."""
    seeds: Annotated[int | None, WHOLE, option("N")] = None
    """At least so many seeds of every run. Default: 3, or as many as the paper has."""
    out: Annotated[Path | None, option("DIR")] = None
    """Folder for pictures and results. Default: fedax-reproductions, and none with --json."""
    storage: Annotated[Path | None, option("DIR")] = None
    """Folder in which runs are kept. Default: runs in the one of --out."""
    workers: Annotated[int | None, WHOLE, option("N")] = None
    """Processes that train at a time. Default: one for each core, or one on a GPU."""
    json: Annotated[bool, option("")] = False
    """Print JSON."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback of a failure."""


@dataclasses.dataclass(frozen=True)
class Theory:
    """What FedAvg converges to on quadratic losses, how far that is from the minimiser, and why.

    The clients come from a file, from --curvatures and --centres, from --density-power or from
    --random; without any, they are two with a point each. With --run, a quadratic model of a
    training run's clients takes their place.
    """

    file: Annotated[Positional[Path | None], option("[FILE]")] = None
    """A population (.json, .toml, .npz) or examples of linear regressions (.csv)."""
    gamma: Annotated[float | None, NUMBER, option("RATE")] = None
    """Client learning rate. Default: half of 1/L."""
    local_steps: Annotated[int | None, WHOLE, option("K")] = None
    """Local steps. Default: 10."""
    accuracy: Annotated[float | None, NUMBER, option("DISTANCE")] = None
    """Wanted distance to the minimiser. Default: a tenth of FedAvg's."""
    curvatures: Annotated[tuple[float, ...], NUMBERS, option("A ...")] = ()
    """Scalar clients f_i(x) = A_i (x - c_i)^2 / 2: the A_i."""
    centres: Annotated[tuple[float, ...], NUMBERS, option("C ...")] = ()
    """Their minimisers c_i."""
    probabilities: Annotated[tuple[float, ...], NUMBERS, option("P ...")] = ()
    """Their weights. Default: all alike."""
    density_power: Annotated[float | None, NUMBER, option("POWER")] = None
    """Clients z (x - 1/z)^2 / 2 with z of density z^POWER on the interval."""
    interval: Annotated[
        tuple[float, float] | None, read_by(float, "two numbers", 2), option("LEFT RIGHT")
    ] = None
    """The interval."""
    random: Annotated[
        tuple[int, int] | None, read_by(int, "two whole numbers", 2), option("N D")
    ] = None
    """N clients in D dimensions at random, with these constants:"""
    mu: Annotated[float | None, NUMBER, option("MU")] = None
    """Smallest eigenvalue. Default: 1."""
    L: Annotated[float | None, NUMBER, option("L")] = None
    """Largest eigenvalue. Default: 10."""
    sigma_A: Annotated[  # noqa: N815 - the papers' name
        float | None, NUMBER, option("S")
    ] = None
    """Spread of the matrices. Default: what the draw gives."""
    sigma_c: Annotated[float | None, NUMBER, option("S")] = None
    """Spread of the centres. Default: 1."""
    seed: Annotated[int | None, WHOLE, option("N")] = None
    """Of the draw. Default: 0."""
    noise: Annotated[float | None, NUMBER, option("G2")] = None
    """Mean square of an example's gradient noise. Default: 0."""
    batch_size: Annotated[int, WHOLE, option("B")] = 1
    """Examples a local step."""
    start: Annotated[float, NUMBER, option("X")] = 0.0
    """Where training starts, in every coordinate; only numbers of rounds depend on it."""
    client_column: Annotated[str, option("NAME")] = "client"
    """Of a .csv, the column of client names."""
    target_column: Annotated[str | None, option("NAME")] = None
    """Of a .csv, what is regressed on all other columns. Default: the last."""
    ridge: Annotated[float, NUMBER, option("LAMBDA")] = 0.0
    """Of a .csv: adds LAMBDA |x|^2 / 2 to every client's loss."""
    intercept: Annotated[bool, option("")] = False
    """Of a .csv: adds a constant feature."""
    run: Annotated[Path | None, option("DIR")] = None
    """A run folder: a quadratic model at its last checkpoint, and the gap that it predicts for the
    run's gamma and K, and for half and double of each. Only --seed and --json go with it."""
    picture: Annotated[Path | None, option("FILE")] = None
    """Draw the two losses, and the distance against gamma and K (.png, .svg, .pdf)."""
    json: Annotated[bool, option("")] = False
    """Print JSON."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback of a failure."""


@dataclasses.dataclass(frozen=True)
class Completion:
    """Print a script that has a shell complete commands, options, tasks, methods and settings.

    fedax completion bash > ~/.local/share/bash-completion/completions/fedax
    """

    shell: Annotated[Positional[str], one_of(SHELLS), option("|".join(SHELLS))]
    """Which shell."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback of a failure."""


Command: TypeAlias = (
    Annotated[Run, subcommand("run")]
    | Annotated[Sweep, subcommand("sweep")]
    | Annotated[List, subcommand("list")]
    | Annotated[Data, subcommand("data")]
    | Annotated[Plot, subcommand("plot")]
    | Annotated[Report, subcommand("report")]
    | Annotated[Table, subcommand("table")]
    | Annotated[Reproduce, subcommand("reproduce")]
    | Annotated[Theory, subcommand("theory")]
    | Annotated[Completion, subcommand("completion")]
)
