"""Int expressions of sizes in C++, over the slots ``v`` of a call (runtime/tables.h)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loma import errors
from loma.backends.cfamily.names import cpp_string
from loma.core.ir import Binary, Builtin, Expr, IntConst, Select, Unary, Var
from loma.core.printer import print_expr
from loma.core.sizes import Binding, constant
from loma.errors.spans import line_in_file

_FUNCTIONS = {"//": "loma::floor_div", "%": "loma::floor_mod", "/": "loma::trunc_div"}
_BUILTINS = {"max": "loma::larger", "min": "loma::smaller"}
_LOGIC = {"and": "&&", "or": "||"}


def dim_row(expr: Expr, slots: Mapping[str, int], function: str) -> str:
    """The initialiser of a ``loma::Dim`` of a function, which is checked, or computed for a
    result."""
    text = cpp_string(print_expr(expr))
    if isinstance(expr, Var):
        return f"{{loma::Dim::Rule::Slot, {slots[expr.name]}, nullptr, nullptr, {text}}}"
    value = constant(expr)
    if value is not None:
        return f"{{loma::Dim::Rule::Constant, {value}, nullptr, nullptr, {text}}}"
    return f"LOMA_SIZE(({_Size(slots, function).cpp(expr)}), {text})"


def bind_row(expr: Expr, binding: Binding, slot: int) -> str:
    """The initialiser of a ``loma::Dim`` that sets a size variable."""
    text = cpp_string(print_expr(expr))
    scaled = f"{binding.scale}, {binding.offset}"
    return f"{{loma::Dim::Rule::Bind, {slot}, nullptr, nullptr, {text}, {scaled}}}"


@dataclass(frozen=True, slots=True)
class _Size:
    """Writes a size of ``function``."""

    slots: Mapping[str, int]
    function: str

    def cpp(self, expr: Expr) -> str:
        match expr:
            case IntConst(value):
                return str(value)
            case Var(name):
                return f"v[{self.slots[name]}]"
            case Unary("-", operand):
                return f"({self.cpp(IntConst(0))} - {self.cpp(operand)})"
            case Unary("not", operand):
                return f"({self.cpp(operand)} == 0)"
            case Binary("//" | "%" | "/" as op, left, right):
                return f"{_FUNCTIONS[op]}({self.slot(left)}, {self.slot(right)})"
            case Binary("and" | "or" as op, left, right):
                return f"({self.cpp(left)} != 0 {_LOGIC[op]} {self.cpp(right)} != 0)"
            case Binary(op, left, right):
                return f"({self.cpp(left)} {op} {self.cpp(right)})"
            case Builtin("max" | "min" as name, (left, right)):
                return f"{_BUILTINS[name]}({self.slot(left)}, {self.slot(right)})"
            case Builtin("len", args):
                line = f"line {line_in_file(expr.span.line)}: " if expr.span.line else ""
                what = cpp_string(f"{self.function}: {line}the step of a range is 0")
                return f"loma::range_size({', '.join(map(self.slot, args))}, {what})"
            case Select(cond, then, other):
                chosen = f"{self.slot(then)} : {self.slot(other)}"
                return f"({self.cpp(cond)} != 0 ? {chosen})"
            case _:
                raise errors.BackendLacksOperator(
                    f"the libtorch backend cannot compute the size {print_expr(expr)}", expr.span
                )

    def slot(self, expr: Expr) -> str:
        """The expression in the type of a slot, so that overloads match."""
        return f"std::decay_t<decltype(*v)>({self.cpp(expr)})"
