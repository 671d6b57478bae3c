"""Statements that may not mean what they say: warnings of doubtful sums, and of what looks like a
recurrence and is none, as all reads see what was there before."""

from __future__ import annotations

import ast
import itertools

from loma import errors
from loma.core import sizes
from loma.core.ir import (
    INT, Axis, Binary, Expr, FloatConst, Index, IntConst, NoDiff, Select, Unary, ZeroPad,
)  # fmt: skip
from loma.core.overlap import reads_of
from loma.core.printer import print_expr
from loma.core.walk import free_variables
from loma.errors import Warnings
from loma.errors.spelling import nearest
from loma.frontend.scope import span_of


def doubtful(
    value: Expr, summed: tuple[Axis, ...], own: list[ast.Name], names: list[ast.Name],
    right: ast.expr,
) -> Warnings:  # fmt: skip
    """Warnings of a statement that sums ``value`` over indices.

    ``own`` are the indices of the target, ``names`` those of the whole statement, each at its first
    place; ``right`` is the text of the right side.
    """
    yield from _misspelt(summed, own, names, right)
    found = (warning for axis in summed for warning in _left_out(value, axis))
    yield from itertools.islice(found, 1)


def _misspelt(
    summed: tuple[Axis, ...], own: list[ast.Name], names: list[ast.Name], right: ast.expr
) -> Warnings:
    """An index of the target that is not on the right, where only one like it is."""
    there = {node.id for node in ast.walk(right) if isinstance(node, ast.Name)}
    candidates = [axis.name for axis in summed]
    places = {name.id: span_of(name) for name in names}
    for index in own:
        near = nearest(index.id, candidates)
        if index.id in there or near is None:
            continue
        yield errors.UserWarning(
            f"this sums over '{near}', while index '{index.id}' of the target is not on the right",
            places[near],
            hint=f"write '{index.id}' if that is meant; else give '{near}' a name that is less "
            f"like '{index.id}'",
            related=((span_of(index), f"'{index.id}' is here only"),),
        )


def _left_out(value: Expr, axis: Axis) -> Warnings:
    """A term without an index that the sum runs over because of another term."""
    lacking: list[Expr] = []
    having: list[Expr] = []
    _terms(value, axis.name, lacking, having)
    lacking = [term for term in lacking if not _is_meant(term, having)]
    if not lacking or not having:
        return
    term, other = lacking[0], having[0]
    yield errors.UserWarning(
        f"'{print_expr(term)}' is added once for each '{axis.name}', over which "
        f"'{print_expr(other)}' makes this a sum",
        term.span,
        hint=f"sum by itself what has '{axis.name}': sum(... for {axis.name} in "
        f"{_range(axis.extent)}); or add the other in a statement of its own",
        related=((other.span, f"'{axis.name}' is summed over here"),),
    )


def _is_meant(term: Expr, having: list[Expr]) -> bool:
    """Whether a term is a number that stands in front of the other, as in ``1 - p[n]``, or among
    several, as in ``1 + v[n] - m[n] ** 2 - exp(v[n])``: what is added last to one term, as a bias
    is, may belong to the sum."""
    if free_variables(term):
        return False
    places = [(other.span.line, other.span.col) for other in having]
    return len(having) > 1 or (term.span.line, term.span.col) < min(places, default=(0, 0))


def _range(extent: Expr) -> str:
    text = print_expr(extent)
    return text if text.isidentifier() else f"range({text})"


def _terms(expr: Expr, index: str, lacking: list[Expr], having: list[Expr]) -> None:
    """The terms of an expression, by whether the index occurs in them. A factor with the index is
    one of all terms of the other factor; and so is, in a term, whatever is not linear."""
    match expr:
        case Binary("+" | "-", left, right):
            _terms(left, index, lacking, having)
            _terms(right, index, lacking, having)
        case Unary("-", operand) | NoDiff(operand):
            _terms(operand, index, lacking, having)
        case Binary("*", left, right) if index not in free_variables(right):
            _terms(left, index, lacking, having)
        case Binary("*", left, right) if index not in free_variables(left):
            _terms(right, index, lacking, having)
        case Binary("/", left, right) if index not in free_variables(right):
            _terms(left, index, lacking, having)
        case Select(cond, then, other) if index not in free_variables(cond):
            for part in (then, other):
                found: list[Expr] = []
                _terms(part, index, found, having)
                # a branch without the index altogether is another case, not another term
                lacking += found if index in free_variables(part) else ()
        case IntConst(0) | FloatConst(0.0):
            pass
        case _:
            (having if index in free_variables(expr) else lacking).append(expr)


def no_recurrence(place: Index, name: str, value: Expr, axes: tuple[Axis, ...]) -> Warnings:
    """A warning where the target is read at neighbours on one side only, as a recurrence does; a
    stencil reads both sides, and a move has nothing but the read on its right side."""
    if isinstance(value, Index | ZeroPad):
        return
    found = [(read.place, _shift(place, read.place, axes)) for read in reads_of(name, value)]
    shifts = [(read, shift) for read, shift in found if shift and any(shift.values())]
    signs = {next(step for step in shift.values() if step) > 0 for _, shift in shifts}
    if len(signs) != 1:
        return
    moved = {axis for _, shift in shifts for axis, step in shift.items() if step}
    loops = " ".join(
        f"for {axis.name} in range({print_expr(axis.extent)}):"
        for axis in axes
        if axis.name in moved
    )
    yield errors.UserWarning(
        f"this is no recurrence: '{print_expr(shifts[0][0])}' is the value from before the "
        f"statement, which writes all of '{print_expr(place)}' at once",
        shifts[0][0].span,
        hint=f"for a recurrence write it in loops, {loops}; if old values are meant, copy "
        f"'{name}' to another tensor before, and read the copy",
    )


def _shift(place: Index, read: Index, axes: tuple[Axis, ...]) -> dict[str, int] | None:
    """By how much each axis is moved at the read; None where it is no such neighbour."""
    names = {axis.name for axis in axes}
    found: dict[str, int] = {}
    for written, there in zip(place.subscripts, read.subscripts, strict=True):
        step = sizes.constant(Binary("-", there, written, INT))
        own = free_variables(written) & names
        if step is None or (step and not own):
            return None
        found |= dict.fromkeys(own, step)
    return found
