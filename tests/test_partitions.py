"""Partitions of centralised data: exact sizes, and distributions against their expectation."""

import functools
import math
import time
import zlib

import numpy as np
import pytest
import scipy.stats

import fedax
from fedax.data import FederatedDataset
from fedax.data.partitions import (
    PARTITIONS,
    by_key,
    dirichlet,
    dirichlet_by_class,
    dirichlet_lognormal,
    iid,
    label_draws,
    pachinko,
    parse_partition,
    shards,
)

pytestmark = pytest.mark.quick

FINE = np.random.default_rng(7).permutation(np.repeat(np.arange(20), 60))
DATA = FederatedDataset(
    {"x": np.arange(1200.0), "y": FINE, "coarse": FINE // 4, "user": np.arange(1200) % 12},
    np.array([0, 500, 1200]),
)


def counts_of(partition, labels):
    """Examples of each client with each label, [num_clients, num_labels]."""
    owner = np.repeat(np.arange(partition.num_clients), partition.client_sizes)
    counts = np.zeros((partition.num_clients, labels.max() + 1), int)
    np.add.at(counts, (owner, labels[partition.rows]), 1)
    return counts


@pytest.mark.parametrize("text", PARTITIONS)
def test_every_row_has_one_owner_and_a_seed_repeats_to_the_bit(text):
    clients = None if "key" in text else 12
    partition = parse_partition(text, DATA, clients, seed=3)
    assert sorted(partition.rows.tolist()) == list(range(1200))
    assert partition.num_clients == 12
    if text in ("iid", "dirichlet(0.1)", "shards(2)", "pachinko(0.1, 10)", "by_key('user')"):
        assert partition.client_sizes.tolist() == [100] * 12
    for rows in np.split(partition.rows, partition.offsets[1:-1]):
        assert (np.diff(rows) > 0).all()
    again = parse_partition(text, DATA, clients, seed=3)
    assert (again.rows == partition.rows).all()
    assert again.made == partition.made
    if "key" not in text:
        other = parse_partition(text, DATA, clients, seed=4)
        assert len(other.rows) != len(again.rows) or (other.rows != partition.rows).any()


# Of rows and offsets as int64, little endian. They change where NumPy's streams do, or a draw here;
# then partitions made with an older version must be kept as files, and the changelog says so.
PINNED = {
    "iid": 2424217398,
    "dirichlet(0.1)": 2559489638,
    "dirichlet_by_class(0.5)": 4214574789,
    "dirichlet_lognormal(0.1, 0.3)": 829674216,
    "shards(2)": 310335528,
    "pachinko(0.1, 10)": 1708846923,
    "by_key('user')": 1330376061,
}


@pytest.mark.parametrize("text", PINNED)
def test_a_seed_gives_the_same_rows_on_every_platform(text):
    partition = parse_partition(text, DATA, None if "key" in text else 12, seed=3)
    content = partition.rows.astype("<i8").tobytes() + partition.offsets.astype("<i8").tobytes()
    assert zlib.crc32(content) == PINNED[text]


@pytest.mark.parametrize("alpha", [0.123456789, 1e-9, 1 / 3, 2, 1e300])
def test_the_text_of_a_partition_makes_it_again(alpha):
    made = parse_partition(f"dirichlet({alpha!r}, examples_per_client=50)", DATA, 12, seed=3)
    again = parse_partition(made.made["partition"], DATA, 12, seed=3)
    assert again.made == made.made
    assert (again.rows == made.rows).all()
    assert float(made.made["partition"].split("(")[1].split(",")[0]) == alpha


def test_sizes_that_do_not_divide_and_a_stated_remainder():
    labels = np.arange(103) % 4
    for partition in (iid(103, 10), dirichlet(labels, 10, 0.3), shards(labels, 10, 1)):
        assert partition.client_sizes.sum() == 103
        assert sorted(set(partition.client_sizes.tolist())) == [10, 11]
    some = dirichlet(labels, 10, 0.3, examples_per_client=7)
    assert some.client_sizes.tolist() == [7] * 10
    assert len(set(some.rows.tolist())) == 70
    assert some.num_examples == 103


@pytest.mark.quick
@pytest.mark.parametrize("given", [3, "digits.npz"])
def test_what_is_no_text_of_a_partition_meets_a_sentence(given):
    with pytest.raises(ValueError, match=r"takes a partition as text, .* partition.of\(data\)"):
        fedax.load_task("digits", "logistic", partition=given)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0, 1e12])
