"""Clear errors for mistakes in users' functions.

Models and methods are called here while a round is traced, so that failures and wrong results are
explained at no cost to a compiled round. It uses only the core types; no data, no training.
"""

from fedax.mistakes.errors import AlgorithmError, ModelError

__all__ = ["AlgorithmError", "ModelError"]
