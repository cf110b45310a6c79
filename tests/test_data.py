"""Federated data sets, their errors, evaluation over them, sampling, schedules, history."""

import builtins
import resource
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import FederatedDataset, History, Model, evaluate, evaluate_clients, schedules
from fedax.data.cohort_data import CohortReader
from fedax.data.rows import join_rows, take_rows
from fedax.devices.memory import aligned
from fedax.optimizers.schedules import parse_schedule
from fedax.rounds.client_store import ClientStore
from fedax.rounds.sampling import sample_cohort
from problems import quadratic_task


def clients(**changes):
    tables = {
        "ada": {"x": np.arange(6.0).reshape(3, 2), "y": np.array([1, 2, 3])},
        "bob": {"x": np.ones((1, 2)), "y": np.array([4])},
    }
    return tables | changes


@pytest.mark.quick
def test_clients_are_views_of_flat_arrays():
    data = FederatedDataset.from_clients(clients())
    assert (data.num_clients, data.num_examples, data.nbytes) == (2, 4, 4 * 24)
    assert data.client_sizes.tolist() == [3, 1]
    assert data.client("bob")["y"].tolist() == [4]
    assert np.shares_memory(data.client_at(0)["x"], data.arrays["x"])
    assert [data.name(i) for i in range(2)] == ["ada", "bob"]


@pytest.mark.quick
@pytest.mark.parametrize("make", [
    FederatedDataset.from_arrays,
    lambda arrays, owners: FederatedDataset.from_clients([
        {key: array[owners == owner] for key, array in arrays.items()} for owner in range(3)
    ]),
    lambda arrays, owners: FederatedDataset.from_arrays(arrays, owners).take([2, 0]),
    lambda arrays, owners: FederatedDataset.from_arrays(arrays, owners).split(0.3)[0],
])
def test_a_run_on_a_cpu_reads_the_data_where_they_are(make):
    """A second copy of a data set of 113 MB was a sixth of a run's memory."""
    arrays = {"x": np.arange(303.0).reshape(101, 3), "y": np.arange(101, dtype=np.int32)}
    data = make(arrays, np.arange(101) % 3)
    reader = CohortReader(data)
    for key, array in data.arrays.items():
        assert aligned(array) is array
        on_device = reader(np.array([0])).arrays[key]
        assert on_device.unsafe_buffer_pointer() == array.ctypes.data


@pytest.mark.quick
def test_rows_are_taken_as_numpy_takes_them():
    array = np.arange(12.0).reshape(6, 2)
    chosen = np.array([True, False, True, True, False, False])
    for rows in (np.array([3, 0, 0]), np.array([-1, 2]), chosen, np.array([], np.int64)):
        np.testing.assert_array_equal(take_rows(array, rows), array[rows])
    with pytest.raises(IndexError):
        take_rows(array, np.array([6]))
    names = np.array(["ada", None], object)  # refused later, with a sentence
    assert take_rows(names, np.array([1, 0])).tolist() == [None, "ada"]
    assert join_rows([names, names]).tolist() == ["ada", None] * 2


def test_a_list_of_clients_is_named_by_index():
    data = FederatedDataset.from_clients(list(clients().values()))
    assert data.name(1) == "1"
    assert data.client("1")["y"].tolist() == [4]


WRONG = {
    "no clients": ({}, "at least one client, but none was given"),
    "empty": (
        clients(eve={"x": np.zeros((0, 2)), "y": np.zeros(0, int)}),
        r"Client 'eve' has no examples\. Leave empty clients out",
    ),
    "nan": (
        clients(eve={"x": np.array([[1.0, 2.0], [1.0, np.nan]]), "y": np.zeros(2, int)}),
        r"Client 'eve': array 'x' holds a value that is not finite .* first in example 1\. Clean",
    ),
    "infinity": (
        clients(eve={"x": np.full((1, 2), np.inf), "y": np.zeros(1, int)}), "first in example 0",
    ),
    "another name": (
        clients(eve={"x": np.zeros((1, 2)), "z": np.zeros(1, int)}),
        r"Client 'eve' has the arrays \['x', 'z'\], but the first client has \['x', 'y'\]",
    ),
    "another length": (
        clients(eve={"x": np.zeros((1, 2)), "y": np.zeros(2, int)}), "unequal lengths: .*'y': 2",
    ),
    "another shape": (
        clients(eve={"x": np.zeros((1, 3)), "y": np.zeros(1, int)}),
        r"Client 'eve': array 'x' is float64\[3\] an example, but .* float64\[2\]",
    ),
    "another dtype": (
        clients(eve={"x": np.zeros((1, 2), np.float32), "y": np.zeros(1, int)}), "is float32",
    ),
    "a scalar": (clients(ada={"x": np.float64(3), "y": np.zeros(1)}), "first axis counts"),
}


