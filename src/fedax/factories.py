"""Factories: what they make is compiled once, whatever numbers they are called with.

A method, an optimizer, a schedule or a model is made by a factory, a plain function whose numbers
end up in the closures of the functions that it returns. There a compiler would take them for
constants, and compile again for each learning rate. So `factory` records the arguments with each
function that is made: the result is a pytree whose leaves are its numbers, and whose structure is
the rest. `partition` separates the two, and a `Structure` makes the object again from other
numbers, which may be traced. Nothing is stored anywhere else.

What is a number: Python's floats, and arrays of NumPy and JAX. A parameter that is annotated with
`Array` or `ScheduleOrNumber` may be traced, so there whole numbers are numbers as well. Everything
else (other whole numbers, which may be lengths, text, None, functions) is structure.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar, overload

import jax
import numpy as np

from fedax.signatures import with_options
from fedax.validate import bound, check_options, plain, quoted, unknown

P = ParamSpec("P")
R = TypeVar("R")

# Of each kind so many compiled programs are kept, with the functions that they are made of; the
# one that was used longest ago goes first.
PROGRAMS = 32

# The attribute by which a factory is known.
_MARK = "__fedax_factory__"

# What reading Python's words from a text raises that are none, or that nest too deep.
UNREADABLE = (SyntaxError, TypeError, ValueError, RecursionError, MemoryError)


class Recipe(NamedTuple):
    """How something was made.

    Attributes:
      factory: the function that made it.
      arguments: name -> what it was called with, defaults included; those of `**options` stand
        beside the others.
    """

    factory: Callable[..., Any]
    arguments: dict[str, Any]


class Structure:
    """What is left of something when its numbers are taken out; equal structures hash alike.

    Called with as many numbers it makes the thing again.
    """

    def __init__(self, tree: Any, parts: Sequence[Any]) -> None:
        self._tree = tree
        self._parts = tuple(parts)  # a place among the numbers, or something fixed

    def __call__(self, numbers: Sequence[Any]) -> Any:
        """The thing, with these numbers."""
        boxes = [_Number(number) for number in numbers]
        return jax.tree.unflatten(self._tree, [
            part.value if isinstance(part, _Fixed) else boxes[part] for part in self._parts
        ])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and (
            (self._tree, self._parts) == (other._tree, other._parts)
        )

    def __hash__(self) -> int:
        return hash((self._tree, self._parts))


@overload
def factory(function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def factory(
    *, static: Sequence[str]
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def factory(function: Any = None, /, *, static: Sequence[str] = ()) -> Any:
    """Decorates a factory, so that a loop over its numbers compiles once.

    Args:
      function: returns a function or a (named) tuple of functions, such as a
        `fedax.FederatedAlgorithm`, an optax transformation or a schedule. It must not branch on
        numbers, which are traced when a program is compiled.
      static: names of arguments that are structure even if they are numbers, because the factory
        does branch on them.

    Example:
      >>> import jax.numpy as jnp
      >>> @factory
      ... def cosine_decay(initial_value: float, num_rounds: int):
      ...     return lambda t: initial_value * (1 + jnp.cos(jnp.pi * t / num_rounds)) / 2
      >>> (tenth,), structure = partition(cosine_decay(0.1, 50))
      >>> partition(cosine_decay(0.2, 50))[1] == structure, float(tenth)
      (True, 0.1)
      >>> float(structure([0.5])(jnp.asarray(0)))
      0.5
    """
    if function is None:
        return functools.partial(factory, static=static)
    signature = inspect.signature(function)
    annotations = {
        name: str(parameter.annotation) for name, parameter in signature.parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }
    for name in static:
        if name not in annotations:
            raise ValueError(unknown(f"argument of {function.__name__}", name, annotations))

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> Any:
        shown = inspect.signature(make).parameters  # with the options, see `with_options`
        check_options(function.__name__, shown, kwargs)
        given = bound(function.__name__, signature, shown, args, kwargs)
        given.apply_defaults()
        for name, value in given.arguments.items():
            if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                given.arguments[name] = {
                    key: _as_python(option, str(shown[key].annotation) if key in shown else "")
                    for key, option in value.items()
                }
            else:
                given.arguments[name] = _as_python(value, annotations.get(name, ""))
        arguments = {
            name: value if name in static else _boxed(value, annotations.get(name, ""))
            for name, value in given.arguments.items()
        }
        return _noted(function, arguments, function(*given.args, **given.kwargs))

    setattr(make, _MARK, True)
    return with_options(make)


def is_factory(value: Any) -> bool:
    """Whether a value is a function that `factory` has decorated.

    Example:
      >>> import fedax
      >>> is_factory(fedax.fedavg), is_factory(print)
      (True, False)
    """
    return getattr(value, _MARK, False) is True


def partition(made: Any) -> tuple[list[jax.Array], Structure]:
    """The numbers that something was made of, as arrays, and its structure.

    Args:
      made: the result of a factory, or any pytree of results. A function without a factory equals
          only itself.

    Example:
      >>> import fedax, jax.numpy as jnp
      >>> model = fedax.models.character_lstm(16, 1)
      >>> numbers, structure = partition(fedax.fedavg(model, 0.1, num_local_steps=5))
      >>> [round(float(number), 6) for number in numbers]  # client and server learning rate
      [0.1, 1.0]
      >>> algorithm = structure([jnp.asarray(0.3), jnp.asarray(1.0)])
    """
    leaves, tree = jax.tree.flatten(made)
    places: dict[int, int] = {}
    numbers, parts = [], []
    for leaf in leaves:
        if not isinstance(leaf, _Number):
            parts.append(_Fixed(leaf))
            continue
        if id(leaf) not in places:
            places[id(leaf)] = len(numbers)
            numbers.append(jax.device_put(leaf.value))  # jnp.asarray compiles a program for it
        parts.append(places[id(leaf)])
    return numbers, Structure(tree, parts)


def recipe(made: Any) -> Recipe | None:
    """How something was made; None if no factory noted it, or if it was changed since.

    Example:
      >>> import fedax
      >>> found = recipe(fedax.schedules.exponential_decay(0.5, 0.9))
      >>> found.factory.__name__, found.arguments
      ('exponential_decay', {'initial_value': 0.5, 'decay_rate': 0.9})
    """
    leaves = _parts(made)
    first = next((leaf for leaf in leaves if isinstance(leaf, _Function)), None)
    if first is None or len(leaves) != len(first.notes.made):
        return None
    for leaf, one in zip(leaves, first.notes.made, strict=True):
        if leaf is not one and not (isinstance(leaf, _Function) and leaf.notes is first.notes):
            return None
    arguments: dict[str, Any] = {}
    parameters = inspect.signature(first.notes.factory).parameters
    for name, value in first.notes.arguments.items():
        opened = jax.tree.map(_unboxed, value, is_leaf=_is_function)
        if parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            arguments |= opened
        else:
            arguments[name] = opened
    return Recipe(first.notes.factory, arguments)


def written(made: Any) -> str | None:
    """The call that made something, with its plain arguments, for a `repr`; None if not known.

    Example:
      >>> import fedax
      >>> written(fedax.schedules.exponential_decay(0.5, 0.9))
      'exponential_decay(initial_value=0.5, decay_rate=0.9)'
    """
    found = recipe(made)
    if found is None:
        return None

    def text(value: Any) -> str | None:
        if isinstance(value, bool | int | float | str | np.generic):
            return str(value)
        if isinstance(value, jax.Array | np.ndarray):
            return str(value) if value.ndim == 0 else None
        return written(value)

    texts = {name: text(value) for name, value in found.arguments.items() if name != "model"}
    said = ", ".join(f"{name}={words}" for name, words in texts.items() if words is not None)
    return f"{found.factory.__name__}({said})"


def defined_in(function: Callable[..., Any]) -> str:
    """The name of the function at module level that a function was defined in, or its own."""
    name = getattr(inspect.unwrap(function), "__qualname__", type(function).__name__)
    return name.split(".")[0]


class _Number:
    """A number where structure should not see it; the same box is the same number."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Fixed:
    """A part of a structure; equal if it is the same, or of the same type and equal."""

    def __init__(self, value: Any) -> None:
        self.value = value
        try:
            self._hash = hash(value)
        except TypeError:
            self._hash = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Fixed):
            return False
        if self._hash is None or other._hash is None:
            return self.value is other.value
        return type(self.value) is type(other.value) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return id(self.value) if self._hash is None else self._hash


