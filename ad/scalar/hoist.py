"""Brings a scalar function to the normal form that reverse mode works on.

In normal form

* a call of a function of the program is the whole value of a declaration or an assignment, or a
  statement of its own; what it takes by value is a variable or a small expression;
* the operands of nonlinear operations are small, so that derivatives grow with the program's
  length and not with the depth of its expressions;
* a statement does not change the subscripts of the places that it writes to;
* an ``In`` argument that the body changes is a local copy;
* every statement has a number of its own.

What was a part of a conditional expression stays under its condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from loma import errors
from loma.ad.scalar.paths import overlap, path_of
from loma.core import builder as b
from loma.core.effects import assigned, effects, written_places
from loma.core.ir import (
    FLOAT, INT, Assign, AtomicAdd, Binary, Builtin, Call, CallStmt, Declare, Expr, FloatType, For,
    Function, If, Index, IndexAssign, MakeStruct, Member, NoDiff, Param, Place, Pop, Push, Return,
    Select, Stmt, Struct, StructType, Type, Unary, Unpack, Var, While, Zero, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.unbounded import is_unbounded
from loma.core.walk import (
    children, is_place, map_children, map_expressions, numbered, root, statements, subscripts,
    substitute, walk,
)  # fmt: skip

LARGEST_OPERAND = 8  # nodes of an operand that is repeated in a derivative


@dataclass(slots=True)
class Normal:
    """A function in normal form, with the types of its variables and the names it uses."""

    function: Function
    types: dict[str, Type]
    names: Names


def normalise(
    function: Function,
    functions: dict[str, Function],
    structs: Mapping[str, Struct],
    copy_arguments: bool = False,
) -> Normal:
    """The function in normal form; ``functions`` are those that it may call.

    With ``copy_arguments`` every ``In`` number and struct is copied, so that its adjoint is summed
    up in a local variable first. A struct with arrays of unknown length cannot be copied: the
    members of it that the body changes are. Raises NotDifferentiable where that is not enough.
    """
    names = Names(names_of(function))
    types: dict[str, Type] = {param.name: param.type for param in function.params}
    for stmt in statements(function.body):
        own = effects(stmt)
        types |= {var.name: var.type for var in (*own.declares, *own.counters)}
    normal = Normal(function, types, names)
    changed = set(assigned(function.body, functions))
    start: list[Stmt] = []
    renamed: dict[str, Expr] = {}
    body = function.body
    for param in function.params:
        if isinstance(param.type, StructType) and is_unbounded(param.type, structs):
            if param.mode == "In" and param.name in changed:
                copies, body = _with_members(param, body, normal, functions, structs)
                start += copies
            continue
        copied = copy_arguments and isinstance(param.type, FloatType | StructType)
        if param.mode == "In" and (copied or param.name in changed):
            copy = Var(names.fresh(f"{param.name}_local"), param.type)
            types[copy.name] = param.type
            renamed[param.name] = copy
            start.append(Declare(copy, Var(param.name, param.type)))
    if renamed:
        body = tuple(map_expressions(stmt, lambda e: substitute(e, renamed)) for stmt in body)
    worker = _Hoister(normal, functions)
    normal.function = replace(function, body=numbered((*start, *worker.outermost(body))))
    return normal


def _with_members(
    param: Param,
    body: tuple[Stmt, ...],
    normal: Normal,
    functions: dict[str, Function],
    structs: Mapping[str, Struct],
) -> tuple[list[Stmt], tuple[Stmt, ...]]:
    """Copies of the members of an argument that the body changes, and the body with those."""
    copies: dict[Expr, Expr] = {}
    start: list[Stmt] = []
    for place in written_places(body, functions):
        if root(place) != param.name:
            continue
        member: Expr = place
        while isinstance(member, Index | Member) and not is_unbounded(member.base.type, structs):
            member = member.base
        if any(subscripts(member)):
            raise _not_copied(param, place)
        assert isinstance(member, Member)
        if member not in copies:
            copy = Var(normal.names.fresh(f"{param.name}_{member.name}"), member.type)
            normal.types[copy.name] = member.type
            copies[member] = copy
            start.append(Declare(copy, member))

    def changed(expr: Expr) -> Expr:
        if expr in copies:
            return copies[expr]
        if isinstance(expr, Call):
            for arg in expr.args:
                whole = is_place(arg) and is_unbounded(arg.type, structs)
                if whole and any(overlap(path_of(arg), path_of(member)) for member in copies):
                    raise _not_copied(param, arg)
        return map_children(expr, changed)

    return start, tuple(map_expressions(stmt, changed) for stmt in body)


def _not_copied(param: Param, place: Expr) -> errors.NotDifferentiable:
    return errors.NotDifferentiable(
        f"'{param.name}' has arrays of unknown length in it, so the derivative cannot copy it, and "
        "a member of it is changed",
        place.span if place.span.line else param.span,
        hint="assign the member to a variable first, and change that",
        var=param.name,
    )


def size(expr: Expr) -> int:
    return sum(1 for _ in walk(expr))


class _Hoister:
    def __init__(self, normal: Normal, functions: dict[str, Function]) -> None:
        self._normal = normal
        self._functions = functions
        self._depth = 0
        self._declared: list[Stmt] = []  # temporaries of nested blocks
        self._out: list[Stmt] = []

    def outermost(self, body: tuple[Stmt, ...]) -> list[Stmt]:
        done: list[Stmt] = []
        for stmt in body:
            self._out = []
            self._statement(stmt)
            done += self._declared + self._out
            self._declared = []
        return done

    def _block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        outer, self._out = self._out, []
        self._depth += 1
        for stmt in body:
            self._statement(stmt)
        self._depth -= 1
        done, self._out = self._out, outer
        return tuple(done)

    def _temporary(self, value: Expr | None, type_: Type, wish: str = "_t") -> Var:
        var = Var(self._normal.names.fresh(wish), type_)
        self._normal.types[var.name] = type_
        if self._depth == 0:
            self._out.append(Declare(var, value))
        else:
            self._declared.append(Declare(var, None))
            if value is not None:
                self._out.append(Assign(var, "=", value))
        return var

    # ------------------------------------------------------------------------------ statements

    def _statement(self, stmt: Stmt) -> None:
        match stmt:
            case Declare(_, value):
                new = None if value is None else self._value(value)
                self._out.append(replace(stmt, value=new))
            case Assign(target, op, value):
                place = self._target(target, stmt)
                new = self._value(value) if op == "=" else self._argument(value)
                self._out.append(replace(stmt, target=place, value=new))
            case AtomicAdd(target, value):
                place = self._target(target, stmt)
                self._out.append(replace(stmt, target=place, value=self._argument(value)))
            case Zero(target) | Pop(_, target):
                self._out.append(replace(stmt, target=self._target(target, stmt)))
            case Push(_, value):
                self._out.append(replace(stmt, value=self._argument(value)))
            case If(cond, then, other):
                new = self._operand(cond)
                self._out.append(
                    replace(stmt, cond=new, then=self._block(then), other=self._block(other))
                )
            case For(_, extent, body):
                new = self._operand(extent)
                self._out.append(replace(stmt, extent=new, body=self._block(body)))
            case While():
                self._while(stmt)
            case CallStmt(call):
                self._out.append(replace(stmt, call=self._called(call, stmt)))
            case Return(values):
                self._out.append(replace(stmt, values=tuple(map(self._argument, values))))
            case Unpack(_, call):
                self._out.append(replace(stmt, call=self._called(call, None)))
            case IndexAssign():
                raise AssertionError("a statement of tensor functions")
            case _:
                assert_never(stmt)

    def _while(self, stmt: While) -> None:
        body = self._block(stmt.body)
        before = len(self._out)
        self._depth += 1  # the temporaries of the condition get values again and again
        cond = self._operand(stmt.cond)
        self._depth -= 1
        self._out.append(replace(stmt, cond=cond, body=(*body, *self._out[before:])))

    def _target(self, target: Expr, stmt: Stmt) -> Place:
        """A place whose subscripts are small and not changed by the statement itself."""
        assert isinstance(target, Var | Index | Member)
        if isinstance(target, Var):
            return target
        base = self._target(target.base, stmt)
        if isinstance(target, Member):
            return replace(target, base=base)
        changed = [path_of(place) for place in effects(stmt, self._functions).writes]
        subs: list[Expr] = []
        for subscript in target.subscripts:
            new = self._operand(subscript)
            read = [path_of(node) for node in walk(new) if is_place(node)]
            if any(overlap(own, path) for own in read for path in changed):
                new = self._temporary(new, INT, "_at")
            subs.append(new)
        return replace(target, base=base, subscripts=tuple(subs))

    def _called(self, call: Call, stmt: Stmt | None) -> Call:
        """A call with simple arguments."""
        args: list[Expr] = []
        for arg, param in zip(call.args, self._functions[call.function].params, strict=True):
            if param.mode == "Out":
                assert stmt is not None, "calls with Out arguments are statements"
                args.append(self._target(arg, stmt))
            else:
                args.append(self._by_value(arg, stmt))
        return replace(call, args=tuple(args))

    def _by_value(self, arg: Expr, stmt: Stmt | None) -> Expr:
        new = self._argument(arg)
        if isinstance(new, MakeStruct):
            return self._temporary(new, new.type)
        if is_place(new) and stmt is not None and isinstance(new, Index | Member):
            return self._target(new, stmt)
        return new

    # ----------------------------------------------------------------------------- expressions

    def _value(self, value: Expr) -> Expr:
        """The right side of ``=``: what may stand alone stays there."""
        return self._called(value, None) if isinstance(value, Call) else self._argument(value)

    def _argument(self, value: Expr) -> Expr:
        """A value without calls."""
        if isinstance(value, MakeStruct):
            args = tuple(
                self._temporary(self._argument(a), a.type)
                if isinstance(a.type, StructType) and not is_place(a)
                else self._operand(a)
                for a in value.args
            )
            return replace(value, args=args)
        return self._operand(value)

    def _operand(self, expr: Expr) -> Expr:
        """An expression without calls whose nonlinear operations have small operands."""
        match expr:
            case Call():
                return self._temporary(self._called(expr, None), expr.type)
            case Select(cond, then, other):
                return self._select(expr, cond, then, other)
            case Binary("and" | "or" as op, left, right):
                return self._logical(expr, op, left, right)
            case MakeStruct():
                return self._temporary(self._argument(expr), expr.type)
            case Binary("+" | "-") | Unary() | NoDiff() | Index() | Member():
                return map_children(expr, self._operand)
            case Binary() | Builtin():
                return map_children(expr, self._small)
            case _:
                return expr

    def _small(self, expr: Expr) -> Expr:
        new = self._operand(expr)
        if isinstance(new.type, FloatType) and size(new) > LARGEST_OPERAND:
            return self._temporary(new, FLOAT)
        return new

    def _select(self, expr: Select, cond: Expr, then: Expr, other: Expr) -> Expr:
        cond = self._operand(cond)
        chosen = self._branches(then, other)
        if chosen is None:
            return replace(expr, cond=cond)
        result = self._temporary(None, expr.type)
        branches = [(*code, Assign(result, "=", value)) for code, value in chosen]
        self._out.append(If(cond, branches[0], branches[1], expr.span))
        return result

    def _logical(self, expr: Binary, op: str, left: Expr, right: Expr) -> Expr:
        left = self._operand(left)
        chosen = self._branches(right)
        if chosen is None:
            return replace(expr, left=left)
        ((code, value),) = chosen
        result = self._temporary(b.binary("!=", left, b.flt(0)), INT)
        inner = (*code, Assign(result, "=", b.binary("!=", value, b.flt(0))))
        cond = result if op == "and" else b.unary("not", result)
        self._out.append(If(cond, inner, (), expr.span))
        return result

    def _branches(self, *exprs: Expr) -> list[tuple[tuple[Stmt, ...], Expr]] | None:
        """Code and value of what is evaluated under a condition; None when there is no code."""
        if not any(self._is_large(expr) for expr in exprs):
            return None
        done: list[tuple[tuple[Stmt, ...], Expr]] = []
        for expr in exprs:
            outer, self._out = self._out, []
            self._depth += 1
            value = self._operand(expr)
            self._depth -= 1
            done.append((tuple(self._out), value))
            self._out = outer
        return done

    def _is_large(self, expr: Expr) -> bool:
        """Whether a part of the expression is to become a temporary."""
        if isinstance(expr, Call | MakeStruct):
            return True
        parts = children(expr)
        match expr:
            case Binary("+" | "-"):
                pass
            case Binary() | Builtin():
                if any(p.type == FLOAT and size(p) > LARGEST_OPERAND for p in parts):
                    return True
        return any(map(self._is_large, parts))
