"""Panels: statements that share an index go through a few of its values at a time.

Not every run of statements is one kernel: a sum over the shared index, or an operand that is read
once for all its values, needs a loop of its own. Where temporaries pass between such loops, panels
keep them small enough for the cache: ``U = W X``, a kernel that uses U, and ``dW += dU X`` run for
some batch elements before the next ones start. Panels may have panels of another index inside: as
many batch elements as fit the cache, and of one that does not fit, as many rows. So an attention
has its weights for a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Set as AbstractSet
from dataclasses import dataclass, replace

from loma.backends.kernels.columns import narrowed
from loma.backends.kernels.cut import Cut
from loma.backends.kernels.ir import (
    Kernel, Panels, Step, Until, as_statement, panels_of, private_tensors, temporaries,
)  # fmt: skip
from loma.backends.kernels.runs import Run, Runs
from loma.backends.kernels.sharing import Shared, index_assigns, is_row, mentions, streams_operand
from loma.core.ir import (
    INT, Axis, Binary, Declare, For, If, Index, IndexAssign, Stmt, TensorType, Var,
)  # fmt: skip
from loma.core.names import Names
from loma.core.sizes import IsSize, dims_of
from loma.core.walk import subscript_variables, walk
from loma.passes.outer import summand

# The steps inside panels of an axis with that count, where those tensors are blank at first, and
# other panels with these counts
Fuse = Callable[[tuple[Stmt, ...], Var, frozenset[str], frozenset[str]], tuple[Step, ...]]


@dataclass(frozen=True, slots=True)
class InPanels:
    """A run as panels, with the statements of it that stay in front of and behind them."""

    early: tuple[Stmt, ...]
    panels: Panels
    late: tuple[Stmt, ...]


def in_panels(
    run: Run, runs: Runs, names: Names, fuse: Fuse, nested: bool, is_size: IsSize | None
) -> InPanels | Kernel | None:
    """A run as panels; None where no temporary passes between the loops of a panel, or the kernel
    that all of a panel would be. ``fuse`` makes steps of what is in a panel. Panels ``nested`` in
    others are for what :func:`_may_be_large`. With ``is_size``, which tells sizes, those of rows
    leave out columns that are worth nothing to them (:mod:`.columns`)."""
    group = run.statements
    ways = [way for way in run.ways if not nested or _may_be_large(group, way)]
    if not ways:
        return None
    shared = max(ways, key=lambda way: _gain(group, way))
    first, last = 0, len(group)
    local = runs.temporaries(group, shared)
    while any(isinstance(s, For) for s in group[: last - 1]) and _is_scattered(
        group[last - 1], shared, local.keys()
    ):
        last -= 1
    while True:
        inner = group[first:last]
        called = shared.names[len(index_assigns(group[:first])) :]
        found = _panels(inner, shared, called, runs, names, fuse, nested)
        if not isinstance(found, Panels):
            return found if len(inner) == len(group) else None
        crossing = set[str]().union(*map(_cut_by, panels_of(found)))
        using = _using(found, crossing)
        if not using:
            return None
        if using[0] == 0 and using[-1] == len(inner) - 1:
            if is_size is not None and not any(isinstance(s, Panels) for s in found.body):
                found = _of_columns(found, is_size, runs, names, fuse)
            return InPanels(group[:first], found, group[last:])
        first, last = first + using[0], first + using[-1] + 1


def _is_scattered(stmt: Stmt, shared: Shared, local: AbstractSet[str]) -> bool:
    """Whether a statement is a product of matrices, alone or under a condition, some of which live
    longer than the panels and have the shared index behind another one."""
    match stmt:
        case If(_, (inner,), ()):
            return _is_scattered(inner, shared, local)
        case IndexAssign(Index(Var() as target)):
            pass
        case _:
            return False
    match summand(stmt):
        case _, Binary("*", Index(Var() as left) as own, Index(Var() as right) as other) if (
            subscript_variables(own) != subscript_variables(other)
        ):
            places = {**dict(shared.reads), **dict(shared.dims)}
            return any(places.get(v.name) for v in (target, left, right) if v.name not in local)
        case _:
            return False


def _using(panels: Panels, crossing: set[str]) -> list[int]:
    """Positions of the panels' statements in the steps that use some of the tensors."""
    found: list[int] = []
    position = 0
    for step in panels.body:
        size = len(step.source) if isinstance(step, Kernel | Panels) else 1
        if crossing & mentions((as_statement(step),)).keys():
            found += range(position, position + size)
        position += size
    return found


