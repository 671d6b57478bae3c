"""Places: what a statement writes to."""

from __future__ import annotations

import ast

from loma import errors
from loma.core import builder as b
from loma.core.aliases import CERTAIN, meetings
from loma.core.ir import (
    ArrayType, Call, Function, Index, Member, Place, StructType, Type, Var,
)  # fmt: skip
from loma.core.unbounded import is_unbounded
from loma.errors.spans import Span
from loma.frontend.expressions import expression as ex
from loma.frontend.scope import Scope, Symbol, span_of
from loma.frontend.syntax.unsupported import unsupported
from loma.frontend.types import check_declarable
from loma.frontend.writable import check_written


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
            check_written(scope, found, span_of(node))
            return found
        case ast.Starred():
            raise unsupported(node)
        case _:
            raise errors.SyntaxNotSupported("this cannot be assigned to", span_of(node))


def result_variable(scope: Scope, name: ast.Name, type_: Type) -> Var:
    """The variable that takes a result; a new one is declared by that."""
    span = span_of(name)
    if name.id not in scope.symbols:
        scope.check_outermost(name.id, span)
        check_declarable(scope, name.id, type_, span)
        scope.add(Symbol(name.id, type_, "local", span))
        return Var(name.id, type_, span)
    symbol = scope.check_writable(name.id, span)
    variable = Var(symbol.name, symbol.type, span)
    if not b.convertible(type_, symbol.type) or b.same_ints(variable, type_) is not variable:
        raise errors.AssignTypeMismatch(
            f"'{name.id}' is {b.show_type(symbol.type)} and cannot take {b.show_type(type_)}", span,
            related=((symbol.span, "declared here"),),
        )  # fmt: skip
    scope.unassigned.discard(name.id)
    return variable


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


def whole_value(scope: Scope, target: Type, span: Span) -> None:
    """Refuses an assignment of all of something whose length is not known."""
    if not is_unbounded(target, scope.program.structs):
        return
    why = "has no known length"
    hint = "assign its elements, or give its type a size: Array[float, 3]"
    if holds_struct(target):
        why = "has an array of unknown length in it"
        hint = "assign its members, and the elements of the array"
    raise errors.AssignTypeMismatch(
        f"{b.show_type(target)} {why}, so it cannot be assigned at once", span, hint=hint
    )


def holds_struct(type_: Type) -> bool:
    """Whether the type is a struct, or an array of them."""
    while isinstance(type_, ArrayType):
        type_ = type_.element
    return isinstance(type_, StructType)


def check_aliases(scope: Scope, callee: Function, call: Call) -> None:
    """Refuses two arguments that are certainly one storage, one of them Out."""
    for first, second, condition in meetings(call, callee, scope.program.structs):
        if condition == CERTAIN:
            param, other = callee.params[second], callee.params[first]
            raise errors.AliasedOutArgument(
                f"arguments '{other.name}' and '{param.name}' of '{callee.name}' are the same "
                f"storage, and '{(param if param.mode == 'Out' else other).name}' is Out",
                call.args[second].span,
                hint="pass a copy",
                related=((call.args[first].span, "passed here too"),),
            )
