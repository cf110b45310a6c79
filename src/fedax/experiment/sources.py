"""A user's own task or method: how it is specified, found and loaded, and whether it has changed.

It is given as `FILE.py:NAME`, as `package.module:NAME`, or by the entry point of an installed
package in the group `fedax.tasks` or `fedax.algorithms`.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import functools
import operator
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from fedax.data.task import Task
from fedax.experiment import imports
from fedax.experiment.errors import ConfigError
from fedax.experiment.folder import resume_command
from fedax.files.regular import write_atomically
from fedax.validate import unknown

GROUPS = {"task": "fedax.tasks", "algorithm": "fedax.algorithms"}
INSTALLED = {"site-packages", "dist-packages"}


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a task or a method comes from that is not fedax's own.

    Attributes:
      name: what it is called there.
      path: of the file, absolute.
      sha256: of the file when it was imported.
      module: its name, if it was not named by its file.
      distribution, version: of the package whose entry point it is.
      imports: the files beside it, or of its package, that it imports: place -> SHA-256.
      changed_after: rounds after which a run continued with a different version (`--force`).
    """

    name: str
    path: str
    sha256: str = ""
    module: str | None = None
    distribution: str | None = None
    version: str | None = None
    imports: Mapping[str, str] = dataclasses.field(default_factory=dict)
    changed_after: tuple[int, ...] = ()

    @property
    def place(self) -> str:
        """The file or the module, as a user would name it."""
        return self.module or shown(Path(self.path))

    @property
    def label(self) -> str:
        """All of it, as a user would name it."""
        return f"{self.place}:{self.name}"

    @property
    def root(self) -> Path:
        """The folder from which the file and its siblings are imported."""
        path = Path(self.path)
        if self.module is None:
            return path.parent
        return path.parents[self.module.count(".") + (path.name == "__init__.py")]

    @property
    def package(self) -> str | None:
        """Of an installed module, the package that it is in."""
        installed = self.module is not None and INSTALLED & set(self.root.parts)
        return str(self.module).partition(".")[0] if installed else None

    @property
    def files(self) -> dict[str, str]:
        """Every file -> its SHA-256 when it was imported."""
        siblings = {str(self.root / place): digest for place, digest in self.imports.items()}
        return {self.path: self.sha256, **siblings}


def find(
    kind: str, text: str, known: Iterable[str], folder: Path | None = None
) -> tuple[str, Source | None]:
    """What a task or a method is called in a run, and where it comes from if it is a user's.

    Args:
      kind: "task" or "algorithm".
      text: as the user wrote it.
      known: the names of fedax's own, which come first.
      folder: what a file's path is relative to, and where modules are looked for first; None: the
        working folder.

    Raises:
      ConfigError: if the name is unknown or cannot be loaded.
    """
    known, folder = list(known), folder or Path.cwd()
    if text.endswith(".py"):
        names = names_in(folder / text)
        example = f", such as {text}:{names[0]}" if names else ""
        raise ConfigError(f"{text} needs the name of a function in the file: {text}:NAME{example}.")
    place, colon, name = text.rpartition(":")
    if not colon:
        return _find_by_name(kind, text, known)
    if not name.isidentifier() or not place:
        raise ConfigError(
            f"{text!r} is neither FILE.py:NAME nor package.module:NAME, where NAME is a function "
            "in that file. Wrappers come first, as in elastic+FILE.py:NAME."
        )
    if place.endswith(".py") or "/" in place or "\\" in place:
        source = Source(name, str((folder / place).resolve()))
    else:
        source = Source(name, _file_of_module(place, folder, place), module=place)
    title = f"{Path(place).stem.rpartition('.')[2]}.{name}" if name in known else name
    return title, current(source)


def load(source: Source) -> Any:
    """The task or the function behind a source.

    Raises:
      ConfigError: if the file does not exist, fails, or does not define the name.
    """
    path = Path(source.path)
    if source.module is None and not path.is_file():
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.py")], 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(f"The file {shown(path)} does not exist.{hint}")
    with imports.explained(source.place, "when it was imported"):
        if source.module is None:
            module = imports.import_file(path)
        else:
            root = None if source.package else source.root
            module = imports.import_module(source.module, root)
    try:
        return operator.attrgetter(source.name)(module)
    except AttributeError:
        raise ConfigError(_nothing_of_that_name(source, module)) from None


def beside(source: Source) -> contextlib.AbstractContextManager[None]:
    """Within this, imports find what lies beside the source."""
    return contextlib.nullcontext() if source.package else imports.beside(source.root)


def current(source: Source) -> Source:
    """The source as it is loaded now.

    Raises:
      ConfigError: as for `load`.
    """
    load(source)
    path = Path(source.path)
    return dataclasses.replace(
        source, sha256=imports.imported_digest(path), version=_version(source.distribution),
        imports=imports.files_imported(path, source.root, source.package),
    )


def changes(source: Source) -> list[str]:
    """What is not as it was recorded: files, or the package's version; empty if all is."""
    found = [path for path, digest in source.files.items() if digest != imports.digest_of(path)]
    if _version(source.distribution) != source.version:
        found.append(f"{source.distribution} {_version(source.distribution)}")
    return found


