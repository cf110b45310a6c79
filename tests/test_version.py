"""The version is typed in pyproject.toml alone, and is that of the code that runs."""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import fedax
from fedax.data.downloads import web
from fedax.experiment import checkpoint, manifest, params, versions
from fedax.outside import version

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parent.parent


def typed():
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


def test_everything_that_says_it_says_what_is_typed():
    for module in (fedax, version, versions, checkpoint, manifest, params, web):
        assert module.__version__ == typed(), module.__name__
    assert versions.versions()["fedax"] == typed()


def test_it_is_typed_nowhere_else():
    folders = {ROOT / "src": "*.py", ROOT / "scripts": "*.py", ROOT / "website": "*.py"}
    having = [
        path for folder, pattern in folders.items() for path in folder.rglob(pattern)
        if typed() in path.read_text("utf-8")
    ]
    assert having == []


@pytest.mark.parametrize(("folder", "text", "found"), [
    ("src", '[project]\nname = "fedax"\nversion = "9.8.7"\n', "9.8.7"),
    ("src", '[project]\nname = "mine"\nversion = "9.8.7"\n', "1.2.3"),
    ("lib", '[project]\nname = "fedax"\nversion = "9.8.7"\n', "1.2.3"),
    ("src", None, "1.2.3"),
    ("src", "[project\n", "1.2.3"),
    ("src", "project = 3\n", "1.2.3"),
    ("src", '[project]\nname = "fedax"\ndynamic = ["version"]\n', "1.2.3"),
    ("src", "[tool.ruff]\n", "1.2.3"),
], ids=["a clone", "of another project", "a copy elsewhere", "no project", "damaged", "odd",
        "without a version", "without a project"])
def test_a_clone_has_its_own_and_an_installed_package_the_installed(
    folder, text, found, tmp_path, monkeypatch
):
    monkeypatch.setattr(metadata, "version", lambda name: {"fedax": "1.2.3"}[name])
    package = tmp_path / folder / "fedax"
    package.mkdir(parents=True)
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    assert version.find(package) == found


def test_a_copy_that_nothing_says_the_version_of_is_unknown(tmp_path, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert version.find(tmp_path / "fedax") == "unknown"
