"""Makes the notebooks of docs/tutorial from its pages; with --run, runs them in a new folder too.

    python scripts/build_tutorial.py          # writes docs/tutorial/*.ipynb
    python scripts/build_tutorial.py --run    # and brings the numbers and pictures of the pages up
                                              # to date with what this machine computes

A page is Markdown. Its blocks become cells:

- `python`: a cell; with `title="FILE.py"`, a cell that writes the file
- `sh`: a cell of its commands, each behind a `!`
- `text`: what the cell before it prints; `...` stands for anything. It stays text in the notebook,
  and what the cell really printed is compared with it
- a picture alone on a line: a cell that shows the file, which a cell before it made
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial"

# Numbers of a page may differ from those of this machine: rounding is another on another one.
RELATIVE, PERCENT, SPREAD = 0.1, 3.0, 1.0
BLOCK = re.compile(
    r'^```(?P<language>\w+)(?: title="(?P<file>[\w.]+)")?\n(?P<code>.*?)^```\n'
    r"|^!\[[^\]]*\]\((?P<picture>[\w.-]+)\)\n",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w]|\.\d)")
GAP = "..."


class Cell(NamedTuple):
    """A part of a page.

    Attributes:
      kind: "words", "code", or "shown", which is what the code before it prints.
      text: of the cell in the notebook.
      start, stop: of the code that is between the fences, in the page.
    """

    kind: str
    text: str
    start: int = 0
    stop: int = 0


SETUP = Cell("code", """\
# A line with a ! runs a command. That another program starts is harmless here; JAX warns of it.
import warnings

warnings.filterwarnings("ignore", r"os\\.fork", RuntimeWarning)""")


class Shown(NamedTuple):
    """What a page says that a cell prints, and what it printed."""

    cell: Cell
    printed: str


def pages() -> list[Path]:
    """The pages in the order in which they are read; they share a folder of files."""
    return sorted(TUTORIAL.glob("[0-9]-*.md"))


def cells(text: str) -> list[Cell]:
    """The parts of a page."""
    found: list[Cell] = []
    end = 0
    for block in BLOCK.finditer(text):
        _add_words(found, text[end : block.start()])
        end = block.end()
        code = (block["code"] or "").rstrip("\n")
        if block["picture"]:
            found.append(Cell(
                "code", f"from IPython.display import Image\n\nImage({block['picture']!r})"
            ))
        elif block["language"] == "text":
            found.append(Cell("shown", block[0].rstrip("\n"), *block.span("code")))
        elif block["language"] == "sh":
            lines = (f"!{line}" if line.strip() else line for line in code.splitlines())
            found.append(Cell("code", "\n".join(lines)))
        elif block["file"]:
            found.append(Cell("code", f"%%writefile {block['file']}\n{code}"))
        else:
            found.append(Cell("code", code))
    _add_words(found, text[end:])
    return found


def _add_words(found: list[Cell], text: str) -> None:
    words = re.sub(r"\]\((\d-[\w-]+)\.md", r"](\1.ipynb", text.strip())
    if words:
        found.append(Cell("words", words))


def notebook(page: Path) -> nbformat.NotebookNode:
    """A page as a notebook, without outputs."""
    made = new_notebook(metadata={
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    })
    title, *parts = cells(page.read_text("utf-8"))
    for number, cell in enumerate([title, SETUP, *parts]):
        new = new_code_cell if cell.kind == "code" else new_markdown_cell
        made.cells.append(new(cell.text, id=f"cell-{number}"))
    return made


def as_text(made: nbformat.NotebookNode) -> str:
    """The file of a notebook."""
    return nbformat.writes(made) + "\n"


def run(page: Path, folder: Path) -> list[Shown]:
    """Runs a page's notebook in a folder, and gives what the page says beside what was printed.

    Raises:
      nbclient.exceptions.CellExecutionError: a cell failed.
      ValueError: a command failed without the page's saying so.
    """
    title, *parts = cells(page.read_text("utf-8"))
    parts = [title, SETUP, *parts]
    made = notebook(page)
    with _commands_of_this_python():
        NotebookClient(
            made, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
        ).execute()
    found: list[Shown] = []
    printed = ""
    for cell, done, following in zip(parts, made.cells, [*parts[1:], None], strict=True):
        if cell.kind == "shown":
            found.append(Shown(cell, printed))
        if cell.kind != "code":
            continue
        printed = _printed(done)
        said = following.text if following is not None and following.kind == "shown" else ""
        for failure in re.findall(r"^(?:fedax: |Traceback).*|.*command not found.*", printed,
                                  re.MULTILINE):
            if not failure.startswith("fedax: ") or failure[:20] not in said:
                raise ValueError(f"{page.name}: {cell.text}\nfailed:\n{printed}")
    return found


@contextlib.contextmanager
def _commands_of_this_python() -> Iterator[None]:
    """A notebook's `!fedax` is the one beside this Python."""
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), before])
    try:
        yield
    finally:
        os.environ["PATH"] = before


