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
from dataclasses import dataclass, field

from loma.ad.tensor import limits
from loma.core import sizes
from loma.core.bounds import facts, is_never_negative
from loma.core.distinct import told_apart
from loma.core.effects import assigned, declared, effects
from loma.core.ir import (
    INT, Axis, Binary, Declare, Expr, For, If, Index, IndexAssign, IntConst, Return, Stmt,
    TensorType, Var, While, replace,
)  # fmt: skip
from loma.core.names import Names
from loma.core.overlap import Read, apart, differ, reads_of
from loma.core.walk import (
    children, expressions, free_variables, root, statements, subscripts, substitute, variables,
)  # fmt: skip

IsSize = Callable[[str], bool]
# The expressions that the adjoint of a statement computes with.
AdjointReads = Callable[[IndexAssign], tuple[Expr, ...]]


_MANY = 20  # writes of one tensor: more are not compared with each other


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
    target: Index
    point: Point

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The ranges of the counters around and of the indices."""
        loops = (Axis(loop.counter, loop.extent) for loop in self.point.loops)
        return *loops, *self.stmt.axes


@dataclass(frozen=True, slots=True)
class _Use:
    """A read; ``after``: it is made when the statement has written."""

    read: Read
    axes: tuple[Axis, ...]
    point: Point
    after: bool = False


@dataclass(slots=True)
class _OfTensor:
    """What happens to one tensor in a block; ``other``: more than reads and writes of elements."""

    writes: list[_Write] = field(default_factory=list)
    reads: list[tuple[IndexAssign | None, _Use]] = field(default_factory=list)
    read_whole: bool = False
    other: bool = False


class Accesses:
    """The writes and reads of a block; ``changing`` are variables whose value says nothing of a
    later one, ``around`` the loops around."""

    def __init__(
        self,
        body: tuple[Stmt, ...],
        around: tuple[For, ...],
        changing: Collection[str],
        is_size: IsSize,
    ) -> None:
        self._changing = changing
        self._is_size = is_size
        self._around = around
        self._found: dict[str, _OfTensor] = {}
        self._walk(body, Point((), (), ()))

    def settled(
        self, names: Collection[str], reads: AdjointReads, kept: Collection[int]
    ) -> frozenset[str]:
        """Those of the tensors that are settled in the block, a loop; ``reads`` tells what the
        adjoint of a statement needs if the statement itself is not run again, where those with
        numbers in ``kept`` look at their targets for their results."""
        known = {n: self._found[n] for n in names if n in self._found}
        chosen = {
            n for n, found in known.items()
            if not (found.other or found.read_whole)
            and len(found.writes) <= _MANY and len(found.reads) <= _MANY**2
        }  # fmt: skip
        while True:
            left = {name for name in chosen if self._is_settled(name, chosen, reads, kept)}
            if left == chosen:
                return frozenset(chosen)
            chosen = left

    def is_kept(self, stmt: IndexAssign) -> bool:
        """Whether what the statement writes stays to the end of the loop."""
        accesses = self._found[root(stmt.target)]
        assert isinstance(stmt.target, Index)
        own = [write for write in accesses.writes if write.stmt is stmt]
        if len(own) != 1 or accesses.other or len(accesses.writes) > _MANY:
            return False
        read = Read(stmt.target, {})
        use = _Use(read, stmt.axes, own[0].point, after=True)
        return all(self._precedes(write, use) for write in accesses.writes)

    def first_writes(self) -> frozenset[int]:
        """The numbers of assignments to elements that nothing in the block writes before."""
        return frozenset(
            write.stmt.number
            for accesses in self._found.values()
            if not accesses.other and len(accesses.writes) <= _MANY
            for write in accesses.writes
            if write.stmt.op == "=" and self._writes_once(write)
            and all(other is write or self._never_meet(other, write) for other in accesses.writes)
        )  # fmt: skip

    def _is_settled(
        self, name: str, chosen: set[str], reads: AdjointReads, kept: Collection[int]
    ) -> bool:
        accesses = self._found[name]
        needed: dict[int, list[Read]] = {}  # by number of the statement
        for stmt, use in accesses.reads:
            if stmt is not None and root(stmt.target) in chosen:
                if stmt.number not in needed:
                    needed[stmt.number] = [r for e in reads(stmt) for r in reads_of(name, e)]
                continue
            if not all(self._precedes(write, use) for write in accesses.writes):
                return False
        for stmt, use in accesses.reads:
            for read in needed.pop(stmt.number, ()) if stmt is not None else ():
                after = stmt is not None and stmt.number in kept and read.place == stmt.target
                point = replace(use, read=read, after=after)
                if not all(self._precedes(write, point) for write in accesses.writes):
                    return False
        return True

    # ------------------------------------------------------------------------- what happens

    def _walk(self, body: tuple[Stmt, ...], point: Point) -> None:
        for position, stmt in enumerate(body):
            here = replace(point, position=(*point.position, position))
            match stmt:
                case IndexAssign(target, _, value, axes):
                    writer = None
                    if isinstance(target, Index):
                        writer = stmt
                        self._of(root(target)).writes.append(_Write(stmt, target, here))
                    for expr in (value, *subscripts(target), *(axis.extent for axis in axes)):
                        self._reads(writer, expr, axes, here)
                case For(_, extent, inner):
                    self._reads(None, extent, (), here)
                    self._walk(inner, replace(here, loops=(*here.loops, stmt)))
                case If(cond, then, other):
                    self._reads(None, cond, (), here)
                    for k, (block, holds) in enumerate(((then, True), (other, False))):
                        known = tuple(f for f in facts(cond, holds) if self._is_fixed(f))
                        self._walk(block, Point(
                            here.loops, (*here.position, k), here.known + known))  # fmt: skip
                case Declare(_, None) | Return():
                    pass
                case While():
                    for inside in statements((stmt,)):
                        for expr in expressions(inside):
                            self._all(expr)
                case _:
                    own = effects(stmt)
                    for value in own.reads:
                        self._reads(None, value, (), here)
                    for place in (*own.declares, *own.writes):
                        self._all(place)

    def _all(self, expr: Expr) -> None:
        """Anything may happen to what the expression mentions."""
        for name in variables(expr):
            self._of(name).other = True

    def _of(self, name: str) -> _OfTensor:
        return self._found.setdefault(name, _OfTensor())

    def _reads(
        self, stmt: IndexAssign | None, expr: Expr, axes: tuple[Axis, ...], point: Point
    ) -> None:
        for name in _whole_tensors(expr):
            self._of(name).read_whole = True
        for name in set(variables(expr)):
            for read in reads_of(name, expr):
                self._of(name).reads.append((stmt, _Use(read, axes, point)))

    # --------------------------------------------------------------------------- the order

    def _is_fixed(self, expr: Expr) -> bool:
        return sizes.keeps_value(expr, self._changing)

    def _assigned(self, loop: For) -> frozenset[str]:
        """Those of the changing variables that change while the loop runs."""
        return frozenset(self._changing) & {*assigned(loop.body), *declared(loop.body)}

    def _extents(self, loops: tuple[For, ...], axes: tuple[Axis, ...]) -> dict[str, Expr]:
        found = {
            loop.counter: loop.extent
            for loop in (*self._around, *loops)
            if self._is_fixed(loop.extent)
        }
        return found | {axis.name: axis.extent for axis in axes}

    def _precedes(self, write: _Write, use: _Use) -> bool:
        """Whether each write of an element that is read comes before that read."""
        shared = 0
        for left, right in zip(write.point.loops, use.point.loops, strict=False):
            if left is not right:
                break
            shared += 1
        loops = write.point.loops
        extents = self._extents(use.point.loops, use.axes) | dict(use.read.extents)
        known = use.point.known + use.read.known
        names = set(variables(use.read.place)) | set(extents)
        written, there = self._elsewhere(write, write.target, names)
        unknown = {var.name for var in there.values()}
        ranges = {
            there[axis.name].name: substitute(axis.extent, dict(there))
            for axis in write.axes
            if self._is_fixed(axis.extent)
        }
        for level, loop in enumerate(loops[:shared]):
            counter = there[loop.counter]
            # the same run of an inner loop: what changes outside it only is one value for both
            changing = self._changing if not level else self._assigned(loop)
            pairs = [
                (left, right)
                for left, right in zip(written, use.read.place.subscripts, strict=True)
                if sizes.keeps_value(left, changing) and sizes.keeps_value(right, changing)
            ]
            subscripts, values = [left for left, _ in pairs], [right for _, right in pairs]
            step = self._step(loop, counter, subscripts, values, unknown, extents, known)
            if step is None:
                found = limits.limits(
                    counter.name, ranges, subscripts, values, unknown, loop.backwards
                )
                steps = [self._order(loop, limit, extents, known) for limit in found]
                step = "before" if "before" in steps else "same" if "same" in steps else None
            if step is None:
                return False
            if step == "before":
                return True
            unknown.discard(counter.name)
            now = Var(loop.counter, INT)
            written = [substitute(s, {counter.name: now}) for s in written]
            ranges = {name: substitute(e, {counter.name: now}) for name, e in ranges.items()}
        first, second = write.point.position, use.point.position
        if first != second:
            if first < second:
                return True
        elif use.after:
            return True
        # The read comes first: the write must be of other elements.
        target, place = self._compared(write.target, use.read.place)
        there_, here_ = loops[shared:], use.point.loops[shared:]
        if not all(self._is_fixed(loop.extent) for loop in (*there_, *here_)):
            return False
        free = tuple(Axis(loop.counter, loop.extent) for loop in there_)
        ranges = {loop.counter: loop.extent for loop in here_}
        ranges |= {axis.name: axis.extent for axis in use.axes} | dict(use.read.extents)
        read = replace(use.read, place=place, extents=ranges)
        around = self._extents(loops[:shared], ())
        return apart(
            target, (*free, *write.stmt.axes), read, around, self._is_size, use.point.known
        )

    def _compared(self, written: Index, read: Index) -> tuple[Index, Index]:
        """Both places with those subscripts only that have the same meaning at any time: variables
        and elements of tensors may change between the write and the read."""
        pairs = [
            (left, right)
            for left, right in zip(written.subscripts, read.subscripts, strict=True)
            if self._is_fixed(left) and self._is_fixed(right)
        ]
        return (
            replace(written, subscripts=tuple(left for left, _ in pairs)),
            replace(read, subscripts=tuple(right for _, right in pairs)),
        )

    def _below(self, at: Expr, extent: Expr) -> tuple[Expr, Expr]:
        """Of these one is not negative where a counter has no such value."""
        below = Binary("-", Binary("-", IntConst(0), at, INT), IntConst(1), INT)
        return below, Binary("-", at, extent, INT)

    def _elsewhere(
        self, write: _Write, target: Index, taken: set[str]
    ) -> tuple[list[Expr], dict[str, Var]]:
        """The subscripts of a write at any other point, and what its counters and indices are
        called there."""
        own = [axis.name for axis in write.axes]
        names = Names(taken | set(variables(target)) | set(own))
        there = {name: Var(names.fresh(f"{name}_there"), INT) for name in own}
        return [substitute(s, dict(there)) for s in target.subscripts], there

    def _never_meet(self, other: _Write, write: _Write) -> bool:
        """Whether two statements never write to one element: what the subscripts say of the
        other's counters and indices is put in, then some subscript must differ."""
        elsewhere, target = self._compared(other.target, write.target)
        here = {loop.counter: loop.extent for loop in self._around}
        here |= {axis.name: axis.extent for axis in write.axes}
        names = set(variables(target)) | set(here)
        subscripts, there = self._elsewhere(other, elsewhere, names)
        unknown = {
            there[axis.name].name: substitute(axis.extent, dict(there)) for axis in other.axes
        }
        solved = True
        while solved:
            solved = False
            for own, fixed in zip(subscripts, target.subscripts, strict=True):
                left = free_variables(own) & unknown.keys()
                if len(left) != 1:
                    continue
                (name,) = left
                at = limits.solved(own, name, fixed)
                if at is None:
                    continue
                extents = {k: v for k, v in {**here, **unknown}.items() if self._is_fixed(v)}
                ends = self._below(at, unknown[name]) if name in extents else ()
                if any(is_never_negative(e, extents, self._is_size, write.point.known)
                       for e in ends):  # fmt: skip
                    return True
                subscripts = [substitute(s, {name: at}) for s in subscripts]
                unknown = {
                    k: substitute(extent, {name: at}) for k, extent in unknown.items() if k != name
                }
                solved = True
        extents = {k: v for k, v in {**here, **unknown}.items() if self._is_fixed(v)}
        return any(
            differ(left, right, extents, self._is_size, write.point.known)
            for left, right in zip(subscripts, target.subscripts, strict=True)
        )

    def _writes_once(self, write: _Write) -> bool:
        """Whether a statement writes to each element at one point of its loops and indices only."""
        target, _ = self._compared(write.target, write.target)
        axes = write.axes
        if not all(self._is_fixed(axis.extent) for axis in axes):
            return {axis.name for axis in axes} <= {
                s.name for s in target.subscripts if isinstance(s, Var)
            }
        own = tuple(axis for axis in axes if sizes.mentions(target, {axis.name}))
        return len(own) == len(axes) and {a.name for a in own} <= told_apart(target.subscripts, own)

    def _step(
        self,
        loop: For,
        counter: Var,
        subscripts: list[Expr],
        read: list[Expr],
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
            at = limits.solved(own, counter.name, there)
            if at is None:
                continue
            order = self._order(loop, at, extents, known)
            if order == "before":
                return order
            ends = self._below(at, loop.extent)
            for outside in ends if self._is_fixed(loop.extent) else ends[:1]:
                if is_never_negative(outside, extents, self._is_size, known):
                    return "before"  # it is never written
            found = order or found
        return found

    def _order(
        self, loop: For, at: Expr, extents: dict[str, Expr], known: tuple[Expr, ...]
    ) -> str | None:
        """Where an iteration of a loop lies, seen from the present one, as in :meth:`_step`."""
        now = Var(loop.counter, INT)
        ahead = Binary("-", at, now, INT) if loop.backwards else Binary("-", now, at, INT)
        one = Binary("-", ahead, IntConst(1), INT)
        if is_never_negative(one, extents, self._is_size, known):
            return "before"
        return "same" if is_never_negative(ahead, extents, self._is_size, known) else None


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
