"""Sums over the same elements in one loop, which reads what they share once.

``m[c] = sum(x[n, c] for n in N)`` and ``s[c] = sum(x[n, c] * y[n, c] for n in N)`` have the same
loops. A tree of both has each loop once, with the running sums of both inside; what each of them
computes, and in which order, stays as it was: sums of everything have parts of their own. One
tree of statements along rows for which the same places are kept
(:mod:`loma.backends.lowering.kept`) keeps these once.

In a kernel statements over the same elements run in one loop, too, where each reads of what the
other writes but the element at hand: ``d[j] += r`` and ``x[j] = e[j] * d[j]``. It is read from a
register; on a GPU no other thread is waited for, and on a CPU no load of the second loop waits for
stores of the first one to the same place of a page. There both may write parts of one tensor. So do
statements of a kernel that has so few iterations that each statement is a launch, where the launch
takes longer than they do; and what becomes of sums that teams of threads make is told by the thread
that writes these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

from loma.backends.schedule.host import Allocate, HostNode, Unit
from loma.backends.schedule.ir import (
    Blocks, Fill, Groups, If, Lanes, Let, Loop, Node, Parallel, Part, Store, StoreLanes, Tiles,
    UpdateLanes, parts_of,
)  # fmt: skip
from loma.backends.schedule.target import Target
from loma.backends.schedule.walk import (
    Block, declared, map_blocks, map_expressions, mentioned, nodes,
)  # fmt: skip
from loma.core import sizes
from loma.core.bounds import ONE
from loma.core.ir import (
    INT, Binary, Expr, Index, IndexAssign, IntConst, Stmt, TensorType, Var,
)  # fmt: skip
from loma.core.walk import free_variables, map_children, mentioned_names, substitute, walk

_LOOPS = Loop | Tiles | Blocks | If
_INSIDE = ("vector", "serial")  # loops
_IN_LANES = UpdateLanes | StoreLanes
_ALONG_ROWS = Let | If | Loop | Part | Store | Fill


class _Apart(Exception):
    """The loops differ."""


def unit(
    first: HostNode,
    second: Sequence[HostNode],
    machine: Target,
    inside: bool,
    few: Expr | None = None,
) -> Unit | None:
    """Two statements as one, if both are loops that may be the same; None if they are not.
    ``inside``: they stand in a kernel; ``few``: so many iterations are hardly worth a launch."""
    if not (isinstance(first, Unit) and len(second) == 1 and isinstance(second[0], Unit)):
        return None
    other = second[0]
    one, two = _loop(first), _loop(other)
    made = None if one is None or two is None else tree(one, two, machine)
    if made is None and one is not None and two is not None:
        if inside:
            # GPUs' threads write several neighbours at once where a loop writes one tensor alone.
            made = _elementwise(one, two, set() if machine.teams else _apart(one, two))
        elif few is not None and sizes.equal(one.count, few):
            made = _elementwise(one, two, set()) or _behind(one, two)
    if made is None:
        return None
    body = (*first.body[:-1], *other.body[:-1], made)
    return replace(first, body=body, more=(*first.more, other.source))


def _loop(unit: Unit) -> Parallel | None:
    """The loop of a statement, which takes no more than memory before it."""
    *before, last = unit.body or (None,)
    plain = isinstance(last, Parallel) and all(isinstance(node, Allocate) for node in before)
    return last if plain and isinstance(last, Parallel) else None


def parts(found: Sequence[HostNode], machine: Target, elementwise: bool = False) -> list[HostNode]:
    """The loops of a statement that writes some elements in each of them, in fewer loops;
    ``elementwise``: others in each of them."""
    out: list[HostNode] = []
    for node in found:
        both = None
        if out and isinstance(out[-1], Parallel) and isinstance(node, Parallel):
            own = {var.name for var in node.writes}
            if elementwise:
                both = _elementwise(out[-1], node, own)
            else:
                both = tree(out[-1], node, machine, apart=True)
        out[len(out) - (both is not None) :] = [node if both is None else both]
    return out


def read_once(tree: Parallel) -> Parallel:
    """A loop of elementwise statements that reads each element before the first of them: compilers
    make no vectors of what some of them read under a condition."""
    taken = {var.name for node in nodes(tree.body) for var in declared(node)}
    taken.add(tree.counter.name)

    def visit(node: Node) -> Node:
        node = map_blocks(node, lambda block: tuple(map(visit, block)))
        if not isinstance(node, Loop) or node.role != "vector":
            return node
        writes = {var.name for var in tree.writes}
        reads = [
            read for store in node.body if isinstance(store, Store)
            for read in walk(store.value) if isinstance(read, Index)
        ]  # fmt: skip
        known: dict[Index, Var] = {}
        for read in reads:
            if read not in known and reads.count(read) > 1 and read.tensor.name not in writes:
                name = next(n for k in count(1) if (n := f"@e{k}_") not in taken)
                taken.add(name)
                known[read] = Var(name, read.type)

        def kept(expr: Expr) -> Expr:
            if isinstance(expr, Index) and expr in known:
                return known[expr]
            return map_children(expr, kept)

        lets = tuple(Let(var, read) for read, var in known.items())
        stores = tuple(
            replace(store, value=kept(store.value)) if isinstance(store, Store) else store
            for store in node.body
        )
        return replace(node, body=(*lets, *stores))

    return replace(tree, body=tuple(map(visit, tree.body)))


def tree(
    first: Parallel, second: Parallel, machine: Target, apart: bool = False
) -> Parallel | None:
    """The loops of both, if they are the same and hold running sums in lanes, not more of them than
    there are registers for, or have teams, or go along rows with the same kept places; and neither
    looks at what the other one writes, but that they may write other elements of one tensor
    (``apart``)."""
    totals = len(first.totals) + len(second.totals)
    if first.checks or second.checks or (totals and machine.teams):
        return None
    sums = [_sums(tree.body) for tree in (first, second)]
    teams = first.team is not None and first.team == second.team
    in_lanes = all(sums) and sum(sums) * machine.tile <= machine.accumulators
    if not (teams or in_lanes) and not (_keeps(first.body) and _keeps(second.body)):
        return None
    writes = [{var.name for var in (*tree.writes, *tree.totals)} for tree in (first, second)]
    own = writes[0] & writes[1] if apart else set()
    if writes[0] & _used(second) - own or writes[1] & _used(first) - own:
        return None
    body = _same_loops(first, second)
    if body is None or (not in_lanes and _parts_in(body) > machine.accumulators):
        return None  # what is kept shall stay in the first-level cache
    return _joined(first, second, body)


def _same_loops(first: Parallel, second: Parallel) -> Block | None:
    """The bodies as one; None where the loops differ."""
    names: dict[str, Expr] = {second.counter.name: first.counter}
    for k, (name, total) in enumerate(second.parts.items()):
        parts = TensorType((IntConst(1),), "int" if total.type == INT else "float")
        names[name] = Var(parts_of(len(first.totals) + k), parts)
    if (first.count, first.needs) != (second.count, second.needs):
        return None
    try:
        return _Merging(first).block(first.body, second.body, names)
    except _Apart:
        return None


def _joined(first: Parallel, second: Parallel, body: Block) -> Parallel:
    return replace(
        first,
        work=sizes.total((first.work, second.work)),
        body=body,
        writes=tuple(dict.fromkeys((*first.writes, *second.writes))),
        totals=(*first.totals, *second.totals),
        source=first.source if first.source == second.source else first.source + second.source,
    )


def _apart(first: Parallel, second: Parallel) -> set[str]:
    """Tensors of which each of the loops' statements writes another part, and none reads."""
    return {
        name
        for name in {var.name for var in first.writes} & {var.name for var in second.writes}
        if all(_other_part(a, b, name) for a in first.source for b in second.source)
    }


