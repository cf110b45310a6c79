"""A page for each method: its example, docstring, arguments, measurements and sources.

The example, and what is more than a docstring holds, is in website/methods/NAME.md.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent.parent / "scripts"))

import fedax
import measured
import reproduction_runs
import symbols
from docstrings import linked, plain, shown
from fedax.algorithms import registry
from fedax.signatures import entries
from formulas import formulas
from pages_of_reference import named

HERE = Path(__file__).parent
ROOT = HERE.parent
DOCS = ROOT / "docs"
OPTIONS = "**local_options"
# Arguments that say what is trained, and no setting of it.
NO_SETTINGS = ("model", "algorithm", "build", "labels")
NAMES = [*registry.ALGORITHMS, *registry.WRAPPERS]
# Where arguments are explained that are those of another factory, too.
AS_FOR = re.compile(r"as\sfor\s`(\w+(?:\.\w+)*)`")
# A symbol in plain text, such as eta, x_{i,K}, c_i^+ and d_gamma; and what has none.
LETTER = (
    r"(?:alpha|beta|gamma|[Dd]elta|epsilon|zeta|eta|[Tt]heta|lambda|mu|rho|sigma|tau|Omega)"
    r"(?![a-z])"
)
PART = rf"(?:\{{[^{{}}]*\}}|{LETTER}|\w)"
SYMBOL = re.compile(
    rf"(?P<kept>```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$|\[[^]]*\]\([^)]*\))"
    rf"|(?<![\w\\.])(?:{LETTER}|[A-Za-z](?=[_^]))(?:_{PART})?(?:\^(?:{PART}|\+))?(?!\w)",
    re.DOTALL,
)
# Of a section or paragraph: a search for a name would find it on every method's page first.
UNSEARCHED = "{ data-search-exclude }"


def info(name: str) -> registry.AlgorithmInfo:
    """What the registry has of a method."""
    return registry.ALGORITHMS[name] if name in registry.ALGORITHMS else registry.WRAPPERS[name][0]


@functools.cache
def families() -> dict[str, dict[str, str]]:
    """Family -> its methods, each with its idea, from the tables of docs/methods.md.

    Raises:
      ValueError: a method is in none of the tables, or in two.
    """
    text = (DOCS / "methods.md").read_text("utf-8")
    rows = {
        part.split("\n", 1)[0]: re.findall(r"^\| `(\w+)` \| (.*?) \|", part, re.MULTILINE)
        for part in re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    }
    named = [name for methods in rows.values() for name, _ in methods]
    if wrong := sorted({*NAMES} ^ {*named} | {one for one in named if named.count(one) > 1}):
        raise ValueError(
            f"The tables of docs/methods.md must list every method once: {', '.join(wrong)}."
        )
    return {family: dict(methods) for family, methods in rows.items()}


def idea(name: str) -> str:
    """A method in one sentence, as docs/methods.md has it."""
    return next(methods[name] for methods in families().values() if name in methods)


def written(name: str) -> dict[str, str]:
    """Heading -> section of website/methods/NAME.md; "" is what comes before the first heading."""
    text = (HERE / "methods" / f"{name}.md").read_text("utf-8")
    first, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    return {"": first, **dict(section.split("\n", 1) for section in sections)}


def navigation() -> list[dict[str, list[str]]]:
    """The pages by family."""
    return [
        {family: [f"methods/{name}.md" for name in methods]}
        for family, methods in families().items()
    ]


def in_symbols(text: str) -> str:
    r"""Text whose symbols are formulas: eta_l becomes $\eta_l$."""

    def one(found: re.Match[str]) -> str:
        return found[0] if found["kept"] else f"${re.sub(LETTER, _greek, found[0])}$"

    return SYMBOL.sub(one, text)


def _greek(found: re.Match[str]) -> str:
    return f"\\{found[0]}"


def with_links(text: str) -> str:
    """A docstring's text as the page shows it."""
    return linked(in_symbols(text))


def with_pages(text: str, up: str = "") -> str:
    """A page with the methods in its tables as links to their pages; `up` leads to docs/."""

    def line(found: re.Match[str]) -> str:
        return re.sub(
            r"(?<!\[)`(\w+)`",
            lambda name: (
                f"[`{name[1]}`]({up}methods/{name[1]}.md)" if name[1] in NAMES else name[0]
            ),
            found[0],
        )

    return re.sub(r"^\|.*$", line, text, flags=re.MULTILINE)