@pytest.mark.quick
@pytest.mark.parametrize("case", WRONG)
def test_wrong_clients_are_named(case):
    tables, sentence = WRONG[case]
    with pytest.raises(ValueError, match=sentence):
        FederatedDataset.from_clients(tables)


def test_wrong_flat_arrays():
    x = {"x": np.zeros(4)}
    with pytest.raises(ValueError, match=r"must go from 0 to the 4 examples .* from 0 to 3"):
        FederatedDataset(x, np.array([0, 3]))
    with pytest.raises(ValueError, match=r"Client '1' has no examples \(one of 2 such clients\)\."):
        FederatedDataset(x, np.array([0, 2, 2, 2, 4]))
    with pytest.raises(ValueError, match="2 clients need as many names, but 1 were given"):
        FederatedDataset(x, np.array([0, 2, 4]), np.array(["ada"]))
    with pytest.raises(ValueError, match="same number of examples"):
        FederatedDataset({"x": np.zeros(4), "y": np.zeros(3)}, np.array([0, 4]))
    with pytest.raises(ValueError, match="offsets must be whole numbers, but are float64"):
        FederatedDataset(x, np.array([0.0, 4.0]))
    with pytest.raises(ValueError, match=r"Two clients have the name 'ada'; names must be unique"):
        FederatedDataset(x, np.array([0, 2, 4]), np.array(["ada", "ada"]))
    with pytest.raises(ValueError, match=r"all whole numbers, but 'ada' is of type str\."):
        FederatedDataset.from_clients({1: {"x": np.zeros(2)}, "ada": {"x": np.zeros(2)}})
    with pytest.raises(ValueError, match="at least one array"):
        FederatedDataset({}, np.array([0, 4]))
    with pytest.raises(ValueError, match=r"row 1 is .* ends with a null character"):
        FederatedDataset.from_arrays(x, ["a", "a\0", "a", "a"])


@pytest.mark.quick
def test_an_unknown_client_gets_the_nearest_name():
    data = FederatedDataset.from_clients(clients())
    with pytest.raises(KeyError, match=r"no client 'adda'\. Did you mean 'ada'\?"):
        data.client("adda")
    with pytest.raises(KeyError, match="no client with index 2: the data set has 2 clients"):
        data.client_at(2)
    with pytest.raises(KeyError, match=r"There is no client 2\.$|There is no client 2\.'"):
        data.client(2)


