"""IR to IR: each pass is a function from a module to an equivalent module."""

from __future__ import annotations

from loma import config
from loma.core.ir import Module
from loma.passes.additions import additions as additions
from loma.passes.batching import batched as batched
from loma.passes.canonical import canonical_form as canonical_form
from loma.passes.canonical import distribution as distribution
from loma.passes.canonical import gathering as gathering
from loma.passes.canonical import rounds as rounds
from loma.passes.canonical import temporaries as temporaries
from loma.passes.common_sums import common_sums as common_sums
from loma.passes.dead_code import dead_code as dead_code
from loma.passes.first_write import first_write as first_write
from loma.passes.interleaving import interleaving as interleaving
from loma.passes.old_values import old_values as old_values
from loma.passes.overwritten import overwritten as overwritten
from loma.passes.reuse import reuse as reuse
from loma.passes.specialise import specialise as specialise
from loma.passes.wanted import wanted as wanted
from loma.passes.zeroing import zeroing as zeroing


def optimise(module: Module) -> Module:
    """All passes, in order."""
    module = overwritten(zeroing(canonical_form(module, every=True)))
    if "reuse" in config.optimisations():
        module = common_sums(reuse(module))
    if "additions" in config.optimisations():
        module = additions(module)
        if "temporaries" in config.optimisations():  # adjoints that have one statement now
            module = temporaries(module, every=True)
        module = interleaving(module)
    if "distribution" in config.optimisations():
        module = gathering(distribution(module))
    if "rounds" in config.optimisations():
        module = rounds(module, last=True)
    return dead_code(wanted(module))
