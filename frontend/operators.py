"""Calls of tensor operators: arguments by position and by name, as in PyTorch."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from loma import builder as b
from loma import errors, sizes
from loma.frontend import expressions as ex
from loma.frontend.scope import Scope, span_of
from loma.frontend.types import fixed_sizes
from loma.ir import INT, Expr, IntConst, Op, Span, TensorType
from loma.ops import AttrInfo, OpInfo
from loma.printer import print_expr


def argument_of(scope: Scope, node: ast.expr) -> Expr | list[Expr]:
    """An argument of an operator: an expression, or a list of them."""
    if isinstance(node, ast.List | ast.Tuple):
        return [ex.expression(scope, item) for item in node.elts]
    return ex.expression(scope, node)


def operator(scope: Scope, node: ast.Call, info: OpInfo, items: Sequence[Expr | list[Expr]]) -> Op:
    """Arguments in PyTorch's order: the tensors, then the attributes, each also by name."""
    span = span_of(node)
    order: list[str | AttrInfo] = [*info.args, *info.attrs]
    if info.name == "gather" and len(items) > 1 and not _is_tensor(items[1]):
        order = ["x", info.attrs[0], "index"]  # torch.gather(x, dim, index)
    if len(items) > len(order):
        lists = any(attr.kind in ("ints", "dims") for attr in info.attrs)
        raise errors.OperatorArguments(
            f"'{info.name}' takes at most {len(order)} arguments, found {len(items)}",
            span,
            hint=f"put lists in brackets: {info.name}(x, [a, b])" if lists else None,
        )
    given: dict[str, Expr | list[Expr]] = {}
    for slot, item in zip(order, items, strict=False):
        given[slot if isinstance(slot, str) else slot.name] = item
    for keyword in node.keywords:
        key = _keyword(info, keyword, span)
        if key in given:
            raise errors.OperatorArguments(f"'{info.name}' got '{key}' twice", span_of(keyword))
        given[key] = argument_of(scope, keyword.value)
    args = _tensor_args(info, given, span)
    attrs = {
        attr.name: _attribute(scope, given[attr.name]) for attr in info.attrs if attr.name in given
    }
    return b.operator(info.name, args, attrs, span)


def _is_tensor(item: Expr | list[Expr]) -> bool:
    return not isinstance(item, list) and isinstance(item.type, TensorType)


def _keyword(info: OpInfo, keyword: ast.keyword, span: Span) -> str:
    name = keyword.arg
    if name is None:
        raise errors.SyntaxNotSupported("'**' is not part of loma", span_of(keyword.value))
    names = [*info.args, *(attr.name for attr in info.attrs)]
    if name == "dim" and "dims" in names:
        return "dims"
    if name not in names:
        raise errors.OperatorArguments(
            f"'{info.name}' has no argument '{name}'; it has {', '.join(names)}",
            span_of(keyword), hint=errors.suggest(name, names),
        )  # fmt: skip
    return name


def _tensor_args(info: OpInfo, given: dict[str, Expr | list[Expr]], span: Span) -> list[Expr]:
    if info.takes_list:
        tensors = given.get(info.args[0])
        if not isinstance(tensors, list) or not tensors:
            raise errors.OperatorArguments(
                f"'{info.name}' takes a list of tensors", span, hint=f"{info.name}([x, y], dim)"
            )
        return tensors
    args: list[Expr] = []
    for position, name in enumerate(info.args):
        if name not in given:
            if position >= len(info.args) - info.optional:
                break
            raise errors.OperatorArguments(
                f"'{info.name}' needs its argument '{name}'", span,
                hint=f"its arguments are {', '.join([*info.args, *(a.name for a in info.attrs)])}",
            )  # fmt: skip
        value = given[name]
        if isinstance(value, list):
            raise errors.OperatorArguments(
                f"argument '{name}' of '{info.name}' must be a tensor, found a list", span
            )
        args.append(value)
    return args


def _attribute(scope: Scope, value: Expr | list[Expr]) -> object:
    if isinstance(value, list):
        return tuple(fixed_sizes(scope, b.as_scalar(item)) for item in value)
    return fixed_sizes(scope, b.as_scalar(value))


# ----------------------------------------------------------------------------------------- split


def split(scope: Scope, node: ast.Call, count: int) -> list[tuple[Expr, TensorType]]:
    """``split(x, sizes, dim)`` as ``count`` slices; ``sizes`` is a list, or the size of each.

    Each slice comes with its type as the sizes say it; the last one's own may be what is left, so
    that only a call can tell whether the two agree.
    """
    span = span_of(node)
    slots: dict[str, ast.expr] = dict(zip(("x", "sizes", "dim"), node.args, strict=False))
    slots |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    if len(node.args) > 3 or set(slots) - {"x", "sizes", "dim"} or not {"x", "sizes"} <= set(slots):
        raise errors.OperatorArguments(
            "'split' takes a tensor, the sizes of the parts, and dim", span,
            hint="a, b = split(x, [m, n], dim)",
        )  # fmt: skip
    x = ex.expression(scope, slots["x"])
    if not isinstance(x.type, TensorType) or not x.type.dims:
        raise errors.OperatorArguments(
            f"argument 'x' of 'split' must be a tensor with sizes, found {b.show_type(x.type)}",
            span_of(slots["x"]),
        )
    dim = ex.int_expression(scope, slots["dim"], "'dim'") if "dim" in slots else IntConst(0)
    position, rank = sizes.constant(dim), len(x.type.dims)
    if position is None or not -rank <= position < rank:
        raise errors.OperatorArguments(
            f"attribute 'dim' of 'split' is a constant from {-rank} to {rank - 1}", dim.span
        )
    whole = x.type.dims[position]
    axis = position % rank
    each, bounds = _parts(scope, slots["sizes"], whole, count, span)
    dims = x.type.dims
    return [
        (
            b.operator("slice", (x,), {"dim": IntConst(axis), "start": lo, "end": hi}, span),
            TensorType((*dims[:axis], size, *dims[axis + 1 :]), x.type.element),
        )
        for size, lo, hi in zip(each, bounds[:-1], bounds[1:], strict=True)
    ]


def _parts(
    scope: Scope, node: ast.expr, whole: Expr, count: int, span: Span
) -> tuple[list[Expr], list[Expr]]:
    """The sizes of the parts of a split, and where each begins and the last one ends."""
    items = argument_of(scope, node)
    if isinstance(items, list):
        each = [fixed_sizes(scope, b.as_scalar(item)) for item in items]
    else:
        each = [fixed_sizes(scope, b.as_scalar(items))] * count
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
    if not isinstance(items, list):
        # As in PyTorch, the last part is what is left: more than none, at most the given size.
        part = sizes.constant(each[0])
        exact = excess == 0
        if not (exact or (excess is not None and part is not None and 0 < excess < part)):
            raise errors.ShapeMismatch(
                f"'split' into parts of size {print_expr(each[0])} does not make {count} parts "
                f"of size {print_expr(whole)}",
                span, hint="give all sizes: split(x, [m, n], dim)",
            )  # fmt: skip
        each[-1] = sizes.simplify(b.binary("-", whole, bounds[-2]))
    elif excess is not None and excess != 0:
        raise errors.ShapeMismatch(
            f"the parts of 'split' add up to {print_expr(bounds[-1])}, and the dimension has "
            f"size {print_expr(whole)}",
            span,
        )
    return each, [*bounds[:-1], whole]
