"""Forward mode on tensor operators: the tangent of a result from those of the arguments.

No operator needs a rule of its own here. Its reverse rule is linear in the adjoint ``g`` of the
result, ``g -> J^T g``; transposed it is the tangent, ``v -> J v``, and the transpose of an
expression of operators follows from their reverse rules. What is linear as it stands is the same
operator applied to tangents, which reads better. A scalar function on all elements has its scalar
rule.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from loma.ad.activity import carries_derivative
from loma.ad.lifted_rules import lifted_tangents
from loma.ad.operator_rules import op
from loma.ad.rules import SCALAR_RULES, op_adjoints
from loma.core.builtins import BUILTINS
from loma.core.ir import INT, Expr, Index, Op, TensorType, Var
from loma.core.ops import OPS
from loma.core.walk import free_variables, substitute


def operator_tangent(value: Op, y: Var, tangents: Sequence[Expr | None]) -> Expr | None:
    """The tangent of an operator's result ``y``; None where it is always zero.

    ``tangents`` are those of the arguments, None for one that is always zero.
    """
    info = OPS[value.name]
    if not info.differentiable or all(t is None for t in tangents):
        return None
    if info.linear == "together" and not any(
        t is None and info.passes(k) and _is_float(value.args[k]) for k, t in enumerate(tangents)
    ):
        return op(value.name, *_replaced(value.args, tangents), **dict(value.attrs))
    if value.name == "div" and value.args[1].type == INT:
        return op("div", *_replaced(value.args, tangents))  # a number of elements, as in means
    if info.linear == "each":
        return _bilinear(value, y, tangents)
    if value.name in BUILTINS and value.name in SCALAR_RULES:
        rule = SCALAR_RULES[value.name]
        return _total(list(lifted_tangents(value.args, y, value.name, rule, tangents)))
    return _total([_transposed(value, y, k, t) for k, t in enumerate(tangents) if t is not None])


def _is_float(arg: Expr) -> bool:
    return carries_derivative(arg.type) or not isinstance(arg.type, TensorType)


def _replaced(args: Sequence[Expr], tangents: Sequence[Expr | None]) -> list[Expr]:
    return [arg if t is None else t for arg, t in zip(args, tangents, strict=True)]


def _bilinear(value: Op, y: Var, tangents: Sequence[Expr | None]) -> Expr | None:
    """op(dx, w) + op(x, dw); what is added has its tangent added once."""
    rest = [t for t in tangents[2:] if t is not None]
    terms: list[Expr | None] = []
    for k in (0, 1):
        if tangents[k] is not None:
            both = [tangents[j] if j == k else value.args[j] for j in (0, 1)]
            args = [arg for arg in (*both, *rest) if arg is not None]
            terms.append(op(value.name, *args, **dict(value.attrs)))
            rest = []
    if rest:
        terms.append(_transposed(value, y, 2, rest[0]))
    return _total(terms)


def _total(terms: Sequence[Expr | None]) -> Expr | None:
    known = [term for term in terms if term is not None]
    return functools.reduce(lambda left, right: op("add", left, right), known) if known else None


def _transposed(value: Op, y: Var, position: int, tangent: Expr) -> Expr | None:
    """What the tangent of one argument contributes: the transpose of the reverse rule."""
    g = Var(" g", y.type)  # no name of a program
    adjoint = op_adjoints(value, y, g)[position]
    if adjoint is None or g.name not in free_variables(adjoint):
        return None
    total = _total(_transpose(adjoint, tangent, g))
    # What is left of g gives only its shape, which y has, too.
    return None if total is None else substitute(total, {g.name: y})


def _transpose(expr: Expr, tangent: Expr, g: Var) -> list[Expr | None]:
    """The transpose of ``g -> expr``, applied to a tangent: the terms of a sum."""
    if expr == g:
        return [tangent]
    if isinstance(expr, Index) and isinstance(expr.base, Op) and expr.base.name == "sum":
        # An argument that is a number, which counts for each element.
        (summed,) = expr.base.args
        return _transpose(summed, op("mul", _ones(summed), tangent), g)
    assert isinstance(expr, Op), f"not linear in the adjoint: {type(expr).__name__}"
    inner = Var(" inner", expr.type)
    terms: list[Expr | None] = []
    for arg, adjoint in zip(expr.args, op_adjoints(expr, inner, tangent), strict=True):
        if adjoint is not None and g.name in free_variables(arg):
            assert inner.name not in free_variables(adjoint), f"not linear: {expr.name}"
            terms += _transpose(arg, adjoint, g)
    return terms


def _ones(x: Expr) -> Expr:
    assert isinstance(x.type, TensorType)
    dims = x.type.dims
    return op("ones_like", x) if dims is None else op("ones", shape=dims)
