"""The verifier's part for expressions: names in scope, types recomputed, calls and operators."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, assert_never

from loma import errors
from loma.core import builder, sizes
from loma.core.builtins import BUILTINS
from loma.core.ir import (
    FLOAT, INT, POSITIONS, ArrayType, Binary, Builtin, Call, Expr, FloatConst, Function, Index,
    IntConst, MakeStruct, Member, NoDiff, Op, Reduce, Select, StackType, Stmt, Struct, StructType,
    TensorType, TupleType, Type, Unary, Var, ZeroPad,
)  # fmt: skip
from loma.core.ops import OPS
from loma.core.unbounded import is_borrowed, is_unbounded
from loma.core.walk import children, is_place, root

Kind = Literal["In", "Out", "local", "size", "counter", "axis"]


class VerificationError(AssertionError):
    """A module that no stage may make; names the function, the statement and what is wrong."""


def unique(names: list[str], what: str, where: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise VerificationError(f"{where}: the {what} '{name}' stands there twice")
        seen.add(name)


def same_type(found: Type, expected: Type) -> bool:
    """Whether two types are equal, with sizes that do not provably differ."""
    match found, expected:
        case TensorType(a, e1), TensorType(b, e2):
            return e1 == e2 and (a is None) == (b is None) and not sizes.differ(a, b)
        case TupleType(a_items), TupleType(b_items):
            return len(a_items) == len(b_items) and all(map(same_type, a_items, b_items))
        case _:
            return found == expected


def _same_rank(found: Type, expected: Type) -> bool:
    """As :func:`same_type` for types whose sizes are written in different functions."""
    match found, expected:
        case TupleType(a_items), TupleType(b_items):
            return len(a_items) == len(b_items) and all(map(builder.passable, a_items, b_items))
        case _:
            return builder.passable(found, expected)


@dataclass(slots=True)
class Expressions:
    """What is in scope at a statement, and the checks of its expressions."""

    function: Function
    known: dict[str, Function]
    promised: set[str]
    structs: dict[str, Struct]
    scope: ChainMap[str, tuple[Type, Kind]] = field(default_factory=ChainMap)
    stmt: Stmt | None = None

    def fail(self, what: str) -> VerificationError:
        where = f"in function '{self.function.name}'"
        if self.stmt is not None:
            where += f", statement `{printed(self.stmt)}`"
        return VerificationError(f"{where}: {what}")

    def require(self, condition: bool, what: str) -> None:
        if not condition:
            raise self.fail(what)

    def check_type(self, type_: Type) -> None:
        match type_:
            case TensorType(dims):
                for dim in dims or ():
                    self.require(self.expr(dim) == INT, "a size is no int")
            case ArrayType(element, _):
                self.check_type(element)
            case StructType(name):
                self.require(name in self.structs, f"no struct is named '{name}'")
            case StackType():
                raise self.fail("a stack that is no variable of its own")
            case TupleType():
                raise self.fail("a variable of several values")
            case _:
                pass

    def fits(self, found: Type, expected: Type) -> None:
        if not builder.convertible(found, expected):
            shown = f"{builder.show_type(found)}, expected {builder.show_type(expected)}"
            raise self.fail(f"found a value of type {shown}")

    def place(self, target: Expr) -> None:
        """The target of an assignment: a variable that may be written, or a part of one."""
        self.expr(target)
        if not is_place(target):
            raise self.fail(f"`{printed(target)}` is no place")
        name = root(target)
        type_, kind = self.scope[name]
        own = kind == "In" and not isinstance(type_, TensorType | ArrayType)
        own = own and not is_borrowed(target) and not is_unbounded(target.type, self.structs)
        self.require(kind in ("Out", "local") or own, f"'{name}' ({kind}) may not be written")

    @contextmanager
    def inside(self, names: Iterable[str], kind: Kind) -> Iterator[None]:
        """Where these counters or axes exist; they hide what has their names."""
        self.scope = self.scope.new_child(dict.fromkeys(names, (INT, kind)))
        yield
        self.scope = self.scope.parents

    # ----------------------------------------------------------------------------- expressions

    def expr(self, expr: Expr) -> Type:
        """Checks an expression; returns its type."""
        expected = self.type_of(expr)
        if expected is not expr.type and not same_type(expr.type, expected):
            shown = f"{builder.show_type(expr.type)}, not {builder.show_type(expected)}"
            raise self.fail(f"`{printed(expr)}` says that it is {shown}")
        return expr.type

    def scalar(self, expr: Expr) -> Type:
        type_ = self.expr(expr)
        if type_ not in (INT, FLOAT):  # to print every expression takes longer than to check it
            raise self.fail(f"`{printed(expr)}` is neither int nor float")
        return type_

    def scalars(self, *exprs: Expr) -> None:
        for expr in exprs:
            self.scalar(expr)

    def type_of(self, expr: Expr) -> Type:
        match expr:
            case IntConst(value):
                self.require(type(value) is int, f"{value!r} is no int")
                return INT
            case FloatConst(value):
                self.require(type(value) is float, f"{value!r} is no float")
                return FLOAT
            case Var(name):
                self.require(name in self.scope, f"'{name}' is not declared")
                type_, _ = self.scope[name]
                is_stack = isinstance(type_, StackType)
                self.require(not is_stack, f"the stack '{name}' is used as a value")
                return type_
            case Index():
                return self.element(expr)
            case Member(base, name):
                owner = self.expr(base)
                if not isinstance(owner, StructType):
                    raise self.fail(f"`{printed(base)}` is no struct")
                self.check_type(owner)
                members = dict(self.structs[owner.name].members)
                self.require(name in members, f"'{owner.name}' has no member '{name}'")
                return members[name]
            case Unary(op, operand):
                type_ = self.scalar(operand)
                return INT if op == "not" else type_
            case Binary(op, left, right):
                self.scalars(left, right)
                return builder.binary(op, left, right).type
            case Select(cond, then, other):
                self.scalars(cond, then, other)
                return builder.select(cond, then, other).type
            case Builtin():
                return self.builtin(expr)
            case Call():
                return self.call(expr)
            case MakeStruct():
                return self.make_struct(expr)
            case Op():
                return self.operator(expr)
            case Reduce(kind, body, axes):
                for axis in axes:
                    self.require(self.expr(axis.extent) == INT, "the range of an axis is no int")
                self.require(bool(axes), "a reduction over nothing")
                names = [axis.name for axis in axes]
                unique(names, "axis", self.function.name)
                with self.inside(names, "axis"):
                    type_ = self.scalar(body)
                return INT if kind in POSITIONS else type_
            case ZeroPad(read):
                self.require(isinstance(read.base.type, TensorType), "zero_pad takes a tensor read")
                return self.expr(read)
            case NoDiff(operand):
                return self.expr(operand)
            case _:
                assert_never(expr)

    def element(self, expr: Index) -> Type:
        base = self.expr(expr.base)
        subs = expr.subscripts
        for sub in subs:
            if self.expr(sub) != INT:
                raise self.fail(f"the subscript `{printed(sub)}` is no int")
        match base:
            case TensorType(dims):
                if dims is None:
                    raise self.fail(f"`{printed(expr.base)}` has no known rank")
                self.require(len(subs) == len(dims), f"{len(subs)} subscripts for rank {len(dims)}")
                return INT if base.integer else FLOAT
            case ArrayType(item, _):
                self.require(len(subs) == 1, "an array takes one subscript at a time")
                return item
            case _:
                raise self.fail(f"`{printed(expr.base)}` takes no subscript")

    @contextmanager
    def made_again(self) -> Iterator[None]:
        """What the builder refuses has been made without it."""
        try:
            yield
        except errors.UserError as error:
            raise self.fail(error.message) from error

    def builtin(self, expr: Builtin) -> Type:
        name, args = expr.name, expr.args
        self.require(name in BUILTINS, f"no built-in function is named '{name}'")
        outside = name == "thread_id" and not self.function.simd
        self.require(not outside, "thread_id() outside a simd function")
        self.scalars(*args)
        with self.made_again():
            return builder.builtin(name, args).type

    def make_struct(self, expr: MakeStruct) -> Type:
        self.check_type(expr.type)
        for arg in expr.args:
            self.expr(arg)
        with self.made_again():
            return builder.make_struct(self.structs[expr.type.name], expr.args).type

    def operator(self, expr: Op) -> Type:
        name = expr.name
        self.require(name in OPS, f"no operator is named '{name}'")
        for part in children(expr):
            self.expr(part)
        found = [attr for attr, _ in expr.attrs]
        table = [attr.name for attr in OPS[name].attrs]
        self.require(found == table, f"'{name}' has the attributes {table}, found {found}")
        with self.made_again():
            again = builder.operator(name, expr.args, dict(expr.attrs))
        self.require(again.attrs == expr.attrs, f"attributes of '{name}' are not complete")
        return again.type

    # ----------------------------------------------------------------------------------- calls

    def call(self, expr: Call) -> Type:
        """A call inside an expression: one result, no Out argument."""
        type_ = self.called(expr)
        name = expr.function
        if (callee := self.known.get(name)) is not None:
            has_out = any(param.mode == "Out" for param in callee.params)
            self.require(not has_out, f"'{name}' has Out arguments: its call must be a statement")
            self.require(len(callee.results) == 1, f"'{name}' does not give one value")
        return type_

    def called(self, call: Call) -> Type:
        """Checks arguments; returns the type that the call must say it has."""
        name, count = call.function, len(call.args)
        callee = self.known.get(name)
        if callee is None:
            self.require(name in self.promised, f"no function '{name}' stands before this one")
            for arg in call.args:
                self.expr(arg)
            return call.type
        params = callee.params
        self.require(not callee.simd, f"a call of '{name}', which is a simd function")
        self.require(count == len(params), f"'{name}' takes {len(params)} arguments, found {count}")
        written: list[str] = []
        read: list[str] = []
        for arg, param in zip(call.args, params, strict=True):
            if not _same_rank(self.expr(arg), param.type):
                shown = f"{builder.show_type(param.type)}, found {builder.show_type(arg.type)}"
                raise self.fail(f"argument '{param.name}' of '{name}' is {shown}")
            if param.mode == "Out":
                self.place(arg)
            if isinstance(arg, Var):
                (written if param.mode == "Out" else read).append(arg.name)
        twice = [n for n in written if n in read or written.count(n) > 1]
        self.require(not twice, f"{twice} passed as Out and once more")
        expected = callee.results[0] if len(callee.results) == 1 else TupleType(callee.results)
        fits = not callee.results or _same_rank(call.type, expected)
        self.require(fits, f"the call of '{name}' says that it is {call.type}")
        return call.type


def printed(node: Stmt | Expr) -> str:
    """The node as text; as Python shows it when it is too broken to print."""
    from loma.core.printer import print_expr, print_stmt

    try:
        if isinstance(node, Stmt):
            return print_stmt(node).strip().split("\n")[0]
        return print_expr(node)
    except Exception:
        return repr(node)