def _gain(group: tuple[Stmt, ...], shared: Shared) -> tuple[bool, int, int]:
    """Whether rows stay whole, then how many tensors are cut, then how far outside."""
    dims = [dim for _, dim in shared.dims]
    return not is_row(group, shared), len(dims), -sum(dims)


def _cut_by(panels: Panels) -> set[str]:
    """Tensors that are smaller for the panels."""
    return {var.name for var in panels.temporaries} or private_tensors(panels.body)


def _mention(tensors: tuple[Var, ...], size: Var) -> bool:
    """Whether one of the tensors has a dimension of that size."""
    return any(size in dims_of(var) for var in tensors)


def _may_be_large(group: tuple[Stmt, ...], shared: Shared) -> bool:
    """Whether some statement makes rows, for each value of the index, that are longer than what
    they are made of, as products do: then panels of another index may be too large, too."""
    return not is_row(group, shared) and any(
        streams_operand(stmt, name)
        for stmt, name in zip(index_assigns(group), shared.names, strict=True)
    )


def _panels(
    group: tuple[Stmt, ...],
    shared: Shared,
    called: tuple[str, ...],
    runs: Runs,
    names: Names,
    fuse: Fuse,
    nested: bool,
) -> Panels | Kernel | None:
    assert shared.extent is not None
    own = [name for name in shared.names if not name.startswith("_")]
    wish = own[0] if own else "panel"
    count = Var(names.fresh(f"{wish}_count"), INT)
    inside = mentions(group)
    local = runs.temporaries(group, shared)
    dims = {name: dim for name, dim in shared.dims if name in inside}
    dims |= {name: dim for name, dim in shared.reads if dim is not None and name in inside}
    first = Var(names.fresh(f"{wish}_first"), INT)
    cut = Cut(count, first, iter(called), dims)
    body = tuple(map(cut.statement, group))
    declared = tuple(
        Declare(Var(name, cut.type(name, var.type)), None) for name, var in local.items()
    )
    steps = fuse((*declared, *body), count, runs.blank(group), frozenset())
    steps = tuple(s for s in steps if not (isinstance(s, Declare) and s.target.name in local))
    match steps:
        case (Kernel(private=private) as kernel,) if not (nested and _mention(private, count)):
            return kernel
    is_around = any(isinstance(step, Panels) for step in steps)
    if not (is_around or nested) and local.keys() <= private_tensors(steps):
        return None
    within = temporaries(steps)
    crossing = tuple(s.target for s in declared if s.target.name not in within)
    views = tuple((name, dim) for name, dim in sorted(dims.items()) if name not in local)
    streamed = {
        node.base.name: node.base
        for stmt in index_assigns(group)
        for node in walk(stmt.value)
        if isinstance(node, Index)
        and isinstance(node.base, Var)
        and node.base.name not in dims
        and isinstance(node.base.type, TensorType)
    }
    return Panels(
        Axis(wish, shared.extent), count, first, crossing, views,
        tuple(name for name in shared.sums if name in inside),
        tuple(streamed.values()), steps, group, declared, body,
    )  # fmt: skip


def _of_columns(panels: Panels, is_size: IsSize, runs: Runs, names: Names, fuse: Fuse) -> Panels:
    """Panels of rows whose statements are about fewer columns, where that is possible."""
    wish = f"{panels.count.name.removesuffix('_count')}_seen"
    count, first, exact = (
        Var(names.fresh(f"{wish}{end}"), INT) for end in ("", "_first", "_exact")
    )
    extent, rows = panels.axis.extent, (panels.count, panels.first)
    found = narrowed(panels.declared, panels.cut, rows, extent, count, exact, is_size)
    if found is None:
        return panels
    blank = runs.blank(panels.source)
    steps = fuse((*found.declared, *found.statements), panels.count, blank, frozenset({count.name}))
    local = {stmt.target.name for stmt in found.declared}
    steps = tuple(s for s in steps if not (isinstance(s, Declare) and s.target.name in local))
    within = temporaries(steps)
    crossing = tuple(s.target for s in found.declared if s.target.name not in within)
    until = Until(Binary("+", panels.first, panels.count, INT), exact, found.moderate, found.whole)
    inner = Panels(
        Axis(wish, extent), count, first, crossing, found.views, (), (), steps, panels.cut,
        until=until,
    )  # fmt: skip
    return replace(panels, temporaries=(), body=(inner,))
