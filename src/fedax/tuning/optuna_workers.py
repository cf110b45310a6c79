"""Workers of one study: where it is kept, who is alive, and whose trials are done again.

A worker that is killed leaves trials that seem to run. When a worker of that name goes on, it
fails them, and the same parameters are tried again. The trials of one that does not come back are
found by the others, as its heartbeat has stopped.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import optuna
from optuna.distributions import BaseDistribution, distribution_to_json
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from fedax.experiment.differing import require_same_tasks
from fedax.experiment.folder import TASKS, RunError
from fedax.tuning.samplers import quiet

# Seconds between the signs of life of a worker, and after which it is given up.
HEARTBEAT, GRACE = 20, 120
# So often a storage is tried to be opened, with so many seconds in between.
OPENINGS, PAUSE = 4, 0.5
# Seconds that SQLite waits for another worker to be done with the file.
PATIENCE = 60
# User attributes: of the study, what is searched; of a trial, whose it is.
SEARCH, OWNER = "fedax", "worker"


def open_study(
    name: str,
    storage: str | Path,
    *,
    space: Mapping[str, BaseDistribution],
    maximise: bool = False,
    about: Mapping[str, Any] | None = None,
) -> optuna.Study:
    """Opens a study, or makes it.

    Args:
      name: the study's.
      storage: a URL that SQLAlchemy understands, or the file of an SQLite database.
      space: what is searched.
      maximise: whether a higher value is better.
      about: what all workers must have alike, such as the number of rounds; kept with the study.

    Raises:
      RunError: the storage cannot be used, or the study there is of another search.
    """
    url = storage if isinstance(storage, str) else _sqlite(storage)
    what = {
        **(about or {}), "direction": "maximise" if maximise else "minimise",
        "space": {key: json.loads(distribution_to_json(one)) for key, one in space.items()},
    }
    what = json.loads(json.dumps(what, default=str))
    with explained(url), quiet():
        study = optuna.create_study(
            storage=_storage(url), study_name=name, load_if_exists=True,
            direction="maximize" if maximise else "minimize",
        )
        known = study.user_attrs.get(SEARCH)
        if known is None:
            study.set_user_attr(SEARCH, what)
    if known is not None and TASKS not in known:  # of fedax 0.22 and before
        what.pop(TASKS, None)
    if known is not None and known != what:
        differ = [key for key in {**known, **what} if known.get(key) != what.get(key)]
        if differ[0] == TASKS:
            require_same_tasks(
                known[TASKS], what.get(TASKS, []), f"study {name!r} in {_shown(url)}",
                "Choose another storage, or search with the data that it began with.",
            )
        raise RunError(
            f"The study {name!r} in {_shown(url)} is of another search: {differ[0]} was "
            f"{known.get(differ[0])} and is {what.get(differ[0])}. Choose another storage, or "
            "search as it was begun."
        )
    return study


def _storage(url: str) -> RDBStorage:
    """The storage; where another worker makes its tables at the same moment, when these are made.

    Raises:
      SQLAlchemyError, ImportError: it cannot be opened.
    """
    sqlite = {"connect_args": {"timeout": PATIENCE}} if url.startswith("sqlite") else {}

    def opened() -> RDBStorage:
        return RDBStorage(
            url, heartbeat_interval=HEARTBEAT, grace_period=GRACE, engine_kwargs=sqlite,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(),
        )

    for _ in range(OPENINGS - 1):
        with contextlib.suppress(DBAPIError):
            return opened()
        time.sleep(PAUSE)
    return opened()


@contextlib.contextmanager
def explained(url: str | None = None) -> Iterator[None]:
    """Turns a failure of the storage into a sentence; where it is opened, a missing driver, too."""
    kinds = (SQLAlchemyError, StorageInternalError, *(() if url is None else (ImportError,)))
    try:
        yield
    except kinds as error:
        cause = error.__cause__ or error
        reason = (str(cause).splitlines() or [type(cause).__name__])[0].rstrip(".")
        where = "" if url is None else f" {_shown(url)}"
        raise RunError(f"The study's storage{where} cannot be used: {reason}.") from error


def take_up(study: optuna.Study, worker: str) -> None:
    """Has the trials done again that this worker left when it was killed."""
    with quiet():
        again = RetryHeartbeatStaleTrialCallback()
        for trial in study.get_trials(states=(TrialState.RUNNING,)):
            if _is_left(trial, worker):
                study.tell(trial.number, state=TrialState.FAIL)
                again(study, trial)


def take_over(study: optuna.Study) -> None:
    """Has the trials done again of workers whose heartbeat has stopped."""
    with quiet():
        optuna.storages.fail_stale_trials(study)


def _is_left(trial: FrozenTrial, worker: str) -> bool:
    """Whether a trial is this worker's, or of one that was killed before it said so."""
    owner = trial.user_attrs.get(OWNER)
    if owner is not None or worker == "":
        return (owner or "") == worker
    begun = trial.datetime_start
    return begun is None or (datetime.datetime.now() - begun).total_seconds() > GRACE


class Heartbeat:
    """Says that trials are being trained, from a thread of its own, until it is left."""

    def __init__(self, study: optuna.Study, trials: Sequence[Trial]) -> None:
        # Optuna beats for `study.optimize` only; whoever asks and tells has no public way to it.
        self._ids = [trial._trial_id for trial in trials]
        storage: Any = study._storage
        self._beats = storage.record_heartbeat
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        for trial in self._ids:
            self._beats(trial)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._over.wait(HEARTBEAT):
            for trial in self._ids:
                try:
                    self._beats(trial)
                except (SQLAlchemyError, StorageInternalError):  # the next may come through
                    continue


def _sqlite(file: Path) -> str:
    """The URL of an SQLite database."""
    path = file.resolve().as_posix()
    if "?" in path:  # a URL of SQLite goes no further
        raise RunError(f"A study cannot be kept in {path}: the name may have no question mark.")
    return f"sqlite:///{path}"


def _shown(url: str) -> str:
    """A storage's URL without its password."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except SQLAlchemyError:
        return repr(url)
