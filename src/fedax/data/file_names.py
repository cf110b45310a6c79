"""Names of files and folders that are valid on every system."""

from __future__ import annotations

import re

# Windows keeps these for devices, with any ending too; the digits may stand superscript.
_DEVICES = re.compile(r"(CON|PRN|AUX|NUL|(COM|LPT)[0-9\xb9\xb2\xb3])", re.IGNORECASE)
_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]|[. ]$|^$')
_LONGEST = 255  # bytes of a name that any file system takes


def is_reserved(name: str) -> bool:
    """Whether Windows takes a name for a device's."""
    return _DEVICES.fullmatch(name.partition(".")[0].rstrip()) is not None


def is_plain_name(name: str) -> bool:
    """Whether a file of this name is in the folder that it is looked for in, on any system.

    Example:
      >>> is_plain_name("data.arrow"), is_plain_name("../a"), is_plain_name("file://a")
      (True, False, False)
    """
    short = len(name.encode(errors="replace")) <= _LONGEST
    return short and not _FORBIDDEN.search(name) and not is_reserved(name)


def file_name(words: str) -> str:
    """The words as a name that a file or a folder can have on any system.

    Invalid characters become `_`, so different texts may give the same name.

    Example:
      >>> file_name("lab: con?"), file_name("aux.toml"), file_name("ends."), file_name("é-0.5")
      ('lab_ con_', '_aux.toml', 'ends_', 'é-0.5')
    """
    name = _FORBIDDEN.sub("_", words)
    return f"_{name}" if is_reserved(name) else name
