"""Statements: syntax to typed IR, one function for each kind."""

from __future__ import annotations

import ast
from typing import Literal

from loma import builder as b
from loma import errors
from loma.frontend import calls
from loma.frontend import expressions as ex
from loma.frontend.assignments import assign, augment
from loma.frontend.scope import Scope, Symbol, int_symbol, span_of
from loma.frontend.types import check_sizes, read_type, size_definition, size_in_scope
from loma.frontend.unsupported import unsupported
from loma.ir import (
    ArrayType, CallStmt, Declare, Expr, For, Function, If, Index, IntConst, Member, Return, Stmt,
    TensorType, Var, While, Zero,
)  # fmt: skip


def body(scope: Scope, nodes: list[ast.stmt]) -> tuple[Stmt, ...]:
    """The statements of a function, ``return`` included."""
    out: list[Stmt] = []
    for node in nodes:
        if isinstance(node, ast.Return) and node is nodes[-1]:
            out += _return(scope, node)
        else:
            out += statement(scope, node)
    if scope.header.results and not (nodes and isinstance(nodes[-1], ast.Return)):
        raise errors.ReturnMissing(
            f"'{scope.header.name}' has a result type but does not end with 'return'",
            scope.header.span,
            hint="its last statement must be 'return ...'",
        )
    return tuple(out)


def statement(scope: Scope, node: ast.stmt) -> list[Stmt]:
    """One statement; none for ``pass``, several for ``split``."""
    match node:
        case ast.AnnAssign():
            return [_declare(scope, node)]
        case ast.Assign():
            return assign(scope, node)
        case ast.AugAssign():
            return [augment(scope, node)]
        case ast.If(test=test, body=then, orelse=other):
            cond = ex.condition(scope, test, "if")
            return [If(cond, _block(scope, then), _block(scope, other), span_of(node))]
        case ast.For():
            return [_for(scope, node)]
        case ast.While():
            return [_while(scope, node)]
        case ast.Expr(value=ast.Call() as inner):
            return [_call(scope, inner)]
        case ast.Expr(value=ast.Constant(value=str())):
            return []
        case ast.Expr(value=value):
            if isinstance(value, ast.Name | ast.Constant | ast.BinOp | ast.Compare | ast.Subscript):
                raise errors.SyntaxNotSupported(
                    "this statement has no effect", span_of(node), hint="assign its value: x = ..."
                )
            raise unsupported(value)
        case ast.Pass():
            return []
        case ast.Return():
            raise errors.ReturnNotLastStmt(
                "'return' must be the last statement of the function", span_of(node),
                hint="keep the result in a variable, and return it at the end",
            )  # fmt: skip
        case _:
            raise unsupported(node)


def _block(scope: Scope, nodes: list[ast.stmt]) -> tuple[Stmt, ...]:
    """A nested block: nothing is declared in it, and it may not be run."""
    scope.depth += 1
    try:
        with scope.guard():
            return tuple(stmt for node in nodes for stmt in statement(scope, node))
    finally:
        scope.depth -= 1


# ---------------------------------------------------------------------------------- declarations


def _declare(scope: Scope, node: ast.AnnAssign) -> Stmt:
    if not isinstance(node.target, ast.Name):
        raise errors.SyntaxNotSupported(
            "only a variable can be declared", span_of(node.target), hint="leave the type out"
        )
    name, span = node.target.id, span_of(node.target)
    scope.check_outermost(name, span)
    type_ = read_type(node.annotation, scope.program, size_in_scope(scope))
    check_sizes(type_, span_of(node.annotation))
    if isinstance(type_, ArrayType) and _unbounded(type_):
        raise errors.DeclareUnboundedArray(
            f"array '{name}' needs a size", span_of(node.annotation), hint="Array[float, 3]",
            var=name,
        )  # fmt: skip
    if node.value is None:
        if isinstance(type_, TensorType) and type_.dims is None:
            scope.unassigned.add(name)
        scope.add(Symbol(name, type_, "local", span))
        return Declare(Var(name, type_, span), None, span_of(node))
    value = ex.expression(scope, node.value)
    if isinstance(type_, TensorType) and b.is_scalar(value.type):
        raise errors.DeclareTypeMismatch(
            f"'{name}' is {b.show_type(type_)} and cannot start as {b.show_type(value.type)}",
            value.span,
            hint="a declared tensor starts at zero; give it elements in an index statement",
        )
    value = ex.convert(scope, value, type_, f"the value of '{name}'", errors.DeclareTypeMismatch)
    definition = size_definition(scope, name, type_, value)
    scope.add(Symbol(name, type_, "local", span, definition=definition))
    return Declare(Var(name, type_, span), value, span_of(node))


def _unbounded(type_: ArrayType) -> bool:
    return type_.size is None or (
        isinstance(type_.element, ArrayType) and _unbounded(type_.element)
    )


# ----------------------------------------------------------------------------------------- loops


def _for(scope: Scope, node: ast.For) -> Stmt:
    if node.orelse:
        raise errors.SyntaxNotSupported(
            "a loop has no 'else'", span_of(node.orelse[0]), hint="put it after the loop"
        )
    if not isinstance(node.target, ast.Name):
        raise errors.SyntaxNotSupported("a loop has one counter", span_of(node.target))
    extent, backwards = _loop_range(scope, node.iter)
    name = node.target.id
    with scope.with_symbols(int_symbol(name, "counter", span_of(node.target), extent)):
        inner = _block(scope, node.body)
    return For(name, extent, inner, backwards, span_of(node))