def _printed(cell: nbformat.NotebookNode) -> str:
    """What a cell printed, as a terminal would show it in the end."""
    words = []
    for output in cell.get("outputs", ()):
        if output.output_type == "stream":
            words.append(output.text)
        elif "text/plain" in output.get("data", {}):
            words.append(output.data["text/plain"] + "\n")
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", "".join(words)).replace("\r\n", "\n")
    return "\n".join(line.rpartition("\r")[2] for line in text.split("\n"))


def pattern(shown: str) -> re.Pattern[str]:
    """What fits the text of a page, whatever its numbers are: they are the groups."""
    parts = []
    for place, piece in enumerate(shown.split(GAP)):
        if place:
            parts.append(r".*?")
        for index, words in enumerate(NUMBER.split(piece)):
            if index:
                parts.append(f"({NUMBER.pattern})")
            parts.append(r"\s+".join(map(re.escape, re.split(r"\s+", words))))
    # A line of its own for the gap may stand for nothing.
    return re.compile("".join(parts).replace(r"\s+.*?\s+", r"\s.*?"), re.DOTALL)


def differences(page: Path, shown: Sequence[Shown]) -> list[str]:
    """Where a page says something else than what was printed, beyond rounding."""
    found = []
    for cell, printed in shown:
        said = cell.text.removeprefix("```text\n").removesuffix("```").strip()
        fits = pattern(said).search(printed)
        if fits is None:
            found.append(f"{page.name} says\n{said}\nbut this was printed:\n{printed}")
            continue
        for number, group in zip(NUMBER.finditer(said), fits.groups(), strict=True):
            if not _close(said, number, group):
                found.append(f"{page.name} says {number[0]}, but it is {group}, in\n{said}")
    return found


def _close(said: str, number: re.Match[str], printed: str) -> bool:
    one, other = (float(word.replace(",", "")) for word in (number[0], printed))
    digits = len(number[0].partition(".")[2])
    if not digits and "e" not in number[0]:
        return one == other
    if said[number.end() :].startswith("%"):
        return abs(one - other) <= PERCENT
    relative = SPREAD if said[: number.start()].rstrip().endswith("±") else RELATIVE
    return abs(one - other) <= relative * max(abs(one), abs(other)) + 1.01 * 10.0**-digits


def refreshed(page: Path, shown: Sequence[Shown]) -> str:
    """The page with the numbers that were printed."""
    text = page.read_text("utf-8")
    for cell, printed in reversed(shown):
        said = text[cell.start : cell.stop]
        fits = pattern(said.strip()).search(printed)
        if fits is not None:
            groups = iter(fits.groups())
            said = NUMBER.sub(lambda _, groups=groups: next(groups), said)
            text = text[: cell.start] + said + text[cell.stop :]
    return text


def main(arguments: Sequence[str]) -> int:
    """Writes the notebooks; with --run, runs them and refreshes the pages before."""
    status = 0
    if "--run" in arguments:
        with tempfile.TemporaryDirectory() as place:
            for page in pages():
                began = time.perf_counter()
                shown = run(page, Path(place))
                print(f"{page.name}: {time.perf_counter() - began:.0f} s")
                for difference in differences(page, shown):
                    print(difference, file=sys.stderr)
                    status = 1
                page.write_text(refreshed(page, shown), "utf-8")
                for picture in re.findall(r"^!\[[^\]]*\]\(([\w.-]+)\)$", page.read_text("utf-8"),
                                          re.MULTILINE):
                    shutil.copy(Path(place) / picture, TUTORIAL / picture)
    for page in pages():
        page.with_suffix(".ipynb").write_text(as_text(notebook(page)), "utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
