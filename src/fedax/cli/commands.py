"""The commands and their options; the docstrings are what `--help` shows."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, get_args

from tyro.conf import Positional, UseAppendAction, subcommand

from fedax.cli.data_commands import Data
from fedax.cli.showing import Plot, Report, Table
from fedax.cli.words import NUMBER, NUMBERS, WHOLE, one_of, option, read_by, summary
from fedax.sinks import SINKS

SHELLS = ("bash", "zsh")
Lists: TypeAlias = Literal["tasks", "algorithms", "datasets", "reproductions"]


@dataclasses.dataclass(frozen=True)
class Run:
    """Train one method on one task, and save the run in a folder.

    Without arguments: FedAdagrad on Shakespeare's plays, which takes about a minute. Settings are
    taken from the preset, then from --config, then from the options and --set; the last one wins.
    """

    task: Annotated[Positional[str | None], option("[TASK]")] = None
    """A task of `fedax list tasks`, or your own: FILE.py:NAME or package.module:NAME.
    Or a table: FILE.csv or FILE.parquet, with --client and --label.
    Default: shakespeare."""
    algorithm: Annotated[Positional[str | None], option("[ALGORITHM]")] = None
    """A method of `fedax list algorithms`, or your own.
    With both TASK and ALGORITHM, --help also lists every setting of the run.
    Default: the task's own, such as fedadagrad on shakespeare."""
    client: Annotated[str | None, option("COLUMN")] = None
    """For a table: the column that says which client each row belongs to."""
    label: Annotated[str | None, option("COLUMN")] = None
    """For a table: the column to predict."""
    rounds: Annotated[int | None, WHOLE, option("N")] = None
    """Number of rounds. With --resume: the new total."""
    cohort_size: Annotated[int | None, WHOLE, option("N")] = None
    """Clients per round."""
    seed: Annotated[int | None, WHOLE, option("N")] = None
    """Seed of everything random. Default: 0."""
    out: Annotated[Path | None, option("DIR")] = None
    """Folder for the run. Default: a new one under fedax-runs/."""
    overwrite: Annotated[bool, option("")] = False
    """With --out: delete the run or sweep in that folder, and start again."""
    preset: Annotated[str | None, option("quick|reddi2021|none|...")] = None
    """Preset that supplies every setting you do not give; `fedax list tasks` shows them.
    Default: quick."""
    set: Annotated[UseAppendAction[tuple[tuple[str, ...], ...]], option("KEY=VALUE ...")] = ()
    """Settings of the run, the task or the method, such as server_learning_rate=0.03.
    If KEY is ambiguous, write run.KEY, task.KEY or algorithm.KEY."""
    config: Annotated[Path | None, option("FILE")] = None
    """TOML file of settings, or the config.json of a run that you want to repeat."""
    resume: Annotated[Path | None, option("DIR")] = None
    """Continue the run in this folder from where it stopped."""
    force: Annotated[bool, option("")] = False
    """With --resume: continue although the file of your task or method has changed.
    With --resume of a run from another machine: trust its code, and execute it.
    With --devices: use more devices than there are cores."""
    log: Annotated[UseAppendAction[tuple[str, ...]], option("|".join(SINKS))] = ()
    """Also write the metrics in this format or to this service; may be repeated.
    With --resume: replaces the earlier choice, and writes all rounds."""
    profile: Annotated[bool, option("")] = False
    """Trace a few rounds into profile/ in the run folder, and show where the time went."""
    devices: Annotated[int | None, WHOLE, option("N")] = None
    """On a CPU: number of cores that train clients in parallel; 1 uses a single device.
    Default: all cores."""
    coordinator: Annotated[str | None, option("HOST:PORT")] = None
    """Training with several processes: address of process 0."""
    processes: Annotated[int | None, WHOLE, option("N")] = None
    """Training with several processes: how many there are."""
    process_id: Annotated[int | None, WHOLE, option("I")] = None
    """Training with several processes: index of this one, from 0."""
    cluster: Annotated[bool, option("")] = False
    """Training with several processes: find them from SLURM, Kubernetes or Open MPI."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback if the command fails."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Tune hyperparameters: run every setting of each method's grid, with one or more seeds.

    Prints the best setting of each method.

    Example: fedax sweep shakespeare fedavg,fedavgm --seeds 3 --rounds 200 --grid
    client_learning_rate=0.1,0.316,1 server_learning_rate=0.1,1 fedavgm.momentum=0.5,0.9
    """

    task: Annotated[Positional[str | None], option("[TASK]")] = None
    """A task of `fedax list tasks`, or your own (FILE.py:NAME).
    Or a table: FILE.csv or FILE.parquet, with --client and --label."""
    algorithms: Annotated[Positional[str | None], option("[ALGORITHM,...]")] = None
    """Methods of `fedax list algorithms`, separated by commas; or your own."""
    client: Annotated[str | None, option("COLUMN")] = None
    """For a table: the column that says which client each row belongs to."""
    label: Annotated[str | None, option("COLUMN")] = None
    """For a table: the column to predict."""
    grid: Annotated[UseAppendAction[tuple[tuple[str, ...], ...]], option("KEY=VALUE,... ...")] = ()
    """What to vary: KEY=VALUE,VALUE,... or "KEY=logspace(-3, 0.5, 8)".
    KEY applies to every method that has this setting, METHOD.KEY to one method.
    The name of a preset, such as reddi2021, selects the grid that its paper searched."""
    search: Annotated[UseAppendAction[tuple[tuple[str, ...], ...]], option("KEY=RANGE ...")] = ()
    """Search with Optuna instead of a grid, such as "client_learning_rate=loguniform(0.001, 10)".
    Ranges: loguniform, uniform(0, 1), int(1, 20), logint(1, 100) and choice(A, B)."""
    trials: Annotated[int | None, WHOLE, option("N")] = None
    """With --search: trials of each method. With --resume: the new total. Default: 50."""
    sampler: Annotated[str | None, option("tpe|random|qmc|cmaes|gp")] = None
    """With --search: Optuna's sampler, which draws the trials. Default: tpe."""
    pruner: Annotated[str | None, option("none|median|hyperband|halving")] = None
    """With --search: Optuna's pruner, which stops trials that fall behind. Default: none."""
    storage: Annotated[str | None, option("URL")] = None
    """With --search: URL of a database that several machines share.
    Default: SQLite in the sweep folder."""
    seeds: Annotated[int, WHOLE, option("N")] = 1
    """Number of seeds for every setting. Default: 1."""
    rounds: Annotated[int | None, WHOLE, option("N")] = None
    """Number of rounds of every run."""
    cohort_size: Annotated[int | None, WHOLE, option("N")] = None
    """Clients per round."""
    preset: Annotated[str | None, option("quick|reddi2021|none|...")] = None
    """Preset that supplies every setting you do not give.
    Default: the preset of the grid, otherwise quick."""
    set: Annotated[UseAppendAction[tuple[tuple[str, ...], ...]], option("KEY=VALUE ...")] = ()
    """Settings that all runs share; METHOD.KEY=VALUE for one method.
    A KEY given here is no longer varied by a preset's grid."""
    choose: Annotated[str | None, option("METRIC")] = None
    """Metric whose last value selects the best setting, such as validation_accuracy or NAME:max.
    With --resume: select again.
    Default: validation_loss if the task has validation data.
    Otherwise: the mean of train_loss over the last 100 rounds."""
    out: Annotated[Path | None, option("DIR")] = None
    """Folder for the sweep. Default: a new one under fedax-runs/."""
    overwrite: Annotated[bool, option("")] = False
    """With --out: delete the run or sweep in that folder, and start again."""
    resume: Annotated[Path | None, option("DIR")] = None
    """Continue the sweep in this folder from where it stopped."""
    extend: Annotated[Path | None, option("DIR")] = None
    """Extend the grids of a finished sweep wherever its best setting is at an edge."""
    halving: Annotated[int | None, WHOLE, option("N")] = None
    """Successive halving: run all settings for a few rounds, keep the best one in N, and so on.
    Default: run all settings to the end."""
    settings_per_batch: Annotated[int | None, WHOLE, option("N")] = None
    """Number of settings computed in parallel. Default: chosen by platform and memory."""
    log: Annotated[UseAppendAction[tuple[str, ...]], option("|".join(SINKS))] = ()
    """At the end, also write every run in this format or to this service; may be repeated."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback if the command fails."""


