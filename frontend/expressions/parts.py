"""Operators with several results, which an assignment takes apart: ``values, indices = sort(x)``.

They are expressions of others, one for each result.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TypeAlias

from loma import errors
from loma.core import builder as b, sizes
from loma.core.ir import INT, Expr, IntConst, TensorType
from loma.core.printer import print_expr
from loma.errors.spans import Span
from loma.frontend.expressions import expression as ex
from loma.frontend.expressions.operators import USAGE, argument_of
from loma.frontend.expressions.slices import part_along
from loma.frontend.scope import Scope, span_of
from loma.frontend.types import fixed_sizes

Result: TypeAlias = tuple[Expr, TensorType]
Slots: TypeAlias = dict[str, ast.expr]  # arguments by name


def _slots(node: ast.Call, names: tuple[str, ...], required: int) -> Slots:
    """The arguments by name, in PyTorch's order."""
    slots: Slots = dict(zip(names, node.args, strict=False))
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg not in names or keyword.arg in slots:
            break
        slots[keyword.arg] = keyword.value
    if len(slots) != len(node.args) + len(node.keywords) or not {*names[:required]} <= set(slots):
        optional = f"; {', '.join(names[required:])} may be left out" if names[required:] else ""
        raise errors.OperatorArguments(
            f"'{ast.unparse(node.func)}' takes {', '.join(names)}{optional}", span_of(node),
            hint=USAGE[ast.unparse(node.func)],
        )  # fmt: skip
    return slots


def _tensor(scope: Scope, node: ast.Call, slots: Slots) -> tuple[Expr, tuple[Expr, ...]]:
    """The argument x, as what may stand for several results, and its sizes."""
    x = ex.expression(scope, slots["x"])
    if not isinstance(x.type, TensorType) or not x.type.dims:
        raise errors.OperatorArguments(
            f"argument 'x' of '{ast.unparse(node.func)}' must be a tensor with sizes, found "
            f"{b.show_type(x.type)}",
            span_of(slots["x"]),
            hint="give the tensor its sizes: Tensor[N, M]",
        )
    return scope.once(x), x.type.dims


def _axis(scope: Scope, node: ast.Call, slots: Slots, dims: tuple[Expr, ...], default: int) -> int:
    dim = ex.int_expression(scope, slots["dim"], "'dim'") if "dim" in slots else IntConst(default)
    position, rank = sizes.constant(dim), len(dims)
    if position is None or not -rank <= position < rank:
        name = ast.unparse(node.func)
        raise errors.OperatorArguments(
            f"attribute 'dim' of '{name}' is a constant from {-rank} to {rank - 1}", dim.span
        )
    return position % rank


def _typed(value: Expr) -> Result:
    assert isinstance(value.type, TensorType)
    return value, value.type


def _check_count(node: ast.Call, results: int, count: int) -> None:
    if results != count:
        name = ast.unparse(node.func)
        raise errors.OperatorArguments(
            f"'{name}' has {results} results, found {count} names for them", span_of(node),
            hint=USAGE[name],
        )  # fmt: skip


def unbind(scope: Scope, node: ast.Call, count: int) -> list[Result]:
    """``unbind(x, dim)``: the slices at each position along dim, which they do not have."""
    span = span_of(node)
    slots = _slots(node, ("x", "dim"), 1)
    x, dims = _tensor(scope, node, slots)
    axis = _axis(scope, node, slots, dims, 0)
    size = sizes.constant(dims[axis])
    if size is None:
        raise errors.OperatorArguments(
            f"'unbind' needs a constant size, and dimension {axis} has size "
            f"{print_expr(dims[axis])}",
            span, hint="take the parts one by one: x[0], x[1]",
        )  # fmt: skip
    _check_count(node, size, count)
    shape = (*dims[:axis], *dims[axis + 1 :])
    parts = (part_along(x, axis, IntConst(k), IntConst(k + 1), span) for k in range(size))
    return [_typed(b.operator("reshape", (part,), {"shape": shape}, span)) for part in parts]


