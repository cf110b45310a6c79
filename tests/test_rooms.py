"""The rules of the house, and that `pytest -m quick` looks into every room."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

TESTS = Path(__file__).parent
HOUSE = TESTS.parent / "src" / "fedax"
ROOMS = sorted(path for path in HOUSE.iterdir() if (path / "__init__.py").exists())
MOST_LINES, MOST_FILES = 450, 7

# Room -> a file whose quick tests would fail if the room did not work.
QUICK = {
    "algorithms": "test_identities_scaffold", "attacks": "test_attacks",
    "cli": "test_run", "clients": "test_identities",
    "codecs": "test_codecs", "contract": "test_check_algorithm", "data": "test_data",
    "devices": "test_speed",
    "experiment": "test_run", "files": "test_untrusted",
    "measures": "test_quadratic_model", "mistakes": "test_mistakes",
    "models": "test_characters", "optimizers": "test_identities", "pictures": "test_pictures",
    "privacy": "test_private",
    "report": "test_run",
    "reproductions": "test_reproductions", "robust_means": "test_robust",
    "rounds": "test_sampling", "tasks": "test_shakespeare",
    "sinks": "test_sinks", "sweeps": "test_sweeps", "theory": "test_theory_engine",
    "tuning": "test_sweep_folder", "outside": "test_terminal",
}
# Test file -> why none of its tests is quick.
NOT_QUICK = {"test_combinations": "compiles an expression of several methods in every test"}


def test_no_file_is_long():
    lengths = {
        str(path.relative_to(HOUSE)): len(path.read_text("utf-8").splitlines())
        for path in HOUSE.rglob("*.py")
    }
    assert {name: length for name, length in lengths.items() if length > MOST_LINES} == {}


def test_few_files_stand_beside_the_rooms():
    beside = [path.name for path in HOUSE.iterdir() if path.is_file()]
    assert len(beside) <= MOST_FILES, beside


@pytest.mark.parametrize("room", ROOMS, ids=lambda path: path.name)
def test_a_room_says_what_lives_there_and_what_may_not(room):
    words = ast.get_docstring(ast.parse((room / "__init__.py").read_text("utf-8")))
    assert len(re.findall(r"\.(?=\s|$)", words)) >= 2, words


def test_imports_point_one_way():
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter import cli; cli.lint_imports_command()",
         "--no-cache"],
        cwd=TESTS.parent, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def has_quick_tests(path):
    """Whether a test file marks any of its tests, or all, as quick."""
    return any(
        isinstance(node, ast.Attribute) and ast.unparse(node) == "pytest.mark.quick"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
    )


def test_a_quick_look_sees_every_room_and_every_file():
    assert set(QUICK) == {room.name for room in ROOMS}
    files = {path.stem for path in TESTS.glob("test_*.py")}
    quick = {name for name in files if has_quick_tests(TESTS / f"{name}.py")}
    assert set(QUICK.values()) <= quick
    assert files - quick == set(NOT_QUICK)
