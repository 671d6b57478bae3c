"""Sums that several adjoints of a backward function are made of, once for all of them.

    if _need_x:                                    _sum[c] = sum(g[n, c] for n in N)
        r[c] = sum(g[n, c] for n in N)             if _need_x:
        d_x[n, c] = ... r[c]                           d_x[n, c] = ... _sum[c]
    if _need_b:                                    if _need_b:
        d_b[c] = sum(g[n, c] for n in N)               d_b[c] = _sum[c]

What is made behind the guard of one adjoint is not seen behind that of another. Other sums over the
same elements, which run in the same loop, go with those that are wanted twice. Where sums have only
some of the indices in common, these are summed first, once:

    if _need_x:                               p[n, c] = sum(g[n, c, i] for i in I)
        r[n] = sum(g[n, c, i] * w[c]          if _need_x:
            for c in C for i in I)                r[n] = sum(w[c] * p[n, c] for c in C)
    if _need_b:                               if _need_b:
        d_b[c] = sum(g[n, c, i]                   d_b[c] = sum(p[n, c] for n in N)
            for n in N for i in I)
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from loma.core import builder as b, sizes
from loma.core.effects import effects, written
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Builtin, Declare, Expr, FloatConst, Function, If, Index, IndexAssign,
    IntConst, Module, Reduce, Stmt, TensorType, Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.printer import print_expr
from loma.core.walk import (
    expressions, free_variables, map_expressions, map_tensor_functions, root, statements,
    substitute, walk,
)  # fmt: skip


def common_sums(module: Module) -> Module:
    """The pass on every backward function of a module."""
    return map_tensor_functions(
        module, lambda f: _once(_in_parts(f)) if f.half == "backward" else f
    )


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


def _needs(function: Function) -> set[str]:
    return {param.name for param in function.params[-len(function.results) :]}


def _found(function: Function) -> list[_Sum]:
    needs, changed = _needs(function), written(function.body)
    return [
        each
        for stmt in function.body
        if isinstance(stmt, If) and not stmt.other and free_variables(stmt.cond) <= needs
        for each in _sums(stmt, changed)
    ]


def _once(function: Function) -> Function:
    needs, found = _needs(function), _found(function)
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


FEW = 16  # so many terms of a sum or less are not worth a tensor of partial sums


@dataclass(frozen=True, slots=True)
class _Parts:
    """A sum of products in which all factors of ``core`` have all axes, which are numbered as the
    dimensions of one read, and those of ``rest`` have not. ``names``: the axes' names. ``guarded``:
    0 times infinity is 0 in the core."""

    sum: _Sum
    names: tuple[str, ...]
    extents: tuple[Expr, ...]
    core: tuple[Expr, ...]
    rest: tuple[Expr, ...]
    guarded: bool

    @property
    def reduced(self) -> frozenset[int]:
        """The axes that the sum goes over."""
        value = self.sum.stmt.value
        assert isinstance(value, Reduce)
        return frozenset(self.names.index(axis.name) for axis in value.axes)

    @property
    def free(self) -> frozenset[int]:
        """Those of them that only the core has."""
        has = frozenset[str]().union(*map(free_variables, self.rest))
        return frozenset(k for k in self.reduced if self.names[k] not in has)

    @property
    def key(self) -> frozenset[Expr]:
        new: dict[str, Expr] = {name: Var(f"@{k}", INT) for k, name in enumerate(self.names)}
        return frozenset(substitute(factor, new) for factor in self.core)


def _parts_of(one: _Sum) -> _Parts | None:
    value = one.stmt.value
    assert isinstance(value, Reduce)
    axes = {axis.name: axis.extent for axis in (*one.stmt.axes, *value.axes)}

    def has_all(expr: Expr) -> bool:
        places = expr.subscripts if isinstance(expr, Index) else ()
        names = {place.name for place in places if isinstance(place, Var)}
        return names == axes.keys() and len(places) == len(names)

    def has_read(expr: Expr) -> bool:
        return any(map(has_all, walk(expr)))

    factors, guarded = _factors(value.body, has_read)
    core = tuple(factor for factor in factors if has_read(factor))
    rest = tuple(factor for factor in factors if not has_read(factor))
    if not core or len({*core}) < len(core) or (guarded and len(core) > 2):
        return None
    first = next(node for node in walk(core[0]) if has_all(node))
    assert isinstance(first, Index)
    names = tuple(place.name for place in first.subscripts if isinstance(place, Var))
    return _Parts(one, names, tuple(axes[name] for name in names), core, rest, guarded)


def _factors(value: Expr, has_read: Callable[[Expr], bool]) -> tuple[tuple[Expr, ...], bool]:
    """The factors of a product, and whether 0 times infinity is 0 in what has all axes."""
    match value:
        case Binary("*", left, right):
            (first, one), (second, other) = _factors(left, has_read), _factors(right, has_read)
            return (*first, *second), one or other
        case Binary("/", left, right) if has_read(left) and not has_read(right):
            first, one = _factors(left, has_read)
            return (*first, b.binary("/", FloatConst(1.0), right)), one
        case Builtin("mul_no_nan", (left, right)) if has_read(left) and has_read(right):
            return (left, right), True
        case _:
            return (value,), False


def _in_parts(function: Function) -> Function:
    """The function with partial sums of what several adjoints sum over other axes each."""
    every = [parts for each in _found(function) if (parts := _parts_of(each)) is not None]
    for extents in dict.fromkeys(parts.extents for parts in every):
        beside = [parts for parts in every if parts.extents == extents]
        twice = [
            one
            for one in beside
            if any(one.key == other.key and _differ(one, other) for other in beside)
        ]
        if not twice:
            continue
        inner = frozenset.intersection(*(one.free for one in twice))
        steps = sizes.constant(sizes.product(tuple(extents[k] for k in sorted(inner))))
        if not inner or (steps is not None and steps <= FEW):
            continue
        read = frozenset[str]().union(*(one.sum.inputs for one in twice))
        chosen = [one for one in beside if inner <= one.free and one.sum.inputs <= read]
        function = _with_parts(function, chosen, inner)
    return function


def _differ(one: _Parts, other: _Parts) -> bool:
    """Whether two sums are for different adjoints, and over different axes."""
    return one.sum.need != other.sum.need and one.reduced != other.reduced


def _with_parts(function: Function, found: Sequence[_Parts], inner: frozenset[int]) -> Function:
    """The function with the sums over the ``inner`` axes in front of the guards."""
    names = Names(names_of(function))
    made: dict[frozenset[Expr], Var] = {}
    before: list[Stmt] = []
    values: dict[tuple[Stmt, Expr], Expr] = {}
    for one in sorted(found, key=lambda one: not one.guarded):  # that kind serves for both
        stmt, value = one.sum.stmt, one.sum.stmt.value
        assert isinstance(value, Reduce)
        axes = tuple(map(Axis, one.names, one.extents))
        outer = [k for k in range(len(axes)) if k not in inner]
        places = tuple(Var(one.names[k], INT) for k in outer)
        if one.key not in made:
            type_ = TensorType(tuple(one.extents[k] for k in outer))
            var = made[one.key] = Var(names.fresh("_part"), type_)
            body = functools.reduce(b.mul, one.core)
            if one.guarded:
                body = Builtin("mul_no_nan", one.core, FLOAT)
            part = replace(value, body=body, axes=tuple(axes[k] for k in sorted(inner)))
            target = Index(var, places, FLOAT)
            own = tuple(axes[k] for k in outer)
            before.append(replace(stmt, target=target, value=part, axes=own))
        part_of: Expr = Index(made[one.key], places, FLOAT)
        product = functools.reduce(b.mul, (*one.rest, part_of))
        left = tuple(axis for axis in value.axes if one.names.index(axis.name) not in inner)
        values[stmt, one.sum.need] = replace(value, body=product, axes=left) if left else product
    wanted = list(dict.fromkeys(one.sum.need for one in found))
    if frozenset().union(*map(free_variables, wanted)) < _needs(function):
        before = [If(b.some(wanted), tuple(before), ())]
    body_: list[Stmt] = [Declare(var, None) for var in made.values()]
    for outer_ in function.body:
        stmt_: Stmt = outer_
        if isinstance(outer_, If):
            inside = tuple(
                replace(inner_, value=values[inner_, outer_.cond])
                if isinstance(inner_, IndexAssign) and (inner_, outer_.cond) in values
                else inner_
                for inner_ in outer_.then
            )
            if inside != outer_.then:
                body_ += before
                before = []
            stmt_ = replace(outer_, then=inside)
        body_.append(stmt_)
    return replace(function, body=tuple(body_))


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
