"""Compressed messages between clients and server, around any method."""

from __future__ import annotations

from fedax.algorithm import (
    FederatedAlgorithm,
)
from fedax.algorithms.downlink import coded_broadcasts
from fedax.algorithms.uplink import coded_uploads
from fedax.codecs import Codec, eden
from fedax.factories import factory
from fedax.mistakes.algorithm import require_wrappable


@factory
def compressed(
    algorithm: FederatedAlgorithm,
    codec: Codec | None = None,
    downlink: Codec | None = None,
) -> FederatedAlgorithm:
    r"""Fewer bytes: every array that a client uploads goes through a codec.

    Each client i sends a code of its upload u_i, and the server averages what it decodes:

    .. math::
        \hat u_i = Q(u_i) \quad\text{with mean } u_i,
            \qquad\text{or, with a biased codec,}\qquad
        \hat u_i = C(u_i + e_i), \quad e_i \leftarrow u_i + e_i - \hat u_i

    With a biased codec, e_i is the client's memory (error feedback, Karimireddy et al. 2019). It is
    part of the client's state and waits until the client takes part again. If that is rare, it is
    old by then, and an unbiased codec is the better choice. Of a client drawn twice in a round, the
    first upload uses and changes the memory. A client that drops out of a round keeps the memory
    that it had before.

    Uploads of SCAFFOLD are changes of x and of the control variates c_i. Error feedback keeps the
    server's c within the mean memory of the mean c_i; the errors of an unbiased codec add up in c.

    With `downlink` the server sends changes of the model as well. The clients' copy w follows it,

    .. math:: w_0 = x_0, \qquad w_{t+1} = w_t + C(x_{t+1} - w_t),

    and a round starts from w_t wherever the method would start from x_t, in all of its exchanges.
    What is missing in w is in the next difference, so this needs no other memory. Every client must
    receive every message, also in rounds without it; `bits_down` counts the round's own.

    Scalars of an upload, weights, and the arrays of optimizers and of `fedax.elastic` that must not
    be negative are sent as they are.

    Args:
      algorithm: the wrapped algorithm. A wrapper of the method itself goes inside:
        `compressed(elastic(...))`.
      codec: one of `fedax.codecs`, for the uploads; None is `eden()`.
      downlink: for the model, a biased codec: `top_k`, `sign` or `power_sgd`. An unbiased one would
        move the copy away from the model. None: the model is sent as it is.

    Returns:
      The algorithm. Each round also reports `bits_up`, the mean number of bits that a client
      uploads in the round, and with `downlink` also `bits_down`.

    Raises:
      ValueError: the server receives uploads one by one (`pfnm`, `afl`), nothing is sent
        (`centralised`), the algorithm is compressed already, or `downlink` is unbiased.
      AlgorithmError: when it is first traced, `downlink` around a method that sends a second model
        (`mimemvr`, `fedac`, `ifca`), a biased codec around `ifca` or around a method with an
        upload of its own that its `Exchange` does not describe, or any around `batch_statistics`.

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> model = character_lstm(16, 1)
      >>> algorithm = fedax.compressed(fedax.fedadam(model), fedax.codecs.eden(2))
    """
    require_wrappable(algorithm, "fedax.compressed(algorithm, codec)")
    codec = eden() if codec is None else codec
    for name, value in (("codec", codec), ("downlink", downlink)):
        if value is not None and not isinstance(value, Codec):
            raise TypeError(
                f"{name} must be one of fedax.codecs, such as fedax.codecs.qsgd(4), but is "
                f"{value!r}."
            )
    if algorithm.pooled:
        raise ValueError(
            "compressed cannot wrap a method that trains on all examples in one place: nothing is "
            "sent. Wrap a federated method."
        )
    if any(exchange.individual for exchange in algorithm.exchanges):
        raise ValueError(
            "compressed needs uploads that are averaged, but the server of the wrapped algorithm "
            "receives them one by one and would match or compare them with their errors. Wrap a "
            "different algorithm."
        )
    if any(exchange.sent is not None for exchange in algorithm.exchanges):
        raise ValueError(
            "compressed cannot wrap an algorithm that is compressed already: its decoded uploads "
            "would be coded again, and the bits of only one code would count. Use one codec."
        )
    if downlink is not None and downlink.unbiased:
        raise ValueError(
            f"downlink must be a biased codec, such as fedax.codecs.top_k(0.1), but is {downlink}. "
            "The errors of an unbiased one would move the clients' copy away from the model."
        )
    algorithm = coded_uploads(algorithm, codec)
    return algorithm if downlink is None else coded_broadcasts(algorithm, downlink)
