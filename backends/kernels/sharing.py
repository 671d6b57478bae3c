"""Which index a run of statements can share: the dependences behind fusion.

Statements may run together in one parallel loop over an index ``p`` when every tensor that one of
them writes is only ever accessed at ``p`` in one and the same dimension: then an iteration reads
nothing that another one writes. A sum over ``p`` ends the run, because its target lacks ``p``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Literal, TypeAlias

from loma.core import sizes
from loma.core.effects import counters, written
from loma.core.ir import (
    Assign, Axis, Call, Declare, Expr, For, Function, If, Index, IndexAssign, Op, Reduce, Return,
    Stmt, TensorType, Var, Zero, remembered, replace,
)  # fmt: skip
from loma.core.walk import (
    blocks, expressions, free_variables, nodes, reads_elements, reduced_axes, root, statements,
    subscript_variables, variable_names, variables, walk,
)  # fmt: skip

# What a backend hands to a library as a whole, and calls it; None: loops of its own
Routine: TypeAlias = Literal["product", "products of groups", "convolution"]
Library: TypeAlias = Callable[[IndexAssign], Routine | None]
# At which dimensions of each tensor an index stands, None: it is read without
Forms: TypeAlias = dict[str, set[int | None]]


@dataclass(frozen=True, slots=True)
class Shared:
    """One way in which the statements so far share an index.

    ``dims`` gives, for each tensor that they write, the dimension of the shared index; ``reads``
    the same for tensors that they read, None where a read does not stand at the shared index alone.
    ``mixed``: some tensor is read both at the index and elsewhere, so that what belongs to a part
    of the index's values is not all that they read of it. ``sums`` are tensors that sums over the
    index are added to. ``names`` is what their index statements, in order, call the index.
    """

    extent: Expr | None
    dims: tuple[tuple[str, int], ...] = ()
    reads: tuple[tuple[str, int | None], ...] = ()
    sums: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    mixed: bool = False

    def dim(self, tensor: str) -> int | None:
        return dict(self.dims).get(tensor)


NOTHING = Shared(None)


@dataclass(frozen=True, slots=True)
class Around:
    """The panels around statements: ``counts`` are the extents of their axes, which are not cut
    again, ``blank`` tensors of the function that are all zero before the first of the statements
    that mentions them."""

    counts: frozenset[str] = frozenset()
    blank: frozenset[str] = frozenset()


OUTERMOST = Around()


class Sharing:
    """Extends shared indices by one statement of a function at a time.

    ``library`` tells which statements a backend hands to a library as a whole. For ``panels``,
    where a few values of the index at a time go through all statements, sums over the index may
    take part, and statements that read a large operand once for all of these values, products of
    the library among them. ``around``: what panels around the function's body have decided.
    ``parts``: sums over the index may take part in kernels, too (:mod:`.parts`).
    """

    def __init__(
        self,
        function: Function,
        library: Library,
        panels: bool,
        around: Around,
        parts: bool,
    ) -> None:
        self.first_writes = _first_writes(function, around.blank)
        self.totals = _totals(function) if panels else frozenset()
        self._panels = panels
        self._parts = parts
        self._library = library
        self._changed = written(function.body) | counters(function.body)
        if panels:
            self._changed |= around.counts
        self._inside: frozenset[str] = frozenset()  # what the statement at hand changes
        self._stays_outside = cache(self._is_no_loop)

    def extend(self, shared: Shared, stmt: Stmt) -> list[Shared]:
        """The ways in which the statement can join; none when it has to stay outside."""
        self._inside = frozenset(written((stmt,)))
        ways = self._extend(shared, stmt)
        if self._parts and isinstance(stmt, IndexAssign) and self._may_have_parts(stmt):
            ways += self._sum(shared, opened(stmt))
        return ways

    def _may_have_parts(self, stmt: IndexAssign) -> bool:
        """Whether the target of a sum can have parts, of which each is less than what it reads."""
        if not isinstance(stmt.target, Index) or not is_float(stmt.target):
            return False
        names = {axis.name for axis in stmt.axes}
        own = [axis.extent for axis in stmt.axes if axis.name in subscripts_of(stmt)]
        fixed = all(self._fixed(size) and not sizes.mentions(size, names) for size in own)
        return fixed and bool(whole_reads(stmt)) and not self._stays_outside(stmt)

    def _extend(self, shared: Shared, stmt: Stmt) -> list[Shared]:
        match stmt:
            case IndexAssign(Index(Var())):
                return list(self._index_assign(shared, stmt))
            case IndexAssign(Var(name)) if self._panels and name in self.totals:
                return list(self._sum(shared, stmt))
            case Zero(Var() as target) if isinstance(target.type, TensorType):
                return list(self._zero(shared, target))
            case Assign(Var() as target, _, value):
                plain = not isinstance(target.type, TensorType) and not reads_tensors(value)
                return [shared] if plain else []
            case For(_, extent, body) if self._keeps(extent):
                return self._block([shared], body)
            case If(cond, then, other) if not reads_tensors(cond):
                return self._block(self._block([shared], then), other)
            case _:
                return []

    def _block(self, found: list[Shared], body: tuple[Stmt, ...]) -> list[Shared]:
        for stmt in body:
            found = list(dict.fromkeys(new for old in found for new in self._extend(old, stmt)))
        return found

    def _fixed(self, size: Expr) -> bool:
        """Whether an int has one value throughout the function."""
        return not (variable_names(size) & self._changed) and not reads_tensors(size)

    def _keeps(self, extent: Expr) -> bool:
        """Whether a loop has as many rounds wherever the shared index stands: what data say of it,
        they say before. No statement joins such a loop: what it does not change itself stays."""
        return not any(
            isinstance(node, Call | Op)
            or (isinstance(node, Var) and isinstance(node.type, TensorType)
                and node.name in self._inside)
            for node in walk(extent)
        )  # fmt: skip

    def _zero(self, shared: Shared, target: Var) -> Iterator[Shared]:
        known = shared.dim(target.name)
        if target.name in shared.sums:
            return
        for dim, size in enumerate(sizes.dims_of(target)):
            if known is not None and dim != known:
                continue
            if self._fixed(size) and _fits(shared.extent, size):
                yield from _written(replace(shared, extent=shared.extent or size), target.name, dim)

    def _index_assign(self, shared: Shared, stmt: IndexAssign) -> Iterator[Shared]:
        target, name = stmt.element, stmt.element.tensor.name
        if self._stays_outside(stmt) or name in shared.sums:
            return
        first = self.first_writes.get(name)
        if self._panels and (stmt.op == "+=" or stmt is first):
            yield from self._sum(shared, opened(stmt))
        axes = {axis.name: axis for axis in stmt.axes}
        known = shared.dim(name)
        for dim, subscript in enumerate(target.subscripts):
            if known is not None and dim != known:
                continue
            axis = axes.get(subscript.name) if isinstance(subscript, Var) else None
            if axis is None or not self._may_share(shared, stmt, axis):
                continue
            if not self._panels and streams_operand(stmt, axis.name):
                continue
            forms = _forms(stmt)[axis]
            if forms is None or forms.get(name, {dim}) != {dim}:
                continue
            new = replace(shared, extent=shared.extent or axis.extent)
            read = _read(new, forms, name)
            if read is None or (self._panels and read.mixed):
                continue
            for found in _written(read, name, dim):
                yield replace(found, names=(*found.names, axis.name))

    def _may_share(self, shared: Shared, stmt: IndexAssign, axis: Axis) -> bool:
        """Whether an axis of the statement may be the shared index, as far as ranges tell."""
        return (
            self._fixed(axis.extent)
            and _fits(shared.extent, axis.extent)
            and not any(sizes.mentions(other.extent, {axis.name}) for other in stmt.axes)
            and not _is_behind_rows(stmt, axis)
        )

    def _sum(self, shared: Shared, stmt: IndexAssign) -> Iterator[Shared]:
        """The ways in which a statement adds sums over the index to its target."""
        name = root(stmt.target)
        if stmt.op != "+=" or shared.dim(name) is not None or name in dict(shared.reads):
            return
        own = subscripts_of(stmt)
        for axis in stmt.axes:
            if axis.name in own or not self._may_share(shared, stmt, axis):
                continue
            forms = _forms(stmt)[axis]
            if forms is None or forms.get(name, {None}) != {None}:
                continue
            if all(f == {None} for f in forms.values()):
                continue
            if name in variable_names(stmt.value):
                continue
            new = _read(replace(shared, extent=shared.extent or axis.extent), forms, name)
            if new is not None and not new.mixed:
                yield replace(new, sums=(*new.sums, name), names=(*new.names, axis.name))

    def _is_no_loop(self, stmt: IndexAssign) -> bool:
        bare: list[str] = []  # indices that a subscript is, or is so far from: those of a part
        for subscript in stmt.element.subscripts:
            parts = sizes.affine(subscript, stmt.axes)
            match list(parts[0].items()) if parts else []:
                case [(name, step)] if sizes.constant(step) == 1:
                    bare.append(name)
                case _:
                    pass
        used = subscript_variables(stmt.element) & {axis.name for axis in stmt.axes}
        # one that scatters may have to work on a copy of its target
        scatters = bool(used - set(bare)) or len(set(bare)) < len(bare)
        routine = self._library(stmt)
        shares = routine is None or (routine == "product" and self._panels)
        return scatters or not shares


def _totals(function: Function) -> frozenset[str]:
    """Scalars to which index statements add sums, and that nothing else looks at but statements
    between runs."""
    found = {s.target.name for s in index_assigns(function.body) if isinstance(s.target, Var)}
    for stmt in statements(function.body):
        sums = isinstance(stmt, IndexAssign) and isinstance(stmt.target, Var) and stmt.op == "+="
        own = [stmt.value] if isinstance(stmt, IndexAssign) and sums else expressions(stmt)
        if not (isinstance(stmt, Assign | Declare | Return) and stmt in function.body):
            found -= {name for expr in own for name in variable_names(expr)}
    return frozenset(found)


def _is_behind_rows(stmt: IndexAssign, axis: Axis) -> bool:
    """Whether an axis of the target comes behind one that data tell the length of a sum for: such
    rows run side by side, each with all its columns."""
    places = stmt.target.subscripts if isinstance(stmt.target, Index) else ()
    names = [sub.name for sub in places if isinstance(sub, Var)]
    around = set(names[: names.index(axis.name)]) if axis.name in names else set()
    return any(
        reads_elements(each.extent) and sizes.mentions(each.extent, around)
        for each in reduced_axes(stmt.value)
    )


def _fits(extent: Expr | None, size: Expr) -> bool:
    return extent is None or sizes.equal(extent, size) is True


def _written(shared: Shared, tensor: str, dim: int) -> Iterator[Shared]:
    if shared.dim(tensor) is not None:
        yield shared
    elif dict(shared.reads).get(tensor, dim) == dim:
        yield replace(shared, dims=(*shared.dims, (tensor, dim)))


def _read(shared: Shared, forms: Forms, target: str) -> Shared | None:
    """With the reads of a statement; None if one depends on what another iteration writes."""
    reads, mixed = dict(shared.reads), shared.mixed
    for tensor, own in forms.items():
        if tensor == target:
            continue
        form = next(iter(own)) if len(own) == 1 else None
        dim = shared.dim(tensor)
        if tensor in shared.sums:
            return None
        if dim is not None and form != dim:
            return None
        mixed = mixed or len(own) > 1 or reads.get(tensor, form) != form
        reads[tensor] = form if reads.get(tensor, form) == form else None
    return replace(shared, reads=tuple(sorted(reads.items())), mixed=mixed)


@remembered
def _forms(stmt: IndexAssign) -> dict[Axis, Forms | None]:
    return {axis: _forms_of(stmt, axis) for axis in stmt.axes}


def _forms_of(stmt: IndexAssign, index: Axis) -> Forms | None:
    """For each tensor that the statement accesses: at which dimension the index stands, None where
    it does not occur. No result when the index takes part in a subscript in any other way."""
    found: dict[str, set[int | None]] = {}
    name, extent = index.name, index.extent
    for side in (stmt.target, stmt.value):
        for node in walk(side):
            if isinstance(node, Reduce) and any(axis.name == name for axis in node.axes):
                return None
            if not isinstance(node, Index) or not isinstance(node.base.type, TensorType):
                continue
            at = [k for k, s in enumerate(node.subscripts) if sizes.mentions(s, {name})]
            dims = node.base.type.dims
            if len(at) > 1 or dims is None:
                return None
            if at and not (
                isinstance(node.subscripts[at[0]], Var) and sizes.equal(dims[at[0]], extent) is True
            ):
                return None
            found.setdefault(node.tensor.name, set()).add(at[0] if at else None)
    return found


def forms_along(stmt: IndexAssign, axis: Axis) -> Forms | None:
    """For each tensor that a statement accesses: at which dimensions an axis of it stands, None
    where it does not occur. No result where it takes part in a subscript in any other way."""
    return _forms(stmt).get(axis)


@remembered
def opened(stmt: IndexAssign) -> IndexAssign:
    """``T[i] = sum(e for k in K)`` as ``T[i] += e``, which is the same when T is all zero."""
    value = stmt.value
    if stmt.op == "=" and isinstance(value, Reduce) and value.kind == "sum":
        taken = {axis.name for axis in stmt.axes}
        if all(
            axis.name not in taken and not sizes.varies(axis.extent, taken) for axis in value.axes
        ):
            return replace(stmt, op="+=", value=value.body, axes=(*stmt.axes, *value.axes))
    return stmt


@remembered
def whole_reads(stmt: IndexAssign) -> frozenset[str]:
    """The tensors of which a statement reads an element for each value of all of its indices."""
    stmt = opened(stmt)
    names = {axis.name for axis in stmt.axes}
    return frozenset(
        node.tensor.name
        for node in walk(stmt.value)
        if isinstance(node, Index)
        and isinstance(node.base.type, TensorType)
        and names <= free_variables(node)
    )


def is_float(place: Index) -> bool:
    """Whether a place is an element of a tensor of floats."""
    return isinstance(place.base.type, TensorType) and place.base.type.element == "float"


def subscripts_of(stmt: IndexAssign) -> frozenset[str]:
    """The variables in the target's subscripts."""
    return subscript_variables(stmt.target) if isinstance(stmt.target, Index) else frozenset()


