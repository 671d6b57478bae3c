"""Functions to trees for a GPU: as for CPUs, but for the loops of index statements."""

from __future__ import annotations

from loma.backends.cuda.running import shared_by_teams
from loma.backends.cuda.teams import make_tree
from loma.backends.kernels.ir import Step
from loma.backends.lowering import lower as host
from loma.backends.schedule.context import FunctionContext
from loma.backends.schedule.host import HostNode


def lower(context: FunctionContext, steps: tuple[Step, ...]) -> tuple[HostNode, ...]:
    """The tree of the context's function, whose fused body the steps are."""
    context.make_tree = make_tree
    return shared_by_teams(host.lower(context, steps))