def _other_part(first: Stmt, second: Stmt, name: str) -> bool:
    """Whether what one statement writes of a tensor begins where that of the other one ends, or one
    of them leaves it alone."""
    if not all(name in mentioned_names((stmt,)) for stmt in (first, second)):
        return True
    both = zip(_ranges(first, name), _ranges(second, name), strict=False)
    for (begin, end), (start, last) in both:
        if sizes.equal(end, start) is True or sizes.equal(last, begin) is True:
            return True
    return False


def _ranges(stmt: Stmt, name: str) -> list[tuple[Expr, Expr]]:
    """Where the elements of a tensor that a statement writes, without reading it, begin and end in
    each dimension; none where they do not follow each other."""
    if not isinstance(stmt, IndexAssign) or not isinstance(stmt.target, Index):
        return []
    if name in free_variables(stmt.value):
        return []
    found: list[tuple[Expr, Expr]] = []
    for place in stmt.target.subscripts:
        form = sizes.one_by_one(place, stmt.axes)
        if form is None:
            return []
        axis, begin = form
        found.append((begin, Binary("+", begin, ONE if axis is None else axis.extent, INT)))
    return found


def _elementwise(first: Parallel, second: Parallel, apart: set[str]) -> Parallel | None:
    """One loop of two, with a loop for lanes inside, where the elements of a tensor that one writes
    and the other uses are one and the same in an iteration, but for those that they write
    ``apart``. In rows inside of an iteration each uses nothing else that the other writes."""
    if first.checks or second.checks or first.team is not None or second.team is not None:
        return None
    body = _same_loops(first, second)
    if body is None or not all(map(_is_elementwise, nodes(body))):
        return None
    written = {var.name for var in (*first.writes, *second.writes)}
    both = (written & _used(first) & _used(second)) - apart
    if both and any(isinstance(node, Loop) and node.role != "vector" for node in nodes(body)):
        return None
    places: dict[str, set[tuple[Expr, ...]]] = {name: set() for name in both}
    for node in nodes(body):
        for read in _elements(node):
            name = read.tensor.name
            if isinstance(node, Let) and name in written:
                return None  # it may be another value further down
            if name in both:
                places[name].add(read.subscripts)
    if any(len(found) != 1 for found in places.values()):
        return None
    return _joined(first, second, body)


