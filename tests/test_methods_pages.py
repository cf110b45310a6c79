"""The pages of the methods: their examples run and reach what they say, their table is short."""

import re
import shlex
import statistics
from pathlib import Path

import pytest

import doc_blocks
from fedax.algorithms import registry
from fedax.cli import main
from fedax.experiment.values import OPTIMIZERS

ROOT = Path(__file__).parent.parent
TABLES = ROOT / "docs" / "methods.md"
NAMES = [*registry.ALGORITHMS, *registry.WRAPPERS]
REACHED = re.compile(r"\*\*([\d.]+) ± ([\d.]+)%\*\* test accuracy")


def text_of(name):
    return (ROOT / "website" / "methods" / f"{name}.md").read_text("utf-8")


def example(text):
    """The words of the command that a page begins with, without `fedax`."""
    (block,) = (one for one in doc_blocks.blocks("page.md", text) if one.kind == "sh")
    fedax, *words = shlex.split(block.code)
    assert fedax == "fedax"
    return words


def shorter(words):
    """The command with at most two rounds, and one local epoch where it has fifty."""
    rounds = words.index("--rounds") + 1
    words = [word.replace("num_local_epochs=50", "num_local_epochs=1") for word in words]
    return [*words[:rounds], str(min(int(words[rounds]), 2)), *words[rounds + 1 :]]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, "all"])
def test_every_example_runs(name, tmp_path, capsys):
    """Of every method, and the wrappers' command on the page of all methods."""
    words = example(TABLES.read_text("utf-8") if name == "all" else text_of(name))
    assert name == "all" or name in words[2].split("+")
    assert main.run_command([*shorter(words), "--out", str(tmp_path / "run")]) == 0
    assert "Done:" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_example_reaches_what_its_page_says(name, tmp_path, capsys):
    found = []
    for seed in range(5):
        out = str(tmp_path / str(seed))
        assert main.run_command([*example(text_of(name)), "--seed", str(seed), "--out", out]) == 0
        found.append(float(re.findall(r"Test accuracy ([\d.]+)%", capsys.readouterr().out)[-1]))
    mean, spread = map(float, REACHED.search(text_of(name)).groups())
    assert abs(statistics.mean(found) - mean) < 1
    assert abs(statistics.stdev(found) - spread) < 1


@pytest.mark.quick
def test_a_page_begins_with_its_example(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "website")
    import pages_of_methods

    files = {path.stem for path in (ROOT / "website" / "methods").glob("*.md")}
    assert files == set(NAMES)
    for name in NAMES:
        title, idea, fence = pages_of_methods.page(name).split("\n\n")[:3]
        assert title == f"# {name} {{ #fedax.{name} }}"
        assert idea.endswith(".")
        assert idea.count(".") == 1
        assert fence.startswith("```sh\nfedax run digits ")
        assert list(pages_of_methods.written(name))[:2] == ["", "When to use it"]


@pytest.mark.quick
def test_a_cell_of_the_table_is_one_line():
    """At most twelve words or 80 characters."""
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", TABLES.read_text("utf-8"), re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(NAMES)
    for name, row in rows:
        cells = [cell.strip() for cell in row.split("|")]
        assert len(cells) == 2, name
        for cell in cells:
            assert len(cell.split()) <= 12 or len(cell) <= 80, (name, cell)


@pytest.mark.quick
def test_the_page_of_methods_names_the_optimizers_of_the_command_line():
    (line,) = re.findall(r"`server_optimizer` takes .* line (.*)", TABLES.read_text("utf-8"))
    own = [name for name in OPTIMIZERS if not name.startswith("mime_")]
    assert re.findall(r"`(\w+)`", line) == own


@pytest.mark.quick
def test_a_method_that_the_table_lacks_stops_the_build(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "website")
    import pages_of_methods

    text = TABLES.read_text("utf-8")
    (row,) = re.findall(r"^\| `mime` .*\n", text, re.MULTILINE)
    monkeypatch.setattr(pages_of_methods, "DOCS", tmp_path)
    for changed in (text.replace(row, ""), text.replace(row, 2 * row)):
        (tmp_path / "methods.md").write_text(changed)
        pages_of_methods.families.cache_clear()
        with pytest.raises(ValueError, match=r"list every method once: mime\.$"):
            pages_of_methods.families()
    pages_of_methods.families.cache_clear()
