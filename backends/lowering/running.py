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
from itertools import combinations_with_replacement, product

from loma import config
from loma.backends.schedule.context import FunctionContext
from loma.backends.schedule.dependence import Access, accesses
from loma.backends.schedule.host import Count, HostNode, Serial, Unit
from loma.backends.schedule.ir import If, InPlace, Kind, Loop, Node, Scan, Store, dtype_of
from loma.backends.schedule.walk import map_expressions
from loma.core import builder as b, sizes
from loma.core.ir import (
    INT, Binary, Builtin, Expr, FloatConst, Index, IntConst, Select, Stmt, Unary, Var,
)  # fmt: skip
from loma.core.walk import substitute, variables, walk

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
    found = running(node, stores)
    if found is None:
        return node
    tree = InPlace(tuple(found), tuple(dict.fromkeys(writes)))
    return Unit(sources[0], (tree,), more=tuple(sources[1:]))


def running(loop: Count, stores: list[Store], factors: bool = False) -> list[Node] | None:
    """The nodes of a loop over those statements, if one of them, or the first two, are a running
    reduction, with ``factors`` also a linear recurrence, behind which the others may have loops of
    their own."""
    counter = Var(loop.source.counter, INT)
    if not all(map(_is_plain, stores)):
        return None
    stores = [_forwards(loop, store) for store in stores]
    if len(stores) == 2:
        found = _with_state(loop, counter, stores[0], stores[1], factors)
        if found is not None:
            return found
    for k, store in enumerate(stores):
        scan = _scan(loop, counter, store, None, factors)
        if scan is not None and _may_stand_apart(stores, k, counter):
            others = (other for other in stores if other is not store)
            zero = IntConst(0)
            return [scan, *(Loop(counter, zero, loop.extent, (s,), "vector") for s in others)]
    return None


def across_memory(loop: Count, store: Store) -> Scan | None:
    """The same of one statement whose elements do not lie beside each other."""
    if not _is_plain(store):
        return None
    counter = Var(loop.source.counter, INT)
    return _scan(loop, counter, _forwards(loop, store), None, factors=True, along=False)


def _is_plain(store: Store) -> bool:
    return store.kind in ("set", "sum") and store.position is None


def _forwards(loop: Count, store: Store) -> Store:
    """A statement of a loop whose counter goes up."""
    if not loop.source.backwards:
        return store
    counter = Var(loop.source.counter, INT)
    back: dict[str, Expr] = {counter.name: sizes.arith("-", _last(loop), counter)}
    return map_expressions(store, lambda expr: substitute(expr, back))


def _with_state(
    loop: Count, counter: Var, first: Store, second: Store, factors: bool
) -> list[Node] | None:
    """The nodes for an element that is the same in all rounds, and a copy of what it becomes."""
    state, place = first.place, second.place
    assert isinstance(state, Index)
    assert isinstance(place, Index)
    fixed = counter.name not in variables(state) and place.tensor.name != state.tensor.name
    if not fixed or second.kind != "set" or second.value != state:
        return None
    scan = _scan(loop, counter, replace(first, place=place), state, factors)
    if scan is None:
        return None
    last = Store(state, "set", _at(place, {counter.name: _last(loop)}))
    return [scan, If(b.binary(">", loop.extent, IntConst(0)), (last,))]


def _scan(
    loop: Count,
    counter: Var,
    store: Store,
    state: Index | None,
    factors: bool,
    along: bool = True,
) -> Scan | None:
    """The loop over a statement, if each of its elements is made of the one of the round before,
    which is the one before it in memory, if it runs ``along`` that, or of a ``state``, which is
    that one."""
    place = store.place
    assert isinstance(place, Index)
    before = _at(place, {counter.name: b.add(counter, IntConst(-1))})
    steps = (b.add(before.subscripts[0], IntConst(step)) for step in (1, -1))
    dtype = dtype_of(place.tensor)
    beside = any(sizes.equal(place.subscripts[0], step) for step in steps)
    other = sizes.equal(place.subscripts[0], before.subscripts[0]) is None
    if dtype not in ("float", "int") or not (beside if along else other):
        return None
    from_ = before if state is None else state
    value = store.value
    if store.kind == "sum":
        value = Binary("+", place if state is None else state, value, place.type)
    kind, new = _apart(value, from_) or ("set", None)
    factor: Expr | None = None
    if new is None and factors and dtype == "float":
        kind, (factor, new) = "sum", _linear(value, from_) or (None, None)
    if new is None or dtype_of(from_.tensor) != dtype:
        return None
    names = (place.tensor.name, from_.tensor.name)
    own = [name for name in variables(new) if name in names]
    if factor is not None and not _is_factor(factor, names):
        return None
    if own and (state is not None or store.kind == "set" or len(own) != 1):
        return None
    before = _at(from_, {counter.name: IntConst(0)})
    return Scan(counter, loop.extent, kind, dtype, before, place, new, factor)


