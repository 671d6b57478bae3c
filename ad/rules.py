"""The derivative table: the rule of every scalar function and of every tensor operator.

A rule is a few lines in :mod:`loma.ad.scalar_rules` or :mod:`loma.ad.operator_rules`. Both layers,
both modes and every backend live off this one table.
"""

from __future__ import annotations

from types import ModuleType

from loma.ad import any_rank_rules as any_rank, operator_rules as o, scalar_rules as s
from loma.ad.lifted_rules import lifted
from loma.core.builtins import BUILTINS
from loma.core.ir import Expr, Op, Var
from loma.core.ops import INFIX
from loma.core.walk import free_variables

SCALAR_RULES: dict[str, s.ScalarRule] = {
    "+": s.add_rule,
    "-": s.sub_rule,
    "*": s.mul_rule,
    "/": s.quotient_rule,
    "**": s.power_rule,
    "%": s.mod_rule,
    **{symbol: s.flat_rule for symbol, row in INFIX.items() if not row.differentiable},
    **{name: s.rule_of_one(name) for name in s.DERIVATIVES},
    "pow": s.power_rule,
    "atan2": s.atan2_rule,
    "polygamma": s.polygamma_rule,
    "max": s.max_rule,
    "min": s.min_rule,
    "clamp": s.clamp_rule,
    "mul_no_nan": s.mul_no_nan_rule,
    **{info.name: s.flat_rule for info in BUILTINS.values() if info.flat},
}


def _lifted(name: str) -> o.OpRule:
    return lambda call: lifted(call, SCALAR_RULES[name])


def _named_in(module: ModuleType) -> dict[str, o.OpRule]:
    """The rules of a module, by operator: ``cat_rule`` is that of ``cat``."""
    return {
        name.removesuffix("_rule"): rule
        for name, rule in vars(module).items()
        if name.endswith("_rule")
    }


OP_RULES: dict[str, o.OpRule] = {
    **{i.name: _lifted(i.name) for i in BUILTINS.values() if not (i.flat or i.scalar_only)},
    **{INFIX[symbol].name: _lifted(symbol) for symbol in ("+", "-", "%")},
    **_named_in(o),
    **_named_in(any_rank),
}


def op_adjoints(value: Op, y: Var, g: Expr) -> tuple[Expr | None, ...]:
    """The adjoints of an operator's arguments; ``y`` is its value, ``g`` that value's adjoint."""
    call = o.OpAdjoint(value.name, value.args, dict(value.attrs), y, g)
    return OP_RULES[value.name](call)


def reads_value(value: Op) -> bool:
    """Whether an operator's rule uses the value of the operator, which has to have a name then."""
    if value.name not in OP_RULES:
        return False
    y, g = Var(" value", value.type), Var(" adjoint", value.type)  # no names of a program
    adjoints = op_adjoints(value, y, g)
    return any(y.name in free_variables(adjoint) for adjoint in adjoints if adjoint is not None)
