"""What the reference does to docstrings before they are shown (an extension of Griffe)."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))

import pages_of_reference
from formulas import in_dollars

# What of a docstring Markdown takes as it stands: code, formulas, examples, and the stars before an
# item and an argument's name.
AS_IT_STANDS = (
    r"(?P<kept>(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`)|\$\$.*?\$\$|\$\S.*?\$"
    r"|^ *>>>[^\n]*\n(?: *\S[^\n]*\n)*|^ *\*(?= )|^ *\*\*?(?=\w+:))"
)
# A star, the beginning of a tag, an underscore that begins no word's end, and a bound that begins a
# description or a line, where `>` would make a quotation: x*_gamma, <grad f, x>, gamma: > 0.
MARKED = re.compile(
    AS_IT_STANDS + r"|\*|<(?=[A-Za-z/!?])|(?<!\w)_|^ *>(?!>>)|(?<=: )>(?!>>)",
    re.MULTILINE | re.DOTALL,
)
SHOWN = pages_of_reference.names()


def linked(text: str) -> str:
    """Text in which `fedax.NAME`, `module.NAME`, and `Name` of a class link to the reference."""

    def one(found: re.Match[str]) -> str:
        prefix, name = found.groups()
        if f"fedax.{name}" in SHOWN and (prefix or "." in name or name[0].isupper()):
            return f"[`{prefix or ''}{name}`][fedax.{name}]"
        return found[0]

    return re.sub(r"(?<![`\[])`(fedax\.)?(\w+(?:\.\w+)*)`(?!`)", one, text)


def plain(text: str) -> str:
    """Text of which Markdown makes no emphasis and no tags: x* stays x*."""

    def one(found: re.Match[str]) -> str:
        if found["kept"]:
            return found[0]
        return "&lt;" if found[0] == "<" else f"{found[0][:-1]}\\{found[0][-1]}"

    return MARKED.sub(one, text)


def shown(docstring: str) -> str:
    """A docstring as Griffe and Markdown need it: `Example:` is code, formulas are in dollars."""
    examples = re.sub(r"^( *)Example:$", r"\1Examples:", docstring, flags=re.MULTILINE)
    return plain(in_dollars(examples))


class Shown(griffe.Extension):
    """Formulas in dollars, and names as links."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Changes an object's docstring."""
        del kwargs
        if obj.docstring:
            obj.docstring.value = linked(shown(obj.docstring.value))
