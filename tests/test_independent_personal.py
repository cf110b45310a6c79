"""Personal methods against NumPy written from the papers' algorithms alone.

The NumPy below was written before the library's versions were looked at. Clients have unequal
numbers of examples, so that uniform and weighted means differ; the loss is logistic regression
with three parameters, so that Hessians depend on the point.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import FederatedDataset, Task

ROUNDS = 5
SIZES = (4, 9, 5, 7, 6)
NAMES = tuple(f"client{i}" for i in range(len(SIZES)))
TOLERANCE = 1e-12


pytestmark = pytest.mark.shares_programs


def made_clients(seed=7):
    rng = np.random.default_rng(seed)
    clients = []
    for i, n in enumerate(SIZES):
        x = rng.normal(size=(n, 2)) + 0.3 * i
        truth = np.array([1.0, -1.0]) if i % 2 else np.array([-1.2, 0.7])
        y = (x @ truth + 0.2 * i + 0.5 * rng.normal(size=n) > 0).astype(np.float64)
        clients.append((x, y))
    return clients


CLIENTS = made_clients()
START = np.array([0.3, -0.2, 0.1])


def loss_of(w, data):
    """Mean logistic loss at w = (slope, slope, offset)."""
    x, y = data
    z = x @ w[:2] + w[2]
    return np.mean(np.logaddexp(0.0, z) - y * z)


def gradient(w, data):
    x, y = data
    z = x @ w[:2] + w[2]
    r = 1.0 / (1.0 + np.exp(-z)) - y
    return np.append(x.T @ r, r.sum()) / len(y)


def hessian(w, data):
    x, _ = data
    z = x @ w[:2] + w[2]
    p = 1.0 / (1.0 + np.exp(-z))
    rows = np.column_stack([x, np.ones(len(x))])
    return (rows * (p * (1 - p))[:, None]).T @ rows / len(x)


def uniform(models):
    return np.mean(models, axis=0)


def weighted(models):
    return np.average(models, axis=0, weights=SIZES)


def numpy_pfedme(batches, *, eta, lam, beta, inner_rate, inner_steps, mean):
    """Algorithm 1: R = len(batches[i][t]) local rounds; the inner problem by gradient descent."""
    w, history = START.copy(), []
    thetas = [START.copy() for _ in CLIENTS]
    for t in range(ROUNDS):
        locals_ = []
        for i in range(len(CLIENTS)):
            wi = w.copy()
            for batch in batches(i, t):
                theta = wi.copy()
                for _ in range(inner_steps):
                    theta = theta - inner_rate * (gradient(theta, batch) + lam * (theta - wi))
                wi = wi - eta * lam * (wi - theta)
                thetas[i] = theta
            locals_.append(wi)
        w = (1 - beta) * w + beta * mean(locals_)
        history.append((w.copy(), [v.copy() for v in thetas]))
    return history


def numpy_ifca(batches, starts, *, rate, average, weighting):
    """Algorithm 1: the choice by the loss on all of a client's data, at the models broadcast."""
    models, history = [s.copy() for s in starts], []
    m = len(CLIENTS)
    for t in range(ROUNDS):
        choice = [int(np.argmin([loss_of(v, CLIENTS[i]) for v in models])) for i in range(m)]
        new = []
        for j, model in enumerate(models):
            members = [i for i in range(m) if choice[i] == j]
            if average == "gradients":
                grads = [gradient(model, batches(i, t)[0]) for i in members]
                new.append(model - rate / m * np.sum(grads, axis=0) if members else model.copy())
                continue
            trained = []
            for i in members:
                v = model.copy()
                for batch in batches(i, t):
                    v = v - rate * gradient(v, batch)
                trained.append(v)
            if not trained:
                new.append(model.copy())
            elif weighting == "num_examples":
                new.append(np.average(trained, axis=0, weights=[SIZES[i] for i in members]))
            else:
                new.append(np.mean(trained, axis=0))
        models = new
        history.append(([v.copy() for v in models], choice))
    return history


