"""Elementwise statements of a kernel's block in one loop.

Statements that follow each other, over the elements of one block, read and write nothing but the
element where they are. So one loop runs them all: every tensor is read and written once, and a
private tensor that no other statement uses is a variable of the loop, in a register.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loma.backends.kernels.ir import Kernel
from loma.backends.kernels.sharing import mentions
from loma.backends.lowering.reductions import StatementNest
from loma.backends.schedule import rewrites
from loma.backends.schedule.access import steps
from loma.backends.schedule.context import FunctionContext
from loma.backends.schedule.elementwise import is_elementwise
from loma.backends.schedule.ir import InPlace, Kind, Parallel, Store
from loma.core.ir import INT, Axis, Expr, Index, IndexAssign, IntConst, Stmt, Var
from loma.core.walk import blocks, substitute, walk, without_no_diff


def run_at(block: Sequence[Stmt], position: int, count: Var | None) -> tuple[IndexAssign, ...]:
    """The statements of a kernel's block from a position on that run in one loop; ``count``: the
    size of the kernel's blocks."""
    run: list[IndexAssign] = []
    for stmt in block[position:] if count is not None else ():
        if not isinstance(stmt, IndexAssign) or not _may_join(stmt, count):
            break
        run.append(stmt)
    return tuple(run)


def registers(kernel: Kernel) -> dict[tuple[Stmt, ...], frozenset[str]]:
    """The runs of a kernel's statements, with the private tensors that become variables in each:
    those that no other statement uses, and that start with a statement that writes all of them."""
    private = {var.name for var in kernel.private} - kernel.zeroed
    uses = mentions(kernel.body)
    found: dict[tuple[Stmt, ...], frozenset[str]] = {}

    def visit(block: tuple[Stmt, ...]) -> None:
        position = 0
        while position < len(block):
            run = run_at(block, position, kernel.count)
            if len(run) > 1:
                own = mentions(run)
                inside = {name for name in private if own[name] == uses[name] > 0}
                found[run] = frozenset(name for name in inside if _is_written_first(run, name))
            for inner in blocks(block[position]):
                visit(inner)
            position += max(len(run), 1)

    visit(kernel.body)
    return found


def _may_join(stmt: IndexAssign, count: Var | None) -> bool:
    alone = len(stmt.axes) == 1 and stmt.axes[0].extent == count
    return alone and is_elementwise(stmt)


def _is_written_first(run: tuple[IndexAssign, ...], name: str) -> bool:
    first = next(stmt for stmt in run if name in mentions((stmt,)))
    reads = any(isinstance(node, Var) and node.name == name for node in walk(first.value))
    return first.op == "=" and not reads


def _with_axis(stmt: IndexAssign, axis: Axis) -> IndexAssign:
    """The statement with that name for its axis."""
    rename: dict[str, Expr] = {stmt.axes[0].name: Var(axis.name, INT)}
    target = substitute(stmt.target, rename)
    assert isinstance(target, Index)
    return replace(stmt, target=target, value=substitute(stmt.value, rename), axes=(axis,))


def loop(
    context: FunctionContext,
    run: tuple[IndexAssign, ...],
    scalars: frozenset[str],
    blank: set[int],
) -> Parallel:
    """The loop of a run. Statements at the positions ``blank`` add to a tensor that should be all
    zero, and has not been cleared: they assign."""
    axis = run[0].axes[0]
    source = tuple(
        replace(_with_axis(stmt, axis), op="=") if k in blank else _with_axis(stmt, axis)
        for k, stmt in enumerate(run)
    )
    nest = StatementNest(context, (axis,))
    bases = {stmt.element.tensor.name: stmt.element.tensor for stmt in source}
    nest.writable |= bases.keys()
    no_pads = IntConst(0)
    inside = nest.innermost(axis, no_pads, lambda: [_store(nest, s) for s in source], None, True)
    tree = InPlace(tuple(inside), tuple(bases.values()))
    for name in sorted(scalars):
        tree = rewrites.stage(tree, rewrites.loops(tree)[0], bases[name])
    if not context.machine.teams:
        tree = rewrites.split(tree, rewrites.loops(tree)[0], context.machine.chunk)
    work = IntConst(context.machine.chunk * sum(steps(stmt.value) for stmt in source))
    bound = rewrites.bind(tree, rewrites.loops(tree)[0], work, source, (axis.name,))
    return replace(bound, row=axis.extent) if context.machine.teams else bound


def _store(nest: StatementNest, stmt: IndexAssign) -> Store:
    kind: Kind = "set" if stmt.op == "=" else "sum"
    return Store(nest.place(stmt.element), kind, nest.value(without_no_diff(stmt.value)))
