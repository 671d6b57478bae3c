"""Which tensors passes by the matrix units may take as they are, and give."""

from __future__ import annotations

from loma.backends.kernels.ir import Chain, Sweep, as_statement
from loma.backends.kernels.pairs import Pairs
from loma.backends.kernels.sweeps import mentioned_in
from loma.backends.lowering.functions.memory import Memory
from loma.backends.lowering.serial import tensors_in
from loma.backends.schedule.context import FunctionContext
from loma.backends.schedule.host import Allocate, HostNode, Launch, PairsPass, Reserve, Spread, Unit
from loma.backends.schedule.ir import Parallel
from loma.core.effects import assigned
from loma.core.ir import Declare, Index, Return, TensorType, Var
from loma.core.walk import mentioned_names, root, walk


class Operands(Memory):
    """``passes`` are those of the function."""

    def __init__(self, context: FunctionContext, passes: tuple[Sweep | Chain, ...]) -> None:
        super().__init__(context)
        self._passes = passes

    def _alone(
        self, operands: tuple[Var, ...], read: frozenset[str] = frozenset()
    ) -> tuple[Var, ...]:
        """The operands that are arguments, and no more than operands of passes, or ``read`` beside
        them."""
        found = {var.name: var for var in operands if self._is_operand(var.name, read)}
        return tuple(found.values())

    def _is_operand(self, name: str, read: frozenset[str]) -> bool:
        own = {as_statement(step): step for step in self._passes}
        for stmt in self._context.function.body:
            if name in mentioned_names((stmt,)):
                step = own.get(stmt)
                if step is None or (name in _read_besides(step) and name not in read):
                    return False
        return any(p.name == name and p.mode == "In" for p in self._context.function.params)

    def _is_returned(self, result: Var) -> bool:
        """Whether a tensor is fresh, and all that happens to it behind its pass is its return."""
        name, outside = result.name, 0
        own = {as_statement(step) for step in self._passes}
        for stmt in self._context.function.body:
            if stmt in own or isinstance(stmt, Declare):
                continue
            values = stmt.values if isinstance(stmt, Return) else ()
            plain = [value for value in values if isinstance(value, Var) and value.name == name]
            if name in mentioned_names((stmt,)) and len(plain) != 1:
                return False
            outside += len(plain)
        return outside == 1 and name in self._lazy and name not in self._touched


def operands_of(sweep: Sweep) -> tuple[Var, ...]:
    found = sweep.found
    return tuple(e.tensor for e in (found.scores.query, found.scores.key, found.values))


def _read_besides(step: Sweep | Chain) -> frozenset[str]:
    """The tensors that something but a product of a pass reads."""
    if isinstance(step, Sweep):
        return mentioned_in(step.found)
    found: set[str] = set()
    for item in step.items:
        if isinstance(item, Pairs):
            nodes = [node for output in item.outputs for node in walk(output.weight)]
            found |= {root(node) for node in nodes if isinstance(node, Index)}
        else:
            found |= mentioned_names((as_statement(item),))
    return frozenset(found)


def read_by_kernels(chain: Chain) -> dict[str, Var]:
    """The tensors of floats that statements beside a chain's passes read, and weights do not."""
    found: dict[str, Var] = {}
    written: set[str] = set()
    for item in chain.items:
        if isinstance(item, Pairs):
            outputs = (node for output in item.outputs for node in walk(output.weight))
            written |= {root(node) for node in outputs if isinstance(node, Index)}
            continue
        statement = as_statement(item)
        written |= set(assigned((statement,)))
        found |= tensors_in((statement,))
    return {
        name: var
        for name, var in found.items()
        if name not in written
        and isinstance(var.type, TensorType)
        and var.type.element == "float"
        and var.type.dims
    }


def is_kernel(node: HostNode) -> bool:
    """Whether a node is nothing but kernels that read tensors of the outside element by element."""
    match node:
        case Reserve() | Allocate() | PairsPass() | Parallel():
            return True
        case Unit(_, body):
            return all(map(is_kernel, body))
        case Launch():
            return not node.pieces
        case Spread(launch, otherwise=otherwise):
            return is_kernel(launch) and all(map(is_kernel, otherwise))
        case _:
            return False
