"""What MkDocs is told: generated pages, pages of files outside docs/, and formulas."""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import formulas  # noqa: E402  (these are beside this file)
import links  # noqa: E402
import pages_of_commands  # noqa: E402
import pages_of_methods  # noqa: E402
import pages_of_reference  # noqa: E402

ROOT = links.ROOT
PICTURE = re.compile(r'<img\b[^>]*? src="([^":]+\.png)"')
# Which pages a search finds first, and last, by how their places begin: a word in a heading counts
# as a thousand in the text, but as one on pages of records. And of two methods' pages the one
# whose name the other's begins with, as a search for "mime" also finds words that begin with it.
RECORDS = ("notebook/", "changes")
WEIGHTS = {
    "guides/quick-start": 16.0, "methods/": 4.0, "guides/": 4.0, "tutorial/": 2.0,
    **dict.fromkeys(RECORDS, 1e-3),
}
WHOLE_NAME = 4.0
# What readers search for -> the page that they want, whose headings use other words.
KEYWORDS = {
    "guides/diagnostics.md": ["client drift"],
    "guides/participation.md": ["client dropout"],
    "guides/resuming.md": ["checkpoint"],
    "guides/tuning.md": ["hyperparameter", "learning rate"],
    "methods/fedavg.md": ["federated averaging"],
    "partitions.md": ["heterogeneity", "non-IID"],
    "theory.md": ["client drift"],
}
# Pages whose tables have the names of methods.
LISTS_OF_METHODS = ("methods.md", "notebook/quick-rates.md")
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "sh", ".json": "json"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fills the places of the navigation whose pages are found or made."""
    config.nav = [_filled(entry) for entry in config.nav or []]
    config.extra_css.append("site.css")
    # The theme's asks for files from a host's root, where the site need not lie; static/ has one.
    config.theme.static_templates.discard("404.html")
    return config


def _filled(entry: Any) -> Any:
    """An entry of the navigation, with the pages that are found or made."""
    ((title, what),) = entry.items() if isinstance(entry, dict) else ((None, entry),)
    if isinstance(what, list):
        what = [_filled(inner) for inner in what]
        if title == "Methods":
            what += pages_of_methods.navigation()
    elif what == "commands/":
        what = pages_of_commands.navigation()
    elif what == "reference/":
        what = pages_of_reference.navigation()
    elif what == "tutorial/":
        what = sorted(_found(what), key=lambda name: name != "tutorial/index.md")
    elif what == "notebook/reproductions/":
        what = [
            {"All tables and figures": "notebook/reproductions.md"}, *_found(what),
            {"Causes of disagreements": "notebook/reproduction-causes.md"},
        ]
    return {title: what} if title else what


def _found(folder: str) -> list[str]:
    """The pages in a folder of docs/."""
    return [f"{folder}{path.name}" for path in sorted((ROOT / "docs" / folder).glob("*.md"))]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made."""
    made = {
        **{path.name: path.read_bytes() for path in HERE.glob("static/*")},
        "contributing.md": (ROOT / "CONTRIBUTING.md").read_text("utf-8"),
        "changes.md": changes(),
        **pages_of_commands.pages(),
        **pages_of_methods.pages(),
        **pages_of_reference.pages(),
    }
    linked = {path for page, folder in _texts(files) for path in links.sources(page, folder)}
    for path in sorted(linked):
        made[str(links.place(path))] = source(path)
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def _texts(files: Files) -> list[tuple[str, str]]:
    """The Markdown in docs/ and that of CONTRIBUTING.md, with the folder that its links are in."""
    texts = [
        (page.content_string, f"docs/{page.src_uri}".rpartition("/")[0])
        for page in files.documentation_pages()
    ]
    return [*texts, ((ROOT / "CONTRIBUTING.md").read_text("utf-8"), "")]


def changes() -> str:
    """The changes of all versions, newest first."""
    notes = sorted(
        (ROOT / "changelog").glob("*.md"), reverse=True,
        key=lambda path: [int(part) for part in re.findall(r"\d+", path.stem)],
    )
    texts = [re.sub(r"^#", "##", path.read_text("utf-8"), flags=re.MULTILINE) for path in notes]
    return "\n\n".join(["# Changes", *texts])


def source(path: str) -> str:
    """The page of a file outside docs/."""
    file = ROOT / path
    text = file.read_text("utf-8")
    if file.suffix == ".md":
        return text
    return f"# {path}\n\n~~~~{LANGUAGES.get(file.suffix, 'text')}\n{text.rstrip()}\n~~~~\n"


def found_in_a_search(uri: str) -> dict[str, Any]:
    """What a page says of its place among the results of a search."""
    if uri.startswith("source/"):
        return {"exclude": True}
    boost = next((boost for start, boost in WEIGHTS.items() if uri.startswith(start)), 1.0)
    name = uri.removeprefix("methods/").removesuffix(".md")
    longer = [one for one in pages_of_methods.NAMES if one.startswith(name) and one != name]
    return {"boost": boost * WHOLE_NAME if longer and name in pages_of_methods.NAMES else boost}


def on_page_markdown(markdown: str, page: Page, **kwargs: Any) -> str:
    """Sets a page's place among the results of a search, and mends links."""
    del kwargs
    uri = page.file.src_uri
    page.meta["search"] = found_in_a_search(uri)
    if uri in KEYWORDS:
        page.meta["tags"] = KEYWORDS[uri]
    folder = f"docs/{uri}".rpartition("/")[0]
    if uri in ("contributing.md", "changes.md"):
        folder = "" if uri == "contributing.md" else "changelog"
    if uri.startswith("source/"):
        folder = uri.removeprefix("source/").rpartition("/")[0]
    if uri in ("index.md", "guides/quick-start.md"):  # the only pages of their tabs
        page.meta["hide"] = ["navigation"]
    text = links.rewritten(markdown, folder, uri)
    if uri in LISTS_OF_METHODS:
        text = pages_of_methods.with_pages(text, "../" * uri.count("/"))
    return text


def on_page_content(html: str, page: Page, **kwargs: Any) -> str:
    """Draws formulas, and has pictures loaded when they come into sight."""
    del kwargs
    return PICTURE.sub(lambda found: _sized(found, page), formulas.drawn(html))


def _sized(found: re.Match[str], page: Page) -> str:
    """A picture with the room that it takes, so that nothing moves when it is loaded."""
    path = (ROOT / "docs" / page.file.src_uri).parent / found[1]
    if not path.is_file():
        return found[0]
    width, height = struct.unpack(">II", path.read_bytes()[16:24])  # as each PNG begins
    return f'{found[0]} loading="lazy" width="{width}" height="{height}"'
