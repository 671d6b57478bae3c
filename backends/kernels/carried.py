"""Sums over a kernel's index that its teams of threads carry from one iteration to the next.

    if need_x: x[n, d] = y[n, d] * r[n]
    if need_w: w[d] = sum(y[n, d] * x_hat[n, d] for n in N)

goes through ``y`` and ``x_hat`` once, if a call wants all of it: some teams share the iterations,
each has sums of its own, near it, and puts them into its row of ``w_parts`` at the end. What is
left is to add up rows, one for each team instead of one for each iteration. How many teams there
are follows from sizes, so results are the same from run to run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from loma.backends.kernels.ir import Carried, Kernel
from loma.backends.kernels.parts import is_part, part_of
from loma.backends.kernels.private import make_kernel
from loma.backends.kernels.runs import Runs
from loma.backends.kernels.sharing import (
    Shared, index_assigns, is_row, opened, reads_tensors, whole_reads,
)  # fmt: skip
from loma.core.effects import written
from loma.core.ir import (
    FLOAT, INT, Declare, Expr, If, Index, IndexAssign, Stmt, TensorType, Var, replace,
)  # fmt: skip
from loma.core.names import Names
from loma.core.sizes import dims_of
from loma.core.walk import mentioned_names, variable_names


@dataclass(frozen=True, slots=True)
class Sums:
    """A kernel that carries sums, what stands ``before`` it, and what adds up its parts ``behind``
    it; the block's statements up to ``end`` do that under all of the conditions ``wanted``."""

    before: tuple[Stmt, ...]
    kernel: Kernel
    behind: tuple[Stmt, ...]
    wanted: tuple[Expr, ...]
    end: int


def with_sums(block: tuple[Stmt, ...], start: int, runs: Runs, names: Names) -> Sums | None:
    """The kernel of the statements from a position of a block that share an index, with sums over
    it, those in branches included; ``runs`` may have such sums."""
    items = list(_items(block, start))
    while len(items) > 1 or (items and items[0].condition is None):
        body = tuple(stmt for item in items for stmt in item.body)
        run = runs.longest(body, 0)
        if run is None:
            return None
        whole = _covered(items, run.end)
        if whole == len(items) or items[0].condition is None:
            way = next((way for way in run.ways if _worth_it(run.statements, way)), None)
            if way is None:
                return None
            private = runs.temporaries(run.statements, way)
            wanted = tuple(item.condition for item in items if item.condition is not None)
            end = start + (whole if wanted else run.end)
            return _made(run.before, run.statements, way, private, names, wanted, end)
        items = items[:whole]
    return None


@dataclass(frozen=True, slots=True)
class _Item:
    """Statements of a block that run under a condition, or in any case."""

    body: tuple[Stmt, ...]
    condition: Expr | None = None


def _items(block: tuple[Stmt, ...], start: int) -> Iterator[_Item]:
    """From that position on, all under conditions, declarations aside, or none."""
    if not isinstance(block[start], If):
        yield _Item(block[start:])
        return
    changed: set[str] = set()
    for stmt in block[start:]:
        match stmt:
            case If(condition, body, ()) if not reads_tensors(condition):
                if changed & variable_names(condition):
                    return
                changed |= written(body)
                yield _Item(body, condition)
            case Declare(_, None):
                yield _Item((stmt,))
            case _:
                return


def _covered(items: list[_Item], end: int) -> int:
    """How many items are whole up to such a position of all their statements."""
    position = 0
    for k, item in enumerate(items):
        position += len(item.body)
        if position > end:
            return k
    return len(items)


def _worth_it(group: tuple[Stmt, ...], shared: Shared) -> bool:
    """Whether each sum over the index reads what others go through anyway, value by value."""
    if shared.mixed or not shared.sums or is_row(group, shared):
        return False
    if any(not isinstance(stmt, IndexAssign) for stmt in group):
        return False
    found = list(zip(index_assigns(group), shared.names, strict=True))
    sums = [stmt for stmt, name in found if is_part(stmt, name)]
    others = [stmt for stmt, name in found if not is_part(stmt, name)]
    read = {name for stmt in others for name in whole_reads(stmt)}
    targets = {stmt.element.tensor.name for stmt in sums}
    used = {name for stmt in others for name in mentioned_names((stmt,))}
    alone = len(targets) == len(sums) and not targets & used
    return alone and all(
        stmt.element.subscripts and whole_reads(stmt) & read and not _has_own(stmt) for stmt in sums
    )


def _has_own(stmt: IndexAssign) -> bool:
    """Whether a sum's target has a place for each number of an int tensor, or of several axes."""
    return any(not isinstance(sub, Var) for sub in stmt.element.subscripts)


def _made(
    before: tuple[Stmt, ...],
    group: tuple[Stmt, ...],
    shared: Shared,
    private: dict[str, Var],
    names: Names,
    wanted: tuple[Expr, ...],
    end: int,
) -> Sums:
    plain = tuple(
        opened(stmt) if is_part(stmt, name) else stmt
        for stmt, name in zip(index_assigns(group), shared.names, strict=True)
    )
    kernel = make_kernel(plain, replace(shared, sums=()), private, names)
    teams, number = Var(names.fresh("teams"), INT), Var(names.fresh("team"), INT)
    body: list[Stmt] = []
    sums: list[Var] = []
    parts: list[Var] = []
    last: list[Stmt] = []
    behind: list[Stmt] = []
    for stmt, name, made in zip(index_assigns(group), shared.names, kernel.body, strict=True):
        assert isinstance(made, IndexAssign)
        if not is_part(stmt, name):
            body.append(made)
            continue
        part = part_of(stmt, made, number, teams, names)
        at, called = part.inside.element.subscripts[1:], stmt.element.tensor.name
        sums.append(Var(names.fresh(f"{called}_sum"), TensorType(dims_of(part.tensor)[1:])))
        own = Index(sums[-1], at, FLOAT)
        body.append(replace(made, target=own))
        last.append(replace(part.inside, value=own))
        parts.append(part.tensor)
        behind.append(part.behind)
    carried = Carried(tuple(sums), tuple(last), number, teams)
    kernel = replace(
        kernel, private=(*kernel.private, *sums), body=tuple(body), source=group,
        parts=tuple(parts), carried=carried,
    )  # fmt: skip
    return Sums(before, kernel, tuple(behind), wanted, end)
