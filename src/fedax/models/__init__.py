"""Learning problems as `fedax.algorithm.Model`, and the layers they are made of.

A model has parameters, losses and metrics; it is independent of clients.
"""

from fedax.clients.sparse_steps import sparse_product
from fedax.models.characters import character_lstm
from fedax.models.convolution import conv_general_dilated, convolution
from fedax.models.dense import autoencoder, logistic_regression, mlp_classifier
from fedax.models.dropout import dropout
from fedax.models.frozen import frozen, merged
from fedax.models.group_norm import group_norm
from fedax.models.image_cnn import image_cnn
from fedax.models.initializers import init_layer
from fedax.models.lora import lora, merge_lora
from fedax.models.metrics import mean_squared_error, recall_at, token_accuracy
from fedax.models.pooled_cnn import pooled_cnn
from fedax.models.pooling import avg_pool, max_pool, pooled_convolution
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
from fedax.models.resnet import residual_network, resnet18, resnet20
from fedax.models.rewriting import fast_convolutions
from fedax.models.tags import tag_logistic_regression
from fedax.models.torch_weights import from_torch, to_torch
from fedax.models.weighting import balanced_class_weights
from fedax.models.words import word_lstm

__all__ = [
    "autoencoder",
    "avg_pool",
    "balanced_class_weights",
    "central_crop",
    "character_lstm",
    "conv_general_dilated",
    "convolution",
    "dropout",
    "fast_convolutions",
    "from_torch",
    "frozen",
    "group_norm",
    "gru",
    "image_cnn",
    "init_gru",
    "init_layer",
    "init_lstm",
    "inverted",
    "logistic_regression",
    "lora",
    "lstm",
    "max_pool",
    "mean_squared_error",
    "merge_lora",
    "merged",
    "mlp_classifier",
    "pooled_cnn",
    "pooled_convolution",
    "preprocessed",
    "random_crop",
    "random_flip",
    "recall_at",
    "residual_network",
    "resnet18",
    "resnet20",
    "scaled",
    "sparse_product",
    "standardised",
    "standardised_each",
    "tag_logistic_regression",
    "to_torch",
    "token_accuracy",
    "word_lstm",
]