def resident_bytes():
    """The memory that this process has written; where that is not said, the most it ever had."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text("ascii").split()[1]) * resource.getpagesize()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@pytest.mark.quick
def test_a_client_store_needs_memory_for_those_that_took_part():
    before = resident_bytes()
    store = ClientStore({"c": np.full(1000, 0.5)}, num_clients=342_477)
    seen = {}
    for t in range(30):
        ids = sample_cohort(0, t, 342_477, 20)
        states = {"c": np.random.default_rng(t).normal(size=(20, 1000))}
        for i, row in zip(ids.tolist(), states["c"], strict=True):
            seen[i] = row
        store.write(ids, states)
    ids = np.array(sorted(seen))
    assert (store.read(ids)["c"] == np.stack([seen[i] for i in ids.tolist()])).all()
    assert (store.read(np.array([0, 342_476]))["c"] == 0.5).all()
    # The rows of `seen` and those of the store; all clients' rows would take 2,740 MB.
    assert resident_bytes() - before < 6 * len(seen) * 8000
    copy = store.copy()
    copy.write(ids[:1], {"c": np.zeros((1, 1000))})
    assert (store.read(ids[:1])["c"] == seen[int(ids[0])]).all()
    assert sorted(store.snapshot()["client_ids"].tolist()) == ids.tolist()


def token_model():
    """Outputs are the params; value and weight of an example are its own columns."""
    return Model(
        init=lambda key: {"w": jnp.ones(())},
        loss=lambda params, batch, key: (batch["value"], batch["weight"]),
        outputs=lambda params, batch: params["w"] * batch["value"],
        metrics={"mean": lambda outputs, batch: (outputs, batch["weight"])},
    )


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_evaluation_weighs_and_ignores_the_filler_of_the_last_batch(batch_size):
    rng = np.random.default_rng(0)
    value, weight = rng.normal(size=7), np.array([1.0, 0.0, 3.0, 2.0, 5.0, 0.0, 0.0])
    data = FederatedDataset({"value": value, "weight": weight}, np.array([0, 2, 5, 7]))
    params = {"w": jnp.asarray(2.0)}
    overall = evaluate(token_model(), params, data, batch_size)
    assert overall["mean"] == pytest.approx(2 * (value * weight).sum() / 11, rel=1e-12)
    own = evaluate_clients(token_model(), params, data, batch_size)["mean"]
    expected = [2 * value[0], 2 * (value * weight)[2:5].sum() / 10, np.nan]
    np.testing.assert_allclose(own, expected, rtol=1e-12)


@pytest.mark.slow
def test_shakespeare_has_a_test_set_per_client_and_one_over_all():
    task = fedax.load_task("shakespeare", model="small")
    assert task.test is not None
    assert task.test.num_clients == task.train.num_clients
    assert task.train.names is not None
    assert (task.test.names == task.train.names).all()
    few = FederatedDataset(
        {"tokens": task.test.arrays["tokens"][: task.test.offsets[5]]}, task.test.offsets[:6]
    )
    params = task.model.init(jax.random.key(0))
    own = evaluate_clients(task.model, params, few)
    overall = evaluate(task.model, params, few)
    tokens = few.arrays["tokens"][:, 1:]
    weights = np.array(
        [(tokens[a:b] != 0).sum() for a, b in zip(few.offsets[:-1], few.offsets[1:], strict=True)]
    )
    assert overall["accuracy"] == pytest.approx((own["accuracy"] * weights).sum() / weights.sum())


@pytest.mark.quick
def test_cohorts():
    assert sample_cohort(0, 0, 10, 10).tolist() == list(range(10))
    one = sample_cohort(3, 7, 342_477, 50)
    assert len(set(one.tolist())) == 50
    assert (np.sort(one) == one).all()
    assert (sample_cohort(3, 7, 342_477, 50) == one).all()
    assert (sample_cohort(3, 8, 342_477, 50) != one).any()
    assert (sample_cohort(4, 7, 342_477, 50) != one).any()  # another seed
    assert (sample_cohort(3 + 2**40, 7, 342_477, 50) != one).any()
    for size in (0, 11):
        with pytest.raises(ValueError, match=f"cohort of {size} clients .* population of 10"):
            sample_cohort(0, 0, 10, size)


@pytest.mark.quick
def test_schedules():
    t = jnp.arange(4) * 400
    np.testing.assert_allclose(
        schedules.staircase_decay(0.5, 0.1, 500)(t[:, None][:, 0]), [0.5, 0.5, 0.05, 0.005],
        rtol=1e-12,
    )
    np.testing.assert_allclose(
        schedules.exponential_decay(2.0, 0.995)(t), 2 * 0.995 ** np.asarray(t), rtol=1e-12
    )
    assert float(schedules.constant(0.25)(jnp.asarray(99))) == 0.25
    with pytest.raises(ValueError, match=r"decay_rate must be .* above 0, but is -0\.1"):
        schedules.exponential_decay(1.0, -0.1)


def test_schedules_from_words():
    assert parse_schedule("1e-3") == 1e-3
    schedule = parse_schedule("staircase_decay(1.0, decay_rate=0.5, decay_every=2)")
    assert callable(schedule)
    assert [float(schedule(jnp.asarray(t))) for t in range(5)] == [1, 1, 0.5, 0.5, 0.25]
    for text, sentence in {
        "fast": "neither a number nor a schedule",
        "__import__('os')": "Unknown schedule '__import__'",
        "constant(1.0, 2.0, 3.0)": "is not a valid schedule",
        "constant(open('x'))": "neither a number nor a schedule",
    }.items():
        with pytest.raises(ValueError, match=sentence):
            parse_schedule(text)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["client", "server"])
def test_learning_rate_schedules_are_those_of_separate_rounds(side):
    """A run with a schedule equals single rounds with that round's number."""
    task = quadratic_task()
    schedule = schedules.exponential_decay(0.2, 0.5)
    options = {"client": 0.1, "server": 0.5} | {side: schedule}
    algorithm = fedax.fedavg(task.model, options["client"], options["server"], batch_size=2)
    whole = fedax.train(task, algorithm, num_rounds=4, cohort_size=3)
    state = None
    for t in range(4):
        options[side] = 0.2 * 0.5**t
        single = fedax.fedavg(task.model, options["client"], options["server"], batch_size=2)
        state = fedax.train(task, single, num_rounds=t + 1, cohort_size=3, state=state).state
    np.testing.assert_allclose(whole.params["x"], state.server_state.params["x"], rtol=1e-12)


