"""Studies that may be a stranger's: what is checked before Optuna works with them.

Optuna trusts a study's database. What its samplers keep there, such as CMA-ES a pickle, is never
read: they see a copy in memory, see `fedax.tuning.optuna_drawing`.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from fedax.experiment.errors import ConfigError
from fedax.experiment.folder import RunError
from fedax.files.databases import Definition, unknown_in


class ClosedStorage(RDBStorage):
    """Optuna's storage, whose connections are closed with it, or when it cannot be opened."""

    def __init__(self, url: str, **options: Any) -> None:
        try:
            super().__init__(url, **options)
        except BaseException:
            if hasattr(self, "engine"):
                self.engine.dispose()
            raise
        weakref.finalize(self, self.engine.dispose)


def require_study_file(path: Path) -> None:
    """Raises an error unless a folder's database is one that Optuna makes; opens no study.

    Raises:
      RunError: if it defines something else, or is not a database.
    """
    if not path.exists():
        return
    try:
        unknown = unknown_in(path, _definitions())
    except OSError as error:
        raise RunError(f"The study's storage {path} cannot be used: {error.strerror}.") from None
    if unknown is not None:
        raise RunError(
            f"{path} is not a study of Optuna {optuna.__version__}: it has {unknown}. If you trust "
            f"it, give its URL: --storage sqlite:///{path.resolve()}"
        )


@contextlib.contextmanager
def explained_damage(where: str) -> Iterator[None]:
    """Turns what Optuna raises of a study that holds what it never writes into a sentence."""
    try:
        yield
    except (RunError, ConfigError):
        raise
    except Exception as error:  # Optuna checks nothing that it reads
        raise RunError(
            f"The study in {where} is damaged, or was written by another version of Optuna: "
            f"{type(error).__name__}: {str(error).splitlines()[:1]}."
        ) from error


def require_sound(study: optuna.Study, space: Mapping[str, BaseDistribution]) -> None:
    """Raises a ValueError if a study holds what no search over the space writes."""
    trials = study.get_trials(deepcopy=False)
    for trial in trials:
        beyond = set(trial.params) - set(space)
        if beyond:
            raise ValueError(f"trial {trial.number} has {min(beyond)!r}, which is not searched")
        if trial.state == TrialState.COMPLETE and not isinstance(trial.value, float):
            raise ValueError(f"trial {trial.number} has no score")
        if not isinstance(trial.system_attrs.get("retry_history", []), list):
            raise ValueError(f"trial {trial.number} has no list of retries")
        if not isinstance(trial.system_attrs.get("fixed_params", {}), dict):
            raise ValueError(f"trial {trial.number} has no table of fixed parameters")
    # How many numbers of a sequence were drawn; as many are drawn again to come to the next.
    attributes = study._storage.get_study_system_attrs(study._study_id)
    for key, value in attributes.items():
        if key.startswith("qmc:") and not (isinstance(value, int) and value <= len(trials)):
            raise ValueError(f"its sampler has drawn {value!r} times for {len(trials)} trials")


@functools.cache
def _definitions() -> Collection[Definition]:
    """What a database of this version of Optuna defines."""
    storage = ClosedStorage("sqlite:///:memory:")
    with storage.engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT type, name, sql FROM sqlite_master")
        return frozenset((kind, name, statement) for kind, name, statement in found)
