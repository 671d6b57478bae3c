"""Sums over a kernel's index: each block of rows has a part, and these are added up behind it.

    r[n] = sum(y[n, d] * w[d] for d in D)
    x[n, d] = y[n, d] * r[n]
    b[d] = sum(y[n, d] for n in N)

goes through ``y`` once, a block of rows at a time, which is still in a cache for the second and the
third statement: block ``k`` leaves the sum over its own rows in ``_b_parts[k, d]``. How many rows a
block has depends on sizes alone, and parts are added up in order, so that results do not depend on
threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loma.backends.kernels.ir import Blocks
from loma.backends.kernels.sharing import (
    Shared, index_assigns, is_last, is_row, opened, subscripts_of, whole_reads,
)  # fmt: skip
from loma.core import builder as b
from loma.core import sizes
from loma.core.effects import written
from loma.core.ir import (
    FLOAT, INT, Axis, Expr, Index, IndexAssign, IntConst, Reduce, Stmt, TensorType, Var, replace,
)  # fmt: skip
from loma.core.names import Names
from loma.core.walk import mentioned_names, nodes
from loma.passes.fold import folded

_SHARE = 16  # what is read and written for parts is at most such a part of all


@dataclass(frozen=True, slots=True)
class Part:
    """``inside`` the kernel each block writes its own part of ``tensor``, which ``behind`` it are
    added to the target."""

    tensor: Var
    inside: IndexAssign
    behind: IndexAssign


def is_part(stmt: Stmt, index: str) -> bool:
    """Whether a statement with that index is a sum over it."""
    return isinstance(stmt, IndexAssign) and index not in subscripts_of(stmt)


def worth_it(group: tuple[Stmt, ...], shared: Shared) -> bool:
    """Whether each sum over the index reads what others go through anyway, row by row."""
    if shared.mixed or not is_last(group, shared) or is_row(group, shared):
        return False
    found = list(zip(index_assigns(group), shared.names, strict=True))
    others = {
        node.tensor.name
        for stmt, name in found
        if not is_part(stmt, name)
        for node in nodes((stmt,))
        if isinstance(node, Index) and isinstance(node.base, Var) and len(node.subscripts) > 1
    }
    return bool(shared.sums) and all(
        not is_part(stmt, name) or bool(whole_reads(stmt) & others) for stmt, name in found
    )


def with_parts(
    group: tuple[Stmt, ...], body: tuple[Stmt, ...], shared: Shared, blocks: Blocks, names: Names
) -> tuple[tuple[Stmt, ...], list[Part]]:
    """The body of a kernel for a group with parts in place of sums over the index.

    They come last where they can, when rows have been read one after the other: sums go down a
    strip of columns, for which a processor does not know what comes next.
    """
    out: list[Stmt] = []
    last: list[Stmt] = []
    parts: list[Part] = []
    called = iter(shared.names)
    for k, (stmt, made) in enumerate(zip(group, body, strict=True)):
        own = [next(called) for _ in index_assigns((stmt,))]
        if not (isinstance(stmt, IndexAssign) and is_part(stmt, own[0])):
            out.append(made)
            continue
        parts.append(part_of(stmt, made, blocks.number, blocks.count, names))
        stays = mentioned_names((stmt,)) & written(group[k + 1 :])
        (out if stays else last).append(parts[-1].inside)
    return (*out, *last), parts


def part_of(stmt: IndexAssign, made: Stmt, number: Var, count: Expr, names: Names) -> Part:
    """A sum over the index, of which each of ``count`` blocks or teams has a part; ``made`` is the
    same for the rows of the one with that ``number``."""
    assert isinstance(made, IndexAssign)
    assert made.op == "+="
    own = tuple(axis for axis in made.axes if axis.name in subscripts_of(made))
    summed = tuple(axis for axis in made.axes if axis not in own)
    dims = (count, *(axis.extent for axis in own))
    tensor = Var(names.fresh(f"{stmt.element.tensor.name}_parts"), TensorType(dims))
    at = tuple(Var(axis.name, INT) for axis in own)
    block = Axis(names.fresh(number.name), count)
    read = Index(tensor, (Var(block.name, INT), *at), FLOAT)
    return Part(
        tensor,
        replace(
            made,
            target=Index(tensor, (number, *at), FLOAT),
            op="=", value=Reduce("sum", made.value, summed, FLOAT, stmt.span), axes=own,
        ),
        replace(stmt, value=Reduce("sum", read, (block,), FLOAT, stmt.span), axes=own),
    )  # fmt: skip


def blocks_of(group: Sequence[Stmt], shared: Shared, elements: int, number: Var) -> Blocks:
    """Blocks with so many ``elements`` of the tensors that the statements go through."""
    assert shared.extent is not None
    along = {name: dim for name, dim in (*shared.reads, *shared.dims) if dim is not None}
    tensors = {
        node.name: node.type
        for node in nodes(tuple(group))
        if isinstance(node, Var) and isinstance(node.type, TensorType)
    }
    row = [_rest(tensors[name], dim) for name, dim in sorted(along.items()) if name in tensors]
    parts: list[Expr] = []
    for stmt, name in zip(index_assigns(tuple(group)), shared.names, strict=True):
        if is_part(stmt, name):
            own = subscripts_of(stmt)
            extents = [axis.extent for axis in opened(stmt).axes if axis.name in own]
            parts.append(sizes.product((IntConst(_SHARE), *extents)))
    wanted = _most(IntConst(elements), sizes.total(tuple(parts)))
    rows = b.binary("//", wanted, _most(IntConst(1), sizes.total(tuple(row))))
    size = folded(_most(IntConst(1), b.builtin("min", (shared.extent, rows))))
    more = b.binary("-", b.binary("+", shared.extent, size), IntConst(1))
    return Blocks(size, folded(b.binary("//", more, size)), number)


def _most(one: Expr, other: Expr) -> Expr:
    return folded(b.builtin("max", (one, other)))


def _rest(type_: TensorType, dim: int) -> Expr:
    dims = type_.dims or ()
    return sizes.product(dims[:dim] + dims[dim + 1 :])
