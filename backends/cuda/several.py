"""Sums of which a thread has several, for neighbouring values of one axis or of two: what does not
depend on an axis is read once for all of its values."""

from __future__ import annotations

import math
from collections.abc import Sequence

from loma.backends.schedule import ir as schedule
from loma.backends.schedule.access import Access, Loop
from loma.backends.schedule.ir import (
    Accumulator, AllReduce, Let, Loop as LoopNode, Node, Store, dtype_of,
)  # fmt: skip
from loma.backends.schedule.walk import expressions, nodes
from loma.core import sizes
from loma.core.ir import (
    Binary, Builtin, Expr, FloatType, Index, IntConst, IntType, TensorType, Unary, Var,
)  # fmt: skip
from loma.core.walk import free_variables
from loma.passes.device.epilogues import FUNCTIONS

_SEVERAL = 4  # in most cases: the host takes another number where that is no divisor
_PRODUCT = 4  # of a power that is one
_SHORT = 16  # terms of a sum that waits for what it reads, not for arithmetic
_WHOLE = 5  # values of an axis that a thread may have at most


def shared_axis(flat: Sequence[Loop], reads: Sequence[Access], rank: int) -> Loop | None:
    """The axis of which a thread takes several values, of a sum with a result of so many
    dimensions: not the last one, along which neighbouring threads read. Where what is as large as
    the result lacks the first axis, it would come from memory again for each value of it; else what
    counts is how much is read."""
    able = [loop for loop in flat[:-1] if _divides(loop) and _lacking(loop, reads)]
    first = [loop for loop in able[:1] if loop is flat[0]]
    if any(len(read.subscripts) >= rank for loop in first for read in _lacking(loop, reads)):
        return flat[0]
    return min(able, key=lambda loop: _loads(loop, reads), default=None)


def second_axis(
    flat: Sequence[Loop], rest: Sequence[Loop], reads: Sequence[Access], first: Loop
) -> Loop | None:
    """Another axis of which a thread takes several values of each of the first, if that leaves it
    half as many reads for a product, or fewer where it takes all of a few: the last one, too, where
    what depends on it lies in order. ``rest``: the loops of the sum."""

    def loads(loop: Loop) -> int:
        return sum(_loads(first, (read,)) * _loads(loop, (read,)) for read in reads)

    def able(loop: Loop) -> bool:
        if loop is first or not _divides(loop) or not _lacking(loop, reads):
            return False
        return loop is not flat[-1] or _lies_in_order(loop, rest, reads)

    def saves(loop: Loop) -> bool:
        before, after = _SEVERAL * _loads(first, reads), loads(loop)
        return 2 * after <= before or (after < before and _is_whole(loop))

    enough = [loop for loop in flat if able(loop) and saves(loop)]
    return min(enough, key=loads, default=None)


def pair_axis(
    flat: Sequence[Loop], rest: Sequence[Loop], reads: Sequence[Access], first: Loop
) -> Loop | None:
    """The last axis, if what is read along it lies in order: two neighbours at a time take half as
    many reads, though they share none."""
    last = flat[-1]
    extent = sizes.constant(last.axis.extent)
    able = last is not first and (extent is None or extent % 2 == 0)
    return last if able and _lies_in_order(last, rest, reads) else None


def _lies_in_order(last: Loop, rest: Sequence[Loop], reads: Sequence[Access]) -> bool:
    """Whether neighbours along the last axis are read together. Those of windows begin anywhere:
    neighbouring threads that each read several of them take turns at the same memory, which short
    sums wait for (a depthwise convolution of 3x3 took twice as long)."""
    along = [read for read in reads if _depends(read, last)]
    steps = [sizes.constant(loop.axis.extent) for loop in rest]
    is_short = math.prod(step or _SHORT for step in steps) < _SHORT
    in_order = all(sizes.constant(read.coefficient(last.name)) == 1 for read in along)
    return in_order and not (is_short and all(map(_is_window, along)))


def _is_window(read: Access) -> bool:
    """Whether what is read along the last axis begins anywhere, or may leave the tensor."""
    steps = [sizes.constant(each) for each in (read.rest, *read.coefficients.values())]
    return read.padded or sum((step or 0) % _SEVERAL != 0 for step in steps) > 1


def _is_whole(loop: Loop) -> bool:
    """Whether a thread takes all values of the axis."""
    return (sizes.constant(loop.axis.extent) or _WHOLE + 1) <= _WHOLE


def _divides(loop: Loop) -> bool:
    extent = sizes.constant(loop.axis.extent)
    return extent is None or any(extent % number == 0 for number in (2, 3, 5))


def _lacking(loop: Loop, reads: Sequence[Access]) -> list[Access]:
    return [read for read in reads if not _depends(read, loop)]


def _depends(read: Access, loop: Loop) -> bool:
    return read.is_loose_in(loop.name) or sizes.constant(read.coefficient(loop.name)) != 0


def _loads(loop: Loop, reads: Sequence[Access]) -> int:
    return sum(
        _SEVERAL if _depends(read, loop) and sizes.constant(read.coefficient(loop.name)) != 1 else 1
        for read in reads
    )


def takes_several(body: Sequence[Node], *axes: str) -> bool:
    """Whether all that an iteration computes of the axes is affine in them, or sums of products of
    what it reads there."""
    depends = set(axes)
    for node in nodes(body):
        match node:
            case Let(var, value):
                if not _computed(value, depends):
                    return False
                if free_variables(value) & depends:
                    depends.add(var.name)
            case Accumulator(var, "sum", "float"):
                depends.add(var.name)
            case LoopNode(without=None):
                if any(free_variables(e) & depends for e in expressions(node)):
                    return False
            case Store(place, kind, value, None):
                if kind not in ("set", "sum") or not _computed(value, depends):
                    return False
                if isinstance(place, Index) and not _computed(place, depends):
                    return False
            case AllReduce(_, "sum"):
                pass
            case _:
                return False
    return True


def _tested(condition: Expr, depends: set[str]) -> bool:
    """Whether each of several places can be tested by itself."""
    if not free_variables(condition) & depends:
        return True
    match condition:
        case Binary("and", left, right):
            return _tested(left, depends) and _tested(right, depends)
        case Builtin(schedule.INSIDE, (place, size)):
            return _computed(place, depends) and not free_variables(size) & depends
        case _:
            return False


def _computed(expr: Expr, depends: set[str]) -> bool:
    if not free_variables(expr) & depends:
        return True
    match expr:
        case Var():
            return True
        case Index(Var(type=TensorType()) as base, subscripts):
            floats = dtype_of(base) == "float"
            return floats and all(_computed(each, depends) for each in subscripts)
        case Builtin(schedule.READ_IF, (condition, Index() as read)):
            return _tested(condition, depends) and _computed(read, depends)
        case Binary("*", left, right, IntType()):
            one = not (free_variables(left) & depends and free_variables(right) & depends)
            return one and _computed(left, depends) and _computed(right, depends)
        case Binary("+" | "-" | "*", left, right):
            return all(_computed(e, depends) and e.type == expr.type for e in (left, right))
        case Binary("**", base, IntConst(power), FloatType()) if 0 < power <= _PRODUCT:
            return _computed(base, depends)
        case Unary("-", operand):
            return _computed(operand, depends)
        case Builtin(name, (operand,), FloatType()) if name in FUNCTIONS:
            return _computed(operand, depends)
        case _:
            return False
