r"""Shakespeare's plays: each role of each play is a client that predicts its next character.

This is fedax's default data set; it is part of the package, so loading it needs no network.

Where it comes from: the 37 plays in the source distribution of the Python package `shakespeare`
0.6 (Open Knowledge Foundation), whose texts are Project Gutenberg's. `scripts/build_shakespeare.py`
split them into roles; its docstring has the rules, and `shakespeare.LICENSE.md` the terms. The
etext of *Cymbeline* lacks acts III and IV.

The task is that of Charles and Konečný (2021), appendix C: a vocabulary of 90 tokens (86
characters, padding, out of vocabulary, begin, end) and sequences of 80 characters, each of which
predicts its next character. TensorFlow Federated's own data set of this name splits other texts
into 715 roles, so results here are similar, but not comparable digit by digit.

| token | meaning |
|---|---|
| 0 | padding: fills up a client's last sequence, never a target that counts |
| 1 to 86 | `CHARACTERS`, in the order of TensorFlow Federated |
| 87 | any character outside `CHARACTERS` |
| 88 | begin of a client's text |
| 89 | end of a client's text |
"""

from __future__ import annotations

import bz2
import hashlib
from collections.abc import Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedax.data.errors import DataError
from fedax.data.text import PADDING as PAD
from fedax.data.text import cut_sequences

CHARACTERS = (
    "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
)
OUT_OF_VOCABULARY = len(CHARACTERS) + 1
BEGIN = len(CHARACTERS) + 2
END = len(CHARACTERS) + 3
VOCABULARY_SIZE = len(CHARACTERS) + 4
SEQUENCE_LENGTH = 80

PATH = resources.files("fedax.data") / "shakespeare.txt.bz2"
SHA256 = "281b8cb082aebd482d603a5ca0b64400b3c2e1efed7b404e0cf09e244bfd7fbe"

# Code points are clipped to the last entry, which stands for all that have none of their own.
_NUM_CODES = 257
_TOKEN_OF_CODE = np.full(_NUM_CODES, OUT_OF_VOCABULARY, np.uint8)
_TOKEN_OF_CODE[[ord(character) for character in CHARACTERS]] = np.arange(1, len(CHARACTERS) + 1)
_TEXT_OF_TOKEN = np.array(["", *CHARACTERS, "\ufffd", "", ""], dtype=object)


class ClientArrays(NamedTuple):
    """The data of all clients, one after the other.

    Attributes:
      arrays: `{"tokens": uint8 [num_sequences, 81]}`; a sequence's input is `[:, :-1]`, its
        target `[:, 1:]`.
      offsets: int64 [num_clients + 1]; client i owns rows `offsets[i]:offsets[i + 1]`.
      names: `play/ROLE`, for example `hamlet/HAMLET`.
    """

    arrays: dict[str, np.ndarray]
    offsets: np.ndarray
    names: list[str]


def encode(text: str) -> np.ndarray:
    """Characters to tokens 1 to 87, uint8 [len(text)]; adds neither begin nor end.

    Example:
      >>> encode("dhd\u00e9").tolist()
      [1, 2, 1, 87]
    """
    codes = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), "<u4")
    return _TOKEN_OF_CODE[np.minimum(codes, _NUM_CODES - 1)]


def decode(tokens: np.ndarray | Sequence[int]) -> str:
    """Tokens to text; padding, begin and end are left out, out of vocabulary becomes U+FFFD.

    Raises:
      ValueError: if a token is not between 0 and 89.
    """
    tokens = np.asarray(tokens, np.int64)
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < VOCABULARY_SIZE:
        raise ValueError(
            f"Tokens must be 0 to {VOCABULARY_SIZE - 1}, but these go from {tokens.min()} to "
            f"{tokens.max()}."
        )
    return "".join(_TEXT_OF_TOKEN[tokens.ravel()])


def stream(lines: Sequence[str]) -> np.ndarray:
    """One client's lines as tokens: begin, the lines with newlines between them, end."""
    tokens = encode("\n".join(lines))
    return np.concatenate(([np.uint8(BEGIN)], tokens, [np.uint8(END)]), dtype=np.uint8)


def sequences(tokens: np.ndarray, length: int = SEQUENCE_LENGTH) -> np.ndarray:
    """Cuts a stream into sequences of `length` inputs and as many targets.

    See `fedax.data.text.cut_sequences`. (TensorFlow Federated cuts disjoint windows of
    `length + 1` tokens instead and so never predicts every 81st token.)

    Args:
      tokens: uint8 [num_tokens].
      length: inputs of one sequence, at least 1.

    Returns:
      uint8 [ceil((num_tokens - 1) / length), length + 1], the last row filled up with padding.

    Raises:
      ValueError: if `length` is less than 1.

    Example:
      >>> sequences(np.array([88, 5, 6, 89], np.uint8), length=2).tolist()
      [[88, 5, 6], [6, 89, 0]]
    """
    return cut_sequences(tokens, length)


