"""What a run came to: its summary.json, and what is said at its beginning and its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedax.data.task import Task
from fedax.experiment.display import describe_test
from fedax.experiment.folder import write_json
from fedax.experiment.metrics import read_metrics
from fedax.experiment.profiling import time_parts
from fedax.measures.communication import Communication
from fedax.rounds.budget import Mechanism, in_words
from fedax.rounds.state import TrainingState
from fedax.rounds.stopping import Watch
from fedax.validate import so_many

References = Mapping[str, Mapping[str, float]]


def write_summary(
    folder: Path,
    config: Mapping[str, Any],
    task: Task,
    sent: Communication,
    references: References,
    watch: Watch,
    saving: float,
    rejected_clients: list[tuple[str, int]],
    mechanism: Mechanism | None,
    close_sinks: Callable[[Mapping[str, Any]], list[str]],
) -> dict[str, Any]:
    """Writes what the whole run came to, over all its sittings.

    Args:
      folder: the run's.
      config: its configuration.
      task: what was learned.
      sent: what a client sends and gets.
      references: what to compare with.
      watch: why training stopped, which model was the best, and what was measured at the end.
      saving: the last checkpoint's seconds, which no round after it reports.
      rejected_clients: names of clients and how often their uploads were rejected.
      mechanism: of a private algorithm; None: it is not private.
      close_sinks: gives the sinks the summary, and returns the names of those that have it all.
    """
    rounds = read_metrics(folder)
    parts = time_parts(rounds, saving)
    losses = [m["train_loss"] for m in rounds[-100:] if m.get("train_loss") is not None]
    best = watch.best
    kept = best and {"metric": best.goal.metric, "round": best.round, "value": best.value}
    if kept and watch.best_test is not None:
        kept["test"] = watch.best_test
    summary = {
        "rounds": len(rounds),
        "stopped": watch.why,
        "best": kept,
        "seconds": sum(parts.values()),
        "time": parts,
        "num_clients": task.train.num_clients,
        "num_rejected": sum(metrics.get("num_rejected", 0) for metrics in rounds),
        "rejected_clients": dict(rejected_clients),
        "train_loss_last_100_rounds": float(np.mean(losses)) if losses else None,
        "final": watch.final,
        "references": references,
        "algorithm": config["algorithm"],
        "total_local_steps": sum(metrics.get("total_local_steps", 0) for metrics in rounds),
        "num_dropped": sum(metrics.get("num_dropped", 0) for metrics in rounds),
        "bytes_down_per_client": sent.bytes_down,
        "bytes_up_per_client": sent.bytes_up,
    }
    if mechanism is not None:
        summary["privacy"] = mechanism.guarantee(len(rounds))
        for name in ("num_rejected", "num_dropped", "total_local_steps", "rejected_clients"):
            del summary[name]  # what is not told of the clients is not 0
    summary["log"] = close_sinks(summary)
    write_json(folder / "summary.json", summary)
    return summary


def opening(
    folder: Path,
    config: Mapping[str, Any],
    task: Task,
    state: TrainingState,
    references: References,
) -> list[str]:
    """What a run says of itself before its first round."""
    num_parameters = sum(leaf.size for leaf in jax.tree.leaves(state.server_state.params))
    lines = [
        f"{config['algorithm']} on {config['task']}: "
        f"{so_many(task.train.num_clients, 'client')}, "
        f"{so_many(task.train.num_examples, 'training example')}, "
        f"{so_many(num_parameters, 'parameter')}",
        f"{so_many(config['num_rounds'], 'round')} of {_cohort(config)}, preset "
        f"{config['preset']}, seed {config['seed']}, in {folder}",
    ]
    return lines + [f"For comparison, {text}: {describe_test(m)}" for text, m in references.items()]


def _cohort(config: Mapping[str, Any]) -> str:
    everyone = config["sampling"] == "full"
    return "all clients" if everyone else so_many(config["cohort_size"], "client")


def describe_table(task: Task, options: Mapping[str, Any]) -> list[str]:
    """What was done with a table's columns, and which rows are for testing; nothing of other tasks.

    Args:
      task: what is learned.
      options: the settings of the task.
    """
    if task.train.table is None:
        return []
    lines = str(task.train.table).splitlines()
    if task.test is not None:
        share = options.get("test")  # of the task `table`, not of a user's own
        whose = (
            f", those of {share}" if isinstance(share, str)
            else f", {share:.0%} of each client's" if isinstance(share, float) else ""
        )
        lines.append(f"Test rows: {task.test.num_examples:,}{whose}")
    return lines


def closing(folder: Path, summary: Mapping[str, Any], references: References) -> str:
    """What it says after the last."""
    words = [f"Done: {so_many(summary['rounds'], 'round')} in {summary['seconds']:.0f} s."]
    if summary["stopped"]:
        words = [summary["stopped"], *words]
    result = describe_test(summary["final"]).replace("  ", ", ")
    if result:
        compare = "".join(
            f" ({text}: {describe_test(m).replace('  ', ', ')})" for text, m in references.items()
        )
        words.append(f"{result[0].upper()}{result[1:]}{compare}.")
    if summary["best"]:
        best = summary["best"]
        tests = describe_test(best["test"]).replace("  ", ", ") if best.get("test") else ""
        words.append(
            f"Best {best['metric']}: {best['value']:.6g} in round {best['round']}"
            f"{f', with {tests}' if tests else ''}."
        )
    if summary.get("privacy"):
        words.append(f"Privacy: {in_words(summary['privacy'])}.")
    return " ".join([*words, f"Report: {folder / 'report.html'}"])
