"""Convolutions of channels in groups, with one index for the groups in all tensors.

    y[b, o, h] += x[b, o // O * C + c, h + p] * k[o, c, p]

goes through views with a dimension for the groups ``g``; ``o`` is then a filter of one group:

    _y[b, g, o, h] += _x[b, g, c, h + p] * _k[g, o, c, p]

The adjoint of ``x[b, g, c, h]`` sums over the filters of a group, where that of a quotient goes
through all filters, and the statement and its adjoints are convolutions for the library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations

from loma.core import bounds, sizes
from loma.core import builder as b
from loma.core.axes import ranged
from loma.core.ir import (
    FLOAT, INT, Assign, Axis, Binary, Declare, Expr, For, Function, Index, IndexAssign, Module,
    Reduce, Stmt, TensorType, Var, Zero, ZeroPad, replace,
)  # fmt: skip
from loma.core.names import Names
from loma.core.walk import (
    as_part, free_variables, map_children, map_tensor_functions, reduced_axes, substitute, walk,
)  # fmt: skip
from loma.passes.canonical.steps import Steps
from loma.passes.first_write import assigned
from loma.passes.liveness import covers


def groups(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, lambda function: _Groups(function).run())


def in_groups(function: Function, stmt: IndexAssign, names: Names) -> tuple[Stmt, ...] | None:
    """What stands for a statement in the outermost block of a function, whose indices need stand
    alone nowhere; None where it is no convolution of channels in groups."""
    return _Groups(function, names).in_groups(stmt)


def with_groups(
    function: Function, total: IndexAssign, final: IndexAssign, group: Axis, names: Names
) -> tuple[Stmt, ...] | None:
    """What stands for a loop over ``group`` in the outermost block of a function, with ``total``, a
    convolution of a group's channels, of which ``final`` makes the group's part of a tensor element
    by element; None where that is nothing of the kind."""
    if not (total.op == final.op == "=" and covers(total)):
        return None
    extents = {axis.name: axis.extent for axis in (group, *final.axes)}
    target, is_size = final.element, frozenset(sizes.size_variables(function)).__contains__
    dims = sizes.dims_of(target.tensor)
    pairs = [pair_of(s, d, extents, is_size) for s, d in zip(target.subscripts, dims, strict=True)]
    split = [k for k, pair in enumerate(pairs) if pair]
    whole = replace(final, axes=(group, *final.axes))
    reads = free_variables(total.value) | free_variables(final.value)
    if len(split) != 1 or not covers(whole) or target.tensor.name in reads:
        return None
    ((outer, _), (inner, channels)) = pairs[split[0]]
    inside = [k for k, s in enumerate(total.element.subscripts) if s == inner]
    if outer != Var(group.name, INT) or len(inside) != 1:
        return None

    def part(place: Index, wish: str, at: int, own: tuple[Expr, ...]) -> Index:
        """A tensor's element with a dimension for the groups."""
        before = sizes.dims_of(place.tensor)
        length = before[at] if own == place.subscripts else channels
        type_ = TensorType((*before[:at], group.extent, length, *before[at + 1 :]))
        subscripts = (*own[:at], outer, own[at], *own[at + 1 :])
        return replace(place, base=Var(names.fresh(wish), type_), subscripts=subscripts)

    summed = part(total.element, "_r", inside[0], total.element.subscripts)
    own = (*target.subscripts[: split[0]], inner, *target.subscripts[split[0] + 1 :])
    made = part(target, f"_{target.tensor.name}", split[0], own)
    axes = {a.name: a for a in (group, *total.axes)}
    order = tuple(axes[s.name] for s in summed.subscripts if isinstance(s, Var))
    steps = in_groups(function, replace(total, target=summed, axes=order), names)
    if steps is None:
        return None

    value = as_part(final.value, total.element.tensor.name, summed.tensor, inside[0], outer)
    axes = {a.name: a for a in whole.axes}
    order = tuple(axes[s.name] for s in made.subscripts if isinstance(s, Var))
    return (
        Declare(summed.tensor, None, final.span), *steps, Declare(made.tensor, None, final.span),
        replace(final, target=made, value=value, axes=order),
        Assign(target.tensor, "=", _reshaped(made.tensor, dims), final.span),
    )  # fmt: skip


def copied(stmt: IndexAssign, copy: IndexAssign) -> IndexAssign | None:
    """Of a statement that gives a tensor all its elements and one that copies these: the copy, with
    the elements' value for them."""
    match stmt, copy:
        case (
            IndexAssign(Index(Var(name), places), "=", value),
            IndexAssign(Index(), "=", Index(Var(source), reads)),
        ) if name == source:
            pass
        case _:
            return None
    own = [s.name for s in places if isinstance(s, Var)]
    axes = {axis.name for axis in copy.axes}
    bare = {s.name for s in reads if isinstance(s, Var)}
    taken = {axis.name for axis in reduced_axes(value)}
    whole = covers(stmt) and len(own) == len(places) and name not in free_variables(value)
    if not whole or not len(bare) == len(reads) == len(axes) or bare != axes or taken & axes:
        return None
    return replace(copy, value=substitute(value, dict(zip(own, reads, strict=True))))


