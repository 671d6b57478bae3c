"""The C file of a module's scalar functions, with an entry for each that Python may call.

All entries have one C type: they get pointers to the arguments' values, then to where the results
go. An array argument is a slice, ``{T *data; int size;}``, so that subscripts are checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from loma import cache
from loma.backends.cfamily.source import GeneratedSource
from loma.core.ir import Module

TAKE_FAILURE = "loma_error_take"  # of the generated file: tells this thread's failure, once


def entry_name(number: int) -> str:
    """Of the function with that number among those that Python may call."""
    return f"loma_entry_{number}"


def generate(module: Module, names: Sequence[str]) -> GeneratedSource:
    """The module as C; ``names`` are the functions that Python may call. Errors are those of
    :func:`loma.backends.c.generate`."""
    from loma.backends import c

    source = c.generate(module, c.Options(arrays="slices", entries=True))
    functions = {item["name"]: item for item in source.metadata["functions"]}
    entries = [_entry(number, functions[name]) for number, name in enumerate(names)]
    ((file, text),) = source.files
    text += "\n" + "".join(entries)
    stem, _, _ = source.name.rpartition("_")
    return replace(source, name=f"{stem}_{cache.digest([text])[:16]}", files=((file, text),))


def _entry(number: int, function: dict[str, Any]) -> str:
    """A function that Python calls. Names that begin with loma_ hide none of the program's."""
    params, types = function["all_params"], [*function["c_params"]]
    if len(types) < len(params):
        types.append("int")  # the number of work items
    arguments = []
    for slot, (param, type_) in enumerate(zip(params, types, strict=True)):
        is_pointer = param["mode"] == "Out" and param["record"][0] != "array"
        if is_pointer or param["record"][0] == "struct":
            arguments.append(f"loma_slots[{slot}]")
        else:
            arguments.append(f"*({type_} *)loma_slots[{slot}]")
    results = range(len(params), len(params) + len(function["c_results"]))
    is_number = len(results) == 1 and function["results"][0][0] != "struct"
    if not is_number:
        arguments += [f"loma_slots[{slot}]" for slot in results]
    call = f"{function['entry'] or function['symbol']}({', '.join(arguments)})"
    if is_number:
        call = f"*({function['c_results'][0]} *)loma_slots[{results[0]}] = {call}"
    unused = "" if "loma_slots" in call else "  (void)loma_slots;\n"
    return f"\nvoid {entry_name(number)}(void *const *loma_slots) {{\n{unused}  {call};\n}}\n"
