"""Rewrites of loop trees: functions from tree to tree that keep what a tree computes.

Each takes a tree and a loop that stands in it once, and raises :class:`Refused` where the meaning
would change, or where that cannot be proved (:mod:`loma.backends.schedule.dependence`). Values stay
the same bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from loma.backends.schedule.access import ZERO
from loma.backends.schedule.dependence import accesses, told, written
from loma.backends.schedule.ir import (
    CEILING, Fill, If, InPlace, Let, Loop, Narrow, Node, Parallel, Store, StoreLanes,
    Variable, builtin, dtype_of,
)  # fmt: skip
from loma.backends.schedule.printer import head
from loma.backends.schedule.walk import (
    Block, declared, map_blocks, map_expressions, mentioned, nodes,
)  # fmt: skip
from loma.core import sizes
from loma.core.ir import INT, Binary, Builtin, Expr, Index, IntConst, Stmt, Var
from loma.core.walk import free_variables, map_children, root

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


# ------------------------------------------------------------------------------ who runs a loop


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


def stage(tree: Tree, loop: Loop, tensor: Var) -> Tree:
    """The one element of a tensor that an iteration works on is a variable of it.

    Each iteration has an element of its own, which it writes before it reads it, and which nothing
    else uses, in the tree (which is looked at) or behind it: the tensor is not touched.
    """
    name = tensor.name
    group = [access for access in accesses(loop.body, (loop,)) if access.name == name]
    _require(bool(group), loop, f"it does not use '{name}'")
    _require(told(group) is not None, loop, f"it uses several elements of '{name}'")
    direct = [node for node in loop.body if isinstance(node, Store) and _is_in(node.place, tensor)]
    _require(bool(direct), loop, f"not every iteration writes '{name}'")
    in_lanes = any(
        isinstance(n, Fill | StoreLanes) and name in mentioned(n) for n in nodes(loop.body)
    )
    _require(not in_lanes, loop, f"lanes write '{name}'")
    first = next(node for node in loop.body if name in mentioned(node))
    sets = first is direct[0] and direct[0].kind == "set"
    sets = sets and name not in free_variables(direct[0].value)
    _require(sets, loop, f"it needs '{name}' before it writes it")
    variable = replace(_fresh(tree, f"@{name}_"), type=direct[0].place.type)

    def swap(expr: Expr) -> Expr:
        return variable if _is_in(expr, tensor) else map_children(expr, swap)

    body = [map_expressions(node, swap) for node in loop.body]
    body[loop.body.index(first)] = Variable(variable, swap(direct[0].value), dtype_of(tensor))
    new = _replaced(tree, loop, (replace(loop, body=tuple(body)),))
    left = any(name in mentioned(node) for node in nodes(new.body))
    _require(not left, loop, f"'{name}' is used elsewhere, too")
    return replace(new, writes=tuple(var for var in tree.writes if var.name != name))


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


def _is_in(place: Expr, tensor: Var) -> bool:
    """Whether a place is an element of that tensor."""
    return isinstance(place, Index) and root(place) == tensor.name


def _names(block: Sequence[Node]) -> set[str]:
    """The names that nodes declare, their blocks' among them."""
    return {var.name for node in nodes(block) for var in declared(node)}


def _fresh(tree: Parallel | InPlace, name: str) -> Var:
    """An int variable of that name, with a number where the tree has it already."""
    taken, stem, number = _names(tree.body), name, 1
    if isinstance(tree, Parallel):
        taken.add(tree.counter.name)
    while name in taken:
        number += 1
        name = f"{stem}{number}_"
    return Var(name, INT)


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