def numpy_perfedavg(triples, *, alpha, beta, kind, delta=None, mean=uniform):
    """Algorithm 1 with (D, D', D'') for each local step; kind: 'exact', 'fo' or 'hf'."""
    w, history = START.copy(), []
    for t in range(ROUNDS):
        locals_ = []
        for i in range(len(CLIENTS)):
            v = w.copy()
            for d, d1, d2 in triples(i, t):
                g = gradient(v - alpha * gradient(v, d), d1)
                if kind == "fo":
                    step = g
                elif kind == "hf":
                    hv = (gradient(v + delta * g, d2) - gradient(v - delta * g, d2)) / (2 * delta)
                    step = g - alpha * hv
                else:
                    step = g - alpha * hessian(v, d2) @ g
                v = v - beta * step
            locals_.append(v)
        w = mean(locals_)
        history.append(w.copy())
    return history


def numpy_fedrep(batches_head, batches_body, *, rate_head, rate_body, mean=uniform):
    """Algorithm 1: the head (offset) tau_h steps at the body sent, then the body from there."""
    body, history = START[:2].copy(), []
    heads = [START[2:].copy() for _ in CLIENTS]
    for t in range(ROUNDS):
        bodies = []
        for i in range(len(CLIENTS)):
            for batch in batches_head(i, t):
                heads[i] = heads[i] - rate_head * gradient(np.append(body, heads[i]), batch)[2:]
            b = body.copy()
            for batch in batches_body(i, t):
                b = b - rate_body * gradient(np.append(b, heads[i]), batch)[:2]
            bodies.append(b)
        body = mean(bodies)
        history.append((body.copy(), [h.copy() for h in heads]))
    return history


def numpy_ditto(batches, batches_own, *, rate, rate_own, lam, mean=uniform):
    """Algorithm 1: v_k is pulled to the global model w^t that the round began with."""
    w, history = START.copy(), []
    own = [START.copy() for _ in CLIENTS]
    for t in range(ROUNDS):
        locals_ = []
        for i in range(len(CLIENTS)):
            v = w.copy()
            for batch in batches(i, t):
                v = v - rate * gradient(v, batch)
            locals_.append(v)
            for batch in batches_own(i, t):
                own[i] = own[i] - rate_own * (gradient(own[i], batch) + lam * (own[i] - w))
        w = mean(locals_)
        history.append((w.copy(), [v.copy() for v in own]))
    return history


def numpy_apfl(batches, *, rate, alpha, rate_alpha=0.0, mean=uniform):
    """Algorithm 1: v steps by the gradient at the mixture before w's step; then equation 11."""
    w, history = START.copy(), []
    own = [START.copy() for _ in CLIENTS]
    alphas = np.full(len(CLIENTS), float(alpha))
    for t in range(ROUNDS):
        locals_ = []
        for i in range(len(CLIENTS)):
            if rate_alpha:
                slope = (own[i] - w) @ gradient(
                    alphas[i] * own[i] + (1 - alphas[i]) * w, CLIENTS[i]
                )
                alphas[i] = np.clip(alphas[i] - rate_alpha * slope, 0.0, 1.0)
            u = w.copy()
            for batch in batches(i, t):
                mixture = alphas[i] * own[i] + (1 - alphas[i]) * u
                u = u - rate * gradient(u, batch)
                own[i] = own[i] - rate * alphas[i] * gradient(mixture, batch)
            locals_.append(u)
        w = mean(locals_)
        history.append((w.copy(), [a * v + (1 - a) * w for a, v in zip(alphas, own, strict=True)]))
    return history


def whole(num_steps):
    """Batches that are all of a client's examples."""
    return lambda i, t: [CLIENTS[i]] * num_steps


def chunks(num_steps, size=3):
    """Batches in the stored order; the last of a pass has the rest, and then a pass begins anew."""

    def batches(i, t):
        x, y = CLIENTS[i]
        one_pass = [(x[a : a + size], y[a : a + size]) for a in range(0, len(y), size)]
        return [one_pass[k % len(one_pass)] for k in range(num_steps)]

    return batches


WHOLE = {"batch_size": max(SIZES), "order": "sequential"}
CHUNKS = {"batch_size": 3, "order": "sequential"}
MEANS = {"uniform": uniform, "num_examples": weighted}


