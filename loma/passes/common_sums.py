"""Sums that several adjoints of a backward function are made of, once for all of them.

    if _need_x:                                    _sum[c] = sum(g[n, c] for n in N)
        r[c] = sum(g[n, c] for n in N)             if _need_x:
        d_x[n, c] = ... r[c]                           d_x[n, c] = ... _sum[c]
    if _need_b:                                    if _need_b:
        d_b[c] = sum(g[n, c] for n in N)               d_b[c] = _sum[c]

What is made behind the guard of one adjoint is not seen behind that of another. Other sums over the
same elements, which run in the same loop, go with those that are wanted twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loma.core import builder as b
from loma.core.effects import effects, written
from loma.core.ir import (
    INT, Binary, Builtin, Declare, Expr, Function, If, Index, IndexAssign, IntConst, Module, Reduce,
    Stmt, Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.printer import print_expr
from loma.core.walk import (
    expressions, free_variables, map_expressions, map_tensor_functions, root, statements,
    substitute,
)  # fmt: skip


def common_sums(module: Module) -> Module:
    """The pass on every backward function of a module."""
    return map_tensor_functions(module, lambda f: _once(f) if f.half == "backward" else f)


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum behind the guard ``need``. ``key`` is the same for sums of the same value, ``loop`` for
    those over the same elements."""

    stmt: IndexAssign
    need: Expr
    key: Expr
    loop: tuple[Expr, ...]

    @property
    def inputs(self) -> frozenset[str]:
        return free_variables(self.stmt.value)


def _once(function: Function) -> Function:
    needs = {param.name for param in function.params[-len(function.results) :]}
    changed = written(function.body)
    found = [
        each
        for stmt in function.body
        if isinstance(stmt, If) and not stmt.other and free_variables(stmt.cond) <= needs
        for each in _sums(stmt, changed)
    ]
    for loop in dict.fromkeys(each.loop for each in found):
        beside = [each for each in found if each.loop == loop]
        twice = [e for e in beside if any(e.key == o.key and e.need != o.need for o in beside)]
        if twice:
            read = frozenset[str]().union(*(each.inputs for each in twice))
            function = _made_once(function, [e for e in beside if e.inputs <= read], needs)
    return function


def _sums(guarded: If, changed: set[str]) -> Iterator[_Sum]:
    """The sums in a guarded block of what never changes, each of which all of a tensor is."""
    for stmt in guarded.then:
        match stmt:
            case IndexAssign(Index(Var(), places), "=", Reduce("sum") as value, axes):
                names = [place.name for place in places if isinstance(place, Var)]
                if names != [axis.name for axis in axes] or len(names) < len(places):
                    continue
                every = (*axes, *value.axes)
                new: dict[str, Expr] = {a.name: Var(f"@{k}", INT) for k, a in enumerate(every)}
                if changed.isdisjoint(free_variables(value)) and len(new) == len(every):
                    key = _as_product(substitute(value.body, new))
                    loop = (IntConst(len(axes)), *(axis.extent for axis in every))
                    yield _Sum(stmt, guarded.cond, key, loop)
            case _:
                pass


def _as_product(value: Expr) -> Expr:
    """The same for a product of two numbers in either order, whether or not 0 times infinity is 0
    in it."""
    match value:
        case Binary("*", left, right) | Builtin("mul_no_nan", (left, right)):
            first, second = sorted((left, right), key=print_expr)
            return Builtin("mul_no_nan", (first, second), value.type)
        case _:
            return value


def _made_once(function: Function, found: Sequence[_Sum], needs: set[str]) -> Function:
    """The function with each of those sums in front of the guards."""
    names = Names(names_of(function))
    sums: dict[Expr, Var] = {}
    made: list[Stmt] = []
    for each in sorted(found, key=_is_plain_product):
        if each.key not in sums:
            target = each.stmt.element
            sums[each.key] = var = Var(names.fresh("_sum"), target.base.type)
            made.append(replace(each.stmt, target=replace(target, base=var)))
    wanted = list(dict.fromkeys(each.need for each in found))
    if frozenset().union(*map(free_variables, wanted)) < needs:
        made = [If(b.some(wanted), tuple(made), ())]
    of: dict[tuple[Stmt, Expr], Var] = {(each.stmt, each.need): sums[each.key] for each in found}
    writes = Counter(root(p) for s in statements(function.body) for p in effects(s).writes)
    returned = frozenset().union(*map(free_variables, expressions(function.body[-1])))
    renamed: dict[str, Expr] = {}
    for (stmt, _), var in of.items():
        assert isinstance(stmt, IndexAssign)
        name = root(stmt.target)
        if writes[name] == 1 and name not in returned:
            renamed[name] = var
    body: list[Stmt] = [Declare(var, None) for var in sums.values()]
    for outer in function.body:
        if isinstance(outer, Declare) and outer.target.name in renamed:
            continue
        left: Stmt = outer
        if isinstance(outer, If):
            inside = [_read(inner, of.get((inner, outer.cond)), renamed) for inner in outer.then]
            kept = tuple(inner for inner in inside if inner is not None)
            if kept != outer.then:
                body += made
                made = []
            if not kept:
                continue
            left = replace(outer, then=kept)
        body.append(map_expressions(left, lambda expr: substitute(expr, renamed)))
    return replace(function, body=tuple(body))


def _is_plain_product(one: _Sum) -> bool:
    """Whether infinity times 0 is NaN in it: the other kind serves for both."""
    value = one.stmt.value
    return isinstance(value, Reduce) and isinstance(value.body, Binary)


def _read(stmt: Stmt, var: Var | None, renamed: dict[str, Expr]) -> Stmt | None:
    """What is left of a statement: nothing, if others read the sum for what it writes."""
    if var is None:
        return stmt
    assert isinstance(stmt, IndexAssign)
    if root(stmt.target) in renamed:
        return None
    return replace(stmt, value=replace(stmt.element, base=var))