def test_label_shares_have_the_mean_and_variance_of_a_dirichlet_distribution(alpha):
    # A client's n labels are Dirichlet-multinomial as long as no label is used up: with A = K alpha
    # the share of each has mean 1 / K and variance (1/K)(1 - 1/K)(n + A) / (n (1 + A)).
    K, n, clients = 5, 40, 4000
    labels = np.repeat(np.arange(K), 60_000)
    shares = counts_of(dirichlet(labels, clients, alpha, examples_per_client=n), labels) / n
    A = K * alpha
    variance = (1 / K) * (1 - 1 / K) * (n + A) / (n * (1 + A))
    assert shares.mean(0) == pytest.approx(1 / K, abs=5 * math.sqrt(variance / clients))
    assert shares.var(0) == pytest.approx(variance, rel=0.12)


def test_towards_zero_a_client_has_one_label_and_towards_infinity_all_alike():
    labels = np.repeat(np.arange(10), 300)
    for alpha in (1e-300, 1e-9):
        counts = counts_of(dirichlet(labels, 30, alpha, examples_per_client=50), labels)
        # All but those who meet the end of a label.
        assert ((counts > 0).sum(1) == 1).sum() >= 20
    counts = counts_of(dirichlet(labels, 5, 1e300), labels)
    assert scipy.stats.chisquare(counts.ravel()).pvalue > 1e-4


def naive(distribution, clients, counts):
    """The probability of each sequence of labels, slot after slot."""
    found = {}

    def go(drawn, left, probability):
        if len(drawn) == len(clients):
            found[drawn] = found.get(drawn, 0) + probability
            return
        for label, p in enumerate(distribution(clients[len(drawn)], left > 0)):
            if p:
                go((*drawn, label), left - (np.arange(len(left)) == label), probability * p)

    go((), np.asarray(counts), 1.0)
    return found


def flat(weights, client, is_left):
    p = weights[client] * is_left
    return p / p.sum()


def grouped(weights, groups, group_of, client, is_left):
    """A coarse label among those that have fine ones left, then a fine one among its own."""
    own = weights[client] * is_left
    sums = np.bincount(group_of, own, len(groups[client]))
    coarse = groups[client] * (sums > 0)
    return coarse[group_of] / coarse.sum() * own / np.where(sums > 0, sums, 1)[group_of]


@pytest.mark.parametrize("window", [1, 4096])
@pytest.mark.parametrize("kind", ["flat", "groups"])
def test_draws_without_replacement_are_those_of_the_loop(kind, window, monkeypatch):
    monkeypatch.setattr(label_draws, "_WINDOW", window)
    monkeypatch.setattr(label_draws, "_TABLE", 4)
    weights = np.array([[1.0, 2.0, 4.0, 3.0], [8.0, 1.0, 1.0, 2.0]])
    groups, group_of = np.array([[3.0, 1.0], [1.0, 2.0]]), np.array([0, 0, 1, 1])
    clients, counts = np.array([0, 1, 0, 0, 1]), np.array([1, 1, 2, 1])
    if kind == "flat":
        expected = naive(functools.partial(flat, weights), clients, counts)
        distributions = label_draws.LabelDistributions(np.log(weights))
    else:
        law = functools.partial(grouped, weights, groups, group_of)
        expected = naive(law, clients, counts)
        distributions = label_draws.LabelDistributions(np.log(weights), np.log(groups), group_of)
    rng, draws = label_draws.generator(5), 1000
    seen = dict.fromkeys(expected, 0)
    for _ in range(draws):
        drawn = label_draws.draw_labels(distributions, clients, counts, rng)
        seen[tuple(drawn.tolist())] += 1
    assert sum(expected.values()) == pytest.approx(1)
    chances = np.array(list(expected.values()))
    result = scipy.stats.chisquare(list(seen.values()), draws * chances / chances.sum())
    assert result.pvalue > 1e-3


