"""Reductions: ``sum(... for i in N)`` and its relatives."""

from __future__ import annotations

import ast
from typing import get_args

from loma import errors
from loma.core import builder as b, sizes
from loma.core.ir import INT, OF_NOTHING, POSITIONS, Axis, Expr, IntConst, Reduce, ReduceKind
from loma.core.walk import variables
from loma.frontend.expressions import expression as ex
from loma.frontend.expressions.counting import Count, count, elements, range_of
from loma.frontend.scope import Scope, span_of

REDUCTIONS: dict[str, ReduceKind] = {kind: kind for kind in get_args(ReduceKind)}


def reduction(scope: Scope, node: ast.Call, kind: ReduceKind, generator: ast.GeneratorExp) -> Expr:
    if not scope.has_tensors():
        raise errors.SyntaxNotSupported(
            "a reduction is over elements of tensors", span_of(node),
            hint="write a loop: for i in range(n):",
        )  # fmt: skip
    axes: list[Axis] = []
    names: list[str] = []  # of the axes, in the text

    def bind(rest: list[ast.comprehension]) -> Expr:
        if not rest:
            return _element(scope, kind, generator)
        loop = rest[0]
        if loop.is_async:
            raise errors.SyntaxNotSupported("'async' is not part of loma", span_of(generator))
        if not isinstance(loop.target, ast.Name):
            raise errors.SyntaxNotSupported(
                "a reduction binds one index in each 'for'", span_of(loop.target),
                hint="write sum(... for i in N for j in M)",
            )  # fmt: skip
        with scope.having(elementwise=True):
            found = _count(scope, loop.iter)
        used = set(variables(found.extent))
        before = [name for name, axis in zip(names, axes, strict=True) if axis.name in used]
        _refuse_dependent(kind, loop.target.id, before, loop.iter)
        symbols = found.symbols(scope, loop.target, "index")
        names.append(loop.target.id)
        axes.append(Axis(symbols[0].name, found.extent))
        with scope.with_symbols(*symbols):
            return bind(rest[1:])

    reduced = bind(generator.generators)
    for group in reversed(_independent(axes)):
        type_ = INT if kind in POSITIONS else reduced.type
        reduced = Reduce(kind, reduced, group, type_, span_of(node))
    return reduced


def mean(scope: Scope, node: ast.Call, generator: ast.GeneratorExp) -> Expr:
    """``mean(... for i in N)``: the sum over how many elements it has. NaN of nothing."""
    total = reduction(scope, node, "sum", generator)
    if any(loop.ifs for loop in generator.generators) or not _is_whole(total, generator):
        one = ast.copy_location(ast.Constant(1), generator.elt)
        ones = ast.GeneratorExp(one, generator.generators)
        size = reduction(scope, node, "sum", ast.copy_location(ones, generator))
    else:
        assert isinstance(total, Reduce)
        symbols = scope.symbols

        def is_size(name: str) -> bool:  # of a tensor; an argument may be negative
            return name in symbols and symbols[name].kind == "size"

        size = sizes.product(tuple(sizes.count(axis.extent, is_size) for axis in total.axes))
    if total.type == INT:  # whose quotient by another int would be one
        total = b.builtin("int2float", (total,))
    return b.binary("/", total, size, span_of(node))


def _is_whole(total: Expr, generator: ast.GeneratorExp) -> bool:
    """Whether no range of a reduction depends on another of its indices."""
    return isinstance(total, Reduce) and len(total.axes) == len(generator.generators)


def _element(scope: Scope, kind: ReduceKind, generator: ast.GeneratorExp) -> Expr:
    """What a reduction is over: where a condition behind 'for' does not hold, nothing."""
    tests = [test for loop in generator.generators for test in loop.ifs]
    with scope.having(elementwise=True):
        if not tests:
            return ex.scalar(scope, generator.elt)
        if kind not in OF_NOTHING:
            low = "-1e30" if "max" in kind else "1e30"
            raise errors.SyntaxNotSupported(
                f"'{kind}' has no 'if': it may be left without an element", span_of(tests[0]),
                hint=f"write {kind}(... if condition else {low} for ...)",
            )  # fmt: skip
        conditions = [ex.condition(scope, test, "if") for test in tests]
        with scope.having(guarded=scope.guarded + 1):
            value = ex.scalar(scope, generator.elt)
    condition = b.every(conditions)
    number = OF_NOTHING[kind]
    nothing = IntConst(number) if value.type == INT else b.flt(number)
    return b.select(condition, value, nothing, value.span)


def _independent(axes: list[Axis]) -> list[tuple[Axis, ...]]:
    """The axes in runs, outermost first, in each of which no range depends on another axis."""
    runs: list[tuple[Axis, ...]] = []
    for axis in axes:
        used = set(variables(axis.extent))
        if runs and not any(other.name in used for other in runs[-1]):
            runs[-1] = (*runs[-1], axis)
        else:
            runs.append((axis,))
    return runs


def _refuse_dependent(kind: ReduceKind, index: str, others: list[str], place: ast.expr) -> None:
    """Sums and products are taken in steps; a maximum of nothing, which a step could meet, is
    refused at run time, and a position among such ranges is no position of a block of elements."""
    if kind in OF_NOTHING or not others:
        return
    worst = "-3e38" if "max" in kind else "3e38"
    raise errors.SyntaxNotSupported(
        f"the range of '{index}' depends on '{others[0]}', which the same {kind} binds; "
        "only sum and prod allow that", span_of(place),
        hint=f"give '{index}' a range without '{others[0]}', and other elements a value that is "
        f"not chosen: {kind}(... if {_condition(index, place)} else {worst} for ...)",
    )  # fmt: skip


def _condition(index: str, node: ast.expr) -> str:
    """Which values of an index are in a range, or in a size that stands alone."""
    found = range_of(node)
    args = [ast.unparse(arg) for arg in found[0].args] if found is not None else [ast.unparse(node)]
    match args:
        case [stop]:
            return f"{index} < {stop}"
        case [start, stop]:
            return f"{start} <= {index} < {stop}"
        case _:
            return "condition"


def _count(scope: Scope, node: ast.expr) -> Count:
    if range_of(node) is not None:
        return count(scope, node, "a range", in_order=True)
    hint = elements(scope, node)
    match node:
        case ast.List() | ast.Tuple() | ast.Constant(value=str()):
            hint = "write 'for i in N' or 'for i in range(n)'"
    if hint is not None:
        raise errors.SyntaxNotSupported(
            "a reduction runs over a size or a range", span_of(node), hint=hint
        )
    return Count(ex.int_expression(scope, node, "a range"), IntConst(0), IntConst(1))
