"""The best settings of sweeps as the table of docs/notebook/quick-rates.md.

    python scripts/quick_rates.py SWEEP_DIR...
"""

from __future__ import annotations

import sys

import fedax


def main(folders: list[str]) -> None:
    """Prints a row a method."""
    print("| method | searched | best | training loss | at the edge |")
    print("|---|---|---|---|---|")
    for folder in folders:
        sweep = fedax.load_sweep(folder)
        choice, settings = sweep.choice, sweep.record.settings
        for name, method in choice.methods.items():
            grid = "; ".join(
                f"{_words(key)} {', '.join(f'{value:g}' for value in values)}"
                for key, values in method.grid.items()
            )
            edges = ", ".join(f"{_words(edge.name)} {edge.value:g}" for edge in method.edges)
            if method.best is None:
                print(f"| `{name}` | {grid} | none | | |")
                continue
            best = ", ".join(
                f"{_words(key)} {value:g}" for key, value in settings[method.best].values.items()
            )
            score = f"{choice.mean[method.best]:.3f} ± {choice.spread[method.best]:.3f}"
            print(f"| `{name}` | {grid} | {best} | {score} | {edges} |")


def _words(name: str) -> str:
    return name.replace("_learning_rate", "").replace("_", " ")


if __name__ == "__main__":
    main(sys.argv[1:])
