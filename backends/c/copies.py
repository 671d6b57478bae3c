"""Assignments of whole values: numbers and structs with ``=``, arrays byte by byte."""

from __future__ import annotations

from loma import errors
from loma.backends.c.context import FunctionContext
from loma.backends.c.expressions import Expressions
from loma.backends.writer import Writer
from loma.core.ir import FLOAT, ArrayType, Expr, Index, Member, Place, StructType, Type, Var
from loma.core.printer import print_expr
from loma.core.walk import root
from loma.errors.spans import NOWHERE, Span


class Copies(Expressions):
    """What :class:`loma.backends.c.statements.Statements` writes with."""

    def __init__(self, context: FunctionContext, writer: Writer) -> None:
        super().__init__(context)
        self.writer = writer
        self.span: Span = NOWHERE

    def assign(self, target: Place, value: Expr) -> None:
        """``target = value``, also where the two overlap."""
        overlapping = (
            isinstance(target.type, ArrayType)
            and isinstance(value, Var | Index | Member)
            and root(target) == root(value)
        )
        self.copy(self.destination(target), value, target.type, overlapping=overlapping)

    def destination(self, target: Place) -> str:
        """A place as the target of a copy."""
        if isinstance(target.type, ArrayType):
            if target.type.size is None:
                raise errors.BackendLacksOperator(
                    f"'{print_expr(target)}' has no known length, so it cannot be assigned as a "
                    "whole",
                    self.span,
                    hint="assign its elements in a loop",
                )
            return self.pointer(target)
        return self.render(target)[0]

    def copy(self, target: str, value: Expr, type_: Type, *, overlapping: bool) -> None:
        if isinstance(type_, ArrayType):
            self.copy_text(target, self.pointer(value), type_, overlapping=overlapping)
        else:
            self.copy_text(target, self.text(value, type_), type_, overlapping=False)

    def copy_text(self, target: str, value: str, type_: Type, *, overlapping: bool) -> None:
        """``target = value`` for C text; an array is given by its first element."""
        if isinstance(type_, ArrayType):
            function = "memmove" if overlapping else "memcpy"
            size = f"sizeof({self.context.types.spelled(type_)})"
            self.writer.line(f"{function}({target}, {value}, {size});")
        else:
            self.writer.line(f"{target} = {value};")

    def zero(self, target: Place) -> None:
        """``zero(target)``."""
        type_ = target.type
        if isinstance(type_, ArrayType) and type_.size is None and self.context.is_slice(target):
            text = self.at(target, 0)
            self.writer.line(f"memset({text}.data, 0, {text}.size * sizeof *{text}.data);")
        elif isinstance(type_, ArrayType):
            size = f"sizeof({self.context.types.spelled(type_)})"
            self.writer.line(f"memset({self.destination(target)}, 0, {size});")
        elif isinstance(type_, StructType):
            zero = f"({self.context.types.base(type_)}){{0}}"
            self.writer.line(f"{self.destination(target)} = {zero};")
        else:
            self.writer.line(f"{self.destination(target)} = {self.zero_text(type_)};")

    def zero_text(self, type_: Type) -> str:
        """Zero as a number of that type."""
        return self.float_text(0.0) if type_ == FLOAT else "0"
