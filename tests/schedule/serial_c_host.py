"""Functions around the loops of serial_c.py: memory, checks, branches, and calls from Python.

Refused, with an error: what works on whole tensors, but for copies and sums of two, calls of tensor
functions, reductions under a condition.
"""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from typing import Any

import numpy as np
from c_host import STRICT, compiled
from serial_c import SERIAL, LoopText, ctype, refused

from loma.backends.c import Options, codegen
from loma.backends.c.context import FunctionContext as Names
from loma.backends.c.context import ModuleContext
from loma.backends.c.functions import lower_function
from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.context import statement_text
from loma.backends.cfamily.names import local_name
from loma.backends.interpreter.evaluate import evaluate
from loma.backends.interpreter.frame import Frame
from loma.backends.lowering.lower import lower
from loma.backends.schedule import host, ir
from loma.backends.schedule.context import FunctionContext
from loma.core import sizes
from loma.core.ir import (
    Assign, Declare, Expr, FloatType, Function, IntConst, IntType, Module, Param, Return, Stmt,
    TensorType, Type, Var, Zero, is_tensor_function,
)  # fmt: skip
from loma.core.walk import free_variables

_DTYPES = {"double": "f8", "float": "f4", "long long": "i8", "_Bool": "?", "int": "i4"}
_UNUSED = tuple(f"-Wno-unused-{what}" for what in ("parameter", "variable", "but-set-variable"))
_RUNTIME = r"""
#include <limits.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

static int wrong_; /* a subscript was outside, a reduction had no elements, a loop did not end */

static inline int inside_(int k, int size) { return 0 <= k && k < size; }
static inline int tested_(int k, int size) { return inside_(k, size) || !(wrong_ = 1); }
static inline int clamp_(int k, int size) { return tested_(k, size) ? k : 0; }
static inline void narrow_(int *begin, int *end, int step, int rest, int size) {
  while (*begin < *end && !inside_(step * *begin + rest, size)) ++*begin;
  while (*begin < *end && !inside_(step * (*end - 1) + rest, size)) --*end;
}
#define TAKE(name, better) \
  static inline void name(double *best, int *position, double value, int where) { \
    if (*position < 0 || value better *best || (value != value && *best == *best)) \
      *best = value, *position = where; \
  }
TAKE(take_argmax_, >)
TAKE(take_argmin_, <)
static inline void over_(int *low, int *high, int by, int extent) {
  *(by < 0 ? low : high) += by * (extent - 1);
}
static inline void *renewed_(void *old, size_t bytes, int byte) { /* 255: doubles are NaN */
  free(old);
  return memset(malloc(bytes + 1), byte, bytes);
}
"""


