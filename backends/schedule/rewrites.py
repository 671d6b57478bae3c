"""Rewrites of loop trees: functions from tree to tree that keep what a tree computes.

Each takes a tree and a loop that stands in it once, and raises :class:`Refused` where the meaning
would change, or where that cannot be proved (:mod:`loma.backends.schedule.dependence`). Values stay
the same bit by bit, with one exception: a rewrite that gives sums of floats another order does so
only where it is told ``reassociate=True``. That order follows from the tree alone, never from the
number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from loma.backends.schedule.access import ZERO
from loma.backends.schedule.dependence import Access, accesses, told, written
from loma.backends.schedule.ir import (
    CEILING, Fill, If, InPlace, Let, Loop, Narrow, Node, Parallel, Role, Store, StoreLanes,
    Variable, builtin, dtype_of,
)  # fmt: skip
from loma.backends.schedule.printer import head
from loma.backends.schedule.walk import (
    Block, blocks, declared, expressions, map_blocks, map_expressions, mentioned, nodes, renamed,
)  # fmt: skip
from loma.core import sizes
from loma.core.ir import INT, Binary, Builtin, Call, Expr, Index, IntConst, Stmt, Var
from loma.core.ops import may_divide_by_zero
from loma.core.walk import free_variables, map_children, root, walk

Tree = TypeVar("Tree", bound=Parallel | InPlace)


class Refused(ValueError):
    """The rewrite would change what the tree computes, or is not known to keep it."""


def loops(tree: Parallel | InPlace) -> list[Loop]:
    """All plain loops of a tree, the outer ones first."""
    return [node for node in nodes(tree.body) if isinstance(node, Loop)]


# --------------------------------------------------------------------------- the order of loops


def split(tree: Tree, loop: Loop, size: int) -> Tree:
    """``loop`` in pieces of ``size`` values, in a loop around it: the iterations and their order
    stay. The outer loop counts pieces; its counter has the name of the loop's, and ``@``."""
    _require(size > 0, loop, f"there are no pieces of {size} values")
    _require_plain(tree, loop)
    name = loop.counter.name.removeprefix("@")
    piece = _fresh(tree, f"@{name}_piece_")
    begin, end = _fresh(tree, f"@{name}_begin_"), _fresh(tree, f"@{name}_end_")
    before, count = pieces(piece, begin, end, size, loop.low, loop.high)
    body = (*before, replace(loop, low=begin, high=end))
    return _replaced(tree, loop, (Loop(piece, ZERO, count, body),))


def pieces(
    piece: Var, begin: Var, end: Var, size: int, low: Expr, high: Expr
) -> tuple[tuple[Let, Let], Expr]:
    """Pieces of ``size`` values of [low, high): where that of a number begins and ends, and how
    many there are."""
    first: Expr = Binary("*", piece, IntConst(size), INT)
    length = high
    if low != ZERO:
        first, length = sizes.total((low, first)), sizes.simplify(Binary("-", high, low, INT))
    behind = Builtin("min", (high, Binary("+", begin, IntConst(size), INT)), INT)
    return (Let(begin, first), Let(end, behind)), builtin(CEILING, length, IntConst(size))


def reorder(tree: Tree, outer: Loop, *, reassociate: bool = False) -> Tree:
    """The loop inside of ``outer`` goes around it; constants before it go inside. Neither is one in
    lanes then."""
    before, inner = outer.body[:-1], outer.body[-1]
    if not isinstance(inner, Loop) or not all(isinstance(node, Let) for node in before):
        raise Refused(_text(outer, "there is more inside than a loop"))
    _require_plain(tree, outer, inner)
    body = (*before, *inner.body)
    own = _names(before) | {outer.counter.name}
    bounds = free_variables(inner.low) | free_variables(inner.high)
    _require(not bounds & own, inner, "its range depends on the loop around it")
    changed = written(accesses(body, (outer, inner)))
    used = bounds | {name for node in before for name in mentioned(node)}
    _require(not used & changed.keys(), inner, "it changes what stands before it")
    names = {outer.counter.name, inner.counter.name}
    for name, group in changed.items():
        apart = told(group)
        # Where one of both tells the element, its visits keep the order of the other.
        if apart is None or not apart & names:
            one_sum = apart is not None and _is_sum(group)
            _require(one_sum, outer, f"iterations of both change '{name}'")
            _require(reassociate, outer, f"'{name}' is summed in another order")
    role: Role = "serial" if inner.role == "serial" else "inner"
    turned = replace(inner, role="serial", body=(replace(outer, role=role, body=body),))
    return _replaced(tree, outer, (turned,))


