"""The fenced blocks of README.md and of the site's pages: which test runs each, or why none does.

`test_docs_commands.py` fails at a block that is in none of the lists below.
"""

import fnmatch
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^( *)(`{3,}|~{3,})(\w*)[^\n]*\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
# A line that begins so is for a shell, whatever its block is called.
COMMAND = re.compile(
    r"^ *(?:[$] |(?:fedax|pip|python3?|pytest|mkdocs|source|sudo|tensorboard|optuna-dashboard|"
    r"mlflow|wandb|git|cd)\s)", re.MULTILINE,
)

# Pages and a kind of their blocks -> the test that runs all of them, but for those in NOT_RUN.
RUN_BY = {
    ("README.md", "python"): "test_readme.py::test_readme_code_runs_and_learns",
    ("docs/data.md", "python"): "test_read_data.py::test_the_page_s_example_runs",
    ("docs/data-get.md", "python"):
        "test_readme.py::test_the_example_of_the_page_on_getting_data_runs",
    ("docs/notebook/errata.md", "python"):
        "test_theory_statements.py::test_the_page_of_errata_runs",
    ("docs/methods.md", "python"):
        "test_readme.py::test_the_page_on_methods_runs_and_names_every_one",
    ("docs/models.md", "doctest"): "test_readme.py::test_a_page_prints_what_it_says",
    ("docs/notebook/log.md", "python"): "test_readme.py::test_the_script_of_the_log_runs",
    ("docs/partitions.md", "python"):
        "test_data_describe.py::test_the_page_runs_and_its_numbers_of_the_digits_are_these",
    ("docs/pictures.md", "python"): "test_pictures.py::test_the_pages_code_runs",
    ("docs/pictures.md", "sh"): "test_pictures.py::test_the_pages_commands_run",
    ("docs/report.md", "python"): "test_page.py::test_the_docs_python_runs",
    ("docs/search.md", "python"): "test_optuna.py::test_the_pages_python_runs",
    ("docs/speed.md", "python"):
        "test_factories.py::test_the_page_on_speed_loops_over_settings (the first), "
        "test_speed.py::test_the_page_on_speed_runs (the others)",
    ("docs/sweeps.md", "doctest"): "test_grids.py::test_the_page_on_sweeps_prints_what_it_says",
    ("docs/tasks.md", "doctest"): "test_readme.py::test_a_page_prints_what_it_says",
    ("docs/theory.md", "doctest"): "test_readme.py::test_a_page_prints_what_it_says",
    ("docs/guides/*.md", "python"): "test_guides.py::test_a_guide_runs",
    ("docs/guides/*.md", "sh"): "test_guides.py::test_a_guide_runs",
    ("docs/guides/your-method.md", "toml"): "test_guides.py::test_entry_points_are_as_a_guide_says",
    ("docs/tutorial/[0-9]*.md", "python"):
        "test_tutorial.py::test_the_notebooks_run_and_show_what_the_pages_say",
    ("docs/tutorial/[0-9]*.md", "sh"):
        "test_tutorial.py::test_the_notebooks_run_and_show_what_the_pages_say",
    ("commands/*.md", "sh"):
        "test_pages_of_commands.py::test_the_examples_run_one_after_another",
    ("methods/*.md", "doctest"):
        "test_site.py::test_a_method_s_example_is_its_docstring_s_and_imports_what_it_uses",
    ("methods/*.md", "sh"): "test_methods_pages.py::test_every_example_runs",
    ("docs/methods.md", "sh"): "test_methods_pages.py::test_every_example_runs",
}
# Page and number among its blocks for a shell: what test_docs_commands.py runs, and what it needs
# to be there.
SHORT = {
    ("docs/index.md", 1): (),
    ("docs/partitions.md", 0): (), ("docs/sweeps.md", 0): (), ("docs/search.md", 0): (),
    ("docs/speed.md", 0): (),
    ("docs/report.md", 0): ("fedax run digits fedavg --rounds 3 --out fedax-runs/one",
                            "fedax run digits fedavg --rounds 3 --out fedax-runs/two"),
}
# Pages and number among their blocks for a shell: why it is not run as it stands. The commands of
# all but the last are parsed, and their runs, sweeps and searches begun up to the data
# (test_docs_commands.py).
NOT_RUN = {
    ("README.md", 0): "an installation; by hand in a fresh environment before a release",
    ("README.md", 1): "the suite itself",
    ("CONTRIBUTING.md", 0): "an installation, as in .ci/run",
    ("CONTRIBUTING.md", 1): "the suite itself, as in .ci/run; test_attack has the attack",
    ("CONTRIBUTING.md", 2): "test_site builds the site; the server does not end",
    ("docs/notebook/benchmarks.md", 0): "hours, and environments; test_benchmarks has parts",
    ("docs/notebook/benchmarks.md", 1): "a GPU",
    ("docs/notebook/growth.md", 0): "minutes",
    ("docs/data-get.md", 0): "a network; test_data_get has servers of its own",
    ("docs/notebook/label-skew.md", 0): "hours",
    ("docs/notebook/learning-rates.md", 0): "hours",
    ("docs/notebook/quick-rates.md", 0): "hours",
    ("docs/notebook/robustness.md", 0): "minutes",
    ("docs/notebook/bytes.md", 0): "minutes",
    ("docs/notebook/privacy.md", 0): "a network, and minutes",
    ("docs/notebook/quick-rates.md", 1): "hours",
    ("docs/search.md", 1): "another program, which waits for a browser",
    ("docs/search.md", 2): "a database",
    ("docs/speed.md", 1): "several machines; test_mesh has two processes",
    ("docs/sweeps.md", 1): "hours",
    ("docs/sweeps.md", 2): "hours",
    ("docs/index.md", 0): "an installation, as in the README",
    ("docs/guides/installation.md", 0): "an installation, as in .ci/run",
    ("docs/guides/installation.md", 1): "a GPU",
    ("docs/guides/quick-start.md", 0): "an installation, as in .ci/run",
    ("docs/guides/logging.md", 1): "it waits for a browser; test_sinks reads the files as it does",
    ("docs/guides/reproducing.md", 2): "hours; test_experiments has both on made-up results",
    ("docs/tutorial/index.md", 0): "an environment, as in .ci/run, and pandas, which [test] has",
}


class Block(NamedTuple):
    """A fenced block; its number is that among the page's blocks of its kind."""

    page: str
    kind: str
    number: int
    code: str


def blocks(page, text):
    """The blocks of a page, in order."""
    found = []
    for fence in FENCE.finditer(text):
        kind = _kind(page, *fence.groups()[1:])
        found.append(Block(page, kind, sum(one.kind == kind for one in found), fence[4]))
    return found


def _kind(page, mark, language, code):
    """What a block is: "shown" is what is printed or sketched, "file" a file as it is."""
    if page.startswith("source/") and mark.startswith("~"):
        return "file"
    if code.lstrip().startswith(">>> "):
        return "doctest"
    if language in ("", "text") and not COMMAND.search(code):
        return "shown"
    return language or "text"


def runs(block):
    """The test that runs a block, or None."""
    if not_run(block):
        return None
    if block.kind == "sh" and (block.page, block.number) in SHORT:
        return "test_docs_commands.py::test_a_short_block_runs"
    tests = (test for (pages, kind), test in RUN_BY.items()
             if kind == block.kind and fnmatch.fnmatch(block.page, pages))
    return next(tests, None)


def not_run(block):
    """Why a block is not run, or None."""
    if block.kind != "sh":
        return None
    reasons = (reason for (pages, number), reason in NOT_RUN.items()
               if number == block.number and fnmatch.fnmatch(block.page, pages))
    return next(reasons, None)