def split_lines(lines: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """A client's training and test lines: the first 80 % (rounded down) and the rest, in order.

    Both have at least one line.

    Raises:
      ValueError: if there are fewer than two lines.
    """
    if len(lines) < 2:
        raise ValueError(f"A split needs at least two lines, but there are {len(lines)}.")
    # In integers: floor(0.8 n) in floating point depends on how 0.8 is rounded.
    num_train = max(1, 4 * len(lines) // 5)
    return lines[:num_train], lines[num_train:]


def load_lines(path: Path | None = None) -> dict[str, list[str]]:
    """Reads all clients' lines of dialogue.

    Args:
      path: the compact file; by default the one included in fedax.

    Returns:
      `play/ROLE` -> at least two lines; plays in alphabetical order, roles and lines in the order
      of the play.

    Raises:
      DataError: if the file is missing or differs from the one that this version of fedax expects.
    """
    text = bz2.decompress(_read_checked(PATH if path is None else path)).decode("utf-8")
    clients = (client.split("\n") for client in text[1:].removesuffix("\n").split("\n@"))
    return {name: lines for name, *lines in clients}


def load(path: Path | None = None) -> tuple[ClientArrays, ClientArrays]:
    """Loads the training and the test data of all clients.

    The clients are the same in both, in the same order; `split_lines` divides a client's lines,
    and each part is a stream of its own.

    Args:
      path: the compact file; by default the one included in fedax.

    Raises:
      DataError: if the file is missing or differs from the one that this version of fedax expects.
    """
    clients = load_lines(path)
    splits = [split_lines(lines) for lines in clients.values()]
    names = list(clients)
    train = _client_arrays([train for train, _ in splits], names)
    test = _client_arrays([test for _, test in splits], names)
    return train, test


def bigram_accuracy(train_tokens: np.ndarray, test_tokens: np.ndarray) -> float:
    """The accuracy of predicting each character's most frequent successor: a baseline.

    Successors are counted on the training sequences of all clients; ties go to the smallest token.
    A token without a successor there predicts the most frequent target overall. Padding does not
    count as a target.

    Args:
      train_tokens: uint8 [num_train, length + 1].
      test_tokens: uint8 [num_test, length + 1].

    Returns:
      the accuracy on the test targets, between 0 and 1.

    Raises:
      ValueError: if one of the two has no target.
    """
    contexts, targets = _pairs(train_tokens, "training")
    counts = np.bincount(contexts * VOCABULARY_SIZE + targets, minlength=VOCABULARY_SIZE**2)
    counts = counts.reshape(VOCABULARY_SIZE, VOCABULARY_SIZE)
    is_seen = counts.any(axis=1)
    predictions = np.where(is_seen, counts.argmax(axis=1), counts.sum(axis=0).argmax())
    contexts, targets = _pairs(test_tokens, "test")
    return float(np.mean(predictions[contexts] == targets))


def _pairs(tokens: np.ndarray, which: str) -> tuple[np.ndarray, np.ndarray]:
    """All (input, target) pairs whose target is not padding, as int64."""
    contexts, targets = tokens[:, :-1], tokens[:, 1:]
    is_target = targets != PAD
    if not is_target.any():
        raise ValueError(f"The {which} tokens have no target that is not padding.")
    return contexts[is_target].astype(np.int64), targets[is_target].astype(np.int64)


def _client_arrays(clients: Sequence[Sequence[str]], names: list[str]) -> ClientArrays:
    """Each client's sequences, joined."""
    parts = [sequences(stream(lines)) for lines in clients]
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return ClientArrays({"tokens": np.concatenate(parts)}, offsets, list(names))


def _read_checked(path: Traversable) -> bytes:
    """The compact file's bytes, if they are the known ones."""
    remedy = "Reinstall fedax, or rebuild the file with scripts/build_shakespeare.py."
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"The data file {path} cannot be read ({error.strerror}). {remedy}") from (
            error
        )
    digest = hashlib.sha256(content).hexdigest()
    if digest != SHA256:
        raise DataError(
            f"The data file {path} is truncated or changed: its sha256 begins {digest[:16]}, but "
            f"{SHA256[:16]} is expected. {remedy}"
        )
    return content
