"""Expressions of C and C++ as trees, and how they are spelled.

Backends build trees and never look into text. :func:`text` puts parentheses where the grammar needs
them, where gcc's -Wall -Wextra ask for them, and where few readers know the grammar: around the
operations in a shift, in an operation on bits, and in the middle of a conditional expression.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import partial, reduce
from typing import assert_never


@dataclass(frozen=True, slots=True)
class Token:
    """A name, a literal, or C++ of a tensor, which is a name or a call: what never needs
    parentheses. A number has no sign; see :func:`number`."""

    text: str


@dataclass(frozen=True, slots=True)
class Unary:
    """An operator before its operand: ``-x``, ``!x``, ``*x``, ``&x``, ``++x``, ``sizeof x``."""

    op: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Postfix:
    """``x++`` and ``x--``."""

    op: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Binary:
    """An operator between two operands, assignments and the comma among them."""

    op: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Conditional:
    """``condition ? then : other``."""

    condition: Expression
    then: Expression
    other: Expression


@dataclass(frozen=True, slots=True)
class Cast:
    """``(type)x``."""

    type: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Call:
    """``function(args)``."""

    function: Expression
    args: tuple[Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class Member:
    """``x.name``, which for a dereferenced pointer is spelled ``p->name``."""

    base: Expression
    name: str


@dataclass(frozen=True, slots=True)
class Subscript:
    """``x[position]``."""

    base: Expression
    position: Expression


@dataclass(frozen=True, slots=True)
class Braces:
    """``{a, b}`` behind what says its type: ``(T)`` in C, ``T`` in C++."""

    head: str
    items: tuple[Expression, ...]


Expression = (
    Token | Unary | Postfix | Binary | Conditional | Cast | Call | Member | Subscript | Braces
)

# How tightly text binds.
(
    _COMMA, _ASSIGNMENT, _CONDITIONAL, _OR, _AND, _BIT_OR, _BIT_XOR, _BIT_AND, _EQUALITY,
    _COMPARISON, _SHIFT, _SUM, _PRODUCT, _CAST, _UNARY, _POSTFIX,
) = range(16)  # fmt: skip

# How tightly an operator binds, and how tightly its operands have to. The grammar would take looser
# operands of ||, comparisons, bits and shifts, of which gcc warns.
_BINARY: dict[str, tuple[int, int, int]] = {
    ",": (_COMMA, _COMMA, _ASSIGNMENT),
    "||": (_OR, _BIT_OR, _BIT_OR),
    "&&": (_AND, _BIT_OR, _BIT_OR),
    "|": (_BIT_OR, _CAST, _CAST),
    "^": (_BIT_XOR, _CAST, _CAST),
    "&": (_BIT_AND, _CAST, _CAST),
    **dict.fromkeys(("==", "!="), (_EQUALITY, _SHIFT, _SHIFT)),
    **dict.fromkeys(("<", "<=", ">", ">="), (_COMPARISON, _SHIFT, _SHIFT)),
    **dict.fromkeys(("<<", ">>"), (_SHIFT, _CAST, _CAST)),
    **dict.fromkeys(("+", "-"), (_SUM, _SUM, _PRODUCT)),
    **dict.fromkeys(("*", "/", "%"), (_PRODUCT, _PRODUCT, _CAST)),
    **{f"{op}=": (_ASSIGNMENT, _UNARY, _ASSIGNMENT)
       for op in ("", "+", "-", "*", "/", "%", "<<", ">>", "&", "^", "|")},
}  # fmt: skip
_CHAINS = ("||", "&&", "|", "^", "&", "<<", ">>")  # a op b op c needs no parentheses


def call(function: str, *args: Expression) -> Call:
    """A call of a function by its name."""
    return Call(Token(function), args)


def number(value: float, suffix: str = "") -> Expression:
    """A number, which the language's numbers must hold without its sign."""
    token = Token(f"{abs(value)}{suffix}")
    return Unary("-", token) if math.copysign(1.0, value) < 0 else token


