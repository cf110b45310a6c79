"""How the driver and a framework's process talk, so that rounds of several take turns.

The driver starts a process for each framework and writes lines to its standard input; the process
answers each with one line of JSON. `go N` runs a turn of N rounds and answers how long it took,
`loss` evaluates the model, `rate` measures matrix products and `evaluate KIND` takes the time of
an evaluation of this kind where the process offers it, and the end of the input ends the process.
Only the standard library is used: every environment has it.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any


class Rounds:
    """The framework's side: waits to be asked, times turns of rounds, answers.

    Inside a turn a framework may go on before the device has done a round; the clock stops when
    the turn's last round is there.

    Args:
      loss: evaluates the model as it is now.
      rate: measures the machine, if this process is the one that does.
      evaluate: kind -> a function that evaluates the model as it is now on `Data.test` and returns
        the loss: of all examples ("pooled"), the mean of the clients' ("clients"), or that of the
        clients' second halves after they have trained on the first ("personalised").
    """

    def __init__(
        self,
        loss: Callable[[], float] | None = None,
        rate: Callable[[], float] | None = None,
        evaluate: Mapping[str, Callable[[], float]] = MappingProxyType({}),
        **about: Any,
    ) -> None:
        self.loss = loss
        self._rate, self._evaluate = rate, evaluate
        # Libraries print to standard output what they like; answers have a channel of their own.
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._left = 0
        self._asked = 0
        self._steps = 0
        self._start, self._seconds = 0.0, 0.0
        self._answer(ready=True, **about)

    def begin(self) -> bool:
        """Waits until a round is wanted; False when there is no more. A turn starts the clock."""
        if self._left:
            return True
        if self._asked:
            self._answer(
                seconds=self._seconds, rounds=self._asked, steps=self._steps,
                megabytes=peak_megabytes(),
            )
            self._asked, self._steps = 0, 0
        while not self._left:
            command = sys.stdin.readline().split()
            if not command:
                return False
            if command[0] == "go":
                self._left = self._asked = int(command[1])
            elif command[0] == "loss":
                self._answer(loss=None if self.loss is None else float(self.loss()))
            elif command[0] == "rate" and self._rate is not None:
                self._answer(rate=self._rate())
            elif command[0] == "evaluate" and command[1] in self._evaluate:
                start = time.perf_counter()
                loss = float(self._evaluate[command[1]]())
                self._answer(seconds=time.perf_counter() - start, loss=loss)
            else:
                raise ValueError(f"The driver asked for {command}.")
        self._start = time.perf_counter()
        return True

    def end(self, num_steps: int, wait: Callable[[], object] = lambda: None) -> None:
        """Ends a round of so many local steps.

        After a turn's last one `wait` is called, which returns when the result is there, and the
        clock stops.
        """
        self._steps += num_steps
        self._left -= 1
        if not self._left:
            wait()
            self._seconds = time.perf_counter() - self._start

    def _answer(self, **answer: Any) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()


def peak_megabytes() -> float:
    """Peak resident memory of this process, and on Linux of those it started, added up."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kilobytes = own / 1024 if sys.platform == "darwin" else own
    for process in _descendants(os.getpid()):
        try:
            status = Path(f"/proc/{process}/status").read_text()
        except OSError:  # it has ended
            continue
        kilobytes += sum(
            int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")
        )
    return kilobytes / 1024


def _descendants(process: int) -> list[int]:
    found = []
    for path in Path("/proc").glob(f"{process}/task/*/children"):
        try:
            children = [int(child) for child in path.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *_descendants(child)]
    return found
