"""Int expressions of sizes in C++, over the slots ``v`` of a call (runtime/tables.h)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loma import errors
from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.names import cpp_string
from loma.core.ir import Binary, Builtin, Expr, IntConst, Select, Unary, Var
from loma.core.printer import print_expr
from loma.core.sizes import Binding, constant
from loma.errors.spans import line_in_file

_FUNCTIONS = {"//": "loma::floor_div", "%": "loma::floor_mod", "/": "loma::trunc_div"}
_BUILTINS = {"max": "loma::larger", "min": "loma::smaller"}
_LOGIC = {"and": "&&", "or": "||"}
_ZERO = c.number(0)


def dim_row(expr: Expr, slots: Mapping[str, int], function: str) -> str:
    """The initialiser of a ``loma::Dim`` of a function, which is checked, or computed for a
    result."""
    text = cpp_string(print_expr(expr))
    if isinstance(expr, Var):
        return f"{{loma::Dim::Rule::Slot, {slots[expr.name]}, nullptr, nullptr, {text}}}"
    value = constant(expr)
    if value is not None:
        return f"{{loma::Dim::Rule::Constant, {value}, nullptr, nullptr, {text}}}"
    return f"LOMA_SIZE(({c.text(_Size(slots, function).cpp(expr))}), {text})"


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

    def cpp(self, expr: Expr) -> c.Expression:
        match expr:
            case IntConst(value):
                return c.number(value)
            case Var(name):
                return c.Subscript(c.Token("v"), c.number(self.slots[name]))
            case Unary("-", operand):
                return c.Binary("-", _ZERO, self.cpp(operand))
            case Unary("not", operand):
                return c.Binary("==", self.cpp(operand), _ZERO)
            case Binary("//" | "%" | "/" as op, left, right):
                return c.call(_FUNCTIONS[op], self.slot(left), self.slot(right))
            case Binary("and" | "or" as op, left, right):
                return c.Binary(_LOGIC[op], self.condition(left), self.condition(right))
            case Binary(op, left, right):
                return c.Binary(op, self.cpp(left), self.cpp(right))
            case Builtin("max" | "min" as name, (left, right)):
                return c.call(_BUILTINS[name], self.slot(left), self.slot(right))
            case Builtin("len", args):
                line = f"line {line_in_file(expr.span.line)}: " if expr.span.line else ""
                what = cpp_string(f"{self.function}: {line}the step of a range is 0")
                return c.call("loma::range_size", *map(self.slot, args), c.Token(what))
            case Select(cond, then, other):
                return c.Conditional(self.condition(cond), self.slot(then), self.slot(other))
            case _:
                raise errors.BackendLacksOperator(
                    f"the libtorch backend cannot compute the size {print_expr(expr)}", expr.span
                )

    def condition(self, expr: Expr) -> c.Expression:
        return c.Binary("!=", self.cpp(expr), _ZERO)

    def slot(self, expr: Expr) -> c.Expression:
        """The expression in the type of a slot, so that overloads match."""
        return c.call("std::decay_t<decltype(*v)>", self.cpp(expr))
