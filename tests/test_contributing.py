"""CONTRIBUTING.md's map of the house is the house; CITATION.cff cites this version."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import fedax

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parent.parent
HOUSE = ROOT / "src" / "fedax"
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def rooms():
    """The rooms from the door to the foundations, as import-linter checks them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    (layers,) = (
        contract["layers"] for contract in settings["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    )
    return [name for layer in layers for name in layer.split(" | ")]


def row(name):
    """A row of the map: its sentence is the first one of the room's own docstring."""
    path = HOUSE / name if (HOUSE / name).is_dir() else HOUSE / f"{name}.py"
    file = path / "__init__.py" if path.is_dir() else path
    first = ast.get_docstring(ast.parse(file.read_text("utf-8"))).split("\n\n")[0].split()
    return f"| [{name}]({path.relative_to(ROOT).as_posix()}) | {' '.join(first)} |"


def test_the_map_has_every_room_in_order_with_its_own_sentence():
    expected = [row(room) for room in rooms()]
    assert re.findall(r"^\| \[\w+\]\(src.*$", PAGE, re.MULTILINE) == expected, "\n".join(expected)


def test_every_folder_and_file_is_a_room():
    there = {
        path.stem for path in HOUSE.iterdir()
        if (path.is_dir() and (path / "__init__.py").exists()) or path.suffix == ".py"
    }
    assert there - {"__init__", "__main__"} == set(rooms())


def test_commands_and_files_that_it_names_exist():
    for path in re.findall(r"`((?:src|tests|docs|tasks|algorithms|models)/[\w./]+)`", PAGE):
        assert (ROOT / path).exists() or (HOUSE / path).exists(), path


@pytest.mark.parametrize("line", ["cff-version: 1.2.0", f"version: {fedax.__version__}",
                                  "  - name: The fedax developers"])
def test_the_citation_is_of_this_version(line):
    assert line in (ROOT / "CITATION.cff").read_text("utf-8").splitlines()


def test_the_newest_changelog_entry_is_of_this_version():
    entries = sorted(
        (path.stem for path in (ROOT / "changelog").glob("[0-9]*.md")),
        key=lambda name: tuple(map(int, name.split("."))),
    )
    assert entries[-1] == fedax.__version__
    heading = (ROOT / "changelog" / f"{entries[-1]}.md").read_text("utf-8").splitlines()[0]
    assert heading == f"# {entries[-1]}"
