"""Where only the value at the position of an extreme is wanted, that is the extreme.

    place[n] = argmax(x[n, k] if x[n, k] > b else b for k in K)
    m[n] = x[n, place[n]] if x[n, place[n]] > b else b

is what :mod:`.winners` makes of a loop that keeps the largest value, for derivatives want to know
where it was. In inference ``m[n]`` is ``max(x[n, k] if x[n, k] > b else b for k in K)``: no element
is looked up. Nor does it matter which of equals is the first: ``max(x[K - 1 - k] for k in K)``,
which has the last one, goes from the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Set as AbstractSet
from functools import partial, reduce

from loma.core import builder as b, sizes
from loma.core.axes import terms_of
from loma.core.effects import blanks, written
from loma.core.ir import (
    FLOAT, INT, Binary, Expr, Function, Index, IndexAssign, IntConst, Module, Reduce, ReduceKind,
    Select, Stmt, Var, replace,
)  # fmt: skip
from loma.core.walk import (
    exchanged, free_variables, map_blocks, map_children, map_expressions, map_tensor_functions,
    reduced_axes, root, substitute, walk,
)  # fmt: skip
from loma.passes.canonical.loops import mentions
from loma.passes.canonical.recurrences.extremes import from_the_end
from loma.passes.canonical.recurrences.winners import unravelled

_BETTER = {"argmax": (">", ">="), "argmin": ("<", "<=")}


def best_values(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, _changed)


def _changed(function: Function) -> Function:
    uses = mentions(function.body)
    own = set(blanks(function.body))

    def block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt | None] = [map_blocks(stmt, block) for stmt in body]
        for position, stmt in enumerate(out):
            match stmt:
                case IndexAssign(Index(Var(name)), "=", Reduce("argmax" | "argmin")) if (
                    name in own and uses[name] == 2
                ):
                    found = _with_value(out, position, stmt, own, uses)
                    if found is not None:
                        gone, at, new = found
                        out[position] = out[gone] = None
                        out[at] = new
        return tuple(stmt for stmt in out if stmt is not None)

    turned = tuple(map_expressions(stmt, _forwards) for stmt in block(function.body))
    return replace(function, body=turned)


def _forwards(expr: Expr) -> Expr:
    """With extremes of elements that are gone through from the end going from the beginning."""
    expr = map_children(expr, _forwards)
    if not isinstance(expr, Reduce) or expr.kind not in ("max", "min"):
        return expr
    body = expr.body
    subscripts = [s for node in walk(body) if isinstance(node, Index) for s in node.subscripts]
    for axis in expr.axes:
        own = [s for s in subscripts if axis.name in free_variables(s)]
        ragged = any(axis.name in free_variables(other.extent) for other in expr.axes)
        if own and not ragged and all(map(partial(_goes_back, axis.name), own)):
            turned = from_the_end(axis.extent, Var(axis.name, INT))
            body = sizes.simple_subscripts(substitute(body, {axis.name: turned}))
    return replace(expr, body=body)


def _goes_back(name: str, subscript: Expr) -> bool:
    terms = sizes.polynomial(subscript)
    here = (Var(name, INT),)
    alone = all(name not in free_variables(part) for term in terms for part in term if term != here)
    return terms.get(here, 0) < 0 and alone


def _with_value(
    block: list[Stmt | None],
    position: int,
    place: IndexAssign,
    own: AbstractSet[str],
    uses: Mapping[str, int],
) -> tuple[int, int, IndexAssign] | None:
    """Which later statement reads the position, or the value there, which goes, with the extreme
    instead; None where it does more than look its value up."""
    name, inputs = place.element.tensor.name, free_variables(place.value)
    changed = set[str]()
    for at in range(position + 1, len(block)):
        stmt = block[at]
        if stmt is None:
            continue
        if isinstance(stmt, IndexAssign) and name in free_variables(stmt.value):
            if changed & inputs or name in free_variables(stmt.target):
                return None
            there = stmt.element.tensor.name
            value, reader = _extreme(place, stmt), at
            if value is None and there in own and uses[there] == 2 and at + 1 < len(block):
                both = _with_definition(stmt, block[at + 1])
                if both is not None:
                    stmt, value, reader = both, _extreme(place, both), at + 1
            return None if value is None else (at, reader, replace(stmt, value=value))
        changed |= written((stmt,))
    return None


def _with_definition(made: IndexAssign, reader: Stmt | None) -> IndexAssign | None:
    """The statement that reads elements which another one has made, with their value instead."""
    if not isinstance(reader, IndexAssign) or not isinstance(made.target, Index):
        return None
    name, places = made.element.tensor.name, made.element.subscripts
    reads = {n for n in walk(reader.value) if isinstance(n, Index) and root(n) == name}
    plain = all(isinstance(place, Var) for place in places)
    if made.op != "=" or len(reads) != 1 or not plain or len(made.axes) != len(places):
        return None
    if name in free_variables(reader.target) or any(reduced_axes(made.value)):
        return None
    (read,) = reads
    pairs = zip(places, read.subscripts, strict=True)
    value = substitute(made.value, {p.name: s for p, s in pairs if isinstance(p, Var)})
    return replace(reader, value=exchanged(reader.value, read, value))


def _extreme(place: IndexAssign, reader: IndexAssign) -> Expr | None:
    """The value of a statement as an extreme of what the other one has the position of, written out
    if that is of a few values, each of which is beside the first."""
    whole = place.value
    assert isinstance(whole, Reduce)
    name = place.element.tensor.name
    reads = {n for n in walk(reader.value) if isinstance(n, Index) and n.base == place.element.base}
    if len(reads) != 1 or any(n.type != INT for n in reads):
        return None
    (read,) = reads
    here, there = place.element.subscripts, read.subscripts
    names = [s.name for s in there if isinstance(s, Var)]
    axes = {axis.name: axis for axis in place.axes}
    reading = {axis.name: axis for axis in reader.axes}
    if (
        len(names) != len(there)
        or len(set(names)) != len(names)
        or not reading.keys() >= set(names)
    ):
        return None
    renaming: dict[str, Expr] = {}
    for own, other in zip(here, there, strict=True):
        if not isinstance(own, Var) or own.name not in axes or not isinstance(other, Var):
            return None
        if sizes.equal(axes[own.name].extent, reading[other.name].extent) is not True:
            return None
        renaming[own.name] = other
    inner = {axis.name for axis in whole.axes}
    if len(renaming) != len(axes) or inner & (reading.keys() | free_variables(reader.value)):
        return None
    body = sizes.simple_subscripts(substitute(whole.body, renaming))
    value: Expr = reader.value
    for axis, part in reversed(list(zip(whole.axes, unravelled(read, whole.axes), strict=True))):
        value = exchanged(value, part, Var(axis.name, INT))
    value = sizes.simple_subscripts(value)
    if name in free_variables(value) or not (value == body or _is_chosen(value, body, whole)):
        return None
    kind: ReduceKind = "max" if whole.kind == "argmax" else "min"
    extreme = Reduce(kind, body, whole.axes, FLOAT, reader.span)
    terms = terms_of(extreme, reader.axes) if isinstance(body, Select) else []
    return reduce(partial(b.combined, kind), terms) if terms else extreme


def _is_chosen(value: Expr, body: Expr, whole: Reduce) -> bool:
    """Whether the body is the value where that is better than the first one, and else that."""
    match body:
        case Select(Binary(op, left, right), then, other) if op in _BETTER[whole.kind]:
            pass
        case _:
            return False
    first: dict[str, Expr] = {axis.name: IntConst(0) for axis in whole.axes}
    some = all((sizes.constant(axis.extent) or 0) > 0 for axis in whole.axes)
    begins = sizes.simple_subscripts(substitute(value, first))
    return some and then == value and other == begins and (left, right) == (value, other)
