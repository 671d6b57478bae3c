"""What lowering knows about the module and about the function at hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from loma.backends.c.names import ModuleNames, local_names
from loma.backends.c.options import Options
from loma.backends.c.types import CTypes
from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.identifiers import c_string
from loma.backends.cfamily.stack import Frame, Use
from loma.core.effects import assigned, effects
from loma.core.ir import (
    ArrayType, Expr, For, Function, Index, Member, Module, Param, StructType, Type, Var,
)  # fmt: skip
from loma.core.walk import (
    calls, expressions, mentioned_names, root, statements, variable_names, variables,
)  # fmt: skip
from loma.errors.spans import Span, line_in_file


class ModuleContext:
    """Names and types of the module, and what its functions turn out to need."""

    def __init__(self, module: Module, options: Options) -> None:
        self.options = options
        self.names = ModuleNames(module, options.device)
        self.types = CTypes(module, self.names, options)
        self.structs = {struct.name: struct for struct in module.structs}
        self.functions = {function.name: function for function in module.functions}
        self.helpers: set[str] = set()  # of templates/helpers.c.j2, and headers
        self.fallible: set[str] = set()  # functions, by loma name
        self.results: dict[str, str] = {}  # the C structs of several results, by function
        self.result_structs: dict[str, list[str]] = {}  # their members
        self.kernels: dict[str, str] = {}  # of @simd functions on a device, by function
        self.called = dict(self.names.functions)  # what a call inside the module calls
        self.concurrent = _concurrent(module)
        self.by_pointer = frozenset(
            f.name for f in module.functions if self.by_value(f) > options.by_value
        )
        self.stack: dict[str, Use] = {}  # by function, when it has been lowered

    def by_value(self, function: Function) -> int:
        """Bytes of structs that the function takes and returns."""
        types = [param.type for param in function.params if param.mode == "In"]
        structs = [t for t in (*types, *function.results) if isinstance(t, StructType)]
        return sum(map(self.types.bytes, structs))

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


def is_by_value(param: Param) -> bool:
    """Whether an argument is a struct by value."""
    return param.mode == "In" and isinstance(param.type, StructType)


def returns_struct(results: tuple[Type, ...]) -> bool:
    """Whether C returns a struct: one of the program, or one of several results."""
    return len(results) > 1 or any(isinstance(type_, StructType) for type_ in results)


@dataclass(frozen=True, slots=True)
class Temporary:
    """A variable for what a call returns by pointer."""

    name: str
    type: Type
    on_heap: bool

    @property
    def pointer(self) -> c.Expression:
        name = c.Token(self.name)
        return name if self.on_heap else c.address_of(name)

    @property
    def value(self) -> c.Expression:
        return c.dereference(self.pointer)


class FunctionContext:
    """A function being lowered.

    ``pointers`` are variables that C has a pointer to, ``arguments`` those whose arrays are the
    caller's. ``ranges`` gives the smallest and the largest value of loop counters. ``fails`` says
    that something in the function can fail. ``item`` is the C name of the work item. Where
    ``by_pointer``, structs are passed and returned by pointer, the latter to ``result_pointers``.
    """

    def __init__(self, module: ModuleContext, function: Function) -> None:
        self.module = module
        self.function = function
        self.ranges: dict[str, tuple[int, int]] = {}
        self.fails = False
        self.line = 0
        self.unread = _unread(function)
        called = [call.function for call in calls(function.body)]
        mentioned = [module.called[name] for name in called]
        mentioned += [module.results[name] for name in called if name in module.results]
        mentioned += [*module.names.structs.values(), module.names.functions[function.name]]
        self._names, self._fresh = local_names(_variables(function), mentioned)
        below = (module.stack[name] for name in called if name in module.stack)
        self.frame = Frame(below, module.options.stack)
        self.temporaries: list[Temporary] = []
        arrays = {param.name for param in function.params if isinstance(param.type, ArrayType)}
        self.arguments = arrays
        self.pointers = {param.name for param in function.params if param.mode == "Out"} - arrays
        self.item = self.fresh("item") if function.simd else ""
        self.reads_item = False
        self.by_pointer = function.name in module.by_pointer
        self.result_pointers: list[str] = []
        self._passed: dict[str, str] = {}
        if self.by_pointer:
            self._receive()

    def _receive(self) -> None:
        """Names for what is passed by pointer. A struct that the body writes to is copied first."""
        function = self.function
        changed = set(assigned(function.body, self.module.functions))
        for param in filter(is_by_value, function.params):
            if param.name in changed:
                self._passed[param.name] = self.fresh(f"{self.name(param.name)}_given")
            else:
                self.pointers.add(param.name)
        if returns_struct(function.results):
            self.result_pointers = [self.fresh("result") for _ in function.results]

    @property
    def types(self) -> CTypes:
        return self.module.types

    def name(self, variable: str) -> str:
        """The C name of a variable."""
        return self._names[variable]

    def passed(self, variable: str) -> str:
        """The C name of an argument as it is passed: another one where the variable is a copy."""
        return self._passed.get(variable, self._names[variable])

    def fresh(self, wish: str) -> str:
        """A C name for what the generator adds."""
        return self._fresh.fresh(wish)

    def fresh_in_file(self, wish: str) -> str:
        """A further C name at the level of the file, which no variable hides."""
        while (name := self.module.names.file.fresh(wish)) in self._fresh:
            pass
        return name

    def temporary(self, type_: Type) -> Temporary:
        """A variable that is declared at the start of the function."""
        on_heap = not self.frame.holds(self.types.bytes(type_))
        if on_heap:
            self.failing("allocate")
        made = Temporary(self.fresh("temporary"), type_, on_heap)
        self.temporaries.append(made)
        return made

    def note_stack(self) -> None:
        """Keeps what a call of the function takes of the C stack, after lowering."""
        module = self.module
        called = (module.functions[call.function] for call in calls(self.function.body))
        passed = sum(min(module.by_value(f), module.options.by_value) for f in called)
        use = self.frame.use(self.function, len(self._names), passed, module.options.device)
        module.stack[self.function.name] = use

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

    def line_args(self, span: Span) -> tuple[c.Expression, c.Expression]:
        """The last arguments of a helper that can fail: the function and the line."""
        line = span.line or self.line or self.function.span.line
        return c.Token(c_string(self.function.name)), c.number(line_in_file(line))

    def is_slice(self, expr: Expr) -> bool:
        """Whether an array value is a struct of pointer and size."""
        if self.module.options.arrays == "pointers":
            return False
        if isinstance(expr, Var):
            return expr.name in self.arguments
        is_unsized = isinstance(expr.type, ArrayType) and expr.type.size is None
        return isinstance(expr, Index | Member) and is_unsized

    def is_local(self, place: Expr) -> bool:
        """Whether a place is a part of the function's own variables."""
        name, params = root(place), self.function.params
        is_out = any(param.name == name and param.mode == "Out" for param in params)
        return not is_out and name not in self.arguments


def _unread(function: Function) -> frozenset[str]:
    """Arguments and variables that the function writes at most, of which a compiler would warn.

    A write through a pointer is a use of the pointer.
    """
    mentioned = set(mentioned_names(function.body))
    every = map(effects, statements(function.body))
    read = {name for own in every for expr in own.reads for name in variable_names(expr)}
    for param in function.params:
        if param.name in mentioned and (param.mode == "Out" or isinstance(param.type, ArrayType)):
            read.add(param.name)
        mentioned.add(param.name)
    return frozenset(mentioned - read)


def _variables(function: Function) -> Iterator[str]:
    """Names of arguments, variables and counters, arguments first; with repetition."""
    yield from (param.name for param in function.params)
    for stmt in statements(function.body):
        if isinstance(stmt, For):
            yield stmt.counter
        for expr in expressions(stmt):
            yield from variables(expr)
