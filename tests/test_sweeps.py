"""Many settings as one program: every curve is the single run's, and nothing compiles twice."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.factories import partition
from fedax.optimizers.base_optimizers import adam, sgdm
from fedax.report.sweep_page import runs_of_settings
from fedax.rounds.measurements import evaluated_metrics
from fedax.rounds.options import Settings
from fedax.sweeps.batch import BatchTraining, varying
from fedax.sweeps.choosing import choose
from fedax.sweeps.planning import CPU_BYTES, CPU_MOST, Entry, groups, plan, side_by_side


@pytest.fixture(scope="module")
def task():
    return line()


def line():
    """Linear regression by eight clients of different sizes."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 3))
    y = x @ np.array([1.0, -2.0, 0.5]) + 0.1 * generator.normal(size=60)
    sizes = [4, 9, 2, 12, 7, 8, 10, 8]
    clients = fedax.FederatedDataset.from_arrays({"x": x, "y": y}, np.repeat(np.arange(8), sizes))
    model = fedax.regression(lambda key: jnp.zeros(3), lambda params, x: x @ params)
    return fedax.Task(model, clients, clients, name="line")


def trained_together(task, algorithms, num_rounds=6, seed=3, places=None, **options):
    """The columns of settings side by side, [settings, rounds], and the batch."""
    settings = Settings.checked(num_rounds, {
        "cohort_size": 3, "seed": seed, "state_every": num_rounds, "evaluate_every": 0, **options,
    })
    varies = varying([partition(algorithm)[0] for algorithm in algorithms])
    training = BatchTraining(
        task, algorithms, num_rounds, settings, varies, jax.devices()[:1]
    )
    reports = [report.metrics for report in training]
    names = dict.fromkeys(name for metrics in reports for name in metrics)
    return {
        name: np.concatenate([
            metrics.get(name, np.full_like(metrics["num_reports"], np.nan)) for metrics in reports
        ]).T
        for name in names
    }, training


def alone(task, algorithm, num_rounds=6, seed=3, **options):
    return fedax.train(
        task, algorithm, num_rounds=num_rounds, seed=seed, progress=False,
        **{"cohort_size": 3, "evaluate_every": 0, **options},
    )


METHODS = {
    "fedavg": lambda model, a, b: fedax.fedavg(model, a, b, batch_size=4, num_local_epochs=1),
    "fedyogi": lambda model, a, b: fedax.fedyogi(model, a, b, batch_size=4, num_local_steps=3),
    "scaffold": lambda model, a, b: fedax.scaffold(model, a, b, batch_size=4, num_local_steps=2),
    "mime with Adam, two exchanges": lambda model, a, b: fedax.mime(
        model, a, base=adam(adaptivity=b), batch_size=4, num_local_steps=2
    ),
    "elastic over FedProx": lambda model, a, b: fedax.elastic(
        fedax.fedprox(model, a, proximal_weight=b, batch_size=4, num_local_steps=2), model
    ),
    "decaying steps": lambda model, a, b: fedax.fedavg(
        model, fedax.schedules.exponential_decay(a, 0.9), b, batch_size=4,
        num_local_steps=fedax.schedules.exponential_decay(5, 0.7),
    ),
    "another number of steps for each": lambda model, a, b: fedax.fedavg(
        model, 0.1, batch_size=4, num_local_steps=fedax.schedules.exponential_decay(50 * a, 1.0)
    ),
}


