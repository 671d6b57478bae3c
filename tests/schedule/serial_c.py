"""A target in a hundred lines: loop trees as plain serial C99, in double.

What a backend takes is a :class:`Target`, and a printer of the nodes that lowering makes for it.
This one has no lanes, no threads and no library. It is no part of loma, but shows what is needed,
and that trees say it. Expressions are those of the C backend; what the host does around the loops
is in ``serial_c_host.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from loma import errors
from loma.backends.c.context import FunctionContext as Names
from loma.backends.c.expressions import Expressions
from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.names import local_name
from loma.backends.cfamily.writer import Writer
from loma.backends.schedule import ir
from loma.backends.schedule.target import CPU
from loma.core.ir import (
    INT, POSITIONS, Builtin, Call, Element, Expr, Function, Index, Stmt, TensorType,
    Type, Var, is_tensor_function,
)  # fmt: skip

SERIAL = replace(CPU, threads=False, library=False, vector_bytes=0)

MEMORY: dict[Element, str] = {
    "float": "double", "float32": "float", "int": "long long", "bool": "_Bool",
}  # fmt: skip
_START = {"sum": "0", "prod": "1", "max": "-INFINITY", "min": "INFINITY"}
_START_INT = _START | {"max": "INT_MIN", "min": "INT_MAX"}
_UPDATE = {"set": "=", "sum": "+=", "prod": "*="}
_INSIDE = {ir.INSIDE: "inside_", ir.TESTED: "tested_", ir.CLAMPED: "clamp_"}


class LoopText(Expressions):
    """The loops of one function as C."""

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        self.function = names.function
        self.writer = Writer(1)
        self.inside = False  # a tree

    # ----------------------------------------------------------------------------- expressions

    def variable(self, var: Var) -> c.Expression:
        if " " in var.name:
            raise refused("the size of a tensor whose variable changes", var)
        name = c.Token(local_name(var.name))
        return c.dereference(name) if var.name in self.context.pointers else name

    def element(self, expr: Index) -> c.Expression:
        if not isinstance(expr.base, Var) or (expr.subscripts and not self.inside):
            raise refused("an element outside of index statements", expr)
        place = self.value(expr.subscripts[0]) if expr.subscripts else c.number(0)
        return c.Subscript(c.Token(local_name(expr.base.name)), place)

    def expression(self, expr: Expr) -> c.Expression:
        match expr:
            case Builtin(ir.INSIDE | ir.TESTED | ir.CLAMPED as name, (subscript, size, *_)):
                return c.call(_INSIDE[name], self.value(subscript), self.value(size))
            case Builtin(ir.READ_IF, (condition, read)):
                return c.Conditional(self.condition(condition), self.value(read), c.number(0))
            case Builtin(ir.POSITION, (accumulator,)):
                return self.value(accumulator)
            case Call(name) if is_tensor_function(self.context.module.functions[name]):
                raise refused("calls of tensor functions", expr)
            case _:
                return super().expression(expr)

    def text(self, expr: Expr, type_: Type | None = None) -> str:
        return c.text(self.value(expr, type_))

    def compared(self, left: Expr, op: str, right: Expr | int) -> str:
        by = c.number(right) if isinstance(right, int) else self.value(right)
        return c.text(c.Binary(op, self.value(left), by))

    # ------------------------------------------------------------------------------- the loops

    def nodes(self, nodes: Sequence[Any]) -> None:
        for node in nodes:
            self.node(node)

    def node(self, node: Any) -> None:
        line = self.writer.line
        match node:
            case ir.Let(var, value):
                line(f"const {ctype(var.type)} {local_name(var.name)} = {self.text(value)};")
            case ir.Accumulator(var, kind, dtype):
                name, start = local_name(var.name), _start(kind, dtype)
                if kind in POSITIONS:
                    line(f"double {name}best = 0;")
                    line(f"int {name} = -1;")
                else:
                    line(f"{MEMORY[dtype]} {name} = {start};")
            case ir.Fill(Index(Var() as base) as place, kind):
                line(f"{self.text(place)} = {_start(kind, ir.dtype_of(base))};")
            case ir.Store():
                self._store(node)
            case ir.Note():
                line("wrong_ = 1;")
            case ir.Narrow(begin, end, low, high, tests):
                line(f"int {local_name(begin.name)} = {self.text(low)};")
                line(f"int {local_name(end.name)} = {self.text(high)};")
                for test in tests:
                    numbers = ", ".join(map(self.text, (test.step, test.rest, test.size)))
                    ends = f"&{local_name(begin.name)}, &{local_name(end.name)}"
                    line(f"narrow_({ends}, {numbers});")
            case ir.If(condition, then, other):
                with self.writer.block(f"if ({c.text(self.condition(condition))})"):
                    self.nodes(then)
                if other:
                    with self.writer.otherwise():
                        self.nodes(other)
            case ir.Loop(counter, low, high, body, _, without):
                name, more = local_name(counter.name), self.compared(counter, "<", high)
                with self.writer.block(f"for (int {name} = {self.text(low)}; {more}; {name}++)"):
                    if without is not None:
                        since, until = map(self.text, without)
                        line(f"if ({since} <= {name} && {name} < {until}) continue;")
                    self.nodes(body)
            case ir.InPlace(body):
                self.inside = True
                with self.writer.block():
                    self.nodes(body)
                self.inside = False
            case _:
                self.around(node)

    def _store(self, store: ir.Store) -> None:
        kind, place = store.kind, self.text(store.place)
        value = self.text(store.value, store.place.type)
        if store.position is not None:
            found = self.text(store.position)
            self.writer.line(f"take_{kind}_(&{place}best, &{place}, {value}, {found});")
        elif kind in _UPDATE:
            self.writer.line(f"{place} {_UPDATE[kind]} {value};")
        else:
            helper = self.context.helper(kind + "_int" * (store.place.type == INT))
            self.writer.line(f"{place} = {helper}({place}, {value});")

    def around(self, node: Any) -> None:
        """What is no node of loops."""
        raise refused(f"'{type(node).__name__}'", self.function)


def ctype(type_: Type) -> str:
    """The C type of numbers, and of a tensor's elements."""
    if isinstance(type_, TensorType):
        return MEMORY[type_.element]
    return "int" if type_ == INT else "double"


def _start(kind: ir.Kind, dtype: Element) -> str:
    return (_START_INT if dtype == "int" else _START)[kind.removeprefix("arg")]


def refused(what: str, where: Expr | Stmt | Function) -> errors.UserError:
    return errors.BackendLacksOperator(f"serial C has no form for {what}", where.span)
