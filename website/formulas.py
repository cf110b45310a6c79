"""Formulas: docstrings' directives as dollars, and dollars as MathML, which needs no script."""

from __future__ import annotations

import html
import re
import textwrap

from latex2mathml.converter import convert

DIRECTIVE = re.compile(r"^( *)\.\. math::(.*\n(?:\1 +\S.*\n|[ ]*\n(?=\1 +\S))*)", re.MULTILINE)
ROLE = re.compile(r":math:`([^`]+)`")
DOLLARS = re.compile(r"\$\$(.+?)\$\$|\$(\S.*?)\$", re.DOTALL)
DRAWN = re.compile(
    r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL
)

# What latex2mathml leaves to be said of spaces: none beside bars, which embrace (|x|, no relation),
# and a thin one beside functions.
SPACES = (
    (re.compile(r'<mo(?: stretchy="false")?>(&#x0007C;|&#x02016;)</mo>'),
     r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>'),
    (re.compile(r"<mo>([a-z]{2,})</mo>"), r'<mo lspace="0.17em" rspace="0.17em">\1</mo>'),
    (re.compile(r"(<mi>(?:ln|log)</mi>)(?=<m(?:i|n|frac|sub)>)"), r'\1<mspace width="0.17em"/>'),
)


def in_dollars(docstring: str) -> str:
    """A docstring with its `.. math::` and `:math:` as Markdown has formulas."""

    def block(found: re.Match[str]) -> str:
        indent, body = found.groups()
        formula = textwrap.dedent(body).strip()
        return textwrap.indent(f"\n$$\n{formula}\n$$\n\n", indent)

    def words(found: re.Match[str]) -> str:
        return f"${' '.join(found[1].split())}$"

    return ROLE.sub(words, DIRECTIVE.sub(block, docstring + "\n")).rstrip("\n")


def formulas(text: str) -> str:
    """The formulas of a text, one below the other."""
    return "\n".join(found[1] or found[2] for found in DOLLARS.finditer(text))


def mathml(formula: str, *, block: bool) -> str:
    """A formula of LaTeX as MathML, its lines aligned at &.

    Raises:
      ValueError: a command of the formula is not known.
    """
    lines = block and ("&" in formula or "\\\\" in formula) and "\\begin" not in formula
    text = rf"\begin{{split}}{formula}\end{{split}}" if lines else formula
    found = convert(text, display="block" if block else "inline")
    if "\\" in found:
        raise ValueError(f"This formula has a command that is not known: {formula}")
    for pattern, spaced in SPACES:
        found = pattern.sub(spaced, found)
    return re.sub(r'columnalign="(\w+)"', r'style="text-align: \1"', found)


def drawn(page: str) -> str:
    """A page's HTML with its formulas as MathML."""

    def one(found: re.Match[str]) -> str:
        _, opening, formula = found.groups()
        block = opening == "["
        drawn = mathml(html.unescape(formula).strip(), block=block)
        return f'<div class="formula">{drawn}</div>' if block else drawn

    return DRAWN.sub(one, page)
