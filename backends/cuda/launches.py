"""What a GPU runs as CUDA C++: the kernels of statements, fused ones, serial loops; and what the
host does to start them.

A kernel's text is a string in the host's code, which the runtime compiles for the device at hand.
Its parameters are pointers, numbers, and the grid; what it takes of the host's variables is found
while its body is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.context import Captured, CppContext, HostWriter
from loma.backends.cfamily.cpp import ELEMENTS, scalar_type
from loma.backends.cfamily.device import DeviceNode
from loma.backends.cfamily.loops import iterations, write_check
from loma.backends.cfamily.names import cpp_name, local_name
from loma.backends.cfamily.writer import Writer
from loma.backends.cuda import shapes, texts
from loma.backends.cuda.early import Reads
from loma.backends.cuda.inner import can_run, fixed, geometry, worth_it, write_in_lanes, write_lanes
from loma.backends.cuda.iterations import ITERATION, joined_indices, with_joined
from loma.backends.cuda.owned import OwnedText, reads_ahead
from loma.backends.cuda.pairs import write_either, write_pairs
from loma.backends.cuda.print import SeveralText, ThreadText
from loma.backends.cuda.registers import in_registers, meets
from loma.backends.cuda.serial import write_in_place, write_serial
from loma.backends.cuda.start import Start, dedented
from loma.backends.cuda.sweeps import write_sweep
from loma.backends.kernels.ir import Carried
from loma.backends.lowering.index_statements import COUNTER
from loma.backends.openmp import launches as host
from loma.backends.schedule.host import (
    Buffer, Carry, Clear, Either, Group, HostNode, Lanes, Launch, PairsPass, Pass, Serial, Spread,
    Stream, flat,
)  # fmt: skip
from loma.backends.schedule.ir import (
    AllReduce, InPlace, Loop, Node, Parallel, Scan, Store, dtype_of,
)  # fmt: skip
from loma.backends.schedule.walk import expressions, nodes
from loma.core import sizes
from loma.core.effects import assigned, counters
from loma.core.ir import INT, Builtin, Expr, Index, IntConst, Var
from loma.core.walk import reads_elements, walk

_NONE, _ONE = IntConst(0), IntConst(1)


def write(owner: HostWriter, node: DeviceNode) -> None:
    """Writes a node where ``owner`` stands, on the host or in a kernel."""
    match node:
        case Parallel() if owner.context.lanes is not None:
            write_in_lanes(owner, node)
        case Parallel() if owner.context.captured is not None:
            _write_in_team(owner, node)
        case Lanes():
            write_lanes(owner, node)
        case InPlace():
            write_in_place(owner, node)
        case Parallel():
            _write_statement(owner, node)
        case Launch():
            _write_launch(owner, node)
        case Group():
            _write_group(owner, node)
        case Spread():
            _write_spread(owner, node)
        case Carry():
            _write_carry(owner, node)
        case Serial(source, body):
            write_serial(owner, node.writes, body, (source,))
        case Clear(var):
            _write_zeros(owner, var)
        case Stream():
            host.write_stream(owner, node)
        case Pass():
            write_sweep(owner, node)
        case PairsPass():
            write_pairs(owner, node)
        case Either():
            write_either(owner, node)
        case _:
            assert_never(node)


# ------------------------------------------------------------------------ one statement, a kernel


def _write_statement(owner: HostWriter, tree: Parallel) -> None:
    if isinstance(tree.body[-1], Scan):
        _write_rows(owner, tree)
        return
    context = owner.context
    several = None if tree.team is None else tree.team.several
    text = SeveralText(context, tree) if several is not None else _text(context, tree)
    counter, inside = text.local(tree.counter), Writer(1)
    text.nodes(inside, tree.body)
    launch = Start(owner, "kernel", tree.source)
    body = Writer(1)
    body.line("[[maybe_unused]] loma::Outside outside_(grid_);")
    with context.capturing(Captured(frozenset())) as captured:
        row = _row(text, tree)
        head = f"[&](const {_kind(tree, row)} {counter}, [[maybe_unused]] const auto& part_)"
        given = "grid_" if row is None else f"grid_, {c.item_text(row)}"
        how = _adding(tree) if text.adds else "statement"
        if several is not None:
            how = "several_at_once"
            beside = (
                _ONE if tree.team is None or tree.team.beside is None else tree.team.beside.extent
            )
            given = c.list_text((c.Token("grid_"), *map(context.ints, (several.extent, beside))))
        elif isinstance(text, OwnedText):
            how, given, head = "owned", f"grid_, {_reading(text, counter)}", _owned_head(counter)
        with body.block(f"loma::{how}({given}, {head}", ");"):
            body.extend(dedented(inside.lines))
        for check in tree.checks:
            write_check(body, context, check)
    total = next(iter(tree.totals), None)
    if total is not None:
        number = scalar_type(total.type, total.span)
        launch.pointer(
            f"{number}* __restrict parts_", f"parts_.template mutable_data_ptr<{number}>()"
        )
    written = {var.name for var in tree.writes}
    for base, (name, tensor) in text.pointers.items():
        launch.tensor(tensor, name, base in written)
    for name, (type_, argument) in {**captured.params, **text.params}.items():
        launch.number(type_, name, argument)
    count = iterations(context, tree)
    inner, across, sums = "1", False, 0
    reductions = sum(isinstance(node, AllReduce) for node in nodes(tree.body))
    if tree.team is not None:
        inner = c.item_text(context.ints(tree.team.extent))
        across = tree.team.across
        sums = reductions if tree.team.splits else 0
    more: tuple[str, ...] = ()
    around = None if tree.team is None or sums == 0 else tree.team.around
    if several is not None or around is not None:
        more = (c.item_text(context.ints(_NONE if several is None else several.extent)),)
    second = None if tree.team is None else tree.team.beside
    if around is not None or second is not None:
        more = (*more, c.item_text(context.ints(_ONE if around is None else around)))
    if second is not None:
        pairs = ("true",) if tree.team is not None and tree.team.pairs else ()
        more = (*more, c.item_text(context.ints(second.extent)), *pairs)
    shape = shapes.of_statement(
        context, total.name if total is not None else tree.writes[0].name, _steps(tree),
        tree.team is not None, sums > 0, row is not None, several is not None,
    )  # fmt: skip
    with owner.writer.block():
        if total is not None:
            made = f"loma::empty({{1}}, loma::options<{number}>())"
            owner.writer.line(f"loma::Tensor parts_ = {made};")
        launch.write(
            body, "statement", c.item_text(count), inner, _bool(across), str(sums), *more,
            before=texts.SEVERAL if several is not None else "", shape=shape,
            shares=reductions > 0, across=across, splits=sums > 0,
            tiles=(several is not None) + (second is not None),
        )  # fmt: skip
        if total is not None:
            found = f"loma::item<{number}>(parts_)"
            if tree.needs or tree.count != _ONE:
                found = f"({c.text(c.Binary('>', count, c.number(0)))}) ? {found} : {number}(0)"
            owner.writer.line(f"{context.variable(total)} += {found};")


def _write_rows(owner: HostWriter, tree: Parallel) -> None:
    """Running reductions of rows."""
    context = owner.context
    text, inside = ThreadText(context, tree), Writer(1)
    counter = text.local(tree.counter)
    text.nodes(inside, tree.body)
    launch, body = Start(owner, "kernel", tree.source), Writer(1)
    with context.capturing(Captured(frozenset())) as captured:
        head = f"[&](const int64_t {counter}, const auto& part_)"
        with body.block(f"loma::running_rows(grid_, {head}", ");"):
            body.extend(dedented(inside.lines))
    written = {var.name for var in tree.writes}
    for base, (name, tensor) in text.pointers.items():
        launch.tensor(tensor, name, base in written)
    for name, (type_, argument) in {**captured.params, **text.params}.items():
        launch.number(type_, name, argument)
    assert tree.team is not None
    given = map(c.item_text, (iterations(context, tree), context.ints(tree.team.extent)))
    scan = tree.body[-1]
    # Blocks that share a row read it again when others have written, so that what is joined has to
    # stay so: not products, of which one may be too large for a number.
    splits = isinstance(scan, Scan) and scan.factor is None and scan.kind != "prod"
    across = tree.team.across
    more = [f"/*splits=*/{_bool(splits)}"] if across or not splits else []
    more += ["/*across=*/true"] * across
    steps = (tree.count, tree.team.extent)
    shape = shapes.of_statement(context, tree.writes[0].name, steps, True, splits, False, False)
    with owner.writer.block():
        launch.write(body, "running", *given, *more, shape=shape, shares=True, splits=splits,
                     across=across)  # fmt: skip


# -------------------------------------------------------------------------------- fused kernels


def _write_launch(owner: HostWriter, launch: Launch) -> None:
    context, writer, kernel = owner.context, owner.writer, launch.kernel
    if launch.within is not None and can_run(launch.within):
        with writer.block(f"if ({worth_it(context, launch.within)})"):
            _write_launch(owner, launch.within)
        with writer.block("else"):
            _write_launch(owner, replace(launch, within=None))
        return
    over = ", ".join(axis.name for axis in kernel.axes)
    writer.comment(f"kernel over {over}{host.lines_of(kernel.source)}")
    made = Start(owner, "kernel", kernel.source, shares=_is_several(launch.body))
    named = _named(launch)
    own = {*assigned(kernel.body), *counters(kernel.body), *(axis.name for axis in kernel.axes)}
    own |= {var.name for var in (kernel.count, kernel.first, *launch.scalars) if var is not None}
    own |= {node.inner.axis.name for node in launch.loops}
    if kernel.blocks is not None:
        own.add(kernel.blocks.number.name)
    if kernel.carried is not None:
        own.add(kernel.carried.number.name)
    size = None if kernel.count is None else f"{cpp_name(kernel.count.name)}_size_"
    with writer.block():
        count = context.ints(sizes.product(tuple(axis.extent for axis in kernel.axes)))
        if kernel.count is not None and size is not None:
            whole = "1" if launch.single else None
            if kernel.blocks is not None:
                whole = c.item_text(context.ints(kernel.blocks.size))
            if whole is None:
                given = c.list_text((count, host.bytes_of(context, launch.bytes)))
                twice = shapes.block(context, *named)
                given += f", {twice}" * (twice != 0)
                whole = f"loma::gpu::block_size({given})"
            writer.line(f"const int64_t {size} = {whole};")
            writer.line(f"const int64_t {cpp_name(kernel.count.name)} = {size};")
            rounded = c.Binary("-", c.Binary("+", count, c.Token(size)), c.number(1))
            count = c.Binary("/", rounded, c.Token(size))
        registers = in_registers(launch)
        buffers = [b for b in launch.buffers if b.var.name not in registers]
        context.registers, context.shared = registers, launch.writes - registers
        host.write_workspace(owner, buffers)
        if buffers:
            writer.line("workspace_.keep_near(loma::gpu::kMostNear);")
        widest = _widest(owner, launch, own)
        body = Writer(1)
        body.line("[[maybe_unused]] loma::Outside outside_(grid_);")
        context.taken, outer, owner.writer = {}, writer, body
        with context.capturing(Captured(frozenset(own))) as captured:
            captured.params |= {
                f"offset{k}_": ("int64_t", f"int64_t(workspace_.offset({k}))")
                for k in range(len(buffers))
            }
            if size is not None and not launch.single:
                captured.params[size] = ("int64_t", size)
            _write_iterations(owner, launch, buffers, size)
        owner.writer = outer
        for name, (tensor, changed) in context.taken.items():
            made.tensor(tensor, name, changed)
        for name, (type_, argument) in captured.params.items():
            made.number(type_, name, argument)
        context.taken, context.registers, context.shared = {}, frozenset(), frozenset()
        if launch.loops:
            values, lanes = geometry(context, launch)
            far = "workspace_.far()" if buffers else "0"
            made.write(
                body, "lanes", c.item_text(count), values, lanes, "workspace_.bytes()", far,
                before=texts.INNER, private=bool(buffers),
                fixed=tuple(context.parameter(Var(name, INT))[0] for name in fixed(launch)),
            )  # fmt: skip
            return
        carried = kernel.carried
        teams = () if carried is None else (c.item_text(context.ints(carried.teams)),)
        made.write(
            body, "fused", c.item_text(count), widest, "workspace_.bytes()",
            *_with_numbers(launch, ["workspace_.far()"] if buffers else [], teams),
            private=bool(buffers), shape=shapes.of_fused(context, *named),
        )  # fmt: skip


def _with_numbers(launch: Launch, far: Sequence[str], teams: Sequence[str]) -> tuple[str, ...]:
    """The last arguments of a launch, with the numbers of a row that a thread has at least where
    these are not as usual."""
    if teams or not shapes.joins_often(launch):
        return (*far, *teams)
    return (*(far or ("0",)), "0", "loma::gpu::kMoreNumbers")


def _write_group(owner: HostWriter, node: Group) -> None:
    context, writer = owner.context, owner.writer
    cells, order, lengths = (
        context.variable(var) for var in (node.cells, node.order, node.lengths)
    )
    shape = c.list_text(map(context.ints, sizes.dims_of(node.cells)))
    with writer.block(f"if (loma::gpu::are_many({c.item_text(context.ints(node.count))}))"):
        writer.line(f"const loma::Tensor {cells} = loma::cells({{{shape}}});")
        owner.nodes(node.noted)
        writer.line(f"const auto [{order}, {lengths}] = loma::gpu::grouped({cells});")
        owner.nodes(node.together)
    with writer.block("else"):
        owner.nodes(node.otherwise)


def _write_spread(owner: HostWriter, node: Spread) -> None:
    context, writer = owner.context, owner.writer
    given = c.list_text(map(context.ints, (node.iterations, node.work, node.launches)))
    given += ", /*keeps=*/true" * (node.launch.within is not None)
    with writer.block(f"if (loma::gpu::fills({given}))"):
        owner.nodes((node.launch,))
    with writer.block("else"):
        owner.nodes(node.otherwise)


def _write_carry(owner: HostWriter, node: Carry) -> None:
    context, writer = owner.context, owner.writer
    bytes_ = host.bytes_of(context, node.bytes)
    given = c.list_text((context.ints(node.rows), context.ints(node.width), bytes_))
    teams, found = cpp_name(node.teams.name), f"loma::gpu::carriers({given})"
    if node.wanted:
        wanted = " && ".join(f"{c.item_text(context.ints(each))} != 0" for each in node.wanted)
        found = f"{wanted} ? {found} : 0"
    with writer.block(f"if (const int64_t {teams} = {found}; {teams} > 0)"):
        owner.nodes(node.then)
    with writer.block("else"):
        owner.nodes(node.otherwise)


def _named(launch: Launch) -> tuple[str, tuple[Expr, ...]]:
    """What the kernel is called by, of all that it writes, and the extents of the loops that its
    work is in, as far as one statement's tells."""
    trees = [tree for tree in flat(launch.body) if isinstance(tree, Parallel)]
    private = {buffer.var.name for buffer in launch.buffers}
    names = (v.name for tree in trees for v in tree.writes if v.name not in private)
    first = next((tree for tree in trees if tree.team is not None), trees[0] if trees else None)
    own = () if first is None else _steps(first)
    extents = (*(axis.extent for axis in launch.kernel.axes), *own)
    return next(names, launch.kernel.axis.name), extents


