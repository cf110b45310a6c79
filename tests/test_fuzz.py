"""Inputs of strangers, drawn and forged: success or a sentence, in bounded time and memory."""

import json
import time
import tracemalloc

import numpy as np
import pytest

import fedax
from attack import fuzz
from fedax.cli.main import run_command
from fedax.theory.errors import TheoryError
from fedax.theory.files import read_population

BIG = "1" + "0" * 400


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), {
    "settings": 30, "files": 40, "data_sets": 60, "theory": 30,
}.items())
def test_what_is_drawn_is_success_or_a_sentence(name, count):
    assert fuzz.FUZZERS[name](7, count) == []


@pytest.mark.quick
def test_the_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        run_command(["--version"])
    assert not stopped.value.code
    assert capsys.readouterr().out == f"fedax {fedax.__version__}\n"


@pytest.mark.quick
@pytest.mark.parametrize(("line", "words"), [
    ("run --rounds ten", "--rounds: must be a whole number, but is 'ten'."),
    ("theory --interval 1 b", "must be two numbers, but is 'b'."),
    ("theory --curvatures 1 b", "must be numbers, but is 'b'."),
    ("list foo", "must be one of tasks, algorithms, datasets, reproductions, but is 'foo'."),
    ("run --preset", "Missing value for argument '--preset'."),
])
def test_the_parser_says_what_is_wanted(line, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        run_command(line.split())
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert stopped.value.code == 2
    assert words in said
    for internal in ("None", "<class", "invalid literal", "INT"):
        assert internal not in said


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.quick
@pytest.mark.parametrize(("line", "words"), [
    ("run quadratics fedavg --config deep.toml", "are nested more than 50 deep"),
    ("run quadratics fedavg --config deep.json", "are nested more than 50 deep"),
    ("theory deep.toml", "are nested more than 50 deep"),
    ("theory deep.json", "are nested more than 50 deep"),
    ("run quadratics fedavg --config broken.toml", "cannot be parsed"),
    ("run quadratics fedavg --config large.toml", "larger than 4 MiB"),
    ("theory broken.npz", "cannot be parsed as .npz"),
    (f"run quadratics fedavg --set client_learning_rate={BIG}", "client_learning_rate must be"),
    (f"run quadratics fedavg --set batch_size={BIG}", "batch_size must be at most 2,147,483,647"),
    (f"run quadratics mimelite --set base=sgdm({BIG})", "momentum must be a finite number"),
    (f"run quadratics fedavg --set client_learning_rate=({'-' * 10_000}1)", "neither a number"),
    ("run quadratics mimelite --set base=5", "base must be one of fedax.base_optimizers"),
    ("run quadratics fedopt", "--preset none and --set"),
    ("run shakespeare scaffold --preset reddi2021", "use --preset quick or --preset none"),
    (f"theory --batch-size {BIG}", "beyond float64"),
    ("theory --local-steps 1000000000", '"K to infinity"'),
    ("theory --picture x.bmp", "its name must end in one of .eps"),
    ("theory --random 1000000 1000000", "Use fewer clients or fewer dimensions"),
    ("theory --random 1 700", "take too long"),
    ("theory --probabilities 1e308 1e308", "whose sum is finite"),
    ("theory --start nan", "start must be finite"),
    ("theory --run nowhere --seed -1", "seed must be a whole number of at least 0"),
])
def test_what_is_beyond_reason_is_a_sentence(line, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep.toml").write_text(f"matrices = {DEEP}")
    (tmp_path / "deep.json").write_text(f'{{"matrices": {DEEP}}}')
    (tmp_path / "broken.toml").write_bytes(b"a = \xff")
    (tmp_path / "large.toml").write_bytes(b"#" * (2**22 + 1))
    np.savez(tmp_path / "broken.npz", matrices=np.ones(2), centres=np.ones(2))
    content = (tmp_path / "broken.npz").read_bytes()
    (tmp_path / "broken.npz").write_bytes(content.replace(b"NUMPY", b"NUMPX"))
    began = time.process_time()
    assert run_command(line.split()) == (1 if "picture" in line else 2)
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert time.process_time() - began < 20  # of the processor: others may be at work


@pytest.mark.quick
@pytest.mark.parametrize(("forged", "words"), {
    "a promise": ({"shape": (10**9,)}, "more than"),
    "little kept": ({"shape": (10**6,), "held": 100}, "but has 100"),
    "zeros": ({"shape": (2,), "held": 2**28}, "16 bytes, but has 268,435,456"),
    "axes": ({"shape": (1,) * 5, "held": 8}, "at most 3 axes"),
    "objects": ({"shape": (2,), "kind": "|O", "held": 16}, "must be numbers"),
    "a name": ({"shape": (2,), "name": "../evil", "held": 16}, "a population has only the arrays"),
    "no end": ({"shape": (2**62, 4)}, "more than"),
}.values())
def test_a_forged_archive_is_refused_before_its_arrays_are_read(forged, words, tmp_path):
    path = tmp_path / "forged.npz"
    fuzz.forged_npz(path, **forged)
    tracemalloc.start()
    try:
        with pytest.raises(TheoryError, match=r"forged\.npz cannot be parsed") as caught:
            read_population(path)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()
    assert words in str(caught.value)


def test_a_population_in_a_whole_archive_is_read(tmp_path):
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "two.npz", matrices=[1.0, 2.0], centres=[1.0, 0.5])
        assert read_population(tmp_path / "two.npz").minimiser == pytest.approx([2 / 3])


def test_what_nests_a_little_is_read(tmp_path):
    path = tmp_path / "two.json"
    path.write_text(json.dumps({"matrices": [[[1.0]], [[2.0]]], "centres": [[1.0], [0.5]]}))
    assert read_population(path).minimiser == pytest.approx([2 / 3])
