"""`fedax data describe` and `fedax data partition`."""

from __future__ import annotations

import shlex
from pathlib import Path

from fedax.cli.data_commands import DataDescribe, DataPartition
from fedax.data.errors import DataError
from fedax.data.federated_dataset import FederatedDataset
from fedax.data.folder import SPLITS, load_dataset
from fedax.data.label_skew import label_skew
from fedax.data.partitions import Partition, parse_partition
from fedax.data.store import TABLE, open_store
from fedax.experiment.build import build_task, find_task
from fedax.experiment.errors import ConfigError
from fedax.outside.text import printable
from fedax.report.picture import require_format, save_picture
from fedax.report.population_picture import draw_population
from fedax.report.population_tables import population_tables
from fedax.report.tables import print_json, print_tables
from fedax.validate import quoted


def describe(command: DataDescribe) -> None:
    """Prints the tables of a data set or of a partition of it, and draws its picture.

    Raises:
      ConfigError: if the data set or the partition is unknown.
      DataError: if the data set is not available, or a file is damaged.
      PictureError: if the picture cannot be written.
    """
    if command.out is not None:
        require_format(command.out)
    dataset, name = _opened(command.name, test=command.test), command.name
    if command.partition is None and (command.num_clients, command.seed) != (None, None):
        raise ConfigError("--num-clients and --seed need --partition.")
    try:
        if command.partition is not None:
            made = _partition(command, dataset, command.partition)
            name = f"{name}, {made.made.get('partition')}, seed {made.made.get('seed')}"
            dataset = made.of(dataset)
        skew = label_skew(dataset, command.label)
    except DataError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from None
    tables = population_tables(name, dataset, skew)
    (print_json if command.json else print_tables)(tables)
    if command.out is not None:
        path = save_picture(
            lambda figure: draw_population(figure, name, dataset, skew), command.out
        )
        if not command.json:
            print(f"Picture: {printable(str(path))}")


def partition(command: DataPartition) -> None:
    """Makes a partition and saves it.

    Raises:
      ConfigError: if the data set or the partition is unknown.
      DataError: if the data set is not available, or the file cannot be written.
    """
    dataset = _opened(command.name, test=command.test)
    test_path = command.out.with_suffix(".test.npz")
    try:
        made = parse_partition(
            command.partition, dataset, command.num_clients, command.seed, label=command.label
        )
        parts = {command.out: made}
        if command.test_fraction is not None:
            train, test = made.split(command.test_fraction, command.seed)
            parts = {command.out: train, test_path: test}
    except ValueError as error:
        raise ConfigError(str(error)) from None
    for path, part in parts.items():
        print(f"{printable(str(part.save(path)))}: {part!r}")


def _partition(command: DataDescribe, dataset: FederatedDataset, text: str) -> Partition:
    """The partition in a file, or the one that the text stands for."""
    if not text.endswith(".npz"):
        label = command.label or "y"
        return parse_partition(text, dataset, command.num_clients, command.seed or 0, label=label)
    if (command.num_clients, command.seed) != (None, None):
        raise ConfigError(
            f"{text} is a finished partition, so --num-clients and --seed cannot change it. They "
            "are for a partition such as 'dirichlet(0.1)'."
        )
    return Partition.load(text)


def _opened(name: str, *, test: bool) -> FederatedDataset:
    """One part of a data set, by its name or the folder of its stores, or of a user's own task."""
    part = SPLITS[test]
    folder = Path(name)
    if (folder / TABLE).is_file():
        if test:
            raise ConfigError(f"{folder} is a single store without a test part. Leave out --test.")
        return open_store(folder)
    if (folder / part / TABLE).is_file():
        return open_store(folder / part)
    if folder.is_dir() and name != folder.name:  # a path, and no name of a data set
        raise ConfigError(
            f"{folder} does not contain a store: it has neither {TABLE} nor {part}/{TABLE}."
        )
    if name.endswith(".py") or (_is_of_own_task(name) and not folder.exists()):
        return _of_own_task(name, test=test)
    if folder.is_file():
        made = f"{folder}.store"
        raise ConfigError(
            f"{folder} is a file. Convert it to a store with fedax.read_data (see "
            f"docs/guides/your-data.md), then: fedax data describe {shlex.quote(made)}"
        )
    if "/" in name or "\\" in name:
        raise ConfigError(f"The folder {quoted(name)} does not exist.")
    try:
        splits = load_dataset(name)
    except DataError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return splits.test if test else splits.train


def _is_of_own_task(name: str) -> bool:
    """Whether it is FILE.py:NAME or package.module:NAME, also half written. A drive is none."""
    return ".py:" in name or name.partition(":")[2].isidentifier()


def _of_own_task(text: str, *, test: bool) -> FederatedDataset:
    name, source = find_task(text)
    task = build_task(name, {}, source)
    dataset = task.test if test else task.train
    if dataset is None:
        raise ConfigError(f"The task {text} has no test part.")
    return dataset
