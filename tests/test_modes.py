"""Modes of Python and JAX: the command and the functions work in them, or say why not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import fedax
from fedax.cli.main import run_command
from fedax.devices.compiling import ModeError
from problems import quadratic_task

SMALL = ("run", "quadratics", "scaffold", "--rounds", "2", "--cohort-size", "2")
TASK = quadratic_task()
METHOD = fedax.fedavg(TASK.model, 0.1)


def fedax_process(*words, folder=None, options=(), **environment):
    return subprocess.run(
        [sys.executable, *options, "-m", "fedax", *words], env={**os.environ, **environment},
        cwd=folder, capture_output=True, text=True, check=False, timeout=300,
    )


@pytest.mark.quick
def test_without_compilation_nothing_is_trained(tmp_path, capsys):
    trained = list(fedax.simulate(TASK, METHOD, num_rounds=1, cohort_size=1))
    assert len(trained) == 1
    with jax.disable_jit():
        with pytest.raises(ModeError, match="compilation is off"):  # a program is kept
            next(fedax.simulate(TASK, METHOD, num_rounds=1, cohort_size=1))
        with pytest.raises(ModeError, match="JAX_DISABLE_JIT"):
            fedax.train(TASK, METHOD, num_rounds=1, cohort_size=1, progress=False)
        assert run_command([*SMALL, "--out", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("fedax: fedax compiles its rounds, but compilation is off")
    assert "defect" not in said
    assert not (tmp_path / "run").exists()


@pytest.mark.quick
def test_a_guard_of_transfers_is_named(tmp_path, capsys):
    with jax.transfer_guard("disallow"):
        assert run_command([*SMALL, "--out", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert "JAX_TRANSFER_GUARD" in said
    assert "defect" not in said


@pytest.mark.quick
@pytest.mark.parametrize("value", ["5", "true", "1.5", '["quick"]'])
def test_a_preset_that_is_no_name(value, tmp_path, capsys):
    path = tmp_path / "a.toml"
    path.write_text(f'task = "quadratics"\nalgorithm = "fedavg"\npreset = {value}\n')
    assert run_command(["run", "--config", str(path), "--out", str(tmp_path / "run")]) == 2
    assert "must be a name, but is" in capsys.readouterr().err


@pytest.mark.internals
@pytest.mark.slow
@pytest.mark.parametrize(("begun", "cure"), [("1", "JAX_ENABLE_X64=1"), ("0", "JAX_ENABLE_X64=0")])
def test_a_run_goes_on_with_the_bits_that_it_began_with(begun, cure, tmp_path):
    other = str(1 - int(begun))
    done = fedax_process(*SMALL, "--out", "run", folder=tmp_path, JAX_ENABLE_X64=begun)
    assert done.returncode == 0, done.stderr
    more = ("run", "--resume", "run", "--rounds", "3")
    failed = fedax_process(*more, folder=tmp_path, JAX_ENABLE_X64=other)
    assert failed.returncode == 1
    assert failed.stderr.strip().endswith(f"Continue it with {cure}.")
    done = fedax_process(*more, folder=tmp_path, JAX_ENABLE_X64=begun)
    assert done.returncode == 0, done.stderr


@pytest.mark.internals
@pytest.mark.slow
@pytest.mark.parametrize("options", [("-O",), ("-OO",)])
def test_without_assertions_and_docstrings(options, tmp_path):
    """The help on a run reads docstrings."""
    for words in (("run", "quadratics", "scaffold", "--help"), ("list", "algorithms", "--json"),
                  (*SMALL, "--out", "run")):
        done = fedax_process(*words, folder=tmp_path, options=options)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
    summary = json.loads((Path(tmp_path) / "run" / "summary.json").read_text("utf-8"))
    assert summary


@pytest.mark.internals
@pytest.mark.slow
@pytest.mark.parametrize("mode", [
    "JAX_DEBUG_NANS=1", "JAX_CHECK_TRACER_LEAKS=1", "JAX_NUMPY_RANK_PROMOTION=raise",
    "JAX_NUMPY_DTYPE_PROMOTION=strict", "JAX_ENABLE_CHECKS=1", "JAX_LEGACY_PRNG_KEY=error",
    "JAX_DEFAULT_PRNG_IMPL=rbg", "JAX_NUM_CPU_DEVICES=3", "PYTHONWARNINGS=error",
    "JAX_TRANSFER_GUARD=log", "PYTHONDEVMODE=1",
])
def test_modes_in_which_a_run_is_trained(mode, tmp_path):
    name, _, value = mode.partition("=")
    done = fedax_process(*SMALL, "--out", "run", folder=tmp_path, **{name: value})
    assert done.returncode == 0, done.stderr
    assert "defect" not in done.stderr