def _behind(first: Parallel, second: Parallel) -> Parallel | None:
    """What becomes of the sums of a team, element by element, where they are put together: by the
    thread that writes them."""
    if first.team is None or first.team.several is not None or second.team is not None:
        return None
    if first.checks or second.checks or first.totals or second.totals:
        return None
    same = (first.count, first.needs) == (second.count, second.needs)
    if not same or not all(isinstance(node, Let | Store) for node in second.body):
        return None
    written = {var.name for var in (*first.writes, *second.writes)}
    if not _stores_last(first.body, written):
        return None
    names: dict[str, Expr] = {second.counter.name: first.counter}
    behind = _Merging(first).behind(first.body, second.body, names)
    body = (*first.body, *behind)
    places: dict[str, set[tuple[Expr, ...]]] = {}
    for node in body:
        for read in _elements(node):
            if read.tensor.name in written:
                if isinstance(node, Let):
                    return None  # by threads that are not told of it
                places.setdefault(read.tensor.name, set()).add(read.subscripts)
    return (
        None if any(len(found) != 1 for found in places.values()) else _joined(first, second, body)
    )


def _stores_last(body: Block, written: set[str]) -> bool:
    """Whether all that is written is written behind the loops, and read nowhere in them."""
    last = max((k for k, node in enumerate(body) if isinstance(node, _LOOPS)), default=-1)
    places = [node.place for node in nodes(body[: last + 1]) if isinstance(node, Store)]
    used = {name for node in body[: last + 1] for name in mentioned(node)}
    return not any(isinstance(place, Index) for place in places) and not written & used


def _is_elementwise(node: Node) -> bool:
    return isinstance(node, Let | Store) or (isinstance(node, Loop) and node.role in _INSIDE)


def _elements(node: Node) -> Iterator[Index]:
    """The elements that a node reads and writes."""
    match node:
        case Let(_, value):
            found = [value]
        case Store(place, _, value):
            found = [place, value]
        case _:
            found = []
    for expr in found:
        yield from (each for each in walk(expr) if isinstance(each, Index))


def _sums(block: Block) -> int:
    """How many running sums are kept in lanes; 0 where other reductions are, or groups of rows."""
    lanes = [node for node in nodes(block) if isinstance(node, Lanes)]
    groups = any(isinstance(node, Groups) for node in nodes(block))
    plain = all(each.kind == "sum" and not each.grouped for each in lanes) and not groups
    return len(lanes) if plain else 0


def _keeps(block: Block) -> bool:
    """Whether loops go along rows for which something is kept."""
    return _parts_in(block) > 0 and all(isinstance(node, _ALONG_ROWS) for node in nodes(block))


def _parts_in(block: Block) -> int:
    return sum(isinstance(node, Part) for node in nodes(block))


def _once(block: Block) -> Block:
    """The block without parts of it into which another part's values go."""
    parts = {node.var.name: node.var for node in block if isinstance(node, Part)}
    known: dict[object, Var] = {}
    same: dict[str, Expr] = {}
    for node in nodes(block) if parts else ():
        match node:
            case Store(Index(Var(name), places), "set", value) if name in parts:
                key = parts[name].type, places, value
                if known.setdefault(key, parts[name]) is not parts[name]:
                    same[name] = known[key]
            case _:
                pass

    def without(inner: Block) -> Block:
        kept = (node for node in inner if not _is_of(node, same))
        return tuple(_renamed(map_blocks(node, without), same) for node in kept)

    return without(block) if same else block


