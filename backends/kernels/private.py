"""A run of statements as a kernel: the shared index fixed, temporaries without its dimension."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loma.backends.kernels.cut import Cut, zeros
from loma.backends.kernels.ir import Blocks, Kernel, Step
from loma.backends.kernels.parts import Part, blocks_of, with_parts
from loma.backends.kernels.sharing import Shared, is_last, is_row, mentions
from loma.core.ir import INT, Axis, Expr, Index, IndexAssign, Stmt, TensorType, Var, Zero, replace
from loma.core.names import Names, axes_of
from loma.core.walk import (
    expressions, map_blocks, map_children, map_expressions, statements, substitute, variables,
)  # fmt: skip
from loma.passes.liveness import Liveness


def make_kernel(
    group: tuple[Stmt, ...], shared: Shared, private: dict[str, Var], names: Names
) -> Kernel:
    """The kernel of a group; ``private`` are the variables that nothing else mentions."""
    assert shared.extent is not None
    if is_last(group, shared):
        return _blocked(group, shared, private, names)[0]
    return _single(group, shared, private, names)


def with_inner(kernel: Kernel, shared: Shared, private: dict[str, Var], names: Names) -> Kernel:
    """The kernel with iterations of one value of a second index, which its statements share."""
    inside = _single(kernel.body, shared, private, names)
    before, own = dict(kernel.dropped), dict(inside.dropped)
    dropped = tuple((name, _in_order(before[name], own[name])) for name in sorted(own))
    return replace(
        inside, axis=kernel.axis, inner=(*kernel.inner, inside.axis), source=kernel.source,
        dropped=dropped,
    )  # fmt: skip


def _in_order(before: tuple[int, ...], own: tuple[int, ...]) -> tuple[int, ...]:
    """Dimensions of a tensor, of which ``own`` are counted without those ``before``."""
    (dim,) = own
    for other in before:
        dim += dim >= other
    return tuple(sorted((*before, dim)))


def _single(
    group: tuple[Stmt, ...], shared: Shared, private: dict[str, Var], names: Names
) -> Kernel:
    assert shared.extent is not None
    dims = dict(shared.dims)
    small = {name: Var(name, _without(var, dims[name])) for name, var in private.items()}
    index = Var(_index_name(group, shared, names), INT)
    rewriting = _Rewriting(index, iter(shared.names), dims, small, names)
    body = tuple(map(rewriting.statement, group))
    _, live = Liveness(()).block(body, frozenset(dims.keys() - small.keys()))
    used = tuple(small[name] for name in sorted(small))
    dropped = tuple((var.name, (dims[var.name],)) for var in used)
    axis = Axis(index.name, shared.extent)
    return Kernel(axis, used, live & small.keys(), body, group, dropped=dropped)


def make_kernel_with_sums(
    group: tuple[Stmt, ...],
    shared: Shared,
    private: dict[str, Var],
    names: Names,
    elements: int,
) -> tuple[Step, ...]:
    """The kernel of a group with sums over the index, and what is behind it; see :func:`blocks_of`
    for ``elements``."""
    kernel, sums = _blocked(group, shared, private, names, elements)
    return kernel, *sums


def _blocked(
    group: tuple[Stmt, ...],
    shared: Shared,
    private: dict[str, Var],
    names: Names,
    elements: int = 0,
) -> tuple[Kernel, list[Stmt]]:
    """The kernel with iterations of several values of the index, and what adds up sums over it."""
    assert shared.extent is not None
    index = _index_name(group, shared, names)
    count = Var(names.fresh(f"{index}_count"), INT)
    inside = mentions(group)
    dims = {n: dim for n, dim in (*shared.reads, *shared.dims) if dim is not None and n in inside}
    first = Var(names.fresh(f"{index}_first"), INT)
    cut = Cut(count, first, iter(shared.names), dims, names, frozenset(private))
    body = tuple(map(cut.statement, group))
    blocks: Blocks | None = None
    parts: list[Part] = []
    if shared.sums:
        blocks = blocks_of(group, shared, elements, Var(names.fresh(f"{index}_block"), INT))
        body, parts = with_parts(group, body, shared, blocks, names)
    small = {name: Var(name, cut.type(name, var.type)) for name, var in private.items()}
    written = frozenset(name for name, _ in shared.dims if name not in private)
    _, live = Liveness(()).block(body, written)
    views = tuple((name, dim) for name, dim in sorted(dims.items()) if name not in private)
    used = tuple(small[name] for name in sorted(small))
    axis = Axis(index, shared.extent)
    rows = not is_row(group, shared)
    kernel = Kernel(
        axis, used, live & small.keys(), body, group, count, first, views, rows=rows,
        blocks=blocks, parts=tuple(part.tensor for part in parts),
    )  # fmt: skip
    return kernel, [part.behind for part in parts]


def at_index(
    group: tuple[Stmt, ...],
    called: Sequence[str],
    index: Var,
    dims: dict[str, int],
    private: dict[str, Var],
    names: Names,
) -> tuple[Stmt, ...]:
    """The statements of a group for one value of an index that their index statements call so;
    ``dims``: which dimension the ``private`` tensors lack then."""
    rewriting = _Rewriting(index, iter(called), dims, private, names)
    return tuple(map(rewriting.statement, group))


def _without(var: Var, dim: int) -> TensorType:
    assert isinstance(var.type, TensorType)
    assert var.type.dims is not None
    return replace(var.type, dims=var.type.dims[:dim] + var.type.dims[dim + 1 :])


def _index_name(group: tuple[Stmt, ...], shared: Shared, names: Names) -> str:
    """The name that most statements use for the index, unless one uses it for something else."""
    used = shared.names
    best = max(dict.fromkeys(used), key=lambda name: (not name.startswith("_"), used.count(name)))
    own = iter(used)
    for stmt in statements(group):
        called = next(own) if isinstance(stmt, IndexAssign) else None
        taken = {name for expr in expressions(stmt) for name in variables(expr)} | axes_of(stmt)
        if best in taken and called != best:
            return names.fresh(best)
    return best


@dataclass(slots=True)
class _Rewriting:
    """``called`` and ``dims`` as for :class:`Cut`."""

    index: Var
    called: Iterator[str]
    dims: dict[str, int]
    private: dict[str, Var]
    names: Names

    def statement(self, stmt: Stmt) -> Stmt:
        match stmt:
            case IndexAssign(axes=axes):
                own = next(self.called)
                new: dict[str, Expr] = {own: self.index} if own != self.index.name else {}
                kept = replace(stmt, axes=tuple(axis for axis in axes if axis.name != own))
                return map_expressions(kept, lambda e: self._expr(substitute(e, new)))
            case Zero(Var() as target) if target.name in self.private:
                return replace(stmt, target=self.private[target.name])
            case Zero(Var() as target) if isinstance(target.type, TensorType):
                here = {self.dims[target.name]: self.index}
                return zeros(target, self.names, stmt.span, here)
            case _:
                return map_blocks(stmt, lambda block: tuple(map(self.statement, block)))

    def _expr(self, expr: Expr) -> Expr:
        match expr:
            case Index(Var(name), subscripts) if name in self.private:
                dim = self.dims[name]
                rest = subscripts[:dim] + subscripts[dim + 1 :]
                return replace(
                    expr, base=self.private[name], subscripts=tuple(map(self._expr, rest))
                )
            case _:
                return map_children(expr, self._expr)
