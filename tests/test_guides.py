"""The guides' code runs as it stands, block after block, as a user's would: in float32."""

import ast
import contextlib
import json
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest

import doc_blocks
import fedax
from fedax.algorithms.registry import ALGORITHMS
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
    """Runs a line of a block for a shell: a command of fedax, or a comment."""
    words = shlex.split(line, comments=True)
    if words:
        assert words[0] == "fedax", line
        assert run_command(words[1:]) == 0, line


def check_precision(session):
    losses = [session[f"{name}_loss"] for name in ("full", "mixed", "low")]
    assert abs(losses[1] - losses[0]) < 1e-3
    assert losses[2] - losses[0] > 3e-3


def check_contract(session):
    """A method with states of clients passes all."""
    assert {check.passed for check in session["checks"]} == {True}


def check_quick_start(session):
    """Python gives what the first command gives, and a number a client."""
    history = session["result"].history
    of_command = fedax.load_run("runs/first").history
    assert history["test_accuracy"][-1] == pytest.approx(of_command["test_accuracy"][-1])
    clients = fedax.evaluate_clients(
        session["task"].model, session["result"].params, session["task"].train
    )["accuracy"]
    numbers = [*history["train_loss"][[0, -1]], 100 * history["test_accuracy"][-1],
               100 * clients.min(), 100 * clients.max()]
    said = "from {:.2f} to {:.2f}, and the test accuracy is {:.1f}%"
    page = (GUIDES / "quick-start.md").read_text("utf-8")
    assert said.format(*numbers[:3]) in page
    assert "from {:.0f} to {:.0f}%".format(*numbers[3:]) in page
    stays = fedax.load_run("runs/stays")
    assert f"Test accuracy {stays.history['test_accuracy'][-1]:.1%}" in page
    assert stays.table.predictions(session["outputs"]).tolist() == ["no", "yes"]


def check_hospitals(session):
    """Scores are in the paper's table, and what is chosen goes by validation alone."""
    check_project(session, "project-hospitals", most_lines=80)
    stays, result = session["stays"], session["results"]["fedavg"][0]
    assert 0.05 < (stays["died"] == "yes").mean() < 0.07
    assert stays["lactate"].isna().any()
    assert stays["hospital"].nunique() == 12
    assert result.history["validation_auc"][-1] > 0.7
    assert 1 <= result.best_round <= len(result.history)


def check_mnist(session):
    """The run that was stopped ends with the same bits as one that was not."""
    check_project(session, "project-mnist", most_lines=80)
    resumed, run = session["results"]["fednova"][0], session["run"]
    shutil.rmtree("runs/fednova-1")
    with as_readers_do():
        again = run("fednova", 1)
    assert jax.tree.all(jax.tree.map(np.array_equal, resumed.params, again.params))
    assert again.test == resumed.test


def check_project(session, page, most_lines):
    """A project has few lines from its files to a table with a row a method, and a picture."""
    own = [line for block in blocks(page)[1:] for line in block.code.splitlines() if line.strip()]
    assert len(own) < most_lines
    assert not re.search(r"\b_\w|\._", "\n".join(own).replace("__call__", ""))
    written = Path("table.tex").read_text("utf-8")
    assert all(name in written for name in session["methods"])
    assert r"\mathbf" in written
    assert written.count(r"\pm") >= len(session["methods"])
    assert len(list(Path().glob("*.pdf"))) == 1


# What a page says of its own numbers.
CLAIMS = {
    "precision": check_precision, "contract": check_contract, "quick-start": check_quick_start,
    "project-hospitals": check_hospitals, "project-mnist": check_mnist,
}


# The other guides take longer, or are read by fewer.
SHORT = ("installation", "limits", "quick-start", "resuming", "your-data")


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=() if p in SHORT else pytest.mark.slow) for p in PAGES]
)
def test_a_guide_runs(page, tmp_path, monkeypatch):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # as in a session of Python
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
    quoted = [block.code for block in blocks("your-method") if block.kind == "python"][:2]
    for code in quoted:
        assert code.strip() in source
    page = (GUIDES / "your-method.md").read_text("utf-8")
    for name in re.findall(r"^@fedax\.factory\ndef (\w+)", source, re.MULTILINE):
        assert name in "".join(quoted) or f"`{name}` in [examples/methods.py]" in page


def imported(code):
    """The packages that a block imports."""
    nodes = list(ast.walk(ast.parse(code)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return {name.partition(".")[0] for name in names}


@pytest.mark.quick
@pytest.mark.parametrize("page", PAGES)
def test_a_guide_says_what_else_must_be_installed_and_where_python_is_started(page):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    there = {"fedax", "examples", *sys.stdlib_module_names,
             *(re.match(r"\w+", one)[0] for one in project["dependencies"])}
    text = (GUIDES / f"{page}.md").read_text("utf-8")
    for block in blocks(page):
        if block.kind == "python":
            for package in imported(block.code) - there:
                assert f"`pip install {package}`" in text.partition(block.code)[0], package
            for line in re.findall("^from examples.*$", block.code, re.MULTILINE):
                assert "start Python in the clone" in line


@pytest.mark.slow
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
    monkeypatch.delitem(ALGORITHMS, "feddyn")  # the page's own has this name
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
