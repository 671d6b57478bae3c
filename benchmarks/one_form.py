"""Which functions of a module have the same loops: one loop tree, but for names.

Loop trees (:mod:`loma.backends.schedule`) say all that generated code does. Two are one form here
if they differ in names, in the order of the two operands of a sum or a product, and in what points
back at the program's text. What is one form runs equally fast, without a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from itertools import count
from typing import Any, cast

from loma import pipeline
from loma.backends.registry import CPU
from loma.backends.schedule.host import Reserve, Unit
from loma.backends.torch.codegen import steps_of, tree_of
from loma.core.ir import Axis, Binary, For, Function, Module, Param, Var

HALVES = ("", "__forward", "__backward")
# What points back at the program's text, or numbers it: its statements stand beside their loops.
_PLACES = frozenset(
    {
        "span",
        "source",
        "more",
        "line",
        "text",
        "number",
        "kernel",
        "panels",
        "over",
        "first",
        "last",
    }
)
# Nodes that declare a name.
_DECLARES = frozenset(
    {"Parallel", "Loop", "Let", "Lazy", "Accumulator", "Variable", "Lanes", "UpdateLanes",
     "StoreLanes", "Total", "Each", "Blocks", "Stretch", "Part", "Transpose"}
)  # fmt: skip
_UNSEEN = 1 << 30
# What is in the order of the program's declarations.
_UNORDERED = frozenset({"buffers", "bytes", "pieces", "writes", "scalars"})


def alike(text: str, names: Iterable[str]) -> dict[str, list[list[str]]]:
    """The functions in groups of one form each, the largest first, for each half that they have
    ("" is the function without gradients)."""
    module = pipeline.program(text).module
    known = {function.name for function in module.functions}
    found: dict[str, list[list[str]]] = {}
    for half in HALVES:
        groups: dict[Any, list[str]] = {}
        for name in names:
            if name + half in known:
                groups.setdefault(_form(module, name + half), []).append(name)
        if groups:
            found[half] = sorted(groups.values(), key=len, reverse=True)
    return found


def _form(module: Module, name: str) -> Any:
    function = module.function(name)
    _, tree = tree_of(function, steps_of(function, CPU), module, CPU)
    whole = (function.params, tree)
    names = {name, *_names(whole)}
    numbers: dict[str, int] = {}
    fresh = count()

    def seen(form: Any) -> list[int]:
        """When the names of a form came first, those that are new last."""
        if isinstance(form, tuple):
            return [number for part in form for number in seen(part)]
        known = isinstance(form, str) and form in names
        return [numbers.get(form, _UNSEEN)] if known else []

    def numbered(value: Any) -> Any:
        if isinstance(value, tuple):
            if value[:1] == ("Parallel",):  # its names are its own
                for own in _bound(value):
                    numbers.pop(own, None)
            if value[:1] == (_UNORDERED,):
                return tuple(sorted(map(numbered, value[1:]), key=repr))
            if value[:1] in (("+",), ("*",)):
                order = sorted(value[1:], key=lambda form: (_shape(form, names), seen(form)))
                value = (value[0], *order)
            return tuple(map(numbered, value))
        if isinstance(value, str) and value in names:
            if value not in numbers:
                numbers[value] = next(fresh)
            return numbers[value]
        return value

    return numbered(_plain(whole))


def _parts(value: Any) -> list[tuple[str, Any]]:
    """The fields of a node that are part of its form."""
    return [(f.name, getattr(value, f.name)) for f in fields(value) if f.name not in _PLACES]


def _names(value: Any) -> Iterator[str]:
    """What has a name of its own in a tree."""
    match value:
        case Var() | Param() | Axis():
            yield value.name
        case For():
            yield value.counter
    if is_dataclass(value):
        for _, part in _parts(value):
            yield from _names(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _names(part)


def _plain(value: Any) -> Any:
    """A node as nested tuples."""
    if isinstance(value, Binary) and value.op in ("+", "*"):
        return (value.op, _plain(value.left), _plain(value.right))
    if isinstance(value, Var):
        return ("Var", value.name)
    if isinstance(value, Function):
        return value.name
    if is_dataclass(value):
        parts = _parts(value)
        last = [(_UNORDERED, *map(_plain, part)) for name, part in parts if name in _UNORDERED]
        own = [_plain(part) for name, part in parts if name not in _UNORDERED]
        return (type(value).__name__, *own, *last)
    if isinstance(value, tuple | list):
        return tuple(_plain(part) for part in value if not _is_declaration(part))
    if isinstance(value, frozenset | set | dict):  # of names, which stand elsewhere, too
        return len(cast(Any, value))
    return value


def _is_declaration(value: Any) -> bool:
    """Whether a node does nothing but declare."""
    return isinstance(value, Reserve) or (
        isinstance(value, Unit) and all(map(_is_declaration, value.body))
    )


def _bound(form: Any) -> Iterator[str]:
    """The names that a loop and what is inside of it declare."""
    if isinstance(form, tuple):
        if form[:1] and form[0] in _DECLARES:
            yield from (
                part[1] for part in form[1:3] if isinstance(part, tuple) and part[:1] == ("Var",)
            )
        for part in form:
            yield from _bound(part)


def _shape(form: Any, names: set[str]) -> str:
    """A form without its names."""
    if isinstance(form, tuple):
        return f"({','.join(_shape(part, names) for part in form)})"
    return "name" if isinstance(form, str) and form in names else repr(form)
