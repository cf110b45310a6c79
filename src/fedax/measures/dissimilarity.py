"""Dissimilarity of a cohort's clients, in their gradients and in their Hessians.

Karimireddy et al., "Mime: Mimicking Centralized Stochastic Algorithms in Federated
Learning" (2020), assumptions (A1) and (A2):

    G^2 >= E_i |grad f_i(x) - grad f(x)|^2,        delta >= max_i |H_i(x) - H(x)|  (spectral).

(A2) is about every example's Hessian H_i(x; zeta); `per_example` measures that. Equation 7 weakens
(A1) to E_i |grad f_i(x)|^2 <= G^2 + B^2 |grad f(x)|^2; see `Dissimilarity.G2`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, Model, Params
from fedax.clients.gradients import full_gradient, loss_gradient
from fedax.clients.minibatches import Minibatch
from fedax.data.cohort_data import ClientData, ClientExamples, CohortData, require_cohort
from fedax.data.hold_out import spread_evenly
from fedax.measures.diagnostics import norm
from fedax.mistakes.model import require_model


class Dissimilarity(NamedTuple):
    """Estimates at one point, from one cohort.

    Attributes:
      gradient_dissimilarity: mean over clients, equally weighted, of |grad f_i - mean_j grad
        f_j|^2. It estimates G^2 at this point (the assumption bounds it at all points) and is too
        low by the factor 1 - 1/S.
      hessian_dissimilarity: max_i |(H_i - mean_j H_j) v| at a unit vector v found by power
        iteration on H_i - mean_j H_j of the client with the largest value. It is a lower bound on
        delta at this point; more iterations only raise it, up to the norm of one client's
        difference. With `per_example` the same of the examples' H_i(zeta), which (A2) is about.
      squared_gradient: |mean_j grad f_j|^2.
    """

    gradient_dissimilarity: Array
    hessian_dissimilarity: Array
    squared_gradient: Array

    def G2(self, B2: float | Array) -> Array:  # noqa: N802 - the field's letter
        r"""The least G^2 of equation 7 for this B^2, at this point (Karimireddy et al. 2020).

        .. math:: E|\nabla f_i|^2 \le G^2 + B^2 |\nabla f|^2, \qquad
            G^2 = \max(0,\ E|\nabla f_i - \nabla f|^2 - (B^2 - 1) |\nabla f|^2)

        The assumption needs the largest over all points; B = 1 is (A1).

        Args:
          B2: B^2 >= 1.
        """
        return jnp.maximum(self.gradient_dissimilarity - (B2 - 1) * self.squared_gradient, 0)


def dissimilarity(
    model: Model,
    params: Params,
    cohort: CohortData,
    key: Array,
    *,
    batch_size: int = 20,
    num_iterations: int = 5,
    max_examples: int | None = None,
    per_example: bool = False,
) -> Dissimilarity:
    """Estimates G^2 and delta of Karimireddy et al. 2020 on a cohort's data.

    Each client makes 2 + 2 num_iterations passes over its data; those for delta are Hessian-vector
    products. Memory holds a few vectors like the parameters, not one per client. Clients with
    num_examples 0 are left out; without any clients both values are NaN.

    Args:
      model: the learning problem; its loss must be differentiable twice.
      params: x.
      cohort: the clients, from a `fedax.data.CohortReader`.
      key: for the first v and for random losses.
      batch_size: examples per batch; affects only rounding, speed and memory, unless the loss is
        random.
      num_iterations: number of power iterations, >= 1.
      max_examples: maximum number of examples per client, evenly spaced; None: all.
      per_example: whether delta is of the examples' Hessians, as (A2) says, not of the clients'. It
        then takes a Hessian-vector product for each example by itself. Static.

    Raises:
      TypeError: if the model or the cohort has the wrong type.

    Example:
      >>> import numpy as np
      >>> import fedax
      >>> from fedax.data import CohortReader
      >>> def loss(params, batch, key):  # clients x^2 + G x and -G x with G = 3
      ...     values = batch["a"] * params["x"] ** 2 + batch["b"] * params["x"]
      ...     return values, jnp.ones_like(values)
      >>> arrays = {"a": np.array([1.0, 0.0]), "b": np.array([3.0, -3.0])}
      >>> data = fedax.FederatedDataset(arrays, np.array([0, 1, 2]))
      >>> model = fedax.Model(None, loss, None, {})
      >>> found = dissimilarity(
      ...     model, {"x": jnp.zeros(1)}, CohortReader(data)(np.array([0, 1])), jax.random.key(0)
      ... )
      >>> [round(float(value), 4) for value in found]  # |0 + G|^2, 1 and |grad f(0)|^2
      [9.0, 1.0, 0.0]
    """
    require_model(model, "fedax.dissimilarity(model, params, cohort, key)")
    require_cohort(cohort)
    gradient = loss_gradient(model)
    v_key, loss_key = jax.random.split(key)
    num_clients = (cohort.num_examples > 0).sum()

    def client_data(index: Array) -> ClientExamples:
        data = ClientData(
            cohort.arrays, cohort.starts[index], cohort.num_examples[index], cohort.capacity,
            largest=cohort.largest,
        )
        if max_examples is None:
            return data
        return spread_evenly(data, jnp.minimum(data.num_examples, max_examples))

    def client_gradient(x: Params, index: Array) -> Params:
        data = client_data(index)
        return full_gradient(gradient, x, data, loss_key, batch_size=batch_size)[1]

    def mean_over_clients(function: Any) -> Any:
        """The mean of function(client's place) over the cohort, one client at a time."""

        def body(index: Array, total: Any) -> Any:
            counts = cohort.num_examples[index] > 0
            return jax.tree.map(
                lambda t, v: t + jnp.where(counts, v, 0), total, function(index)
            )

        shapes = jax.eval_shape(function, jnp.int32(0))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        total = jax.lax.fori_loop(0, cohort.num_examples.shape[0], body, zeros)
        return jax.tree.map(lambda t: t / num_clients.astype(t.dtype), total)

    mean_gradient = mean_over_clients(lambda i: client_gradient(params, i))
    spread = mean_over_clients(
        lambda i: norm(_subtract(client_gradient(params, i), mean_gradient)) ** 2
    )

    def hessian(gradient_at: Callable[[Params], Params], v: Params) -> Params:
        return jax.jvp(gradient_at, (params,), (v,))[1]

    def iterate(_: Any, carry: tuple[Params, Array]) -> tuple[Params, Array]:
        v, delta = carry
        mean_product = mean_over_clients(
            lambda i: hessian(lambda x: client_gradient(x, i), v)
        )

        def longer(gradient_at: Callable[[Params], Params], counts: Array, best: Any) -> Any:
            product = _subtract(hessian(gradient_at, v), mean_product)
            length = norm(product)
            better = counts & (length > best[0])
            return jax.tree.map(lambda a, b: jnp.where(better, a, b), (length, product), best)

        def farther(index: Array, best: tuple[Array, Params]) -> Any:
            if not per_example:
                counts = cohort.num_examples[index] > 0
                return longer(lambda x: client_gradient(x, index), counts, best)
            data = client_data(index)

            def one(j: Array, best: tuple[Array, Params]) -> Any:
                batch = Minibatch(data.examples(j[None]), jnp.ones(1, bool))
                loss, _ = gradient(params, batch, loss_key)
                return longer(
                    lambda x: gradient(x, batch, loss_key)[1], loss.weight > 0, best
                )

            return jax.lax.fori_loop(0, data.num_examples, one, best)

        nothing = (jnp.zeros_like(delta), jax.tree.map(jnp.zeros_like, v))
        length, product = jax.lax.fori_loop(0, cohort.num_examples.shape[0], farther, nothing)
        return _unit(product, v), jnp.maximum(delta, length)

    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(v_key, len(leaves))
    start = structure.unflatten(
        [jax.random.normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]
    )
    least = jnp.where(num_clients > 0, 0, jnp.nan).astype(norm(start).dtype)
    _, delta = jax.lax.fori_loop(0, num_iterations, iterate, (_unit(start, start), least))
    return Dissimilarity(spread, delta, norm(mean_gradient) ** 2)


def _subtract(a: Params, b: Params) -> Params:
    return jax.tree.map(jnp.subtract, a, b)


def _unit(v: Params, otherwise: Params) -> Params:
    """The vector over its norm, or `otherwise` if it is 0."""
    length = norm(v)
    return jax.tree.map(
        lambda a, b: jnp.where(length > 0, a / jnp.where(length > 0, length, 1).astype(a.dtype), b),
        v, otherwise,
    )
