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
from loma.backends.libtorch.expressions import element_type, strip
from loma.backends.libtorch.loops import CHUNK, data
from loma.backends.libtorch.names import cpp_name
from loma.backends.libtorch.nest import Nest
from loma.backends.writer import Writer
from loma.core.ir import INT, Axis, Expr, Index, IndexAssign, IntConst, Stmt, TensorType, Var
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
        self.scalars = {name: self.fresh(cpp_name(name)) for name in sorted(found.scalars)}

    def index(self, read: Index) -> str:
        assert isinstance(read.base, Var)
        return self.scalars.get(read.base.name) or super().index(read)

    def written(self, target: Index) -> str:
        """The element of a target, to be assigned to."""
        base = target.base
        assert isinstance(base, Var)
        address = self.address(self.access(target, False))
        return self.scalars.get(base.name) or f"{self.pointer(base)}[{address}]"


def write_joined(writer: Writer, context: FunctionContext, found: Joined, blank: set[int]) -> None:
    """Writes the loop as a function of its own, and its call. Statements at the positions ``blank``
    add to a tensor that should be all zero, and has not been cleared: they assign."""
    assigning = tuple(
        replace(stmt, op="=") if k in blank else stmt for k, stmt in enumerate(found.statements)
    )
    found = replace(found, statements=assigning)
    nest = _Loop(context, found)
    nest.writable |= {_base(stmt).name for stmt in found.statements}
    inside = Writer(1)
    with inside.block("for (int64_t p_ = begin_; p_ < end_; ++p_)"):
        extent = strip(nest.ints(found.axis.extent))
        inside.line(f"const int64_t low_ = p_ * {CHUNK};")
        inside.line(f"const int64_t high_ = std::min<int64_t>({extent}, low_ + {CHUNK});")
        nest.innermost(
            inside,
            found.axis,
            IntConst(0),  # no padded reads
            lambda: _lines(nest, found),
            "#pragma GCC ivdep",
            ("low_", "high_"),
        )
    name = f"{cpp_name(context.function.name)}__loop{len(context.nests) + 1}"
    params, args = _arguments(nest, context, found)
    function = Writer()
    for stmt in found.statements:
        line = f"line {line_in_file(stmt.span.line)}: " if stmt.span.line else ""
        function.comment(f"{line}{print_stmt(stmt)}")
    function.line("template <typename real>")
    function.line(f"static __attribute__((noinline)) void {name}(")
    function.line("    " + ",\n    ".join(params) + ") {")
    function.extend(inside.lines)
    function.line("}")
    context.nests.append(function.text())

    work = CHUNK * sum(steps(stmt.value) for stmt in found.statements)
    count = f"({strip(context.ints(found.axis.extent))} + {CHUNK - 1}) / {CHUNK}"
    head = f"loma::inside(nested_, {count}, {work}, [&](int64_t begin_, int64_t end_)"
    with writer.block(head, ");"):
        writer.line(f"{name}<real>({', '.join(args)}, begin_, end_);")


def _lines(nest: _Loop, found: Joined) -> list[str]:
    lines: list[str] = []
    known: set[str] = set()
    for stmt in found.statements:
        assert isinstance(stmt.target, Index)
        base = _base(stmt)
        value = strip(nest.value(without_no_diff(stmt.value), stmt.target.type))
        place = nest.written(stmt.target)
        if base.name in nest.scalars and base.name not in known:
            known.add(base.name)
            place = f"{nest.element(stmt.target)} {place}"
        lines.append(f"{place} {stmt.op} {value};")
    return lines


def _arguments(nest: _Loop, context: FunctionContext, found: Joined) -> tuple[list[str], list[str]]:
    """Parameters of the loop's function, and what the call passes for them."""
    types = {
        node.base.name: node.base.type
        for stmt in found.statements
        for root in (stmt.target, stmt.value)
        for node in walk(root)
        if isinstance(node, Index) and isinstance(node.base, Var)
    }
    params: list[str] = []
    args: list[str] = []
    for base, pointer in nest.pointers.items():
        type_ = types[base]
        assert isinstance(type_, TensorType)
        element = element_type(type_)
        tensor = context.variable(Var(base, type_))
        const, access = ("", "mutable") if base in nest.writable else ("const ", "const")
        params.append(f"{const}{element}* __restrict {pointer}")
        args.append(data(context, base, tensor, f"{access}_data_ptr<{element}>"))
    for param, (ctype, argument) in nest.params.items():
        params.append(f"const {ctype} {param}")
        args.append(argument)
    return [*params, "const int64_t begin_", "const int64_t end_"], args
