"""flwr's side of the benchmark: its `FedAvg` on its own simulation engine (Ray).

As many nodes as clients in a cohort; the message to each names the client whose data it trains
on, so that the cohorts are everybody's. Registering the whole population would only cost more.
"""

import contextlib
import os
import sys
from importlib.metadata import version

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

import protocol
import torch_models
import workloads


class OverError(Exception):
    """The driver wants no more rounds."""


class Timed(FedAvg):
    """FedAvg that asks before a round and names the clients."""

    def __init__(self, rounds, data):
        super().__init__(fraction_evaluate=0.0, min_train_nodes=data.workload.cohort_size,
                         min_available_nodes=data.workload.cohort_size)
        self.rounds, self.data, self.arrays, self.num_steps = rounds, data, None, 0

    def configure_train(self, server_round, arrays, config, grid):
        if server_round > 1:
            self.rounds.end(self.num_steps)
        self.arrays = arrays
        if not self.rounds.begin():
            raise OverError
        messages = super().configure_train(server_round, arrays, config, grid)
        return [
            Message(
                RecordDict({"arrays": arrays, "config": ConfigRecord({"client": int(client)})}),
                dst_node_id=message.metadata.dst_node_id,
                message_type=message.metadata.message_type,
            )
            for message, client in zip(messages, self.data.cohort(server_round - 1), strict=True)
        ]

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(f"A client failed: {reply.error}")
        self.num_steps = sum(int(reply.content["metrics"]["num-steps"]) for reply in replies)
        return super().aggregate_train(server_round, replies)


def main(name, path, check):
    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    def train(message, context):
        del context
        data, examples = torch_models.prepared(name, path)
        net = torch_models.model_of(data, dropout=not check)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        client = message.content["config"]["client"]
        start, stop = int(data.offsets[client]), int(data.offsets[client + 1])
        optimizer = torch.optim.SGD(net.parameters(), lr=data.workload.learning_rate)
        size = data.workload.batch_size
        for first in range(start, stop, size):
            rows = slice(first, min(first + size, stop))
            optimizer.zero_grad()
            net.loss(*(array[rows] for array in examples)).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": stop - start, "num-steps": net.num_steps})
        return Message(
            RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}),
            reply_to=message,
        )

    @server_app.main()
    def serve(grid, context):
        del context
        data, _ = torch_models.prepared(name, path)
        net = torch_models.model_of(data, dropout=not check)

        def loss():
            net.load_state_dict(strategy.arrays.to_torch_state_dict())
            return net.evaluate(*torch_models.tensors(data.check()))

        rounds = protocol.Rounds(
            loss, versions={"flwr": version("flwr"), "ray": version("ray"),
                            "torch": torch.__version__}
        )
        strategy = Timed(rounds, data)
        strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=2**31 - 1)

    cohort_size = workloads.WORKLOADS[name].cohort_size
    with contextlib.suppress(OverError):
        run_simulation(
            server_app, client_app, num_supernodes=cohort_size,
            backend_config={"client_resources": {"num_cpus": 1}},
        )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], check=sys.argv[3:] == ["check"])
