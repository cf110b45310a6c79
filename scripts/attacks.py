"""Attacks against robust means on `digits`, with 20% hostile clients: docs/notebook/robustness.md.

    python scripts/attacks.py docs/notebook/robustness.jsonl      # adds the rows that it lacks
    python scripts/attacks.py table docs/notebook/robustness.jsonl

The criteria below were committed before the first run. A quarter of an hour; may be
killed and repeated.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fedax
from fedax import attacks, robust_means
from fedax.attacks import Attack
from fedax.robust_means import RobustMean

CLIENTS, SHARE, ROUNDS, SEEDS = 25, 0.2, 30, 3
LOCAL: dict[str, Any] = {"num_local_epochs": 2, "batch_size": 10, "weighting": "uniform"}
# The clients' data: of one distribution, or of two labels each.
DATA = {"alike": "iid", "two labels": "shards(2)"}
# Of honest uploads without attack, norms fall from 0.8 to 0.2 where clients are alike, and from 1.4
# to 0.7 where they are not; the bounds of the clipping rules are between.
BOUND = {"alike": 0.5, "two labels": 1.0}

ATTACKS: dict[str, tuple[Attack, ...]] = {
    "none": (),
    "sign_flip(10)": (attacks.sign_flip(10.0),),
    "label_flip, scaling(10)": (attacks.label_flip(10), attacks.scaling(10.0)),
    "gaussian(10)": (attacks.gaussian(10.0),),
    "inner_product(10)": (attacks.inner_product(10.0),),
    "label_flip": (attacks.label_flip(10),),
    "little_is_enough": (attacks.little_is_enough(),),
    "little_is_enough(1.5)": (attacks.little_is_enough(1.5),),
    "inner_product(0.5)": (attacks.inner_product(0.5),),
}
RULES: dict[str, Callable[[float], RobustMean | None]] = {
    "mean": lambda bound: None,  # noqa: ARG005
    "trimmed_mean": lambda bound: robust_means.trimmed_mean(SHARE),  # noqa: ARG005
    "coordinate_median": lambda bound: robust_means.coordinate_median(),  # noqa: ARG005
    "geometric_median": lambda bound: robust_means.geometric_median(),  # noqa: ARG005
    "krum": lambda bound: robust_means.krum(SHARE),  # noqa: ARG005
    "multi_krum": lambda bound: robust_means.multi_krum(SHARE),  # noqa: ARG005
    "centred_clipping": robust_means.centred_clipping,
    "norm_bound": robust_means.norm_bound,
}

# The criteria, in points of test accuracy, means of three seeds. A rule keeps within MARGIN of the
# mean without attack where its paper says that it withstands the attack (`CLAIMED`, with clients
# that are alike, as the papers assume); the plain mean loses at least COLLAPSE under the attacks
# with long uploads. With clients of two labels, an attack within the spread takes at least BROKEN
# from what the rule itself reaches without attack.
MARGIN, COLLAPSE, BROKEN = 5.0, 20.0, 10.0
LONG = ("sign_flip(10)", "label_flip, scaling(10)", "gaussian(10)", "inner_product(10)")
CLAIMED = {
    "trimmed_mean": (*LONG, "label_flip", "little_is_enough"),  # Yin et al. 2018, Theorem 4
    "coordinate_median": (*LONG, "label_flip", "little_is_enough"),  # Theorem 1
    "geometric_median": (*LONG, "label_flip"),  # Pillutla et al. 2022, section 5
    "krum": LONG,  # Blanchard et al. 2017, section 6
    "multi_krum": LONG,
    "centred_clipping": (*LONG, "label_flip"),  # Karimireddy et al. 2021, Figure 3
    "norm_bound": ("label_flip, scaling(10)", "gaussian(10)"),  # Sun et al. 2019, section 5
}
# Baruch et al. 2019, section 4; Xie et al. 2020, section 5.
BREAKS = (
    ("krum", ("little_is_enough(1.5)", "inner_product(0.5)")),
    ("coordinate_median", ("little_is_enough(1.5)", "inner_product(0.5)")),
)

Rows = list[dict[str, Any]]


def algorithm(model: fedax.Model, rate: Any, attack: str, rule: str, data: str) -> Any:
    """FedAvg, attacked, with a robust mean."""
    made = fedax.fedavg(model, 0.1, rate, **LOCAL)
    for one in ATTACKS[attack]:
        made = fedax.attacked(made, one, SHARE)
    mean = RULES[rule](BOUND[data])
    return made if mean is None else fedax.robust(made, mean)


def accuracies(data: str, attack: str, rule: str) -> list[float]:
    """Test accuracy in percent after the last round, of each seed."""
    task = fedax.load_task("digits", "logistic", num_clients=CLIENTS, partition=DATA[data])
    result = fedax.sweep(
        task,
        lambda server_learning_rate: algorithm(
            task.model, server_learning_rate, attack, rule, data
        ),
        {"server_learning_rate": [1.0]}, num_rounds=ROUNDS, seeds=SEEDS, cohort_size=CLIENTS,
        evaluate_every=ROUNDS, progress=False,
    )
    return [round(100 * float(x), 3) for x in result.record.metrics["test_accuracy"][:, -1]]


def mean_of(rows: Rows, data: str, attack: str, rule: str) -> float:
    """The mean accuracy of a cell; 0 if a seed diverged."""
    (row,) = [row for row in rows
              if (row["data"], row["attack"], row["rule"]) == (data, attack, rule)]
    found = [x for x in row["accuracy"] if x == x]  # noqa: PLR0124
    return sum(found) / len(found) if len(found) == SEEDS else 0.0


def verdicts(rows: Rows) -> Iterator[tuple[str, float, bool]]:
    """Each criterion in words, the points, and whether it is met."""
    whole = mean_of(rows, "alike", "none", "mean")
    for rule, claimed in CLAIMED.items():
        for attack in claimed:
            lost = whole - mean_of(rows, "alike", attack, rule)
            yield f"`{rule}` withstands {attack}: at most {MARGIN:g}", lost, lost <= MARGIN
    for attack in LONG:
        lost = whole - mean_of(rows, "alike", attack, "mean")
        yield f"the mean breaks under {attack}: at least {COLLAPSE:g}", lost, lost >= COLLAPSE
    for rule, by in BREAKS:
        own = mean_of(rows, "two labels", "none", rule)
        lost = max(own - mean_of(rows, "two labels", attack, rule) for attack in by)
        words = f"`{rule}` breaks under {' or '.join(by)}: at least {BROKEN:g}"
        yield words, lost, lost >= BROKEN


def page(rows: Rows) -> str:
    """The tables in Markdown."""
    lines = []
    for data, partition in DATA.items():
        lines += [f"\n## Clients: {data} (`{partition}`)\n",
                  f"| attack | {' | '.join(RULES)} |", f"|---{'|---' * len(RULES)}|"]
        for attack in ATTACKS:
            cells = [f"{mean_of(rows, data, attack, rule):.1f}" for rule in RULES]
            lines.append(f"| {attack} | {' | '.join(cells)} |")
    lines += ["\n## Criteria\n", "| criterion, points lost | measured | met |", "|---|---|---|"]
    for words, lost, met in verdicts(rows):
        lines.append(f"| {words} | {lost:.1f} | {'yes' if met else '**no**'} |")
    return "\n".join(lines)


def read(path: Path) -> Rows:
    """The rows of a file; none if there is none."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def main(path: Path) -> None:
    """Adds the rows that a file lacks."""
    known = {(row["data"], row["attack"], row["rule"]) for row in read(path)}
    for data in DATA:
        for attack in ATTACKS:
            for rule in RULES:
                if (data, attack, rule) in known:
                    continue
                row = {"data": data, "attack": attack, "rule": rule,
                       "accuracy": accuracies(data, attack, rule)}
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "table":
        print(page(read(Path(sys.argv[2]))))
    else:
        main(Path(sys.argv[1]))