def _may_stand_apart(stores: list[Store], first: int, counter: Var) -> bool:
    """Whether all rounds of one statement may run in front of those of the others, each of which
    then runs for all rounds, in any order."""
    found = [accesses((store,)) for store in stores]
    order = [first, *(k for k in range(len(stores)) if k != first)]
    pairs = [(first, k) for k in order[1:]]  # of the reduction itself :func:`_scan` knows
    pairs += combinations_with_replacement(order[1:], 2)
    return all(_stay_in_order(k, found[k], other, found[other], counter) for k, other in pairs)


def _stay_in_order(
    k: int, first: list[Access], other: int, second: list[Access], counter: Var
) -> bool:
    """Whether all rounds of one statement may run in front of those of another, or of the same in
    any order; their positions in the loop, and what they access."""
    for one, two in product(first, second):
        if one.name != two.name or (one.kind is None and two.kind is None):
            continue
        rounds = _rounds_between(one.offset, two.offset, counter)
        if rounds is None or (k == other and rounds != 0):
            return False
        # Where the second came first, the first in its later rounds would be too early.
        if rounds < 0 or (rounds == 0 and other < k):
            return False
    return True


def _rounds_between(one: Expr | None, two: Expr | None, counter: Var) -> int | None:
    """In how many rounds ``two`` is where ``one`` is now; None where nobody knows, or never."""
    if one is None or two is None:
        return None
    back: dict[str, Expr] = {counter.name: b.add(counter, IntConst(-1))}
    steps = [sizes.constant(sizes.arith("-", at, substitute(at, back))) for at in (one, two)]
    apart = sizes.constant(sizes.arith("-", one, two))
    if steps[0] != steps[1] or not steps[0] or apart is None or apart % steps[0]:
        return None
    return apart // steps[0]


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


def _linear(value: Expr, last: Index) -> tuple[Expr, Expr] | None:
    """How many times an element counts in a value, and what there is besides, if neither depends on
    it."""
    if _is_last(value, last):
        return FloatConst(1.0), FloatConst(0.0)
    if _is_apart(value, last):
        return FloatConst(0.0), value
    match value:
        case Binary("+" | "-" as op, left, right):
            one, two = _linear(left, last), _linear(right, last)
            if one is None or two is None:
                return None
            (factor, rest), (other, more) = one, two
            if op == "-":
                other, more = b.neg(other), b.neg(more)
            return b.add(factor, other), b.add(rest, more)
        case Binary("*", left, right):
            for side, times in ((left, right), (right, left)):
                found = _linear(side, last)
                if found is not None and _is_apart(times, last):
                    factor, rest = found
                    zero = b.is_const(rest, 0.0)
                    return b.mul(factor, times), rest if zero else b.mul(rest, times)
        case Unary("-", operand):
            found = _linear(operand, last)
            return None if found is None else (b.neg(found[0]), b.neg(found[1]))
        case Select(cond, then, other) if _is_apart(cond, last):
            one, two = _linear(then, last), _linear(other, last)
            if one is None or two is None:
                return None
            return _chosen(cond, one[0], two[0]), _chosen(cond, one[1], two[1])
        case _:
            pass
    return None


def _chosen(cond: Expr, then: Expr, other: Expr) -> Expr:
    return then if then == other else b.select(cond, then, other)


def _is_factor(factor: Expr, names: tuple[str, ...]) -> bool:
    """Whether numbers are multiplied, or chosen among ones that the text says: the element then
    counts or does not, whatever it is."""
    if any(name in names for name in variables(factor)):
        return False
    chooses = any(isinstance(part, Select) for part in walk(factor))
    return not chooses or _is_choice(factor)


def _is_choice(factor: Expr) -> bool:
    match factor:
        case Select(_, then, other):
            return _is_choice(then) and _is_choice(other)
        case _:
            return b.number(factor) is not None


def _is_apart(value: Expr, last: Index) -> bool:
    return not any(_is_last(part, last) for part in walk(value))


def _is_last(value: Expr, last: Index) -> bool:
    if not isinstance(value, Index) or value.base != last.base:
        return False
    return bool(sizes.equal(value.subscripts[0], last.subscripts[0]))
