"""The derivative table: the rule of every scalar function and of every tensor operator.

A rule is a few lines in :mod:`loma.ad.scalar_rules` or :mod:`loma.ad.operator_rules`, with its
formula as docstring. Both layers, both modes and every backend live off this one table.
"""

from __future__ import annotations

from loma.ad import any_rank_rules as any_rank, operator_rules as o, scalar_rules as s
from loma.ad.lifted_rules import lifted
from loma.core.builtins import BUILTINS
from loma.core.ir import Op, TensorType, Var
from loma.core.ops import INFIX
from loma.core.walk import free_variables

SCALAR_RULES: dict[str, s.ScalarRule] = {
    "+": s.add_rule,
    "-": s.sub_rule,
    "*": s.mul_rule,
    "/": s.quotient_rule,
    "**": s.power_rule,
    "pow": s.power_rule,
    "%": s.mod_rule,
    **{symbol: s.flat_rule for symbol, row in INFIX.items() if not row.differentiable},
    "sin": s.sin_rule,
    "cos": s.cos_rule,
    "tan": s.tan_rule,
    "asin": s.asin_rule,
    "acos": s.acos_rule,
    "atan": s.atan_rule,
    "atan2": s.atan2_rule,
    "sinh": s.sinh_rule,
    "cosh": s.cosh_rule,
    "tanh": s.tanh_rule,
    "exp": s.exp_rule,
    "expm1": s.expm1_rule,
    "exp2": s.exp2_rule,
    "log": s.log_rule,
    "log1p": s.log1p_rule,
    "log2": s.log2_rule,
    "sqrt": s.sqrt_rule,
    "rsqrt": s.rsqrt_rule,
    "erf": s.erf_rule,
    "erfc": s.erfc_rule,
    "lgamma": s.lgamma_rule,
    "digamma": s.digamma_rule,
    "polygamma": s.polygamma_rule,
    "sigmoid": s.sigmoid_rule,
    "relu": s.relu_rule,
    "softplus": s.softplus_rule,
    "abs": s.abs_rule,
    "max": s.max_rule,
    "min": s.min_rule,
    "clamp": s.clamp_rule,
    "mul_no_nan": s.mul_no_nan_rule,
    "int2float": s.identity_rule,
    **{info.name: s.flat_rule for info in BUILTINS.values() if info.flat},
}


def _lifted(name: str) -> o.OpRule:
    return lambda call: lifted(call, SCALAR_RULES[name])


OP_RULES: dict[str, o.OpRule] = {
    **{i.name: _lifted(i.name) for i in BUILTINS.values() if not (i.flat or i.scalar_only)},
    "mod": _lifted("%"),
    "add": o.add_rule,
    "sub": o.sub_rule,
    "mul": o.mul_rule,
    "div": o.div_rule,
    "neg": o.neg_rule,
    "sqrt": o.sqrt_rule,
    "abs": o.abs_rule,
    "mul_no_nan": o.mul_no_nan_rule,
    "where": o.where_rule,
    "sum": o.sum_rule,
    "mean": o.mean_rule,
    "amax": any_rank.extreme_rule,
    "amin": any_rank.extreme_rule,
    "prod": any_rank.prod_rule,
    "cumsum": o.cumsum_rule,
    "cumprod": o.cumprod_rule,
    "scan": o.scan_rule,
    "softmax": o.softmax_rule,
    "log_softmax": o.log_softmax_rule,
    "matmul": o.matmul_rule,
    "linear": o.linear_rule,
    "conv2d": o.convolution_rule,
    "conv3d": o.convolution_rule,
    "conv_transpose2d": o.conv_transpose2d_rule,
    "conv2d_input": o.convolution_input_rule,
    "conv2d_weight": o.convolution_weight_rule,
    "conv3d_input": o.convolution_input_rule,
    "conv3d_weight": o.convolution_weight_rule,
    "max_pool2d": o.max_pool2d_rule,
    "avg_pool2d": o.avg_pool2d_rule,
    "avg_pool2d_input": o.avg_pool2d_input_rule,
    "reshape": o.reshape_rule,
    "permute": o.permute_rule,
    "transpose": o.transpose_rule,
    "cat": o.cat_rule,
    "flip": o.flip_rule,
    "roll": o.roll_rule,
    "tril": o.triangle_rule,
    "triu": o.triangle_rule,
    "slice": o.slice_rule,
    "slice_into": o.slice_into_rule,
    "expand": o.expand_rule,
    "sum_to": o.sum_to_rule,
    "reshape_like": o.reshape_like_rule,
    "expand_like": o.expand_like_rule,
    "sum_to_like": o.sum_to_like_rule,
    "unreduce_like": o.unreduce_like_rule,
    "to_rows": any_rank.to_rows_rule,
    "from_rows_like": any_rank.from_rows_like_rule,
    "moved": any_rank.moved_rule,
    "gather": o.gather_rule,
    "scatter_add": o.scatter_add_rule,
    "scatter_add_like": o.scatter_add_rule,
}


def reads_value(value: Op) -> bool:
    """Whether an operator's rule uses the value of the operator, which has to have a name then."""
    if value.name not in OP_RULES:
        return False
    assert isinstance(value.type, TensorType)
    y, g = Var(" value", value.type), Var(" adjoint", value.type)  # no names of a program
    adjoints = OP_RULES[value.name](o.OpAdjoint(value.name, value.args, dict(value.attrs), y, g))
    return any(y.name in free_variables(adjoint) for adjoint in adjoints if adjoint is not None)
