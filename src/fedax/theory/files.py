"""Populations of quadratic clients from files.

=========  ===========================================================================
format     content
=========  ===========================================================================
.json      a table of names and values, the arguments of one of the ways to build a
.toml      `QuadraticPopulation`: `matrices` with `centres` or `linear`, and perhaps
           `probabilities` and `noise`; or `random = {num_clients, dimension, mu, L, ...}`;
           or `density_power` and `interval`, for a density z^power of clients
           z (x - 1/z)^2 / 2
.npz       arrays of the same names: `matrices`, `centres` or `linear`, ...
.csv       examples of a linear regression, one client each: a column of client names,
           one of targets, all others features
=========  ===========================================================================
"""

from __future__ import annotations

import csv
import io
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedax.files.array_headers import read_header
from fedax.files.regular import open_file
from fedax.outside.paths import expanded
from fedax.theory.errors import TheoryError
from fedax.theory.given import MOST_NUMBERS, as_array, as_number
from fedax.theory.population import QuadraticPopulation
from fedax.theory.tables import MOST_BYTES, read_table, read_text

# What a .npz file may hold.
ARRAYS = ("matrices", "centres", "linear", "probabilities", "noise", "density_power", "interval")
# Of an array in it; NumPy's own headers have 128 bytes.
_LONGEST_HEADER = 2**12
# Number of letters quoted of a name in a file.
_MOST_LETTERS = 60
# Of what a library says of a damaged file.
_MOST_REASON = 300


# What reading a damaged file of any of these formats raises.
UNREADABLE = (
    ValueError, KeyError, EOFError, csv.Error, zipfile.BadZipFile, zlib.error, NotImplementedError,
    RuntimeError,
)


def population_from(values: Mapping[str, Any]) -> QuadraticPopulation:
    """A population from named values, such as those of a .json file.

    Example:
      >>> population_from({"matrices": [1, 2], "centres": [1, 0.5]}).num_clients
      2

    Raises:
      TheoryError: if the names or values are not those of a population.
    """
    ways: dict[str, tuple[str, Callable[..., QuadraticPopulation]]] = {
        "centres": ("matrices, centres, probabilities, noise", QuadraticPopulation.from_centres),
        "linear": ("matrices, linear, probabilities, noise", QuadraticPopulation.from_linear),
        "density_power": ("density_power, interval, noise", _from_power),
        "random": ("random", _random),
    }
    found = [key for key in ways if key in values]
    if len(found) != 1:
        raise TheoryError(
            f"A population has exactly one of {', '.join(ways)}, but this one has "
            f"{', '.join(found) or 'none of them'} (of {', '.join(values) or 'no names at all'})."
        )
    names, build = ways[found[0]]
    for name in values:
        if name not in names.split(", "):
            raise TheoryError(f"A population with {found[0]} has {names}, but not {name!r}.")
    try:
        return build(**values)
    except TypeError as error:
        words = str(error).rpartition("()")[2].strip()
        raise TheoryError(f"A population with {found[0]} cannot be built: it {words}.") from None


