"""Searches that the command line describes: begun and gone on with.

The folder is a sweep's: its table, its best settings, its summary and its page are those of the
trials. What is searched stands under `search` in its config.json.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedax.algorithm import FederatedAlgorithm
from fedax.data.file_names import file_name
from fedax.data.task import Task
from fedax.experiment import trust
from fedax.experiment.build import find_algorithm, find_task
from fedax.experiment.config import RunConfig, with_settings
from fedax.experiment.differing import record_of_tasks
from fedax.experiment.errors import ConfigError
from fedax.experiment.folder import (
    CONFIG,
    SWEEP,
    TASKS,
    explained,
    for_shell,
    locked,
    new_folder,
    read_config,
    write_json,
)
from fedax.experiment.run import (
    build_data,
    build_method,
    fitted_cohort,
    simulate_options,
)
from fedax.experiment.versions import versions
from fedax.files.regular import write_atomically
from fedax.rounds.options import Settings
from fedax.sweeps.choosing import PAPER_RULE, Choice, choose, without_edges
from fedax.sweeps.record import Record, Setting
from fedax.tuning.best import as_toml
from fedax.tuning.building import built, smaller_cohorts
from fedax.tuning.checking import check_search_config
from fedax.tuning.command import require_rule, unused_folder
from fedax.tuning.config import SweepConfig, sweep_config
from fedax.tuning.folder import (
    BEST,
    damaged,
    read_methods,
    read_sweep_config,
    settings_of,
    write_methods,
    write_record,
    write_results,
    write_summary,
)
from fedax.tuning.grids import method_of, of_methods
from fedax.tuning.page import write_page
from fedax.tuning.searching import Plan, check_search, require_optuna, run_search, trials_of

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

Space = Mapping[str, "BaseDistribution"]


class SearchConfig(NamedTuple):
    """Everything that a search does.

    Attributes:
      words: the ranges, as they were written.
      spaces: method -> hyperparameter -> its range.
      sweep: the methods with the ends of the ranges as a grid, which says that they are possible.
      num_trials: of each method.
      sampler, pruner: names.
      batch_size: the number of trials that are trained side by side.
      storage: a URL; None: SQLite in the folder.
    """

    words: Sequence[str]
    spaces: Mapping[str, Space]
    sweep: SweepConfig
    num_trials: int
    sampler: str
    pruner: str
    batch_size: int
    storage: str | None


class Found(NamedTuple):
    """What a search came to: its folder, its trials, and the study of each method."""

    folder: Path
    config: SearchConfig
    record: Record
    choice: Choice | None
    studies: Mapping[str, optuna.Study]


def search_config(
    task: str,
    algorithms: Sequence[str],
    words: Sequence[str],
    *,
    num_trials: int = 50,
    sampler: str = "tpe",
    pruner: str = "none",
    batch_size: int = 8,
    storage: str | None = None,
    **sweep: Any,
) -> SearchConfig:
    """The configuration of a search.

    Args:
      task, algorithms: names, or where a user's own are.
      words: KEY=RANGE, see `fedax.tuning.space.parse_space`; METHOD.KEY=RANGE for one method.
      num_trials, sampler, pruner, batch_size, storage: see `SearchConfig`.
      **sweep: preset, settings, num_seeds and choose, see `sweep_config`.

    Raises:
      ConfigError: if a name, a range or a value is wrong; the message quotes it.
      RunError: Optuna is not installed.
    """
    check_search(sampler, pruner, num_trials, batch_size, sweep.get("choose") or PAPER_RULE)
    from fedax.tuning.space import ends, parse_space  # noqa: PLC0415 - optional, slow to import

    space = parse_space(words)
    task_name, task_source = find_task(task)
    methods = []
    for text in algorithms:
        name, source = find_algorithm(text)
        methods.append(method_of(name, text, source, task_name, task_source))
    spaces = of_methods(space, methods, "--search")
    for name, own in spaces.items():
        if not own:
            raise ConfigError(
                f"--search has no range of a setting of {name}. Add one, or leave the method out."
            )
    try:
        config = sweep_config(
            task, algorithms, {key: ends(of) for key, of in space.items()}, **sweep
        )
    except ConfigError as error:
        raise ConfigError(str(error).replace("--grid", "--search")) from None
    return SearchConfig(
        tuple(words), spaces, config, num_trials, sampler, pruner, batch_size, storage
    )


def start_search(
    config: SearchConfig, out: Path | None = None, say: Callable[[str], None] = print, *,
    fit_cohort: bool = False, overwrite: bool = False,
) -> Found:
    """Runs a search in a new folder.

    Args:
      config: what to run.
      out: the folder, created; None makes one under fedax-runs/.
      say: is given the sentences on how it goes.
      fit_cohort, overwrite: see `fedax.experiment.run.start`.

    Raises:
      ConfigError, RunError: if a value is wrong, the folder or the storage cannot be used, or the
        search was stopped.
    """
    # What cannot be trained is said before anything is made.
    sweep, found = fitted_cohort(config.sweep, built, smaller_cohorts) if fit_cohort else (
        config.sweep, built(config.sweep)
    )
    config = config._replace(sweep=sweep.ruled(one.task for one in found))
    folder = out or unused_folder(config.sweep)
    with new_folder(folder, go_on=_go_on(folder), overwrite=overwrite):
        with explained(folder, _go_on(folder)):
            write_methods(folder, list(config.sweep.bases.values()))
            _write_config(folder, config, [], _typed(config.storage))
        return _searched(folder, config, say)


def resume_search(
    folder: Path, num_trials: int | None = None, storage: str | None = None,
    say: Callable[[str], None] = print,
) -> Found:
    """Continues a search where it stopped, optionally to more trials.

    Args:
      folder: of `start_search`.
      num_trials: a new total; None keeps it.
      storage: where the study is, if the URL has a password, which the folder does not keep.
      say: called with lines of progress.

    Raises:
      ConfigError, RunError: as for `start_search`, or it is no search's folder, or damaged.
    """
    require_optuna()
    written = read_sweep_config(folder)
    config, asked = _read(folder, written), written["search"]
    if storage is None and asked["storage_has_password"]:
        raise ConfigError(
            f"The study of {folder} is in a database with a password, which is not saved. Give it "
            "again: --storage URL"
        )
    place = asked["storage"]
    own = trust.is_own(_signed(place, written.get("made_by", {})))
    if storage is None and place is not None and not own:
        raise ConfigError(
            f"{folder / CONFIG} refers to a study outside the folder, {place}, but was not written "
            "by your fedax on this machine, or was changed since. If you trust that database, "
            "give it yourself: --storage URL"
        )
    if num_trials is not None:
        config = config._replace(num_trials=num_trials)
    config = config._replace(storage=storage or config.storage)
    check_search(
        config.sampler, config.pruner, config.num_trials, config.batch_size, config.sweep.choose
    )
    with locked(folder, _go_on(folder)):
        if num_trials is not None:
            with explained(folder, _go_on(folder)):
                _write_config(folder, config, settings_of(written), written.get("command"))
        return _searched(folder, config, say)


def _signed(storage: str | None, made_by: Mapping[str, Any]) -> dict[str, Any]:
    """What is signed of a search: where its study is, and who wrote it."""
    return {"storage": storage, "made_by": made_by}


def is_search(folder: Path) -> bool:
    """Whether a folder is a search's."""
    return "search" in read_config(folder)