@pytest.mark.quick
def test_history_becomes_a_frame(monkeypatch):
    history = History([{"round": 1, "loss": 2.0}, {"round": 2, "loss": 1.0, "test": 0.5}])
    frame = history.to_pandas()
    assert frame.shape == (2, 3)
    assert history["loss"].tolist() == [2.0, 1.0]
    shown = History([{"round": 1, "train_loss": 2.0}, {"train_loss": 1.0, "test_loss": 0.5}])
    assert repr(shown) == "History(2 rounds: train_loss 2 -> 1, test_loss 0.5)"
    assert np.isnan(history["test"][0])
    assert "train_loss never measured" in repr(History([{"round": 1, "train_loss": np.nan}]))
    assert "train_loss never finite" in repr(History([{"round": 1, "train_loss": np.inf}]))
    with pytest.raises(KeyError, match=r"Unknown metric 'los'\. Did you mean 'loss'\? Known: "):
        history["los"]
    real = builtins.__import__

    def without_pandas(name, *arguments, **options):
        if name == "pandas":
            raise ModuleNotFoundError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'fedax\[pandas\]'"):
        history.to_pandas()


@pytest.mark.quick
def test_public_names_are_sorted_and_exist():
    assert fedax.__all__ == sorted(fedax.__all__)
    for name in fedax.__all__:
        assert hasattr(fedax, name)
    public = {name for name in vars(fedax) if not name.startswith("_")}
    modules = {name for name in public if type(vars(fedax)[name]).__name__ == "module"}
    assert public - modules == set(fedax.__all__) - {
        "attacks", "base_optimizers", "codecs", "optimizers", "pictures", "privacy", "robust_means",
        "schedules", "scores", "theory",
    }


def test_bad_arguments_of_train():
    task = quadratic_task()
    algorithm = fedax.fedavg(task.model)
    with pytest.raises(ValueError, match=r"cohort of 11 clients .* population of 10"):
        fedax.train(task, algorithm, num_rounds=1, cohort_size=11)
    for name in ("num_rounds", "seed", "evaluate_every"):
        with pytest.raises(ValueError, match=f"{name} must be a whole number .* is -1"):
            fedax.train(task, algorithm, **({"num_rounds": 1, "cohort_size": 2} | {name: -1}))
    with pytest.raises(ValueError, match=r"Did you mean 'shakespeare'\?"):
        fedax.load_task("shakspeare")
    with pytest.raises(ValueError, match="returns no parameters"):
        fedax.train(task._replace(model=task.model._replace(init=lambda key: {})), algorithm,
                    num_rounds=1)
    integers = task.model._replace(init=lambda key: {"x": jnp.arange(3)})
    with pytest.raises(ValueError, match=r"parameter of type int64 and shape \(3,\)"):
        fedax.train(task._replace(model=integers), algorithm, num_rounds=1)