class FunctionText(LoopText):
    """One function as C; ``variables`` are those that it declares, first of all, ``later`` those
    that a loop would have to compute anew."""

    def __init__(self, names: Names, module: Module) -> None:
        super().__init__(names)
        self.lowering = FunctionContext(names.function, module, SERIAL)
        self.variables: dict[str, Var] = {}
        self.later: set[str] = set()

    def around(self, node: Any) -> None:
        line = self.writer.line
        match node:
            case host.Unit(_, body) | host.Serial(_, body):
                self.nodes(body)
            case host.Reserve(var):
                self.variables[var.name] = var
            case host.Allocate(var, zeros, unless, None):
                self._allocate(var, zeros, unless)
            case host.Clear(var, if_allocated):
                name = local_name(var.name)
                test = f"if ({name}) " if if_allocated else ""
                line(f"{test}memset({name}, 0, sizeof *{name} * ({self.count(var)}));")
            case host.Branch(_, condition, then, other):
                self.node(ir.If(condition, then, other))  # type: ignore[arg-type]
            case host.Later(var, body, value):
                self.variables[var.name] = var
                self.later.add(var.name)
                self.nodes(body)
                line(f"{local_name(var.name)} = {self.text(value)};")
            case host.CheckRange():
                self._check(node)
            case host.CheckSome(_, own, reduced):
                some = [self.compared(extent, ">", 0) for extent in own]
                empty = " || ".join(self.compared(extent, "<=", 0) for extent in reduced)
                self._fail_if(" && ".join([*some, f"({empty})"]))
            case host.Count(source, extent, body):
                name, count = local_name(source.counter), f"{self.context.fresh('count')}_"
                line(f"const int {count} = {self.text(extent)};")
                head = f"int {name} = 0; {name} < {count}; {name}++"
                if source.backwards:
                    head = f"int {name} = {count} - 1; {name} >= 0; {name}--"
                with self.writer.block(f"for ({head})"):
                    self.nodes(body)
            case host.Repeat(source, condition, body):
                if free_variables(condition) & self.later:
                    raise refused("a loop's condition with a reduction", source)
                count = f"{self.context.fresh('count')}_"
                line(f"int {count} = 0;")
                with self.writer.block(f"while ({c.text(self.condition(condition))})"):
                    self._fail_if(f"{count}++ == {source.max_iter}")
                    self.nodes(body)
            case host.Run(stmt):
                self._run(stmt)
            case _:
                super().around(node)

    def count(self, var: Var) -> str:
        """How many elements a tensor has."""
        return self.text(sizes.product(self.lowering.dims(var)))

    def _allocate(self, var: Var, zeros: bool, unless: bool = False) -> None:
        self.variables[var.name] = var
        for dim in self.lowering.dims(var):
            if not isinstance(dim, Var | IntConst):
                self._fail_if(self.compared(dim, "<", 0))
        name, byte = local_name(var.name), 0 if zeros else 255
        made = f"renewed_({name}, sizeof *{name} * ({self.count(var)}), {byte});"
        self.writer.line(f"{f'if (!{name}) ' if unless else ''}{name} = {made}")

    def _whole(self, var: Var, op: str, value: Var) -> None:
        a, b = local_name(var.name), local_name(value.name)
        head = f"for (int k_ = 0; k_ < {self.count(var)}; k_++)"
        self.writer.line(f"{head} {a}[k_] {op} {b}[k_];")

    def _fail_if(self, condition: str) -> None:
        self.writer.line(f"if ({condition}) {{ wrong_ = 1; goto end_; }}")

    def _check(self, check: host.CheckRange) -> None:
        with ExitStack() as rows:
            for axis in check.rows:
                row, end = local_name(axis.name), self.text(axis.extent)
                head = f"for (int {row} = 0; {row} < {end}; {row}++)"
                rows.enter_context(self.writer.block(head))
            for extent in check.rounds:
                test = f"if ({self.compared(extent, '>', 0)})"
                rows.enter_context(self.writer.block(test))
            self._check_row(check)

    def _check_row(self, check: host.CheckRange) -> None:
        needs = [self.compared(extent, ">", 0) for extent in check.needs]
        if check.extent is not None:
            self._fail_if(" && ".join([*needs, self.compared(check.extent, "!=", check.size)]))
            return
        with self.writer.block():
            low = "0" if check.rest is None else self.text(check.rest)
            self.writer.line(f"int low_ = {low}, high_ = low_;")
            for coefficient, extent in check.terms or ():
                needs.append(self.compared(extent, ">", 0))
                by = f"{self.text(coefficient)}, {self.text(extent)}"
                self.writer.line(f"over_(&low_, &high_, {by});")
            size = self.text(check.size)
            outside = f"!(inside_(low_, {size}) && inside_(high_, {size}))"
            self._fail_if(" && ".join([*needs, outside]))

    def _run(self, stmt: Stmt) -> None:
        line = self.writer.line
        match stmt:
            case Declare(Var(type=IntType() | FloatType()) as var, value):
                self.variables[var.name] = var
                text = "0" if value is None else self.text(value, var.type)
                line(f"{self.text(var)} = {text};")
            case Assign(Var(type=IntType() | FloatType()) as var, op, value):
                line(f"{self.text(var)} {op} {self.text(value, var.type)};")
            case Declare(var, Var() as value) if _same(var, value):
                self._allocate(var, zeros=False)
                self._whole(var, "=", value)
            case Assign(Var() as var, op, Var() as value) if _same(var, value):
                if op == "=" and var.name in self.variables:
                    self._allocate(var, zeros=False)
                self._whole(var, op, value)
            case Zero(Var() as var):
                line(f"{self.text(var)} = 0;")
            case Return(values):
                for k, (value, type_) in enumerate(zip(values, self.function.results, strict=True)):
                    self._result(k, value, type_)
            case _:
                raise refused(f"'{statement_text(stmt)}', a statement of whole tensors", stmt)

    def _result(self, number: int, value: Expr, type_: Type) -> None:
        if not isinstance(type_, TensorType):
            self.writer.line(f"*result{number}_ = {self.text(value, type_)};")
            return
        if not isinstance(value, Var) or not _same(value, Var("", type_)):
            raise refused("a result of another size, or that is no variable", value)
        name = local_name(value.name)
        bytes_ = f"sizeof *{name} * ({self.count(value)})"
        self.writer.line(f"memcpy(result{number}_, {name}, {bytes_});")

    # ---------------------------------------------------------------------------- the function

    def print(self) -> str:
        """The C function: arguments, results by pointer, sizes; it returns whether it failed."""
        function = self.function
        self.nodes(lower(self.lowering, function.body))
        results = [f"{ctype(type_)} *result{k}_" for k, type_ in enumerate(function.results)]
        params = [
            f"{ctype(p.type)} {'*' * _is_pointer(p)}{local_name(p.name)}" for p in function.params
        ]
        names = [f"int {local_name(name)}" for name in sizes.size_variables(function)]
        own = [_declared(var) for var in self.variables.values()]
        tensors = (var for var in self.variables.values() if isinstance(var.type, TensorType))
        freed = [f"  free({local_name(var.name)});" for var in tensors]
        landing = ["  if (setjmp(loma_landing)) return 1;"] if self.context.fails else []
        return "\n".join([
            f"int call_{local_name(function.name)}_({', '.join([*params, *results, *names])}) {{",
            *landing, *own, "  wrong_ = 0;", *self.writer.lines, "  goto end_;", "end_:", *freed,
            "  return wrong_;", "}", "",
        ])  # fmt: skip


