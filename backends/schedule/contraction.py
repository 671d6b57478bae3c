"""Index statements that are a matrix product, for a library.

A statement that sums the product of two element reads over axes that both have is a (batched)
matrix product when each read has an axis of its own. Where the target does not begin with an axis
that both reads have, too (of the batch), a matrix would be spread over all of it, and a generated
loop nest is as good, as it is where all sizes are known and small. A dimension may be cut, or
fixed at the counter of a loop around.
"""

from __future__ import annotations

import string
from typing import TypeAlias

from loma.backends.schedule.host import Contract, Cut, Operand
from loma.core import sizes
from loma.core.axes import runs_over
from loma.core.ir import FLOAT, Axis, Binary, Expr, Index, IntConst, Unary, Var, ZeroPad
from loma.core.walk import walk

SMALL = 8192  # multiplications that take no longer than a call

Factors: TypeAlias = tuple[Index | ZeroPad, Index | ZeroPad]


def match(target: Index, factors: Factors, axes: tuple[Axis, ...]) -> Contract | None:
    """The statement as a matrix product, or None where it is not one."""
    left, right = factors
    if isinstance(left, ZeroPad) or isinstance(right, ZeroPad):
        return None
    count = sizes.constant(sizes.product(tuple(axis.extent for axis in axes)))
    if count is not None and count <= SMALL:
        return None
    names = [axis.name for axis in axes]
    found = [_dimensions(access, axes) for access in (target, left, right)]
    known = [own for own in found if own is not None]
    if len(known) < len(found):
        return None
    (out, result), (a, first), (b, second) = known
    summed = [name for name in names if name not in out]
    if not summed or not all(name in a and name in b for name in summed):
        return None
    batch = [name for name in out if name in a and name in b]
    free_a = [name for name in a if name not in b]
    free_b = [name for name in b if name not in a]
    if not (free_a and free_b and set(out) == {*batch, *free_a, *free_b}):
        return None
    if (batch and out[0] not in batch) or len(names) > len(string.ascii_letters):
        return None
    letters = dict(zip(names, string.ascii_letters, strict=False))
    left_text, right_text, text = ("".join(letters[name] for name in own) for own in (a, b, out))
    return Contract(result, first, second, f"{left_text},{right_text}->{text}")


def factors(target: Index, kind: str, body: Expr) -> Factors | None:
    """The two element reads whose product a statement sums; None where it does anything else."""
    match body:
        case Binary("*", Index() | ZeroPad() as left, Index() | ZeroPad() as right):
            reads = [part.read if isinstance(part, ZeroPad) else part for part in (left, right)]
        case _:
            return None
    if kind != "sum" or any(read.base == target.base for read in reads):
        return None
    return (left, right) if left.type == right.type == FLOAT else None


def _dimensions(access: Index, axes: tuple[Axis, ...]) -> tuple[list[str], Operand] | None:
    """The axis of each dimension, all of them distinct ones with steps of 1, and what they run
    over; without the dimensions at a place that no axis tells."""
    names: list[str] = []
    cuts: list[Cut] = []
    fixed: list[tuple[int, Expr]] = []
    by_name = {axis.name: axis for axis in axes}
    dims = sizes.dims_of(access.tensor)
    for position, (subscript, dim) in enumerate(zip(access.subscripts, dims, strict=True)):
        parts = sizes.affine(subscript, axes) if _is_plain(subscript) else None
        if parts is None:
            return None
        match [*parts[0].items()]:
            case []:
                fixed.append((position, subscript))
            case [(name, IntConst(1))] if name not in names:
                names.append(name)
                if not runs_over(subscript, dim, by_name):
                    cuts.append(Cut(position, parts[1], by_name[name].extent))
            case _:
                return None
    return names, Operand(access.tensor, tuple(cuts), tuple(reversed(fixed)))


def _is_plain(subscript: Expr) -> bool:
    """Whether the host computes a place from sizes and counters."""
    return all(isinstance(n, Var | IntConst | Binary | Unary) for n in walk(subscript))