def _is_of(node: Node, parts: Mapping[str, Expr]) -> bool:
    """Whether a node declares or fills one of the parts."""
    match node:
        case Part(Var(name)) | Store(Index(Var(name))):
            return name in parts
        case _:
            return False


def _used(tree: Parallel) -> set[str]:
    return {name for node in tree.body for name in mentioned(node)}


class _Merging:
    def __init__(self, first: Parallel) -> None:
        every = (node for node in nodes(first.body) if not isinstance(node, _IN_LANES))
        self._taken = {var.name for node in every for var in declared(node)}
        self._taken.add(first.counter.name)

    def block(self, first: Block, second: Block, names: Mapping[str, Expr]) -> Block:
        """Both blocks, loop by loop; ``names`` are those that the second one's variables get."""
        ours, theirs = _parts(first), _parts(second)
        if len(ours) != len(theirs):
            raise _Apart
        names = dict(names)
        out: list[Node] = []
        known: dict[Expr, Var] = {}
        for (before, loop), (before_2, loop_2) in zip(ours, theirs, strict=True):
            out += before
            known |= {node.value: node.var for node in before if isinstance(node, Let)}
            out += self._others(before_2, known, names)
            if loop is not None and loop_2 is not None:
                out.append(self._loop(loop, loop_2, names))
        return _once(tuple(out))

    def behind(self, first: Block, second: Block, names: dict[str, Expr]) -> list[Node]:
        """The nodes of the second block that the first one does not have; no loops are among
        them."""
        known = {node.value: node.var for node in first if isinstance(node, Let)}
        return self._others(second, known, names)

    def _others(
        self, block: Sequence[Node], known: Mapping[Expr, Var], names: dict[str, Expr]
    ) -> list[Node]:
        """The nodes of a block without what is ``known`` already, which gets that name."""
        out: list[Node] = []
        for node in block:
            same = known.get(substitute(node.value, names)) if isinstance(node, Let) else None
            if isinstance(node, Let) and same is not None:
                names[node.var.name] = same
            else:
                names |= self._new(node)
                out.append(_renamed(node, names))
        return out

    def _loop(self, first: Node, second: Node, names: Mapping[str, Expr]) -> Node:
        """One loop of two that are the same but for what they do."""
        if isinstance(first, If) != isinstance(second, If):
            first, second = _if_any(first), _if_any(second)
        inner = dict(names)
        for ours, theirs in zip(declared(first), declared(second), strict=False):
            inner[theirs.name] = ours
        if _head(first) != _renamed(_head(second), inner):
            raise _Apart
        if isinstance(first, If) and isinstance(second, If) and not (first.other or second.other):
            return replace(first, then=self.block(first.then, second.then, inner))
        if isinstance(first, Loop | Tiles | Blocks) and isinstance(second, Loop | Tiles | Blocks):
            return replace(first, body=self.block(first.body, second.body, inner))
        raise _Apart

    def _new(self, node: Node) -> dict[str, Expr]:
        """Names for what a node of the second tree declares. Lanes have a counter of their own,
        which only must not hide another variable."""
        if isinstance(node, _IN_LANES) and node.counter.name not in self._taken:
            return {}
        return {var.name: self._fresh(var) for var in declared(node)}

    def _fresh(self, var: Var) -> Var:
        name, number = var.name, 1
        while name in self._taken:
            number += 1
            name = f"{var.name}{number}_"
        self._taken.add(name)
        return replace(var, name=name)


def _renamed(node: Node, names: Mapping[str, Expr]) -> Node:
    return map_expressions(node, lambda expr: substitute(expr, dict(names)))


def _if_any(node: Node) -> Node:
    """A loop under the condition that it has an iteration, as where elements are read before it."""
    if isinstance(node, Loop | Tiles):
        return If(Binary("<", node.low, node.high, INT), (node,))
    return node


def _head(node: Node) -> Node:
    """A loop without what is inside."""
    return map_blocks(node, lambda _: ())


def _parts(block: Block) -> list[tuple[list[Node], Node | None]]:
    """The loops of a block, each with what stands before it; what is behind the last one."""
    found: list[tuple[list[Node], Node | None]] = []
    before: list[Node] = []
    for node in block:
        if isinstance(node, _LOOPS):
            found.append((before, node))
            before = []
        else:
            before.append(node)
    return [*found, (before, None)]
