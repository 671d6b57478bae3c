"""Loops that one thread of a GPU runs: those that write one element at a time."""

from __future__ import annotations

from collections.abc import Sequence

from loma.backends.cfamily.context import Captured, CppContext, HostWriter
from loma.backends.cfamily.cpp import scalar_type
from loma.backends.cfamily.loops import write_check, write_looked_up
from loma.backends.cfamily.writer import Writer
from loma.backends.cuda.print import ThreadText
from loma.backends.cuda.start import Start, dedented
from loma.backends.kernels.sharing import mentions
from loma.backends.schedule.host import HostNode
from loma.backends.schedule.ir import InPlace
from loma.core.effects import counters, declared, effects, written_places
from loma.core.ir import Declare, For, Stmt, TensorType, Var, While
from loma.core.walk import statements


def write_serial(
    owner: HostWriter, written: frozenset[str], body: Sequence[HostNode], source: tuple[Stmt, ...]
) -> None:
    """Loops that write one element at a time, on one thread; what they change of the host's numbers
    comes back to it, which waits for that."""
    context, outer = owner.context, owner.writer
    launch = Start(owner, "serial", source)
    own = counters(source) | declared(source)
    changed = {var.name: var for var in _scalars(source) if var.name not in own}
    kept = {name: var for name, var in changed.items() if _is_elsewhere(context, name, source)}
    given = kept.keys() | _initialised(context.function.body)
    used: dict[str, tuple[str, Var]] = {}
    context.looked_up, owner.writer = used, Writer(1)
    with context.capturing(Captured(frozenset(own | changed.keys()))) as captured:
        owner.nodes(body)
    inside, owner.writer = owner.writer, outer
    context.looked_up = None
    kernel = Writer(1)
    kernel.line("[[maybe_unused]] loma::Outside outside_(grid_);")
    for var in changed.values():
        type_, name = scalar_type(var.type, var.span), context.variable(var)
        if var.name in given:
            captured.params[f"{name}_before_"] = (type_, name)
        before = f"{name}_before_" if var.name in given else "0"
        kernel.line(f"{type_} {name} = {before};")
        if var.name in kept:
            launch.pointer(
                f"{type_}* __restrict {name}_after_",
                f"{name}_after_.template mutable_data_ptr<{type_}>()",
            )
    kernel.extend(dedented(inside.lines))
    for var in kept.values():
        kernel.line(f"*{context.variable(var)}_after_ = {context.variable(var)};")
    for name, tensor in used.values():
        launch.tensor(tensor, name, tensor.name in written)
    for name, (type_, argument) in captured.params.items():
        launch.number(type_, name, argument)
    with outer.block():
        for var in kept.values():
            made = f"loma::empty({{1}}, loma::options<{scalar_type(var.type, var.span)}>())"
            outer.line(f"loma::Tensor {context.variable(var)}_after_ = {made};")
        launch.write(kernel, "serial")
        for var in kept.values():
            name, type_ = context.variable(var), scalar_type(var.type, var.span)
            outer.line(f"{name} = loma::item<{type_}>({name}_after_);")


def _is_elsewhere(context: CppContext, name: str, source: tuple[Stmt, ...]) -> bool:
    """Whether anything but these statements, and a declaration, mentions a variable: these
    statements when they run again, too."""
    body = context.function.body
    for stmt in statements(body):
        if isinstance(stmt, For | While):
            inside = list(statements(stmt.body))
            if source[0] in inside and name not in declared(stmt.body):
                return True
    own = sum(var.name == name for stmt in statements(body) for var in effects(stmt).declares)
    return mentions(body)[name] > mentions(source)[name] + own


def _initialised(body: tuple[Stmt, ...]) -> set[str]:
    """The variables that are declared with a value."""
    declares = (stmt for stmt in statements(body) if isinstance(stmt, Declare))
    return {stmt.target.name for stmt in declares if stmt.value is not None}


def _scalars(source: tuple[Stmt, ...]) -> list[Var]:
    """The scalars that statements assign to."""
    places = (place for place in written_places(source) if isinstance(place, Var))
    return [place for place in places if not isinstance(place.type, TensorType)]


def write_in_place(owner: HostWriter, tree: InPlace) -> None:
    """Writes a statement in such loops."""
    context, writer = owner.context, owner.writer
    text, inside = ThreadText(context, tree), Writer()
    text.nodes(inside, tree.body)
    write_looked_up(writer, text, inside.lines, "outside_(grid_)")
    for check in tree.checks:
        write_check(writer, context, check)
