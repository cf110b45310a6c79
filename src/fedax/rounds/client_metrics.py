"""Metrics client by client, and over the clients for whom they are worst."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from fedax.algorithm import Params
from fedax.rounds.directions import direction
from fedax.rounds.history import UNDEFINED, as_frame
from fedax.validate import check_number

if TYPE_CHECKING:
    import pandas

# With fewer clients a tenth of them is no client.
CLIENTS_FOR_A_TENTH = 10
# Number of clients that are named when the metrics are shown.
SHOWN = 3


class ClientMetrics(Mapping[str, np.ndarray]):
    """Metric name -> each client's mean over its examples, float64 [num_clients].

    NaN where all of a client's examples weigh 0. A score, such as an AUC, is computed from the
    client's own examples; it is NaN where they do not define it.

    Attributes:
      names: the clients' names, [num_clients], text or integers.
      num_examples: int64 [num_clients], number of examples evaluated.
      before: the same metrics before fine-tuning, from `fedax.evaluate_personalized`; otherwise
        None.
      num_left_out: number of clients that could not be evaluated, see
        `fedax.evaluate_personalized`.
      params: client name -> its fine-tuned parameters, if `keep_params=True` there; otherwise None.

    Example:
      >>> sums = {"loss": (np.array([3.0, 5.0, 2.0]), np.array([3.0, 1.0, 1.0]))}
      >>> clients = ClientMetrics(sums, np.array(["ada", "bob", "eve"]), np.array([3, 1, 1]))
      >>> clients["loss"].tolist()
      [1.0, 5.0, 2.0]
      >>> clients
      ClientMetrics of 3 clients
        loss: mean 2.667, worst tenth 5; worst bob 5, eve 2, ada 1
      >>> clients.overall()  # over all examples
      {'loss': 2.0}
    """

    def __init__(
        self,
        sums: Mapping[str, tuple[np.ndarray, np.ndarray]],
        names: np.ndarray,
        num_examples: np.ndarray,
        before: ClientMetrics | None = None,
        num_left_out: int = 0,
        *,
        scores: Mapping[str, tuple[float, np.ndarray]] = MappingProxyType({}),
        params: dict[Any, Params] | None = None,
    ) -> None:
        """From metric name -> each client's sums of weight * value and of the weights.

        `scores` are functions of all outputs: name -> that of all clients together, and each one's.
        """
        self._sums = dict(sums)
        self._scores = dict(scores)
        self.names = names
        self.num_examples = num_examples
        self.before = before
        self.num_left_out = num_left_out
        self.params = params

    def __getitem__(self, metric: str) -> np.ndarray:
        if metric in self._scores:
            return self._scores[metric][1]
        totals, weights = self._sums[metric]
        return np.divide(totals, weights, out=np.full_like(totals, np.nan), where=weights > 0)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._sums, *self._scores])

    def __len__(self) -> int:
        """The number of metrics."""
        return len(self._sums) + len(self._scores)

    def overall(self) -> dict[str, float]:
        """Metric name -> mean, or score, over the examples of all clients together."""
        return {
            metric: float(totals.sum() / weights.sum()) if weights.sum() else math.nan
            for metric, (totals, weights) in self._sums.items()
        } | {metric: pooled for metric, (pooled, _) in self._scores.items()}

    def worst(self, fraction: float = 0.1) -> dict[str, float]:
        """Metric name -> mean over the clients for whom it is worst.

        Each client counts once, however many examples it has. The mean is over the given fraction
        of the clients with a value, rounded up. Low values are worse for metrics such as accuracy,
        auc, f1 and recall (see `fedax.EarlyStopping`), and high values for all others.

        Args:
          fraction: share of the clients, in (0, 1].

        Raises:
          ValueError: if the fraction is not in (0, 1].
        """
        check_number("fraction", fraction, above=0, at_most=1)
        worst = {}
        for metric, values in self.items():
            order = self._worst_first(metric)
            # Rounding may lift a product such as 0.1 * 30 above the whole number that it is.
            few = order[: math.ceil(fraction * len(order) * (1 - 1e-12))]
            worst[metric] = float(values[few].mean()) if len(few) else math.nan
        return worst

    def worst_clients(self, metric: str, count: int = 10) -> dict[str, float]:
        """Client name -> value, for the clients with the worst values, worst first."""
        values = self[metric]
        few = self._worst_first(metric)[:count]
        return {str(self.names[i]): float(values[i]) for i in few}

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame with one row per client: its name, `num_examples` and the metrics.

        After fine-tuning, columns that end in `_before` have the values from before it.

        Raises:
          ModuleNotFoundError: if pandas is not installed.
        """
        columns = {"client": self.names, "num_examples": self.num_examples, **self}
        if self.before is not None:
            columns |= {f"{metric}_before": values for metric, values in self.before.items()}
        return as_frame("The table of clients", columns).set_index("client")

    def __repr__(self) -> str:
        lines = [f"ClientMetrics of {len(self.names):,} clients"]
        if self.before is not None:
            lines[0] += " after fine-tuning (before)"
        if self.num_left_out:
            lines[0] += f", {self.num_left_out:,} without test examples left out"
        tails = self.worst()
        means = self._means()
        for metric in self:
            mean, tail = f"{means[metric]:.4g}", f"{tails[metric]:.4g}"
            if metric in self._scores and math.isnan(means[metric]):
                lines.append(f"  {metric}: {UNDEFINED} for every client")
                continue
            if self.before is not None:
                mean += f" ({self.before._means()[metric]:.4g})"
                tail += f" ({self.before.worst()[metric]:.4g})"
            named = self.worst_clients(metric, SHOWN).items()
            few = ", ".join(f"{name} {value:.4g}" for name, value in named)
            lines.append(f"  {metric}: mean {mean}, worst tenth {tail}; worst {few}")
        return "\n".join(lines)

    def _means(self) -> dict[str, float]:
        """Metric name -> mean over clients, each of which counts once."""
        return self.worst(1.0)

    def _worst_first(self, metric: str) -> np.ndarray:
        """The clients with a value, the worst first, equal ones in their order."""
        values = self[metric]
        order = np.argsort(-values if direction(metric) != "max" else values, kind="stable")
        return order[: len(values) - int(np.isnan(values).sum())]  # NaN comes last