@pytest.mark.quick
@pytest.mark.parametrize("method", METHODS)
def test_every_curve_is_the_single_runs(task, method):
    pairs = [(0.01, 0.5), (0.1, 1.0), (0.05, 0.1)]
    algorithms = [METHODS[method](task.model, *pair) for pair in pairs]
    columns, training = trained_together(task, algorithms)
    for place, algorithm in enumerate(algorithms):
        result = alone(task, algorithm)
        for name in ("train_loss", "num_local_steps", "num_reports", "total_local_steps"):
            np.testing.assert_allclose(
                columns[name][place], result.history[name], rtol=1e-12, atol=0, err_msg=name
            )
        own = jax.tree.map(lambda leaf, p=place: leaf[p], training.state.server_state.params)
        np.testing.assert_allclose(own, result.params, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_a_setting_that_diverges_is_frozen_and_the_others_are_not_touched(task):
    rates = [0.05, 1e200, 0.1]
    algorithms = [fedax.fedavg(task.model, rate, batch_size=4) for rate in rates]
    columns, training = trained_together(task, algorithms)
    with pytest.raises(fedax.DivergedError, match="Round") as error:
        alone(task, algorithms[1])
    number = int(str(error.value).split()[1].rstrip(":"))
    assert training.state.diverged.tolist() == [0, number, 0]
    assert training.state.alive.tolist() == [True, False, True]
    assert np.isnan(columns["train_loss"][1, number - 1 :]).all()
    for place in (0, 2):
        np.testing.assert_allclose(
            columns["train_loss"][place], alone(task, algorithms[place]).history["train_loss"],
            rtol=1e-12,
        )


def test_when_all_have_diverged_nothing_is_computed_any_more(task):
    algorithms = [fedax.fedavg(task.model, rate) for rate in (1e200, 1e250)]
    columns, training = trained_together(task, algorithms, num_rounds=50)
    assert (training.state.diverged > 0).all()
    assert columns["num_reports"].shape[1] < 50


def test_a_setting_that_is_given_up_keeps_its_state(task):
    algorithms = [fedax.fedavg(task.model, rate) for rate in (0.05, 0.1)]
    settings = Settings.checked(4, {"cohort_size": 3, "evaluate_every": 0})
    training = BatchTraining(task, algorithms, 4, settings, (True, False), jax.devices()[:1])
    rounds = iter(training)
    next(rounds)
    training.give_up([1])
    kept = np.asarray(training.state.server_state.params)[1]
    columns = [report.metrics["train_loss"] for report in rounds]
    assert np.isnan(np.concatenate(columns)[:, 1]).all()
    np.testing.assert_array_equal(training.state.server_state.params[1], kept)
    assert training.state.diverged.tolist() == [0, 0]


@pytest.mark.slow
def test_a_whole_grid_compiles_once(task, compiled):
    grid = {"client_learning_rate": [0.01, 0.02, 0.05, 0.1], "server_learning_rate": [0.5, 1.0]}
    method = lambda model, **rates: fedax.fedavgm(model, **rates, batch_size=4)  # noqa: E731
    result = fedax.sweep(
        task, {"m": method}, grid, num_rounds=3, seeds=2, settings_per_batch=3,
        cohort_size=3, evaluate_every=0, progress=False,
    )
    assert compiled.count("jit(rounds_of_settings)") == 1
    assert result.record.metrics["train_loss"].shape == (16, 3)


@pytest.mark.slow
def test_all_units_of_a_seed_begin_with_the_same_draw(task):
    """Drawing an LSTM's orthogonal matrices takes as long as some of its rounds."""
    keys: list[list[int]] = []

    def init(key):
        if not isinstance(key, jax.core.Tracer):
            keys.append(np.asarray(jax.random.key_data(key)).tolist())
        return jnp.zeros(3)

    fedax.sweep(
        task._replace(model=fedax.regression(init, lambda params, x: x @ params)), fedax.fedavg,
        {"client_learning_rate": [0.1, 0.2, 0.3], "batch_size": [2, 4]}, num_rounds=1,
        seeds=[0, 1], cohort_size=2, settings_per_batch=1, progress=False,
    )
    # Units of one batch size follow each other, those of a seed too, and so do the draws.
    assert len(keys) <= 4
    assert len({str(key) for key in keys}) == 2


def test_test_metrics_are_those_of_the_single_run(task):
    algorithms = [fedax.fedavg(task.model, rate) for rate in (0.05, 0.1)]
    columns, _ = trained_together(task, algorithms, evaluate_every=2)
    for place, algorithm in enumerate(algorithms):
        history = alone(task, algorithm, evaluate_every=2).history
        np.testing.assert_allclose(
            columns["test_loss"][place], history["test_loss"], rtol=1e-12
        )


@pytest.fixture(scope="module")
def divided():
    """Twelve clients, who have training, validation and test examples each."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=(180, 3))
    slopes = np.repeat(generator.normal(size=(12, 3)), 15, axis=0)
    y = ((x * slopes).sum(1) > 0).astype(np.int32)
    data = fedax.FederatedDataset.from_arrays({"x": x, "y": y}, np.repeat(np.arange(12), 15))
    train, validation, test = data.split(0.3, validation=0.2)
    model = fedax.classification(
        lambda key: {"w": jax.random.normal(key, (3, 2)), "b": jnp.zeros(2)},
        lambda params, x: x @ params["w"] + params["b"][None],
    )
    return fedax.Task(model, train, test, validation=validation, name="signs")


OWN = {
    "ditto": lambda model, a, b: fedax.ditto(model, a, attraction=b, batch_size=4),
    "apfl": lambda model, a, b: fedax.apfl(model, a, mixture=b, batch_size=4),
    "personal+fedavg": lambda model, a, b: fedax.personal(
        fedax.fedavg(model, a, b, batch_size=4), model, "w"
    ),
    "perfedavg, without client states": lambda model, a, b: fedax.perfedavg(
        model, a, inner_learning_rate=b, batch_size=4
    ),
    "ditto inside local_update_decay": lambda model, a, b: fedax.local_update_decay(
        lambda rate, _: fedax.ditto(model, rate, attraction=0.1, batch_size=4),
        model, a, None, client_decay=b, window=1, patience=1, cooldown=0,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", OWN)
def test_metrics_of_own_models_are_those_of_the_single_run(divided, method):
    pairs = [(0.5, 0.25), (0.3, 0.75), (0.2, 0.5)]
    algorithms = [OWN[method](divided.model, *pair) for pair in pairs]
    columns, _ = trained_together(divided, algorithms, evaluate_every=2)
    kinds = [f"{kind}{metric}" for metric in ("loss", "accuracy")
             for kind in ("own_", "own_mean_", "own_worst_tenth_", "worst_tenth_", "")]
    for place, algorithm in enumerate(algorithms):
        history = alone(divided, algorithm, evaluate_every=2).history
        for name in [f"{part}_{kind}" for part in ("validation", "test") for kind in kinds]:
            assert np.isfinite(columns[name][place, -1])
            np.testing.assert_allclose(
                columns[name][place], history[name], rtol=1e-12, err_msg=name
            )


@pytest.mark.slow
def test_the_best_setting_is_chosen_by_the_clients_own_models(divided, tmp_path):
    """Every measured name can choose; the page has the columns, and who has no own models none."""
    found = fedax.sweep(
        divided, {"ditto": fedax.ditto, "fedavg": fedax.fedavg},
        {"client_learning_rate": [0.5, 0.01], "ditto.attraction": [0.0, 1.0]}, num_rounds=4,
        cohort_size=4, out=tmp_path / "two", progress=False,
    )
    table = found.record.results().set_index("setting")
    name = "test_own_mean_accuracy"
    own = table[table.algorithm == "ditto"][name]
    assert own.notna().all()
    assert table[table.algorithm == "fedavg"][name].isna().all()
    choice = choose(found.record, name)
    assert choice.mean[choice.methods["ditto"].best] == own.max()
    assert choice.methods["fedavg"].best is None
    assert choice.methods["fedavg"].diverged == []
    page = (tmp_path / "two" / "report.html").read_text("utf-8")
    assert "test own accuracy" in page
    assert "test own worst tenth accuracy" in page
    assert not any(run.diverged for run in runs_of_settings(found.record, range(6), {}))
    for metric in evaluated_metrics(divided, fedax.ditto(divided.model)):
        choose(found.record, metric)


@pytest.mark.slow
@pytest.mark.parametrize("halving", [None, 2])
def test_a_sweep_by_own_models_takes_the_best(divided, halving):
    found = fedax.sweep(
        divided, fedax.ditto, {"client_learning_rate": [0.5, 0.1, 0.01], "batch_size": 4},
        num_rounds=4, cohort_size=4, choose="validation_own_loss", halving=halving, progress=False,
    )
    rates = (0.5, 0.1, 0.01)
    losses = [
        alone(
            divided, fedax.ditto(divided.model, rate, batch_size=4), 4, 0, cohort_size=4,
            evaluate_every=None,
        )
        for rate in rates
    ]
    losses = [result.history["validation_own_loss"][-1] for result in losses]
    assert found.best().values["client_learning_rate"] == rates[np.argmin(losses)]


def test_methods_without_own_models_are_refused_before_training(divided, task):
    def swept(task, methods, rule):
        fedax.sweep(task, methods, {"client_learning_rate": [0.1]}, num_rounds=1,
                    cohort_size=2, choose=rule, progress=False)

    with pytest.raises(ValueError, match="Cannot choose by test_own_accuracy: the clients"):
        swept(divided, ["ditto", "fedavg"], "test_own_accuracy")
    with pytest.raises(ValueError, match=r"Unknown metric .* to choose by"):  # of eight clients
        swept(task, "ditto", "test_own_worst_tenth_loss")
    with pytest.raises(ValueError, match=r"Unknown metric .* to choose by"):
        swept(task, "fedavg", "test_worst_tenth_loss")


def test_redrawn_samples_and_training_losses_are_those_of_the_single_run(task):
    options = {
        "evaluate_every": 2, "evaluation_sample": 3, "evaluation_redraw": True,
        "evaluate_training": True,
    }
    algorithms = [fedax.fedavg(task.model, rate) for rate in (0.05, 0.1)]
    columns, _ = trained_together(task, algorithms, **options)
    history = alone(task, algorithms[1], **options).history
    for name in ("test_loss", "all_clients_loss", "all_examples_loss"):
        np.testing.assert_allclose(columns[name][1], history[name], rtol=1e-12, err_msg=name)


@pytest.mark.slow
def test_diagnostics_and_bytes_are_those_of_the_single_run(task):
    algorithms = [fedax.fedavg(task.model, rate) for rate in (0.05, 0.1)]
    columns, _ = trained_together(task, algorithms, diagnostics=True)
    history = alone(task, algorithms[1], diagnostics=True).history
    for name in ("pseudo_gradient_norm", "client_drift", "update_cosine", "bytes_up", "bytes_down"):
        np.testing.assert_allclose(columns[name][1], history[name], rtol=1e-9, err_msg=name)


@pytest.mark.quick
def test_settings_of_one_structure_are_one_program(task):
    def entry(algorithm, kind=None):
        return Entry(task, algorithm, lambda seed: Settings(seed=seed), kind)

    entries = [
        entry(fedax.fedavg(task.model, 0.1)), entry(fedax.fedavg(task.model, 0.2, batch_size=5)),
        entry(fedax.fedavg(task.model, 0.3)), entry(fedax.fedavg(task.model, 0.3), "other cohorts"),
        entry(fedax.mimelite(task.model, 0.1, base=sgdm(0.9))),
    ]
    assert [group.settings for group in groups(entries)] == [(0, 2), (1,), (3,), (4,)]
    assert groups(entries)[0].varies == (True, False)


@pytest.mark.quick
def test_units_are_of_one_size_and_hold_every_setting_once_a_seed(task):
    algorithms = [fedax.fedavg(task.model, rate) for rate in np.linspace(0.1, 0.7, 7).tolist()]
    entries = [Entry(task, algorithm, lambda seed: Settings(seed=seed)) for algorithm in algorithms]
    units = plan(entries, [4, 5], settings_per_batch=3)
    assert [(unit.settings, unit.seed, unit.size) for unit in units] == [
        ((0, 1, 2), 4, 3), ((3, 4, 5), 4, 3), ((6,), 4, 3),
        ((0, 1, 2), 5, 3), ((3, 4, 5), 5, 3), ((6,), 5, 3),
    ]
    spread = plan(entries, [0], num_devices=2, settings_per_batch=1)
    assert [unit.size for unit in spread] == [2, 2, 2, 2]
    assert [unit.size for unit in plan(entries, [0], num_devices=2)] == [8]
    with pytest.raises(ValueError, match="settings_per_batch"):
        plan(entries, [0], settings_per_batch=0)


@pytest.mark.quick
def test_small_models_go_side_by_side_and_large_ones_do_not(task):
    def of(size):
        model = fedax.regression(lambda key: jnp.zeros(size), lambda params, x: x @ params)
        return Entry(task._replace(model=model), fedax.fedavg(model, 0.1), Settings)

    assert side_by_side(of(3)) == CPU_MOST
    assert side_by_side(of(CPU_BYTES // 8 // 4)) == 4
    assert side_by_side(of(CPU_BYTES)) == 1


# A model of 4 MB, so that a setting has 8 MB of state, with the momentum.
SWEEP = """
import re, sys
from pathlib import Path
import jax
jax.config.update("jax_num_cpu_devices", 1)
import numpy as np
import fedax
settings, side_by_side = map(int, sys.argv[1:])
model = fedax.Model(
    lambda key: {"x": jax.numpy.zeros(1_000_000, jax.numpy.float32)},
    lambda params, batch, key: ((params["x"][:1] - batch["a"]) ** 2, 1 + 0 * batch["a"]),
    lambda params, batch: batch["a"], {},
)
data = fedax.FederatedDataset.from_arrays(
    {"a": np.ones(8, np.float32)}, np.repeat(np.arange(4), 2))
fedax.sweep(
    fedax.Task(model, data), fedax.fedavgm,
    {"client_learning_rate": np.linspace(0.01, 0.1, settings).tolist(), "num_local_steps": 2,
     "batch_size": 1},
    num_rounds=3, cohort_size=2, evaluate_every=0, progress=False,
    settings_per_batch=side_by_side,
)
status = Path("/proc/self/status")
if status.exists():  # where ru_maxrss would count the process that forked this one
    print(int(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]) / 2**10)