def fuse(tree: Tree, first: Loop, second: Loop) -> Tree:
    """Two loops over the same range, one behind the other, as one."""
    same = (first.low, first.high, first.role) == (second.low, second.high, second.role)
    _require(same, second, "it has another range")
    _require_plain(tree, first, second)
    _require(_follows(tree, first, second), second, "it does not follow the first one")
    counter = {second.counter.name: first.counter}
    body = renamed(second.body, {**counter, **_new_names(tree, second.body)})
    ahead, behind = accesses(first.body, (first,)), accesses(body, (first,))
    both = {access.name for access in ahead} & {access.name for access in behind}
    changed = written([*ahead, *behind])
    for name, group in changed.items():
        own = name not in both or first.counter.name in (told(group) or ())
        _require(own, second, f"it needs all of '{name}' that the first one makes, or changes it")
    bounds = free_variables(second.low) | free_variables(second.high)
    _require(not bounds & changed.keys(), second, "the first one changes its range")
    fused = replace(first, body=(*first.body, *body))
    return _replaced(_replaced(tree, second, ()), first, (fused,))


def unroll(tree: Tree, loop: Loop) -> Tree:
    """The iterations one behind the other; the range has to be known."""
    low, high = sizes.constant(loop.low), sizes.constant(loop.high)
    if low is None or high is None:
        raise Refused(_text(loop, "its range is not known"))
    _require_plain(tree, loop)
    body: list[Node] = []
    for value in range(low, high):
        names = _new_names(tree, loop.body, value)
        body += renamed(loop.body, {**names, loop.counter.name: IntConst(value)})
    return _replaced(tree, loop, tuple(body))


# ------------------------------------------------------------------------------ who runs a loop


def vectorise(tree: Tree, loop: Loop) -> Tree:
    """A loop of single elements runs in lanes."""
    simple = all(isinstance(node, Let | Store | Variable) for node in loop.body)
    _require(simple, loop, "there is more inside than elements and constants")
    values = [part for n in loop.body for expr in expressions(n) for part in walk(expr)]
    fails = any(isinstance(value, Call) or may_divide_by_zero(value) for value in values)
    _require(not fails, loop, "it divides by what may be 0, or calls a function")
    _require_independent(loop)
    return _replaced(tree, loop, (replace(loop, role="vector"),))


def bind(
    tree: InPlace, loop: Loop, work: Expr, source: tuple[Stmt, ...], over: tuple[str, ...] = ()
) -> Parallel:
    """The iterations of the outermost loop run in parallel; they begin with what was before it.

    ``work``, ``source`` and ``over`` are those of :class:`Parallel`.
    """
    _require(loop.low == ZERO, loop, "it does not begin at 0")
    _require_plain(tree, loop)
    _require_independent(loop)
    inside = _inside(tree.body, loop, set(written(accesses(loop.body))))
    own = _names(tree.body) & free_variables(loop.high)
    _require(not own, loop, "its range is made of constants of the tree")
    return Parallel(
        loop.counter, loop.high, work, inside, tree.writes, source, over, checks=tree.checks
    )


def _inside(block: Block, loop: Loop, changed: set[str]) -> Block:
    """What one iteration of a loop does, with the constants and conditions around it."""
    before, last = block[:-1], block[-1] if block else None
    for node in before:
        _require(isinstance(node, Let), node, "it stands before the outermost loop")
        _require(not mentioned(node) & changed, node, "the loop changes what it is made of")
    if last == loop:
        return (*before, *loop.body)
    if isinstance(last, If) and not last.other:
        _require(not free_variables(last.condition) & changed, last, "the loop changes it")
        if last.then[-1:] == (loop,) and last.condition == Binary("<", loop.low, loop.high, INT):
            return (*before, *last.then[:-1], *loop.body)  # so it is where an iteration runs
        return (*before, replace(last, then=_inside(last.then, loop, changed)))
    raise Refused(_text(loop, "it is not the outermost loop"))


# ---------------------------------------------------------------------------------------- memory


