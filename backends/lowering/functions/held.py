"""What kernels and panels hold and change, and what of it lies in the cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from loma.backends.kernels.ir import Kernel, Panels, Step
from loma.backends.kernels.sharing import mentions
from loma.backends.schedule.host import (
    Branch, Bytes, Contract, Count, GroupedContract, HostNode, Stream, Unit,
)  # fmt: skip
from loma.core import sizes
from loma.core.effects import written_places
from loma.core.ir import INT, Axis, Binary, IntConst, Stmt, TensorType, Var
from loma.core.walk import substitute


def last_statements(kernel: Kernel) -> tuple[Stmt, ...]:
    return () if kernel.carried is None else kernel.carried.end


def moving_axes(step: Kernel | Panels) -> list[Axis]:
    """What differs between the iterations of a kernel or panels: the index, or the first value and
    the number of a block."""
    team = []
    if isinstance(step, Kernel) and step.carried is not None:
        team = [Axis(step.carried.number.name, step.carried.teams)]
    if step.first is None or step.count is None:
        return [*team, *step.axes] if isinstance(step, Kernel) else [step.axis]
    last = Binary("-", step.axis.extent, step.count, INT)
    found = [*team, Axis(step.first.name, Binary("+", last, IntConst(1), INT))]
    if isinstance(step, Kernel) and step.blocks is not None:
        found.append(Axis(step.blocks.number.name, step.blocks.count))
    return found


def bytes_of(var: Var, count: str) -> Bytes:
    """The elements of a tensor; those of one value of the axis where ``count`` names its extent."""
    assert isinstance(var.type, TensorType)
    dims = [dim for dim in var.type.dims or () if not (isinstance(dim, Var) and dim.name == count)]
    return var.type.element, sizes.product(tuple(dims))


def bytes_of_rows(kernel: Kernel, tensors: Mapping[str, Var]) -> Iterator[Bytes]:
    """The elements of a row of each tensor that the statements of a kernel go through more than
    once: with what is private they stay in the cache from one statement to the next."""
    found = mentions(kernel.body)
    for name, dim in kernel.views:
        type_ = tensors[name].type
        assert isinstance(type_, TensorType)
        dims = type_.dims or ()
        if found[name] > 1 and len(dims) > 1:
            yield type_.element, sizes.product((*dims[:dim], *dims[dim + 1 :]))


def held_in(panels: Panels, inside: bool = True) -> Iterator[Var]:
    """What lives in a panel, also in kernels; in panels ``inside`` of it, as if they were one,
    behind the rest."""
    yield from panels.temporaries
    for step in panels.body:
        if isinstance(step, Kernel) and step.count is None:
            yield from step.private
    for step in panels.body:
        if inside and isinstance(step, Panels):
            whole = {step.count.name: step.axis.extent}
            for var in held_in(step):
                assert isinstance(var.type, TensorType)
                dims = tuple(substitute(dim, whole) for dim in sizes.dims_of(var))
                yield Var(var.name, replace(var.type, dims=dims))


def scalars_of(kernel: Kernel) -> tuple[Var, ...]:
    """Scalars that the kernel changes: every thread has its own."""
    places = (place for place in written_places(kernel.body) if isinstance(place, Var))
    return tuple({p.name: p for p in places if not isinstance(p.type, TensorType)}.values())


def are_whole_panels(step: Step) -> bool:
    return isinstance(step, Panels) and step.until is None


def multiplies(nodes: Sequence[HostNode]) -> bool:
    """Whether the library multiplies matrices for the nodes."""
    for node in nodes:
        match node:
            case Contract() | GroupedContract():
                return True
            case Unit(body=body) | Stream(body=body) if multiplies(body):
                return True
            case Branch(then=then, other=other) if multiplies((*then, *other)):
                return True
    return False


def in_one_loop(nodes: Sequence[HostNode]) -> Iterator[tuple[Stmt, ...]]:
    """The statements that run in one loop with others."""
    for node in nodes:
        match node:
            case Unit(source, more=more) if more:
                yield (source, *more)
            case Count(_, _, body):
                yield from in_one_loop(body)
            case Branch(_, _, then, other):
                yield from in_one_loop((*then, *other))
            case _:
                continue
