"""Both sweeps of a function's reverse derivative, under final names.

The forward sweep gives every overwritten variable a new name (a *version*), so that the adjoint
sweep can read any value that ever was; loops and branches are run in place there, and with versions
in the adjoint sweep. A tape holds one state per iteration, however deep the nesting. Versions whose
old value nobody reads are merged (:mod:`loma.ad.tensor.versions`), dead code is dropped.

Every primal variable has one adjoint variable. The adjoint of an assignment reads it, adds to the
adjoints of what was read, and sets it to zero, in this order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loma.ad.activity import active_variables, carries_derivative
from loma.ad.contributions import PartialName
from loma.ad.tensor.adjoint_sweep import AdjointSweep
from loma.ad.tensor.pairs import CallPlan
from loma.ad.tensor.forward_sweep import ForwardSweep
from loma.ad.tensor.normalise import Normal, normalise
from loma.ad.tensor.shifts import shifts
from loma.ad.tensor.sweep import Env, SweepContext, Sweeps
from loma.ad.tensor.trips import with_counts
from loma.ad.tensor.versions import merged_names, rename, with_new_rows
from loma.core.distinct import checked_elsewhere
from loma.core.ir import Assign, Declare, Function, IndexAssign, Module, Return, Stmt, Var, replace
from loma.passes.canonical.recurrences.picked import picked
from loma.passes.outer import is_outer
from loma.core.sizes import size_variables
from loma.core.walk import mentioned_names, reads_of_type
from loma.passes.first_write import first_writes
from loma.passes.liveness import Liveness


@dataclass(frozen=True, slots=True)
class Joint:
    """``declarations`` hold what both sweeps use; ``results`` are the versions that are returned;
    ``seeds`` the adjoints of the pure form's results, ``adjoints`` those of its arguments."""

    normal: Normal
    declarations: tuple[Stmt, ...]
    forward: tuple[Stmt, ...]
    adjoint: tuple[Stmt, ...]
    results: tuple[Var, ...]
    seeds: tuple[Var, ...]
    adjoints: dict[str, Var]


def joint_sweeps(
    primal: Function,
    module: Callable[[], Module],
    partial_name: PartialName,
    plan: Callable[[str], CallPlan],
) -> Joint:
    """The sweeps of one tensor function. ``module`` gives the module as it is at that moment:
    differentiating what the function calls adds functions to it."""
    normal = normalise(picked(primal), module())
    pure = normal.function
    inputs = {p.name for p in pure.params if carries_derivative(p.type)}
    outputs = {v.name for v in _returned(normal) if carries_derivative(v.type)}
    active = active_variables(pure, normal.types, inputs, outputs, still=shifts(pure))
    adjoints = {
        p.name: Var(normal.names.fresh(f"_d_{p.name.lstrip('_')}"), p.type) for p in pure.params
    }
    seeds = _seeds(primal, normal)
    mine = {name: var for name, var in adjoints.items() if carries_derivative(var.type)}
    trips = with_counts(normal, active)
    normal = trips.normal
    context = SweepContext(trips, active, mine, partial_name, plan, module().functions)
    _make_sweeps(normal, context, seeds)
    return _merged(normal, context.sweeps, seeds, adjoints, module().functions)


def _returned(normal: Normal) -> list[Var]:
    last = normal.function.body[-1]
    assert isinstance(last, Return)
    return [value for value in last.values if isinstance(value, Var)]


def _make_sweeps(normal: Normal, context: SweepContext, seeds: tuple[Var, ...]) -> None:
    """``seeds`` are the adjoints of the results."""
    env: Env = {}
    forward = ForwardSweep(context)
    sweeps = context.sweeps
    sweeps.forward, records = forward.block(normal.function.body[:-1], env)
    context.env = env
    returned = _returned(normal)
    sweeps.results = tuple(
        replace(context.version(value.name, env), span=value.span) for value in returned
    )
    for value, seed in zip(returned, seeds, strict=True):
        if carries_derivative(seed.type) and context.is_active(value.name):
            sweeps.adjoint.append(Assign(context.adjoint(value.name), "+=", seed))
    sweeps.adjoint += AdjointSweep(context, forward).block(records)


def _seeds(primal: Function, normal: Normal) -> tuple[Var, ...]:
    """Names for the adjoints of the results, then of the ``Out`` arguments' final values."""
    count = len(primal.results)
    wishes = ["_d_result"] if count == 1 else [f"_d_result_{k}" for k in range(count)]
    wishes += [f"_d_{p.name.lstrip('_')}_out" for p in primal.params if p.mode == "Out"]
    types = normal.function.results
    return tuple(Var(normal.names.fresh(w), t) for w, t in zip(wishes, types, strict=True))


def _declaring(late: list[Declare], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The body with declarations of tensors that have computed sizes before their first use."""
    out: list[Stmt] = []
    for stmt in body:
        mentioned = mentioned_names((stmt,))
        out += [s for s in late if s.target.name in mentioned and s not in out]
        out.append(stmt)
    return tuple(out)


def _lengths(sweeps: Sweeps, adjoint: tuple[Stmt, ...]) -> set[str]:
    """Variables in the sizes of what the adjoint sweep uses, tapes above all."""
    used = mentioned_names(adjoint)
    return {
        name
        for stmt in sweeps.declarations
        if isinstance(stmt, Declare) and stmt.target.name in used
        for name in reads_of_type(stmt.target.type)
    }


def _merged(
    normal: Normal,
    sweeps: Sweeps,
    seeds: tuple[Var, ...],
    adjoints: dict[str, Var],
    functions: tuple[Function, ...],
) -> Joint:
    """Drops dead code, then merges versions across both sweeps."""
    outputs = frozenset(v.name for v in adjoints.values())
    analysis = Liveness(functions)
    # the forward sweep has made all checks that no element is assigned twice
    last = tuple(map(checked_elsewhere, sweeps.adjoint))
    adjoint, needed = analysis.block((*sweeps.adjoint_declarations, *last), outputs)
    needed |= _lengths(sweeps, adjoint)
    results = frozenset(v.name for v in sweeps.results)
    forward, _ = analysis.block(tuple(sweeps.forward), needed | results)
    fixed = frozenset(p.name for p in normal.function.params)
    # The results count as read at the very end: whoever runs the sweeps returns them.
    # What is cheap to make again is not, once something else is in its place.
    outer = (stmt for stmt in forward if isinstance(stmt, IndexAssign) and is_outer(stmt))
    apart = {stmt.element.tensor.name for stmt in outer}
    last_rows = with_new_rows(adjoint, sweeps.rows)
    names = merged_names(
        forward, last_rows, outputs | results, sweeps.merges, fixed, apart, functions
    )
    used = mentioned_names((*forward, *adjoint))
    declarations = tuple(
        s for s in sweeps.declarations if isinstance(s, Declare) and s.target.name in used
    )
    top, forward, adjoint = rename((declarations, forward, adjoint), names)
    known = fixed | set(size_variables(normal.function))
    early = [s for s in top if isinstance(s, Declare)]
    late = [s for s in early if not reads_of_type(s.target.type) <= known]
    forward = _declaring(late, forward)
    return Joint(
        normal,
        tuple(s for s in early if s not in late),
        forward,
        first_writes(_declaring([s for s in late if s not in forward], adjoint)),
        tuple(replace(v, name=names.get(v.name, v.name)) for v in sweeps.results),
        seeds,
        adjoints,
    )