@pytest.mark.slow
def test_a_client_of_nan_is_named_and_the_others_train():
    """NaN that slips past from_clients (flat arrays are not scanned) weighs nothing."""
    task = quadratic_task()
    arrays = {key: array.copy() for key, array in task.train.arrays.items()}
    arrays["c"][task.train.offsets[4] : task.train.offsets[5]] = np.nan
    names = np.array([f"client {i}" for i in range(10)])
    poisoned = task._replace(train=FederatedDataset(arrays, task.train.offsets, names))
    algorithm = fedax.fedavg(task.model, batch_size=4)
    reports = list(fedax.simulate(poisoned, algorithm, num_rounds=3, cohort_size=10))
    assert [report.rejected for report in reports] == [["client 4"]] * 3
    assert [report.metrics["num_rejected"] for report in reports] == [1, 1, 1]
    others = np.array([i for i in range(10) if i != 4])
    without = FederatedDataset.from_clients([task.train.client(int(i)) for i in others])
    assert np.isfinite(reports[-1].state.server_state.params["x"]).all()
    alone = task._replace(train=without)
    full = fedax.fedavg(task.model, batch_size=100)  # one full batch: no randomness differs
    named = "Client 'client 4' was rejected in 3 rounds.*'c' of client 'client 4' is not finite"
    with pytest.warns(RuntimeWarning, match=named):
        a = fedax.train(poisoned, full, num_rounds=3, cohort_size=10).params["x"]
    b = fedax.train(alone, full, num_rounds=3, cohort_size=9).params["x"]
    np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.slow
def test_divergence_is_told_in_its_own_round():
    """Finite uploads, but a server step beyond the largest float64."""
    task = quadratic_task()
    algorithm = fedax.fedavg(task.model, 1e8, server_learning_rate=1e308, num_local_steps=1)
    reports = fedax.simulate(task, algorithm, num_rounds=9, cohort_size=3)
    with pytest.raises(fedax.DivergedError, match=r"Round 1: the server's parameters, or"):
        list(reports)


@pytest.mark.quick
def test_a_round_without_local_steps_has_no_training_loss():
    task = quadratic_task()
    algorithm = fedax.fedavg(task.model, num_local_steps=0)
    (report,) = fedax.simulate(task, algorithm, num_rounds=1, cohort_size=3)
    assert np.isnan(report.metrics["train_loss"])
    assert report.metrics["num_local_steps"] == 0


BAD_REPLIES = {
    "integers": ({"upload": jnp.arange(3)}, "upload has an array of type int64 and shape"),
    "vector weight": ({"weight": jnp.ones(1)}, r"weight must be a scalar, but has shape \(1,\)"),
    "vector info": ({"info": {"loss": (jnp.ones(2), 1.0)}}, "info 'loss' must be a scalar"),
    "another state": ({"client_state": jnp.ones(2)}, "state was .* but client returned"),
}


@pytest.mark.parametrize("case", BAD_REPLIES)
def test_a_bad_reply_is_a_sentence(case):
    changes, sentence = BAD_REPLIES[case]
    task = quadratic_task()
    good = fedax.fedavg(task.model)
    (exchange,) = good.exchanges

    def client(message, state, data, key):
        return exchange.client(message, state, data, key)._replace(**changes)

    bad = good._replace(exchanges=(exchange._replace(client=client),))
    with pytest.raises(fedax.AlgorithmError, match=sentence):
        fedax.train(task, bad, num_rounds=1, cohort_size=2)


@pytest.mark.slow
def test_clients_with_equal_data_draw_differently_and_rounds_do_too():
    """Randomness is keyed by (seed, round, client, exchange): what each draws, seen directly."""
    task = quadratic_task(sizes=(4,) * 5)

    def draws(seed, num_rounds):
        (exchange,) = fedax.fedavg(task.model).exchanges

        def client(message, state, data, key):
            reply = exchange.client(message, state, data, key)
            return reply._replace(client_state=jax.random.uniform(key))

        algorithm = fedax.fedavg(task.model)._replace(
            init_client=lambda params: jnp.zeros(()),
            exchanges=(exchange._replace(client=client),),
        )
        result = fedax.train(
            task, algorithm, num_rounds=num_rounds, cohort_size=5, seed=seed, evaluate_every=0
        )
        return result.state.client_store.read(np.arange(5)).tolist()

    everything = draws(0, 1) + draws(0, 2) + draws(1, 1)
    assert len(set(everything)) == 15
    assert draws(0, 1) == everything[:5]