@dataclasses.dataclass(frozen=True)
class List:
    """List tasks, methods, data sets or published results that can be reproduced."""

    what: Annotated[Positional[Lists], one_of(get_args(Lists)), option("|".join(get_args(Lists)))]
    """What to list."""
    name: Annotated[Positional[str | None], option("[NAME]")] = None
    """With tasks or algorithms: show only this one, with its settings; may be your own."""
    settings: Annotated[bool, option("")] = False
    """With tasks or algorithms: show every setting with its type, default and meaning."""
    json: Annotated[bool, option("")] = False
    """Print JSON."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback if the command fails."""


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """Reproduce a published table or figure, and compare the result with the paper's.

    Some are computed in seconds; others are trained, by several processes in parallel. Finished
    runs are saved and never trained twice: the same command continues a reproduction that was
    stopped. Several machines may share one --storage.
    """

    name: Annotated[Positional[str | None], option("[NAME]")] = None
    """What to reproduce; --list shows the names."""
    list: Annotated[bool, option("")] = False
    """List what can be reproduced."""
    plan: Annotated[bool, option("")] = False
    """Only print what would be trained, how long it takes and what counts as agreement."""
    scale: Annotated[str, one_of(("small", "paper")), option("small|paper")] = "small"
    """paper: the published setting in full. small: reduced to about an hour on 2 cores.
    Default: small."""
    stand_in: Annotated[bool, option("")] = False
    """Use an available data set in place of the paper's."""
    only: Annotated[tuple[str, ...], read_by(str, "names", "*"), option("NAME ...")] = ()
    """Only these panels or methods, in quotes: "EMNIST CR" "AvgM". Default: all."""
    seeds: Annotated[int | None, WHOLE, option("N")] = None
    """Number of seeds of every run. Default: 3, or the paper's number."""
    out: Annotated[Path | None, option("DIR")] = None
    """Folder for pictures and results. Default: fedax-reproductions, or none with --json."""
    storage: Annotated[Path | None, option("DIR")] = None
    """Folder for the runs. Default: runs/ in the folder of --out."""
    workers: Annotated[int | None, WHOLE, option("N")] = None
    """Number of processes that train in parallel. Default: one per core, or one on a GPU."""
    json: Annotated[bool, option("")] = False
    """Print JSON."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback if the command fails."""


