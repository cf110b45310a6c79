"""`fedax theory`, as its users call it."""

import json

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedax.cli.main import run_command
from fedax.report import theory_picture
from fedax.theory import QuadraticPopulation, surrogate
from fedax.theory import question as questions


def tables(capsys, *words):
    assert run_command(["theory", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return [
        {row[0]: dict(zip(table["headings"], row, strict=True)) for row in table["rows"]}
        for table in found
    ]


@pytest.mark.quick
def test_two_clients_by_default(capsys):
    clients, place, methods, bounds, ways = tables(capsys, "--gamma", "0.5", "--local-steps", "2")
    assert float(clients["sigma_A"]["value"]) == 0.5
    assert float(clients["G^2, clients"]["value"]) == pytest.approx(1 / 9, abs=1e-6)
    assert float(place["FedAvg"]["point"]) == pytest.approx(5 / 7, abs=1e-6)
    assert float(place["FedAvg"]["distance"]) == pytest.approx(1 / 21, abs=1e-6)
    assert float(place["FedAvg"]["excess loss"]) == pytest.approx(0.75 / 21**2, abs=1e-8)
    assert float(place["K to infinity"]["point"]) == 0.75
    assert float(methods["FedAvg"]["distance"]) == pytest.approx(1 / 21, abs=1e-6)
    assert float(methods["FedAvg"]["factor"]) == pytest.approx(1 - 0.5 * 3.5 / 2)
    assert methods["Mime"]["distance"] == methods["SCAFFOLD"]["distance"] == 0
    assert bounds == {}  # they need gamma < 1/L = 1/2
    wanted = 1 / 210
    exact = ways["largest gamma for K = 2, exactly"]
    gamma = float(exact["prescription"].removeprefix("gamma = "))
    assert gamma / (3 * (6 - 5 * gamma)) == pytest.approx(wanted, rel=1e-5)
    assert float(exact["distance"]) == pytest.approx(wanted, rel=1e-5)
    assert ways["largest K for gamma = 0.5, exactly"]["prescription"] == "K = 1"


@pytest.mark.quick
def test_bounds_and_prescriptions(capsys):
    words = ["--random", "6", "3", "--L", "4", "--noise", "0.5", "--seed", "3"]
    p = QuadraticPopulation.random(6, 3, L=4, noise=0.5, seed=3)
    *_, bounds, ways = tables(capsys, *words, "--accuracy", "0.05", "--batch-size", "2")
    gap = surrogate(p, 0.5 / p.L, 10).gap
    for name, row in bounds.items():
        assert float(row["exact"]) <= float(row["bound"]), name
        if row["of"] == "distance":
            assert 0 < row["exact / bound"] < 1
            assert float(row["exact"]) == pytest.approx(gap, rel=1e-5)
    for row in ways.values():
        if row["distance"]:
            assert float(row["distance"]) <= 0.05 * (1 + 1e-5)
    # Theorem 29: (2 nu + 4 C) / (b + t) <= accuracy^2, by hand.
    b, M, B, G2, K = 3 * p.kappa**2, 6, 2, 0.5, 10
    gamma_1 = min(1 / (p.L * (b + 1)), np.log(2) / (K * p.mu))
    away = ((surrogate(p, gamma_1, K).minimiser) ** 2).sum()
    nu = max(36 * G2 / (p.mu**2 * K * M * B), (b + 1) * away)
    C = max(4, K**2) * p.sigma_c**2 * p.kappa**2
    rounds = np.ceil((2 * nu + 4 * C) / 0.05**2 - b)
    assert ways["decaying gamma, Theorem 29"]["rounds"] == rounds
    # Theorem 2 of 2021 with K_t = 1 throughout: nu = max(36 G^2 / (mu^2 M B), (b+1) |x_1 - x*|^2).
    nu = max(36 * G2 / (p.mu**2 * M * B), (b + 1) * (p.minimiser**2).sum())
    rounds = np.ceil((2 * nu + 16 * p.sigma_c**2 * p.kappa**2) / 0.05**2 - b)
    found = ways["K = 1 throughout, Theorem 2 of 2021"]
    assert found["rounds"] == pytest.approx(rounds, abs=1)
    slow = ways["K decaying from 10, Theorem 2 of 2021"]
    assert slow["prescription"].startswith(f"K_0 = {10 * (b + 1):.4g}, ")
    assert slow["rounds"] > 10 * found["rounds"]


def test_populations_of_every_kind(capsys, tmp_path):
    _, place, *_ = tables(capsys, "--density-power", "-0.5", "--interval", "1", "3")
    assert float(place["x*"]["point"]) == pytest.approx(0.523373, abs=1e-6)
    _, place, *_ = tables(
        capsys, "--curvatures", "1", "3", "--centres", "-1", "2", "--probabilities", "3", "1"
    )
    assert float(place["x*"]["point"]) == pytest.approx((0.75 * -1 + 0.25 * 3 * 2) / 1.5)
    file = tmp_path / "examples.csv"
    file.write_text("x,client,y\n1,ann,1\n1,bob,3\n2,ann,2\n")
    _, place, *_ = tables(
        capsys, str(file), "--target-column", "y", "--ridge", "0.5", "--intercept"
    )
    X = np.array([[1, 1], [1, 1], [2, 1.0]])
    exact = np.linalg.solve(X.T @ X / 3 + np.eye(2) / 2, X.T @ [1, 3, 2] / 3)
    shown = [float(word) for word in place["x*"]["point"].strip("()").split(",")]
    assert shown == pytest.approx(exact, abs=1e-5)


def test_one_client_and_singular_clients(capsys, tmp_path):
    _, place, _, bounds, ways = tables(capsys, "--curvatures", "2", "--centres", "1")
    assert place["FedAvg"]["distance"] == 0
    assert ways == {}
    assert float(bounds["Theorem 17"]["bound"]) == 0
    file = tmp_path / "mime.toml"  # f_1 = x^2 + x, f_2 = -x
    file.write_text("matrices = [2, 0]\nlinear = [1, -1]\n")
    clients, *_, bounds, ways = tables(capsys, str(file), "--gamma", "0.01")
    assert clients["sigma_c"]["value"] is None
    assert "Client 1's matrix is singular" in clients["sigma_c"]["what it is"]
    assert "mu = 0" in bounds["Theorem 17"]["of"]
    assert "needs mu > 0" in ways["the same by Theorem 17"]["prescription"]


WRONG = {
    "goes with --random, not with --curvatures": ["--mu", "1"],
    "needs --centres": ["--curvatures", "1", "2"],
    "needs --interval": ["--density-power", "1"],
    "not from both": ["--random", "2", "2", "--density-power", "1"],
    "Cannot read": ["nowhere.toml"],
    "--noise cannot be combined with a file": ["nowhere.toml", "--noise", "1"],
    "gamma must be": ["--gamma", "-1"],
    "no unique minimiser": ["--gamma", "1.3", "--local-steps", "2"],
    "K must be a whole number": ["--local-steps", "0"],
    "batch_size must be": ["--batch-size", "0"],
    "seed must be": ["--random", "3", "2", "--seed", "-1"],
    "Hessian is not finite": ["--random", "3", "2", "--gamma", "0.9", "--local-steps", "1000000"],
    "accuracy must be": ["--accuracy", "-1"],
}


@pytest.mark.parametrize("sentence", WRONG)
def test_what_is_wrong_is_said_in_one_line(sentence, capsys):
    assert run_command(["theory", *WRONG[sentence]]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert "defect" not in error


@pytest.mark.parametrize("words", [[], ["--random", "5", "2"], ["--random", "5", "4"]])
def test_the_picture_shows_both_minimisers(words, capsys, tmp_path):
    path = tmp_path / "there" / "picture.svg"
    assert run_command(["theory", *words, "--picture", str(path)]) == 0
    assert f"Picture: {path}" in capsys.readouterr().out.replace("\n", "")
    assert path.read_text("utf-8").count("<path") > 50
    assert run_command(["theory", *words, "--picture", str(tmp_path / "a.abc")]) == 1
    assert "Cannot write the picture" in capsys.readouterr().err


def test_extreme_scales_and_many_clients(capsys, tmp_path):
    file = tmp_path / "tiny.json"
    file.write_text('{"matrices": [1e-200, 2e-200], "centres": [1, 0.5]}')
    _, place, *_ = tables(capsys, str(file))
    assert place["x*"]["point"] == "0.666667"
    assert place["FedAvg"]["distance"] == pytest.approx(0.0762122, abs=1e-7)  # as with 1 and 2
    assert run_command(["theory", "--random", "700", "3"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "SCAFFOLD, which converges to x*, is left out" in out
    *_, bounds, _ = tables(capsys, "--gamma", "0.49", "--local-steps", "1000000")
    assert "epsilon" in bounds["Corollary 20"]["of"]  # which is 1 but for rounding
    assert bounds["Theorem 17"]["exact"] == pytest.approx(1 / 12, abs=1e-6)


def test_numbers_are_not_broken_in_a_narrow_pipe(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert run_command(["theory", "--random", "5", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    headers = [line.split() for line in lines if line.startswith("method")]
    assert headers == [["method", "distance", "factor"], ["method", "rounds", "to", "a", "tenth"]]
    for header, width in zip(headers, (3, 2), strict=True):
        at = next(place for place, line in enumerate(lines) if line.split() == header)
        assert lines[at + 1].startswith("FedAvg ")
        assert len(lines[at + 1].split()) == width


@pytest.mark.slow
def test_a_run_goes_alone(capsys, tmp_path):
    assert run_command(["theory", "--run", str(tmp_path), "--gamma", "1"]) == 2
    assert "Only --seed" in capsys.readouterr().err
    assert run_command(["theory", "--run", str(tmp_path)]) == 1
    assert "is not a run folder" in capsys.readouterr().err
    folder = tmp_path / "run"
    assert run_command(["run", "quadratics", "fedavg", "--rounds", "2", "--out", str(folder)]) == 0
    capsys.readouterr()
    assert run_command(["theory", "--run", str(folder), "--json"]) == 0
    _, rows, _ = json.loads(capsys.readouterr().out)
    assert [row[:2] for row in rows["rows"]] == [
        ["0.1", "10"], ["0.05", "10"], ["0.2", "10"], ["0.1", "5"], ["0.1", "20"]
    ]


def test_the_curves_are_the_losses():
    question = questions.ask(QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5]), 0.5, 2)
    figure = Figure()
    theory_picture.draw_theory(figure, question)
    surfaces, by_gamma, by_steps = figure.axes
    true, _, other, _ = surfaces.lines
    for line, lowest in ((true, 2 / 3), (other, 5 / 7)):
        x, y = line.get_data()
        assert x[np.argmin(y)] == pytest.approx(lowest, abs=0.01)
        assert y.min() == pytest.approx(0, abs=1e-4)
    x, y = next(line for line in by_gamma.lines if line.get_label() == "K = 2").get_data()
    np.testing.assert_allclose(y, x / (3 * (6 - 5 * x)), rtol=1e-9)
    x, y = next(line for line in by_steps.lines if line.get_label() == "gamma = 0.5").get_data()
    np.testing.assert_allclose(y, (2.0**x - 2) / (6 * (2.0 ** (x + 1) - 1)), rtol=1e-9)


def test_clients_whose_condition_number_cannot_be_squared(capsys):
    words = ["--curvatures", "1e219", "2", "--centres", "36", "19", "--ridge", "28"]
    *_, ways = tables(capsys, *words, "--accuracy", "1e308")
    said = {name: row["prescription"] for name, row in ways.items()}
    assert "overflows float64" in said["the same by Theorem 17"]
    assert "overflows float64" in said["the same by Corollary 20"]
    assert "which is negligible compared with L = 1e+219" in said["decaying gamma, Theorem 29"]
