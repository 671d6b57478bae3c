"""Index statements as loop nests over raw data.

A statement becomes one C++ function that runs a stretch of its parallel loop, and a call of it. The
innermost loop runs over an axis of the target (rows of the target are updated element by element,
summed axes are loops around the row), or over a summed axis with a scalar accumulator: whichever
reads more elements in order. Only axes whose values write elements of their own run in parallel,
and what a thread computes does not depend on how many there are.
"""

from __future__ import annotations

from dataclasses import replace

from loma.backends.libtorch import contraction, convolution
from loma.backends.libtorch.access import (
    Loop, analyse, reads, rename_axes, steps, without_no_diff,
)  # fmt: skip
from loma.backends.libtorch.context import FunctionContext
from loma.backends.libtorch.contraction import Contraction
from loma.backends.libtorch.convolution import Convolution
from loma.backends.libtorch.expressions import element_type, scalar_type, strip
from loma.backends.libtorch.frames import LooseCheck
from loma.backends.libtorch.guards import marked
from loma.backends.libtorch.names import cpp_name, cpp_string
from loma.backends.libtorch.nest import Nest
from loma.backends.libtorch.packing import packed
from loma.backends.libtorch.plan import (
    Plan, make_plan, target_axes,
)  # fmt: skip
from loma.backends.libtorch.ranges import provably_inside, write_checks
from loma.backends.libtorch.rows import write_element, write_partial_sum, write_rows
from loma.backends.writer import Writer
from loma.core import sizes
from loma.core.ir import (
    OF_NOTHING, Axis, Expr, Index, IndexAssign, IntConst, Reduce, TensorType, Type, Var,
)  # fmt: skip
from loma.core.walk import walk

CHUNK = 4096  # iterations of a loop that is cut into pieces of fixed length


def write_index_assign(
    writer: Writer, context: FunctionContext, stmt: IndexAssign, fresh: bool
) -> None:
    """Writes the checks and the run of an index statement; ``fresh``: the target is all zero and
    everything in it may be overwritten."""
    assign = stmt.op == "=" or fresh
    stmt, axes, kind, body = _prepared(context, stmt, assign)
    line = context.line(stmt.span)
    found = [
        (analyse(read, context.dims(read.base), scope, padded), scope)
        for root, own in ((stmt.target, stmt.axes), (body, axes))
        for read, scope, padded in reads(root, own)
    ]
    write_checks(writer, context, stmt, found, line)
    # Inside of a kernel every iteration would call, or copy.
    if isinstance(stmt.target, Index) and context.kernel is None:
        call = _library_call(stmt, kind, body, axes)
        if call is not None:
            call.write(writer, context, assign)
            return
        body = packed(writer, context, stmt.target, kind, body, axes)
    if kind not in OF_NOTHING:
        _write_nonempty(writer, context, stmt, kind, axes, line)
    nest = Nest(context, axes)
    plan = make_plan(nest, stmt, kind, body, axes, assign)
    _write(writer, context, nest, plan, line)


def how_it_runs(context: FunctionContext, stmt: IndexAssign) -> str:
    """What becomes of an index statement outside of kernels and serial loops, in a few words."""
    call = library_call(stmt)
    if call is not None:
        return call.remark
    assign = stmt.op == "="
    stmt, axes, kind, body = _prepared(context, stmt, assign)
    if not axes:
        return ""
    if isinstance(stmt.target, Index):
        body = packed(Writer(), context, stmt.target, kind, body, axes)
    plan = make_plan(Nest(context, axes), stmt, kind, body, axes, assign)
    loops, chunked = _shared_loops(plan)
    shared = [plan.inner] if chunked and plan.inner is not None else loops
    names = dict.fromkeys(name for loop in shared for name in loop.parts)
    return f"parallel over {', '.join(names)}" if names else "on one thread"


def _prepared(
    context: FunctionContext, stmt: IndexAssign, assign: bool
) -> tuple[IndexAssign, tuple[Axis, ...], str, Expr]:
    """The statement with its subscripts marked, and what :func:`_normalised` makes of it."""
    target = marked(stmt.target, stmt.axes, context)
    assert isinstance(target, Index | Var)
    stmt = replace(stmt, target=target)
    value = marked(without_no_diff(stmt.value), stmt.axes, context)
    return (stmt, *_normalised(stmt, value, assign))


