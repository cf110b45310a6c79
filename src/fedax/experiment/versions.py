"""What a run runs on, for its configuration."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from fedax.outside.version import __version__

_DRAWS = ("jax_threefry_partitionable", "jax_default_prng_impl")


def versions() -> dict[str, Any]:
    """What a run runs on."""
    return {
        "fedax": __version__,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "optax": optax.__version__,
        "platform": platform.platform(),
        "processor": processor(),
        "device": jax.devices()[0].device_kind,
        "num_devices": jax.device_count(),
        **draws(),
    }


def draws() -> dict[str, Any]:
    """JAX's settings on which its random numbers depend, by the names that JAX has for them."""
    return {name: getattr(jax.config, name) for name in _DRAWS}


def other_draws(made_by: Any) -> str | None:
    """A sentence if JAX draws other random numbers now than where a configuration was written.

    Args:
      made_by: what the configuration says of that; versions before 0.23 say nothing.
    """
    known = made_by if isinstance(made_by, Mapping) else {}
    for name, now in draws().items():
        before = known.get(name, now)
        if before != now:
            return (
                f"It was started with {name}={before!s:.100}, but JAX now has {now}, which gives "
                f"other random numbers. Set {name.upper()}={before!s:.100} in the environment."
            )
    return None


def processor(described: Path = Path("/proc/cpuinfo")) -> str:
    """The kind of processor, on which the last bits of a result may depend; "" if it is not told.

    Args:
      described: where Linux says it, with the family and the model, as names may be of many.
    """
    try:
        text = described.read_text("utf-8", errors="replace")
    except OSError:
        return platform.processor()
    found = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)$", text, re.MULTILINE))
    if "model name" not in found:
        return platform.processor()
    numbers = ", ".join(
        f"{word} {found[key]}" for key, word in (("cpu family", "family"), ("model", "model"))
        if key in found
    )
    return found["model name"] + f" ({numbers})" * bool(numbers)
