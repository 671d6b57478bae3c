"""Elementwise statements of a kernel's block in one loop.

Statements that follow each other, over the elements of one block, read and write nothing but the
element where they are. So one loop runs them all: every tensor is read and written once, and a
private tensor that no other statement uses is a variable of the loop, in a register.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from loma.backends.kernels.ir import Kernel
from loma.backends.kernels.sharing import mentions
from loma.backends.libtorch.access import steps, without_no_diff
from loma.backends.libtorch.context import FunctionContext
from loma.backends.libtorch.elementwise import is_elementwise
from loma.backends.libtorch.loops import CHUNK, COUNTER, chunks
from loma.backends.libtorch.nest import Nest
from loma.backends.libtorch.trees import write_tree
from loma.backends.schedule.ir import Kind, Node, Parallel, Store, Variable, dtype_of
from loma.backends.writer import Writer
from loma.core.ir import FLOAT, INT, Axis, Expr, Index, IndexAssign, IntConst, Stmt, Var
from loma.core.printer import print_stmt
from loma.core.walk import blocks, substitute, walk
from loma.errors.spans import line_in_file


@dataclass(frozen=True, slots=True)
class Joined:
    """Statements for one loop, with one name for its axis; ``scalars`` are the private tensors that
    become variables."""

    statements: tuple[IndexAssign, ...]
    scalars: frozenset[str]
    axis: Axis


def joined(kernel: Kernel) -> dict[int, Joined]:
    """The loops of a kernel that stand for several statements, by the first one's identity."""
    if kernel.count is None:
        return {}
    private = {var.name for var in kernel.private} - kernel.zeroed
    uses = mentions(kernel.body)
    found: dict[int, Joined] = {}

    def visit(block: tuple[Stmt, ...]) -> None:
        run: list[IndexAssign] = []
        for stmt in (*block, None):
            if isinstance(stmt, IndexAssign) and _may_join(stmt, kernel.count):
                run.append(stmt)
                continue
            if len(run) > 1:
                own = mentions(tuple(run))
                inside = {name for name in private if own[name] == uses[name] > 0}
                found[id(run[0])] = _make(run, frozenset(inside))
            run = []
            for inner in () if stmt is None else blocks(stmt):
                visit(inner)

    visit(kernel.body)
    return found


def _may_join(stmt: IndexAssign, count: Var | None) -> bool:
    alone = len(stmt.axes) == 1 and stmt.axes[0].extent == count
    return alone and is_elementwise(stmt)


def _make(run: list[IndexAssign], inside: frozenset[str]) -> Joined:
    """The statements with the first one's name for the axis; a private tensor starts with a
    statement that writes it as a whole, or stays a tensor."""
    axis = run[0].axes[0]
    out: list[IndexAssign] = []
    first: dict[str, bool] = {}
    for stmt in run:
        rename: dict[str, Expr] = {stmt.axes[0].name: Var(axis.name, INT)}
        target = substitute(stmt.target, rename)
        assert isinstance(target, Index)
        value = substitute(stmt.value, rename)
        out.append(replace(stmt, target=target, value=value, axes=(axis,)))
        for node in walk(stmt.value):
            if isinstance(node, Var):
                first.setdefault(node.name, False)
        first.setdefault(_base(stmt).name, stmt.op == "=")
    return Joined(tuple(out), frozenset(name for name in inside if first[name]), axis)


def _base(stmt: IndexAssign) -> Var:
    assert isinstance(stmt.target, Index)
    assert isinstance(stmt.target.base, Var)
    return stmt.target.base


class _Loop(Nest):
    """The expressions of the statements; ``scalars``: variables that stand for private tensors."""

    def __init__(self, context: FunctionContext, found: Joined) -> None:
        super().__init__(context, (found.axis,))
        self.scalars = {name: self.fresh(name, FLOAT) for name in sorted(found.scalars)}
        self.declared: set[str] = set()

    def value(self, expr: Expr) -> Expr:
        if (
            isinstance(expr, Index)
            and isinstance(expr.base, Var)
            and expr.base.name in self.scalars
        ):
            return replace(self.scalars[expr.base.name], type=expr.type)
        return super().value(expr)

    def statement(self, stmt: IndexAssign) -> Node:
        target, name = stmt.target, _base(stmt).name
        assert isinstance(target, Index)
        value = self.value(without_no_diff(stmt.value))
        kind: Kind = "set" if stmt.op == "=" else "sum"
        if name not in self.scalars:
            return Store(self.place(target), kind, value)
        variable = replace(self.scalars[name], type=target.type)
        if name in self.declared:
            return Store(variable, kind, value)
        self.declared.add(name)
        return Variable(variable, value, dtype_of(_base(stmt)))


def write_joined(writer: Writer, context: FunctionContext, found: Joined, blank: set[int]) -> None:
    """Writes the loop as a function of its own, and its call. Statements at the positions ``blank``
    add to a tensor that should be all zero, and has not been cleared: they assign."""
    block = [
        replace(stmt, op="=") if k in blank else stmt for k, stmt in enumerate(found.statements)
    ]
    nest = _Loop(context, found)
    bases = {_base(stmt).name: _base(stmt) for stmt in block}
    nest.writable |= bases.keys()
    before, bounds, count = chunks(nest.value(found.axis.extent), CHUNK)
    make = lambda: [nest.statement(stmt) for stmt in block]  # noqa: E731
    no_pads = IntConst(0)
    loop = nest.innermost(found.axis, no_pads, make, bounds, independent=True)
    work = IntConst(CHUNK * sum(steps(stmt.value) for stmt in block))
    writes = tuple(base for name, base in bases.items() if name not in found.scalars)
    context.statement_text = "\n".join(map(_text, block))
    write_tree(writer, context, Parallel(COUNTER, count, work, (*before, *loop), writes))


def _text(stmt: IndexAssign) -> str:
    line = f"line {line_in_file(stmt.span.line)}: " if stmt.span.line else ""
    return f"{line}{print_stmt(stmt)}"
