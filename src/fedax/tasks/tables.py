"""A first model of a user's own table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from fedax.algorithm import Array, Model, Params
from fedax.data.federated_dataset import FederatedDataset
from fedax.data.preparing import Table, fit_table
from fedax.data.preparing.cells import Cells, Decimal, read_cells, with_labels
from fedax.data.preparing.fitting import Encoding, Missing, Objective, Scaling, Unknown
from fedax.data.preparing.table import Unlabelled, cells_for
from fedax.data.task import Task
from fedax.models.mlp import mlp
from fedax.models.scores import auc, mae, r2, rmse
from fedax.models.supervised import classification, regression
from fedax.models.weighting import balanced_class_weights
from fedax.validate import check_choice, check_number
from fedax.validate import unknown as unknown_name

MODELS = ("linear", "mlp")
ENDINGS = (".csv", ".tsv", ".csv.gz", ".parquet")
ClassWeights: TypeAlias = Literal["none", "balanced"]


def names_table(word: str | None) -> bool:
    """Whether a task's name is that of a file with a table.

    Example:
      >>> names_table("stays.CSV"), names_table("digits"), names_table(None)
      (True, False, False)
    """
    return word is not None and word.lower().endswith(ENDINGS)


def load(
    model: str,
    file: str,
    client: str,
    label: str,
    test: float | str = 0.2,
    split_seed: int = 0,
    columns: str | None = None,
    leave_out: str | None = None,
    missing: Missing = "mean",
    encoding: Encoding = "one_hot",
    unknown: Unknown = "column",
    scaling: Scaling = "pooled",
    objective: Objective = "auto",
    positive: str | float | None = None,
    decimal: Decimal = "point",
    unlabelled: Unlabelled = "error",
    class_weights: ClassWeights = "none",
) -> Task:
    """The rows of a CSV or Parquet file, with a client column.

    Args:
      model: "linear" (logistic regression of classes, linear regression of numbers) or "mlp" (one
        hidden layer of 64 units).
      file: the table; a CSV file needs a header line.
      client: the column with each row's client.
      label: the column to predict.
      test: the fraction of each client's rows for testing, in [0, 1); or a second file.
      split_seed: seed of the split.
      columns: the columns to use as features, separated by commas; none: all except ids, constant
          columns, dates, and text with more than 100 values.
      leave_out: the columns not to use, separated by commas.
      missing: how to fill in missing numbers: mean, error, or a number. A missing text is a
          category.
      encoding: of text: one_hot (one feature per category) or ordinal (the category's index).
      unknown: how to treat text that no training row has: column (an extra category) or error.
      scaling: of numbers, by the training rows: pooled (of all clients), client (of each client),
          or none.
      objective: auto, classification or regression.
      positive: the positive class of two; none: the last in sorted order.
      decimal: with comma, text such as 27,4 is read as numbers.
      unlabelled: how to treat rows without a label: error or drop.
      class_weights: none, or balanced: every class counts the same in the loss, however rare it is.
    """
    check_choice("class_weights", class_weights, ("none", "balanced"))
    cells = read_cells(file, client, decimal=decimal)
    if unlabelled == "drop":
        cells = with_labels(cells, label)
    second: Cells | str | None = None
    if isinstance(test, str):
        second, train_rows = test, cells
    else:
        check_number("test", test, at_least=0, below=1)
        train_rows = cells
        if test:
            rows = FederatedDataset.from_arrays(
                {"row": np.arange(cells.num_rows)}, cells.clients
            ).split(test, split_seed)
            train_rows, second = (cells.take(part.arrays["row"]) for part in rows)
    taken = _names(columns)
    left = _names(leave_out) or []
    for name in left:
        if name not in cells.columns or name == label:
            others = [other for other in cells.columns if other != label]
            raise ValueError(unknown_name("column in leave_out", name, others))
    if left:
        train_rows = train_rows._replace(
            columns={name: of for name, of in train_rows.columns.items() if name not in left}
        )
    table = fit_table(
        train_rows, client=client, label=label, columns=taken, missing=missing, encoding=encoding,
        unknown=unknown, scaling=scaling, objective=objective, positive=positive,
        decimal=decimal, unlabelled=unlabelled,
    )
    if isinstance(second, str):
        second = cells_for(table, second)
    tested = None if second is None else table.apply(second)
    if second is not None and label not in second.columns:
        raise ValueError(f"{test}: {unknown_name('label column', label, second.columns)}")
    name = Path(file).name.partition(".")[0] or "table"
    references = {} if tested is None else _references(table, tested)
    made = _model(table, model, class_weights)
    return Task(made, table.apply(train_rows), tested, name, references)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in str(text).split(",")]


def _model(table: Table, model: str, class_weights: ClassWeights) -> Model:
    hidden = (64,) if model == "mlp" else ()
    classes = () if table.label is None else table.label.classes
    init, apply = mlp((len(table.features), *hidden, len(classes) or 1))
    if classes:
        counts = table.label.counts if table.label else ()
        weights = balanced_class_weights(counts) if class_weights == "balanced" else None
        scores = {"auc": auc()} if len(classes) == 2 else None
        return classification(init, apply, class_weights=weights, scores=scores)

    def predict(params: Params, x: Array) -> Array:
        return apply(params, x)[:, 0]

    scale = 1.0 if table.label is None else table.label.deviation
    scores = {"rmse": rmse(scale), "mae": mae(scale), "r2": r2()}
    return regression(init, predict, scores=scores)


def _references(
    table: Table, test: FederatedDataset
) -> Mapping[str, Callable[[], Mapping[str, float]]]:
    """What a constant answer, decided on the training rows, gets on the test rows."""
    label, y = table.label, test.arrays["y"]
    if label is None:
        return {}
    if label.classes:
        often = int(np.argmax(label.counts))
        return {"the most frequent class": lambda: {"test_accuracy": float(np.mean(y == often))}}
    mean = 0.0 if label.deviation != 1.0 or label.mean else None
    if mean is None:  # not scaled
        return {}
    square = float(np.mean(np.square(y)))
    return {"the mean": lambda: {
        "test_loss": square / 2, "test_rmse": label.deviation * square**0.5
    }}