@dataclasses.dataclass(frozen=True)
class Theory:
    """Show where FedAvg converges on quadratic losses, how far from the minimiser, and why.

    The clients come from a file, from --curvatures and --centres, from --density-power or from
    --random; the default is an example with two clients. With --run, a quadratic model of a run's
    clients is used instead.
    """

    file: Annotated[Positional[Path | None], option("[FILE]")] = None
    """A population (.json, .toml, .npz), or the examples of linear regressions (.csv)."""
    gamma: Annotated[float | None, NUMBER, option("RATE")] = None
    """Client learning rate. Default: half of 1/L."""
    local_steps: Annotated[int | None, WHOLE, option("K")] = None
    """Number of local steps. Default: 10."""
    accuracy: Annotated[float | None, NUMBER, option("DISTANCE")] = None
    """Wanted distance to the minimiser. Default: a tenth of FedAvg's."""
    curvatures: Annotated[tuple[float, ...], NUMBERS, option("A ...")] = ()
    """Curvatures A_i of scalar clients with losses A_i (x - c_i)^2 / 2."""
    centres: Annotated[tuple[float, ...], NUMBERS, option("C ...")] = ()
    """Minimisers c_i of these clients."""
    probabilities: Annotated[tuple[float, ...], NUMBERS, option("P ...")] = ()
    """Weights of these clients. Default: equal."""
    density_power: Annotated[float | None, NUMBER, option("POWER")] = None
    """Clients with losses z (x - 1/z)^2 / 2, where z has density z^POWER on --interval."""
    interval: Annotated[
        tuple[float, float] | None, read_by(float, "two numbers", 2), option("LEFT RIGHT")
    ] = None
    """With --density-power: the interval."""
    random: Annotated[
        tuple[int, int] | None, read_by(int, "two whole numbers", 2), option("N D")
    ] = None
    """N random clients in D dimensions, with the constants given by --mu to --sigma-c."""
    mu: Annotated[float | None, NUMBER, option("MU")] = None
    """With --random: smallest eigenvalue. Default: 1."""
    L: Annotated[float | None, NUMBER, option("L")] = None
    """With --random: largest eigenvalue. Default: 10."""
    sigma_A: Annotated[  # noqa: N815 - the papers' name
        float | None, NUMBER, option("S")
    ] = None
    """With --random: spread of the matrices. Default: as drawn."""
    sigma_c: Annotated[float | None, NUMBER, option("S")] = None
    """With --random: spread of the centres. Default: 1."""
    seed: Annotated[int | None, WHOLE, option("N")] = None
    """With --random or --run: seed. Default: 0."""
    noise: Annotated[float | None, NUMBER, option("G2")] = None
    """Mean squared gradient noise of one example. Default: 0."""
    batch_size: Annotated[int, WHOLE, option("B")] = 1
    """Examples per local step. Default: 1."""
    start: Annotated[float, NUMBER, option("X")] = 0.0
    """Starting point, in every coordinate; only the numbers of rounds depend on it. Default: 0."""
    client_column: Annotated[str, option("NAME")] = "client"
    """For a .csv: the column of client names. Default: client."""
    target_column: Annotated[str | None, option("NAME")] = None
    """For a .csv: the column to regress on all others. Default: the last."""
    ridge: Annotated[float, NUMBER, option("LAMBDA")] = 0.0
    """For a .csv: add LAMBDA |x|^2 / 2 to every client's loss. Default: 0."""
    intercept: Annotated[bool, option("")] = False
    """For a .csv: add a constant feature."""
    run: Annotated[Path | None, option("DIR")] = None
    """A run folder: fit a quadratic model of its clients at the last checkpoint.
    It predicts the gap for the run's gamma and K, and for half and double of each.
    Only --seed and --json can be given with it."""
    picture: Annotated[Path | None, option("FILE")] = None
    """Draw the two losses, and the distance against gamma and K (.png, .svg or .pdf)."""
    json: Annotated[bool, option("")] = False
    """Print JSON."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback if the command fails."""


