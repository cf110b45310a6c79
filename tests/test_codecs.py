"""Codecs: unbiased within their variance, as many bits as a real message has, error feedback."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import real_codes
from fedax import codecs
from fedax.codecs.codec import encode_tree, init_tree, with_feedback
from fedax.codecs.lengths import elias_omega
from fedax.codecs.random_k import part_of
from fedax.codecs.rotation import hadamard, rotate

KEY = jax.random.key(0)
DRAWS, AT_ONCE = 100_000, 1000
BIASED = {"top_k": codecs.top_k(0.3), "sign": codecs.sign(), "power_sgd": codecs.power_sgd(1)}
EVERY = {
    **BIASED, "identity": codecs.identity(), "qsgd": codecs.qsgd(3), "terngrad": codecs.terngrad(),
    "drive": codecs.drive(), "eden": codecs.eden(2), "random_k": codecs.random_k(0.3),
}


def vector(size, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=size).astype(dtype)


def coded(codec, array, key=KEY):
    return codec.encode(key, array, codec.init(array))


# Name, codec, length, most of E|Q(x) - x|^2 / |x|^2 (published), and whether it is exactly that.
UNBIASED = {
    "qsgd, sparse": (codecs.qsgd(1), 7, lambda d: min(d, math.sqrt(d)), False),
    "qsgd, dense": (codecs.qsgd(4), 7, lambda d: min(d / 16, math.sqrt(d) / 4), False),
    "qsgd, long": (codecs.qsgd(2), 100, lambda d: math.sqrt(d) / 2, False),
    "terngrad": (codecs.terngrad(), 7, lambda d: (math.sqrt(d) - 1) / 2, False),
    "random_k": (codecs.random_k(0.4), 7, lambda d: d / math.ceil(0.4 * d) - 1, True),
    "drive": (codecs.drive(), 7, lambda d: 2.92, False),
    "eden, 2 bits": (codecs.eden(2), 7, lambda d: 0.5, False),
    # Beyond 64 entries by Hadamard rotations: as for long arrays, up to O(sqrt(log d / d)).
    "drive, Hadamard": (codecs.drive(), 100, lambda d: 0.571 * 1.1, False),
    "eden, Hadamard": (codecs.eden(2), 100, lambda d: 0.133 * 1.1, False),
}


@functools.partial(jax.jit, static_argnums=0)
def moments(encode, array):
    """The mean of Q(x), the variance of each entry, and the mean of |Q(x) - x|^2."""

    def some(keys):
        errors = jax.vmap(lambda key: encode(key, array, ()).decoded - array)(keys)
        return errors.sum(0), jnp.square(errors).sum(0)

    keys = jax.random.split(KEY, DRAWS).reshape(-1, AT_ONCE)
    first, second = (part.sum(0) / DRAWS for part in jax.lax.map(some, keys))
    return first, second - first**2, second.sum()


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.slow if of[1] > 7 else ()) for name, of in UNBIASED.items()
])  # fmt: skip
def test_it_is_unbiased_and_its_variance_is_at_most_the_published(name):
    codec, size, most, is_exact = UNBIASED[name]
    x = jnp.asarray(vector(size))
    bias, variance, error = map(np.asarray, moments(codec.encode, x))
    standard_error = np.sqrt(variance / DRAWS)
    assert (np.abs(bias) <= 4 * standard_error + 1e-12).all(), bias / standard_error
    relative = error / float(jnp.square(x).sum())
    if is_exact:
        np.testing.assert_allclose(relative, most(size), rtol=0.02)
    assert relative <= most(size) * (1.02 if is_exact else 1), relative


@pytest.mark.slow
@pytest.mark.parametrize("size", [100, 128])
def test_hadamard_rotations_of_a_spike_are_unbiased(size):
    """Of one entry ten times as large as the others: one transform would lose the others."""
    x = jnp.asarray(vector(size)).at[3].set(10 * math.sqrt(size))
    bias, variance, _ = map(np.asarray, moments(codecs.drive().encode, x))
    assert (np.abs(bias) <= 4 * np.sqrt(variance / DRAWS)).all()


MESSAGES = {
    "qsgd, few levels": (codecs.qsgd(1), 300),
    "qsgd, many levels": (codecs.qsgd(64), 300),
    "terngrad": (codecs.terngrad(), 302),
    "drive": (codecs.drive(), 300),
    "eden": (codecs.eden(3), 300),
    "top_k": (codecs.top_k(0.03), 1000),
    "top_k, all": (codecs.top_k(1.0), 50),
    "sign": (codecs.sign(), 300),
}


def message(name, x, key, decoded):
    """The real message and what its receiver makes of it."""
    read, dtype, size = real_codes, decoded.dtype, decoded.size
    word = name.partition(",")[0]
    if word == "qsgd":
        s = {"qsgd, few levels": 1, "qsgd, many levels": 64}[name]
        bits = read.qsgd_message(decoded, s, np.linalg.norm(x))
        return bits, lambda reader: read.qsgd_decoded(reader, size, s, dtype)
    if word == "terngrad":
        bits = read.terngrad_message(decoded, np.abs(x).max())
        return bits, lambda reader: read.terngrad_decoded(reader, size, dtype)
    if word in ("drive", "eden"):
        b = {"drive": 1, "eden": 3}[word]
        return (read.eden_message(key, x, b),
                lambda reader: read.eden_decoded(reader, key, size, b, dtype))
    if word == "top_k":
        share = {"top_k": 0.03, "top_k, all": 1.0}[name]
        return (read.top_k_message(decoded, share),
                lambda reader: read.top_k_decoded(reader, size, share, dtype))
    return read.sign_message(decoded), lambda reader: read.sign_decoded(reader, size, dtype)


@pytest.mark.parametrize("dtype", [
    pytest.param(np.float32, marks=pytest.mark.quick), np.float64
])
@pytest.mark.parametrize("name", MESSAGES)
def test_a_real_message_has_as_many_bits_and_says_the_same(name, dtype):
    codec, size = MESSAGES[name]
    for seed in range(3):
        x, key = vector(size, seed, dtype), jax.random.fold_in(KEY, seed)
        found = coded(codec, jnp.asarray(x), key)
        bits, decode = message(name, x, key, np.asarray(found.decoded))
        assert len(bits) == float(found.bits)
        reader = real_codes.Reader(bits)
        tolerance = 1e-5 if dtype == np.float32 else 1e-12
        np.testing.assert_allclose(decode(reader), found.decoded, rtol=tolerance, atol=tolerance)
        assert reader.place == len(bits)


@pytest.mark.quick
def test_codes_without_a_choice_send_so_many_numbers():
    x = jnp.asarray(vector((20, 30), dtype=np.float32))
    assert float(coded(codecs.identity(), x).bits) == 600 * 32
    assert float(coded(codecs.random_k(0.1), x).bits) == 60 * 32
    assert float(coded(codecs.power_sgd(2), x).bits) == 2 * (20 + 30) * 32


def test_omega_code_lengths():
    numbers = [1, 2, 3, 4, 7, 8, 15, 16, 255, 256, 65535, 65536, 2**31 - 1]
    lengths = [len(real_codes.omega(n)) for n in numbers]
    assert elias_omega(jnp.asarray(numbers)).tolist() == lengths


@pytest.mark.slow
def test_levels_are_one_program():
    x, levels = jnp.asarray(vector(40)), jnp.array([1, 4, 16])
    together = jax.vmap(lambda s: coded(codecs.qsgd(s), x))(levels)
    for place, s in enumerate([1, 4, 16]):
        alone = coded(codecs.qsgd(s), x)
        np.testing.assert_allclose(together.decoded[place], alone.decoded, rtol=1e-14)
        assert float(together.bits[place]) == float(alone.bits)


@pytest.mark.quick
@pytest.mark.parametrize("name", BIASED)
def test_what_was_sent_and_what_is_left_over_is_what_there_was(name):
    codec = with_feedback(BIASED[name])
    arrays = [jnp.asarray(vector((6, 9), seed)) for seed in range(20)]
    memory, sent = codec.init(arrays[0]), 0
    for array in arrays:
        found = codec.encode(KEY, array, memory)
        memory, sent = found.memory, sent + found.decoded
    np.testing.assert_allclose(sent + memory[0], sum(arrays), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", BIASED)
def test_a_biased_codec_contracts(name):
    for seed in range(10):
        x = jnp.asarray(vector((8, 10), seed))
        error = jnp.square(coded(BIASED[name], x).decoded - x).sum() / jnp.square(x).sum()
        share = jnp.abs(x).sum() ** 2 / (80 * jnp.square(x).sum())
        most = {"top_k": 0.7, "sign": 1 - share + 1e-12, "power_sgd": 1.0}[name]
        assert float(error) <= float(most)


def test_top_k_sends_the_largest_of_either_sign_and_exactly_k():
    x = jnp.array([0.1, -5.0, 2.0, -0.3, 4.0, 2.0])
    assert coded(codecs.top_k(0.5), x).decoded.tolist() == [0, -5, 2, 0, 4, 0]


def test_power_sgd_finds_the_best_matrix_of_its_rank():
    x = jnp.asarray(vector((12, 9)))
    codec, memory = codecs.power_sgd(2), codecs.power_sgd(2).init(x)
    for _ in range(200):
        found = codec.encode(KEY, x, memory)
        memory = found.memory
    u, s, v = jnp.linalg.svd(x, full_matrices=False)
    np.testing.assert_allclose(found.decoded, (u[:, :2] * s[None, :2]) @ v[:2], atol=1e-6)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_seen(name, bad):
    """In what is decoded or, with feedback, in the memory: the client's upload is rejected."""
    codec = EVERY[name] if EVERY[name].unbiased else with_feedback(EVERY[name])
    for size in (6, 4000):  # of 24,000 numbers a CPU's maximum leaves out NaN
        one = jax.jit(lambda x: coded(codec, x))  # XLA makes choices of products with 0 and 1
        for place in range(6):
            x = jnp.asarray(vector((size, 6))).at[place, place].set(bad)
            finite = [bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(one(x))]
            assert not all(finite)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e18])
