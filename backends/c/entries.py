"""Functions as hosts call them that pass no structs by value: with pointers to them.

An entry has the arguments of its function, a pointer to each struct among them, and after them a
pointer to where each result goes, unless the only one is a number.
"""

from __future__ import annotations

from typing import Any

from loma.backends.c.context import FunctionContext
from loma.ir import Function, Param, StructType, Type


def is_by_value(param: Param) -> bool:
    """Whether an argument is a struct by value."""
    return param.mode == "In" and isinstance(param.type, StructType)


def returns_struct(results: tuple[Type, ...]) -> bool:
    """Whether C returns a struct: a struct of the program, or one of several results."""
    return len(results) > 1 or any(isinstance(type_, StructType) for type_ in results)


def entry_symbol(function: Function, symbol: str) -> str | None:
    """The C name of the function's entry; None where the function itself serves."""
    has = any(map(is_by_value, function.params)) or returns_struct(function.results)
    return f"loma_entry_{symbol}" if has else None


def entry(context: FunctionContext, result: str, params: list[str]) -> dict[str, Any] | None:
    """What the template prints; ``params`` are the function's own as the host passes them."""
    function, types = context.function, context.types
    symbol = context.module.names.functions[function.name]
    name = entry_symbol(function, symbol)
    if name is None:
        return None
    names = [context.name(param.name) for param in function.params]
    arguments = [
        f"*{text}" if is_by_value(param) else text
        for text, param in zip(names, function.params, strict=True)
    ]
    declared = [
        types.declare(param.type, f"*{text}") if is_by_value(param) else own
        for text, param, own in zip(names, function.params, params, strict=False)
    ]
    if function.simd:
        arguments.append(items := context.fresh("items"))
        declared.append(f"int {items}")
    targets: list[str] = []
    if returns_struct(function.results):
        for type_ in function.results:
            targets.append(context.fresh("result"))
            declared.append(types.declare(type_, f"*{targets[-1]}"))
    call = f"{symbol}({', '.join(arguments)})"
    lines = [f"return {call};" if function.results else f"{call};"]
    if len(targets) == 1:
        lines = [f"*{targets[0]} = {call};"]
    elif targets:
        results = context.fresh("results")
        lines = [f"{result} {results} = {call};"]
        lines += [f"*{target} = {results}.value_{k};" for k, target in enumerate(targets)]
    return {
        "name": name,
        "result": "void" if targets else result,
        "params": declared,
        "lines": lines,
    }
