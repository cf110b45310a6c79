"""What reaches a terminal, whatever names, paths and files hold, and whatever it can show."""

import contextlib
import io
import json
import logging
import os
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import rich.file_proxy
from rich.progress import TextColumn
from rich.text import Text

import fedax
from fedax.cli import main
from fedax.cli.main import run_command
from fedax.devices import ending, terminal
from fedax.devices.terminal import Console, Escaped, Progress, escaping, print_json
from fedax.experiment import trust
from fedax.experiment.display import Display
from fedax.experiment.errors import ConfigError
from fedax.experiment.folder import RunError, explained, read_config, require_run
from fedax.outside.paths import expanded
from fedax.outside.text import printable
from fedax.report.tables import Table, print_tables

EVIL = "\x1b[31mEVIL\x1b]0;title\x07\r\x9b2J\u202edesrever\u2066\u2028\x7f\udc80\x00"
SHOWN = r"\x1b[31mEVIL\x1b]0;title\x07\r\x9b2J\u202edesrever\u2066\u2028\x7f\udc80\x00"
SOURCE = Path(fedax.__file__).parent


def harmless(text):
    return all(letter.isprintable() or letter in "\n\t" for letter in text)


@contextlib.contextmanager
def a_terminal(monkeypatch, encoding="utf-8"):
    stream = io.TextIOWrapper(io.BytesIO(), encoding, write_through=True)
    stream.isatty = lambda: True
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", stream)
    yield lambda: stream.buffer.getvalue().decode(encoding)


@pytest.mark.quick
def test_what_is_no_letter_is_written_out():
    assert printable(EVIL) == SHOWN
    assert printable("Läufe 走る 🙂") == "Läufe 走る 🙂"
    assert printable(SHOWN) == SHOWN


@pytest.mark.parametrize("say", [
    lambda: print(EVIL), lambda: print(EVIL, file=sys.stderr),
    lambda: sys.stdout.writelines([EVIL, EVIL]),
    lambda: sys.stderr.write(warnings.formatwarning(EVIL, UserWarning, "a.py", 1)),
    lambda: logging.lastResort.emit(logging.makeLogRecord({"msg": EVIL, "levelno": 40})),
    lambda: Console().print(EVIL, markup=False), lambda: Console().print(Text(EVIL)),
    lambda: Console(stderr=True).print(EVIL, style="bold"),
    lambda: print_tables([Table(EVIL, [EVIL], [[EVIL]])]),
    lambda: Display(3).say(EVIL), lambda: print_json({EVIL: EVIL}),
])
def test_nothing_that_commands_a_terminal_is_written(say, capsys):
    with escaping():
        say()
    out, err = capsys.readouterr()
    assert harmless(out + err)
    assert "EVIL" in out + err
    assert not isinstance(sys.stdout, Escaped)


def test_handlers_of_loggers_that_hold_the_stream_are_escaped_too(capsys, monkeypatch):
    # What is logged holds half a letter, which pytest could not send with its report.
    monkeypatch.setattr(logging.getLogger("held"), "propagate", False)
    handler = logging.StreamHandler(sys.stderr)
    logging.getLogger("held").addHandler(handler)
    logging.getLogger("held").addHandler(logging.lastResort)  # which looks the stream up
    with escaping():
        logging.getLogger("held").warning(EVIL)
    logging.getLogger("held").removeHandler(logging.lastResort)
    assert SHOWN in capsys.readouterr().err
    assert handler.stream is sys.stderr
    logging.getLogger("held").removeHandler(handler)


@pytest.mark.quick
def test_a_bar_is_drawn_and_what_is_printed_meanwhile_is_escaped(monkeypatch):
    with a_terminal(monkeypatch) as shown, escaping():
        with Progress(TextColumn("{task.description}", markup=False), console=Console()) as bar:
            bar.add_task(EVIL)
            assert isinstance(sys.stdout.rich_proxied_file, rich.file_proxy.FileProxy)
            print(EVIL)
            bar.refresh()
        print("after")
    text = shown()
    assert "\x1b[?25l" in text  # rich hides the cursor
    assert text.count("EVIL") >= 2
    assert not any(bad in text for bad in ("\x1b[31m", "\x1b]", "\x9b", "\u202e", "\x07"))


