"""Modules as C text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from loma import cache
from loma.backends.c.context import ModuleContext
from loma.backends.c.functions import entry_symbol, lower_function
from loma.backends.c.options import Options
from loma.backends.cfamily.identifiers import file_stem
from loma.backends.cfamily.source import GeneratedSource, environment
from loma.backends.scalar.records import function_record, struct_records
from loma.core.ir import Function, Module, is_tensor_function
from loma.runtime_errors import Kind

TEMPLATES = Path(__file__).resolve().parent / "templates"


def generate(module: Module, options: Options = Options()) -> GeneratedSource:  # noqa: B008
    """The module as one C file.

    ``metadata`` has the structs and functions as :mod:`loma.backends.scalar.records` describes
    them. Each function also has its ``symbol`` in the object file, its C types, the symbol of its
    ``entry`` (see :mod:`loma.backends.c.functions`; None where it has none), and whether it is
    ``fallible``: then its host asks ``loma_error_take`` after each call.

    Raises BackendLacksOperator for a function that works on tensors and for what C has no form for,
    SubscriptOutOfRange for a constant subscript outside its array.
    """
    context = ModuleContext(module, options)
    functions = [lower_function(function, context) for function in module.functions]
    text = file_text(module, context, functions)
    stem = file_stem(module.name)
    return GeneratedSource(
        name=f"loma_{stem}_{cache.digest([text])[:16]}",
        files=((f"{stem}.c", text),),
        flags=("-fopenmp",) if "openmp" in context.helpers else (),
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
        "entry": entry_symbol(function, symbol) if has_entry else None,
        "fallible": function.name in context.fallible,
        "c_params": [types.spelled_param(param) for param in function.params],
        "c_results": [types.base(type_) for type_ in function.results],
    }


# ------------------------------------------------------------------------------------------ file


def file_text(module: Module, context: ModuleContext, functions: list[str]) -> str:
    helpers = _helpers(context)
    text = environment(TEMPLATES).get_template("module.c.j2").render(
        path=Path(module.path).name,
        includes=sorted({"<math.h>", *(name for name in context.helpers if name[0] == "<")}),
        structs=_structs(module, context),
        helpers=helpers,
        functions=functions or ["typedef int loma_no_functions;\n"],
    )  # fmt: skip
    return re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n"


def _helpers(context: ModuleContext) -> str:
    """The helpers that functions call, with what these need in turn, which is noted."""
    text = (TEMPLATES / "helpers.c.j2").read_text("utf-8")
    _, *sections = re.split(r"^### (.+)\n", text, flags=re.MULTILINE)
    found = list[str]()
    for head, body in zip(sections[-2::-2], sections[::-2], strict=True):
        name, *needs = head.split()
        if name in context.helpers:
            context.helpers.update(needs)
            found.append(body.strip("\n"))
    real = context.options.real
    return environment(TEMPLATES).from_string("\n\n".join(reversed(found))).render(
        helpers=context.helpers,
        real=real,
        f="f" if real == "float" else "",
        kind={kind.name: int(kind) for kind in Kind},
        kinds=", ".join(f"{int(kind)} {kind.name.lower().replace('_', ' ')}" for kind in Kind),
    )  # fmt: skip


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
