"""Fresh names: what the compiler adds to a program never clashes with the program's own names."""

from __future__ import annotations

from collections.abc import Iterable

from loma.core.effects import counters, declared, effects
from loma.core.ir import (
    INT, Axis, Declare, Expr, For, Function, IndexAssign, Module, Reduce, Stmt, Var, remembered,
    replace,
)  # fmt: skip
from loma.core.walk import (
    expressions, map_blocks, map_children, map_expressions, reads_of_type, statements, substitute,
    variable_names, walk,
)  # fmt: skip


class Names:
    """Hands out names that are not taken; the same requests give the same names."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}  # the last number that a wish was given

    def __contains__(self, name: object) -> bool:
        return name in self._taken

    def take(self, *names: str) -> None:
        self._taken.update(names)

    def fresh(self, wish: str) -> str:
        """``wish`` itself, else ``wish_1``, ``wish_2``, ..."""
        name, number = wish, self._numbers.get(wish, 0)
        while name in self._taken:
            number += 1
            name = f"{wish}_{number}"
        self._taken.add(name)
        self._numbers[wish] = number
        return name


@remembered
def names_of(function: Function) -> frozenset[str]:
    """Every name that the function's text mentions, sizes and indices included."""
    types = [*(param.type for param in function.params), *function.results]
    params = frozenset(param.name for param in function.params)
    own = map(_names_of, statements(function.body))
    return params.union(counters(function.body), *map(reads_of_type, types), *own)


@remembered
def _names_of(stmt: Stmt) -> frozenset[str]:
    declared = reads_of_type(stmt.target.type) if isinstance(stmt, Declare) else ()
    return axes_of(stmt).union(declared, *map(variable_names, expressions(stmt)))


def axis_names(function: Function) -> set[str]:
    """Names of the indices of index statements and reductions."""
    return {name for stmt in statements(function.body) for name in axes_of(stmt)}


@remembered
def axes_of(stmt: Stmt) -> frozenset[str]:
    """Names of the indices of a statement itself and of the reductions in it."""
    own = (axis.name for axis in stmt.axes) if isinstance(stmt, IndexAssign) else ()
    reductions = (node for e in expressions(stmt) for node in walk(e) if isinstance(node, Reduce))
    return frozenset(own).union(axis.name for reduction in reductions for axis in reduction.axes)


def without_locals(function: Function, taken: Iterable[str]) -> Function:
    """The function with other names for the local variables and counters that have those."""
    taken = set(taken)
    names = Names(names_of(function) | taken)
    types = {
        var.name: var.type
        for own in map(effects, statements(function.body))
        for var in (*own.declares, *own.counters)
    }
    new: dict[str, Expr] = {
        name: Var(names.fresh(name), type_) for name, type_ in types.items() if name in taken
    }
    if not new:
        return function

    def renamed(stmt: Stmt) -> Stmt:
        if isinstance(stmt, For) and isinstance(counter := new.get(stmt.counter), Var):
            stmt = replace(stmt, counter=counter.name)
        return map_blocks(stmt, lambda block: tuple(map(renamed, block)))

    body = (map_expressions(stmt, lambda e: substitute(e, new)) for stmt in function.body)
    return replace(function, body=tuple(map(renamed, body)))


def with_own_indices(function: Function, taken: Iterable[str] = ()) -> Function:
    """The function with other names for the indices and counters that have one of those, or that of
    a variable that is declared behind them: a derivative comes back to their statements later."""
    names = Names({*names_of(function), *taken})
    given = declared(function.body).union(taken)
    shared = sorted(given & (axis_names(function) | counters(function.body)))
    new = {name: names.fresh(name) for name in shared}
    if not new:
        return function

    def values(own: Iterable[str]) -> dict[str, Expr]:
        return {name: Var(new[name], INT) for name in own if name in new}

    def axes(old: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(new.get(axis.name, axis.name), axis.extent) for axis in old)

    def reductions(expr: Expr) -> Expr:
        expr = map_children(expr, reductions)
        if not isinstance(expr, Reduce):
            return expr
        body = substitute(expr.body, values(axis.name for axis in expr.axes))
        return replace(expr, body=body, axes=axes(expr.axes))

    def renamed(stmt: Stmt) -> Stmt:
        own: dict[str, Expr] = {}
        if isinstance(stmt, For):
            own = values([stmt.counter])
            stmt = replace(stmt, counter=new.get(stmt.counter, stmt.counter))
        elif isinstance(stmt, IndexAssign):
            own = values(axis.name for axis in stmt.axes)
            stmt = replace(stmt, axes=axes(stmt.axes))
        stmt = map_expressions(stmt, lambda expr: substitute(expr, own)) if own else stmt
        return map_blocks(stmt, lambda block: tuple(map(renamed, block)))

    body = (map_expressions(stmt, reductions) for stmt in function.body)
    return replace(function, body=tuple(map(renamed, body)))


def module_names(module: Module) -> set[str]:
    """The names at module level."""
    return (
        {function.name for function in module.functions}
        | {struct.name for struct in module.structs}
        | {derivative.name for derivative in module.derivatives}
    )
