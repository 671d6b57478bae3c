"""What becomes of a sum, where it is made.

    s[i, j] = sum((a[i, d] - b[j, d]) ** 2 for d in D)
    y[i, j] = sqrt(s[i, j])                            y[i, j] = sqrt(sum(... for d in D))

A tensor that is as large as the result then is neither written nor read. It is so for sums each
operand of which lacks an index of the result, as the distances of all pairs do: of these a thread
has a tile, and of what it does with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from loma.core import sizes
from loma.core.effects import is_blank
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Builtin, Expr, FloatConst, Function, Index, IndexAssign, Reduce, Stmt,
    TensorType, Unary, Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.walk import (
    children, declared_and_used, exchanged, free_variables, map_blocks, root, substitute, walk,
)  # fmt: skip

FUNCTIONS = ("sqrt", "exp")  # those of several numbers

Library = Callable[[IndexAssign], bool]


def epilogues(function: Function, library: Library) -> Function:
    """The function with such statements; ``library`` tells which ones are whole calls of it."""
    declared, uses = declared_and_used(function.body)
    local = {name for name in declared if uses[name] == 2}  # written once and read once
    local -= {param.name for param in function.params}
    names = Names(names_of(function))

    def block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stmt in body:
            stmt = map_blocks(stmt, block)
            before = next((k for k in reversed(range(len(out))) if not is_blank(out[k])), None)
            if before is not None and (both := _both(out[before], stmt, local, library, names)):
                out[before:] = [*out[before + 1 :], both]  # behind declarations
            else:
                out.append(stmt)
        return tuple(out)

    return replace(function, body=block(function.body))


def _both(
    first: Stmt, then: Stmt, local: set[str], library: Library, names: Names
) -> IndexAssign | None:
    """A statement for a sum and what becomes of it."""
    match first, then:
        case (
            IndexAssign(Index(Var(name, TensorType()) as tensor), "=", Reduce("sum") as value, own),
            IndexAssign(Index(Var() as result), "=", after, axes),
        ) if name in local and own and len(own) == len(axes) and result != tensor:
            assert isinstance(first, IndexAssign)
            assert isinstance(then, IndexAssign)
        case _:
            return None
    reads = [n for n in walk(after) if isinstance(n, Index) and n.base == tensor]
    if len(reads) != 1 or not _is_elementwise(after) or not _is_of_pairs(value, own):
        return None
    alone = [sub.name if isinstance(sub, Var) else "" for sub in first.element.subscripts]
    if Counter(alone) != Counter(axis.name for axis in own) or library(first):
        return None
    if result.name in free_variables(value) | free_variables(after):
        return None
    extents = {axis.name: axis.extent for axis in axes}
    of = {axis.name: axis.extent for axis in own}
    moved: dict[str, Expr] = dict(zip(alone, reads[0].subscripts, strict=True))
    for name, place in moved.items():
        same = isinstance(place, Var) and place.name in extents
        if not same or not sizes.equal(extents[root(place)], of[name]):
            return None
    if len(set(moved.values())) < len(moved):
        return None
    ranges = tuple(
        Axis(names.fresh(axis.name), substitute(axis.extent, moved)) for axis in value.axes
    )
    for axis, new in zip(value.axes, ranges, strict=True):
        moved[axis.name] = Var(new.name, INT)
    total = replace(value, body=substitute(value.body, moved), axes=ranges)
    return replace(then, value=exchanged(after, reads[0], total))


def _is_elementwise(expr: Expr) -> bool:
    """Whether it can be computed for several elements at once."""
    match expr:
        case Index() | FloatConst():
            return True
        case Builtin(name) if name not in FUNCTIONS:
            return False
        case Binary("+" | "-" | "*", type=type_) if type_ == FLOAT:
            return all(map(_is_elementwise, children(expr)))
        case Builtin() | Unary("-"):
            return all(map(_is_elementwise, children(expr)))
        case _:
            return False


def _is_of_pairs(value: Reduce, own: tuple[Axis, ...]) -> bool:
    """Whether each operand of a sum lacks an index of the result, and no index is in none."""
    read = [free_variables(n) for n in walk(value.body) if isinstance(n, Index)]
    names = {axis.name for axis in own}
    return (
        len(names) > 1
        and all(not names <= each for each in read)
        and names <= frozenset().union(*read)
        and not any(isinstance(n, Reduce) for n in walk(value.body))
    )
