"""Processes that are kept for many trials, each with budgets of time and memory.

A trial may crash the process, keep it busy or fill the memory: the process is then replaced, and
what happened is what the trial has found. A kept process spares each trial the seconds that
importing JAX takes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import multiprocessing
import os
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attack.outcomes import FoundError

# Address space that a trial may reserve beyond what it may use, so that the machine is not filled.
SPARE_MEGABYTES = 4096
# Times the seconds of a processor that a trial may take: what it may wait on a busy machine.
PATIENCE = 3


class Worker:
    """A process that runs trials, one at a time, and is replaced when one ends or spoils it.

    Args:
      seconds: that a trial may take.
      megabytes: of memory that a trial may take beyond what the process had.
      folder: where it works; None: here.
    """

    def __init__(self, seconds: float, megabytes: float, folder: Path | None = None) -> None:
        self.seconds, self.megabytes = seconds, megabytes
        self._folder = str(folder) if folder else None
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None

    def ask(self, function: str, *arguments: Any, what: str = "") -> Any:
        """Calls a function, named as `module:name`, in the process, and returns its result.

        Raises:
          FoundError: the function raised it, or the trial broke a budget or the process.
        """
        if self._process is None:
            self._start()
        self._pipe.send((function, arguments))
        # The first trial may import; the process itself ends a trial that Python can end.
        if not self._pipe.poll(PATIENCE * self.seconds + 60):
            self.end(late=True)
            raise FoundError(f"{what}: not done after {self.seconds} s, and not to be interrupted.")
        try:
            kind, answer = self._pipe.recv()
        except EOFError:
            self._process.join()
            status = self._process.exitcode
            self.end()
            raise FoundError(f"{what}: the process ended with status {status}.") from None
        if kind == "spoiled":
            self.end()
        if kind != "done":
            raise FoundError(f"{what}: {answer}" if what else answer)
        return answer

    def end(self, late: bool = False) -> None:
        """Ends the process and what it started."""
        if self._process is not None:
            self._pipe.close()  # which ends one that is idle
            self._process.join(0.0 if late else 5.0)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.join()
            self._process = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _start(self) -> None:
        self._pipe, theirs = self._context.Pipe()
        self._process = self._context.Process(
            target=_serve, args=(theirs, self._folder, self.seconds, self.megabytes), daemon=False,
        )
        self._process.start()
        theirs.close()
        self._pipe.send(None)  # answered when it can work
        if not self._pipe.poll(120) or self._pipe.recv() != "ready":
            raise FoundError("A worker of the attack does not start.")


def _serve(pipe: Any, folder: str | None, seconds: float, megabytes: float) -> None:
    """What the process does."""
    os.setpgid(0, 0)
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
    warnings.filterwarnings("ignore", module="PIL")
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    # As fedax has them in programs of its own, of which `fork_programs` makes forks.
    os.environ |= {"ARROW_DEFAULT_MEMORY_POOL": "system", "JAX_PLATFORMS": "cpu"}
    if folder:
        os.chdir(folder)
    import fedax  # noqa: F401  # before the first trial, whose time does not count it

    assert pipe.recv() is None
    pipe.send("ready")
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        module, _, function = name.partition(":")
        call = getattr(importlib.import_module(module), function)
        try:
            with budget(seconds, megabytes):
                answer = "done", call(*arguments)
        except FoundError as error:
            answer = "spoiled" if isinstance(error, SpoiledError) else "found", str(error)
        except Exception as error:  # whatever comes out of a trial is a finding
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{frame.filename}, line {frame.lineno}"
            answer = "found", f"{type(error).__name__} from {place}: {error}"
        pipe.send(answer)


def _end_with_parent() -> None:
    """Has Linux end this process when the one that started it ends in whatever way."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class SpoiledError(FoundError):
    """A trial was ended or took too much: what it left in the process may spoil others."""


class LateError(BaseException):
    """The time of a trial is over; not an Exception, as these are turned into sentences."""