@pytest.mark.parametrize("label", [7, -1])
def test_labels_out_of_range_are_not_trained_on_in_silence(label):
    """Where nothing looks at them before, the loss is NaN: such a client is rejected and named."""
    model = fedax.classification(
        lambda key: {"w": jnp.zeros((2, 2))}, lambda params, x: x @ params["w"]
    )
    clients = {
        name: {"x": np.ones((3, 2)), "y": np.full(3, label)}
        for name, label in {"ada": 1, "bob": label, "eve": 0}.items()
    }
    task = fedax.Task(model._replace(check=None), FederatedDataset.from_clients(clients))
    (report,) = fedax.simulate(task, fedax.fedavg(model), num_rounds=1, cohort_size=3)
    assert report.rejected == ["bob"]
    assert np.isfinite(report.metrics["train_loss"])


def test_shapes_that_would_broadcast_are_refused():
    x, y = np.ones((4, 3)), np.ones(4)
    for build, init, target, sentence in (
        (fedax.regression, jnp.zeros((3, 1)), y, r"same shape, but are \[4, 1\] and \[4\]"),
        (fedax.classification, jnp.zeros((3, 2)), y.astype(int)[:, None], r"they are \[4, 2\]"),
    ):
        model = build(lambda key, init=init: init, lambda params, x: x @ params)
        data = FederatedDataset.from_clients([{"x": x, "y": target}])
        with pytest.raises(ValueError, match=sentence):
            fedax.train(
                fedax.Task(model, data), fedax.fedavg(model, batch_size=4), num_rounds=1,
                cohort_size=1,
            )


def test_what_is_no_algorithm_or_no_array_is_named():
    task = quadratic_task()
    with pytest.raises(TypeError, match=r"the result of a factory such as .* but is a Model"):
        fedax.train(task, task.model, num_rounds=1)
    odd = task._replace(model=task.model._replace(init=lambda key: {"x": jnp.ones(3), "f": abs}))
    with pytest.raises(ValueError, match=r"parameter of type builtin_function_or_method .*eqx"):
        fedax.train(odd, fedax.fedavg(task.model), num_rounds=1)
    with pytest.raises(TypeError, match="Unknown option 'client_lr' of fedavg"):
        fedax.fedavg(task.model, client_lr=0.1)


def test_python_numbers_in_a_reply_are_fine():
    task = quadratic_task()
    good = fedax.fedavg(task.model)
    (exchange,) = good.exchanges

    def client(message, state, data, key):
        reply = exchange.client(message, state, data, key)
        return reply._replace(weight=1.0, info={"one": (1.0, 1)})

    fine = good._replace(exchanges=(exchange._replace(client=client),))
    history = fedax.train(task, fine, num_rounds=2, cohort_size=2).history
    assert history["one"].tolist() == [1.0, 1.0]


@pytest.mark.slow
def test_optax_schedules_are_schedules():
    import optax

    task = quadratic_task()
    theirs = optax.exponential_decay(0.2, transition_steps=2, decay_rate=0.5, staircase=True)
    ours = schedules.staircase_decay(0.2, 0.5, 2)
    params = []
    with jax.numpy_dtype_promotion("standard"):  # optax's own arithmetic mixes dtypes
        for schedule in (theirs, ours):
            algorithm = fedax.fedavg(task.model, schedule, schedule, batch_size=4)
            params.append(fedax.train(task, algorithm, num_rounds=5, cohort_size=3).params["x"])
    # optax raises to the power of the round in float32, whatever the parameters' precision.
    np.testing.assert_allclose(params[0], params[1], rtol=1e-7)


@pytest.mark.slow
def test_fewer_traced_local_steps_cost_less_time():
    task = quadratic_task(sizes=(8,) * 4)
    seconds = {}
    for steps in (500, 50_000):
        algorithm = fedax.fedavg(
            task.model, 0.01, num_local_steps=lambda t, k=steps: k + 0 * t, batch_size=2
        )
        rounds = fedax.simulate(task, algorithm, num_rounds=9, cohort_size=4, evaluate_every=0)
        next(rounds)  # compiles
        metrics = [report.metrics for report in rounds]
        assert {of_round["num_local_steps"] for of_round in metrics} == {steps}
        # The least, as what else the machine does may hold a round up.
        seconds[steps] = min(of_round["seconds"] for of_round in metrics)
    assert seconds[500] < seconds[50_000] / 5