def stage(tree: Tree, loop: Loop, tensor: Var, *, private: bool = False) -> Tree:
    """The one element of a tensor that a loop works on is a variable while the loop runs: it is
    read before the loop, and written behind it.

    ``private``: each iteration has an element of its own, which it writes before it reads it, and
    which nothing else uses. Then it is a variable of the iteration, and the tensor is not touched.
    """
    name = tensor.name
    group = [access for access in accesses(loop.body, (loop,)) if access.name == name]
    _require(bool(group), loop, f"it does not use '{name}'")
    _require(told(group) is not None, loop, f"it uses several elements of '{name}'")
    direct = [node for node in loop.body if isinstance(node, Store) and _is_in(node.place, tensor)]
    _require(bool(direct), loop, f"not every iteration writes '{name}'")
    place = direct[0].place
    assert isinstance(place, Index)
    variable = replace(_fresh(tree, f"@{name}_"), type=place.type)
    in_lanes = any(
        isinstance(n, Fill | StoreLanes) and name in mentioned(n) for n in nodes(loop.body)
    )
    _require(not in_lanes, loop, f"lanes write '{name}'")

    def swap(expr: Expr) -> Expr:
        return variable if _is_in(expr, tensor) else map_children(expr, swap)

    if private:
        first = next(node for node in loop.body if name in mentioned(node))
        sets = first is direct[0] and direct[0].kind == "set" and not _reads(direct[0].value, name)
        _require(sets, loop, f"it needs '{name}' before it writes it")
        body = [map_expressions(node, swap) for node in loop.body]
        start = swap(direct[0].value)
        body[loop.body.index(first)] = Variable(variable, start, dtype_of(tensor))
        new = _replaced(tree, loop, (replace(loop, body=tuple(body)),))
        left = any(name in mentioned(node) for node in nodes(new.body))
        _require(not left, loop, f"'{name}' is used elsewhere, too")
        return replace(new, writes=tuple(var for var in tree.writes if var.name != name))
    moving = _names(loop.body) | {loop.counter.name}
    moving |= written(accesses(loop.body, (loop,))).keys()
    _require(not free_variables(place.subscripts[0]) & moving, loop, f"it moves through '{name}'")
    inside = (
        Variable(variable, place, dtype_of(tensor)),
        replace(loop, body=tuple(map_expressions(node, swap) for node in loop.body)),
        Store(place, "set", variable),
    )
    # An element that no iteration uses may not exist.
    return _replaced(tree, loop, (If(Binary("<", loop.low, loop.high, INT), inside),))


# ----------------------------------------------------------------------------------------- parts


def _text(node: Node, why: str) -> str:
    return f"`{head(node)}`: {why}"


def _require(condition: bool, node: Node, why: str) -> None:
    if not condition:
        raise Refused(_text(node, why))


def _require_plain(tree: Parallel | InPlace, *loops: Loop) -> None:
    """Refuses loops that run inside or around a stretch, of which there are always both."""
    stretches = {n.begin.name for n in nodes(tree.body) if isinstance(n, Narrow)}
    for loop in loops:
        _require(loop.without is None, loop, "it leaves values out")
        begins = isinstance(loop.low, Var) and loop.low.name in stretches
        _require(not begins, loop, "it runs inside a stretch, and another one around it")


def _require_independent(loop: Loop) -> None:
    """Refuses a loop whose iterations may meet."""
    for name, group in written(accesses(loop.body, (loop,))).items():
        _require(loop.counter.name in (told(group) or ()), loop, f"its iterations meet in '{name}'")


def _is_sum(group: Sequence[Access]) -> bool:
    """Whether all that happens to an element is that values are added, or multiplied."""
    kinds = {access.kind for access in group}
    return kinds in ({"sum"}, {"prod"})


def _is_in(place: Expr, tensor: Var) -> bool:
    """Whether a place is an element of that tensor."""
    return isinstance(place, Index) and root(place) == tensor.name


def _reads(value: Expr, name: str) -> bool:
    return name in free_variables(value)


def _names(block: Sequence[Node]) -> set[str]:
    """The names that nodes declare, their blocks' among them."""
    return {var.name for node in nodes(block) for var in declared(node)}


def _follows(tree: Parallel | InPlace, first: Node, second: Node) -> bool:
    """Whether a node is the next one behind another."""
    every = [tree.body, *(block for node in nodes(tree.body) for block in blocks(node))]
    return any(pair == (first, second) for block in every for pair in pairwise(block))


def _fresh(tree: Parallel | InPlace, name: str) -> Var:
    """An int variable of that name, with a number where the tree has it already."""
    taken, stem, number = _names(tree.body), name, 1
    if isinstance(tree, Parallel):
        taken.add(tree.counter.name)
    while name in taken:
        number += 1
        name = f"{stem}{number}_"
    return Var(name, INT)


def _new_names(tree: Parallel | InPlace, block: Block, copy: int = 0) -> dict[str, Expr]:
    """Names for what a block declares, for a copy of it beside other blocks."""
    return {
        var.name: replace(_fresh(tree, f"@{var.name.removeprefix('@')}{copy}_"), type=var.type)
        for node in nodes(block)
        for var in declared(node)
    }


def _replaced(tree: Tree, node: Node, new: Block) -> Tree:
    """The tree with other nodes for one that stands in it once."""
    count = 0

    def block(old: Block) -> Block:
        nonlocal count
        out: list[Node] = []
        for other in old:
            if other == node:
                count += 1
                out += new
            else:
                out.append(map_blocks(other, block))
        return tuple(out)

    changed = map_blocks(tree, block)
    _require(count == 1, node, f"it stands in the tree {count} times")
    return changed
