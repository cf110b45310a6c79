"""What a narrow terminal, or one without colours, gets."""

import os
import pty
import subprocess
import sys

import pytest

from fedax.cli.main import run_command
from fedax.report.tables import Table, print_tables

WIDE = Table(
    "A sentence that is longer than the terminal is wide, so that it goes on in a second line.",
    ["of a client", *(f"metric-{place}" for place in range(9))],
    [[name, *(1000.123456 + place for place in range(9))] for name in ("mean", "95%")],
)


@pytest.mark.quick
def test_a_wide_table_comes_in_parts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    print_tables([WIDE])
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 60
    words = said.split()
    for place in range(9):
        assert words.count(f"metric-{place}") == 1
        assert words.count(f"{1000.123456 + place:.6g}") == 2
    assert words.count("mean") == words.count("95%") == said.count("of a client") > 1


def test_a_pipe_gets_it_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_tables([WIDE])
    assert capsys.readouterr().out.count("mean") == 1


@pytest.mark.parametrize("line", [
    "list tasks", "list algorithms", "list datasets", "list reproductions", "plot --list",
    "data describe digits", "theory",
])
def test_tables_fit_sixty_columns(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert run_command(line.split()) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60


@pytest.mark.slow
@pytest.mark.parametrize(("value", "colours"), [("1", False), (None, True)])
def test_no_color_holds_for_help(value: str | None, colours: bool) -> None:
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    environment.pop("NO_COLOR", None)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "fedax", "run", "--help"], stdout=theirs, stderr=theirs,
        env=environment if value is None else {**environment, "NO_COLOR": value},
        stdin=subprocess.DEVNULL,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the end of a pseudo-terminal
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait() == 0
    assert b"--rounds" in shown
    assert (b"\x1b" in shown) is colours


@pytest.mark.quick
def test_of_a_table_without_rows_there_is_the_title_alone(capsys):
    print_tables([WIDE._replace(title="They need gamma < 1/L.", rows=[])])
    assert capsys.readouterr().out.split("\n") == ["They need gamma < 1/L.", "", ""]
