"""Which tensors a loop need not be run back for: all reads see what is there after the loop.

A recurrence (``h[t + 1, i] = tanh(x[t, i] + sum(A[i, j] * h[t, j] for j in N))`` in a loop over t)
fills a tensor bit by bit. What an iteration read is still there when the loop is done, so that the
adjoint sweep reads the final tensor and no iteration's state is kept. A tensor is *settled* in a
loop if no element is written after a read of it whose value the adjoint sweep needs.

The proof goes through the loops that a write and a read share, from the outermost: the element that
is read says in which iteration it was written (for the loop over t above, in ``t - 1``), which must
be an earlier one, or the same one; then the next loop decides, and in the end the order of the
statements.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace

from loma import sizes
from loma.bounds import facts, is_never_negative
from loma.ir import (
    INT, Axis, Binary, Expr, For, If, Index, IndexAssign, IntConst, Stmt, TensorType, Var, While,
)  # fmt: skip
from loma.names import Names
from loma.overlap import Read, apart, reads_of
from loma.walk import children, expressions, root, statements, substitute, walk

IsSize = Callable[[str], bool]
# The expressions that the adjoint of a statement computes with.
AdjointReads = Callable[[IndexAssign], tuple[Expr, ...]]


@dataclass(frozen=True, slots=True)
class Point:
    """Where a statement stands: the loops around, outermost first, its position in each block, and
    int expressions that are not negative there."""

    loops: tuple[For, ...]
    position: tuple[int, ...]
    known: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class _Write:
    stmt: IndexAssign
    point: Point


@dataclass(frozen=True, slots=True)
class _Use:
    """A read; ``after``: it is made when the statement has written."""

    read: Read
    axes: tuple[Axis, ...]
    point: Point
    after: bool = False


@dataclass(slots=True)
class _Accesses:
    """What happens to one tensor in a loop; ``other``: more than writes and reads of elements."""

    writes: list[_Write] = field(default_factory=list)
    reads: list[tuple[IndexAssign | None, _Use]] = field(default_factory=list)
    other: bool = False


class Settling:
    """Answers for one loop; ``changing`` are variables whose value says nothing of a later one,
    ``around`` the loops around."""

    def __init__(
        self, loop: For, around: tuple[For, ...], changing: Collection[str], is_size: IsSize
    ) -> None:
        self._changing = changing
        self._is_size = is_size
        self._around = around
        self._found: dict[str, _Accesses] = {}
        self._walk((loop,), Point((), (), ()))

    def settled(self, names: Collection[str], reads: AdjointReads) -> frozenset[str]:
        """Those of the tensors that are settled; ``reads`` tells what the adjoint of a statement
        needs if the statement itself is not run again."""
        chosen = {n for n in names if n in self._found and not self._found[n].other}
        while True:
            kept = {name for name in chosen if self._is_settled(name, chosen, reads)}
            if kept == chosen:
                return frozenset(chosen)
            chosen = kept

    def is_kept(self, stmt: IndexAssign) -> bool:
        """Whether what the statement writes stays to the end of the loop."""
        accesses = self._found[root(stmt.target)]
        assert isinstance(stmt.target, Index)
        own = [write for write in accesses.writes if write.stmt is stmt]
        if len(own) != 1 or accesses.other:
            return False
        read = Read(stmt.target, {}, ())
        use = _Use(read, stmt.axes, own[0].point, after=True)
        return all(self._precedes(write, use) for write in accesses.writes)

    def _is_settled(self, name: str, chosen: set[str], reads: AdjointReads) -> bool:
        accesses = self._found[name]
        needed: dict[int, list[Read]] = {}
        for stmt, use in accesses.reads:
            if stmt is not None and root(stmt.target) in chosen:
                if id(stmt) not in needed:
                    needed[id(stmt)] = [r for e in reads(stmt) for r in reads_of(name, e)]
                continue
            if not all(self._precedes(write, use) for write in accesses.writes):
                return False
        for stmt, use in accesses.reads:
            for read in needed.pop(id(stmt), ()) if stmt is not None else ():
                after = stmt is not None and read.place == stmt.target and self.is_kept(stmt)
                point = replace(use, read=read, after=after)
                if not all(self._precedes(write, point) for write in accesses.writes):
                    return False
        return True

    # ------------------------------------------------------------------------- what happens

    def _walk(self, body: tuple[Stmt, ...], point: Point) -> None:
        for position, stmt in enumerate(body):
            here = replace(point, position=(*point.position, position))
            match stmt:
                case IndexAssign(Index(Var(name), subscripts), _, value, axes):
                    self._of(name).writes.append(_Write(stmt, here))
                    for expr in (value, *subscripts, *(axis.extent for axis in axes)):
                        self._reads(stmt, expr, axes, here)
                case IndexAssign(_, _, value, axes):
                    for expr in (value, *(axis.extent for axis in axes)):
                        self._reads(None, expr, axes, here)
                case For(_, extent, inner):
                    self._reads(None, extent, (), here)
                    self._walk(inner, replace(here, loops=(*here.loops, stmt)))
                case If(cond, then, other):
                    self._reads(None, cond, (), here)
                    for k, (block, holds) in enumerate(((then, True), (other, False))):
                        known = tuple(f for f in facts(cond, holds) if self._is_fixed(f))
                        self._walk(block, Point(
                            here.loops, (*here.position, k), here.known + known))  # fmt: skip
                case _:
                    *values, target = expressions(stmt)
                    for value in values:
                        self._reads(None, value, (), here)
                    self._all(target)
                    if isinstance(stmt, While):
                        for inside in statements(stmt.body):
                            for expr in expressions(inside):
                                self._all(expr)

    def _all(self, expr: Expr) -> None:
        """Anything may happen to what the expression mentions."""
        for node in walk(expr):
            if isinstance(node, Var):
                self._of(node.name).other = True

    def _of(self, name: str) -> _Accesses:
        return self._found.setdefault(name, _Accesses())

    def _wholes(self, expr: Expr) -> None:
        for name in _whole_tensors(expr):
            self._of(name).other = True

    def _reads(
        self, stmt: IndexAssign | None, expr: Expr, axes: tuple[Axis, ...], point: Point
    ) -> None:
        self._wholes(expr)
        for name in {n.name for n in walk(expr) if isinstance(n, Var)}:
            for read in reads_of(name, expr):
                self._of(name).reads.append((stmt, _Use(read, axes, point)))

    # --------------------------------------------------------------------------- the order

    def _is_fixed(self, expr: Expr) -> bool:
        return not any(
            isinstance(n, Index) or (isinstance(n, Var) and n.name in self._changing)
            for n in walk(expr)
        )

    def _extents(self, loops: tuple[For, ...], axes: tuple[Axis, ...]) -> dict[str, Expr]:
        found = {
            loop.counter: loop.extent
            for loop in (*self._around, *loops)
            if self._is_fixed(loop.extent)
        }
        return found | {axis.name: axis.extent for axis in axes}

    def _precedes(self, write: _Write, use: _Use) -> bool:
        """Whether each write of an element that is read comes before that read."""
        target = write.stmt.target
        assert isinstance(target, Index)
        shared = 0
        for left, right in zip(write.point.loops, use.point.loops, strict=False):
            if left is not right:
                break
            shared += 1
        loops = write.point.loops
        extents = self._extents(use.point.loops, use.axes) | dict(use.read.extents)
        known = use.point.known + use.read.known
        names = Names(
            {n.name for e in (target, use.read.place) for n in walk(e) if isinstance(n, Var)}
            | set(extents)
        )
        # the write's counters and indices, at another point than the read's
        own = [loop.counter for loop in loops] + [axis.name for axis in write.stmt.axes]
        there = {name: Var(names.fresh(f"{name}_there"), INT) for name in own}
        subscripts = [substitute(s, dict(there)) for s in target.subscripts]
        unknown = {var.name for var in there.values()}
        for loop in loops[:shared]:
            counter = there[loop.counter]
            step = self._step(
                loop, counter, subscripts, use.read.place.subscripts, unknown, extents, known
            )
            if step is None:
                return False
            if step == "before":
                return True
            unknown.discard(counter.name)
            now = Var(loop.counter, INT)
            subscripts = [substitute(s, {counter.name: now}) for s in subscripts]
        first, second = write.point.position, use.point.position
        if first != second:
            if first < second:
                return True
        elif use.after:
            return True
        # The read comes first: the write must be of other elements.
        there_, here_ = loops[shared:], use.point.loops[shared:]
        if not all(self._is_fixed(loop.extent) for loop in (*there_, *here_)):
            return False
        free = tuple(Axis(loop.counter, loop.extent) for loop in there_)
        ranges = {loop.counter: loop.extent for loop in here_}
        ranges |= {axis.name: axis.extent for axis in use.axes} | dict(use.read.extents)
        read = Read(use.read.place, ranges, use.read.known)
        around = self._extents(loops[:shared], ())
        return apart(
            target, (*free, *write.stmt.axes), read, around, self._is_size, use.point.known
        )

    def _step(
        self,
        loop: For,
        counter: Var,
        subscripts: list[Expr],
        read: tuple[Expr, ...],
        unknown: set[str],
        extents: dict[str, Expr],
        known: tuple[Expr, ...],
    ) -> str | None:
        """In which iteration of a loop the element was written, seen from the one that reads it:
        ``before`` it, or ``same``, which means not after it. None where that is not known."""
        found: str | None = None
        for own, there in zip(subscripts, read, strict=True):
            if sizes.mentions(own, unknown - {counter.name}):
                continue
            form = sizes.affine(own, (Axis(counter.name, loop.extent),))
            if form is None or counter.name not in form[0]:
                continue
            slope = sizes.constant(form[0][counter.name])
            if slope not in (1, -1):
                continue
            at = Binary("-", there, form[1], INT)
            at = at if slope == 1 else Binary("-", IntConst(0), at, INT)
            now = Var(loop.counter, INT)
            ahead = Binary("-", at, now, INT) if loop.backwards else Binary("-", now, at, INT)
            one = Binary("-", ahead, IntConst(1), INT)
            if is_never_negative(one, extents, self._is_size, known):
                return "before"
            low = Binary("-", Binary("-", IntConst(0), at, INT), IntConst(1), INT)
            high = Binary("-", at, loop.extent, INT)
            for outside in (low, high) if self._is_fixed(loop.extent) else (low,):
                if is_never_negative(outside, extents, self._is_size, known):
                    return "before"  # it is never written
            if is_never_negative(ahead, extents, self._is_size, known):
                found = "same"
        return found


def _whole_tensors(expr: Expr) -> Iterator[str]:
    """Tensors that an expression takes as wholes."""
    match expr:
        case Index(Var(), subscripts):
            for subscript in subscripts:
                yield from _whole_tensors(subscript)
        case Var(name):
            if isinstance(expr.type, TensorType):
                yield name
        case _:
            for child in children(expr):
                yield from _whole_tensors(child)
