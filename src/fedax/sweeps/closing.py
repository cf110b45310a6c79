"""Summary at the end of a sweep."""

from __future__ import annotations

import numpy as np

from fedax.rounds.untrained import LAST_ROUNDS
from fedax.sweeps.choosing import CLOSE, PAPER_RULE, Choice, MethodChoice, rounds_of
from fedax.sweeps.record import Record

# Number of diverged settings that are named.
NAMED = 3


def closing_words(record: Record, choice: Choice) -> list[str]:
    """Sentences: each method's best setting, its edges, its sensitivity, and what diverged.

    Args:
      record: the sweep's rounds.
      choice: the choice.

    Example:
      >>> from fedax.sweeps.choosing import choose
      >>> from fedax.sweeps.grid import settings_of
      >>> settings = settings_of({"fedavg": {"client_learning_rate": [0.1, 1.0, 10.0]}})
      >>> record = Record(settings, np.arange(3), np.zeros(3, int), np.array([0, 0, 1]),
      ...                 np.ones(3, int), {"train_loss": np.array([[1.5], [2.0], [9.0]])})
      >>> for sentence in closing_words(record, choose(record)):
      ...     print(sentence)
      Chosen by the mean train_loss over one round; lower is better.
      fedavg: the best setting is client_learning_rate=0.1, with 1.5 (one seed).
      fedavg: 33% of its settings (1 of 3) are within 5% of the best.
      fedavg: best client_learning_rate is 0.1, the smallest of its grid; add 0.01, 0.001.
      fedavg: 1 of 3 settings diverged: client_learning_rate=10.
    """
    words = [f"Chosen by {rule_in_words(record, choice)}."]
    for method, chosen in choice.methods.items():
        words += [f"{method}: {sentence}" for sentence in _best(record, choice, chosen)]
        words += [f"{method}: {sentence}" for sentence in _remarks(record, chosen)]
    return words + _warning(choice)


def remarks(record: Record, choice: Choice) -> list[str]:
    """The sentences of the summary that a table of the best settings does not show."""
    return [
        f"{method}: {sentence}" for method, chosen in choice.methods.items()
        for sentence in _remarks(record, chosen)
    ] + _warning(choice)


def rule_in_words(record: Record, choice: Choice) -> str:
    """The rule in words, such as "the last test_loss; lower is better"."""
    rounds, rule = rounds_of(record), choice.rule
    if rule == PAPER_RULE:
        over = f"the last {LAST_ROUNDS} rounds" if rounds > LAST_ROUNDS else (
            f"all {rounds} rounds" if rounds > 1 else "one round"
        )
        rule = f"the mean train_loss over {over}"
    elif rule in record.metrics:
        rule = f"the last {rule}"
    return f"{rule}; {'higher' if choice.maximise else 'lower'} is better"


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


def _best(record: Record, choice: Choice, chosen: MethodChoice) -> list[str]:
    if chosen.best is None:
        return []
    label, count = record.settings[chosen.best].label, len(chosen.order)
    words = [f"the best setting is {label or 'the only one'}, with "
             f"{score_in_words(choice, chosen.best)}."]
    if count > 1:
        words.append(
            f"{chosen.sensitivity:.0%} of its settings ({round(chosen.sensitivity * count)} of "
            f"{count}) are within {CLOSE:.0%} of the best."
        )
    return words


def _remarks(record: Record, chosen: MethodChoice) -> list[str]:
    if chosen.best is None:
        return [
            "all settings that were run diverged; try lower learning rates." if chosen.diverged
            else "no setting has finished all rounds yet."
        ]
    words = [
        f"best {edge.name} is {edge.value:.6g}, the {edge.side} of its grid; add "
        f"{', '.join(f'{value:.6g}' for value in edge.add)}." for edge in chosen.edges
    ]
    if chosen.diverged:
        named = [record.settings[number].label for number in chosen.diverged[:NAMED]]
        more = [f"and {len(chosen.diverged) - NAMED} more"] * (len(chosen.diverged) > NAMED)
        words.append(
            f"{len(chosen.diverged)} of {len(chosen.order)} settings diverged: "
            f"{'; '.join(named + more)}."
        )
    return words


def _warning(choice: Choice) -> list[str]:
    if not choice.rule.startswith("test_"):
        return []
    return [
        "The settings were chosen by test data, so their test results are too optimistic. Choose "
        "by validation data instead, such as with --set validation=0.1."
    ]
