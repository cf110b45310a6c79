"""The best setting of a sweep as a file that `fedax run --config` takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tomli_w

from fedax.experiment.config import SOURCES, RunConfig
from fedax.outside.text import printable
from fedax.sweeps.choosing import Choice
from fedax.sweeps.closing import rule_in_words, score_in_words
from fedax.sweeps.record import Record
from fedax.tuning.config import SweepConfig


def best_toml(config: SweepConfig, record: Record, choice: Choice, algorithm: str) -> str | None:
    """The configuration of a method's best setting with the first seed, as TOML.

    Args:
      config: of the sweep.
      record: its rounds.
      choice: what was chosen of it.
      algorithm: the method.

    Returns:
      All settings of the run, so that no preset has a say; None if no setting is best.
    """
    chosen = choice.methods[algorithm]
    if chosen.best is None:
        return None
    setting = config.settings[chosen.best]
    remarks = [
        f"Best of {len(chosen.order)} settings of {algorithm} on {config.task}: "
        f"{setting.label or 'the only one'}.",
        f"Score: {score_in_words(choice, chosen.best)}; chosen by {rule_in_words(record, choice)}.",
        "Train with it: fedax run --config FILE",
    ]
    return "".join(f"# {printable(remark)}\n" for remark in remarks) + "\n" + as_toml(
        config.run(setting)
    )


def as_toml(config: RunConfig) -> str:
    """A run's configuration as TOML that reads back as the same, whatever becomes of its preset.

    Example:
      >>> print(as_toml(RunConfig(algorithm_options={"momentum": 0.9})).splitlines()[-2:])
      ['[algorithm_options]', 'momentum = 0.9']
    """
    values = {**dataclasses.asdict(config), "preset": "none"}
    for key in SOURCES:
        source = values.pop(key)
        if source is not None:
            values[key] = {name: value for name, value in source.items() if value is not None}
    return tomli_w.dumps(_plain(values))


def _plain(value: Any) -> Any:
    """With the word that settings have for None, which TOML lacks."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return "none" if value is None else value
