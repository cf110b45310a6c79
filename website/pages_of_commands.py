"""The pages of the command line: usage, arguments and options as `--help` has them, an example."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

from fedax.cli.parsing import COMMANDS, DATA_COMMANDS
from fedax.cli.words import NUMBER, NUMBERS, WHOLE
from fedax.reproductions import REPRODUCTIONS

# Command -> what its example does, and the example. They are run in this order, in one folder.
EXAMPLES = {
    "list": ("Print every method by family:", "fedax list algorithms"),
    "run": (
        "Train for 20 rounds on the digits that come with fedax, about ten seconds:",
        "fedax run digits fedavg --rounds 20 --out one",
    ),
    "sweep": (
        "Try three client learning rates for each of two methods:",
        "fedax sweep digits fedavg,scaffold --grid client_learning_rate=0.03,0.1,0.3 --rounds 10 "
        "--out rates",
    ),
    "report": ("Compare the run and the sweep on one page:",
               "fedax report one rates --out compared.html"),
    "plot": ("Draw the test accuracy of a run by round:",
             "fedax plot curves one --metric test_accuracy --out curves.png"),
    "table": ("Print the best setting of each method of a sweep as a LaTeX table:",
              "fedax table rates --format latex"),
    "reproduce": (
        "Compute a figure in seconds, and compare it with the published one:",
        f"fedax reproduce {next(name for name in REPRODUCTIONS if 'figure-1' in name)}",
    ),
    "theory": (
        "Two clients, with curvatures 1 and 2 and minimisers 1 and 0.5:",
        "fedax theory --curvatures 1 2 --centres 1 0.5 --gamma 0.1 --local-steps 10",
    ),
    "privacy": (
        "How much noise 500 rounds of 100 of 3,400 clients take for epsilon 8:",
        "fedax privacy --clients 3400 --cohort-size 100 --rounds 500 --epsilon 8",
    ),
    "completion": ("Let bash complete the words of a command line:",
                   "fedax completion bash > fedax.bash && source fedax.bash"),
    "data get": ("Download MNIST, verify its checksums and convert it:", "fedax data get mnist"),
    "data check": ("Verify a data set that is available on this machine:",
                   "fedax data check digits"),
    "data describe": (
        "Show what a Dirichlet partition does to the labels of 20 clients:",
        "fedax data describe digits --partition 'dirichlet(0.1)' --num-clients 20",
    ),
    "data partition": (
        "Deal the examples to 20 clients, and save the partition for later runs:",
        "fedax data partition digits 'dirichlet(0.1)' --num-clients 20 --out digits.npz",
    ),
}
READ_AS = {"a whole number": WHOLE, "a number": NUMBER, "numbers": NUMBERS}
DEFAULT = re.compile(r"\s*Default: (.*?)\.(?=\s|$)", re.DOTALL)
# A command or an option in a text, outside code.
TYPED = re.compile(r"`[^`]*`|(?<![\w`-])--[a-z][\w-]*(?:\.\.\.)?")


class Option(NamedTuple):
    """One argument or option."""

    name: str  # as it is typed: --cohort-size, or TASK
    value: str  # what follows an option, as in `--rounds N`
    kind: str
    default: str
    meaning: str


def commands() -> dict[str, type]:
    """The commands by the words that call them: run, ..., data get, ..."""
    data = {f"data {name}": kind for name, kind in DATA_COMMANDS.items()}
    found = [(name, kind) for name, kind in COMMANDS.items() if name != "data"]
    return {**dict(found), **data}


def navigation() -> list[Any]:
    """The list of commands first."""
    return ["commands/index.md", *({f"fedax {name}": _path(name)} for name in commands())]


def pages() -> dict[str, str]:
    """Path -> page."""
    made = {_path(name): page(name, kind) for name, kind in commands().items()}
    return {"commands/index.md": index(), **made}


def index() -> str:
    """All commands with what each does."""
    lines = [
        "# Command line",
        "Train, tune, compare and reproduce from a shell. Each command has a page with its options "
        "and an example; `fedax COMMAND --help` prints the same. `python -m fedax` is another way "
        "to call `fedax`, and `fedax --version` prints the version.",
    ]
    rows = [f"| [`fedax {name}`]({_path(name).removeprefix('commands/')}) | {summary(kind)} |"
            for name, kind in commands().items()]
    lines.append("\n".join(["| command | what it does |", "|---|---|", *rows]))
    return "\n\n".join(lines) + "\n"


def summary(kind: type) -> str:
    """The first paragraph of a command's help."""
    return _typed(_paragraphs(kind)[0])


