"""`fedax reproduce`: published experiments through the engine, against numbers found without it."""

import json

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedax.cli.main import run_command
from fedax.reproductions import EXPERIMENTS, REPRODUCTIONS, charles2020, decay2021


def compute(name):
    """A reproduction's tables, and whether its picture can be drawn."""
    found = REPRODUCTIONS[name].compute()
    figure = Figure()
    found.draw(figure)
    assert all(axes.has_data() for axes in figure.axes)
    return found.tables


@pytest.mark.slow
def test_mimes_quadratics():
    """f_1 = x^2 + G x, f_2 = -G x: best f after 60 rounds over the rates, for G = 1, 10, 100."""
    best, speeds, fixed = compute("mime2020-figure-2")
    found = {
        (row[0], int(row[1])): [float(cell.split()[0]) for cell in row[2:5]] for row in best.rows
    }
    assert max(float(row[5]) for row in best.rows) < 1e-12  # whole trajectories, from theory
    expected = {
        ("FedAvg", 2): [3.4e-4, 1.4e-2, 2.1e-1],
        ("FedAvg", 10): [1.2e-3, 3.5e-2, 2.5],
        ("MimeLite", 2): [2.7e-5, 1.5e-3, 5.0e-2],
        ("MimeLite", 10): [7.7e-5, 4.7e-3, 1.1e-1],
    }
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, rtol=0.05)  # two digits
    for k in (2, 10):
        assert max(found["Mime", k]) < 6e-23
        assert len(set(found["Mime", k])) == 1  # whatever G
    assert found["server-only", 1] == pytest.approx([4e-25] * 3, rel=0.1)
    for method, dissimilarity, _, closed_form, deviation in fixed.rows:
        assert float(deviation) < 1e-10, method
        if method == "MimeLite" and dissimilarity == "1":
            assert float(closed_form) == pytest.approx(0.05795138, abs=5e-9)
    # At the rate 0.05 rounds to f <= 1e-8 are 165, 76, 25 for K = 1, 2, 10, whatever G.
    rounds = {(row[0], row[1]): row[2:5] for row in speeds.rows}
    assert rounds["server-only", "1"] == ["165"] * 3
    assert (rounds["Mime", "2"], rounds["Mime", "10"]) == (["76"] * 3, ["25"] * 3)
    assert rounds["FedAvg", "10"] == rounds["MimeLite", "10"] == ["never"] * 3
    assert {row[5] for row in speeds.rows} == {"none"}
    assert "SCAFFOLD" not in {row[0] for row in best.rows}  # it is not in the section


@pytest.mark.slow
@pytest.mark.optimised
def test_decaying_steps():
    """Figure 1 of the decaying-steps paper (2021): its ends are fixed points of the mean."""
    table, by_algorithm_2 = compute("decay2021-figure-1")
    rows = {row[0]: row[1:] for row in table.rows}
    # Fixed points x*(gamma = 0.1, K) where K stays, else where 3000 rounds of the mean end.
    expected = {
        "K = 1": 0.5230, "K = 5": 0.5416882, "K = 10": 0.5570331,
        "K = 10, d_gamma = 0.995": 0.5234, "K = 10, d_K = 0.995": 0.5234,
        "K = 10, d_K = 0.9995": 0.5336,
    }
    for name, value in expected.items():
        assert float(rows[name][2]) == pytest.approx(value, abs=6e-5), name
        assert float(rows[name][4]) < 1e-12  # every round, from the exact mean dynamics
        difference, error = (float(number) for number in rows[name][5].split(" +- "))
        assert abs(difference) < 4 * error + 1e-4  # 10 runs, so the error is itself rough
        assert error < 0.004
    decaying = rows["K = 10, d_gamma = 0.995"]
    assert float(decaying[1]) == pytest.approx(0.5327, abs=5.1e-5)
    assert float(decaying[0]) == pytest.approx(0.5280, abs=1.1e-4)
    assert rows["K = 10, d_K = 0.995"][6:] == ["4,586", "84.7%"]
    assert rows["K = 10, d_K = 0.99"][7] == "87.4%"
    ends = {row[0]: float(row[1]) for row in by_algorithm_2.rows}
    for name, value in (("K = 1", 0.4538), ("K = 10, d_gamma = 0.995", 0.4314),
                        ("K = 10, d_K = 0.995", 0.4668)):
        assert ends[name] == pytest.approx(value, abs=1e-9), name
    assert max(float(row[3]) for row in by_algorithm_2.rows) < 1e-12
    continuum, drawn = decay2021.population(), decay2021.equally_likely()
    assert continuum.minimiser[0] == pytest.approx(0.5233729, abs=5e-8)
    assert continuum.mean(continuum.centres)[0] == pytest.approx(0.5773503, abs=5e-8)
    assert drawn.minimiser[0] == pytest.approx(0.5233729, abs=1e-6)


