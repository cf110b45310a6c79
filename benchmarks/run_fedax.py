"""fedax's side of the benchmark: `fedax.simulate`, with the options that `fedax.train` gives it."""

import functools
import os
import sys

import jax
import numpy as np

import fedax
import protocol
import workloads
from fedax.devices.memory import aligned
from fedax.devices.mesh import client_mesh, cores_as_devices, replicate
from fedax.rounds.evaluation import Evaluator
from jax_models import model_of


def part(data: workloads.Data, start: np.ndarray, end: np.ndarray) -> fedax.FederatedDataset:
    """The examples of clients from `start` to `end`."""
    rows = np.concatenate([np.arange(*ends) for ends in zip(start, end, strict=True)])
    arrays = {name: array[rows] for name, array in data.arrays.items()}
    return fedax.FederatedDataset(arrays, np.concatenate([[0], np.cumsum(end - start)]))


def main(name: str, path: str, check: bool) -> None:
    workload = workloads.WORKLOADS[name]
    several = workload.side_by_side and os.environ.get("FEDAX_BENCHMARK_DEVICES") != "1"
    if several:
        cores_as_devices()  # before JAX is used
    data = workloads.load(name, path)
    # As fedax's own functions that make data sets have them, so that no run copies them.
    data = data._replace(arrays={key: aligned(array) for key, array in data.arrays.items()})
    model = model_of(data, dropout=not check)
    train = fedax.FederatedDataset(data.arrays, data.offsets)
    algorithm = getattr(fedax, workload.method)(
        model, workload.learning_rate, batch_size=workload.batch_size,
        order="sequential" if check else "shuffled",
    )
    mesh = client_mesh() if several else None
    reports = fedax.simulate(
        fedax.Task(model, train), algorithm, num_rounds=2**31 - 1, evaluate_every=0,
        cohort_size=workload.cohort_size, donate=True, mesh=mesh,
        # Rounds go to the device together, but none with those of the next turn.
        state_every=1 if check else workload.rounds_a_turn,
        sampling="uniform" if workload.model == "tiny" else lambda seed, t: data.cohort(t),  # noqa: ARG005
    )
    params = replicate(model.init(jax.random.key(0)), mesh)  # as after a round
    examples = fedax.FederatedDataset.from_clients([data.check()])
    checks = Evaluator(model, examples, mesh=mesh)  # in batches, which need less memory

    test = fedax.FederatedDataset(data.test(), data.test_offsets())
    evaluator = Evaluator(model, test, mesh=mesh)

    @functools.cache
    def halves() -> fedax.Task:
        # A single step with all of a client's examples does not depend on their order.
        start, middle, end = data.halves(workload.batch_size if check else workloads.NUM_TEST)
        return fedax.Task(model, part(data, start, middle), part(data, middle, end))

    def personalised() -> float:
        found = fedax.evaluate_personalized(
            halves(), params, client_learning_rate=workload.learning_rate, num_local_epochs=1,
            batch_size=workload.batch_size, mesh=mesh,
        )
        return found.overall()["loss"]

    rounds = protocol.Rounds(
        lambda: checks.overall(params)["loss"], devices=mesh.size if mesh else 1,
        evaluate={
            "pooled": lambda: evaluator.overall(params)["loss"],
            "clients": lambda: float(np.nanmean(evaluator.per_client(params)["loss"])),
            "personalised": personalised,
        },
        versions={"fedax": fedax.__version__, "jax": jax.__version__},
    )
    while rounds.begin():
        report = next(reports)
        if report.state:  # a turn's last round has one
            params = report.state.server_state.params
        rounds.end(
            int(report.metrics["total_local_steps"]),
            functools.partial(jax.block_until_ready, params),
        )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], check=sys.argv[3:] == ["check"])
