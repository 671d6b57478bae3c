"""The reverse derivative of a scalar function.

The derivative runs the function (the *forward sweep*, which keeps what is needed and gets
overwritten), then the adjoints of its statements in reverse order (the *reverse sweep*). Work that
no adjoint needs is dropped, so the results of the function itself are not computed unless a
derivative is made of them.

There are two forms. The one that a program asks for has the arguments that the language prescribes.
The one that derivatives of calling functions use has more: it is given the value of an ``Out``
argument on entry, and turns the adjoint of its value on exit into that on entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from loma import errors
from loma.ad.activity import active_variables, carries_derivative, differentiable_reads
from loma.ad.growing import GrowingModule
from loma.ad.scalar.cleanup import simplified
from loma.ad.scalar.context import Callee, Context, MakeCallee, Variant
from loma.ad.scalar.entry_values import needed_on_entry
from loma.ad.scalar.hoist import Normal, normalise
from loma.ad.scalar.leaves import Leaves
from loma.ad.scalar.read_only import without_writes, without_zeroing, writes_to
from loma.ad.scalar.single_writes import overwrites_untouched
from loma.ad.scalar.sweeps import SweepBuilder
from loma.core.differentials import reverse_signature
from loma.core.effects import effects
from loma.core.ir import (
    ArrayType, Assign, CallStmt, Declare, Expr, For, Function, If, Param, Push, Return, Stmt,
    Struct, Type, Var, While, replace,
)  # fmt: skip
from loma.core.names import Names, with_own_indices, without_locals
from loma.core.unbounded import is_unbounded
from loma.core.walk import calls, expressions, map_blocks, mentioned_names, root, statements
from loma.errors.spans import Span
from loma.passes.liveness import CallModes, Liveness, Mode


def as_callee(derivative: Function, primal: Function) -> Callee:
    """How derivatives of calling functions use a reverse derivative in the form that programs use:
    that of a function without ``Out`` arguments."""
    every = frozenset(range(len(primal.params)))
    read = mentioned_names(derivative.body)
    needed = frozenset(k for k in every if derivative.params[2 * k].name in read)
    return Callee(derivative, every, every, needed)


class Reversal:
    """One derivative in the making; ``variant`` is None for the form that programs use.

    ``callee`` makes the derivatives of functions that the primal calls. Raises NotDifferentiable
    where the derivative needs what its arguments do not hold.
    """

    def __init__(
        self,
        primal: Function,
        growing: GrowingModule,
        callee: MakeCallee,
        variant: Variant | None = None,
    ) -> None:
        for call in calls(primal.body):
            growing.find(call.function)
        self._called = variant is not None
        self._params = _call_signature(primal) if self._called else reverse_signature(primal)
        new = {p.name for p in self._params} - {p.name for p in primal.params}
        self._primal = primal = without_locals(with_own_indices(primal), new)
        self._structs = growing.structs()
        self._growing = growing  # in time it has the derivatives that this one calls, too
        self._modes = CallModes(growing.module.functions)
        self._make_callee = callee
        self._variant = variant or Variant()
        self._adjoints, self._seeds = _adjoint_arguments(primal, self._params, self._called)
        self._unbounded = {
            p.name for p in primal.params if p.mode == "Out" and is_unbounded(p.type, self._structs)
        }
        self._used_up: frozenset[str] = frozenset()  # of the adjoints of those
        self._builder: SweepBuilder | None = None
        self._normal = self._normalised()

    def _normalised(self) -> Normal:
        shared = self._variant.shared or self._primal.simd
        normal = normalise(self._primal, self._known(), self._structs, copy_arguments=shared)
        normal.names.take(*(param.name for param in self._params))
        return normal

    def _known(self) -> dict[str, Function]:
        return {function.name: function for function in self._growing.module.functions}

    def derivative(self, name: str) -> Function:
        """The reverse derivative in the form that programs use."""
        # What a derivative uses up, the derivative of that turns into an adjoint in the same way.
        wanted = frozenset(self._given_back())
        while True:
            self._use_up(wanted)
            body = self._body(frozenset())
            function, more = self._finished(self._function(name, self._with_scratch(body)))
            if not more:
                self._check_entry_values(function, body)
                return function
            wanted |= more
            self._normal = self._normalised()

    def _given_back(self) -> tuple[str, ...]:
        return tuple(self._adjoints[own].name for own in self._primal.used_up)

    def _use_up(self, wanted: frozenset[str]) -> None:
        """Makes those adjoints of ``Out`` arrays arguments that are written to."""
        self._used_up = wanted
        self._params = tuple(
            replace(param, mode="Out") if param.name in wanted else param for param in self._params
        )

    def callee(self, name: str) -> Callee:
        """The one that derivatives of calling functions use: what it does not use of the arguments,
        it does not take."""
        body = self._body(frozenset())
        # Where the forward sweep writes to an array that cannot be copied, it is put right again.
        restored = frozenset(n for n in self._unbounded if writes_to(body, n, self._known()))
        if restored:
            self._normal = self._normalised()
            body = self._body(restored)
        for k in sorted(self._variant.fresh):
            array = self._primal.params[k].name
            if overwrites_untouched(self._normal.function, array, self._known(), self._modes.of):
                body = without_zeroing(body, self._adjoints[array].name)
                body = self._live(body, self._params, restored)
        read = mentioned_names(body)
        params: list[Param] = []
        values: set[int] = set()
        adjoints: set[int] = set()
        for k in range(len(self._primal.params)):
            value, adjoint = self._params[2 * k : 2 * k + 2]
            if value.name in read:
                params.append(replace(value, mode="Out" if value.name in restored else "In"))
                values.add(k)
            if adjoint.name in read:
                constant = not writes_to(body, adjoint.name, self._known())
                params.append(replace(adjoint, mode="In") if constant else adjoint)
                adjoints.add(k)
        params += self._params[2 * len(self._primal.params) :]
        function = replace(self._function(name, body), params=tuple(params))
        function, used_up = self._finished(function)
        assert not used_up, "adjoints that a callee writes to are Out"
        return Callee(function, frozenset(values), frozenset(adjoints), frozenset(values))

    # ------------------------------------------------------------------------------------- body

    def _body(self, restored: frozenset[str]) -> tuple[Stmt, ...]:
        """Both sweeps, without what is not needed; arrays in ``restored`` end as they began."""
        primal, normal = self._primal, self._normal
        shared = self._variant.shared or primal.simd
        context = Context(
            normal,
            self._structs,
            self._known(),
            _active(normal, self._known()),
            dict(self._adjoints),
            {p.name for p in primal.params if p.mode == "In"} if shared else set(),
            self._make_callee,
            self._modes.of,
            read_only=set() if self._called else self._read_only(),
        )
        self._builder = SweepBuilder(context, Leaves(context, self._seeds))
        start = [] if self._called else _out_locals(primal, self._structs)
        body = (*start, *self._builder.build(restored))
        self._modes.add(self._growing.module.functions)
        body = simplified(self._live(body, self._params, restored), self._known())
        return self._live(body, self._params, restored)

    def _read_only(self) -> set[str]:
        return {n for n in self._unbounded if self._adjoints[n].name not in self._used_up}

    def _live(
        self, body: tuple[Stmt, ...], params: tuple[Param, ...], live: frozenset[str] = frozenset()
    ) -> tuple[Stmt, ...]:
        """The body without dead code: with what the ``Out`` ones of ``params`` need. A stack that
        is used at all is emptied: in a derivative of this derivative each value that is pushed has
        to come back."""
        live |= {param.name for param in params if param.mode == "Out"}
        while True:
            kept, _ = Liveness(self._modes).block(body, live)
            stacks = {stmt.stack.name for stmt in statements(kept) if isinstance(stmt, Push)}
            if stacks <= live:
                return kept
            live |= stacks

    def _function(self, name: str, body: tuple[Stmt, ...]) -> Function:
        return Function(
            name,
            self._params,
            (),
            body,
            simd=self._primal.simd,
            doc=reverse_doc(self._primal),
            span=self._primal.span,
            primal=None if self._called else self._primal.name,
            used_up=tuple(p.name for p in self._params if p.name in self._used_up),
            given_back=() if self._called else self._given_back(),
        )

    def _finished(self, function: Function) -> tuple[Function, frozenset[str]]:
        """The function with no writes to its ``In`` arrays, and those to which it needs some."""
        finished, used_up = without_writes(
            function, self._adjoints, self._normal, self._known(), self._modes.of, self._structs
        )
        if finished is not function:
            finished = replace(finished, body=self._live(finished.body, function.params))
        return finished, used_up

    def _with_scratch(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """The body with scratch variables where a call gives an element of an array a new value
        that nobody reads, and the array is not there: an ``Out`` argument of unknown length."""
        scratch: dict[Type, Var] = {}

        def argument(arg: Expr, mode: Mode) -> Expr:
            lost = mode in ("own", "whole") and root(arg) in self._unbounded
            if not lost or is_unbounded(arg.type, self._structs):
                return arg
            if arg.type not in scratch:
                name = self._normal.names.fresh("_scratch")
                scratch[arg.type] = Var(name, arg.type)
            return scratch[arg.type]

        def changed(stmt: Stmt) -> Stmt:
            if not isinstance(stmt, CallStmt):
                return map_blocks(stmt, lambda block: tuple(map(changed, block)))
            args = list(zip(stmt.call.args, self._modes.of(stmt.call.function), strict=True))
            outs = [arg for arg, mode in args if mode != "In" and root(arg) in self._unbounded]
            if len(outs) != 1:  # two scratch variables would have to be two
                return stmt
            given = tuple(argument(arg, mode) for arg, mode in args)
            return replace(stmt, call=replace(stmt.call, args=given))

        done = tuple(map(changed, body))
        return (*(Declare(var, None) for var in scratch.values()), *done) if scratch else body

    def _matters(self, body: tuple[Stmt, ...]) -> Callable[[Stmt], list[Expr]]:
        """What the derivative evaluates in the state before each statement of the primal."""
        kept = {stmt.number: stmt for stmt in statements(body)}

        def matters(stmt: Stmt) -> list[Expr]:
            if isinstance(stmt, If | For | While):
                return list(effects(stmt).reads)
            found: list[Expr] = []
            now = kept.get(stmt.number)
            if isinstance(now, CallStmt):
                modes = self._modes.of(now.call.function)
                pairs = zip(now.call.args, modes, strict=True)
                found += [arg for arg, mode in pairs if mode in ("In", "Out")]
            elif now is not None:
                found += effects(now).reads
                if isinstance(now, Assign) and now.op == "+=":
                    found.append(now.target)
            assert self._builder is not None
            for inner in statements(tuple(self._builder.adjoint(stmt))):
                found += expressions(inner)
            return found

        return matters

    def _check_entry_values(self, function: Function, body: tuple[Stmt, ...]) -> None:
        """Refuses a derivative that needs the value of an ``Out`` argument on entry, or values of
        one that it has no storage for."""
        mentioned = mentioned_names(function.body)
        needed = needed_on_entry(
            self._normal.function, self._known(), self._structs, self._modes.of, self._matters(body)
        )
        for param in self._primal.params:
            if param.mode == "In":
                continue
            span = param.span if param.span.line else self._primal.span
            if param.name in self._unbounded and param.name in mentioned:
                is_array = isinstance(param.type, ArrayType)
                what = "an array of" if is_array else "a struct with arrays of"
                raise errors.NotDifferentiable(
                    f"the reverse derivative of '{self._primal.name}' needs values of its Out "
                    f"argument '{param.name}', {what} unknown length",
                    span,
                    hint="give the array a size: Array[float, n]"
                    if is_array
                    else "pass what it needs as In arguments of their own",
                    var=param.name,
                )
            if param.name in needed:
                raise needs_entry_value(self._primal, param, span, f"as zero({param.name}) does")


def needs_entry_value(
    primal: Function, param: Param, span: Span, setting: str
) -> errors.NotDifferentiable:
    """The error for a derivative that needs an ``Out`` argument's value on entry; ``setting`` says
    when, or how, to set it first."""
    return errors.NotDifferentiable(
        f"the reverse derivative of '{primal.name}' needs the value that its Out argument "
        f"'{param.name}' has on entry, and rev_diff passes none",
        span,
        hint="pass that value as an In argument of its own, or set all of "
        f"'{param.name}' first, {setting}",
        var=param.name,
    )


def reverse_doc(primal: Function) -> str:
    """The docstring of a reverse derivative."""
    return f"Reverse derivative of {primal.name}: adds to the adjoint that follows each argument."


# ------------------------------------------------------------------------------------- arguments


def _call_signature(primal: Function) -> tuple[Param, ...]:
    """Arguments of the form that derivatives of calling functions use."""
    names = Names(param.name for param in primal.params)
    params: list[Param] = []
    for param in primal.params:
        params.append(replace(param, mode="In"))
        adjoint = names.fresh(f"_d_{param.name.lstrip('_')}")
        params.append(Param(adjoint, param.type, "Out", param.span))
    for k, type_ in enumerate(primal.results):
        wish = f"_d_result_{k}" if len(primal.results) > 1 else "_d_result"
        params.append(Param(names.fresh(wish), type_, "In", primal.span))
    return tuple(params)


def _adjoint_arguments(
    primal: Function, params: tuple[Param, ...], called: bool
) -> tuple[dict[str, Var], tuple[Var, ...]]:
    """The adjoint variable of each argument, and those of the results."""
    rest = iter(params)
    adjoints: dict[str, Var] = {}
    for param in primal.params:
        if param.mode == "In" or called:
            next(rest)
        adjoints[param.name] = Var(next(rest).name, param.type)
    return adjoints, tuple(Var(param.name, param.type) for param in rest)


def _out_locals(primal: Function, structs: Mapping[str, Struct]) -> list[Stmt]:
    """An ``Out`` argument of the primal is a local of its derivative. Its value on entry counts as
    zero: the derivative is not given it."""
    return [
        Declare(Var(p.name, p.type), None) for p in primal.params
        if p.mode == "Out" and not is_unbounded(p.type, structs)
    ]  # fmt: skip


def _active(normal: Normal, functions: dict[str, Function]) -> set[str]:
    params = normal.function.params
    outputs = {p.name for p in params if p.mode == "Out"}
    for stmt in normal.function.body:
        if isinstance(stmt, Return):
            outputs |= {name for value in stmt.values for name in differentiable_reads(value)}
    inputs = {p.name for p in params if carries_derivative(p.type)}
    return active_variables(normal.function, normal.types, inputs, outputs, functions)
