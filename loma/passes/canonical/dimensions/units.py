"""Local tensors without their dimensions of size 1.

``t : Tensor[N, 1]; t[n, 0] = ...`` is ``t : Tensor[N]; t[n] = ...``. What writes ``keepdim=True``,
or multiplies a row by a matrix, has the tensors of what does not, and products that a library
computes are found in both.
"""

from __future__ import annotations

from collections.abc import Iterator

from loma.core.ir import (
    Declare, Expr, Function, Index, IntConst, Module, Op, TensorType, Var, Zero, replace,
)  # fmt: skip
from loma.core.walk import (
    children, expressions, map_children, map_expressions, map_tensor_functions, statements,
)  # fmt: skip

ONE = IntConst(1)


def units(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, _without_units)


def _without_units(function: Function) -> Function:
    kept: dict[str, tuple[int, ...]] = {}
    stays: set[str] = set()
    for stmt in statements(function.body):
        match stmt:
            case Declare(Var(name, TensorType(tuple() as dims)), None):
                # Declared twice (in blocks that exclude each other), it is left alone.
                stays |= {name} & kept.keys()
                kept[name] = tuple(k for k, dim in enumerate(dims) if dim != ONE)
                if len(kept[name]) in (0, len(dims)):
                    stays.add(name)
            case Zero(Var()):
                pass
            case _:
                stays |= {n for expr in expressions(stmt) for n in _as_a_whole(expr)}
    kept = {name: dims for name, dims in kept.items() if name not in stays}
    if not kept:
        return function

    def visit(expr: Expr) -> Expr:
        expr = map_children(expr, visit)
        match expr:
            case Index(base, subscripts) if isinstance(base, Var) and base.name in kept:
                return replace(expr, subscripts=tuple(subscripts[k] for k in kept[base.name]))
            case Var(name, TensorType(tuple() as dims) as type_) if name in kept:
                own = tuple(dims[k] for k in kept[name])
                return replace(expr, type=replace(type_, dims=own))
            case _:
                return expr

    return replace(function, body=tuple(map_expressions(stmt, visit) for stmt in function.body))


def _as_a_whole(expr: Expr) -> Iterator[str]:
    """The variables that are used other than by elements with 0 where their size is 1, or whole in
    another shape."""
    match expr:
        case Op("reshape", (Var(),)):
            return
        case Index(Var(name, TensorType(tuple() as dims)), subscripts):
            pairs = zip(dims, subscripts, strict=True)
            if any(dim == ONE and place != IntConst(0) for dim, place in pairs):
                yield name
            for place in subscripts:
                yield from _as_a_whole(place)
        case Var(name):
            yield name
        case _:
            for child in children(expr):
                yield from _as_a_whole(child)
