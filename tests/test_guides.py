"""The guides' code runs as it stands, block after block, as a user's would: in float32."""

import re
import shlex
import shutil
from pathlib import Path

import jax
import pytest

from fedax.cli.main import run_command
from fedax.contract.check import CHECKS

ROOT = Path(__file__).parent.parent
GUIDES = ROOT / "docs" / "guides"
PAGES = sorted(path.stem for path in GUIDES.glob("*.md"))


def blocks(page):
    """(language, code) of a page's fenced blocks, in order."""
    text = (GUIDES / f"{page}.md").read_text("utf-8")
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(code):
    """The command lines of a block that a shell would run."""
    return [shlex.split(line, comments=True)[1:] for line in code.splitlines()
            if line.startswith("fedax ")]


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
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), \
            jax.numpy_rank_promotion("allow"):
        for number, (language, code) in enumerate(blocks(page), start=1):
            if language == "python":
                exec(compile(code, f"{page}.md, block {number}", "exec"), session)
            for command in commands(code) if language == "sh" else ():
                assert run_command(command) == 0, command
    CLAIMS.get(page, lambda session: None)(session)


@pytest.mark.quick
def test_the_guides_methods_are_the_examples():
    """Copied word for word, so the one is tested with the other."""
    source = (ROOT / "examples" / "methods.py").read_text("utf-8")
    quoted = [code for language, code in blocks("your-method") if language == "python"][:3]
    for code in quoted:
        assert code.strip() in source
    kept = "".join("".join(code.split()) for code in quoted)
    rest = "".join(source.split('"""', 2)[2].split())
    assert kept == rest  # nothing of the file is missing in the guide


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
