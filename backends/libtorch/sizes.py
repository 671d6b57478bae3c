"""Int expressions of sizes in C++, over the slots ``v`` of a call (runtime/tables.h)."""

from __future__ import annotations

from collections.abc import Mapping

from loma import errors
from loma.backends.libtorch.names import cpp_string
from loma.ir import Binary, Builtin, Expr, IntConst, Select, Unary, Var
from loma.printer import print_expr
from loma.sizes import Binding, constant

_FUNCTIONS = {"//": "loma::floor_div", "%": "loma::floor_mod", "/": "loma::trunc_div"}
_BUILTINS = {"max": "loma::larger", "min": "loma::smaller"}
_LOGIC = {"and": "&&", "or": "||"}


def dim_row(expr: Expr, slots: Mapping[str, int]) -> str:
    """The initialiser of a ``loma::Dim`` that is checked, or computed for a result."""
    text = cpp_string(print_expr(expr))
    if isinstance(expr, Var):
        return f"{{loma::Dim::Rule::Slot, {slots[expr.name]}, nullptr, nullptr, {text}}}"
    value = constant(expr)
    if value is not None:
        return f"{{loma::Dim::Rule::Constant, {value}, nullptr, nullptr, {text}}}"
    return f"LOMA_SIZE(({_cpp(expr, slots)}), {text})"


def bind_row(expr: Expr, binding: Binding, slot: int) -> str:
    """The initialiser of a ``loma::Dim`` that sets a size variable."""
    text = cpp_string(print_expr(expr))
    scaled = f"{binding.scale}, {binding.offset}"
    return f"{{loma::Dim::Rule::Bind, {slot}, nullptr, nullptr, {text}, {scaled}}}"


def _cpp(expr: Expr, slots: Mapping[str, int]) -> str:
    match expr:
        case IntConst(value):
            return str(value)
        case Var(name):
            return f"v[{slots[name]}]"
        case Unary("-", operand):
            return f"({_cpp(IntConst(0), slots)} - {_cpp(operand, slots)})"
        case Unary("not", operand):
            return f"({_cpp(operand, slots)} == 0)"
        case Binary("//" | "%" | "/" as op, left, right):
            return f"{_FUNCTIONS[op]}({_size(left, slots)}, {_size(right, slots)})"
        case Binary("and" | "or" as op, left, right):
            return f"({_cpp(left, slots)} != 0 {_LOGIC[op]} {_cpp(right, slots)} != 0)"
        case Binary(op, left, right):
            return f"({_cpp(left, slots)} {op} {_cpp(right, slots)})"
        case Builtin("max" | "min" as name, (left, right)):
            return f"{_BUILTINS[name]}({_size(left, slots)}, {_size(right, slots)})"
        case Select(cond, then, other):
            chosen = f"{_size(then, slots)} : {_size(other, slots)}"
            return f"({_cpp(cond, slots)} != 0 ? {chosen})"
        case _:
            raise errors.BackendLacksOperator(
                f"the libtorch backend cannot compute the size {print_expr(expr)}", expr.span
            )


def _size(expr: Expr, slots: Mapping[str, int]) -> str:
    """The expression in the type of a slot, so that overloads match."""
    return f"std::decay_t<decltype(*v)>({_cpp(expr, slots)})"
