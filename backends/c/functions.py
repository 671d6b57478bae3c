"""Functions of the program as functions of C, with those that hosts call.

A function that can fail is a static body, which other functions call, and an exported function that
calls the body and comes back from its first failure: see ``templates/helpers.c.j2``. A @simd
function is a body for one work item and an exported loop over the items.

The *entry* of a function has the arguments of the function, a pointer to each struct among them,
and after them a pointer to where each result goes, unless the only one is a number. Where structs
are large it is what a call runs, and the function itself only passes pointers on.
"""

from __future__ import annotations

from dataclasses import replace

from loma import errors
from loma.backends.c.context import FunctionContext, ModuleContext, is_by_value, returns_struct
from loma.backends.c.statements import Statements
from loma.backends.c.types import CTypes
from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.writer import Writer
from loma.core.ir import Declare, FloatType, Function, IntType, StackType, is_tensor_function
from loma.core.printer import print_head, print_type
from loma.core.walk import statements

_LONG = 40  # lines of a function of a device that stands apart: NVRTC takes long for long functions
_NOINLINE = "__attribute__((noinline)) "


def lower_function(function: Function, module: ModuleContext) -> str:
    """The C text of a function, below its first lines in loma."""
    if is_tensor_function(function):
        raise errors.BackendLacksOperator(
            f"the C backend has no tensors: '{function.name}' works on them", function.span,
            hint="compile it with loma.compile",
        )  # fmt: skip
    context = FunctionContext(module, function)
    result = _result(context)
    body = Writer()
    Statements(context, body).body()
    context.note_stack()
    text = _FunctionText(context, result)
    text.writer.comment("\n".join(_comment(function, module.types)))
    text.functions(body.lines or [""])
    return text.writer.text() + "\n"


def entry_symbol(function: Function, symbol: str) -> str | None:
    """The C name of the function's entry; None where the function itself serves."""
    has = any(map(is_by_value, function.params)) or returns_struct(function.results)
    return f"loma_entry_{symbol}" if has else None


def _result(context: FunctionContext) -> str:
    """The C type of the result; several results are a struct, declared now."""
    results, types, module = context.function.results, context.types, context.module
    if len(results) < 2:
        return types.base(results[0]) if results else "void"
    name = context.fresh_in_file(f"{module.names.functions[context.function.name]}_results")
    module.results[context.function.name] = name
    module.result_structs[name] = [
        types.declare(type_, f"value_{k}") for k, type_ in enumerate(results)
    ]
    return name


