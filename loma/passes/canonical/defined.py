"""The value of a tensor that one statement gives to all of it: what it is made of, and which reads
may have it instead."""

from __future__ import annotations

from collections.abc import Iterator, Set as AbstractSet
from dataclasses import dataclass

from loma.core import builder as b, sizes
from loma.core.axes import terms_of
from loma.core.builtins import BUILTINS
from loma.core.ir import (
    INT, Axis, Binary, Builtin, Call, Expr, Index, Reduce, Select, TensorType, Var, ZeroPad,
)  # fmt: skip
from loma.core.walk import children, free_variables, walk
from loma.passes.canonical.recurrences.running import factors
from loma.passes.canonical.recurrences.decided import comparisons
from loma.passes.canonical.short import of_neighbours

LARGEST = 24  # nodes of a value that is computed more than once


@dataclass(frozen=True, slots=True)
class Definition:
    """``tensor[axes + offsets] = value``; ``padded``: all other elements are zero. ``around`` are
    the counters of loops around."""

    tensor: Var
    axes: tuple[Axis, ...]
    offsets: tuple[Expr, ...]
    value: Expr
    padded: bool
    around: frozenset[str]

    @property
    def inputs(self) -> frozenset[str]:
        return free_variables(self.value) - {axis.name for axis in self.axes}

    @property
    def sums(self) -> bool:
        return isinstance(self.value, Reduce)

    @property
    def neighbours(self) -> bool:
        """Whether the value is the sum of a few neighbours, to be written out where it is read."""
        value = self.value
        if not isinstance(value, Reduce) or value.kind != "sum" or not terms_of(value):
            return False
        return any(of_neighbours(value, axis.name) for axis in self.axes[-1:])

    @property
    def copies(self) -> bool:
        """Whether the value is an element of another tensor, at other indices at most."""
        if not isinstance(self.value, Index):
            return False
        names = {axis.name for axis in self.axes}
        places = [s for s in self.value.subscripts if free_variables(s) & names]
        bare = [s.name for s in places if isinstance(s, Var)]
        return len(places) == len(set(bare))

    @property
    def whole(self) -> Var | None:
        """The tensor of the same dimensions whose elements the value is, each in its own place."""
        match self.value:
            case Index(Var() as source, places) if not self.padded:
                own = tuple(Var(axis.name, INT) for axis in self.axes)
                dims, others = sizes.dims_of(source), sizes.dims_of(self.tensor)
                return source if places == own and sizes.same(dims, others) else None
            case _:
                return None

    @property
    def parts(self) -> list[frozenset[str]]:
        """Which of the axes each factor of the value has, where that is a product of factors that
        all lack some, on a triangle or everywhere; none for another value."""
        value, names = self.value, frozenset(axis.name for axis in self.axes)
        if isinstance(value, Select):
            zeros = [b.is_const(branch, 0) for branch in (value.then, value.other)]
            triangle = comparisons(value.cond, holds=zeros[1])
            if sum(zeros) != 1 or triangle is None or len(triangle) != 1:
                return []
            value = value.then if zeros[1] else value.other
        found = [free_variables(factor.value) & names for factor in factors(value, False)]
        return found if self.scaled is not None or all(part < names for part in found) else []

    @property
    def scaled(self) -> frozenset[str] | None:
        """All axes, where the value is an element that has them times numbers that do not."""
        names = frozenset(axis.name for axis in self.axes)
        whole = [f for f in factors(self.value, False) if free_variables(f.value) >= names]
        plain = all(
            isinstance(f.value, Index)
            and not f.divides
            and not any(is_divided(place, names) for place in f.value.subscripts)
            for f in whole
        )
        return names if len(whole) == 1 and plain and not self.copies else None

    @property
    def asked(self) -> frozenset[str]:
        """The axes whose value is a subscript of another tensor, of the same size, in any case: a
        place that lies outside is an error there, too."""
        extents = {axis.name: axis.extent for axis in self.axes}
        pairs = (
            (place, dim)
            for read in _in_any_case(self.value)
            if isinstance(read.base.type, TensorType) and read.base.type.dims is not None
            for place, dim in zip(read.subscripts, read.base.type.dims, strict=True)
        )
        return frozenset(
            place.name
            for place, dim in pairs
            if isinstance(place, Var)
            and place.name in extents
            and sizes.equal(extents[place.name], dim) is True
        )

    @property
    def cheap(self) -> bool:
        """Whether the value may be computed for each of several reads."""
        names = {axis.name for axis in self.axes}
        reads = (node for node in walk(self.value) if isinstance(node, Index))
        large = {
            r for r in reads if isinstance(r.base.type, TensorType) and free_variables(r) >= names
        }
        return self.light and len(large) <= 1

    @property
    def light(self) -> bool:
        """Whether the value is short, of quick arithmetic."""
        return self.is_light(frozenset())

    def is_light(self, counters: frozenset[str]) -> bool:
        """The same, where each of those has a value of its own: what is divided by lacks one."""
        names = counters | {axis.name for axis in self.axes}
        for count, node in enumerate(walk(self.value)):
            match node:
                case Builtin(name) if BUILTINS[name].costly:
                    return False
                case Binary("/" | "//" | "%" | "**", _, right) if free_variables(right) >= names:
                    return False
            if count > LARGEST:
                return False
        return True

    @property
    def masks(self) -> bool:
        """Whether the value is made of indices and numbers alone, and as cheap as a read."""
        nodes = walk(self.value)
        return self.cheap and not any(
            isinstance(n, Index) or (isinstance(n, Var) and n.type != INT) for n in nodes
        )


def _in_any_case(value: Expr) -> Iterator[Index]:
    """The elements that are read for each value."""
    match value:
        case Select(cond):
            yield from _in_any_case(cond)
        case Binary("and" | "or", left):
            yield from _in_any_case(left)
        case Reduce() | ZeroPad() | Call():
            pass
        case _:
            if isinstance(value, Index):
                yield value
            for child in children(value):
                yield from _in_any_case(child)


def is_product(value: Expr) -> bool:
    """Whether derivatives are products with the value's own adjoint, one for each element that it
    reads: then what a running sum is made of has adjoints that are running sums."""
    parts = list(walk(value))
    reads = [node for node in parts if isinstance(node, Index)]
    plain = not any(isinstance(node, Select | Builtin | Call) for node in parts)
    return plain and len(set(reads)) == len(reads)


def is_divided(place: Expr, names: AbstractSet[str]) -> bool:
    """Whether a place is a quotient of a product of indices, or what is left of it, which takes a
    division for each element."""
    return any(
        isinstance(node, Binary)
        and node.op in ("%", "//")
        and any(
            len(names & {part.name for part in term if isinstance(part, Var)}) > 1
            for term in sizes.polynomial(node.left)
        )
        for node in walk(place)
    )
