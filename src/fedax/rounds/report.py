"""Reports of rounds, and when a run has diverged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np

from fedax.data.federated_dataset import FederatedDataset
from fedax.outside.text import Told
from fedax.rounds.client_metrics import ClientMetrics
from fedax.rounds.cohort import RoundInfo
from fedax.rounds.directions import is_evaluated
from fedax.rounds.dispatch import Prepared
from fedax.rounds.history import UNDEFINED, is_undefined
from fedax.rounds.state import TrainingState


class DivergedError(Told, ArithmeticError):
    """Raised when training has diverged: there is nothing finite to continue with."""


class RoundReport(NamedTuple):
    """What a round reports.

    Attributes:
      metrics: `round` (1 after the first), `train_loss`, `num_local_steps` (mean over the clients)
        and `total_local_steps` (their sum), `num_reports` (clients with a positive weight),
        `num_rejected`, `num_dropped`, in evaluation rounds `test_*` and, with 10 or more test
        clients, `test_worst_tenth_*` (see `ClientMetrics.worst`), and what the algorithm and the
        diagnostics report. Means over no clients are NaN. Times: `seconds` of the round without
        compiling, which includes `data_seconds` of waiting for the clients' data;
        `compile_seconds`; and `evaluation_seconds` in evaluation rounds. Rounds that run on the
        device together have equal times.
      rejected: names of the clients whose upload got weight 0 because it was not finite or too
        large to be averaged.
      dropped: names of the clients that dropped out of the round.
      state: state after the round, or None, see `state_every`. The next round changes its client
        store in place.
      clients: in evaluation rounds the test metrics client by client, otherwise None.
      personal: the same after fine-tuning, with `personalize_steps` or `personalize_epochs`.
      own: the same of the clients' own models, if the method has such models; over all clients
        they are in the metrics, `test_own_*` over all examples, `test_own_mean_*` with equal
        weights and, with 10 or more clients, `test_own_worst_tenth_*`.
      followed: whether the report of the next round follows immediately, because
        `evaluation_sample` held both back.
    """

    metrics: dict[str, float]
    rejected: list[str]
    dropped: list[str]
    state: TrainingState | None
    clients: ClientMetrics | None = None
    personal: ClientMetrics | None = None
    own: ClientMetrics | None = None
    followed: bool = False

    def __repr__(self) -> str:
        names = [name for name in self.metrics if name == "train_loss" or is_evaluated(name)]
        words = [
            f"{name} " + (
                UNDEFINED if is_undefined(self.metrics, name) else f"{self.metrics[name]:.4g}"
            )
            for name in names[:8]
        ]
        for what in ("rejected", "dropped"):
            clients = getattr(self, what)
            if clients:
                some = [*clients[:3], *(["..."] if len(clients) > 3 else [])]
                words.append(f"{what} {len(clients)} ({', '.join(some)})")
        words += ["with its state"] if self.state is not None else []
        return f"RoundReport(round {self.metrics['round']}: {', '.join(words)})"


def reports(
    prepared: Prepared,
    infos: RoundInfo,
    times: Mapping[str, float],
    num_exchanges: int,
    data: FederatedDataset,
    why: Callable[[str], str],
    withheld: bool,
    sent: Callable[[np.ndarray, Mapping[str, float]], dict[str, float]],
) -> Iterator[tuple[RoundReport, np.ndarray]]:
    """The rounds' reports, and which of their clients finished; up to a round that diverged.

    `why` explains for a client's name why its upload was rejected. `withheld`: nothing is told of
    the clients, as of an exchange with `total`.
    """
    for place, (ids, dropped_at) in enumerate(
        zip(prepared.client_ids, prepared.dropped_at, strict=True)
    ):
        info: RoundInfo = jax.tree.map(lambda leaf, place=place: leaf[place], infos)
        number = prepared.first + place + 1
        done = info.accepted & (dropped_at >= num_exchanges)
        rejected, dropped = (
            [data.name(int(i)) for i in ids[which]] for which in (~info.accepted, info.dropped)
        )
        if (rejected and not done.any() and not withheld) or not info.finite:
            raise DivergedError(_diverged(number, rejected, info, why))
        if withheld:
            rejected, dropped, metrics = [], [], {"round": number}
        else:
            metrics = _metrics(number, info)
            metrics |= sent(dropped_at, metrics)
        metrics |= {name: time / prepared.num_rounds for name, time in times.items()}
        yield RoundReport(metrics, rejected, dropped, None), done


def _metrics(round_number: int, info: RoundInfo) -> dict[str, float]:
    means: Mapping[str, float] = {name: float(mean) for name, (mean, _) in info.info.items()}
    metrics: dict[str, float] = {"round": round_number, **means}
    if "num_local_steps" in info.info:
        metrics["total_local_steps"] = int(info.num_local_steps)
    return metrics | {
        "num_reports": int(info.num_reports),
        "num_rejected": int((~info.accepted).sum()),
        "num_dropped": int(info.dropped.sum()),
    }


def _diverged(
    round_number: int, rejected: list[str], info: RoundInfo, why: Callable[[str], str]
) -> str:
    if not info.finite:
        return (
            f"Round {round_number}: the server's parameters, or the numbers that its optimizer "
            "keeps, are no longer finite, so training has diverged. Lower the client or the server "
            "learning rate, or look for clients whose data have very large values."
        )
    names = ", ".join(rejected[:3]) + (", ..." if len(rejected) > 3 else "")
    return (
        f"Round {round_number}: none of the {len(rejected)} clients ({names}) sent a finite upload "
        f"with a weight >= 0, so training has diverged. {why(rejected[0])}"
    )