def flat(params):
    return np.append(np.asarray(params["slope"]), np.asarray(params["offset"]))


def library_task():
    def init(key):
        del key
        return {"slope": jnp.asarray(START[:2]), "offset": jnp.asarray(START[2:])}

    def outputs(params, batch):
        return batch["x"] @ params["slope"] + params["offset"][0]

    def losses(z, batch):
        return jnp.logaddexp(0.0, z) - batch["y"] * z, jnp.ones_like(z)

    def loss(params, batch, key):
        del key
        return losses(outputs(params, batch), batch)

    data = FederatedDataset.from_clients(
        {name: {"x": x, "y": y} for name, (x, y) in zip(NAMES, CLIENTS, strict=True)}
    )
    return Task(fedax.Model(init, loss, outputs, {"loss": losses}), data, data)


def library(task, algorithm, *, cohort_size=5, **options):
    """After every round: the server's state and each client's own model."""
    for report in fedax.simulate(
        task, algorithm, num_rounds=ROUNDS, cohort_size=cohort_size, evaluate_every=0, **options
    ):
        own = fedax.evaluate_own_models(task, algorithm, report.state, keep_params=True)
        for name, data, value in zip(NAMES, CLIENTS, own["loss"], strict=True):
            assert value == pytest.approx(loss_of(flat(own.params[name]), data), abs=TOLERANCE)
        yield report.state.server_state, [flat(own.params[name]) for name in NAMES]


def compare(rounds, wanted):
    count = 0
    for (state, own), (server, models) in zip(rounds, wanted, strict=True):
        np.testing.assert_allclose(flat(state.params), server, rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(own, models, rtol=0, atol=TOLERANCE)
        count += 1
    assert count == ROUNDS


@pytest.mark.quick
def test_pfedme():
    batches, weighting = chunks, "num_examples"
    task = library_task()
    algorithm = fedax.pfedme(
        task.model, 0.05, 0.7, 6.0, 0.1, 4, num_local_steps=4, weighting=weighting, **CHUNKS
    )
    wanted = numpy_pfedme(
        batches(4), eta=0.05, lam=6.0, beta=0.7, inner_rate=0.1, inner_steps=4,
        mean=MEANS[weighting],
    )  # fmt: skip
    compare(library(task, algorithm), wanted)


def proximal_point(w, data, lam):
    """The argmin of f(theta) + lam/2 |theta - w|^2, by Newton's method."""
    theta = w.copy()
    for _ in range(30):
        slope = gradient(theta, data) + lam * (theta - w)
        theta = theta - np.linalg.solve(hessian(theta, data) + lam * np.eye(3), slope)
    return theta


COHORTS = ((0, 1), (1, 2), (0, 2), (2, 1), (1, 0))  # clients 3 and 4 never take part


@pytest.mark.slow
def test_pfedme_with_many_inner_steps_descends_moreau_envelopes():
    """As nu tends to 0: w moves by eta lam (w - prox(w)), whatever solves the inner problem.

    The mean is over the round's clients. The others keep their models, at first the initial one.
    """
    task = library_task()
    eta, lam, beta = 0.04, 5.0, 1.3
    algorithm = fedax.pfedme(task.model, eta, beta, lam, 0.15, 80, num_local_steps=3, **WHOLE)
    w, thetas, wanted = START, [START] * len(SIZES), []
    for cohort in COHORTS:
        locals_ = []
        for i in cohort:
            wi = w
            for _ in range(3):
                thetas[i] = proximal_point(wi, CLIENTS[i], lam)
                wi = wi - eta * lam * (wi - thetas[i])
            locals_.append(wi)
        w = (1 - beta) * w + beta * uniform(locals_)
        wanted.append((w, list(thetas)))
    rounds = library(task, algorithm, cohort_size=2, sampling=lambda seed, t: np.array(COHORTS[t]))
    compare(rounds, wanted)


def initial_clusters(task, algorithm):
    return [flat(c) for c in fedax.initial_state(task, algorithm).server_state.clusters]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "batches", "averaging", "weighting", "num_steps"),
    [
        (CHUNKS, chunks, "models", "num_examples", 4),
        (WHOLE, whole, "gradients", "uniform", 1),
    ],
)
def test_ifca(options, batches, averaging, weighting, num_steps):
    task = library_task()
    algorithm = fedax.ifca(
        task.model, 0.6, num_clusters=3, initial_spread=0.7, cluster_seed=2, averaging=averaging,
        num_local_steps=num_steps, weighting=weighting, **options,
    )  # fmt: skip
    starts = initial_clusters(task, algorithm)
    wanted = numpy_ifca(
        batches(num_steps), starts, rate=0.6, average=averaging, weighting=weighting
    )
    seen = set()
    for (state, own), (models, choice) in zip(library(task, algorithm), wanted, strict=True):
        seen.add(len(set(choice)))
        np.testing.assert_allclose(
            [flat(c) for c in state.clusters], models, rtol=0, atol=TOLERANCE
        )
        again = [int(np.argmin([loss_of(v, data) for v in models])) for data in CLIENTS]
        np.testing.assert_allclose(own, [models[j] for j in again], rtol=0, atol=TOLERANCE)
        sizes = SIZES if weighting == "num_examples" else None
        votes = np.bincount(choice, weights=sizes, minlength=3)
        np.testing.assert_allclose(
            flat(state.params), models[np.argmax(votes)], rtol=0, atol=TOLERANCE
        )
    assert seen != {1}  # some round has more than one cluster


