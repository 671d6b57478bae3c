"""What the C++ of a function's nodes shares: the text of its variables, what is being written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.cpp import Expressions, element_type, scalar_type
from loma.backends.cfamily.names import cpp_name, local_name
from loma.backends.cfamily.writer import Writer
from loma.backends.kernels.ir import Inner
from loma.backends.schedule.context import FunctionContext
from loma.backends.schedule.host import HostNode
from loma.backends.schedule.target import Target
from loma.core.effects import effects
from loma.core.ir import (
    INT, Assign, Expr, Function, Index, Module, Stmt, TensorType, Type, Unpack, Var,
)  # fmt: skip
from loma.core.printer import print_head, print_stmt
from loma.core.walk import expressions, root, statements, walk
from loma.errors.spans import Span, line_in_file

_COMMENT_LINES = 12


class HostWriter(Protocol):
    """Writes the host's nodes; loops that have some inside call it."""

    context: CppContext
    writer: Writer

    def nodes(self, nodes: Sequence[HostNode]) -> None:
        """Writes the nodes where ``writer`` stands."""


@dataclass(slots=True)
class Captured:
    """What text for another device takes of the host's numbers: by name, the type and the host's
    text. ``own`` are the variables of that text itself."""

    own: frozenset[str]
    params: dict[str, tuple[str, str]] = field(default_factory=dict)


CapturedOrNone = TypeVar("CapturedOrNone", Captured, None)


class CppContext(FunctionContext):
    """A function whose tree is written as C++.

    ``mutated``: tensors that are written in place somewhere. ``dense``: tensors whose elements are
    read or written one by one, and which are therefore contiguous from their definition on.
    ``loops``: the functions that loops have become; ``kernels``: what is known of those for another
    device, as JSON values. ``looked_up``: in serial loops, the pointers to
    tensors' data. ``pointers``: in kernels, the tensors that are pointers, which are private or
    parts of others. ``steady``: in kernels, tensors of the outside, which keep their memory, and
    whether the kernel writes to them; ``taken``: the pointers to those that it uses, the tensor,
    and whether it is written. ``registers``: on a GPU, those of a kernel's private tensors that
    each of its threads has, and ``shared`` the tensors in memory that it writes; ``lanes``: the
    inner loop whose statements are written. ``captured``: what text for another device takes of
    the host, and ``helpers`` the scalar functions of the module in such text; ``serves_lists``: the
    function's kernel may run for several calls at once;
    ``narrow_reads``: tensors that kernels read in the narrow dtype of the call; ``narrowed``: those
    that the host has in it, too, and whether it has by now.
    """

    def __init__(self, function: Function, module: Module, machine: Target) -> None:
        super().__init__(function, module, machine)
        self.host: Expressions | None = None  # writes the host's expressions; set by its owner
        self.loops: list[str] = []
        self.kernels: list[dict[str, Any]] = []
        self.looked_up: dict[str, tuple[str, Var]] | None = None
        self.pointers: frozenset[str] | None = None
        self.steady: dict[str, bool] = {}
        self.taken: dict[str, tuple[Var, bool]] = {}
        self.registers: frozenset[str] = frozenset()
        self.shared: frozenset[str] = frozenset()
        self.lanes: Inner | None = None
        self.captured: Captured | None = None
        self.helpers = ""
        self.serves_lists = False
        self.narrow_reads: frozenset[str] = frozenset()
        self.narrowed: dict[str, bool] = {}
        self.mutated = _mutated(function)
        self.dense = _dense(function)

    def variable(self, var: Var) -> str:
        captured = self.captured
        outside = captured is not None and var.name not in captured.own
        if captured is None or not outside or isinstance(var.type, TensorType):
            return self._text(var)
        with self.capturing(None):
            name, _ = self.parameter(var)
            assert self.host is not None
            value = c.text(self.host.variable(var))
        captured.params[name] = scalar_type(var.type, var.span), value
        return name

    @contextmanager
    def capturing(self, captured: CapturedOrNone) -> Iterator[CapturedOrNone]:
        """While text for another device is written."""
        before, self.captured = self.captured, captured
        yield captured
        self.captured = before

    def _text(self, var: Var) -> str:
        if var.name in self.views:
            return local_name(self.views[var.name].var.name)
        if var.name in self._slots:
            tensor, dim = self._slots[var.name]
            return f"{local_name(tensor)}.size({dim})"
        return local_name(var.name)

    def parameter(self, var: Var) -> tuple[str, str]:
        """How a loop's function calls a scalar of the one around it: (name there, text here)."""
        text = self.variable(var)
        if self.captured is not None:
            return text, text
        if var.name in self._slots:
            tensor, dim = self._slots[var.name]
            return f"{cpp_name(tensor)}_size{dim}_", text
        return text, text

    def ints(self, expr: Expr) -> c.Expression:
        """An int expression of the host."""
        assert self.host is not None
        return self.host.value(expr, INT)

    def positive(self, extents: Iterable[Expr]) -> list[c.Expression]:
        """For each of them, whether it is more than 0."""
        return [c.Binary(">", self.ints(extent), c.number(0)) for extent in extents]

    def ctype(self, type_: Type, span: Span) -> str:
        return "loma::Tensor" if isinstance(type_, TensorType) else scalar_type(type_, span)


def data(context: CppContext, tensor: Var, written: bool) -> tuple[str, str]:
    """The type of a pointer to a tensor's elements, and its value."""
    assert isinstance(tensor.type, TensorType)
    name, element = context.variable(tensor), element_type(tensor.type)
    steady = context.pointers is not None and tensor.name in context.steady
    changed = context.steady[tensor.name] if steady else written
    const, access = ("", "mutable") if changed else ("const ", "const")
    type_ = f"{const}{element}*"
    if tensor.name in (context.pointers or ()):
        return type_, name
    value = f"{name}.template {access}_data_ptr<{element}>()"
    if steady:
        # what each call of a loop would ask for again
        context.taken[f"{name}_data_"] = tensor, changed
        value = f"{name}_data_"
    return f"{'' if written else 'const '}{element}*", value


def signature(function: Function) -> str:
    """The function's head in loma, as a comment."""
    return "\n".join(f"// {line}" for line in print_head(replace(function, doc="")))


def statement_text(stmt: Stmt) -> str:
    """The statement, behind its line, as a comment above the code that it becomes."""
    line = f"line {line_in_file(stmt.span.line)}: " if stmt.span.line else ""
    lines = print_stmt(stmt).split("\n")
    if len(lines) > _COMMENT_LINES:
        lines = [*lines[:_COMMENT_LINES], "..."]
    return line + "\n".join(lines)


def _mutated(function: Function) -> set[str]:
    """What is written in place; a variable that takes a new value takes another tensor."""
    found = {p.name for p in function.params if p.mode == "Out"}
    for stmt in statements(function.body):
        own = effects(stmt)
        if own.adds or not isinstance(stmt, Assign | Unpack):
            found.update(map(root, own.writes))
    return found


def _dense(function: Function) -> set[str]:
    every = (expr for stmt in statements(function.body) for expr in expressions(stmt))
    reads = (node.base for expr in every for node in walk(expr) if isinstance(node, Index))
    return {base.name for base in reads if isinstance(base, Var)} | _mutated(function)