def _read(folder: Path, written: Mapping[str, Any]) -> SearchConfig:
    """The configuration that a folder has."""
    from fedax.tuning.space import ends, space_from_json  # noqa: PLC0415 - slow to import

    try:
        check_search_config(written)
        asked = written["search"]
        spaces = {name: space_from_json(own) for name, own in asked["spaces"].items()}
    except ValueError as error:
        raise damaged(folder, error) from None
    bases = read_methods(folder, list(spaces))
    for name, space in spaces.items():
        for key, of in space.items():
            for value in ends(of):
                with_settings(bases[name], {key: value})
    sweep = SweepConfig(
        {name: {} for name in spaces}, (), tuple(written["seeds"]), written["choose"], bases
    )
    require_rule(folder, sweep)
    return SearchConfig(
        tuple(asked["words"]), spaces, sweep, asked["trials"], asked["sampler"], asked["pruner"],
        asked["batch_size"], asked["storage"],
    )


def _searched(folder: Path, config: SearchConfig, say: Callable[[str], None]) -> Found:
    """Runs the remaining trials and writes the results."""
    from fedax.tuning.trials import record_of  # noqa: PLC0415 - optional, slow to import

    began = time.perf_counter()
    studies: dict[str, optuna.Study] = {}
    for name, space in config.spaces.items():
        if len(config.spaces) > 1:
            say(f"{name}:")
        studies[name] = run_search(folder, _plan(folder, config, name, space), say).study
    record = record_of({
        name: (study, trials_of(folder, name)) for name, study in studies.items()
    })
    choice = None
    with explained(folder, _go_on(folder)):
        _write_config(folder, config, record.settings, read_config(folder).get("command"))
        (folder / BEST).mkdir(exist_ok=True)
        for name, study in studies.items():
            text = _best(config, name, study)
            if text is not None:
                write_atomically(folder / BEST / file_name(f"{name}.toml"), text.encode())
        if record.settings:
            choice = without_edges(choose(record, config.sweep.choose))
            write_record(folder, record, _IDENTITY)
            write_results(folder, record, choice)
            write_summary(folder, record, choice, time.perf_counter() - began)
            write_page(folder, record, choice)
    return Found(folder, config, record, choice, studies)


