"""The derivative table: the rule of every scalar function and of every tensor operator.

A rule is a few lines in :mod:`loma.ad.scalar_rules` or :mod:`loma.ad.operator_rules`, with its
formula as docstring. Both layers, both modes and every backend live off this one table.
"""

from __future__ import annotations

from loma.ad import operator_rules as o
from loma.ad import scalar_rules as s
from loma.ir import Op, TensorType, Var
from loma.walk import free_variables

SCALAR_RULES: dict[str, s.ScalarRule] = {
    "+": s.add_rule,
    "-": s.sub_rule,
    "*": s.mul_rule,
    "/": s.quotient_rule,
    "**": s.power_rule,
    "pow": s.power_rule,
    "//": s.flat_rule,
    "%": s.mod_rule,
    "<": s.flat_rule,
    "<=": s.flat_rule,
    ">": s.flat_rule,
    ">=": s.flat_rule,
    "==": s.flat_rule,
    "!=": s.flat_rule,
    "and": s.flat_rule,
    "or": s.flat_rule,
    "sin": s.sin_rule,
    "cos": s.cos_rule,
    "tan": s.tan_rule,
    "exp": s.exp_rule,
    "log": s.log_rule,
    "sqrt": s.sqrt_rule,
    "tanh": s.tanh_rule,
    "abs": s.abs_rule,
    "max": s.max_rule,
    "min": s.min_rule,
    "mul_no_nan": s.mul_no_nan_rule,
    "floor": s.flat_rule,
    "int2float": s.identity_rule,
    "float2int": s.flat_rule,
    "len": s.flat_rule,
    "thread_id": s.flat_rule,
}

OP_RULES: dict[str, o.OpRule] = {
    "add": o.add_rule,
    "sub": o.sub_rule,
    "mul": o.mul_rule,
    "div": o.div_rule,
    "neg": o.neg_rule,
    "relu": o.relu_rule,
    "sigmoid": o.sigmoid_rule,
    "tanh": o.tanh_rule,
    "exp": o.exp_rule,
    "log": o.log_rule,
    "sqrt": o.sqrt_rule,
    "abs": o.abs_rule,
    "mul_no_nan": o.mul_no_nan_rule,
    "where": o.where_rule,
    "sum": o.sum_rule,
    "mean": o.mean_rule,
    "amax": o.amax_rule,
    "softmax": o.softmax_rule,
    "log_softmax": o.log_softmax_rule,
    "matmul": o.matmul_rule,
    "linear": o.linear_rule,
    "conv2d": o.conv2d_rule,
    "conv_transpose2d": o.conv_transpose2d_rule,
    "conv2d_input": o.conv2d_input_rule,
    "conv2d_weight": o.conv2d_weight_rule,
    "max_pool2d": o.max_pool2d_rule,
    "avg_pool2d": o.avg_pool2d_rule,
    "avg_pool2d_input": o.avg_pool2d_input_rule,
    "reshape": o.reshape_rule,
    "permute": o.permute_rule,
    "transpose": o.transpose_rule,
    "cat": o.cat_rule,
    "slice": o.slice_rule,
    "slice_into": o.slice_into_rule,
    "expand": o.expand_rule,
    "sum_to": o.sum_to_rule,
    "reshape_like": o.reshape_like_rule,
    "expand_like": o.expand_like_rule,
    "sum_to_like": o.sum_to_like_rule,
    "unreduce_like": o.unreduce_like_rule,
    "gather": o.gather_rule,
    "scatter_add": o.scatter_add_rule,
    "scatter_add_like": o.scatter_add_rule,
    "one_hot": o.constant_rule,
    "zeros": o.constant_rule,
    "ones": o.constant_rule,
}


def reads_value(value: Op) -> bool:
    """Whether an operator's rule uses the value of the operator, which has to have a name then."""
    if value.name not in OP_RULES:
        return False
    assert isinstance(value.type, TensorType)
    y, g = Var(" value", value.type), Var(" adjoint", value.type)  # no names of a program
    adjoints = OP_RULES[value.name](o.OpAdjoint(value.name, value.args, dict(value.attrs), y, g))
    return any(y.name in free_variables(adjoint) for adjoint in adjoints if adjoint is not None)
