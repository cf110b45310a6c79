"""Text for models: a vocabulary of the population, and sequences of token ids.

| id | meaning |
|---|---|
| 0 | padding: fills up a last sequence, never a target that counts |
| 1 to n | the known tokens |
| n + 1 | any other token |
| n + 2 | begin of a text |
| n + 3 | end of a text |
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from fedax.validate import check_choice, check_count, quoted

PADDING = 0
Unit: TypeAlias = Literal["word", "character"]


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Maps texts to token ids; a text is a string or a sequence of tokens.

    A string is split at white space into words or, with the unit "character", into characters.
    Normalise case and punctuation beforehand if needed. Bytes are decoded as UTF-8.

    Attributes:
      known: the tokens with the ids 1 to n.
      unit: how strings are split, "word" or "character".

    Raises:
      ValueError: if the unit is unknown, or a token occurs twice.

    Example:
      >>> vocabulary = Vocabulary.build(["to be or not to be", "to do"], size=3)
      >>> vocabulary.known, len(vocabulary)
      (('to', 'be', 'do'), 7)
      >>> vocabulary.encode("to be seen").tolist()
      [1, 2, 4]
      >>> vocabulary.decode([5, 1, 2, 6, 0])
      'to be'
      >>> vocabulary.sequences(["to be", "do to be do"], length=4).tolist()
      [[5, 1, 2, 6, 0], [5, 3, 1, 2, 3], [3, 6, 0, 0, 0]]

      The data of clients, and a model of them:

      >>> import fedax
      >>> texts = {"ada": ["to be or not to be"], "bob": ["to do", "do be do"]}
      >>> vocabulary = Vocabulary.build((t for own in texts.values() for t in own), size=1000)
      >>> data = fedax.FederatedDataset.from_clients({
      ...     name: {"tokens": vocabulary.sequences(own, length=8)} for name, own in texts.items()
      ... })
      >>> model = fedax.models.character_lstm(16, 1, vocabulary_size=len(vocabulary))
      >>> task = fedax.Task(model, data)
    """

    known: tuple[str, ...]
    unit: Unit = "word"

    def __post_init__(self) -> None:
        check_choice("unit", self.unit, get_args(Unit))
        object.__setattr__(self, "known", tuple(_tokens(self.known)))
        if len(self._ids) < len(self.known):
            ((twice, _),) = collections.Counter(self.known).most_common(1)
            raise ValueError(f"The token {twice!r} occurs twice in the vocabulary.")

    @classmethod
    def build(
        cls, texts: Iterable[str | Sequence[str]], size: int = 10_000, unit: Unit = "word"
    ) -> Vocabulary:
        """A vocabulary of the `size` most frequent tokens; ties go to the smaller token.

        Build it from training texts. It counts tokens over the whole population; in practice
        clients would have to send these counts, for example by secure aggregation.

        Args:
          texts: of all clients, in any order.
          size: the largest number of known tokens, >= 1, without special ids.
          unit: how strings are split.

        Raises:
          ValueError: if an argument is out of range, there is no token, or a text or token is
              neither text nor UTF-8.
        """
        check_count("size", size)
        check_choice("unit", unit, get_args(Unit))
        if isinstance(texts, str | bytes):
            raise ValueError(
                "texts must be a list of texts, but is a single text. For a vocabulary of it use "
                "Vocabulary.build([text])."
            )
        counts: collections.Counter[str] = collections.Counter()
        for text in texts:
            counts.update(_split(text, unit))
        if not counts:
            raise ValueError(
                "The texts have no tokens, so there is nothing to build a vocabulary from."
            )
        by_count = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return cls(tuple(token for token, _ in by_count[:size]), unit)

    def __len__(self) -> int:
        """The number of ids, including special ones: a model's `vocabulary_size`."""
        return len(self.known) + 4

    @property
    def unknown(self) -> int:
        """The id of unknown tokens, n + 1."""
        return len(self.known) + 1

    @property
    def begin(self) -> int:
        """The id that begins a text, n + 2."""
        return len(self.known) + 2

    @property
    def end(self) -> int:
        """The id that ends a text, n + 3."""
        return len(self.known) + 3

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {token: place for place, token in enumerate(self.known, start=1)}

    def encode(self, text: str | Sequence[str]) -> np.ndarray:
        """The ids of a text's tokens, int32, without begin and end."""
        ids, unknown = self._ids, self.unknown
        return np.array([ids.get(token, unknown) for token in _split(text, self.unit)], np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of these ids; padding, begin and end are left out, unknown tokens become U+FFFD.

        Raises:
          ValueError: if an id is not in this vocabulary.
        """
        ids = np.asarray(ids, np.int64).ravel()
        if ids.size and not 0 <= ids.min() <= ids.max() < len(self):
            raise ValueError(
                f"The ids of this vocabulary are 0 to {len(self) - 1}, but the ids given go from "
                f"{ids.min()} to {ids.max()}."
            )
        tokens = (*self.known, "\ufffd")
        words = [tokens[i - 1] for i in ids.tolist() if 0 < i <= self.unknown]
        return (" " if self.unit == "word" else "").join(words)

    def sequences(self, texts: Iterable[str | Sequence[str]], length: int) -> np.ndarray:
        """Rows of equal length: begin, the tokens, end; long texts continue in the next row.

        A row's inputs are its first `length` ids and its targets the last `length`, see
        `cut_sequences`; `fedax.next_token` and `fedax.models.character_lstm` use such rows and
        ignore padding.

        Args:
          texts: of one client.
          length: T >= 1.

        Returns:
          int32 [num_sequences, T + 1].

        Raises:
          ValueError: if the length is out of range, `texts` is a single text, or an item is not a
              text.
        """
        if isinstance(texts, str | bytes):
            raise ValueError("texts must be a list of texts, but is a single text; write [text].")
        rows = [
            cut_sequences(
                np.concatenate([[self.begin], self.encode(text), [self.end]]).astype(np.int32),
                length,
            )
            for text in texts
        ]
        return np.concatenate(rows) if rows else np.zeros((0, length + 1), np.int32)


def cut_sequences(tokens: np.ndarray, length: int) -> np.ndarray:
    """Cuts a text into sequences of `length` inputs and as many targets.

    Sequence j holds the tokens `j * length` to `(j + 1) * length`, both included, so neighbours
    share one token: it is the last target of one and the first input of the next. Thus each token
    after the first is a target exactly once.

    Args:
      tokens: integers [num_tokens].
      length: inputs of one sequence, at least 1.

    Returns:
      [ceil((num_tokens - 1) / length), length + 1] of the same dtype, the last row filled up with
      padding.

    Raises:
      ValueError: if `length` is less than 1.
    """
    if length < 1:
        raise ValueError(f"A sequence needs at least one input, but its length is {length}.")
    num_sequences = max(0, -(-(len(tokens) - 1) // length))
    padded = np.full(num_sequences * length + 1, PADDING, tokens.dtype)
    padded[: len(tokens)] = tokens[: len(padded)]
    windows = (
        np.lib.stride_tricks.sliding_window_view(padded, length + 1)
        if num_sequences
        else np.empty((0, length + 1), tokens.dtype)
    )
    return windows[::length].copy()


def _split(text: str | bytes | Sequence[str | bytes], unit: Unit) -> Sequence[str]:
    """A text's tokens."""
    if isinstance(text, bytes):
        text = _decoded(text)
    if not isinstance(text, str):
        return _tokens(text)
    return text.split() if unit == "word" else text


def _tokens(given: Any) -> Sequence[str]:
    """Tokens as text; bytes, as files of TensorFlow Federated give them, are decoded."""
    if not isinstance(given, Iterable):
        raise ValueError(
            f"A text must be a string or a list of tokens, but one is {quoted(given)}. Leave "
            "missing texts out."
        )
    tokens = given if isinstance(given, Sequence) else list(given)
    if all(isinstance(token, str) for token in tokens):
        return tokens
    for token in tokens:
        if not isinstance(token, str | bytes):
            raise ValueError(f"A token must be text, but one is {quoted(token)}.")
    return [_decoded(token) if isinstance(token, bytes) else token for token in tokens]


def _decoded(text: bytes) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(
            f"The bytes {quoted(text)} are not UTF-8. Decode them first, as in "
            "text.decode('latin-1')."
        ) from None
