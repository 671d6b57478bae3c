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
from dataclasses import dataclass, replace

from loma import builder as b
from loma import errors
from loma.ad.activity import active_variables, carries_derivative, differentiable_reads
from loma.ad.scalar.cleanup import simplified
from loma.ad.scalar.context import Callee, Context, is_unbounded
from loma.ad.scalar.hoist import Normal, normalise, written_places
from loma.ad.scalar.leaves import Leaves
from loma.ad.scalar.single_writes import overwrites_untouched
from loma.ad.scalar.sweeps import SweepBuilder
from loma.differentials import reverse_signature
from loma.ir import (
    ArrayType, Assign, Declare, Expr, Function, Param, Return, Stmt, Struct, Var, Zero,
)  # fmt: skip
from loma.names import Names
from loma.passes.liveness import Liveness
from loma.walk import (
    expressions, map_blocks, map_expressions, root, statements, substitute, variables,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reversal:
    """What to make: ``shared`` when several work items add to the adjoints of the arguments,
    ``callable_`` for the form that derivatives of calling functions use."""

    name: str
    callable_: bool = False
    shared: bool = False


def reverse_derivative(
    primal: Function,
    wanted: Reversal,
    structs: Mapping[str, Struct],
    functions: tuple[Function, ...],
    callee: Callable[[str, bool], Callee],
) -> Function:
    """The reverse derivative; ``functions`` are those that exist, ``callee`` makes the derivatives
    of those that the primal calls.

    Raises NotDifferentiable where the derivative needs what its arguments do not hold.
    """
    known = {function.name: function for function in functions}
    shared = wanted.shared or primal.simd
    normal = normalise(primal, known, copy_arguments=shared)
    params = _call_signature(primal) if wanted.callable_ else reverse_signature(primal)
    normal.names.take(*(param.name for param in params))
    adjoints, seeds = _adjoint_arguments(primal, params, wanted.callable_)
    context = Context(
        normal,
        structs,
        known,
        _active(normal, known),
        adjoints,
        {p.name for p in primal.params if p.mode == "In"} if shared else set(),
        callee,
    )
    sweeps = SweepBuilder(context, Leaves(context, seeds)).build()
    start = [] if wanted.callable_ else _out_locals(primal)
    body = (*start, *sweeps.declarations, *sweeps.forward, *sweeps.reverse)
    outs = frozenset(param.name for param in params if param.mode == "Out")
    everything = (*functions, *_made(context))
    body, _ = Liveness(everything).block(body, outs)
    body = simplified(body, {function.name: function for function in everything})
    body, _ = Liveness(everything).block(body, outs)
    derivative = Function(
        wanted.name,
        params,
        (),
        body,
        simd=primal.simd,
        doc=reverse_doc(primal),
        span=primal.span,
        primal=None if wanted.callable_ else primal.name,
    )
    derivative = _without_writes_to_arrays(derivative, primal, normal, known, everything)
    _check_entry_values(derivative, primal, wanted.callable_, everything)
    return derivative


def as_callee(derivative: Function, primal: Function) -> Callee:
    """How derivatives of calling functions use a reverse derivative in the form that programs use:
    that of a function without ``Out`` arguments."""
    every = frozenset(range(len(primal.params)))
    read = _mentioned(derivative.body)
    needed = frozenset(k for k in every if derivative.params[2 * k].name in read)
    return Callee(derivative, every, every, needed)


def reverse_callee(
    primal: Function,
    wanted: Reversal,
    structs: Mapping[str, Struct],
    functions: tuple[Function, ...],
    callee: Callable[[str, bool], Callee],
) -> Callee:
    """The reverse derivative in the form that derivatives of calling functions use. What it does
    not use of the arguments, it does not take."""
    full = reverse_derivative(primal, wanted, structs, functions, callee)
    known = {f.name: f for f in functions}
    read = _mentioned(full.body)
    params: list[Param] = []
    values: set[int] = set()
    adjoints: set[int] = set()
    for k in range(len(primal.params)):
        value, adjoint = full.params[2 * k : 2 * k + 2]
        if value.name in read:
            params.append(value)
            values.add(k)
        if adjoint.name in read:
            constant = not _writes_to(full.body, adjoint.name, known)
            params.append(replace(adjoint, mode="In") if constant else adjoint)
            adjoints.add(k)
    params += full.params[2 * len(primal.params) :]
    function = replace(full, params=tuple(params))
    return Callee(function, frozenset(values), frozenset(adjoints), frozenset(values))


def _mentioned(body: tuple[Stmt, ...]) -> set[str]:
    return {
        name for stmt in statements(body) for expr in expressions(stmt) for name in variables(expr)
    }


def reverse_doc(primal: Function) -> str:
    """The docstring of a reverse derivative."""
    return f"Reverse derivative of {primal.name}: adds to the adjoint that follows each argument."


def _made(context: Context) -> list[Function]:
    return list({c.function.name: c.function for c in context.callees.values()}.values())


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
    primal: Function, params: tuple[Param, ...], callable_: bool
) -> tuple[dict[str, Var], tuple[Var, ...]]:
    """The adjoint variable of each argument, and those of the results."""
    rest = iter(params)
    adjoints: dict[str, Var] = {}
    for param in primal.params:
        if param.mode == "In" or callable_:
            next(rest)
        adjoints[param.name] = Var(next(rest).name, param.type)
    return adjoints, tuple(Var(param.name, param.type) for param in rest)


