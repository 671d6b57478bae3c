"""Rules for reductions of tensors whose rank nobody knows: without sizes, with operators that take
the shape of another tensor."""

from __future__ import annotations

from loma.ad import operator_rules as o
from loma.ad.operator_rules import OpAdjoint, dims_of, op
from loma.core import builder as b
from loma.core.ir import Expr, Var


def amax_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """amax(x, dims), amin(x, dims): g at the first such element, else 0"""
    (x,) = c.args
    if dims_of(x) is not None:
        return o.extreme_in_rows(c)
    found = op("or", op("eq", x, _spread(c, c.y)), op("isnan", x))
    rows = _rows(c, op("where", found, op("ones_like", x), op("zeros_like", x)))
    # More than one found element makes the count larger than 1, whatever it is rounded to.
    first = op("eq", op("cumsum", rows, dim=-1), b.flt(1))
    return (op("mul", _spread(c, c.g), _back(c, op("where", first, rows, b.flt(0)))),)


amin_rule = amax_rule


def prod_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """prod(x, dims): g times the elements before each one, times those after it"""
    (x,) = c.args
    if dims_of(x) is not None:
        return o.product_in_rows(c)
    others = o.other_factors(_rows(c, x))
    return (op("mul", _spread(c, c.g), _back(c, others)),)


def to_rows_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """linear: the rows back in the tensor's shape"""
    return (op("from_rows_like", c.g, c.args[0], **c.attrs),)


def from_rows_like_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """linear: the rows of the adjoint"""
    return op("to_rows", c.g, **c.attrs), None


def moved_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """moved(x, dim): g moved back"""
    return (o.moved_on("zeros", c.g, o.along(c), back=True),)


def _spread(c: OpAdjoint, value: Expr | Var) -> Expr:
    """A value of the reduction at each element that it is of."""
    return op("unreduce_like", value, c.args[0], dims=c.attrs["dims"], keepdim=c.attrs["keepdim"])


def _rows(c: OpAdjoint, value: Expr) -> Expr:
    return op("to_rows", value, dims=c.attrs["dims"])


def _back(c: OpAdjoint, rows: Expr) -> Expr:
    return op("from_rows_like", rows, c.args[0], dims=c.attrs["dims"])