def test_scales_do_not_matter(name, scale):
    x = jnp.asarray(vector((10, 20), dtype=np.float32))
    one, other = coded(EVERY[name], x), coded(EVERY[name], x * np.float32(scale))
    np.testing.assert_allclose(
        other.decoded / np.float32(scale), one.decoded, rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("name", EVERY)
def test_zeros_stay_zeros(name):
    found = coded(EVERY[name], jnp.zeros((10, 20)))
    assert float(jnp.abs(found.decoded).max()) == 0


@pytest.mark.quick
def test_a_share_of_all_is_all():
    for size in (2, 10**6, 5 * 10**6):
        assert part_of(1.0, size) == size
        assert part_of(0.5, size) == size // 2


@pytest.mark.parametrize("name", EVERY)
def test_leaves_of_every_kind(name):
    codec = EVERY[name]
    tree = {
        "scalar": jnp.asarray(3.0), "one": jnp.ones((1, 1), jnp.float32),
        "empty": jnp.zeros((0, 3)),
        "half": jnp.asarray(vector((7, 6)), jnp.float16), "bfloat": jnp.ones(9, jnp.bfloat16),
        "long": jnp.asarray(vector(2**12 + 5, dtype=np.float32)),
    }
    memory = init_tree(codec, tree)
    decoded, bits, after = jax.jit(functools.partial(encode_tree, codec))(KEY, tree, memory)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), decoded) == (
        jax.tree.map(lambda a: (a.shape, a.dtype), tree)
    )
    assert decoded["scalar"] == 3
    assert decoded["one"] == 1
    assert jax.tree.structure(after) == jax.tree.structure(memory)
    assert 64 + 32 < float(bits) <= 64 + 32 + 32 * (42 + 9 + 2**12 + 5) * 1.1


@pytest.mark.parametrize("size", [2, 7, 64, 65, 128, 1000])
def test_a_rotation_keeps_lengths_and_comes_back(size):
    x = jnp.asarray(vector(size))
    there = rotate(KEY, x)
    np.testing.assert_allclose(jnp.linalg.norm(there), jnp.linalg.norm(x), rtol=1e-12)
    np.testing.assert_allclose(rotate(KEY, there, back=True), x, atol=1e-12)


def test_hadamard_is_hadamards_matrix():
    from scipy.linalg import hadamard as matrix

    x = jnp.asarray(vector(256))
    np.testing.assert_allclose(hadamard(x), matrix(256) @ np.asarray(x) / 16, atol=1e-12)


@pytest.mark.parametrize(("make", "words"), [
    (lambda: codecs.qsgd(0), "levels"), (lambda: codecs.random_k(0.0), "share"),
    (lambda: codecs.top_k(1.5), "share"), (lambda: codecs.power_sgd(0), "rank"),
    (lambda: codecs.eden(5), "bits"),
])  # fmt: skip
def test_a_setting_out_of_its_range_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
