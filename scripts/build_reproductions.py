"""Writes docs/notebook/reproductions.md, and a page for each paper, from the results beside it.

    fedax reproduce NAME --scale SCALE --out docs/notebook/reproductions --storage DIR
    fedax reproduce COMPUTED --json --out docs/notebook/reproductions/computed \
        > .../computed/COMPUTED.json
    python scripts/build_reproductions.py

No number on the pages is typed: tables and verdicts are computed from the files, by the criteria
that stand in src/fedax/reproductions. What was found when a disagreement was looked into is written
by hand, in a file NAME-SCALE.txt beside the results, with links as reproductions.md has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from reproduction_runs import ALL, RESULTS, Run, heading, linked, page_of, runs, source, waiting
from reproduction_sections import cells, section

OVERVIEW = RESULTS.with_suffix(".md")
# What stands above is written by hand.
MARK = "<!-- what follows is generated -->"
TO_PAGES = f"{RESULTS.name}/"


def pages(folder: Path = RESULTS) -> dict[Path, str]:
    """Path -> what stands there."""
    made = runs(folder)
    above = OVERVIEW.read_text("utf-8").split(MARK)[0]
    found = {OVERVIEW: f"{above}{MARK}\n{overview(made)}"}
    for page in dict.fromkeys(page_of(name) for name in sorted(ALL)):
        found[RESULTS / page] = of_paper(page, made, folder)
    return found


def overview(made: Sequence[Run]) -> str:
    """For each paper a table with a row for each of its tables and figures."""
    return "\n".join(
        line for paper, names in groupby(sorted(ALL, key=source), lambda name: source(name).paper)
        for line in _of_paper_in_short(paper, list(names), made)
    )


def _of_paper_in_short(paper: str, names: Sequence[str], made: Sequence[Run]) -> list[str]:
    """The element is what the site's style knows the table by: on a narrow screen it is a list."""
    return [
        f"\n## {paper}\n",
        f"Criteria, tables, pictures and notes: [{paper}]({TO_PAGES}{page_of(names[0])}).\n",
        '<div class="overview" markdown>\n',
        "| table or figure | question | what came out | waiting for |", "|---|---|---|---|",
        *(cells(_row(name, [run for run in made if run.name == name])) for name in names),
        "\n</div>\n",
    ]


def _row(name: str, done: Sequence[Run]) -> list[str]:
    """Each run stands on a line of its own with its verdict."""
    anchor = f"#{done[0].title}" if done else ""
    return [
        f'<a id="{name}"></a>[{source(name).place}]({TO_PAGES}{page_of(name)}{anchor})',
        ALL[name].description,
        "<br>".join(linked(run.kind, run, TO_PAGES) for run in done) or "not run",
        "<br>".join(waiting(name, done)) or "nothing",
    ]


def of_paper(page: str, made: Sequence[Run], folder: Path) -> str:
    """A paper's page."""
    own = [run for run in made if page_of(run.title) == page]
    lines = [
        f"# {source(own[0].name).paper}, reproduced\n",
        "What came out when the paper's tables and figures were run again. What the words mean, "
        "and what was not run: [the overview](../reproductions.md).\n",
        *(f"- {linked(heading(run), run)}" for run in own),
    ]
    titles = [run.title for run in made]
    lines += [line for run in own for line in section(run, folder, titles)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, "utf-8")