def read_population(
    path: Path | str,
    *,
    client_column: str = "client",
    target_column: str | None = None,
    ridge: float = 0.0,
    intercept: bool = False,
) -> QuadraticPopulation:
    """Reads a population from a file; the file name's ending gives the format, see the module.

    Args:
      path: the file.
      client_column: for .csv, the column of client names.
      target_column: for .csv, the column of targets; None: the last.
      ridge, intercept: for .csv, see `QuadraticPopulation.from_regression`.

    Raises:
      TheoryError: if the file cannot be read, or does not hold a population.
    """
    path = expanded(path)
    readers: dict[str, Callable[[Path], Any]] = {
        ".json": read_table,
        ".toml": read_table,
        ".npz": _read_npz,
        ".csv": _read_csv,
    }
    ending = path.suffix.lower()
    if ending not in readers:
        raise TheoryError(f"{path} must end in {', '.join(readers)}, but ends in {ending!r}.")
    try:
        content = readers[ending](path)
    except OSError as error:
        raise TheoryError(f"Cannot read {path}: {error.strerror or error}.") from None
    except UNREADABLE as error:
        said = str(error).split("\n")[0][:_MOST_REASON].rstrip(".") or "it is cut off"
        raise TheoryError(f"{path} cannot be parsed as {ending}: {said}.") from None
    try:
        if ending == ".csv":
            features, targets = _examples(content, client_column, target_column)
            return QuadraticPopulation.from_regression(
                features, targets, ridge=ridge, intercept=intercept, with_noise=_solvable(
                    features, ridge, intercept
                ),
            )
        if not isinstance(content, Mapping):
            raise TheoryError("A population is a table of names and values.")
        return population_from(content)
    except TheoryError as error:
        raise TheoryError(f"{path}: {error}") from None


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    open_file(path, links=True).close()  # whatever is no file is said to be none
    if not zipfile.is_zipfile(path):
        raise ValueError("it is not a complete .npz file")
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            _check_member(archive, member)
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _check_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Raises a clear error unless a member is an array of a population; reads no numbers.

    Raises:
      ValueError: if its name, dtype, shape or size is not that of such an array.
    """
    name, dot, ending = member.filename.rpartition(".")
    if not dot or ending != "npy" or name not in ARRAYS:
        raise ValueError(
            f"it contains {member.filename[:_MOST_LETTERS]!r}, but a population has only the "
            f"arrays {', '.join(ARRAYS)}"
        )
    with archive.open(member) as file:
        head = io.BytesIO(file.read(_LONGEST_HEADER))
    try:
        shape, _, dtype = read_header(head)
    except ValueError as error:
        raise ValueError(f"the array {name!r} is damaged: {error}") from None
    if dtype.kind not in "biuf" or len(shape) > 3:
        raise ValueError(
            f"the array {name!r} is {dtype}{list(shape)}, but must be numbers with at most 3 axes"
        )
    size = math.prod(shape) * dtype.itemsize
    if math.prod(shape) > MOST_NUMBERS:
        raise ValueError(
            f"the array {name!r} has the shape {list(shape)}, more than {MOST_NUMBERS:,} numbers"
        )
    if member.file_size != head.tell() + size:
        raise ValueError(
            f"the array {name!r} says that it is {dtype}{list(shape)}, {size:,} bytes, but has "
            f"{member.file_size - head.tell():,}"
        )


def _read_csv(path: Path) -> list[tuple[int, list[str]]]:
    """Line numbers and cells of the lines that are not blank; separated by , ; or tabs."""
    lines = read_text(path, MOST_BYTES[".json"]).splitlines()
    head = next((line for line in lines if line.strip()), "")
    reader = csv.reader(lines, delimiter=max(",;\t", key=head.count))
    rows = [(reader.line_num, row) for row in reader]
    return [(number, row) for number, row in rows if any(cell.strip() for cell in row)]


def _from_power(density_power: float, interval: Any, noise: Any = 0.0) -> QuadraticPopulation:
    power, ends = as_number("density_power", density_power), as_array("interval", interval)
    if ends.size and ends.flat[0] <= 0:
        raise TheoryError(f"interval must be above 0, as clients z have centres 1/z: {interval}.")
    return QuadraticPopulation.from_density(lambda z: z**power, interval, noise=noise)


def _random(random: Any) -> QuadraticPopulation:
    if not isinstance(random, Mapping):
        raise TheoryError(f"random must be a table with num_clients, dimension, ..., not {random}.")
    return QuadraticPopulation.random(**random)


def _solvable(features: list[np.ndarray], ridge: float, intercept: bool) -> bool:
    """Whether the pooled problem has one minimiser, at which noise can be measured."""
    pooled = np.concatenate(features)
    if intercept:
        pooled = np.hstack([pooled, np.ones((len(pooled), 1))])
    return ridge > 0 or np.linalg.matrix_rank(pooled) == pooled.shape[1]


def _examples(
    rows: list[tuple[int, list[str]]], client_column: str, target_column: str | None
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Features and targets of every client, in the order in which the clients first appear."""
    if len(rows) < 2:
        raise TheoryError("A line of column names and at least one example are needed.")
    names = [name.strip() for name in rows[0][1]]
    target = names[-1] if target_column is None else target_column
    for column in (client_column, target):
        if column not in names:
            raise TheoryError(f"There is no column {column!r}; the columns are {', '.join(names)}.")
    if target == client_column:
        raise TheoryError(f"The column {target!r} cannot be both the client and the target.")
    clients: dict[str, list[list[float]]] = {}
    places = [i for i, name in enumerate(names) if name not in (client_column, target)]
    if not places:
        raise TheoryError("There is no column of features.")
    for number, row in rows[1:]:
        if len(row) != len(names):
            raise TheoryError(f"Line {number} has {len(row)} values, the first {len(names)}.")
        try:
            values = [float(row[i]) for i in [*places, names.index(target)]]
        except ValueError as error:
            raise TheoryError(f"Line {number}: {error}.") from None
        clients.setdefault(row[names.index(client_column)], []).append(values)
    arrays = [np.array(examples) for examples in clients.values()]
    return [array[:, :-1] for array in arrays], [array[:, -1] for array in arrays]
