"""A vocabulary of a population, sequences of token ids, and what must not count in a metric."""

import collections
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import Vocabulary

TEXTS = {"ada": ["b a c a b a", "d"], "bob": ["a b e"]}


def build(size=3, **options):
    return Vocabulary.build((text for own in TEXTS.values() for text in own), size, **options)


@pytest.mark.quick
def test_the_most_frequent_tokens_are_known_ties_by_the_alphabet():
    vocabulary = build()
    assert vocabulary.known == ("a", "b", "c")
    assert len(vocabulary) == 7
    assert (vocabulary.unknown, vocabulary.begin, vocabulary.end) == (4, 5, 6)
    assert Vocabulary.build(reversed(TEXTS["ada"] + TEXTS["bob"]), 3) == vocabulary
    assert build(size=100).known == ("a", "b", "c", "d", "e")
    assert Vocabulary.build(["ab a"], unit="character").known == ("a", " ", "b")
    assert Vocabulary.build([["new york", "is"]]).known == ("is", "new york")


def test_sequences_hold_every_token_as_a_target_once():
    vocabulary = build()
    rows = vocabulary.sequences(["b a z a b", ""], length=4)
    assert rows.dtype == np.int32
    assert rows.tolist() == [[5, 2, 1, 4, 1], [1, 2, 6, 0, 0], [5, 6, 0, 0, 0]]
    assert vocabulary.decode(rows[0]) == "b a \ufffd a"
    assert vocabulary.sequences([], length=4).shape == (0, 5)
    text = Vocabulary.build(["abc"], unit="character")
    assert text.decode(text.encode("cab")) == "cab"
    targets = collections.Counter(rows[:, 1:][rows[:, 1:] != 0].tolist())
    assert targets == {1: 2, 2: 2, 4: 1, 6: 2}


