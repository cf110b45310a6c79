"""MNIST by label or by writer, Fashion-MNIST and small digits by label."""

from __future__ import annotations

from fedax.algorithm import Model
from fedax.data.folder import load_dataset
from fedax.data.task import Task
from fedax.models import image_cnn, logistic_regression, mlp_classifier, pooled_cnn
from fedax.models.preprocessing import preprocessed, scaled
from fedax.tasks.populations import partitioned, sampled

MODELS = ("mlp", "logistic", "cnn")


def load(
    name: str,
    model: str,
    partition: str = "dirichlet(0.1)",
    num_clients: int = 100,
    partition_seed: int = 0,
) -> Task:
    """MNIST or Fashion-MNIST, 60,000 images in 10 classes.

    Args:
      name: of the data set.
      model: "mlp" (784-200-200-10, 199,210 parameters, of McMahan et al. 2017 and of FedDyn),
        "logistic" (7,850) or "cnn" (McMahan's, two 5x5 convolutions and 512 units).
      partition: how the training images are divided among clients, such as 'iid', 'dirichlet(0.1)',
        'dirichlet_by_class(0.5)' or 'shards(2)'. The default is the CIFAR-10 partition of Reddi et
        al. 2021.
      num_clients: the number of clients.
      partition_seed: seed of the partition.
    """
    data = partitioned(load_dataset(name), partition, num_clients, partition_seed)
    steps = [scaled(255.0)]
    made = preprocessed(_model(model), training=steps, evaluation=steps)
    return Task(made, data.train, data.test, name)


def load_writers(
    model: str,
    num_clients: int | None = None,
    client_seed: int = 0,
) -> Task:
    """MNIST by writer: the digits of 539 persons for training, those of 297 others for the test.

    Who wrote a digit is known from QMNIST (Yadav and Bottou 2019).

    Args:
      model: "logistic" (7,850 parameters), "mlp" or "cnn", as for `load`.
      num_clients: the number of writers, drawn at random; none: all 539.
      client_seed: seed of that draw.
    """
    data = sampled(load_dataset("mnist-writers"), num_clients, None, client_seed)
    steps = [scaled(255.0)]
    made = preprocessed(_model(model), training=steps, evaluation=steps)
    return Task(made, data.train, data.test, "mnist-writers")


def _model(name: str) -> Model:
    models = {
        "mlp": lambda: mlp_classifier(784, (200, 200), 10, initialization="pytorch"),
        "logistic": lambda: logistic_regression(784, 10),
        "cnn": lambda: pooled_cnn((28, 28, 1), 10),
    }
    return models[name]()


def load_digits(
    model: str,
    partition: str = "dirichlet(0.1)",
    num_clients: int = 20,
    partition_seed: int = 0,
) -> Task:
    """1,797 handwritten digits of 8 x 8 pixels, included in fedax.

    Args:
      model: "mlp" (64-64-10), "logistic" or "cnn" (that of Reddi et al. 2021, at this size).
      partition: how the training images are divided among clients, such as 'iid', 'dirichlet(0.1)',
        'dirichlet_by_class(0.5)' or 'shards(2)'.
      num_clients: the number of clients.
      partition_seed: seed of the partition.
    """
    models = {
        "mlp": lambda: mlp_classifier(64, (64,), 10),
        "logistic": lambda: logistic_regression(64, 10),
        "cnn": lambda: image_cnn((8, 8, 1), 10),
    }
    data = partitioned(load_dataset("digits"), partition, num_clients, partition_seed)
    steps = [scaled(16.0)]
    made = preprocessed(models[model](), training=steps, evaluation=steps)
    return Task(made, data.train, data.test, "digits")
