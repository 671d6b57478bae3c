"""Channels in groups: what is gone through as ``g * C + c`` has dimensions for ``g`` and for ``c``.

    m[n, g] = sum(x[n, g * C + c] for c in range(C)) / C
    y[n, c] = (x[n, c] - m[n, c // C]) * w[c]

goes through views in which both statements have the same indices, so that they share loops, and the
adjoint of ``x`` has none that scatters:

    _x = reshape(x, [N, G, C]);  _w = reshape(w, [G, C])
    m[n, g] = sum(_x[n, g, c] for c in C) / C
    _y[n, g, c] = (_x[n, g, c] - m[n, g]) * _w[g, c]

Wanted are both forms of one tensor, and an index that is divided. So does what is written
as ``2 * d`` and ``2 * d + 1``, the pairs of a rotation: the tensor has a dimension of 2 behind that
of ``d``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from loma.core import builder as b
from loma.core import sizes
from loma.core.axes import ranged
from loma.core.effects import blanks, counters, written
from loma.core.ir import (
    FLOAT, INT, POSITIONS, Axis, Binary, Declare, Expr, Function, Index, IndexAssign, IntConst,
    Module, Reduce, Stmt, TensorType, Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.walk import (
    blocks, expressions, free_variables, map_blocks, map_children, map_expressions,
    map_tensor_functions, numbered, reduced_axes, statements, variable_names, walk,
)  # fmt: skip
from loma.passes.canonical.groups import pair_of, parts_of

Parts = tuple[Expr, Expr]  # how many groups, and how many in each
Dim = tuple[str, int]  # of a tensor
Own = tuple[int, str]  # an index: which statement, and its name there


def channels(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, lambda function: _Channels(function).run())


class _Refused(Exception):
    """Something goes through a dimension in another way."""


@dataclass(frozen=True, slots=True)
class _Use:
    """A subscript of a tensor: an ``index`` alone, all through the dimension, or ``parts`` of a
    pair, of each group the ``member`` of that number, or something else."""

    dim: Dim
    index: Own | None
    parts: Parts | None
    member: int | None = None
    writes: bool = False


class _Channels:
    def __init__(self, function: Function) -> None:
        self._function = replace(function, body=numbered(function.body))
        self._names = Names(names_of(function))
        changing = written(function.body) | counters(function.body)
        params = {param.name for param in function.params if param.type == INT}
        known = params | set(sizes.size_variables(function))
        self._sizes = frozenset(known - changing)
        self._lengths = sizes.lengths(function) & self._sizes
        body = statements(self._function.body)
        self._own = {s.number: s for s in body if isinstance(s, IndexAssign)}
        self._given = self._unchanged()
        self._tensors = self._movable()
        self._uses = [use for stmt in self._own.values() for use in self._uses_in(stmt)]
        self._dims: dict[Dim, Parts] = {}
        self._indices: dict[Own, Parts] = {}
        self._views: dict[str, Var] = {}

    def run(self) -> Function:
        for dim, parts in self._wanted():
            self._divide(dim, parts)
        if not self._dims:
            return self._function
        try:
            return self._made()
        except _Refused:
            return self._function

    # --------------------------------------------------------------------------- what is divided

    def _unchanged(self) -> dict[str, Var]:
        """Arguments that nothing writes, and what is a value of operators from the beginning."""
        whole = [s for s in self._function.body if isinstance(s, Declare) and s.value is not None]
        rest = tuple(s for s in self._function.body if s not in whole)
        kept = written(rest) | {s.target.name for s in statements(rest) if isinstance(s, Declare)}
        found = [*(Var(p.name, p.type) for p in self._function.params), *(s.target for s in whole)]
        return {var.name: var for var in found if var.name not in kept}

    def _movable(self) -> dict[str, Var]:
        """What nothing changes, and local tensors that index statements alone write."""
        body = list(statements(self._function.body))
        whole = [s for s in body if not isinstance(s, IndexAssign | Declare) and not blocks(s)]
        kept = {name for stmt in whole for name in written((stmt,))}
        declared = Counter(s.target.name for s in body if isinstance(s, Declare))
        own = blanks(self._function.body).values()
        found = [var for var in own if declared[var.name] == 1 and var.name not in kept]
        return {
            var.name: var for var in (*found, *self._given.values())
            if isinstance(var.type, TensorType) and var.type.dims is not None
            and not var.type.integer
            and all(free_variables(dim) <= self._sizes for dim in var.type.dims)
        }  # fmt: skip

    def _uses_in(self, stmt: IndexAssign) -> Iterator[_Use]:
        extents = extents_of(stmt)
        for place in _places(stmt):
            for k, (subscript, dim) in enumerate(
                zip(place.subscripts, sizes.dims_of(place.tensor), strict=True)
            ):
                index: Own | None = None
                if isinstance(subscript, Var) and subscript.name in extents:
                    whole = sizes.equal(extents[subscript.name], dim) is True
                    index = (stmt.number, subscript.name) if whole else None
                pair = self._pair(subscript, dim, extents)
                parts = (pair[0][1], pair[1][1]) if pair else None
                member = sizes.constant(pair[1][0]) if pair else None
                writes = place is stmt.target
                yield _Use((place.tensor.name, k), index, parts, member, writes)

    def _wanted(self) -> Iterator[tuple[Dim, Parts]]:
        for use in self._uses:
            if use.parts is not None and any(
                other.dim == use.dim
                and other.index is not None
                and _is_divided(self._own[other.index[0]], other.index[1], use.parts[1])
                for other in self._uses
            ):
                yield use.dim, use.parts
        for stmt in self._own.values():
            extents = extents_of(stmt)
            for place in operands(stmt):
                for k, (subscript, dim) in enumerate(
                    zip(place.subscripts, sizes.dims_of(place.tensor), strict=True)
                ):
                    if pair := self._pair(subscript, dim, extents):
                        yield (place.tensor.name, k), (pair[0][1], pair[1][1])
        for use in self._uses:
            if use.index is not None:
                yield from self._of_each_part(use)
        members: dict[Dim, set[int]] = {}
        for use in self._uses:
            if use.member is not None and use.writes:
                members.setdefault(use.dim, set()).add(use.member)
        for use in self._uses:
            own = members.get(use.dim, set())
            if use.parts is not None and sizes.constant(use.parts[1]) == len(own):
                yield use.dim, use.parts

    def _of_each_part(self, use: _Use) -> Iterator[tuple[Dim, Parts]]:
        """A dimension of which each part is multiplied by another matrix, ``p[i // C, t, j]``."""
        assert use.index is not None
        number, name = use.index
        stmt, extents = self._own[number], extents_of(self._own[number])
        if extents.keys() <= free_variables(stmt.target):
            return
        products = any(isinstance(n, Binary) and n.op == "*" for n in walk(stmt.value))
        places = [zip(p.subscripts, sizes.dims_of(p.tensor), strict=True) for p in _places(stmt)]
        divided = {pair for pairs in places for pair in pairs if not isinstance(pair[0], Var)}
        match [*divided]:
            case [(Binary("//", Var(own), length), count)] if own == name and products:
                if sizes.equal(sizes.product((count, length)), extents[name]) is True:
                    yield use.dim, (count, length)
            case _:
                pass

    def _divide(self, dim: Dim, parts: Parts) -> None:
        """Divides a dimension, and what is gone through with the same indices."""
        own = [use for use in self._uses if use.dim == dim]
        found = [self._indices.get(u.index, parts) if u.index else u.parts for u in own]
        fits = all(other is not None and _same(other, parts) for other in found)
        if dim in self._dims or dim[0] not in self._tensors or not fits:
            return
        self._dims[dim] = parts
        for index in {use.index for use in own if use.index is not None} - self._indices.keys():
            self._indices[index] = parts
            for use in self._uses:
                if use.index == index:
                    self._divide(use.dim, parts)

    # ------------------------------------------------------------------------------ what is made

    def _made(self) -> Function:
        views: dict[str, Stmt] = {}
        for name in sorted({name for name, _ in self._dims}):
            old = self._tensors[name]
            dims = tuple(
                part
                for k, dim in enumerate(sizes.dims_of(old))
                for part in self._dims.get((name, k), (dim,))
            )
            assert isinstance(old.type, TensorType)
            view = Var(self._names.fresh(f"_{name}"), replace(old.type, dims=dims))
            self._views[name] = view
            if name in self._given:
                views[name] = Declare(view, b.operator("reshape", (old,), {"shape": dims}))
        body: list[Stmt] = [views[p.name] for p in self._function.params if p.name in views]
        for stmt in self._function.body:
            body.append(self._statement(stmt))
            if isinstance(stmt, Declare) and stmt.target.name in views:
                body.append(views[stmt.target.name])
        return replace(self._function, body=tuple(body))

    def _statement(self, stmt: Stmt) -> Stmt:
        match stmt:
            case IndexAssign():
                return self._index_assign(stmt)
            case Declare(Var(name), None) if name in self._views:
                return replace(stmt, target=self._views[name])
            case _ if blocks(stmt):
                if any(self._views.keys() & variable_names(e) for e in expressions(stmt)):
                    raise _Refused
                return map_blocks(stmt, lambda block: tuple(map(self._statement, block)))
            case _:
                return map_expressions(stmt, self._whole)

    def _whole(self, expr: Expr) -> Expr:
        """An expression of whole tensors."""
        match expr:
            case Index(Var(name)) if name in self._views:
                raise _Refused
            case Var(name) if name in self._views and name not in self._given:
                dims = sizes.dims_of(self._tensors[name])
                return b.operator("reshape", (self._views[name],), {"shape": dims})
            case _:
                return map_children(expr, self._whole)

    def _index_assign(self, stmt: IndexAssign) -> IndexAssign:
        extents = extents_of(stmt)
        groups = {
            name: Axis(self._names.fresh("_g"), self._indices[number, name][0])
            for number, name in self._indices
            if number == stmt.number
        }
        if not groups and not any(p.tensor.name in self._views for p in _places(stmt)):
            return stmt
        if len(extents) < len([*stmt.axes, *reduced_axes(stmt.value)]):
            raise _Refused  # an index that hides another one

        def parts(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
            return tuple(
                new
                for axis in axes
                for new in (
                    (groups[axis.name], Axis(axis.name, self._indices[stmt.number, axis.name][1]))
                    if axis.name in groups
                    else (axis,)
                )
            )

        def subscripts(place: Index) -> tuple[Expr, ...]:
            found: list[Expr] = []
            dims = sizes.dims_of(place.tensor)
            for k, (subscript, dim) in enumerate(zip(place.subscripts, dims, strict=True)):
                if (place.tensor.name, k) not in self._dims:
                    found.append(visit(subscript))
                elif isinstance(subscript, Var):
                    found += [Var(groups[subscript.name].name, INT), subscript]
                else:
                    pair = self._pair(subscript, dim, extents)
                    found += [visit(part) for part, _ in pair]
            return tuple(found)

        def visit(expr: Expr) -> Expr:
            match expr:
                case Index(Var(name) as base):
                    view = self._views.get(name, base)
                    return replace(expr, base=view, subscripts=subscripts(expr))
                case Binary("//" | "%" as op, Var(name), by) if name in groups and sizes.equal(
                    by, self._indices[stmt.number, name][1]
                ):
                    return Var(groups[name].name if op == "//" else name, INT)
                case Var(name) if name in groups:
                    count = self._indices[stmt.number, name][1]
                    group = b.binary("*", Var(groups[name].name, INT), count)
                    return b.binary("+", group, expr)
                case Reduce(kind, axes=axes) if kind in POSITIONS and parts(axes) != axes:
                    raise _Refused
                case Reduce(axes=axes):
                    return replace(expr, body=visit(expr.body), axes=parts(axes))
                case _:
                    return map_children(expr, visit)

        target = visit(stmt.target)
        assert isinstance(target, Index | Var)
        new, loops = ranged(target, stmt.op, visit(stmt.value), parts(stmt.axes))
        if loops or len(new.axes) < len(parts(stmt.axes)):
            raise _Refused
        return replace(new, span=stmt.span, distinct=stmt.distinct)

    def _pair(
        self, subscript: Expr, dim: Expr, extents: dict[str, Expr]
    ) -> list[tuple[Expr, Expr]]:
        """Of ``g * C + c`` the dimensions of ``g`` and ``c``, which may be a number below C."""
        if pair := pair_of(subscript, dim, extents, self._is_size):
            return pair
        form = sizes.affine(subscript, tuple(Axis(*item) for item in extents.items()))
        if form is None or len(form[0]) != 1:
            return []
        ((name, step),) = form[0].items()
        count, member = sizes.constant(step), sizes.constant(form[1])
        if count is None or member is None or not 0 <= member < count or count == 1:
            return []
        groups = extents[name]
        whole = sizes.equal(sizes.product((groups, step)), dim) is True
        if not whole or not sizes.is_nonnegative(groups, self._is_size):
            return []
        return [(Var(name, INT), groups), (IntConst(member), IntConst(count))]

    def _is_size(self, name: str) -> bool:
        return name in self._lengths


def _same(one: Parts, other: Parts) -> bool:
    return all(sizes.equal(a, c) is True for a, c in zip(one, other, strict=True))


def _places(stmt: IndexAssign) -> Iterator[Index]:
    for expr in (stmt.target, stmt.value):
        for node in walk(expr):
            match node:
                case Index(Var(_, TensorType(tuple()))):
                    yield node


def operands(stmt: IndexAssign) -> list[Index]:
    """What a statement that adds up products of elements reads and writes at ``g * C + c``, of
    which another factor has the ``g``: products of matrices, one for each ``g``."""
    target = free_variables(stmt.target)
    found: list[Index] = []
    extents = extents_of(stmt)
    if all(name in target for name in extents):
        return []
    for node in walk(stmt.value):
        if isinstance(node, Binary) and node.op == "*" and node.type == FLOAT:
            for one, other in ((node.left, node.right), (node.right, node.left)):
                kept = free_variables(other) & target
                places = (n for n in walk(one) if isinstance(n, Index))
                found += (place for place in places if _numbers(place, extents) & kept)
    if found and isinstance(stmt.target, Index):
        own = frozenset[str]().union(*(_numbers(place, extents) for place in found))
        found += [stmt.target] if _numbers(stmt.target, extents) & own else []
    return found


def _numbers(place: Index, extents: Mapping[str, Expr]) -> frozenset[str]:
    """Indices that count parts of a dimension."""
    pairs = filter(None, (parts_of(subscript, extents) for subscript in place.subscripts))
    return frozenset().union(*(free_variables(pair[0][0]) for pair in pairs))


def extents_of(stmt: IndexAssign) -> dict[str, Expr]:
    """The ranges of a statement's indices, of those of its reductions, too."""
    return {axis.name: axis.extent for axis in (*stmt.axes, *reduced_axes(stmt.value))}


def _is_divided(stmt: IndexAssign, index: str, by: Expr) -> bool:
    """Whether an index of a statement is divided by that somewhere."""
    return any(
        isinstance(node, Binary)
        and node.op in ("//", "%")
        and node.left == Var(index, INT)
        and sizes.equal(node.right, by) is True
        for expr in (stmt.target, stmt.value)
        for node in walk(expr)
    )
