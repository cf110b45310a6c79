"""What can be wrong with the functions that users bring, said in sentences.

Models and methods are called here, while a round is traced, so that what fails or comes out wrong
is explained and a compiled round pays nothing. Knows the core types only; no data, no training.
"""

from fedax.mistakes.errors import AlgorithmError, ModelError

__all__ = ["AlgorithmError", "ModelError"]
