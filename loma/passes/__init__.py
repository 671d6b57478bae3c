"""IR to IR: each pass is a function from a module to an equivalent module."""

from __future__ import annotations

from loma import config
from loma.core.ir import Module
from loma.passes.additions import additions
from loma.passes.copies import copies
from loma.passes.dead_code import dead_code
from loma.passes.factor import factor
from loma.passes.first_write import first_write
from loma.passes.inline import inline
from loma.passes.old_values import old_values
from loma.passes.reuse import reuse
from loma.passes.specialise import specialise
from loma.passes.zeroing import zeroing

__all__ = [
    "additions",
    "copies",
    "dead_code",
    "factor",
    "first_write",
    "inline",
    "joined",
    "old_values",
    "optimise",
    "reuse",
    "specialise",
    "zeroing",
]


def joined(module: Module) -> Module:
    """What derivatives gain from, too: functions have the bodies of those that they call, and
    sums of products are taken in steps, unless LOMA_OPT leaves that out."""
    if "inline" in config.optimisations():
        module = copies(inline(module))
    return factor(module) if "factor" in config.optimisations() else module


def optimise(module: Module) -> Module:
    """All passes, in order."""
    module = zeroing(first_write(joined(module)))
    if "reuse" in config.optimisations():
        module = reuse(module)
    if "additions" in config.optimisations():
        module = additions(module)
    return dead_code(module)
