"""Sweeps from Python."""

from __future__ import annotations

import hashlib
import inspect
import json
import signal
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import jax

from fedax.algorithm import FederatedAlgorithm
from fedax.data.describing import Describer, describe_task, digest
from fedax.data.task import Task
from fedax.experiment.build import algorithm_settings, build_algorithm
from fedax.experiment.folder import CONFIG, RunError, explained, locked, new_folder, read_summary
from fedax.factories import written as call_of
from fedax.mistakes.algorithm import require_algorithm
from fedax.outside.paths import expanded
from fedax.rounds.checks import require_task
from fedax.rounds.measurements import rehearse
from fedax.rounds.options import Settings, SimulateOptions
from fedax.signatures import with_options
from fedax.sinks import log_record, require_libraries, sink_names
from fedax.sweeps.choosing import Choice, Rule, default_rule, require_choosable
from fedax.sweeps.choosing import choose as best_of
from fedax.sweeps.closing import closing_words
from fedax.sweeps.grid import different, require_grid, settings_of
from fedax.sweeps.planning import Entry, groups, plan
from fedax.sweeps.record import Record, Setting
from fedax.tuning.folder import (
    halving_of,
    read_record,
    read_sweep_config,
    units_of,
    write_sweep_config,
)
from fedax.validate import (
    check_count,
    check_seed,
    options_checked,
    plain,
    quoted,
    require_out,
    unknown,
    unknown_option,
)

Method = str | Callable[..., FederatedAlgorithm]
# Options of `simulate` that a sweep decides itself, or does not have.
NOT_TAKEN = ("seed", "state", "state_every", "donate", "mesh", "personalize_steps",
             "personalize_epochs", "personalize_learning_rate", "personalize_clients")


class SweepResult(NamedTuple):
    """The result of `sweep`.

    Attributes:
      record: every round of every run.
      choice: the settings ranked by their scores.
    """

    record: Record
    choice: Choice

    def best(self, algorithm: str | None = None) -> Setting | None:
        """The best setting of a method; None if all its settings diverged.

        Args:
          algorithm: the method; None: the only one.

        Raises:
          ValueError: if the method is unknown, or there are several and none is given.
        """
        methods = self.choice.methods
        if algorithm is None and len(methods) > 1:
            raise ValueError(f"The sweep has several methods; choose one: {', '.join(methods)}.")
        name = algorithm or next(iter(methods))
        if name not in methods:
            raise ValueError(unknown("method of the sweep", name, methods))
        number = methods[name].best
        return None if number is None else self.record.settings[number]

    def __repr__(self) -> str:
        head = (
            f"SweepResult({len(self.record.settings)} settings, {len(self.record.setting)} runs of "
            f"{self.record.num_rounds} rounds)"
        )
        return "\n  ".join([head, *closing_words(self.record, self.choice)])


