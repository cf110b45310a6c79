"""Names up to 0.24 and their replacements. The old names work until `UNTIL`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

UNTIL = "0.28"

# Of all these, only what stands before the first "-": decayk-rate-33 is decay2021-rate-33.
PRESETS = {
    "paper": "reddi2021", "charles": "charles2020", "decayk": "decay2021",
    "elastic": "elastic2023", "mime": "mime2020",
}
# Tasks whose preset `paper` was another paper's.
PAPERS = {
    "mnist": "elastic2023", "fashion-mnist": "elastic2023", "digits": "elastic2023-small",
}
MODELS = {"shakespeare": {"paper": "reddi2021"}, "shakespeare-tff": {"paper": "reddi2021"},
          "emnist": {"decayk": "decay2021"}}
REPRODUCTIONS = {
    "adaptive": "reddi2021", "outsized-rates": "charles2020", "decaying-steps": "decay2021",
    "elastic": "elastic2023", "mime": "mime2020",
}


class RenamedWarning(FutureWarning):
    """Warns that an old name was used."""


def new_preset(task: str, preset: str) -> str:
    """The current name of a preset; other names are unchanged.

    Example:
      >>> new_preset("shakespeare", "paper"), new_preset("emnist", "decayk-rate-3")
      ('reddi2021', 'decay2021-rate-3')
    """
    return _renamed(preset, PRESETS | ({"paper": PAPERS[task]} if task in PAPERS else {}))


def new_model(task: str, model: str) -> str:
    """The current name of a task's model; other names are unchanged."""
    return MODELS.get(task, {}).get(model, model)


def new_reproduction(name: str) -> str:
    """The current name of a reproduction; other names are unchanged.

    Example:
      >>> new_reproduction("outsized-rates-table-3")
      'charles2020-table-3'
    """
    return _renamed(name, REPRODUCTIONS)


def _renamed(name: str, of: Mapping[str, str]) -> str:
    for old, new in of.items():
        if name == old or name.startswith(f"{old}-"):
            return new + name.removeprefix(old)
    return name


def warn_if_renamed(kind: str, old: str, new: str) -> str:
    """The new name, with a warning if it differs from the old one."""
    if new != old:
        warnings.warn(
            f"The {kind} {old} is now called {new}; the old name works until {UNTIL}.",
            RenamedWarning, stacklevel=4,
        )
    return new
