"""Variables, elements, members: what C can point to."""

from __future__ import annotations

from abc import ABC, abstractmethod

from loma import errors
from loma.backends.c.context import FunctionContext
from loma.backends.c.ranges import bounds, constant
from loma.core.ir import ArrayType, Expr, Index, Member, Param, Type, Var
from loma.core.printer import print_expr

# How tightly C text binds. gcc wants parentheses where C mixes the lower levels without.
TERNARY, OR, AND, COMPARE, SUM, PRODUCT, UNARY, POSTFIX = range(1, 9)
Text = tuple[str, int]


class Places(ABC):
    """The C text of places. Each method gives the text and how tightly it binds."""

    def __init__(self, context: FunctionContext) -> None:
        self.context = context

    @abstractmethod
    def render(self, expr: Expr) -> Text:
        """Any expression."""

    @abstractmethod
    def text(self, expr: Expr, type_: Type | None = None) -> str:
        """An expression that stands alone, converted to ``type_`` if that is given."""

    def at(self, expr: Expr, least: int) -> str:
        """The expression, in parentheses if it binds less tightly than ``least``."""
        text, level = self.render(expr)
        return text if level >= least else f"({text})"

    # ------------------------------------------------------------------------------------ places

    def variable(self, var: Var) -> Text:
        name = self.context.name(var.name)
        return (f"*{name}", UNARY) if var.name in self.context.pointers else (name, POSTFIX)

    def member(self, expr: Member) -> Text:
        base = expr.base
        struct = base.type
        name = self.context.member(struct, expr.name)
        if isinstance(base, Var) and base.name in self.context.pointers:
            return f"{self.context.name(base.name)}->{name}", POSTFIX
        return f"{self.at(base, POSTFIX)}.{name}", POSTFIX

    def element(self, expr: Index) -> Text:
        """``a[i]``, the subscript checked where its array's size is known and it may be wrong."""
        base, (subscript,) = expr.base, expr.subscripts
        assert isinstance(base.type, ArrayType)
        size = base.type.size
        position = constant(subscript)
        if position is not None:
            self._check_constant(expr, position, size)
        text = self.text(subscript)
        if not self._is_inside(subscript, size) and (size is not None or self._is_slice(base)):
            bound = str(size) if size is not None else f"{self.at(base, POSTFIX)}.size"
            check = self.context.failing("at")
            text = f"{check}({text}, {bound}, {self.context.place(expr.span)})"
        return f"{self.pointer(base)}[{text}]", POSTFIX

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

    # ------------------------------------------------------------------------- arrays, addresses

    def _is_slice(self, expr: Expr) -> bool:
        return self.context.is_slice(expr)

    def pointer(self, array: Expr) -> str:
        """A pointer to the array's first element, or the array itself, which decays to one."""
        text = self.at(array, POSTFIX)
        return f"{text}.data" if self._is_slice(array) else text

    def address(self, place: Expr) -> str:
        text, _ = self.render(place)
        return text[1:] if text.startswith("*") else f"&{text}"

    def argument(self, expr: Expr, param: Param) -> str:
        """What a call passes for a parameter."""
        if isinstance(param.type, ArrayType):
            text = self.at(expr, POSTFIX)
            if self.context.module.options.arrays == "pointers" or self._is_slice(expr):
                return text
            assert isinstance(expr.type, ArrayType)
            slice_ = self.context.types.slice(expr.type.element)
            return f"({slice_}){{{text}, {expr.type.size}}}"
        if param.mode == "Out":
            return self.address(expr)
        return self.text(expr, param.type)
