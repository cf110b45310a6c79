"""The loop that sends rounds to the device and prepares the next ones while it works."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from fedax.algorithm import PyTree
from fedax.devices.processes import lost_processes
from fedax.rounds.client_store import ClientStore
from fedax.rounds.dispatch import Pace, Prepared, Preparer, as_here
from fedax.rounds.timing import Stopwatch


class Turn(NamedTuple):
    """Rounds that went to the device together, done.

    Attributes:
      prepared: which rounds, and whose.
      infos: what the device says of them, on the host, stacked by round.
      server_state: after the last of them.
      client_states: of the cohort after them, which are not in the store yet.
      times: `seconds` without compiling, in it `data_seconds` of waiting for data, and
        `compile_seconds`, of all rounds together.
    """

    prepared: Prepared
    infos: Any
    server_state: Any
    client_states: PyTree
    times: dict[str, float]

    @property
    def number(self) -> int:
        """The last of the rounds, from 1."""
        return self.prepared.first + self.prepared.num_rounds

    def keep(self, store: ClientStore, done: np.ndarray | None = None) -> None:
        """Stores the states of the clients that did all; the others' are as before, or nobody's.

        Args:
          store: where they are kept; one without states takes nothing.
          done: who did all, bool [cohort_size]; all of them by default.
        """
        if not store.holds_anything:
            return
        keeps = np.asarray(self.prepared.data.repeats[0]) == 0
        if done is not None:
            keeps &= done
        states = self.client_states
        if not keeps.all():  # or the states are copied once more
            states = jax.tree.map(lambda leaf: np.asarray(leaf)[keeps], states)
        store.write(self.prepared.client_ids[0][keeps], states)


def turns(
    step: Callable[..., tuple[Any, PyTree, Any]],
    server_state: Any,
    round_index: int,
    store: ClientStore,
    key: jax.Array,
    prepare: Preparer,
    pace: Pace,
) -> Generator[Turn]:
    """Runs all rounds that `prepare` makes ready, from this round_index on.

    The caller writes a turn's client states into the store before taking the next turn.

    Args:
      step: (server_state, client_states, cohorts, count, key) -> the server state, the clients'
        states and the infos after `count` rounds.
      server_state, store: before them.
      key: the run's.
      prepare, pace: which rounds go together.
    """
    thread = ThreadPoolExecutor(1, "fedax-data")
    try:
        following = thread.submit(as_here(prepare), round_index)
        while True:
            watch = Stopwatch()
            prepared = following.result()
            if prepared is None:
                return
            waiting = watch.lap()
            number = prepared.first + prepared.num_rounds
            following = thread.submit(as_here(prepare), number)  # while the device works
            server_state, client_states, infos = step(
                server_state, store.read(prepared.client_ids[0]), prepared.data,
                np.int32(prepared.num_rounds), key,
            )
            with lost_processes(number):
                infos = jax.device_get(infos)
            running = watch.lap()
            pace.learn(running.seconds - running.compiling, prepared.num_rounds)
            yield Turn(prepared, infos, server_state, client_states, {
                "seconds": waiting.seconds + running.seconds - running.compiling,
                "data_seconds": waiting.seconds,
                "compile_seconds": running.compiling,
            })
            del client_states  # they are in the store now; the next round needs the memory
    finally:
        if not sys.is_finalizing():  # nothing is left to wait with then
            thread.shutdown(wait=False, cancel_futures=True)
