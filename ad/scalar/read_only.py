"""Adjoints that come as ``In`` arrays: they may be read, and not written to.

Where the sweeps write to one of known length they get a copy. The adjoint of an ``Out`` array of
unknown length cannot be copied; it need not be set to zero if every element of the array is
written before anything else happens to it. Otherwise it is an ``Out`` argument, and used up.
"""

from __future__ import annotations

from collections.abc import Mapping

from loma.ad.scalar.hoist import Normal
from loma.ad.scalar.single_writes import overwrites_untouched
from loma.core import builder as b
from loma.core.effects import assigned
from loma.core.ir import (
    ArrayType, Assign, Declare, Expr, Function, Param, Stmt, Struct, Var, Zero, replace,
)  # fmt: skip
from loma.core.names import Names
from loma.core.unbounded import is_unbounded
from loma.core.walk import map_blocks, map_expressions, root, substitute
from loma.passes.liveness import Modes


def writes_to(body: tuple[Stmt, ...], name: str, functions: dict[str, Function]) -> bool:
    """Whether a statement of the body writes to a variable."""
    return name in assigned(body, functions)


def without_zeroing(body: tuple[Stmt, ...], name: str) -> tuple[Stmt, ...]:
    """The body without the statements that set parts of a variable to zero."""
    out: list[Stmt] = []
    for stmt in body:
        match stmt:
            case Assign(target, "=", value) if root(target) == name and b.is_const(value, 0):
                continue
            case Zero(target) if root(target) == name:
                continue
            case _:
                out.append(map_blocks(stmt, lambda inner: without_zeroing(inner, name)))
    return tuple(out)


def without_writes(
    derivative: Function,
    adjoints: dict[str, Var],
    normal: Normal,
    functions: dict[str, Function],
    modes: Modes,
    structs: Mapping[str, Struct],
) -> tuple[Function, frozenset[str]]:
    """The derivative without writes to its ``In`` arrays, and those that it still writes to (with
    structs that have such arrays in them).

    ``adjoints`` are the adjoint variables of the primal's arguments.
    """
    owners = {var.name: name for name, var in adjoints.items()}
    used_up: set[str] = set()
    for param in derivative.params:
        unbounded = is_unbounded(param.type, structs)
        if param.mode == "Out" or not (isinstance(param.type, ArrayType) or unbounded):
            continue
        if not writes_to(derivative.body, param.name, functions):
            continue
        if not unbounded:
            derivative = _with_copy(derivative, param, normal.names)
            continue
        name = owners[param.name]
        if overwrites_untouched(normal.function, name, functions, modes):
            body = without_zeroing(derivative.body, param.name)
            derivative = replace(derivative, body=body)
        if writes_to(derivative.body, param.name, functions):
            used_up.add(param.name)
    return derivative, frozenset(used_up)


def _with_copy(derivative: Function, param: Param, names: Names) -> Function:
    copy = Var(names.fresh(f"{param.name}_local"), param.type)
    renamed: dict[str, Expr] = {param.name: copy}
    body = tuple(map_expressions(s, lambda e: substitute(e, renamed)) for s in derivative.body)
    start = Declare(copy, Var(param.name, param.type))
    return replace(derivative, body=(start, *body))
