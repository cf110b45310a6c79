"""Runs the same workloads in fedax and in its peers, in turns, and writes what came out.

    python benchmarks/environments.py          once; builds the virtual environments
    python benchmarks/run.py                   all workloads; see --help for some of them

Every framework has a process of its own that reads the same file. They take turns of one round, or
of many where rounds are fast, so what else the machine does falls on all of them alike. Needs
nothing but the standard library; what is measured how stands in docs/notebook/benchmarks.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from page import family, machine, write_section

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "notebook" / "benchmarks.md"
WORKLOADS = (
    "logistic", "emnist", "shakespeare", "cifar", "resnet18", "autoencoder", "mlp", "gru", "tags",
    "scaffold", "mime", "population",
)
NUM_COHORTS = 5  # as in workloads.py, which needs NumPy
EVALUATIONS = ("pooled", "clients", "personalised")
EVALUATE = ("fedax", "fedax (1 device)", "threads")  # those whose evaluations can be timed
PATIENCE = 1800  # seconds until an answer that does not come counts as a failure

# What is left out, and why.
IMPOSSIBLE = {
    ("population", "flwr"): "not run: its engine registers a node for each client before round 1",
    ("population", "fedax (1 device)"): "as fedax",
    **{
        (method, name): f"not run: it has no {title} here"
        for method, title in (("scaffold", "SCAFFOLD"), ("mime", "Mime"))
        for name in ("pfl", "pfl (1 thread)", "flwr")
    },
    **{
        ("scaffold", name): "not run: it has no SCAFFOLD"
        for name in ("fedjax", "fedjax (pmap, 2 devices)")
    },
}


class Runner(NamedTuple):
    """How a framework is started: script, environment, environment variables."""

    script: str
    environment: str
    variables: Mapping[str, str] = MappingProxyType({})


RUNNERS = {
    "fedax": Runner("run_fedax.py", "fedax"),
    "fedax (1 device)": Runner("run_fedax.py", "fedax", {"FEDAX_BENCHMARK_DEVICES": "1"}),
    "bare loop": Runner("run_bare.py", "fedax"),
    "fedjax": Runner("run_fedjax.py", "fedjax"),
    "fedjax (pmap, 2 devices)": Runner(
        "run_fedjax.py", "fedjax", {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    ),
    "threads": Runner("run_threads.py", "pfl", {"OMP_NUM_THREADS": "1"}),
    "pfl": Runner("run_pfl.py", "pfl"),
    "pfl (1 thread)": Runner("run_pfl.py", "pfl", {"OMP_NUM_THREADS": "1"}),
    "flwr": Runner("run_flwr.py", "flwr"),
}


class FailedError(Exception):
    """A framework's process has died or fallen silent."""


class Process:
    """A framework's process and what it measured.

    Attributes:
      seconds: for each turn, its time over its number of rounds.
      num_rounds, num_steps: of all turns, without warm-up: rounds and local steps.
      first: seconds of the first round.
    """

    def __init__(self, name: str, workload: str, options: argparse.Namespace) -> None:
        self.name, runner = name, RUNNERS[name]
        self.seconds: list[float] = []
        self.num_rounds, self.num_steps = 0, 0
        self.first, self.megabytes = float("nan"), float("nan")
        self.losses: list[float | None] = []
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed with the process)
        python = options.environments / runner.environment / "bin" / "python"
        command = [str(python), str(HERE / runner.script), workload, str(_file(workload, options))]
        # Without it PyTorch's threads spin while they wait for each other, which on a machine
        # that does anything else made a round of pfl ten times as long.
        variables = {"OMP_WAIT_POLICY": "PASSIVE"} | runner.variables
        start = time.perf_counter()
        self._process = subprocess.Popen(
            command + ["check"] * options.check, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._errors, text=True, env=os.environ | variables,
        )
        about = self._answer()
        self.versions = about["versions"]
        self.devices = about.get("devices", 1)
        self.startup = time.perf_counter() - start

    def ask(self, command: str) -> dict[str, Any]:
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        return self._answer()

    def go(self, num_rounds: int) -> float:
        """Takes a turn and returns its seconds a round."""
        answer = self.ask(f"go {num_rounds}")
        self.megabytes = answer["megabytes"]
        self.num_rounds += num_rounds
        self.num_steps += answer["steps"]
        self.seconds.append(answer["seconds"] / num_rounds)
        return self.seconds[-1]

    def warm_up(self, num_rounds: int) -> None:
        """The first rounds, which are not counted."""
        self.first = self.go(1)
        if num_rounds > 1:
            self.go(num_rounds - 1)
        self.seconds, self.num_rounds, self.num_steps = [], 0, 0

    def lead_in(self, num_rounds: int) -> None:
        """A turn that is not counted."""
        before = self.num_rounds, self.num_steps
        self.go(num_rounds)
        self.seconds.pop()
        self.num_rounds, self.num_steps = before

    def stop(self) -> None:
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._errors.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            self._errors.seek(0)
            tail = self._errors.read().strip().splitlines()[-1:]
            self._process.kill()
            raise FailedError(tail[0] if tail else "no answer")
        return json.loads(line)


