"""Sums of what carries an index's number are added where that number says.

``y[g, d] = sum(x[n, d] if group[n] == g else 0.0 for n in N)`` looks at all of ``x`` for each g. As
a scatter it looks once:

    y[group[n], d] += x[n, d]    # where 0 <= group[n] < G, as no g equals another number
"""

from __future__ import annotations

from loma.core import builder as b
from loma.core.axes import without_idle_axes
from loma.core.bounds import conjuncts
from loma.core.ir import (
    INT, Axis, Binary, Expr, FloatConst, If, Index, IndexAssign, IntConst, Module, Select, Stmt,
    Var, Zero, replace,
)  # fmt: skip
from loma.core.sizes import constant
from loma.core.walk import (
    free_variables, map_blocks, map_tensor_functions, reads_elements, variables,
)  # fmt: skip
from loma.passes.liveness import covers
from loma.passes.outer import summand

_FEW = 4  # for so few values of an index, comparisons in vectors take no longer


def scatters(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, lambda f: replace(f, body=_block(f.body)))


def _block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    for stmt in body:
        made = _scattered(stmt) if isinstance(stmt, IndexAssign) else None
        out += made or (map_blocks(stmt, _block),)
    return tuple(out)


def _scattered(stmt: IndexAssign) -> tuple[Stmt, ...] | None:
    """The statements that add where the index says, if it says so."""
    target = stmt.target
    if not isinstance(target, Index):
        return None
    summed, body = summand(stmt)
    if not isinstance(body, Select) or not summed:
        return None
    if body.other not in (FloatConst(0.0), IntConst(0)) or stmt.op not in ("=", "+="):
        return None
    tensor, own = target.tensor, tuple(axis for axis in stmt.axes if axis not in summed)
    read = {*free_variables(body), *(v for axis in summed for v in free_variables(axis.extent))}
    if tensor.name in read or (stmt.op == "=" and not covers(replace(stmt, axes=own))):
        return None
    for axis in own:
        index, number = Var(axis.name, INT), _number(body.cond, axis, summed)
        if number is None or target.subscripts.count(index) != 1:
            continue
        equal, value = number
        inside = Binary("<=", IntConst(0), value, INT), Binary("<", value, axis.extent, INT)
        tests = (inside if test == equal else (test,) for test in conjuncts(body.cond))
        taken = b.every([test for held in tests for test in held])
        rest = replace(body, cond=taken)
        others = [sub for sub in target.subscripts if sub != index]
        ranges = [a.extent for a in (*own, *summed) if a is not axis]
        if any(axis.name in free_variables(e) for e in (rest, *others, *ranges)):
            continue
        place = b.select(taken, value, IntConst(0))
        at = tuple(place if sub == index else sub for sub in target.subscripts)
        first = list(dict.fromkeys(name for sub in at for name in variables(sub)))
        axes = sorted(
            (*(a for a in own if a is not axis), *summed),
            key=lambda a: first.index(a.name) if a.name in first else len(first),
        )
        added = IndexAssign(replace(target, subscripts=at), "+=", rest, tuple(axes), stmt.span)
        made = without_idle_axes(added)
        if not constant(axis.extent):
            made = If(Binary(">", axis.extent, IntConst(0), INT), (made,), (), stmt.span)
        return (*((Zero(tensor, stmt.span),) if stmt.op == "=" else ()), made)
    return None


def _number(cond: Expr, axis: Axis, summed: list[Axis]) -> tuple[Expr, Expr] | None:
    """The test of a condition that a number, which data give, is the index, and that number."""
    index, few = Var(axis.name, INT), constant(axis.extent)
    if free_variables(axis.extent) & {a.name for a in summed} or (few is not None and few <= _FEW):
        return None
    for test in conjuncts(cond):
        match test:
            case Binary("==", left, right) if index in (left, right):
                value = right if left == index else left
            case _:
                continue
        own = {axis.name for axis in summed} & free_variables(value)
        if value.type == INT and reads_elements(value) and own:
            return test, value
    return None
