"""Learning problems as `fedax.algorithm.Model`, and the layers they are made of.

A model knows its parameters, losses and metrics, and nothing of clients.
"""

from fedax.models.characters import character_lstm
from fedax.models.convolution import conv_general_dilated, convolution
from fedax.models.image_cnn import image_cnn
from fedax.models.pooling import avg_pool, max_pool
from fedax.models.preprocessing import (
    central_crop,
    inverted,
    preprocessed,
    random_crop,
    random_flip,
    scaled,
    standardised,
    standardised_each,
)
from fedax.models.recurrence import gru, init_gru, init_lstm, lstm
from fedax.models.rewriting import fast_convolutions

__all__ = [
    "avg_pool",
    "central_crop",
    "character_lstm",
    "conv_general_dilated",
    "convolution",
    "fast_convolutions",
    "gru",
    "image_cnn",
    "init_gru",
    "init_lstm",
    "inverted",
    "lstm",
    "max_pool",
    "preprocessed",
    "random_crop",
    "random_flip",
    "scaled",
    "standardised",
    "standardised_each",
]
