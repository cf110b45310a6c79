"""A core for each of several processes that train side by side, and one thread for each of them."""

from __future__ import annotations

import os
import platform

import platformdirs

from fedax.devices.locks import Lock


def take_a_core() -> Lock | None:
    """Keeps this process on a core that no other one of this user has taken, as long as it lives.

    Two on one core would each take the other's time, whichever commands they are of. Where all are
    taken, none can be asked for (macOS, Windows) or no lock can be kept, it stays on all of them.

    Returns:
      What holds the core until it is released or the process ends, however that happens; or None.
    """
    if not hasattr(os, "sched_setaffinity"):
        return None
    folder = platformdirs.user_cache_path("fedax", appauthor=False) / "cores"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for core in sorted(os.sched_getaffinity(0)):
            lock = Lock(folder / f"{platform.node()}-{core}.lock")
            if not lock.take():
                continue
            os.sched_setaffinity(0, {core})
            return lock
    except OSError:  # a read-only home, say
        pass
    return None


def compute_in_one_thread() -> None:
    """Lets XLA's CPU back end do an operation in one thread; call it before JAX is used.

    With more of them it divides a product of matrices, and adds up the parts in another order, so
    that the last bits of a result would depend on how many cores this process may use.
    """
    os.environ["PJRT_NPROC"] = "1"
