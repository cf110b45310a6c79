"""What the reference does to docstrings before they are shown (an extension of Griffe)."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))

from formulas import in_dollars

PUBLIC = set(
    ast.literal_eval(
        re.findall(
            r"^__all__ = (\[.*?\])",
            (Path(__file__).parent.parent / "src" / "fedax" / "__init__.py").read_text("utf-8"),
            re.MULTILINE | re.DOTALL,
        )[0]
    )
)


def linked(text: str) -> str:
    """Text in which `fedax.NAME`, and `Name` of a public class, are links to the reference."""

    def one(found: re.Match[str]) -> str:
        prefix, name = found.groups()
        if name in PUBLIC and (prefix or name[0].isupper()):
            return f"[`{prefix or ''}{name}`][fedax.{name}]"
        return found[0]

    return re.sub(r"(?<![`\[])`(fedax\.)?(\w+)`(?!`)", one, text)


def shown(docstring: str) -> str:
    """A docstring as Griffe and Markdown need it: `Example:` is code, formulas are in dollars."""
    return in_dollars(re.sub(r"^( *)Example:$", r"\1Examples:", docstring, flags=re.MULTILINE))


class Shown(griffe.Extension):
    """Formulas in dollars, and names as links."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Changes an object's docstring."""
        del kwargs
        if obj.docstring:
            obj.docstring.value = linked(shown(obj.docstring.value))
