"""Whether a fused kernel keeps a GPU busy: one team of threads for each iteration does not, where
there are few iterations of much work. Then each of its statements had better be a kernel.

It follows from sizes, which the host knows when it launches; here is what it compares.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from loma.backends.kernels.ir import Kernel
from loma.backends.schedule.access import ROUNDS, steps
from loma.core import sizes
from loma.core.effects import written
from loma.core.ir import (
    INT, Binary, Expr, For, If, IndexAssign, IntConst, Select, Stmt, While,
)  # fmt: skip
from loma.core.walk import reads_elements, reduced_axes, statements, substitute

_BLOCK = 32  # values that a block has at least
_ONE, _TWO = IntConst(1), IntConst(2)


def iterations(kernel: Kernel, single: bool) -> Expr:
    """How many teams have something to do; ``single``: blocks have one value."""
    count = sizes.product(tuple(axis.extent for axis in kernel.axes))
    if kernel.count is None or single:
        return count
    return Binary("//", sizes.total((count, IntConst(_BLOCK - 1))), IntConst(_BLOCK), INT)


def work(kernel: Kernel, single: bool) -> tuple[Expr, Expr] | None:
    """About how many steps of arithmetic one of them has, and how many launches the statements
    would be; None where nobody can say, or steps are few whatever the sizes are."""
    if kernel.blocks is not None or any(map(_is_waited_for, statements(kernel.source))):
        return None
    own = {axis.name for axis in kernel.axes}
    own |= {var.name for var in (kernel.count, kernel.first) if var is not None}
    all_, starts = steps_of(kernel.body, middle=True)
    if kernel.count is not None:
        values = _ONE if single else IntConst(_BLOCK)
        all_, starts = (substitute(each, {kernel.count.name: values}) for each in (all_, starts))
    if reads_elements(all_) or reads_elements(starts) or sizes.constant(all_) is not None:
        return None
    if any(sizes.mentions(each, own | written(kernel.body)) for each in (all_, starts)):
        return None
    return all_, starts


def _is_waited_for(stmt: Stmt) -> bool:
    """Whether a loop has rounds while data say so, or if they do: as statements by themselves the
    host would have to wait for them."""
    if isinstance(stmt, For) and isinstance(stmt.extent, Select):
        return reads_elements(stmt.extent.cond)
    return isinstance(stmt, While)


def steps_of(
    body: tuple[Stmt, ...], around: AbstractSet[str] = frozenset(), middle: bool = False
) -> tuple[Expr, Expr]:
    """About how many steps of arithmetic statements take, and how many kernels they would be; but
    for ranges that depend on what is ``around``, or on the statement's own axes. A range that grows
    with the counter of a loop has its length in the ``middle``, or does not count."""
    terms: list[Expr] = []
    starts: list[Expr] = []
    for stmt in body:
        match stmt:
            case IndexAssign(_, _, value, axes):
                every = (*axes, *reduced_axes(value))
                names = {axis.name for axis in every} | around
                fixed = [a.extent for a in every if not sizes.mentions(a.extent, names)]
                terms.append(sizes.product((IntConst(steps(value)), *fixed)))
                starts.append(_ONE)
            case For(counter, extent, inside):
                extent = IntConst(ROUNDS) if reads_elements(extent) else extent
                given: dict[str, Expr] = {}
                if middle:
                    given[counter] = Binary("//", extent, _TWO, INT)
                found = (substitute(each, given) for each in steps_of(inside, around, middle))
                for out, each in zip((terms, starts), found, strict=True):
                    if not sizes.mentions(each, {counter}):
                        out.append(sizes.product((extent, each)))
            case While() | If():
                inside = stmt.body if isinstance(stmt, While) else stmt.then or stmt.other
                every_step, every_start = steps_of(inside, around, middle)
                terms.append(every_step)
                starts.append(every_start)
            case _:
                continue
    return sizes.total(tuple(terms)), sizes.total(tuple(starts))