@options_checked
@with_options
def sweep(
    task: Task | Mapping[str, Task],
    algorithms: Method | Sequence[str] | Mapping[str, Method],
    grid: Mapping[str, Any],
    *,
    num_rounds: int,
    seeds: int | Sequence[int] = 1,
    choose: Rule | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    settings_per_batch: int | None = None,
    halving: int | None = None,
    progress: bool = True,
    log: Sequence[str] = (),
    **options: Unpack[SimulateOptions],
) -> SweepResult:
    """Trains every setting of a grid with every seed, and finds the best one.

    Settings that differ only in numbers are compiled once and trained side by side; with the same
    seed they share their cohorts. Anything else (a method, a batch size, a model) makes a program
    of its own within the same sweep. A setting that diverges stops and stays in the table. Each
    run has the same result as `fedax.train` with its setting and seed, up to rounding.

    Args:
      task: model and data; or a dictionary of tasks by name, selected by `task` in the grid.
      algorithms: one method, a list, or a dictionary of methods by name. A method is a name from
        `fedax list algorithms`, or a function of the hyperparameters that returns an algorithm; a
        parameter `model` receives the task's model.
      grid: hyperparameter -> its values, for every method that has it; "METHOD.NAME" for one
        method. A single value is fixed. Values that are not numbers or text, such as schedules,
        appear in the results as the call that made them, such as
        "exponential_decay(initial_value=0.5, decay_rate=0.9)".
      num_rounds: number of rounds of every run, T >= 0.
      seeds: number of seeds, counted from 0, or a list of seeds.
      choose: rule that selects the best setting, see `fedax.sweeps.choosing.choose`. None: the
        validation loss if the task has validation data, otherwise "train_loss".
      out: a sweep folder. The same call again continues an interrupted sweep.
      overwrite: whether to delete the run or sweep in the folder first.
      settings_per_batch: number of settings that a device computes side by side; None: chosen by
        platform and model size.
      halving: successive halving: all settings run for a few rounds, the best one in `halving` of
        each method for that many times as many, and so on, see `fedax.tuning.halving`. None: all
        settings run to the end.
      progress: whether to show a progress bar in a terminal or a notebook.
      log: with `out`, formats and services to which every run is written at the end:
        "tensorboard", "mlflow", "wandb", "csv", "parquet" (docs/guides/logging.md).
      **options: see `SimulateOptions`, except `seed`, `state`, `state_every`, `donate`, `mesh` and
        fine-tuning. Settings are spread over all devices of this process.

    Raises:
      TypeError, ValueError: if an argument is wrong; the message quotes it.
      RunError: if the folder contains a different sweep, or cannot be used.
      SinkError: if the library of a sink in log is not installed.
      KeyboardInterrupt: on Ctrl-C; with `out`, finished work is saved.

    Example:
      >>> import fedax
      >>> task = fedax.load_task("quadratics")
      >>> result = fedax.sweep(
      ...     task, fedax.fedavg, {"client_learning_rate": [0.001, 0.1, 1e9]}, num_rounds=12)
      >>> dict(result.best().values), (result.record.diverged > 0).tolist()
      ({'client_learning_rate': 0.1}, [False, False, True])
    """
    from fedax.experiment.display import (  # noqa: PLC0415 - rich is slow to import
        make_console,
        style_of_python,
    )
    from fedax.tuning.halving import halved  # noqa: PLC0415 - likewise
    from fedax.tuning.sitting import Work, sit  # noqa: PLC0415 - likewise

    names = sink_names(log)
    require_libraries(names)
    if names and out is None:
        raise ValueError(f"log={quoted(log)} needs a sweep folder: pass out= as well.")
    require_out(out, overwrite=overwrite)
    num_rounds, seeds = plain(num_rounds), plain(seeds)
    settings_per_batch, halving = plain(settings_per_batch), plain(halving)
    call = _call(task, algorithms, grid, num_rounds, seeds, choose, halving, options)
    choose = call.rule
    units = plan(
        call.entries, call.seeds, jax.local_device_count(), settings_per_batch
    )
    by_halves = None if halving is None else halved(halving, settings_per_batch, call.settings)
    style = style_of_python(make_console(), progress)
    if out is None:
        work = Work(call.settings, call.entries, units, num_rounds, choose, "",
                    "pass out= to save finished runs.", call.seeds, by_halves)
        return SweepResult(*_as_python(lambda: sit(work, None, style)))
    folder = expanded(out)
    go_on = f"call fedax.sweep again with the same arguments and out={str(folder)!r} to continue."
    begun, same_rule = not overwrite and (folder / CONFIG).exists(), False
    mine = locked(folder, go_on) if begun else new_folder(
        folder, "out=", go_on, overwrite=overwrite
    )
    with mine:
        if begun:
            written = read_sweep_config(folder)
            if written["identity"] != call.identity:
                raise RunError(
                    f"{folder} holds a different sweep. Choose another out=, start again with "
                    "overwrite=True, or repeat the call recorded in its config.json."
                )
            units, by_halves = units_of(written), halving_of(written)
            same_rule = isinstance(choose, str) and written["choose"] == choose
        record = read_record(folder, call.settings) if same_rule else None
        if record is not None and read_summary(folder) is not None:
            result = SweepResult(record, best_of(record, choose))
        else:
            if not same_rule:
                with explained(folder, go_on):
                    (folder / "summary.json").unlink(missing_ok=True)
                    write_sweep_config(
                        folder, {**call.config, "halving": by_halves}, units, call.settings
                    )
            work = Work(
                call.settings, call.entries, units, num_rounds, choose, call.identity, go_on,
                call.seeds, by_halves,
            )
            result = SweepResult(*_as_python(lambda: sit(work, folder, style)))
        log_record(names, folder, lambda *run: _logged(call.config, *run), result.record, _warn)
        return result


class _Call(NamedTuple):
    """What `sweep` was called with, checked."""

    settings: list[Setting]
    entries: list[Entry]
    seeds: list[int]
    config: dict[str, Any]
    identity: str
    rule: Rule