class _FunctionText:
    """Writes the C functions that a function becomes. ``result`` is the C type of its value."""

    def __init__(self, context: FunctionContext, result: str) -> None:
        self.context = context
        self.function = context.function
        self.result = result
        self.symbol = context.module.names.functions[self.function.name]
        self.entry = entry_symbol(self.function, self.symbol) or self.symbol
        self.writer = Writer()

    def functions(self, body: list[str]) -> None:
        """All of them; ``body`` are the function's own lines."""
        context, module, name = self.context, self.context.module, self.function.name
        pointers, by_pointer = context.result_pointers, context.by_pointer
        exported = body_name = self.entry if by_pointer else self.symbol
        if context.fails:
            module.fallible.add(name)
        if module.options.device:
            self._on_device(body)
            return
        if context.fails or by_pointer:
            body_name = module.called[name] = context.fresh_in_file(f"{self.symbol}_body")
        params = [*self._params(by_pointer), *self._result_params(pointers)]
        arguments = [*(context.passed(p.name) for p in self.function.params), *pointers]
        returned = "void" if pointers else self.result
        head = f"{returned} {exported}"
        if self.function.simd:
            self._items(head, body_name, params, arguments, body)
        elif body_name == exported:
            self._define(head, params, body)
        else:
            static = f"{_NOINLINE}static" if context.fails else "static"
            value = f"{self.result} *" if len(pointers) == 1 else f"{returned} "
            self._define(f"{static} {value}{body_name}", params, body)
            call = f"{body_name}({', '.join(arguments)});"
            landing = self._landing(returned) if context.fails else []
            self._define(head, params, [*landing, call if returned == "void" else f"return {call}"])
        if by_pointer:
            self._by_value()
        elif self.entry != self.symbol and module.options.entries:
            self._entry()

    def _define(self, head: str, params: list[str], lines: list[str]) -> None:
        """A function of C."""
        if self.writer.lines[-1:] == ["}"]:
            self.writer.line()
        with self.writer.block(f"{head}({', '.join(params) or 'void'})"):
            self.writer.extend(lines)

    def _landing(self, returned: str) -> list[str]:
        """What an exported function does after a failure: its results are zero."""
        pointers = self.context.result_pointers
        if pointers:
            self.context.module.helpers.add("<string.h>")
            zeros = [f"  memset({pointer}, 0, sizeof *{pointer});" for pointer in pointers]
            return ["if (setjmp(loma_landing)) {", *zeros, "  return;", "}"]
        nothing = f" ({returned}){{0}}" if returns_struct(self.function.results) else " 0"
        return [f"if (setjmp(loma_landing)) return{'' if returned == 'void' else nothing};"]

    # -------------------------------------------------------------------------------- on devices

    def _on_device(self, body: list[str]) -> None:
        """A function of a device, and the kernel of a @simd function: an item for each thread.

        Numbers that go in may lie on the device, and are read there. Hosts call nothing else."""
        context, module = self.context, self.context.module
        params, item = self._params(pointers=False), context.item
        arguments = [context.name(param.name) for param in self.function.params]
        if not self.function.simd:
            kind = "inline" if len(body) <= _LONG else "__noinline__"
            self._define(f"static {kind} {self.result} {self.symbol}", params, body)
            return
        self._define(f"static inline void {self.symbol}", [*params, f"int {item}"], body)
        name = module.kernels[self.function.name] = context.fresh_in_file(
            f"{self.symbol.removesuffix('scalar')}items"
        )
        given = list[str]()
        for k, (param, declared) in enumerate(zip(self.function.params, params, strict=True)):
            if param.mode == "In" and isinstance(param.type, IntType | FloatType):
                declared = f"loma::Number<{self.context.types.base(param.type)}> {arguments[k]}"
                arguments[k] += "[0]"
            given.append(f"const {declared}" if param.mode == "In" else declared)
        call = f"{self.symbol}({', '.join([*arguments, item])});"
        listed = ",\n    ".join([*given, "const loma::Grid loma_grid"])
        self.writer.line(f"""
LOMA_KERNEL {name}(
    {listed}) {{
  loma::items(loma_grid, [&](const int {item}) {{ {call} }});
}}""")

    # ------------------------------------------------------------------------------- work items

    def _items(
        self, head: str, body_name: str, params: list[str], arguments: list[str], body: list[str]
    ) -> None:
        """The body for one work item, and the exported loop over them."""
        context, item = self.context, self.context.item
        context.module.helpers.add("openmp")
        items, first, failure, start, end, chunk, chunks = map(
            context.fresh, ("items", "first", "failure", "start", "end", "chunk", "chunks")
        )
        if body_name == self.symbol:
            body_name = context.fresh_in_file(f"{self.symbol}_body")
            static = "static inline"
        else:
            static = f"{_NOINLINE}static" if context.fails else "static"
        self._define(f"{static} void {body_name}", [*params, f"int {item}"], body)
        loop = f"++{item}) {body_name}({', '.join([*arguments, item])});"
        host_params = [*params, f"int {items}"]
        if not context.fails:
            parallel = f"parallel for schedule(dynamic, 64) if ({items} > 64)"
            for_items = f"for (int {item} = 0; {item} < {items}; {loop}"
            self._define(head, host_params, [f"LOMA_OPENMP({parallel})", for_items])
            return
        context.module.helpers.add("<limits.h>")
        chunk_name = context.fresh_in_file(f"{self.symbol}_chunk")
        ends = [f"int {start}", f"int {end}", f"int *{first}", f"loma_error *{failure}"]
        self.writer.line(f"""
// The items from start to the one before end; the first failure of the lowest item is kept.
static void {chunk_name}({", ".join([*params, *ends])}) {{
  volatile int {item} = {start};
  if (setjmp(loma_landing)) {{
    LOMA_OPENMP(critical (loma_failures))
    {{
      if ({item} < *{first}) {{
        *{first} = {item};
        *{failure} = loma_failure;
      }}
    }}
    loma_failure = (loma_error){{0}};
    return;
  }}
  for (; {item} < {end}; {loop}
}}

{head}({", ".join(host_params)}) {{
  int {first} = INT_MAX;
  loma_error {failure} = {{0}};
  int {chunks} = {items} / 64 + ({items} % 64 > 0);
  LOMA_OPENMP(parallel for schedule(dynamic) if ({chunks} > 1))
  for (int {chunk} = 0; {chunk} < {chunks}; ++{chunk}) {{
    int {start} = {chunk} * 64;
    int {end} = {items} - {start} < 64 ? {items} : {start} + 64;
    {chunk_name}({", ".join([*arguments, start, end, f"&{first}", f"&{failure}"])});
  }}
  if ({first} < INT_MAX) loma_failure = {failure};
}}""")

    # --------------------------------------------------------------------------------- for hosts

    def _params(self, pointers: bool) -> list[str]:
        """The arguments as C declares them, structs as pointers to them or by value. The pointers
        to results are not among them."""
        types = self.context.types
        return [
            types.declare_pointer(param.type, self.context.passed(param.name))
            if pointers and is_by_value(param)
            else types.param(param, self.context.name(param.name))
            for param in self.function.params
        ]

    def _result_params(self, names: list[str]) -> list[str]:
        """The pointers to results of those names, as C declares them."""
        pairs = zip(names, self.function.results, strict=bool(names))
        return [self.context.types.declare_pointer(type_, name) for name, type_ in pairs]

    def _passed_on(self, pointers: bool) -> tuple[list[c.Expression], list[str]]:
        """The arguments of a call that passes everything on, and how its function declares them:
        with pointers to structs, or else the function that is called has those."""
        turned = c.dereference if pointers else c.address_of
        declared = self._params(pointers)
        arguments: list[c.Expression] = []
        for param in self.function.params:
            name = c.Token(self.context.name(param.name))
            arguments.append(turned(name) if is_by_value(param) else name)
        if self.function.simd:
            items = self.context.fresh("items")
            arguments.append(c.Token(items))
            declared.append(f"int {items}")
        return arguments, declared

    def _entry(self) -> None:
        """An entry that calls the function."""
        arguments, declared = self._passed_on(pointers=True)
        names = [self.context.fresh("result") for _ in self.function.results]
        call = c.call(self.symbol, *arguments)
        if not returns_struct(self.function.results):
            returning = "return " if names else ""
            self._define(f"{self.result} {self.entry}", declared, [f"{returning}{c.text(call)};"])
            return
        places = [c.dereference(c.Token(name)) for name in names]
        lines, values = list[str](), list[c.Expression]([call])
        if len(names) > 1:
            results = self.context.fresh("results")
            lines = [f"{self.result} {results} = {c.text(call)};"]
            values = _members(results, len(names))
        for place, value in zip(places, values, strict=True):
            lines.append(f"{c.text(c.Binary('=', place, value))};")
        self._define(f"void {self.entry}", [*declared, *self._result_params(names)], lines)

    def _by_value(self) -> None:
        """A function that calls its entry."""
        arguments, declared = self._passed_on(pointers=False)
        results, name = self.function.results, self.context.fresh("result")
        if returns_struct(results):
            made = _members(name, len(results)) if len(results) > 1 else [c.Token(name)]
            call = c.text(c.call(self.entry, *arguments, *map(c.address_of, made)))
            lines = [f"{self.result} {name};", f"{call};", f"return {name};"]
        else:
            call = c.text(c.call(self.entry, *arguments))
            lines = [f"return {call};" if results else f"{call};"]
        self._define(f"{self.result} {self.symbol}", declared, lines)


def _members(results: str, count: int) -> list[c.Expression]:
    """The values in a struct of several results."""
    return [c.Member(c.Token(results), f"value_{k}") for k in range(count)]


def _comment(function: Function, types: CTypes) -> list[str]:
    """The function's first lines in loma, and what its tape takes."""
    stacks = {
        stmt.target.name: stmt.target.type
        for stmt in statements(function.body)
        if isinstance(stmt, Declare) and isinstance(stmt.target.type, StackType)
    }
    known = [t.capacity * types.bytes(t.element) for t in stacks.values() if t.capacity is not None]
    tape = [f"Tape: at most {sum(known)} bytes"] if known else []
    for name, type_ in stacks.items():
        if type_.capacity is None:
            tape.append(f"Tape: '{name}' grows without a known bound ({print_type(type_)})")
    return [*print_head(replace(function, doc="")), *tape]
