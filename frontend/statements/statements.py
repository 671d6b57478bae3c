"""Statements: syntax to typed IR, one function for each kind."""

from __future__ import annotations

import ast
from collections.abc import Callable

from loma import errors
from loma.core import builder as b
from loma.core.ir import (
    FLOAT, INT, Assign, AtomicAdd, CallStmt, Declare, Expr, For, If, Index, Place, Return,
    StackType, Stmt, TensorType, Var, While, Zero,
)  # fmt: skip
from loma.core.printer import print_type
from loma.core.unbounded import is_unbounded
from loma.frontend.constants import whole_number
from loma.frontend.expressions import calls, stacks, expression as ex
from loma.frontend.expressions.counting import count, elements, range_of
from loma.frontend.expressions.places import check_aliases, holds_struct, place, whole_value
from loma.frontend.scope import Scope, Symbol, span_of
from loma.frontend.statements.assignments import assign, augment
from loma.frontend.statements.blocks import declarations, hoisted, keep_common, use_kept
from loma.frontend.syntax.python_syntax import elts
from loma.frontend.syntax.unsupported import unsupported
from loma.frontend.types import check_sizes, is_stack, read_type, size_definition, size_in_scope


def body(scope: Scope, nodes: list[ast.stmt]) -> tuple[Stmt, ...]:
    """The statements of a function, ``return`` included."""
    out: list[Stmt] = []
    for node in nodes:
        out += statement(scope, node, last=node is nodes[-1])
    if scope.header.results and not (nodes and isinstance(nodes[-1], ast.Return)):
        raise errors.ReturnMissing(
            f"'{scope.header.name}' has a result type but does not end with 'return'",
            scope.header.span,
            hint="its last statement must be 'return ...'",
        )
    return (*scope.start, *out)


def statement(scope: Scope, node: ast.stmt, last: bool = False) -> list[Stmt]:
    """One statement; none for ``pass``, several for ``split``. Only the ``last`` one returns."""
    use_kept(scope, node)
    try:
        with scope.having(before=[], guarded_outside=scope.guarded):
            if last and isinstance(node, ast.Return):
                found = _return(scope, node)
            else:
                found = _statement(scope, node)
            return [*scope.before, *found]
    except errors.UserError as error:
        error.inside(span_of(node))
        raise


def _statement(scope: Scope, node: ast.stmt) -> list[Stmt]:
    match node:
        case ast.AnnAssign():
            return [_declare(scope, node)]
        case ast.Assign():
            return assign(scope, node)
        case ast.AugAssign():
            return [augment(scope, node)]
        case ast.If(test=test, body=then, orelse=other):
            cond = ex.condition(scope, test, "if")
            first, declared = _block(scope, then)
            second, others = _block(scope, other)
            keep_common(scope, declared, others)
            return [If(cond, first, second, span_of(node))]
        case ast.For(orelse=[other, *_]) | ast.While(orelse=[other, *_]):
            raise errors.SyntaxNotSupported(
                "a loop has no 'else'", span_of(other), hint="put it after the loop"
            )
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
                hint="give a variable the value here, put what follows under 'else:', and return "
                "the variable at the end",
            )  # fmt: skip
        case _:
            raise unsupported(node)


def _block(scope: Scope, nodes: list[ast.stmt]) -> tuple[tuple[Stmt, ...], dict[str, Var]]:
    """A nested block, which may not be run, and what it declares: that exists until it ends."""
    known, kept = set(scope.symbols), set(scope.kept)
    with scope.having(depth=scope.depth + 1, guarded=scope.guarded + 1):
        found = [stmt for node in nodes for stmt in statement(scope, node)]
    declared = declarations(scope, found, kept)
    return hoisted(scope, found, known), declared


