"""What clients upload under `fedax.local_update_decay`: the loss before training as well."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from fedax.algorithm import Array, Exchange, ModelUpdate, Params, PyTree
from fedax.codecs.codec import sent_around
from fedax.mistakes.errors import AlgorithmError


class DecayUpload(NamedTuple):
    """The wrapped algorithm's upload, and the client's loss on its whole data before training."""

    inner: PyTree
    loss: Array

    @property
    def pseudo_gradient(self) -> Params:
        """The wrapped algorithm's."""
        return self.inner.pseudo_gradient


def require_one_model(upload: PyTree) -> None:
    """Raises an AlgorithmError if the wrapped algorithm's upload is of one of several models."""
    if hasattr(upload, "members"):
        raise AlgorithmError(
            "local_update_decay cannot wrap ifca: the loss would be that of one cluster's "
            "model on all clients. Give ifca a schedule, such as "
            "client_learning_rate='exponential_decay(0.1, 0.99)'."
        )


def with_loss(exchange: Exchange) -> Exchange:
    """What an exchange says of its upload, where the upload is a `DecayUpload`."""
    report = exchange.report
    return exchange._replace(
        report=report and (lambda mean: report(mean.inner)),
        upload=lambda params: DecayUpload(
            (exchange.upload or ModelUpdate)(params), jnp.zeros(())
        ),
        sent=sent_around(exchange.sent),
    )
