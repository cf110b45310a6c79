"""`fedax privacy`: the guarantee of a run, or one of rounds, noise and epsilon from the others."""

from __future__ import annotations

import math
from typing import Any

from fedax.cli.commands import Privacy
from fedax.devices import terminal
from fedax.experiment.errors import ConfigError
from fedax.experiment.metrics import read_rounds
from fedax.experiment.run import read_run
from fedax.privacy.accounting import (
    MOST_ROUNDS,
    check_cohort,
    checked_delta,
    epsilon,
    noise_multiplier,
    num_rounds,
)
from fedax.privacy.library import PrivacyError
from fedax.rounds.budget import ADJACENCY, in_words, mechanism_of, sampling_in_words


def privacy(command: Privacy) -> None:
    """Prints what the command asks for."""
    try:
        found = _of_run(command) if command.run is not None else _computed(command)
    except PrivacyError:
        raise
    except ValueError as error:  # of a number out of its range
        raise ConfigError(str(error)) from None
    if command.json:
        terminal.print_json(found)
        return
    print(f"Privacy: {in_words(found)}")
    if command.rounds is None and found["num_rounds"] == MOST_ROUNDS:
        print("More rounds may be possible; that is as far as fedax computes.")
    for name, value in found.items():
        if value is not None:
            print(f"{name.replace('_', ' '):<22}{_short(value)}")


def _of_run(command: Privacy) -> dict[str, Any]:
    """The guarantee of a run's rounds so far."""
    if Privacy(run=command.run, json=command.json, debug=command.debug) != command:
        raise ConfigError(
            "A run folder has its own clients, rounds and noise. Only --json can be given with it."
        )
    assert command.run is not None
    config, built, restored = read_run(command.run)
    mechanism = mechanism_of(
        built.algorithm, built.task.train.num_clients, config.sampling, config.cohort_size
    )
    if mechanism is None:
        raise ConfigError(
            f"The run in {command.run} is of {config.algorithm}, which is not private. Train "
            f"private+{config.algorithm} for a guarantee."
        )
    # Rounds after the last checkpoint have told something, too.
    told = [metrics["round"] for metrics in read_rounds(command.run)[-1:]]
    return mechanism.guarantee(max([int(restored.state.server_state.round_index), *told]))


def _computed(command: Privacy) -> dict[str, Any]:
    """All numbers of a guarantee, one of which is computed from the others."""
    clients, cohort_size, bands = command.clients, command.cohort_size, command.bands
    if clients is None or cohort_size is None:
        raise ConfigError(
            "Give a run folder, or the population: --clients N --cohort-size N, and two of "
            "--rounds, --noise-multiplier and --epsilon."
        )
    numbers = {
        "rounds": command.rounds, "noise_multiplier": command.noise_multiplier,
        "epsilon": command.epsilon,
    }
    missing = [name for name, value in numbers.items() if value is None]
    if len(missing) != 1:
        given = ", ".join(f"--{name}" for name in numbers if name not in missing) or "none"
        raise ConfigError(
            "Give two of --rounds, --noise-multiplier and --epsilon; the third is computed. Given: "
            f"{given.replace('_', '-')}."
        )
    delta = checked_delta(command.delta, clients)
    try:
        check_cohort(cohort_size, clients, bands)
    except PrivacyError as error:
        raise ConfigError(str(error)) from None
    who: Any = {
        "cohort_size": cohort_size, "num_clients": clients, "delta": delta, "bands": bands,
    }
    rounds, noise, target = command.rounds, command.noise_multiplier, command.epsilon
    if rounds is None:
        rounds = num_rounds(_given(target), _given(noise), **who)
    elif noise is None:
        noise = noise_multiplier(_given(target), rounds, **who)
    noise = _given(noise)
    reached = epsilon(noise, rounds, **who)
    return {
        "epsilon": reached if math.isfinite(reached) else None, "delta": delta,
        "noise_multiplier": noise, "num_rounds": rounds,
        "num_clients": clients, "cohort_size": cohort_size, "bands": bands,
        "sampling": sampling_in_words(cohort_size, clients, bands), "adjacency": ADJACENCY,
    }


def _given(value: float | None) -> float:
    assert value is not None
    return value


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
