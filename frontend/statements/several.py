"""Several results of a scalar function for elements of tensors: ``r[i], t[i] = f(x[i])``.

One statement for each result, of a function that has this result alone (``projections.py``). All of
them see the values from before the first one: where a target may hold what a later one reads, all
results are worked out before any of them is assigned.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TypeAlias

from loma import errors
from loma.core import builder as b, sizes
from loma.core.ir import (
    INT, Assign, Call, Declare, Element, Expr, Function, Index, IndexAssign, Stmt, TensorType, Var,
    is_tensor_function,
)  # fmt: skip
from loma.core.overlap import apart, reads_of
from loma.core.walk import root, variables
from loma.errors.spans import Span
from loma.frontend.expressions import calls
from loma.frontend.expressions.places import check_root, result_variable
from loma.frontend.scope import Scope, Symbol, span_of
from loma.frontend.statements.index_statement import free_indices, index_statement
from loma.frontend.statements.slice_targets import is_slice_target

# A result goes to a place.
_Result: TypeAlias = Assign | IndexAssign


def _tensor(scope: Scope, target: ast.expr) -> Symbol | None:
    """The tensor that a target is an element of."""
    symbol = scope.named(target.value) if isinstance(target, ast.Subscript) else None
    return symbol if symbol is not None and isinstance(symbol.type, TensorType) else None


def assign_results(
    scope: Scope, targets: list[ast.expr], node: ast.expr, span: Span
) -> list[Stmt] | None:
    """``targets = f(...)``: statements that are as one. None where no element of a tensor takes a
    result of a scalar function."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        return None
    callee = scope.program.functions.get(node.func.id)
    if callee is None or is_tensor_function(callee):
        return None
    if not any(_tensor(scope, target) for target in targets):
        return None
    _check_targets(scope, targets)
    _check_callee(targets, node, callee)
    new = {t.id for t in targets if isinstance(t, ast.Name) and t.id not in scope.symbols}
    made = [_assign(scope, target, node, callee, k, span) for k, target in enumerate(targets)]
    before: list[Stmt] = []
    if any(_disturbs(scope, stmt, later) for k, stmt in enumerate(made) for later in made[k + 1 :]):
        held = [_held(scope, stmt) for stmt in made]
        before = [stmt for first, _ in held for stmt in first]
        made = [stmt for _, stmt in held]
    for stmt in made:
        if isinstance(stmt.target, Var) and stmt.target.name in new:
            before.append(Declare(stmt.target, stmt.value, stmt.span))
        else:
            before.append(stmt)
    return before


def _check_targets(scope: Scope, targets: list[ast.expr]) -> None:
    seen: dict[str, ast.expr] = {}
    for target in targets:
        text = ast.unparse(target)
        if isinstance(target, ast.Subscript | ast.Attribute):
            check_root(scope, target)
        if not isinstance(target, ast.Name) and not _tensor(scope, target):
            raise errors.SyntaxNotSupported(
                "results are taken apart into variables and elements of tensors", span_of(target),
                hint="take them into variables, and assign those",
            )  # fmt: skip
        if isinstance(target, ast.Subscript) and is_slice_target(scope, target):
            raise errors.SyntaxNotSupported(
                f"'{text}' is a part of a tensor, and the function gives one number",
                span_of(target), hint="write an index in each dimension",
            )  # fmt: skip
        if text in seen:
            raise errors.DuplicateVariable(f"'{text}' takes two results", span_of(target), var=text)
        seen[text] = target
    for target in targets:
        at = target.slice if isinstance(target, ast.Subscript) else ast.Pass()
        inner = [n for n in ast.walk(at) if isinstance(n, ast.Name)]
        for other in targets:
            name = ast.unparse(other.value if isinstance(other, ast.Subscript) else other)
            place = next((n for n in inner if n.id == name), None)
            if other is not target and place is not None:
                raise errors.SyntaxNotSupported(
                    f"'{name}' takes a result and says where another one goes", span_of(place),
                    related=((span_of(other), "it takes a result here"),),
                    hint="take the results into variables, and assign those one after the other",
                )  # fmt: skip


