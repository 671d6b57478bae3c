"""Scalar expressions as C text.

Every method gives text and how tightly it binds, so that parentheses stand only where C needs them
and where gcc's warnings want them. C converts an int operand to float where loma does; a float
becomes an int only through a helper, because C leaves large values undefined.
"""

from __future__ import annotations

import math
import re
import struct
from typing import assert_never

from loma import errors
from loma.backends.c.context import Temporary, is_by_value, returns_struct
from loma.backends.c.places import (
    AND, COMPARE, OR, POSTFIX, PRODUCT, SUM, TERNARY, UNARY, Places, Text,
)  # fmt: skip
from loma.backends.c.ranges import constant
from loma.core import sizes
from loma.core.builtins import BUILTINS
from loma.core.ir import (
    FLOAT, INT, Binary, Builtin, Call, Expr, FloatConst, Index, IntConst, MakeStruct, Member,
    NoDiff, Op, Reduce, Select, Type, Unary, Var, ZeroPad,
)  # fmt: skip
from loma.core.ops import PREDICATES
from loma.core.printer import print_expr
from loma.core.walk import free_variables, root
from loma.errors.spans import Span

_MATH = {
    name: name for name in (
        "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "exp",
        "expm1", "exp2", "log", "log1p", "log2", "sqrt", "pow", "erf", "erfc", "lgamma", "floor",
        "ceil",
    )
} | {"abs": "fabs", "round": "rint"}  # fmt: skip
_OF_INTS = ("max", "min", "clamp", "sign")  # of these ints have a helper of their own
_HELPERS = (
    *_OF_INTS,
    "abs",
    "mul_no_nan",
    "rsqrt",
    "digamma",
    "polygamma",
    "isnan",
    "isfinite",
    "sigmoid",
    "relu",
    "softplus",
)
_CALL = re.compile(r"\w\(")
_LARGEST_PRODUCT = 16  # x ** n up to this n is computed by products