def batch_probe_task():
    """The logistic model beside parameters whose steps tell which examples D, D' and D'' had."""
    total = sum(SIZES)

    def init(key):
        del key
        return {
            "slope": jnp.asarray(START[:2]), "offset": jnp.asarray(START[2:]),
            "u": jnp.zeros(total), "c": jnp.zeros(total), "d": jnp.zeros(()),
        }  # fmt: skip

    def outputs(params, batch):
        return batch["x"] @ params["slope"] + params["offset"][0]

    def loss(params, batch, key):
        del key
        z, e, u, d = outputs(params, batch), batch["id"], params["u"], params["d"]
        probe = u[e] + u @ u / 2 + d + params["c"][e] * d
        return jnp.logaddexp(0.0, z) - batch["y"] * z + probe, jnp.ones_like(z)

    ids = np.split(np.arange(total), np.cumsum(SIZES)[:-1])
    data = FederatedDataset.from_clients(
        {n: {"x": x, "y": y, "id": e} for n, (x, y), e in zip(NAMES, CLIENTS, ids, strict=True)}
    )
    return Task(fedax.Model(init, loss, outputs, {}), data), ids


def members(indicator):
    """Positions with value 1 where all others have 0."""
    np.testing.assert_allclose(indicator, np.round(indicator), atol=1e-9)
    assert set(np.round(indicator)) <= {0.0, 1.0}
    return np.flatnonzero(np.round(indicator))


def decoded(before, after, ids, *, alpha, beta, size):
    """The examples of D, D' and D'' of each client, from the probe's parameters around a round."""
    scale = -len(SIZES) / beta
    du = scale * (np.asarray(after["u"]) - np.asarray(before["u"]))
    dc = scale * (np.asarray(after["c"]) - np.asarray(before["c"]))
    u, c, d = (np.asarray(before[name]) for name in "ucd")
    result = []
    for e in ids:
        # All clients shrink u alike. What is left is (1 - alpha) (in D' - alpha in D) / size.
        mine = size * (du[e] - len(SIZES) * (1 - alpha) ** 2 * u[e]) / (1 - alpha)
        in_d1 = (mine > 0.5).astype(float)  # of 1, 1 - alpha, 0, -alpha
        in_d = (in_d1 - mine) / alpha
        first, second = members(in_d), members(in_d1)
        # The gradient v at the inner step's end, and c's part of v - alpha Hessian v.
        d_inside = d - alpha * (1 + c[e][first].mean())
        v_d = 1 + (c[e] - alpha * d * in_d / size)[second].mean()
        third = members((d_inside * in_d1 - size * dc[e]) / (alpha * v_d))
        result.append([first, second, third])
    return result