def _steps(tree: Parallel) -> tuple[Expr, ...]:
    return (tree.count, *(node.high for node in nodes(tree.body) if isinstance(node, Loop)))


def _is_several(body: Sequence[HostNode]) -> bool:
    """Whether threads may read what others wrote before a barrier: there is more than one loop."""
    inside = list(flat(body))
    return len(inside) > 1 or not isinstance(inside[0], Parallel)


def _write_iterations(
    owner: HostWriter, launch: Launch, buffers: Sequence[Buffer], size: str | None
) -> None:
    """What a team does that has an iteration of a kernel."""
    context, writer, kernel = owner.context, owner.writer, launch.kernel
    step = cpp_name(kernel.axis.name) if kernel.count is None else host.block_of(kernel)
    joins = joined_indices(kernel)
    step = _counter(ITERATION) if kernel.inner else step
    params = f"const int64_t {step}, const auto& team_, [[maybe_unused]] char* const memory_"
    carried = kernel.carried
    head, end = f"loma::iterations(grid_, [&]({params})", ");"
    if carried is not None:
        begin = "loma::carried(grid_, [&](const auto& team_, char* const memory_)"
        with writer.block(begin, ","):
            _write_sums(owner, carried, buffers)
            for var in carried.sums:
                _write_zeros(owner, var)
        head, end = f"[&]({params})", ","
    with writer.block(head, end):
        for join in reversed(joins):
            given = f"{_counter(join.whole.name)}, {c.item_text(context.ints(join.extent))}"
            inner, outer = (_counter(var.name) for var in (join.inner, join.outer))
            writer.line(f"[[maybe_unused]] const int64_t {inner} = loma::remainder({given});")
            writer.line(f"[[maybe_unused]] const int64_t {outer} = loma::quotient({given});")
        for buffer in launch.buffers:
            if buffer not in buffers:
                element = ELEMENTS[dtype_of(buffer.var)]
                writer.line(f"{element} {context.variable(buffer.var)}[1] = {{}};")
        for slot, buffer in enumerate(buffers):
            _write_buffer(owner, slot, buffer)
        for var in launch.scalars:
            ctype = scalar_type(var.type, var.span)
            writer.line(f"{ctype} {context.variable(var)} = 0;")
        private = {buffer.var.name for buffer in launch.buffers}
        context.pointers = frozenset(private)
        context.steady = {name: name in launch.writes for name in host.steady(launch)}
        context.steady |= {var.name: True for var in kernel.parts}
        if size is not None:
            _write_block(owner, launch, size)
        context.pointers = frozenset(private | {piece.tensor.name for piece in launch.pieces})
        if launch.loops:
            writer.line("bool back_ = false;")
        body = with_joined(launch.body, joins)
        with context.cut(launch.pieces, kernel.axis.extent):
            if not launch.loops:
                body = _write_early(owner, launch, body)
            owner.nodes(body)
    if carried is not None:
        number = cpp_name(carried.number.name)
        params = f"const int64_t {number}, const auto& team_, char* const memory_"
        with writer.block(f"[&]({params})", ");"):
            _write_sums(owner, carried, buffers)
            owner.nodes(launch.end)
    context.pointers, context.steady = None, {}


