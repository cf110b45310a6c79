"""What a run runs on, for its configuration."""

from __future__ import annotations

import platform
from typing import Any

import jax
import numpy as np
import optax

__version__ = "0.20.0"


def versions() -> dict[str, Any]:
    """What a run runs on."""
    return {
        "fedax": __version__,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "optax": optax.__version__,
        "platform": platform.platform(),
        "device": jax.devices()[0].device_kind,
        "num_devices": jax.device_count(),
    }