class _Notes:
    """What a call of a factory was, and the leaves of what it made, in order."""

    def __init__(self, factory: Callable[..., Any], arguments: dict[str, Any]) -> None:
        self.factory = factory
        self.arguments = arguments
        self.made: list[Any] = []


@jax.tree_util.register_pytree_node_class
class _Function:
    """A function that a factory made: one of the leaves of what a call of it returned."""

    def __init__(self, notes: _Notes, place: int, function: Callable[..., Any] | None) -> None:
        self.notes = notes
        self._place = place
        self._function = function
        if function is not None:
            functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Made of other numbers it is not kept: what a factory computes of traced ones belongs to
        # the trace that it is called in.
        function = self._made_again() if self._function is None else self._function
        return function(*args, **kwargs)

    def _made_again(self) -> Callable[..., Any]:
        signature = inspect.signature(self.notes.factory)
        opened = jax.tree.map(_unboxed, self.notes.arguments, is_leaf=_is_function)
        call = inspect.BoundArguments(signature, opened)
        return _parts(self.notes.factory(*call.args, **call.kwargs))[self._place]

    def __repr__(self) -> str:
        return f"<{getattr(self, '__name__', self._place)} of {self.notes.factory.__name__}>"

    def tree_flatten(self) -> tuple[tuple[Any], tuple[Any, int]]:
        return (self.notes.arguments,), (self.notes.factory, self._place)

    @classmethod
    def tree_unflatten(cls, fixed: tuple[Any, int], children: tuple[Any]) -> _Function:
        return cls(_Notes(fixed[0], children[0]), fixed[1], None)


