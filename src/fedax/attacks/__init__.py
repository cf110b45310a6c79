"""Attacks: what hostile clients do to their examples and uploads, to rehearse a defence.

`fedax.attacked` applies one to a share of the clients. Each says what its clients know.
"""

from collections.abc import Callable

from fedax.attacks.alone import gaussian, label_flip, scaling, sign_flip
from fedax.attacks.attack import Attack
from fedax.attacks.colluding import inner_product, little_is_enough

# The attacks by name.
ATTACKS: dict[str, Callable[..., Attack]] = {
    "sign_flip": sign_flip,
    "scaling": scaling,
    "gaussian": gaussian,
    "label_flip": label_flip,
    "little_is_enough": little_is_enough,
    "inner_product": inner_product,
}

__all__ = [
    "ATTACKS",
    "Attack",
    "gaussian",
    "inner_product",
    "label_flip",
    "little_is_enough",
    "scaling",
    "sign_flip",
]