@pytest.mark.parametrize(("call", "sentence"), [
    (lambda: Vocabulary.build("to be"), r"is a single text.*Vocabulary\.build\(\[text\]\)"),
    (lambda: Vocabulary.build([" "]), "have no token"),
    (lambda: Vocabulary.build(["a"], 0), "size must be a whole number of at least 1.* is 0"),
    (lambda: Vocabulary.build(["a"], unit="wrod"), r"Unknown unit 'wrod'\. Did you mean 'word'"),
    (lambda: Vocabulary(("a", "b", "a")), "token 'a' occurs twice"),
    (lambda: build().decode([7]), "are 0 to 6, but the ids given go from 7 to 7"),
    (lambda: build().sequences("a b", 3), r"write \[text\]"),
    (lambda: build().sequences(["a b"], 0), "at least one input, but its length is 0"),
])
def test_mistakes_are_sentences(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def bigrams(size, **options):
    return fedax.next_token(
        lambda key: {"table": jnp.zeros((size, size))},
        lambda params, inputs: params["table"][inputs], **options,
    )


@pytest.mark.quick
def test_losses_and_accuracies_by_hand():
    vocabulary = build()
    model = bigrams(len(vocabulary), leave_out=(vocabulary.unknown, vocabulary.end))
    table = np.random.default_rng(0).normal(size=(7, 7))
    table[1] = np.arange(7)[::-1]  # after an "a" it says padding
    params = {"table": jnp.asarray(table)}
    rows = vocabulary.sequences(["b a z a b", "a"], length=4)
    batch = {"tokens": jnp.asarray(rows)}
    log_p = table - np.log(np.exp(table).sum(1, keepdims=True))
    for row, loss, weight in zip(rows, *model.loss(params, batch, jax.random.key(0)), strict=True):
        pairs = [(a, b) for a, b in itertools.pairwise(row) if b != 0]
        assert weight == len(pairs)
        np.testing.assert_allclose(loss, -np.mean([log_p[a, b] for a, b in pairs]), rtol=1e-12)
    hits, weights = model.metrics["accuracy"](model.outputs(params, batch), batch)
    for row, hit, weight in zip(rows, hits, weights, strict=True):
        pairs = [(a, b) for a, b in itertools.pairwise(row) if b not in (0, 4, 6)]
        assert weight == len(pairs)
        assert hit * weight == pytest.approx(sum(table[a].argmax() == b for a, b in pairs))


@pytest.mark.slow
def test_weights_of_targets_and_another_padding():
    model = bigrams(4, padding=3, weights="w")
    params = model.init(jax.random.key(0))
    batch = {
        "tokens": jnp.array([[0, 1, 2, 3], [0, 0, 3, 3]]),
        "w": jnp.array([[0.5, 0.0, 9.0], [0.0, 1.0, 1.0]]),
    }
    losses, weights = model.loss(params, batch, jax.random.key(0))
    assert weights.tolist() == [0.5, 0.0]
    np.testing.assert_allclose(losses, [np.log(4), 0.0], rtol=1e-12)
    with pytest.raises(ValueError, match=r"'w' must have the shape \[B, T\] .* \[2, 3\], but"):
        model.loss(params, {**batch, "w": jnp.ones(2)}, jax.random.key(0))
    flat = fedax.next_token(lambda key: jnp.zeros(4), lambda params, inputs: inputs.astype(float))
    with pytest.raises(ValueError, match=r"logits \[B, T, V\] .* but returned float64"):
        flat.loss(params, batch, jax.random.key(0))
    with pytest.raises(ValueError, match=r"must be whole numbers \[B, T \+ 1\].* float64\[2, 3\]"):
        model.loss(params, {**batch, "tokens": batch["w"]}, jax.random.key(0))
    with pytest.raises(ValueError, match=r"needs the array 'tokens', but .*tokens='token'"):
        model.loss(params, {"token": batch["tokens"]}, jax.random.key(0))


def test_ids_beyond_the_vocabulary_are_told_before_the_first_round():
    model = bigrams(6)
    data = fedax.FederatedDataset.from_clients({"ada": {"tokens": np.array([[5, 1, 6]])}})
    with pytest.raises(ValueError, match=r"client 'ada': .*tokens.* from 0 to 5.* from 1 to 6"):
        fedax.train(fedax.Task(model, data), fedax.fedavg(model), num_rounds=1, cohort_size=1)


@pytest.mark.slow
def test_it_is_the_character_model_s_loss():
    """Same rows, same logits: the same losses, weights and accuracy, to the bit."""
    lstm = fedax.models.character_lstm(4, 1, vocabulary_size=7)
    params = lstm.init(jax.random.key(0))
    batch = {"tokens": jnp.asarray(build().sequences(["b a z a b", "a"], length=4))}
    logits = lstm.outputs(params, batch)
    mine = bigrams(7)
    for name in ("accuracy", "loss"):
        for a, b in zip(
            lstm.metrics[name](logits, batch), mine.metrics[name](logits, batch), strict=True
        ):
            assert a.tolist() == b.tolist()


@pytest.mark.slow
def test_a_population_s_bigrams_are_learned():
    """Counts of pairs are what the table converges to: ada and bob say different things."""
    texts = {"ada": ["a b a b a b"] * 4, "bob": ["a b a c"] * 4}
    vocabulary = Vocabulary.build(itertools.chain(*texts.values()))
    data = fedax.FederatedDataset.from_clients(
        {name: {"tokens": vocabulary.sequences(own, length=8)} for name, own in texts.items()}
    )
    model = bigrams(len(vocabulary), leave_out=(vocabulary.end,))
    result = fedax.train(
        fedax.Task(model, data, data), fedax.fedavg(model, 3.0, weighting="num_tokens"),
        num_rounds=300, cohort_size=2, evaluate_every=300,
    )
    # After "a": b 3 + 1 times, c once, of each of 4 texts.
    own = jax.nn.softmax(result.params["table"][vocabulary.encode("a")[0]])
    np.testing.assert_allclose(own[vocabulary.encode("b c")], [0.8, 0.2], atol=0.02)
    assert result.history["test_accuracy"][-1] == pytest.approx(1 - 4 / (4 * 6 + 4 * 4))
