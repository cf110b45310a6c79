"""How many clients train batched at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Of the memory that is free, what a chunk may take.
SHARE = 0.8


def automatic_chunk(
    program: Callable[[int], Any], arguments: tuple[Any, ...], cohort_size: int, device: Any
) -> int:
    """The chunk size for a device: 1 on a CPU, elsewhere as many clients as fit into its memory.

    On a CPU, batching clients gains nothing (see the log). Elsewhere one client leaves much of the
    device idle. The compiler reports once, for chunks of one, how much memory a client needs.

    Args:
      program: clients_per_chunk -> the jitted rounds.
      arguments: arguments of the rounds.
      cohort_size: clients on the device, the largest useful chunk.
      device: where they run.
    """
    if device.platform == "cpu":
        return 1
    memory = device.memory_stats() or {}
    if "bytes_limit" not in memory:
        return cohort_size
    free = memory["bytes_limit"] - memory.get("bytes_in_use", 0)
    needs = program(1).lower(*arguments).compile().memory_analysis()
    return fitting_chunk(
        free - needs.output_size_in_bytes, needs.temp_size_in_bytes, cohort_size
    )


def fitting_chunk(free: int, client: int, cohort_size: int) -> int:
    """The size of equal chunks, as few as can be, each of which needs at most `SHARE` of `free`.

    Args:
      free: bytes.
      client: bytes that one client needs.
      cohort_size: all clients.

    Example:
      >>> fitting_chunk(1000, 100, 20)  # 8 fit at a time: three chunks
      7
      >>> fitting_chunk(1000, 10_000, 20)  # at least one
      1
    """
    most = min(max(int(SHARE * free / max(client, 1)), 1), cohort_size)
    num_chunks = -(-cohort_size // most)
    return -(-cohort_size // num_chunks)