def _write_early(
    owner: HostWriter, launch: Launch, body: tuple[HostNode, ...]
) -> tuple[HostNode, ...]:
    """Reads what an iteration needs one number of; the body with these."""
    reads = Reads(launch, owner.context.function)
    rest = reads.named(body)
    text = ThreadText(owner.context, InPlace((), ()))
    for read, var in reads.found.items():
        name = c.text(text.variable(var))
        owner.writer.line(f"const auto {name} = {c.text(text.value(read))};")
    return rest


def _write_sums(owner: HostWriter, carried: Carried, buffers: Sequence[Buffer]) -> None:
    """Where the sums are that a team carries."""
    for slot, buffer in enumerate(buffers):
        if buffer.var in carried.sums:
            _write_buffer(owner, slot, buffer)


def _write_buffer(owner: HostWriter, slot: int, buffer: Buffer) -> None:
    element, name = ELEMENTS[dtype_of(buffer.var)], owner.context.variable(buffer.var)
    place = f"loma::private_at(grid_, memory_, offset{slot}_)"
    owner.writer.line(f"{element}* const {name} = reinterpret_cast<{element}*>({place});")


def _counter(name: str) -> str:
    return local_name(name) if name.startswith(ITERATION) else cpp_name(name)


def _write_block(owner: HostWriter, launch: Launch, size: str) -> None:
    """Declares a block's first value, the number of its values, and where tensors begin."""
    context, writer, kernel = owner.context, owner.writer, launch.kernel
    assert kernel.first is not None
    assert kernel.count is not None
    first, count = c.Token(cpp_name(kernel.first.name)), cpp_name(kernel.count.name)
    if launch.single:
        writer.line(f"[[maybe_unused]] constexpr int64_t {count} = 1;")
        writer.line(f"const int64_t {first.text} = {host.block_of(kernel)};")
    else:
        writer.line(f"const int64_t {first.text} = {host.block_of(kernel)} * {size};")
        rest = c.Binary("-", context.ints(kernel.axis.extent), first)
        end = c.item_text(rest)
        writer.line(f"const int64_t {count} = std::min<int64_t>({size}, {end});")
    host.write_pieces(owner, launch, first)