@contextlib.contextmanager
def budget(seconds: float, megabytes: float) -> Iterator[None]:
    """Raises FoundError if the block takes longer, or more memory than there was at its start.

    Seconds are those of the processor, so that a busy machine finds nothing; a trial that waits is
    ended, too. The kernel measures the peak, which is reset at the start of each block.
    """

    def late(*_: object) -> None:
        raise LateError

    Path("/proc/self/clear_refs").write_text("5")
    before, reserved = _status("VmHWM"), _status("VmSize")
    most = int((reserved + megabytes + SPARE_MEGABYTES) * 2**20)
    limit = resource.getrlimit(resource.RLIMIT_AS)
    handlers = {kind: signal.signal(kind, late) for kind in (signal.SIGPROF, signal.SIGALRM)}
    resource.setrlimit(resource.RLIMIT_AS, (most, limit[1]))
    # Again and again, as one alone may vanish in a callback.
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE * seconds, 1.0)
    try:
        yield
    except LateError:
        raise SpoiledError(f"not done after {seconds} s.") from None
    finally:
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)
        for kind, handler in handlers.items():
            signal.signal(kind, handler)
        resource.setrlimit(resource.RLIMIT_AS, limit)
        taken = _status("VmHWM") - before
    if taken > megabytes:
        raise SpoiledError(f"took {taken:.0f} MB, more than {megabytes}.")


def _status(key: str) -> float:
    """A line of the process's status, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) / 1024
    raise KeyError(key)


def ran_out(error: BaseException | None) -> bool:
    """Whether an error came of a lack of memory, also where a sentence was made of it."""
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


class Forked:
    """A child of this process that calls a function, in place of a program that would import anew.

    Args:
      function: whose result is the exit status; it must be called before JAX has started threads.
      output, errors, given: file descriptors of standard output, errors and input; None: nowhere.
    """

    def __init__(
        self, function: Callable[[], int | None], output: int | None = None,
        errors: int | None = None, given: int | None = None,
    ) -> None:
        self.returncode: int | None = None
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid:
            return
        status = 70
        _end_with_parent()
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for number, target in enumerate((given, output, errors)):
                os.dup2(null if target is None else target, number)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # no timer is handed on by a fork
            status = function() or 0
        except SystemExit as stop:
            status = int(stop.code or 0)
        except BaseException as error:  # the parent sees it in the status and in what was said
            os.write(2, f"Traceback: {type(error).__name__}: {error}\n".encode())
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(status)

    def poll(self) -> int | None:
        """The exit status, -N after signal N; None while it runs."""
        return self._waited(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Waits until it has ended; the budget of the trial bounds the time."""
        del timeout
        while self.returncode is None:
            self._waited(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _waited(self, how: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, how)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class ForkedProgram(Forked):
    """In place of `subprocess.Popen` of a Python program: this process has imported what it needs.

    Each input still has a process of its own, which may crash or be killed.
    """

    def __init__(self, command: list[str], **options: Any) -> None:
        place = next(i for i, word in enumerate(command) if word.endswith(".py"))
        reads, writes = os.pipe()
        hears, asks = os.pipe()

        def program() -> None:
            for number in (reads, asks):
                os.close(number)
            sys.argv = command[place:]
            os.environ.update(options.get("env") or {})
            sys.stdin, sys.stdout = (os.fdopen(i, "rw"[i], closefd=False) for i in (0, 1))
            runpy.run_path(command[place], run_name="__main__")

        assert options["stdout"] == subprocess.PIPE, "only output through a pipe is known here"
        super().__init__(program, output=writes, given=hears)
        for number in (writes, hears):
            os.close(number)
        self.stdout = os.fdopen(reads, "rb")
        self.stdin = os.fdopen(asks, "wb")
        if options["stdin"] != subprocess.PIPE:
            self.stdin.close()


def fork_programs() -> None:
    """From now on in this process, Python's programs are forks of it; others start as they do."""
    plain = subprocess.Popen

    def started(command: Any, *arguments: Any, **options: Any) -> Any:
        if list(command[:2]) == [sys.executable, "-P"]:
            return ForkedProgram(command, *arguments, **options)
        return plain(command, *arguments, **options)

    subprocess.Popen = started  # type: ignore[assignment, misc]


@functools.cache
def scratch(name: str = "") -> Path:
    """A folder of this process, below the one it works in; of each name one."""
    return Path(tempfile.mkdtemp(dir=".")).absolute()
