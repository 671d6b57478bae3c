"""What may be written to: by a statement, and by a call, in its Out arguments."""

from __future__ import annotations

import ast

from loma import errors
from loma.core.ir import Expr, TensorType
from loma.core.unbounded import is_borrowed, is_unbounded
from loma.core.walk import is_place, root
from loma.errors.spans import Span
from loma.frontend.scope import Scope, span_of


def check_written(scope: Scope, place: Expr, span: Span) -> None:
    """Refuses a place that is read only."""
    name = root(place)
    symbol = scope.check_writable(name, span)
    whole = is_unbounded(place.type, scope.program.structs)
    if symbol.kind == "In" and (is_borrowed(place) or whole):
        raise errors.WriteToInArgument(
            f"'{name}' is an In struct, whose arrays are read only", span,
            hint="make the argument Out[...]", var=name,
            related=((symbol.span, "declared here"),),
        )  # fmt: skip


def argument_place(scope: Scope, arg: Expr, what: str) -> None:
    """Refuses an argument that is written to and cannot be."""
    if not is_place(arg):
        raise errors.CallArgNotLHS(
            f"{what} is Out, so it must be a variable that can be written to", arg.span
        )
    try:
        check_written(scope, arg, arg.span)
    except errors.UserError as error:
        raise errors.ArgOutNotLValue(
            f"{what} is Out, but {error.message}", arg.span, related=error.related
        ) from None


def check_no_element(scope: Scope, node: ast.expr, what: str) -> None:
    """Refuses an element of a tensor for an argument that is written to."""
    symbol = scope.named(node.value) if isinstance(node, ast.Subscript) else None
    if symbol is not None and isinstance(symbol.type, TensorType):
        raise errors.CallArgNotLHS(
            f"{what} is Out, and an element of a tensor cannot be passed there", span_of(node),
            hint="let the function return what it computes: x[i] = f(...), or x[i], y[i] = f(...) "
            "for two results",
        )  # fmt: skip
