"""Assignments: of whole values, of elements, of several results, and the augmented ones."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from loma import errors
from loma.core import builder as b
from loma.core.ir import (
    FLOAT, INT, Assign, Call, Declare, Expr, FloatConst, IntConst, Stmt, TensorType, TupleType,
    Type, Unpack, Var, is_tensor_function,
)  # fmt: skip
from loma.core.walk import variables
from loma.errors.spans import Span
from loma.frontend.expressions import expression as ex, stacks
from loma.frontend.expressions.parts import RESULTS, Result
from loma.frontend.expressions.places import check_root, place, result_variable, whole_value
from loma.frontend.scope import Scope, Symbol, span_of
from loma.frontend.statements.index_statement import (
    Operation,
    declaration,
    free_indices,
    index_statement,
)
from loma.frontend.statements.several import assign_results
from loma.frontend.statements.slice_targets import assign_slice, is_slice_target
from loma.frontend.syntax.python_syntax import SYMBOLS
from loma.frontend.syntax.unsupported import unsupported
from loma.frontend.types import check_declarable, size_definition

_AUGMENTED: dict[type[ast.operator], Operation] = {
    ast.Add: "+=", ast.Sub: "-=", ast.Mult: "*=", ast.Div: "/=",
}  # fmt: skip


def assign(scope: Scope, node: ast.Assign) -> list[Stmt]:
    """``place = value``, or ``a, b = f(x)``."""
    if len(node.targets) != 1:
        raise errors.SyntaxNotSupported(
            "one '=' in a statement", span_of(node.targets[1]), hint="write two assignments"
        )
    (target,) = node.targets
    span = span_of(node)
    popped = stacks.pop(scope, node)
    if popped is not None:
        return [popped]
    match target:
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            results = assign_results(scope, targets, node.value, span)
            if results is not None:
                return results
            if isinstance(node.value, ast.Tuple | ast.List) and not all(
                isinstance(item, ast.Name) for item in targets
            ):
                return _assign_places(scope, targets, node.value.elts, node)
            return _unpack(scope, targets, node.value, span)
        case ast.Name():
            return [_assign_variable(scope, target, ex.expression(scope, node.value), span)]
        case ast.Subscript() if is_slice_target(scope, target):
            return [assign_slice(scope, target, "=", node.value, span)]
        case ast.Subscript() if _tensor_of(scope, target, node.value) is not None:
            return [index_statement(scope, target, "=", node.value, span)]
        case _:
            found = place(scope, target)
            whole_value(scope, found.type, span)
            value = _converted(ex.expression(scope, node.value), found.type, "the value")
            return [Assign(found, "=", value, span)]


def _tensor_of(scope: Scope, target: ast.Subscript, value: ast.expr) -> Symbol | None:
    """The tensor whose element a target is; None for an array's. An unknown name is an error."""
    if (type_ := declaration(scope, target, value)) is not None:
        assert isinstance(target.value, ast.Name)
        raise scope.undeclared(target.value.id, span_of(target.value), type_)
    symbol = scope.symbols[check_root(scope, target)]
    return symbol if isinstance(symbol.type, TensorType) else None


def _converted(value: Expr, type_: Type, what: str) -> Expr:
    return ex.convert(value, type_, what, errors.AssignTypeMismatch)


def _assign_variable(scope: Scope, target: ast.Name, value: Expr, span: Span) -> Stmt:
    """An assignment to a variable; in a tensor function a new name is declared by it."""
    name, at = target.id, span_of(target)
    if name in scope.symbols:
        symbol = scope.check_writable(name, at)
        whole_value(scope, symbol.type, span)
        try:
            value = _converted(value, symbol.type, f"the value of '{name}'")
        except errors.AssignTypeMismatch as error:
            if isinstance(symbol.type, TensorType):
                error.hint = error.hint or "a variable keeps its type: use another name"
            raise
        _check_kept(symbol, value, span)
        scope.unassigned.discard(name)
        return Assign(Var(name, symbol.type, at), "=", value, span)
    if isinstance(value.type, TensorType):
        scope.check_outermost(name, at)
        check_declarable(scope, name, value.type, at)
        scope.add(Symbol(name, value.type, "local", at))
        return Declare(Var(name, value.type, at), value, span)
    if b.is_scalar(value.type) and is_tensor_function(scope.header):
        scope.check_outermost(name, at)
        definition = size_definition(scope, name, value.type, value)
        scope.add(Symbol(name, value.type, "local", at, definition=definition, inferred=True))
        return Declare(Var(name, value.type, at), value, span)
    if isinstance(value.type, TupleType):
        _converted(value, FLOAT, f"'{name}'")
    raise scope.undeclared(name, at, b.show_type(value.type))


