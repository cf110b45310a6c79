"""Differential privacy: what rounds with noise guarantee, and the noise itself.

The mechanisms and the accounting are those of jax-privacy and dp-accounting, an optional extra.
"""

from fedax.privacy.accounting import epsilon, noise_multiplier, num_rounds
from fedax.privacy.library import PrivacyError

__all__ = ["PrivacyError", "epsilon", "noise_multiplier", "num_rounds"]