def test_a_progress_bar_of_ones_own_goes_back_to_the_beginning_of_its_line(capsys):
    with escaping():
        sys.stdout.write("\r5%\r6%")
    assert capsys.readouterr().out == "\r5%\\r6%"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_letters_that_an_encoding_lacks_are_replaced(monkeypatch, encoding):
    with a_terminal(monkeypatch, encoding) as shown, escaping():
        print("Läufe ─│╭ … 走")
        print_json({"Läufe": "走🙂"})
        assert sys.stdout.errors == terminal.REPLACED
    first, *rest = shown().splitlines()
    assert json.loads("".join(rest)) == {"Läufe": "走🙂"}
    assert first.isascii() or encoding != "ascii"
    assert first.startswith(r"L\xe4ufe" if encoding == "ascii" else "Läufe")
    assert sys.stdout.errors == "strict"


@pytest.mark.parametrize("words", [
    ["run", "--resume", f"no{EVIL}"], ["report", f"no{EVIL}"], [f"no{EVIL}"],
    ["sweep", "--resume", f"no{EVIL}"], ["theory", f"no{EVIL}"], ["run", f"no{EVIL}", "fedavg"],
    ["plot", "curves", f"no{EVIL}", "--out", "x.png"], ["data", "check", f"no{EVIL}"],
    ["run", f"--no{EVIL}"], ["run", "digits", "fedavg", "--set", f"a{EVIL}=1"],
    ["run", "digits", "fedavg", "--rounds", EVIL],
])
def test_no_message_of_a_command_has_what_commands_a_terminal(words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    try:
        status = run_command([word.replace("\x00", "") for word in words])
    except SystemExit as stop:
        status = stop.code
    assert status in (1, 2)
    out, err = capsys.readouterr()
    assert harmless(out + err)
    assert "EVIL" in out + err
    assert "defect" not in err


def test_errors_that_python_shows_are_printable(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"client,{EVIL[:9]}\nx,1\n")
    with pytest.raises(ValueError, match="EVIL") as caught:
        fedax.read_data(path, client_column="user")
    assert harmless(str(caught.value))
    for error in (RunError, ConfigError, fedax.DataError, fedax.ModelError):
        assert str(error(EVIL)) == SHOWN
        assert str(error("two\nlines")) == "two\nlines"


def test_what_a_signal_has_said_is_printable(capfd):
    ending.tell(f"Stopped in {EVIL}")
    assert harmless(capfd.readouterr().err)


def test_a_traceback_is_escaped(monkeypatch, capsys):
    def fails(arguments):
        raise ValueError(EVIL)

    monkeypatch.setattr(main, "run_command", fails)
    monkeypatch.setattr(main.ending, "set_guard", lambda: None)
    monkeypatch.setattr(main, "_others_may_speak", lambda: False)
    with pytest.raises(SystemExit) as stop:
        main.main()
    assert stop.value.code == 1
    said = capsys.readouterr().err
    assert harmless(said)
    assert "Traceback" in said
    assert SHOWN in said


@pytest.mark.slow
@pytest.mark.parametrize("variables", [
    {"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
])
def test_a_terminal_without_unicode_gets_every_command(variables, tmp_path):
    for words in (["--help"], ["list", "tasks"], ["run", "--resume", "Läufe"]):
        done = subprocess.run(
            [sys.executable, "-m", "fedax", *words], env={**os.environ, **variables},
            capture_output=True, cwd=tmp_path, timeout=120, check=False,
        )
        assert done.returncode == (words[0] == "run")
        assert b"Traceback" not in done.stderr
        assert b"defect" not in done.stderr
        assert (done.stdout + done.stderr).isascii()


def test_a_working_folder_that_is_gone_is_said(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert run_command(["run", "digits", "fedavg", "--out", str(tmp_path / "r")]) == 1
    assert "The current folder cannot be used" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_a_leading_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    assert expanded("~/x") == expanded(Path("~/x")) == tmp_path / "home" / "x"
    assert expanded("./~/x") == Path("./~/x")
    assert expanded("a~b") == Path("a~b")
    task = fedax.load_task("quadratics")
    fedax.train(task, fedax.fedavg(task.model, 0.01), num_rounds=1, progress=False, out="~/run")
    assert fedax.load_run("~/run").config["num_rounds"] == 1
    fedax.save_params({"w": np.zeros(2)}, "~/w.safetensors")
    assert list(fedax.load_params("~/w.safetensors")) == ["w"]
    fedax.sweep(task, "fedavg", {"client_learning_rate": [0.01, 0.02]}, num_rounds=1,
                progress=False, out="~/sweep")
    assert fedax.load_sweep("~/sweep") is not None
    (tmp_path / "home" / "a.csv").write_text("user,x\nada,1\n")
    assert fedax.read_data("~/a.csv", client_column="user").num_clients == 1
    assert run_command(["report", "~/run", "--out=~/page.html"]) == 0
    assert (tmp_path / "home" / "page.html").exists()
    assert not Path("~").exists()


def test_a_home_folder_that_there_is_not(monkeypatch, capsys):
    monkeypatch.setattr(os.path, "expanduser", os.fspath)
    with pytest.raises(ValueError, match=r"no home folder for '~/x'"):
        expanded("~/x")
    assert run_command(["report", "~/run"]) == 2
    assert "no home folder" in capsys.readouterr().err


def test_a_key_that_cannot_be_kept_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    (sentence,) = trust.notes()
    assert "XDG_DATA_HOME" in sentence
    with pytest.raises(ConfigError, match="XDG_DATA_HOME"):
        trust.require_own({"task": "a.py:b"}, ["task"], "say so", Path("config.json"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "folder"))
    assert trust.notes() == []


def test_a_folder_that_cannot_be_read_is_said(monkeypatch, tmp_path):
    def refuse(self, **options):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "stat", refuse)
    for read in (read_config, require_run):
        with pytest.raises(RunError, match=r"Cannot read the run folder .*: Permission denied"):
            read(tmp_path)
    with pytest.raises(RunError, match=r"Cannot write to .*: Permission denied"), explained(
        tmp_path
    ):
        refuse(tmp_path)
    said, status = main._explain(PermissionError(13, "Permission denied", "x"))
    assert (said, status) == ("Cannot read or write x: Permission denied.", 1)


@pytest.mark.slow
def test_the_embedded_data_are_read_from_a_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "fedax.zip", "w") as packed:
        for path in SOURCE.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                packed.write(path, Path("fedax") / path.relative_to(SOURCE))
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'fedax.zip')!r})\n"
        "import fedax; assert 'fedax.zip' in fedax.__file__, fedax.__file__\n"
        "from fedax.report.document import _read; _read('page.css')\n"
        "for name in ('digits', 'shakespeare'): fedax.load_task(name)\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True,
        text=True, timeout=120, check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]


def test_what_is_below_a_stream_may_be_exchanged(tmp_path, monkeypatch):
    """As for the processes of one run, whose output goes to a file and then to a pipe."""
    reads, writes = os.pipe()
    with (tmp_path / "log").open("w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with terminal.escaping():
            print("to the file")
            stream.flush()
            os.dup2(writes, stream.fileno())
            print("to the pipe")
        assert sys.stdout is stream
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        assert pipe.read() == b"to the pipe\n"
    assert (tmp_path / "log").read_text() == "to the file\n"
