"""CIFAR-10, CIFAR-100 and CINIC-10, partitioned by label."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, TypeAlias

from fedax.algorithm import Model
from fedax.data.folder import load_dataset
from fedax.data.task import Task
from fedax.models import (
    logistic_regression,
    mlp_classifier,
    pooled_cnn,
    resnet18,
    resnet20,
)
from fedax.models.preprocessing import (
    central_crop,
    preprocessed,
    random_crop,
    random_flip,
    scaled,
    standardised,
    standardised_each,
)
from fedax.tasks.populations import partitioned, sampled

MODELS = ("resnet18", "resnet20", "cnn", "mlp", "logistic")
Preprocessing: TypeAlias = Literal["crop24", "pad32", "plain"]
# Mean and standard deviation of each channel over the training images, scaled to [0, 1]; those of
# CIFAR-10 were measured, those of CIFAR-100 are the ones in common use.
Channels: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
CHANNELS: Mapping[int, Channels] = {
    10: ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    100: ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
}
# Of CINIC-10 those that its authors publish.
CINIC_CHANNELS: Channels = ((0.4789, 0.4723, 0.4305), (0.2421, 0.2383, 0.2587))


def load10(
    model: str,
    partition: str = "dirichlet(0.1)",
    num_clients: int = 500,
    partition_seed: int = 0,
    preprocessing: Preprocessing = "crop24",
) -> Task:
    """CIFAR-10, 50,000 images in 10 classes.

    Args:
      model: "resnet18" or "resnet20" with group norm, "cnn" (FedDyn's, 797,962 parameters),
        "mlp" (two layers of 200) or "logistic".
      partition: how the training images are divided among clients, such as 'iid', 'dirichlet(0.1)',
          'dirichlet_by_class(0.5)' or 'shards(2)'. The default is the partition of Reddi et al.
          2021.
      num_clients: the number of clients; Reddi et al. 2021 uses 500 with 100 images each.
      partition_seed: seed of the partition.
      preprocessing: "crop24", as in Reddi et al. 2021: random crops of 24 x 24 and flips, each
        image standardised, the central crop in evaluation. "pad32", as in Karimireddy et al. 2020:
        padding by 4, random crops of 32 x 32 and flips, standardised by the training set's
        channels. "plain": standardisation only.
    """
    data = partitioned(load_dataset("cifar10"), partition, num_clients, partition_seed)
    return Task(_model(model, 10, preprocessing), data.train, data.test, "cifar10")


def load_cinic10(
    model: str,
    partition: str = "dirichlet(0.1)",
    num_clients: int = 500,
    partition_seed: int = 0,
    preprocessing: Preprocessing = "crop24",
) -> Task:
    """CINIC-10 (Darlow et al. 2018): CIFAR-10's classes, 90,000 training and 90,000 test images.

    Its 90,000 images for validation are not used.

    Args:
      model: as for `load10`.
      partition: how the training images are divided among clients, as for `load10`.
      num_clients: the number of clients; 500 have 180 images each.
      partition_seed: seed of the partition.
      preprocessing: as for `load10`, with the channels of CINIC-10's training images.
    """
    data = partitioned(load_dataset("cinic10"), partition, num_clients, partition_seed)
    made = _model(model, 10, preprocessing, CINIC_CHANNELS)
    return Task(made, data.train, data.test, "cinic10")


def load100(
    name: str,
    model: str,
    partition: str = "pachinko(0.1, 10)",
    num_clients: int = 500,
    partition_seed: int = 0,
    preprocessing: Preprocessing = "crop24",
) -> Task:
    """CIFAR-100, 50,000 images in 100 classes of 20 groups.

    Args:
      name: of the data set; "cifar100-resplit" does not have the published test images.
      model: "resnet18" or "resnet20" with group norm, "cnn" (FedDyn's), "mlp" (two layers of 200)
        or "logistic".
      partition: how the training images are divided among clients; the default is the Pachinko
          allocation of Reddi et al. 2021.
      num_clients: the number of clients; Reddi et al. 2021 uses 500 with 100 images each.
      partition_seed: seed of the partition.
      preprocessing: as for `load10`.
    """
    data = partitioned(load_dataset(name), partition, num_clients, partition_seed)
    return Task(_model(model, 100, preprocessing), data.train, data.test, name)


def load100_tff(
    model: str,
    num_clients: int | None = None,
    client_seed: int = 0,
    preprocessing: Preprocessing = "crop24",
) -> Task:
    """CIFAR-100 with TensorFlow Federated's 500 clients.

    Charles and Konečný 2020, Karimireddy et al. 2020 and Reddi et al. 2021 use these clients.

    Args:
      model: as for `load100`.
      num_clients: the number of clients, drawn at random; none: all 500.
      client_seed: seed of that draw.
      preprocessing: as for `load10`.
    """
    data = sampled(load_dataset("cifar100-tff"), num_clients, None, client_seed)
    return Task(_model(model, 100, preprocessing), data.train, data.test, "cifar100-tff")


def _model(
    name: str, num_classes: int, preprocessing: Preprocessing, channels: Channels | None = None
) -> Model:
    """The network of that name behind the preprocessing of that name."""
    shape = (24, 24, 3) if preprocessing == "crop24" else (32, 32, 3)
    models = {
        "resnet18": lambda: resnet18(shape, num_classes),
        "resnet20": lambda: resnet20(shape, num_classes),
        "cnn": lambda: pooled_cnn(
            shape, num_classes, num_filters=(64, 64), padding="VALID", hidden_sizes=(384, 192),
            initialization="pytorch",
        ),
        "mlp": lambda: mlp_classifier(
            math.prod(shape), (200, 200), num_classes, initialization="pytorch"
        ),
        "logistic": lambda: logistic_regression(math.prod(shape), num_classes),
    }
    by_channel = [scaled(255.0), standardised(*(channels or CHANNELS[num_classes]))]
    training, evaluation = {
        "crop24": (
            [random_crop(24), random_flip(), standardised_each()],
            [central_crop(24), standardised_each()],
        ),
        "pad32": ([random_crop(32, padding=4), random_flip(), *by_channel], by_channel),
        "plain": (by_channel, by_channel),
    }[preprocessing]
    return preprocessed(models[name](), training=training, evaluation=evaluation)
