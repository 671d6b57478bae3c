"""Local tensors are stored in the order in which they are read.

``t[j, i] = ...; y[i, j] = t[j, i] * a[i]`` goes through ``t`` across memory, and keeps its
statements apart: with ``t[i, j]`` they share both indices. So does ``return transpose(t, 0, 1)``.
A tensor gets another order of dimensions where all that reads it element by element asks for the
same one; reductions, which go along any dimension, have no say but for the order of the dimensions
that they do not go along: a batch of products ``sum(t[i, b, k] * v[b, k, j] for k in K)`` has its
batch in front. What loops read at their counter keeps its order: rows whose recurrence is theirs
alone go through it inside of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from loma.core import sizes
from loma.core.effects import blanks
from loma.core.ir import (
    Declare, Expr, Function, Index, IndexAssign, IntConst, Module, Op, Reduce, Stmt, TensorType,
    Var, Zero, replace,
)  # fmt: skip
from loma.core.walk import (
    children, expressions, free_variables, map_blocks, map_children, map_expressions,
    map_tensor_functions, mentioned_names, own_names, statements, variables,
)  # fmt: skip
from loma.passes.canonical.views import element

Order = tuple[int, ...]  # which of the dimensions comes where


def layouts(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, _changed)


def _changed(function: Function) -> Function:
    locals_ = {
        name: var for name, var in blanks(function.body).items() if len(sizes.dims_of(var)) > 1
    }
    set_at = {
        stmt.target.tensor.name: place
        for place, stmt in enumerate(statements(function.body))
        if isinstance(stmt, IndexAssign) and isinstance(stmt.target, Index)
    }
    for name in sorted(locals_.keys() & set_at.keys(), key=lambda name: -set_at[name]):
        order = _wanted(name, function.body)
        if order is not None:
            body = tuple(_stored(stmt, name, order) for stmt in function.body)
            function = replace(function, body=body)
    return function


def _wanted(name: str, body: tuple[Stmt, ...]) -> Order | None:
    """The order in which all that reads a tensor element by element goes through it, if that is
    another one."""
    found: set[Order | None] = set()
    for stmt in statements(body):
        if name not in own_names(stmt):
            continue
        own: tuple[str, ...] = ()
        sums = False
        match stmt:
            case Declare(_, None) | Zero(Var()):
                continue
            case IndexAssign(target, _, value, axes):
                parts: tuple[Expr, ...] = (value, *(axis.extent for axis in axes))
                parts += target.subscripts if isinstance(target, Index) else (target,)
                every = tuple(axis.name for axis in axes)
                own = tuple(index for index in every if index in free_variables(target))
                sums = own != every
            case _:
                parts = expressions(stmt)
        found.update(order for expr in parts for order in _orders(expr, name, own, sums))
    (order,) = found if len(found) == 1 else (None,)
    return None if order is None or order == tuple(sorted(order)) else order


def _orders(
    expr: Expr, name: str, indices: tuple[str, ...], reduced: bool
) -> Iterator[Order | None]:
    """The orders in which an expression under indices, outermost first, reads a tensor; None for
    what says nothing of that kind. Inside of a reduction any will do in which the indices that are
    not ``reduced`` are in order.
    """
    match expr:
        case Index(Var(base), subscripts):
            if base == name:
                yield from _read_order(subscripts, indices, reduced)
            for place in subscripts:
                yield from _orders(place, name, indices, reduced)
        case Op("transpose", (Var(base),)) if base == name:
            yield _transposed(expr)
        case Var(base) if base == name:
            yield None
        case _:
            inner = reduced or isinstance(expr, Reduce)
            for child in children(expr):
                if name in free_variables(child):
                    yield from _orders(child, name, indices, inner)


def _read_order(
    subscripts: tuple[Expr, ...], indices: tuple[str, ...], reduced: bool
) -> Iterator[Order | None]:
    places = {k: s.name for k, s in enumerate(subscripts) if isinstance(s, Var)}
    places = {k: name for k, name in places.items() if name in indices}
    alone = len(set(places.values())) == len(places if reduced else subscripts)
    sources = iter(sorted(places, key=lambda k: indices.index(places[k])))
    order = tuple(next(sources) if k in places else k for k in range(len(subscripts)))
    if not reduced:
        yield order if alone else None
    elif alone and order != tuple(sorted(order)):
        yield order


def _transposed(view: Op) -> Order | None:
    dims = view.type.dims if isinstance(view.type, TensorType) else None
    read = element(view, tuple(map(IntConst, range(len(dims or ())))))
    places = () if read is None else read.subscripts
    return tuple(place.value for place in places if isinstance(place, IntConst)) or None


def _stored(stmt: Stmt, name: str, order: Order) -> Stmt:
    """The statement with that tensor in another order."""
    if name not in mentioned_names((stmt,)):
        return stmt

    def visit(expr: Expr) -> Expr:
        if isinstance(expr, Op) and expr.name == "transpose" and _is(expr.args[0], name):
            return visit(expr.args[0])
        expr = map_children(expr, visit)
        match expr:
            case Index(base, subscripts) if _is(base, name):
                return replace(expr, subscripts=tuple(subscripts[k] for k in order))
            case Var(own, TensorType(tuple() as dims) as type_) if own == name:
                return replace(expr, type=replace(type_, dims=tuple(dims[k] for k in order)))
            case _:
                return expr

    return _with_sorted_axes(map_expressions(stmt, visit), name)


def _is(expr: Expr, name: str) -> bool:
    return isinstance(expr, Var) and expr.name == name


def _with_sorted_axes(stmt: Stmt, name: str) -> Stmt:
    """A statement that writes the tensor has its axes in the order of the subscripts."""
    match stmt:
        case IndexAssign(Index(Var(base), subscripts), axes=axes) if base == name:
            names = [v for s in subscripts for v in variables(s)]
            own = sorted(
                (axis for axis in axes if axis.name in names),
                key=lambda axis: names.index(axis.name),
            )
            return replace(stmt, axes=(*own, *(a for a in axes if a.name not in names)))
        case _:
            return map_blocks(stmt, lambda b: tuple(_with_sorted_axes(s, name) for s in b))