def test_rows_of_a_label_are_drawn_at_random():
    labels = np.zeros(400, int)
    first = dirichlet(labels, 20, 1.0, seed=1)
    halves = [np.mean(rows < 200) for rows in np.split(first.rows, first.offsets[1:-1])]
    # Hypergeometric: 20 of 400, half of which are below 200.
    assert np.std(halves) == pytest.approx(math.sqrt(0.25 / 20 * 380 / 399), rel=0.5)


def test_a_test_set_of_the_same_seed_has_the_same_label_distributions():
    train, test = np.arange(40_000) % 10, np.arange(20_000)[::-1] % 10
    one, two = (
        counts_of(dirichlet(y, 50, 0.1, seed=9, examples_per_client=n), y) / n
        for y, n in ((train, 200), (test, 100))
    )
    assert np.abs(one - two).sum(1).mean() / 2 < 0.1  # by chance it is some 0.85


def test_lognormal_sizes():
    labels = np.arange(200_000) % 10
    for sigma in (0.3, 1.0):
        sizes = dirichlet_lognormal(labels, 1000, 1.0, sigma).client_sizes
        assert sizes.sum() == 200_000
        assert sizes.min() >= 1
        assert np.log(sizes).std() == pytest.approx(sigma, rel=0.1)
    assert set(dirichlet_lognormal(labels, 1000, 1.0, 0).client_sizes.tolist()) == {200}
    tiny = dirichlet_lognormal(labels[:30], 30, 1.0, 5.0)
    assert tiny.client_sizes.tolist() == [1] * 30
    skewed = dirichlet_lognormal(labels[:2000], 100, 1.0, 6.0).client_sizes
    assert skewed.min() == 1
    assert skewed.sum() == 2000
    assert skewed.max() > 500


def test_clients_that_draw_in_turns_share_the_ends_of_labels():
    labels = np.arange(20_000) % 10
    in_turns = counts_of(dirichlet_lognormal(labels, 200, 0.01, 0), labels)
    in_order = counts_of(dirichlet(labels, 200, 0.01), labels)
    few, many = ((counts > 0).sum(1) for counts in (in_turns, in_order))
    assert few[-20:].mean() == pytest.approx(few[:20].mean(), abs=0.8)
    assert many[:20].mean() < few[:20].mean()  # the first have what they want


def test_proportions_by_class_are_those_of_a_dirichlet_distribution():
    # With one label none of n clients is full before it is dealt: p ~ Dir(alpha) over clients.
    n, alpha, N = 10, 5.0, 20_000
    shares = np.stack([
        dirichlet_by_class(np.zeros(N, int), n, alpha, seed=seed, min_examples=1).client_sizes / N
        for seed in range(100)
    ])
    assert shares.mean(0) == pytest.approx(1 / n, abs=0.015)
    assert shares.var() == pytest.approx(1 / n * (1 - 1 / n) / (n * alpha + 1), rel=0.2)


def test_by_class_keeps_clients_from_growing_beyond_the_mean_and_draws_again():
    labels = np.arange(6000) % 10
    partition = dirichlet_by_class(labels, 20, 0.5)
    assert partition.client_sizes.min() >= 10
    counts = counts_of(partition, labels)
    # A client that has 300 or more gets nothing of the labels that come later.
    full = np.cumsum(counts, axis=1) >= 300
    assert (counts[:, 1:][full[:, :-1]] == 0).all()
    assert full.any()
    rare = dirichlet_by_class(labels, 20, 0.5, min_examples=200)
    assert rare.client_sizes.min() >= 200
    assert rare.made["partition"] == "dirichlet_by_class(0.5, 200)"
    with pytest.raises(ValueError, match="always had fewer than min_examples = 20 examples"):
        dirichlet_by_class(labels[:200] * 0, 10, 1e-9, min_examples=20)


