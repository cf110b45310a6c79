"""What lies at a path: a data set, a store, or a published file; and whether it is whole."""

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
    """Reads all that lies at a path, and compares it with its checksums.

    Args:
      path: the folder of a data set or of a store, a published file, or the name of a data set
        that is available locally.
      progress: of reading.

    Returns:
      For each store its path, clients and examples; for a file its path, bytes, SHA-256 and the
      data set that it belongs to. `checked` says with what it was compared.

    Raises:
      DataError: something is missing or has changed, or it is nothing that fedax knows.
    """
    name = str(path)
    path = expanded(path)
    if not path.exists():
        if name in EMBEDDED:
            return [_embedded(name, split) for split in SPLITS]
        if not (data_folder() / name / TABLE).is_file():
            raise DataError(f"There is neither a file or folder {path} nor such a data set here.")
        path = data_folder() / name
    if path.is_file():
        return [_file(path, progress)]
    if (path / STORE_TABLE).exists():
        return [_store(path, "its checksums", progress)]
    if not (path / TABLE).exists():
        raise DataError(
            f"{path} is neither a data set, which has a {TABLE}, nor a store, which has a "
            f"{STORE_TABLE}."
        )
    product = PRODUCTS.get(str(read_dataset_table(path).get("data set")))
    rows = []
    for split in SPLITS:
        rows.append(_store(path / split, "its checksums", progress))
        if product is not None:
            require_expected(path / split, getattr(product, split), f"{path}/{split}", progress)
            rows[-1]["checked"] = "its checksums, and what was published"
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
                    "checked": "what was published",
                }
            if published.name == path.name:
                named.append((origin, published))
    if len(named) == 1:
        require_published(path, named[0][1], str(path.parent), progress)
    if named:
        raise DataError(
            f"{path} is none of the files of that name that were published, of "
            f"{' and of '.join(origin for origin, _ in named)}: its SHA-256 is {digest}. It is "
            "broken, altered, or packed again."
        )
    raise DataError(
        f"{path} is no file of a data set that fedax knows, by its bytes or by its name; its "
        f"SHA-256 is {digest}."
    )
