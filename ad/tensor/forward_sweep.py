"""The forward sweep of reverse mode: the program run with versions, tapes and saved values."""

from __future__ import annotations

from typing import assert_never

from loma import errors
from loma.ad.activity import carries_derivative
from loma.ad.tensor.index_statements import (
    adjoint_reads, first_extreme, is_looked_for_again, states_result,
)  # fmt: skip
from loma.ad.tensor.settled import Accesses
from loma.ad.tensor.sweep import Env, Record, SweepContext
from loma.ad.tensor.taped_sums import taped_sums
from loma.core import builder as b, sizes
from loma.core.axes import index_statement, target_axes
from loma.core.distinct import names_once
from loma.core.effects import assigned
from loma.core.ir import (
    FLOAT, INT, Assign, AtomicAdd, Axis, Call, CallStmt, Declare, Expr, FloatType, For, If, Index,
    IndexAssign, IntType, Pop, Push, Reduce, Return, Stmt, TensorType, TupleType, Unpack, Var,
    While, Zero, replace,
)  # fmt: skip
from loma.core.walk import (
    expressions, free_variables, map_blocks, map_expressions, root, statements, variables, walk,
)  # fmt: skip
from loma.errors.spans import Span
from loma.passes.liveness import Liveness, covers


class ForwardSweep:
    """Emits forward code and records each statement for its adjoint."""

    def __init__(self, context: SweepContext) -> None:
        self._ctx = context

    def _write(self, name: str, env: Env, value: Expr | None, out: list[Stmt], span: Span) -> Var:
        """Starts a new version of a variable with a value (None: zero); updates ``env``."""
        old = env.get(name, name)
        new = self._ctx.new_version(name, name)
        stmt: Stmt
        if value is None or self._ctx.depth > 0:
            self._ctx.declare(new, out)
            stmt = Zero(new, span) if value is None else Assign(new, "=", value, span)
        else:
            stmt = Declare(new, value, span)
        out.append(self._ctx.starting(stmt, (old, new.name)))
        env[name] = new.name
        return new

    def block(self, body: tuple[Stmt, ...], env: Env) -> tuple[list[Stmt], list[Record]]:
        code: list[Stmt] = []
        records: list[Record] = []
        for stmt in body:
            records.append(self._statement(stmt, env, code))
        return code, records

    def _statement(self, stmt: Stmt, env: Env, code: list[Stmt]) -> Record:
        before = dict(env)
        match stmt:
            case Declare(target, value):
                if isinstance(value, Call):
                    return self._call(stmt, (target,), value, env, code)
                renamed = None if value is None else self._ctx.rename(value, env)
                code.append(replace(stmt, value=renamed))
                env[target.name] = target.name
                return Record(stmt, before, (target,))
            case Assign(Var() as target, op, value):
                if isinstance(value, Call) and op == "=":
                    return self._call(stmt, (target,), value, env, code)
                result = self._ctx.rename(value, env)
                if op == "+=":
                    result = b.binary("+", self._ctx.version(target.name, env), result)
                new = self._write(target.name, env, result, code, stmt.span)
                return Record(stmt, before, (new,))
            case IndexAssign():
                return self._index(stmt, env, code)
            case Unpack(targets, call):
                return self._call(stmt, targets, call, env, code)
            case Zero(Var() as target):
                return Record(stmt, before, (self._write(target.name, env, None, code, stmt.span),))
            case If(cond):
                self._copy_modified(stmt, env, code)
                moved = self._in_place(stmt, env)
                assert isinstance(moved, If)
                code.append(replace(moved, cond=self._ctx.rename(cond, before)))
                return Record(stmt, before)
            case While():
                return self._while(stmt, env, code)
            case For() if stmt.number in self._ctx.lengths:
                return self._loop(stmt, env, code)
            case For(_, extent):
                self._copy_modified(stmt, env, code)
                moved = self._in_place(stmt, env)
                assert isinstance(moved, For)
                code.append(replace(moved, extent=self._ctx.rename(extent, before)))
                return Record(stmt, before)
            case Assign() | Zero() | Push() | Pop() | AtomicAdd() | CallStmt() | Return():
                raise errors.NotDifferentiable("this statement has no derivative here", stmt.span)
            case _:
                assert_never(stmt)

    def _index(self, stmt: IndexAssign, env: Env, code: list[Stmt]) -> Record:
        before = dict(env)
        target = stmt.target
        name = root(target)
        moved = map_expressions(stmt, lambda e: self._ctx.rename(e, before))
        assert isinstance(moved, IndexAssign)
        extreme = None
        stays = name not in self._ctx.settled or stmt.number in self._ctx.kept
        if self._ctx.is_active(name) and not (stays and is_looked_for_again(moved)):
            position = first_extreme(moved, self._ctx.temporary)
            if isinstance(position, IndexAssign):
                code.append(position)
                extreme = Var(root(position.target), position.target.base.type)  # type: ignore[union-attr]
        if name in self._ctx.settled:
            kept = stmt.number in self._ctx.kept
            return Record(stmt, before, (self._ctx.version(name, env),), extreme=extreme, kept=kept)
        if stmt.op == "=" and covers(stmt):
            # Every element is written here, so the new version needs no copy of the old one.
            new = self._ctx.new_version(name, name)
            result: Stmt = replace(moved, target=on_version(moved.target, new))
            if stmt.number in self._ctx.sums:
                result = self.tape_access(new, *self._ctx.sums[stmt.number], store=False)
            result = self._ctx.starting(result, (env.get(name, name), new.name))
            env[name] = new.name
            self._ctx.declare(new, code)
            code.append(result)
        else:
            new = self._write(name, env, self._ctx.version(name, env), code, stmt.span)
            code.append(replace(moved, target=on_version(moved.target, new)))
        return Record(stmt, before, (new,), extreme=extreme)

    def _call(
        self, stmt: Stmt, targets: tuple[Var, ...], call: Call, env: Env, code: list[Stmt]
    ) -> Record:
        before = dict(env)
        active = any(self._ctx.is_active(target.name) for target in targets)
        if not active and self._has_outs(call):
            for target in targets:
                version = self._ctx.version(target.name, env)
                self._write(target.name, env, version, code, stmt.span)
            code.append(self._in_place(stmt, env))
            return Record(stmt, before, tuple(self._ctx.version(t.name, env) for t in targets))
        call = replace(call, args=tuple(self._ctx.rename(arg, before) for arg in call.args))
        saved: tuple[Var, ...] = ()
        if active:
            plan = self._ctx.plan(call.function)
            saved = tuple(self._ctx.new("_saved", type_) for type_ in plan.saved_types(call.args))
            call = replace(call, function=plan.pair.forward)
        new: list[Var] = []
        for target in targets:
            var = target
            if target.name in env:
                var = self._ctx.new_version(target.name, target.name)
                if self._ctx.depth > 0:
                    self._ctx.sweeps.declarations.append(Declare(var, None))
            new.append(var)
        if self._ctx.depth > 0:
            self._ctx.sweeps.declarations += [Declare(var, None) for var in saved]
        made = self._ctx.called((*new, *saved), call, stmt.span)
        pairs = [(target.name, var.name) for target, var in zip(targets, new, strict=True)]
        versions = [(env[name], version) for name, version in pairs if name in env]
        code.append(self._ctx.starting(made, *versions))
        env |= pairs
        return Record(stmt, before, tuple(new), saved)

    def _copy_modified(self, stmt: If | For | While, env: Env, code: list[Stmt]) -> list[str]:
        """New versions, started as copies, of all that the statement's blocks modify."""
        changed = dict.fromkeys(assigned((stmt,)))
        names = [name for name in changed if name not in self._ctx.settled]
        for name in names:
            self._write(name, env, self._ctx.version(name, env), code, stmt.span)
        return names

    def _in_place(self, stmt: Stmt, env: Env) -> Stmt:
        left = map_blocks(stmt, self._without_settled)
        return self._with_outs(map_expressions(left, lambda e: self._ctx.rename(e, env)))

    def _without_settled(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """A block without the statements that write what is there already."""
        return tuple(
            map_blocks(stmt, self._without_settled)
            for stmt in body
            if not (isinstance(stmt, IndexAssign) and root(stmt.target) in self._ctx.settled)
        )

    def _with_outs(self, stmt: Stmt) -> Stmt:
        """The statement with calls of functions that write to ``Out`` arguments as the program has
        them; the normal form has pure calls, which stand for forward functions."""
        match stmt:
            case Assign(_, _, Call() as call) | Unpack(_, call) if self._has_outs(call):
                return CallStmt(replace(call, type=TupleType(())), stmt.span)
            case _:
                return map_blocks(stmt, lambda body: tuple(map(self._with_outs, body)))

    def _has_outs(self, call: Call) -> bool:
        return any(param.mode == "Out" for param in self._ctx.function(call.function).params)

    def _while(self, stmt: While, env: Env, code: list[Stmt]) -> Record:
        """Runs the loop; its adjoint, which runs it again as a counted one, finds the count in the
        record's result."""
        before = dict(env)
        self._copy_modified(stmt, env, code)
        code.append(self._in_place(stmt, env))
        again = self._ctx.repeats.get(stmt.number)
        names = () if again is None else sorted(free_variables(again.extent))
        return Record(stmt, before, tuple(self._ctx.version(name, env) for name in names))

    def _loop(self, stmt: For, env: Env, code: list[Stmt]) -> Record:
        before = dict(env)
        modified = self._copy_modified(stmt, env, code)
        _, start = Liveness(self._ctx.functions).block(stmt.body, frozenset(modified))
        settled = self._settle(stmt, modified)
        carried = [name for name in modified if name in start and name not in settled]
        tapes: list[tuple[str, Var]] = []
        stores: list[Stmt] = []
        undone: list[tuple[str, str, tuple[tuple[IndexAssign, Var], ...]]] = []
        kept: dict[int, Stmt] = {}  # by position of the statement that overwrites it
        for name in carried:
            writes = self._partial_writes(name, stmt)
            if writes:
                parts = [(own, self._part_tape(name, own, stmt)) for own in writes.values()]
                undone.append((name, env[name], tuple(parts)))
                for position, (own, tape) in zip(writes, parts, strict=True):
                    var = self._ctx.version(name, env)
                    kept[position] = self.overwritten(own, var, tape, stmt, env, store=True)
                continue
            tape = self._tape(name, stmt)
            tapes.append((name, tape))
            stores.append(self.tape_access(self._ctx.version(name, env), tape, stmt, store=True))
        most = max((len(sizes.dims_of(self._state_of(name))) for name, _ in tapes), default=0)
        sums = taped_sums(stmt, most)
        own_tapes = {at: self._tape(root(own.target), stmt) for at, own in sums.items()}
        body: list[Stmt] = []
        for position, inner in enumerate(stmt.body):
            body += [kept[position]] if position in kept else []
            body += [self._in_place(s, env) for s in self._without_settled((inner,))]
            if position in sums:
                var = self._ctx.version(root(sums[position].target), env)
                body.append(self.tape_access(var, own_tapes[position], stmt, store=True))
        code.append(replace(stmt, extent=self._ctx.rename(stmt.extent, before),
                            body=(*stores, *body)))  # fmt: skip
        after = tuple((name, env[name]) for name in modified if name in settled)
        again = tuple((sums[at].number, tape) for at, tape in own_tapes.items())
        return Record(
            stmt, before, tape=tuple(tapes), undone=tuple(undone), settled=after, sums=again
        )

    def _partial_writes(self, name: str, stmt: For) -> dict[int, IndexAssign]:
        """The statements that write to a tensor in a loop, by position, if each stands in the loop
        itself and writes a part whose size is known; they overwrite less than the whole."""
        inside = [s for s in statements(stmt.body) if name in assigned((s,))]
        own = {
            position: s for position, s in enumerate(stmt.body)
            if isinstance(s, IndexAssign) and isinstance(s.target, Index)
            and root(s.target) == name and not covers(s)
        }  # fmt: skip
        changing = self._ctx.assigned
        counters = {stmt.counter} | {loop.counter for loop in self._ctx.loops}
        for position, s in own.items():
            axes = target_axes(s)
            assert isinstance(s.target, Index)
            extents = {name for axis in axes for name in free_variables(axis.extent)}
            subscripts = {name for sub in s.target.subscripts for name in free_variables(sub)}
            if extents & counters or extents & changing:
                return {}
            if not self._as_at_start(subscripts & changing, position, stmt):
                return {}
            if not names_once(s):
                return {}
        return own if len(own) == len(inside) else {}

    def _as_at_start(self, names: set[str], position: int, stmt: For) -> bool:
        """Whether variables are ints that have the same value where an iteration begins and at a
        statement of the loop: an iteration backwards knows the former."""
        ints = all(isinstance(self._ctx.types[name], IntType) for name in names)
        return ints and names.isdisjoint(assigned(stmt.body[:position]))

    def _part_tape(self, name: str, own: IndexAssign, stmt: For) -> Var:
        dims = tuple(sizes.count(axis.extent, self._ctx.is_size) for axis in target_axes(own))
        return self._new_tape(name, stmt, dims)

    def overwritten(
        self, own: IndexAssign, var: Var, tape: Var, stmt: For, env: Env, *, store: bool
    ) -> Stmt:
        """Keeps the part of a tensor that a statement is about to overwrite, or puts it back;
        ``env`` has the versions of what stands in its subscripts."""
        assert isinstance(own.target, Index)
        axes = target_axes(own)
        counters = tuple(Var(axis.name, INT) for axis in axes)
        cell = Index(tape, (Var(stmt.counter, INT), *counters), own.target.type)
        subscripts = tuple(self._ctx.rename(sub, env) for sub in own.target.subscripts)
        part = replace(own.target, base=var, subscripts=subscripts)
        place, source = (cell, part) if store else (part, cell)
        return replace(IndexAssign(place, "=", source, axes), span=own.span)

    def _settle(self, stmt: For, modified: list[str]) -> frozenset[str]:
        """The tensors that are settled in the loop; notes which statements' results stay."""
        context = self._ctx
        tensors = [name for name in modified if isinstance(context.types[name], TensorType)]
        settling = Accesses((stmt,), tuple(context.loops), context.assigned, context.is_size)
        own = [
            s for s in statements(stmt.body)
            if isinstance(s, IndexAssign) and root(s.target) in tensors
            if states_result(s) and settling.is_kept(s)
        ]  # fmt: skip
        kept = {s.number for s in own}

        def reads(inner: IndexAssign) -> tuple[Expr, ...]:
            if not context.is_active(root(inner.target)):
                return ()
            stays = inner.number in kept
            return adjoint_reads(inner, stays, context.is_active, context.partial_name)

        settled = settling.settled(tensors, reads, kept)
        context.kept |= {s.number for s in own if root(s.target) in settled}
        return settled

    def _tape(self, name: str, stmt: For) -> Var:
        type_ = self._ctx.types[name]
        dims: tuple[Expr, ...] = ()
        if isinstance(type_, TensorType):
            if type_.dims is None:
                raise errors.NotDifferentiable(
                    f"'{name}' is overwritten in a loop and its rank is not known",
                    stmt.span, hint=f"declare it with its sizes: {name} : Tensor[N, ...]",
                )  # fmt: skip
            fixed = self._fixed_places(name, stmt)
            dims = tuple(dim for k, dim in enumerate(type_.dims) if k not in fixed)
        elif not isinstance(type_, FloatType | IntType):
            raise errors.NotDifferentiable(f"'{name}' cannot be kept for a derivative", stmt.span)
        tape = self._new_tape(name, stmt, dims)
        if isinstance(type_, TensorType) and fixed:
            self._ctx.rows[tape.name] = fixed
        return tape

    def _state_of(self, name: str) -> Var:
        return Var(name, self._ctx.types[name])

    def _fixed_places(self, name: str, stmt: For) -> dict[int, Var]:
        """The subscripts, by dimension, that a tensor has wherever a loop looks at it: the counter
        of the loop or of one around. An iteration then needs to know those elements alone."""
        counters = {stmt.counter, *(loop.counter for loop in self._ctx.loops)} - self._ctx.assigned
        places: list[tuple[Expr, ...]] = []
        state = self._state_of(name)
        for inner in statements(stmt.body):
            own = {axis.name for axis in inner.axes} if isinstance(inner, IndexAssign) else set()
            for node in (node for expr in expressions(inner) for node in walk(expr)):
                own |= {axis.name for axis in node.axes} if isinstance(node, Reduce) else set()
            if own & counters:
                return {}
            whole = sum(name == n for expr in expressions(inner) for n in variables(expr))
            found = [
                node.subscripts
                for expr in expressions(inner)
                for node in walk(expr)
                if isinstance(node, Index) and node.base == state
            ]
            if len(found) != whole:
                return {}
            places += found
        fixed: dict[int, Var] = {}
        for k, column in enumerate(zip(*places, strict=True)):
            first = column[0]
            if isinstance(first, Var) and first.name in counters and set(column) == {first}:
                fixed[k] = first
        return fixed

    def _new_tape(self, name: str, stmt: For, dims: tuple[Expr, ...]) -> Var:
        """A tape of one entry of these sizes for each iteration."""
        type_ = self._ctx.types[name]
        is_int = isinstance(type_, IntType) or not carries_derivative(type_)
        trips = self._ctx.lengths[stmt.number]
        tape = self._ctx.new(f"_tape_{name.lstrip('_')}",
                         TensorType((trips, *dims), "int" if is_int else "float"))  # fmt: skip
        self._ctx.sweeps.declarations.append(Declare(tape, None))
        return tape

    def tape_access(self, var: Var, tape: Var, stmt: For, *, store: bool) -> Stmt:
        """Keeps what an iteration begins with, or brings it back."""
        assert isinstance(tape.type, TensorType)
        assert tape.type.dims is not None
        axes = tuple(
            Axis(self._ctx.names.fresh(f"_i{k}"), size) for k, size in enumerate(tape.type.dims[1:])
        )
        fixed = self._ctx.rows.get(tape.name, {})
        counters = tuple(Var(axis.name, INT) for axis in axes)
        element = INT if tape.type.integer else FLOAT
        cell = Index(tape, (Var(stmt.counter, INT), *counters), element)
        if not isinstance(var.type, TensorType):
            return IndexAssign(cell, "=", var, ()) if store else Assign(var, "=", cell)
        rest = iter(counters)
        rank = len(axes) + len(fixed)
        subscripts = tuple(fixed[k] if k in fixed else next(rest) for k in range(rank))
        value = Index(var, subscripts, element)
        place, source = (cell, value) if store else (value, cell)
        return index_statement(place, "=", source, axes)


def on_version(target: Index | Var, new: Var) -> Index | Var:
    return new if isinstance(target, Var) else replace(target, base=new)
