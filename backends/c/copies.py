"""Assignments of whole values: numbers and structs with ``=``, arrays byte by byte."""

from __future__ import annotations

from loma import errors
from loma.backends.c.context import FunctionContext
from loma.backends.c.expressions import Expressions
from loma.backends.cfamily import expressions as c
from loma.backends.cfamily.writer import Writer
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

    def evaluate(self, expression: c.Expression) -> None:
        """An expression as a statement."""
        self.writer.line(f"{c.text(expression)};")

    def define(self, declared: str, value: c.Expression | None = None) -> None:
        """A declaration, with a value if there is one."""
        given = "" if value is None else f" = {c.item_text(value)}"
        self.writer.line(f"{declared}{given};")

    def assign(self, target: Place, value: Expr) -> None:
        """``target = value``, also where the two overlap."""
        overlapping = (
            isinstance(target.type, ArrayType)
            and isinstance(value, Var | Index | Member)
            and root(target) == root(value)
        )
        self.copy(self.destination(target), value, target.type, overlapping=overlapping)

    def destination(self, target: Place) -> c.Expression:
        """A place as the target of a copy."""
        if isinstance(target.type, ArrayType):
            if target.type.size is None:
                raise errors.BackendLacksOperator(
                    f"'{print_expr(target)}' has no known length, so it cannot be assigned as a "
                    "whole",
                    self.span,
                    hint="assign its elements in a loop",
                )
            return self.first(target)
        return self.expression(target)

    def copy(
        self, target: c.Expression, value: Expr, type_: Type, *, overlapping: bool = False
    ) -> None:
        is_array = isinstance(type_, ArrayType)
        found = self.first(value) if is_array else self.value(value, type_)
        self.store(target, found, type_, overlapping=overlapping)

    def store(
        self, target: c.Expression, value: c.Expression, type_: Type, *, overlapping: bool = False
    ) -> None:
        """``target = value`` in C; an array is given by its first element."""
        if isinstance(type_, ArrayType):
            function = "memmove" if overlapping else "memcpy"
            self._on_bytes(function, target, value, self._size(type_))
        else:
            self.evaluate(c.Binary("=", target, value))

    def _on_bytes(self, function: str, *args: c.Expression) -> None:
        """A call of a function that works on memory."""
        self.context.module.helpers.add("<string.h>")
        self.evaluate(c.call(function, *args))

    def _size(self, type_: Type) -> c.Expression:
        return c.call("sizeof", c.Token(self.context.types.spelled(type_)))

    def zero(self, target: Place) -> None:
        """``zero(target)``."""
        type_ = target.type
        if isinstance(type_, ArrayType) and type_.size is None and self.context.is_slice(target):
            array = self.expression(target)
            data, count = c.Member(array, "data"), c.Member(array, "size")
            element = c.Unary("sizeof", c.dereference(data))
            self._on_bytes("memset", data, c.number(0), c.Binary("*", count, element))
        elif isinstance(type_, ArrayType):
            self._on_bytes("memset", self.destination(target), c.number(0), self._size(type_))
        else:
            self.evaluate(c.Binary("=", self.destination(target), self._zero(type_)))

    def _zero(self, type_: Type) -> c.Expression:
        """Zero as a number or a struct of that type."""
        if isinstance(type_, StructType):
            return c.Braces(f"({self.context.types.base(type_)})", (c.number(0),))
        return self.zero_number(type_)

    def zero_number(self, type_: Type) -> c.Expression:
        return self.float_constant(0.0) if type_ == FLOAT else c.number(0)