@dataclass(frozen=True, slots=True)
class _Sum:
    """A statement that adds the product of two reads to its target. ``places``: target and reads;
    ``padded``: which of them may lie outside; ``summed``: the axes of its reduction."""

    places: tuple[Index, ...]
    padded: tuple[bool, ...]
    axes: tuple[Axis, ...]
    summed: tuple[Axis, ...]

    @property
    def extents(self) -> dict[str, Expr]:
        return {axis.name: axis.extent for axis in (*self.axes, *self.summed)}


def _sum(stmt: IndexAssign, around: tuple[Axis, ...]) -> _Sum | None:
    value: Expr = stmt.value
    summed: tuple[Axis, ...] = ()
    if isinstance(value, Reduce) and value.kind == "sum":
        summed, value = value.axes, value.body
    if not (isinstance(value, Binary) and value.op == "*"):
        return None
    parts = (stmt.target, value.left, value.right)
    padded = tuple(isinstance(part, ZeroPad) for part in parts)
    places = [part.read if isinstance(part, ZeroPad) else part for part in parts]
    tensors = tuple(place for place in places if isinstance(place, Index) and _is_float(place.base))
    if len(tensors) < 3 or tensors[0].base in (tensors[1].base, tensors[2].base):
        return None
    return _Sum(tensors, padded, (*around, *stmt.axes), summed)


def _is_float(tensor: Expr) -> bool:
    type_ = tensor.type
    return isinstance(type_, TensorType) and type_.dims is not None and not type_.integer


class _Groups(Steps):
    def in_groups(self, stmt: IndexAssign) -> tuple[Stmt, ...] | None:
        steps = self._grouped(stmt, ())
        return None if steps is None else (*self._declared, *steps)

    def _block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stmt in body:
            around, inner = nest(stmt)
            made = None
            if around and isinstance(inner, IndexAssign) and inner.op == "+=":
                made = self._grouped(inner, around)
            out += super()._block((stmt,)) if made is None else made
        return tuple(out)

    def _steps(self, stmt: IndexAssign) -> list[Stmt]:
        return self._grouped(stmt, ()) or [stmt]

    def _grouped(self, stmt: IndexAssign, around: tuple[Axis, ...]) -> list[Stmt] | None:
        """The statement, in loops over ``around``, on views; None where it is not of this kind."""
        found = _sum(stmt, around)
        if found is None:
            return None
        extents = found.extents
        if len(extents) < len(found.axes) + len(found.summed):
            return None  # a reduction's own index hides another one
        if not all(free_variables(extent) <= self._sizes for extent in extents.values()):
            return None
        return self._apart(stmt, self._undivided(found))

    # ------------------------------------------------------------------------------ divided indices

    def _undivided(self, whole: _Sum) -> _Sum:
        """With two indices for each that is divided by what divides its range."""
        for axis in (*whole.axes, *whole.summed):
            for by in _divisors(whole.places, axis.name):
                count = sizes.quotient(axis.extent, by)
                exact = sizes.equal(sizes.product((count, by)), axis.extent)
                if exact and self._are_sizes((count, by)):
                    return self._undivided(self._divided(whole, axis, by, count))
        return whole

    def _divided(self, whole: _Sum, axis: Axis, by: Expr, count: Expr) -> _Sum:
        group = Axis(self._names.fresh("_g"), count)
        quotient, rest = Var(group.name, INT), Var(axis.name, INT)
        both = b.binary("+", b.binary("*", quotient, by), rest)

        def replaced(expr: Expr) -> Expr:
            match expr:
                case Binary("//" | "%" as op, Var(axis.name), right) if sizes.equal(right, by):
                    return quotient if op == "//" else rest
                case Var(axis.name):
                    return both
                case _:
                    return map_children(expr, replaced)

        def axes(every: tuple[Axis, ...]) -> tuple[Axis, ...]:
            parts = (group, Axis(axis.name, by))
            return tuple(new for a in every for new in (parts if a is axis else (a,)))

        places = (replace(p, subscripts=tuple(map(replaced, p.subscripts))) for p in whole.places)
        return _Sum(tuple(places), whole.padded, axes(whole.axes), axes(whole.summed))

    def _are_sizes(self, extents: Iterable[Expr]) -> bool:
        return all(sizes.is_nonnegative(extent, self._is_size) for extent in extents)

    # --------------------------------------------------------------------------- divided dimensions

    def _apart(self, stmt: IndexAssign, whole: _Sum) -> list[Stmt] | None:
        """The statement on views, if these make a convolution of groups of it."""
        padded = zip(whole.places, whole.padded, strict=True)
        parts = [self._parts(place, may_miss, whole.extents) for place, may_miss in padded]
        bare = [{s.name for s, _ in own if isinstance(s, Var)} for own in parts]
        images = sum(any(not isinstance(s, Var) for s, _ in own) for own in parts)
        split = [len(own) > len(p.subscripts) for own, p in zip(parts, whole.places, strict=True)]
        if not any(split) or images != 1 or not set.intersection(*bare):
            return None
        if split[0] and stmt.op == "=" and not covers(stmt):
            return None
        out: list[Stmt] = []
        places: list[Index] = []
        for place, own, is_split in zip(whole.places, parts, split, strict=True):
            base, dims = place.tensor, tuple(dim for _, dim in own)
            if is_split:
                base = self._temporary(f"_{base.name}", TensorType(dims), stmt.span)
                if places:
                    out.append(Assign(base, "=", _reshaped(place.tensor, dims), stmt.span))
            places.append(replace(place, base=base, subscripts=tuple(s for s, _ in own)))
        reads = zip(places[1:], whole.padded[1:], strict=True)
        left, right = (ZeroPad(p, p.span) if may_miss else p for p, may_miss in reads)
        value: Expr = b.binary("*", left, right)
        if whole.summed:
            value = Reduce("sum", value, whole.summed, FLOAT, stmt.span)
        target, whole_target = places[0], whole.places[0].tensor
        new, loops = ranged(target, "+=" if split[0] else stmt.op, value, whole.axes)
        if loops or len(new.axes) < len(whole.axes):
            return None
        new = replace(new, span=stmt.span, distinct=stmt.distinct)
        if not split[0]:
            return [*out, new]
        new = assigned(new) if covers(new) else new
        out += [new] if new.op == "=" else [Zero(target.tensor, stmt.span), new]
        found = _reshaped(target.tensor, sizes.dims_of(whole_target))
        return [*out, Assign(whole_target, stmt.op, found, stmt.span)]

    def _parts(
        self, place: Index, padded: bool, extents: dict[str, Expr]
    ) -> list[tuple[Expr, Expr]]:
        """Subscripts, and dimensions, of a view in which indices have dimensions of their own;
        nothing where an element of it might not exist."""
        found: list[tuple[Expr, Expr]] = []
        for subscript, dim in zip(place.subscripts, sizes.dims_of(place.tensor), strict=True):
            pair = pair_of(subscript, dim, extents, self._is_size)
            if isinstance(subscript, Var) and subscript.name in extents:
                inside = sizes.equal(extents[subscript.name], dim) is True
            else:
                inside = padded or bool(pair)
                inside = inside or bounds.stays_inside(subscript, dim, extents, self._is_size)
            if not inside or not free_variables(dim) <= self._sizes:
                return []
            found += pair or [(subscript, dim)]
        return found


