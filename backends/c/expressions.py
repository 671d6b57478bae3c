"""Scalar expressions as C expressions.

C converts an int operand to float where loma does; a float becomes an int only through a helper,
because C leaves large values undefined.
"""

from __future__ import annotations

import math
import struct
from typing import assert_never

from loma import errors
from loma.backends.c.context import FunctionContext, Temporary, is_by_value, returns_struct
from loma.backends.c.ranges import bounds, constant
from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.identifiers import MATH
from loma.core import sizes
from loma.core.builtins import BUILTINS
from loma.core.ir import (
    FLOAT, INT, ArrayType, Binary, Builtin, Call, Expr, FloatConst, Index, IntConst, MakeStruct,
    Member, NoDiff, Op, Param, Reduce, Select, Type, Unary, Var, ZeroPad,
)  # fmt: skip
from loma.core.ops import PREDICATES
from loma.core.printer import print_expr
from loma.core.walk import free_variables, root
from loma.errors.spans import Span

_MATH = {name: name for name in (*MATH, "lgamma")} | {"abs": "fabs", "round": "rint"}
_OF_INTS = {"max", "min", "clamp", "sign"}  # of these ints have a helper of their own
_OF_REALS = {"mul_no_nan", "rsqrt", "digamma", "polygamma", "sigmoid", "relu", "softplus"}
_HELPERS = _OF_INTS | _OF_REALS | {"abs", "isnan", "isfinite"}
_ZERO = c.number(0)
_LARGEST_PRODUCT = 16  # x ** n up to this n is computed by products


