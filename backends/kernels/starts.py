"""Products of a library that begin with what is added to them.

    t[n, o] = sum(x[n, i] * w[o, i] for i in I)            p[n, o] = b[o]
    p[n, o] = t[n, o] + b[o]                               p[n, o] += x[n, i] * w[o, i]

The library adds to what it finds, so that the sum goes through memory once less.
"""

from __future__ import annotations

from dataclasses import dataclass

from loma.backends.kernels.sharing import Library
from loma.core import builder as b, sizes
from loma.core.axes import target_axes
from loma.core.effects import written
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Declare, Expr, Function, Index, IndexAssign, Reduce, Stmt, Var,
    replace,
)  # fmt: skip
from loma.core.names import Names
from loma.core.walk import (
    declared_and_used, free_variables, is_element_of, map_blocks, mentioned_names, substitute,
    walk,
)  # fmt: skip
from loma.passes.liveness import covers


def with_starts(function: Function, library: Library, names: Names) -> Function:
    """The function with such products, ``library`` tells which."""
    return _Starts(function, library, names).run()


@dataclass(frozen=True, slots=True)
class _Sum:
    """``target = product + rest``, where the product stands alone in a statement before."""

    target: Index
    read: Index
    rest: Expr
    axes: tuple[Axis, ...]


class _Starts:
    def __init__(self, function: Function, library: Library, names: Names) -> None:
        self._function = function
        self._library = library
        self._names = names
        self._local, self._uses = declared_and_used(function.body)

    def run(self) -> Function:
        return replace(self._function, body=self._block(self._function.body))

    def _block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out = [map_blocks(stmt, self._block) for stmt in body]
        position = 0
        while position < len(out):
            made = self._started(out, position)
            if made is None:
                position += 1
            else:
                out, position = made, 0  # the sum may begin with another product
        return tuple(out)

    def _started(self, block: list[Stmt], position: int) -> list[Stmt] | None:
        """The block with the product at a position added to what a later statement adds to it."""
        product = block[position]
        if not isinstance(product, IndexAssign) or not isinstance(product.target, Index):
            return None
        name = product.target.tensor.name if isinstance(product.target.base, Var) else ""
        once = name in self._local and self._uses[name] == 2
        if not once or product.op != "=" or self._library(product) != "product":
            return None
        behind = range(position + 1, len(block))
        at = next((k for k in behind if name in mentioned_names((block[k],))), None)
        found = None if at is None else self._sum_of(block[at], product)
        if at is None or found is None:
            return None
        between = block[position + 1 : at]
        target = found.target.tensor
        declared = [s for s in between if isinstance(s, Declare) and s.target.name == target.name]
        others = [stmt for stmt in between if stmt not in declared]
        changed = written(tuple(others)) | written((product,))
        used = mentioned_names((product, *others))
        if target.name in used or not free_variables(found.rest).isdisjoint(changed):
            return None
        new = self._product(product, found)
        if self._library(new) != "product":
            return None
        source = block[at]
        assert isinstance(source, IndexAssign)
        start = replace(source, value=found.rest)
        gone = next(
            (k for k, s in enumerate(block) if isinstance(s, Declare) and s.target.name == name),
            None,
        )
        made = [*block[:position], *declared, start, new, *others, *block[at + 1 :]]
        return made if gone is None else [s for k, s in enumerate(made) if k != gone]

    def _sum_of(self, stmt: Stmt, product: IndexAssign) -> _Sum | None:
        if not isinstance(stmt, IndexAssign) or not isinstance(stmt.target, Index):
            return None
        target, made = stmt.target, product.element
        if not isinstance(target.base, Var) or target.base.name not in self._local:
            return None
        names = [s.name for s in target.subscripts if isinstance(s, Var)]
        if stmt.op != "=" or len(names) != len(stmt.axes) or not covers(stmt):
            return None
        if target.base.name in free_variables(stmt.value):
            return None
        reads = [node for node in walk(stmt.value) if is_element_of(node, made.tensor.name)]
        if len(reads) != 1:
            return None
        read, rest = reads[0], _without(stmt.value, reads[0])
        axes = {axis.name: axis for axis in stmt.axes}
        own = {axis.name: axis for axis in product.axes}
        places = list(zip(read.subscripts, made.subscripts, strict=True))
        same = [
            isinstance(place, Var)
            and isinstance(first, Var)
            and place.name in axes
            and first.name in own
            and sizes.equal(axes[place.name].extent, own[first.name].extent) is True
            for place, first in places
        ]
        whole = len(set(read.subscripts)) == len(axes) == len(places)
        if rest is None or rest.type != FLOAT or not all(same) or not whole or not covers(product):
            return None
        return _Sum(target, read, rest, stmt.axes)

    def _product(self, product: IndexAssign, found: _Sum) -> IndexAssign:
        """The product, added to the target of the sum."""
        value: Expr = product.value
        inner = [axis for axis in product.axes if axis not in target_axes(product)]
        if isinstance(value, Reduce):
            inner += value.axes
            value = value.body
        values: dict[str, Expr] = {}
        axes = list(found.axes)
        for axis in inner:
            name = self._names.fresh(axis.name)
            values[axis.name] = Var(name, INT)
            axes.append(Axis(name, axis.extent))
        for place, first in zip(found.read.subscripts, product.element.subscripts, strict=True):
            assert isinstance(first, Var)
            values[first.name] = place
        return replace(
            product, target=found.target, op="+=", value=substitute(value, values), axes=tuple(axes)
        )


def _without(value: Expr, term: Expr) -> Expr | None:
    """What is added to a term of a sum; None where it is no term, or the only one."""
    match value:
        case Binary("+", left, right) if value.type == FLOAT:
            for own, other in ((left, right), (right, left)):
                if own == term:
                    return other
                if (rest := _without(own, term)) is not None:
                    return b.add(rest, other) if own is left else b.add(other, rest)
    return None
