"""Forward mode on tensor functions: every variable that carries a derivative is followed by a
variable that holds its tangent.

No tape is needed: each statement of the function is accompanied by one that computes the tangent of
what it writes. That of an index statement is an index statement over the same axes. It goes first
where the statement may read what it writes, since values never read tangents.

A call of a tensor function becomes a call of that function's own forward derivative
(:mod:`loma.ad.tensor.forward_derivatives`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import assert_never

from loma.ad.activity import active_variables, carries_derivative, zeros_like
from loma.ad.contributions import PartialName
from loma.ad.operator_tangents import operator_tangent
from loma.ad.tangents import ZERO, Tangents, is_zero
from loma.ad.tensor.index_statements import first_extreme, is_extreme, recorded
from loma.ad.tensor.normalise import Normal
from loma.ad.tensor.products import Scope, product_of_others
from loma.ad.tensor.shifts import shifts
from loma.core import builder as b
from loma.core.axes import index_statement
from loma.core.distinct import checked_elsewhere
from loma.core.ir import (
    FLOAT, INT, Assign, AtomicAdd, Binary, Call, CallStmt, Declare, Expr, For, Function, If, Index,
    IndexAssign, Op, Param, Place, Pop, Push, Reduce, Return, Stmt, TensorType, TupleType, Type,
    Unpack, Var, While, Zero, ZeroPad, is_tensor_function, replace,
)  # fmt: skip
from loma.core.sizes import size_variables
from loma.core.walk import at, free_variables, root, substitute

_VALUE = " y"  # stands for an operator's result in its tangent; no name of a program


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """The forward derivative of a function that is called, with tangents of the ``active``
    arguments; ``varied`` says which results come with a tangent."""

    callee: Function
    name: str
    active: frozenset[int]
    varied: tuple[bool, ...]


class Forward:
    """Writes the forward derivative of a function in normal form."""

    def __init__(
        self,
        normal: Normal,
        called: dict[str, Function],
        active: frozenset[int],
        zero: Collection[str],
        partial_name: PartialName,
        plan: Callable[[str, frozenset[int]], ForwardPlan],
    ) -> None:
        """``zero`` are variables that never vary, as an earlier attempt has shown."""
        self._normal = normal
        self._plan = plan
        self._tensor_functions = {f.name for f in called.values() if is_tensor_function(f)}
        self._called = called
        function = normal.function
        last = function.body[-1] if function.body else None
        self._returned = last.values if isinstance(last, Return) else ()
        inputs = {function.params[k].name for k in active}
        outputs = {p.name for p in function.params if p.mode == "Out"} & inputs
        outputs |= {root(v) for v in self._returned if carries_derivative(v.type)}
        self._tangents: dict[str, Var] = {}
        self._params: list[Param] = []
        for k, param in enumerate(function.params):
            self._params.append(param)
            if k in active:
                self._params.append(replace(param, name=self._add(param.name, param.type).name))
        still = shifts(function)
        found = active_variables(function, normal.types, inputs, outputs, called, still)
        for name in sorted(found - inputs - set(zero)):
            self._add(name, normal.types[name])
        unused = inputs - found - outputs  # they are passed, but nothing depends on them
        self._known = {n: v for n, v in self._tangents.items() if n not in unused}
        self.varied = tuple(
            carries_derivative(v.type) and root(v) in self._known for v in self._returned
        )
        self._nonzero = set(inputs)
        self._ad = Tangents(self._place, partial_name)
        self._is_size = set(size_variables(function)).__contains__
        self._depth = 0
        self._hoisted: list[Stmt] = []  # declarations that stand before the outermost statement
        self._declared = {self._tangents[name].name for name in inputs}

    def _add(self, name: str, type_: Type) -> Var:
        var = Var(self._normal.names.fresh(f"_t_{name.lstrip('_')}"), type_)
        self._tangents[name] = var
        return var

    @property
    def zero(self) -> set[str]:
        """Variables whose tangents turned out to be zero all the time."""
        return self._known.keys() - self._nonzero

    def function(self, every: bool) -> Function:
        """The derivative; its name and what else is known of it are the caller's."""
        function = self._normal.function
        body = function.body[:-1] if self._returned else function.body
        out = self._block(body)
        results: list[Type] = []
        values: list[Expr] = []
        if every:
            self.varied = tuple(carries_derivative(type_) for type_ in function.results)
        for value, type_, varies in zip(self._returned, function.results, self.varied, strict=True):
            results += [type_, type_] if varies else [type_]
            values += [value, self._result(value, out)] if varies else [value]
        if self._returned:
            out.append(Return(tuple(values), function.body[-1].span))
        return replace(
            function, params=tuple(self._params), results=tuple(results), body=tuple(out)
        )

    def _result(self, value: Expr, out: list[Stmt]) -> Expr:
        """The tangent of what is returned, which may be zero."""
        tangent = self._ad.of(value)
        if not isinstance(value.type, TensorType) or not is_zero(tangent):
            return tangent
        zero = Var(self._normal.names.fresh("_t_result"), value.type)
        out.append(Declare(zero, zeros_like(value)))
        return zero

    def _place(self, place: Place) -> Place | None:
        if isinstance(place, Var):
            found = self._known.get(place.name)
            return None if found is None else replace(place, name=found.name)
        if isinstance(place, Index):
            assert isinstance(place.base, Var)
            base = self._place(place.base)
            return None if base is None else replace(place, base=base)
        return None

    # ------------------------------------------------------------------------------- statements

    def _block(self, body: tuple[Stmt, ...]) -> list[Stmt]:
        out: list[Stmt] = []
        for stmt in body:
            made = self._statement(stmt)
            if self._depth == 0:
                out += self._hoisted
                self._hoisted = []
            out += [at(new, stmt.span) for new in made]
        return out

    def _nested(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        self._depth += 1
        out = self._block(body)
        self._depth -= 1
        return tuple(out)

    def _temporary(self, type_: Type, wish: str) -> Var:
        var = Var(self._normal.names.fresh(wish), type_)
        self._hoisted.append(Declare(var, None))
        return var

    def _statement(self, stmt: Stmt) -> list[Stmt]:
        match stmt:
            case Declare(target, Call() as call) if call.function in self._tensor_functions:
                return self._call((target,), call, stmt)
            case Declare(target, value):
                return self._declare(stmt, target, value)
            case Assign(Var() as target, _, Call() as call) if (
                call.function in self._tensor_functions
            ):
                return self._call((target,), call, stmt)
            case Assign(Var() as target):
                return self._assign(stmt, target)
            case IndexAssign():
                return self._index_statement(stmt)
            case Unpack(targets, call):
                return self._call(targets, call, stmt)
            case CallStmt(call):
                plan, args = self._arguments(call)
                self._nonzero |= {
                    root(call.args[k]) for k in plan.active if plan.callee.params[k].mode == "Out"
                }
                return [replace(stmt, call=replace(call, function=plan.name, args=args))]
            case Zero(target):
                tangent = self._place(target)
                return [stmt] if tangent is None else [Zero(tangent), stmt]
            case If(_, then, other):
                return [replace(stmt, then=self._nested(then), other=self._nested(other))]
            case For(_, _, body) | While(_, _, body):
                return [replace(stmt, body=self._nested(body))]
            case Assign() | Push() | Pop() | AtomicAdd() | Return():
                raise AssertionError(f"not in normal form: {type(stmt).__name__}")
            case _:
                assert_never(stmt)

    def _declare(self, stmt: Declare, target: Var, value: Expr | None) -> list[Stmt]:
        tangent = self._known.get(target.name)
        if tangent is None:
            return [stmt]
        self._declared.add(tangent.name)
        found = None if value is None else self._tangent(value)
        if found is None or is_zero(found):
            return [stmt, Declare(tangent, zeros_like(target))]
        self._nonzero.add(target.name)
        found = substitute(found, {_VALUE: target})
        first = not isinstance(value, Op)  # reads the same as what it stands beside
        both: list[Stmt] = [Declare(tangent, found), stmt]
        return both if first else both[::-1]

    def _tangent(self, value: Expr) -> Expr:
        """The tangent of a whole value; an operator's may name the value by ``_VALUE``."""
        if not isinstance(value, Op):
            return self._ad.of(value)
        tangents = [None if is_zero(t) else t for t in map(self._ad.of, value.args)]
        found = operator_tangent(value, Var(_VALUE, value.type), tangents)
        return ZERO if found is None else found

    def _assign(self, stmt: Assign, target: Var) -> list[Stmt]:
        tangent = self._known.get(target.name)
        if tangent is None:
            return [stmt]
        found = self._tangent(stmt.value)
        if is_zero(found):
            return [stmt, *self._cleared(target)] if stmt.op == "=" else [stmt]
        self._nonzero.add(target.name)
        if _VALUE not in free_variables(found):
            return [Assign(tangent, stmt.op, found), stmt]
        reads = free_variables(stmt.value) | free_variables(found)
        if stmt.op == "=" and not reads & {target.name, tangent.name}:
            return [stmt, Assign(tangent, "=", substitute(found, {_VALUE: target}))]
        value = self._temporary(stmt.value.type, "_v")
        found = substitute(found, {_VALUE: value})
        return [Assign(value, "=", stmt.value), Assign(tangent, stmt.op, found),
                replace(stmt, value=value)]  # fmt: skip

    def _cleared(self, target: Var) -> list[Stmt]:
        """Sets the tangent of a variable, which has its new value, to zero."""
        tangent = self._known[target.name]
        zeros = zeros_like(target)
        if tangent.name not in self._declared and self._depth == 0:
            self._declared.add(tangent.name)
            return [Declare(tangent, zeros)]
        return [Zero(tangent) if zeros is None else Assign(tangent, "=", zeros)]

    def _index_statement(self, stmt: IndexAssign) -> list[Stmt]:
        place = self._place(stmt.target)
        if place is None:
            return [stmt]
        assert isinstance(place, Var | Index)
        before: list[Stmt] = []
        found = self._reduced(stmt, before) if isinstance(stmt.value, Reduce) else None
        value = self._ad.of(stmt.value) if found is None else found
        if not is_zero(value):
            self._nonzero.add(root(stmt.target))
        elif stmt.op == "+=":
            return [stmt]
        reads_itself = root(stmt.target) in free_variables(stmt.value)
        parts = [value]
        if isinstance(place, Index) and _is_product(stmt.value) and not reads_itself:
            parts = _products(value)
        for k, part in enumerate(parts):
            op = stmt.op if k == 0 else "+="
            made = index_statement(place, op, part, stmt.axes, (), self._is_size)
            before.append(checked_elsewhere(made))
        return [*before, stmt]

    def _reduced(self, stmt: IndexAssign, before: list[Stmt]) -> Expr:
        """The tangent of a reduction; statements that it needs go into ``before``."""
        value = stmt.value
        assert isinstance(value, Reduce)
        body = self._ad.of(value.body)
        if is_zero(body):
            return ZERO
        match value.kind:
            case "sum":
                pass
            case "prod":
                body = b.mul(body, product_of_others(value, stmt.axes, self._scope(), before))
                names = {axis.name for axis in stmt.axes}
                if any(free_variables(axis.extent) & names for axis in value.axes):
                    return self._added_up(stmt, value, body, before)
            case "max" | "min":
                record = first_extreme(stmt, self._temporary)
                assert isinstance(record, IndexAssign)
                before.append(record)
                first = recorded(record.element.tensor, stmt.axes)
                body = b.select(is_extreme(value, first), body, ZERO)
            case _:
                return ZERO
        return replace(value, kind="sum", body=body)

    def _scope(self) -> Scope:
        fixed = self._normal.fixed_ints()
        return Scope(self._normal.names, self._temporary, fixed, self._is_size, self._depth > 0)

    def _added_up(self, stmt: IndexAssign, value: Reduce, body: Expr, before: list[Stmt]) -> Expr:
        """The sum of ``body`` over a reduction's points, by statements: as a reduction with another
        one inside, whose ranges depend on the statement's indices, it had no derivative."""
        total = self._temporary(TensorType(tuple(axis.extent for axis in stmt.axes)), "_t_r")
        place = Index(total, tuple(Var(axis.name, INT) for axis in stmt.axes), FLOAT)
        own = {axis.name for axis in value.axes}
        axes = (*stmt.axes, *value.axes)
        added = index_statement(place, "+=", body, axes, own, self._is_size)
        before += [Zero(total), added]
        return place

    # ------------------------------------------------------------------------------------ calls

    def _arguments(self, call: Call) -> tuple[ForwardPlan, tuple[Expr, ...]]:
        """The forward derivative that a call needs, and its arguments."""
        params = self._called[call.function].params
        tangents = {
            k: self._ad.of(arg)
            for k, (arg, param) in enumerate(zip(call.args, params, strict=True))
            if carries_derivative(param.type)
        }
        plan = self._plan(call.function, frozenset(k for k in tangents if not is_zero(tangents[k])))
        args: list[Expr] = []
        for k, arg in enumerate(call.args):
            args += [arg, tangents[k]] if k in plan.active else [arg]
        return plan, tuple(args)

    def _call(self, targets: tuple[Var, ...], call: Call, stmt: Stmt) -> list[Stmt]:
        plan, args = self._arguments(call)
        if not plan.active:
            return [stmt, *self._none(targets)]
        types = call.type.items if isinstance(call.type, TupleType) else (call.type,)
        new: list[Var] = []
        still: list[Var] = []
        expected: list[Type] = []
        for target, type_, varies in zip(targets, types, plan.varied, strict=True):
            new.append(target)
            expected.append(type_)
            if not varies:
                still.append(target)
                continue
            expected.append(type_)
            tangent = self._known.get(target.name)
            if tangent is None:  # nobody wants to know it
                tangent = Var(self._normal.names.fresh(f"_t_{target.name.lstrip('_')}"), type_)
                if self._depth > 0:
                    self._hoisted.append(Declare(tangent, None))
            self._nonzero.add(target.name)
            self._declared.add(tangent.name)
            new.append(tangent)
        if len(new) == 1:
            made = replace(call, function=plan.name, args=args)
            assert isinstance(stmt, Declare | Assign)
            return [replace(stmt, value=made), *self._none(targets)]
        made = Call(plan.name, args, TupleType(tuple(expected)), call.span)
        return [Unpack(tuple(new), made), *self._none(tuple(still))]

    def _none(self, targets: tuple[Var, ...]) -> list[Stmt]:
        """For results whose tangents are always zero."""
        return [
            new for target in targets if target.name in self._known
            for new in self._cleared(target)
        ]  # fmt: skip


def _is_product(expr: Expr) -> bool:
    """Whether a value is a product of elements, whose sum may be a matrix product or a
    convolution."""
    match expr:
        case Index() | ZeroPad():
            return True
        case Reduce("sum", body):
            return _is_product(body)
        case Binary("*", left, right):
            return _is_product(left) and _is_product(right)
        case _:
            return False


def _products(value: Expr) -> list[Expr]:
    """The terms of a tangent, one statement each: each is a matrix product if the value is one."""
    match value:
        case Reduce("sum", body):
            return [replace(value, body=part) for part in _products(body)]
        case Binary("+", left, right):
            return [*_products(left), *_products(right)]
        case _:
            return [value]
