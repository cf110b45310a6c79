"""Which version of fedax this is: of the code that runs, whatever was installed before."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path


def find(package: Path) -> str:
    """The version that the code has.

    That of `pyproject.toml` where the code is in a copy of the repository, as an installation
    in place keeps what it was made with; else that of the installed package; "unknown" where
    nothing says it.

    Args:
      package: the folder of the package.
    """
    source = package.parent
    try:
        if source.name == "src":
            text = (source.parent / "pyproject.toml").read_text("utf-8")
            project = tomllib.loads(text)["project"]
            if project["name"] == "fedax":
                return str(project["version"])
    except (OSError, ValueError, KeyError, TypeError):  # none there, another project's or damaged
        pass
    try:
        return metadata.version("fedax")
    except metadata.PackageNotFoundError:
        return "unknown"


__version__ = find(Path(__file__).resolve().parents[1])