def _declare(scope: Scope, node: ast.AnnAssign) -> Stmt:
    if not isinstance(node.target, ast.Name):
        raise errors.SyntaxNotSupported(
            "only a variable can be declared", span_of(node.target), hint="leave the type out"
        )
    name, span = node.target.id, span_of(node.target)
    scope.check_outermost(name, span)
    if is_stack(node.annotation):
        return stacks.declare(scope, node, name)
    type_ = read_type(node.annotation, scope.program, size_in_scope(scope))
    check_sizes(type_, span_of(node.annotation))
    if is_unbounded(type_, scope.program.structs):
        if is_unbounded(type_, {}):  # whatever its structs hold
            what, hint = f"array '{name}' needs a size", "Array[float, 3]"
        else:
            what = f"'{name}' would have an array of unknown length in it"
            hint = "give the arrays in the struct a size, or make it an argument of the function"
        raise errors.DeclareUnboundedArray(what, span_of(node.annotation), hint=hint, var=name)
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
    value = ex.convert(value, type_, f"the value of '{name}'", errors.DeclareTypeMismatch)
    definition = size_definition(scope, name, type_, value)
    scope.add(Symbol(name, type_, "local", span, definition=definition))
    return Declare(Var(name, type_, span), value, span_of(node))


def _for(scope: Scope, node: ast.For) -> Stmt:
    if not isinstance(node.target, ast.Name):
        raise errors.SyntaxNotSupported(
            "a loop has one counter", span_of(node.target),
            hint=elements(scope, node.iter) or "for i in range(n):",
        )  # fmt: skip
    if range_of(node.iter) is None:
        name = node.iter.id if isinstance(node.iter, ast.Name) else None
        hint = f"for ... in range({name}):" if name else "for i in range(n):"
        hint = elements(scope, node.iter) or hint
        raise errors.SyntaxNotSupported(
            "a loop runs over 'range(n)'", span_of(node.iter), hint=hint
        )
    found = count(scope, node.iter, "the bound of a loop")
    symbols = found.symbols(scope, node.target, "counter")
    with scope.with_symbols(*symbols):
        inner, _ = _block(scope, node.body)
    return For(symbols[0].name, found.extent, inner, found.backwards, span_of(node))


def _while(scope: Scope, node: ast.While) -> Stmt:
    match node.test:
        case ast.Tuple(elts=[test, ast.NamedExpr(target=ast.Name(id="max_iter"), value=limit)]):
            bound = _max_iter(limit)
        case _:
            raise errors.SyntaxNotSupported(
                "'while' needs a constant bound on its iterations", span_of(node.test),
                hint="while (condition, max_iter := 100):",
            )  # fmt: skip
    mark = len(scope.before)
    cond = ex.condition(scope, test, "while")
    needed = scope.before[mark:]
    inner, _ = _block(scope, node.body)
    again = [Assign(s.target, "=", s.value, s.span) for s in needed if s.value is not None]
    return While(cond, bound, (*inner, *again), span_of(node))


def _max_iter(node: ast.expr) -> int:
    limit = whole_number(node)
    if limit is None or not 0 < limit < 2**31:
        raise errors.SyntaxNotSupported(
            "max_iter is a positive whole number below 2^31, written out", span_of(node),
            hint="it bounds the memory of the reverse pass; the condition may depend on variables",
        )  # fmt: skip
    return limit


def _call(scope: Scope, node: ast.Call) -> Stmt:
    pushed = stacks.push(scope, node)
    if pushed is not None:
        return pushed
    name = ast.unparse(node.func)
    callee = scope.program.functions.get(name)
    if callee is not None:
        result = calls.user_call(scope, node, callee)
        if not callee.results or any(p.mode == "Out" for p in callee.params):
            check_aliases(scope, callee, result)
            return CallStmt(result, span_of(node))
    elif name in _STATEMENTS:
        return _STATEMENTS[name](scope, node)
    else:
        calls.call(scope, node)  # has the message for an unknown name
    raise errors.SyntaxNotSupported(
        f"the result of '{name}' is not used", span_of(node), hint="assign it: x = ..."
    )


