"""Constant folding: int expressions whose operands are constants become constants."""

from __future__ import annotations

from loma.arithmetic import integers
from loma.core import sizes
from loma.core.builtins import BUILTINS
from loma.core.ir import (
    INT, Axis, Binary, Builtin, Expr, IntConst, Op, Reduce, Select, Type, Unary, replace,
)  # fmt: skip
from loma.core.ops import divisor
from loma.core.walk import map_attrs, map_children, map_sizes

_LARGEST = 1 << 63  # ints of the tensor layer have 64 bits


def folded(expr: Expr) -> Expr:
    """The expression with what is constant computed, in the types below it, too.

    What fails when it runs (a division by zero) or does not fit an int stays as it is.
    """
    new = map_children(expr, folded)
    match new:
        case Op(_, _, attrs):
            new = replace(new, attrs=map_attrs(attrs, size))
        case Reduce(_, _, axes):
            new = replace(new, axes=tuple(Axis(axis.name, size(axis.extent)) for axis in axes))
        case Select(IntConst(value), then, other):
            chosen = then if value else other
            new = chosen if folded_type(chosen.type) == folded_type(new.type) else new
        case _:
            found = _value(new)
            new = new if found is None else IntConst(found, new.span)
    type_ = folded_type(new.type)
    return new if type_ == new.type else replace(new, type=type_)  # type: ignore[arg-type]


def size(expr: Expr) -> Expr:
    """A size in normal form."""
    return replace(sizes.simplify(folded(expr)), span=expr.span)


def folded_type(type_: Type) -> Type:
    return map_sizes(type_, size)


def _value(expr: Expr) -> int | None:
    """What an int operation on constants gives."""
    if expr.type != INT or divisor(expr) == IntConst(0):
        return None
    match expr:
        case Unary("-", IntConst(value)):
            return _fitting(-value)
        case Unary("not", IntConst(value)):
            return int(not value)
        case Binary("and", IntConst(0), _):
            return 0
        case Binary("or", IntConst(left), _) if left:
            return 1
        case Binary("and" | "or", IntConst(), IntConst(right)):
            return int(right != 0)
        case Binary("**"):
            return None
        case Binary(op, IntConst(left), IntConst(right)):
            return _fitting(int(integers.BINARY[op](left, right)))
        case Builtin(name, args) if BUILTINS[name].result == "operands":
            numbers = [arg.value for arg in args if isinstance(arg, IntConst)]
            if len(numbers) < len(args):
                return None
            return _fitting(integers.FUNCTIONS[name](*numbers))
        case _:
            return None


def _fitting(value: int) -> int | None:
    return value if -_LARGEST <= value < _LARGEST else None
