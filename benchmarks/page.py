"""Where and when the benchmark ran, and the page that its tables stand on."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent


def machine(load: float | None) -> str:
    """The day, the processor, the load before the run and the commit, as a sentence."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True,
        check=False,
    ).stdout.strip()
    before = f"; load before the run {load:.1f}" if load is not None else ""
    return (
        f"{datetime.date.today():%d %B %Y}, {processor()}, {os.cpu_count()} cores{before}; "
        f"fedax at {commit or 'an unknown commit'}."
    )


def processor() -> str:
    """The processor's name, as it says itself."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    return platform.processor() or platform.machine()


def family() -> str:
    """The family of processors whose tables stand together."""
    return next((name for name in ("AMD", "Intel") if name in processor()), platform.machine())


def write_section(page: Path, name: str, text: str) -> None:
    """Puts the text between the page's marks of this name, or at its end."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    content = page.read_text() if page.exists() else ""
    if begin not in content:
        content += f"\n{begin}\n{end}\n"
    before, rest = content.split(begin, 1)
    _, after = rest.split(end, 1)
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")
