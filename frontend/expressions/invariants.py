"""Values of whole tensors in index statements: ``y[t] = logsumexp(a, 0)``, ``y[t] = x[t] @ w``.

Such a value has no index in it, so it is one number for all elements, worked out before them.
Where only some elements need it, it stays an error, since what it reads may not exist.
"""

from __future__ import annotations

import ast

from loma.core.definitions import OPERATORS
from loma.core.sizes import dims_in
from loma.frontend.scope import Scope
from loma.frontend.syntax.python_syntax import elts, is_slice
from loma.frontend.types import has_dimensions


def is_invariant(scope: Scope, node: ast.expr) -> bool:
    """Whether it is a call of an operator, or a product ``a @ b``, on whole tensors, without an
    index, and may be worked out before the statement."""
    match node:
        case ast.Call(func=ast.Name(id=name)) if name in OPERATORS:
            operands = [*node.args, *(keyword.value for keyword in node.keywords)]
        case ast.BinOp(op=ast.MatMult(), left=left, right=right):
            operands = [left, right]
        case _:
            return False
    if _has_index(scope, node) or not any(_is_whole(scope, item) for item in operands):
        return False
    return not scope.in_condition()  # what may fail must not be worked out before


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
