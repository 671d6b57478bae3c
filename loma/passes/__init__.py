"""IR to IR: each pass is a function from a module to an equivalent module."""

from __future__ import annotations

from loma import config
from loma.core.ir import Module
from loma.core.walk import map_tensor_functions
from loma.passes.additions import additions as additions
from loma.passes.copies import copies as copies
from loma.passes.costly import costly as costly
from loma.passes.cumulative import cumulative as cumulative
from loma.passes.dead_code import dead_code as dead_code
from loma.passes.factor import factor as factor
from loma.passes.first_write import first_write as first_write
from loma.passes.inline import inline as inline
from loma.passes.invariants import invariants as invariants
from loma.passes.loops import loops as loops
from loma.passes.old_values import old_values as old_values
from loma.passes.operators import operators as operators
from loma.passes.reductions import reductions as reductions
from loma.passes.reuse import reuse as reuse
from loma.passes.running import running as running
from loma.passes.scalar_calls import scalar_calls as scalar_calls
from loma.passes.scans import scans as scans
from loma.passes.specialise import specialise as specialise
from loma.passes.temporaries import temporaries as temporaries
from loma.passes.triangles import triangles as triangles
from loma.passes.zeroing import zeroing as zeroing

_LOOPS = ("prod", "max", "min")  # reductions of which derivatives are made in loops


def joined(module: Module, every: bool = False) -> Module:
    """The canonical form, which derivatives gain from, too: functions have the bodies of those that
    they call, operators are index statements (:func:`operators` has what ``every`` says), loops
    whose iterations do not meet, too, reductions over triangles are ranges and, but for sums, whose
    adjoints are of the same form, loops, sums are statements of their own, without factors that do
    not depend on what is summed over, what is costly is computed once, and sums of products are
    taken in steps, unless LOMA_OPT leaves that out."""
    wanted = config.optimisations()
    if "inline" in wanted:
        module = scalar_calls(copies(inline(module)))
    if "operators" in wanted:
        module = operators(module, every)
    if "loops" in wanted:
        module = loops(module)
    if "temporaries" in wanted:
        module = temporaries(module)
    if "scans" in wanted:
        module = triangles(cumulative(module))
        module = map_tensor_functions(module, lambda f: scans(f, _LOOPS))
    if "invariants" in wanted:
        module = invariants(module)
    if "reductions" in wanted:
        module = reductions(module)
    if "costly" in wanted:
        module = costly(module)
    return factor(module) if "factor" in wanted else module


def optimise(module: Module) -> Module:
    """All passes, in order."""
    module = zeroing(first_write(joined(module, every=True)))
    if "reuse" in config.optimisations():
        module = reuse(module)
    if "additions" in config.optimisations():
        module = additions(module)
    return dead_code(module)