def streams_operand(stmt: IndexAssign, name: str) -> bool:
    """Whether each iteration over the index would run through a large operand that does not depend
    on it, as ``U[b, i, r, o] = sum(W[i, r, o, k] * X[b, r, k] for k in K)`` does with W for each b.

    Such a statement reads less when its own loop keeps the operand's elements and runs over the
    index inside. Large is what has an axis more than the target and every axis of it but this one,
    and more elements than an iteration reads of an operand of its own: not ``w`` in
    ``m[n] = sum(x[n, d] * w[d] for d in D)``.
    """
    rest, read = subscripts_of(stmt) - {name}, _read_over(stmt)
    return any(
        name not in own and own > rest and not any(other >= own | {name} for other in read)
        for own in read
    )


@remembered
def _read_over(stmt: IndexAssign) -> set[frozenset[str]]:
    """The variables in the subscripts of each element that the statement reads."""
    return {
        subscript_variables(node)
        for node in walk(stmt.value)
        if isinstance(node, Index) and isinstance(node.base.type, TensorType)
    }


def is_last(group: tuple[Stmt, ...], shared: Shared) -> bool:
    """Whether the shared index is the last dimension of a tensor that the statements use, so that
    loops should run along it. That of one number for each row does not count where the statements
    go along rows step by step."""
    some = any(dim + 1 == rank for dim, rank in _places(group, shared))
    return some and (is_row(group, shared) or not _has_steps(group))


