"""An index whose remainder decides between values is a statement for each remainder.

    y[t, i] = x[t, i] * c[i // 2] + (x[t, i - 1] * s[i // 2] if i % 2 == 1
                                     else -x[t, i + 1] * s[i // 2])

with 2 * D values of i is

    y[t, 2 * i] = x[t, 2 * i] * c[i] + -x[t, 2 * i + 1] * s[i]
    y[t, 2 * i + 1] = x[t, 2 * i + 1] * c[i] + x[t, 2 * i] * s[i]

with D of them: no condition, no division, and adjoints that need none either. So is one that stands
nowhere but in its quotient and its remainder by a small number, as where pixels are shuffled.
"""

from __future__ import annotations

from loma.core import sizes
from loma.core.axes import index_statement
from loma.core.ir import (
    INT, Axis, Binary, Expr, For, Function, Index, IndexAssign, IntConst, Module, Select, Stmt,
    Unary, Var, replace,
)  # fmt: skip
from loma.core.sizes import IsSize
from loma.core.walk import (
    free_variables, map_blocks, map_children, map_tensor_functions, reduced_axes, walk,
)  # fmt: skip

MOST = 4  # remainders


def remainders(module: Module) -> Module:
    """The pass on every tensor function of a module."""

    def changed(function: Function) -> Function:
        is_size = frozenset(sizes.size_variables(function)).__contains__

        def block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
            return tuple(new for stmt in body for new in statement(stmt))

        def statement(stmt: Stmt) -> tuple[Stmt, ...]:
            if not isinstance(stmt, IndexAssign):
                return (map_blocks(stmt, block),)
            parts = _apart(stmt, is_size)
            return (stmt,) if parts is None else block(parts)

        return replace(function, body=block(function.body))

    return map_tensor_functions(module, changed)


def _apart(stmt: IndexAssign, is_size: IsSize) -> tuple[Stmt, ...] | None:
    """A statement for each remainder; None where no condition asks for one."""
    target = stmt.target
    if not isinstance(target, Index) or target.tensor.name in free_variables(stmt.value):
        return None
    taken = {axis.name for axis in reduced_axes(stmt.value)}
    for axis in stmt.axes:
        own = [s for s in target.subscripts if axis.name in free_variables(s)]
        if own != [Var(axis.name, INT)] or axis.name in taken:
            continue
        if any(axis.name in free_variables(other.extent) for other in stmt.axes):
            continue
        count = _asked(stmt.value, axis.name)
        groups = None if count is None else _divided(axis.extent, count)
        if count is None or groups is None or not sizes.is_nonnegative(groups, is_size):
            continue
        found: list[Stmt] = []
        for remainder in range(count):
            member = _Member(axis.name, count, remainder)
            place, value = member.expr(target), member.expr(stmt.value)
            assert isinstance(place, Index)
            axes = tuple(Axis(a.name, groups) if a is axis else a for a in stmt.axes)
            new = index_statement(place, stmt.op, value, axes, {axis.name}, is_size)
            told = _as_told(new, stmt)
            if told is None:
                return None
            found.append(told)
        return tuple(found)
    return None


def _as_told(new: Stmt, stmt: IndexAssign) -> Stmt | None:
    """A statement, or the loops around it that say the ranges of indices, with what another one
    knows of its elements; None where it is anything else."""
    match new:
        case For(body=(inner,)):
            told = _as_told(inner, stmt)
            return None if told is None else replace(new, body=(told,))
        case IndexAssign():
            return replace(new, span=stmt.span, distinct=stmt.distinct)
        case _:
            return None


def _asked(value: Expr, index: str) -> int | None:
    """By what an index is divided in a condition on the remainder alone, or wherever it stands."""
    for node in walk(value):
        if not isinstance(node, Select):
            continue
        for part in walk(node.cond):
            match part:
                case Binary("==" | "!=", Binary("%", Var(name), IntConst(count)), IntConst()) if (
                    name == index and 1 < count <= MOST
                ):
                    return count
                case _:
                    continue
    return _always(value, index)


def _always(value: Expr, index: str) -> int | None:
    """The number by which an index is divided wherever it stands, with its remainder somewhere."""
    parts = [node for node in walk(value) if isinstance(node, Binary) and node.op in ("//", "%")]
    own = [part for part in parts if part.left == Var(index, INT)]
    numbers = {part.right.value for part in own if isinstance(part.right, IntConst)}
    alone = sum(isinstance(node, Var) and node.name == index for node in walk(value))
    if len(numbers) != 1 or alone != len(own) or all(part.op == "//" for part in own):
        return None
    (count,) = numbers
    return count if 1 < count <= MOST else None


def _divided(extent: Expr, count: int) -> Expr | None:
    """A count-th of an extent, if sizes tell that it is one."""
    terms = sizes.polynomial(extent)
    if any(value % count for value in terms.values()):
        return None
    return sizes.from_polynomial({atoms: value // count for atoms, value in terms.items()})


class _Member:
    """Expressions for the values ``count * index + remainder`` of an index."""

    def __init__(self, index: str, count: int, remainder: int) -> None:
        self._index, self._count, self._remainder = index, count, remainder
        scaled = Binary("*", IntConst(count), Var(index, INT), INT)
        self._place: Expr = scaled
        if remainder:
            self._place = Binary("+", scaled, IntConst(remainder), INT)

    def expr(self, expr: Expr) -> Expr:
        match expr:
            case Var(name) if name == self._index:
                return self._place
            case Binary("//" | "%" as op, Var(name), IntConst(count)) if (
                name == self._index and count == self._count
            ):
                return Var(name, INT) if op == "//" else IntConst(self._remainder)
            case Select(cond, then, other):
                holds = _decided(self.expr(cond))
                if holds is not None:
                    return self.expr(then if holds else other)
            case Index(base, subscripts):
                places = tuple(sizes.simplify(self.expr(s)) for s in subscripts)
                return replace(expr, base=base, subscripts=places)
            case _:
                pass
        return map_children(expr, self.expr)


def _decided(cond: Expr) -> bool | None:
    """Whether a condition on numbers holds."""
    match cond:
        case Binary("==", IntConst(one), IntConst(other)):
            return one == other
        case Binary("!=", IntConst(one), IntConst(other)):
            return one != other
        case Unary("not", operand) if (holds := _decided(operand)) is not None:
            return not holds
        case _:
            return None
