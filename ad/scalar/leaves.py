"""The adjoint of each statement without nested blocks.

Every adjoint reads the adjoints of what the statement wrote, sets them to zero, and adds to the
adjoints of what the statement read, in an order that holds even when both are one place. The code
runs in the state before the statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from loma import errors
from loma.ad.activity import reaches
from loma.ad.contributions import Contribution, contributions
from loma.ad.scalar.context import Context, Variant
from loma.ad.scalar.paths import Path, overlap, path_of
from loma.ad.scalar.single_writes import overwrites_untouched
from loma.core import builder as b
from loma.core.aliases import meetings
from loma.core.effects import effects
from loma.core.ir import (
    ArrayType, Assign, AtomicAdd, Call, CallStmt, Declare, Expr, FloatType, For, If, Index,
    IndexAssign, IntConst, IntType, MakeStruct, Member, NoDiff, Param, Place, Pop, Push, Return,
    StackType, Stmt, StructType, TupleType, Unpack, Var, While, Zero,
)  # fmt: skip
from loma.core.walk import is_place, root, walk


class Leaves:
    """Makes the adjoints of statements; ``seeds`` are the adjoints of the function's results."""

    def __init__(self, context: Context, seeds: tuple[Var, ...]) -> None:
        self._ctx = context
        self._seeds = seeds

    def adjoint(self, stmt: Stmt) -> list[Stmt]:
        own = effects(stmt, self._ctx.functions)
        written = {root(place) for place in (*own.declares, *own.stacks, *own.writes)}
        if not isinstance(stmt, Return) and not any(map(self._ctx.is_active, written)):
            return []
        match stmt:
            case Declare(target, value):
                return [] if value is None else self._assigned(target, value, fresh=True)
            case Assign(target, "=", value):
                return self._assigned(target, value)
            case Assign(target, _, value) | AtomicAdd(target, value):
                return self._added(target, value)
            case Zero(target):
                return self._ctx.clear(self._ctx.adjoint(target))
            case Push(stack, value):
                return self._push(stack, value)
            case Pop(stack, target):
                return self._pop(stack, target)
            case CallStmt(call):
                return self._call(call, ())
            case Unpack(targets, call):
                return self._call(call, targets)
            case Return(values):
                out: list[Stmt] = []
                for value, seed in zip(values, self._seeds, strict=True):
                    if not isinstance(seed.type, IntType):
                        out += self._spread(value, seed)
                return out
            case If() | For() | While() | IndexAssign():
                raise AssertionError(stmt)
            case _:
                assert_never(stmt)

    # ------------------------------------------------------------------------------ assignments

    def _assigned(self, target: Place, value: Expr, fresh: bool = False) -> list[Stmt]:
        """``target = value``; a ``fresh`` target was never used before."""
        place = self._ctx.adjoint(target)
        if isinstance(target.type, IntType):
            return []
        if isinstance(value, Call):
            return self._call(value, (target,))
        clear = [] if fresh else self._ctx.clear(place)
        if not self._meets(value, target):
            return self._spread(value, place) + clear
        # What is read may be what is written: the adjoint is taken away first.
        seed = self._ctx.seed(target.type)
        out: list[Stmt] = [Assign(seed, "=", place)]
        parts = self._parts(target, value, seed)
        if parts is None:
            return out + clear + self._spread(value, seed)
        own: dict[Place, Expr] = {}
        others: list[Stmt] = []
        for _, part, g in parts:
            for one in self._contributions(part, g):
                read, amount = one.place, one.selected
                if any(read == leaf for leaf, _, _ in parts):
                    own[read] = b.add(own[read], amount) if read in own else amount
                else:
                    others += self._contribute(one)
        new: list[Stmt] = []
        for leaf, _, g in parts:
            amount = own.get(leaf, b.flt(0))
            if amount != g:  # x = x + e: the adjoint of x stays
                new.append(Assign(self._ctx.adjoint(leaf), "=", amount))
        return [*out, *new, *others] if new or others else []

    def _parts(
        self, target: Place, value: Expr, seed: Place
    ) -> list[tuple[Place, Expr, Place]] | None:
        """The floats of an assignment, each with its value and its adjoint; None where they are
        not written out."""
        match target.type, value:
            case IntType(), _:
                return []
            case FloatType(), _:
                return [(target, value, seed)]
            case StructType(name), MakeStruct(args):
                found: list[tuple[Place, Expr, Place]] = []
                for arg, (member, type_) in zip(args, self._ctx.structs[name].members, strict=True):
                    part, own = Member(target, member, type_), Member(seed, member, type_)
                    inner = self._parts(part, arg, own)
                    if inner is None:
                        return None
                    found += inner
                return found
            case _:
                return None

    def _added(self, target: Place, value: Expr) -> list[Stmt]:
        """``target += value``, or the same as an atomic addition."""
        if isinstance(target.type, IntType):
            return []
        place = self._ctx.adjoint(target)
        if not self._meets(value, target):
            return self._spread(value, place)
        seed = self._ctx.seed(target.type)
        spread = self._spread(value, seed)
        return [Assign(seed, "=", place), *spread] if spread else []

    def _meets(self, value: Expr, target: Place) -> bool:
        """Whether the value may be computed from the target itself."""
        path = path_of(target)
        return any(
            overlap(path_of(node), path) for node in walk(value)
            if is_place(node) and not isinstance(node.type, IntType)
        )  # fmt: skip

    def _spread(self, value: Expr, seed: Place) -> list[Stmt]:
        """Adds to the adjoints of what a value was computed from; ``seed`` is its adjoint."""
        out: list[Stmt] = []
        match value:
            case NoDiff():
                return []
            case MakeStruct(args, StructType(name)):
                members = self._ctx.structs[name].members
                for arg, (member, type_) in zip(args, members, strict=True):
                    out += self._spread(arg, Member(seed, member, type_))
                return out
            case Var() | Index() | Member() if not isinstance(value.type, FloatType | IntType):
                return self._add(value, seed) if self._ctx.is_active(root(value)) else []
            case _:
                for one in self._contributions(value, seed):
                    out += self._contribute(one)
                return out

    def _contributions(self, value: Expr, seed: Expr) -> list[Contribution]:
        return contributions(value, seed, self._ctx.is_active, _no_calls)

    def _contribute(self, one: Contribution) -> list[Stmt]:
        added = self._add(one.place, one.value)
        return added if one.guard is None else [If(one.guard, tuple(added), ())]

    def _add(self, read: Place, amount: Expr) -> list[Stmt]:
        return self._ctx.accumulate(self._ctx.adjoint(read), amount, self._ctx.is_shared(read))

    # ----------------------------------------------------------------------------------- stacks

    def _push(self, stack: Var, value: Expr) -> list[Stmt]:
        tape = self._ctx.adjoint_of(stack.name)
        assert isinstance(stack.type, StackType)
        seed = self._ctx.seed(stack.type.element)
        return [Pop(tape, seed), *self._spread(value, seed)]

    def _pop(self, stack: Var, target: Place) -> list[Stmt]:
        active = self._ctx.is_active(root(target)) and not isinstance(target.type, IntType)
        out: list[Stmt] = []
        if self._ctx.is_active(stack.name):
            g = self._ctx.adjoint(target) if active else self._ctx.zero(target.type)
            out.append(Push(self._ctx.adjoint_of(stack.name), g))
        return out + self._ctx.clear(self._ctx.adjoint(target)) if active else out

    # ------------------------------------------------------------------------------------ calls

    def _call(self, call: Call, targets: tuple[Place, ...]) -> list[Stmt]:
        """The adjoint of a call, with the places of its results unless they are dropped."""
        callee = self._ctx.functions[call.function]
        modes = [param.mode for param in callee.params]
        places = [a for a in call.args if is_place(a) and not isinstance(a.type, IntType)]
        shared = any(self._ctx.is_shared(p) and self._ctx.is_active(root(p)) for p in places)
        fresh = frozenset(
            k for k, arg in enumerate(call.args)
            if modes[k] == "Out" and self._ctx.is_unbounded(arg.type) and self._is_fresh(root(arg))
        )  # fmt: skip
        derivative = self._ctx.make_callee(call.function, Variant(shared, fresh))
        before: list[Stmt] = []
        after: list[Stmt] = []
        args: list[Expr] = []
        direct = self._direct(call, modes)
        results: list[Expr] = []
        for target in targets:
            if isinstance(target.type, IntType) or not self._ctx.is_active(root(target)):
                results.append(self._ctx.zero(target.type))
                continue
            place = self._ctx.adjoint(target)
            if any(overlap(path_of(p), path_of(target)) for p in places):
                one = len(targets) == 1
                type_ = target.type
                seed = self._ctx.seed(type_) if one else self._ctx.declare("_g", type_)
                before += [Assign(seed, "=", place), *self._ctx.clear(place)]
                results.append(seed)
            else:
                results.append(place)
                after += self._ctx.clear(place)
        for k, arg in enumerate(call.args):
            if k in derivative.values:
                args.append(self._value(arg, k in derivative.needed))
            if k not in derivative.adjoints:
                continue
            if derivative.function.params[len(args)].mode == "In":
                args.append(self._adjoint_value(arg))
                continue
            if k in direct:
                assert isinstance(arg, Var | Index | Member)
                place = self._ctx.adjoint(arg)
                if self._is_overwritten(call, k):
                    # The adjoint before the call is zero, and where it stands may be read only.
                    extra = self._ctx.declare("_d_arg", arg.type)
                    before.append(Assign(extra, "=", place))
                    after += self._ctx.clear(place)
                    place = extra
                args.append(place)
                continue
            adjoint, first, last = self._extra_adjoint(arg, callee.params[k])
            args.append(adjoint)
            before += first
            after += last
        args += results or [self._ctx.zero(type_) for type_ in callee.results]
        made = Call(derivative.function.name, tuple(args), TupleType(()), call.span)
        return [*before, CallStmt(made, call.span), *after]

    def _value(self, arg: Expr, needed: bool) -> Expr:
        """The value of an argument for the derivative, any where it does not count."""
        if needed or self._ctx.is_unbounded(arg.type):
            return arg
        match arg.type:
            case FloatType():
                return b.flt(0)
            case IntType():
                return IntConst(0)
            case _:
                return self._ctx.zero(arg.type)

    def _adjoint_value(self, arg: Expr) -> Expr:
        if self._ctx.is_active(root(arg)) or self._ctx.is_unbounded(arg.type):
            return self._ctx.adjoint(arg)
        return self._ctx.zero(arg.type)

    def _is_overwritten(self, call: Call, position: int) -> bool:
        """Whether a call assigns a part of an array whose adjoint is read only."""
        arg = call.args[position]
        return (
            root(arg) in self._ctx.read_only
            and not self._ctx.is_unbounded(arg.type)
            and self._ctx.modes(call.function)[position] == "whole"
        )

    def _is_fresh(self, name: str) -> bool:
        """Whether an array whose adjoint is read only is passed to a call before any other use."""
        return name in self._ctx.read_only and overwrites_untouched(
            self._ctx.normal.function, name, self._ctx.functions, self._ctx.modes
        )

    def _direct(self, call: Call, modes: Sequence[str]) -> set[int]:
        """The arguments whose own adjoints the derivative adds to; no two of them overlap.

        What the call writes to comes first, then arrays whose adjoint cannot be anywhere else.
        """
        found: dict[int, Path] = {}
        params = self._ctx.functions[call.function].params
        order = sorted(
            range(len(modes)),
            key=lambda k: (modes[k] != "Out", not self._ctx.is_unbounded(call.args[k].type), k),
        )
        pairs = meetings(call, self._ctx.functions[call.function], self._ctx.structs)
        checked = {(first, second) for first, second, _ in pairs}
        for k in order:
            arg = call.args[k]
            if not is_place(arg) or not (
                reaches(arg, self._ctx.is_active) or self._ctx.is_unbounded(arg.type)
            ):
                continue
            if IntType() in (arg.type, params[k].type):
                continue
            path = path_of(arg)
            # Arguments that the program checks to be apart when it runs are apart here too.
            meets = [
                other for j, other in found.items() if overlap(path, other)
                and (min(j, k), max(j, k)) not in checked
            ]  # fmt: skip
            if modes[k] == "Out" or not meets:
                found[k] = path
            elif self._ctx.is_unbounded(arg.type):
                raise errors.NotDifferentiable(
                    f"an array of unknown length is passed twice to '{call.function}'",
                    arg.span if arg.span.line else call.span,
                    hint="give the array a size in the function's head: Array[float, n]",
                )
        return set(found)

    def _extra_adjoint(self, arg: Expr, param: Param) -> tuple[Place, list[Stmt], list[Stmt]]:
        """A variable for an argument's adjoint, and code before and after the call."""
        # A number may be converted by the call; of an array only the argument knows the length.
        type_ = arg.type if isinstance(arg.type, ArrayType) else param.type
        extra = self._ctx.declare("_d_arg", type_)
        if isinstance(param.type, IntType) or not reaches(arg, self._ctx.is_active):
            return extra, self._ctx.clear(extra) if param.mode == "Out" else [], []
        return extra, self._ctx.clear(extra), self._spread(arg, extra)


def _no_calls(function: str, position: int) -> str:
    raise AssertionError("in normal form no expression calls a function")
