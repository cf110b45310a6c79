"""Pictures of runs and sweeps, as functions that draw on Matplotlib's Axes and return them.

They take histories, records or frames. Nothing here computes rounds or knows of folders.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedax.pictures.errors import DrawingError
    from fedax.pictures.over_rounds import curves, drift, rates, update_norms

# Name -> its module, which is imported when it is asked for: Matplotlib is slow to import.
_MODULES = {
    "DrawingError": "errors",
    "curves": "over_rounds", "drift": "over_rounds", "rates": "over_rounds",
    "update_norms": "over_rounds",
}

__all__ = ["DrawingError", "curves", "drift", "rates", "update_norms"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
