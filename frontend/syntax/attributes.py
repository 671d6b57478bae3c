"""``x.sum()``, ``torch.exp(x)``, ``x.shape[0]``, ``math.pi``: there are no methods and no modules;
what to write instead."""

from __future__ import annotations

import ast

from loma import errors
from loma.core import builder as b
from loma.core.builtins import BUILTINS
from loma.core.definitions import OPERATORS
from loma.core.ir import Expr, StackType, TensorType, Var
from loma.core.printer import print_expr
from loma.frontend import foreign
from loma.frontend.scope import Scope, span_of

_SIZES = ("shape", "size", "ndim", "dim", "numel")
_TURNED = {"T": "transpose(x, 0, 1)", "mT": "transpose(x, -2, -1)"}
_LONGEST = 60  # of a hint's example


def method(scope: Scope, node: ast.Call) -> errors.UserError:
    """The error for a call of anything but a name."""
    func = node.func
    hint = "define a function at the top level of the file, and call it by its name"
    if isinstance(func, ast.Attribute):
        if (root := _root(func)) is not None and root not in scope.symbols:
            hint = f"functions belong to no module: {func.attr}(...)"
            if not _is_function(scope, func.attr):
                hint = foreign.instead(func.attr, True) or hint
        elif _is_function(scope, func.attr):
            name = ast.Name(func.attr, ast.Load())
            text = ast.unparse(ast.Call(name, [func.value, *node.args], node.keywords))
            shown = text if len(text) <= _LONGEST else f"{func.attr}(...)"
            hint = f"methods are functions in loma: {shown}"
        else:
            hint = "methods are functions in loma: relu(x) instead of x.relu()"
            hint = foreign.instead(func.attr, True) or hint
    return errors.SyntaxNotSupported(
        "only functions that have a name can be called", span_of(func), hint=hint
    )


def stack_variable(scope: Scope, node: ast.expr) -> Var | None:
    """The stack that a name means; None for everything else."""
    symbol = scope.named(node)
    if symbol is None or not isinstance(symbol.type, StackType):
        return None
    return Var(symbol.name, symbol.type, span_of(node))


def misused_stack(scope: Scope, node: ast.Attribute) -> errors.UserError | None:
    """The error for a method of a stack where it does not stand; None if it is no stack's."""
    stack = stack_variable(scope, node.value)
    if stack is None:
        return None
    name, hint = stack.name, None
    match node.attr:
        case "pop":
            message = f"'{name}.pop()' stands only as an assignment of its own"
            hint = f"x = {name}.pop()"
        case "push":
            message = f"'{name}.push(...)' is a statement of its own"
        case other:
            message, hint = f"a stack has no '{other}'", f"{name}.push(x), or x = {name}.pop()"
    return errors.SyntaxNotSupported(message, span_of(node), hint=hint)


def check_module(scope: Scope, node: ast.Attribute) -> None:
    """Refuses ``math.pi`` and the like, before ``math`` is looked up as a variable."""
    root = _root(node)
    if root in scope.symbols or root not in foreign.MODULES:
        return
    hint = foreign.constant(node.attr) or "what loma offers has no module in front"
    raise errors.SyntaxNotSupported(
        f"'{ast.unparse(node)}' is not part of loma", span_of(node), hint=hint
    )


def no_struct(node: ast.Attribute, base: Expr) -> errors.UserError:
    """The error for a member of what is no struct."""
    hint = None
    if isinstance(base.type, TensorType):
        hint = "sizes are the names in the tensor's type; operators are functions: relu(x)"
        if node.attr in _SIZES and base.type.dims:
            sizes = ", ".join(print_expr(dim) for dim in base.type.dims)
            hint = f"write the sizes of the tensor's type: {sizes}"
        elif node.attr in _TURNED:
            hint = f"write {_TURNED[node.attr]}"
    return errors.StructAccessTypeMismatch(
        f"'.{node.attr}' needs a struct, found {b.show_type(base.type)}", span_of(node), hint=hint
    )


def _root(node: ast.expr) -> str | None:
    """``torch`` of ``torch.nn.functional.relu``."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_function(scope: Scope, name: str) -> bool:
    return name in OPERATORS or name in BUILTINS or name in scope.program.functions