def _is_pointer(param: Param) -> bool:
    return param.mode == "Out" or isinstance(param.type, TensorType)


def _declared(var: Var) -> str:
    is_tensor = isinstance(var.type, TensorType)
    declared = f"{ctype(var.type)} {'*' * is_tensor}{local_name(var.name)}"
    return f"  {declared} = {'NULL' if is_tensor else 0};"


def _same(var: Var, value: Var) -> bool:
    """Whether two tensors have the same dimensions."""
    dims = [v.type.dims for v in (var, value) if isinstance(v.type, TensorType)]
    return len(dims) == 2 and sizes.same(*dims)


class SerialC:
    """A module's tensor functions, compiled; called as those of the interpreter are, with arguments
    that fit."""

    def __init__(self, module: Module) -> None:
        context = ModuleContext(module, Options("double"))
        self.functions = {
            f.name: f for f in module.functions if is_tensor_function(f) and not f.half
        }
        scalars = [f for f in module.functions if not is_tensor_function(f)]
        texts = [lower_function(function, context) for function in scalars]
        for function in self.functions.values():
            texts.append(FunctionText(Names(context, function), module).print())
        self.text = codegen.file_text(module, context, [_RUNTIME, *texts])
        self._library = ctypes.CDLL(str(compiled(self.text, *STRICT, *_UNUSED)))

    def call(self, name: str, *args: Any) -> tuple[Any, ...]:
        """The results, then the final value of each Out argument; no argument is changed."""
        function, env = self.functions[name], dict[str, Any]()
        for size, at in sizes.bindings(function.params).items():
            env[size] = (np.shape(args[at.param])[at.dim] - at.offset) // at.scale
        names = [param.name for param in function.params]
        frame = Frame(
            function, {}, {}, lambda *_: (), 64, env=env | dict(zip(names, args, strict=True))
        )
        passed = [_array(param.type, arg) for param, arg in zip(function.params, args, strict=True)]
        results = [_array(type_, np.zeros(_shape(frame, type_))) for type_ in function.results]
        given: list[Any] = [
            _pointer(array) if _is_pointer(param) else array.item()
            for param, array in zip(function.params, passed, strict=True)
        ]
        wrapped = [ctypes.c_double(value) if isinstance(value, float) else value for value in given]
        lengths = [env[size] for size in sizes.size_variables(function)]
        run = self._library[f"call_{local_name(name)}_"]
        if run(*wrapped, *map(_pointer, results), *lengths):
            raise IndexError(name)
        outs = [a for param, a in zip(function.params, passed, strict=True) if param.mode == "Out"]
        return (*results, *outs)


def _shape(frame: Frame, type_: Type) -> tuple[int, ...]:
    if not isinstance(type_, TensorType):
        return ()
    assert type_.dims is not None
    return tuple(max(int(evaluate(frame, dim)), 0) for dim in type_.dims)


def _array(type_: Type, value: Any) -> Any:
    return np.array(value, dtype=_DTYPES[ctype(type_)], order="C")


def _pointer(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def arguments(function: Function, size: int, rng: np.random.Generator) -> list[Any]:
    """Arguments of a function all of whose sizes are ``size``."""
    env = dict.fromkeys(sizes.size_variables(function), size)
    frame = Frame(function, {}, {}, lambda *_: (), 64, env=dict(env))
    found = []
    for param in function.params:
        value: Any = np.asarray(rng.normal(size=_shape(frame, param.type)))
        if ctype(param.type) in ("int", "long long"):
            value = rng.integers(0, 3, value.shape)
        found.append(_array(param.type, value))
    return found
