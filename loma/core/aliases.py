"""When two arguments of a call are one storage.

An ``Out`` argument must not overlap another argument. Where the text tells, the frontend refuses
the call; where it depends on subscripts, the program checks them when it runs. A number or a struct
that is passed as ``In`` is a copy, so there only what is certainly one place counts, unless it is a
struct with arrays of unknown length, which are not copied.
"""

from __future__ import annotations

from collections.abc import Mapping

from loma.core import builder as b, sizes
from loma.core.ir import (
    ArrayType, Call, Expr, Function, Index, IntConst, Member, Param, Struct, Var,
)  # fmt: skip
from loma.core.unbounded import is_unbounded

CERTAIN = IntConst(1)


def meetings(
    call: Call, callee: Function, structs: Mapping[str, Struct]
) -> list[tuple[int, int, Expr]]:
    """Pairs of arguments that may be one storage, one of them ``Out``: (first, second, condition).

    The condition is an int expression, :data:`CERTAIN` where nothing can tell the two apart.
    """
    found: list[tuple[int, int, Expr]] = []
    for second, param in enumerate(callee.params):
        for first, other in enumerate(callee.params[:second]):
            if "Out" not in (param.mode, other.mode):
                continue
            condition = _meet(call.args[first], call.args[second])
            certain = condition == CERTAIN
            copied = _is_copied(param, structs) or _is_copied(other, structs)
            if condition is not None and (certain or not copied):
                found.append((first, second, condition))
    return found


def _is_copied(param: Param, structs: Mapping[str, Struct]) -> bool:
    return param.mode == "In" and not (
        isinstance(param.type, ArrayType) or is_unbounded(param.type, structs)
    )


def _meet(left: Expr, right: Expr) -> Expr | None:
    """The condition under which two places overlap; None where they never do."""
    a, c = _path(left), _path(right)
    if a is None or c is None:
        return None
    condition: Expr = CERTAIN
    for x, y in zip(a, c, strict=False):
        if isinstance(x, str) or isinstance(y, str):
            if x != y:
                return None
        elif (same := sizes.equal(x, y)) is False:
            return None
        elif x != y and not same:
            equal = b.binary("==", x, y)
            condition = equal if condition == CERTAIN else b.binary("and", condition, equal)
    return condition


def _path(expr: Expr) -> list[Expr | str] | None:
    """A place as its variable and the members and positions from there; None for what is none."""
    steps: list[Expr | str] = []
    while not isinstance(expr, Var):
        match expr:
            case Index(base, (position,)):
                steps.append(position)
            case Member(base, name):
                steps.append(name)
            case _:
                return None
        expr = base
    return [expr.name, *steps[::-1]]
