"""Whether a tensor function reads what its ``Out`` arguments hold on entry.

``rev_diff(f)`` is not given those values, and a derivative of one's own does not tell their
adjoints. What may be read of an ``Out`` argument is therefore only what the function itself has
written before. The proof goes through the function in its own order with *boxes*: elements that
have been written in any case, a range in each dimension. What an iteration of a loop writes at its
counter has been written by all iterations before, so that recurrences are understood::

    h[0] = start                          # [0, 1)
    for t in range(N):                    # [0, 1) and [1, 1 + t), together [0, 1 + t)
        h[t + 1] = tanh(x[t] * h[t])
                                          # [0, 1 + N)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from loma.ad.tensor.normalise import Normal
from loma.core import sizes
from loma.core.bounds import ONE, ZERO, facts, is_never_negative
from loma.core.effects import assigned, effects, written
from loma.core.ir import (
    INT, Axis, Binary, CallStmt, Declare, Expr, For, If, Index, IndexAssign, IntConst, Op, Return,
    Stmt, TensorType, Var, While, replace,
)  # fmt: skip
from loma.core.overlap import Read, reads_of
from loma.core.sizes import size_variables
from loma.core.walk import children, free_variables, substitute
from loma.errors.spans import Span

_MANY = 30  # boxes: more are not put together


@dataclass(frozen=True, slots=True)
class _Range:
    """From ``low``, up to but not including ``high``."""

    low: Expr
    high: Expr


_Box: TypeAlias = tuple[_Range, ...]


@dataclass(frozen=True, slots=True)
class _Point:
    """The ranges of counters and indices somewhere, and int expressions that are not negative."""

    extents: dict[str, Expr]
    known: tuple[Expr, ...] = ()

    def within(self, axes: Iterable[Axis]) -> _Point:
        return replace(self, extents=self.extents | {axis.name: axis.extent for axis in axes})


@dataclass(frozen=True, slots=True)
class Entry:
    """``read``: where the value on entry may be read, None if nowhere; ``kept``: whether elements
    may still hold it at the end."""

    read: Span | None
    kept: bool


def entry_of(normal: Normal, param: str) -> Entry:
    """What becomes of the value that an ``Out`` argument has on entry to a function in pure form.

    A number is a tensor without dimensions here."""
    body = normal.function.body
    start = next(
        k for k, stmt in enumerate(body)
        if isinstance(stmt, Declare) and isinstance(stmt.value, Var) and stmt.value.name == param
    )  # fmt: skip
    local = body[start]
    assert isinstance(local, Declare)
    dims = local.target.type.dims if isinstance(local.target.type, TensorType) else ()
    if dims is None:
        return Entry(normal.function.span, True)
    proof = _Proof(local.target, dims, normal)
    boxes = proof.block(body[start + 1 :], [], _Point({}))
    return Entry(proof.read, not proof.holds(proof.whole, boxes, _Point({})))


class _Proof:
    """The walk for one argument; ``read`` is the first read of what may not have been written."""

    def __init__(self, var: Var, dims: tuple[Expr, ...], normal: Normal) -> None:
        self.read: Span | None = None
        self.whole: _Box = tuple(_Range(ZERO, dim) for dim in dims)
        self._name = var.name
        self._changing = set(assigned(normal.function.body))
        self._is_size = set(size_variables(normal.function)).__contains__

    # ----------------------------------------------------------------------------- reads

    def block(self, body: tuple[Stmt, ...], boxes: list[_Box], point: _Point) -> list[_Box]:
        """Looks at the reads of a block; the boxes at its end."""
        for stmt in body:
            self._look_at(stmt, boxes, point)
            boxes = self._joined([*boxes, *self._made(stmt, point)], point)
        return boxes

    def _look_at(self, stmt: Stmt, boxes: list[_Box], point: _Point) -> None:
        match stmt:
            case For(counter, extent, inner):
                self._reads((extent,), boxes, point)
                before = [*boxes, *(box for box, _ in self._steps(stmt, point))]
                inside = point.within((Axis(counter, extent),))
                self.block(inner, self._joined(before, inside), inside)
            case If(cond, then, other):
                self._reads((cond,), boxes, point)
                for branch, holds in ((then, True), (other, False)):
                    known = tuple(fact for fact in facts(cond, holds) if self._is_fixed(fact))
                    self.block(branch, boxes, replace(point, known=point.known + known))
            case While(cond, _, inner):
                self._reads((cond,), boxes, point)
                self.block(inner, boxes, point)
            case Return():
                pass
            case _:
                own = effects(stmt)
                inside = point.within(stmt.axes) if isinstance(stmt, IndexAssign) else point
                self._reads((*own.reads, *(own.writes if own.adds else ())), boxes, inside)

    def _reads(self, exprs: Iterable[Expr], boxes: list[_Box], point: _Point) -> None:
        for expr in exprs:
            if self.read is not None:
                return
            if not all(self.holds(box, boxes, point) for box in self._parts(expr)):
                self.read = expr.span
            for read in reads_of(self._name, expr):
                if not any(self._covers(box, read, point) for box in boxes):
                    self.read = self.read or read.place.span

    def _parts(self, expr: Expr) -> Iterator[_Box]:
        """What the expression takes as wholes: the argument, or slices of it."""
        match expr:
            case Op("slice", (Var(name),)) if name == self._name:
                given = dict(expr.attrs)
                k, start, end = (given.get(key) for key in ("dim", "start", "end"))
                step = given.get("step", ONE)
                if isinstance(k, IntConst) and k.value >= 0 and step == ONE:
                    assert not isinstance(start, tuple)
                    assert not isinstance(end, tuple)
                    r = _Range(start or ZERO, end or self.whole[k.value].high)
                    yield _with(self.whole, k.value, r)
                else:
                    yield self.whole
            case Index(Var(), subscripts):
                for subscript in subscripts:
                    yield from self._parts(subscript)
            case Var(name) if name == self._name:
                yield self.whole
            case _:
                for child in children(expr):
                    yield from self._parts(child)

    def _covers(self, box: _Box, read: Read, point: _Point) -> bool:
        """Whether all that a read may see is in a box. What leaves the tensor is not read."""
        extents = point.extents | dict(read.extents)
        inside = _Point(extents, point.known + read.known)
        for at, r, full in zip(read.place.subscripts, box, self.whole, strict=True):
            if not (r.low == ZERO or (self._is_fixed(at) and self._at_most(r.low, at, inside))):
                return False
            if sizes.equal(r.high, full.high):
                continue
            end = Binary("+", at, ONE, INT)
            if not (self._is_fixed(at) and self._at_most(end, r.high, inside)):
                return False
        return True

    # ---------------------------------------------------------------------------- writes

    def _made(self, stmt: Stmt, point: _Point) -> list[_Box]:
        """What a statement writes in any case."""
        match stmt:
            case IndexAssign(Index(Var(name)) as target, _, _, axes) if name == self._name:
                box = self._box(target, axes)
                return [] if box is None else [box]
            case For():
                return [over for _, over in self._steps(stmt, point)]
            case If(_, then, other):
                left, right = (self._made_by(branch, point) for branch in (then, other))
                return [box for box in left if self.holds(box, right, point)]
            case IndexAssign() | CallStmt() | While() | Return():
                return []
            case _:
                return [self.whole] if self._name in written((stmt,)) else []

    def _made_by(self, body: tuple[Stmt, ...], point: _Point) -> list[_Box]:
        return self._joined([box for stmt in body for box in self._made(stmt, point)], point)

    def _steps(self, loop: For, point: _Point) -> Iterator[tuple[_Box, _Box]]:
        """What a loop writes at its counter: as far as it has come, and in all."""
        counter = Var(loop.counter, INT)
        own = written(loop.body) | {loop.counter}
        for box in self._made_by(loop.body, point.within((Axis(loop.counter, loop.extent),))):
            moving = [k for k, r in enumerate(box) if _names(r) & own]
            if len(moving) != 1 or _names(box[moving[0]]) & own != {loop.counter}:
                continue
            k, at = moving[0], box[moving[0]]
            start = substitute(at.low, {loop.counter: ZERO})
            if not (
                sizes.equal(at.low, Binary("+", start, counter, INT))
                and sizes.equal(at.high, Binary("+", at.low, ONE, INT))
                and self._is_fixed(loop.extent)
            ):
                continue
            end = sizes.simplify(Binary("+", start, loop.extent, INT))
            done = _Range(at.high, end) if loop.backwards else _Range(start, at.low)
            yield _with(box, k, done), _with(box, k, _Range(start, end))

    def _box(self, target: Index, axes: tuple[Axis, ...]) -> _Box | None:
        """What an assignment writes, where that is a box."""
        names = {axis.name for axis in axes}
        ranges: list[_Range] = []
        used: set[str] = set()
        for at in target.subscripts:
            form = sizes.affine(at, axes) if self._is_fixed(at) else None
            if form is None or len(form[0]) > 1 or used & form[0].keys():
                return None
            low = form[1]
            length: Expr = ONE
            for name, slope in form[0].items():
                used.add(name)
                length = next(axis.extent for axis in axes if axis.name == name)
                if sizes.constant(slope) != 1 or not self._is_fixed(length):
                    return None
                if free_variables(length) & names:  # another index says how far it goes
                    return None
            ranges.append(_Range(low, sizes.simplify(Binary("+", low, length, INT))))
        return tuple(ranges) if used == names else None

    # ----------------------------------------------------------------------------- boxes

    def holds(self, box: _Box, boxes: list[_Box], point: _Point) -> bool:
        """Whether one of ``boxes`` has all elements of ``box``."""
        return any(
            all(
                self._at_most(r.low, own.low, point) and self._at_most(own.high, r.high, point)
                for own, r in zip(box, other, strict=True)
            )
            for other in boxes
        )

    def _joined(self, boxes: list[_Box], point: _Point) -> list[_Box]:
        """The boxes with those that two of them make up together, without those inside others."""
        out: list[_Box] = []
        waiting = list(boxes)
        while waiting:
            new = waiting.pop(0)
            if len(out) > _MANY or self.holds(new, out, point):
                continue
            out = [box for box in out if not self.holds(box, [new], point)]
            waiting += [
                union
                for box in out
                for first, second in ((new, box), (box, new))
                for union in self._unions(first, second, point)
            ]
            out.append(new)
        return out

    def _unions(self, first: _Box, second: _Box, point: _Point) -> Iterator[_Box]:
        """What the second adds behind the first, in one dimension; in the others what both have."""
        for k, (left, right) in enumerate(zip(first, second, strict=True)):
            if not (
                self._at_most(left.low, right.low, point)
                and self._at_most(right.low, left.high, point)
                and not self._at_most(right.high, left.high, point)
            ):
                continue
            for smaller, larger in ((first, second), (second, first)):
                if self.holds(_with(smaller, k, left), [_with(larger, k, left)], point):
                    yield _with(smaller, k, _Range(left.low, right.high))
                    break

    def _at_most(self, low: Expr, high: Expr, point: _Point) -> bool:
        more = Binary("-", high, low, INT)
        return is_never_negative(more, point.extents, self._is_size, point.known)

    def _is_fixed(self, expr: Expr) -> bool:
        return sizes.keeps_value(expr, self._changing)


def _names(r: _Range) -> frozenset[str]:
    return free_variables(r.low) | free_variables(r.high)


def _with(box: _Box, k: int, r: _Range) -> _Box:
    return (*box[:k], r, *box[k + 1 :])
