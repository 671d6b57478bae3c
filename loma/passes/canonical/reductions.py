"""Sums inside larger expressions become statements of their own.

What recognises sums (steps of products, matrix products, convolutions) so finds all of them, in
inference and where a gradient is wanted alike; see :mod:`loma.passes.canonical.hoisting`. A
reduction stays where a condition guards it that does not just compare indices, and where its
temporary would have another size in each iteration of a loop, or rows of several lengths.
"""

from __future__ import annotations

from loma.core.ir import IndexAssign, Module
from loma.core.walk import map_tensor_functions
from loma.passes.canonical.hoisting import InBlocks


def reductions(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    functions = {function.name: function for function in module.functions}
    return map_tensor_functions(module, lambda f: _Reductions(f, functions).run())


class _Reductions(InBlocks):
    def _index_assign(self, stmt: IndexAssign) -> IndexAssign:
        return self._hoisted_value(stmt)
