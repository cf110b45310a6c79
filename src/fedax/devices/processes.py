"""One training over several processes, of one machine or many (JAX's own multi-process runtime)."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from fedax.devices import internals, losses
from fedax.outside.text import Told
from fedax.validate import told_apart

# Seconds after which a process that was not heard of is lost; it may have been paused for less.
HEARTBEAT = 60
# Seconds that the processes wait for each other where they come together.
TIMEOUT = 300
# Seconds of waiting after which it is said.
SECONDS_OF_SILENCE = 5
# A setting that differs is quoted in so many letters.
MOST_LETTERS = 60

_comparisons = itertools.count()


class ProcessError(Told, RuntimeError):
    """The processes cannot find each other, or one was lost; the message says which."""


class PlaceError(ProcessError):
    """The addresses or ids of the processes are wrong; the message says how."""


class LossError(ProcessError):
    """Another process was lost."""


def connect(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    timeout: int = TIMEOUT,
    *,
    ends_with_others: bool = False,
) -> None:
    """Joins the processes of one training; call it before anything else of JAX.

    Process 0 listens at the coordinator's address, and at no other one, unless the environment
    variable JAX_COORDINATOR_BIND_ADDRESS gives another.

    Args:
      coordinator: host:port of process 0, which the others can reach; None: JAX finds it, the
        number of processes and this one's id from the cluster's environment (SLURM, Kubernetes,
        Open MPI, TPU pods), and process 0 listens at all addresses of its machine.
      num_processes: P >= 1.
      process_id: of this process, 0 to P - 1.
      timeout: seconds to wait for the others.
      ends_with_others: whether this process ends, as a command line's does, with a sentence and
        status 1 when another one is lost or fails. Otherwise JAX's runtime aborts it.

    Raises:
      PlaceError: if only a part of the arguments is given, or one is not what it should be.
      ProcessError: if they cannot connect.
    """
    given = (coordinator, num_processes, process_id)
    if any(value is not None for value in given) and any(value is None for value in given):
        raise PlaceError(
            "Give all three of coordinator, number of processes and process id, or none to find "
            f"them from the cluster; given are {', '.join(map(str, given))}."
        )
    bind = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS")
    if coordinator is not None and num_processes is not None and process_id is not None:
        if num_processes < 1:
            raise PlaceError(f"The number of processes must be at least 1, but is {num_processes}.")
        if not 0 <= process_id < num_processes:
            raise PlaceError(
                f"A process id must be in [0, {num_processes - 1}], but is {process_id}."
            )
        bind = bind or coordinator
        _require_place(coordinator)
        if process_id == 0:
            _require_free(bind)
    # Its handler would take SIGTERM away from us.
    jax.config.update("jax_enable_preemption_service", False)
    if ends_with_others:
        losses.read_the_runtime()
    waiting = threading.Timer(SECONDS_OF_SILENCE, lambda: print(
        _waiting(coordinator, num_processes, process_id, timeout), flush=True
    ))
    waiting.daemon = True
    waiting.start()
    try:
        jax.distributed.initialize(
            coordinator, num_processes, process_id, initialization_timeout=timeout,
            coordinator_bind_address=bind, heartbeat_timeout_seconds=HEARTBEAT,
        )
    except (RuntimeError, ValueError) as error:
        raise ProcessError(
            f"The processes of the training could not connect ({str(error).splitlines()[0]}). "
            "Every process needs the same coordinator and number of processes, and its own id."
        ) from None
    finally:
        waiting.cancel()
    if ends_with_others:
        losses.watch_the_others()


def _waiting(
    coordinator: str | None, num_processes: int | None, process_id: int | None, timeout: int
) -> str:
    """What is said while the processes wait for each other."""
    where = coordinator or "the coordinator"
    said = f"Waiting for all processes at {where}, for up to {timeout} s."
    if coordinator is None or num_processes is None:
        return said
    said += (
        f" This is process {process_id} of {num_processes}; start each id from 0 to "
        f"{num_processes - 1} once."
    )
    with contextlib.suppress(ProcessError):
        host, port = _require_place(coordinator)
        try:
            socket.create_connection((host, port), SECONDS_OF_SILENCE).close()
        except OSError:
            said += " Nothing is listening there yet: start process 0."
    return said


def _require_place(coordinator: str) -> tuple[str, int]:
    """The host and the port.

    Raises:
      PlaceError: if it is not host:port.
      ProcessError: if the host is unknown.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or (":" in host and not (host[0] == "[" and host[-1] == "]")):
        raise PlaceError(
            f"The coordinator must be HOST:PORT, such as host0:1234 or [::1]:1234, but is "
            f"{coordinator!r}."
        )
    if not (port.isascii() and port.isdecimal() and 1 <= int(port[:6]) <= 65535):
        raise PlaceError(
            f"The coordinator's port must be a number from 1 to 65535, but is {port!r} in "
            f"{coordinator!r}."
        )
    try:
        socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not the name of a host"
        raise ProcessError(
            f"The coordinator's host {host!r} is unknown here ({why}). Give a name or an address "
            "by which this machine reaches process 0."
        ) from None
    return host.strip("[]"), int(port)


