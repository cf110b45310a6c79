"""Workers of one study: where it is kept, who is alive, and whose trials are whose."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import optuna
from optuna.distributions import BaseDistribution, distribution_to_json
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from fedax.devices.sqlite import sqlite_address
from fedax.experiment.differing import require_same_tasks
from fedax.experiment.folder import TASKS, RunError
from fedax.tuning.optuna_drawing import BATCH, first_of_batch
from fedax.tuning.samplers import quiet
from fedax.tuning.studies import ClosedStorage

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
      RunError: if the storage cannot be used, or its study is of a different search.
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
                "Choose another storage, or use the data that the search started with.",
            )
        raise RunError(
            f"The study {name!r} in {_shown(url)} belongs to a different search: {differ[0]} was "
            f"{known.get(differ[0])} and is now {what.get(differ[0])}. Choose another storage, or "
            "repeat the original search."
        )
    return study


def _storage(url: str) -> RDBStorage:
    """The storage; where another worker makes its tables at the same moment, when these are made.

    Raises:
      SQLAlchemyError, ImportError: if it cannot be opened.
    """
    sqlite = {"connect_args": {"timeout": PATIENCE}} if url.startswith("sqlite") else {}

    def opened() -> RDBStorage:
        return ClosedStorage(
            url, heartbeat_interval=HEARTBEAT, grace_period=GRACE, engine_kwargs=sqlite
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


def trials_of(study: optuna.Study) -> list[FrozenTrial]:
    """All trials of a study by number."""
    return sorted(study.get_trials(deepcopy=False), key=lambda trial: trial.number)


def begun(trials: Sequence[FrozenTrial]) -> int:
    """How many of some trials are over, or some worker's."""
    return sum(_counts(trial) for trial in trials)


def _counts(trial: FrozenTrial) -> bool:
    """Whether a trial is one of those asked for; one that runs and is nobody's is not."""
    return trial.state in (TrialState.COMPLETE, TrialState.PRUNED) or (
        trial.state in (TrialState.RUNNING, TrialState.WAITING) and OWNER in trial.user_attrs
    )


class Worker:
    """A worker of a study: which trials are its own.

    A trial is its worker's from the moment it is there, with its settings, in one step. A worker
    that was killed finds them again by its name; those of one whose heartbeat has stopped become
    another's, under the same number. So no kill makes a trial more, or loses one.

    Args:
      study: see `open_study`.
      name: which no other worker of the study has.
      most: trials of the study.
    """

    def __init__(self, study: optuna.Study, name: str, most: int) -> None:
        self._study, self._name, self._most = study, name, most
        # Optuna beats for `study.optimize` only, and creates no trial that has an owner at once;
        # whoever asks and tells has no public way to either.
        self.storage: Any = study._storage

    def begin(
        self, number: int, settings: Mapping[str, Any], space: Mapping[str, BaseDistribution],
        first: int, *, exactly: bool,
    ) -> int | None:
        """Begins a trial.

        Args:
          number: which the trial should get.
          settings: drawn for it.
          space: what is searched.
          first: the number of the first one of its batch.
          exactly: whether its settings are for that number only.

        Returns:
          The trial's number; None if another worker was faster, so that it is not needed, or needs
          other settings.
        """
        trial = self.storage.create_new_trial(self._study._study_id, create_trial(
            state=TrialState.WAITING, params=dict(settings), distributions=dict(space),
            user_attrs={OWNER: self._name, BATCH: first},
        ))
        found = self.storage.get_trial_number_from_id(trial)
        if found != number and (exactly or begun(trials_of(self._study)[:found]) >= self._most):
            self.storage.set_trial_state_values(trial, TrialState.FAIL)
            return None
        return found if self._start(trial) else None

    def own(self, size: int) -> list[FrozenTrial]:
        """The trials of a batch that are this worker's and not over, after those of others.

        Takes over trials that wait or whose worker no longer responds.

        Args:
          size: take over at most this many.
        """
        trials = trials_of(self._study)
        stale = set(self.storage._get_stale_trial_ids(self._study._study_id))
        before = itertools.accumulate(map(_counts, trials), initial=0)
        wanted = [
            trial for trial, count in zip(trials, before, strict=False)
            if count < self._most and not trial.state.is_finished()
        ]
        mine = [trial for trial in wanted if self._is_mine(trial)]
        first = min(map(first_of_batch, mine), default=None)
        mine = [trial for trial in mine if first_of_batch(trial) == first]
        left = [] if mine else [
            trial for trial in wanted
            if trial.state == TrialState.WAITING or trial._trial_id in stale
        ][:size]
        for trial in left:
            with contextlib.suppress(UpdateFinishedTrialError):
                self.storage.set_trial_user_attr(trial._trial_id, OWNER, self._name)
                self.storage.set_trial_user_attr(trial._trial_id, BATCH, left[0].number)
        for trial in [*mine, *left]:
            self._start(trial._trial_id)
        own = {trial.number for trial in [*mine, *left]}
        own -= self.lost(list(own))
        return [trial for trial in trials_of(self._study) if trial.number in own]

    def lost(self, numbers: Sequence[int]) -> set[int]:
        """Those of this worker's trials that another one has taken over, or told."""
        trials = trials_of(self._study)
        return {
            number for number in numbers
            if trials[number].state != TrialState.RUNNING or not self._is_mine(trials[number])
        }

    def _is_mine(self, trial: FrozenTrial) -> bool:
        owner = trial.user_attrs.get(OWNER)
        return owner == self._name or (owner is None and self._name == "")

    def _start(self, trial: int) -> bool:
        """Has a trial run; returns whether it waited for that."""
        self.storage.record_heartbeat(trial)
        try:
            return self.storage.set_trial_state_values(trial, TrialState.RUNNING)
        except UpdateFinishedTrialError:  # by another worker, a moment ago
            return False


class Heartbeat:
    """Says that trials are being trained, from a thread of its own, until it is left.

    Args:
      storage: of the study.
      trials: their ids there.
    """

    def __init__(self, storage: Any, trials: Sequence[int]) -> None:
        self._storage, self._ids = storage, trials
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._last, self._missed = time.time(), False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def missed(self) -> bool:
        """Whether others may have taken the trials over, since this was last asked.

        There was no sign of life for long: the process was paused, or the storage out of reach.
        """
        missed = self._missed or self._is_late()
        self._missed = False
        return missed

    def _is_late(self) -> bool:
        # By the wall clock, as the others' does not stop while this machine sleeps.
        return not 0 <= time.time() - self._last < GRACE / 2

    def _beat(self) -> None:
        while not self._over.wait(HEARTBEAT):
            self._missed |= self._is_late()
            for trial in self._ids:
                try:
                    self._storage.record_heartbeat(trial)
                except (SQLAlchemyError, StorageInternalError):  # the next may come through
                    break
            else:
                self._last = time.time()


def _sqlite(file: Path) -> str:
    """The URL of an SQLite database for Optuna, with braces escaped."""
    try:
        return sqlite_address(file).replace("{", "{{").replace("}", "}}")
    except ValueError as error:
        raise RunError(f"The study cannot be saved in the folder: {error}.") from None


def _shown(url: str) -> str:
    """A storage's URL without its password."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except SQLAlchemyError:
        return repr(url)