else:
    import resource
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


def peak(settings: int, side_by_side: int) -> float:
    """MiB that a sweep of a process of its own had at most."""
    process = subprocess.run(
        [sys.executable, "-c", SWEEP, str(settings), str(side_by_side)],
        capture_output=True, text=True, check=True, timeout=300,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},  # what is freed is given back
    )
    return float(process.stdout)


@pytest.mark.slow
def test_memory_grows_with_the_settings_side_by_side_and_not_with_the_grid() -> None:
    few, many, wide = peak(16, 4), peak(208, 4), peak(208, 52)
    assert many < few + 300  # 192 settings more have 1,536 MB of state
    assert wide > many + 300  # 48 more at a time have 384 MB: the measure sees them


# On two devices, which a process must ask for before it begins.
ON_TWO = """
import sys
import jax
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_enable_x64", True)
import fedax
import numpy as np
import test_sweeps
task = test_sweeps.line()
made = {
    "scaffold": fedax.scaffold, "feddyn": fedax.feddyn,
    "compressed": lambda model, client_learning_rate, **options: fedax.compressed(
        fedax.fedavg(model, client_learning_rate, **options), fedax.codecs.sign()
    ),
}[sys.argv[1]]
fixed = {"batch_size": 4, "num_local_steps": 2}
whole = {"num_rounds": 12, "cohort_size": 3, "evaluate_every": 0, "progress": False}
for count in (1, 2, 4, 5):
    rates = np.linspace(0.01, 0.1, count).tolist()
    found = fedax.sweep(task, made, {"client_learning_rate": rates, **fixed}, **whole)
    assert len(jax.devices()) == 2
    for place, rate in enumerate(rates):
        alone = fedax.train(task, made(task.model, rate, **fixed), **whole)
        ours = found.record.metrics["train_loss"][place]
        np.testing.assert_allclose(ours, alone.history["train_loss"], rtol=1e-12)
"""


@pytest.mark.parametrize("method", [
    pytest.param("scaffold", marks=pytest.mark.quick),
    pytest.param("feddyn", marks=pytest.mark.slow),
    pytest.param("compressed", marks=pytest.mark.slow),
])
def test_settings_spread_over_devices_are_as_alone(method) -> None:
    """The states of clients, too: each device has those of its own settings, not all."""
    subprocess.run(
        [sys.executable, "-c", ON_TWO, method], check=True, timeout=300,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    )