def page(name: str, kind: type) -> str:
    """The page of a command."""
    first, *others = [_typed(paragraph) for paragraph in _paragraphs(kind)]
    options = options_of(kind)
    places = [one for one in options if not one.name.startswith("--")]
    flags = [one for one in options if one.name.startswith("--")]
    needed = [f"{one.name} {one.value}" for one in flags if one.default == "must be given"]
    usage = " ".join(["fedax", name, "[OPTIONS]", *needed, *(one.name for one in places)])
    says, example = EXAMPLES[name]
    parts = [
        f"# fedax {name}", first, f"```text\nusage: {usage}\n```", *others,
        "## Example", says, f"```sh\n{example}\n```",
    ]
    if places:
        parts += ["## Arguments", *map(_shown, places)]
    return "\n\n".join([*parts, "## Options", *map(_shown, flags)]) + "\n"


def options_of(kind: type) -> list[Option]:
    """The arguments and options of a command, from the class that the parser reads."""
    documented = _documented(kind)
    hints = get_type_hints(kind, include_extras=True)
    return [
        _option(field.name, field, hints[field.name], documented[field.name])
        for field in dataclasses.fields(kind)
    ]


def _option(name: str, field: Any, hint: Any, text: str) -> Option:
    type_, *marks = get_args(hint)
    place = "Positional" in str(hint)
    value = next((mark.metavar for mark in marks if getattr(mark, "metavar", None)), "")
    called = next((mark.name for mark in marks if getattr(mark, "name", None)), name)
    # An argument is called by its metavar, an option by its name.
    typed = value if place else f"--{called.replace('_', '-')}"
    found = DEFAULT.search(text)
    default = found[1] if found else _default(field)
    return Option(typed, "" if place else value, _kind(type_, marks, value), default,
                  DEFAULT.sub("", text).strip())


def _default(field: Any) -> str:
    if field.default is None or field.default == () or field.default is False:
        return ""
    missing = type(field.default).__name__ == "_MISSING_TYPE"
    return "must be given" if missing else str(field.default)


def _kind(type_: Any, marks: list[Any], value: str) -> str:
    """What the words of an option are read as."""
    if type_ is bool:
        return "flag"
    for kind, mark in READ_AS.items():
        if mark in marks:
            return kind
    if "|" in value and "..." not in value:
        return "one of these"
    text = str(type_)
    several = "tuple" in text
    if "Path" in text or type_ is Path:
        return "paths" if several else "a path"
    return ("numbers" if "float" in text else "whole numbers" if "int" in text else "words") \
        if several else "text"


def _shown(option: Option) -> str:
    """An entry of a list of definitions."""
    name = f"{option.name} {option.value}".strip()
    default = f"; default: {option.default}" if option.default else ""
    if option.default == "must be given":
        default = "; must be given"
    return f"`{name}` *{option.kind}{_typed(default)}*\n:   {_typed(option.meaning)}"


def _documented(kind: type) -> dict[str, str]:
    """The text below each field of a class, in one line."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for one, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(one, ast.AnnAssign) and isinstance(below, ast.Expr):
            text = ast.literal_eval(below.value)
            found[ast.unparse(one.target)] = " ".join(text.split())
    return found


def _paragraphs(kind: type) -> list[str]:
    return [" ".join(part.split()) for part in (inspect.getdoc(kind) or "").split("\n\n")]


def _typed(text: str) -> str:
    """Text in which commands, options and what Markdown would change are code or escaped."""
    if found := re.fullmatch(r"((?:\w[\w ]*: )?)(fedax .*)", text):
        return f"{found[1]}`{found[2]}`"
    parts, end = [], 0
    for found in TYPED.finditer(text):
        parts += [_plain(text[end:found.start()]), f"`{found[0].strip('`')}`"]
        end = found.end()
    return "".join([*parts, _plain(text[end:])])


def _plain(text: str) -> str:
    return re.sub(r"([*_<|\[\]])", r"\\\1", text)


def _path(name: str) -> str:
    return f"commands/{name.replace(' ', '-')}.md"
