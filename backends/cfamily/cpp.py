"""Scalar expressions as C++.

:class:`Expressions` knows arithmetic, conversions, built-in and scalar functions. What an element
read looks like depends on where it stands, so subclasses answer :meth:`index`, :meth:`zero_pad`
and :meth:`tensor_call`. In C++ an ``int`` is ``int64_t`` and a
``float`` is the template parameter ``real``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import assert_never

from loma import config, errors
from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.identifiers import MATH
from loma.backends.cfamily.names import cpp_name, cpp_string
from loma.backends.schedule import ir as schedule
from loma.backends.schedule.context import FunctionContext
from loma.core import builder
from loma.core.builtins import BUILTINS
from loma.core.ir import (
    FLOAT, INT, Binary, Builtin, Call, Element, Expr, FloatConst, FloatType, Function, Index,
    IntConst, MakeStruct, Member, NoDiff, Op, Reduce, Select, TensorType, Type, Unary, Var,
    ZeroPad, is_tensor_function,
)  # fmt: skip
from loma.core.ops import PREDICATES
from loma.core.printer import print_type
from loma.core.walk import walk
from loma.errors.spans import Span

_LOGICAL = {"and": "&&", "or": "||"}
_MOST_QUARTERS = 16  # x ** (n / 4) up to this n is written with square roots
_LARGEST_PRODUCT = 16  # x ** n up to this n is written as products
_VECTOR = MATH - {"sqrt", "floor", "ceil"}  # those of runtime/vector_math.h
_INLINE = {"exp", "log", "tanh"}  # of these, those that are written there
_OWN = {  # those of runtime/special.h and arithmetic.h
    "max", "min", "clamp", "sign", "mul_no_nan", "isnan", "isfinite", "rsqrt", "relu", "sigmoid",
    "softplus", "lgamma", "digamma", "polygamma",
}  # fmt: skip


def scalar_type(type_: Type, span: Span) -> str:
    """The C++ type of a scalar; BackendLacksOperator for arrays and structs."""
    if type_ in (INT, FLOAT):
        return "int64_t" if type_ == INT else "real"
    raise errors.BackendLacksOperator(
        f"the libtorch backend has no values of type {print_type(type_)} in functions that work on "
        "tensors",
        span,
    )


# The C++ types of elements in memory, and those in which they are computed with.
ELEMENTS: dict[Element, str] = {
    "float": "real", "float32": "float", "int": "int64_t", "bool": "bool",
}  # fmt: skip
TYPES = {**ELEMENTS, "bool": "int64_t"}


def element_type(type_: TensorType) -> str:
    """The C++ type of a tensor's elements."""
    return ELEMENTS[type_.element]


def value_type(type_: TensorType) -> str:
    """The C++ type in which a tensor's elements are computed with."""
    return TYPES[type_.element]


def loaded(place: c.Expression, type_: Type) -> c.Expression:
    """The value of an element in memory. One of a BoolTensor is read as a byte, since gcc makes no
    vectors of conditions on bools."""
    if not isinstance(type_, TensorType) or type_.element != "bool":
        return place
    return c.call("int64_t", c.call("reinterpret_cast<const uint8_t&>", place))


def scalar_function_name(name: str) -> str:
    """The C++ name of the template that a scalar function becomes."""
    return f"{cpp_name(name)}__scalar"


def body_name(name: str) -> str:
    """The C++ name of the template that a tensor function becomes."""
    return f"{cpp_name(name)}__body"


