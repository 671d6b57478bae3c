"""Values of whole tensors in index statements: ``y[t] = logsumexp(a, 0)``, ``y[t] = x[t] @ w``.

Such a value has no index in it, so it is one number for all elements, worked out before them.
Where only some elements need it, it stays an error, since what it reads may not exist.
"""

from __future__ import annotations

import ast

from loma.core import builder as b
from loma.core.definitions import OPERATORS
from loma.core.ir import Expr, TensorType
from loma.frontend.expressions import expression as ex
from loma.frontend.expressions.slices import is_slice
from loma.frontend.scope import Scope
from loma.frontend.syntax.python_syntax import elts
from loma.frontend.types import has_dimensions


def invariant(scope: Scope, node: ast.expr) -> Expr | None:
    """The value of a call of an operator, or of a product ``a @ b``, on whole tensors; None where
    the expression is none of these, has an index in it or is no number."""
    match node:
        case ast.Call(func=ast.Name(id=name)) if name in OPERATORS:
            operands = [*node.args, *(keyword.value for keyword in node.keywords)]
        case ast.BinOp(op=ast.MatMult(), left=left, right=right):
            operands = [left, right]
        case _:
            return None
    if _has_index(scope, node) or not any(_is_whole(scope, item) for item in operands):
        return None
    if scope.in_condition():  # what may fail must not be worked out before
        return None
    with scope.having(elementwise=False):
        value = ex.expression(scope, node)
        return scope.once(b.as_scalar(value)) if b.is_rank0(value.type) else None


def _has_index(scope: Scope, node: ast.expr) -> bool:
    names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    return any(symbol.kind == "index" and name in names for name, symbol in scope.symbols.items())


def _is_whole(scope: Scope, node: ast.expr) -> bool:
    """Whether an operand has a tensor in it that is no single element."""
    match node:
        case ast.Name():
            symbol = scope.named(node)
            return symbol is not None and has_dimensions(symbol.type)
        case ast.Subscript(value=ast.Name(id=name)) if name in scope.symbols:
            type_ = scope.symbols[name].type
            rank = len(type_.dims or ()) if isinstance(type_, TensorType) else 0
            return is_slice(elts(node.slice), rank)
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
