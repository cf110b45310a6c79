"""Identifies and verifies a data set, a store or a published file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedax.data.catalogue import PRODUCTS, SOURCES, Source
from fedax.data.catalogue.expectations import require_expected
from fedax.data.downloads.files import (
    Progress,
    Published,
    nothing,
    require_published,
    sha256_of,
)
from fedax.data.errors import DataError
from fedax.data.folder import EMBEDDED, SPLITS, TABLE, data_folder, read_dataset_table
from fedax.data.store import TABLE as STORE_TABLE
from fedax.data.store import check_store
from fedax.outside.paths import expanded

Row = dict[str, Any]


def check_data(path: Path | str, progress: Progress = nothing) -> list[Row]:
    """Reads a data set, a store or a published file and compares it with its checksums.

    Args:
      path: the folder of a data set or of a store, a published file, or the name of a data set
        that is available locally.
      progress: of reading.

    Returns:
      For each store: its path, clients and examples. For a file: its path, bytes, SHA-256 and data
      set. `checked` names what it was compared with.

    Raises:
      DataError: if something is missing or has changed, or fedax does not know the file.
    """
    name = str(path)
    path = expanded(path)
    if not path.exists():
        if name in EMBEDDED:
            return [_embedded(name, split) for split in SPLITS]
        if not (data_folder() / name / TABLE).is_file():
            raise DataError(f"There is no file, folder or local data set {path}.")
        path = data_folder() / name
    if path.is_file():
        return [_file(path, progress)]
    if (path / STORE_TABLE).exists():
        return [_store(path, "its checksums", progress)]
    if not (path / TABLE).exists():
        raise DataError(
            f"{path} is neither a data set (no {TABLE}) nor a store (no "
            f"{STORE_TABLE})."
        )
    product = PRODUCTS.get(str(read_dataset_table(path).get("data set")))
    rows = []
    for split in SPLITS:
        rows.append(_store(path / split, "its checksums", progress))
        if product is not None:
            require_expected(path / split, getattr(product, split), f"{path}/{split}", progress)
            rows[-1]["checked"] = "its checksums and the published values"
    return rows


def _store(folder: Path, checked: str, progress: Progress) -> Row:
    told: Callable[[int, int], object] = lambda done, total: progress(  # noqa: E731
        f"checking {folder.name}", done, total
    )
    data = check_store(folder, told)
    return {
        "path": str(folder), "what": "store", "clients": data.num_clients,
        "examples": data.num_examples,
        "arrays": {
            name: f"{array.dtype}{list(array.shape[1:])}" for name, array in data.arrays.items()
        },
        "checked": checked,
    }


def _embedded(name: str, split: str) -> Row:
    data = getattr(EMBEDDED[name].load(), split)
    return {
        "path": f"{name}/{split}", "what": "part of fedax", "clients": data.num_clients,
        "examples": data.num_examples,
        "arrays": {
            name: f"{array.dtype}{list(array.shape[1:])}" for name, array in data.arrays.items()
        },
        "checked": "the file's checksum",
    }


def _archive_of(source: Source) -> tuple[Published, ...]:
    """The archive of the package that carries a source, if its bytes are known."""
    package = source.package
    if package is None or package.sha256 is None:
        return ()
    return (Published(f"the package {package.label}", package.sha256, package.num_bytes),)


def _file(path: Path, progress: Progress) -> Row:
    """A published file, known by its bytes or at least by its name."""
    digest = sha256_of(path, progress)
    named = []
    for origin, source in SOURCES.items():
        for published in (*source.downloads, *source.known, *_archive_of(source)):
            if published.sha256 == digest:
                return {
                    "path": str(path), "what": f"{published.name} of {origin}",
                    "bytes": path.stat().st_size, "sha256": digest,
                    "checked": "the published checksum",
                }
            if published.name == path.name:
                named.append((origin, published))
    if len(named) == 1:
        require_published(path, named[0][1], str(path.parent), progress)
    if named:
        raise DataError(
            f"{path} has the name of a published file of "
            f"{' and of '.join(origin for origin, _ in named)}, but its SHA-256 is {digest}. It is "
            "damaged, modified, or compressed again."
        )
    raise DataError(
        f"fedax knows no data set with the file {path}, by checksum or by name; its "
        f"SHA-256 is {digest}."
    )