class Expressions(ABC):
    """Turns scalar expressions of one function to C++."""

    def __init__(self, context: FunctionContext) -> None:
        self.context = context
        self._functions = {f.name: f for f in context.module.functions}

    def callee(self, call: Call) -> Function:
        return self._functions[call.function]

    def place(self, span: Span) -> str:
        """The beginning of a message: function and line."""
        return self.context.place(self.context.line(span))

    # ------------------------------------------------------- what depends on where it stands

    @abstractmethod
    def variable(self, var: Var) -> c.Expression:
        """A scalar variable, size, counter or axis."""

    @abstractmethod
    def index(self, read: Index) -> c.Expression:
        """One element of a tensor."""

    def zero_pad(self, pad: ZeroPad) -> c.Expression:
        """One element, or zero outside."""
        raise AssertionError("lowering has made a condition of it")

    def tensor_call(self, call: Call) -> c.Expression:
        """A call of a tensor function that has one scalar result."""
        raise AssertionError("calls of tensor functions are evaluated before the tree")

    def member(self, member: Member) -> c.Expression:
        """A member of a struct."""
        raise _no_structs(member.span)

    def make_struct(self, make: MakeStruct) -> c.Expression:
        """A struct of its members' values."""
        raise _no_structs(make.span)

    # --------------------------------------------------------------------------- expressions

    def value(self, expr: Expr, type_: Type | None = None) -> c.Expression:
        """The value as C++, converted to ``type_`` where that is int or float."""
        if type_ not in (INT, FLOAT) or type_ == expr.type or isinstance(expr.type, TensorType):
            return self._value(expr)
        scalar_type(expr.type, expr.span)
        if type_ == FLOAT:
            if isinstance(expr, IntConst):
                return c.call("real", c.number(expr.value))
            return c.call("static_cast<real>", self._value(expr))
        return c.call("static_cast<int64_t>", self._value(expr))

    def condition(self, expr: Expr) -> c.Expression:
        """The expression as a C++ ``bool``."""
        match expr:
            case Binary("and" | "or" as op, left, right):
                return c.Binary(_LOGICAL[op], self.condition(left), self.condition(right))
            case Binary(op, left, right) if op in PREDICATES:
                type_ = FLOAT if FLOAT in (left.type, right.type) else INT
                return c.Binary(op, self.value(left, type_), self.value(right, type_))
            case Unary("not", operand):
                return c.Unary("!", self.condition(operand))
            case _:
                return c.Binary("!=", self.value(expr), c.number(0))

    def _value(self, expr: Expr) -> c.Expression:
        match expr:
            case IntConst(value):
                return int_constant(value)
            case FloatConst(value):
                return float_constant(value)
            case Var():
                return self.variable(expr)
            case Index():
                return self.index(expr)
            case Unary(op, operand):
                if op == "not":
                    return c.call("int64_t", self.condition(expr))
                return c.Unary("-", self.value(operand))
            case Binary():
                return self._binary(expr)
            case Select(cond, then, other):
                first, second = self.value(then, expr.type), self.value(other, expr.type)
                if expr.eager:
                    called = self.in_vectors() and any(map(_has_call, (then, other)))
                    choose = "loma::vector::blend<real>" if called else "loma::choose<real>"
                    return c.call(choose, self.condition(cond), first, second)
                return c.Conditional(self.condition(cond), first, second)
            case Builtin():
                return self._builtin(expr)
            case Call():
                return self._call(expr)
            case Reduce():
                raise AssertionError("lowering has made loops of it")
            case ZeroPad():
                return self.zero_pad(expr)
            case NoDiff(operand):
                return self.value(operand)
            case Member():
                return self.member(expr)
            case MakeStruct():
                return self.make_struct(expr)
            case Op():
                scalar_type(expr.type, expr.span)
                raise AssertionError(f"an operator that is no tensor: {expr.name}")
            case _:
                assert_never(expr)

    def _binary(self, expr: Binary) -> c.Expression:
        op, left, right = expr.op, expr.left, expr.right
        if op in PREDICATES:
            return c.call("int64_t", self.condition(expr))
        if op == "**":
            return self._power(expr)
        if (fused := self.fused(expr)) is not None:
            return fused
        a, b = self.value(left, expr.type), self.value(right, expr.type)
        if op in ("+", "-", "*") or (op == "/" and expr.type == FLOAT):
            if isinstance(left, IntConst) and isinstance(right, IntConst):
                a = c.call("int64_t", a)
            return c.plus(a, b) if op == "+" and expr.type == INT else c.Binary(op, a, b)
        name = {"/": "truncdiv", "//": "floordiv", "%": "mod"}[op]
        if expr.type == INT:
            if not _is_nonzero(right):
                b = self._nonzero(b, expr.span)
        else:
            name = {"floordiv": "real_floordiv", "mod": "real_mod"}[name]
        return c.call(f"loma::{name}", a, b)

    def fused(self, expr: Binary) -> c.Expression | None:
        """A sum with a product that is rounded as one with it, where the text says so."""
        if not self.context.machine.fused:
            return None
        match expr:
            case Binary("+" | "-" as op, Binary("*", x, y, FloatType()), rest):
                a, b, added = (self.value(each, FLOAT) for each in (x, y, rest))
                added = c.Unary("-", added) if op == "-" else added
            case Binary("+" | "-" as op, rest, Binary("*", x, y, FloatType())):
                added, a, b = (self.value(each, FLOAT) for each in (rest, x, y))
                a = c.Unary("-", a) if op == "-" else a
            case _:
                return None
        return c.call("loma::fma<real>", a, b, added)

    def _nonzero(self, divisor: c.Expression, span: Span, *what: str) -> c.Expression:
        """A divisor that is checked."""
        texts = [c.Token(cpp_string(text)) for text in (self.place(span), *what)]
        return c.call("loma::nonzero", divisor, *texts)

    def _power(self, expr: Binary) -> c.Expression:
        base = self.value(expr.left, expr.type)
        exponent = expr.right
        if isinstance(exponent, IntConst | FloatConst) and float(exponent.value).is_integer():
            count = int(exponent.value)
            number = "int64_t" if expr.type == INT else "real"
            if 0 <= count <= _LARGEST_PRODUCT:
                return c.call(f"loma::power<{count}, {number}>", base)
            if -_LARGEST_PRODUCT <= count < 0 and expr.type == FLOAT:
                one = c.call("real", c.number(1))
                return c.Binary("/", one, c.call(f"loma::power<{-count}, real>", base))
        if expr.type == FLOAT and (roots := _in_roots(base, exponent)) is not None:
            return roots
        function = "loma::ipow" if expr.type == INT else self._library("pow")
        return c.call(function, base, self.value(exponent, expr.type))

    def _builtin(self, expr: Builtin) -> c.Expression:
        name = expr.name
        match name:
            case schedule.CEILING | schedule.QUOTIENT | schedule.REMAINDER:
                a, b = (self.value(arg, INT) for arg in expr.args)
                if name == schedule.CEILING:
                    assert isinstance(expr.args[1], IntConst)
                    a = c.Binary("+", a, c.number(expr.args[1].value - 1))
                return c.Binary("%" if name == schedule.REMAINDER else "/", a, b)
            case schedule.STEPS_OF:
                return c.call("loma::steps_of", *map(self.value, expr.args))
            case "int2float":
                return self.value(expr.args[0], FLOAT)
            case "float2int":
                return self.value(expr.args[0], INT)
            case "abs":
                return c.call("std::abs", self.value(expr.args[0], expr.type))
            case "thread_id" | "atomic_add":
                raise errors.BackendLacksOperator(
                    f"the libtorch backend has no '{name}': it belongs to @simd functions",
                    expr.span,
                )
        info = BUILTINS.get(name)
        if info is None or name not in MATH | _OWN | {"round", "len"}:
            raise errors.BackendLacksOperator(
                f"the libtorch backend has no built-in function '{name}'", expr.span
            )
        type_ = expr.type if info.result == "operands" else FLOAT
        listed = [
            self.value(arg, INT if of in info.ints else type_)
            for of, arg in zip(info.args, expr.args, strict=True)
        ]
        if name == "len":
            if not _is_nonzero(expr.args[2]):
                listed[2] = self._nonzero(listed[2], expr.span, "the step of a range is 0")
            return c.call("loma::range_length", *listed)
        if name == "round":
            return c.call("std::nearbyint", *listed)
        if name == "pow" and (roots := _in_roots(listed[0], expr.args[1])) is not None:
            return roots
        if name in MATH:
            return c.call(self._library(name), *listed)
        types = "real" if type_ == FLOAT else "int64_t"
        if name in ("sigmoid", "softplus") and not self.in_vectors():
            types += ", false"
        return c.call(f"loma::{name}<{types}>", *listed)

    def _library(self, name: str) -> str:
        """The C++ function that computes a built-in function of reals."""
        vector = name in _VECTOR and self.in_vectors()
        return f"loma::vector::{name}<real>" if vector else f"std::{name}"

    def in_vectors(self) -> bool:
        """Whether functions without branches are worth their time: where loops may be vectors."""
        return "vector_math" in config.optimisations()

    def _call(self, call: Call) -> c.Expression:
        if is_tensor_function(self.callee(call)):
            return self.tensor_call(call)
        return c.call(f"{scalar_function_name(call.function)}<real>", *self.arguments(call))

    def arguments(self, call: Call) -> list[c.Expression]:
        pairs = zip(call.args, self.callee(call).params, strict=True)
        return [self.value(arg, param.type) for arg, param in pairs]