def test_shards_as_mcmahan_deals_them():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600))
    partition = shards(labels, 100, 2)  # 200 shards of 30, 20 a label
    counts = counts_of(partition, labels)
    assert set(counts.ravel().tolist()) == {0, 30, 60}
    # Two shards are of one label with probability 19 / 199.
    assert ((counts == 60).sum()) == pytest.approx(100 * 19 / 199, abs=10)
    ranks = np.argsort(np.argsort(labels, kind="stable"))
    for rows in np.split(partition.rows, partition.offsets[1:-1]):
        assert len(set((ranks[rows] // 30).tolist())) == 2


def test_pachinko_allocation():
    fine = np.arange(200_000) % 20
    n, J, clients = 50, 5, 2000
    partition = pachinko(fine, fine % 5, clients, 0.1, 10.0, examples_per_client=n)
    counts = counts_of(partition, fine)
    by_coarse = np.stack([counts[:, c::5].sum(1) for c in range(J)], 1)
    A = J * 0.1
    variance = (1 / J) * (1 - 1 / J) * (n + A) / (n * (1 + A))
    assert (by_coarse / n).mean(0) == pytest.approx(1 / J, abs=0.04)
    assert (by_coarse / n).var(0) == pytest.approx(variance, rel=0.1)
    # Within a coarse label of which a client has m examples, 4 fine ones from Dir(10).
    clients_of_one = by_coarse[:, 0] == n
    shares = counts[clients_of_one][:, 0::5] / n
    assert shares.var(0).mean() == pytest.approx(0.25 * 0.75 * (n + 40) / (n * 41), rel=0.2)


def test_fed_cifar100():
    fine = np.repeat(np.arange(100), 500)
    partition = pachinko(fine, fine % 20, 500)
    assert partition.client_sizes.tolist() == [100] * 500
    assert sorted(partition.rows.tolist()) == list(range(50_000))
    # The first clients meet no end: of 20 coarse labels with A = 2, one is missing in 100 draws
    # with probability Gamma(A) Gamma(100 + A - 0.1) / (Gamma(A - 0.1) Gamma(100 + A)).
    missing = math.exp(
        math.lgamma(2) + math.lgamma(101.9) - math.lgamma(1.9) - math.lgamma(102)
    )
    seen = (counts_of(partition, fine % 20)[:250] > 0).sum(1)
    assert seen.mean() == pytest.approx(20 * (1 - missing), abs=0.4)


def test_one_client_and_as_many_as_examples():
    labels = np.array([5, 0, 5, 0, 9, 9, 9])
    for deal in (
        lambda n: iid(7, n), lambda n: dirichlet(labels, n, 0.1), lambda n: shards(labels, n, 1),
        lambda n: dirichlet_lognormal(labels, n, 0.1, 1.0),
        lambda n: dirichlet_by_class(labels, n, 50.0, min_examples=1),
        lambda n: pachinko(labels, labels // 9, n),
    ):
        assert deal(1).rows.tolist() == list(range(7))
        assert deal(7).client_sizes.tolist() == [1] * 7
        with pytest.raises(ValueError, match=r"num_clients is 8, but there are 7 examples"):
            deal(8)


def test_a_label_without_examples_changes_nothing():
    labels = np.arange(90) % 3
    one, other = dirichlet(labels, 9, 0.2), dirichlet(labels * 10**9, 9, 0.2)
    assert (one.rows == other.rows).all()


BAD = {
    "negative": (np.array([0, 1, -1]), "the label of row 2 is -1"),
    "floats": (np.array([0.5, 1.0]), "must be whole numbers, but they are float64, such as 0.5"),
    "text": (np.array(["cat"]), "but they are text, such as 'cat'; number them"),
    "bool": (np.array([True]), "but they are bool"),
    "none": (np.array([], int), "there are no examples"),
    "matrix": (np.zeros((3, 2), int), r"one label for each row, but they have shape \[3, 2\]"),
}


@pytest.mark.parametrize("case", BAD)
def test_labels_that_are_none_meet_a_sentence(case):
    labels, words = BAD[case]
    for deal in (
        lambda: dirichlet(labels, 1, 0.1), lambda: dirichlet_by_class(labels, 1, 0.1),
        lambda: dirichlet_lognormal(labels, 1, 0.1, 0.1), lambda: shards(labels, 1),
        lambda: pachinko(labels, labels, 1),
    ):
        with pytest.raises(ValueError, match=words):
            deal()


WRONG = {
    "dirichlet(0)": "alpha must be a finite number above 0, but is 0",
    "dirichlet(nan)": "is not a partition",
    "dirichlet": "'dirichlet' is not a valid partition: missing a required .* 'alpha'; dirichlet ",
    "dirichlet('a')": "alpha must be a finite number above 0, but is 'a'",
    "dirichlet(0.1, examples_per_client=200)": "need 2,400, but there are 1,200",
    "dirichlet_lognormal(0.1, -1)": "sigma must be a finite number at least 0",
    "dirichlet_by_class(0.1, 101)": "need 1,212 examples, but there are 1,200",
    "dirichlet_lognormal(0.1, 1e308)": "sigma must be .* and at most 1e\\+06",
    "shards(0)": "shards_per_client must be a whole number of at least 1",
    "shards(101)": "101 shards each need 1,212 rows",
    "dirichlett(0.1)": "Did you mean 'dirichlet'",
    "iid; rm": "is not a partition such as 'iid'",
    "by_key('writer')": "Unknown array 'writer'",
}


@pytest.mark.parametrize("text", WRONG)
def test_settings_out_of_range_meet_a_sentence(text):
    with pytest.raises(ValueError, match=WRONG[text]):
        parse_partition(text, DATA, 12)


def test_arguments_of_the_data_set_meet_a_sentence():
    with pytest.raises(ValueError, match="'iid' needs num_clients"):
        parse_partition("iid", DATA)
    with pytest.raises(ValueError, match="Unknown array 'label'"):
        parse_partition("shards(2)", DATA, 3, label="label")
    with pytest.raises(ValueError, match="seed must be a whole number of at least 0"):
        parse_partition("iid", DATA, 3, seed=-1)
    with pytest.raises(ValueError, match="coarse label 1 in row 1 and 0 elsewhere"):
        pachinko([0, 0, 0], [0, 1, 0], 1)
    with pytest.raises(ValueError, match="3 labels and 2 coarse labels"):
        pachinko([0, 0, 0], [0, 1], 1)


def test_keys_are_clients_as_in_from_arrays():
    keys = ["bob", "ada", "bob", "eve", "ada"]
    expected = FederatedDataset.from_arrays({"x": np.arange(5.0)}, keys)
    found = by_key(keys).of(FederatedDataset({"x": np.arange(5.0)}, np.array([0, 5])))
    assert found.names.tolist() == expected.names.tolist()
    assert found.offsets.tolist() == expected.offsets.tolist()
    assert found.arrays["x"].tolist() == expected.arrays["x"].tolist()


@pytest.mark.alone
def test_many_examples_and_many_clients_are_dealt_in_seconds():
    labels = np.random.default_rng(0).integers(0, 10, 60_000)
    for deal, clients, most in (
        (lambda y, n: dirichlet(y, n, 0.1), 1000, 0.5),
        (lambda y, n: dirichlet_lognormal(y, n, 0.1, 0.3), 1000, 0.5),
        (lambda y, n: dirichlet(y, n, 0.1), 342_477, 8.0),
    ):
        y = labels if clients < 60_000 else np.tile(labels, 10)
        start = time.process_time()
        assert deal(y, clients).num_clients == clients
        assert time.process_time() - start < most
