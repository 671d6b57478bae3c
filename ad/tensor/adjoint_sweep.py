"""The adjoint sweep of reverse mode: for each statement, last first, its adjoint."""

from __future__ import annotations

import functools

from loma.ad.activity import carries_derivative, reaches
from loma.ad.contributions import Contribution, contributions
from loma.ad.rules import op_adjoints
from loma.ad.tensor.forward_sweep import ForwardSweep
from loma.ad.tensor.gather import both, inside_tests
from loma.ad.tensor.index_statements import adjoint_place, adjoint_statements
from loma.ad.tensor.sweep import Env, Record, SweepContext
from loma.core import builder as b
from loma.core.ir import (
    Assign, Call, Declare, Expr, For, If, Index, IndexAssign, NoDiff, Op, Stmt, TensorType, Unpack,
    Var, While, Zero, is_tensor_function, replace,
)  # fmt: skip
from loma.core.effects import effects
from loma.core.walk import at, blocks, map_expressions, root


class AdjointSweep:
    """Turns the records of a forward sweep into adjoint statements."""

    def __init__(self, context: SweepContext, forward: ForwardSweep) -> None:
        self._ctx = context
        self._forward = forward

    def block(self, records: list[Record]) -> list[Stmt]:
        out: list[Stmt] = []
        for record in reversed(records):
            made = self._statement(record)
            if not isinstance(record.stmt, If | For | While):
                made = [at(stmt, record.stmt.span) for stmt in made]
            out += made
        return out

    def _statement(self, record: Record) -> list[Stmt]:
        stmt, env = record.stmt, record.env
        own = effects(stmt)
        written = {root(place) for place in (*own.declares, *own.writes)}
        if not blocks(stmt) and not any(map(self._ctx.is_active, written)):
            return []
        match stmt:
            case Declare(target, value):
                return [] if value is None else self._value(target, "=", value, record)
            case Assign(Var() as target, op, value):
                return self._value(target, op, value, record)
            case IndexAssign():
                moved = map_expressions(stmt, lambda e: self._ctx.rename(e, env))
                assert isinstance(moved, IndexAssign)
                first = stmt.number in self._ctx.first
                return adjoint_statements(
                    moved, record.extreme, record.result[0], self._ctx, record.kept, first
                )
            case Unpack(targets, call):
                return self._call(targets, call, record)
            case Zero(Var() as target):
                return self._clear(target.name)
            case If(cond, then, other):
                return self._if(stmt, cond, (then, other), env)
            case For():
                return self._loop(stmt, record) if stmt.number in self._ctx.lengths else []
            case While():
                return self._while(stmt, record) if stmt.number in self._ctx.repeats else []
            case _:
                raise AssertionError(stmt)

    def _clear(self, name: str) -> list[Stmt]:
        var = self._ctx.adjoint(name)
        return [Zero(var) if isinstance(var.type, TensorType) else Assign(var, "=", b.flt(0))]

    def _value(self, target: Var, op: str, value: Expr, record: Record) -> list[Stmt]:
        """The adjoint of a whole assignment of an operator's value or a scalar expression."""
        if isinstance(value, Call) and is_tensor_function(self._ctx.function(value.function)):
            return self._call((target,), value, record)
        g = self._ctx.adjoint(target.name)
        renamed = self._ctx.rename(value, record.env)
        out: list[Stmt] = []
        own: Expr | None = None
        for one in self._amounts(renamed, g, record.result[0], out):
            if one.place == g:
                own = one.value if own is None else b.binary("+", own, one.value)
            else:
                out.append(self._accumulate(one))
        if own is not None:
            out.append(Assign(g, "=" if op == "=" else "+=", own))
        elif op == "=":
            out += self._clear(target.name)
        return out

    def _amounts(self, value: Expr, g: Var, result: Var, out: list[Stmt]) -> list[Contribution]:
        """What is to be added to which adjoint for a value with adjoint ``g``."""
        match value:
            case Op(_, args):
                if not reaches(value, self._ctx.is_active):
                    return []
                found: list[Contribution] = []
                for arg, adjoint in zip(args, op_adjoints(value, result, g), strict=True):
                    if adjoint is None or not reaches(arg, self._ctx.is_active):
                        continue
                    if isinstance(arg, Var):
                        found.append(Contribution(self._ctx.adjoint(arg.name), False, adjoint))
                    else:
                        seed = self._ctx.temporary(None, "_g")
                        out.append(Assign(seed, "=", adjoint))
                        found += self._scalar_amounts(arg, seed)
                return found
            case NoDiff():
                return []
            case Var(name) if isinstance(value.type, TensorType):
                active = self._ctx.is_active(name)
                return [Contribution(self._ctx.adjoint(name), False, g)] if active else []
            case _:
                return self._scalar_amounts(value, g)

    def _scalar_amounts(self, value: Expr, g: Var) -> list[Contribution]:
        found: list[Contribution] = []
        for one in contributions(value, g, self._ctx.is_active, self._ctx.partial_name):
            assert isinstance(one.place, Var | Index)
            found.append(replace(one, place=adjoint_place(one.place, self._ctx)))
        return found

    def _accumulate(self, one: Contribution) -> Stmt:
        added: Stmt
        guard = one.guard
        if isinstance(one.place, Index):
            added = IndexAssign(one.place, "+=", one.value, ())
            if one.padded:
                guard = functools.reduce(both, inside_tests(one.place), guard)
        else:
            added = Assign(one.place, "+=", one.value)
        return added if guard is None else If(guard, (added,), ())

    def _call(self, targets: tuple[Var, ...], call: Call, record: Record) -> list[Stmt]:
        plan = self._ctx.plan(call.function)
        args = tuple(self._ctx.rename(arg, record.env) for arg in call.args)
        wanted = {k for k in plan.pair.differentiable if reaches(args[k], self._ctx.is_active)}
        grads: list[Var] = []
        for target in targets:
            if carries_derivative(target.type) and not self._ctx.is_active(target.name):
                self._ctx.active.add(target.name)  # a result that nobody uses: its adjoint is zero
            grads.append(
                self._ctx.adjoint(target.name) if carries_derivative(target.type) else target
            )
        made = plan.backward_call(args, record.result, record.saved, tuple(grads), wanted)
        new = tuple(self._ctx.new("_d_arg", type_) for type_ in plan.adjoint_types(args))
        if self._ctx.depth > 0:
            self._ctx.sweeps.declarations += [Declare(var, None) for var in new]
        out = [self._ctx.called(new, made)]
        for target in targets:
            if carries_derivative(target.type):
                out += self._clear(target.name)
        for k, var in zip(plan.pair.differentiable, new, strict=True):
            if k not in wanted:
                continue
            arg = args[k]
            if isinstance(arg, Var):
                out.append(Assign(self._ctx.adjoint(arg.name), "+=", var))
            else:
                out += [self._accumulate(one) for one in self._scalar_amounts(arg, var)]
        return out

    def _if(
        self, stmt: If, cond: Expr, branches: tuple[tuple[Stmt, ...], ...], env: Env
    ) -> list[Stmt]:
        done: list[tuple[Stmt, ...]] = []
        self._ctx.depth += 1
        for branch in branches:
            own = dict(env)
            code, records = self._forward.block(branch, own)
            done.append((*code, *self._nested(branch, own, records)))
        self._ctx.depth -= 1
        return [replace(stmt, cond=self._ctx.rename(cond, env), then=done[0], other=done[1])]

    def _nested(self, body: tuple[Stmt, ...], env: Env, records: list[Record]) -> list[Stmt]:
        block = self._ctx.block(body, env)
        self._ctx.blocks.append(block)
        adjoint = self.block(records)
        self._ctx.blocks.pop()
        return block.starts + adjoint

    def _state(self, name: str) -> Var:
        """A variable for the value that another one had at the start of an iteration."""
        var = self._ctx.new_version(name, f"{name}_at")
        self._ctx.sweeps.declarations.append(Declare(var, None))
        return var

    def _loop(self, stmt: For, record: Record) -> list[Stmt]:
        env = dict(record.env)
        self._ctx.depth += 1
        self._ctx.loops.append(stmt)
        restores: list[Stmt] = []
        for name, tape in record.tape:
            var = self._state(name)
            restores.append(self._forward.tape_access(var, tape, stmt, store=False))
            self._ctx.sweeps.rows |= {var.name} if tape.name in self._ctx.rows else set()
            env[name] = var.name
        before: list[Stmt] = []
        for name, final, parts in record.undone:
            var = self._state(name)
            before.append(Assign(var, "=", Var(final, var.type)))
            restores += [
                self._forward.overwritten(own, var, tape, stmt, env, store=False)
                for own, tape in reversed(parts)
            ]
            env[name] = var.name
        env |= dict(record.settled)
        settled = self._ctx.settled
        self._ctx.settled |= dict(record.settled).keys()
        self._ctx.sums |= {number: (tape, stmt) for number, tape in record.sums}
        code, records = self._forward.block(stmt.body, env)
        adjoint = self._nested(stmt.body, env, records)
        self._ctx.loops.pop()
        self._ctx.settled = settled
        self._ctx.depth -= 1
        extent = self._ctx.rename(stmt.extent, record.env)
        body = (*restores, *code, *adjoint)
        return [*before, replace(stmt, extent=extent, body=body, backwards=not stmt.backwards)]

    def _while(self, stmt: While, record: Record) -> list[Stmt]:
        """Runs the loop again as a counted one, which has a tape, then that one's adjoint."""
        again = self._ctx.repeats[stmt.number]
        env = record.env | {self._ctx.base(var.name): var.name for var in record.result}
        self._ctx.depth += 1
        code, records = self._forward.block((again,), env)
        adjoint = self._nested((again,), env, records)
        self._ctx.depth -= 1
        return [*code, *adjoint]
