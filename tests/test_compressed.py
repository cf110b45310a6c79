"""`fedax.compressed` around every method: identity, memory, composition, bits, the command line."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import codecs, train
from fedax.algorithms.registry import ALGORITHMS
from fedax.cli.main import run_command
from fedax.experiment.metrics import read_metrics
from problems import identical, largest_difference, quadratic_task

TASK = quadratic_task()
MODEL = TASK.model
LOCAL = {"batch_size": 2, "num_local_epochs": 1}
SUMMED = [name for name in ALGORITHMS if name not in ("pfnm", "afl", "centralised", "fedopt")]
RATES = {"server_learning_rate": 0.5, "client_learning_rate": 0.05}


def method(name):
    if name == "maml":
        return fedax.maml(MODEL, 0.05, 0.1)
    if name in ("minibatch_sgd", "server_only"):
        return ALGORITHMS[name].factory(MODEL)
    where = {"where": ()} if name == "fedrep" else {}  # the model has one array
    return ALGORITHMS[name].factory(MODEL, **where, **LOCAL)


def run(algorithm, num_rounds=3, **options):
    options = {"cohort_size": 4, "evaluate_every": 0, "seed": 2} | options
    return train(TASK, algorithm, num_rounds=num_rounds, **options)


@pytest.mark.parametrize("name", [
    pytest.param(n, marks=pytest.mark.quick if n in ("scaffold", "mime", "fedadam") else
                 pytest.mark.slow)
    for n in SUMMED
])  # fmt: skip
def test_the_identity_codec_is_the_method_to_the_bit(name):
    plain, same = run(method(name)), run(fedax.compressed(method(name), codecs.identity()))
    assert identical(plain.state.server_state, same.state.server_state)
    assert identical(plain.history["train_loss"], same.history["train_loss"])


@pytest.mark.parametrize("name", [name for name in SUMMED if name != "ifca"])
def test_every_method_says_what_it_uploads(name):
    """A biased codec remembers something of each upload: its memory has the upload's shapes.

    Around IFCA it is refused.
    """
    algorithm = fedax.compressed(method(name), codecs.top_k(0.5))
    sent = fedax.communication(algorithm, MODEL, TASK.train.client_at(0))
    plain = fedax.communication(method(name), MODEL, TASK.train.client_at(0))
    assert 0 < sent.bytes_up < plain.bytes_up
    assert sent.bytes_down == plain.bytes_down


@pytest.mark.slow
def test_wrappers_inside_and_outside():
    def wrapped(codec):
        return [
            fedax.compressed(fedax.elastic(fedax.scaffold(MODEL, **LOCAL), MODEL), codec),
            fedax.elastic(fedax.compressed(fedax.scaffold(MODEL, **LOCAL), codec), MODEL),
            fedax.compressed(fedax.local_update_decay(
                lambda c, s: fedax.fedavg(MODEL, c, s, **LOCAL), MODEL), codec),
            fedax.local_update_decay(
                lambda c, s: fedax.compressed(fedax.fedavg(MODEL, c, s, **LOCAL), codec), MODEL),
        ]  # fmt: skip

    for algorithm in wrapped(codecs.top_k(0.5)):
        assert fedax.communication(algorithm, MODEL, TASK.train.client_at(0)).bytes_up > 0
    inside, outside = (run(algorithm) for algorithm in wrapped(codecs.identity())[:2])
    assert identical(inside.params, outside.params)


@pytest.mark.slow
def test_feedback_under_scaffold_with_partial_participation_resumes_to_the_bit():
    algorithm = fedax.compressed(fedax.scaffold(MODEL, **LOCAL), codecs.top_k(0.3))
    whole, half = run(algorithm, 6), run(algorithm, 3)
    rest = run(algorithm, 6, state=half.state)
    assert identical(whole.state.server_state, rest.state.server_state)
    assert largest_difference(whole.params, run(fedax.scaffold(MODEL, **LOCAL), 6).params) > 1e-6
    chunks = run(algorithm, 6, clients_per_chunk=2)
    assert largest_difference(whole.params, chunks.params) < 1e-12


def test_c_is_the_mean_of_the_control_variates_less_the_mean_memory():
    """With equal weights; also if clients take part rarely."""
    algorithm = fedax.compressed(
        fedax.scaffold(MODEL, weighting="uniform", **LOCAL), codecs.top_k(0.3)
    )
    state = run(algorithm, 12).state
    clients = state.client_store.read(np.arange(TASK.train.num_clients))
    left_over = clients.memory[0][1][0]  # of the exchange's second array, what was left over
    expected = clients.inner["x"].mean(0) - left_over.mean(0)
    assert np.abs(left_over).max() > 1e-6
    np.testing.assert_allclose(state.server_state.control["x"], expected, atol=1e-12)


@pytest.mark.slow
def test_of_a_client_drawn_twice_the_memory_counts_once():
    algorithm = fedax.compressed(fedax.fedavg(MODEL, **LOCAL), codecs.top_k(0.3))
    state = algorithm.init_client(MODEL.init(jax.random.key(0)))
    state = jax.tree.map(jnp.ones_like, state)
    message = algorithm.exchanges[0].broadcast(algorithm.init(MODEL.init(jax.random.key(0))))
    uploads = []
    for repeat in (0, 1):
        arrays = {name: jnp.asarray(array) for name, array in TASK.train.client_at(0).items()}
        rows = len(arrays["c"])
        data = fedax.ClientData(arrays, jnp.int32(0), jnp.int32(rows), rows, repeat)
        reply = algorithm.exchanges[0].client(message, state, data, jax.random.key(1))
        (error, _), = reply.client_state.memory[0]
        uploads.append(reply.upload.pseudo_gradient["x"] + error)
    np.testing.assert_allclose(uploads[0], uploads[1] + 1, rtol=1e-12)


@pytest.mark.quick
def test_bits_add_up_over_exchanges_and_clients():
    algorithm = fedax.compressed(fedax.mime(MODEL, **LOCAL), codecs.sign())
    found = run(algorithm, 2, diagnostics=True).history
    each = 2 * (64 + 3)  # the scale and three signs, in both exchanges
    assert found["bits_up"].tolist() == [each, each]
    assert found["bytes_up"].tolist() == [4 * each / 8] * 2
    sent = fedax.communication(algorithm, MODEL, TASK.train.client_at(0))
    assert sent.bytes_up == 2 * 9  # whole bytes


@pytest.mark.quick
def test_the_downlink_follows_the_model():
    plain = run(fedax.fedadam(MODEL, **LOCAL), 30)
    algorithm = fedax.compressed(
        fedax.fedadam(MODEL, **LOCAL), codecs.identity(), codecs.top_k(0.4)
    )
    coded = run(algorithm, 30, diagnostics=True)
    state = coded.state.server_state
    assert largest_difference(state.own.copy, state.params) > 0
    assert coded.history["bits_down"][0] > coded.history["bits_down"][1]
    assert abs(coded.history["train_loss"][-1] / plain.history["train_loss"][-1] - 1) < 0.5
    whole = run(fedax.compressed(
        fedax.mime(MODEL, **LOCAL), codecs.identity(), codecs.top_k(1.0)), 5)
    np.testing.assert_allclose(
        whole.params["x"], run(fedax.mime(MODEL, **LOCAL), 5).params["x"], rtol=1e-12
    )


def test_what_cannot_be_is_refused_with_a_sentence():
    network = fedax.load_task("digits").model
    with pytest.raises(ValueError, match="receives them one by one"):
        fedax.compressed(fedax.pfnm(network))
    with pytest.raises(ValueError, match="receives them one by one"):
        fedax.compressed(fedax.afl(MODEL))
    with pytest.raises(ValueError, match="nothing is sent"):
        fedax.compressed(fedax.centralised(MODEL))
    with pytest.raises(ValueError, match="compressed already"):
        fedax.compressed(fedax.elastic(fedax.compressed(fedax.fedavg(MODEL)), MODEL))
    with pytest.raises(ValueError, match="downlink must be a biased codec"):
        fedax.compressed(fedax.fedavg(MODEL), downlink=codecs.qsgd())
    with pytest.raises(TypeError, match="codec must be one of"):
        fedax.compressed(fedax.fedavg(MODEL), "qsgd")
    with pytest.raises(fedax.AlgorithmError, match="sends a second model"):
        run(fedax.compressed(fedax.mimemvr(MODEL), downlink=codecs.sign()))
    plain = fedax.fedavg(MODEL, **LOCAL)
    (exchange,) = plain.exchanges
    own = plain._replace(exchanges=(exchange._replace(
        client=lambda *a: exchange.client(*a)._replace(upload={"x": jnp.zeros((3, 2))}),
        server=lambda state, mean, participation: state,
    ),))
    with pytest.raises(fedax.AlgorithmError, match="upload=function"):
        run(fedax.compressed(own, codecs.sign()))
    run(fedax.compressed(own, codecs.qsgd()), 1)


@pytest.mark.slow
def test_levels_of_a_sweep_are_one_program():
    made = [fedax.compressed(fedax.fedavg(MODEL, **LOCAL), codecs.qsgd(s)) for s in (1, 4, 16)]
    structures = {fedax.partition(algorithm)[1] for algorithm in made}
    assert len(structures) == 1
    swept = fedax.sweep(
        TASK,
        lambda levels: fedax.compressed(fedax.fedavg(MODEL, **LOCAL), codecs.qsgd(levels)),
        {"levels": [1, 16]}, num_rounds=3, cohort_size=4, seeds=1, evaluate_every=0,
        progress=False,
    )
    few, many = swept.record.metrics["bits_up"].mean(1)
    assert few < many


@pytest.mark.slow
def test_by_name_on_the_command_line(tmp_path, capsys):
    out = tmp_path / "run"
    line = ["run", "quadratics", "compressed+fedadam", "--rounds", "3", "--out", str(out), "--set",
            "codec=top_k(0.2)", "downlink=sign", "diagnostics=true"]
    assert run_command(line) == 0, capsys.readouterr().err
    assert read_metrics(out)[-1]["bits_up"] > 0
    options = json.loads((out / "config.json").read_text())["algorithm_options"]
    assert options["codec"] == "top_k(0.2)"
    assert run_command([*line[:6], str(tmp_path / "other"), "--set", "codec=topk(0.2)"]) == 2
    assert "top_k" in capsys.readouterr().err
