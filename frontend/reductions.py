"""Reductions: ``sum(... for i in N)`` and its relatives."""

from __future__ import annotations

import ast

from loma import errors
from loma.frontend import expressions as ex
from loma.frontend.scope import Scope, Symbol, int_symbol, span_of
from loma.ir import INT, Axis, Expr, Reduce, ReduceKind
from loma.walk import variables

REDUCTIONS: dict[str, ReduceKind] = {
    "sum": "sum", "max": "max", "min": "min", "prod": "prod", "argmax": "argmax",
    "argmin": "argmin",
}  # fmt: skip


def reduction(scope: Scope, node: ast.Call, kind: ReduceKind, generator: ast.GeneratorExp) -> Expr:
    if not scope.has_tensors():
        raise errors.SyntaxNotSupported(
            "a reduction is over elements of tensors", span_of(node),
            hint="write a loop: for i in range(n):",
        )  # fmt: skip
    symbols: list[Symbol] = []
    axes: list[Axis] = []

    def bind(rest: list[ast.comprehension]) -> Expr:
        if not rest:
            with scope.elements():
                return ex.scalar(scope, generator.elt)
        loop = rest[0]
        if loop.ifs:
            raise errors.SyntaxNotSupported(
                "a reduction has no 'if'", span_of(loop.ifs[0]),
                hint=f"write {kind}(... if condition else 0.0 for ...)",
            )  # fmt: skip
        if loop.is_async:
            raise errors.SyntaxNotSupported("'async' is not part of loma", span_of(generator))
        if not isinstance(loop.target, ast.Name):
            raise errors.SyntaxNotSupported(
                "a reduction binds one index in each 'for'", span_of(loop.target),
                hint="write sum(... for i in N for j in M)",
            )  # fmt: skip
        with scope.elements():
            extent = _extent(scope, loop.iter)
        _refuse_dependent(kind, loop.target.id, extent, axes, loop.iter)
        symbol = int_symbol(loop.target.id, "index", span_of(loop.target), extent)
        symbols.append(symbol)
        axes.append(Axis(symbol.name, extent))
        with scope.with_symbols(symbol):
            return bind(rest[1:])

    reduced = bind(generator.generators)
    for group in reversed(_independent(axes)):
        type_ = INT if kind in ("argmax", "argmin") else reduced.type
        reduced = Reduce(kind, reduced, group, type_, span_of(node))
    return reduced


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


def _refuse_dependent(
    kind: ReduceKind, index: str, extent: Expr, earlier: list[Axis], place: ast.expr
) -> None:
    """Sums and products are taken in steps; a maximum of nothing, which a step could meet, is
    refused at run time, and a position among such ranges is no position of a block of elements."""
    used = set(variables(extent))
    others = [axis.name for axis in earlier if axis.name in used]
    if kind in ("sum", "prod") or not others:
        return
    worst = "-3e38" if kind in ("max", "argmax") else "3e38"
    raise errors.SyntaxNotSupported(
        f"the range of '{index}' depends on '{others[0]}', which the same {kind} binds; "
        "only sum and prod allow that", span_of(place),
        hint=f"give '{index}' a range without '{others[0]}', and other elements a value that is "
        f"not chosen: {kind}(... if {index} < {ast.unparse(_bound(place))} else {worst} for ...)",
    )  # fmt: skip


def _bound(node: ast.expr) -> ast.expr:
    """n of ``range(n)``, and of a size n that stands alone."""
    return node.args[0] if isinstance(node, ast.Call) else node


def _extent(scope: Scope, node: ast.expr) -> Expr:
    match node:
        case ast.Call(func=ast.Name(id="range"), args=[inner], keywords=[]):
            return ex.int_expression(scope, inner, "a range")
        case ast.Call(func=ast.Name(id="range")):
            raise errors.SyntaxNotSupported(
                "a range has one bound and starts at 0", span_of(node),
                hint="shift the index: for i in range(n - m), and i + m inside",
            )  # fmt: skip
        case ast.List() | ast.Tuple() | ast.Constant(value=str()):
            raise errors.SyntaxNotSupported(
                "a reduction runs over a size or a range", span_of(node),
                hint="write 'for i in N' or 'for i in range(n)'",
            )  # fmt: skip
        case _:
            return ex.int_expression(scope, node, "a range")
