"""Text and numbers for LaTeX, whatever they hold."""

from __future__ import annotations

import itertools
import re
import unicodedata

from fedax.outside.text import printable

# What LaTeX reads as a command, as a ligature, or, at a row's beginning, as an option.
_ESCAPED = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "{''}",
    "`": r"\textasciigrave{}", "[": "{[}", "]": "{]}", "*": "{*}",
}
_SYMBOLS = {
    "\N{PLUS-MINUS SIGN}": r"$\pm$", "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{LESS-THAN OR EQUAL TO}": r"$\leq$", "\N{GREATER-THAN OR EQUAL TO}": r"$\geq$",
    "\N{MINUS SIGN}": "$-$", "\N{EN DASH}": "--", "\N{EM DASH}": "---", "\N{MICRO SIGN}": r"$\mu$",
    "\N{INFINITY}": r"$\infty$", "\N{HORIZONTAL ELLIPSIS}": r"\ldots{}",
    "\N{SECTION SIGN}": r"\S{}", "\N{POUND SIGN}": r"\pounds{}", "\N{DEGREE SIGN}": r"$^\circ$",
    "\N{SUPERSCRIPT TWO}": "$^2$", "\N{SUPERSCRIPT THREE}": "$^3$",
    "\N{LATIN SMALL LETTER SHARP S}": r"\ss{}", "\N{LATIN SMALL LETTER AE}": r"\ae{}",
    "\N{LATIN CAPITAL LETTER AE}": r"\AE{}",
    "\N{LATIN SMALL LETTER O WITH STROKE}": r"\o{}",
    "\N{LATIN CAPITAL LETTER O WITH STROKE}": r"\O{}",
    "\N{LATIN SMALL LETTER L WITH STROKE}": r"\l{}",
    "\N{LATIN CAPITAL LETTER L WITH STROKE}": r"\L{}", "\N{LATIN SMALL LETTER DOTLESS I}": r"\i{}",
}
_ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"', "\u0304": "=",
    "\u0307": ".", "\u030c": "v", "\u0306": "u", "\u030a": "r", "\u030b": "H", "\u0327": "c",
}
_GREEK = re.compile(r"GREEK (SMALL|CAPITAL) LETTER (\w+)$")
# Small Greek letters that LaTeX has under their names; of capitals only those that are not Latin.
_SMALL = {"ALPHA", "BETA", "GAMMA", "DELTA", "EPSILON", "ZETA", "ETA", "THETA", "IOTA", "KAPPA",
          "LAMDA", "MU", "NU", "XI", "PI", "RHO", "SIGMA", "TAU", "UPSILON", "PHI", "CHI", "PSI",
          "OMEGA"}
_CAPITAL = {"GAMMA", "DELTA", "THETA", "LAMDA", "XI", "PI", "SIGMA", "UPSILON", "PHI", "PSI",
            "OMEGA"}
_EXPONENT = re.compile(r"e([+-])0*(\d+)$")


def latex_text(text: str) -> str:
    r"""A text that LaTeX shows as it is; letters that pdfLaTeX has no sign for are numbers.

    Example:
      >>> print(latex_text("a_b & 5% of \N{LATIN SMALL LETTER E WITH ACUTE} \u4e2d"))
      a\_b \& 5\% of \'{e} U+4E2D
    """
    letters = unicodedata.normalize("NFC", printable(text))
    return "".join(
        "{-}" if before == letter == "-" else _letter(letter)
        for before, letter in itertools.pairwise(f" {letters}")
    )


def latex_number(mean: str, deviation: str, *, bold: bool) -> str:
    r"""A number with its deviation, or the words that stand for it.

    Example:
      >>> latex_number("80.5", "1.2", bold=True), latex_number("1e-07", "", bold=False)
      ('$\\mathbf{80.5} \\pm 1.2$', '$1 \\times 10^{-7}$')
    """
    if not mean.lstrip("<-")[:1].isdigit():
        return latex_text(mean)
    first = _number(mean)
    shown = rf"\mathbf{{{first}}}" if bold else first
    return rf"${shown} \pm {_number(deviation)}$" if deviation else f"${shown}$"


def _number(text: str) -> str:
    found = _EXPONENT.sub(
        lambda match: rf" \times 10^{{{match[1].strip('+')}{match[2]}}}", text
    )
    return found.replace(",", "{,}")


def _letter(letter: str) -> str:
    if letter in _ESCAPED:
        return _ESCAPED[letter]
    if letter in _SYMBOLS:
        return _SYMBOLS[letter]
    if letter.isascii():
        return letter
    greek = _GREEK.match(unicodedata.name(letter, ""))
    if greek and greek[2] in (_SMALL if greek[1] == "SMALL" else _CAPITAL):
        name = greek[2].replace("LAMDA", "LAMBDA").lower()
        return f"$\\{name if greek[1] == 'SMALL' else name.capitalize()}$"
    base, *marks = unicodedata.normalize("NFD", letter)
    if base.isascii() and base.isalpha() and len(marks) == 1 and marks[0] in _ACCENTS:
        base = {"i": r"\i", "j": r"\j"}.get(base, base) if marks[0] != "\u0327" else base
        return f"\\{_ACCENTS[marks[0]]}{{{base}}}"
    return f"U+{ord(letter):04X}"