def _loop_range(scope: Scope, node: ast.expr) -> tuple[Expr, bool]:
    match node:
        case ast.Call(func=ast.Name(id="range"), args=[bound], keywords=[]):
            return ex.int_expression(scope, bound, "the bound of a loop"), False
        case ast.Call(
            func=ast.Name(id="reversed"),
            args=[ast.Call(func=ast.Name(id="range"), args=[bound], keywords=[])],
            keywords=[],
        ):
            return ex.int_expression(scope, bound, "the bound of a loop"), True
        case ast.Call(func=ast.Name(id="range")):
            raise errors.SyntaxNotSupported(
                "a range has one bound, starts at 0 and has step 1", span_of(node),
                hint="use t + start or t * step inside the loop",
            )  # fmt: skip
        case ast.Name(id=name):
            raise errors.SyntaxNotSupported(
                "a loop runs over 'range(n)'", span_of(node), hint=f"for ... in range({name}):"
            )
        case _:
            raise errors.SyntaxNotSupported(
                "a loop runs over 'range(n)'", span_of(node), hint="for i in range(n):"
            )


def _while(scope: Scope, node: ast.While) -> Stmt:
    if node.orelse:
        raise errors.SyntaxNotSupported(
            "a loop has no 'else'", span_of(node.orelse[0]), hint="put it after the loop"
        )
    match node.test:
        case ast.Tuple(
            elts=[
                test,
                ast.NamedExpr(target=ast.Name(id="max_iter"), value=ast.Constant(value=int(limit))),
            ]
        ) if 0 < limit < 2**31 and limit is not True:
            cond = ex.condition(scope, test, "while")
            return While(cond, limit, _block(scope, node.body), span_of(node))
        case _:
            raise errors.SyntaxNotSupported(
                "'while' needs a constant bound on its iterations", span_of(node.test),
                hint="while (condition, max_iter := 100):",
            )  # fmt: skip


# ------------------------------------------------------------------------------ calls and return


def _call(scope: Scope, node: ast.Call) -> Stmt:
    if not isinstance(node.func, ast.Name):
        calls.call(scope, node)  # has the message for it
    assert isinstance(node.func, ast.Name)
    name = node.func.id
    callee = scope.program.functions.get(name)
    if callee is None and name == "zero":
        return _zero(scope, node)
    if callee is None:
        calls.call(scope, node)  # has the message for an unknown name
        raise errors.SyntaxNotSupported(
            f"the result of '{name}' is not used", span_of(node), hint="assign it: x = ..."
        )
    result = calls.user_call(scope, node, callee)
    if callee.results and not any(p.mode == "Out" for p in callee.params):
        raise errors.SyntaxNotSupported(
            f"the result of '{name}' is not used", span_of(node), hint="assign it: x = ..."
        )
    _check_aliases(callee, result.args)
    return CallStmt(result, span_of(node))


def _zero(scope: Scope, node: ast.Call) -> Stmt:
    match node.args:
        case [ast.Name(id=name) as inner] if not node.keywords:
            target = scope.lookup(inner)
            assert isinstance(target, Var)
            scope.check_writable(name, span_of(inner))
            return Zero(target, span_of(node))
        case _:
            raise errors.CallTypeMismatch("'zero' takes one variable", span_of(node))


def _check_aliases(callee: Function, args: tuple[Expr, ...]) -> None:
    for i, param in enumerate(callee.params):
        for j, other in enumerate(callee.params[:i]):
            if "Out" in (param.mode, other.mode) and _overlap(args[i], args[j]):
                raise errors.AliasedOutArgument(
                    f"arguments '{other.name}' and '{param.name}' of '{callee.name}' are the same "
                    f"storage, and '{(param if param.mode == 'Out' else other).name}' is Out",
                    args[i].span,
                    hint="pass a copy",
                    related=((args[j].span, "passed here too"),),
                )


_Step = tuple[Literal["element", "member"], object]


def _path(expr: Expr) -> tuple[str, list[_Step]] | None:
    """A place as its variable and the steps from there; None for a value that is no place."""
    steps: list[_Step] = []
    while not isinstance(expr, Var):
        match expr:
            case Index(base, (position,)):
                steps.append(("element", position))
            case Member(base, name):
                steps.append(("member", name))
            case _:
                return None
        expr = base
    return expr.name, steps[::-1]


def _overlap(left: Expr, right: Expr) -> bool:
    a, c = _path(left), _path(right)
    if a is None or c is None or a[0] != c[0]:
        return False
    for (kind, x), (_, y) in zip(a[1], c[1], strict=False):
        constants = isinstance(x, IntConst) and isinstance(y, IntConst)
        if x != y and (kind == "member" or constants):
            return False
    return True


def _return(scope: Scope, node: ast.Return) -> list[Stmt]:
    header = scope.header
    match node.value:
        case None:
            nodes: list[ast.expr] = []
        case ast.Tuple(elts=items):
            nodes = items
        case value:
            nodes = [value]
    if not header.results and nodes:
        raise errors.ReturnTypeMismatch(
            f"'{header.name}' has no result type but returns a value", span_of(node),
            hint=f"declare it: def {header.name}(...) -> float:",
            related=((header.span, "defined here"),),
        )  # fmt: skip
    if len(nodes) != len(header.results):
        raise errors.ReturnTypeMismatch(
            f"'{header.name}' has {len(header.results)} result"
            f"{'' if len(header.results) == 1 else 's'}, but {len(nodes)} "
            f"{'is' if len(nodes) == 1 else 'are'} returned",
            span_of(node),
            related=((header.span, "defined here"),),
        )
    results = tuple(
        ex.convert(
            scope,
            ex.expression(scope, item),
            type_,
            "the result" if len(nodes) == 1 else f"result {k + 1}",
            errors.ReturnTypeMismatch,
        )
        for k, (item, type_) in enumerate(zip(nodes, header.results, strict=True))
    )
    return [Return(results, span_of(node))] if results else []