class Expressions(Places):
    """Turns expressions of one function to C."""

    def text(self, expr: Expr, type_: Type | None = None) -> str:
        if type_ == INT and expr.type == FLOAT:
            return self._to_int(expr)
        if type_ == FLOAT and isinstance(expr, IntConst):
            return self.float_text(float(expr.value))
        return self.render(expr)[0]

    def condition(self, expr: Expr, least: int = TERNARY) -> str:
        """The expression where C asks whether it is zero."""
        match expr:
            case Binary(op) if op in PREDICATES:
                return self.at(expr, least)
            case Unary("not"):
                return self.at(expr, least)
            case Var() | Index() | Member() | Call() | IntConst() if expr.type == INT:
                return self.at(expr, least)
            case _:
                text = f"{self.at(expr, SUM)} != 0"
                return text if least <= COMPARE else f"({text})"

    def render(self, expr: Expr) -> Text:
        if expr.type == INT and (value := constant(expr)) is not None:
            return self._int_text(value, expr.span)
        match expr:
            case IntConst():
                raise AssertionError("an int constant is one")
            case FloatConst(number):
                return self.float_text(number), UNARY if math.copysign(1.0, number) < 0 else POSTFIX
            case Var():
                return self.variable(expr)
            case Index():
                return self.element(expr)
            case Member():
                return self.member(expr)
            case Unary("-", operand):
                text = self.at(operand, UNARY)
                return (f"-({text})" if text.startswith("-") else f"-{text}"), UNARY
            case Unary(_, operand):
                return self._negation(operand)
            case Binary():
                return self._binary(expr)
            case Select(cond, then, other):
                parts = self.condition(cond, OR), self._branch(then, expr.type, OR)
                return "{} ? {} : {}".format(
                    *parts, self._branch(other, expr.type, TERNARY)
                ), TERNARY
            case Builtin():
                return self._builtin(expr)
            case Call():
                text, results = self.call(expr)
                return (f"*{text}", UNARY) if results else (text, POSTFIX)
            case MakeStruct():
                return self._make_struct(expr)
            case NoDiff(operand):
                return self.render(operand)
            case Op() | Reduce() | ZeroPad():
                raise errors.BackendLacksOperator(
                    f"the C backend has no tensors and no reductions: '{print_expr(expr)}'",
                    expr.span,
                    hint="write a loop" if isinstance(expr, Reduce) else None,
                )
            case _:
                assert_never(expr)

    # ---------------------------------------------------------------------------------- constants

    def _int_text(self, value: int, span: Span) -> Text:
        if not -(2**31) <= value < 2**31:
            raise errors.SyntaxNotSupported(
                f"{value} is no int: ints have 32 bits", span, hint="write it as a float"
            )
        if value == -(2**31):
            return "(-2147483647 - 1)", POSTFIX
        return str(value), UNARY if value < 0 else POSTFIX

    def float_text(self, value: float) -> str:
        """A constant of the C type of floats."""
        single = self.context.types.real == "float"
        if math.isnan(value):
            return "NAN"
        if single and math.isfinite(value):
            value = _nearest_single(value)
        if math.isinf(value):
            return "-INFINITY" if value < 0 else "INFINITY"
        return f"{value!r}f" if single else repr(value)

    # --------------------------------------------------------------------------------- operations

    def _to_int(self, expr: Expr) -> str:
        if isinstance(expr, FloatConst) and 0 <= expr.value < 2**31:
            return str(int(expr.value))
        return f"{self.context.helper('to_int')}({self.text(expr)})"

    def _branch(self, expr: Expr, type_: Type, least: int) -> str:
        """One side of a conditional expression of that type."""
        if isinstance(expr, IntConst) and type_ == FLOAT:
            return self.float_text(float(expr.value))
        return self.at(expr, least)

    def _negation(self, operand: Expr) -> Text:
        plain = isinstance(operand, Binary) and operand.op not in PREDICATES
        if plain or isinstance(operand, Select):
            return f"{self.at(operand, SUM)} == 0", COMPARE
        return f"!{self.at(operand, UNARY)}", UNARY

    def _binary(self, expr: Binary) -> Text:
        op, left, right = expr.op, expr.left, expr.right
        match op:
            case "and":
                return f"{self.condition(left, AND)} && {self.condition(right, COMPARE)}", AND
            case "or":
                # an "and" inside gets parentheses, though C would not need them
                first = OR if isinstance(left, Binary) and left.op == "or" else COMPARE
                return f"{self.condition(left, first)} || {self.condition(right, COMPARE)}", OR
            case "<" | "<=" | ">" | ">=" | "==" | "!=":
                return self._comparison(op, left, right), COMPARE
            case "**":
                return self._power(expr)
            case "+" | "-":
                return f"{self.at(left, SUM)} {op} {self.at(right, PRODUCT)}", SUM
            case "*":
                return f"{self.at(left, PRODUCT)} * {self.at(right, UNARY)}", PRODUCT
            case "/" if expr.type == FLOAT:
                return f"{self.at(left, PRODUCT)} / {self.at(right, UNARY)}", PRODUCT
            case "/" | "//" | "%" if expr.type == INT:
                return self._int_division(expr)
            case "//" | "%":
                name = "floor_div_real" if op == "//" else "mod_real"
                helper = self.context.helper(name)
                return f"{helper}({self.text(left)}, {self.text(right)})", POSTFIX
            case _:
                raise AssertionError(expr)

    def _comparison(self, op: str, left: Expr, right: Expr) -> str:
        """A comparison; those whose outcome gcc sees, and warns about, are written otherwise."""
        first, second = self._compared(left, right), self._compared(right, left)
        calls = _CALL.search(first) or _CALL.search(second)  # what is called may fail
        if left.type == right.type == INT and sizes.equal(left, right) and not calls:
            return "0 == 0" if op in ("==", "<=", ">=") else "0 != 0"
        return f"{first} {op} {second}"

    def _compared(self, expr: Expr, other: Expr) -> str:
        if _is_truth(expr) and not free_variables(other):
            return f"({self.at(expr, OR)} ? 1 : 0)"
        text = self.at(expr, SUM)
        return f"({text})" if text.startswith("!") else text

    def _int_division(self, expr: Binary) -> Text:
        divisor = constant(expr.right)
        if expr.op == "/" and divisor is not None and divisor not in (0, -1):
            return f"{self.at(expr.left, PRODUCT)} / {self.at(expr.right, UNARY)}", PRODUCT
        by = self.text(expr.right)
        if not divisor:
            by = f"{self.context.failing('nonzero')}({by}, {self.context.place(expr.span)})"
        helper = self.context.helper({"/": "div", "//": "floor_div", "%": "mod"}[expr.op])
        return f"{helper}({self.text(expr.left)}, {by})", POSTFIX

    def _power(self, expr: Binary) -> Text:
        base, exponent = self.text(expr.left), self.text(expr.right)
        if expr.type == INT:
            return f"{self.context.helper('power_int')}({base}, {exponent})", POSTFIX
        count = _small_exponent(expr.right)
        if count is None:
            return f"{self._function('pow')}({base}, {exponent})", POSTFIX
        if count == 2 and isinstance(expr.left, Var) and expr.left.type == FLOAT:
            return f"{base} * {base}", PRODUCT
        return f"{self.context.helper('power')}({base}, {count})", POSTFIX

    # -------------------------------------------------------------------------------------- calls

    def _function(self, name: str) -> str:
        """A function of the C library in the precision of the program's floats."""
        return f"{name}f" if self.context.types.real == "float" else name

    def _builtin(self, expr: Builtin) -> Text:
        name, args = expr.name, expr.args
        if name in _MATH and expr.type == FLOAT:
            listed = ", ".join(self.text(arg, FLOAT) for arg in args)
            return f"{self._function(_MATH[name])}({listed})", POSTFIX
        match name:
            case "int2float":
                if args[0].type == FLOAT or isinstance(args[0], IntConst):
                    return self.text(args[0], FLOAT), UNARY
                return f"({self.context.types.real}){self.at(args[0], UNARY)}", UNARY
            case "float2int":
                if args[0].type == INT:
                    return self.render(args[0])
                return self._to_int(args[0]), POSTFIX
            case "thread_id":
                return self.context.item, POSTFIX
            case "len":
                return self._length(expr)
            case _ if name in _HELPERS:
                whole = name in _OF_INTS and expr.type == INT
                helper = self.context.helper(f"{name}_int" if whole else name)
            case _:
                raise errors.BackendLacksOperator(
                    f"the C backend has no built-in function '{name}'", expr.span
                )
        of_ints = BUILTINS[name].result == "operands" and expr.type == INT
        texts = [
            self.text(arg, INT if of_ints or label in BUILTINS[name].ints else FLOAT)
            for label, arg in zip(BUILTINS[name].args, args, strict=True)
        ]
        return f"{helper}({', '.join(texts)})", POSTFIX

    def _length(self, expr: Builtin) -> Text:
        """``len(range(...))``; only one that may fail asks whether it does."""
        listed = ", ".join(self.text(arg, INT) for arg in expr.args)
        start, step = constant(expr.args[0]), constant(expr.args[2])
        if step and (abs(step) > 2 or (start is not None and (start if step > 0 else ~start) >= 0)):
            return f"(int){self.context.helper('length')}({listed})", UNARY
        place = self.context.place(expr.span)
        return f"{self.context.failing('counted')}({listed}, {place})", POSTFIX

    def call(self, call: Call) -> tuple[str, list[Temporary]]:
        """The call, and where its results are if it returns them by pointer; its value is then a
        pointer to the only one."""
        context, module = self.context, self.context.module
        callee = module.functions[call.function]
        if call.function in module.fallible:
            context.fails = True
        by_pointer = call.function in module.by_pointer
        pairs = list(zip(call.args, callee.params, strict=True))
        changed = {root(arg) for arg, param in pairs if param.mode == "Out"}
        args = [
            self._by_pointer(arg, changed)
            if by_pointer and is_by_value(param)
            else self.argument(arg, param)
            for arg, param in pairs
        ]
        results: list[Temporary] = []
        if by_pointer and returns_struct(callee.results):
            results = [context.temporary(type_) for type_ in callee.results]
            args += [result.pointer for result in results]
        return f"{module.called[call.function]}({', '.join(args)})", results

    def _by_pointer(self, expr: Expr, changed: set[str]) -> str:
        """A pointer to a struct that stays as it is during a call that changes those variables."""
        text, level = self.render(expr)
        start = expr
        while isinstance(start, Index | Member):
            start = start.base
        if isinstance(start, Var) and start.name in changed:
            copy = self.context.temporary(expr.type)
            return f"({copy.value} = {text}, {copy.pointer})"
        if level == UNARY and text.startswith("*"):
            return text[1:]
        by_pointer = self.context.module.by_pointer
        if isinstance(start, Var) or (isinstance(start, Call) and start.function in by_pointer):
            return f"&{text}"
        return f"({self.context.types.base(expr.type)}[1]){{{text}}}"

    def _make_struct(self, expr: MakeStruct) -> Text:
        context, type_ = self.context, expr.type
        pairs = list(zip(context.members(type_), expr.args, strict=True))
        texts = [self.text(arg, t) for (_, t), arg in pairs]
        if context.types.bytes(type_) <= context.module.options.by_value:
            return f"({context.types.base(type_)}){{{', '.join(texts) or '0'}}}", POSTFIX
        made = context.temporary(type_)
        sets = [
            f"({made.value}).{context.member(type_, name)} = {text}"
            for ((name, _), _), text in zip(pairs, texts, strict=True)
        ]
        return f"*({', '.join(sets)}, {made.pointer})", UNARY


def _is_truth(expr: Expr) -> bool:
    """Whether the value is 0 or 1, as C knows."""
    match expr:
        case Binary(op):
            return op in PREDICATES
        case Unary(op):
            return op == "not"
        case _:
            return False


def _small_exponent(expr: Expr) -> int | None:
    """The value of a small whole constant."""
    if not isinstance(expr, IntConst | FloatConst) or abs(expr.value) > _LARGEST_PRODUCT:
        return None
    return int(expr.value) if float(expr.value).is_integer() else None


def _nearest_single(value: float) -> float:
    try:
        single: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    # the shorter text of the two, where that gives the same number
    return value if single and not math.isinf(single) else single