def _call(
    task: Task | Mapping[str, Task], algorithms: Method | Sequence[str] | Mapping[str, Method],
    grid: Mapping[str, Any], num_rounds: int, seeds: int | Sequence[int], rule: Rule | None,
    halving: int | None, options: SimulateOptions,
) -> _Call:
    for name in NOT_TAKEN:
        if name in options:
            raise TypeError(f"fedax.sweep does not take {name}: {_instead(name)}")
    tasks = dict(task) if isinstance(task, Mapping) else {"": task}
    for one in tasks.values():
        require_task(one)
    num_clients = min(one.train.num_clients for one in tasks.values())
    run_options = Settings.checked(num_rounds, options, num_clients)
    run_options = run_options._replace(state_every=max(num_rounds, 1))
    if rule is None:
        rule = default_rule(tasks.values(), evaluates=run_options.evaluate_every != 0)
    methods = _methods(algorithms)
    numbers = _seeds(seeds)
    grids = _grids(grid, methods, tasks)
    varied = {
        name: {key: values for key, values in own.items() if isinstance(values, list)}
        for name, own in grids.items()
    }
    settings = settings_of({
        name: {key: _in_words(values) for key, values in own.items()}
        for name, own in varied.items()
    })
    fixed = {
        name: {key: value for key, value in own.items() if not isinstance(value, list)}
        for name, own in grids.items()
    }
    entries = []
    for setting in settings_of(varied):
        values = {**fixed[setting.algorithm], **setting.values}
        which = tasks[values.pop("task", next(iter(tasks)))]
        algorithm = _made(methods[setting.algorithm], values, which)
        require_algorithm(algorithm)
        entries.append(Entry(which, algorithm, lambda seed: run_options._replace(seed=seed)))
    for group in groups(entries):
        which, algorithm = entries[group.settings[0]][:2]
        require_choosable(
            rule, which, algorithm, evaluates=run_options.evaluate_every != 0,
            reported=rehearse(which, algorithm).reported, gives_up=halving is not None,
        )
    describe = Describer()
    tested = rule if isinstance(rule, str) else describe(rule)
    config = {
        "task": ",".join(filter(None, tasks)) or next(iter(tasks.values())).name,
        "algorithm": ",".join(methods), "algorithms": list(methods), "preset": "none",
        "num_rounds": num_rounds, "seeds": numbers,
        "choose": tested if isinstance(tested, str) else getattr(rule, "__name__", "function"),
        "grid": {
            name: {key: _in_words(values if isinstance(values, list) else [values])
                   for key, values in own.items()}
            for name, own in grids.items()
        },
        "cohort_size": run_options.cohort_size, "evaluate_every": run_options.evaluate_every,
        "evaluation_sample": run_options.evaluation_sample, "halving": halving,
        "python": {
            "tasks": [describe_task(one) for one in tasks.values()],
            "methods": digest([describe(entry.algorithm) for entry in entries]),
            "options": describe(dict(options)),
        },
    }
    config = json.loads(json.dumps(config, default=repr))
    # Another rule chooses anew among the same runs, unless it decided which runs there are.
    fixed = {key: value for key, value in config.items() if key != "choose" or halving is not None}
    identity = hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()
    return _Call(settings, entries, numbers, {**config, "identity": identity}, identity, rule)


def _methods(algorithms: Method | Sequence[str] | Mapping[str, Method]) -> dict[str, Method]:
    """The methods by name."""
    found: dict[str, Method]
    if isinstance(algorithms, Mapping):
        found = dict(algorithms)
    elif isinstance(algorithms, str):
        found = {algorithms: algorithms}
    elif callable(algorithms):
        found = {getattr(algorithms, "__name__", "method"): algorithms}
    elif isinstance(algorithms, Sequence) and not isinstance(algorithms, FederatedAlgorithm):
        found = {str(name): name for name in algorithms}
    else:
        raise TypeError(
            "algorithms must be a function that makes a method, such as fedax.fedavg, a list of "
            f"names or a dictionary of such by name, but is {quoted(algorithms)}."
        )
    for name, method in found.items():
        if isinstance(method, FederatedAlgorithm) or not (
            callable(method) or isinstance(method, str)
        ):
            raise TypeError(
                f"The method {name} must be a name or a function of the hyperparameters that "
                f"returns an algorithm, such as fedax.fedavg, but is {quoted(method)}."
            )
    if not found:
        raise ValueError("A sweep needs a method, such as fedax.fedavg.")
    return found


