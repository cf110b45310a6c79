"""Serialized `tf.train.Example`s, decoded without TensorFlow.

The messages, as far as they matter here (protocol buffers' encoding is a tag, field << 3 | wire
type, and then a value; lists of numbers may be packed into one value or not):

    Example   { Features features = 1; }
    Features  { map<string, Feature> feature = 1; }    as messages { string key = 1; Feature value = 2; }
    Feature   { oneof { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
    BytesList { repeated bytes value = 1; }  FloatList { repeated float value = 1; }
    Int64List { repeated int64 value = 1; }
"""  # noqa: E501 - the table

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

# Of one example: text as bytes in a list, numbers as float32 or int64.
Feature: TypeAlias = "list[bytes] | np.ndarray"

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Of one example: what its numbers may take as arrays, and its values that are not packed.
_MOST_BYTES = 2**26
_MOST_VALUES = 2**20
# Packed numbers are decoded in pieces of so many bytes, as that takes ten times as much.
_PIECE = 2**20
_KINDS = {1: "bytes", 2: "float", 3: "int64"}


def parse_example(message: bytes) -> dict[str, Feature]:
    """The features of a serialized example, by name; if a name occurs twice, the last counts.

    Raises:
      ValueError: it is no such message.

    Example:
      >>> message = bytes.fromhex("0a0d 0a0b 0a01 79 1206 1a04 0a02 ac02")
      >>> parse_example(message)
      {'y': array([300])}
    """
    found: dict[str, Feature] = {}
    for field, value in _fields(message):
        if field == 1:
            for inner, entry in _fields(_message(value)):
                if inner == 1:
                    name, feature = _entry(_message(entry))
                    found[name] = feature
    return found


def size_of(example: Mapping[str, Feature]) -> int:
    """The bytes that an example takes in memory, about."""
    return sum(
        feature.nbytes if isinstance(feature, np.ndarray) else sum(map(len, feature))
        for feature in example.values()
    )


def stacked(examples: Sequence[Mapping[str, Feature]]) -> dict[str, Any]:
    """Columns of a client's examples.

    Args:
      examples: all with the same features, at least one.

    Returns:
      Feature -> array [n] if each example has one number, [n, k] if each has k, a list of arrays
      if they have unequal numbers; of text a list of bytes, or of lists of bytes.

    Raises:
      ValueError: the examples have unequal features, or a feature has kinds that differ.
    """
    names = examples[0].keys()
    for place, example in enumerate(examples):
        if example.keys() != names:
            raise ValueError(
                f"example {place} has the features {sorted(example)[:20]}, but the first has "
                f"{sorted(names)[:20]}"
            )
    return {name: _column(name, [example[name] for example in examples]) for name in names}


def _column(name: str, values: list[Feature]) -> Any:
    texts = [value for value in values if isinstance(value, list)]
    if len(texts) == len(values):
        lengths = {len(value) for value in texts}
        return [value[0] for value in texts] if lengths == {1} else texts
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    kinds = {value.dtype for value in arrays}
    if texts or len(kinds) > 1:
        raise ValueError(f"the feature {name!r} is text, float or int64 in one example but not all")
    lengths = {len(value) for value in arrays}
    if len(lengths) > 1:
        return arrays
    rows = np.stack(arrays)
    return rows[:, 0] if lengths == {1} else rows


def _entry(message: bytes) -> tuple[str, Feature]:
    name, feature = "", b""
    for field, value in _fields(message):
        if field == 1:
            name = _message(value).decode()
        elif field == 2:
            feature = _message(value)
    parts: list[Any] = []
    kind = 0
    for field, value in _fields(feature):
        if field in _KINDS:
            kind = field
            parts = list(itertools.islice(_fields(_message(value)), _MOST_VALUES + 1))
            if len(parts) > _MOST_VALUES:
                raise ValueError(f"the feature {name[:100]!r} has over {_MOST_VALUES:,} values")
    if not kind:
        raise ValueError(f"the feature {name[:100]!r} has no value")
    return name, _values(kind, [value for field, value in parts if field == 1])


def _values(kind: int, values: list[Any]) -> Feature:
    if kind == 1:
        return [_message(value) for value in values]
    if kind == 2:
        parts = []
        for value in values:
            if not isinstance(value, bytes) or len(value) % 4:
                raise ValueError("a list of floats is cut")
            parts.append(value)
        return np.frombuffer(b"".join(parts), "<f4").astype(np.float32)
    if len(values) == 1 and isinstance(values[0], bytes):
        return _varints(values[0])
    if all(isinstance(value, int) for value in values):
        return np.array(values, np.uint64).view(np.int64)
    numbers = [
        _varints(value) if isinstance(value, bytes) else np.array([value], np.uint64).view(np.int64)
        for value in values
    ]
    if sum(part.nbytes for part in numbers) > _MOST_BYTES:
        raise ValueError(f"its numbers take more than {_MOST_BYTES:,} bytes")
    return np.concatenate(numbers)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Field numbers and values: whole numbers for varints, bytes for what has a length."""
    place, end = 0, len(message)
    while place < end:
        tag, place = _varint(message, place)
        kind = tag & 7
        if kind == _VARINT:
            value, place = _varint(message, place)
        elif kind == _BYTES:
            length, place = _varint(message, place)
            value, place = message[place : place + length], place + length
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
            value, place = message[place : place + length], place + length
        else:
            raise ValueError(f"a field has the wire type {kind}, which does not exist")
        if place > end:
            raise ValueError("it is cut")
        if not tag >> 3:
            raise ValueError("a field has the number 0")
        yield tag >> 3, value


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where the next value begins."""
    byte = message[place] if place < len(message) else 128
    if byte < 128:
        return byte, place + 1
    number, shift = 0, 0
    while place < len(message) and shift < 70:
        byte = message[place]
        number |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return number & (2**64 - 1), place
    raise ValueError("a number is cut")


def _varints(packed: bytes) -> np.ndarray:
    """Packed varints as int64, all at once if there are few."""
    content = np.frombuffer(packed, np.uint8)
    last = content < 128
    if 8 * np.count_nonzero(last) > _MOST_BYTES:
        raise ValueError(f"its numbers take more than {_MOST_BYTES:,} bytes")
    if last.all():
        return content.astype(np.int64)
    if not last[-1]:
        raise ValueError("a list of numbers is cut")
    if len(content) > _PIECE:
        cuts = [0]
        while cuts[-1] + _PIECE < len(content):  # each behind the end of a number
            piece = last[cuts[-1] : cuts[-1] + _PIECE]
            cuts.append(cuts[-1] + _PIECE - int(piece[::-1].argmax()))
        pieces = itertools.pairwise([*cuts, len(content)])
        return np.concatenate([_varints(packed[begin:end]) for begin, end in pieces])
    ends = np.flatnonzero(last)
    begins = np.append(0, ends[:-1] + 1)
    if (ends - begins).max() >= 10:
        raise ValueError("a number is longer than ten bytes")
    place = np.arange(len(content)) - np.repeat(begins, ends - begins + 1)
    parts = (content & 127).astype(np.uint64) << (7 * place).astype(np.uint64)
    return np.bitwise_or.reduceat(parts, begins).view(np.int64)


def _message(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a field that should be a message is a number")
    return value