def _plan(folder: Path, config: SearchConfig, algorithm: str, space: Space) -> Plan:
    """The search of one method."""
    sweep = config.sweep
    base = sweep.bases[algorithm]
    tasks: dict[str, Task] = {}

    def task_of(run: RunConfig) -> Task:
        options = repr(sorted(run.task_options.items()))
        if options not in tasks:
            tasks[options] = build_data(run)
        return tasks[options]

    def made(values: Mapping[str, Any]) -> tuple[Task, FederatedAlgorithm]:
        run = with_settings(base, values)
        return task_of(run), build_method(run, task_of(run))

    def options(values: Mapping[str, Any], seed: int) -> Settings:
        run = dataclasses.replace(with_settings(base, values), seed=seed)
        return Settings.checked(run.num_rounds, simulate_options(run))

    own = {TASKS: record_of_tasks([task_of(base)])} if base.task_source else {}
    about = {
        **own, "task": sweep.task, "cohort_size": base.cohort_size, "sampling": base.sampling,
        "availability": base.availability, "dropout": base.dropout,
        "task_options": _but(base.task_options, space),
        "fixed": _but(base.algorithm_options, space),
    }
    return Plan(
        algorithm, space, made, options, sweep.num_rounds, config.num_trials, sweep.seeds,
        sweep.choose, about, config.sampler, config.pruner, config.batch_size, config.storage,
        _go_on(folder),
    )


def _but(options: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """Without what is searched."""
    searched = {key.rpartition(".")[2] for key in space}
    return {key: value for key, value in options.items() if key not in searched}


def _best(config: SearchConfig, algorithm: str, study: optuna.Study) -> str | None:
    """The configuration of a study's best trial as TOML; None if there is none."""
    try:
        best = study.best_trial
    except ValueError:  # none was trained to its end
        return None
    if best.value is None or not math.isfinite(best.value):
        return None
    run = config.sweep.run(Setting(0, algorithm, best.params))
    return (
        f"# Best of {len(study.get_trials(deepcopy=False))} trials of {algorithm} on "
        f"{config.sweep.task}: {best.value:.6g}, by {config.sweep.choose}.\n"
        f"# Train with it: fedax run --config FILE\n\n{as_toml(run)}"
    )


# Of rounds.npz, whose parts are the trials' files.
_IDENTITY = "search"


def _write_config(
    folder: Path, config: SearchConfig, settings: Sequence[Setting], command: str | None
) -> None:
    from optuna.distributions import distribution_to_json  # noqa: PLC0415 - slow to import

    sweep = config.sweep
    first = next(iter(sweep.bases.values()))
    secret = _has_password(config.storage)
    place = None if secret else config.storage
    made_by = versions() | (
        {} if place is None else {"signature": trust.signature(_signed(place, {}))}
    )
    write_json(folder / CONFIG, {
        "kind": SWEEP, "task": sweep.task, "algorithm": ",".join(config.spaces),
        "algorithms": list(config.spaces), "preset": first.preset, "num_rounds": sweep.num_rounds,
        "seeds": list(sweep.seeds), "choose": sweep.choose,
        "grid": {name: {} for name in config.spaces}, "cohort_size": first.cohort_size,
        "evaluate_every": first.evaluate_every, "evaluation_sample": first.evaluation_sample,
        "command": command, "identity": _IDENTITY,
        "search": {
            "words": list(config.words), "trials": config.num_trials, "sampler": config.sampler,
            "pruner": config.pruner, "batch_size": config.batch_size,
            "storage": place, "storage_has_password": secret,
            "spaces": {
                name: {key: distribution_to_json(of) for key, of in space.items()}
                for name, space in config.spaces.items()
            },
        },
        "settings": [[setting.algorithm, dict(setting.values)] for setting in settings],
        "units": [], "made_by": made_by,
    })


def _has_password(storage: str | None) -> bool:
    from sqlalchemy.engine import make_url  # noqa: PLC0415 - optional, slow to import
    from sqlalchemy.exc import ArgumentError  # noqa: PLC0415

    try:
        return storage is not None and bool(make_url(storage).password)
    except ArgumentError:  # it is said when it is opened
        return False


def _go_on(folder: Path) -> str:
    return f"Continue with: fedax sweep --resume {for_shell(folder)}"


def _typed(storage: str | None) -> str:
    """The command line of this process, for the page; a password is left out."""
    words = ["URL" if word == storage and _has_password(word) else word for word in sys.argv[1:]]
    return "fedax " + " ".join(for_shell(word) for word in words)
