"""The command line: nothing but parsing and calling.

Exit status: 0 done, 1 a failure explained in one line, 2 a wrong command line.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import sys
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import jax
import numpy as np

import fedax
from fedax.cli import catalogue, parsing
from fedax.cli.commands import (
    Command,
    Completion,
    List,
    Plot,
    Privacy,
    Report,
    Reproduce,
    Run,
    Sweep,
    Table,
    Theory,
)
from fedax.cli.data_commands import Data, DataCheck, DataDescribe, DataGet
from fedax.cli.manual import explain_run
from fedax.cli.own_tables import TASK, as_task, lacks_columns
from fedax.cli.words import gives, require_out
from fedax.devices import ending, losses, processes, terminal
from fedax.devices.mesh import cores_as_devices, usable_cores
from fedax.devices.processes import LossError, PlaceError
from fedax.experiment import config
from fedax.experiment.compile_cache import keep_programs
from fedax.experiment.errors import ConfigError
from fedax.experiment.imports import in_callback, line_of, sentence
from fedax.experiment.values import log_names, parse_settings
from fedax.outside.text import Told
from fedax.report.picture import require_format, save_picture
from fedax.report.tables import print_json, print_tables
from fedax.tasks.tables import names_table
from fedax.theory.errors import TheoryError
from fedax.validate import check_count, so_many

# What JAX says where its settings forbid what fedax does.
FORBIDDEN = {
    "Disallowed [a-z-]+ transfer":
        "fedax copies data between host and device, but JAX_TRANSFER_GUARD forbids it. Unset "
        "JAX_TRANSFER_GUARD, or set it to log.",
    "'no_tracing' is set":
        "fedax compiles its rounds, but JAX_NO_TRACING forbids it. Unset JAX_NO_TRACING.",
}


def main() -> NoReturn:
    """Runs the command line and exits."""
    ending.open_what_is_closed()
    ending.set_guard()
    try:
        status = run_command(sys.argv[1:])
    except Exception:  # --debug
        with terminal.escaping():
            sys.stderr.write(traceback.format_exc())
        status = 1
    if _others_may_speak():
        ending.leave(None, status)
    sys.exit(status)


def _others_may_speak() -> bool:
    """Whether a thread may end this process meanwhile: after a signal, or for a lost process.

    Then JAX would wait for the lost one and abort, or a thread that hangs would be waited for.
    """
    return losses.client() is not None or ending.was_asked()


def run_command(arguments: list[str]) -> int:
    """Runs a command line and returns its exit status."""
    with terminal.escaping():
        return _run_command(arguments)


def _run_command(arguments: list[str]) -> int:
    try:
        Path.cwd()
    except OSError as error:
        return _fail(
            f"The current folder cannot be used ({error.strerror}). Change to one that exists.", 1
        )
    try:
        command = _command(arguments)
    except (ConfigError, OSError) as error:
        nobody = isinstance(error, BrokenPipeError)
        return _unread() if nobody else _fail(*_explain(error))
    do: dict[type, Callable[[Any], int]] = {
        Run: _run, List: _list, Data: _data, Plot: _plot, Report: _report,
        Reproduce: _reproduce, Sweep: _sweep, Table: _table, Theory: _theory,
        Privacy: _privacy, Completion: _complete,
    }
    try:
        return do[type(command)](command)
    except KeyboardInterrupt:
        return _fail("Stopped.", 1)
    except BrokenPipeError:  # as in `fedax list algorithms | head -1`
        return _unread()
    except Exception as error:
        if command.debug:
            raise
        message, status = _explain(error)
        if ending.guard() is not None and in_callback(error) is not None:
            ending.leave(message, status)  # at the end JAX would tell of it once more
        return _fail(message, status)


def _command(arguments: list[str]) -> Command:
    """The command that is asked for; what --help shows is shown, and ends the program."""
    try:
        return parsing.parsed(arguments or ["--help"])
    except SystemExit as stop:
        if not stop.code and arguments[:1] == ["run"]:
            stop.code = _help_on_run([w for w in arguments if w not in ("--help", "-h")])
        sys.stdout.flush()
        raise


def _unread() -> int:
    """The exit status where nobody reads, also not what is written when Python ends."""
    terminal.nobody_reads()
    return 1


def _help_on_run(arguments: list[str]) -> int:
    """What can be set in this run; the parser has shown the options."""
    try:
        command = parsing.parsed(arguments)
        if not isinstance(command, Run) or command.task is None:
            return 0
        task = TASK if names_table(command.task) else command.task
        if lacks_columns(command):
            explain_run(task, command.algorithm, command.preset, why=(
                "Add --client COLUMN --label COLUMN to see the preset's values."
            ))
        else:
            given = _settings(as_task(command))
            explain_run(task, command.algorithm, command.preset, given)
    except ConfigError as error:
        return _fail(*_explain(error))
    return 0


def _run(command: Run) -> int:
    from fedax.experiment import run  # noqa: PLC0415 - only this command
    from fedax.experiment.sitting import StoppedError  # noqa: PLC0415 - likewise

    command = as_task(command)
    keep_programs()
    _use_cores(command.devices, forced=command.force)
    places = (command.coordinator, command.processes, command.process_id)
    if not command.cluster and places == (None, None, None):
        return _train(command, run)
    processes.connect(*places, ends_with_others=True)
    try:
        processes.compare("versions", {
            "--processes": processes.place()[1], "fedax": fedax.__version__,
            "jax": jax.__version__, "jaxlib": metadata.version("jaxlib"),
        })
        status = _train(command, run)
    except StoppedError:
        processes.part()
        raise
    except Exception as error:
        known = processes.loss(error)
        losses.abandon(None if isinstance(known, LossError) else _explain(known)[0])
        raise known from error
    processes.part()
    return status


def _train(command: Run, run: ModuleType) -> int:
    """Starts a run, or resumes one."""
    if command.resume is not None:
        allowed = ("resume", "force", "rounds", "profile", "log", "devices", "coordinator",
                   "processes", "process_id", "cluster", "debug")
        settings = {name: getattr(Run(), name) for name in allowed}
        if dataclasses.replace(command, **settings) != Run():
            raise ConfigError(
                "--resume continues a run with its own settings. Only --rounds (the new total), "
                "--log, --profile, --devices, --force and the options for several processes can "
                "be given with it."
            )
        run.resume(
            command.resume, command.rounds, profile=command.profile, force=command.force,
            log=log_names(command.log) if command.log else None,
        )
        return 0
    if command.force and command.devices is None:
        raise ConfigError(
            "--force needs --resume (continue although the code has changed) or --devices (use "
            "more devices than there are cores)."
        )
    require_out(command.out, overwrite=command.overwrite)
    settings = _settings(command)
    resolved = config.resolve(
        task=command.task, algorithm=command.algorithm, preset=command.preset,
        config_file=command.config, settings=settings,
    )
    for line in config.changed_since(command.config, resolved) if command.config else ():
        print(line)
    run.start(
        resolved, command.out, profile=command.profile, overwrite=command.overwrite,
        fit_cohort=command.config is None and not gives("cohort_size", settings),
    )
    return 0


def _settings(command: Run) -> dict[str, Any]:
    """The settings that are given by --set, or have an option of their own."""
    # A --set without a word reaches the parser of settings as an empty word, and is refused.
    return parse_settings([word for words in command.set for word in words or ("",)], {
        "--rounds": command.rounds, "--cohort-size": command.cohort_size, "--seed": command.seed,
        "--log": command.log or None,
    })


def _use_cores(count: int | None, *, forced: bool = False) -> None:
    """The CPU's cores as devices; left as they are if the user has set them or JAX is in use."""
    cores = usable_cores()
    if count is not None and count > cores and not forced:
        raise ConfigError(
            f"--devices is {count}, but only {so_many(cores, 'core')} can be used; more devices "
            "than cores slow training down. Add --force to use them anyway."
        )
    asked = jax.config.jax_num_cpu_devices  # pyright: ignore[reportAttributeAccessIssue]
    chosen = asked != -1 or "device_count" in os.environ.get("XLA_FLAGS", "")
    if count is None and chosen:
        return
    try:
        cores_as_devices(count)
    except (RuntimeError, ValueError) as error:
        if count is not None:
            raise ConfigError(str(error)) from None