def _has_call(expr: Expr) -> bool:
    """Whether a value is made by a function of the C library for vectors."""
    return any(isinstance(n, Builtin) and n.name in _VECTOR - _INLINE for n in walk(expr))


def _in_roots(base: c.Expression, exponent: Expr) -> c.Expression | None:
    """A power by quarters, which roots are quicker for than a logarithm; None if it is another."""
    number = builder.number(exponent)
    if number is None or not (4 * number).is_integer() or number.is_integer():
        return None
    quarters = int(4 * abs(number))
    if quarters > _MOST_QUARTERS:
        return None
    power = c.call(f"loma::power_of_quarters<{quarters}, real>", base)
    return power if number > 0 else c.Binary("/", c.call("real", c.number(1)), power)


def _is_nonzero(divisor: Expr) -> bool:
    match divisor:
        case IntConst(value):
            return value != 0
        case Builtin("max", args):
            return any(isinstance(arg, IntConst) and arg.value > 0 for arg in args)
        case _:
            return False


def _no_structs(span: Span) -> errors.UserError:
    return errors.BackendLacksOperator(
        "the libtorch backend has no structs in functions that work on tensors", span
    )


def int_constant(value: int) -> c.Expression:
    if value == -(2**63):  # whose absolute value is no int
        return c.Token("INT64_MIN")
    return c.number(value, "" if abs(value) < 2**31 else "LL")


def float_constant(value: float) -> c.Expression:
    if math.isnan(value):
        return c.call("std::numeric_limits<real>::quiet_NaN")
    if math.isinf(value):
        size = c.call("std::numeric_limits<real>::infinity")
        return c.Unary("-", size) if value < 0 else size
    return c.call("real", c.number(value))