def _normalised(stmt: IndexAssign, value: Expr, assign: bool) -> tuple[tuple[Axis, ...], str, Expr]:
    """All axes, the reduction over those that the target lacks, and what is reduced.

    A reduction that is the whole right side becomes that of the statement.
    """
    summed = len(target_axes(stmt)) < len(stmt.axes)
    taken = {axis.name for axis in stmt.axes}
    if isinstance(value, Reduce) and not any(
        sizes.varies(axis.extent, taken | {a.name for a in value.axes}) for axis in value.axes
    ):
        inner = rename_axes(value, taken)
        if inner.kind == "sum" or (assign and not summed and isinstance(stmt.target, Index)):
            return stmt.axes + inner.axes, inner.kind, inner.body
    return stmt.axes, "sum", value


def _write_nonempty(
    writer: Writer,
    context: FunctionContext,
    stmt: IndexAssign,
    kind: str,
    axes: tuple[Axis, ...],
    line: int,
) -> None:
    own = [context.ints(axis.extent) for axis in stmt.axes]
    reduced = [context.ints(axis.extent) for axis in axes[len(stmt.axes) :]]
    if all(text.isdigit() and text != "0" for text in reduced):
        return
    tests = "".join(f"{text} > 0 && " for text in own)
    empty = " || ".join(f"{text} == 0" for text in reduced)
    empty = f"({empty})" if tests and len(reduced) > 1 else empty
    place = cpp_string(context.place(line))
    writer.line(f"if ({tests}{empty}) loma::empty_error({place}, {cpp_string(kind)});")


# ------------------------------------------------------------------------------------- writing


def _write(writer: Writer, context: FunctionContext, nest: Nest, plan: Plan, line: int) -> None:
    target = plan.stmt.target
    inside = Writer(1)
    parts = isinstance(target, Var)
    if not parts:
        nest.pointer(_base(target))
    type_ = target.type
    loops, chunked = _shared_loops(plan)
    around = [] if parts else plan.around
    if parts:
        plan = replace(plan, summed=plan.summed[1:])
    if context.serial is not None:
        inside = Writer()
        nest.loops(inside, [loop.axis for loop in around],
                   lambda: _write_inside(inside, nest, plan, type_, None, []))  # fmt: skip
        _finish_in_place(writer, context, nest, inside, line)
        return
    step = nest.axis(loops[0].name) if len(loops) == 1 else "p_"
    with inside.block(f"for (int64_t {step} = begin_; {step} < end_; ++{step})"):
        bounds = None
        if len(loops) == 2:
            first, second = (nest.axis(loop.name) for loop in loops)
            extent = strip(nest.ints(loops[1].axis.extent))
            inside.line(f"const int64_t {first} = p_ / ({extent}), {second} = p_ % ({extent});")
        if chunked:
            assert plan.inner is not None
            extent = strip(nest.ints(plan.inner.axis.extent))
            size = _chunk(plan)
            inside.line(f"const int64_t low_ = p_ * {size};")
            inside.line(f"const int64_t high_ = std::min<int64_t>({extent}, low_ + {size});")
            bounds = ("low_", "high_")
        nest.loops(
            inside,
            [loop.axis for loop in around],
            lambda: _write_inside(inside, nest, plan, type_, bounds, loops),
        )
    _finish(writer, context, nest, plan, inside, loops, chunked, line)


def _shared_loops(plan: Plan) -> tuple[list[Loop], bool]:
    """The loops whose iterations threads share; where there are none, whether they share pieces of
    the innermost loop."""
    parts = isinstance(plan.stmt.target, Var)
    loops = plan.summed[:1] if parts else plan.parallel
    inner = plan.inner
    return loops, not loops and inner is not None and (parts or (plan.by_rows and inner.alone))


def _chunk(plan: Plan) -> int:
    if any(isinstance(node, Reduce) for node in walk(plan.value)):
        return CHUNK // 256
    return CHUNK if not plan.summed else CHUNK // 16


