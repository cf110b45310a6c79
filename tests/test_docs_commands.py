"""What the pages tell a reader to type is what the command line takes, also where it takes hours.

Blocks that run within minutes are run: here, and by test_guides, test_readme, test_tutorial,
test_pictures and others. Of those that need hours, a network or a cluster, which are listed, all is
done here up to the data.
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
         ROOT / "docs" / "tutorial" / "index.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
# Page and number of a block for a shell that is run here, and what it needs to be there.
RUN = {
    ("partitions", 0): (), ("sweeps", 0): (), ("search", 0): (), ("speed", 1): (),
    ("report", 0): ("fedax run digits fedavg --rounds 3 --out fedax-runs/one",
                    "fedax run digits fedavg --rounds 3 --out fedax-runs/two"),
}
# Where it is run otherwise, or why it is not run as it stands.
NOT_HERE = {
    ("README", 0): "test_readme, and by hand in a fresh environment before a release",
    ("README", 1): "the suite itself", ("README", 2): "minutes each; every command has its tests",
    ("README", 3): "a GPU", ("CONTRIBUTING", 0): ".ci/run", ("CONTRIBUTING", 1): ".ci/run",
    ("CONTRIBUTING", 2): "test_site", ("index", 0): ".ci/run",
    ("benchmarks", 0): "hours, and environments of all peers; test_benchmarks has its parts",
    ("benchmarks", 1): "a GPU", ("data-get", 0): "a network; test_data_get has servers of its own",
    ("data", 0): "gigabytes on the disk", ("label-skew", 0): "hours",
    ("learning-rates", 0): "hours", ("pictures", 0): "test_pictures",
    ("quick-rates", 0): "hours", ("quick-rates", 1): "hours",
    ("search", 1): "another program, which waits for a browser", ("search", 2): "a database",
    ("speed", 0): "several machines; test_mesh has two processes", ("sweeps", 1): "hours",
    ("sweeps", 2): "hours",
}

# What may stand in a line before the command.
BEFORE = ("srun", "pip", "install", ".", "&&")


def lines(page):
    """The words of each command line of a page's blocks for a shell, and of those not to be run."""
    blocks = re.findall(r"^```(sh|text)\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
    words = [shlex.split(line, comments=True) for kind, block in blocks
             for line in block.splitlines() if kind == "sh" or line.startswith("fedax ")]
    return [line for line in words if line]


def shell_blocks(page):
    """The blocks of a page for a shell."""
    return re.findall(r"^```sh\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)


@pytest.mark.quick
def test_every_block_for_a_shell_is_run_or_listed():
    """Those of the guides are run by test_guides, all of them."""
    found = {(page.stem, number) for page in PAGES if page.parent.name != "guides"
             for number in range(len(shell_blocks(page)))}
    assert found == {*RUN, *NOT_HERE}


@pytest.mark.slow
@pytest.mark.parametrize(("page", "number"), RUN, ids=str)
def test_a_short_block_runs(page, number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block = shell_blocks(ROOT / "docs" / f"{page}.md")[number]
    for line in [*RUN[page, number], *block.splitlines()]:
        words = shlex.split(line, comments=True)
        assert words[0] == "fedax"
        assert main.run_command(words[1:]) == 0, line


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
