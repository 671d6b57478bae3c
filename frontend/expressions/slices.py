"""Parts of tensors outside index statements: ``x[0]``, ``x[:, 1:3]``, ``x[..., None]``.

Each subscript is a ``slice`` along its dimension, a position drops the dimension, and None is a new
one of size 1.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from loma import errors
from loma.core import builder as b, sizes
from loma.core.ir import FLOAT, INT, Expr, IntConst, TensorType, Type
from loma.core.printer import print_expr
from loma.errors.spans import Span
from loma.frontend.expressions import expression as ex
from loma.frontend.scope import Scope, Symbol, span_of
from loma.frontend.syntax.python_syntax import elts, is_ellipsis, is_new_dimension
from loma.frontend.types import fixed_sizes, has_dimensions

_ONE = IntConst(1)


def sliced(scope: Scope, node: ast.Subscript, base: Expr, dims: tuple[Expr, ...]) -> Expr:
    """The part of a tensor as operators."""
    span = span_of(node)
    nodes = _for_each(node, dims)
    base = scope.once(base) if len(nodes) > 1 else base
    value = base
    kept: list[Expr] = []
    dim = -1
    for item in nodes:
        if is_new_dimension(item):
            kept.append(_ONE)
            continue
        dim += 1
        size = dims[dim]
        if isinstance(item, ast.Slice):
            if item.lower is not None or item.upper is not None or item.step is not None:
                start, end, step = _bounds(scope, item, dim, size, span)
                value = part_along(value, dim, start, end, span, step)
            assert isinstance(value.type, TensorType)
            assert value.type.dims is not None
            kept.append(value.type.dims[dim])
        else:
            start = _position(scope, item, dim, size)
            end = sizes.simplify(b.binary("+", start, _ONE))
            value = part_along(value, dim, start, end, span)
    kept += dims[dim + 1 :]
    if len(kept) == len(dims) and not any(map(is_new_dimension, nodes)):
        return value
    return b.operator("reshape", (value,), {"shape": tuple(kept)}, span)


def part(
    scope: Scope, node: ast.Subscript, dims: tuple[Expr, ...]
) -> list[tuple[Expr, Expr, Expr | None]]:
    """For each dimension where the part of a tensor starts, its step, and how many positions it
    has; None for one position, which is no dimension of the part."""
    nodes = _for_each(node, dims)
    if new := [item for item in nodes if is_new_dimension(item)]:
        raise errors.SyntaxNotSupported(
            "'None' makes a new dimension of a value, and stands in no target", span_of(new[0])
        )
    found: list[tuple[Expr, Expr, Expr | None]] = []
    for dim, size in enumerate(dims):
        item = nodes[dim] if dim < len(nodes) else ast.Slice()
        if not isinstance(item, ast.Slice):
            found.append((_position(scope, item, dim, size), _ONE, None))
            continue
        start, end, step = _bounds(scope, item, dim, size, span_of(node))
        length = b.binary("-", end, start)
        if step != _ONE:
            length = b.binary("//", b.binary("+", length, b.binary("-", step, _ONE)), step)
        found.append((start, step, sizes.simplify(length)))
    return found


def _for_each(node: ast.Subscript, dims: tuple[Expr, ...]) -> list[ast.expr]:
    """A subscript for each of the first dimensions: ``...`` stands for as many as are missing."""
    nodes = elts(node.slice)
    places = [k for k, item in enumerate(nodes) if is_ellipsis(item)]
    if len(places) > 1:
        raise errors.SyntaxNotSupported("'...' stands once in a slice", span_of(nodes[places[1]]))
    given = len(nodes) - len(places) - sum(map(is_new_dimension, nodes))
    if given > len(dims):
        raise errors.RankMismatch(
            f"'{ast.unparse(node.value)}' has rank {len(dims)}, but has {given} subscripts",
            span_of(node),
        )
    if not places:
        return nodes
    whole = [ast.Slice() for _ in range(len(dims) - given)]
    return [*nodes[: places[0]], *whole, *nodes[places[0] + 1 :]]


def _bounds(
    scope: Scope, item: ast.Slice, dim: int, size: Expr, span: Span
) -> tuple[Expr, Expr, Expr]:
    """Start, end and step of a slice."""
    start = IntConst(0) if item.lower is None else _inside(scope, item.lower, dim, size, size)
    end = size if item.upper is None else _inside(scope, item.upper, dim, size, size)
    step: Expr = _ONE if item.step is None else _int(scope, item.step)
    by = sizes.constant(step)
    if by is not None and by < 1 and item.step is not None:
        raise errors.SubscriptOutOfRange(
            f"the step of a slice is positive, found {by}", span_of(item.step),
            hint="flip(x, [dim]) has the elements in reverse order" if by else None,
        )  # fmt: skip
    back = sizes.constant(b.binary("-", end, start))
    if back is not None and back < 0:
        raise errors.SubscriptOutOfRange(
            f"the slice ends at {print_expr(end)}, before its start {print_expr(start)}", span
        )
    return start, end, step


def part_along(
    value: Expr, dim: int, start: Expr, end: Expr, span: Span, step: Expr = _ONE
) -> Expr:
    """A slice along one dimension."""
    attrs: dict[str, object] = {"dim": dim, "start": start, "end": end, "step": step}
    return b.operator("slice", (value,), attrs, span)


def _position(scope: Scope, node: ast.expr, dim: int, size: Expr) -> Expr:
    """The position that a subscript names: from the end where it is a negative constant."""
    last = sizes.simplify(b.binary("-", size, _ONE))
    return _inside(scope, node, dim, size, last)


def counted(found: Expr, size: Expr) -> Expr:
    """A position, from the end where it is a negative constant that reaches into the dimension."""
    value, room = sizes.constant(found), sizes.constant(size)
    if value is None or value >= 0 or (room is not None and room + value < 0):
        return found
    return replace(sizes.simplify(b.binary("+", size, IntConst(value))), span=found.span)


def _inside(scope: Scope, node: ast.expr, dim: int, size: Expr, last: Expr) -> Expr:
    """A position up to the last one. What leaves the dimension whatever the sizes are is refused;
    the rest is checked by a call."""
    found = counted(_int(scope, node), size)
    low, over = sizes.constant(found), sizes.constant(b.binary("-", found, last))
    if (low is not None and low < 0) or (over is not None and over > 0):
        raise errors.SubscriptOutOfRange(
            f"the subscript {ast.unparse(node)} is outside dimension {dim} of size "
            f"{print_expr(size)}",
            span_of(node),
            hint="positions count from 0, or from -1 at the end",
        )
    return found


def _int(scope: Scope, node: ast.expr) -> Expr:
    """A subscript outside index statements."""
    with scope.having(subscripts=scope.subscripts + 1):
        found = b.as_scalar(ex.expression(scope, node))
    if found.type != INT:
        raise not_an_int(node, found.type)
    return fixed_sizes(scope, found)


def check_no_tensor(scope: Scope, nodes: list[ast.expr]) -> None:
    """Refuses whole tensors as the subscripts of an element."""
    for node in nodes:
        found: Symbol | Expr | None = scope.named(node)
        if isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp):
            found = ex.expression(scope, node)
        if found is not None and has_dimensions(found.type):
            raise not_an_int(node, found.type)


def not_an_int(node: ast.expr, found: Type) -> errors.UserError:
    hint = "convert it: float2int(x)" if found == FLOAT else None
    if isinstance(found, TensorType) and found.element == "bool":
        hint = "where(cond, x, 0.0) chooses elements: no size of a tensor follows from data"
    elif isinstance(found, TensorType) and found.integer:
        hint = (
            "gather(x, dim, index) takes the elements at the positions in an IntTensor, and an "
            "index statement those at its elements: y[i] = x[t[i]]"
        )
    return errors.ArrayAccessTypeMismatch(
        f"a subscript is an int, found {b.show_type(found)}", span_of(node), hint=hint
    )
