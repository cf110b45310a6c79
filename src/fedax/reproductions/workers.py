"""Processes that train the jobs of a plan side by side, one core each, or one process on a GPU.

A worker is asked by lines of JSON on its standard input and answers by lines on its standard
output. When its input ends, because the process that asks was killed, it stops as on SIGTERM and
keeps what it has. What its runs print goes to a file beside them.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedax.devices.cores import compute_in_one_thread, take_a_core
from fedax.devices.ending import Request
from fedax.devices.mesh import cores_as_devices, usable_cores
from fedax.experiment.compile_cache import keep_programs
from fedax.experiment.errors import ConfigError
from fedax.experiment.folder import BusyError, RunError
from fedax.reproductions.experiment import Part
from fedax.reproductions.jobs import Job, jobs_of
from fedax.validate import so_many

# Between two looks at a job that another process is training.
SECONDS_BETWEEN_LOOKS = 5.0


class Trained(NamedTuple):
    """A job that is done.

    Attributes:
      job: which.
      seconds: how long it took, 0 if it was done before.
      done, total: how many jobs are done, of how many.
    """

    job: Job
    seconds: float
    done: int
    total: int


def train_all(
    jobs: Sequence[Job], storage: Path, num_workers: int | None, show: Callable[[Trained], None],
    asked: Request | None = None,
) -> None:
    """Trains what is not trained yet.

    Args:
      jobs: of a plan.
      storage: where runs are kept; several processes and machines may share it.
      num_workers: processes at a time; None: one for each core, or one on a GPU.
      show: told of each job when it is done, in the caller's thread.
      asked: by whom it may be asked to stop.

    Raises:
      RunError: jobs failed; the sentence has the first reason, and how many were not tried.
      KeyboardInterrupt: Ctrl-C, or it was asked to stop; what is done is kept.
    """
    storage.mkdir(parents=True, exist_ok=True)
    left: queue.SimpleQueue[Job] = queue.SimpleQueue()
    todo = [job for job in jobs if not job.is_done(storage)]
    for job in todo:
        left.put(job)
    if not todo:
        return
    crew = _Crew(left, len(jobs) - len(todo), len(jobs), show, asked)
    try:
        first = _Worker(storage, 0)
        crew.add(first)
        wanted = num_workers or (usable_cores() if first.platform == "cpu" else 1)
        for place in range(1, min(wanted, len(todo))):
            crew.add(_Worker(storage, place))
        crew.wait()
    finally:
        crew.stop()
    if crew.failures:
        job, why = crew.failures[0]
        others = len(crew.failures) - 1
        more = f" ({others} more failed.)" if others else ""
        if crew.untried:
            more += f" {so_many(crew.untried, 'job')} not tried; the same command continues."
        raise RunError(
            f"{job.part.label} in {job.part.panel} with seed {job.seed} was not trained: "
            f"{why.rstrip('.')}.{more}"
        )


class _Crew:
    """Workers with a thread each that asks them."""

    def __init__(
        self, left: queue.SimpleQueue[Job], count: int, total: int,
        show: Callable[[Trained], None], asked: Request | None,
    ) -> None:
        self._left, self._show, self._asked = left, show, asked
        self._count, self._total = count, total
        self._answers: queue.SimpleQueue[tuple[Job, float, str | None]] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        self._threads: list[threading.Thread] = []
        self.failures: list[tuple[Job, str]] = []

    def add(self, worker: _Worker) -> None:
        self._workers.append(worker)
        thread = threading.Thread(target=self._ask, args=(worker,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def wait(self) -> None:
        for thread in self._threads:
            while thread.is_alive():  # in pieces, as Windows does not interrupt a long one
                thread.join(0.2)
                self._take_notice()
                if self._asked:
                    raise KeyboardInterrupt
        self._take_notice()

    @property
    def untried(self) -> int:
        """How many jobs neither were trained nor failed."""
        return self._total - self._count - len(self.failures)

    def _take_notice(self) -> None:
        """Tells of what the workers have done."""
        while not self._answers.empty():
            job, seconds, error = self._answers.get()
            if error is not None:
                self.failures.append((job, error))
            else:
                self._count += 1
                self._show(Trained(job, seconds, self._count, self._total))

    def stop(self) -> None:
        while not self._left.empty():  # or a worker that has stopped is asked for the next one
            with contextlib.suppress(queue.Empty):
                self._left.get_nowait()
        failed = bool(self.failures)  # what stops now has not
        for worker in self._workers:
            worker.stop(keep_log=failed)

    def _ask(self, worker: _Worker) -> None:
        while True:
            try:
                job = self._left.get_nowait()
            except queue.Empty:
                return
            began = time.perf_counter()
            try:
                answer = worker.ask(job)
            except (OSError, ValueError) as error:  # it is gone, or was while it answered
                answer = {"error": f"its process failed: {error}", "gone": True}
            if answer.get("busy"):
                self._left.put(job)
                time.sleep(SECONDS_BETWEEN_LOOKS)
                continue
            self._answers.put((job, time.perf_counter() - began, answer.get("error")))
            if answer.get("gone"):
                return


class _Worker:
    """A process that trains one job after the other.

    Attributes:
      platform: of its devices, such as "cpu".
    """

    def __init__(self, storage: Path, place: int) -> None:
        self._storage = storage
        self._log = (storage / f"worker-{os.getpid()}-{place}.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedax.reproductions.workers", str(storage)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            start_new_session=True,  # Ctrl-C is for us, who then ask it to stop
        )
        self.platform = self._answer().get("platform", "cpu")

    def ask(self, job: Job) -> dict[str, Any]:
        assert self._process.stdin
        line = json.dumps({"part": job.part._asdict(), "seed": job.seed})
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            why = f"its process ended with {self._process.wait()}; see {self._log.name}."
            return {"error": why, "gone": True}
        return json.loads(line)

    def stop(self, *, keep_log: bool) -> None:
        """Ends the process, which keeps what it has."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._log.close()
        if not keep_log:
            Path(self._log.name).unlink(missing_ok=True)


def _work(storage: Path) -> None:
    """The worker's side."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what runs print goes to the log

    def say(**answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    core = take_a_core()
    compute_in_one_thread()  # also without a core of its own
    keep_programs()
    cores_as_devices(1)
    import jax  # noqa: PLC0415 - after the devices were chosen

    say(platform=jax.default_backend())
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    while line := lines.get():
        asked = json.loads(line)
        part = Part(**asked["part"])
        (job,) = [job for job in jobs_of([part]) if job.seed == asked["seed"]]
        try:
            job.train(storage)
        except BusyError:
            say(busy=True)
        except (ConfigError, RunError, OSError) as error:
            say(error=str(error))
        else:
            say(done=True)
    if core is not None:
        core.release()


def _listen(lines: queue.SimpleQueue[str]) -> None:
    """Passes lines on; at their end a run that is under way is stopped."""
    for line in sys.stdin:
        lines.put(line)
    lines.put("")
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    _work(Path(sys.argv[1]))