def _base(target: Index | Var) -> Var:
    base = target.base if isinstance(target, Index) else target
    assert isinstance(base, Var)
    return base


def _write_inside(
    writer: Writer,
    nest: Nest,
    plan: Plan,
    type_: Type,
    bounds: tuple[str, str] | None,
    loops: list[Loop],
) -> None:
    if isinstance(plan.stmt.target, Var):
        write_partial_sum(writer, nest, plan, type_, bounds, loops)
    elif plan.by_rows:
        write_rows(writer, nest, plan, type_, bounds)
    else:
        write_element(writer, nest, plan, type_)


# ------------------------------------------------------------------- the function and its call


def _finish(
    writer: Writer,
    context: FunctionContext,
    nest: Nest,
    plan: Plan,
    inside: Writer,
    loops: list[Loop],
    chunked: bool,
    line: int,
) -> None:
    target = plan.stmt.target
    number = len(context.nests) + 1
    name = f"{cpp_name(context.function.name)}__loop{number}"
    params: list[str] = []
    args: list[str] = []
    if isinstance(target, Var):
        element = scalar_type(target.type, target.span)
        params.append(f"{element}* __restrict parts_")
        args.append("parts_.data()")
    for base, pointer in nest.pointers.items():
        type_ = _tensor_type(plan, base)
        element = element_type(type_)
        tensor = context.variable(Var(base, type_))
        if isinstance(target, Index) and base == _base(target).name:
            params.append(f"{element}* __restrict {pointer}")
            args.append(data(context, base, tensor, f"mutable_data_ptr<{element}>"))
        else:
            params.append(f"const {element}* __restrict {pointer}")
            args.append(data(context, base, tensor, f"const_data_ptr<{element}>"))
    for param, (ctype, argument) in nest.params.items():
        params.append(f"const {ctype} {param}")
        args.append(argument)
    if nest.checks:
        params.append("loma::Outside& outside_")
        args.append("outside_")
    params += ["const int64_t begin_", "const int64_t end_"]
    function = Writer()
    function.comment(context.statement_text)
    function.line("template <typename real>")
    function.line(f"static __attribute__((noinline)) void {name}(")
    function.line("    " + ",\n    ".join(params) + ") {")
    function.extend(inside.lines)
    function.line("}")
    context.nests.append(function.text())

    count, work = _count_and_work(context, nest, plan, loops, chunked)
    if condition := _has_elements(context, plan.stmt):
        count = f"{condition} ? {count} : 0"
    if nest.checks:
        writer.declare("loma::Outside outside_;")
    if isinstance(target, Var):
        element = scalar_type(target.type, target.span)
        writer.declare(f"std::vector<{element}> parts_(std::max<int64_t>({count}, 0));")
    call = f"{name}<real>({', '.join(args)}, begin_, end_);"
    run = "parallel(" if context.kernel is None else "inside(nested_, "
    with writer.block(f"loma::{run}{count}, {work}, [&](int64_t begin_, int64_t end_)", ");"):
        writer.line(call)
    _write_loose_checks(writer, context, nest.checks, line)
    if isinstance(target, Var):
        scalar = context.variable(target)
        writer.line(f"for (const auto part_ : parts_) {scalar} += part_;")


def _finish_in_place(
    writer: Writer, context: FunctionContext, nest: Nest, inside: Writer, line: int
) -> None:
    """The statement where it stands, in serial loops."""
    assert context.serial is not None
    context.serial.pointers |= nest.pointers
    for name, (ctype, argument) in nest.params.items():
        if name != argument:
            writer.declare(f"const {ctype} {name} = {argument};")
    if nest.checks:
        writer.declare("loma::Outside outside_;")
    writer.extend(inside.lines)
    _write_loose_checks(writer, context, nest.checks, line)


