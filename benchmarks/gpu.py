"""What fedax does on a GPU: published workloads in full, and what to choose there.

    python benchmarks/gpu.py                        the table; about five minutes on a large GPU
    python benchmarks/gpu.py --out FILE --json FILE
    python benchmarks/gpu.py --rounds 2 --clients 50 --parts femnist    a try, on a CPU too

One device, synthetic data with a fixed seed, `fedax.simulate` with the options that `fedax.train`
gives it. What it runs stands in docs/notebook/benchmarks.md.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import fedax
from fedax.models.convolution import Implementation
from fedax.models.image_cnn import image_cnn
from fedax.models.mlp import mlp
from fedax.rounds.evaluation import Evaluator
from workloads import WORKLOADS, noisy_pictures

GOAL_SECONDS = 60
NUM_LAST = 10  # rounds over which the last loss is a mean
CHUNKS = (50, 10, 1, 25, 5)
BATCHES = (512, 2048, 8192, 128)  # of an evaluation
TIMES = 5  # that an evaluation is repeated
# Shape and classes of the synthetic pictures.
PICTURES = {
    "logistic": ((784,), 10), "cifar_cnn": ((32, 32, 3), 10), "emnist_cnn": ((28, 28, 1), 62),
}


class Setting(NamedTuple):
    """Something to run.

    Attributes:
      name: what the table calls it.
      task, algorithm, num_rounds: of the run.
      options: of `fedax.simulate`.
      goal: seconds for all rounds, if there is a goal.
      published: what others report for the same workload.
      batch_size: of evaluations, which alone are measured then; 0: rounds are.
    """

    name: str
    task: fedax.Task
    algorithm: fedax.FederatedAlgorithm
    num_rounds: int
    options: dict[str, Any]
    goal: float | None = None
    published: str = ""
    batch_size: int = 0


class Row(NamedTuple):
    """What came out of a setting. Times are in seconds; NaN is what was not measured.

    Attributes:
      name, goal, published: as in `Setting`.
      device: "CPU", or what the GPU is called.
      rounds, num_rounds: how many were done, and how many were asked for.
      seconds: from the first sample to the last report, compilation and evaluations included.
      round_seconds: median, without compilation and evaluations.
      compile_seconds, evaluation_seconds: parts of `seconds`; drawing the parameters is another,
        compiled operation by operation.
      all_seconds: `seconds` if all rounds were done, otherwise extrapolated.
      peak_megabytes: of the device since the process began, so it never falls from row to row.
      first_loss, last_loss: training losses of the first round and of the last ten.
      test_accuracy: at the last evaluation.
      note: why something is missing.
    """

    name: str
    device: str
    rounds: int = 0
    num_rounds: int = 0
    seconds: float = math.nan
    round_seconds: float = math.nan
    compile_seconds: float = math.nan
    evaluation_seconds: float = math.nan
    all_seconds: float = math.nan
    peak_megabytes: float = math.nan
    first_loss: float = math.nan
    last_loss: float = math.nan
    test_accuracy: float = math.nan
    goal: float | None = None
    published: str = ""
    note: str = ""


def goal_of(whole: bool) -> float | None:
    """The goal of a published workload, on a GPU and if it is run as a whole."""
    return GOAL_SECONDS if whole and device_name() != "CPU" else None


# Makes a part's settings, given the most rounds and the most clients.
def cifar(most_rounds: int, most_clients: int) -> Iterator[Setting]:
    """The CIFAR-10 benchmark of pfl."""
    task = image_task("cifar_cnn", np.full(min(1000, most_clients), 50), 10_000)
    yield Setting(
        "CIFAR-10 as in pfl", task, fedax.fedavg(task.model, 0.1, 1.0, batch_size=10),
        min(1500, most_rounds), {"cohort_size": min(50, most_clients), "evaluate_every": 10},
        goal_of(most_rounds >= 1500 and most_clients >= 1000),
        "7 to 72 times as fast as others, by its authors; no seconds known here",
    )


def femnist(most_rounds: int, most_clients: int) -> Iterator[Setting]:
    """The FEMNIST benchmark of FLUTE: 3,400 clients, 671,585 images, and 77,483 to test on."""
    num_clients = min(3400, most_clients)
    task = image_task(
        "emnist_cnn", femnist_sizes(num_clients), round(num_clients / 3400 * 77_483)
    )
    yield Setting(
        "FEMNIST as in FLUTE", task, fedax.fedavg(task.model, 0.1, 1.0, batch_size=20),
        min(1500, most_rounds), {"cohort_size": min(10, most_clients), "evaluate_every": 50},
        goal_of(most_rounds >= 1500 and most_clients >= 3400),
        "8 min 22 s",
    )


def femnist_sizes(num_clients: int) -> np.ndarray:
    """Images of each client: log-normal, as many together as that share of FEMNIST's clients has.

    Of the real sizes only the sum is used; the spread of 0.5 is that of workloads.py.
    """
    sizes = np.exp(0.5 * np.random.default_rng(0).standard_normal(num_clients))
    total = num_clients / 3400 * 671_585
    ends = np.round(np.cumsum(sizes) / sizes.sum() * total).astype(np.int64)
    return np.diff(ends, prepend=0)


def shakespeare(most_rounds: int, most_clients: int) -> Iterator[Setting]:
    """The paper preset's FedAvg on Shakespeare."""
    task = fedax.load_task("shakespeare", model="reddi2021")
    algorithm = fedax.fedavg(task.model, 1.0, 1.0, batch_size=4, weighting="num_tokens")
    yield Setting(
        "Shakespeare LSTM", task, algorithm, min(100, most_rounds),
        {"cohort_size": min(10, most_clients), "evaluate_every": 0},
    )