@dataclasses.dataclass(frozen=True)
class Privacy:
    """Show what a run of private+METHOD guarantees, or how much noise a guarantee takes.

    Give a run folder; or --clients, --cohort-size and two of --rounds, --noise-multiplier and
    --epsilon, of which the third is computed.
    """

    run: Annotated[Positional[Path | None], option("[RUN]")] = None
    """A run folder: the guarantee of its rounds so far."""
    clients: Annotated[int | None, WHOLE, option("N")] = None
    """Number of clients."""
    cohort_size: Annotated[int | None, WHOLE, option("N")] = None
    """Expected number of clients per round, by Poisson sampling."""
    rounds: Annotated[int | None, WHOLE, option("T")] = None
    """Number of rounds."""
    noise_multiplier: Annotated[float | None, NUMBER, option("Z")] = None
    """Standard deviation of the noise over the clipping norm."""
    epsilon: Annotated[float | None, NUMBER, option("EPSILON")] = None
    """Wanted epsilon."""
    delta: Annotated[float | None, NUMBER, option("DELTA")] = None
    """Delta. Default: N^-1.1 for N clients."""
    bands: Annotated[int, WHOLE, option("B")] = 1
    """Bands of correlated noise. Default: 1, independent noise."""
    json: Annotated[bool, option("")] = False
    """Print JSON."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback if the command fails."""


@dataclasses.dataclass(frozen=True)
class Completion:
    """Print a shell script that completes commands, options, tasks, methods and settings.

    Example: fedax completion bash > ~/.local/share/bash-completion/completions/fedax
    """

    shell: Annotated[Positional[str], one_of(SHELLS), option("|".join(SHELLS))]
    """The shell."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback if the command fails."""


Command: TypeAlias = (
    Annotated[Run, subcommand("run", description=summary(Run))]
    | Annotated[Sweep, subcommand("sweep", description=summary(Sweep))]
    | Annotated[List, subcommand("list", description=summary(List))]
    | Annotated[Data, subcommand("data", description=summary(Data))]
    | Annotated[Plot, subcommand("plot", description=summary(Plot))]
    | Annotated[Report, subcommand("report", description=summary(Report))]
    | Annotated[Table, subcommand("table", description=summary(Table))]
    | Annotated[Reproduce, subcommand("reproduce", description=summary(Reproduce))]
    | Annotated[Theory, subcommand("theory", description=summary(Theory))]
    | Annotated[Privacy, subcommand("privacy", description=summary(Privacy))]
    | Annotated[Completion, subcommand("completion", description=summary(Completion))]
)
