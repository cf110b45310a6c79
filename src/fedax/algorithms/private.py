"""Differential privacy of the clients, around any method whose uploads are averaged."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import (
    Array,
    Exchange,
    FederatedAlgorithm,
    Params,
    Participation,
    PublicParticipation,
    PyTree,
    Reply,
    WrapperState,
    own_model_inside,
)
from fedax.algorithms.clipping import PrivateMessage, PrivateUpload, clipped_reply, described
from fedax.clients.precision import sum_dtype, widen
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.mistakes.algorithm import require_averaged, require_wrappable
from fedax.privacy.checks import SMALLEST_NORM, check_settings
from fedax.privacy.noise import Noise

# With an adaptive norm, this share of each exchange's squared budget tells how many were clipped.
SHARE_OF_BITS = 0.01


class PrivateOwn(NamedTuple):
    """What the server keeps beside the wrapped algorithm's state.

    Attributes:
      clip: the clipping norm of each exchange, [exchanges].
      noise: of each exchange the earlier noise that the next one takes back, by uploaded array.
      multiplier, expected: z and D of the rounds so far, on which their guarantee depends.
    """

    clip: Array
    noise: tuple[PyTree, ...]
    multiplier: Array
    expected: Array


@factory
def private(
    algorithm: FederatedAlgorithm,
    clip: float | Array = 0.1,
    noise_multiplier: float | Array = 1.0,
    delta: float | None = None,
    epsilon: float | None = None,
    quantile: float | None = None,
    clip_learning_rate: float | Array = 0.2,
    bands: int = 1,
    horizon: int = 1000,
    noise_seed: int = 0,
) -> FederatedAlgorithm:
    r"""Differential privacy of whole clients: clipped uploads, and noise on their sum.

    With E exchanges a round, D the expected number of clients in it and z the noise multiplier,

    .. math::
        \hat u_i = u_i \min\Big(1, \frac{C}{\lVert u_i \rVert}\Big), \qquad
        u = \frac{1}{D} \Big(\sum_i \hat u_i + \sqrt{E}\, z\, C\, \xi_t\Big),
            \quad \xi_t \sim N(0, I),

    and the wrapped server takes u for the mean (DP-FedAvg, McMahan et al. 2018, Algorithm 1, around
    FedAvg). The norm is that of all arrays of an upload together. E exchanges of a round share its
    budget: to whoever sees all of them, they are one Gaussian mechanism with multiplier z.

    - *Weights*: each client counts alike, whatever the method's `weighting`. The denominator D is
      public, and the server steps in every round, also if nobody takes part.
    - *Uploads that are not finite* count as 0. How many there were is not told.
    - *Diagnostics* of clients, such as the training loss, are withheld, as are the numbers of
      clients. What is measured with clients' own data or models is not covered: validation data
      that `validation=` holds out of them, and `test_own_*`.
    - *Adaptive norm* (Andrew et al. 2021, Algorithm 1): with `quantile` q each client also says
      whether its norm is at most C, and C follows the quantile,

      .. math:: C \leftarrow C \exp(-\eta_C (\tilde b - q)),

      with the noisy share b. The noise of both is such that together they cost what z does: the
      bits get 1% of the squared budget, as in the paper with z = 1 and 100 clients.
      Each exchange has a norm of its own. The noise of b has deviation 5 sqrt(E) z / D: with a
      small D give a smaller eta_C, or C moves by noise alone.
    - *Control variates* (`scaffold`, `feddyn`, `fedadmm`, `scaffnew`): clients keep what they
      computed, and the server what was clipped, with noise. The two drift apart: the model rests
      where the gradient is not 0, and with noise moves away for ever. Prefer a method without.
    - *Correlated noise* (DP-FTRL): with `bands` b > 1, see `fedax.privacy.noise`. The clients are
      dealt into b groups, which take turns.

    The guarantee is for `sampling="poisson"`, or "full" with one band; others are refused. It holds
    against whoever sees all models that the server sends, and knows neither the run's seed, from
    which cohorts and noise are drawn, nor `noise_seed`. For a model that is to be released, draw
    both with `secrets.randbits(128)`, new for every run, and keep them and the run folder secret:
    two runs with the same seeds have the same noise, and their difference has none. A `state` to
    continue from must have the same noise multiplier and cohort size, and the same seeds.

    Args:
      algorithm: the wrapped algorithm, with wrappers of its own. `private` is always the outermost:
        `private(compressed(...))` clips what the codec decodes.
      clip: C >= 1e-12, in each exchange; with `quantile`, the norm to begin with.
      noise_multiplier: z >= 0; `fedax.privacy.noise_multiplier` finds it. 0: no guarantee.
      delta: in (0, 1); None: N^-1.1 for N clients.
      epsilon: the budget: training stops before the round that would exceed it. None: no budget.
      quantile: q in (0, 1), the share of clients within the norm, such as 0.5; None: a fixed norm.
      clip_learning_rate: eta_C >= 0.
      bands: b >= 1; the server keeps b - 1 times the upload.
      horizon: number of rounds for which correlated noise is best, >= 1.
      noise_seed: >= 0; with the run's seed it determines the noise.

    Returns:
      The algorithm. Its summary has the guarantee; `fedax privacy` computes others.

    Raises:
      PrivacyError: jax-privacy is not installed.
      ValueError: an argument is out of range, or the algorithm's server sees uploads one by one,
        trains on the pool of all examples, or is private already.
      AlgorithmError: when it is first traced, around a method that uploads numbers which noise
        would swamp or make negative: `fedexp`, `fednova`, `qfedavg`, `term`, `ifca`, averaged
        states of optimizers, `elastic`, `local_update_decay`, `batch_statistics`.

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.private(fedax.fedadam(character_lstm(16, 1)), clip=0.3, epsilon=8.0)
    """
    require_wrappable(algorithm, "fedax.private(algorithm, clip)")
    require_averaged(algorithm, "private")
    if any(exchange.collusion is not None for exchange in algorithm.exchanges):
        raise ValueError(
            "private cannot clip what colluding clients agree on after they have answered. Use an "
            "attack of single clients, such as fedax.attacks.sign_flip(1)."
        )
    check_settings(
        clip, noise_multiplier, delta, epsilon, quantile, clip_learning_rate, bands, horizon,
        noise_seed,
    )
    exchanges = len(algorithm.exchanges)
    noise = Noise.of(bands, horizon)
    words = np.random.SeedSequence(noise_seed).generate_state(4)
    # Of the squared budget 1 / z^2 of a round each exchange has the E-th part.
    part = math.sqrt(exchanges) * jnp.asarray(noise_multiplier)
    of_sum = part if quantile is None else part / math.sqrt(1 - SHARE_OF_BITS)
    of_bits = part / (2 * math.sqrt(SHARE_OF_BITS))  # a bit less 1/2 has norm 1/2

    def init(params: Params) -> WrapperState:
        norms = jnp.full(exchanges, clip, widen(jax.tree.leaves(params)[0]).dtype)
        return WrapperState(algorithm.init(params), PrivateOwn(norms, tuple(
            noise.init([
                jax.ShapeDtypeStruct(leaf.shape, sum_dtype(leaf))
                for leaf in described(exchange, params)
            ])
            for exchange in algorithm.exchanges
        ), jnp.asarray(noise_multiplier, norms.dtype), jnp.zeros((), norms.dtype)))

    def around(index: int, exchange: Exchange) -> Exchange:
        def broadcast(state: WrapperState) -> PrivateMessage:
            return PrivateMessage(exchange.broadcast(state.inner), state.own.clip[index])

        def client(
            message: PrivateMessage, state: PyTree, data: ClientExamples, key: Array
        ) -> Reply:
            reply = exchange.client(message.inner, state, data, key)
            return clipped_reply(reply, state, message, tells=quantile is not None)

        def server(
            state: WrapperState, total: PrivateUpload, participation: PublicParticipation
        ) -> WrapperState:
            expected, key = participation.expected, participation.key
            for word in words:
                key = jax.random.fold_in(key, word)
            key, of_bit = jax.random.split(key)
            own, norm = state.own, state.own.clip[index]
            sums, structure = jax.tree.flatten(total.inner)
            like = described(exchange, state.params, total.inner, index)
            noisy, kept = noise.add(
                sums, of_sum.astype(norm.dtype) * norm, own.noise[index], key
            )
            mean = jax.tree.unflatten(structure, [
                (whole / expected.astype(whole.dtype)).astype(one.dtype)
                for whole, one in zip(noisy, like, strict=True)
            ])
            clips = own.clip
            if quantile is not None:
                drawn = jax.random.normal(of_bit, dtype=norm.dtype)
                bits = total.within + of_bits.astype(norm.dtype) * drawn
                above = bits / expected.astype(norm.dtype) + 0.5 - jnp.asarray(quantile, norm.dtype)
                rate = jnp.asarray(clip_learning_rate, norm.dtype)
                clips = clips.at[index].set(
                    jnp.maximum(norm * jnp.exp(-rate * above), SMALLEST_NORM)
                )
            count = expected.astype(jnp.int32)
            inner = exchange.server(
                state.inner, mean, Participation(participation.num_clients, count, count)
            )
            waits = (*own.noise[:index], kept, *own.noise[index + 1 :])
            seen = expected.astype(own.expected.dtype)
            return WrapperState(inner, PrivateOwn(clips, waits, own.multiplier, seen))

        def sent(params: Params, message: Any, upload: Any) -> tuple[float, float]:
            assert exchange.sent is not None
            return exchange.sent(params, message, upload.inner)

        return exchange._replace(
            broadcast=broadcast, client=client, server=server, total=True, report=None,
            upload=None, sent=None if exchange.sent is None else sent,
        )

    return algorithm._replace(
        init=init,
        exchanges=tuple(around(i, exchange) for i, exchange in enumerate(algorithm.exchanges)),
        own_model=own_model_inside(algorithm),
    )
