"""`fedax completion`: what bash completes."""

import shutil
import subprocess
from pathlib import Path

import pytest

from fedax.algorithms.registry import ALGORITHMS
from fedax.cli.main import run_command
from fedax.cli.parsing import COMMANDS
from fedax.tasks.registry import TASKS

BASH = shutil.which("bash")


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "fedax.sh"
    with pytest.MonkeyPatch.context() as patched, path.open("w") as file:
        patched.setattr("sys.stdout", file)
        assert run_command(["completion", "bash"]) == 0
    return path


def completed(script: Path, *words: str) -> list[str]:
    """What is offered for the last word; as bash has it, KEY=VALUE is three words."""
    assert BASH is not None, "these tests need bash"
    line = (
        'source "$1"; shift; COMP_WORDS=(fedax "$@"); COMP_CWORD=$#; _fedax; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    found = subprocess.run(
        [BASH, "-c", line, "bash", str(script), *words], capture_output=True, text=True, check=True
    )
    assert not found.stderr
    return found.stdout.split()


@pytest.mark.parametrize(("words", "offered"), [
    (["ru"], ["run"]),
    (["run", "shakes"], ["shakespeare", "shakespeare-tff", "shakespeare-leaf"]),
    (["run", "digits", "fedada"], ["fedadabound", "fedadagrad", "fedadam"]),
    (["run", "--rounds", "3", "digit"], ["digits"]),
    (["run", "--profile", "digit"], ["digits"]),
    (["run", "digits", "fedavg", "--set", "client_l"], ["client_learning_rate="]),
    (["run", "digits", "fedavg", "--set", "mome"], []),
    (["run", "digits", "fedavgm", "--set", "seed", "=", "3", "mome"], ["momentum="]),
    (["run", "digits", "fedavgm", "--set", "seed", "=", "3", "part"],
     ["partition=", "partition_seed="]),
    (["run", "digits", "fedavg", "--set", "seed", "="], []),
    (["run", "digits", "fedavg", "--roun"], ["--rounds"]),
    (["run", "digits", "--preset", "qu"], ["quick"]),
    (["run", "digits", "--log", "cs"], ["csv"]),
    (["sweep", "digits", "fedavg,fedyo"], ["fedavg,fedyogi"]),
    (["sweep", "digits", "fedavg", "--grid", "server_l"], ["server_learning_rate="]),
    (["list", "algo"], ["algorithms"]),
    (["list", "tasks", "digi"], ["digits"]),
    (["data", "par"], ["partition"]),
    (["data", "describe", "digi"], ["digits"]),
    (["data", "get", "emnist", "--fr"], ["--from"]),
    (["plot", "cur"], ["curves"]),
    (["completion", ""], ["bash", "zsh"]),
    (["run", "digits", "--out", ""], []),
])
def test_bash_completes(script: Path, words: list[str], offered: list[str]) -> None:
    assert completed(script, *words) == offered


@pytest.mark.quick
def test_all_commands_tasks_and_methods_are_offered(script: Path) -> None:
    assert {*COMMANDS} <= {*completed(script, "")}
    assert {*TASKS} <= {*completed(script, "run", "")}
    assert {*ALGORITHMS} <= {*completed(script, "run", "digits", "")}


def test_zsh_reads_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["completion", "zsh"]) == 0
    script = capsys.readouterr().out
    assert script.startswith("autoload -Uz compinit bashcompinit")
    assert "complete -o default -F _fedax fedax" in script
