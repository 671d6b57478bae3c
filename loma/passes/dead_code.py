"""Dead code: statements whose values nobody reads are dropped."""

from __future__ import annotations

from loma.core.ir import Function, Module, replace
from loma.core.walk import map_tensor_functions
from loma.passes.liveness import CallModes, Liveness


def dead_code(module: Module) -> Module:
    """The module with dead statements removed from its tensor functions.

    Scalar functions stay as they are: a loop whose values nobody reads may still run too often, and
    that is an error that the program is owed.
    """
    modes = CallModes(module.functions)

    def alive(function: Function) -> Function:
        outs = frozenset(param.name for param in function.params if param.mode == "Out")
        body, _ = Liveness(modes).block(function.body, outs)
        return replace(function, body=body)

    return map_tensor_functions(module, alive)
