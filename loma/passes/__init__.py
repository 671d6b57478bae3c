"""IR to IR: each pass is a function from a module to an equivalent module."""

from __future__ import annotations

from loma.ir import Module
from loma.passes.dead_code import dead_code
from loma.passes.first_write import first_write

__all__ = ["dead_code", "first_write", "optimise"]


def optimise(module: Module) -> Module:
    """All passes, in order."""
    return dead_code(first_write(module))
