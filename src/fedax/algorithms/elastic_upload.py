"""What clients upload under `fedax.elastic`, and how the server scales it.

Chen et al., "Elastic Aggregation for Federated Optimization", CVPR 2023, Algorithm 1 (as printed in
the supplement of the submission).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedax.algorithm import Individual, Params, PyTree, with_pseudo_gradient
from fedax.clients.uploads import fields_of
from fedax.mistakes.errors import AlgorithmError, kind_of


class ElasticUpload(NamedTuple):
    """The wrapped algorithm's upload, and Omega_k, like the parameters."""

    inner: PyTree
    sensitivity: Params

    @property
    def pseudo_gradient(self) -> Params:
        """The wrapped algorithm's, not yet scaled."""
        return self.inner.pseudo_gradient


def require_scalable(upload: PyTree, *, individual: bool) -> None:
    """Checks that the wrapped algorithm's upload has something to scale.

    Args:
      upload: a client's.
      individual: whether the server receives uploads one by one.

    Raises:
      AlgorithmError: if it has nothing.
    """
    if individual and not hasattr(upload, "scaled"):
        raise AlgorithmError(
            "elastic cannot scale the upload of the wrapped algorithm. Its server receives "
            f"uploads one by one, and each is {kind_of(upload)} without a method "
            "`scaled`. Add one, as in fedax.algorithms.pfnm.PFNMUpload."
        )
    if not individual and not hasattr(upload, "pseudo_gradient"):
        raise AlgorithmError(
            "elastic scales the pseudo-gradient that clients upload, but the upload of the "
            f"wrapped algorithm's last exchange is {kind_of(upload)} without one. Upload "
            "a NamedTuple with a field pseudo_gradient, such as fedax.ModelUpdate(...)."
        )
    if "squared_norm" in fields_of(upload):
        raise AlgorithmError(
            "elastic cannot wrap fedexp, or another method whose uploads have a squared_norm: it "
            "would scale the mean change, but not the lengths of the changes with which they "
            "compare it. Use fedavg with a server learning rate."
        )


def inner_of(upload: ElasticUpload | Individual) -> Any:
    """What the wrapped algorithm's server receives."""
    if isinstance(upload, Individual):
        return upload._replace(uploads=upload.uploads.inner)
    return upload.inner


def mean_sensitivity(upload: ElasticUpload | Individual) -> Params:
    """Omega, the weighted mean."""
    if not isinstance(upload, Individual):
        return upload.sensitivity
    total = upload.weights.sum()
    shares = upload.weights / jnp.where(total > 0, total, 1)
    return jax.tree.map(
        lambda omega: jnp.tensordot(shares.astype(omega.dtype), omega, 1),
        upload.uploads.sensitivity,
    )


def scaled_inner(upload: ElasticUpload | Individual, zeta: Params, state: Any) -> Any:
    """What the wrapped algorithm's server receives, times zeta coordinate by coordinate.

    Args:
      upload: the clients' mean, or one by one.
      zeta: like the parameters.
      state: the wrapped algorithm's, before the round.
    """
    inner = inner_of(upload)
    if isinstance(inner, Individual):
        return inner.each(lambda upload: upload.scaled(state, zeta))
    return with_pseudo_gradient(inner, jax.tree.map(jnp.multiply, zeta, inner.pseudo_gradient))
