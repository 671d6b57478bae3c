"""Stacks: ``tape : Stack[T, n]``, ``tape.push(x)`` and ``place = tape.pop()``."""

from __future__ import annotations

import ast

from loma import errors
from loma.core import builder as b
from loma.core.ir import Declare, Expr, Index, Pop, Push, StackType, Stmt, TensorType, Var
from loma.frontend.expressions import expression as ex
from loma.frontend.expressions.places import place, stack_variable
from loma.frontend.scope import Scope, Symbol, span_of
from loma.frontend.types import read_stack, size_in_scope


def is_stack_type(node: ast.expr) -> bool:
    match node:
        case ast.Subscript(value=ast.Name(id="Stack")):
            return True
        case _:
            return False


def declare(scope: Scope, node: ast.AnnAssign, name: str) -> Stmt:
    """A stack, which starts empty."""
    assert isinstance(node.annotation, ast.Subscript)
    type_ = read_stack(node.annotation, scope.program, size_in_scope(scope))
    if node.value is not None:
        raise errors.DeclareTypeMismatch(
            f"the stack '{name}' starts empty and takes no value", span_of(node.value)
        )
    scope.add(Symbol(name, type_, "local", span_of(node.target)))
    return Declare(Var(name, type_, span_of(node.target)), None, span_of(node))


def push(scope: Scope, node: ast.Call) -> Stmt | None:
    """``stack.push(value)``; None for another call."""
    match node:
        case ast.Call(func=ast.Attribute(value=base, attr="push")):
            stack = stack_variable(scope, base)
        case _:
            return None
    if stack is None:
        return None
    assert isinstance(stack.type, StackType)
    if len(node.args) != 1 or node.keywords:
        raise errors.CallTypeMismatch(
            f"'{stack.name}.push' takes 1 argument, found {len(node.args) + len(node.keywords)}",
            span_of(node),
        )
    value: Expr = ex.expression(scope, node.args[0])
    if b.is_scalar(stack.type.element):
        value = b.as_scalar(value)
    if value.type != stack.type.element:
        raise errors.CallTypeMismatch(
            f"'{stack.name}' is {b.show_type(stack.type)}, and {b.show_type(value.type)} is pushed",
            span_of(node.args[0]),
            hint="convert it: int2float(n), float2int(x)" if b.is_scalar(value.type) else None,
            related=((scope.symbols[stack.name].span, "declared here"),),
        )
    return Push(stack, value, span_of(node))


def pop(scope: Scope, node: ast.Assign) -> Stmt | None:
    """``place = stack.pop()``; None for another assignment."""
    match node:
        case ast.Assign(
            targets=[target],
            value=ast.Call(func=ast.Attribute(value=base, attr="pop")) as call,
        ):
            stack = stack_variable(scope, base)
        case _:
            return None
    if stack is None:
        return None
    assert isinstance(stack.type, StackType)
    if call.args or call.keywords:
        raise errors.CallTypeMismatch(f"'{stack.name}.pop' takes no arguments", span_of(call))
    found = place(scope, target)
    if isinstance(found, Index) and isinstance(found.base.type, TensorType):
        raise errors.AssignTypeMismatch(
            "an element of a tensor cannot take what is on a stack", span_of(target),
            hint="pop into a variable, and assign that",
        )  # fmt: skip
    if found.type != stack.type.element:
        raise errors.AssignTypeMismatch(
            f"the target is {b.show_type(found.type)}, and '{stack.name}' is "
            f"{b.show_type(stack.type)}",
            span_of(target),
            hint="pop into a variable of the stack's element type",
            related=((scope.symbols[stack.name].span, "declared here"),),
        )
    return Pop(stack, found, span_of(node))


def misused(scope: Scope, node: ast.Attribute) -> errors.UserError | None:
    """The error for a method of a stack where it does not stand; None if it is no stack's."""
    stack = stack_variable(scope, node.value)
    if stack is None:
        return None
    name = stack.name
    if node.attr == "pop":
        return errors.SyntaxNotSupported(
            f"'{name}.pop()' stands only as an assignment of its own", span_of(node),
            hint=f"x = {name}.pop()",
        )  # fmt: skip
    if node.attr == "push":
        return errors.SyntaxNotSupported(
            f"'{name}.push(...)' is a statement of its own", span_of(node)
        )
    return errors.SyntaxNotSupported(
        f"a stack has no '{node.attr}'", span_of(node),
        hint=f"{name}.push(x), or x = {name}.pop()",
    )  # fmt: skip
