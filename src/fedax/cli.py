"""The command line: nothing but parsing and calling.

Exit status: 0 done, 1 a failure explained in one line, 2 a wrong command line.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeAlias

import jax
import tyro
from tyro.conf import (
    AvoidSubcommands,
    FlagCreatePairsOff,
    OmitArgPrefixes,
    Positional,
    UseAppendAction,
    arg,
    subcommand,
)

from fedax import processes
from fedax.client_store import StoreError
from fedax.experiment import catalogue, config
from fedax.experiment.checkpoint import CheckpointError
from fedax.experiment.compile_cache import keep_programs
from fedax.experiment.errors import ConfigError
from fedax.experiment.folder import RunError
from fedax.experiment.picture import save_picture
from fedax.experiment.tables import print_json, print_tables
from fedax.mesh import cores_as_devices
from fedax.processes import ProcessError
from fedax.simulate import DivergedError
from fedax.theory.errors import TheoryError


def _option(metavar: str) -> Any:
    """An option without the parser's own hint; its help says what None means."""
    return arg(metavar=metavar or None, help_behavior_hint="")


@dataclasses.dataclass(frozen=True)
class Run:
    """Train. With no argument: Shakespeare's plays with FedYogi, a quick look of two minutes.

    Settings come from the preset, then from --config, then from the options and --set.
    """

    task: Annotated[Positional[str | None], _option("[TASK]")] = None
    """What to learn, see `fedax list tasks`. Default: shakespeare."""
    algorithm: Annotated[Positional[str | None], _option("[ALGORITHM]")] = None
    """How, see `fedax list algorithms`. Default: fedyogi."""
    rounds: Annotated[int | None, _option("N")] = None
    """Number of rounds; with --resume, the new total."""
    cohort_size: Annotated[int | None, _option("N")] = None
    """Clients a round."""
    seed: Annotated[int | None, _option("N")] = None
    """Fixes everything random. Default: 0."""
    out: Annotated[Path | None, _option("DIR")] = None
    """The run folder to make. Default: one under fedax-runs/."""
    preset: Annotated[Literal["paper", "quick", "none"] | None, _option("paper|quick|none")] = None
    """Where settings come from that nobody set. Default: quick."""
    set: Annotated[UseAppendAction[tuple[tuple[str, ...], ...]], _option("KEY=VALUE ...")] = ()
    """Settings of the run, the task or the algorithm, such as server_learning_rate=0.03."""
    config: Annotated[Path | None, _option("FILE")] = None
    """A TOML file of settings, or another run's config.json to repeat it."""
    resume: Annotated[Path | None, _option("DIR")] = None
    """Go on with the run in this folder, exactly where it stopped."""
    profile: Annotated[bool, _option("")] = False
    """Trace some rounds into the run folder's profile/, and say where time went."""
    devices: Annotated[int | None, _option("N")] = None
    """On a CPU: so many cores train clients side by side. Default: all. 1: as one device."""
    coordinator: Annotated[str | None, _option("HOST:PORT")] = None
    """Train with several processes: where process 0 can be reached."""
    processes: Annotated[int | None, _option("N")] = None
    """How many there are."""
    process_id: Annotated[int | None, _option("I")] = None
    """Which one this is, from 0."""
    cluster: Annotated[bool, _option("")] = False
    """Find the other processes from SLURM, Kubernetes or Open MPI."""
    debug: Annotated[bool, _option("")] = False
    """Show the traceback of a failure."""


@dataclasses.dataclass(frozen=True)
class List:
    """Show what there is."""

    what: Positional[Literal["tasks", "algorithms", "datasets", "reproductions"]]
    """What to list."""
    json: Annotated[bool, _option("")] = False
    """Print JSON."""
    debug: Annotated[bool, _option("")] = False
    """Show the traceback of a failure."""


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """Compute a published table or figure anew and print it with the deviation."""

    name: Annotated[Positional[str | None], _option("[NAME]")] = None
    """Which, see --list."""
    list: Annotated[bool, _option("")] = False
    """Show what can be reproduced."""
    out: Annotated[Path | None, _option("DIR")] = None
    """Folder for the picture. Default: fedax-reproductions, and none with --json."""
    json: Annotated[bool, _option("")] = False
    """Print JSON."""
    debug: Annotated[bool, _option("")] = False
    """Show the traceback of a failure."""


