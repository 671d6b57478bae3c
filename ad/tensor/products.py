"""The derivative of a ``prod``: the product of all factors but one, without a division.

It is that of the factors before, times that of the factors behind, which two loops find for all
factors together. So it is exact where factors are 0, differentiable to any order, and linear in
their number. Where the number of factors depends on indices or data, each product of others is
multiplied anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from loma.core import builder as b, sizes
from loma.core.axes import index_statement, shifted_places
from loma.core.ir import (
    FLOAT, INT, Axis, Expr, For, Index, IntConst, Reduce, Stmt, TensorType, Var, Zero, replace,
)  # fmt: skip
from loma.core.names import Names
from loma.core.walk import free_variables, substitute

E = TypeVar("E", bound=Expr)


@dataclass(frozen=True, slots=True)
class Scope:
    """Where statements of a derivative stand. ``fixed`` are ints that have one value wherever a
    variable is declared; ``again``: what temporaries held before is still in them."""

    names: Names
    temporary: Callable[[TensorType, str], Var]
    fixed: Collection[str]
    is_size: sizes.IsSize
    again: bool


def product_of_others(value: Reduce, own: tuple[Axis, ...], scope: Scope, out: list[Stmt]) -> Expr:
    """The product of all factors but the one at hand of ``T[own] = prod(...)``; statements that it
    needs go to ``out``."""
    extents = [axis.extent for axis in (*own, *value.axes)]
    if len(value.axes) != 1 or not all(is_fixed(extent, scope.fixed) for extent in extents):
        return _multiplied_anew(value)
    (axis,) = value.axes
    *outer, count = (sizes.count(extent, scope.is_size) for extent in extents)

    def tensor(wish: str, length: Expr) -> Var:
        made = scope.temporary(TensorType((*outer, length)), wish)
        if scope.again:  # nothing of an iteration before is in it, which a tape would keep
            out.append(Zero(made))
        return made

    factor = value.body
    if not isinstance(factor, Index):  # computed once
        factor = _at(tensor("_factor", count), own, Var(axis.name, INT))
        body = shifted_places(value.body, {axis.name: axis.extent})
        out.append(_statement(factor, body, (*own, axis), scope))
    room = b.binary("+", count, IntConst(1))
    before, behind = tensor("_before", room), tensor("_behind", room)
    step = Var(scope.names.fresh(axis.name), INT)
    after = b.binary("+", step, IntConst(1))
    one = substitute(factor, {axis.name: step})

    def run(target: Expr, found: Expr) -> Stmt:
        assert isinstance(target, Index)
        return _statement(target, found, own, scope)

    forwards = run(_at(before, own, after), b.mul(_at(before, own, step), one))
    backwards = run(_at(behind, own, step), b.mul(_at(behind, own, after), one))
    out += [
        run(_at(before, own, IntConst(0)), b.flt(1)),
        run(_at(behind, own, count), b.flt(1)),
        For(step.name, axis.extent, (forwards,)),
        For(step.name, axis.extent, (backwards,), backwards=True),
    ]
    here = Var(axis.name, INT)
    return b.mul(_at(before, own, here), _at(behind, own, b.binary("+", here, IntConst(1))))


def nested(expr: E, fixed: Collection[str]) -> E:
    """A product over several axes as a product of products, each over one, whose derivatives are
    linear in the number of factors; anything else as it is."""
    match expr:
        case Reduce("prod", body, (first, *others)) if others:
            if all(is_fixed(axis.extent, fixed) for axis in expr.axes):
                inside = nested(replace(expr, body=body, axes=tuple(others)), fixed)
                return replace(expr, body=inside, axes=(first,))
    return expr


def is_fixed(extent: Expr, fixed: Collection[str]) -> bool:
    """Whether a range is the same wherever the function's variables are declared."""
    return sizes.is_arithmetic(extent) and free_variables(extent) <= set(fixed)


def _at(tensor: Var, own: tuple[Axis, ...], last: Expr) -> Index:
    return Index(tensor, (*(Var(axis.name, INT) for axis in own), last), FLOAT)


def _statement(target: Index, value: Expr, axes: tuple[Axis, ...], scope: Scope) -> Stmt:
    shorter = {axis.name for axis in axes if sizes.count(axis.extent, scope.is_size) != axis.extent}
    return index_statement(target, "=", value, axes, shorter, scope.is_size)


def _multiplied_anew(value: Reduce) -> Expr:
    names = Names(free_variables(value.body) | {axis.name for axis in value.axes})
    others = tuple(Axis(names.fresh(f"{axis.name}_other"), axis.extent) for axis in value.axes)
    swap: dict[str, Expr] = {
        axis.name: Var(other.name, INT) for axis, other in zip(value.axes, others, strict=True)
    }
    differs = [b.binary("!=", swap[axis.name], Var(axis.name, INT)) for axis in value.axes]
    body = b.select(b.some(differs), substitute(value.body, swap), b.flt(1))
    return Reduce("prod", body, others, FLOAT)