def _has_steps(group: tuple[Stmt, ...]) -> bool:
    """Whether a loop of the statements runs along the last dimension of a tensor."""
    found = counters(group)
    return any(
        isinstance(node, Index) and bool(found & variable_names(node.subscripts[-1]))
        for node in nodes(group)
        if isinstance(node, Index) and len(node.subscripts) > 1
    )


def is_row(group: tuple[Stmt, ...], shared: Shared) -> bool:
    """Whether the shared index is the last dimension of the tensors with most dimensions, not only
    of those that have one number for each row of these, as maxima of rows."""
    places = _places(group, shared)
    most = max((rank for _, rank in places), default=0)
    return any(dim + 1 == rank == most for dim, rank in places)


def _places(group: tuple[Stmt, ...], shared: Shared) -> list[tuple[int, int]]:
    """The shared index's dimension of each tensor that has it, and how many the tensor has."""
    ranks = dict(chain.from_iterable(map(_ranks, statements(group))))
    dims = dict((*shared.reads, *shared.dims)).items()
    return [(dim, ranks[name]) for name, dim in dims if dim is not None and name in ranks]


@remembered
def _ranks(stmt: Stmt) -> tuple[tuple[str, int], ...]:
    return tuple(
        (node.name, len(node.type.dims))
        for expr in expressions(stmt)
        for node in walk(expr)
        if isinstance(node, Var) and isinstance(node.type, TensorType) and node.type.dims
    )