@dataclasses.dataclass(frozen=True)
class Theory:
    """What FedAvg converges to on quadratic losses, how far that is from the minimiser, and why.

    The clients come from a file, from --curvatures and --centres, from --density-power or from
    --random; without any, they are two with a point each. With --run, a quadratic model of a
    training run's clients takes their place.
    """

    file: Annotated[Positional[Path | None], _option("[FILE]")] = None
    """A population (.json, .toml, .npz) or examples of linear regressions (.csv)."""
    gamma: Annotated[float | None, _option("RATE")] = None
    """Client learning rate. Default: half of 1/L."""
    local_steps: Annotated[int | None, _option("K")] = None
    """Local steps. Default: 10."""
    accuracy: Annotated[float | None, _option("DISTANCE")] = None
    """Wanted distance to the minimiser. Default: a tenth of FedAvg's."""
    curvatures: Annotated[tuple[float, ...], _option("A ...")] = ()
    """Scalar clients f_i(x) = A_i (x - c_i)^2 / 2: the A_i."""
    centres: Annotated[tuple[float, ...], _option("C ...")] = ()
    """Their minimisers c_i."""
    probabilities: Annotated[tuple[float, ...], _option("P ...")] = ()
    """Their weights. Default: all alike."""
    density_power: Annotated[float | None, _option("POWER")] = None
    """Clients z (x - 1/z)^2 / 2 with z of density z^POWER on the interval."""
    interval: Annotated[tuple[float, float] | None, _option("LEFT RIGHT")] = None
    """The interval."""
    random: Annotated[tuple[int, int] | None, _option("N D")] = None
    """N clients in D dimensions at random, with these constants:"""
    mu: Annotated[float | None, _option("MU")] = None
    """Smallest eigenvalue. Default: 1."""
    L: Annotated[float | None, _option("L")] = None
    """Largest eigenvalue. Default: 10."""
    sigma_A: Annotated[float | None, _option("S")] = None  # noqa: N815 - the papers' name
    """Spread of the matrices. Default: what the draw gives."""
    sigma_c: Annotated[float | None, _option("S")] = None
    """Spread of the centres. Default: 1."""
    seed: Annotated[int | None, _option("N")] = None
    """Of the draw. Default: 0."""
    noise: Annotated[float | None, _option("G2")] = None
    """Mean square of an example's gradient noise. Default: 0."""
    batch_size: Annotated[int, _option("B")] = 1
    """Examples a local step."""
    start: Annotated[float, _option("X")] = 0.0
    """Where training starts, in every coordinate; only numbers of rounds depend on it."""
    client_column: Annotated[str, _option("NAME")] = "client"
    """Of a .csv, the column of client names."""
    target_column: Annotated[str | None, _option("NAME")] = None
    """Of a .csv, what is regressed on all other columns. Default: the last."""
    ridge: Annotated[float, _option("LAMBDA")] = 0.0
    """Of a .csv: adds LAMBDA |x|^2 / 2 to every client's loss."""
    intercept: Annotated[bool, _option("")] = False
    """Of a .csv: adds a constant feature."""
    run: Annotated[Path | None, _option("DIR")] = None
    """A run folder: a quadratic model at its last checkpoint, and the gap that it predicts for the
    run's gamma and K, and for half and double of each. Only --seed and --json go with it."""
    picture: Annotated[Path | None, _option("FILE")] = None
    """Draw the two losses, and the distance against gamma and K (.png, .svg, .pdf)."""
    json: Annotated[bool, _option("")] = False
    """Print JSON."""
    debug: Annotated[bool, _option("")] = False
    """Show the traceback of a failure."""


Command: TypeAlias = (
    Annotated[Run, subcommand("run")]
    | Annotated[List, subcommand("list")]
    | Annotated[Reproduce, subcommand("reproduce")]
    | Annotated[Theory, subcommand("theory")]
)


def main() -> NoReturn:
    """Runs the command line and exits."""
    status = run_command(sys.argv[1:])
    if status and processes.are_several():  # JAX would wait for a process that is gone, and abort
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def run_command(arguments: list[str]) -> int:
    """Runs a command line and returns its exit status."""
    command = tyro.cli(
        Command, args=arguments or ["--help"], prog="fedax", description="Federated optimization.",
        config=(OmitArgPrefixes, AvoidSubcommands, FlagCreatePairsOff),
    )
    try:
        if isinstance(command, Run):
            return _run(command)
        if isinstance(command, Theory):
            return _theory(command)
        return _list(command) if isinstance(command, List) else _reproduce(command)
    except KeyboardInterrupt:
        return _fail("Stopped.", 1)
    except BrokenPipeError:  # as in `fedax list algorithms | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if command.debug:
            raise
        return _fail(*_explain(error))


