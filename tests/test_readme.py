"""The README's Python runs, and its numbers are those of the package."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import fedax
from fedax import models
from fedax.algorithms import registry

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.slow
def test_the_page_on_methods_runs_and_names_every_one():
    page = README.parent / "docs" / "methods.md"
    text = page.read_text("utf-8")
    for name in [*registry.ALGORITHMS, *registry.WRAPPERS]:
        assert f"`{name}`" in text, name
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    session = {}
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), \
            jax.numpy_rank_promotion("allow"):
        exec(compile(block, "methods.md", "exec"), session)
    assert np.isfinite(session["result"].history["train_loss"]).all()


@pytest.mark.parametrize(("name", "least"), [("theory", 40), ("models", 15), ("tasks", 2)])
def test_a_page_prints_what_it_says(name, least):
    """Every line after >>>, as a reader would type it, with its output."""
    page = README.parent / "docs" / f"{name}.md"
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), \
            jax.numpy_rank_promotion("allow"):
        found = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert found.failed == 0
    assert found.attempted > least


@pytest.mark.quick
def test_the_example_of_the_page_on_getting_data_runs(capsys):
    text = (README.parent / "docs" / "data-get.md").read_text("utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(block, "data-get.md", "exec"), {})
    assert "1,437" in capsys.readouterr().out


@pytest.mark.slow
def test_the_script_of_the_log_runs(tmp_path):
    """The first of its four cases, in a process of its own, as a reader would run it."""
    text = (README.parent / "docs" / "notebook" / "log.md").read_text("utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    (tmp_path / "step.py").write_text(block)
    assert "`python step.py matmul 1`" in text
    done = subprocess.run([sys.executable, "step.py", "matmul", "1"], cwd=tmp_path, check=False,
                          capture_output=True, text=True)
    assert re.fullmatch(r"\d+\.\d ms a step and client\n", done.stdout), done.stderr


@pytest.mark.quick
def test_the_page_on_models_names_all():
    text = (README.parent / "docs" / "models.md").read_text("utf-8")
    assert not [name for name in models.__all__ if name not in text]


@pytest.mark.optimised
@pytest.mark.slow
def test_readme_code_runs_and_learns(tmp_path, monkeypatch):
    """As a user would: float32, default promotion."""
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert len([line for line in block.splitlines() if line.strip()]) <= 15
    monkeypatch.chdir(tmp_path)  # where the picture goes
    session = {}
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), \
            jax.numpy_rank_promotion("allow"):
        exec(compile(block, "README", "exec"), session)
    assert session["result"].history["test_accuracy"][-1] > 0.84
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]


@pytest.mark.quick
def test_readme_is_short_and_names_every_method():
    text = README.read_text("utf-8")
    assert len(text.split()) <= 600
    names = [*registry.ALGORITHMS, *registry.WRAPPERS]
    table = "\n".join(re.findall(r"^\|.*$", text, re.MULTILINE))
    assert sorted(re.findall(r"`(\w+)`", table)) == sorted(names)
    assert f"{len(names)} methods" in text


@pytest.mark.quick
def test_readme_counts_are_the_packages():
    text = README.read_text("utf-8")
    task = fedax.load_task("shakespeare")
    assert f"{task.train.num_clients:,} roles" in text
    (compute,) = task.references.values()
    bigram = compute()["test_accuracy"]
    assert f"reaches {100 * bigram:.1f}%" in text
    assert np.isfinite(bigram)
