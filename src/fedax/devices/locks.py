"""Locks between processes: who may write into a folder, get a data set or have a core.

The operating system keeps them (flock), and lets go of one when its process ends, however that
happens. Some file systems know no locks: FUSE, NFS without its lock service, some of clusters.
There a lease is taken instead, a file beside the lock's that one process at a time can make. It
says whose it is; so it is known at once on the same machine when its owner is gone, and elsewhere
when its time was not renewed for `GRACE` seconds.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

# How the name of a lease ends.
LEASE = ".lease"
# Seconds between two signs of life of a lock's owner, and after which it is gone, seen from another
# machine.
BEAT, GRACE = 30.0, 300.0
# Of flock: what says that another process has the lock.
_TAKEN = {errno.EWOULDBLOCK, errno.EAGAIN}
# What says that the file system keeps none, or none now.
_NO_LOCKS = {
    errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EACCES, errno.EPERM,
    errno.EINVAL, errno.EIO,
}


class Lock:
    """A lock that one process has at a time.

    Args:
      path: of its file, which is made, and stays.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._lease = self._path.with_name(self._path.name + LEASE)
        self._descriptor: int | None = None
        self._held: Path | None = None  # the file that says whose it is
        self._other: Any = None  # filelock's, on Windows
        self._over = threading.Event()

    def take(self) -> bool:
        """Takes the lock, unless another process, or another lock of this one, has it.

        Raises:
          OSError: if its file cannot be made, or is a link.
        """
        if sys.platform == "win32":
            return self._take_on_windows()
        while True:
            descriptor = _opened(self._path)
            try:
                taken = self._try(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            if taken is True and _is_there(self._path, descriptor):
                break
            os.close(descriptor)
            if taken is False:
                return False
            # The one before removed the file when it was done.
            self._drop_lease()
        self._descriptor = descriptor
        self._over.clear()
        threading.Thread(target=self._beat, name="lock", daemon=True).start()
        return True

    def release(self) -> None:
        """Lets go of the lock, if this one has it."""
        self._over.set()
        if self._other is not None:
            self._other.release()
        if self._descriptor is None:
            return
        self._drop_lease()
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
        self._descriptor = self._held = None

    def owner(self) -> str:
        """Who has the lock, as far as that is known, the beginning of a sentence."""
        for path in (self._lease, self._path):
            record = _read(path)
            if record:
                return f"Process {record['process']} on {record['host'][:100]}"
        return "Another process"

    def _try(self, descriptor: int) -> bool:
        """Takes the lock, or the lease where there are no locks."""
        import fcntl  # noqa: PLC0415 - not on Windows

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            if error.errno not in _NO_LOCKS:
                raise
            # Who has the lock may have got it when there were locks.
            if not _is_gone(self._path) or not self._take_lease():
                return False
            self._held = self._lease
            return True
        if self._lease.exists() and not (_is_gone(self._lease) and self._remove_lease()):
            return False
        self._held = self._path
        with contextlib.suppress(OSError):  # a full disk, say; the lock holds without it
            os.ftruncate(descriptor, 0)
            os.write(descriptor, _record())
        return True

    def _take_lease(self) -> bool:
        while True:
            try:
                descriptor = os.open(self._lease, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            except FileExistsError:
                if not (_is_gone(self._lease) and self._remove_lease()):
                    return False
                continue
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(_record())
            except OSError:
                self._lease.unlink(missing_ok=True)
                raise
            return True

    def _remove_lease(self) -> bool:
        """Removes the lease of a process that is gone; False if another one was faster."""
        found = _read(self._lease)
        aside = self._lease.with_name(f"{self._lease.name}.{uuid.uuid4().hex}")
        try:
            self._lease.rename(aside)
        except FileNotFoundError:
            return True
        if _read(aside) != found:  # a new one, which another process took meanwhile
            with contextlib.suppress(OSError):
                aside.rename(self._lease)
            return False
        aside.unlink(missing_ok=True)
        return True

    def _drop_lease(self) -> None:
        if self._held == self._lease and _read(self._lease) == json.loads(_record()):
            with contextlib.suppress(OSError):
                self._lease.unlink()

    def _beat(self) -> None:
        held = self._held
        while held is not None and not self._over.wait(BEAT):
            with contextlib.suppress(OSError):
                record = _read(held)
                if record == json.loads(_record()):
                    os.utime(held)
                elif record and held == self._lease:
                    # What is written from now on would be mixed with the other's.
                    sys.stderr.write(
                        f"This process was paused for over {GRACE / 60:.0f} minutes, so "
                        f"{self.owner()} has taken over {self._path.parent}. It ends now.\n"
                    )
                    sys.stderr.flush()
                    os._exit(1)

    def _take_on_windows(self) -> bool:
        from filelock import FileLock, Timeout  # noqa: PLC0415 - of Windows only

        self._other = FileLock(self._path)
        try:
            self._other.acquire(timeout=0)
        except Timeout:
            return False
        return True


def _opened(path: Path) -> int:
    """The lock's file, open; a link is not followed.

    Raises:
      OSError: if it cannot be made, or is no file.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "It is not a regular file", str(path))
    return descriptor


def _is_there(path: Path, descriptor: int) -> bool:
    """Whether a path still is the file that was opened."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _record() -> bytes:
    """Who this process is, so that others can tell whether it is there."""
    return json.dumps({
        "process": os.getpid(), "started": _started(os.getpid()), "host": socket.gethostname(),
        "machine": _machine(),
    }).encode()


def _read(path: Path) -> dict[str, Any]:
    """What a lock's file says of its owner; nothing if that is not known."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode) or path.stat().st_size > 10_000:
            return {}
        record = json.loads(path.read_bytes())
        kinds = {"process": int, "host": str, "machine": str}
        known = all(isinstance(record[key], kind) for key, kind in kinds.items())
        return record if known else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def _is_gone(path: Path) -> bool:
    """Whether the owner that a lock's file names is not there any more."""
    try:
        touched = path.lstat().st_mtime
    except FileNotFoundError:
        return True
    record = _read(path)
    if path.suffix != LEASE and not record:  # the file of a lock that nobody has
        return True
    if record and record["machine"] == _machine():
        now, then = _started(record["process"]), record.get("started")
        return now is None or bool(now and then and now != then)
    return _now(path.parent) - touched > GRACE


def _now(folder: Path) -> float:
    """The time by the clock of a folder's file system, which may be another machine's."""
    probe = folder / f".{uuid.uuid4().hex}{LEASE}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:
        return time.time()
    finally:
        probe.unlink(missing_ok=True)


def _machine() -> str:
    """What tells this machine, since it was started, and this container from others."""
    words = [socket.gethostname()]
    with contextlib.suppress(OSError):
        words.append(Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip())
        words.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(words)


def _started(process: int) -> str | None:
    """When a process was started, in the system's words, if they are known; None if it ended."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except OSError:  # somebody else's
        pass
    try:
        # After the name, which may hold anything: the state, ..., the time since the machine's
        # start. A process that is dead but not waited for is a zombie (Z).
        about = Path(f"/proc/{process}/stat").read_text("utf-8", "replace")
        words = about.rpartition(")")[2].split()
        return None if words[0] in "ZX" else words[19]
    except (OSError, IndexError):  # a system without /proc
        return ""