def _widest(owner: HostWriter, launch: Launch, own: set[str]) -> str:
    """How many threads the widest statement of an iteration has something to do for, as far as the
    host knows."""
    whole = {}
    if launch.kernel.count is not None:
        whole = {launch.kernel.count.name: launch.kernel.count}
    rest = frozenset(own - whole.keys())
    found: list[Expr] = []
    for tree in flat(launch.body):
        if not isinstance(tree, Parallel):
            continue
        extent = tree.team.extent if tree.team is not None else _ONE
        width = sizes.product((tree.count, extent))
        if not (reads_elements(width) or sizes.mentions(width, rest)) and width not in found:
            found.append(width)
    widest: Expr = found[0] if found else _ONE
    for width in found[1:]:
        widest = Builtin("max", (widest, width), INT)
    return c.item_text(owner.context.ints(widest))


def _write_in_team(owner: HostWriter, tree: Parallel) -> None:
    """A statement's loop inside of a kernel."""
    context = owner.context
    text = _text(context, tree)
    counter = text.local(tree.counter)
    inside = Writer()
    text.nodes(inside, tree.body)
    count, row = iterations(context, tree), _row(text, tree)
    inner = c.number(1) if tree.team is None else context.ints(tree.team.extent)
    head = f"[&](const {_kind(tree, row)} {counter}, [[maybe_unused]] const auto& part_)"
    given = c.list_text((count, inner if row is None else row))
    if text.alike:
        given = f"{c.item_text(inner)}, /*meets=*/{_bool(meets(tree, context.shared))}"
    elif tree.team is not None:
        given += f", /*across=*/{_bool(tree.team.across)}"
    if tree.checks:
        owner.writer.declare("loma::Outside outside_(grid_);")
    how = "alike" if text.alike else "each" if row is None else "beside"
    if text.adds:
        how = f"template {_adding(tree)}"
    if text.puts:
        assert tree.row is not None
        assert tree.team is not None
        head = f"[&](const {_kind(tree, count)} {counter}, [[maybe_unused]] const auto& part_)"
        how = f"template sums<{ELEMENTS[dtype_of(tree.writes[0])]}>"
        given = c.list_text((count, text.context.ints(tree.row), inner))
        given += f", /*across=*/{_bool(tree.team.across)}"
    if text.rows:
        how = f"template rows<{ELEMENTS[dtype_of(tree.writes[0])]}>"
        given = c.list_text((count, inner))
    if isinstance(text, OwnedText):
        how, head = "owned", _owned_head(counter)
        given = f"{c.item_text(count)}, {_reading(text, counter)}"
    if isinstance(tree.body[-1], Scan):
        how, given = "running", c.item_text(count)
        head = f"[&]([[maybe_unused]] const int64_t {counter}, const auto& part_)"
    with owner.writer.block(f"team_.{how}({given}, {head}", ");"):
        owner.writer.extend(inside.lines)
    for check in tree.checks:
        write_check(owner.writer, context, check)


