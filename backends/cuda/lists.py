"""Functions over lists: of which a launch may serve several positions (``runtime/gpu_lists.h``)."""

from __future__ import annotations

from collections.abc import Sequence

from loma.backends.schedule.host import CheckRange, CheckSome, HostNode, Launch, Unit
from loma.backends.schedule.ir import Parallel
from loma.core.ir import Function, TensorType, Var
from loma.core.sizes import dims_of


def serves_lists(function: Function, tree: Sequence[HostNode]) -> bool:
    """Whether the function may be called over lists (``takes_lists`` of ``torch/runtime/each.cpp``)
    and does no more than launch one kernel, which has no memory that ends with the call."""
    if function.results or not all(isinstance(p.type, TensorType) for p in function.params):
        return False
    vectors = {dims_of(param) for param in function.params} - {()}  # the others are numbers
    if len(vectors) != 1:
        return False
    (dims,) = vectors
    return len(dims) == 1 and isinstance(dims[0], Var) and _launches(tree) == 1


def _launches(tree: Sequence[HostNode]) -> int:
    """How many kernels the nodes launch; 2 where they do something else besides."""
    count = 0
    for node in tree:
        match node:
            case Unit(_, inner):
                count += _launches(inner)
            case Launch(within=None) | Parallel(totals=()):
                count += 1
            case CheckRange() | CheckSome():
                pass
            case _:
                return 2
    return count