def in_order(scope: Scope, node: ast.Call, count: int) -> list[Result]:
    """``sort(x, dim=-1, descending=False)``: the elements in order, and where they were;
    ``topk(x, k, dim=-1, largest=True)``: the k largest ones."""
    span, some = span_of(node), ast.unparse(node.func) == "topk"
    names = ("x", "k", "dim", "largest") if some else ("x", "dim", "descending")
    slots = _slots(node, names, 2 if some else 1)
    _check_count(node, 2, count)
    x, dims = _tensor(scope, node, slots)
    axis = _axis(scope, node, slots, dims, -1)
    k = _largest(scope, slots["k"], dims[axis], axis) if some else dims[axis]
    descending = _flag(scope, node, slots, names[-1], int(some))
    order = b.operator("argsort", (x,), {"dim": axis, "descending": descending}, span)
    index = scope.once(part_along(order, axis, IntConst(0), k, span) if some else order)
    return [_typed(b.operator("gather", (x, index), {"dim": axis}, span)), _typed(index)]


def _largest(scope: Scope, node: ast.expr, size: Expr, axis: int) -> Expr:
    """How many elements ``topk`` takes of a dimension."""
    k = fixed_sizes(scope, ex.int_expression(scope, node, "'k'"))
    few, over = sizes.constant(k), sizes.constant(b.binary("-", k, size))
    if (few is not None and few < 0) or (over is not None and over > 0):
        raise errors.OperatorArguments(
            f"'topk' takes k from 0 to {print_expr(size)}, the size of dimension {axis}; "
            f"found {print_expr(k)}",
            span_of(node),
        )
    return k


def _flag(scope: Scope, node: ast.Call, slots: Slots, name: str, default: int) -> int:
    if name not in slots:
        return default
    value = sizes.constant(ex.int_expression(scope, slots[name], f"'{name}'"))
    if value is None:
        raise errors.OperatorArguments(
            f"attribute '{name}' of '{ast.unparse(node.func)}' must be a constant",
            span_of(slots[name]),
        )
    return int(value != 0)


def split(scope: Scope, node: ast.Call, count: int) -> list[Result]:
    """``split(x, sizes, dim)`` as ``count`` slices; ``sizes`` is a list, or the size of each.

    Each slice comes with its type as the sizes say it; the last one's own may be what is left, so
    that only a call can tell whether the two agree.
    """
    span = span_of(node)
    slots = _slots(node, ("x", "sizes", "dim"), 2)
    x, dims = _tensor(scope, node, slots)
    assert isinstance(x.type, TensorType)
    axis = _axis(scope, node, slots, dims, 0)
    each, bounds = _parts(scope, slots["sizes"], dims[axis], count, span)
    return [
        (
            part_along(x, axis, lo, hi, span),
            TensorType((*dims[:axis], size, *dims[axis + 1 :]), x.type.element),
        )
        for size, lo, hi in zip(each, bounds[:-1], bounds[1:], strict=True)
    ]


def _parts(
    scope: Scope, node: ast.expr, whole: Expr, count: int, span: Span
) -> tuple[list[Expr], list[Expr]]:
    """The sizes of the parts of a split, and where each begins and the last one ends."""
    given = argument_of(scope, node)
    items = given if isinstance(given, list) else [given] * count
    each = [fixed_sizes(scope, b.as_scalar(item)) for item in items]
    bounds: list[Expr] = [IntConst(0)]
    for size in each:
        if size.type != INT:
            raise errors.OperatorArguments(
                f"the sizes of 'split' are ints, found {b.show_type(size.type)}", span_of(node)
            )
        bounds.append(sizes.simplify(b.binary("+", bounds[-1], size)))
    if len(each) != count:
        raise errors.OperatorArguments(
            f"'split' makes {len(each)} parts, found {count} names for them", span
        )
    excess = sizes.constant(b.binary("-", bounds[-1], whole))
    each = [sizes.simplify(size) for size in each]
    if not isinstance(given, list):
        # As in PyTorch, the last part is what is left: more than none, at most the given size.
        part = sizes.constant(each[0])
        left = excess is not None and part is not None and 0 < excess < part
        if excess != 0 and not left:
            raise errors.ShapeMismatch(
                f"'split' into parts of size {print_expr(each[0])} does not make {count} parts "
                f"of size {print_expr(whole)}",
                span, hint="give all sizes: split(x, [m, n], dim)",
            )  # fmt: skip
        each[-1] = sizes.simplify(b.binary("-", whole, bounds[-2]))
    elif excess:
        raise errors.ShapeMismatch(
            f"the parts of 'split' add up to {print_expr(bounds[-1])}, and the dimension has "
            f"size {print_expr(whole)}",
            span,
        )
    return each, [*bounds[:-1], whole]


RESULTS: dict[str, Callable[[Scope, ast.Call, int], list[Result]]] = {
    "split": split, "unbind": unbind, "sort": in_order, "topk": in_order,
}  # fmt: skip
