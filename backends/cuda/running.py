"""Running reductions along memory, which the threads of a team share.

    for t in range(T - 1):
        y[r, t + 1] = y[r, t] + x[r, t + 1]

A thread by itself takes one element after the other, far from what its neighbours read. Where
:mod:`loma.backends.lowering.running` finds such a loop, in a kernel, on one thread, or around rows
that run in parallel, it becomes the node ``Scan`` of a loop over rows whose teams share it
(``device/running.h``); what else is in it has loops behind. The first element, which a statement
before it sets, is one of the others where it is made of the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeGuard

from loma import config
from loma.backends.lowering.running import across_memory, running
from loma.backends.schedule.host import (
    Allocate, CheckRange, Clear, Count, HostNode, Launch, Reserve, Serial, Spread, Unit,
)  # fmt: skip
from loma.backends.schedule.ir import InPlace, Let, Loop, Node, Parallel, Scan, Store, Team
from loma.backends.schedule.walk import map_expressions, mentioned, nodes
from loma.core import builder as b, sizes
from loma.core.distinct import told_apart
from loma.core.ir import INT, Axis, Binary, Builtin, Expr, Index, IntConst, Stmt, Var
from loma.core.walk import free_variables, map_children, substitute

_ZERO, _ONE = IntConst(0), IntConst(1)


def shared_by_teams(body: tuple[HostNode, ...]) -> tuple[HostNode, ...]:
    """The nodes of a function, with running reductions that teams share."""
    return _block(body, False) if "scans" in config.optimisations() else body


def _block(body: tuple[HostNode, ...], inside: bool) -> tuple[HostNode, ...]:
    """``inside``: of a kernel."""
    out: list[HostNode] = []
    for node in body:
        made = _changed(node, inside)
        if out and made and (joined := _with_first(out[-1], made[0])) is not None:
            out[-1:] = [joined, *made[1:]]
        else:
            out += made
    return _without_zeros(out)


def _changed(node: HostNode, inside: bool) -> list[HostNode]:
    match node:
        case Count():
            found = _loop(node, inside)
            return [_with_inner(node, inside)] if found is None else found
        case Serial(body=(Count() as loop,)):
            found = _loop(loop, inside)
            return [node] if found is None else found
        case Spread(launch, otherwise=otherwise):
            made, apart = _with_inner(launch, True), _block(otherwise, inside)
            assert isinstance(made, Launch)
            launches = _launches(apart)
            if launches is None:
                return [replace(node, launch=made, otherwise=apart)]
            if _is_one_scan(made) or (_has_loops(made.body) and apart != otherwise):
                return list(apart)
            if made != launch:
                node = replace(node, launches=IntConst(launches))
            return [replace(node, launch=made, otherwise=apart)]
        case _:
            return [_with_inner(node, inside or isinstance(node, Launch))]


def _with_inner(node: Any, inside: bool) -> Any:
    """The node with what is in it changed."""
    new: dict[str, Any] = {}
    for field in fields(node):
        value = getattr(node, field.name)
        if isinstance(value, tuple) and value and isinstance(value[0], HostNode):
            new[field.name] = _block(value, inside)
        elif isinstance(value, Launch):
            new[field.name] = _with_inner(value, True)
    return replace(node, **new) if new else node


def _has_loops(body: Sequence[HostNode]) -> bool:
    """Whether threads wait for each other in each round of a loop."""
    return any(isinstance(node, Count) and not _is_once(node) for node in body)


def _is_one_scan(launch: Launch) -> bool:
    """Whether a kernel is no more than a running reduction."""
    trees = [found for node in launch.body for found in _trees(node)]
    return len(trees) == 1 and isinstance(trees[0].body[-1], Scan) and not launch.buffers


def _launches(body: Sequence[HostNode]) -> int | None:
    """How many launches statements are, if none stands in a loop of several rounds."""
    body = [each for node in body for each in (node.body if _is_once(node) else (node,))]
    if not all(isinstance(node, Allocate | Clear | Reserve | CheckRange | Unit) for node in body):
        return None
    return sum(len(_trees(node)) for node in body)


def _is_once(node: HostNode) -> TypeGuard[Count]:
    """Whether it is a loop of one round at most."""
    if not isinstance(node, Count):
        return False
    match node.extent:
        case Builtin("min", args):
            return _ONE in args
        case extent:
            return extent == _ONE


def _trees(node: HostNode) -> list[Parallel]:
    match node:
        case Parallel():
            return [node]
        case Unit(_, body):
            return [found for inner in body for found in _trees(inner)]
        case _:
            return []


# ------------------------------------------------------------------------------------ one loop


def _loop(loop: Count, inside: bool) -> list[HostNode] | None:
    """What becomes of a loop that is a running reduction, and of what else is in it. Rows that are
    launches may be columns of memory, if neighbours of one lie in another."""
    stores: list[Store] = []
    sources: list[Stmt] = []
    around: Parallel | None = None
    for node in loop.body:
        match node:
            case Unit(source, (Parallel() as tree,), more=more):
                own = tree
            case Unit(source, (InPlace(body, written, ()),), more=more):
                own = Parallel(Var("@p", INT), _ONE, _ONE, body, written, (source, *more))
            case _:
                return None
        if around is not None and not _same_rows(around, own):
            return None
        if own.team is not None or own.totals or own.checks:
            return None
        around = own if around is None else around
        for each in own.body:
            if isinstance(each, Store) and isinstance(each.place, Index):
                stores.append(each)
            elif not isinstance(each, Let):
                return None
        sources += [source, *more]
    if around is None:
        return None
    lets = tuple(each for each in around.body if isinstance(each, Let))
    counter = loop.source.counter
    if any(counter in mentioned(each) for each in lets):
        return None
    found = running(loop, stores, factors=True)
    if found is None and not inside and len(stores) == 1:
        scan = across_memory(loop, stores[0])
        found = None if scan is None or not _are_apart(scan, around) else [scan]
    if found is None or (len(found) > 1 and around.count != _ONE):
        return None
    found = [_forwards(node, loop) if isinstance(node, Loop) else node for node in found]
    trees = (_tree(node, lets, around, loop.extent, tuple(sources)) for node in found)
    return [Unit(sources[0], tuple(trees), more=tuple(sources[1:]))]


def _are_apart(scan: Scan, rows: Parallel) -> bool:
    """Whether rows write elements of their own, and neighbouring ones lie beside each other."""
    axes = [Axis(rows.counter.name, rows.count)]
    lets = [node for node in rows.body if isinstance(node, Let)]
    if lets:
        axes = []
    for node in lets:
        match node.value:
            case Binary("-", _, Binary("*", Var(), extent)):
                axes.append(Axis(node.var.name, extent))
            case Var():
                axes.append(Axis(node.var.name, rows.count))
            case _:
                pass
    (place,) = scan.place.subscripts
    known = {axis.name for axis in axes} | {scan.counter.name}
    local = {rows.counter.name, *(node.var.name for node in lets)}
    if not axes or (free_variables(place) & local) - known:
        return False
    step = _step(place, Var(axes[0].name, INT))  # digits are taken apart from the last one on
    whole = sizes.total((scan.high, _ONE))  # with the first one
    last = sizes.arith("-", scan.high, _ONE)
    back: dict[str, Expr] = {scan.counter.name: sizes.arith("-", last, scan.counter)}
    places = place, sizes.simplify(substitute(place, back))  # as it is, and backwards
    tells = (told_apart((p,), (*axes, Axis(scan.counter.name, whole))) >= known for p in places)
    return step == 1 and any(tells)


def _step(place: Expr, counter: Var) -> int | None:
    """How far a place is from the next one."""
    ahead: dict[str, Expr] = {counter.name: b.add(counter, _ONE)}
    return sizes.constant(sizes.arith("-", substitute(place, ahead), place))


def _same_rows(one: Parallel, other: Parallel) -> bool:
    """Whether two loops in a loop go through the same rows."""
    lets = ([node for node in tree.body if isinstance(node, Let)] for tree in (one, other))
    first, second = lets
    return (one.counter, one.count, one.needs, first) == (
        other.counter, other.count, other.needs, second,
    )  # fmt: skip


def _tree(
    node: Node, lets: tuple[Node, ...], rows: Parallel, extent: Expr, source: tuple[Stmt, ...]
) -> Parallel:
    writes = {var.name: var for var in _written(node)}
    work = sizes.product((extent, rows.work))
    made = replace(
        rows, work=work, writes=tuple(writes.values()), source=source, row=None, body=(*lets, node)
    )
    if isinstance(node, Scan):
        step = _step(node.place.subscripts[0], node.counter)
        return replace(made, team=Team(node.high, across=step not in (1, -1)))
    if isinstance(node, Loop):  # of one row
        return replace(
            made, counter=node.counter, count=node.high, work=rows.work, row=node.high,
            body=(*lets, *node.body),
        )  # fmt: skip
    return replace(made, work=rows.work)


def _forwards(node: Loop, loop: Count) -> Loop:
    """A loop of a reduction that runs backwards, along memory again."""
    if not loop.source.backwards:
        return node
    last = sizes.arith("-", loop.extent, _ONE)
    back: dict[str, Expr] = {node.counter.name: sizes.arith("-", last, node.counter)}
    body = (map_expressions(n, lambda expr: _simple(substitute(expr, back))) for n in node.body)
    return replace(node, body=tuple(body))


def _written(node: Node) -> list[Var]:
    places = [each.place for each in nodes((node,)) if isinstance(each, Store | Scan)]
    return [place.tensor for place in places if isinstance(place, Index)]


# -------------------------------------------------------------------------------- the first element


def _with_first(before: HostNode, node: HostNode) -> HostNode | None:
    """A running reduction with the element that it begins with, which a loop of one round at most
    sets before, if that is made as the others are: none is behind it then."""
    if isinstance(before, Serial) and len(before.body) == 1:
        before = before.body[0]
    extent: Expr = _ONE
    if isinstance(before, Count) and len(before.body) == 1:
        extent, before = before.extent, before.body[0]
    match before, node:
        case Unit(source, (*checks, own)), Unit(body=(Parallel() as tree,)):
            scan = tree.body[-1]
            if isinstance(own, InPlace):
                own = Parallel(Var("@p", INT), _ONE, _ONE, own.body, own.writes, (source,))
            if not isinstance(own, Parallel) or not isinstance(scan, Scan) or scan.before is None:
                return None
            if extent != _at_most_one(sizes.total((scan.high, _ONE))) or not _same_rows(tree, own):
                return None
            new = _longer(scan, own.body[-1])
            if new is None or not all(_holds(check, new.high) for check in checks):
                return None
            body = (*tree.body[:-1], new)
            assert tree.team is not None
            team = replace(tree.team, extent=new.high)
            made = replace(tree, body=body, team=team, source=(source, *tree.source))
            return replace(node, source=source, body=(made,), more=(node.source, *node.more))
        case _:
            return None


def _at_most_one(extent: Expr) -> Expr:
    count = sizes.constant(extent)
    return Builtin("min", (extent, _ONE), INT) if count is None else IntConst(min(count, 1))


def _longer(scan: Scan, first: Node) -> Scan | None:
    """With the element before it, if ``first`` sets that."""
    if scan.factor is not None:
        return None
    if not isinstance(first, Store) or first.kind != "set" or scan.before is None:
        return None
    if _simple(first.place) != _simple(scan.before):
        return None
    back: dict[str, Expr] = {scan.counter.name: b.add(scan.counter, IntConst(-1))}
    place, value = _simple(substitute(scan.place, back)), _simple(substitute(scan.value, back))
    zero: dict[str, Expr] = {scan.counter.name: _ZERO}
    same = _simple(substitute(place, zero)) == _simple(first.place)
    if not same or _simple(substitute(value, zero)) != _simple(first.value):
        return None
    assert isinstance(place, Index)
    high = sizes.simplify(sizes.total((scan.high, _ONE)))
    return replace(scan, high=high, before=None, place=place, value=value)


def _simple(expr: Expr) -> Expr:
    """With offsets in one form."""
    if isinstance(expr, Index):
        return replace(expr, subscripts=tuple(map(sizes.simplify, expr.subscripts)))
    return map_children(expr, _simple)


def _holds(check: HostNode, extent: Expr) -> bool:
    """Whether a check asks for no more than that a range of an ``extent`` is not empty."""
    if not isinstance(check, CheckRange) or check.rest is None or check.terms:
        return False
    ends = (_ZERO, sizes.arith("-", check.size, _ONE))
    return bool(sizes.equal(check.size, extent)) and any(
        sizes.equal(check.rest, end) for end in ends
    )


def _without_zeros(body: list[HostNode]) -> tuple[HostNode, ...]:
    """Without the zeros of what a running reduction behind them fills."""
    out: list[HostNode] = []
    for k, node in enumerate(body):
        behind = body[k + 1 :]
        match node:
            case Clear(var, False) | Unit(body=(Clear(var, False),)) if _is_filled(var, behind):
                continue
            case Allocate(var, True, False) if _is_filled(var, behind):
                node = replace(node, zeros=False)
        out.append(node)
    return tuple(out)


def _is_filled(var: Var, behind: Sequence[HostNode]) -> bool:
    """Whether the first of the nodes that uses a tensor is a running reduction along all of it."""
    for node in behind:
        if isinstance(node, Reserve | Allocate | Clear | CheckRange):
            continue
        trees = _trees(node)
        if not isinstance(node, Unit) or not trees:
            return False
        for tree in trees:
            if var.name not in set[str]().union(*map(mentioned, tree.body)):
                continue
            scan = tree.body[-1]
            if not isinstance(scan, Scan) or scan.before is not None:
                return False
            if scan.place.tensor.name != var.name or var.name in free_variables(scan.value):
                return False
            all_ = sizes.product((tree.count, scan.high))
            return bool(sizes.equal(all_, sizes.product(sizes.dims_of(var))))
    return False
