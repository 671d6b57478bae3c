"""Variables, elements, members: what C can point to."""

from __future__ import annotations

from abc import ABC, abstractmethod

from loma import errors
from loma.backends.c.context import FunctionContext
from loma.backends.c.ranges import bounds, constant
from loma.backends.cfamily import expressions as c
from loma.core.ir import ArrayType, Expr, Index, Member, Param, Type, Var
from loma.core.printer import print_expr


class Places(ABC):
    """Places as C expressions."""

    def __init__(self, context: FunctionContext) -> None:
        self.context = context

    @abstractmethod
    def expression(self, expr: Expr) -> c.Expression:
        """Any expression."""

    @abstractmethod
    def value(self, expr: Expr, type_: Type | None = None) -> c.Expression:
        """An expression, converted to ``type_`` if that is given."""

    # ------------------------------------------------------------------------------------ places

    def variable(self, var: Var) -> c.Expression:
        name = c.Token(self.context.name(var.name))
        return c.dereference(name) if var.name in self.context.pointers else name

    def member(self, expr: Member) -> c.Expression:
        name = self.context.member(expr.base.type, expr.name)
        return c.Member(self.expression(expr.base), name)

    def element(self, expr: Index) -> c.Expression:
        """``a[i]``, the subscript checked where its array's size is known and it may be wrong."""
        base, (subscript,) = expr.base, expr.subscripts
        assert isinstance(base.type, ArrayType)
        size, is_slice = base.type.size, self.context.is_slice(base)
        known = constant(subscript)
        if known is not None:
            self._check_constant(expr, known, size)
        position = self.value(subscript)
        if not self._is_inside(subscript, size) and (size is not None or is_slice):
            array = self.expression(base)
            bound = c.Member(array, "size") if size is None else c.number(size)
            check = self.context.failing("at")
            position = c.call(check, position, bound, *self.context.line_args(expr.span))
        return c.Subscript(self.first(base), position)

    def _is_inside(self, subscript: Expr, size: int | None) -> bool:
        found = bounds(subscript, self.context.ranges)
        return found is not None and size is not None and found[0] >= 0 and found[1] < size

    def _check_constant(self, expr: Index, position: int, size: int | None) -> None:
        if position < 0 or (size is not None and position >= size):
            raise errors.SubscriptOutOfRange(
                f"the subscript {position} is outside '{print_expr(expr.base)}'"
                + (f", of {size} elements" if size is not None else ""),
                expr.span,
            )

    # ------------------------------------------------------------------------------- arrays, calls

    def first(self, array: Expr) -> c.Expression:
        """A pointer to the array's first element, or the array itself, which decays to one."""
        found = self.expression(array)
        return c.Member(found, "data") if self.context.is_slice(array) else found

    def argument(self, expr: Expr, param: Param) -> c.Expression:
        """What a call passes for a parameter."""
        if isinstance(param.type, ArrayType):
            array = self.expression(expr)
            if self.context.module.options.arrays == "pointers" or self.context.is_slice(expr):
                return array
            assert isinstance(expr.type, ArrayType)
            assert expr.type.size is not None
            slice_ = self.context.types.slice(expr.type.element)
            return c.Braces(f"({slice_})", (array, c.number(expr.type.size)))
        if param.mode == "Out":
            return c.address_of(self.expression(expr))
        return self.value(expr, param.type)
