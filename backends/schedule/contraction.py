"""Index statements that are a matrix product, for a library.

A statement that sums the product of two element reads over axes that both have is a (batched)
matrix product when each read has an axis of its own. Where the target does not begin with an axis
that both reads have, too (of the batch), a matrix would be spread over all of it, and a generated
loop nest is as good, as it is where all sizes are known and small. A dimension may be cut, or
fixed at the counter of a loop around.

Where elements of an int tensor say at which place one of the tensors is, ``x[m, k] * w[group[m], k,
n]``, there is a product for each of these places, with the rows m of that group.
"""

from __future__ import annotations

import string
from dataclasses import replace
from typing import TypeAlias

from loma.backends.schedule.host import Contract, Cut, GroupedContract, Operand
from loma.core import sizes
from loma.core.axes import runs_over
from loma.core.ir import FLOAT, INT, Axis, Binary, Expr, Index, IntConst, Unary, Var, ZeroPad
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


_PLACE, _START, _COUNT = (Var(f"@group_{name}_", INT) for name in ("place", "start", "count"))


def match_groups(target: Index, factors: Factors, axes: tuple[Axis, ...]) -> GroupedContract | None:
    """The statement as a product for each group of rows, or None where it is none."""
    left, right = factors
    if isinstance(left, ZeroPad) or isinstance(right, ZeroPad):
        return None
    accesses = (target, left, right)
    told = [
        (access, dim, subscript)
        for access in accesses
        for dim, subscript in enumerate(access.subscripts)
        if isinstance(subscript, Index)
    ]
    if len(told) != 1:
        return None
    ((grouped, at, group),) = told
    known = _dimensions(group, axes)
    if known is None or len(known[0]) != 1 or not known[1].is_whole:
        return None
    subscripts = (*grouped.subscripts[:at], _PLACE, *grouped.subscripts[at + 1 :])
    one = [replace(a, subscripts=subscripts) if a is grouped else a for a in accesses]
    call = match(one[0], (one[1], one[2]), axes)
    if call is None:
        return None
    operands, rows = [], []
    for access, operand in zip(accesses, (call.target, call.left, call.right), strict=True):
        fixed = ((at, _PLACE),) if access is grouped else ()
        own = [dim for dim, s in enumerate(access.subscripts) if s == group.subscripts[0]]
        if operand.cuts or operand.fixed != fixed or len(own) != (access is not grouped):
            return None
        cuts = tuple(Cut(dim, _START, _COUNT) for dim in own)
        operands.append(replace(operand, cuts=cuts))
        rows.append(own[0] if own else None)
    target_part, left_part, right_part = operands
    return GroupedContract(
        replace(call, target=target_part, left=left_part, right=right_part, into=True),
        group.tensor, sizes.dims_of(grouped.tensor)[at], _PLACE, _START, _COUNT,
        (rows[0], rows[1], rows[2]), sizes.product(tuple(axis.extent for axis in axes)),
    )  # fmt: skip


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
