"""The pages of the command line: each command has one, with what `--help` has, and its example."""

import re
import shlex
from pathlib import Path

import pytest

from fedax.cli import main, parsing
from fedax.cli.data_commands import DataGet
from fedax.data.catalogue import PRODUCTS

ROOT = Path(__file__).parent.parent
COMMANDS = [*(name for name in parsing.COMMANDS if name != "data"),
            *(f"data {name}" for name in parsing.DATA_COMMANDS)]


@pytest.fixture
def made(monkeypatch):
    """The module that makes the pages."""
    monkeypatch.syspath_prepend(ROOT / "website")
    import pages_of_commands

    return pages_of_commands


def helped(name, capsys, monkeypatch):
    """What `--help` prints."""
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        parsing.parsed([*name.split(), "--help"])
    return capsys.readouterr().out


def joined(text):
    """The letters and digits of a text, as help and Markdown break and mark it differently."""
    return re.sub(r"[^A-Za-z0-9]", "", text)


@pytest.mark.quick
@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_has_every_option_and_meaning_of_help(name, made, capsys, monkeypatch):
    page = made.pages()[f"commands/{name.replace(' ', '-')}.md"]
    assert page.startswith(f"# fedax {name}\n")
    shown = helped(name, capsys, monkeypatch)
    options = set(re.findall(r"^\W+(--\w[\w-]*)", shown, re.MULTILINE))
    assert options == set(re.findall(r"^`(--[\w-]+)", page, re.MULTILINE))
    assert options >= {"--debug"}
    for one in made.options_of(made.commands()[name]):
        for sentence in re.split(r"(?<=\.) ", one.meaning):
            assert joined(sentence) in joined(shown), one.name
        assert joined(one.value) in joined(shown), one.name
        assert joined(one.meaning) in joined(page), one.name


@pytest.mark.quick
def test_the_first_page_lists_every_command(made):
    row = r"^\| \[`fedax ([\w ]+)`\]\(([\w-]+\.md)\) \| \S"
    listed = re.findall(row, made.index(), re.MULTILINE)
    assert [name for name, _ in listed] == COMMANDS == list(made.commands())
    assert {f"commands/{path}" for _, path in listed} | {"commands/index.md"} == set(made.pages())
    assert made.EXAMPLES.keys() == set(COMMANDS)


@pytest.mark.quick
def test_the_pages_of_commands_are_short(made):
    assert sum(len(page.split()) for page in made.pages().values()) < 5_000


@pytest.mark.quick
def test_types_and_defaults_are_said(made):
    pages = made.pages()
    assert "`--seeds N` *a whole number; default: 1*\n:   " in pages["commands/sweep.md"]
    assert "`--overwrite` *flag*\n:   " in pages["commands/run.md"]
    needed = pages["commands/data-partition.md"]
    assert "`--out FILE.npz` *a path; must be given*\n:   " in needed
    assert "--out FILE.npz NAME_OR_PATH PARTITION\n" in needed


@pytest.mark.slow
def test_the_examples_run_one_after_another(made, tmp_path, monkeypatch, capsys):
    """All of fedax but `data get`, which would ask the network and is parsed."""
    monkeypatch.chdir(tmp_path)
    for name, (_, example) in made.EXAMPLES.items():
        fedax, *words = shlex.split(example.partition(" > ")[0])
        assert (fedax, shlex.join(words).startswith(name)) == ("fedax", True)
        if name == "data get":
            command = parsing.parsed(words).command
            assert isinstance(command, DataGet)
            assert command.name in PRODUCTS
            continue
        assert main.run_command(words) == 0, example
        assert capsys.readouterr().out, example
    made_files = {path.name for path in tmp_path.iterdir()}
    assert made_files >= {"one", "rates", "compared.html", "curves.png", "digits.npz"}
