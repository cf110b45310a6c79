"""What the pages tell a reader to type is what the command line takes, also where it takes hours.

Blocks that run within minutes are run: doc_blocks.py says by which test. Of those that need hours,
a network or a cluster, which it lists, all is done here up to the data.
"""

import csv
import re
import shlex
from pathlib import Path

import pytest

import doc_blocks
from fedax.algorithms import registry
from fedax.cli import main, sweeps
from fedax.cli.commands import Reproduce, Run, Sweep
from fedax.cli.data_commands import Data, DataGet
from fedax.cli.sweeps import asked
from fedax.data.catalogue import PRODUCTS
from fedax.devices import processes
from fedax.experiment import run
from fedax.reproductions import EXPERIMENTS, REPRODUCTIONS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")),
         *sorted((ROOT / "docs" / "notebook").glob("*.md")),
         ROOT / "docs" / "tutorial" / "index.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]

NAMES = [*registry.ALGORITHMS, *registry.WRAPPERS]
# What may stand in a line before the command.
BEFORE = ("srun", "pip", "install", ".", "&&")


def shell_blocks(page):
    """The blocks of a page for a shell."""
    name = page.relative_to(ROOT).as_posix()
    found = doc_blocks.blocks(name, page.read_text("utf-8"))
    return [block.code for block in found if block.kind == "sh"]


def lines(page):
    """The words of each command line of a page's blocks for a shell."""
    words = [shlex.split(line, comments=True) for code in shell_blocks(page)
             for line in code.splitlines()]
    return [line for line in words if line]

@pytest.fixture
def all_blocks(monkeypatch):
    """The blocks of README.md and of every page of the site."""
    monkeypatch.syspath_prepend(ROOT / "website")
    import hooks
    import links
    import pages_of_commands
    import pages_of_methods
    import pages_of_reference

    written = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    pages = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in written}
    shown = {path for name, text in pages.items()
             for path in links.sources(text, name.rpartition("/")[0])}
    pages |= {links.place(path): hooks.source(path) for path in shown}
    pages |= {**pages_of_methods.pages(), **pages_of_reference.pages(),
              **pages_of_commands.pages()}
    pages["changes.md"] = hooks.changes()
    return [block for name, text in pages.items() for block in doc_blocks.blocks(name, text)]


@pytest.mark.quick
def test_every_block_is_run_or_listed(all_blocks):
    """Of any language, on any page. What is printed and files as they are nobody runs."""
    code = [block for block in all_blocks if block.kind not in ("shown", "file")]
    lost = [block for block in code if not doc_blocks.runs(block) and not doc_blocks.not_run(block)]
    assert lost == []
    assert len({block.page for block in code}) > len(NAMES) + 30


@pytest.mark.quick
def test_every_entry_of_the_lists_is_of_a_block_and_of_a_test(all_blocks):
    used = {doc_blocks.runs(block) or doc_blocks.not_run(block) for block in all_blocks}
    assert {*doc_blocks.RUN_BY.values(), *doc_blocks.NOT_RUN.values()} <= used
    shell = {(block.page, block.number) for block in all_blocks if block.kind == "sh"}
    keys = [*doc_blocks.SHORT, *doc_blocks.NOT_RUN]
    assert {key for key in keys if "*" not in key[0]} <= shell
    for tests in doc_blocks.RUN_BY.values():
        for file, name in re.findall(r"(test_\w+\.py)::(\w+)", tests):
            assert f"\ndef {name}(" in (ROOT / "tests" / file).read_text("utf-8")


@pytest.mark.quick
@pytest.mark.parametrize(("fence", "kind"), [
    ("```python\nx = 1\n```", "python"), ("```toml\nx = 1\n```", "toml"),
    ("```text\nfedax run digits\n```", "text"), ("```\n$ fedax run\n```", "text"),
    ("```pycon\n>>> 1\n1\n```", "doctest"), ("- a\n\n  ```sh\n  ls\n  ```", "sh"),
    ("~~~~python\nx = 1\n~~~~", "python"),
])
def test_a_new_block_is_in_no_list(fence, kind):
    (block,) = doc_blocks.blocks("docs/new.md", f"# New\n\n{fence}\n")
    assert block.kind == kind
    assert (doc_blocks.runs(block), doc_blocks.not_run(block)) == (None, None)


@pytest.mark.quick
def test_what_is_printed_is_known_from_commands():
    (block,) = doc_blocks.blocks("docs/new.md", "```text\nfedax: no such run\nloss 0.3\n```\n")
    assert block.kind == "shown"


@pytest.mark.slow
@pytest.mark.parametrize(("page", "number"), doc_blocks.SHORT, ids=str)
def test_a_short_block_runs(page, number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block = shell_blocks(ROOT / page)[number]
    for line in [*doc_blocks.SHORT[page, number], *block.splitlines()]:
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
            whole = line[start + 1:]
            found.append(whole[: whole.index(">")] if ">" in whole else whole)
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
    command = main._command(commands(ROOT / "docs" / "notebook" / f"{page}.md")[number])
    settings = asked(command).settings
    with (ROOT / "docs" / "notebook" / f"{results}.csv").open(encoding="utf-8") as file:
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
