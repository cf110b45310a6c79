"""The house: few files on the root floor, short ones, rooms that say what lives in them."""

import ast
import tomllib
from pathlib import Path

import pytest

import fedax

pytestmark = pytest.mark.quick

HOUSE = Path(fedax.__file__).parent
ROOMS = sorted(path.parent for path in HOUSE.glob("*/__init__.py"))
TESTS = Path(__file__).parent


def test_the_root_floor_has_six_files():
    assert len(list(HOUSE.glob("*.py"))) == 6


def test_no_file_is_long():
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in HOUSE.rglob("*.py")}
    assert not [path for path, length in lengths.items() if length > 450]


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_room_says_what_lives_there(room):
    words = ast.get_docstring(ast.parse((room / "__init__.py").read_text("utf-8")))
    first, *others = words.split("\n\n")
    assert first.endswith((".", ":")) or "\n" in first
    assert others, "and what may not"


def test_every_room_has_its_place_in_the_direction_of_imports():
    with (TESTS.parent / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    layers = {name.strip() for layer in contracts[0]["layers"] for name in layer.split("|")}
    files = {path.stem for path in HOUSE.glob("*.py")} - {"__init__", "__main__"}
    assert layers == {room.name for room in ROOMS} | files


def test_the_quick_tests_look_into_every_room():
    """A module of theirs imports from it."""
    imported = set()
    for path in TESTS.glob("test_*.py"):
        text = path.read_text("utf-8")
        if "mark.quick" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedax."):
                imported.add(node.module.split(".")[1])
    assert imported >= {room.name for room in ROOMS}
