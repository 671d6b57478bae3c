"""Functions as hosts call them: with structs by value, as the C ABI says, and by pointer.

The *entry* of a function has the arguments of the function, a pointer to each struct among them,
and after them a pointer to where each result goes, unless the only one is a number. Where structs
are large it is what a call runs, and the function itself only passes pointers on.
"""

from __future__ import annotations

from typing import Any

from loma.backends.c.context import FunctionContext, is_by_value, returns_struct
from loma.backends.cfamily import expressions as c
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
        types.declare_pointer(param.type, context.passed(param.name))
        if pointers and is_by_value(param)
        else types.param(param, context.name(param.name))
        for param in context.function.params
    ]


def result_params(context: FunctionContext, names: list[str]) -> list[str]:
    """The pointers to results of those names, as C declares them."""
    pairs = zip(names, context.function.results, strict=bool(names))
    return [context.types.declare_pointer(type_, name) for name, type_ in pairs]


def _passed_on(context: FunctionContext, pointers: bool) -> tuple[list[c.Expression], list[str]]:
    """The arguments of a call that passes everything on, and how its function declares them: with
    pointers to structs, or else the function that is called has those."""
    function = context.function
    declared = params(context, pointers)
    arguments: list[c.Expression] = []
    for param in function.params:
        name = c.Token(context.name(param.name))
        if is_by_value(param):
            arguments.append(c.dereference(name) if pointers else c.address_of(name))
        else:
            arguments.append(name)
    if function.simd:
        items = context.fresh("items")
        arguments.append(c.Token(items))
        declared.append(f"int {items}")
    return arguments, declared


def entry(context: FunctionContext, result: str) -> dict[str, Any]:
    """An entry that calls the function; what the template prints. ``result`` is the C type that
    the function returns."""
    function = context.function
    symbol = context.module.names.functions[function.name]
    arguments, declared = _passed_on(context, pointers=True)
    names = [context.fresh("result") for _ in function.results]
    call = c.call(symbol, *arguments)
    lines = [f"return {c.text(call)};" if function.results else f"{c.text(call)};"]
    places = [c.dereference(c.Token(name)) for name in names]
    if not returns_struct(function.results):
        names = []
    elif len(names) == 1:
        lines = [f"{c.text(c.Binary('=', places[0], call))};"]
    else:
        results = context.fresh("results")
        lines = [f"{result} {results} = {c.text(call)};"]
        for k, place in enumerate(places):
            value = c.Member(c.Token(results), f"value_{k}")
            lines.append(f"{c.text(c.Binary('=', place, value))};")
    return {
        "name": entry_symbol(function, symbol),
        "result": "void" if names else result,
        "params": [*declared, *result_params(context, names)],
        "lines": lines,
    }


def by_value(context: FunctionContext, result: str) -> dict[str, Any]:
    """A function that calls its entry."""
    function = context.function
    symbol = context.module.names.functions[function.name]
    arguments, declared = _passed_on(context, pointers=False)
    name = context.fresh("result")
    made = c.Token(name)
    if len(function.results) > 1:
        members = (c.Member(made, f"value_{k}") for k in range(len(function.results)))
        arguments += map(c.address_of, members)
    elif returns_struct(function.results):
        arguments.append(c.address_of(made))
    called = entry_symbol(function, symbol)
    assert called is not None
    call = c.text(c.call(called, *arguments))
    lines = [f"return {call};" if function.results else f"{call};"]
    if returns_struct(function.results):
        lines = [f"{result} {name};", f"{call};", f"return {name};"]
    return {"name": symbol, "result": result, "params": declared, "lines": lines}