def index_assigns(group: tuple[Stmt, ...]) -> list[IndexAssign]:
    return [stmt for stmt in statements(group) if isinstance(stmt, IndexAssign)]


@remembered
def reads_tensors(expr: Expr) -> bool:
    """Whether evaluating a scalar looks at elements of tensors."""
    return any(
        isinstance(node, Call | Op) or isinstance(node.type, TensorType) for node in walk(expr)
    )


def mentions(body: tuple[Stmt, ...]) -> Counter[str]:
    """How often each variable occurs in statements, nested ones included."""
    return Counter(chain.from_iterable(map(_occurrences, statements(body))))


@remembered
def _occurrences(stmt: Stmt) -> tuple[str, ...]:
    return tuple(name for expr in expressions(stmt) for name in variables(expr))


def _first_writes(function: Function, blank: frozenset[str]) -> dict[str, IndexAssign]:
    """Index statements outside of loops that are the first to mention their target, a declared or
    ``blank`` tensor, which is all zero until then."""
    declared = [s for s in statements(function.body) if isinstance(s, Declare)]
    free = blank | {s.target.name for s in declared}
    seen = {s.target.name for s in declared if s.value is not None}
    seen |= mentions(function.body).keys() - free
    found: dict[str, IndexAssign] = {}

    def look(body: tuple[Stmt, ...], loop: bool) -> None:
        for stmt in body:
            if isinstance(stmt, IndexAssign) and isinstance(stmt.target, Index) and not loop:
                base = stmt.target.base
                if isinstance(base, Var) and base.name not in seen:
                    found[base.name] = stmt
            if not isinstance(stmt, Declare) and not blocks(stmt):
                seen.update(mentions((stmt,)))
            for block in blocks(stmt):
                look(block, loop or not isinstance(stmt, If))

    look(function.body, False)
    return found
