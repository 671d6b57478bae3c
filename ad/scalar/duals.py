"""Forward mode on expressions: every float becomes its value and its derivative.

A place of type ``T`` becomes the same place of type ``Diff[T]``, so the value of a float place is
its member ``val`` and the derivative its member ``dval``. Values never read derivatives. What would
be repeated in the text and is not small gets a temporary, so that text grows with the program and
not with the depth of its expressions; what stands in a branch that may not be taken stays there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from loma.ad.tangents import slope
from loma.core import builder as b
from loma.core.differentials import DFLOAT, differential
from loma.core.ir import (
    FLOAT, INT, ArrayType, Assign, Binary, Builtin, Call, Declare, Expr, FloatConst, For, Function,
    If, Index, IntConst, MakeStruct, Member, NoDiff, Place, Select, Stmt, Struct, StructType,
    TupleType, Type, Unary, Var, replace,
)  # fmt: skip
from loma.core.names import Names
from loma.core.walk import children, map_children, variables

# In nodes: what may be repeated as it is, and what may stand in one expression.
_SMALL, _LARGE = 6, 40
_ZERO = b.flt(0)


@dataclass(frozen=True, slots=True)
class Dual:
    """Value and derivative; ``whole`` is the place that holds both, if there is one."""

    val: Expr
    dval: Expr
    whole: Expr | None = None

    @property
    def is_constant(self) -> bool:
        return b.is_const(self.dval, 0)


class Emitter:
    """Takes the statements of the derivative, and makes its temporaries."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._count = 0
        self._blocks: list[list[Stmt]] = [[]]

    @property
    def body(self) -> tuple[Stmt, ...]:
        """What was emitted outside all nested blocks."""
        return tuple(self._blocks[0])

    def emit(self, *stmts: Stmt) -> None:
        self._blocks[-1] += stmts

    @contextmanager
    def block(self) -> Iterator[list[Stmt]]:
        """Collects what is emitted, for a nested block."""
        self._blocks.append([])
        yield self._blocks[-1]
        self._blocks.pop()

    def fresh(self) -> str:
        self._count += 1
        return self._names.fresh(f"_t{self._count}")

    def temporary(self, type_: Type) -> Var:
        """A new variable, declared before the outermost statement that is being made."""
        var = Var(self.fresh(), type_)
        self._blocks[0].append(Declare(var, None))
        return var

    def bind(self, value: Expr) -> Var:
        """A new variable with that value."""
        if len(self._blocks) == 1:
            var = Var(self.fresh(), value.type)
            self.emit(Declare(var, value))
        else:
            var = self.temporary(value.type)
            self.emit(Assign(var, "=", value))
        return var


