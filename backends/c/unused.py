"""Variables that a C compiler would warn about: their values are never used."""

from __future__ import annotations

from loma.core.effects import effects
from loma.core.ir import ArrayType, Function
from loma.core.walk import expressions, statements, variables


def unread(function: Function) -> frozenset[str]:
    """Arguments and variables that the function writes at most.

    A write through a pointer is a use of the pointer.
    """
    mentioned: set[str] = set()
    read: set[str] = set()
    for stmt in statements(function.body):
        for expr in expressions(stmt):
            mentioned.update(variables(expr))
        for expr in effects(stmt).reads:
            read.update(variables(expr))
    for param in function.params:
        if param.name in mentioned and (param.mode == "Out" or isinstance(param.type, ArrayType)):
            read.add(param.name)
        mentioned.add(param.name)
    return frozenset(mentioned - read)