def chain(op: str, operands: Iterable[Expression]) -> Expression:
    """One or more operands with the operator between them, the first two taken first."""
    return reduce(partial(Binary, op), operands)


def plus(left: Expression, right: Expression) -> Expression:
    """The sum of two ints; ``x - y`` for ``x + -y``."""
    if isinstance(right, Unary) and right.op == "-":
        return Binary("-", left, right.operand)
    return Binary("+", left, right)


def dereference(pointer: Expression) -> Expression:
    """What a pointer points to: ``x`` of ``&x``."""
    match pointer:
        case Unary("&", place):
            return place
        case _:
            return Unary("*", pointer)


def address_of(place: Expression) -> Expression:
    """A pointer to a place: ``p`` of ``*p``, where ``p`` is a pointer and no object of C++."""
    match place:
        case Unary("*", pointer):
            return pointer
        case _:
            return Unary("&", place)


def parts(node: Expression) -> Iterator[Expression]:
    """The expression and every one inside it."""
    waiting = [node]
    while waiting:
        yield (found := waiting.pop())
        for field in fields(found):
            value = getattr(found, field.name)
            inner = value if isinstance(value, tuple) else (value,)
            waiting += [part for part in inner if not isinstance(part, str)]


def text(node: Expression) -> str:
    """The expression where nothing stands beside it: as a statement, in parentheses."""
    match node:
        case Token(spelled):
            return spelled
        case Unary(op, operand):
            return _unary(op, operand)
        case Postfix(op, operand):
            return f"{_at(operand, _POSTFIX)}{op}"
        case Binary(op, left, right):
            _, first, second = _BINARY[op]
            if op in _CHAINS and isinstance(left, Binary) and left.op == op:
                first = _COMMA
            before, after = _at(left, first), _at(right, second)
            if _is_not(left) and first in (_SHIFT, _CAST):
                before = f"({before})"  # gcc takes !a == b for a slip
            return f"{before}, {after}" if op == "," else f"{before} {op} {after}"
        case Conditional(condition, then, other):
            cases = f"{_at(then, _OR)} : {_at(other, _CONDITIONAL)}"
            return f"{_at(condition, _OR)} ? {cases}"
        case Cast(type_, operand):
            return f"({type_}){_at(operand, _CAST)}"
        case Call(function, args):
            return f"{_at(function, _POSTFIX)}({list_text(args)})"
        case Member(Unary("*", pointer), name):
            return f"{_at(pointer, _POSTFIX)}->{name}"
        case Member(base, name):
            return f"{_at(base, _POSTFIX)}.{name}"
        case Subscript(base, position):
            return f"{_at(base, _POSTFIX)}[{item_text(position)}]"
        case Braces(head, items):
            return f"{head}{{{list_text(items)}}}"
        case _:
            assert_never(node)


def item_text(node: Expression) -> str:
    """The expression as an item of a list, or as the value that a declaration gives."""
    return _at(node, _ASSIGNMENT)


def list_text(nodes: Iterable[Expression]) -> str:
    """Expressions as the items of a list."""
    return ", ".join(map(item_text, nodes))


def _at(node: Expression, least: int) -> str:
    """The expression, in parentheses if it binds less tightly than ``least``."""
    return text(node) if _level(node) >= least else f"({text(node)})"


def _level(node: Expression) -> int:
    match node:
        case Binary(op):
            return _BINARY[op][0]
        case Conditional():
            return _CONDITIONAL
        case Cast():
            return _CAST
        case Unary():
            return _UNARY
        case _:
            return _POSTFIX


def _unary(op: str, operand: Expression) -> str:
    if op.isalpha():
        return f"{op} {_at(operand, _UNARY)}"
    inner = _at(operand, _CAST)
    # two signs would be another operator
    joins = op[-1] in "+-&" and isinstance(operand, Unary) and operand.op[0] == op[-1]
    return f"{op}({inner})" if joins else f"{op}{inner}"


def _is_not(node: Expression) -> bool:
    return isinstance(node, Unary) and node.op == "!"