def _out_locals(primal: Function) -> list[Stmt]:
    """An ``Out`` argument of the primal is a local of its derivative. Its value on entry counts as
    zero: the derivative is not given it."""
    return [
        Declare(Var(p.name, p.type), None) for p in primal.params
        if p.mode == "Out" and not is_unbounded(p.type)
    ]  # fmt: skip


def _active(normal: Normal, functions: dict[str, Function]) -> set[str]:
    params = normal.function.params
    outputs = {p.name for p in params if p.mode == "Out"}
    for stmt in normal.function.body:
        if isinstance(stmt, Return):
            outputs |= {name for value in stmt.values for name in differentiable_reads(value)}
    inputs = {p.name for p in params if carries_derivative(p.type)}
    return active_variables(normal.function, normal.types, inputs, outputs, functions)


# ------------------------------------------------------------------ arrays that are read only


def _without_writes_to_arrays(
    derivative: Function,
    primal: Function,
    normal: Normal,
    known: dict[str, Function],
    functions: tuple[Function, ...],
) -> Function:
    """``In`` arrays are read only: where the sweeps write to one, they get a copy of it.

    The adjoint of an ``Out`` array of unknown length cannot be copied. It need not be set to zero
    if every element is written before anything else happens to it.
    """
    every = {f.name: f for f in functions}
    for param in derivative.params:
        if param.mode == "Out" or not isinstance(param.type, ArrayType):
            continue
        if not _writes_to(derivative.body, param.name, every):
            continue
        if not is_unbounded(param.type):
            derivative = _with_copy(derivative, param, normal.names)
            continue
        name = _primal_of(derivative, primal, param.name)
        trimmed = derivative
        if name != param.name and overwrites_untouched(normal.function, name, known):
            trimmed = replace(derivative, body=_without_zeroing(derivative.body, param.name))
        if _writes_to(trimmed.body, param.name, every):
            raise errors.NotDifferentiable(
                f"the reverse derivative of '{primal.name}' needs storage of the length of its Out "
                f"argument '{name}', which is not known",
                next(p.span for p in primal.params if p.name == name),
                hint="give the array a size: Array[float, n]; or compute in a local array of known "
                "size and write each element once",
                var=name,
            )
        outs = frozenset(p.name for p in trimmed.params if p.mode == "Out")
        derivative = replace(trimmed, body=Liveness(functions).block(trimmed.body, outs)[0])
    return derivative


def _primal_of(derivative: Function, primal: Function, name: str) -> str:
    """The argument of the primal that the derivative's ``In`` array belongs to."""
    if any(p.name == name for p in primal.params):
        return name
    params = reverse_signature(primal)
    adjoints, _ = _adjoint_arguments(primal, params, callable_=False)
    return next((own for own, var in adjoints.items() if var.name == name), name)


def _writes_to(body: tuple[Stmt, ...], name: str, functions: dict[str, Function]) -> bool:
    return any(
        root(place) == name
        for stmt in statements(body)
        for place in written_places(stmt, functions)
    )


def _with_copy(derivative: Function, param: Param, names: Names) -> Function:
    copy = Var(names.fresh(f"{param.name}_local"), param.type)
    renamed: dict[str, Expr] = {param.name: copy}
    body = tuple(map_expressions(s, lambda e: substitute(e, renamed)) for s in derivative.body)
    start = Declare(copy, Var(param.name, param.type))
    return replace(derivative, body=(start, *body))


def _without_zeroing(body: tuple[Stmt, ...], name: str) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    for stmt in body:
        match stmt:
            case Assign(target, "=", value) if root(target) == name and b.is_const(value, 0):
                continue
            case Zero(target) if root(target) == name:
                continue
            case _:
                out.append(map_blocks(stmt, lambda inner: _without_zeroing(inner, name)))
    return tuple(out)


# ----------------------------------------------------------------------------------- entry values


def _check_entry_values(
    derivative: Function, primal: Function, callable_: bool, functions: tuple[Function, ...]
) -> None:
    """Refuses a derivative that needs the value of an ``Out`` argument on entry, or values of one
    that it has no storage for."""
    outs = {p.name: p for p in primal.params if p.mode == "Out"}
    if callable_ or not outs:
        return
    mentioned = _mentioned(derivative.body)
    _, live = Liveness(functions).block(
        tuple(s for s in derivative.body if not isinstance(s, Declare) or s.value is not None),
        frozenset(p.name for p in derivative.params if p.mode == "Out"),
    )
    for name, param in outs.items():
        if is_unbounded(param.type) and name in mentioned:
            raise errors.NotDifferentiable(
                f"the reverse derivative of '{primal.name}' needs values of its Out argument "
                f"'{name}', an array of unknown length",
                param.span,
                hint="give the array a size: Array[float, n]",
                var=name,
            )
        if name in live and not isinstance(param.type, ArrayType):
            raise errors.NotDifferentiable(
                f"the reverse derivative of '{primal.name}' needs the value that its Out argument "
                f"'{name}' has on entry, and rev_diff passes none",
                param.span,
                hint="pass that value as an In argument of its own",
                var=name,
            )