def _zero(scope: Scope, node: ast.Call) -> Stmt:
    target = _first_place(scope, node, 1, "place")
    if holds_struct(target.type):
        whole_value(scope, target.type, span_of(node))
    return Zero(target, span_of(node))


def _atomic_add(scope: Scope, node: ast.Call) -> Stmt:
    """``atomic_add(place, value)``."""
    target = _first_place(scope, node, 2, "place and a value")
    if not b.is_scalar(target.type):
        raise errors.CallTypeMismatch(
            f"'atomic_add' adds to an int or a float, found {b.show_type(target.type)}",
            target.span,
        )
    value = b.as_scalar(ex.expression(scope, node.args[1]))
    if not b.is_scalar(value.type):
        raise errors.CallTypeMismatch(
            f"'atomic_add' adds an int or a float, found {b.show_type(value.type)}", value.span
        )
    if target.type == INT and value.type == FLOAT:
        raise errors.CallTypeMismatch(
            "'atomic_add' cannot add a float to an int", value.span, hint="convert it: float2int(x)"
        )
    return AtomicAdd(target, value, span_of(node))


def _first_place(scope: Scope, node: ast.Call, count: int, what: str) -> Place:
    """The place that is the first of ``count`` arguments."""
    name = ast.unparse(node.func)
    if node.keywords or len(node.args) != count:
        found = errors.counted(len(node.args) + len(node.keywords), "argument")
        raise errors.CallTypeMismatch(f"'{name}' takes a {what}, found {found}", span_of(node))
    if not isinstance(node.args[0], ast.Name | ast.Subscript | ast.Attribute):
        raise errors.CallArgNotLHS(
            f"'{name}' writes to its argument, which must be a place", span_of(node.args[0]),
            hint="a place is a variable, an element or a member of one",
        )  # fmt: skip
    target = place(scope, node.args[0])
    if isinstance(target, Index) and isinstance(target.base.type, TensorType):
        raise errors.CallArgNotLHS(
            f"'{name}' takes no element of a tensor", target.span, hint="write an index statement"
        )
    if isinstance(target.type, StackType):
        raise errors.CallArgNotLHS(f"'{name}' takes no stack", target.span)
    return target


_STATEMENTS: dict[str, Callable[[Scope, ast.Call], Stmt]] = {
    "zero": _zero, "atomic_add": _atomic_add,
}  # fmt: skip


def _result_types(scope: Scope, nodes: list[ast.expr]) -> str:
    types = [b.show_type(ex.expression(scope, node).type) for node in nodes]
    return types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]"


def _return(scope: Scope, node: ast.Return) -> list[Stmt]:
    header = scope.header
    nodes = [] if node.value is None else elts(node.value)
    if not header.results and nodes:
        raise errors.ReturnTypeMismatch(
            f"'{header.name}' has no result type but returns a value", span_of(node),
            hint=f"declare it: def {header.name}(...) -> {_result_types(scope, nodes)}:",
            related=((header.span, "defined here"),),
        )  # fmt: skip
    if len(nodes) != len(header.results):
        raise errors.ReturnTypeMismatch(
            f"'{header.name}' has {errors.counted(len(header.results), 'result')}, but "
            f"{len(nodes)} {'is' if len(nodes) == 1 else 'are'} returned",
            span_of(node),
            related=((header.span, "defined here"),),
        )
    results: list[Expr] = []
    for k, (item, type_) in enumerate(zip(nodes, header.results, strict=True), 1):
        what = "the result" if len(nodes) == 1 else f"result {k}"
        if isinstance(item, ast.Name) and not scope.is_known(item.id):
            raise scope.undeclared(item.id, span_of(item), print_type(type_))
        value = ex.expression(scope, item)
        results.append(ex.convert(value, type_, what, errors.ReturnTypeMismatch))
    return [Return(tuple(results), span_of(node))] if results else []
