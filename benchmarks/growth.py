"""How the seconds and the memory of a round grow, one quantity at a time.

    python benchmarks/growth.py                  all quantities, some four minutes
    python benchmarks/growth.py cohort devices   some of them

Each point is a process of its own, so its peak memory is its own too. FedAvg trains a network with
one hidden layer on 100 random features; all that a row does not name is as in `Point`. Prints the
tables of docs/notebook/growth.md. A slope is that of a line through the logarithms: 1 is
proportional, 0 is constant.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

import numpy as np

import protocol


class Point(NamedTuple):
    """What is trained. With `spread` s the clients' sizes are 100 exp(s z - s^2 / 2), in 1 to 10^4,
    where z are the quantiles of a normal distribution: their mean stays near 100.
    """

    cohort: int = 10
    population: int = 1000
    spread: float = 0.0
    units: int = 10  # 111 parameters each
    steps: int = 10
    settings: int = 0
    devices: int = 2


QUANTITIES = {
    "cohort": [10, 30, 100, 300, 1000],
    "population": [10**3, 10**4, 10**5, 10**6],
    "spread": [0.0, 0.5, 1.0, 1.5, 2.0],
    "units": [100, 1000, 10**4, 10**5, 9 * 10**5],
    "steps": [1, 10, 100, 1000],
    "settings": [1, 4, 16, 64, 256],
    "devices": [1, 2, 4],
}
# What stands beside a quantity, so that a round is long enough to be timed.
BESIDE = {
    "spread": {"cohort": 20, "steps": 0},
    "population": {"steps": 1},
    "devices": {"cohort": 40, "units": 1000},
}
FEATURES, CLASSES, BATCH = 100, 10, 10


def measure(point: Point) -> dict[str, float]:
    """Seconds of a round (median), of the first one, and peak MB."""
    import jax  # noqa: PLC0415 - the processes that measure need it, this one does not
    import jax.numpy as jnp  # noqa: PLC0415

    import fedax  # noqa: PLC0415
    from fedax.devices.mesh import client_mesh  # noqa: PLC0415

    jax.config.update("jax_num_cpu_devices", point.devices)
    rng = np.random.default_rng(0)
    sizes = np.full(point.population, 20)
    if point.spread:
        ranks = (rng.permutation(point.population) + 0.5) / point.population
        normal = np.array([statistics.NormalDist().inv_cdf(rank) for rank in ranks])
        sizes = 100 * np.exp(point.spread * normal - point.spread**2 / 2)
        sizes = np.clip(sizes.round(), 1, 10**4).astype(int)
    elif not point.steps:
        sizes[:] = 100
    # All examples are the same row, so that a million clients fit into the memory.
    total = int(sizes.sum())
    x = np.broadcast_to(rng.normal(size=(1, FEATURES)).astype(np.float32), (total, FEATURES))
    data = fedax.FederatedDataset(
        {"x": x, "y": np.arange(total, dtype=np.int32) % CLASSES},
        np.concatenate([[0], np.cumsum(sizes)]),
    )

    def init(key: jax.Array) -> list[jax.Array]:
        return [
            jax.random.normal(key, (FEATURES, point.units), jnp.float32) / 10,
            jnp.zeros(point.units, jnp.float32), jnp.zeros((point.units, CLASSES), jnp.float32),
        ]

    def apply(params: list[jax.Array], x: jax.Array) -> jax.Array:
        return jax.nn.relu(x @ params[0] + params[1][None, :]) @ params[2]

    task = fedax.Task(fedax.classification(init, apply), data)
    work = {"num_local_steps": point.steps} if point.steps else {"num_local_epochs": 1}
    if point.settings:
        return _of_a_sweep(point, task, work)
    rounds = fedax.simulate(
        task, fedax.fedavg(task.model, 0.01, batch_size=BATCH, **work), num_rounds=10**6,
        cohort_size=point.cohort, evaluate_every=0, donate=True,
        mesh=client_mesh() if point.devices > 1 else None,
    )
    seconds: list[float] = []
    began = time.perf_counter()
    while len(seconds) < 4 or (time.perf_counter() - began < 3 and len(seconds) < 300):
        start = time.perf_counter()
        jax.block_until_ready(next(rounds).state.server_state.params)
        seconds.append(time.perf_counter() - start)
    return {"round": statistics.median(seconds[1:]), "first": seconds[0],
            "MB": protocol.peak_megabytes()}


def _of_a_sweep(point: Point, task: object, work: dict[str, int]) -> dict[str, float]:
    """A round of all settings: what 420 rounds take more than 20, divided by 400."""
    import fedax  # noqa: PLC0415

    seconds: dict[int, float] = {}
    for num_rounds in (20, 20, 420):  # the first compiles
        start = time.perf_counter()
        fedax.sweep(
            task, fedax.fedavg,
            {"client_learning_rate": np.linspace(0.001, 0.1, point.settings).tolist(),
             "batch_size": BATCH, **work},
            num_rounds=num_rounds, cohort_size=point.cohort, evaluate_every=0, progress=False,
        )
        seconds[num_rounds] = time.perf_counter() - start
    return {"round": (seconds[420] - seconds[20]) / 400, "first": seconds[20],
            "MB": protocol.peak_megabytes()}


def table(quantity: str) -> str:
    """A quantity's points in Markdown, with the slope from each to the next."""
    found = []
    for value in QUANTITIES[quantity]:
        point = Point(**{**BESIDE.get(quantity, {}), quantity: value})
        process = subprocess.run(
            [sys.executable, __file__, json.dumps(point._asdict())], check=True,
            capture_output=True, text=True,
        )
        found.append((value, json.loads(process.stdout.splitlines()[-1])))
    first = "20 rounds" if quantity == "settings" else "first round"
    lines = [f"| {quantity} | ms a round | slope | {first}, s | peak MB | slope |",
             "|---|---|---|---|---|---|"]
    slopes = [("", "")]
    for (a, before), (b, after) in itertools.pairwise(found):
        if quantity == "spread":
            slopes.append(("", ""))
            continue
        slopes.append(tuple(
            f"{math.log(after[name] / before[name]) / math.log(b / a):.2f}"
            for name in ("round", "MB")
        ))
    for (value, point), (of_time, of_memory) in zip(found, slopes, strict=True):
        lines.append(
            f"| {value:,} | {1000 * point['round']:.3g} | {of_time} | {point['first']:.1f} "
            f"| {point['MB']:,.0f} | {of_memory} |"
        )
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    if arguments and arguments[0].startswith("{"):
        print(json.dumps(measure(Point(**json.loads(arguments[0])))))
        return
    for quantity in arguments or QUANTITIES:
        print(f"\n{table(quantity)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
