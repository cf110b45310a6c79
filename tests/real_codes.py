"""Real encoders and decoders of the messages whose bits the codecs count, as strings of 0 and 1."""

import itertools
import math

import jax.numpy as jnp
import numpy as np

from fedax.codecs.eden import normal_centroids
from fedax.codecs.lengths import rice_bits
from fedax.codecs.random_k import part_of
from fedax.codecs.rotation import rotate


class Reader:
    def __init__(self, bits):
        self.bits, self.place = bits, 0

    def take(self, count):
        self.place += count
        assert self.place <= len(self.bits)
        return self.bits[self.place - count : self.place]

    def whole(self, count):
        return int(self.take(count) or "0", 2)

    def number(self, dtype):
        return np.frombuffer(
            self.whole(8 * dtype.itemsize).to_bytes(dtype.itemsize, "big"), dtype.newbyteorder(">")
        )[0].astype(dtype)

    def omega(self):
        found = 1
        while self.take(1) == "1":
            found = int("1" + self.take(found), 2)
        return found

    def rice(self, m):
        quotient = 0
        while self.take(1) == "1":
            quotient += 1
        return (quotient << m) + self.whole(m) + 1


def whole(value, count):
    return format(value, f"0{count}b") if count else ""


def number(value, dtype):
    raw = np.asarray(value, dtype.newbyteorder(">")).tobytes()
    return whole(int.from_bytes(raw, "big"), 8 * dtype.itemsize)


def omega(value):
    code = "0"
    while value > 1:
        code = format(value, "b") + code
        value = len(format(value, "b")) - 1
    return code


def rice(value, m):
    return "1" * ((value - 1) >> m) + "0" + whole((value - 1) & ((1 << m) - 1), m)


def positions(chosen, m):
    return "".join(rice(b - a, m) for a, b in itertools.pairwise([-1, *np.flatnonzero(chosen)]))


def qsgd_message(decoded, levels, length):
    """From the decoded array, which is norm * sign * level / s."""
    level = np.zeros(decoded.shape, int)
    if length:
        level = np.rint(np.abs(decoded) * levels / length).astype(int)
    signs = ["1" if value < 0 else "0" for value in decoded]
    nonzero = np.flatnonzero(level)
    gaps = [b - a for a, b in itertools.pairwise([-1, *nonzero])]
    sparse = omega(len(nonzero) + 1) + "".join(
        omega(gap) + signs[i] + omega(level[i]) for gap, i in zip(gaps, nonzero, strict=True)
    )
    dense = "".join(omega(n + 1) + signs[i] * bool(n) for i, n in enumerate(level))
    coded = min("0" + sparse, "1" + dense, key=len)
    return number(length, decoded.dtype) + coded


def qsgd_decoded(reader, size, levels, dtype):
    length, signed = reader.number(dtype), np.zeros(size)
    if reader.take(1) == "0":
        place = -1
        for _ in range(reader.omega() - 1):
            place += reader.omega()
            sign = -1 if reader.take(1) == "1" else 1
            signed[place] = sign * reader.omega()
    else:
        for place in range(size):
            level = reader.omega() - 1
            signed[place] = level and level * (-1 if reader.take(1) == "1" else 1)
    return length * signed / levels


def terngrad_message(decoded, largest):
    trits = np.sign(decoded).astype(int) + 1
    trits = np.concatenate([trits, np.zeros(-len(trits) % 5, int)]).reshape(-1, 5)
    return number(largest, decoded.dtype) + "".join(
        whole(int(row @ 3 ** np.arange(5)), 8) for row in trits
    )


def terngrad_decoded(reader, size, dtype):
    largest = reader.number(dtype)
    trits = [byte // 3**k % 3 for byte in (reader.whole(8) for _ in range(-(-size // 5)))
             for k in range(5)]
    return largest * (np.array(trits[:size]) - 1.0)


def eden_message(key, array, bits):
    """The place of every entry's centroid, and the scale."""
    array = np.asarray(array)
    root, half = math.sqrt(array.size), normal_centroids(bits)
    centroids = np.concatenate([-half[::-1], half])
    z = np.asarray(rotate(key, jnp.asarray(array / np.linalg.norm(array)))) * root
    places = np.abs(z[:, None] - centroids).argmin(1)
    scale = np.linalg.norm(array) * root / (z @ centroids[places])
    return "".join(whole(int(place), bits) for place in places) + number(scale, array.dtype)


def eden_decoded(reader, key, size, bits, dtype):
    half = normal_centroids(bits)
    centroids = np.concatenate([-half[::-1], half])
    q = centroids[[reader.whole(bits) for _ in range(size)]]
    return reader.number(dtype) * np.asarray(rotate(key, jnp.asarray(q, dtype), back=True))


def top_k_message(decoded, share):
    chosen, count = decoded != 0, part_of(share, decoded.size)
    m = int(rice_bits(count, decoded.size))
    return positions(chosen, m) + "".join(number(x, decoded.dtype) for x in decoded[chosen])


def top_k_decoded(reader, size, share, dtype):
    count = part_of(share, size)
    m = int(rice_bits(count, size))
    places = np.cumsum([reader.rice(m) for _ in range(int(count))]) - 1
    found = np.zeros(size, dtype)
    found[places] = [reader.number(dtype) for _ in range(int(count))]
    return found


def sign_message(decoded):
    signs = "".join("1" if value >= 0 else "0" for value in decoded)
    return number(np.abs(decoded[0]), decoded.dtype) + signs


def sign_decoded(reader, size, dtype):
    scale = reader.number(dtype)
    return np.array([scale if reader.take(1) == "1" else -scale for _ in range(size)])
