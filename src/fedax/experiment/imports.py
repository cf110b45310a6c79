"""Imports of what a user wrote: siblings are found, and two folders do not get in each other's way.

Python knows one module of a name. Two files of one name, or two files with siblings of one name,
may come from two folders here, so imported modules are stored by folder, and only those of the
current folder are in `sys.modules` under their names.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from fedax.experiment.errors import ConfigError
from fedax.mistakes.errors import said

# What this process has imported, by folder and name, and the digests of the files at that time.
_MODULES: dict[Path, dict[str, ModuleType]] = {}
_DIGESTS: dict[Path, str] = {}
_HOUSE = Path(__file__).parents[1]


def import_file(path: Path) -> ModuleType:
    """The file as a module, imported once a process, and again if it or a sibling has changed.

    Its `__name__` is not "__main__", and a sibling's `import` of it gives the same module.

    Raises:
      Exception: whatever the file raises.
    """
    folder = path.parent
    _forget_if_changed(folder)
    with beside(folder):
        modules = _MODULES[folder]
        for module in modules.values():
            if file_of(module) == path:
                return module
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        name = f"{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}_{digest[:12]}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None:
            raise ImportError(f"{path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        names = {name, path.stem} - set(sys.modules)  # dataclasses look for their module there
        sys.modules |= dict.fromkeys(names, module)
        _DIGESTS[path] = digest
        try:
            exec(compile(content, path, "exec", dont_inherit=True), module.__dict__)
        except BaseException:
            for name in names:
                sys.modules.pop(name, None)
            raise
        modules[name] = module
        return module


def import_module(name: str, root: Path | None) -> ModuleType:
    """The module of that name, looked for in the root folder first; None: where Python looks."""
    with beside(root) if root else contextlib.nullcontext():
        return importlib.import_module(name)


@contextlib.contextmanager
def beside(folder: Path) -> Iterator[None]:
    """Imports find the folder's modules, as they do for a script in it."""
    own = _MODULES.setdefault(folder, {})
    others = {
        name: module
        for other, modules in _MODULES.items() if other != folder
        for name, module in modules.items() if _lies_in(folder, name)
    }
    for name in others:
        sys.modules.pop(name, None)
    sys.modules.update(own)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))
        own |= _modules_in(folder)
        for module in own.values():
            path = file_of(module)
            if path is not None and path not in _DIGESTS:
                _DIGESTS[path] = digest_of(path)
        for name, module in others.items():
            sys.modules.setdefault(name, module)


def files_imported(path: Path, root: Path, package: str | None = None) -> dict[str, str]:
    """The files in a folder that a file imports, in turn and wherever in it: place -> SHA-256.

    Args:
      path: the file, which is left out.
      root: the folder from which all of them are imported.
      package: of these only those in this package.
    """
    found: set[Path] = set()
    ahead = [path]
    while ahead:
        file = ahead.pop()
        if file not in found:
            found.add(file)
            ahead += _named_in(file, root, package)
    places = sorted(file.relative_to(root).as_posix() for file in found - {path})
    return {place: imported_digest(root / place) for place in places}


def imported_digest(path: Path) -> str:
    """The SHA-256 of the file when it was imported."""
    return _DIGESTS.setdefault(path, digest_of(path))


