"""The libraries that fedax takes mechanisms and accounting from."""

from __future__ import annotations

from fedax.outside.text import Told


class PrivacyError(Told, ValueError):
    """A guarantee that cannot be given, or a library for it that is not installed."""


def require_libraries() -> None:
    """Raises a clear error unless jax-privacy is installed."""
    try:
        import jax_privacy  # noqa: PLC0415, F401 - optional, and slow to import
    except ImportError as error:
        raise PrivacyError(
            "Differential privacy needs jax-privacy: pip install 'fedax[privacy]'"
        ) from error
