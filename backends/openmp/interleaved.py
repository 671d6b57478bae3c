"""Short sums along memory: each element of a row is the sum of a few neighbours.

In ``y[i] += x[i, r] ** 2`` with four values of ``r``, lanes along ``r`` would be mostly empty, and
would be put together for each element. Written out as four terms, lanes run along ``i``, and
vectors of x are loaded whole and taken apart.
"""

from __future__ import annotations

import functools

from loma import config
from loma.backends.schedule.access import Access, analyse, reads
from loma.backends.schedule.context import FunctionContext
from loma.backends.schedule.ir import Kind
from loma.core import builder as b
from loma.core import sizes
from loma.core.ir import Axis, Expr, Index, IntConst, Reduce
from loma.core.walk import free_variables, substitute, walk


def written_out(
    context: FunctionContext, target: Expr, kind: Kind, body: Expr, axes: tuple[Axis, ...]
) -> tuple[tuple[Axis, ...], Expr]:
    """The axes and the body of a reduction, without the axis of a short sum."""
    used = "neighbours" in config.optimisations()
    if not used or kind != "sum" or not isinstance(target, Index):
        return axes, body
    summed = [axis for axis in axes if axis.name not in free_variables(target)]
    if len(summed) != 1 or any(isinstance(node, Reduce) for node in walk(body)):
        return axes, body
    (short,) = summed
    count = sizes.constant(short.extent)
    if count is None or not 1 < count <= context.machine.lanes:
        return axes, body
    place = analyse(context, target, axes)
    found = [analyse(context, read, scope, padded) for read, scope, padded in reads(body, axes)]
    rows = [axis.name for axis in axes if sizes.constant(place.coefficient(axis.name)) == 1]
    if not any(_lies_so(place, found, row, short.name, count) for row in rows):
        return axes, body
    terms = [substitute(body, {short.name: IntConst(k)}) for k in range(count)]
    total = functools.reduce(lambda a, c: b.binary("+", a, c), terms)
    return tuple(axis for axis in axes if axis is not short), total


def _lies_so(place: Access, found: list[Access], row: str, short: str, count: int) -> bool:
    """Whether tensors have the terms of a row's element beside each other, and those of the next
    element behind them, and all others have one element for each, or for all of them."""
    steps = [
        (sizes.constant(access.coefficient(row)), sizes.constant(access.coefficient(short)))
        for access in found
    ]
    simple = all(step in ((count, 1), (1, 0), (0, 0), (0, 1)) for step in steps)
    loose = any(access.loose or access.padded for access in (place, *found))
    return simple and not loose and (count, 1) in steps
