"""Modules and functions as C text.

A function that can fail is a static body, which other functions call, and an exported function that
calls the body and comes back from its first failure: see ``templates/helpers.c.j2``. A @simd
function is a body for one work item and an exported loop over the items.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from loma import cache, errors
from loma.backends.c import entries
from loma.backends.c.context import FunctionContext, ModuleContext, returns_struct
from loma.backends.c.options import Options
from loma.backends.c.statements import Statements
from loma.backends.cfamily.identifiers import file_stem
from loma.backends.cfamily.source import GeneratedSource, environment
from loma.backends.cfamily.writer import Writer
from loma.backends.scalar.records import function_record, struct_records
from loma.core.ir import Declare, Function, Module, StackType, is_tensor_function
from loma.core.printer import print_function, print_type
from loma.core.walk import statements
from loma.runtime_errors import Kind

TEMPLATES = Path(__file__).resolve().parent / "templates"

# What a helper calls, or is useless without.
_NEEDS: Mapping[str, tuple[str, ...]] = {
    "allocate": ("fail", "memory"), "grown": ("fail", "memory"), "release": ("memory",),
    "at": ("fail",), "within": ("fail",), "nonzero": ("fail",), "push": ("fail",), "pop": ("fail",),
    "apart": ("fail",), "polygamma": ("digamma",), "counted": ("fail", "length"),
}  # fmt: skip


def generate(module: Module, options: Options = Options()) -> GeneratedSource:  # noqa: B008
    """The module as one C file.

    ``metadata`` has the structs and functions as :mod:`loma.backends.scalar.records` describes
    them. Each function also has its ``symbol`` in the object file, its C types (several results
    are a struct with members ``value_0``, ...), the symbol of its ``entry`` (see
    :mod:`loma.backends.c.entries`; None where it has none), and whether it is ``fallible``: then
    its host asks ``loma_error_take`` after each call. Raises BackendLacksOperator for a
    function that works on tensors and for what C has no form for, SubscriptOutOfRange for a
    constant subscript outside its array.
    """
    context = ModuleContext(module, options)
    functions = [lower_function(function, context) for function in module.functions]
    text = file_text(module, context, functions)
    stem = file_stem(module.name)
    return GeneratedSource(
        name=f"loma_{stem}_{cache.digest([text])[:16]}",
        files=((f"{stem}.c", text),),
        metadata={
            "name": module.name,
            "structs": struct_records(module),
            "functions": [_record(function, context) for function in module.functions],
        },
    )


def function_text(module: Module, name: str, options: Options = Options()) -> str:  # noqa: B008
    """The C text of one function of the module; KeyError when there is none."""
    wanted = module.function(name)
    context = ModuleContext(module, options)
    for function in module.functions:
        if function is wanted:
            break
        if not is_tensor_function(function):
            lower_function(function, context)
    return lower_function(wanted, context)


def _record(function: Function, context: ModuleContext) -> dict[str, Any]:
    types, symbol = context.types, context.names.functions[function.name]
    has_entry = context.options.entries or function.name in context.by_pointer
    return function_record(function) | {
        "symbol": symbol,
        "entry": entries.entry_symbol(function, symbol) if has_entry else None,
        "fallible": function.name in context.fallible,
        "c_params": [types.spelled_param(param) for param in function.params],
        "c_results": [types.base(type_) for type_ in function.results],
        "c_result": context.results.get(function.name) or _result_type(function, context),
    }


# ------------------------------------------------------------------------------------------ file


def file_text(module: Module, context: ModuleContext, functions: list[str]) -> str:
    for name in tuple(context.helpers):
        context.helpers.update(_NEEDS.get(name, ()))
    helpers = environment(TEMPLATES).get_template("helpers.c.j2").render(
        helpers=context.helpers,
        real=context.options.real,
        f="f" if context.options.real == "float" else "",
        kind={kind.name: int(kind) for kind in Kind},
        kinds=", ".join(f"{int(kind)} {kind.name.lower().replace('_', ' ')}" for kind in Kind),
    )  # fmt: skip
    text = environment(TEMPLATES).get_template("module.c.j2").render(
        path=Path(module.path).name,
        includes=_includes(helpers + "".join(functions)),
        structs=_structs(module, context),
        helpers=helpers,
        functions=functions or ["typedef int loma_no_functions;\n"],
    )  # fmt: skip
    return re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n"


def _includes(text: str) -> list[str]:
    found = {"math"}
    if "INT_MAX" in text or "INT_MIN" in text:
        found.add("limits")
    if "setjmp(" in text:
        found.add("setjmp")
    if "loma_blocks" in text:
        found.add("stdlib")
    if re.search(r"\bmem(cpy|move|set)\(", text):
        found.add("string")
    return sorted(found)


def _structs(module: Module, context: ModuleContext) -> list[dict[str, Any]]:
    """Structs of the program, of several results, and of arrays with their sizes, parts first."""
    types, found = context.types, list[dict[str, Any]]()
    done: set[str] = set()

    def add_slice(name: str) -> None:
        if name not in done:
            done.add(name)
            found.append({"name": name, "tag": "", "members": [types.slices[name], "int size"]})

    for struct in module.structs:
        members = context.names.members[struct.name]
        declared = [types.declare(type_, members[name]) for name, type_ in struct.members]
        for _, type_ in struct.members:
            for name in types.slices_of(type_):
                add_slice(name)
        name = context.names.structs[struct.name]
        # C has no struct without members
        found.append({"name": name, "tag": name, "members": declared or ["int loma_nothing"]})
    for name, declared in context.result_structs.items():
        found.append({"name": name, "tag": name, "members": declared})
    for name in tuple(types.slices):
        add_slice(name)
    return found


# -------------------------------------------------------------------------------------- functions


def lower_function(function: Function, module: ModuleContext) -> str:
    if is_tensor_function(function):
        raise errors.BackendLacksOperator(
            f"the C backend has no tensors: '{function.name}' works on them", function.span,
            hint="compile it with loma.compile",
        )  # fmt: skip
    context = FunctionContext(module, function)
    symbol = module.names.functions[function.name]
    result = _result(context)
    writer = Writer(1)
    Statements(context, writer).body()
    context.note_stack()
    pointers = context.by_pointer
    entry = entries.entry_symbol(function, symbol)
    params = entries.params(context, pointers)
    names = [context.passed(param.name) for param in function.params]
    results = entries.result_params(context, context.result_pointers)
    landing = "void" if context.result_pointers else result
    values: dict[str, Any] = {
        "comment": _comment(function, context),
        "symbol": entry if pointers else symbol,
        "result": landing,
        "body_result": f"{result} *" if len(context.result_pointers) == 1 else f"{landing} ",
        "nothing": _nothing(function, landing),
        "params": [*params, *results],
        "arguments": [*names, *context.result_pointers],
        "result_pointers": context.result_pointers,
        "body": writer.text() or "",
        "simd": function.simd,
        "fallible": context.fails,
        "has_body": context.fails or pointers,
        "noinline": "__attribute__((noinline)) " if context.fails else "",
        "body_name": symbol,
        "host": None,
    }
    if context.fails:
        module.fallible.add(function.name)
    if context.fails or pointers:
        values["body_name"] = context.fresh_in_file(f"{symbol}_body")
        module.called[function.name] = values["body_name"]
    if function.simd:
        values |= _items(context, params, names, symbol)
    if pointers:
        values["host"] = entries.by_value(context, result)
    elif entry is not None and module.options.entries:
        values["host"] = entries.entry(context, result)
    return environment(TEMPLATES).get_template("function.c.j2").render(values)


def _items(
    context: FunctionContext, params: list[str], names: list[str], symbol: str
) -> dict[str, Any]:
    """What a @simd function's loop over the items is made of."""
    module, item = context.module, context.item
    module.helpers.add("openmp")
    fresh = {
        key: context.fresh(key)
        for key in ("items", "first", "failure", "start", "end", "chunk", "chunks")
    }
    start, end, first, failure = (fresh[key] for key in ("start", "end", "first", "failure"))
    tail = [f"int {start}", f"int {end}", f"int *{first}", f"loma_error *{failure}"]
    values: dict[str, Any] = fresh | {
        "item": item,
        "params": [*params, f"int {item}"],
        "host_params": [*params, f"int {fresh['items']}"],
        "arguments": [*names, item],
        "chunk_params": [*params, *tail],
        "chunk_arguments": [*names, start, end, f"&{first}", f"&{failure}"],
        # in the loop over the items it is inlined
        "noinline": "",
    }
    if context.fails:
        values["chunk_name"] = context.fresh_in_file(f"{symbol}_chunk")
        values["noinline"] = "__attribute__((noinline)) "
    elif not context.by_pointer:
        values["body_name"] = context.fresh_in_file(f"{symbol}_body")
    return values