def main(options: argparse.Namespace) -> None:
    options.data.mkdir(parents=True, exist_ok=True)
    for workload in options.workloads:
        if options.check:
            text = check(workload, options)
        elif options.evaluate:
            text = evaluate(workload, options)
        elif workload == "population":
            text = population(options)
        else:
            text = measure(workload, options)
        print(text, flush=True)
        kind = "check " if options.check else "evaluation " if options.evaluate else ""
        write_section(options.out, f"{kind}{workload} {family()}", text)


def measure(workload: str, options: argparse.Namespace) -> str:
    """Takes turns over a workload and returns the table."""
    options.load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    about = describe(workload, options)
    turn = about["rounds_a_turn"]
    with contextlib.ExitStack() as stack:
        running, failures = start_all(workload, options, stack)
        for name in list(running):
            try:
                running[name].warm_up(warm_up(turn, options))
            except FailedError as error:
                failures[name] = str(error)
                del running[name]
        rates = []
        for number in range(options.rounds):
            if "bare loop" in running and number % 5 == 0:
                rates.append(running["bare loop"].ask("rate")["rate"])
            for process in running.values():
                if turn > 1:  # after a pause threads need some 50 ms to spread over the cores
                    process.lead_in(turn)
                process.go(turn)
        for process in running.values():
            process.losses.append(process.ask("loss")["loss"])
        return table(about, options, running, failures, max(rates, default=float("nan")))