def logistic(most_rounds: int, most_clients: int) -> Iterator[Setting]:
    """Logistic regression 784-10, as in workloads.py."""
    workload = WORKLOADS["logistic"]
    rng = np.random.default_rng(0)
    logs = workload.spread * rng.standard_normal(min(workload.num_clients, most_clients))
    sizes = np.maximum((workload.median_examples * np.exp(logs)).astype(np.int64), 1)
    task = image_task("logistic", sizes, 1000)
    algorithm = fedax.fedavg(task.model, workload.learning_rate, batch_size=workload.batch_size)
    yield Setting(
        "logistic regression", task, algorithm, min(1000, most_rounds),
        {"cohort_size": min(workload.cohort_size, most_clients), "evaluate_every": 0},
    )


def choices(most_rounds: int, most_clients: int) -> Iterator[Setting]:
    """pfl's CIFAR-10 with each number of clients at a time and each convolution."""
    (setting,) = cifar(most_rounds, most_clients)
    implementations: tuple[Implementation, ...] = ("xla", "matmul")
    for chunk, implementation in itertools.product(CHUNKS, implementations):
        model = cnn("cifar_cnn", implementation)
        yield Setting(
            f"CIFAR-10, {chunk} at a time, {implementation}", setting.task._replace(model=model),
            fedax.fedavg(model, 0.1, 1.0, batch_size=10), min(20, most_rounds),
            {
                "cohort_size": setting.options["cohort_size"], "evaluate_every": 0,
                "clients_per_chunk": min(chunk, setting.options["cohort_size"]),
            },
        )


def evaluations(most_rounds: int, most_clients: int) -> Iterator[Setting]:
    """The test images of both CNNs, with batches of so many."""
    for make in (cifar, femnist):
        (setting,) = make(most_rounds, most_clients)
        for batch_size in BATCHES:
            yield Setting(
                f"{setting.name}, evaluated in batches of {batch_size}", setting.task,
                setting.algorithm, min(TIMES, most_rounds), {}, batch_size=batch_size,
            )


# Of the time that is left each part may take its weight's share.
PARTS = {
    "cifar": (cifar, 6), "femnist": (femnist, 6), "shakespeare": (shakespeare, 2),
    "logistic": (logistic, 1), "choices": (choices, 5), "evaluations": (evaluations, 2),
}


