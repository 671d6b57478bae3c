"""Inner loops of kernels as CUDA C++ (``device/inner.h``): a few lanes have a value each, with its
numbers in registers."""

from __future__ import annotations

from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.context import CppContext, HostWriter
from loma.backends.cfamily.cpp import ELEMENTS
from loma.backends.cfamily.loops import iterations
from loma.backends.cfamily.names import cpp_name
from loma.backends.cfamily.writer import Writer
from loma.backends.cuda.print import ThreadText
from loma.backends.kernels.ir import Inner
from loma.backends.schedule.host import Lanes, Launch
from loma.backends.schedule.ir import Parallel, Store, dtype_of
from loma.core import builder as b, sizes
from loma.core.ir import INT, Binary, Expr, Index, IntConst, Var
from loma.core.walk import free_variables

_ONE = IntConst(1)
_MOST = 4  # numbers that every form of a kernel is compiled for (kMostFixed of gpu_kernels.h)


def fixed(launch: Launch) -> tuple[str, ...]:
    """The ints that say how many registers inner loops take."""
    found: dict[str, None] = {}
    for node in launch.loops:
        inner = node.inner
        dims = [dim for var in (*inner.private, *_apart(inner)) for dim in sizes.dims_of(var)]
        for expr in (*dims, inner.lanes, *node.few):
            found |= dict.fromkeys(sorted(free_variables(expr)))
    return tuple(found)


def can_run(launch: Launch) -> bool:
    """Whether so many numbers say it as there may be."""
    return len(fixed(launch)) <= _MOST


def worth_it(context: CppContext, launch: Launch) -> str:
    """What the host asks before it launches the kernel with inner loops."""
    asked = []
    for node in launch.loops:
        inner = node.inner
        few = c.list_text(map(context.ints, node.few))
        apart = [context.ints(e) for var in _apart(inner) for e in _shape(var, inner)]
        values, lanes = context.ints(inner.axis.extent), context.ints(inner.lanes)
        asked.append(
            f"loma::gpu::lanes_fit(sizeof(real), {c.item_text(values)}, {c.item_text(lanes)}, "
            f"{{{few}}}, {{{c.list_text(apart)}}})"
        )
    under = [b.every(node.inner.under) for node in launch.loops if node.inner.under]
    if len(under) == len(launch.loops):  # one of them runs
        assert context.host is not None
        asked.insert(0, f"({c.text(context.host.condition(b.some(under)))})")
    return " && ".join(asked)


def geometry(context: CppContext, launch: Launch) -> tuple[str, str]:
    """How many values the loops have, and what lanes of a value share."""
    inner = launch.loops[0].inner
    both = (inner.axis.extent, inner.lanes)
    values, lanes = (c.item_text(context.ints(each)) for each in both)
    return values, lanes


def write_lanes(owner: HostWriter, node: Lanes) -> None:
    """The loop, and what joins its sums."""
    context, writer, inner = owner.context, owner.writer, node.inner
    own = {var.name for var in (*inner.private, *_apart(inner))}
    before = context.pointers, context.registers
    context.pointers = (context.pointers or frozenset()) | own
    context.registers = context.registers | own
    with writer.block():
        for each in inner.sums:
            writer.line(f"{_declared(context, each.own, inner)} = {{}};")
        index = cpp_name(inner.axis.name)
        extent = c.item_text(context.ints(inner.axis.extent))
        with writer.block(
            f"loma::inner({extent}, back_, [&](const int64_t {index}, const auto& row_)", ");"
        ):
            for var in (*inner.private, *inner.rows):
                writer.line(f"{_declared(context, var, inner)};")
            context.lanes = inner
            owner.nodes(node.body)
            context.lanes = None
        for each in inner.sums:
            shape = c.list_text(map(context.ints, _shape(each.own, inner)))
            names = context.variable(each.own), context.variable(each.parts)
            writer.line(f"loma::join({names[0]}, {shape}, {names[1]});")
        if not inner.sums:
            writer.line("loma::team_barrier();")
    context.pointers, context.registers = before


def write_in_lanes(owner: HostWriter, tree: Parallel) -> None:
    """A statement of an inner loop."""
    context = owner.context
    inner = context.lanes
    assert inner is not None
    text = _LaneText(context, tree, inner)
    counter, inside = text.local(tree.counter), Writer()
    text.nodes(inside, tree.body)
    target = tree.writes[0]
    apart = next((var for var in _apart(inner) if var.name == target.name), None)
    meets = any(var.name not in context.registers for var in tree.writes)
    count = c.item_text(iterations(context, tree))
    told = f"{count}, /*meets=*/{'true' if meets else 'false'}"
    kind = "int64_t"
    if apart is not None:
        how, told, kind = "apart", c.list_text(map(context.ints, _shape(apart, inner))), "auto"
    elif text.shares:
        how = f"template shared<{ELEMENTS[dtype_of(target)]}>"
    else:
        how = "alike"
    head = f"[&](const {kind} {counter}, [[maybe_unused]] const auto& part_)"
    with owner.writer.block(f"row_.{how}({told}, {head}", ");"):
        owner.writer.extend(inside.lines)


def _apart(inner: Inner) -> tuple[Var, ...]:
    """What each lane has other elements of."""
    return (*inner.rows, *(each.own for each in inner.sums))


def _shape(var: Var, inner: Inner) -> tuple[Expr, Expr]:
    """Of elements of which lanes have some each: rows, and columns that lanes share."""
    dims = sizes.dims_of(var)
    if dims and dims[-1] == inner.lanes:
        return sizes.product(dims[:-1]), dims[-1]
    return sizes.product(dims), _ONE


def _declared(context: CppContext, var: Var, inner: Inner) -> str:
    """An array of each thread."""
    element, name = ELEMENTS[dtype_of(var)], context.variable(var)
    if var in _apart(inner):
        shape = c.list_text(map(context.ints, _shape(var, inner)))
        return f"{element} {name}[loma::at_least_one(loma::sums_of({shape}))]"
    count = c.item_text(context.ints(sizes.product(sizes.dims_of(var))))
    return f"{element} {name}[loma::at_least_one({count})]"


class _LaneText(ThreadText):
    """The nodes of one tree in an inner loop."""

    def __init__(self, context: CppContext, tree: Parallel, inner: Inner) -> None:
        super().__init__(context, tree)
        self.alike, self.adds, self.puts, self.rows = True, False, False, False
        self._has_team = True
        self._columns = {var.name: _shape(var, inner)[1] for var in _apart(inner)}
        self._sums = {each.own.name for each in inner.sums}
        self.shares = tree.team is not None and tree.team.extent == inner.lanes

    def _element(self, place: Index) -> c.Expression:
        columns = self._columns.get(place.tensor.name)
        if columns is None:
            return super()._element(place)
        at = c.call("loma::slot", self._int(place.subscripts[0]), self.value(columns, INT))
        return c.Subscript(c.Token(self._pointer(place.tensor)), at)

    def _store(self, store: Store) -> str:
        line = super()._store(store)
        if not isinstance(store.place, Index):
            return line
        name = store.place.tensor.name
        if name in self._sums:
            match store.value:
                case Binary("*", left, right):
                    place, type_ = self._element(store.place), store.place.type
                    factors = self.value(left, type_), self.value(right, type_)
                    more = c.call("loma::fma<real>", *factors, place)
                    line = f"{c.text(c.Binary('=', place, more))};"
            return "if (row_.inside) " + line
        shared = self.shares and name in self.context.registers
        return "if (part_.is_whole()) " * shared + line