class Expressions:
    """Turns expressions of one function to C."""

    def __init__(self, context: FunctionContext) -> None:
        self.context = context

    def value(self, expr: Expr, type_: Type | None = None) -> c.Expression:
        """An expression, converted to ``type_`` if that is given."""
        if type_ == INT and expr.type == FLOAT:
            return self._to_int(expr)
        if type_ == FLOAT and isinstance(expr, IntConst):
            return self.float_constant(float(expr.value))
        if type_ == FLOAT and expr.type == INT and self.context.module.options.device:
            return c.Cast(self.context.types.real, self.expression(expr))  # no braces narrow in C++
        return self.expression(expr)

    def condition(self, expr: Expr) -> c.Expression:
        """The expression where C asks whether it is zero."""
        found = self.expression(expr)
        is_plain = isinstance(expr, Var | Index | Member | Call | IntConst) and expr.type == INT
        return found if is_plain or _is_truth(expr) else c.Binary("!=", found, _ZERO)

    def expression(self, expr: Expr) -> c.Expression:
        if expr.type == INT and (known := constant(expr)) is not None:
            return self._int_constant(known, expr.span)
        match expr:
            case IntConst():
                raise AssertionError("an int constant is one")
            case FloatConst(number):
                return self.float_constant(number)
            case Var():
                return self.variable(expr)
            case Index():
                return self.element(expr)
            case Member():
                return self.member(expr)
            case Unary("-", operand):
                if expr.type == INT and self.context.module.options.device:
                    return self.wrapping("-", _ZERO, self.expression(operand))
                return c.Unary("-", self.expression(operand))
            case Unary(_, operand):
                return self._negation(operand)
            case Binary():
                return self._binary(expr)
            case Select(cond, then, other):
                first, second = self.value(then, expr.type), self.value(other, expr.type)
                return c.Conditional(self.condition(cond), first, second)
            case Builtin():
                return self._builtin(expr)
            case Call():
                call, results = self.call(expr)
                return c.dereference(call) if results else call
            case MakeStruct():
                return self._make_struct(expr)
            case NoDiff(operand):
                return self.expression(operand)
            case Op() | Reduce() | ZeroPad():
                raise errors.BackendLacksOperator(
                    f"the C backend has no tensors and no reductions: '{print_expr(expr)}'",
                    expr.span,
                    hint="write a loop" if isinstance(expr, Reduce) else None,
                )
            case _:
                assert_never(expr)

    # ------------------------------------------------------------------------------------ places

    def variable(self, var: Var) -> c.Expression:
        name = c.Token(self.context.name(var.name))
        return c.dereference(name) if var.name in self.context.pointers else name

    def member(self, expr: Member) -> c.Expression:
        name = self.context.member(expr.base.type, expr.name)
        return c.Member(self.expression(expr.base), name)

    def element(self, expr: Index) -> c.Expression:
        """``a[i]``, the subscript checked where its array's size is known and it may be wrong."""
        base, (subscript,) = expr.base, expr.subscripts
        assert isinstance(base.type, ArrayType)
        size, is_slice = base.type.size, self.context.is_slice(base)
        known = constant(subscript)
        if known is not None:
            self._check_constant(expr, known, size)
        position = self.value(subscript)
        if not self._is_inside(subscript, size) and (size is not None or is_slice):
            array = self.expression(base)
            bound = c.Member(array, "size") if size is None else c.number(size)
            check = self.context.failing("at")
            position = c.call(check, position, bound, *self.context.line_args(expr.span))
        return c.Subscript(self.first(base), position)

    def _is_inside(self, subscript: Expr, size: int | None) -> bool:
        found = bounds(subscript, self.context.ranges)
        return found is not None and size is not None and found[0] >= 0 and found[1] < size

    def _check_constant(self, expr: Index, position: int, size: int | None) -> None:
        if position < 0 or (size is not None and position >= size):
            raise errors.SubscriptOutOfRange(
                f"the subscript {position} is outside '{print_expr(expr.base)}'"
                + (f", of {size} elements" if size is not None else ""),
                expr.span,
            )

    # ------------------------------------------------------------------------------- arrays, calls

    def first(self, array: Expr) -> c.Expression:
        """A pointer to the array's first element, or the array itself, which decays to one."""
        found = self.expression(array)
        return c.Member(found, "data") if self.context.is_slice(array) else found

    def argument(self, expr: Expr, param: Param) -> c.Expression:
        """What a call passes for a parameter."""
        if isinstance(param.type, ArrayType):
            array = self.expression(expr)
            if self.context.module.options.arrays == "pointers" or self.context.is_slice(expr):
                return array
            assert isinstance(expr.type, ArrayType)
            assert expr.type.size is not None
            slice_ = self.context.types.slice(expr.type.element)
            values = (array, c.number(expr.type.size))
            return self.context.types.literal(slice_, values)
        if param.mode == "Out":
            return c.address_of(self.expression(expr))
        return self.value(expr, param.type)

    # ---------------------------------------------------------------------------------- constants

    def _int_constant(self, value: int, span: Span) -> c.Expression:
        if not -(2**31) <= value < 2**31:
            raise errors.SyntaxNotSupported(
                f"{value} is no int: ints have 32 bits", span, hint="write it as a float"
            )
        if value == -(2**31):  # whose absolute value is no int
            return c.Binary("-", c.number(value + 1), c.number(1))
        return c.number(value)

    def float_constant(self, value: float) -> c.Expression:
        """A constant of the C type of floats."""
        single = self.context.types.real == "float"
        if math.isnan(value):
            return c.Token("NAN")
        if single and math.isfinite(value):
            value = _nearest_single(value)
        size = abs(value)
        token = c.Token("INFINITY" if math.isinf(size) else f"{size!r}{'f' if single else ''}")
        return c.Unary("-", token) if math.copysign(1.0, value) < 0 else token

    # --------------------------------------------------------------------------------- operations

    def _to_int(self, expr: Expr) -> c.Expression:
        if isinstance(expr, FloatConst) and 0 <= expr.value < 2**31:
            return c.number(int(expr.value))
        return c.call(self.context.helper("to_int"), self.value(expr))

    def _negation(self, operand: Expr) -> c.Expression:
        found = self.expression(operand)
        plain = isinstance(operand, Binary) and operand.op not in PREDICATES
        if plain or isinstance(operand, Select):
            return c.Binary("==", found, _ZERO)
        return c.Unary("!", found)

    def _binary(self, expr: Binary) -> c.Expression:
        op, left, right = expr.op, expr.left, expr.right
        match op:
            case "and" | "or":
                spelled = "&&" if op == "and" else "||"
                return c.Binary(spelled, self.condition(left), self.condition(right))
            case "<" | "<=" | ">" | ">=" | "==" | "!=":
                return self._comparison(op, left, right)
            case "**":
                return self._power(expr)
            case "/" | "//" | "%" if expr.type == INT:
                return self._int_division(expr)
            case "+" | "-" | "*" | "/":
                a, b = self.expression(left), self.expression(right)
                if expr.type == INT and self.context.module.options.device:
                    return self.wrapping(op, a, b)
                return c.Binary(op, a, b)
            case "//" | "%":
                name = "floor_div_real" if op == "//" else "mod_real"
                return c.call(self.context.helper(name), self.value(left), self.value(right))
            case _:
                raise AssertionError(expr)

    def wrapping(self, op: str, left: c.Expression, right: c.Expression) -> c.Expression:
        """A sum, a difference or a product of ints where no flag of the compiler says that they
        wrap around."""
        name = {"+": "sum", "-": "difference", "*": "product"}[op]
        return c.call(f"loma_{name}", left, right)

    def _comparison(self, op: str, left: Expr, right: Expr) -> c.Expression:
        """A comparison; those whose outcome gcc sees, and warns about, are written otherwise."""
        found = c.Binary(op, self._compared(left, right), self._compared(right, left))
        calls = any(isinstance(part, c.Call) for part in c.parts(found))  # what is called may fail
        if left.type == right.type == INT and sizes.equal(left, right) and not calls:
            return c.Binary("==" if op in ("==", "<=", ">=") else "!=", _ZERO, _ZERO)
        return found

    def _compared(self, expr: Expr, other: Expr) -> c.Expression:
        found = self.expression(expr)
        if _is_truth(expr) and not free_variables(other):
            return c.Conditional(found, c.number(1), _ZERO)
        return found

    def _int_division(self, expr: Binary) -> c.Expression:
        divisor, left = constant(expr.right), self.expression(expr.left)
        by = self.expression(expr.right)
        if expr.op == "/" and divisor is not None and divisor not in (0, -1):
            return c.Binary("/", left, by)
        if not divisor:
            by = c.call(self.context.failing("nonzero"), by, *self.context.line_args(expr.span))
        helper = self.context.helper({"/": "div", "//": "floor_div", "%": "mod"}[expr.op])
        return c.call(helper, left, by)

    def _power(self, expr: Binary) -> c.Expression:
        base, exponent = self.value(expr.left), self.value(expr.right)
        if expr.type == INT:
            return c.call(self.context.helper("power_int"), base, exponent)
        count = _small_exponent(expr.right)
        if count is None:
            return c.call(self._function("pow"), base, exponent)
        if count == 2 and isinstance(expr.left, Var) and expr.left.type == FLOAT:
            return c.Binary("*", base, base)
        return c.call(self.context.helper("power"), base, c.number(count))

    # -------------------------------------------------------------------------------------- calls

    def _function(self, name: str) -> str:
        """A function of the C library in the precision of the program's floats."""
        return f"{name}f" if self.context.types.real == "float" else name

    def _builtin(self, expr: Builtin) -> c.Expression:
        name, args = expr.name, expr.args
        if name in _MATH and expr.type == FLOAT:
            return c.call(self._function(_MATH[name]), *(self.value(arg, FLOAT) for arg in args))
        match name:
            case "int2float":
                if args[0].type == FLOAT or isinstance(args[0], IntConst):
                    return self.value(args[0], FLOAT)
                return c.Cast(self.context.types.real, self.expression(args[0]))
            case "float2int":
                return self.value(args[0], INT)
            case "thread_id":
                self.context.reads_item = True
                return c.Token(self.context.item)
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
        values = [
            self.value(arg, INT if of_ints or label in BUILTINS[name].ints else FLOAT)
            for label, arg in zip(BUILTINS[name].args, args, strict=True)
        ]
        return c.call(helper, *values)

    def _length(self, expr: Builtin) -> c.Expression:
        """``len(range(...))``; only one that may fail asks whether it does."""
        values = [self.value(arg, INT) for arg in expr.args]
        start, step = constant(expr.args[0]), constant(expr.args[2])
        if step and (abs(step) > 2 or (start is not None and (start if step > 0 else ~start) >= 0)):
            return c.Cast("int", c.call(self.context.helper("length"), *values))
        line_args = self.context.line_args(expr.span)
        return c.call(self.context.failing("counted"), *values, *line_args)

    def call(self, call: Call) -> tuple[c.Call, list[Temporary]]:
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
        return c.call(module.called[call.function], *args), results

    def _by_pointer(self, expr: Expr, changed: set[str]) -> c.Expression:
        """A pointer to a struct that stays as it is during a call that changes those variables."""
        found = self.expression(expr)
        start = expr
        while isinstance(start, Index | Member):
            start = start.base
        if isinstance(start, Var) and start.name in changed:
            copy = self.context.temporary(expr.type)
            return c.chain(",", (c.Binary("=", copy.value, found), copy.pointer))
        by_pointer = self.context.module.by_pointer
        is_place = isinstance(start, Var) or isinstance(found, c.Unary)  # *p, of a struct
        if is_place or (isinstance(start, Call) and start.function in by_pointer):
            return c.address_of(found)
        return c.Braces(f"({self.context.types.base(expr.type)}[1])", (found,))

    def _make_struct(self, expr: MakeStruct) -> c.Expression:
        context, type_ = self.context, expr.type
        members = context.module.structs[type_.name].members
        values = [self.value(arg, t) for (_, t), arg in zip(members, expr.args, strict=True)]
        if context.types.bytes(type_) <= context.module.options.by_value:
            return context.types.literal(context.types.base(type_), values)
        made = context.temporary(type_)
        sets = [
            c.Binary("=", c.Member(made.value, context.member(type_, name)), value)
            for (name, _), value in zip(members, values, strict=True)
        ]
        return c.dereference(c.chain(",", (*sets, made.pointer)))


def _is_truth(expr: Expr) -> bool:
    """Whether the value is 0 or 1, as C knows."""
    is_not = isinstance(expr, Unary) and expr.op == "not"
    return is_not or (isinstance(expr, Binary) and expr.op in PREDICATES)


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
