"""What the pages tell a reader to type is what the command line takes, also where it takes hours.

Blocks that run within minutes are run: by test_guides, test_readme, test_tutorial, test_pictures
and others. Of those that need hours, a network or a cluster, all is done here up to the data.
"""

import csv
import re
import shlex
from pathlib import Path

import pytest

from fedax.cli import main, sweeps
from fedax.cli.commands import Data, DataGet, Reproduce, Run, Sweep
from fedax.cli.sweeps import asked
from fedax.data.catalogue import PRODUCTS
from fedax.devices import processes
from fedax.experiment import run
from fedax.reproductions import EXPERIMENTS, REPRODUCTIONS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")),
         *sorted((ROOT / "docs" / "guides").glob("*.md"))]

# What may stand in a line before the command.
BEFORE = ("srun", "pip", "install", ".", "&&")


def lines(page):
    """The words of each command line of a page's blocks for a shell, and of those not to be run."""
    blocks = re.findall(r"^```(sh|text)\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
    words = [shlex.split(line, comments=True) for kind, block in blocks
             for line in block.splitlines() if kind == "sh" or line.startswith("fedax ")]
    return [line for line in words if line]


def commands(page):
    """Those of fedax, but for those that ask for help or take a file of the reader's own."""
    found = []
    for line in lines(page):
        start = next((i for i, word in enumerate(line) if word not in BEFORE), len(line))
        own = any(word.startswith("my_") for word in line)  # a reader's files
        if line[start:start + 1] == ["fedax"] and "--help" not in line and not own:
            found.append(line[start + 1:])
    return found


@pytest.mark.quick
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda p: p.stem)
def test_the_command_line_takes_every_command(page, monkeypatch):
    """Up to where data would be read: a run, a sweep or a search with all its settings."""
    started = []

    def start(config, *arguments, **options):
        started.append(config)
        raise KeyboardInterrupt

    monkeypatch.chdir(ROOT)  # for files under examples/
    monkeypatch.setattr(run, "start", start)
    monkeypatch.setattr(sweeps, "start_sweep", start)
    monkeypatch.setattr(sweeps, "start_search", start)
    monkeypatch.setattr(main, "_use_cores", lambda *arguments, **options: None)
    monkeypatch.setattr(processes, "connect", lambda *arguments, **options: None)
    for words in commands(page):
        command = main._command(words)
        starts = isinstance(command, Run | Sweep) and command.resume is None
        if starts and not {"--config", "--extend"} & set(words):
            before = len(started)
            main.run_command(words)
            assert len(started) == before + 1, words
        elif isinstance(command, Reproduce) and command.name:
            assert command.name in {*EXPERIMENTS, *REPRODUCTIONS}, words
        elif isinstance(command, Data) and isinstance(command.command, DataGet):
            assert command.command.name in PRODUCTS, words


@pytest.mark.quick
@pytest.mark.parametrize(("page", "number", "results"), [
    ("learning-rates", 0, "learning-rates-plays"), ("learning-rates", 1, "learning-rates-mnist"),
    ("quick-rates", 0, "quick-rates-servers"), ("quick-rates", 1, "quick-rates-clients"),
    ("quick-rates", 2, "quick-rates-mime"),
])
def test_a_sweep_on_a_page_is_the_one_whose_results_lie_beside_it(page, number, results):
    """As many settings and seeds, and of the same methods."""
    command = main._command(commands(ROOT / "docs" / f"{page}.md")[number])
    settings = asked(command).settings
    with (ROOT / "docs" / f"{results}.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(settings) * command.seeds
    assert {row["algorithm"] for row in rows} == {one.algorithm for one in settings}


@pytest.mark.quick
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_scripts_on_a_page_exist_and_know_their_options(page):
    for words in lines(page):
        if words[0] == "python" and words[1].endswith(".py"):
            source = (ROOT / words[1]).read_text("utf-8")
            for option in words:
                assert not option.startswith("--") or f'"{option}"' in source, words
