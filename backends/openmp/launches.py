"""What the CPU runs as C++: loops, kernels, panels, serial loops.

A kernel is one parallel loop, its private tensors in a workspace of the thread. The statements
inside are written as anywhere else; their loops run on the thread that has the iteration. Only when
there are fewer iterations than threads, the iterations run one after the other and the loops inside
them are parallel: no result depends on which of both it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.context import CppContext, HostWriter, data
from loma.backends.cfamily.cpp import ELEMENTS, scalar_type
from loma.backends.cfamily.device import DeviceNode
from loma.backends.cfamily.names import cpp_name, cpp_string, local_name
from loma.backends.cfamily.writer import Writer
from loma.backends.kernels.ir import Kernel, Until
from loma.backends.lowering.serial import tensors_in
from loma.backends.openmp.print import write_tree
from loma.backends.schedule.host import (
    Buffer, Bytes, Carry, Clear, Either, Group, Lanes, Launch, PairsPass, Pass, Question, Serial,
    Spread, Stream, single,
)  # fmt: skip
from loma.backends.schedule.ir import InPlace, Parallel, dtype_of
from loma.core import sizes
from loma.core.ir import Assign, Declare, Stmt, Var
from loma.core.walk import statements
from loma.errors.spans import line_in_file


def write(owner: HostWriter, node: DeviceNode) -> None:
    """Writes a node where ``owner`` stands."""
    match node:
        case InPlace() if owner.context.looked_up is None:
            written = frozenset(var.name for var in node.writes)
            _write_serial(owner, written, lambda: write_tree(owner.writer, owner.context, node))
        case Parallel() | InPlace():
            write_tree(owner.writer, owner.context, node)
        case Launch():
            _write_launch(owner, node)
        case Stream():
            write_stream(owner, node)
        case Serial(_, body, writes):
            _write_serial(owner, writes, lambda: owner.nodes(body))
        case Clear(var):
            _write_zeros(owner, var)
        case Pass(otherwise=otherwise) | Either(otherwise=otherwise):  # there are no matrix units
            owner.nodes(otherwise)
        case PairsPass() | Group() | Spread() | Carry() | Lanes():
            raise AssertionError(node)
        case _:
            assert_never(node)


def _write_serial(owner: HostWriter, writes: frozenset[str], write: Callable[[], None]) -> None:
    """Writes what looks at tensors by their pointers, which are looked up before it."""
    context, writer = owner.context, owner.writer
    used: dict[str, tuple[str, Var]] = {}
    context.looked_up, owner.writer = used, Writer()
    write()
    inside, owner.writer = owner.writer, writer
    context.looked_up = None
    # as parameters, which the compiler believes to be apart
    given = {
        pointer: data(context, tensor, base in writes) for base, (pointer, tensor) in used.items()
    }
    params = ", ".join(f"{type_} __restrict {pointer}" for pointer, (type_, _) in given.items())
    values = ", ".join(value for _, value in given.values())
    with writer.block(f"[&]({params}) LOMA_SERIAL", f"({values});"):
        writer.extend(inside.lines)


def _write_zeros(owner: HostWriter, var: Var) -> None:
    """Fills a tensor by its pointer."""
    context = owner.context
    pointer, dims = context.variable(var), sizes.dims_of(var)
    if context.looked_up is not None:
        pointer, dims = f"{pointer}_data_", context.dims(var)
        context.looked_up[var.name] = (pointer, var)
    count = c.item_text(context.ints(sizes.product(dims)))
    owner.writer.line(f"std::fill_n({pointer}, {count}, {ELEMENTS[dtype_of(var)]}(0));")


def _write_launch(owner: HostWriter, launch: Launch) -> None:
    context, writer, kernel = owner.context, owner.writer, launch.kernel
    writer.comment(f"kernel over {kernel.axis.name}{lines_of(kernel.source)}")
    with writer.block():
        count = context.ints(kernel.axis.extent)
        if kernel.count is not None:
            size, each = c.Token(cpp_name(kernel.count.name)), bytes_of(context, launch.bytes)
            given = c.list_text((count, each, c.number(launch.least)))
            found = f"loma::block_size({given})"
            if kernel.blocks is not None:
                found = c.item_text(context.ints(kernel.blocks.size))
            writer.line(f"const int64_t {size.text} = {found};")
            rounded = c.Binary("-", c.Binary("+", count, size), c.number(1))
            count = c.Binary("/", rounded, size)
        # a single element is a local variable, which the compiler may keep in a register
        local = single(launch)
        buffers = [buffer for buffer in launch.buffers if buffer.var not in local]
        write_workspace(owner, buffers)
        given = c.list_text((range_name(owner, kernel.source), count, context.ints(launch.work)))
        lambda_ = "[&](std::byte* memory_, bool nested_, int64_t begin_, int64_t end_)"
        context.taken, outer, owner.writer = {}, writer, Writer()
        with owner.writer.block(f"loma::kernel({given}, workspace_, {lambda_}", ");"):
            _write_iterations(owner, launch, local, buffers)
        inside, owner.writer = owner.writer, outer
        for pointer, (tensor, changed) in context.taken.items():
            type_, memory = data(context, tensor, changed)
            writer.line(f"{type_} const {pointer} = {memory};")
        writer.extend(inside.lines)


def _write_iterations(
    owner: HostWriter, launch: Launch, local: Sequence[Var], buffers: Sequence[Buffer]
) -> None:
    """What a thread does that has some iterations of a kernel."""
    context, writer, kernel = owner.context, owner.writer, launch.kernel
    parts = {piece.tensor.name for piece in launch.pieces}
    private = {buffer.var.name for buffer in launch.buffers}
    for var in local:
        element, name = ELEMENTS[dtype_of(var)], context.variable(var)
        writer.line(f"{element} {name}_element_ = 0;")
        writer.line(f"{element}* const {name} = &{name}_element_;")
    for slot, buffer in enumerate(buffers):
        element, name = ELEMENTS[dtype_of(buffer.var)], context.variable(buffer.var)
        memory = f"reinterpret_cast<{element}*>(memory_ + workspace_.offset({slot}))"
        writer.line(f"{element}* const {name} = {memory};")
    for var in launch.scalars:
        ctype = scalar_type(var.type, var.span)
        writer.line(f"{ctype} {context.variable(var)} = 0;")
    step = cpp_name(kernel.axis.name) if kernel.count is None else block_of(kernel)
    with writer.block(f"for (int64_t {step} = begin_; {step} < end_; ++{step})"):
        if kernel.count is not None:
            _write_block(owner, launch, cpp_name(kernel.count.name))
        context.pointers = frozenset(private | parts)
        context.steady = {name: name in launch.writes for name in steady(launch)}
        with context.cut(launch.pieces, kernel.axis.extent):
            owner.nodes(launch.body)
        context.pointers, context.steady = None, {}


def steady(launch: Launch) -> set[str]:
    """The tensors that keep their memory while a kernel runs: those of the outside that none of its
    statements makes anew."""
    source = launch.kernel.source
    made = {
        stmt.target.name
        for stmt in statements(source)
        if isinstance(stmt, Declare | Assign) and isinstance(stmt.target, Var)
    }
    return tensors_in(source).keys() - made


def block_of(kernel: Kernel) -> str:
    """The number of a block."""
    return "block_" if kernel.blocks is None else cpp_name(kernel.blocks.number.name)


def _write_block(owner: HostWriter, launch: Launch, name: str) -> None:
    """Declares the block's first value, the number of its values, and where tensors begin."""
    context, writer = owner.context, owner.writer
    assert launch.kernel.first is not None
    first = c.Token(cpp_name(launch.kernel.first.name))
    rest = c.Binary("-", context.ints(launch.kernel.axis.extent), first)
    writer.line(f"const int64_t {first.text} = {block_of(launch.kernel)} * {name};")
    writer.line(f"const int64_t rest_ = {c.item_text(rest)};")
    write_pieces(owner, launch, first)
    writer.line(f"const int64_t whole_ = {name};")
    writer.line(f"const int64_t {name} = std::min(whole_, rest_);")


