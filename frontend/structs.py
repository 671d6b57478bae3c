"""Structs: their definitions, differential types by name, and ``make_...`` calls."""

from __future__ import annotations

import ast

from loma import errors
from loma.core.ir import Expr, Struct, StructType
from loma.errors.spans import Span
from loma.frontend.scope import Program, span_of, span_of_def
from loma.frontend.types import check_bytes, read_type


def _no_size(node: ast.Name) -> Expr:
    raise errors.UnknownType("no tensors in structs", span_of(node))


# What ctypes and Python's classes look for in a struct's class.
_PYTHONS_OWN = {"_fields_", "_anonymous_"}


def _check_name(name: str, span: Span) -> None:
    """Refuses what Python keeps for itself: hosts see a struct as a class with attributes."""
    is_dunder = len(name) > 4 and name.startswith("__") and name.endswith("__")
    if is_dunder or name in _PYTHONS_OWN:
        raise errors.SyntaxNotSupported(
            f"Python keeps the name '{name}' for itself, so no struct or member can have it", span,
            hint="use another name",
        )  # fmt: skip


def member_annotations(node: ast.ClassDef) -> dict[str, tuple[ast.expr, Span]]:
    """The members of ``class Ray:``, with their types as they are written and their places."""
    if node.bases or node.keywords or node.decorator_list:
        raise errors.SyntaxNotSupported(
            "a struct has no base classes or decorators", span_of_def(node),
            hint=f"class {node.name}:",
        )  # fmt: skip
    _check_name(node.name, span_of_def(node))
    members: dict[str, tuple[ast.expr, Span]] = {}
    for item in node.body:
        match item:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=None):
                _check_name(name, span_of(item.target))
                if name in members:
                    raise errors.DuplicateVariable(
                        f"member '{name}' is declared twice", span_of(item.target), var=name,
                        related=((members[name][1], "first declared here"),),
                    )  # fmt: skip
                members[name] = annotation, span_of(item.target)
            case ast.Pass() | ast.Expr(value=ast.Constant(value=str())):
                pass
            case _:
                hint = "write 'name : type', without a value"
                if isinstance(item, ast.FunctionDef):
                    hint = f"define functions outside of it: def f(s : In[{node.name}])"
                raise errors.SyntaxNotSupported(
                    "a struct has declarations of members only", span_of(item), hint=hint
                )
    return members


def read_struct(node: ast.ClassDef, program: Program) -> None:
    """``class Ray:`` with a declaration for each member; the program has it afterwards."""
    members = member_annotations(node)
    listed = tuple(
        (name, read_type(annotation, program, _no_size))
        for name, (annotation, _) in members.items()
    )
    struct = Struct(node.name, listed, span_of_def(node))
    program.structs[struct.name] = struct
    check_bytes(StructType(struct.name), struct.span, program)