def pages() -> dict[str, str]:
    """Path -> page."""
    return {f"methods/{name}.md": page(name) for name in NAMES}


def page(name: str) -> str:
    """A method's page."""
    factory = info(name).factory
    by_kind, texts = parsed(factory)
    own = {heading: text.strip() for heading, text in written(name).items()}
    update = with_links("\n\n".join(texts).strip())
    parts = [
        f"# {name} {{ #fedax.{name} }}", idea(name), own.pop(""),
        "## The update", update,
        f"<div data-search-exclude markdown>\n\n**Symbols**\n\n"
        f"{symbols.meanings(name, formulas(update))}\n\n</div>",
        "## Settings", *arguments(name, factory, by_kind["parameters"]),
        example(by_kind["examples"]),
    ]
    for title, kind in (("Returns", "returns"), ("Raises", "raises")):
        if kind in by_kind:
            parts += [f"### {title}", *_listed(by_kind[kind])]
    parts += presets(name)
    parts += ["## When to use it", own.pop("When to use it")]
    parts += [f"## Measurements {UNSEARCHED}", own.pop("Measurements", "")]
    parts += [measured.sections(name), *_not_measured(name, by_kind["parameters"])]
    for heading, text in own.items():
        parts += [f"## {heading}", text]
    parts += ["## Sources", source(name), *_reproduced(name)]
    return "\n\n".join(filter(None, parts)) + "\n"


def parsed(factory: Callable[..., Any]) -> tuple[dict[str, Any], list[str]]:
    """A factory's docstring: kind of section -> what is in it, and the texts.

    One that says that its arguments are as for another has that one's.
    """
    sections = griffe.Docstring(shown(inspect.getdoc(factory) or "")).parse(
        "google", warnings=False, returns_multiple_items=False, returns_named_value=False
    )
    texts = [section.value for section in sections if section.kind.value == "text"]
    by_kind = {section.kind.value: section.value for section in sections}
    other = AS_FOR.search("\n".join(texts))
    if other and "parameters" not in by_kind:
        by_kind = {**parsed(_other(other[1], factory))[0], **by_kind}
    return by_kind, texts


def _other(name: str, factory: Callable[..., Any]) -> Callable[..., Any]:
    """The factory that a factory's docstring names: in full, or as its module does."""
    if name.startswith("fedax."):
        return named(name)
    return getattr(inspect.getmodule(inspect.unwrap(factory)), name)


def explained(factory: Callable[..., Any], documented: Any) -> list[tuple[list[str], str]]:
    """Arguments that are explained together, and how; those of another factory one by one."""
    found: list[tuple[list[str], str]] = []
    for entry in documented:
        names = [word.strip() for word in entry.name.split(",")]
        if other := AS_FOR.match(entry.description):
            theirs = _other(other[1], factory)
            meanings = {
                name: text
                for together, text in explained(theirs, parsed(theirs)[0]["parameters"])
                for name in together
            }
            found += [([name], meanings[name]) for name in names]
        else:
            found.append((names, entry.description))
    return found


def _listed(items: Any) -> list[str]:
    lines = []
    for item in items:
        kind = f"`{item.annotation}`: " if isinstance(item, griffe.DocstringRaise) else ""
        lines.append(with_links(f"{kind}{' '.join(item.description.split())}"))
    return [f"- {line}" for line in lines] if len(lines) > 1 else lines


def arguments(name: str, factory: Callable[..., Any], documented: Any) -> list[str]:
    """The table of a method's own arguments, and that of local training's options."""
    signature = inspect.signature(factory).parameters
    rows, options = [], ""
    for names, description in explained(factory, documented):
        if names[0].strip("*") == OPTIONS.strip("*"):
            options = description
            continue
        rows.append([
            ", ".join(f"`{word}`" for word in names),
            ", ".join(_default(signature[word]) for word in names if word in signature),
            _cell(description),
        ])
    text = [measured.table(["argument", "default", "meaning"], rows)]
    if options:
        every = entries(fedax.LocalOptions)
        own = options.split(every[0].split(":")[0] + ":")[0].strip()
        grouped = re.split(r"\n(?=\S)", "\n".join(every))
        lines = [
            [f"`{key}`", _default(signature[key]), _cell(plain(words))]
            for key, words in (line.split(":", 1) for line in grouped)
        ]
        text.append(f"It also takes the options of local training: {with_links(_sentence(own))}")
        inner = measured.table(["option", "default", "meaning"], lines)
        shared = '??? note "Options of local training"\n\n' + re.sub(
            r"^", "    ", inner, flags=re.MULTILINE
        )
        text.append(f"<div data-search-exclude markdown>\n\n{shared}\n\n</div>")
    text.append(f"On the command line, `fedax run digits {name} --help` lists them all.")
    return text


