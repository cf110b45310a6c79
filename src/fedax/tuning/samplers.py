"""Optuna's samplers and pruners by name."""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import optuna
from optuna import pruners, samplers
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler

from fedax.experiment.errors import ConfigError
from fedax.experiment.folder import RunError
from fedax.validate import check_choice


class SamplerKind(NamedTuple):
    """A sampler by name.

    Attributes:
      make: (seed) -> the sampler.
      several: whether it draws well several trials at a time.
      begins_alone: whether it learns what is searched from the first trial.
      one_sequence: whether all draws are of one sequence, in the order of the trials.
      remembers: whether draws depend on earlier draws, and not only on trials that are over.
      needs: a package that it needs besides, if any.
    """

    make: Callable[[int], BaseSampler]
    several: bool = True
    begins_alone: bool = False
    one_sequence: bool = False
    remembers: bool = False
    needs: str | None = None


SAMPLERS = {
    # Trials that run are taken to be bad ones, so that those of a batch keep their distance.
    "tpe": SamplerKind(lambda seed: samplers.TPESampler(seed=seed, constant_liar=True)),
    "random": SamplerKind(lambda seed: samplers.RandomSampler(seed=seed)),
    "qmc": SamplerKind(
        lambda seed: samplers.QMCSampler(
            seed=seed, scramble=True, warn_independent_sampling=False
        ),
        begins_alone=True, one_sequence=True, remembers=True,
    ),
    "cmaes": SamplerKind(
        lambda seed: samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False),
        begins_alone=True, remembers=True, needs="cmaes",
    ),
    "gp": SamplerKind(lambda seed: samplers.GPSampler(seed=seed), several=False, needs="torch"),
}
PRUNERS = ("none", "median", "hyperband", "halving")


def check_sampler(name: str) -> None:
    """Raises an error unless there is such a sampler, and what it needs is installed.

    Raises:
      ConfigError: if there is none.
      RunError: if a package is missing.
    """
    _check("sampler", name, SAMPLERS)
    needs = SAMPLERS[name].needs
    if needs is not None and importlib.util.find_spec(needs) is None:
        raise RunError(f"The sampler {name} needs {needs}: pip install {needs}.")


def make_sampler(name: str, seed: int) -> BaseSampler:
    """A sampler by name, see `SAMPLERS`."""
    check_sampler(name)
    with quiet():
        return SAMPLERS[name].make(seed)


def batch_of(sampler: str | BaseSampler, size: int, *, first: bool) -> int:
    """How many trials to draw at a time.

    Args:
      sampler: a name, or one of Optuna's.
      size: the most.
      first: whether the study has no trial that is over.
    """
    if isinstance(sampler, str):
        kind = SAMPLERS[sampler]
        return size if kind.several and not (first and kind.begins_alone) else 1
    return 1 if isinstance(sampler, samplers.GPSampler) else size


def make_pruner(name: str, num_rounds: int, every: int) -> BasePruner | None:
    """A pruner by name, see `PRUNERS`.

    Args:
      name: which.
      num_rounds: T.
      every: rounds between reports.

    Raises:
      ConfigError: if there is none.
    """
    _check("pruner", name, PRUNERS)
    if name == "median":
        return pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=every)
    if name == "hyperband":
        return pruners.HyperbandPruner(
            min_resource=every, max_resource=num_rounds, reduction_factor=3
        )
    if name == "halving":
        return pruners.SuccessiveHalvingPruner(min_resource=every, reduction_factor=3)
    return None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without Optuna's remarks on its own progress and on what it calls experimental."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            warnings.filterwarnings("ignore", "Heartbeat of storage")  # ours is our own
            yield
    finally:
        optuna.logging.set_verbosity(before)


def _check(what: str, name: str, choices: object) -> None:
    try:
        check_choice(what, name, choices)  # pyright: ignore[reportArgumentType]
    except ValueError as error:
        raise ConfigError(str(error)) from None
