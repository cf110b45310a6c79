"""fedax's side of the benchmark: `fedax.simulate`, as users call it."""

import sys

import jax

import fedax
import protocol
import workloads
from jax_models import model_of


def main(name: str, path: str, check: bool) -> None:
    data = workloads.load(name, path)
    workload = data.workload
    model = model_of(data, dropout=not check)
    train = fedax.FederatedDataset(data.arrays, data.offsets)
    algorithm = fedax.fedavg(
        model, workload.learning_rate, batch_size=workload.batch_size,
        order="sequential" if check else "shuffled",
    )
    reports = fedax.simulate(
        fedax.Task(model, train), algorithm, num_rounds=2**31 - 1, evaluate_every=0,
        cohort_size=workload.cohort_size,
        sampling="uniform" if workload.model == "tiny" else lambda seed, t: data.cohort(t),  # noqa: ARG005
    )
    params = model.init(jax.random.key(0))
    metric = model.metrics["loss"]

    def loss() -> float:
        batch = data.check()
        values, weights = metric(model.outputs(params, batch), batch)
        return (values * weights).sum() / weights.sum()

    rounds = protocol.Rounds(loss, versions={"fedax": fedax.__version__, "jax": jax.__version__})
    while rounds.begin():
        report = next(reports)
        params = jax.block_until_ready(report.state.server_state.params)
        rounds.end(int(report.metrics["total_local_steps"]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], check=sys.argv[3:] == ["check"])
