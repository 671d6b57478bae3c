"""The verifier's part for expressions: names in scope, types recomputed, calls and operators."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, assert_never

from loma import errors
from loma.core import builder, sizes
from loma.core.builtins import BUILTINS
from loma.core.ir import (
    FLOAT, INT, POSITIONS, ArrayType, Attr, Axis, Binary, Builtin, Call, Expr, FloatConst, Function,
    Index, IntConst, MakeStruct, Member, NoDiff, Op, Place, Reduce, Select, StackType, Stmt, Struct,
    StructType, TensorType, TupleType, Type, Unary, Var, ZeroPad,
)  # fmt: skip
from loma.core.ops import OPS, PREDICATES
from loma.core.unbounded import is_borrowed, is_unbounded

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
            if e1 != e2 or (a is None) != (b is None):
                return False
            return a is None or b is None or (
                len(a) == len(b)
                and all(sizes.equal(x, y) is not False for x, y in zip(a, b, strict=True))
            )  # fmt: skip
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
    types: dict[str, Type] = field(default_factory=dict)
    kinds: dict[str, Kind] = field(default_factory=dict)
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

    def place(self, target: Place) -> None:
        """The target of an assignment: a variable that may be written, or a part of one."""
        self.expr(target)
        base: Expr = target
        while not isinstance(base, Var):
            self.require(isinstance(base, Index | Member), "a target that is no place")
            assert isinstance(base, Index | Member)
            base = base.base
        kind = self.kinds[base.name]
        is_whole = isinstance(base.type, TensorType | ArrayType)
        own = kind == "In" and not is_whole
        own = own and not is_borrowed(target) and not is_unbounded(target.type, self.structs)
        self.require(kind in ("Out", "local") or own, f"'{base.name}' ({kind}) may not be written")

    def scoped(self, axes: tuple[Axis, ...]) -> list[tuple[str, Type | None, Kind | None]]:
        """Declares axes; what they hide is given back for :meth:`unscoped`."""
        hidden = [(a.name, self.types.get(a.name), self.kinds.get(a.name)) for a in axes]
        for axis in axes:
            self.types[axis.name], self.kinds[axis.name] = INT, "axis"
        return hidden

    def unscoped(self, hidden: list[tuple[str, Type | None, Kind | None]]) -> None:
        for name, type_, kind in hidden:
            if type_ is None or kind is None:
                del self.types[name], self.kinds[name]
            else:
                self.types[name], self.kinds[name] = type_, kind

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

    def type_of(self, expr: Expr) -> Type:
        match expr:
            case IntConst(value):
                self.require(type(value) is int, f"{value!r} is no int")
                return INT
            case FloatConst(value):
                self.require(type(value) is float, f"{value!r} is no float")
                return FLOAT
            case Var(name):
                self.require(name in self.types, f"'{name}' is not declared")
                is_stack = isinstance(self.types[name], StackType)
                self.require(not is_stack, f"the stack '{name}' is used as a value")
                return self.types[name]
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
            case Binary():
                return self.binary(expr)
            case Select(cond, then, other):
                self.scalar(cond)
                return FLOAT if FLOAT in (self.scalar(then), self.scalar(other)) else INT
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
                unique([axis.name for axis in axes], "axis", self.function.name)
                hidden = self.scoped(axes)
                type_ = self.scalar(body)
                self.unscoped(hidden)
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

    def binary(self, expr: Binary) -> Type:
        left, right = self.scalar(expr.left), self.scalar(expr.right)
        if expr.op in PREDICATES:
            return INT
        if expr.op == "**" and not (isinstance(expr.right, IntConst) and expr.right.value >= 0):
            return FLOAT
        return FLOAT if FLOAT in (left, right) else INT

    def builtin(self, expr: Builtin) -> Type:
        info = BUILTINS.get(expr.name)
        self.require(info is not None, f"no built-in function is named '{expr.name}'")
        assert info is not None
        self.require(
            expr.name != "thread_id" or self.function.simd, "thread_id() outside a simd function"
        )
        self.require(len(expr.args) == info.arity, f"'{expr.name}' takes {info.arity} arguments")
        types = [self.scalar(arg) for arg in expr.args]
        for arg, type_ in zip(info.args, types, strict=True):
            self.require(
                arg not in info.ints or type_ == INT, f"'{arg}' of '{expr.name}' is no int"
            )
        if info.result == "operands":
            return FLOAT if FLOAT in types else INT
        return INT if info.result == "int" else FLOAT

    def make_struct(self, expr: MakeStruct) -> Type:
        self.check_type(expr.type)
        for arg in expr.args:
            self.expr(arg)
        try:
            builder.make_struct(self.structs[expr.type.name], expr.args)
        except errors.UserError as error:
            raise self.fail(error.message) from error
        return expr.type

    def operator(self, expr: Op) -> Type:
        info = OPS.get(expr.name)
        self.require(info is not None, f"no operator is named '{expr.name}'")
        assert info is not None
        for arg in expr.args:
            self.expr(arg)
        found = [name for name, _ in expr.attrs]
        table = [attr.name for attr in info.attrs]
        self.require(found == table, f"'{expr.name}' has the attributes {table}, found {found}")
        for _, value in expr.attrs:
            for item in _items(value):
                self.expr(item)
        try:
            again = builder.operator(expr.name, expr.args, dict(expr.attrs))
        except errors.UserError as error:
            raise self.fail(error.message) from error
        self.require(again.attrs == expr.attrs, f"attributes of '{expr.name}' are not complete")
        return again.type

    # ----------------------------------------------------------------------------------- calls

    def call(self, expr: Call) -> Type:
        """A call inside an expression: one result, no Out argument."""
        type_ = self.called(expr)
        callee = self.known.get(expr.function)
        if callee is not None:
            self.require(
                all(param.mode == "In" for param in callee.params),
                f"'{expr.function}' has Out arguments, so its call must be a statement",
            )
            self.require(len(callee.results) == 1, f"'{expr.function}' does not give one value")
        return type_

    def called(self, call: Call) -> Type:
        """Checks arguments; returns the type that the call must say it has."""
        callee = self.known.get(call.function)
        if callee is None:
            earlier = call.function in self.promised
            self.require(earlier, f"no function '{call.function}' stands before this one")
            for arg in call.args:
                self.expr(arg)
            return call.type
        self.require(not callee.simd, f"a call of '{call.function}', which is a simd function")
        self.require(
            len(call.args) == len(callee.params),
            f"'{call.function}' takes {len(callee.params)} arguments, found {len(call.args)}",
        )
        written: list[str] = []
        read: list[str] = []
        for arg, param in zip(call.args, callee.params, strict=True):
            type_ = self.expr(arg)
            self.require(
                _same_rank(type_, param.type),
                f"argument '{param.name}' of '{call.function}' is "
                f"{builder.show_type(param.type)}, found {builder.show_type(type_)}",
            )
            if param.mode == "Out":
                if not isinstance(arg, Var | Index | Member):
                    raise self.fail(f"`{printed(arg)}` is no place")
                assert isinstance(arg, Var | Index | Member)
                self.place(arg)
            if isinstance(arg, Var):
                (written if param.mode == "Out" else read).append(arg.name)
        twice = [n for n in written if n in read or written.count(n) > 1]
        self.require(not twice, f"{twice} passed as Out and once more")
        expected = callee.results[0] if len(callee.results) == 1 else TupleType(callee.results)
        self.require(
            not callee.results or _same_rank(call.type, expected),
            f"the call of '{call.function}' says that it is {call.type}",
        )
        return call.type


def _items(value: Attr) -> tuple[Expr, ...]:
    return value if isinstance(value, tuple) else (value,)


def printed(node: Stmt | Expr) -> str:
    """The node as text; as Python shows it when it is too broken to print."""
    from loma.core.printer import print_expr, print_stmt

    try:
        if isinstance(node, Stmt):
            return print_stmt(node).strip().split("\n")[0]
        return print_expr(node)
    except Exception:
        return repr(node)
