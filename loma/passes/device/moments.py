"""Squares of what a mean is taken off, summed where the mean's own sum is.

    r[c] = sum(x[n, c] for n in N)
    m[c] = r[c] / N
    v[c] = sum((x[n, c] - m[c]) ** 2 for n in N)

goes through x twice. Here it is once, with a number k[c] in the place of the mean that is known
before, the mean of a part of the rows:

    k[c] = sum(x[n, c] / length of the part for n in part)
    r[c] = sum(x[n, c] for n in N)
    a[c] = sum(x[n, c] - k[c] for n in N)
    q[c] = sum((x[n, c] - k[c]) ** 2 for n in N)          these three in one loop
    m[c] = r[c] / N
    v[c] = q[c] - d * (2 * a[c] - N * d)                  d = m[c] - k[c]

The part is not less than a 64th of the rows, so, by Cauchy's inequality, N * d ** 2 is at most 64
times v: no more digits than that are lost, whatever x is, and hardly one where rows are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loma.core import builder as b, sizes
from loma.core.axes import shifted_places
from loma.core.effects import written
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Builtin, Expr, FloatConst, Index, IndexAssign, IntConst, Reduce,
    Select, Stmt, TensorType, Var, replace,
)  # fmt: skip
from loma.core.walk import free_variables, reads_elements, substitute, walk

_SHARE = IntConst(64)
_ZERO, _ONE, _TWO = FloatConst(0.0), IntConst(1), FloatConst(2.0)


def moments(
    source: tuple[Stmt, ...], fresh: Callable[[str], str]
) -> tuple[tuple[Stmt, ...], frozenset[str]]:
    """The statements with such sums in one loop, and the names of the tensors that this takes."""
    new: set[str] = set()

    def named(wish: str) -> str:
        name = fresh(wish)
        new.add(name)
        return name

    out = list(source)
    position = 0
    while position < len(out):
        found = _squares_behind(out, position)
        if found is not None:
            at, shift = found
            out[at : at + 1], made = _behind(out[position], out[at], shift, named)
            out[position : position + 1] = made
            position += len(made) - 1
        position += 1
    return tuple(out), frozenset(new)


def _squares_behind(block: Sequence[Stmt], position: int) -> tuple[int, Expr] | None:
    """Where what a statement sums is summed again, less a number, as squares; and that number in
    terms of the statement's own indices."""
    first = block[position]
    if not _is_sum(first):
        return None
    assert isinstance(first, IndexAssign)
    assert isinstance(first.value, Reduce)
    read = free_variables(first.value.body)
    for at in range(position + 1, len(block)):
        stmt = block[at]
        if isinstance(stmt, IndexAssign) and (shift := _shift(first, stmt)) is not None:
            return (at, shift) if _is_of(shift, first, block[position + 1 : at]) else None
        if written((stmt,)) & (read | {first.element.tensor.name}):
            return None
    return None


def _is_sum(stmt: Stmt) -> bool:
    """Whether it is a sum of what lies in memory for all of its indices, for each element of a
    tensor."""
    match stmt:
        case IndexAssign(Index() as target, "=", Reduce("sum", body, axes), own) if (
            body.type == FLOAT
        ):
            names = {axis.name for axis in (*own, *axes)}
        case _:
            return False
    subscripts = [s.name if isinstance(s, Var) else "" for s in target.subscripts]
    reads = [node for node in walk(body) if isinstance(node, Index)]
    return (
        sorted(subscripts) == sorted(axis.name for axis in own)
        and not any(sizes.mentions(axis.extent, names) for axis in (*own, *axes))
        and not any(reads_elements(axis.extent) for axis in axes)
        and not any(isinstance(node, Reduce) for node in walk(body))
        and bool(reads)
        and all(names <= free_variables(node) for node in reads)
        and not any(reads_elements(s) for node in reads for s in node.subscripts)
    )