@dataclass(frozen=True, slots=True)
class Dualiser:
    """Turns expressions of the primal into those of its forward derivative.

    ``_derivative_of(g)`` is the forward derivative of a function that the primal calls.
    """

    _out: Emitter
    _structs: Mapping[str, Struct]
    _derivative_of: Callable[[str], Function]

    # ----------------------------------------------------------------------------------- values

    def value(self, expr: Expr) -> Expr:
        """The value of an int or float expression."""
        match expr:
            case Var() | Index() | Member():
                place = self.place(expr)
                return Member(place, "val", FLOAT, expr.span) if expr.type == FLOAT else place
            case Call():
                return self._called_value(expr)
            case Binary("and" | "or"):
                return self._logical(expr)
            case Select():
                return self._value_select(expr)
            case _:
                return map_children(expr, self.value)

    def _called_value(self, expr: Call) -> Expr:
        """Calls the primal where its arguments are at hand, else its derivative."""
        if all(b.is_scalar(arg.type) or differential(arg.type) == arg.type for arg in expr.args):
            return replace(expr, args=tuple(self.whole(arg, INT) for arg in expr.args))
        call = self.call(expr)
        return call if expr.type == INT else Member(self._out.bind(call), "val", FLOAT)

    def _logical(self, expr: Binary) -> Expr:
        left = self.value(expr.left)
        with self._out.block() as block:
            right = self.value(expr.right)
        if not block:
            return replace(expr, left=left, right=right)
        result = self._out.bind(b.binary("!=", left, IntConst(0)))
        decides = Assign(result, "=", b.binary("!=", right, IntConst(0)))
        cond = result if expr.op == "and" else b.unary("not", result)
        self._out.emit(If(cond, (*block, decides), ()))
        return result

    def _value_select(self, expr: Select) -> Expr:
        cond = self.value(expr.cond)
        with self._out.block() as first:
            then = self.value(expr.then)
        with self._out.block() as second:
            other = self.value(expr.other)
        if not first and not second:
            return replace(expr, cond=cond, then=then, other=other)
        return self._choose(cond, (first, then), (second, other), expr.type)

    def _choose(
        self, cond: Expr, then: tuple[list[Stmt], Expr], other: tuple[list[Stmt], Expr], type_: Type
    ) -> Var:
        """A variable that takes one of two values, each behind the statements that it needs."""
        result = self._out.temporary(type_)
        blocks = [(*block, Assign(result, "=", value)) for block, value in (then, other)]
        self._out.emit(If(cond, blocks[0], blocks[1]))
        return result

    # ----------------------------------------------------------------------------------- places

    def place(self, expr: Expr) -> Place:
        """The place that holds the differential of a place or of a struct."""
        match expr:
            case Var(_, type_):
                return replace(expr, type=differential(type_))
            case Index(base, (position,), type_):
                where = self.value(position)
                if _exceeds(_SMALL, where):
                    where = self._out.bind(where)
                return Index(self.place(base), (where,), differential(type_), expr.span)
            case Member(base, name, type_):
                return Member(self.place(base), name, differential(type_), expr.span)
            case _:
                return self._out.bind(self.whole(expr, expr.type))

    def whole(self, expr: Expr, type_: Type) -> Expr:
        """The differential of an expression where a value of ``type_`` is expected."""
        if b.is_scalar(expr.type):
            if type_ == INT:
                return self.value(expr)
            if isinstance(expr, Call) and expr.type == FLOAT:
                return self.call(expr)
            return _whole(self.dual(expr))
        match expr:
            case Call():
                return self.call(expr)
            case MakeStruct(args, made):
                members = self._structs[made.name].members
                parts = [self.whole(arg, t) for arg, (_, t) in zip(args, members, strict=True)]
                return MakeStruct(tuple(parts), StructType(f"_d{made.name}"), expr.span)
            case NoDiff(operand):
                copy = self._out.bind(self.whole(operand, operand.type))
                self._out.emit(*self._constant(copy, operand.type))
                return copy
            case _:
                return self.place(expr)

    def _constant(self, place: Place, type_: Type) -> list[Stmt]:
        """Sets all derivatives in the differential of a value of ``type_`` to zero."""
        match type_:
            case StructType(name):
                members = self._structs[name].members
                parts = [(Member(place, m, differential(t)), t) for m, t in members]
                return [stmt for part, t in parts for stmt in self._constant(part, t)]
            case ArrayType(element, size):
                assert size is not None
                counter = Var(self._out.fresh(), INT)
                item = Index(place, (counter,), differential(element))
                inner = self._constant(item, element)
                return [For(counter.name, IntConst(size), tuple(inner))] if inner else []
            case _:
                return [] if type_ == INT else [Assign(Member(place, "dval", FLOAT), "=", _ZERO)]

    def call(self, expr: Call) -> Call:
        """The call of the forward derivative."""
        derivative = self._derivative_of(expr.function)
        args: list[Expr] = []
        for arg, param in zip(expr.args, derivative.params, strict=True):
            whole = INT if param.type == INT else FLOAT if b.is_scalar(arg.type) else arg.type
            args.append(self.place(arg) if param.mode == "Out" else self.whole(arg, whole))
        if isinstance(expr.type, TupleType):
            result: Type = TupleType(tuple(map(differential, expr.type.items)))
        else:
            result = differential(expr.type)
        return Call(derivative.name, tuple(args), result, expr.span)

    # ------------------------------------------------------------------------------ derivatives

    def dual(self, expr: Expr) -> Dual:
        """Value and derivative of an int or float expression."""
        if expr.type == INT:
            return Dual(self.value(expr), _ZERO)
        match expr:
            case FloatConst() | NoDiff():
                return Dual(self.value(expr), _ZERO)
            case Call():
                return _parts(self._out.bind(self.call(expr)))
            case Unary("-", operand):
                inner = self.dual(operand)
                dval = _ZERO if inner.is_constant else b.neg(inner.dval)
                return Dual(replace(expr, operand=inner.val), dval)
            case Binary(op, left, right):
                first, second = self._applied(op, (left, right))
                whole = replace(expr, left=first.val, right=second.val)
                return Dual(whole, _slope(op, (first, second)))
            case Builtin(name, args):
                duals = self._applied(name, args)
                values = replace(expr, args=tuple(dual.val for dual in duals))
                return Dual(values, _slope(name, duals))
            case Select():
                return self._dual_select(expr)
            case _:
                return _parts(self.place(expr))

    def _dual_select(self, expr: Select) -> Dual:
        cond = self.value(expr.cond)
        with self._out.block() as first:
            then = self._branch(expr.then)
        with self._out.block() as second:
            other = self._branch(expr.other)
        if first or second or isinstance(then, Call) or isinstance(other, Call):
            ends = [(first, _whole(then)), (second, _whole(other))]
            return _parts(self._choose(cond, ends[0], ends[1], DFLOAT))
        if then.is_constant and other.is_constant:
            return Dual(replace(expr, cond=cond, then=then.val, other=other.val), _ZERO)
        if _exceeds(_SMALL, cond):
            cond = self._out.bind(cond)
        val = replace(expr, cond=cond, then=then.val, other=other.val)
        return Dual(val, b.select(cond, then.dval, other.dval))

    def _branch(self, expr: Expr) -> Dual | Call:
        """A call that is a branch by itself needs no temporary of its own."""
        if isinstance(expr, Call) and expr.type == FLOAT:
            return self.call(expr)
        return self.dual(expr)

    def _applied(self, name: str, args: tuple[Expr, ...]) -> tuple[Dual, ...]:
        """The operands of an operation, ready to be used as often as its rule does."""
        duals = [self.dual(arg) for arg in args]
        if all(dual.is_constant for dual in duals):
            return tuple(duals)
        # The rule on stand-ins shows which operands its partial derivatives repeat.
        marks = [
            dual.val if isinstance(dual.val, IntConst | FloatConst) else Var(f"{k}", dual.val.type)
            for k, dual in enumerate(duals)
        ]
        terms = [dual.dval if dual.is_constant else Var("", FLOAT) for dual in duals]
        repeated = set(variables(slope(name, marks, terms)))
        return tuple(
            self._named(dual)
            if (f"{k}" in repeated and _exceeds(_SMALL, dual.val))
            or _exceeds(_LARGE, dual.val, dual.dval)
            else dual
            for k, dual in enumerate(duals)
        )

    def _named(self, dual: Dual) -> Dual:
        """The same in a temporary."""
        if dual.is_constant:
            return Dual(self._out.bind(dual.val), dual.dval)
        return _parts(self._out.bind(_whole(dual)))


def _whole(dual: Dual | Call) -> Expr:
    """Value and derivative as one ``_dfloat``."""
    if isinstance(dual, Call):
        return dual
    return dual.whole or MakeStruct((dual.val, dual.dval), DFLOAT)


def _parts(place: Place) -> Dual:
    """A place of type ``_dfloat``."""
    span = place.span
    return Dual(Member(place, "val", FLOAT, span), Member(place, "dval", FLOAT, span), place)


def _slope(name: str, operands: Sequence[Dual]) -> Expr:
    """The derivative of an operation's value."""
    return slope(name, [dual.val for dual in operands], [dual.dval for dual in operands])


def _exceeds(limit: int, *exprs: Expr) -> bool:
    """Whether expressions have more nodes than that; a call counts for many, so that none is
    repeated."""
    open_, count = list(exprs), 0
    while open_:
        node = open_.pop()
        count += _LARGE if isinstance(node, Call) else 1
        if count > limit:
            return True
        open_ += children(node)
    return False
