"""A state whose rows but the first are the result is the result.

    for t in range(T):                               for t in range(T):
        h[t + 1, n] = a[t, n] * h[t, n] + x[t, n]        y[t, n] = a[t, n] * (...) + x[t, n]
    y[t, n] = h[t + 1, n]                            # (...): y[t - 1, n] if t - 1 >= 0 else 0.0

or ``return h[1:]`` for the copy. The state would be set to zero, filled and copied; nothing but the
zeros is ever in its first row.
"""

from __future__ import annotations

from loma.core import builder as b
from loma.core.effects import is_blank
from loma.core.ir import (
    INT, Axis, Binary, Declare, Expr, For, Function, Index, IndexAssign, IntConst, Module, Op,
    Return, Stmt, TensorType, Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.sizes import arith, constant, dims_of, equal, size_variables
from loma.core.walk import (
    map_children, map_tensor_functions, mentioned_names, root, variables,
)  # fmt: skip
from loma.passes.canonical.views import element, slice_start
from loma.passes.liveness import covers

Block = tuple[Stmt, ...]


def states(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, _without_states)


def _without_states(function: Function) -> Function:
    body = function.body
    for stmt in function.body:
        match stmt:
            case IndexAssign():
                body = _without_state(body, stmt) or body
            case Return(values):
                for value in values:
                    body = _with_result(replace(function, body=body), value) or body
            case _:
                pass
    return replace(function, body=body)


def _with_result(function: Function, part: Expr) -> Block | None:
    """The body with a loop that fills the result that is a slice of a state."""
    if not isinstance(part, Op) or part.name != "slice" or not isinstance(part.args[0], Var):
        return None
    state, names = part.args[0], Names(names_of(function))
    start = slice_start(part, frozenset(size_variables(function)).__contains__)
    if start is None:
        return None
    axes = tuple(Axis(names.fresh(f"_i{k}"), dim) for k, dim in enumerate(dims_of(part)))
    here = tuple(Var(axis.name, INT) for axis in axes)
    there = element(part, here)
    assert there is not None
    to = Var(names.fresh(f"_{state.name.lstrip('_')}_slice"), part.type)
    copy = IndexAssign(Index(to, here, there.type), "=", there, axes, part.span)
    body: list[Stmt] = []
    for stmt in function.body:
        if isinstance(stmt, Declare) and stmt.target.name == state.name:
            body.append(Declare(to, None, stmt.span))
        if isinstance(stmt, Return):
            body.append(copy)
            stmt = replace(stmt, values=tuple(to if v is part else v for v in stmt.values))
        body.append(stmt)
    return _without_state(tuple(body), copy)


def _without_state(body: Block, copy: IndexAssign) -> Block | None:
    """The body with a loop that fills the target of the copy, if it copies a state."""
    match copy:
        case IndexAssign(Index(Var() as to, here), "=", Index(Var() as state, there)):
            found = _shift(to, here, state, there)
        case _:
            return None
    if found is None or to.name == state.name or not covers(copy):
        return None
    using = [stmt for stmt in body if state.name in mentioned_names((stmt,))]
    first = next(stmt for stmt in body if to.name in mentioned_names((stmt,)))
    if len(using) != 3 or using[2] is not copy or not is_blank(first) or not is_blank(using[0]):
        return None
    if body.index(first) > body.index(using[1]) or body.index(copy) < body.index(using[1]):
        return None
    between = body[body.index(first) + 1 : body.index(copy)]
    loop = using[1]
    if not isinstance(loop, For) or to.name in mentioned_names(between):
        return None
    new = _filling(loop, to, state, *found)
    if new is None:
        return None
    return tuple(new if s is loop else s for s in body if s is not copy and s is not using[0])


def _shift(
    to: Var, here: tuple[Expr, ...], state: Var, there: tuple[Expr, ...]
) -> tuple[int, int] | None:
    """Along which dimension a state is longer than the copy, and by how many rows."""
    if not all(isinstance(v.type, TensorType) and v.type.dims is not None for v in (to, state)):
        return None
    elements = [v.type.element for v in (to, state) if isinstance(v.type, TensorType)]
    if elements != ["float", "float"] or len(here) != len(there):
        return None
    moved = [k for k, (own, other) in enumerate(zip(here, there, strict=True)) if own != other]
    if len(moved) != 1 or not all(isinstance(subscript, Var) for subscript in here):
        return None
    shift = constant(arith("-", there[moved[0]], here[moved[0]])) or 0
    for k, (own, other) in enumerate(zip(dims_of(to), dims_of(state), strict=True)):
        if constant(arith("-", other, own)) != (shift if k == moved[0] else 0):
            return None
    return (moved[0], shift) if shift > 0 else None


def _filling(loop: For, to: Var, state: Var, along: int, shift: int) -> For | None:
    """The loop with rows of the result for those of the state, if one statement of it fills these
    in order."""
    using = [stmt for stmt in loop.body if state.name in mentioned_names((stmt,))]
    counter = Var(loop.counter, INT)
    if len(using) != 1 or loop.backwards or equal(loop.extent, dims_of(to)[along]) is not True:
        return None
    stmt = using[0]
    if not isinstance(stmt, IndexAssign) or stmt.op != "=" or root(stmt.target) != state.name:
        return None
    assert isinstance(stmt.target, Index)
    others = [s for k, s in enumerate(stmt.target.subscripts) if k != along]
    axes = {axis.name for axis in stmt.axes}
    if constant(arith("-", stmt.target.subscripts[along], counter)) != shift:
        return None
    alone = all(isinstance(s, Var) and s.name in axes for s in others)
    if not alone or len(set(others)) < len(others):
        return None
    left = 0  # reads that have no row of the result

    def value(expr: Expr) -> Expr:
        nonlocal left
        match expr:
            case Index(Var(name), subscripts) if name == state.name:
                back = arith("-", subscripts[along], counter)
                rest = [s for k, s in enumerate(subscripts) if k != along]
                step = constant(back)
                if step is None or not 0 <= step < shift or rest != others:
                    left += 1
                    return expr
                row = arith("-", subscripts[along], IntConst(shift))
                place = tuple(row if k == along else s for k, s in enumerate(subscripts))
                read = replace(expr, base=to, subscripts=place)
                return b.select(Binary(">=", row, IntConst(0), INT), read, b.flt(0))
            case _:
                return map_children(expr, value)

    made = value(stmt.value)
    if left or state.name in variables(made):
        return None
    place = tuple(counter if k == along else s for k, s in enumerate(stmt.target.subscripts))
    new = replace(stmt, target=replace(stmt.target, base=to, subscripts=place), value=made)
    return replace(loop, body=tuple(new if s is stmt else s for s in loop.body))
