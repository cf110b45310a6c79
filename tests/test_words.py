"""What users read: the words of README, manual, docstrings and messages, and how long they are."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedax"
DOCS = ROOT / "docs"
MANUAL_WORDS, README_WORDS, CELL_WORDS = 40_000, 600, 20
# Words that read as translated -> what to write in their place.
REPLACED = {
    r"so many": "at most, the number of",
    r"at hand": "available, local",
    r"anew": "again",
    r"ha(?:s|ve) not(?= (?:a|an|any|the|its|their|one)\b|[.,;:)])": "does not have",
    r"but for": "except",
    r"(?:goes|go|going|went) on (?=with|where|from|exactly|until|as)": "continues",
    r"goes on": "continues",
    r"lies in": "is saved in, is in",
    r"lie in": "are saved in, are in",
    r"stands? in": "is in",
    r"be had": "available; obtain",
    r"what came out": "the result",
    r"says nothing": "inconclusive",
    r"in kind, not": "similar, not",
    r"raises? a sentence": "raise a clear error",
    r"another than": "different from",
    r"and is named": "is reported by name",
    r"nobody set": "that you do not give",
    r"papers? 00\d": "author and year",
    r"FACTS": "the equation itself",
}
PATTERN = re.compile("|".join(f"(?P<w{n}>\\b{word}\\b)" if word[-1].isalnum() else
                              f"(?P<w{n}>\\b{word})" for n, word in enumerate(REPLACED)), re.I)
# Place (a file, or a file and the words around) -> why the words are right there.
ALLOWED: dict[tuple[str, str], str] = {}


def prose(text: str) -> str:
    """Markdown without its blocks of code and links' targets, with as many lines."""
    text = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text,
                  flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"\]\([^)]*\)", "]", text)


def manual() -> list[Path]:
    """README, what methods' pages add to docstrings, and docs/ except the lab notebook."""
    pages = [path for path in sorted(DOCS.rglob("*.md")) if DOCS / "notebook" not in path.parents]
    return [ROOT / "README.md", *sorted((ROOT / "website" / "methods").glob("*.md")), *pages]


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """The docstrings, messages and other texts of a module, with their lines."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def found_in(path: Path) -> list[tuple[str, int, str]]:
    """Place, line and words of everything that the table replaces."""
    texts = strings(path) if path.suffix == ".py" else [(1, prose(path.read_text("utf-8")))]
    place = path.relative_to(ROOT).as_posix()
    found = []
    for line, text in texts:
        for hit in PATTERN.finditer(text):
            around = " ".join(text[max(hit.start() - 40, 0) : hit.end() + 40].split())
            if not any(place == where and words in around for where, words in ALLOWED):
                found.append((place, line + text[: hit.start()].count("\n"), around))
    return found


def told(found: list[tuple[str, int, str]]) -> str:
    return "\n".join(f"{place}:{line}: ...{around}..." for place, line, around in found)


@pytest.mark.quick
def test_the_words_of_the_guide_are_used():
    pages = [*manual(), *sorted((ROOT / "examples").glob("*.py")), *sorted(SOURCE.rglob("*.py"))]
    found = [hit for path in pages for hit in found_in(path)]
    assert not found, told(found)


@pytest.mark.quick
@pytest.mark.parametrize(("text", "number"), [
    ("It takes so many rounds.", 1), ("Run it anew; the file lies in `runs`.", 2),
    ("See paper 003, as FACTS has it.", 2), ("The client has not a loss.", 1),
    ("It has not been tried. A renewed try stands out.", 0), ("```\nanew\n```\n[a](at hand)", 0),
])
def test_replaced_words_are_found(text, number, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(text)
    assert len(found_in(page)) == number


@pytest.mark.quick
def test_only_what_is_allowed_in_its_place_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    monkeypatch.setitem(ALLOWED, ("page.md", "paper 003 of the pile"), "a heap of paper")
    for name, number in (("page.md", 0), ("other.md", 1)):
        (tmp_path / name).write_text("It is paper 003 of the pile.")
        assert len(found_in(tmp_path / name)) == number


@pytest.mark.quick
def test_papers_are_named_by_author_and_year():
    """In tests, scripts and the notebook, too; the change log tells old versions as they were."""
    folders = ("src", "docs", "tests", "scripts", "benchmarks", "website", "examples")
    found = [
        f"{path.relative_to(ROOT)}: {hit[0]}"
        for folder in folders for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".md", ".toml", ".txt", ".ipynb"} and path != Path(__file__)
        for hit in re.finditer(r"\bpapers? 00\d|\[00[0-4]\]|\bFACTS\b", path.read_text("utf-8"))
    ]
    assert found == []


@pytest.mark.quick
def test_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= README_WORDS


@pytest.mark.quick
def test_the_manual_is_short():
    words = {path.relative_to(ROOT).as_posix(): len(path.read_text("utf-8").split())
             for path in manual()}
    assert sum(words.values()) <= MANUAL_WORDS, words


@pytest.mark.quick
@pytest.mark.parametrize("page", manual(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_cells_of_tables_are_a_line(page):
    long = [
        cell.strip() for line in prose(page.read_text("utf-8")).splitlines() if line.startswith("|")
        for cell in line.strip("|").split("|") if len(cell.split()) > CELL_WORDS
    ]
    assert long == []
