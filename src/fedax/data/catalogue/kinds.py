"""What is said of a data set in the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from fedax.data.downloads.files import Published
from fedax.data.downloads.packages import Package
from fedax.data.readers.clients import Clients
from fedax.data.store_writer import Transform

# The name of a file -> where it lies.
Files: TypeAlias = Mapping[str, Path]


class Form(NamedTuple):
    """A form in which a source's files come.

    Attributes:
      files: what they are called; each may be packed with gzip.
      train, test: read the two parts.
    """

    files: tuple[str, ...]
    train: Callable[[Files], Clients]
    test: Callable[[Files], Clients]


class Source(NamedTuple):
    """Where data sets come from.

    Attributes:
      downloads: the canonical files; all are needed. Empty: there is no download, see `instead`.
      forms: in which the files can come, the best first.
      known: further files that users may have.
      package: which carries the bytes; None: none does.
      instead: a sentence that says what to do where no package does.
      on: another data set that these files complete, such as MNIST for its digits' writers; it must
        be available first. Its folder is among the files, under its name. Empty: none.
      reader: the module that reads the canonical files, fedax's extra that brings it, and what it
        reads; None: fedax needs none.
    """

    downloads: tuple[Published, ...]
    forms: tuple[Form, ...]
    known: tuple[Published, ...] = ()
    package: Package | None = None
    instead: str = ""
    on: str = ""
    reader: tuple[str, str, str] | None = None


class Expected(NamedTuple):
    """What a part of a data set must hold.

    Attributes:
      num_clients, num_examples: how many; None: any number.
      label_counts: of each label `y`; empty: not compared.
      means: of the pixels by channel, 255 counting 1, to four places; empty: not compared.
      first_labels: of the first examples.
      digests: array -> SHA-256 of its numbers, as in a store.
    """

    num_clients: int
    num_examples: int | None
    label_counts: tuple[int, ...] = ()
    means: tuple[float, ...] = ()
    first_labels: tuple[int, ...] = ()
    digests: Mapping[str, str] = {}


class Product(NamedTuple):
    """A data set that is made of a source's files.

    Attributes:
      source: the source's name.
      description: one line.
      train, test: what its parts must hold.
      transform: from the files to what makes a client's arrays of a reader's columns; None: the
        columns are these arrays.
      needs: files beside those of a form.
    """

    source: str
    description: str
    train: Expected
    test: Expected
    transform: Callable[[Files], Transform] | None = None
    needs: tuple[str, ...] = ()
