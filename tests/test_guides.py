"""The guides' code runs as it stands, block after block, as a user's would: in float32."""

import contextlib
import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import jax
import pytest

import doc_blocks
from fedax.algorithms.registry import ALGORITHMS, WRAPPERS
from fedax.cli.main import run_command
from fedax.contract.check import CHECKS

ROOT = Path(__file__).parent.parent
GUIDES = ROOT / "docs" / "guides"
PAGES = sorted(path.stem for path in GUIDES.glob("*.md"))


def blocks(page):
    """A page's fenced blocks, in order, but for those that are listed with a reason."""
    text = (GUIDES / f"{page}.md").read_text("utf-8")
    found = doc_blocks.blocks(f"docs/guides/{page}.md", text)
    return [block for block in found if not doc_blocks.not_run(block)]


@contextlib.contextmanager
def as_readers_do():
    """With JAX's defaults, where tests are strict."""
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), \
            jax.numpy_rank_promotion("allow"):
        yield


def run_line(line):
    """Runs a line of a block for a shell: it is a command of fedax."""
    program, *words = shlex.split(line, comments=True)
    assert program == "fedax", line
    assert run_command(words) == 0, line


def check_precision(session):
    losses = [session[f"{name}_loss"] for name in ("full", "mixed", "low")]
    assert abs(losses[1] - losses[0]) < 1e-3
    assert losses[2] - losses[0] > 3e-3


def check_contract(session):
    """A method with states of clients passes all."""
    assert {check.passed for check in session["checks"]} == {True}


# What a page says of its own numbers.
CLAIMS = {"precision": check_precision, "contract": check_contract}


LONG = ("contract", "diagnostics", "per-client", "theory", "tuning", "your-method")


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=pytest.mark.slow if p in LONG else ()) for p in PAGES]
)
def test_a_guide_runs(page, tmp_path, monkeypatch):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "examples")
    session = {}
    with as_readers_do():
        for block in blocks(page):
            if block.kind == "python":
                exec(compile(block.code, f"{page}.md, block {block.number}", "exec"), session)
            for line in block.code.splitlines() if block.kind == "sh" else ():
                run_line(line)
    CLAIMS.get(page, lambda session: None)(session)


@pytest.mark.quick
def test_the_guides_methods_are_the_examples():
    """Copied word for word, so the one is tested with the other."""
    source = (ROOT / "examples" / "methods.py").read_text("utf-8")
    quoted = [block.code for block in blocks("your-method") if block.kind == "python"][:3]
    for code in quoted:
        assert code.strip() in source
    kept = "".join("".join(code.split()) for code in quoted)
    rest = "".join(source.split('"""', 2)[2].split())
    assert kept == rest  # nothing of the file is missing in the guide


def test_entry_points_are_as_a_guide_says(tmp_path, monkeypatch, capsys):
    """Its lines, as a build writes them into the metadata of the package that they name."""
    (code,) = [block.code for block in blocks("your-method") if block.kind == "toml"]
    points = tomllib.loads(code)["project"]["entry-points"]
    info = tmp_path / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(
        line for group, named in points.items()
        for line in (f"[{group}]", *(f"{name} = {place}" for name, place in named.items()))
    ))
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").touch()
    shutil.copy(ROOT / "examples" / "methods.py", tmp_path / "my_package")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for registered in (ALGORITHMS, WRAPPERS):  # which would all be listed with what they send
        for name in registered.keys() - {"fedavg"}:
            monkeypatch.delitem(registered, name)
    assert run_command(["list", "algorithms", "--json"]) == 0
    rows = {row["name"]: row["from"] for row in json.loads(capsys.readouterr().out)}
    assert rows["feddyn"] == "my-package 1.0"
    with as_readers_do():
        run_line("fedax run digits feddyn --rounds 1 --out run")


@pytest.mark.quick
def test_the_page_of_the_contract_has_a_row_for_each_check():
    page = (GUIDES / "contract.md").read_text("utf-8")
    assert re.findall(r"^\| `([\w -]+)` \|", page, re.MULTILINE) == list(CHECKS)


@pytest.mark.quick
@pytest.mark.parametrize("page", [GUIDES / f"{page}.md" for page in PAGES] + [
    *sorted((ROOT / "docs" / "tutorial").glob("*.md")), ROOT / "README.md",
    ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[\w-]+)?\)", page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.quick
def test_the_readme_lists_every_guide():
    text = (ROOT / "README.md").read_text("utf-8")
    assert [page for page in PAGES if f"docs/guides/{page}.md" not in text] == []