def _require_free(bind: str) -> None:
    """Raises an error if process 0 cannot listen there; the runtime would crash, or share it."""
    host, port = _require_place(bind)
    family, kind, protocol, _, place = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as ear:
        if os.name == "posix":  # closed connections of a run before are no hindrance
            ear.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            ear.bind(place)
            ear.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ProcessError(
                    f"Process 0 cannot listen at {bind}: the port is in use. Choose another port "
                    "for all processes, and give only one of them the id 0."
                ) from None
            if error.errno == errno.EADDRNOTAVAIL:
                raise ProcessError(
                    f"Process 0 cannot listen at {bind}: this machine does not have that address. "
                    "Process 0 must run on the coordinator's host. If others reach it by an "
                    "address that the machine itself does not have, set the environment variable "
                    f"JAX_COORDINATOR_BIND_ADDRESS=0.0.0.0:{port}."
                ) from None
            raise ProcessError(
                f"Process 0 cannot listen at {bind}: {error.strerror}."
            ) from None


def compare(what: str, settings: Mapping[str, Any]) -> None:
    """Makes sure that all processes have the same settings; all of them have to call it.

    Args:
      what: is compared, a word for the sentence.
      settings: as JSON has them.

    Raises:
      ProcessError: if they differ, in every process; the message lists the first differences.
    """
    store = losses.client()
    if store is None:
        return
    mine = _flat(json.loads(json.dumps(settings)))
    me, count = place()
    place_of = f"fedax/compared/{next(_comparisons)}"
    store.key_value_set(f"{place_of}/{me}", json.dumps(mine))
    first: dict[str, Any] = mine
    for number in range(count):
        try:
            text = store.blocking_key_value_get(f"{place_of}/{number}", TIMEOUT * 1000)
        except jax.errors.JaxRuntimeError as error:
            raise ProcessError(
                f"Process {number} did not send its {what} within {TIMEOUT} seconds "
                f"({str(error).splitlines()[0]})."
            ) from None
        others = json.loads(text)
        if number == 0:
            first = others
            _require_same(0, first, me, mine)
        _require_same(0, first, number, others)


def _require_same(a: int, first: Mapping[str, Any], b: int, second: Mapping[str, Any]) -> None:
    names = [n for n in {**first, **second} if first.get(n) != second.get(n)]
    if names:
        told = [
            f"{name} is {one} in process {a} and {other} in process {b}"
            for name in names[:3]
            for one, other in [told_apart(
                json.dumps(first.get(name)), json.dumps(second.get(name)), MOST_LETTERS
            )]
        ] + ["and more"] * (len(names) > 3)
        raise ProcessError(
            f"The processes differ: {'; '.join(told)}. Start all of them with the same settings "
            "and data, and with access to the same run folder."
        )


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings within settings by their own names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        inside = _flat(value) if isinstance(value, Mapping) and value else {}
        flat |= {f"{name}.{key}": item for key, item in inside.items()} or {name: value}
    return flat


def place() -> tuple[int, int]:
    """This process's id and their number; asking JAX for it would start its devices."""
    state = internals.processes()
    return state.process_id, state.num_processes


def part() -> None:
    """Waits until all processes are here, and leaves the training with them."""
    store = losses.client()
    if store is None:
        return
    # Process 0 writes its report meanwhile, which may take long.
    store.wait_at_barrier("fedax/end", 3600 * 1000)
    losses.end_of_watch()
    jax.distributed.shutdown()


def is_first() -> bool:
    """Whether this process is the one that writes."""
    return jax.process_index() == 0


def are_several() -> bool:
    """Whether this process is one of several."""
    # Asking for the count would start JAX's devices.
    return jax.distributed.is_initialized() and jax.process_count() > 1


def agreed(decision: bool) -> bool:
    """What the first process decided; all of them have to ask, and then do the same."""
    if not are_several():
        return decision
    return bool(internals.multihost_utils.broadcast_one_to_all(np.asarray(decision)))


def any_of_them(asks: bool) -> bool:
    """Whether any process asks; all of them have to call it, and then do the same."""
    if not are_several():
        return asks
    return bool(np.any(internals.multihost_utils.process_allgather(np.asarray(asks))))


@contextlib.contextmanager
def lost_processes(round_number: int) -> Iterator[None]:
    """Turns what JAX raises when another process is gone into a sentence."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        raise loss(error, f"Round {round_number}: ") from error


def loss(error: Exception, where: str = "") -> Exception:
    """The sentence about what JAX raises when another process is gone; other errors as they are."""
    of_the_runtime = isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in str(error)
    is_loss = (
        of_the_runtime and losses.client() is not None and place()[1] > 1
        and "RESOURCE_EXHAUSTED" not in str(error)
    )
    return LossError(where + (losses.told() or losses.LOST)) if is_loss else error
