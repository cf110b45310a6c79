"""pfl's side of the benchmark: `FederatedAveraging` on its `SimulatedBackend`."""

import itertools
import sys
from importlib.metadata import version

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

import protocol
from torch_models import model_of, prepared, tensors


class Timed(TrainingProcessCallback):
    """From the end of one round to the end of the next, less the time it is not asked for."""

    def __init__(self, rounds, net):
        self.rounds, self.net = rounds, net

    def on_train_begin(self, *, model):
        del model
        self.rounds.begin()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        del aggregate_metrics, model, central_iteration
        self.rounds.end(self.net.num_steps)
        self.net.num_steps = 0
        return not self.rounds.begin(), Metrics()


def main(name, path, check):
    data, examples = prepared(name, path)
    workload = data.workload
    net = model_of(data, dropout=not check)
    places = itertools.chain.from_iterable(data.cohort(t) for t in itertools.count())

    def client(index):
        rows = slice(int(data.offsets[index]), int(data.offsets[index + 1]))
        return PyTorchTensorDataset(tuple(array[rows] for array in examples))

    rounds = protocol.Rounds(
        lambda: net.evaluate(*tensors(data.check())),
        versions={"pfl": version("pfl"), "torch": torch.__version__},
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=2**31 - 1, evaluation_frequency=2**31 - 1,
            train_cohort_size=workload.cohort_size, val_cohort_size=None,
        ),
        backend=SimulatedBackend(
            training_data=FederatedDataset(client, lambda: next(places)), val_data=None,
            postprocessors=[WeightByDatapoints()],
        ),
        model=PyTorchModel(
            model=net, local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=workload.learning_rate,
            local_batch_size=workload.batch_size,
        ),
        callbacks=[Timed(rounds, net)],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], check=sys.argv[3:] == ["check"])