def cnn(name: str, implementation: Implementation = "auto") -> fedax.Model:
    """A network of workloads.py by its name there."""
    shape, num_classes = PICTURES[name]
    return image_cnn(shape, num_classes, implementation=implementation)


def image_task(name: str, sizes: np.ndarray, num_test: int) -> fedax.Task:
    """Clients of so many synthetic images, and one of test images with the same classes."""
    num_train = int(sizes.sum())
    shape, classes = PICTURES[name]
    arrays = noisy_pictures(np.random.default_rng(0), classes, shape, num_train + num_test)
    train = {key: array[:num_train] for key, array in arrays.items()}
    test = {key: array[num_train:] for key, array in arrays.items()}
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    model = fedax.classification(*mlp((784, 10))) if name == "logistic" else cnn(name)
    return fedax.Task(
        model, fedax.FederatedDataset(train, offsets),
        fedax.FederatedDataset(test, np.array([0, num_test])),
    )


def measure(setting: Setting, seconds: float) -> Row:
    """Runs a setting, for at most so long."""
    history = fedax.History()
    start = time.perf_counter()
    for report in fedax.simulate(
        setting.task, setting.algorithm, num_rounds=setting.num_rounds,
        state_every=setting.num_rounds, donate=True, **setting.options,
    ):
        history.append(report.metrics)
        elapsed = time.perf_counter() - start
        if elapsed > seconds:
            break
    elapsed = time.perf_counter() - start
    done, asked = len(history), setting.num_rounds
    evaluating = sum(metrics.get("evaluation_seconds", 0.0) for metrics in history.rounds)
    working = float(history["seconds"].sum()) + evaluating
    losses = history["train_loss"].tolist()
    row = Row(
        setting.name, device_name(), done, asked, elapsed,
        round_seconds=statistics.median(history["seconds"].tolist()),
        compile_seconds=float(history["compile_seconds"].sum()), evaluation_seconds=evaluating,
        all_seconds=elapsed + (asked - done) * working / done,
        peak_megabytes=peak_megabytes(), first_loss=losses[0],
        last_loss=statistics.mean(losses[-NUM_LAST:]) if done > NUM_LAST else losses[-1],
        goal=setting.goal, published=setting.published,
    )
    accuracies = [m["test_accuracy"] for m in history.rounds if "test_accuracy" in m]
    if accuracies:
        row = row._replace(test_accuracy=float(accuracies[-1]))
    if done < asked:
        row = row._replace(note=f"its {seconds:.0f} s were over")
    return row


def measure_evaluation(setting: Setting) -> Row:
    """Evaluates the parameters that training begins with; a round is an evaluation."""
    model, test, repeats = setting.task.model, setting.task.test, setting.num_rounds
    assert test is not None
    evaluator, params = Evaluator(model, test, setting.batch_size), model.init(jax.random.key(0))
    begin, seconds, metrics = time.perf_counter(), [], {}
    for _ in range(repeats + 1):
        start = time.perf_counter()
        metrics = evaluator.overall(params)
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1:])
    return Row(
        setting.name, device_name(), repeats, repeats, time.perf_counter() - begin, median,
        seconds[0] - median, median, peak_megabytes=peak_megabytes(),
        first_loss=metrics["loss"], last_loss=metrics["loss"], test_accuracy=metrics["accuracy"],
    )


def run(options: argparse.Namespace) -> list[Row]:
    """All parts, as far as the time goes."""
    end = time.perf_counter() + options.seconds
    rows = []
    for place, part in enumerate(options.parts):
        make, weight = PARTS[part]
        weights = sum(PARTS[later][1] for later in options.parts[place:])
        left = end - time.perf_counter()
        if left <= 0:
            add(rows, Row(part, device_name(), note="skipped, the time was over"))
            continue
        part_end = time.perf_counter() + left * weight / weights
        settings = list(make(options.rounds, options.clients))
        for number, setting in enumerate(settings):
            left = part_end - time.perf_counter()
            if left > 0:
                row = attempt(setting, left / (len(settings) - number))
            else:
                row = empty(setting, "skipped, its part's time was over")
            add(rows, row)
    return rows


