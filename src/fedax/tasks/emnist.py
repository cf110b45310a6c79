"""EMNIST: digits and letters by their writers, for recognition or an autoencoder."""

from __future__ import annotations

import functools

from fedax.algorithm import Model
from fedax.data.folder import load_dataset
from fedax.data.task import Task
from fedax.models import (
    autoencoder,
    image_cnn,
    logistic_regression,
    mlp_classifier,
    pooled_cnn,
)
from fedax.models.metrics import mean_squared_error
from fedax.models.preprocessing import framed, preprocessed, scaled
from fedax.models.preprocessing import inverted as turned
from fedax.tasks.populations import sampled, split_again

MODELS = ("cnn", "mcmahan", "decay2021", "mlp", "logistic")


def load(
    model: str,
    inverted: bool = False,
    num_clients: int | None = None,
    client_seed: int = 0,
) -> Task:
    """EMNIST with 62 classes; pixels are 1 for white paper and 0 for ink, unless inverted.

    Args:
      model: "cnn" (Karimireddy et al. 2020 and Reddi et al. 2021, 1,206,590 parameters), "mcmahan"
        (Charles and Konečný 2020, 1,690,046), "decay2021" (decaying-steps paper 2021, 1,231,808
        with its 64 outputs; images are framed to its 32 x 32), "mlp" (Karimireddy et al. 2020,
        271,862) or "logistic" (Karimireddy et al. 2020, 48,670).
      inverted: whether pixels are 1 - x, as in Karimireddy et al. 2020.
      num_clients: the number of writers, drawn at random; none: all 3,400.
      client_seed: seed of that draw.
    """
    data = sampled(load_dataset("emnist"), num_clients, None, client_seed)
    return Task(_recognition(model, inverted), data.train, data.test, "emnist")


def load_leaf(
    name: str,
    model: str,
    inverted: bool = False,
    num_clients: int | None = None,
    client_seed: int = 0,
    held_out: float | None = None,
) -> Task:
    """Some of LEAF's writers, with 62 classes; pixels as for `load`.

    Args:
      name: of the data set.
      model: as for `load`.
      inverted: whether pixels are 1 - x, as in Karimireddy et al. 2020.
      num_clients: the number of writers, drawn at random; none: all.
      client_seed: seed of that draw, and of `held_out`.
      held_out: the share of each writer's images that is drawn for the test, as in the
        decaying-steps paper (2021), 0.2; none: LEAF's own tenth.
    """
    data = load_dataset(name)
    if held_out is not None:
        data = split_again(data, held_out, client_seed)
    data = sampled(data, num_clients, None, client_seed)
    return Task(_recognition(model, inverted), data.train, data.test, name)


def _recognition(name: str, inverted: bool) -> Model:
    """The model of that name behind its preprocessing."""
    smaller = functools.partial(
        pooled_cnn, (32, 32, 1), kernel_size=3, num_classes=64, padding="VALID"
    )
    models = {
        "cnn": image_cnn,
        "mcmahan": pooled_cnn,
        "decay2021": smaller,
        "mlp": mlp_classifier,
        "logistic": logistic_regression,
    }
    steps = [scaled(255.0)]
    if models[name] is smaller:
        steps.append(framed(2, 1.0))
    if inverted:
        steps.append(turned())
    return preprocessed(models[name](), training=steps, evaluation=steps)


def load_autoencoder(
    name: str, model: str, num_clients: int | None = None, client_seed: int = 0
) -> Task:
    """The autoencoder of Reddi et al. 2021: inverted images, a code of 30 numbers.

    Args:
      name: of the data set with the images.
      model: "autoencoder", 2,837,314 parameters.
      num_clients: the number of writers, drawn at random; none: all.
      client_seed: seed of that draw.
    """
    del model  # there is one
    made = autoencoder()
    made = made._replace(metrics={**made.metrics, "mean_squared_error": mean_squared_error()})
    data = sampled(load_dataset(name), num_clients, None, client_seed)
    steps = [scaled(255.0), turned()]
    made = preprocessed(made, training=steps, evaluation=steps)
    return Task(made, data.train, data.test, f"{name}-autoencoder")
