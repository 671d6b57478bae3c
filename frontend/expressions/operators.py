"""Calls of tensor operators: arguments by position and by name, as in PyTorch."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from loma import errors
from loma.core import builder as b
from loma.core.ir import Expr, IntConst, TensorType
from loma.core.ops import Definition, OpInfo
from loma.errors.spans import Span
from loma.frontend.expressions import expression as ex
from loma.frontend.scope import Scope, span_of, too_long
from loma.frontend.types import fixed_sizes


# Operators with several results: only an assignment takes them.
USAGE = {
    "split": "a, b = split(x, [m, n], dim)",
    "unbind": "a, b = unbind(x, dim)",
    "sort": "values, indices = sort(x, dim, descending)",
    "topk": "values, indices = topk(x, k, dim, largest)",
}


def argument_of(scope: Scope, node: ast.expr) -> Expr | list[Expr]:
    """An argument of an operator: an expression, or a list of them."""
    if isinstance(node, ast.List | ast.Tuple):
        return [ex.expression(scope, item) for item in node.elts]
    return ex.expression(scope, node)


def operator(
    scope: Scope, node: ast.Call, info: OpInfo, items: Sequence[Expr | list[Expr]]
) -> Expr:
    """Arguments in PyTorch's order: the tensors, then the attributes, each also by name."""
    span = span_of(node)
    order = list(info.order or [*info.args, *(attr.name for attr in info.attrs)])
    if info.name == "gather" and len(items) > 1 and not _is_tensor(items[1]):
        order = ["x", "dim", "index"]  # torch.gather(x, dim, index)
    if info.name == "norm" and len(items) > 1 and not isinstance(items[1], list):
        raise errors.OperatorArguments(
            "the second argument of 'norm' is a list of dimensions (in PyTorch it is p)", span,
            hint="norm(x, [1]) is the 2-norm along dimension 1",
        )  # fmt: skip
    if len(items) > len(order):
        lists = any(attr.kind in ("ints", "dims") for attr in info.attrs)
        listed = "x, [a, b]" if info.args else f"[{', '.join(map(ast.unparse, node.args))}]"
        raise errors.OperatorArguments(
            f"'{info.name}' takes at most {errors.counted(len(order), 'argument')}, "
            f"found {len(items)}",
            span,
            hint=f"put lists in brackets: {info.name}({listed})" if lists else None,
        )
    given = dict(zip(order, items, strict=False))
    for keyword in node.keywords:
        key = _keyword(info, keyword)
        if key in given:
            raise errors.OperatorArguments(f"'{info.name}' got '{key}' twice", span_of(keyword))
        words = next((attr.words for attr in info.attrs if attr.name == key), ())
        given[key] = _word(keyword, words) if words else argument_of(scope, keyword.value)
    args = _tensor_args(info, given, node)
    names = [attr.name for attr in info.attrs if attr.name in given]
    attrs = {name: _attribute(scope, given[name]) for name in names}
    return applied(scope, info, args, attrs, span)


def applied(
    scope: Scope, info: OpInfo, args: Sequence[Expr], attrs: dict[str, object], span: Span
) -> Expr:
    """An operator's value; one that is defined by others is written out."""
    if info.define is None:
        return b.operator(info.name, args, attrs, span)
    for value in args if scope.elementwise else ():
        if too_long(value):
            raise errors.OperatorArguments(
                f"the argument of '{info.name}' is too long here, where it is worked out twice",
                value.span, hint="give it a name in a statement of its own before",
            )  # fmt: skip
    complete = b.attributes(info, args, attrs, span)
    return info.define(Definition(info.name, tuple(args), complete, span, scope.once))


def _word(keyword: ast.keyword, words: tuple[str, ...]) -> IntConst:
    word = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
    if word not in words:
        raise errors.OperatorArguments(
            f"'{keyword.arg}' is one of {', '.join(map(repr, words))}", span_of(keyword.value)
        )
    return IntConst(words.index(str(word)))


def _is_tensor(item: Expr | list[Expr]) -> bool:
    return not isinstance(item, list) and isinstance(item.type, TensorType)


def _keyword(info: OpInfo, keyword: ast.keyword) -> str:
    name = keyword.arg
    if name is None:
        raise errors.SyntaxNotSupported("'**' is not part of loma", span_of(keyword.value))
    names = [*info.args, *(attr.name for attr in info.attrs)]
    if name == "dim" and "dims" in names:
        return "dims"
    if name == "unbiased" and "correction" in names:  # PyTorch's older name
        return "correction"
    if name not in names:
        raise errors.OperatorArguments(
            f"'{info.name}' has no argument '{name}'; it has {', '.join(names)}",
            span_of(keyword), hint=errors.suggest(name, names),
        )  # fmt: skip
    return name


def _tensor_args(info: OpInfo, given: dict[str, Expr | list[Expr]], node: ast.Call) -> list[Expr]:
    span = span_of(node)
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
                after = [later for later in info.args[position:] if later in given]
                if not after:
                    break
                raise errors.OperatorArguments(
                    f"'{info.name}' takes '{after[0]}' after '{name}', which is left out", span
                )
            raise errors.OperatorArguments(
                f"'{info.name}' needs its argument '{name}'", span,
                hint=f"its arguments are {', '.join([*info.args, *(a.name for a in info.attrs)])}",
            )  # fmt: skip
        value = given[name]
        if isinstance(value, list):
            lists = [ast.unparse(arg) for arg in node.args if isinstance(arg, ast.List | ast.Tuple)]
            text = lists[0][1:-1] if lists else "a, b"
            raise errors.OperatorArguments(
                f"argument '{name}' of '{info.name}' must be a tensor, found a list", span,
                hint=f"make a tensor of them: stack([{text}], 0)",
            )  # fmt: skip
        args.append(value)
    return args


def _attribute(scope: Scope, value: Expr | list[Expr]) -> object:
    if isinstance(value, list):
        return tuple(fixed_sizes(scope, b.as_scalar(item)) for item in value)
    return fixed_sizes(scope, b.as_scalar(value))
