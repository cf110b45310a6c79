"""What a sweep says at its end, in sentences."""

from __future__ import annotations

import numpy as np

from fedax.sweeps.choosing import CLOSE, LAST_ROUNDS, PAPER_RULE, Choice, MethodChoice
from fedax.sweeps.record import Record

# So many of the settings that diverged are named.
NAMED = 3


def closing_words(record: Record, choice: Choice) -> list[str]:
    """Sentences: each method's best setting, its edges, its sensitivity, and what diverged.

    Args:
      record: the sweep's rounds.
      choice: what was chosen of it.

    Example:
      >>> from fedax.sweeps.choosing import choose
      >>> from fedax.sweeps.grid import settings_of
      >>> settings = settings_of({"fedavg": {"client_learning_rate": [0.1, 1.0, 10.0]}})
      >>> record = Record(settings, np.arange(3), np.zeros(3, int), np.array([0, 0, 1]),
      ...                 np.ones(3, int), {"train_loss": np.array([[1.5], [2.0], [9.0]])})
      >>> for sentence in closing_words(record, choose(record)):
      ...     print(sentence)
      Chosen by the mean train_loss over all 1 rounds; lower is better.
      fedavg: the best setting is client_learning_rate=0.1, with 1.5 (one seed).
      fedavg: client_learning_rate 0.1 is the smallest of its grid; add 0.01, 0.001.
      fedavg: 33% of its settings (1 of 3) are within 5% of the best.
      fedavg: 1 of 3 settings diverged: client_learning_rate=10.
    """
    words = [f"Chosen by {rule_in_words(record, choice)}; "
             f"{'higher' if choice.maximise else 'lower'} is better."]
    for method, chosen in choice.methods.items():
        words += [f"{method}: {sentence}" for sentence in _of_method(record, choice, chosen)]
    return words


def rule_in_words(record: Record, choice: Choice) -> str:
    """What the settings were chosen by, such as "the last test_accuracy"."""
    rounds = int(record.done.max(initial=0))
    if choice.rule == PAPER_RULE:
        over = f"the last {LAST_ROUNDS}" if rounds > LAST_ROUNDS else f"all {rounds}"
        return f"the mean train_loss over {over} rounds"
    return f"the last {choice.rule}" if choice.rule in record.metrics else choice.rule


def score_in_words(choice: Choice, setting: int) -> str:
    """The score of a setting, with its spread over the seeds if there are several.

    Example:
      >>> scores = np.array([[1.0, 1.2], [3.0, np.nan]])
      >>> choice = Choice("train_loss", False, scores, np.array([1.1, 3.0]),
      ...                 np.array([0.1414, np.nan]), {})
      >>> score_in_words(choice, 0), score_in_words(choice, 1)
      ('1.1 ± 0.14 (2 seeds)', '3 (one seed)')
    """
    seeds = int((~np.isnan(choice.scores[setting])).sum())
    mean = f"{choice.mean[setting]:.4g}"
    return f"{mean} (one seed)" if seeds == 1 else (
        f"{mean} ± {choice.spread[setting]:.2g} ({seeds} seeds)"
    )


def _of_method(record: Record, choice: Choice, chosen: MethodChoice) -> list[str]:
    count, diverged = len(chosen.order), chosen.diverged
    if chosen.best is None:
        return [
            "no setting is best, as all that were run diverged; try lower rates." if diverged
            else "no setting is best, as none has run all rounds."
        ]
    best = record.settings[chosen.best].label
    words = [f"the best setting is {best or 'the only one'}, with "
             f"{score_in_words(choice, chosen.best)}."]
    words += [
        f"{edge.name} {_written(edge.value)} is the {edge.side} of its grid; add "
        f"{', '.join(map(_written, edge.add))}." for edge in chosen.edges
    ]
    if count > 1:
        close = round(chosen.sensitivity * count)
        words.append(
            f"{chosen.sensitivity:.0%} of its settings ({close} of {count}) are within "
            f"{CLOSE:.0%} of the best."
        )
    if diverged:
        named = [record.settings[number].label for number in diverged[:NAMED]]
        more = ["..."] if len(diverged) > NAMED else []
        words.append(f"{len(diverged)} of {count} settings diverged: {'; '.join(named + more)}.")
    return words


def _written(value: float) -> str:
    return f"{value:.6g}"