def pair_of(
    subscript: Expr, dim: Expr, extents: Mapping[str, Expr], is_size: sizes.IsSize
) -> list[tuple[Expr, Expr]]:
    """Of ``g * C + c``, where that goes through a dimension in order, the two dimensions of ``g``
    and ``c``."""
    pair = parts_of(subscript, extents)
    own = tuple(extent for _, extent in pair)
    exact = bool(pair) and sizes.equal(sizes.product(own), dim) is True
    return pair if exact and all(sizes.is_nonnegative(e, is_size) for e in own) else []


def parts_of(subscript: Expr, extents: Mapping[str, Expr]) -> list[tuple[Expr, Expr]]:
    """Of ``g * C + c``, c being an index below C, the indices ``g`` and ``c`` with their ranges."""
    form = sizes.affine(subscript, tuple(Axis(*item) for item in extents.items()))
    if form is None or len(form[0]) != 2 or sizes.constant(form[1]) != 0:
        return []
    for outer, inner in permutations(form[0]):
        length = extents[inner]
        ordered = sizes.constant(form[0][inner]) == 1 and sizes.equal(form[0][outer], length)
        moves = sizes.constant(length) != 1  # else ``h + p`` with one ``p`` is such a sum
        if ordered and moves:
            return [(Var(outer, INT), extents[outer]), (Var(inner, INT), length)]
    return []


def nest(stmt: Stmt) -> tuple[tuple[Axis, ...], Stmt]:
    """Loops around a single statement, and that."""
    around: tuple[Axis, ...] = ()
    while isinstance(stmt, For) and len(stmt.body) == 1:
        around, stmt = (*around, Axis(stmt.counter, stmt.extent)), stmt.body[0]
    return around, stmt


def _divisors(places: Iterable[Index], index: str) -> Iterator[Expr]:
    for place in places:
        for node in (node for s in place.subscripts for node in walk(s)):
            match node:
                case Binary("//" | "%", Var(name), by) if name == index:
                    yield by


def _reshaped(tensor: Var, dims: tuple[Expr, ...]) -> Expr:
    return b.operator("reshape", (tensor,), {"shape": dims})
