"""Stacks: ``tape : Stack[T, n]``, ``tape.push(x)`` and ``place = tape.pop()``."""

from __future__ import annotations

import ast

from loma import errors
from loma.core import builder as b
from loma.core.ir import Declare, Expr, Index, Pop, Push, StackType, Stmt, TensorType, Var
from loma.frontend.expressions import expression as ex
from loma.frontend.expressions.places import place
from loma.frontend.scope import Scope, Symbol, span_of
from loma.frontend.syntax.attributes import stack_variable
from loma.frontend.types import read_stack, size_in_scope


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


def _stack_of(scope: Scope, node: ast.expr, method: str) -> tuple[Var, StackType] | None:
    """The stack whose method is called, and its type; None for another call."""
    match node:
        case ast.Call(func=ast.Attribute(value=base, attr=attr)) if attr == method:
            stack = stack_variable(scope, base)
            if stack is not None and isinstance(stack.type, StackType):
                return stack, stack.type
    return None


def push(scope: Scope, node: ast.Call) -> Stmt | None:
    """``stack.push(value)``; None for another call."""
    found = _stack_of(scope, node, "push")
    if found is None:
        return None
    stack, type_ = found
    if len(node.args) != 1 or node.keywords:
        raise errors.CallTypeMismatch(
            f"'{stack.name}.push' takes 1 argument, found {len(node.args) + len(node.keywords)}",
            span_of(node),
        )
    value: Expr = ex.expression(scope, node.args[0])
    if b.is_scalar(type_.element):
        value = b.as_scalar(value)
    if value.type != type_.element:
        raise errors.CallTypeMismatch(
            f"'{stack.name}' is {b.show_type(type_)}, and {b.show_type(value.type)} is pushed",
            span_of(node.args[0]),
            hint="convert it: int2float(n), float2int(x)" if b.is_scalar(value.type) else None,
            related=((scope.symbols[stack.name].span, "declared here"),),
        )
    return Push(stack, value, span_of(node))


def pop(scope: Scope, node: ast.Assign) -> Stmt | None:
    """``place = stack.pop()``; None for another assignment."""
    popped = _stack_of(scope, node.value, "pop")
    if popped is None:
        return None
    (stack, type_), call, (target,) = popped, node.value, node.targets
    assert isinstance(call, ast.Call)
    if call.args or call.keywords:
        raise errors.CallTypeMismatch(f"'{stack.name}.pop' takes no arguments", span_of(call))
    found = place(scope, target)
    if isinstance(found, Index) and isinstance(found.base.type, TensorType):
        raise errors.AssignTypeMismatch(
            "an element of a tensor cannot take what is on a stack", span_of(target),
            hint="pop into a variable, and assign that",
        )  # fmt: skip
    if found.type != type_.element:
        raise errors.AssignTypeMismatch(
            f"the target is {b.show_type(found.type)}, and '{stack.name}' is {b.show_type(type_)}",
            span_of(target),
            hint="pop into a variable of the stack's element type",
            related=((scope.symbols[stack.name].span, "declared here"),),
        )
    return Pop(stack, found, span_of(node))