@pytest.mark.slow
@pytest.mark.parametrize("version", ["FO", "HF"])
def test_perfedavg(version):
    task = library_task()
    alpha, beta, delta = 0.3, 0.4, 1e-2
    algorithm = fedax.perfedavg(
        task.model, beta, inner_learning_rate=alpha, version=version, difference=delta,
        num_local_steps=3, **WHOLE,
    )  # fmt: skip
    wanted = numpy_perfedavg(
        lambda i, t: [(CLIENTS[i],) * 3] * 3,
        alpha=alpha, beta=beta, kind=version.lower(), delta=delta,
    )  # fmt: skip
    own = [[w - alpha * gradient(w, data) for data in CLIENTS] for w in wanted]
    compare(library(task, algorithm), zip(wanted, own, strict=True))


@pytest.mark.slow
def test_perfedavg_has_three_minibatches():
    """D steps inside, D' gives the gradient there and D'' the Hessian; they are drawn apart."""
    task, ids = batch_probe_task()
    alpha, beta, delta, size = 0.3, 0.4, 1e-2, 3
    algorithm = fedax.perfedavg(
        task.model, beta, inner_learning_rate=alpha, version="HF", difference=delta,
        num_local_steps=1, batch_size=size,
    )  # fmt: skip
    params, servers, triples = fedax.initial_state(task, algorithm).server_state.params, [], []
    for report in fedax.simulate(task, algorithm, num_rounds=ROUNDS, cohort_size=len(SIZES)):
        after = report.state.server_state.params
        triples.append(decoded(params, after, ids, alpha=alpha, beta=beta, size=size))
        params = after
        servers.append(flat(after))

    def part(i, rows):
        return CLIENTS[i][0][rows], CLIENTS[i][1][rows]

    wanted = numpy_perfedavg(
        lambda i, t: [[part(i, rows) for rows in triples[t][i]]],
        alpha=alpha, beta=beta, kind="hf", delta=delta,
    )  # fmt: skip
    np.testing.assert_allclose(servers, wanted, rtol=0, atol=TOLERANCE)
    every = [t for one in triples for t in one]
    assert all(len(rows) == size for t in every for rows in t)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        same = sum(list(t[a]) == list(t[b]) for t in every)
        assert same < len(every) / 2


def fedrep_wanted(batches, num_head, num_body, rate, mean):
    for body, heads in numpy_fedrep(
        batches(num_head), batches(num_body), rate_head=rate, rate_body=rate, mean=mean
    ):
        yield body, [np.append(body, head) for head in heads]


@pytest.mark.slow
def test_fedrep():
    batches, weighting = chunks, "uniform"
    task = library_task()
    algorithm = fedax.fedrep(
        task.model, "offset", 0.4, 4, num_local_steps=3, weighting=weighting, **CHUNKS
    )
    wanted = fedrep_wanted(batches, 4, 3, 0.4, MEANS[weighting])
    for (state, own), (body, models) in zip(library(task, algorithm), wanted, strict=True):
        np.testing.assert_allclose(flat(state.params)[:2], body, rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(own, models, rtol=0, atol=TOLERANCE)


@pytest.mark.slow
def test_ditto():
    batches, weighting = chunks, "num_examples"
    task = library_task()
    algorithm = fedax.ditto(
        task.model, 0.4, attraction=0.6, num_local_steps=4, weighting=weighting, **CHUNKS
    )
    wanted = numpy_ditto(
        batches(4), batches(4), rate=0.4, rate_own=0.4, lam=0.6, mean=MEANS[weighting]
    )
    compare(library(task, algorithm), wanted)


@pytest.mark.slow
def test_apfl():
    rate_alpha, batches, weighting = 0.8, chunks, "num_examples"
    task = library_task()
    algorithm = fedax.apfl(
        task.model, 0.4, mixture=0.3, mixture_learning_rate=rate_alpha, num_local_steps=4,
        weighting=weighting, **CHUNKS,
    )  # fmt: skip
    wanted = numpy_apfl(
        batches(4), rate=0.4, alpha=0.3, rate_alpha=rate_alpha, mean=MEANS[weighting]
    )
    compare(library(task, algorithm), wanted)