@pytest.mark.quick
def test_section_4_of_outsized_rates():
    """Clients A_i = i, c_i = 1 / i: the gap is gamma / (3 (6 - 5 gamma)) at K = 2."""
    (table,) = compute("charles2020-section-4")
    for gamma, k, _, _, by_fedavg, by_toolkit, gap, bad in table.rows:
        assert float(by_fedavg) < 1e-12
        assert float(by_toolkit) < 1e-12
        assert bad == ("2" if float(gamma) >= 1 and k == "2" else "none")
        if k == "2":
            exact = float(gamma) / (3 * (6 - 5 * float(gamma)))
            assert float(gap) == pytest.approx(exact, abs=5e-8)
    gaps = {row[1]: float(row[6]) for row in table.rows if row[0] == "0.5"}
    assert gaps == {"1": 0.0, "2": 0.047619, "3": 0.0666667, "5": 0.0793651, "10": 0.0832112}


@pytest.mark.slow
def test_figure_1_of_outsized_rates(monkeypatch):
    """Density 8 z / 15 on [.5, 2]; a shorter run, within the spread that theory predicts."""
    monkeypatch.setattr(charles2020, "NUM_ROUNDS", 4000)
    (table,) = compute("charles2020-figure-1")
    limits = {(row[0], row[1]): float(row[2]) for row in table.rows}
    assert limits == {
        ("0.5", "1"): 0.7142857, ("0.5", "2"): 0.7482014, ("0.5", "5"): 0.7861262,
        ("0.5", "20"): 0.7999341, ("0.1", "20"): 0.7739411, ("0.01", "20"): 0.7221574,
        ("0.001", "20"): 0.7150843, ("0", "20"): 0.7142857,
    }
    assert max(abs(float(row[7])) for row in table.rows) < 4
    spread = {(row[0], row[1]): float(row[6]) for row in table.rows}
    assert spread["0", "20"] > spread["0.5", "20"]  # section 4 says so


@pytest.mark.quick
def test_the_predicted_spread_is_that_of_many_runs():
    """`deviation_after` against the spread of 4,000 independent runs by NumPy."""
    setting, clients = charles2020.Setting(0.5, 5), charles2020.density_clients()
    rng = np.random.default_rng(0)
    x = np.full(4000, charles2020.START)
    for _ in range(300):
        z = np.sqrt(0.25 + 3.75 * rng.uniform(size=x.shape))
        shrink = (1 - 0.5 * z) ** 5
        x -= charles2020.SERVER_RATE * (1 - shrink) / 0.5 * (x - 1 / z)
    predicted = charles2020.deviation_after(clients, setting, 300)
    assert x.std() == pytest.approx(predicted, rel=0.05)  # 4.5 standard errors


@pytest.mark.quick
@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_what_is_computed_says_beforehand_what_it_asks(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command(["reproduce", name, "--plan"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said[:4]] == [
        name, "Settings", "Time", "What counts as agreement"]
    assert all(line.startswith("- ") and line.endswith(".") for line in said[4:])
    assert len(said) > 4
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_reproductions_from_the_command_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command(["reproduce", "--list", "--json"]) == 0
    listed = [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert listed == [*REPRODUCTIONS, *EXPERIMENTS]
    assert run_command(["reproduce", "charles2020-section-4", "--json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)
    assert len(table["rows"]) == 10
    assert not any(tmp_path.iterdir())
    assert run_command(["reproduce", "charles2020-section-4", "--out", "pictures"]) == 0
    assert "ill-behaved" in capsys.readouterr().out
    assert (tmp_path / "pictures/charles2020-section-4.png").stat().st_size > 10_000
    (tmp_path / "file").write_text("")
    for line, sentence, status in (
        (["reproduce"], "needs a name", 2),
        (["reproduce", "mime-figur-2"], "Did you mean 'mime2020-figure-2'", 2),
        (["reproduce", "charles2020-section-4", "--out", "file"], "Cannot write", 1),
    ):
        assert run_command(line) == status
        assert sentence in capsys.readouterr().err