def _check_kept(symbol: Symbol, value: Expr, span: Span) -> None:
    """Refuses a float for a variable that an int has declared: Python would change its type."""
    if symbol.inferred and symbol.type == INT and value.type == FLOAT:
        raise errors.AssignTypeMismatch(
            f"'{symbol.name}' is an int, because its first value is one, and this value is a float",
            span, hint=f"start it with a float, or declare it: {symbol.name} : float",
            related=((symbol.span, "declared here"),),
        )  # fmt: skip


def augment(scope: Scope, node: ast.AugAssign) -> Stmt:
    """``place += value`` and its relatives."""
    op = _AUGMENTED.get(type(node.op))
    if op is None:
        symbol = SYMBOLS.get(type(node.op))
        if symbol is None:
            raise unsupported(node.op, node)
        text = ast.unparse(node.target)
        raise errors.SyntaxNotSupported(
            f"'{symbol}=' is not part of loma", span_of(node), hint=f"{text} = {text} {symbol} ..."
        )
    span, target = span_of(node), node.target
    if isinstance(target, ast.Subscript) and is_slice_target(scope, target):
        return assign_slice(scope, target, op, node.value, span)
    if isinstance(target, ast.Subscript) and _tensor_of(scope, target, node.value) is not None:
        return index_statement(scope, target, op, node.value, span)
    if isinstance(target, ast.Name):
        symbol_ = scope.check_writable(target.id, span_of(target))
        is_number = b.is_scalar(symbol_.type) or b.is_rank0(symbol_.type)
        if is_number and scope.has_tensors() and free_indices(scope, node.value):
            made = index_statement(scope, target, op, node.value, span)
            if isinstance(made, Assign):
                _check_kept(symbol_, made.value, span)
            return made
        if isinstance(symbol_.type, TensorType):
            return _augment_tensor(scope, symbol_, target, op, node.value, span)
    found = place(scope, target)
    if not b.is_scalar(found.type):
        raise errors.AssignTypeMismatch(
            f"'{op}' takes ints, floats and tensors, found {b.show_type(found.type)}", span
        )
    value = _converted(ex.expression(scope, node.value), FLOAT, "the value")
    whole = b.binary(op[0], found, value, span)  # an int over an int is an int
    if isinstance(found, Var):
        _check_kept(scope.symbols[found.name], whole, span)
    return Assign(found, "+=", value, span) if op == "+=" else Assign(found, "=", whole, span)


def _augment_tensor(
    scope: Scope, symbol: Symbol, target: ast.Name, op: Operation, node: ast.expr, span: Span
) -> Stmt:
    """On a whole tensor, with NumPy broadcasting of the value."""
    scope.check_assigned(symbol.name, span_of(target))
    variable = Var(symbol.name, symbol.type, span_of(target))
    value = ex.expression(scope, node)
    if op == "+=" and _adds_without_broadcast(value.type, symbol.type):
        return Assign(variable, "+=", value, span)
    whole = b.binary(op[0], variable, value, span)
    whole = _converted(whole, symbol.type, f"the value of '{symbol.name}'")
    return Assign(variable, "=", whole, span)


def _adds_without_broadcast(value: Type, target: Type) -> bool:
    """Whether ``+=`` adds element by element, as far as can be told before a call."""
    if not (isinstance(value, TensorType) and isinstance(target, TensorType)):
        return False
    if not b.convertible(value, target) or "bool" in (value.element, target.element):
        return False
    pairs = zip(value.dims or (), target.dims or (), strict=False)
    return all(a != IntConst(1) or c == IntConst(1) for a, c in pairs)


def _check_count(targets: Sequence[ast.expr], nodes: list[ast.expr], noun: str, span: Span) -> None:
    if len(nodes) != len(targets):
        raise errors.AssignTypeMismatch(
            f"there are {len(targets)} {noun}s for {len(nodes)} values", span,
            hint=f"give each {noun} a value",
        )  # fmt: skip


