"""Runs scalar functions as compiled C, with the arguments and results of the interpreter.

Many modules can be merged into one file, because a C compiler takes most of its time to start.
"""

from __future__ import annotations

import ctypes
import dataclasses
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from loma import runtime_errors
from loma.ad import differentiate
from loma.backends.c import Options, build, generate
from loma.core.ir import (
    ArrayType, Call, FloatType, Function, IntType, MakeStruct, Module, Struct, StructType, Type,
)  # fmt: skip
from loma.core.verify import verify
from loma.foreign import Error
from loma.frontend import parse

Value = Any
DEFAULT = Options()
OPTIONS = (
    Options("double", "pointers"),
    Options("double", "slices"),
    Options("float", "pointers"),
    Options("float", "slices"),
    # every struct by pointer, and nothing on the C stack that may be elsewhere
    Options("double", "slices", by_value=0, stack=0),
)
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fwrapv")


def differentiated(text: str) -> Module:
    """The program with its derivatives, verified."""
    module = differentiate(parse(text))
    verify(module)
    return module


def compiled(text: str, *flags: str, name: str = "program") -> Path:
    """A shared library of C text, in a temporary folder that stays until the end of the run."""
    folder = tempfile.TemporaryDirectory(prefix="loma-test-")
    _folders.append(folder)
    source, made = Path(folder.name, f"{name}.c"), Path(folder.name, f"{name}.so")
    source.write_text(text, encoding="utf-8")
    command = [*build.detect().command, *flags, "-shared", "-fPIC", str(source), "-o", str(made)]
    done = subprocess.run([*command, "-lm"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{text}"
    return made


_folders: list[tempfile.TemporaryDirectory[str]] = []


class CProgram:
    """The functions of a module in C."""

    def __init__(
        self, module: Module, options: Options = DEFAULT, flags: Sequence[str] = ("-O1",)
    ) -> None:
        self.module = module
        self.options = options
        source = generate(module, dataclasses.replace(options, entries=True))
        self.text = source.text
        # A clang may have come without its OpenMP: then loops are serial.
        known = "-fopenmp" if build.openmp(build.detect().command) else "-Wno-unknown-pragmas"
        self.library = ctypes.CDLL(str(compiled(source.text, *STRICT, known, *flags)))
        self._records = {record["name"]: record for record in source.metadata["functions"]}
        self._structs: dict[str, Any] = {}
        for struct in module.structs:
            fields = [(name, self.ctype(type_)) for name, type_ in struct.members]
            fields = fields or [("loma_nothing", ctypes.c_int)]
            self._structs[struct.name] = type(
                struct.name, (ctypes.Structure,), {"_fields_": fields}
            )
        self._members = {struct.name: struct.members for struct in module.structs}

    def call(self, name: str, *args: Value) -> tuple[Value, ...]:
        """The results, then the final values of the Out arguments; see Interpreter.call."""
        function = self.module.function(name)
        given: list[Any] = []
        outs: list[tuple[Any, Type, Value]] = []
        items = args[len(function.params) :]
        for param, arg in zip(function.params, args, strict=False):
            if isinstance(param.type, ArrayType):
                memory = self._array(arg, param.type)
                given.append(self._travelling(memory, param.type))
            else:
                memory = self.value(arg, param.type)
                by_pointer = param.mode == "Out" or isinstance(param.type, StructType)
                given.append(ctypes.byref(memory) if by_pointer else memory)
            if param.mode == "Out":
                outs.append((memory, param.type, arg))
        call, types = self._function(function), function.results
        values = [self.ctype(type_)() for type_ in types if call.restype is None]
        value = call(*given, *items, *map(ctypes.byref, values))
        self._raise()
        results = [self.python(v, t) for v, t in zip(values or [value], types, strict=False)]
        return (*results, *(self.python(memory, t, arg) for memory, t, arg in outs))

    def _raise(self) -> None:
        if not any(record["fallible"] for record in self._records.values()):
            return
        error = Error()
        if self.library.loma_error_take(ctypes.byref(error)):
            place = error.function.decode(), error.line
            raise runtime_errors.exception(error.kind, *place, error.first, error.second)

    def _function(self, function: Function) -> Any:
        record = self._records[function.name]
        found = getattr(self.library, record["entry"] or record["symbol"])
        plain = len(function.results) == 1 and not isinstance(function.results[0], StructType)
        found.restype = self.ctype(function.results[0]) if plain else None
        return found

    # ------------------------------------------------------------------------------------ values

    def ctype(self, type_: Type) -> Any:
        match type_:
            case IntType():
                return ctypes.c_int
            case FloatType():
                return ctypes.c_float if self.options.real == "float" else ctypes.c_double
            case StructType(name):
                return self._structs[name]
            case ArrayType(element, None) if self.options.arrays == "slices":
                return self._slice(element)
            case ArrayType(element, None):
                return ctypes.POINTER(self.ctype(element))
            case ArrayType(element, size):
                return self.ctype(element) * size
            case _:
                raise AssertionError(type_)

    def _slice(self, element: Type) -> Any:
        key = f"slice {element}"
        if key not in self._structs:
            fields = [("data", ctypes.POINTER(self.ctype(element))), ("size", ctypes.c_int)]
            self._structs[key] = type("slice", (ctypes.Structure,), {"_fields_": fields})
        return self._structs[key]

    def value(self, value: Value, type_: Type) -> Any:
        """A ctypes object of that value."""
        match type_:
            case StructType(name):
                made = self._structs[name]()
                for member, t in self._members[name]:
                    setattr(made, member, self.value(value[member], t))
                return made
            case ArrayType(_, None):
                return self._travelling(self._array(value, type_), type_)
            case ArrayType():
                return self._array(value, type_)
            case _:
                return self.ctype(type_)(value)

    def _array(self, value: Value, type_: ArrayType) -> Any:
        items = [self.value(item, type_.element) for item in value]
        return (self.ctype(type_.element) * len(items))(*items)

    def _travelling(self, memory: Any, type_: ArrayType) -> Any:
        """An array as an argument, or as an element of an array of arrays."""
        pointer = ctypes.cast(memory, ctypes.POINTER(self.ctype(type_.element)))
        if self.options.arrays == "pointers":
            return pointer
        made = self._slice(type_.element)(pointer, len(memory))
        made.kept = memory
        return made

    def python(self, value: Any, type_: Type, like: Value = None) -> Value:
        """The value of a ctypes object; ``like`` has the lengths of arrays that are pointers."""
        match type_:
            case StructType(name):
                members = self._members[name]
                return {m: self.python(getattr(value, m), t, like and like[m]) for m, t in members}
            case ArrayType(element, size):
                size = size if like is None else len(like)
                items = value.data if hasattr(value, "data") else value
                size = len(items) if size is None else size
                likes = like or [None] * size
                return [self.python(items[k], element, likes[k]) for k in range(size)]
            case _:
                return value.value if isinstance(value, ctypes._SimpleCData) else value


# ----------------------------------------------------------------------------------------- merging


def merged(modules: Iterable[tuple[str, Module]]) -> Module:
    """One module of several, the names of functions and structs after a prefix each."""
    structs: dict[str, Struct] = {}
    functions: list[Function] = []
    for prefix, module in modules:
        renamed = _renamed(dataclasses.replace(module, derivatives=()), prefix)
        structs |= {struct.name: struct for struct in renamed.structs}
        functions += renamed.functions
    return Module("merged", tuple(structs.values()), tuple(functions))


def _renamed(node: Any, prefix: str) -> Any:
    if isinstance(node, tuple):
        return tuple(_renamed(item, prefix) for item in node)
    if not dataclasses.is_dataclass(node) or isinstance(node, type):
        return node
    changes = {
        field.name: _renamed(getattr(node, field.name), prefix)
        for field in dataclasses.fields(node)
        if field.name != "span"
    }
    match node:
        case Call():
            changes["function"] = prefix + node.function
        case StructType() | Struct() if node.name not in ("_dfloat", "_d_dfloat"):
            changes["name"] = prefix + node.name
        case Function():
            changes["name"] = prefix + node.name
    assert not isinstance(node, MakeStruct) or changes["type"].name
    return dataclasses.replace(node, **changes)
