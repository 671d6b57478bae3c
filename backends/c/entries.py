"""Functions as hosts call them: with structs by value, as the C ABI says, and by pointer.

The *entry* of a function has the arguments of the function, a pointer to each struct among them,
and after them a pointer to where each result goes, unless the only one is a number. Where structs
are large it is what a call runs, and the function itself only passes pointers on.
"""

from __future__ import annotations

from typing import Any

from loma.backends.c.context import FunctionContext, is_by_value, returns_struct
from loma.core.ir import Function


def entry_symbol(function: Function, symbol: str) -> str | None:
    """The C name of the function's entry; None where the function itself serves."""
    has = any(map(is_by_value, function.params)) or returns_struct(function.results)
    return f"loma_entry_{symbol}" if has else None


def params(context: FunctionContext, pointers: bool) -> list[str]:
    """The arguments as C declares them, structs as pointers to them or by value. The pointers to
    results are not among them."""
    types = context.types
    return [
        types.declare(param.type, f"*{context.passed(param.name)}")
        if pointers and is_by_value(param)
        else types.param(param, context.name(param.name))
        for param in context.function.params
    ]


def targets(context: FunctionContext, names: list[str]) -> list[str]:
    """The pointers to results of those names, as C declares them."""
    pairs = zip(names, context.function.results, strict=bool(names))
    return [context.types.declare(type_, f"*{name}") for name, type_ in pairs]


def _passed_on(context: FunctionContext, sign: str) -> tuple[list[str], list[str]]:
    """The arguments of a call that passes everything on, and how its function declares them: with
    ``*`` that has pointers to structs, and with ``&`` the function that is called has."""
    function = context.function
    arguments = [f"{sign * is_by_value(p)}{context.name(p.name)}" for p in function.params]
    declared = params(context, pointers=sign == "*")
    if function.simd:
        arguments.append(items := context.fresh("items"))
        declared.append(f"int {items}")
    return arguments, declared


def entry(context: FunctionContext, result: str) -> dict[str, Any]:
    """An entry that calls the function; what the template prints. ``result`` is the C type that
    the function returns."""
    function = context.function
    symbol = context.module.names.functions[function.name]
    arguments, declared = _passed_on(context, "*")
    names = [context.fresh("result") for _ in function.results]
    call = f"{symbol}({', '.join(arguments)})"
    lines = [f"return {call};" if function.results else f"{call};"]
    if not returns_struct(function.results):
        names = []
    elif len(names) == 1:
        lines = [f"*{names[0]} = {call};"]
    else:
        results = context.fresh("results")
        lines = [f"{result} {results} = {call};"]
        lines += [f"*{name} = {results}.value_{k};" for k, name in enumerate(names)]
    return {
        "name": entry_symbol(function, symbol),
        "result": "void" if names else result,
        "params": [*declared, *targets(context, names)],
        "lines": lines,
    }


def by_value(context: FunctionContext, result: str) -> dict[str, Any]:
    """A function that calls its entry."""
    function = context.function
    symbol = context.module.names.functions[function.name]
    arguments, declared = _passed_on(context, "&")
    name = context.fresh("result")
    if len(function.results) > 1:
        arguments += [f"&{name}.value_{k}" for k in range(len(function.results))]
    elif returns_struct(function.results):
        arguments.append(f"&{name}")
    call = f"{entry_symbol(function, symbol)}({', '.join(arguments)})"
    lines = [f"return {call};" if function.results else f"{call};"]
    if returns_struct(function.results):
        lines = [f"{result} {name};", f"{call};", f"return {name};"]
    return {"name": symbol, "result": result, "params": declared, "lines": lines}
