"""Fused kernels as C++: one parallel loop, its private tensors in a workspace of the thread.

The statements inside are lowered as anywhere else; their loops run on the thread that has the
iteration. Only when there are fewer iterations than threads, the iterations run one after the other
and the loops inside them are parallel: no result depends on which of both it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loma.backends.kernels.ir import Kernel, Tiled, private_tensors
from loma.backends.kernels.lifetimes import lifetimes
from loma.backends.libtorch.access import steps
from loma.backends.libtorch.context import KernelScope, View
from loma.backends.libtorch.expressions import element_type, scalar_type, strip
from loma.backends.libtorch.joined import joined
from loma.backends.libtorch.names import cpp_name
from loma.backends.writer import Writer
from loma.core import sizes
from loma.core.effects import assigned, written_places
from loma.core.ir import Expr, For, If, IndexAssign, IntConst, Reduce, Stmt, TensorType, Var, While
from loma.core.walk import expressions, mentioned_names, statements, walk
from loma.errors.spans import line_in_file
from loma.passes.liveness import Liveness

if TYPE_CHECKING:
    from loma.backends.libtorch.statements import Statements


def write_kernel(owner: Statements, kernel: Kernel, outermost: bool) -> None:
    """Writes a kernel where ``owner`` stands."""
    context, writer = owner.context, owner.writer
    loops = joined(kernel)
    scalars = frozenset(name for loop in loops.values() for name in loop.scalars)
    private = {var.name: var.type for var in kernel.private if isinstance(var.type, TensorType)}
    _allocate(owner, kernel, set(private), outermost)
    private = {name: type_ for name, type_ in private.items() if name not in scalars}
    writer.comment(f"kernel over {kernel.axis.name}{_lines(kernel.source)}")
    pointers = frozenset(private) | {name for name, _ in kernel.views}
    index = kernel.axis.name if kernel.count is None else None
    context.kernel = KernelScope(index, private, pointers, dict(kernel.dropped), loops)
    with writer.block():
        count = strip(context.ints(kernel.axis.extent))
        work = _work(kernel.body)
        if kernel.count is not None:
            count = _write_block_size(owner, kernel, count, scalars)
        slots = _write_workspace(owner, kernel, private)
        lambda_ = "[&](std::byte* memory_, bool nested_, int64_t begin_, int64_t end_)"
        head = f"loma::kernel({count}, {strip(context.ints(work))}, workspace_, {lambda_}"
        with writer.block(head, ");"):
            for name, type_ in private.items():
                element = element_type(type_)
                slot = f"reinterpret_cast<{element}*>(memory_ + workspace_.offset({slots[name]}))"
                writer.line(f"{element}* const {cpp_name(name)} = {slot};")
            for var in _scalars(kernel):
                ctype = scalar_type(var.type, var.span)
                writer.line(f"{ctype} {context.variable(var)} = 0;")
            step = "block_" if kernel.count is not None else cpp_name(kernel.axis.name)
            with writer.block(f"for (int64_t {step} = begin_; {step} < end_; ++{step})"):
                old: dict[str, View | None] = {}
                if kernel.count is not None:
                    old = _write_part(owner, kernel, kernel.count)
                for name in sorted(kernel.zeroed):
                    write_zero(owner, Var(name, private[name]))
                owner.inside_kernel(kernel.body)
                context.restore(old)
    context.kernel = None


def _write_block_size(
    owner: Statements, kernel: Kernel, extent: str, scalars: frozenset[str]
) -> str:
    """Declares how many values of the axis a block has; the number of blocks.

    The count has the name that types use for the last, smaller one, too.
    """
    assert kernel.count is not None
    context, count = owner.context, cpp_name(kernel.count.name)
    context.counts.add(kernel.count.name)
    kept = [var for var in kernel.private if var.name not in scalars]
    each = " + ".join(_bytes(owner, var, kernel.count.name) for var in kept) or "0"
    owner.writer.line(f"const int64_t {count} = loma::block_size({extent}, {each});")
    return f"({extent} + {count} - 1) / {count}"


def _write_part(owner: Statements, kernel: Kernel, count: Var) -> dict[str, View | None]:
    """Declares the block's first value, the number of its values, and where tensors begin; what
    the tensors were before."""
    context, writer, name = owner.context, owner.writer, cpp_name(count.name)
    extent = strip(context.ints(kernel.axis.extent))
    writer.line(f"const int64_t first_ = block_ * {name};")
    writer.line(f"const int64_t rest_ = {extent} - first_;")
    written = set(assigned(kernel.body))
    types = {
        node.name: node.type
        for stmt in statements(kernel.source)
        for expr in expressions(stmt)
        for node in walk(expr)
        if isinstance(node, Var) and isinstance(node.type, TensorType)
    }
    old: dict[str, View | None] = {}
    for tensor, dim in kernel.views:
        type_ = types[tensor]
        behind = context.dims(Var(tensor, type_))[dim + 1 :]
        stride = strip(context.ints(sizes.product(behind)))
        element = element_type(type_)
        pointer, whole = context.temporary(f"{cpp_name(tensor)}_"), context.tensor(tensor)
        const, access = ("", "mutable") if tensor in written else ("const ", "const")
        writer.line(
            f"{const}{element}* const {pointer} = "
            f"{whole}.template {access}_data_ptr<{element}>() + first_ * ({stride});"
        )
        old[tensor] = context.cut(tensor, pointer, dim, kernel.axis.extent)
    writer.line(f"const int64_t whole_ = {name};")
    writer.line(f"const int64_t {name} = std::min(whole_, rest_);")
    return old


def write_tiles(owner: Statements, tiles: Tiled, outermost: bool) -> None:
    """Writes tiles where ``owner`` stands."""
    context, writer = owner.context, owner.writer
    inside = {var.name for var in tiles.temporaries} | private_tensors(tiles.body)
    _allocate(owner, tiles, inside, outermost)
    count = cpp_name(tiles.count.name)
    first, size = f"{count}_first_", f"{count}_tile_"
    extent = strip(context.ints(tiles.axis.extent))
    writer.comment(f"tiles of {tiles.axis.name}{_lines(tiles.source)}")
    with writer.block():
        each = " + ".join(_bytes(owner, var, tiles.count.name) for var in tiles.temporaries)
        operands = " + ".join(_bytes(owner, var, None) for var in tiles.streamed) or "0"
        writer.line(f"const int64_t {size} = loma::tile({extent}, {each}, {operands});")
        steps = f"int64_t {first} = 0; {first} < {extent}; {first} += {size}"
        place = len(writer.lines)
        context.before_tiles = Writer(writer.depth)
        context.same_in_tiles = {var.name for var in tiles.streamed}
        with writer.block(f"for ({steps})"):
            writer.line(f"const int64_t {count} = std::min<int64_t>({size}, {extent} - {first});")
            old: dict[str, View | None] = {}
            for name, dim in tiles.views:
                view, whole = context.temporary(f"{cpp_name(name)}_"), owner.context.tensor(name)
                writer.line(f"const at::Tensor {view} = {whole}.narrow({dim}, {first}, {count});")
                old[name] = context.cut(name, view, dim, tiles.axis.extent)
            context.counts.add(tiles.count.name)
            owner.inside_tile(tiles)
            context.restore(old)
        writer.lines[place:place] = context.before_tiles.lines
        context.before_tiles = None


def _bytes(owner: Statements, var: Var, count: str | None) -> str:
    """The size of a tensor in bytes; for one value of the axis where ``count`` names its extent."""
    assert isinstance(var.type, TensorType)
    dims = [dim for dim in var.type.dims or () if not (isinstance(dim, Var) and dim.name == count)]
    numel = strip(owner.context.ints(sizes.product(tuple(dims))))
    return f"({numel}) * int64_t(sizeof({element_type(var.type)}))"


def _lines(source: tuple[Stmt, ...]) -> str:
    lines = {line_in_file(stmt.span.line) for stmt in statements(source) if stmt.span.line}
    if len(lines) < 2:
        return "".join(f", line {line}" for line in lines)
    return f", lines {min(lines)} to {max(lines)}"


def write_zero(owner: Statements, target: Var) -> None:
    """Fills a private tensor with zeros."""
    assert isinstance(target.type, TensorType)
    count = strip(owner.context.ints(sizes.product(target.type.dims or ())))
    element = element_type(target.type)
    owner.writer.line(f"std::fill_n({cpp_name(target.name)}, {count}, {element}(0));")


def _allocate(
    owner: Statements, kernel: Kernel | Tiled, private: set[str], outermost: bool
) -> None:
    """Allocates what outlives the kernel and is used here for the first time."""
    written = frozenset(owner.lazy) - private
    _, before = Liveness(()).block(kernel.source, written)
    names = mentioned_names(kernel.source)
    for name in sorted((names & written) - owner.ready):
        sums = kernel.sums if isinstance(kernel, Tiled) else ()
        blank = name not in before and name not in sums and outermost and name not in owner.touched
        owner.allocate(name, "empty" if blank else "zeros", outermost)


def _write_workspace(
    owner: Statements, kernel: Kernel, private: dict[str, TensorType]
) -> dict[str, int]:
    """Declares the plan of the workspace; the number of each tensor in it."""
    writer = owner.writer
    writer.line("loma::WorkspacePlan workspace_;")
    slots: dict[str, int] = {}
    alive = lifetimes(kernel)
    for name, type_ in private.items():
        count = strip(owner.context.ints(sizes.product(type_.dims or ())))
        life = alive[name]
        slots[name] = len(slots)
        writer.line(
            f"workspace_.add({life.first}, {life.last}, ({count}) * sizeof({element_type(type_)}));"
            f"  // {name}"
        )
    writer.line("workspace_.place();")
    return slots


def _scalars(kernel: Kernel) -> list[Var]:
    """Scalars that the kernel changes: every thread has its own."""
    places = (place for place in written_places(kernel.body) if isinstance(place, Var))
    return list({p.name: p for p in places if not isinstance(p.type, TensorType)}.values())


def _work(body: tuple[Stmt, ...]) -> Expr:
    """About how many steps of arithmetic one iteration takes."""
    terms: list[Expr] = []
    for stmt in body:
        match stmt:
            case IndexAssign(_, _, value, axes):
                own = [axis.extent for axis in axes]
                for node in walk(value):
                    if isinstance(node, Reduce):
                        own += [a.extent for a in node.axes]
                names = {axis.name for axis in axes} | {
                    axis.name for n in walk(value) if isinstance(n, Reduce) for axis in n.axes
                }
                own = [extent for extent in own if not sizes.mentions(extent, names)]
                terms.append(sizes.product((IntConst(steps(value)), *own)))
            case For(counter, extent, inner):
                work = _work(inner)
                if not sizes.mentions(work, {counter}):
                    terms.append(sizes.product((extent, work)))
            case While(body=inner):
                terms.append(_work(inner))
            case If(_, then, other):
                terms.append(_work(then) if then else _work(other))
            case _:
                continue
    return sizes.total(tuple(terms))