def _sweep(command: Sweep) -> int:
    from fedax.cli import sweeps  # noqa: PLC0415 - likewise

    keep_programs()
    _use_cores(None)
    sweeps.sweep(command)
    return 0


def _list(command: List) -> int:
    rows = catalogue.rows(command.what, command.name, settings=command.settings)
    if command.json:
        terminal.print_json(rows)
    else:
        catalogue.print_table(command.what, rows)
    return 0


def _data(command: Data) -> int:
    from fedax.cli import data, data_partitions  # noqa: PLC0415 - only this command

    asked = command.command
    if isinstance(asked, DataGet):
        data.get(asked.name, asked.via, asked.source)
    elif isinstance(asked, DataCheck):
        data.check(asked.path, as_json=asked.json)
    elif isinstance(asked, DataDescribe):
        data_partitions.describe(asked)
    else:
        data_partitions.partition(asked)
    return 0


def _report(command: Report) -> int:
    from fedax.cli import reports  # noqa: PLC0415 - only this command

    reports.report(command)
    return 0


def _table(command: Table) -> int:
    from fedax.cli import tables  # noqa: PLC0415 - likewise

    tables.write_table(command)
    return 0


def _plot(command: Plot) -> int:
    from fedax.cli import plots  # noqa: PLC0415 - only this command, and Matplotlib is slow

    plots.plot(command)
    return 0