def digest_of(path: Path | str) -> str:
    """The SHA-256 of the file as it is; empty if there is no such file."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def file_of(module: Any) -> Path | None:
    """The file of a module, None if it has none."""
    file = module.__dict__.get("__file__") if isinstance(module, ModuleType) else None
    return Path(file) if file else None


def line_of(error: BaseException) -> tuple[Path, int] | None:
    """The innermost line of imported files that an error passed through."""
    found, traceback = None, error.__traceback__
    while traceback is not None:
        path = Path(traceback.tb_frame.f_code.co_filename)
        if path in _DIGESTS:
            found = path, traceback.tb_lineno
        traceback = traceback.tb_next
    return found


@contextlib.contextmanager
def explained(what: str, doing: str) -> Iterator[None]:
    """Turns what a user's code raises into a sentence.

    Args:
      what: whose code it is.
      doing: when it is, such as "when it was imported".

    Raises:
      ConfigError: if the code raises an error.
    """
    try:
        yield
    except ConfigError:
        raise
    except SyntaxError as error:
        if not Path(error.filename or "").is_file():  # not of a file, so raised at work
            raise ConfigError(f"{what} failed {doing}: {sentence(error)}") from error
        raise ConfigError(
            f"{what} has a syntax error: {error.msg} (line {error.lineno} of {error.filename})."
        ) from error
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{what} needs the module {error.name!r}, which was not found{_where(error)}. "
            "Install it, or correct the import."
        ) from error
    except SystemExit as error:
        raise ConfigError(
            f"{what} ended the program {doing}{_where(error)}. Put code that runs a script under "
            "if __name__ == '__main__'."
        ) from error
    except Exception as error:
        raise ConfigError(f"{what} failed {doing}: {sentence(error)}") from error


def sentence(error: Exception) -> str:
    """An error in words, with the line of imported files where it was raised."""
    return f"{said(error).rstrip('.')}{_where(error)}."


def in_callback(error: BaseException) -> str | None:
    """The sentence for an error in a callback from a compiled program; None if it is no such error.

    JAX tells of it by the text of its traceback only.
    """
    _, found, text = str(error).partition("CpuCallback error calling callback: ")
    if not found:
        return None
    lines = list(re.finditer(r'^ +File "([^"\n]+)", line (\d+).*', text, re.MULTILINE))
    if not lines or _HOUSE in Path(lines[-1][1]).parents:
        return None
    raised = re.search(r"^\S.*", text[lines[-1].end() :], re.MULTILINE)
    own = [line for line in lines if not _is_installed(Path(line[1]))]
    where = f" (line {own[-1][2]} of {own[-1][1]})" if own else ""
    return f"{raised[0].rstrip('.') if raised else 'a callback failed'}{where}."


def _is_installed(file: Path) -> bool:
    """Whether a file is of Python or of a package that is installed."""
    places = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    return any(Path(place) in file.parents for place in places)


def _where(error: BaseException) -> str:
    found = line_of(error)
    return f" (line {found[1]} of {found[0]})" if found else ""


def _named_in(file: Path, root: Path, package: str | None) -> list[Path]:
    """The files below the root that the imports in a file name."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (OSError, SyntaxError, ValueError):  # of another kind, or not whole
        return []
    inside = file.relative_to(root).parent.parts
    names: set[tuple[str, ...]] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {tuple(alias.name.split(".")) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = inside[: len(inside) - node.level + 1] if node.level else ()
            start = (*base, *filter(None, (node.module or "").split(".")))
            names |= {start} | {(*start, alias.name) for alias in node.names}
    wanted = {
        name[:length] for name in names for length in range(1, len(name) + 1)
        if name[0] != "fedax" and package in (None, name[0])
    }
    files = (root.joinpath(*name, "__init__.py") for name in wanted)
    modules = (root.joinpath(*name[:-1], f"{name[-1]}.py") for name in wanted)
    return [file for file in (*files, *modules) if file.is_file()]


def _modules_in(folder: Path) -> dict[str, ModuleType]:
    """The modules that were imported from a folder, by their places in it; not fedax's own."""
    found = {}
    for name, module in list(sys.modules.items()):
        path, place = file_of(module), folder.joinpath(*name.split("."))
        own = name.partition(".")[0] in ("fedax", "__main__")
        if path and not own and path in (place.with_suffix(".py"), place / "__init__.py"):
            found[name] = module
    return found


def _lies_in(folder: Path, name: str) -> bool:
    place = folder / name.partition(".")[0]
    return place.with_suffix(".py").is_file() or place.is_dir()


def _forget_if_changed(folder: Path) -> None:
    """Forgets what was imported from the folder if one of the files is another one now."""
    modules = _MODULES.get(folder, {})
    files = {path for path in map(file_of, modules.values()) if path is not None}
    if all(_DIGESTS.get(path) == digest_of(path) for path in files):
        return
    for name, module in modules.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    modules.clear()
    for path in files:
        _DIGESTS.pop(path, None)
