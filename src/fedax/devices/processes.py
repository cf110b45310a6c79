"""One training over several processes, of one machine or many (JAX's own multi-process runtime)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils


class ProcessError(RuntimeError):
    """The processes cannot find each other, or one was lost; the message is a sentence."""


def connect(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    timeout: int = 300,
) -> None:
    """Joins the processes of one training; call it before anything else of JAX.

    Args:
      coordinator: host:port of process 0, which the others can reach; None: JAX finds it, the
        number of processes and this one's id from the cluster's environment (SLURM, Kubernetes,
        Open MPI, TPU pods).
      num_processes: P >= 1.
      process_id: of this process, 0 to P - 1.
      timeout: seconds to wait for the others.

    Raises:
      ProcessError: they do not come together, or only a part of the arguments is given.
    """
    given = (coordinator, num_processes, process_id)
    if any(value is not None for value in given) and any(value is None for value in given):
        raise ProcessError(
            "Processes are found from the cluster, or given by all three of coordinator, number "
            f"of processes and process id, but these are {', '.join(map(str, given))}."
        )
    if num_processes is not None and process_id is not None and not (
        0 <= process_id < num_processes
    ):
        raise ProcessError(
            f"A process id must be in [0, {num_processes - 1}], but is {process_id}."
        )
    try:
        jax.distributed.initialize(
            coordinator, num_processes, process_id, initialization_timeout=timeout
        )
    except (RuntimeError, ValueError) as error:
        raise ProcessError(
            f"The processes of the training did not come together ({error}). Every process needs "
            "the same coordinator and number of processes, and an id of its own."
        ) from None


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
    return bool(multihost_utils.broadcast_one_to_all(np.asarray(decision)))


@contextlib.contextmanager
def lost_processes(round_number: int) -> Iterator[None]:
    """Turns what JAX raises when another process is gone into a sentence."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not are_several():
            raise
        raise ProcessError(
            f"Round {round_number}: another process of the training was lost, or cannot be reached "
            f"({str(error).splitlines()[0]}). The last checkpoint is whole; start all processes "
            "again with --resume."
        ) from None