def _reproduce(command: Reproduce) -> int:
    from fedax.cli import reproductions  # noqa: PLC0415 - likewise

    if command.list:
        return _list(List("reproductions", json=command.json))
    reproductions.reproduce(command)
    return 0


def _theory(command: Theory) -> int:
    from fedax.report import theory_picture, theory_tables  # noqa: PLC0415 - only this command
    from fedax.theory import question as questions  # noqa: PLC0415 - draws and solves

    if command.run is not None:
        return _advise(command)
    if command.picture is not None:
        require_format(command.picture)
    given = {name: getattr(command, name) for name in questions.NUMBERS}
    with np.errstate(all="ignore"):  # what overflows is said in words, or shown as infinite
        population = questions.clients_from(
            command.file,
            {name: value for name, value in given.items() if value not in (None, ())},
            {name: getattr(command, name) for name in questions.EXAMPLES},
        )
        question = questions.ask(
            population, command.gamma, command.local_steps,
            accuracy=command.accuracy, start=command.start, batch_size=command.batch_size,
        )
        tables = theory_tables.theory_tables(question)
        (print_json if command.json else print_tables)(tables)
        if command.picture is not None:
            path = save_picture(
                lambda figure: theory_picture.draw_theory(figure, question), command.picture
            )
            if not command.json:
                print(f"Picture: {path}")
    return 0


def _privacy(command: Privacy) -> int:
    from fedax.cli import privacy  # noqa: PLC0415 - only this command

    privacy.privacy(command)
    return 0


def _complete(command: Completion) -> int:
    from fedax.cli import completion  # noqa: PLC0415 - only this command

    print(completion.script(command.shell), end="")
    return 0


def _advise(command: Theory) -> int:
    from fedax.experiment.advice import advice_tables, run_advice  # noqa: PLC0415 - likewise

    if dataclasses.replace(command, run=None, seed=None, json=False, debug=False) != Theory():
        raise ConfigError(
            "--run uses the gamma and K of that run. Only --seed, for the sample of clients, and "
            "--json can be given with it."
        )
    try:
        check_count("seed", command.seed or 0, at_least=0)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    folder = command.run or Path()
    advice = run_advice(folder, seed=command.seed or 0)
    (print_json if command.json else print_tables)(advice_tables(advice))
    return 0


def _explain(error: Exception) -> tuple[str, int]:
    """An error's sentence and exit status; a sentence of our own where we know what it means."""
    if isinstance(error, ConfigError | PlaceError | TheoryError):
        return str(error), 2
    if isinstance(error, Told):  # a sentence that says what was wrong and what to do
        return str(error), 1
    return _unexpected(error), 1


def _unexpected(error: Exception) -> str:
    """The message for an unexpected error."""
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return (
            f"Out of memory: {error}. Lower clients_per_chunk or batch_size, or start a sweep "
            "with a smaller --settings-per-batch."
        )
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"Cannot write the output: {error.strerror}."
    forbidden = [meant for said, meant in FORBIDDEN.items() if re.search(said, str(error))]
    cause = forbidden[0] if forbidden else _missing_devices()
    if cause is not None:
        return cause
    words = sentence(error) if line_of(error) is not None else in_callback(error)
    if words is not None:
        return f"Your code failed: {words} (--debug shows the traceback.)"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"Cannot read or write {error.filename}: {error.strerror}."
    kind = type(error).__name__
    return (
        f"Internal error, a bug in fedax: {kind}: {error} (--debug shows the traceback; please "
        "report it)."
    )


def _missing_devices() -> str | None:
    """The sentence for a machine without the devices that JAX was told to take, if so it is."""
    try:
        jax.devices()
    except Exception as error:  # where the platform is missing, JAX fails in several ways
        asked = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue]
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        return (
            f"JAX cannot use the platform {asked!r}: {why}. Unset JAX_PLATFORMS, or set it to cpu."
        )
    return None


def _fail(message: str, status: int) -> int:
    if _others_may_speak():
        ending.leave(message, status)
    print("fedax: " + " ".join(message.split()), file=sys.stderr)
    return status
