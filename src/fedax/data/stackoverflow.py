"""Stack Overflow's posts, as TensorFlow Federated publishes them, made into arrays of numbers.

The vocabulary is of the words (and tags) that most users have, which are published beside the
posts: a line a word, "the 341294", the commonest first; and a JSON table of tags.

As in the code released with Reddi et al. 2021, except that a bag of words is kept as counts,
so that `fedax.models.tag_logistic_regression` can make it sum to 1, which Charles and Konečný 2020
and the decaying-steps paper (2021) say; that code divides by the number of all words, those beyond
the vocabulary included.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fedax.data.errors import DataError
from fedax.data.text import Vocabulary
from fedax.outside.paths import expanded
from fedax.validate import check_count

NUM_WORDS, NUM_TAGS, SEQUENCE_LENGTH = 10_000, 500, 20
# A bag keeps so many different words, the first ones of a post that has more.
MOST_WORDS = 128
# Stack Overflow allows no more.
MOST_TAGS = 5

Transform: TypeAlias = Callable[[Mapping[str, Any]], dict[str, np.ndarray]]


def read_words(path: Path | str, size: int = NUM_WORDS) -> tuple[str, ...]:
    """The commonest words of a file such as `stackoverflow.word_count`.

    Raises:
      DataError: if the file cannot be read, has a different format, or too few words.
    """
    check_count("size", size)
    try:
        with expanded(path).open(encoding="utf-8") as lines:
            pairs = [line.split() for line in itertools.islice(lines, size)]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"The words cannot be read from {path}: {error}.") from None
    for number, pair in enumerate(pairs, start=1):
        if len(pair) != 2 or not pair[1].isdigit():
            raise DataError(
                f"{path} must have a word and a count on each line, but has {' '.join(pair)!r} on "
                f"line {number}."
            )
    return _commonest([word for word, _ in pairs], size, path, "words")


def read_tags(path: Path | str, size: int = NUM_TAGS) -> tuple[str, ...]:
    """The commonest tags of a file such as `stackoverflow.tag_count`.

    Raises:
      DataError: if the file cannot be read, has a different format, or too few tags.
    """
    check_count("size", size)
    try:
        counts = json.loads(expanded(path).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"The tags cannot be read from {path}: {error}.") from None
    if not isinstance(counts, dict) or not all(type(n) is int for n in counts.values()):
        raise DataError(f"{path} must be a JSON object, tag -> count, but is not.")
    ordered = sorted(counts, key=lambda tag: counts[tag], reverse=True)
    return _commonest(ordered[:size], size, path, "tags")


def word_sequences(words: Sequence[str], length: int = SEQUENCE_LENGTH) -> Transform:
    """Makes `tokens` int32 [n, length + 1] of posts' `tokens`, for next-word prediction.

    A post begins with "begin", is cut after `length` words, and a shorter one ends with "end"; what
    is left is padding. The ids are those of `fedax.Vocabulary`.

    Example:
      >>> sequences = word_sequences(["how", "to"], length=4)
      >>> sequences({"tokens": [b"how to sort", b"to to to how to"]})["tokens"].tolist()
      [[4, 1, 2, 3, 5], [4, 2, 2, 2, 1]]
    """
    check_count("length", length)
    vocabulary = Vocabulary(tuple(words))
    ids = {word: place for place, word in enumerate(words, start=1)}

    def transform(columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
        posts = columns["tokens"]
        tokens = np.zeros((len(posts), length + 1), np.int32)
        for row, post in zip(tokens, posts, strict=True):
            known = [ids.get(w, vocabulary.unknown) for w in _text(post).split(" ")[:length]]
            end = [vocabulary.end] if len(known) < length else []
            line = [vocabulary.begin, *known, *end]
            row[: len(line)] = line
        return {"tokens": tokens}

    return transform


def bags_and_tags(words: Sequence[str], tags: Sequence[str]) -> Transform:
    """Makes `words`, `counts` and `tags` of posts' `tokens`, `title` and `tags`.

    Words of body and title are counted, those beyond the vocabulary left out; so are tags.

    Returns:
      A function from a client's columns to `words` int32 [n, 128] from 0, padded with -1, `counts`
      float32 [n, 128], and `tags` int32 [n, 5] from 0, padded with -1.

    Example:
      >>> bags = bags_and_tags(["how", "to"], ["c", "sorting"])({
      ...     "tokens": [b"how how to sort"], "title": [b"to"], "tags": [b"sorting|heaps"]})
      >>> bags["words"][0, :3].tolist(), bags["counts"][0, :3].tolist(), bags["tags"].tolist()
      ([0, 1, -1], [2.0, 2.0, 0.0], [[1, -1, -1, -1, -1]])
    """
    word_ids = {word: place for place, word in enumerate(words)}
    tag_ids = {tag: place for place, tag in enumerate(tags)}

    def transform(columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
        posts = len(columns["tokens"])
        found = {
            "words": np.full((posts, MOST_WORDS), -1, np.int32),
            "counts": np.zeros((posts, MOST_WORDS), np.float32),
            "tags": np.full((posts, MOST_TAGS), -1, np.int32),
        }
        rows = zip(columns["tokens"], columns["title"], columns["tags"], strict=True)
        for row, (body, title, tagged) in enumerate(rows):
            said = [*_text(body).split(), *_text(title).split()]
            counts = Counter(word_ids[word] for word in said if word in word_ids)
            bag = list(itertools.islice(counts.items(), MOST_WORDS))
            if bag:
                found["words"][row, : len(bag)], found["counts"][row, : len(bag)] = zip(
                    *bag, strict=True
                )
            own = [tag_ids[tag] for tag in _text(tagged).split("|") if tag in tag_ids]
            if len(own) > MOST_TAGS:
                raise DataError(
                    f"A post has {len(own)} tags, {_text(tagged)!r}, but Stack Overflow allows "
                    f"{MOST_TAGS}."
                )
            found["tags"][row, : len(own)] = own
        return found

    return transform


def _commonest(found: list[str], size: int, path: Path | str, what: str) -> tuple[str, ...]:
    if len(found) < size:
        raise DataError(f"{path} has {len(found)} {what}, but {size:,} are needed.")
    return tuple(found)


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