def write_pieces(owner: HostWriter, launch: Launch, first: c.Expression) -> None:
    """Declares where the parts of tensors begin that belong to the block with that first value."""
    context, writer = owner.context, owner.writer
    for piece in launch.pieces:
        tensor = piece.tensor
        type_, memory = data(context, tensor, tensor.name in launch.writes)
        start = c.Binary("+", c.Token(memory), c.Binary("*", first, context.ints(piece.stride)))
        view = local_name(piece.var.name)
        writer.line(f"{type_} const {view} = {c.item_text(start)};")


def write_stream(owner: HostWriter, stream: Stream) -> None:
    context, writer, panels = owner.context, owner.writer, stream.panels
    if panels.until is not None:
        _write_columns(owner, stream, panels.until)
        return
    count = cpp_name(panels.count.name)
    first, size = cpp_name(panels.first.name), f"{count}_panel_"
    extent = context.ints(panels.axis.extent)
    writer.comment(f"panels of {panels.axis.name}{lines_of(panels.source)}")
    with writer.block():
        bytes_, operands = (bytes_of(context, part) for part in (stream.bytes, stream.operands))
        cache = c.number(stream.cache)
        parts = extent, bytes_, operands, cache, c.number(stream.least)
        rule = "shared_panel" if stream.of_any_size else "panel"
        rule = rule if stream.question is None else "panel_of_rows"
        writer.line(f"const int64_t {size} = loma::{rule}({c.list_text(parts)});")
        if stream.question is not None:
            _write_question(owner, stream.question, c.Binary("<", c.Token(size), extent))
        owner.nodes(stream.before)
        run = "loma::panels_apart" if stream.apart else "loma::panels"
        own = bytes_of(context, stream.bytes[: stream.own])
        shared = (own, cache) if stream.apart else ()
        name = range_name(owner, panels.source)
        given = c.list_text((name, extent, c.Token(size), *shared))
        head = f"{run}({given}, [&](int64_t {first}, int64_t {count})"
        with writer.block(head, ");"):
            _write_panel(owner, stream)


