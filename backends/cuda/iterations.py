"""The number of an iteration in place of several indices: ``D * N * b + D * n`` is ``D * i``, where
iteration ``i`` is that of ``b = i / N`` and ``n = i % N``.

Nothing is divided for such a place, and compilers see that rows of it begin at multiples of ``D``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loma.backends.cfamily.device import DeviceNode
from loma.backends.kernels.ir import Kernel
from loma.backends.schedule.host import Branch, Count, HostNode, Lanes, Repeat, Unit
from loma.backends.schedule.ir import Parallel
from loma.backends.schedule.walk import map_expressions
from loma.core import sizes
from loma.core.ir import INT, Binary, Expr, IntType, Unary, Var
from loma.core.sizes import Polynomial
from loma.core.walk import map_children

ITERATION = "@iteration_"
EARLY = f"{ITERATION}early"  # numbers that it has read before


@dataclass(frozen=True, slots=True)
class Joined:
    """``whole`` is ``extent * outer + inner``."""

    outer: Var
    inner: Var
    extent: Expr
    whole: Var


def joined_indices(kernel: Kernel) -> list[Joined]:
    """The numbers that a kernel's indices make, the outermost first; last the iteration's."""
    found: list[Joined] = []
    outer = Var(kernel.axis.name, INT)
    for k, axis in enumerate(kernel.inner):
        left = len(kernel.inner) - 1 - k
        whole = Var(f"{ITERATION}{left}_" if left else ITERATION, INT)
        found.append(Joined(outer, Var(axis.name, INT), axis.extent, whole))
        outer = whole
    return found


def with_joined(body: Sequence[HostNode], joins: Sequence[Joined]) -> tuple[HostNode, ...]:
    """The nodes of a kernel with the numbers that indices make, where places depend on no more."""
    return tuple(_node(node, joins) for node in body) if joins else tuple(body)


def _node(node: DeviceNode | HostNode, joins: Sequence[Joined]) -> HostNode:
    match node:
        case Parallel():
            return map_expressions(node, lambda expr: joined(expr, joins))
        case Unit() | Count() | Repeat() | Lanes():
            return replace(node, body=with_joined(node.body, joins))
        case Branch():
            then, other = (with_joined(block, joins) for block in (node.then, node.other))
            return replace(node, then=then, other=other)
        case _:
            return node


def joined(expr: Expr, joins: Sequence[Joined]) -> Expr:
    """An expression with the numbers that indices make."""
    if isinstance(expr, Binary | Unary) and isinstance(expr.type, IntType):
        poly = found = sizes.polynomial(expr)
        for join in joins:
            found = _joined(found, join)
        if found is not poly:
            return sizes.from_polynomial(found)
    return map_children(expr, lambda child: joined(child, joins))


def _joined(poly: Polynomial, join: Joined) -> Polynomial:
    """The polynomial with ``whole``, if it depends on it alone; else the same object."""
    by_outer, by_inner = _coefficient(poly, join.outer), _coefficient(poly, join.inner)
    if not by_inner:
        return poly
    inner = sizes.from_polynomial(by_inner)
    if sizes.polynomial(Binary("*", inner, join.extent, INT)) != by_outer:
        return poly
    rest = {m: c for m, c in poly.items() if join.outer not in m and join.inner not in m}
    return sizes.added(rest, sizes.polynomial(Binary("*", inner, join.whole, INT)))


def _coefficient(poly: Polynomial, var: Var) -> Polynomial:
    """What a variable is multiplied by, which may have it again."""
    found: dict[sizes.Monomial, int] = {}
    for monomial, factor in poly.items():
        if var in monomial:
            at = monomial.index(var)
            found[(*monomial[:at], *monomial[at + 1 :])] = factor
    return found