def _not_measured(name: str, documented: Any) -> list[str]:
    """A sentence that names the arguments that no measurement varies."""
    names = [word.strip() for entry in documented for word in entry.name.split(",")]
    shared = [word for word in names if word.strip("*") == OPTIONS.strip("*")]
    known = {*measured.varied(name), *NO_SETTINGS, *shared}
    but = {"base": " except SGDm's momentum"} if "momentum" in known else {}
    missing = [f"`{word}`{but.get(word, '')}" for word in names if word not in known]
    options = [f"`{word}`" for word in fedax.LocalOptions.__annotations__ if word not in known]
    parts = [", ".join(missing)] if missing else []
    if shared and options:
        parts.append(f"of the options of local training {', '.join(options)}")
    return [f"Not measured: {', and '.join(parts)}."] if parts else []


def _sentence(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    """Text for a cell: in one line, its bars no borders."""
    return with_links(_sentence(text)).replace("|", "&#124;")


def _default(parameter: inspect.Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return ""
    value = parameter.default
    return f"`{value}`" if isinstance(value, (int, float, str, type(None))) else "a function"


def presets(name: str) -> list[str]:
    """The table of the settings that presets of fedax's tasks have for a method."""
    rows = []
    for file in sorted((ROOT / "src" / "fedax" / "tasks").glob("*.toml")):
        for preset, tables in tomllib.loads(file.read_text("utf-8")).items():
            own = tables.get(name) if isinstance(tables, dict) else None
            if own:
                words = ", ".join(f"`{key}={_plain(value)}`" for key, value in own.items())
                rows.append([f"`{file.stem}`", f"`{preset}`", words])
    if not rows:
        return []
    return [
        f"### Presets {UNSEARCHED}",
        f"`fedax run TASK {name} --preset PRESET` sets these. [Tasks](../tasks.md#presets) gives "
        "the source of each number.",
        measured.table(["task", "preset", "settings"], rows),
    ]


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def example(sections: Any) -> str:
    """The docstring's example."""
    code = "\n".join(text for _, text in sections)
    return f"In Python:\n\n```pycon\n{code}\n```"


def source(name: str) -> str:
    """The papers of a method, with their addresses."""
    known = info(name)
    text = "\n".join(_paper(one) for one in known.paper.split("; "))
    if known.extra_gradients:
        text += (f"\n\nExtra gradient work in a round: {known.extra_gradients} (a pass goes once "
                 "over the client's examples).")
    return text


def _paper(short: str) -> str:
    """A line for a paper and the place in it, of what the registry has: "Reddi, Alg. 2"."""
    name, _, place = short.partition(", ")
    paper = {**registry.PAPERS, **registry.EARLIER}[name]
    title = f"[{paper.title}]({paper.address})" if paper.address else paper.title
    words = re.sub(r"\beq\.", "equation", place.replace("Alg.", "Algorithm"))
    words = re.sub(r"^(Algorithm|equation) (?=.*,)", r"\1s ", words).replace(", ", " and ")
    authors = f"{paper.authors}, " if paper.authors else ""
    return f"- {authors}{title}, {paper.year}" + (f": {words}" if words else "")


def _reproduced(name: str) -> list[str]:
    """Paper by paper, the runs of docs/notebook/reproductions that trained or computed a method."""
    lines, paper = [], ""
    for run in _runs():
        if name in run.methods:
            source = reproduction_runs.source(run.name)
            if source.paper != paper:
                paper = source.paper
                lines.append(f"- {paper}")
            words = reproduction_runs.heading(run)
            link = reproduction_runs.linked(words, run, "../notebook/reproductions/")
            lines.append(f"    - {link}")
    return ["Reproductions, with their results:", "\n".join(lines)] if lines else []


@functools.cache
def _runs() -> list[reproduction_runs.Run]:
    return reproduction_runs.runs()
