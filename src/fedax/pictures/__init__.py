"""Pictures of runs and sweeps, as functions that draw on Matplotlib's Axes.

They take histories, records or frames. Nothing here computes rounds or knows of folders.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedax.pictures.errors import DrawingError
    from fedax.pictures.grids import adaptivity, best_of, best_server_rate, heat_map
    from fedax.pictures.over_rounds import curves, drift, rates, update_norms
    from fedax.pictures.populations import clients

# Name -> its module, which is imported when it is asked for: Matplotlib is slow to import.
_MODULES = {
    "DrawingError": "errors", "adaptivity": "grids", "best_of": "grids",
    "best_server_rate": "grids", "clients": "populations", "curves": "over_rounds",
    "drift": "over_rounds", "heat_map": "grids", "rates": "over_rounds",
    "update_norms": "over_rounds",
}

__all__ = [
    "DrawingError",
    "adaptivity",
    "best_of",
    "best_server_rate",
    "clients",
    "curves",
    "drift",
    "heat_map",
    "rates",
    "update_norms",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
