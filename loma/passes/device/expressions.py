"""Expressions with numbers on the device; see :mod:`loma.passes.device.numbers`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from loma import errors
from loma.core import builder as b
from loma.core.builtins import BUILTINS
from loma.core.ir import (
    FLOAT, INT, Assign, Call, Declare, Expr, FloatConst, Function, If, Index, IndexAssign,
    IntConst, NoDiff, Op, Place,
    Reduce, Stmt, TensorType, TupleType, Type, Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.ops import OPS
from loma.core.sizes import size_variables
from loma.core.walk import free_variables, map_attrs, map_guarded, reads_of_type, root
from loma.errors.spans import NOWHERE
from loma.passes.device.values import DeviceValues

NUMBER = TensorType((), "float")
FLAG = TensorType((), "int")


def moved(type_: Type) -> Type:
    """The type of a parameter or a result on the device."""
    if isinstance(type_, TupleType):
        return TupleType(tuple(map(moved, type_.items)))
    return NUMBER if type_ == FLOAT else type_


class Expressions:
    """The expressions of one function. What they need before them is added to ``out``, the block
    at hand; declarations to the ``outermost`` one, where the statement that needs them follows."""

    def __init__(self, function: Function, functions: Mapping[str, Function]) -> None:
        self.of = function
        self.functions = functions
        self.values = DeviceValues(function, functions)
        self.outermost: list[Stmt] = []
        self.out = self.outermost
        self.span = NOWHERE  # of the statement at hand
        self.declared: set[str] = set()  # before it
        self._names = Names(names_of(function))
        ints = (param.name for param in function.params if param.type == INT)
        self._given = frozenset(size_variables(function)).union(ints)
        self._axes: frozenset[str] = frozenset()  # around the expression at hand
        self._constants: dict[FloatConst, Var] = {}
        self._guard: Expr | None = None  # under which that is evaluated

    def value(self, expr: Expr) -> Expr:
        """An int or a float. What an operator or a function gives for it has a name then."""
        match expr:
            case Var() if self.is_number(expr):
                return self.element(expr)
            case Index(Op() as base, ()) if (scalar := as_scalars(base)) is not None:
                return self.value(scalar)
            case Index(base, subscripts) if isinstance(base.type, TensorType):
                places = tuple(map(self.value, subscripts))
                whole = self.whole(base)
                if not isinstance(base, Var) and self._can_be_apart(base):
                    named = self.named(whole, base.type)
                    if named is whole:  # its sizes are not those of a variable
                        element = replace(expr, base=whole, subscripts=places)
                        return self.named(element, expr.type)
                    whole = named
                return replace(expr, base=whole, subscripts=places)
            case Call() if self.values.is_tensor_call(expr):
                whole = self.call(expr)
                apart = self._can_be_apart(expr)
                return b.as_scalar(self.named(whole, whole.type) if apart else whole)
            case Reduce(_, _, axes):
                with self.under(axis.name for axis in axes):
                    return map_guarded(expr, self._guarded)
            case _:
                return map_guarded(expr, self._guarded)

    def _guarded(self, expr: Expr, guard: Expr | None) -> Expr:
        around = self._guard
        if guard is not None:
            self._guard = guard if around is None else b.binary("and", around, guard)
        new = self.value(expr)
        self._guard = around
        return new

    @contextmanager
    def under(self, axes: Iterable[str]) -> Iterator[None]:
        around = self._axes
        self._axes = around.union(axes)
        yield
        self._axes = around

    def _can_be_apart(self, expr: Expr) -> bool:
        """Whether a statement before can evaluate it."""
        guard = frozenset() if self._guard is None else free_variables(self._guard)
        return not self._axes & (free_variables(expr) | guard)

    def whole(self, expr: Expr) -> Expr:
        """A value of any type: of calls those on the device."""
        match expr:
            case Var() if isinstance(expr.type, TensorType):
                return expr
            case Call() if self.values.is_tensor_call(expr):
                return self.call(expr)
            case NoDiff(operand) if isinstance(expr.type, TensorType):
                return self.whole(operand)
            case Op():
                return self._operator(expr)
            case _:
                return self.value(expr)

    def _operator(self, op: Op) -> Op:
        """An operator, to which numbers of the device are operands as they are where it is of the
        same type then."""
        attrs = map_attrs(op.attrs, self.value)
        numbers = [
            k for k, arg in enumerate(op.args) if arg.type == FLOAT and self.values.is_device(arg)
        ]
        dummy = Var("", NUMBER)
        args = tuple(dummy if k in numbers else arg for k, arg in enumerate(op.args))
        try:
            fits = b.operator(op.name, args, dict(op.attrs), op.span).type == op.type
        except errors.UserError:
            fits = False
        new = tuple(
            self.number(arg) if fits and k in numbers else self.whole(arg)
            for k, arg in enumerate(op.args)
        )
        return replace(op, args=new, attrs=attrs)

    def call(self, call: Call) -> Call:
        """A call, with tensors for the numbers where the function takes them."""
        is_moved = self.values.is_tensor_call(call)
        params = self.functions[call.function].params
        changed = {root(a) for a, p in zip(call.args, params, strict=True) if p.mode == "Out"}
        args: list[Expr] = []
        for arg, param in zip(call.args, params, strict=True):
            if param.mode == "Out":
                args.append(self.variable(arg) if isinstance(arg, Var) else arg)
            elif is_moved and param.type == FLOAT:
                args.append(self.number(arg, changed))
            else:
                args.append(self.whole(arg))
        return replace(call, args=tuple(args), type=moved(call.type) if is_moved else call.type)

    def number(self, expr: Expr, changed: set[str] | frozenset[str] = frozenset()) -> Expr:
        """A float as a 0-dim tensor, which is none of these."""
        own = expr.base if isinstance(expr, Index) and b.is_rank0(expr.base.type) else expr
        if isinstance(own, Var) and own.name not in changed:
            own = self.variable(own)
            if own.type == NUMBER:
                return own
        if isinstance(expr, FloatConst | IntConst):
            return self._constant(expr)
        return self.named(self.value(b.as_scalar(expr)), NUMBER)

    def _constant(self, value: FloatConst | IntConst) -> Var:
        """A variable with that value, which no loop sets again."""
        key = FloatConst(float(value.value))
        if key not in self._constants:
            self._constants[key] = var = self.temporary(NUMBER)
            element = Index(var, (), FLOAT)
            self.outermost.append(IndexAssign(element, "=", key, (), self.span))
        return self._constants[key]

    # ------------------------------------------------------------------------------- variables

    def is_number(self, var: Var) -> bool:
        return var.name in self.values.numbers and var.type in (FLOAT, INT)

    def gives_number(self, call: Call) -> bool:
        """Whether what a call gives is a number of the device."""
        return self.values.is_tensor_call(call) and isinstance(moved(call.type), TensorType)

    def variable(self, var: Var) -> Var:
        if not self.is_number(var):
            return var
        return replace(var, type=NUMBER if var.type == FLOAT else FLAG)

    def element(self, var: Var) -> Index:
        return Index(self.variable(var), (), var.type, var.span)

    def place(self, target: Place) -> Place:
        match target:
            case Var() if self.is_number(target):
                return self.element(target)
            case Index(_, subscripts):
                return replace(target, subscripts=tuple(map(self.value, subscripts)))
            case _:
                return target

    def temporary(self, type_: Type) -> Var:
        var = Var(self._names.fresh("_number"), type_, self.span)
        self.outermost.append(Declare(var, None, self.span))
        return var

    def named(self, value: Expr, type_: Type) -> Expr:
        """A variable of that type with the value, where the block at hand goes on; the value itself
        if the type has sizes that the function's outermost block may not know."""
        known = self._given | self.declared if self.out is self.outermost else self._given
        if not reads_of_type(type_) <= known:
            return value
        var = self.temporary(type_)
        if isinstance(type_, TensorType) and not isinstance(value.type, TensorType):
            element = Index(var, (), INT if type_.integer else FLOAT)
            stmt: Stmt = IndexAssign(element, "=", value, (), self.span)
        else:
            stmt = Assign(var, "=", value, self.span)
        self.out.append(stmt if self._guard is None else If(self._guard, (stmt,), (), self.span))
        return var


def as_scalars(op: Op) -> Expr | None:
    """An operator on 0-dim float tensors alone as what it does to their elements."""
    info = OPS[op.name]
    is_infix = info.infix is not None and info.work == "elementwise"
    if op.type != NUMBER or not (is_infix or op.name in BUILTINS):
        return None
    args: list[Expr] = []
    for arg in op.args:
        inner = as_scalars(arg) if isinstance(arg, Op) else None
        own = b.as_scalar(arg) if inner is None else inner
        if own.type not in (FLOAT, INT):
            return None
        args.append(own)
    if op.name in BUILTINS:
        return b.builtin(op.name, args, op.span)
    if len(args) == 1:
        return b.unary("-", args[0], op.span)
    assert info.infix is not None
    return b.binary(info.infix, args[0], args[1], op.span)
