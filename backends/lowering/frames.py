"""What the lowering of a statement keeps for one loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from loma.backends.schedule.access import Access
from loma.backends.schedule.ir import Node
from loma.core.ir import (
    ArrayType, Call, Expr, Index, IntConst, Module, Pop, Push, Reduce, Var, While,
)  # fmt: skip
from loma.core.ops import may_divide_by_zero
from loma.core.walk import expressions, statements, walk

Variant = Literal["plain", "inside", "border", "masked"]


@dataclass(slots=True)
class Frame:
    """The innermost loop that an expression stands in. ``head`` goes before the loop, ``body`` into
    it before the expression; ``loads`` says that the head reads elements, so that it may run only
    when the loop has an iteration."""

    inner: str | None
    head: list[Node] = field(default_factory=list)
    body: list[Node] = field(default_factory=list)
    known: dict[Expr, Var] = field(default_factory=dict)
    loads: bool = False
    variant: Variant = "plain"
    masks: list[tuple[Access, Var]] = field(default_factory=list)  # "masked": each one's stretch
    guards: int = 0
    reductions: dict[Reduce, Expr] = field(default_factory=dict)  # what head and body have computed

    def start_variant(self, variant: Variant) -> None:
        """Begins the body anew, for a loop of its own."""
        self.body, self.variant = [], variant
        self.reductions.clear()

    def mask(self, access: Access) -> Var | None:
        return next((stretch for known, stretch in self.masks if known == access), None)


def may_throw(expr: Expr, module: Module) -> bool:
    """Whether evaluating the expression can end in an error: an int division or a subscript, or a
    loop with a bound or a stack in a function that it calls. Errors may not leave an ``omp simd``
    loop."""
    for node in walk(expr):
        if may_divide_by_zero(node):
            return True
        match node:
            case Index(array, (subscript,)) if isinstance(array.type, ArrayType):
                if not _is_inside(subscript, array.type):
                    return True
            case Call(name):
                for stmt in statements(module.function(name).body):
                    if isinstance(stmt, While | Push | Pop):
                        return True
                    if any(may_throw(own, module) for own in expressions(stmt)):
                        return True
            case _:
                continue
    return False


def _is_inside(subscript: Expr, array: ArrayType) -> bool:
    return (
        isinstance(subscript, IntConst)
        and array.size is not None
        and 0 <= subscript.value < array.size
    )