def _check_callee(targets: list[ast.expr], node: ast.Call, callee: Function) -> None:
    calls.check_value(callee, span_of(node))
    if len(callee.results) != len(targets):
        raise errors.AssignTypeMismatch(
            f"'{callee.name}' has {errors.counted(len(callee.results), 'result')}, and "
            f"{len(targets)} targets are given",
            span_of(node), related=((callee.span, "defined here"),),
        )  # fmt: skip
    for target, type_ in zip(targets, callee.results, strict=True):
        if not b.is_scalar(type_):
            raise errors.AssignTypeMismatch(
                f"this result of '{callee.name}' is {b.show_type(type_)}, and beside elements of "
                "tensors there are ints and floats only",
                span_of(target), related=((callee.span, "defined here"),),
            )  # fmt: skip


def _assign(
    scope: Scope, target: ast.expr, node: ast.Call, callee: Function, position: int, span: Span
) -> _Result:
    """The statement for one result."""

    def read(scope: Scope, value: ast.expr) -> Expr:
        assert isinstance(value, ast.Call)
        call = calls.user_call(scope, value, callee)
        name = scope.program.part(callee.name, position)
        scope.calls.setdefault(name, call.span)
        return Call(name, call.args, callee.results[position], call.span)

    if isinstance(target, ast.Subscript):
        return index_statement(scope, target, "=", node, span, read)
    assert isinstance(target, ast.Name)
    indices = free_indices(scope, node)
    if indices:
        raise errors.UnboundIndex(
            f"'{target.id}' is one number, and index '{indices[0].id}' stands for many",
            span_of(indices[0]), var=indices[0].id,
            hint=f"make '{target.id}' a tensor: {target.id}[{indices[0].id}], or write a loop",
        )  # fmt: skip
    with scope.having(elementwise=True):
        value = read(scope, node)
    return Assign(result_variable(scope, target, value.type), "=", value, span)


def _disturbs(scope: Scope, stmt: _Result, later: _Result) -> bool:
    """Whether a statement may write what a later one reads."""
    target = stmt.target
    if not (isinstance(stmt, IndexAssign) and isinstance(target, Index)):
        return root(target) in variables(later.value)
    extents = {
        symbol.name: symbol.extent
        for symbol in scope.symbols.values()
        if symbol.extent is not None and sizes.keeps_value(symbol.extent, set(scope.reassigned))
    }
    if isinstance(later, IndexAssign):
        extents |= {axis.name: axis.extent for axis in later.axes}
    known = {symbol.name for symbol in scope.symbols.values() if symbol.kind == "size"}
    return not all(
        apart(target, stmt.axes, read, extents, known.__contains__)
        for read in reads_of(root(target), later.value)
    )


def _held(scope: Scope, stmt: _Result) -> tuple[list[Stmt], _Result]:
    """What works a result out into a variable of its own, and what assigns that."""
    value = stmt.value
    name = scope.names.fresh(f"_new_{root(stmt.target).lstrip('_')}")
    if isinstance(stmt, IndexAssign) and stmt.axes:
        element: Element = "int" if value.type == INT else "float"
        whole = Var(name, TensorType(tuple(axis.extent for axis in stmt.axes), element))
        counters = tuple(Var(axis.name, INT) for axis in stmt.axes)
        place: Index | Var = Index(whole, counters, value.type, stmt.span)
        first: list[Stmt] = [IndexAssign(place, "=", value, stmt.axes, stmt.span)]
    else:
        place = whole = Var(name, value.type, stmt.span)
        first = [Assign(place, "=", value, stmt.span)]
    declared = Declare(whole, None, stmt.span)
    if scope.depth:
        scope.start.append(declared)
    else:
        first.insert(0, declared)
    return first, replace(stmt, value=place)