def _shift(first: IndexAssign, stmt: IndexAssign) -> Expr | None:
    """What a statement takes off what the first one sums, before it sums the squares."""
    match stmt:
        case IndexAssign(Index() as target, "=", Reduce("sum", body, axes)):
            pass
        case _:
            return None
    total = first.value
    assert isinstance(total, Reduce)
    if len(axes) != len(total.axes) or len(stmt.axes) != len(first.axes):
        return None
    names = {axis.name for axis in stmt.axes}
    own = [s.name for s in target.subscripts if isinstance(s, Var) and s.name in names]
    if len(own) != len(target.subscripts) or len(set(own)) < len(names):
        return None
    extents = {axis.name: axis.extent for axis in (*first.axes, *total.axes)}
    others = {axis.name: axis.extent for axis in (*stmt.axes, *axes)}
    here = [*own, *(axis.name for axis in axes)]
    there = [s.name for s in first.element.subscripts if isinstance(s, Var)]
    there += [axis.name for axis in total.axes]
    pairs = list(zip(here, there, strict=True))
    if any(not sizes.equal(others[old], extents[new]) for old, new in pairs):
        return None
    renamed = substitute(body, {old: Var(new, INT) for old, new in pairs})
    match renamed:
        case Binary("**", Binary("-") as less, IntConst(2) | FloatConst(2.0)):
            pass
        case Binary("*", Binary("-") as less, other) if less == other:
            pass
        case _:
            return None
    sides = (less.left, less.right), (less.right, less.left)
    inner = {axis.name for axis in total.axes}
    for value, shift in sides:
        if value == total.body and not sizes.mentions(shift, inner):
            return shift
    return None


def _is_of(shift: Expr, first: IndexAssign, between: Sequence[Stmt]) -> bool:
    """Whether a number is the first statement's sum divided by another, so that it is one of the
    numbers that are summed, or between them."""
    match shift:
        case Binary("/", Index() as total, count):
            return total == first.element and not reads_elements(count)
        case Index():
            pass
        case _:
            return False
    for stmt in between:
        if isinstance(stmt, IndexAssign) and stmt.element.tensor == shift.tensor:
            value = substitute(stmt.value, dict(_renaming(stmt.element, shift)))
            return stmt.op == "=" and value != shift and _is_of(value, first, ())
    return False


def _renaming(target: Index, place: Index) -> list[tuple[str, Expr]]:
    pairs = zip(target.subscripts, place.subscripts, strict=True)
    return [(old.name, new) for old, new in pairs if isinstance(old, Var)]


def _behind(
    first: Stmt, squares: Stmt, shift: Expr, named: Callable[[str], str]
) -> tuple[list[Stmt], list[Stmt]]:
    """What stands for the statement of the squares, and what for that of the sum."""
    assert isinstance(first, IndexAssign)
    assert isinstance(first.value, Reduce)
    assert isinstance(squares, IndexAssign)
    total, place = first.value, first.element
    type_ = TensorType(sizes.dims_of(place.tensor), "float")

    def tensor(wish: str) -> Index:
        return replace(place, base=Var(named(wish), type_), type=FLOAT)

    near, sum_, square = tensor("_near"), tensor("_less"), tensor("_square")
    longest, *others = total.axes
    few = b.binary("+", b.binary("//", longest.extent, _SHARE), _ONE)
    part = Axis(longest.name, Builtin("min", (few, longest.extent), INT))
    some = shifted_places(total.body, {part.name: part.extent})
    some = b.binary("*", some, b.binary("/", FloatConst(1.0), _count((part, *others))))
    less = b.binary("-", total.body, near)
    made: list[Stmt] = [
        replace(first, target=near, value=Reduce("sum", some, (part, *others), FLOAT)),
        first,
        replace(first, target=sum_, value=Reduce("sum", less, total.axes, FLOAT)),
        replace(first, target=square, value=Reduce("sum", _squared(less), total.axes, FLOAT)),
    ]
    count = _count(total.axes)
    away = b.binary("-", shift, near)
    rest = b.binary("-", b.binary("*", _TWO, sum_), b.binary("*", count, away))
    value = b.binary("-", square, b.binary("*", away, rest))
    # Rounding makes no square negative; and of nothing there is no mean.
    none = b.binary("or", b.binary("<", value, _ZERO), b.binary("<=", count, _ZERO))
    back = dict(_renaming(place, squares.element))
    value = substitute(Select(none, _ZERO, value, FLOAT), back)
    return [replace(squares, value=value)], made


def _squared(value: Expr) -> Expr:
    return b.binary("*", value, value)


def _count(axes: Sequence[Axis]) -> Expr:
    count = sizes.product(tuple(axis.extent for axis in axes))
    return Builtin("int2float", (count,), FLOAT)