def _result_type(function: Function, module: ModuleContext) -> str:
    return module.types.base(function.results[0]) if function.results else "void"


def _result(context: FunctionContext) -> str:
    """The C type of the result; several results are a struct, declared now."""
    function, module = context.function, context.module
    if len(function.results) > 1:
        name = context.fresh_in_file(f"{module.names.functions[function.name]}_results")
        module.results[function.name] = name
        module.result_structs[name] = [
            module.types.declare(type_, f"value_{k}") for k, type_ in enumerate(function.results)
        ]
        return name
    return _result_type(function, module)


def _nothing(function: Function, result: str) -> str:
    """What the exported function returns after a failure."""
    if result == "void":
        return ""
    return f" ({result}){{0}}" if returns_struct(function.results) else " 0"


def _comment(function: Function, context: FunctionContext) -> list[str]:
    """The function's first lines in loma, and what its tape takes."""
    head = print_function(replace(function, body=(), doc="")).split("\n")
    end = next(k for k, line in enumerate(head) if line.endswith(":"))
    stacks = [
        (stmt.target.name, stmt.target.type)
        for stmt in statements(function.body)
        if isinstance(stmt, Declare) and isinstance(stmt.target.type, StackType)
    ]
    return [*head[: end + 1], *_tape(dict(stacks), context)]


def _tape(stacks: dict[str, Any], context: FunctionContext) -> list[str]:
    if not stacks:
        return []
    known = [type_ for type_ in stacks.values() if type_.capacity is not None]
    total = sum(type_.capacity * context.types.bytes(type_.element) for type_ in known)
    lines = [f"Tape: at most {total} bytes"] if known else []
    for name, type_ in stacks.items():
        if type_.capacity is None:
            lines.append(f"Tape: '{name}' grows without a known bound ({print_type(type_)})")
    return lines