def _parameters(method: Method) -> list[str] | None:
    """The hyperparameters that a method has; None if any name will do."""
    if isinstance(method, str):
        return list(algorithm_settings(method))
    parameters = inspect.signature(method).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return None
    return [name for name in parameters if name != "model"]


def _grids(
    grid: Mapping[str, Any], methods: Mapping[str, Method], tasks: Mapping[str, Task]
) -> dict[str, dict[str, Any]]:
    """Method -> hyperparameter -> a list of values, or a fixed one."""
    require_grid(grid)
    found: dict[str, dict[str, Any]] = {name: {} for name in methods}
    has = {name: _parameters(method) for name, method in methods.items()}
    for word, given in grid.items():
        method, dot, key = word.rpartition(".")
        if dot and method not in methods:
            raise ValueError(unknown("method of the sweep", method, methods))
        if key == "task":
            fits = list(methods)
        else:
            fits = [name for name in methods if (not dot or name == method)
                    and ((known := has[name]) is None or key in known)]
        if not fits:
            known = dict.fromkeys(key for keys in has.values() for key in keys or ())
            raise ValueError(unknown_option("hyperparameter", key, known))
        values = _values(word, given, tasks if key == "task" else None)
        for name in fits:
            if dot or key not in found[name]:
                found[name][key] = values
    return found


def _values(key: str, given: Any, tasks: Mapping[str, Task] | None) -> Any:
    """The values of a hyperparameter as a list; one alone as it is."""
    given = _plain(given)
    if not isinstance(given, list | tuple | range):
        return given
    values = [_plain(value) for value in given]
    if not values:
        raise ValueError(f"The grid of {key} is empty.")
    if len(different(values)) < len(values):
        raise ValueError(f"The grid of {key} has a value twice: {values}.")
    if tasks is not None:
        for value in values:
            if value not in tasks:
                raise ValueError(unknown("task of the sweep", value, tasks))
    return values


def _plain(value: Any) -> Any:
    """Numbers of NumPy and JAX as Python's."""
    return value.tolist() if hasattr(value, "tolist") else value


def _in_words(values: Sequence[Any]) -> list[Any]:
    """The values as tables and files have them: of objects the call that made them, or a number."""
    return [
        value if value is None or isinstance(value, bool | int | float | str)
        else str(value) if type(value) in (list, tuple)
        else call_of(value) or f"{type(value).__name__} {number}"
        for number, value in enumerate(values, 1)
    ]


def _made(method: Method, values: dict[str, Any], task: Task) -> FederatedAlgorithm:
    if isinstance(method, str):
        return build_algorithm(method, values, task.model)
    takes_model = "model" in inspect.signature(method).parameters
    return method(task.model, **values) if takes_model else method(**values)


def _seeds(seeds: int | Sequence[int]) -> list[int]:
    seeds = _plain(seeds)
    if not isinstance(seeds, Sequence):
        check_count("seeds", seeds)
        return list(range(seeds))
    numbers = [_plain(seed) for seed in seeds]
    for seed in numbers:
        check_seed(seed)
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(f"seeds must be different numbers, at least one, but are {numbers}.")
    return numbers


def _instead(name: str) -> str:
    if name == "seed":
        return "give seeds=, a number or a list."
    if name == "mesh":
        return "its settings are spread over all devices."
    return "run the best setting with fedax.train for that."


def _logged(config: Mapping[str, Any], setting: Setting, seed: int) -> dict[str, Any]:
    """What a sink is told of a run."""
    shared = ("task", "num_rounds", "cohort_size", "evaluate_every", "evaluation_sample")
    fixed = {name: values[0] for name, values in config["grid"][setting.algorithm].items()}
    return {name: config[name] for name in shared} | {
        "algorithm": setting.algorithm, "seed": seed,
        "algorithm_options": {**fixed, **setting.values},
    }


def _warn(sentence: str) -> None:
    warnings.warn(sentence, RuntimeWarning, stacklevel=6)


def _as_python(sat: Callable[[], tuple[Record, Choice]]) -> tuple[Record, Choice]:
    """Tells of a signal as Python does."""
    from fedax.tuning.training import SweepStopped  # noqa: PLC0415 - rich is slow to import

    try:
        return sat()
    except SweepStopped as stopped:
        kind = KeyboardInterrupt if stopped.by == signal.SIGINT else SystemExit
        raise kind(str(stopped)) from None