def _assign_each(
    scope: Scope, names: list[ast.Name], nodes: list[ast.expr], span: Span
) -> list[Stmt]:
    """``a, b = b, a + b``: all values are those from before."""
    _check_count(names, nodes, "variable", span)
    values: list[Expr] = []
    for k, node in enumerate(nodes):
        value, written = ex.expression(scope, node), {name.id for name in names[:k]}
        if written & set(variables(value)):
            value = scope.once(value, kept=True)
            if written & set(variables(value)):
                raise errors.SyntaxNotSupported(
                    "the sizes of this value are not known before a call, so that no variable can "
                    "keep it while others are assigned",
                    span_of(node), hint="write one assignment for each variable",
                )  # fmt: skip
        values.append(value)
    pairs = zip(names, values, strict=True)
    return [_assign_variable(scope, name, value, span) for name, value in pairs]


def _assign_places(
    scope: Scope, targets: list[ast.expr], nodes: list[ast.expr], node: ast.Assign
) -> list[Stmt]:
    """``y[0], y[1] = y[1], y[0]``: variables keep the values from before."""
    _check_count(targets, nodes, "place", span_of(node))
    kept: list[ast.expr] = []
    for value_node in nodes:
        value = None
        if not (scope.has_tensors() and free_indices(scope, value_node)):
            value = scope.once(ex.expression(scope, value_node), kept=True)
        if isinstance(value, Var):
            kept.append(ast.copy_location(ast.Name(value.name, ast.Load()), value_node))
        elif isinstance(value, IntConst | FloatConst):
            kept.append(value_node)
        else:
            raise errors.SyntaxNotSupported(
                "no variable can keep this value while others are assigned", span_of(value_node),
                hint="write one assignment for each place",
            )  # fmt: skip
    made: list[Stmt] = []
    for target, value_node in zip(targets, kept, strict=True):
        made += assign(scope, ast.copy_location(ast.Assign([target], value_node), node))
    return made


def _unpack(scope: Scope, nodes: list[ast.expr], node: ast.expr, span: Span) -> list[Stmt]:
    names: list[ast.Name] = []
    for item in nodes:
        if not isinstance(item, ast.Name):
            raise errors.SyntaxNotSupported(
                "results are taken apart into variables", span_of(item),
                hint="take them into variables, and assign those",
            )  # fmt: skip
        if item.id in {name.id for name in names}:
            raise errors.DuplicateVariable(f"'{item.id}' takes two results", span_of(item))
        names.append(item)
    match node:
        case ast.Call(func=ast.Name(id=name)) if (
            name in RESULTS and name not in scope.program.functions
        ):
            return _results(scope, names, RESULTS[name](scope, node, len(names)), span)
        case ast.Call():
            value = ex.expression(scope, node)
        case ast.Tuple(elts=values) | ast.List(elts=values):
            return _assign_each(scope, names, values, span)
        case _:
            raise errors.SyntaxNotSupported(
                "only the results of a call are taken apart", span_of(node),
                hint="write one assignment for each variable",
            )  # fmt: skip
    if not isinstance(value, Call) or not isinstance(value.type, TupleType):
        raise errors.AssignTypeMismatch(
            f"this has one result, and {len(names)} variables are given", span_of(node),
            hint="write x = f(...)",
        )  # fmt: skip
    if len(value.type.items) != len(names):
        raise errors.AssignTypeMismatch(
            f"'{value.function}' has {len(value.type.items)} results, and {len(names)} variables "
            "are given",
            span,
        )
    targets = tuple(
        result_variable(scope, name, type_)
        for name, type_ in zip(names, value.type.items, strict=True)
    )
    return [Unpack(targets, value, span)]


def _results(scope: Scope, names: list[ast.Name], parts: list[Result], span: Span) -> list[Stmt]:
    out: list[Stmt] = []
    for k, (name, (value, type_)) in enumerate(zip(names, parts, strict=True)):
        if any(name.id in variables(later) for later, _ in parts[k + 1 :]):
            raise errors.SyntaxNotSupported(
                f"'{name.id}' is taken apart and takes a part at once", span_of(name),
                hint="use a new name for the part",
            )  # fmt: skip
        new = name.id not in scope.symbols
        target = result_variable(scope, name, type_)
        out.append(Declare(target, value, span) if new else Assign(target, "=", value, span))
    return out
