"""Writes docs/notebook/reproductions.md, and a page for each paper, from the results beside it.

    fedax reproduce NAME --scale SCALE --out docs/notebook/reproductions --storage DIR
    fedax reproduce COMPUTED --json --out docs/notebook/reproductions/computed \
        > .../computed/COMPUTED.json
    python scripts/build_reproductions.py

No number of a table is typed: tables and verdicts are computed from the files, by the criteria in
src/fedax/reproductions. Written by hand are the notes, in a file NAME-SCALE.txt beside the results,
with links as reproductions.md has them; and reasons.toml, one sentence for each table and figure
that does not agree.
"""

from __future__ import annotations

import collections
import tomllib
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from fedax.reproductions.outcome import in_a_word
from reproduction_runs import (
    ALL,
    IN_PART,
    KINDS,
    RESULTS,
    Computed,
    Run,
    Trained,
    data_of,
    heading,
    linked,
    page_of,
    runs,
    sentence,
    source,
    waiting,
)
from reproduction_sections import cells, section

OVERVIEW = RESULTS.with_suffix(".md")
REASONS = RESULTS / "reasons.toml"
MARK = "<!-- what follows is written by hand -->"
TO_PAGES = f"{RESULTS.name}/"
# The run whose picture the overview begins with.
SHOWN = "reddi2021-figure-1-paper"
TITLES = {
    "charles2020": "On the Outsized Importance of Learning Rates in Local Update Methods",
    "decay2021": "Faster Federated Learning with Decaying Number of Local SGD Steps",
    "elastic2023": "Elastic Aggregation for Federated Optimization",
    "mime2020": "Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning",
    "reddi2021": "Adaptive Federated Optimization",
}
WORDS = ("agrees", "partly", "disagrees", "inconclusive", "not run")


def pages(folder: Path = RESULTS) -> dict[Path, str]:
    """Path -> its text."""
    made = runs(folder)
    by_hand = OVERVIEW.read_text("utf-8").split(MARK)[1]
    found = {OVERVIEW: f"{overview(made)}\n{MARK}{by_hand}"}
    for page in dict.fromkeys(page_of(name) for name in sorted(ALL)):
        found[RESULTS / page] = of_paper(page, made, folder)
    return found


def overview(made: Sequence[Run]) -> str:
    """The counts, a picture, and for each paper a table with a row for each table and figure."""
    reasons = tomllib.loads(REASONS.read_text("utf-8"))
    lines = ["# Reproductions\n", *_in_short(made)]
    for paper, names in groupby(sorted(ALL, key=source), lambda name: source(name).paper):
        lines += _of_paper(paper, list(names), made, reasons)
    return "\n".join(lines)


def _in_short(made: Sequence[Run]) -> list[str]:
    counts = collections.Counter(result(runs_of(name, made)) for name in ALL)
    said = [f"{word}: {counts[word]}" for word in WORDS]
    points = [outcome for run in made if isinstance(run, Trained) for _, outcome in run.judged]
    telling = [outcome.agrees for outcome in points if outcome.counts]
    shown = next(run for run in made if run.title == SHOWN)
    return [
        f"**In {counts['agrees']} of {len(ALL)} tables and figures the strongest run agrees in "
        f"every point, and in {counts['partly']} in at least half of its points** "
        f"({', '.join(said)}). Of {len(telling)} points of all runs, {sum(telling)} agree. "
        "Most runs are reduced, and most replace the paper's data; "
        "[what the words mean](#what-the-words-mean).\n",
        f"![Test accuracy over the rounds, by method]({TO_PAGES}{SHOWN}.png)\n",
        f"*Test accuracy by method: {source(shown.name).paper}, "
        f"{linked(heading(shown), shown, TO_PAGES)}.*",
    ]


def runs_of(name: str, made: Sequence[Run]) -> list[Run]:
    """The runs of a table or figure."""
    return [run for run in made if run.name == name]


def result(own: Sequence[Run]) -> str:
    """One word for the strongest run of a table or figure."""
    if not own:
        return in_a_word([])
    first = own[0]
    if isinstance(first, Computed):
        return first.info.result
    return in_a_word(outcome for _, outcome in first.judged)


def _of_paper(
    paper: str, names: Sequence[str], made: Sequence[Run], reasons: Mapping[str, str]
) -> list[str]:
    """The element is what the site's style knows the table by: on a narrow screen it is a list."""
    page = page_of(names[0])
    key = page.removesuffix(".md")
    return [
        f'\n## <a id="{key}"></a>{paper}\n',
        f"*{TITLES[key]}.* Criteria, tables, pictures and notes of each run: "
        f"[{paper}]({TO_PAGES}{page}).\n",
        '<div class="overview" markdown>\n',
        "| table or figure | what it shows | result | runs, the strongest first | data | why |",
        "|---|---|---|---|---|---|",
        *(cells(_row(name, runs_of(name, made), reasons)) for name in names),
        "\n</div>\n",
    ]


def _row(name: str, own: Sequence[Run], reasons: Mapping[str, str]) -> list[str]:
    """The link leads to the first run."""
    anchor = f"#{own[0].title}" if own else ""
    return [
        f'<a id="{name}"></a>[{source(name).place}]({TO_PAGES}{page_of(name)}{anchor})',
        ALL[name].description,
        result(own),
        _points(own),
        data_of(own),
        reasons[name] if name in reasons else _why(name, own),
    ]


def _points(own: Sequence[Run]) -> str:
    """The kind of each run, and how many points agree of those that were run and can tell."""
    found = []
    for run in own:
        if isinstance(run, Trained):
            telling = [outcome.agrees for _, outcome in run.judged if outcome.counts]
            kind = run.kind + ", in part" * bool(run.missing and run.kind != IN_PART)
            found.append(f"{kind}: {sum(telling)} of {len(telling)}")
    return "; ".join(found)


def _why(name: str, own: Sequence[Run]) -> str:
    """What a table or figure needs of which nothing was run."""
    if own:
        return ""
    kind, _, needs = next(
        what for what in waiting(name, own, in_short=True) if what.startswith(KINDS[0])
    ).partition(": ")
    return f"{sentence(kind)} it needs {needs}."


def of_paper(page: str, made: Sequence[Run], folder: Path) -> str:
    """A paper's page."""
    own = [run for run in made if page_of(run.title) == page]
    names = [name for name in sorted(ALL, key=source) if page_of(name) == page]
    left = [f"- {source(name).place}, {what}" for name in names
            for what in waiting(name, runs_of(name, made))]
    lines = [
        f"# {source(names[0]).paper}, reproduced\n",
        f"*{TITLES[page.removesuffix('.md')]}.* The result of each run; what the words mean: "
        "[overview](../reproductions.md#what-the-words-mean).\n",
        *(f"- {linked(heading(run), run)}" for run in own),
        "\nNot run, and what it needs:\n" if left else "",
        *left,
    ]
    titles = [run.title for run in made]
    lines += [line for run in own for line in section(run, folder, titles)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, "utf-8")
