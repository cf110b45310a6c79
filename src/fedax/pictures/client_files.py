"""The table of a run's clients, read."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedax.data.csv_cells import original_text
from fedax.files.regular import read_file
from fedax.pictures.errors import DrawingError
from fedax.rounds.client_metrics import ClientMetrics

# Longer names of clients, and longer numbers, are refused.
MOST_LETTERS = 1000
LONGEST_NUMBER = 64


def read_clients(path: Path, *, links: bool = True) -> ClientMetrics:
    """The metrics in a run folder's clients.csv, client by client.

    Args:
      path: the file.
      links: whether a link is followed, as of a file that the user names.

    Raises:
      DrawingError: if it cannot be read, or is another kind of file.
    """
    try:
        content = read_file(path, links=links)
        head, *lines = csv.reader(io.StringIO(content.decode(), newline=""))
        head = list(map(original_text, head))
        if head[:2] != ["client", "num_examples"]:
            raise ValueError("it has no columns client and num_examples")
        names, sizes, *columns = zip(*_whole(lines, len(head)), strict=True)
        if max(map(len, names)) > MOST_LETTERS:  # an array of names has all as long as the longest
            raise ValueError(f"a client's name has more than {MOST_LETTERS} letters")
        examples = np.array(sizes, int)
        sums = {}
        for metric, texts in zip(head[2:], columns, strict=True):
            if max(map(len, texts)) > LONGEST_NUMBER:
                raise ValueError(f"its column {metric[:40]!r} has a number of too many digits")
            values = np.array([float(text) if text else np.nan for text in texts])
            there = ~np.isnan(values)
            sums[metric] = (np.where(there, values, 0), there.astype(float))
    except FileNotFoundError:
        raise DrawingError(f"Cannot read {path}: the file does not exist.") from None
    except OSError as error:
        raise DrawingError(f"Cannot read {path}: {error.strerror or error}.") from None
    except (OverflowError, ValueError, csv.Error) as error:
        raise DrawingError(f"{path} is not a table of a run's clients: {error}.") from None
    return ClientMetrics(sums, np.array(list(map(original_text, names))), examples)


def _whole(lines: Sequence[list[str]], width: int) -> Sequence[list[str]]:
    if not lines:
        raise ValueError("it has no client")
    for number, line in enumerate(lines, 2):
        if len(line) != width:
            raise ValueError(f"line {number} has {len(line)} of {width} columns")
    return lines