def _noted(function: Callable[..., Any], arguments: dict[str, Any], made: Any) -> Any:
    """What a factory made, its functions with notes of how."""
    notes = _Notes(function, arguments)

    def note(part: Any) -> Any:
        if callable(part) and not _is_constant(part):
            part = _Function(notes, len(notes.made), part)
        notes.made.append(part)
        return part

    return _mapped(note, made)


def _mapped(function: Callable[[Any], Any], made: Any) -> Any:
    """The function of every part, in (named) tuples and mappings as they were, keys in order."""
    if isinstance(made, Mapping):
        return {key: _mapped(function, value) for key, value in made.items()}
    if isinstance(made, tuple):
        values = [_mapped(function, value) for value in made]
        return type(made)(*values) if hasattr(made, "_fields") else tuple(values)
    return function(made)


def _parts(made: Any) -> list[Any]:
    """The parts of what a factory made, in order."""
    parts: list[Any] = []
    _mapped(parts.append, made)
    return parts


def parse_call(
    text: str, choices: Mapping[str, Callable[..., Any]], what: str, hint: str = ""
) -> Any:
    """Calls one of the choices by text, such as "sgdm(0.9)"; a name alone is a call without any.

    Args:
      text: the call.
      choices: name -> function.
      what: what the functions make, for the message.
      hint: sentences about names and arguments that others give, for the message; optional.

    Example:
      >>> parse_call("complex(1, imag=2)", {"complex": complex}, "number")
      (1+2j)

    Raises:
      SyntaxError: if the text is not such a call.
      ValueError: if the name is unknown, or it does not accept these arguments.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.Name):
            node = ast.Call(node, [], [])
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            raise TypeError
        arguments: list[Any] = [ast.literal_eval(argument) for argument in node.args]
        named: dict[str, Any] = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
    except UNREADABLE:
        raise SyntaxError(
            f"{quoted(text)} is not a {what} such as '{next(iter(choices))}' or "
            f"'{list(choices)[-1]}(...)'."
        ) from None
    hint = f" {hint}" if hint else ""
    if node.func.id not in choices:
        raise ValueError(unknown(what, node.func.id, choices) + hint)
    chosen = choices[node.func.id]
    try:
        inspect.signature(chosen).bind(*arguments, **named)
    except TypeError as error:
        raise ValueError(
            f"{quoted(text)} is not a valid {what}: {error}; {node.func.id} takes "
            f"{', '.join(inspect.signature(chosen).parameters) or 'nothing'}.{hint}"
        ) from None
    try:
        return chosen(*arguments, **named)
    except TypeError as error:
        said = str(error).rstrip(".")
        raise ValueError(f"{quoted(text)} is not a valid {what}: {said}.{hint}") from None


def _is_constant(function: Callable[..., Any]) -> bool:
    """Whether it is a function that depends on nothing but what it is called with."""
    return (
        isinstance(function, types.FunctionType)
        and not (function.__closure__ or function.__defaults__ or function.__kwdefaults__)
        and function.__name__ in function.__globals__
    )


def _is_function(value: Any) -> bool:
    return isinstance(value, _Function)


def _as_python(value: Any, annotation: str) -> Any:
    """NumPy's whole numbers as Python's; arrays too, where no array is taken."""
    takes_arrays = not annotation or "Array" in annotation or "ScheduleOrNumber" in annotation
    whole = isinstance(value, np.integer) or (not takes_arrays and isinstance(plain(value), int))
    return plain(value) if whole else value


def _boxed(value: Any, annotation: str) -> Any:
    """The argument with its numbers in boxes."""
    traceable = "Array" in annotation or "ScheduleOrNumber" in annotation
    if traceable and type(value) is int and abs(value) <= sys.float_info.max:
        return _Number(value if annotation.startswith("int") else float(value))

    def box(leaf: Any) -> Any:
        is_number = isinstance(leaf, jax.Array | np.ndarray | np.number) or type(leaf) is float
        return _Number(leaf) if is_number else leaf

    return jax.tree.map(box, value, is_leaf=_is_function)


def _unboxed(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, _Number) else leaf
