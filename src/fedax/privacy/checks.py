"""Whether the settings of `fedax.private` fit."""

from __future__ import annotations

from typing import Any

from fedax.privacy.library import PrivacyError, require_libraries
from fedax.validate import check_count, check_number


def check_settings(
    clip: Any, noise_multiplier: Any, delta: Any, epsilon: Any, quantile: Any,
    clip_learning_rate: Any, bands: int, horizon: int, noise_seed: int,
) -> None:
    """Raises a clear error unless they fit and jax-privacy is installed; see `fedax.private`."""
    require_libraries()
    check_number("clip", clip, above=0)
    check_number("noise_multiplier", noise_multiplier, at_least=0)
    if delta is not None:
        check_number("delta", delta, above=0, below=1)
    if epsilon is not None:
        check_number("epsilon", epsilon, above=0)
    if quantile is not None:
        check_number("quantile", quantile, above=0, below=1)
    check_number("clip_learning_rate", clip_learning_rate, at_least=0)
    check_count("bands", bands)
    check_count("horizon", horizon)
    check_count("noise_seed", noise_seed, at_least=0, at_most=None)
    if bands > 1 and quantile is not None:
        raise PrivacyError(
            "private cannot combine bands with quantile: correlated noise takes back noise of "
            "earlier rounds, which a norm that changes would scale differently. Give a fixed clip, "
            "or bands=1."
        )
