"""Pickles as data: dictionaries, lists, numbers, text and NumPy's arrays, and nothing is called.

A pickle is a program for a stack machine, which may call any function by its name. Here the few
instructions that data need are followed by hand; the names of NumPy's constructors stand for
themselves, and any other name is refused.
"""

from __future__ import annotations

import math
import pickletools
from typing import Any, NamedTuple

import numpy as np

_KNOWN = {
    ("numpy.core.multiarray", "_reconstruct"): "reconstruct",
    ("numpy._core.multiarray", "_reconstruct"): "reconstruct",
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    ("_codecs", "encode"): "encode",
}
_DTYPES = {"u1": np.uint8, "i4": np.int32, "i8": np.int64, "f4": np.float32, "f8": np.float64}
_DEEPEST = 8
# An instruction of a byte makes a list of sixty; a published batch has some 400,000.
_MOST_INSTRUCTIONS = 2**22


class _Name(NamedTuple):
    """A name that the pickle would call."""

    name: str


class _Dtype(NamedTuple):
    """A dtype that is being made."""

    code: str


class _Array:
    """An array that is being made."""

    value: np.ndarray | None = None


def unpickled(content: bytes) -> Any:
    """What a pickle holds.

    Raises:
      ValueError: it is no whole pickle, or it holds something else.

    Example:
      >>> import pickle
      >>> unpickled(pickle.dumps({"labels": [6, 9], "data": np.eye(2, dtype=np.uint8)}, 2))
      {'labels': [6, 9], 'data': array([[1, 0],
             [0, 1]], dtype=uint8)}
      >>> unpickled(pickle.dumps(print))
      Traceback (most recent call last):
      ValueError: it names builtins.print, which is not data
    """
    machine = _Machine(len(content))
    try:
        for count, (instruction, argument, _) in enumerate(pickletools.genops(content)):
            if count == _MOST_INSTRUCTIONS:
                raise ValueError(f"it has more than {_MOST_INSTRUCTIONS:,} instructions")
            machine.follow(instruction.name, argument)
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError, UnicodeError) as error:
        raise ValueError(f"it is not a complete pickle ({type(error).__name__})") from None
    if len(machine.stack) != 1:
        raise ValueError("it is not a complete pickle")
    return _finished(machine.stack[0], _DEEPEST, {})


