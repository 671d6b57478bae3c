"""Places: what a statement writes to, and which of them may be one storage."""

from __future__ import annotations

import ast
from typing import Literal

from loma import builder as b
from loma import errors, sizes
from loma.frontend import expressions as ex
from loma.frontend.scope import Scope, span_of
from loma.frontend.unsupported import unsupported
from loma.ir import (
    ArrayType, Expr, Function, Index, Member, Place, Span, StackType, TensorType, Type, Var,
)  # fmt: skip


def place(scope: Scope, node: ast.expr) -> Place:
    """The place that an assignment writes. Elements of tensors belong to index statements."""
    match node:
        case ast.Name(id=name):
            symbol = scope.check_writable(name, span_of(node))
            return Var(name, symbol.type, span_of(node))
        case ast.Subscript() | ast.Attribute():
            check_root(scope, node)
            found = ex.expression(scope, node)
            assert isinstance(found, Index | Member)
            root = _root(found)
            assert isinstance(root, Var)
            scope.check_writable(root.name, span_of(node))
            return found
        case ast.Starred():
            raise unsupported(node)
        case _:
            raise errors.SyntaxNotSupported("this cannot be assigned to", span_of(node))


def check_root(scope: Scope, node: ast.Subscript | ast.Attribute) -> str:
    """The variable that a target is a part of; an error when it is none."""
    root: ast.expr = node
    while isinstance(root, ast.Subscript | ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name):
        raise errors.SyntaxNotSupported(
            "this cannot be assigned to", span_of(node),
            hint="a target is a variable, an element or a member of one",
        )  # fmt: skip
    if root.id not in scope.symbols:
        type_ = "Tensor[...]" if scope.has_tensors() else "Array[float, 3]"
        raise scope.undeclared(
            root.id, span_of(root), type_ if isinstance(node, ast.Subscript) else "..."
        )
    return root.id


def argument_place(scope: Scope, arg: Expr, what: str) -> None:
    """Refuses an argument that is written to and cannot be."""
    step: Expr = arg
    while isinstance(step, Index | Member):
        if isinstance(step, Index) and isinstance(step.base.type, TensorType):
            raise errors.CallArgNotLHS(
                f"{what} is Out, and an element of a tensor cannot be passed there", arg.span,
                hint="pass a float variable, and assign it to the element after the call",
            )  # fmt: skip
        step = step.base
    if not isinstance(step, Var):
        raise errors.CallArgNotLHS(
            f"{what} is Out, so it must be a variable that can be written to", arg.span
        )
    try:
        scope.check_writable(step.name, arg.span)
    except errors.UserError as error:
        raise errors.ArgOutNotLValue(
            f"{what} is Out, but {error.message}", arg.span, related=error.related
        ) from None


def whole_value(target: Type, span: Span) -> None:
    """Refuses an assignment of all of something whose length is not known."""
    if isinstance(target, ArrayType) and unbounded(target):
        raise errors.AssignTypeMismatch(
            f"{b.show_type(target)} has no known length, so it cannot be assigned at once", span,
            hint="assign its elements, or give its type a size: Array[float, 3]",
        )  # fmt: skip


def unbounded(type_: Type) -> bool:
    """Whether the length of an array, or of the arrays in it, is not known."""
    return isinstance(type_, ArrayType) and (type_.size is None or unbounded(type_.element))


def stack_variable(scope: Scope, node: ast.expr) -> Var | None:
    """The stack that a name means; None for everything else."""
    if not isinstance(node, ast.Name):
        return None
    symbol = scope.symbols.get(node.id)
    if symbol is None or not isinstance(symbol.type, StackType):
        return None
    return Var(symbol.name, symbol.type, span_of(node))


def _root(expr: Expr) -> Expr:
    while isinstance(expr, Index | Member):
        expr = expr.base
    return expr


# --------------------------------------------------------------------------------------- aliases


def check_aliases(callee: Function, args: tuple[Expr, ...]) -> None:
    """Refuses two arguments that may be one storage, one of them Out.

    A number or a struct passed as In is a copy: there only what is certainly one place is refused.
    """
    for i, param in enumerate(callee.params):
        for j, other in enumerate(callee.params[:i]):
            copied = any(p.mode == "In" and not isinstance(p.type, ArrayType)
                         for p in (param, other))  # fmt: skip
            meet = _same if copied else _overlap
            if "Out" in (param.mode, other.mode) and meet(args[i], args[j]):
                raise errors.AliasedOutArgument(
                    f"arguments '{other.name}' and '{param.name}' of '{callee.name}' are the same "
                    f"storage, and '{(param if param.mode == 'Out' else other).name}' is Out",
                    args[i].span,
                    hint="pass a copy",
                    related=((args[j].span, "passed here too"),),
                )


_Step = tuple[Literal["element", "member"], Expr | str]


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


def _same(left: Expr, right: Expr) -> bool:
    """Whether two places are certainly one, or one a part of the other."""
    a, c = _path(left), _path(right)
    if a is None or c is None or a[0] != c[0]:
        return False
    return all(x == y for (_, x), (_, y) in zip(a[1], c[1], strict=False))


def _overlap(left: Expr, right: Expr) -> bool:
    """Whether nothing tells the two storages apart."""
    a, c = _path(left), _path(right)
    if a is None or c is None or a[0] != c[0]:
        return False
    for (_, x), (_, y) in zip(a[1], c[1], strict=False):
        if isinstance(x, str) or isinstance(y, str):
            if x != y:
                return False
        elif sizes.equal(x, y) is False:
            return False
    return True
