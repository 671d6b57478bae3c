"""Dead code: statements whose values nobody reads are dropped."""

from __future__ import annotations

from dataclasses import replace

from loma.ir import Function, Module
from loma.passes.liveness import CallModes, Liveness


def dead_code(module: Module) -> Module:
    """The module with dead statements removed from every tensor and scalar function."""
    modes = CallModes(module.functions)
    functions = tuple(_function(function, modes) for function in module.functions)
    return replace(module, functions=functions)


def _function(function: Function, modes: CallModes) -> Function:
    outs = frozenset(param.name for param in function.params if param.mode == "Out")
    body, _ = Liveness(modes).block(function.body, outs)
    return replace(function, body=body)
