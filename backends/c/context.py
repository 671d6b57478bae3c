"""What lowering knows about the module and about the function at hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from loma.backends.c.names import ModuleNames, local_names
from loma.backends.c.options import Options
from loma.backends.c.types import CTypes
from loma.backends.c.unused import unread
from loma.backends.identifiers import c_string
from loma.ir import (
    ArrayType, Expr, For, Function, Index, Member, Module, Span, StructType, Type, Var,
)  # fmt: skip
from loma.names import Names
from loma.walk import calls, expressions, statements, variables


class ModuleContext:
    """Names and types of the module, and what its functions turn out to need."""

    def __init__(self, module: Module, options: Options) -> None:
        self.options = options
        self.names = ModuleNames(module)
        self.types = CTypes(module, self.names, options)
        self.structs = {struct.name: struct for struct in module.structs}
        self.functions = {function.name: function for function in module.functions}
        self.helpers: set[str] = set()  # of templates/helpers.c.j2
        self.fallible: set[str] = set()  # functions, by loma name
        self.results: dict[str, str] = {}  # the C structs of several results, by function
        self.result_structs: dict[str, list[str]] = {}  # their members
        self.called = dict(self.names.functions)  # what a call inside the module calls
        self.concurrent = _concurrent(module)

    def helper(self, name: str) -> str:
        """The C name of a function of ``templates/helpers.c.j2``, which is then emitted."""
        self.helpers.add(name)
        return f"loma_{name}"


def _concurrent(module: Module) -> frozenset[str]:
    """Functions that several work items may run at the same time."""
    found: set[str] = set()
    for function in reversed(module.functions):  # callees stand before callers
        if function.simd or function.name in found:
            found.add(function.name)
            found.update(call.function for call in calls(function.body))
    return frozenset(found)


@dataclass(slots=True)
class FunctionContext:
    """A function being lowered.

    ``pointers`` are variables that C has a pointer to, ``arguments`` those whose arrays are the
    caller's. ``ranges`` gives the smallest and the largest value of loop counters. ``fails`` says
    that something in the function can fail. ``item`` is the C name of the work item.
    """

    module: ModuleContext
    function: Function
    pointers: set[str] = field(default_factory=set)
    arguments: set[str] = field(default_factory=set)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    fails: bool = False
    line: int = 0
    item: str = ""
    unread: frozenset[str] = frozenset()
    _names: dict[str, str] = field(default_factory=dict)
    _fresh: Names = field(default_factory=Names)

    def __post_init__(self) -> None:
        function, module = self.function, self.module
        self.unread = unread(function)
        called = [call.function for call in calls(function.body)]
        mentioned = [module.called[name] for name in called]
        mentioned += [module.results[name] for name in called if name in module.results]
        mentioned += [*module.names.structs.values(), module.names.functions[function.name]]
        self._names, self._fresh = local_names(_variables(function), mentioned)
        for param in function.params:
            if isinstance(param.type, ArrayType):
                self.arguments.add(param.name)
            elif param.mode == "Out":
                self.pointers.add(param.name)
        if function.simd:
            self.item = self.fresh("item")

    @property
    def types(self) -> CTypes:
        return self.module.types

    def name(self, variable: str) -> str:
        """The C name of a variable."""
        return self._names[variable]

    def fresh(self, wish: str) -> str:
        """A C name for what the generator adds."""
        return self._fresh.fresh(wish)

    def fresh_in_file(self, wish: str) -> str:
        """A further C name at the level of the file, which no variable hides."""
        while (name := self.module.names.fresh(wish)) in self._fresh:
            pass
        return name

    def members(self, type_: StructType) -> tuple[tuple[str, Type], ...]:
        return self.module.structs[type_.name].members

    def member(self, type_: Type, name: str) -> str:
        """The C name of a struct's member."""
        assert isinstance(type_, StructType)
        return self.module.names.members[type_.name][name]

    def helper(self, name: str) -> str:
        return self.module.helper(name)

    def failing(self, name: str) -> str:
        """A helper that does not return when it fails."""
        self.fails = True
        return self.module.helper(name)

    def place(self, span: Span) -> str:
        """The last arguments of a helper that can fail: the function and the line."""
        line = span.line or self.line or self.function.span.line
        return f"{c_string(self.function.name)}, {line}"

    def is_slice(self, expr: Expr) -> bool:
        """Whether an array value is a struct of pointer and size."""
        if self.module.options.arrays == "pointers":
            return False
        if isinstance(expr, Var):
            return expr.name in self.arguments
        return isinstance(expr, Index) and _is_unsized(expr.type)

    def is_local(self, place: Expr) -> bool:
        """Whether a place is a part of the function's own variables."""
        while isinstance(place, Index | Member):
            place = place.base
        assert isinstance(place, Var)
        return place.name not in self.arguments and not any(
            param.name == place.name and param.mode == "Out" for param in self.function.params
        )


def _is_unsized(type_: Type) -> bool:
    return isinstance(type_, ArrayType) and type_.size is None


def _variables(function: Function) -> Iterator[str]:
    """Names of arguments, variables and counters, arguments first; with repetition."""
    yield from (param.name for param in function.params)
    for stmt in statements(function.body):
        if isinstance(stmt, For):
            yield stmt.counter
        for expr in expressions(stmt):
            yield from variables(expr)