def _run(command: Run) -> int:
    from fedax.experiment import run  # noqa: PLC0415 - only a run needs matplotlib, which is slow

    keep_programs()
    _use_cores(command.devices)
    places = (command.coordinator, command.processes, command.process_id)
    if command.cluster or places != (None, None, None):
        processes.connect(*places)
    if command.resume is not None:
        allowed = ("resume", "rounds", "profile", "devices", "coordinator", "processes",
                   "process_id", "cluster", "debug")
        settings = {name: getattr(Run(), name) for name in allowed}
        if dataclasses.replace(command, **settings) != Run():
            raise ConfigError(
                "--resume goes on with a run as it was configured; only --rounds, a new total, "
                "can go with it, and what changes no setting: --profile, --devices, processes."
            )
        run.resume(command.resume, command.rounds, profile=command.profile)
        return 0
    options = {
        "num_rounds": command.rounds, "cohort_size": command.cohort_size, "seed": command.seed,
    }
    settings = {key: value for key, value in options.items() if value is not None}
    # A --set without a word reaches the parser of settings as an empty word, and is refused.
    settings |= config.parse_settings([word for words in command.set for word in words or ("",)])
    resolved = config.resolve(
        task=command.task, algorithm=command.algorithm, preset=command.preset,
        config_file=command.config, settings=settings,
    )
    run.start(resolved, command.out, profile=command.profile)
    return 0


def _use_cores(count: int | None) -> None:
    """The CPU's cores as devices; left as they are if the user has set them or JAX is in use."""
    asked = jax.config.jax_num_cpu_devices  # pyright: ignore[reportAttributeAccessIssue]
    chosen = asked != -1 or "device_count" in os.environ.get("XLA_FLAGS", "")
    if count is None and chosen:
        return
    try:
        cores_as_devices(count)
    except (RuntimeError, ValueError) as error:
        if count is not None:
            raise ConfigError(str(error)) from None


def _list(command: List) -> int:
    rows = catalogue.ROWS[command.what]()
    if command.json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        catalogue.print_table(command.what, rows)
    return 0


def _reproduce(command: Reproduce) -> int:
    if command.list:
        return _list(List("reproductions", command.json))
    if command.name is None:
        raise ConfigError("fedax reproduce needs a name; fedax reproduce --list shows them.")
    catalogue.reproduce(command.name, command.out, as_json=command.json)
    return 0


def _theory(command: Theory) -> int:
    from fedax.experiment import theory  # noqa: PLC0415 - only this command draws and solves

    if command.run is not None:
        return _advise(command)
    given = {name: getattr(command, name) for name in theory.NUMBERS}
    population = theory.clients_from(
        command.file,
        {name: value for name, value in given.items() if value not in (None, ())},
        {name: getattr(command, name) for name in theory.EXAMPLES},
    )
    question = theory.ask(
        population, command.gamma, command.local_steps,
        accuracy=command.accuracy, start=command.start, batch_size=command.batch_size,
    )
    (print_json if command.json else print_tables)(theory.theory_tables(question))
    if command.picture is not None:
        path = save_picture(
            lambda figure: theory.draw_theory(figure, question), command.picture
        )
        if not command.json:
            print(f"Picture: {path}")
    return 0


def _advise(command: Theory) -> int:
    from fedax.experiment.advice import advice_tables, run_advice  # noqa: PLC0415 - likewise

    if dataclasses.replace(command, run=None, seed=None, json=False, debug=False) != Theory():
        raise ConfigError(
            "--run makes a model of that run, with its own gamma and K; only --seed, of the sample "
            "of clients, and --json go with it."
        )
    folder = command.run or Path()
    advice = run_advice(folder, seed=command.seed or 0)
    (print_json if command.json else print_tables)(advice_tables(advice))
    return 0


def _explain(error: Exception) -> tuple[str, int]:
    """An error's sentence and exit status; a sentence of our own where we know what it means."""
    if isinstance(error, ConfigError | TheoryError):
        return str(error), 2
    if isinstance(error, CheckpointError | DivergedError | ProcessError | RunError | StoreError):
        return str(error), 1
    if isinstance(error, RuntimeError) and "Unable to initialize backend" in str(error):
        return f"JAX has no devices to compute on: {str(error).splitlines()[0]}", 1
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return f"Out of memory: {error}. Lower clients_per_chunk or batch_size.", 1
    kind = type(error).__name__
    return f"A defect of fedax: {kind}: {error} (--debug shows where; please report it).", 1


def _fail(message: str, status: int) -> int:
    print("fedax: " + " ".join(message.split()), file=sys.stderr)
    return status