def require_unchanged(
    recorded: Iterable[Source], folder: Path, *, force: bool, cure: str | None = None
) -> None:
    """Raises a `ConfigError` if a user's file no longer exists, or has changed."""
    by_force = f"write its new path into {folder / 'config.json'} and continue with --force."
    changed = []
    for source in recorded:
        files = source.files
        for path in changes(source):
            copy = copy_of(folder, path, files.get(path, ""))
            kept = f" (a copy is in {copy})" if copy.exists() else ""
            if path == source.path and not Path(path).exists():
                raise ConfigError(
                    f"{path}, which defines {source.name} of this run, no longer exists"
                    f"{kept}. Put it back, or {cure or by_force}"
                )
            changed.append(f"{path}{kept}")
    if changed and not force:
        which = " and ".join(dict.fromkeys(changed))
        raise ConfigError(
            f"The code of this run has changed since it was started: {which}. To continue with the "
            f"new code: {cure or f'{resume_command(folder)} --force'}"
        )


def keep_copies(folder: Path, sources: Iterable[Source]) -> None:
    """Copies the files into a run folder, to compare with; they are never run from there."""
    for source in sources:
        for path, digest in source.files.items():
            copy = copy_of(folder, path, digest)
            if digest and not copy.exists():
                copy.parent.mkdir(exist_ok=True)
                write_atomically(copy, Path(path).read_bytes())


def copy_of(folder: Path, path: str, digest: str) -> Path:
    """Where a run folder has its copy of a file; each version has a name of its own."""
    return folder / "source" / f"{digest[:12]}-{Path(path).name}"


def from_record(record: Any, what: str) -> Source | None:
    """The source that a configuration has written down.

    Raises:
      ConfigError: if it is none.
    """
    if record is None:
        return None
    try:
        source = Source(**record)
        if not (isinstance(source.imports, Mapping) and Path(source.path).is_absolute()):
            raise TypeError
        return dataclasses.replace(source, changed_after=tuple(source.changed_after))
    except TypeError:
        raise ConfigError(f"{what} is not the source of a task or a method.") from None


def offered(kind: str) -> dict[str, list[metadata.EntryPoint]]:
    """The entry points of installed packages by name; several packages may share one."""
    found: dict[str, list[metadata.EntryPoint]] = {}
    for entry in metadata.entry_points(group=GROUPS[kind]):
        found.setdefault(entry.name, []).append(entry)
    return found


def origin(entry: metadata.EntryPoint) -> str:
    """The package of an entry point."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


def from_entry_point(entry: metadata.EntryPoint) -> Source:
    """The source behind an entry point.

    Raises:
      ConfigError: if it cannot be loaded.
    """
    path = _file_of_module(entry.module, None, f"{entry.name} of {origin(entry)}")
    distribution = entry.dist.name if entry.dist else None
    return current(Source(entry.attr, path, module=entry.module, distribution=distribution))


def shown(path: Path) -> str:
    """The path from the working folder if it is in there."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def names_in(path: Path) -> list[str]:
    """The functions that a file defines and does not hide, without running it."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []
    names = [node.name for node in body if isinstance(node, ast.FunctionDef)]
    return [name for name in names if not name.startswith("_")]


def _find_by_name(kind: str, name: str, known: list[str]) -> tuple[str, Source | None]:
    if name in known:
        return name, None
    entries = offered(kind)
    found = entries.get(name, [])
    if not found:
        raise ConfigError(unknown(kind, name, [*known, *entries]))
    if len(found) > 1:
        ways = " or ".join(f"{entry.value} ({origin(entry)})" for entry in found)
        raise ConfigError(f"Several packages provide the {kind} {name!r}; choose one: {ways}.")
    return name, from_entry_point(found[0])


def _file_of_module(name: str, root: Path | None, what: str) -> str:
    """Imports a module that was named for the first time."""
    try:
        with imports.explained(what, "when it was imported"):
            module = imports.import_module(name, root)
    except ConfigError as error:
        missing = getattr(error.__cause__, "name", None)
        if isinstance(error.__cause__, ModuleNotFoundError) and f"{name}.".startswith(
            f"{missing}."
        ):
            where = f"in {root} or " if root else ""
            raise ConfigError(
                f"{what}: the module {missing!r} was not found {where}on Python's path. For a "
                f"file, write its ending too: {name.rpartition('.')[2]}.py:NAME."
            ) from error
        raise
    path = imports.file_of(module)
    if path is None:
        raise ConfigError(f"{what}: the module {name} does not have a file.")
    return str(path.absolute())


def _version(distribution: str | None) -> str | None:
    try:
        return metadata.version(distribution) if distribution else None
    except metadata.PackageNotFoundError:
        return None


def _nothing_of_that_name(source: Source, module: ModuleType) -> str:
    def is_own(value: Any) -> bool:
        return isinstance(value, Task | functools.partial) or (
            callable(value) and getattr(value, "__module__", None) == module.__name__
        )

    own = [name for name, value in vars(module).items() if name[0] != "_" and is_own(value)]
    if not own:
        return f"{source.place} does not define {source.name!r}, nor any function."
    return unknown(f"name in {source.place}", source.name, own)
