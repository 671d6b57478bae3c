"""Running reductions along memory, in vectors.

    for t in range(T - 1):
        y[t + 1] = y[t] + x[t + 1]

adds one number after the other, each of which waits for the one before. Several of them are summed
in a few steps, in which a vector takes itself moved by 1, 2, 4 lanes, and take the sum of all
before them at once (W. Hillis, G. Steele, Data Parallel Algorithms, 1986). So do products, maxima
and minima, and loops that keep what they have found in one element, ``s += x[t]; y[t] = s``.
"""

from __future__ import annotations

from dataclasses import replace

from loma import config
from loma.backends.schedule.context import FunctionContext
from loma.backends.schedule.host import Count, HostNode, Serial, Unit
from loma.backends.schedule.ir import If, InPlace, Kind, Node, Scan, Store, dtype_of
from loma.backends.schedule.walk import map_expressions
from loma.core import builder as b, sizes
from loma.core.ir import INT, Binary, Builtin, Expr, Index, IntConst, Stmt, Unary, Var
from loma.core.walk import substitute, variables

_EXTREMES: dict[str, Kind] = {"max": "max", "min": "min"}


def in_vectors(context: FunctionContext, serial: Serial) -> Serial:
    """The loops of one thread, with vectors for those that are running reductions."""
    if context.machine.lanes <= 1 or "scans" not in config.optimisations():
        return serial
    return replace(serial, body=tuple(map(_changed, serial.body)))


def _changed(node: HostNode) -> HostNode:
    if not isinstance(node, Count):
        return node
    stores, sources, writes = list[Store](), list[Stmt](), list[Var]()
    for own in node.body:
        match own:
            case Unit(source, (InPlace((Store(Index()) as store,), written, ()),)):
                stores.append(store)
                sources.append(source)
                writes += written
            case _:
                return replace(node, body=tuple(map(_changed, node.body)))
    found = _running(node, stores)
    if found is None:
        return node
    tree = InPlace(tuple(found), tuple(dict.fromkeys(writes)))
    return Unit(sources[0], (tree,), more=tuple(sources[1:]))


def _running(loop: Count, stores: list[Store]) -> list[Node] | None:
    """The nodes of a loop over those statements, if they are one running reduction."""
    counter = Var(loop.source.counter, INT)
    if any(store.kind not in ("set", "sum") or store.position is not None for store in stores):
        return None
    if loop.source.backwards:
        back: dict[str, Expr] = {counter.name: sizes.arith("-", _last(loop), counter)}
        stores = [map_expressions(store, lambda expr: substitute(expr, back)) for store in stores]
    first, *others = stores
    place, state = first.place, first.place
    assert isinstance(place, Index)
    assert isinstance(state, Index)
    if not others:
        before: dict[str, Expr] = {counter.name: b.add(counter, IntConst(-1))}
        state = _at(place, before)
    elif len(others) == 1 and others[0].kind == "set" and others[0].value == state:
        assert isinstance(others[0].place, Index)
        place = others[0].place
        if counter.name in variables(state) or place.tensor.name == state.tensor.name:
            return None
    else:
        return None
    dtype = dtype_of(place.tensor)
    behind = _at(place, {counter.name: b.add(counter, IntConst(-1))}).subscripts[0]
    steps = (b.add(behind, IntConst(step)) for step in (1, -1))
    if dtype not in ("float", "int") or dtype_of(state.tensor) != dtype:
        return None
    if not any(sizes.equal(place.subscripts[0], step) for step in steps):
        return None
    value = first.value
    if first.kind == "sum":
        value = Binary("+", first.place if not others else state, value, place.type)
    found = _apart(value, state)
    kind, new = found or ("set", None)
    if new is None:
        return None
    own = [name for name in variables(new) if name in (place.tensor.name, state.tensor.name)]
    if own and (others or first.kind == "set" or len(own) != 1):
        return None
    start = _at(state, {counter.name: IntConst(0)})
    scan = Scan(counter, loop.extent, kind, dtype, start, place, new)
    if not others:
        return [scan]
    last = _at(place, {counter.name: _last(loop)})
    return [scan, If(b.binary(">", loop.extent, IntConst(0)), (Store(state, "set", last),))]


def _last(loop: Count) -> Expr:
    return sizes.arith("-", loop.extent, IntConst(1))


def _at(place: Index, values: dict[str, Expr]) -> Index:
    return replace(place, subscripts=(sizes.simplify(substitute(place.subscripts[0], values)),))


def _apart(value: Expr, last: Index) -> tuple[Kind, Expr | None] | None:
    """The reduction of an element and others, and these; None for those of the element alone."""
    if _is_last(value, last):
        return "set", None
    match value:
        case Binary("+" | "*" as op, left, right):
            kind: Kind = "sum" if op == "+" else "prod"
            for side, other in ((left, right), (right, left)):
                found = _apart(side, last)
                if found is not None and found[0] in ("set", kind):
                    rest = found[1]
                    return kind, other if rest is None else b.binary(op, rest, other)
        case Binary("-", left, right):
            found = _apart(left, last)
            if found is not None and found[0] in ("set", "sum"):
                rest = found[1]
                negative = Unary("-", right, right.type)
                return "sum", negative if rest is None else b.binary("-", rest, right)
        case Builtin(name, (left, right)) if name in _EXTREMES:
            for side, other in ((left, right), (right, left)):
                if _is_last(side, last):
                    return _EXTREMES[name], other
        case _:
            pass
    return None


def _is_last(value: Expr, last: Index) -> bool:
    if not isinstance(value, Index) or value.base != last.base:
        return False
    return bool(sizes.equal(value.subscripts[0], last.subscripts[0]))