class _Machine:
    """The stack and the memory of a pickle."""

    def __init__(self, size: int) -> None:
        """Takes the pickle's size in bytes, which bounds the size of the result."""
        self._left = 2 * size
        self.stack: list[Any] = []
        self._marks: list[int] = []  # where on the stack groups begin
        self._memory: dict[int, Any] = {}

    def follow(self, name: str, argument: Any) -> None:
        """Follows one instruction."""
        stack = self.stack
        if name == "MARK":
            self._marks.append(len(stack))
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name]())
        elif name in _LITERALS:
            # Python 2's text is bytes, which pickletools shows as Latin-1.
            is_bytes = name in ("SHORT_BINSTRING", "BINSTRING")
            stack.append(argument.encode("latin-1") if is_bytes else argument)
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self._memory[argument] = stack[-1]
        elif name == "MEMOIZE":
            self._memory[len(self._memory)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self._memory[argument])
        elif name == "GLOBAL":
            stack.append(_known(*argument.split(" ", 1)))
        elif name in _ACTIONS:
            getattr(self, _ACTIONS[name])(name)
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise ValueError(f"it has the instruction {name}, which is not needed for data")

    def _spend(self, size: int) -> None:
        """Notes that bytes are copied, as is done once with each."""
        self._left -= size
        if self._left < 0:
            raise ValueError("it makes more of its bytes than they are")

    def _group(self) -> list[Any]:
        """Takes what stands above the last mark."""
        place = self._marks.pop()
        group = self.stack[place:]
        del self.stack[place:]
        return group

    def _global(self, _: str) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(_known(module, name))

    def _tuple(self, name: str) -> None:
        if name == "TUPLE":
            self.stack.append(tuple(self._group()))
        else:
            count = int(name[5:])
            group = tuple(self.stack[-count:])
            if len(group) < count:
                raise IndexError
            del self.stack[-count:]
            self.stack.append(group)

    def _append(self, name: str) -> None:
        group = self._group() if name == "APPENDS" else [self.stack.pop()]
        if type(self.stack[-1]) is not list:
            raise TypeError
        self.stack[-1].extend(group)

    def _set(self, name: str) -> None:
        if name == "SETITEM":
            value, key = self.stack.pop(), self.stack.pop()
            group = [key, value]
        else:
            group = self._group()
        if type(self.stack[-1]) is not dict or len(group) % 2:
            raise TypeError
        for key, value in zip(group[::2], group[1::2], strict=True):
            if type(key) not in (str, bytes, int):
                raise ValueError("a key of a dictionary is neither text nor a number")
            self.stack[-1][key] = value

    def _reduce(self, _: str) -> None:
        """What calls NumPy's constructors makes arrays and dtypes that are not filled yet."""
        arguments, function = self.stack.pop(), self.stack.pop()
        what = function.name if isinstance(function, _Name) else None
        if what == "reconstruct":
            self.stack.append(_Array())
        elif what == "dtype" and arguments[0] in (*_DTYPES, *(k.encode() for k in _DTYPES)):
            code = arguments[0]
            self.stack.append(_Dtype(code.decode() if isinstance(code, bytes) else code))
        elif what == "encode" and type(arguments[0]) is str and arguments[1] == "latin1":
            self._spend(len(arguments[0]))
            self.stack.append(arguments[0].encode("latin-1"))
        else:
            raise ValueError("it calls what is no constructor of bytes or of NumPy's numbers")

    def _build(self, _: str) -> None:
        """Fills the array or the dtype on the stack."""
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, _Dtype):
            if state[1] not in ("|", "<", b"|", b"<") or state[2] is not None:
                raise ValueError("it has numbers in another byte order, or records")
        elif isinstance(target, _Array) and len(state) == 5:
            _, shape, dtype, in_columns, content = state
            if not isinstance(dtype, _Dtype) or type(content) is not bytes or len(shape) > 4:
                raise ValueError("it has an array of something other than numbers")
            kind = np.dtype(_DTYPES[dtype.code]).newbyteorder("<")
            if any(type(length) is not int or length < 0 for length in shape) or (
                math.prod(shape) * kind.itemsize != len(content)
            ):
                raise ValueError(
                    f"an array says that it is {dtype.code}{list(shape)}, but has {len(content):,} "
                    "bytes"
                )
            self._spend(len(content))
            target.value = np.frombuffer(content, kind).reshape(
                shape, order="F" if in_columns else "C"
            ).astype(kind.newbyteorder("="))
        else:
            raise ValueError("it fills what is no array")


_CONSTANTS = {
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple,
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
}
_LITERALS = {
    "SHORT_BINSTRING", "BINSTRING", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES",
    "SHORT_BINBYTES", "BINBYTES8", "BINUNICODE8", "BININT", "BININT1", "BININT2", "LONG1",
    "BINFLOAT",
}
_ACTIONS = {
    "STACK_GLOBAL": "_global", "TUPLE": "_tuple", "TUPLE1": "_tuple", "TUPLE2": "_tuple",
    "TUPLE3": "_tuple", "APPEND": "_append", "APPENDS": "_append", "SETITEM": "_set",
    "SETITEMS": "_set", "REDUCE": "_reduce", "BUILD": "_build",
}


def _known(module: Any, name: Any) -> _Name:
    if (module, name) not in _KNOWN:
        raise ValueError(f"it names {module!s:.50}.{name!s:.50}, which is not data")
    return _Name(_KNOWN[module, name])


def _finished(value: Any, deepest: int, done: dict[int, Any]) -> Any:
    """The value with arrays in place of what was filled to become one.

    Args:
      value: what stands on the stack.
      deepest: how many lists may be nested.
      done: by identity, what was finished; a list may be in many places.
    """
    if value is None or type(value) in (int, float, bool, str, bytes):
        return value
    if id(value) in done:
        return done[id(value)]
    if not deepest:
        raise ValueError("its lists are nested too deeply")
    if type(value) is dict:
        result = {key: _finished(item, deepest - 1, done) for key, item in value.items()}
    elif type(value) is list:
        result = [_finished(item, deepest - 1, done) for item in value]
    elif isinstance(value, _Array) and value.value is not None:
        result = value.value
    else:
        raise ValueError(f"it holds a {type(value).__name__.strip('_')}, which is not data")
    done[id(value)] = result
    return result