def _write_panel(owner: HostWriter, stream: Stream) -> None:
    context, panels = owner.context, stream.panels
    first, count = cpp_name(panels.first.name), cpp_name(panels.count.name)
    for piece in stream.pieces:
        view, whole = local_name(piece.var.name), context.variable(piece.tensor)
        part = f"loma::part({whole}, {piece.dim}, {first}, {count})"
        owner.writer.line(f"loma::Tensor {view} = {part};")
    with context.cut(stream.pieces, panels.axis.extent):
        owner.nodes(stream.body)


def _write_question(owner: HostWriter, question: Question, worth_it: c.Expression) -> None:
    """Declares whether columns may be left out."""
    context, until, asked = owner.context, question.until, question.until.moderate
    if not question.possible:
        owner.writer.line(f"const bool {cpp_name(until.exact.name)} = false;")
        return
    sizes_ = ", ".join(c.item_text(context.ints(size)) for size in asked.sizes)
    tests = [c.item_text(worth_it), f"loma::within({{{sizes_}}}, {asked.long})"]
    tests += [f"std::abs({context.variable(var)}) <= {asked.most}" for var in asked.scalars]
    for k, numbers in enumerate(question.numbers):
        least = 1.0 / asked.most if k < len(asked.divisors) else 0.0
        _, memory = data(context, numbers.tensor, False)
        given = map(context.ints, (numbers.runs, numbers.length, numbers.stride))
        ends = f"{c.list_text(tuple(given))}, {least}, {asked.most}"
        tests.append(f"loma::moderate<real>({memory}, {ends})")
    owner.writer.line(f"const bool {cpp_name(until.exact.name)} =")
    for test in tests[:-1]:
        owner.writer.line(f"    {test} &&")
    owner.writer.line(f"    {tests[-1]};")


def _write_columns(owner: HostWriter, stream: Stream, until: Until) -> None:
    context, writer, panels = owner.context, owner.writer, stream.panels
    first, count = cpp_name(panels.first.name), cpp_name(panels.count.name)
    end, extent = context.ints(until.end), context.ints(panels.axis.extent)
    chosen = c.Conditional(c.Token(cpp_name(until.exact.name)), end, extent)
    writer.line(f"[[maybe_unused]] const int64_t {first} = 0;")
    writer.line(f"const int64_t {count} = {c.item_text(chosen)};")
    owner.nodes(stream.before)
    _write_panel(owner, stream)


def bytes_of(context: CppContext, parts: Sequence[Bytes]) -> c.Expression:
    terms = [
        c.Binary("*", context.ints(count), c.Token(f"int64_t(sizeof({ELEMENTS[dtype]}))"))
        for dtype, count in parts
    ]
    return c.chain("+", terms or [c.number(0)])


def range_name(owner: HostWriter, source: tuple[Stmt, ...]) -> c.Expression:
    """What torch.profiler calls it."""
    return c.Token(cpp_string(f"loma::{owner.context.function.name}{lines_of(source)}"))


def lines_of(source: tuple[Stmt, ...]) -> str:
    lines = {line_in_file(stmt.span.line) for stmt in statements(source) if stmt.span.line}
    if len(lines) < 2:
        return "".join(f", line {line}" for line in lines)
    return f", lines {min(lines)} to {max(lines)}"


def write_workspace(owner: HostWriter, buffers: Sequence[Buffer]) -> None:
    """Declares the plan of the workspace."""
    context, writer = owner.context, owner.writer
    writer.line("loma::WorkspacePlan workspace_;")
    for buffer in buffers:
        count = context.ints(sizes.product(sizes.dims_of(buffer.var)))
        size = c.Token(f"sizeof({ELEMENTS[dtype_of(buffer.var)]})")
        given = f"{buffer.first}, {buffer.last}, {c.item_text(c.Binary('*', count, size))}"
        writer.line(f"workspace_.add({given});  // {buffer.var.name}")
    writer.line("workspace_.place();")
