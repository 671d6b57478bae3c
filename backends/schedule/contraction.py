"""Index statements that are a matrix product, for a library.

A statement that sums the product of two element reads over axes that both have is a (batched)
matrix product when each read has an axis of its own. Where the target does not begin with an axis
that both reads have, too (of the batch), a matrix would be spread over all of it, and a generated
loop nest is as good.
"""

from __future__ import annotations

import string
from typing import TypeAlias

from loma.backends.schedule.host import Contract
from loma.core import sizes
from loma.core.axes import runs_over
from loma.core.ir import FLOAT, Axis, Binary, Expr, Index, Var, ZeroPad


Factors: TypeAlias = tuple[Index | ZeroPad, Index | ZeroPad]


def match(target: Index, found: Factors, axes: tuple[Axis, ...]) -> Contract | None:
    """The statement as a matrix product, or None where it is not one."""
    left, right = found
    if isinstance(left, ZeroPad) or isinstance(right, ZeroPad):
        return None
    names = {axis.name: axis for axis in axes}
    subscripts = [bare(access, names) for access in (target, left, right)]
    if any(own is None for own in subscripts):
        return None
    out, a, b = (list(own or ()) for own in subscripts)
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
    first, second, result = ("".join(letters[name] for name in own) for own in (a, b, out))
    return Contract(target.tensor, left.tensor, right.tensor, f"{first},{second}->{result}")


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


def bare(access: Index, axes: dict[str, Axis]) -> dict[str, int] | None:
    """The position of each subscript, by name, where all of them are distinct axes that run over
    their whole dimension."""
    dims = sizes.dims_of(access.tensor)
    found: dict[str, int] = {}
    for position, subscript in enumerate(access.subscripts):
        if not isinstance(subscript, Var) or subscript.name in found:
            return None
        if not runs_over(subscript, dims[position], axes):
            return None
        found[subscript.name] = position
    return found