def _text(context: CppContext, tree: Parallel) -> ThreadText:
    text = ThreadText(context, tree)
    plain = tree.team is None and not (text.adds or text.alike or tree.checks)
    ahead = reads_ahead(tree) if plain else ()
    return OwnedText(context, tree, ahead) if ahead else text


def _reading(text: OwnedText, counter: str) -> str:
    return f"[&](const int64_t {counter}) {{ return {text.reads()}; }}"


def _owned_head(counter: str) -> str:
    return f"[&](const int64_t {counter}, [[maybe_unused]] const auto& part_, const auto& read_)"


def _row(text: ThreadText, tree: Parallel) -> c.Expression | None:
    """The length of the axis along which iterations are in order, if a thread is to take some of
    them side by side: where each is a few steps without a loop, which would read other places in
    turn. What an iteration changes the compiler does not read for several at once, unless that is
    all that it does; then neighbouring threads are better."""
    inside = list(nodes(tree.body))
    if tree.row is None or any(isinstance(node, Loop | AllReduce) for node in inside):
        return None
    return text.context.ints(tree.row) if text.adds or not _changes(inside) else None


def _adding(tree: Parallel) -> str:
    return f"adding<{ELEMENTS[dtype_of(tree.writes[0])]}>"


def _changes(inside: Sequence[Node]) -> bool:
    """Whether nodes read what was in a tensor before they write it."""
    written: set[str] = set()
    read: set[str] = set()
    for node in inside:
        place = node.place if isinstance(node, Store) else None
        parts = (part for expr in expressions(node) if expr is not place for part in walk(expr))
        read |= {part.tensor.name for part in parts if isinstance(part, Index)} - written
        if isinstance(node, Store) and isinstance(place, Index):
            written.add(place.tensor.name)
            if node.kind != "set" or place.tensor.name in read:
                return True
    return False


def _kind(tree: Parallel, row: c.Expression | None) -> str:
    """The type of a counter: from one of several axes a neighbour's values follow sooner."""
    return "int64_t" if row is None or tree.counter != COUNTER else "auto"


def _write_zeros(owner: HostWriter, var: Var) -> None:
    """Fills a tensor by its pointer, in a kernel or in serial loops."""
    context, writer = owner.context, owner.writer
    pointer, dims, zero = context.variable(var), sizes.dims_of(var), ELEMENTS[dtype_of(var)]
    if var.name in context.registers:
        writer.line(f"{pointer}[0] = {zero}(0);")
        return
    if context.looked_up is not None:
        pointer, dims = f"{pointer}_data_", context.dims(var)
        context.looked_up[var.name] = (pointer, var)
        count = c.text(context.ints(sizes.product(dims)))
        writer.line(f"for (int64_t p_ = 0; p_ < {count}; ++p_) {pointer}[p_] = {zero}(0);")
        return
    count = c.item_text(context.ints(sizes.product(dims)))
    with writer.block(f"team_.each({count}, 1, [&](const int64_t p_, const auto&)", ");"):
        writer.line(f"{pointer}[p_] = {zero}(0);")


def _bool(value: bool) -> str:
    return "true" if value else "false"
