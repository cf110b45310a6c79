"""Links that leave docs/: to the pages made of files outside, or to nothing but the path."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Files outside docs/ that are pages of the site.
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}
LINK = re.compile(r"(!?)\[([^\]\n]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Text with everything changed that stands in no fenced block."""
    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


def place(path: str) -> str | None:
    """The page, in docs/, of a path in the repository; None if it has none."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path in PAGES:
        return PAGES[path]
    if path.startswith("changelog"):
        return "changes.md"
    if (ROOT / path).is_file():
        return f"source/{path}" if path.endswith(".md") else f"source/{path}.md"
    return None


def title(path: str) -> str:
    """The heading of a page in the repository, or its path."""
    found = re.search(r"^# (.*)$", (ROOT / path).read_text("utf-8"), re.MULTILINE)
    return found[1] if found else path


def rewritten(text: str, folder: str, page: str) -> str:
    """A page's Markdown with its links as the site needs them.

    Args:
      text: the Markdown.
      folder: the folder in the repository in which the text's links are meant.
      page: the page's place in docs/.
    """

    def one(found: re.Match[str]) -> str:
        mark, words, target, anchor = found.groups()
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        to = place(path)
        if to and words.strip("`").endswith(".md"):
            words = title(path)  # a reader of the site sees pages, not files
        if to is None:
            return words if "`" in words else f"`{path}`"
        here = posixpath.relpath(to, posixpath.dirname(page) or ".")
        return f"{mark}[{words}]({here}{anchor or ''})"

    return outside_code(text, lambda part: LINK.sub(one, part))


def sources(text: str, folder: str) -> set[str]:
    """The files outside docs/, no pages themselves, that a text links to."""
    found = set()

    def look(part: str) -> str:
        for _, _, target, _ in LINK.findall(part):
            path = posixpath.normpath(posixpath.join(folder, target))
            if target and "://" not in target and (place(path) or "").startswith("source/"):
                found.add(path)
        return part

    outside_code(text, look)
    return found
