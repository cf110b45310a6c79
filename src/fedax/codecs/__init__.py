"""Codecs: what a client sends in place of an array, and how many bits that takes.

Each works on one array at a time; `fedax.compressed` applies one to the uploads of a method.
"""

from fedax.codecs.codec import Codec, encode_tree, with_feedback
from fedax.codecs.eden import drive, eden
from fedax.codecs.identity import identity
from fedax.codecs.power_sgd import power_sgd
from fedax.codecs.qsgd import qsgd
from fedax.codecs.random_k import random_k
from fedax.codecs.sign import sign
from fedax.codecs.terngrad import terngrad
from fedax.codecs.top_k import top_k

# The codecs by name, the unbiased ones first.
CODECS = {
    "identity": identity,
    "qsgd": qsgd,
    "terngrad": terngrad,
    "drive": drive,
    "eden": eden,
    "random_k": random_k,
    "top_k": top_k,
    "sign": sign,
    "power_sgd": power_sgd,
}

__all__ = [
    "CODECS",
    "Codec",
    "drive",
    "eden",
    "encode_tree",
    "identity",
    "power_sgd",
    "qsgd",
    "random_k",
    "sign",
    "terngrad",
    "top_k",
    "with_feedback",
]
