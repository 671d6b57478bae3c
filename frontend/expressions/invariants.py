"""Values of whole tensors in index statements: ``y[t] = logsumexp(a, 0)``, ``y[t] = x[t] @ w``, and
``y[t] = f(x, t)`` for a function of the program that takes tensors.

Such a value has no index in it, so it is one number for all elements, worked out before them.
Where only some elements need it, it stays an error, since what it reads may not exist.
"""

from __future__ import annotations

import ast

from loma import errors
from loma.core.definitions import OPERATORS
from loma.core.ir import Function, is_tensor_function
from loma.core.sizes import dims_in
from loma.frontend.scope import Scope, span_of
from loma.frontend.syntax.python_syntax import elts, is_slice
from loma.frontend.types import has_dimensions


def is_invariant(scope: Scope, node: ast.expr) -> bool:
    """Whether it is a call of an operator or of a function of tensors, or a product ``a @ b``, on
    whole tensors, without an index, and may be worked out before the statement."""
    match node:
        case ast.Call(func=ast.Name(id=name)) if name in OPERATORS or _takes_tensors(scope, name):
            operands = [*node.args, *(keyword.value for keyword in node.keywords)]
        case ast.BinOp(op=ast.MatMult(), left=left, right=right):
            operands = [left, right]
        case _:
            return False
    if _index(scope, node) is not None or not any(_is_whole(scope, item) for item in operands):
        return False
    return not scope.in_condition()  # what may fail must not be worked out before


def _takes_tensors(scope: Scope, name: str) -> bool:
    """Whether it is a function of the program that has tensors."""
    callee = scope.program.functions.get(name)
    return callee is not None and is_tensor_function(callee)


def check_number(scope: Scope, node: ast.Call, callee: Function) -> None:
    """Refuses a call in an index statement of a function of whole tensors that gives a number,
    which could not be worked out before."""
    whole = any(has_dimensions(param.type) for param in callee.params)
    if not scope.elementwise or not whole or any(map(has_dimensions, callee.results)):
        return
    index = _index(scope, node)
    why, hint = "under a condition", "give its value a name in a statement of its own before"
    if index is not None:
        why = f"for each '{index}'"
        hint = f"write 'for {index} in range(...):' around the statement, where it is a number, or "
        hint += f"let '{callee.name}' take elements"
    raise errors.RankMismatch(
        f"'{callee.name}' takes whole tensors, and an index statement cannot call it {why}",
        span_of(node), hint=hint, related=((callee.span, "defined here"),),
    )  # fmt: skip


def _index(scope: Scope, node: ast.expr) -> str | None:
    """An index that an expression has in it."""
    names = (inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))
    found = (name for name in names if name in scope.symbols)
    return next((name for name in found if scope.symbols[name].kind == "index"), None)


def _is_whole(scope: Scope, node: ast.expr) -> bool:
    """Whether an operand has a tensor in it that is no single element."""
    match node:
        case ast.Name():
            symbol = scope.named(node)
            return symbol is not None and has_dimensions(symbol.type)
        case ast.Subscript(value=ast.Name(id=name)) if name in scope.symbols:
            return is_slice(elts(node.slice), len(dims_in(scope.symbols[name].type)))
        case ast.Call(func=ast.Name(id="stack")):
            return True  # of numbers as well
        case ast.GeneratorExp():
            return False
        case _:
            return any(
                _is_whole(scope, child)
                for child in ast.iter_child_nodes(node)
                if isinstance(child, ast.expr)
            )
