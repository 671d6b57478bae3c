"""What Python needs to know about scalar functions and structs, as JSON values."""

from __future__ import annotations

from typing import Any

from loma.core.ir import (
    INT, ArrayType, FloatType, Function, IntType, Module, Param, StructType, Type, default_values,
)  # fmt: skip
from loma.core.names import Names
from loma.core.printer import print_type


def type_record(type_: Type) -> list[Any]:
    """See :mod:`loma.structs`; AssertionError for what no argument, result or member can be."""
    match type_:
        case IntType():
            return ["int"]
        case FloatType():
            return ["float"]
        case StructType(name):
            return ["struct", name]
        case ArrayType(element, size):
            return ["array", type_record(element), size]
        case _:
            raise AssertionError(type_)


def struct_records(module: Module) -> list[Any]:
    """Parts first, as in the module."""
    return [
        [struct.name, [[name, type_record(type_)] for name, type_ in struct.members]]
        for struct in module.structs
    ]


def function_record(function: Function) -> dict[str, Any]:
    """``params`` are those that a caller passes, ``all_params`` those of the generated function.

    The role of a parameter is "In", "Out", "Adjoint" (no caller passes it: it starts at zero and
    is a result), "Copy" (the function gets a copy, which it may change) or "Items", the number of
    work items.
    """
    defaults = default_values(function)
    params = [_parameter(param, _role(function, param)) for param in function.params]
    for param in params:
        if param["name"] in defaults:
            param["default"] = defaults[param["name"]]
    if function.simd:
        name = Names(param.name for param in function.params).fresh("items")
        params.append(_parameter(Param(name, INT, "In"), "Items"))
    passed = [param for param in params if param["role"] != "Adjoint"]
    adjoints = [p.type for p in function.params if _role(function, p) == "Adjoint"]
    return {
        "name": function.name,
        "layer": "scalar",
        "doc": function.doc,
        "params": passed,
        "all_params": params,
        "results": [type_record(type_) for type_ in function.results],
        "result_types": [print_type(type_) for type_ in (*adjoints, *function.results)],
        "adjoints": bool(adjoints),
    }


def _parameter(param: Param, role: str) -> dict[str, Any]:
    return {
        "name": param.name,
        "type": print_type(param.type),
        "record": type_record(param.type),
        "mode": "In" if role == "Copy" else param.mode,
        "role": role,
    }


def _role(function: Function, param: Param) -> str:
    """All ``Out`` arguments of a reverse derivative are adjoints that it adds to, but for those
    that it uses up."""
    if param.name in function.used_up:
        return "Out" if param.name in function.given_back else "Copy"
    return "Adjoint" if param.mode == "Out" and function.primal is not None else param.mode
