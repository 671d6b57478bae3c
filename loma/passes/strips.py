"""Loops along rows, many rows side by side, take a strip of the rows' elements at a time.

    for t in range(T):
        s[b] = a / (s[b] + x[b, t])

reads an element of each row in every round, far apart in memory. In strips of 16 rounds,

    for q in range((T + 15) // 16):
        x_strip[t, b] = x[b, 16 * q + t]         # for t in range(min(16, T - 16 * q))
        for t in range(min(16, T - 16 * q)):
            s[b] = a / (s[b] + x_strip[t, b])

rounds read and write what lies together, and a line of memory is gone through at once, by squares
that are transposed in registers. So rows run side by side in lanes where a round waits for a
division, or a function, in the one before; where it does not, a row at a time is as fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from loma.core import builder as b, sizes
from loma.core.bounds import ONE, ZERO, exists
from loma.core.builtins import BUILTINS
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Builtin, Declare, Expr, For, Function, Index, IndexAssign,
    IntConst, Reduce, Stmt, TensorType, Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.sizes import IsSize, arith
from loma.core.walk import map_blocks, map_children, nodes, walk

_FEW = 8  # rows that are no block
_LONGEST = 4  # rounds back, of which a round reads what they wrote


def in_strips(function: Function, length: int) -> Function:
    """The pass on a function; ``length``: how many rounds a strip has."""
    names, new = Names(names_of(function)), list[Stmt]()
    is_size = frozenset(sizes.size_variables(function)).__contains__

    def block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(map(statement, body))

    def statement(stmt: Stmt) -> Stmt:
        made = _Loop(stmt, length, names, is_size).strips() if isinstance(stmt, For) else None
        if made is None:
            return map_blocks(stmt, block)
        new.extend(Declare(strip.tensor, None) for strip in made[0])
        return made[1]

    body = block(function.body)
    return replace(function, body=(*new, *body)) if new else function


@dataclass(frozen=True, slots=True)
class _Access:
    """An element of a row in a round: ``behind`` its own place, None for one elsewhere."""

    place: Index
    behind: Expr | None
    writes: bool


@dataclass(frozen=True, slots=True)
class _Strip:
    """A strip of the rows of ``whole`` in a ``tensor``: it begins ``first`` behind the round's own
    place and has ``more`` elements than there are rounds. All of it is ``read`` before the rounds,
    or of a tensor that they write, ``behind`` the first place of the strip, the rest."""

    whole: Var
    tensor: Var
    first: Expr
    more: int
    read: bool
    behind: int | None


@dataclass(frozen=True, slots=True)
class _Loop:
    loop: For
    length: int
    names: Names
    is_size: IsSize

    def strips(self) -> tuple[list[_Strip], For] | None:
        """The strips and the loop through them; None where it does not go along rows that lie side
        by side, or need not wait."""
        loop, rows = self.loop, _rows(self.loop)
        short = sizes.constant(loop.extent)
        if rows is None or (short is not None and short < 2 * self.length) or not _waits(loop):
            return None
        if not sizes.is_arithmetic(loop.extent) or 0 < (sizes.constant(rows) or _FEW) < _FEW:
            return None
        found = self._found(rows)
        if not found:
            return None
        here = Var(self.names.fresh(f"{loop.counter}_strip"), INT)
        inner = Var(self.names.fresh(loop.counter), INT)
        length = IntConst(self.length)
        first = arith("*", length, here)
        count = Builtin("min", (length, arith("-", loop.extent, first)), INT)
        of = {strip.whole.name: strip for strip in found}
        rounds = tuple(self._inside(stmt, first, inner, of) for stmt in loop.body)
        before, after = list[Stmt](), list[Stmt]()
        for strip in found:
            more = IntConst(strip.more)
            copied = partial(self._copied, strip, rows, first)
            if strip.read:
                before.append(copied(ZERO, arith("+", count, more), True))
            elif strip.more:  # what rounds of the strip before have written
                before.append(copied(count if loop.backwards else ZERO, more, True))
            if strip.behind is not None:
                after.append(copied(IntConst(strip.behind), count, False))
        body = (*before, For(inner.name, count, rounds, loop.backwards, loop.span), *after)
        extent = arith("//", arith("+", loop.extent, arith("-", length, ONE)), length)
        return found, For(here.name, extent, body, loop.backwards, loop.span)

    def _copied(
        self, strip: _Strip, rows: Expr, first: Expr, begin: Expr, count: Expr, inwards: bool
    ) -> IndexAssign:
        """A part of a strip taken from the rows, or put back."""
        at, row = (Axis(self.names.fresh(n), e) for n, e in (("_i", count), ("_j", rows)))
        place = Binary("+", Var(at.name, INT), begin, INT)
        beyond = arith("+", arith("+", first, strip.first), arith("+", begin, place.left))
        own = Index(strip.tensor, (place, Var(row.name, INT)), FLOAT)
        there = Index(strip.whole, (Var(row.name, INT), beyond), FLOAT)
        if inwards:
            return IndexAssign(own, "=", there, (at, row), self.loop.span)
        return IndexAssign(there, "=", own, (row, at), self.loop.span)

    def _found(self, rows: Expr) -> list[_Strip] | None:
        """The strips that the loop needs; None where it reads or writes their tensors elsewhere."""
        accesses: dict[Var, list[_Access]] = {}
        for own, access in _accesses(self.loop):
            extents = {self.loop.counter: self.loop.extent, own: rows}
            if access.behind is not None and not exists(access.place, extents, self.is_size):
                return None
            accesses.setdefault(access.place.tensor, []).append(access)
        made: list[_Strip] = []
        for whole, every in accesses.items():
            along = [access for access in every if access.behind is not None]
            if not along:
                continue
            if len(along) < len(every) and any(access.writes for access in every):
                return None
            strip = self._strip(whole, along, rows)
            if strip is None:
                return None
            made.append(strip)
        return made

    def _strip(self, whole: Var, accesses: list[_Access], rows: Expr) -> _Strip | None:
        """The strip for these accesses of a tensor; None where a round reads what a later one
        writes, or what lies far behind."""
        first = accesses[0].behind
        assert first is not None
        offs = [sizes.constant(arith("-", a.behind, first)) for a in accesses if a.behind]
        places = [off for off in offs if off is not None]
        low, more = min(places, default=0), max(places, default=0) - min(places, default=0)
        if len(places) < len(accesses) or more > _LONGEST:
            return None
        written = {off for off, access in zip(places, accesses, strict=True) if access.writes}
        last = low if self.loop.backwards else low + more
        if written and written != {last}:
            return None
        read = not written or not accesses[places.index(last)].writes  # before that
        type_ = TensorType((IntConst(self.length + more), rows))
        tensor = Var(self.names.fresh(f"{whole.name}_strip"), type_)
        begin = arith("+", first, IntConst(low))
        behind = min(written) - low if written else None
        return _Strip(whole, tensor, begin, more, read, behind)

    def _inside(self, stmt: Stmt, first: Expr, inner: Var, of: dict[str, _Strip]) -> Stmt:
        """A statement of a round in a strip that begins with the round ``first``."""
        assert isinstance(stmt, IndexAssign)
        own = stmt.axes[0].name

        def value(expr: Expr) -> Expr:
            if isinstance(expr, Index) and isinstance(expr.base, Var) and expr.base.name in of:
                behind = _along(expr, self.loop, own)
                if behind is not None:
                    strip = of[expr.base.name]
                    place = arith("+", inner, arith("-", behind, strip.first))
                    return replace(expr, base=strip.tensor, subscripts=(place, Var(own, INT)))
            if expr == Var(self.loop.counter, INT):
                return arith("+", first, inner)
            return map_children(expr, value)

        target = value(stmt.element)
        assert isinstance(target, Index)
        return replace(stmt, target=target, value=value(stmt.value))


def _rows(loop: For) -> Expr | None:
    """How many rows the statements of a loop go along, each of which has a value for each row."""
    found: Expr | None = None
    for stmt in loop.body:
        if not isinstance(stmt, IndexAssign) or not isinstance(stmt.target, Index):
            return None
        if len(stmt.axes) != 1 or (found is not None and stmt.axes[0].extent != found):
            return None
        found = stmt.axes[0].extent
        if Var(stmt.axes[0].name, INT) not in stmt.element.subscripts or stmt.op not in ("=", "+="):
            return None
    return None if any(isinstance(node, Reduce) for node in nodes(loop.body)) else found


def _waits(loop: For) -> bool:
    """Whether rounds hand numbers on that take long to compute: rows one after the other would wait
    for each of them."""
    slow = any(
        (isinstance(node, Binary) and node.op == "/" and b.number(node.right) is None)
        or (isinstance(node, Builtin) and BUILTINS[node.name].costly)
        for node in nodes(loop.body)
        if node.type == FLOAT
    )
    if not slow:
        return False
    accesses = [access for _, access in _accesses(loop)]
    written = {access.place.tensor for access in accesses if access.writes}
    return any(not access.writes and access.place.tensor in written for access in accesses)


def _accesses(loop: For) -> Iterator[tuple[str, _Access]]:
    """The elements that a round reads and writes, in order, with the index of the rows."""
    for stmt in loop.body:
        if not isinstance(stmt, IndexAssign) or not isinstance(stmt.target, Index):
            continue
        own = stmt.axes[0].name
        added = (stmt.target,) if stmt.op == "+=" else ()
        for node in (*walk(stmt.value), *added):
            if isinstance(node, Index) and isinstance(node.base, Var):
                yield own, _Access(node, _along(node, loop, own), False)
        yield own, _Access(stmt.target, _along(stmt.target, loop, own), True)


def _along(place: Index, loop: For, own: str) -> Expr | None:
    """How far behind the round's own place in a row an element lies; None for one elsewhere."""
    type_ = place.base.type
    if not isinstance(type_, TensorType) or type_.element != "float" or len(place.subscripts) != 2:
        return None
    row, at = place.subscripts
    form = sizes.affine(at, (Axis(loop.counter, loop.extent),)) if row == Var(own, INT) else None
    if form is None or sizes.constant(form[0].get(loop.counter, ZERO)) != 1:
        return None
    return sizes.simplify(form[1])