def attempt(setting: Setting, seconds: float) -> Row:
    """Runs a setting; the others are wanted even if it fails."""
    try:
        return measure_evaluation(setting) if setting.batch_size else measure(setting, seconds)
    except Exception as error:
        return empty(setting, f"failed: {str(error).strip().splitlines()[0]}")


def empty(setting: Setting, note: str) -> Row:
    return Row(
        setting.name, device_name(), 0, setting.num_rounds, published=setting.published, note=note
    )


def add(rows: list[Row], row: Row) -> None:
    """Keeps a row, and shows that there is one."""
    rows.append(row)
    print(line(row), flush=True)


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    head = (
        f"{datetime.date.today():%d %B %Y}, {device_name()}, jax {jax.__version__}, fedax "
        f"{fedax.__version__}."
    )
    if device_name() == "CPU":
        head += " A CPU, so only a try: the goals are for a GPU."
    titles = (
        "", "device", "rounds", "seconds in all", "a round, median", "compiling", "evaluating",
        "peak MB so far", "loss, first and last", "test accuracy", "goal", "published",
    )
    return "\n".join([
        head, "", cells(titles), "|" + "---|" * len(titles), *map(line, rows), *fastest(rows)
    ])


def fastest(rows: list[Row]) -> list[str]:
    """Which choice has the shortest round."""
    tried = [row for row in rows if " at a time, " in row.name and row.rounds > 1]
    if not tried:
        return []
    best = min(tried, key=lambda row: row.round_seconds)
    return ["", f"The shortest round of the choices: {best.name}."]


def line(row: Row) -> str:
    """A row of the table."""
    if not row.rounds:
        return cells([row.name, row.device, row.note, *[""] * 8, row.published])
    in_all = f"{row.seconds:.1f}"
    if row.rounds < row.num_rounds:
        in_all += f" ({row.note}; all rounds would take {row.all_seconds:.0f})"
    return cells([
        row.name, row.device, f"{row.rounds} of {row.num_rounds}", in_all,
        *(f"{value:.4g}" for value in (
            row.round_seconds, row.compile_seconds, row.evaluation_seconds
        )),
        "" if math.isnan(row.peak_megabytes) else f"{row.peak_megabytes:.0f}",
        f"{row.first_loss:.3f}, {row.last_loss:.3f}",
        "" if math.isnan(row.test_accuracy) else f"{row.test_accuracy:.3f}",
        goal(row), row.published,
    ])


def goal(row: Row) -> str:
    """Whether the goal was met, by all rounds or by what is extrapolated to them."""
    if row.goal is None:
        return ""
    met = "met" if row.all_seconds <= row.goal else "missed"
    return f"{row.goal:.0f} s: {met}"


def cells(texts: Any) -> str:
    return "| " + " | ".join(texts) + " |"


def device_name() -> str:
    device = jax.devices()[0]
    return "CPU" if device.platform == "cpu" else device.device_kind


def peak_megabytes() -> float:
    """The device's peak memory in this process, NaN where it does not say."""
    statistics_of_memory = jax.devices()[0].memory_stats() or {}
    return statistics_of_memory.get("peak_bytes_in_use", math.nan) / 1e6


def as_json(row: Row) -> dict[str, Any]:
    """The row's fields, where JSON has no NaN."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in row._asdict().items()
    }


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=420, help="for all parts; default 420")
    parser.add_argument("--rounds", type=int, default=10**6, help="at most so many, for a try")
    parser.add_argument(
        "--clients", type=int, default=10**6,
        help="at most so many, for a try (of Shakespeare: in a cohort)",
    )
    parser.add_argument("--out", type=Path, help="a file for the table, as Markdown")
    parser.add_argument("--json", type=Path, help="a file for the rows, as JSON")
    return parser.parse_args(arguments)


def main(options: argparse.Namespace) -> list[Row]:
    rows = run(options)
    text = table(rows)
    print(f"\n{text}")
    if options.out:
        options.out.write_text(text + "\n")
    if options.json:
        options.json.write_text(json.dumps([as_json(row) for row in rows], indent=1) + "\n")
    return rows


if __name__ == "__main__":
    main(parsed())