def warm_up(turn: int, options: argparse.Namespace) -> int:
    """Rounds that are not counted: whole turns, so that all later ones end where one should."""
    return turn * -(-(1 + options.warm_up) // turn)


def start_all(
    workload: str, options: argparse.Namespace, stack: contextlib.ExitStack
) -> tuple[dict[str, Process], dict[str, str]]:
    running, failures = {}, {}
    for name in options.peers:
        if (workload, name) in IMPOSSIBLE:
            failures[name] = IMPOSSIBLE[workload, name]
            continue
        try:
            process = Process(name, workload, options)
        except (FailedError, OSError) as error:
            failures[name] = f"failed: {error}"
            continue
        stack.callback(process.stop)
        process.losses.append(process.ask("loss")["loss"])
        running[name] = process
    return running, failures


def table(
    about: dict[str, Any], options: argparse.Namespace, running: dict[str, Process],
    failures: dict[str, str], rate: float,
) -> str:
    flops, turn = statistics.mean(about["flops"]), about["rounds_a_turn"]
    ours = running.get("fedax")
    some = next(iter(running.values()))
    turns = f", timed in turns of {turn}" if turn > 1 else ""
    devices = ours.devices if ours else 1
    lines = [
        machine(options.load),
        "",
        f"{some.num_rounds} rounds each{turns} after {warm_up(turn, options)} of warm-up, the same "
        f"cohorts, {some.num_steps / some.num_rounds:.0f} local steps a round. "
        f"Matrix products: {rate / 1e9:.0f} GFLOP/s. {versions(running)}."
        + (f" fedax takes the {devices} cores as devices." if devices > 1 else ""),
        "",
        "| | seconds a round: median (min, max) | fastest repeats | of fedax's: the same rounds "
        "| fastest repeats | first round, s | start, s | peak MB | of the matrix rate | loss |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in options.peers:
        if name not in running:
            lines.append(f"| {name} | {failures[name]} | | | | | | | | |")
            continue
        process = running[name]
        seconds = process.seconds
        median = statistics.median(seconds)
        fastest = _fastest(process, turn)
        ratios = [float("nan")] * 2
        if ours:
            ratios = [_ratio(process, ours), fastest / _fastest(ours, turn)]
        loss = "" if process.losses[-1] is None else f"{process.losses[-1]:.3f}"
        lines.append(
            f"| {name} | {median:.4g} ({min(seconds):.4g}, {max(seconds):.4g}) | {fastest:.4g} "
            f"| {ratios[0]:.2f} | {ratios[1]:.2f} | {process.first:.2f} | {process.startup:.1f} "
            f"| {process.megabytes:.0f} "
            f"| {flops / fastest / rate:.1%} | {loss} |"
        )
    return "\n".join(lines)


def _ratio(process: Process, ours: Process) -> float:
    """The median over turns of how much longer this took than the other, on the same cohorts."""
    return statistics.median(a / b for a, b in zip(process.seconds, ours.seconds, strict=True))


def _fastest(process: Process, turn: int) -> float:
    """What other work disturbs least: the fastest turn, of those with the same cohorts.

    Turns of one round differ in their cohort, so there it is the mean over the cohorts of the
    fastest round of each.
    """
    if turn > 1:
        return min(process.seconds)
    groups = [process.seconds[first::NUM_COHORTS] for first in range(NUM_COHORTS)]
    return statistics.mean(min(group) for group in groups if group)


def check(workload: str, options: argparse.Namespace) -> str:
    """Do all compute the same? Stored order, no dropout, so that no draw differs."""
    lines = [
        f"After {options.rounds} rounds in the stored order, without dropout, and the evaluations "
        "of that model (personalised: after one step with one minibatch):", "",
        f"| | loss before | loss after | local steps | {' | '.join(EVALUATIONS)} |",
        "|---|---|---|---|" + "---|" * len(EVALUATIONS),
    ]
    with contextlib.ExitStack() as stack:
        running, failures = start_all(workload, options, stack)
        for name, process in running.items():
            process.go(options.rounds)
            found = [process.losses[0], process.ask("loss")["loss"], process.num_steps]
            if name in EVALUATE:
                found += [process.ask(f"evaluate {kind}")["loss"] for kind in EVALUATIONS]
            cells = [f"{value:.5f}" if isinstance(value, float) else value or "" for value in found]
            cells += [""] * (3 + len(EVALUATIONS) - len(cells))
            lines.append(f"| {name} | {' | '.join(map(str, cells))} |")
        lines += [f"| {name} | {why} |" + " |" * 5 for name, why in failures.items()]
    return "\n".join(lines)


def evaluate(workload: str, options: argparse.Namespace) -> str:
    """Examples a second in the evaluations of a model, in turns."""
    lines = [
        "| | | examples a second: median (min, max) | of fedax's time, in turns: median "
        "| fastest |", "|---|---|---|---|---|",
    ]
    count = describe(workload, options)["num_test"]
    with contextlib.ExitStack() as stack:
        running, _ = start_all(workload, options, stack)
        for kind in options.evaluate:
            seconds: dict[str, list[float]] = {name: [] for name in running}
            for turn in range(options.rounds + 1):
                for name, process in running.items():
                    taken = process.ask(f"evaluate {kind}")["seconds"]
                    if turn:  # the first compiles
                        seconds[name].append(taken)
            for name, taken in seconds.items():
                rates = [count / value for value in taken]
                ours = seconds["fedax"]
                ratio = statistics.median(a / b for a, b in zip(taken, ours, strict=True))
                lines.append(
                    f"| {kind} | {name} | {statistics.median(rates):,.0f} ({min(rates):,.0f}, "
                    f"{max(rates):,.0f}) | {ratio:.2f} | {min(taken) / min(ours):.2f} |"
                )
    return "\n".join(lines)


def population(options: argparse.Namespace) -> str:
    """The cost of a round against the population's size and the round's number."""
    text = measure("population", options)
    turn = describe("population", options)["rounds_a_turn"]
    first, last = warm_up(turn, options), 10_000
    with contextlib.ExitStack() as stack:
        def start(workload: str, num_rounds: int = first) -> Process:
            process = Process("fedax", workload, options)
            stack.callback(process.stop)
            process.warm_up(num_rounds)
            return process

        def take_turns(*processes: Process) -> None:
            for _ in range(5 * options.rounds):  # these turns are short
                for process in processes:
                    process.lead_in(turn)
                    process.go(turn)

        few, many = start("population-100"), start("population")
        take_turns(few, many)
        sizes = _compare("100 clients", few, "342,477 clients", many)
        early = start("population-100")
        early_megabytes = early.megabytes
        late = start("population-100", last)
        late_megabytes = late.megabytes
        take_turns(early, late)
        numbers = _compare(f"rounds from {first + 1}", early, f"rounds from {last + 1:,}", late)
    return (
        f"{text}\n\nfedax with 100 clients and with 342,477: {sizes}\n\nfedax's first rounds and "
        f"those after {last:,}, in two processes that take turns: {numbers} Peak memory after "
        f"round {first}: {early_megabytes:.1f} MB; after round {last:,}: {late_megabytes:.1f} MB."
    )


def _compare(name: str, process: Process, other_name: str, other: Process) -> str:
    medians = statistics.median(process.seconds), statistics.median(other.seconds)
    lows = _low(process.seconds), _low(other.seconds)
    return (
        f"{name} {1e3 * medians[0]:.3f} ms a round (lower decile {1e3 * lows[0]:.3f}), "
        f"{other_name} {1e3 * medians[1]:.3f} ms ({1e3 * lows[1]:.3f}), ratio "
        f"{medians[1] / medians[0]:.3f} ({lows[1] / lows[0]:.3f})."
    )


def _low(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=10)[0]


def versions(running: dict[str, Process]) -> str:
    found: dict[str, str] = {}
    for process in running.values():
        found |= {process.name.split(" (")[0]: " ".join(
            f"{name} {version}" for name, version in process.versions.items()
        )}
    found.pop("bare loop", None)
    return "; ".join(found.values())


def _python(options: argparse.Namespace) -> str:
    return str(options.environments / "fedax" / "bin" / "python")


def _file(workload: str, options: argparse.Namespace) -> Path:
    """The workload's file, made if it is not there."""
    path = options.data / f"{workload}.npz"
    if not path.exists():
        command = [_python(options), str(HERE / "workloads.py"), "make", workload, str(path)]
        subprocess.run(command, check=True)
    return path


def describe(workload: str, options: argparse.Namespace) -> dict[str, Any]:
    """Operations in the local steps of a round, for each cohort, and the rounds of a turn."""
    command = [_python(options), str(HERE / "workloads.py"), "describe", workload,
               str(_file(workload, options))]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(answer)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--peers", nargs="+", choices=list(RUNNERS), default=list(RUNNERS))
    parser.add_argument("--rounds", type=int, help="turns; default 20, or 3 with --check")
    parser.add_argument("--warm-up", type=int, default=2, help="rounds after the first, at least")
    parser.add_argument("--check", action="store_true", help="compare losses instead of times")
    parser.add_argument(
        "--evaluate", nargs="*", choices=EVALUATIONS, metavar="KIND",
        help=f"time of evaluations instead of rounds, of {', '.join(EVALUATE)}: "
        f"{', '.join(EVALUATIONS)}; no kind: all",
    )
    parser.add_argument("--environments", type=Path, default=HERE / ".environments")
    parser.add_argument("--data", type=Path, default=HERE / ".data")
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args()
    if options.evaluate is not None:
        options.evaluate = options.evaluate or EVALUATIONS
        options.peers = [name for name in EVALUATE if name in options.peers]
    if options.rounds is None:
        options.rounds = 3 if options.check else 20
    return options


if __name__ == "__main__":
    sys.exit(main(_options()))
