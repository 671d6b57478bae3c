"""The canonical form: what is the same mathematics becomes the same IR, however it is spelled."""

from __future__ import annotations

from typing import get_args

from loma import config
from loma.core.ir import Module, ReduceKind
from loma.core.walk import map_tensor_functions
from loma.passes.canonical.elementary.activations import activations as activations
from loma.passes.canonical.alike import alike as alike
from loma.passes.canonical.dimensions.channels import channels as channels
from loma.passes.canonical.conditions import conditions as conditions
from loma.passes.canonical.copies import copies as copies
from loma.passes.canonical.costly import costly as costly
from loma.passes.canonical.recurrences.accumulated import accumulated as accumulated
from loma.passes.canonical.recurrences.best_values import best_values as best_values
from loma.passes.canonical.recurrences.cumulative import cumulative as cumulative
from loma.passes.canonical.recurrences.cut import whole_ranges as whole_ranges
from loma.passes.canonical.recurrences.distribution import distribution as distribution
from loma.passes.canonical.elementary.exponentials import exponentials as exponentials
from loma.passes.canonical.recurrences.extremes import extremes as extremes
from loma.passes.canonical.factor import factor as factor
from loma.passes.canonical.recurrences.gathering import gathering as gathering
from loma.passes.canonical.groups import groups as groups
from loma.passes.canonical.guards import guards as guards
from loma.passes.canonical.increments import increments as increments
from loma.passes.canonical.inline import inline as inline
from loma.passes.canonical.invariants import invariants as invariants
from loma.passes.canonical.dimensions.joins import joins as joins
from loma.passes.canonical.dimensions.layouts import layouts as layouts
from loma.passes.canonical.loops import loops as loops
from loma.passes.canonical.operators import operators as operators
from loma.passes.canonical.reductions import reductions as reductions
from loma.passes.canonical.recurrences.rounds import rounds as rounds
from loma.passes.canonical.recurrences.row_functions import row_functions as row_functions
from loma.passes.canonical.scalar_calls import scalar_calls as scalar_calls
from loma.passes.canonical.recurrences.scans import scans as scans
from loma.passes.canonical.recurrences.windows import windows as windows
from loma.passes.canonical.dimensions.even import even as even
from loma.passes.canonical.dimensions.pieces import pieces as pieces
from loma.passes.canonical.dimensions.places import places as places
from loma.passes.canonical.dimensions.quotients import quotients as quotients
from loma.passes.canonical.dimensions.remainders import remainders as remainders
from loma.passes.canonical.dimensions.shapes import shapes as shapes
from loma.passes.canonical.dimensions.stacks import stacks as stacks
from loma.passes.canonical.dimensions.turns import turns as turns
from loma.passes.canonical.elementary.opposites import opposites as opposites
from loma.passes.canonical.elementary.softmax import softmax as softmax
from loma.passes.canonical.recurrences.stored import stored as stored
from loma.passes.canonical.recurrences.states import states as states
from loma.passes.canonical.scatters import scatters as scatters
from loma.passes.canonical.short import short as short
from loma.passes.canonical.temporaries import temporaries as temporaries
from loma.passes.canonical.recurrences.summands import summands as summands
from loma.passes.canonical.recurrences.triangles import triangles as triangles
from loma.passes.canonical.dimensions.units import units as units
from loma.passes.canonical.webs import webs as webs
from loma.passes.canonical.recurrences.winners import winners as winners
from loma.passes.additions import totals as totals
from loma.passes.first_write import first_write
from loma.passes.interleaving import interleaving
from loma.passes.reuse import same_values as same_values
from loma.passes.zeroing import zeroing

# Reductions of which derivatives are made in loops.
_LOOPS = tuple(k for k in get_args(ReduceKind) if k != "sum" and not k.startswith("arg"))


def canonical_form(module: Module, every: bool = False) -> Module:
    """The canonical form, which derivatives gain from, too: these passes, unless LOMA_OPT leaves
    them out. :func:`operators` has what ``every`` says."""
    wanted = config.optimisations()
    if "inline" in wanted:
        module = scalar_calls(copies(inline(module)))
    if "temporaries" in wanted:
        module = webs(module)
    if "loops" in wanted:
        module = places(module)
    if "scans" in wanted:
        module = cumulative(module)
    if "exponentials" in wanted:
        module = softmax(module)
    if "operators" in wanted:
        module = operators(joins(module), every)
    if "loops" in wanted:
        module = winners(extremes(increments(whole_ranges(module))))
        module = states(loops(row_functions(module), every))
        if "scans" in wanted and not every:
            module = accumulated(module)
        module = best_values(module) if every else module  # derivatives are made of positions
    if "divisions" in wanted:
        module = turns(quotients(module))
    module = zeroing(first_write(module))
    if "additions" in wanted and not every:
        module = totals(module)
    if "conditions" in wanted:
        module = conditions(module)
    if "shapes" in wanted:
        module = remainders(pieces(stacks(module)))
        module = interleaving(channels(even(module)), chosen=False)
        module = layouts(units(shapes(units(module))))
    if "temporaries" in wanted:
        module = temporaries(module, every=every)
        # Loops stay that a temporary would make too large, which may be gone now.
        if "loops" in wanted and (without := loops(module, every)) != module:
            module = temporaries(without, every=every)
        if "conditions" in wanted:  # on masks that were tensors
            module = conditions(module)
        if "shapes" in wanted:
            module = pieces(module, temporaries=True)
    if "scans" in wanted:
        module = triangles(module)
        if not every:
            module = summands(module)
        module = map_tensor_functions(module, lambda f: scans(f, _LOOPS))
    if "invariants" in wanted:
        module = invariants(module)
    if "reductions" in wanted:
        module = short(module, extremes=every)
        module = guards(scatters(reductions(module if every else windows(module))))
        module = scalar_calls(module) if "inline" in wanted else module  # of what are tensors now
    if "exponentials" in wanted:
        module = exponentials(activations(module))
        module = opposites(module) if every else module  # derivatives are made of the names
    if {"reductions", "temporaries", "invariants"} <= set(wanted):  # weights divided by their sum
        module = invariants(temporaries(module, weights=True))
    if "reuse" in wanted and not every:  # all of reuse comes later
        module = same_values(module)
    if "rounds" in wanted and not every:
        module = rounds(stored(module))
    if "costly" in wanted:
        module = costly(module)
    if "distribution" in wanted and not every:  # adjoints: when each has one statement
        module = distribution(module)
    if "factor" in wanted:
        module = factor(module)
    return groups(alike(module)) if "divisions" in wanted else module