def _has_elements(context: FunctionContext, stmt: IndexAssign) -> str:
    """When a sum has terms, if the element that it is added to may be missing otherwise: the range
    check of a subscript that no axis moves says nothing where other axes are empty."""
    if not isinstance(stmt.target, Index):
        return ""
    target = stmt.target
    own = target_axes(stmt)
    summed = [axis for axis in stmt.axes if axis.name not in own]
    access = analyse(target, context.dims(_base(target)), stmt.axes, False)
    if all(
        (isinstance(s.expr, Var) and s.expr.name in own) or provably_inside(s, stmt.axes, context)
        for s in access.subscripts
    ):
        return ""
    names = {axis.name for axis in stmt.axes}
    extents = [axis.extent for axis in summed if not sizes.mentions(axis.extent, names)]
    texts = dict.fromkeys(context.ints(e) for e in extents if not sizes.constant(e))
    return " && ".join(f"{text} > 0" for text in texts)


def data(context: FunctionContext, base: str, tensor: str, accessor: str) -> str:
    """A tensor's elements; of a kernel's private tensors and of its blocks there is a pointer."""
    if context.kernel is not None and base in context.kernel.pointers:
        return tensor
    return f"{tensor}.template {accessor}()"


def _tensor_type(plan: Plan, base: str) -> TensorType:
    for root in (plan.stmt.target, plan.value):
        for node in walk(root):
            if isinstance(node, Index) and isinstance(node.base, Var) and node.base.name == base:
                assert isinstance(node.base.type, TensorType)
                return node.base.type
    raise AssertionError(base)


def _count_and_work(
    context: FunctionContext, nest: Nest, plan: Plan, loops: list[Loop], chunked: bool
) -> tuple[str, str]:
    inner = [plan.inner] if plan.inner is not None else []
    extents = [loop.axis.extent for loop in [*plan.around, *plan.summed, *inner]]
    if plan.group is not None:
        whole = any(loop.pieces_of == plan.group.loop.name for loop in loops)
        extents.append(IntConst(plan.group.many) if whole else plan.group.loop.axis.extent)
    below: list[Expr] = []
    for node in walk(plan.value):
        if isinstance(node, Reduce):
            names = {axis.name for axis in nest.scope} | {axis.name for axis in node.axes}
            below += [a.extent for a in node.axes if not sizes.mentions(a.extent, names)]
    factor = steps(plan.value)
    if chunked:
        assert plan.inner is not None
        size = _chunk(plan)
        extent = context.ints(plan.inner.axis.extent)
        rest = sizes.product(
            (IntConst(size * factor), *(x.axis.extent for x in plan.summed), *below)
        )
        return f"({strip(extent)} + {size - 1}) / {size}", strip(context.ints(rest))
    work = strip(context.ints(sizes.product((IntConst(factor), *extents, *below))))
    if not loops:
        return "1", work
    count = sizes.product(tuple(loop.axis.extent for loop in loops))
    return strip(context.ints(count)), work


def _write_loose_checks(
    writer: Writer, context: FunctionContext, checks: list[LooseCheck], line: int
) -> None:
    for check in checks:
        place = cpp_string(context.place(check.line or line))
        text = cpp_string(check.text)
        if check.subscript is None:
            writer.line(f"outside_.check_elements({check.number}, {place}, {text});")
            continue
        name = "the value" if check.tensor.startswith("@") else context.named(check.tensor)
        writer.line(
            f"outside_.check({check.number}, {place}, {text}, {cpp_string(name)}, "
            f"{context.dimension(check.tensor, check.subscript.dim)}, "
            f"{strip(context.ints(check.subscript.size))});"
        )


def library_call(stmt: IndexAssign) -> Contraction | Convolution | None:
    """The library call that the statement becomes, or None for loops."""
    value = without_no_diff(stmt.value)
    axes, kind, body = _normalised(stmt, value, stmt.op == "=")
    return _library_call(stmt, kind, body, axes)


def _library_call(
    stmt: IndexAssign, kind: str, body: Expr, axes: tuple[Axis, ...]
) -> Contraction | Convolution | None:
    if not isinstance(stmt.target, Index):
        return None
    return contraction.match(stmt.target, kind, body, axes) or convolution.match(
        stmt.target, kind, body, axes, stmt.op == "+="
    )


def is_library_call(stmt: IndexAssign) -> bool:
    return library_call(stmt) is not None
