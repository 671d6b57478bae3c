"""Reverse mode: a forward sweep that keeps what will be needed, and an adjoint sweep.

The forward sweep gives every overwritten variable a new name (a *version*), so that in straight
code the adjoint sweep can read any value that ever was. A loop or a branch is run in place; its
adjoint sweep takes the state at the start of the iteration (from a *tape*, indexed by the loop's
counter, for variables that iterations hand on), runs the body again with versions, and then the
body's adjoint. A tape therefore holds one state per iteration, however deep the nesting, and nested
loops are evaluated once more per level. Versions whose old value nobody reads later are merged
again (:mod:`loma.ad.tensor.versions`), and what no adjoint reads is dropped as dead code.

Every primal variable has one adjoint variable. The adjoint of an assignment reads it, adds to the
adjoints of what was read, and sets it to zero, in this order.
"""

from __future__ import annotations

from dataclasses import replace

from loma.ad.tensor.adjoint_sweep import AdjointSweep
from loma.ad.tensor.forward_sweep import ForwardSweep
from loma.ad.tensor.normalise import Normal
from loma.ad.tensor.sweep import Env, Sweeps, SweepContext
from loma.core.ir import Assign, Return, Var


def reverse(normal: Normal, context: SweepContext, seeds: tuple[Var | None, ...]) -> Sweeps:
    """The sweeps of a function in normal form.

    ``seeds`` are the adjoints of the results; None for a result without derivative.
    """
    *body, last = normal.function.body
    assert isinstance(last, Return)
    env: Env = {}
    forward = ForwardSweep(context)
    sweeps = context.sweeps
    sweeps.forward, records = forward.block(tuple(body), env)
    context.env = env
    returned = [value for value in last.values if isinstance(value, Var)]
    sweeps.results = tuple(
        replace(context.version(value.name, env), span=value.span) for value in returned
    )
    for value, seed in zip(returned, seeds, strict=True):
        if seed is not None and context.is_active(value.name):
            sweeps.adjoint.append(Assign(context.adjoint(value.name), "+=", seed))
    sweeps.adjoint += AdjointSweep(context, forward).block(records)
    return sweeps
