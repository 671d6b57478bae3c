"""Forward mode on the scalar layer: a function on differentials, derivatives beside values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import assert_never

from loma import errors
from loma.ad.scalar.duals import Dual, Dualiser, Emitter
from loma.core import builder as b
from loma.core.differentials import differential, forward_signature
from loma.core.ir import (
    FLOAT, INT, Assign, AtomicAdd, CallStmt, Declare, For, Function, If, IndexAssign, Member, Place,
    Pop, Push, Return, StackType, Stmt, Struct, TupleType, Unpack, Var, While, Zero, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.walk import calls


def forward_derivative(
    primal: Function,
    name: str,
    structs: Mapping[str, Struct],
    derivative_of: Callable[[str], Function],
) -> Function:
    """The forward derivative of a scalar function, by the convention of ``fwd_diff``.

    ``structs`` has the structs that the primal's values consist of; ``derivative_of(g)`` is the
    forward derivative of a function that the primal calls. Raises NotDifferentiable for what
    belongs to the tensor layer.
    """
    params, results = forward_signature(primal)
    emitter = Emitter(Names(names_of(primal) | {call.function for call in calls(primal.body)}))
    _Forward(primal, emitter, Dualiser(emitter, structs, derivative_of)).block(primal.body)
    doc = f"Forward derivative of {primal.name}: a value and its derivative for each float."
    return Function(name, params, results, emitter.body, primal.simd, doc, primal.span)


class _Forward:
    """Emits the derivative's statements for those of the primal."""

    def __init__(self, primal: Function, emitter: Emitter, dualiser: Dualiser) -> None:
        self._primal = primal
        self._out = emitter
        self._ad = dualiser

    def block(self, body: tuple[Stmt, ...]) -> None:
        for stmt in body:
            self.statement(stmt)

    def _nested(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        with self._out.block() as block:
            self.block(body)
        return tuple(block)

    def statement(self, stmt: Stmt) -> None:
        ad, emit = self._ad, self._out.emit
        match stmt:
            case Declare(target, value):
                new = None if value is None else ad.whole(value, target.type)
                var = replace(target, type=differential(target.type))
                emit(replace(stmt, target=var, value=new))
            case Assign():
                self._assign(stmt)
            case AtomicAdd(target, value) if target.type == INT:
                emit(replace(stmt, target=ad.place(target), value=ad.value(value)))
            case AtomicAdd(target, value):
                self._added(stmt, ad.place(target), ad.dual(value))
            case Zero(target):
                emit(replace(stmt, target=ad.place(target)))
            case Push(stack, value):
                assert isinstance(stack.type, StackType)
                pushed = ad.whole(value, stack.type.element)
                emit(replace(stmt, stack=_stack(stack), value=pushed))
            case Pop(stack, target):
                emit(replace(stmt, stack=_stack(stack), target=ad.place(target)))
            case If(cond, then, other):
                test = ad.value(cond)
                emit(replace(stmt, cond=test, then=self._nested(then), other=self._nested(other)))
            case For(_, extent, body):
                count = ad.value(extent)
                emit(replace(stmt, extent=count, body=self._nested(body)))
            case While():
                self._while(stmt)
            case CallStmt(call):
                emit(replace(stmt, call=ad.call(call)))
            case Unpack():
                self._unpack(stmt)
            case Return(values):
                types = self._primal.results
                found = tuple(ad.whole(v, t) for v, t in zip(values, types, strict=True))
                emit(replace(stmt, values=found))
            case IndexAssign():
                raise errors.NotDifferentiable(
                    "an index statement has no forward derivative", stmt.span
                )
            case _:
                assert_never(stmt)

    def _assign(self, stmt: Assign) -> None:
        ad, target = self._ad, stmt.target
        if stmt.op == "=" or target.type == INT:
            value = ad.whole(stmt.value, target.type)
            self._out.emit(replace(stmt, target=ad.place(target), value=value))
            return
        dual = ad.dual(stmt.value)
        self._added(stmt, ad.place(target), dual)

    def _added(self, stmt: Assign | AtomicAdd, place: Place, dual: Dual) -> None:
        """Values read no derivatives, so the derivative goes first."""
        for name, term in (("dval", dual.dval), ("val", dual.val)):
            if name == "val" or not dual.is_constant:
                part = Member(place, name, FLOAT, stmt.target.span)
                self._out.emit(replace(stmt, target=part, value=term))

    def _while(self, stmt: While) -> None:
        with self._out.block() as before:
            cond = self._ad.value(stmt.cond)
        body = self._nested(stmt.body)
        # What the condition needs is computed before each time that it is tested.
        self._out.emit(*before)
        self._out.emit(replace(stmt, cond=cond, body=(*body, *before)))

    def _unpack(self, stmt: Unpack) -> None:
        call = self._ad.call(stmt.call)
        assert isinstance(stmt.call.type, TupleType)
        targets: list[Var] = []
        converted: list[Stmt] = []
        for target, type_ in zip(stmt.targets, stmt.call.type.items, strict=True):
            place = replace(target, type=differential(target.type))
            if target.type == type_ or not b.is_scalar(type_):
                targets.append(place)
                continue
            result = self._out.temporary(differential(type_))
            targets.append(result)
            if type_ == INT:
                converted.append(Assign(Member(place, "val", FLOAT), "=", result))
                converted.append(Assign(Member(place, "dval", FLOAT), "=", b.flt(0)))
            else:
                converted.append(Assign(place, "=", Member(result, "val", FLOAT)))
        self._out.emit(replace(stmt, targets=tuple(targets), call=call), *converted)


def _stack(stack: Var) -> Var:
    return replace(stack, type=differential(stack.type))
