"""Dimensions that are gone through in parts of ``D // H`` elements have ``H * (D // H)``.

    s[h, t, j] = sum(q[t, h * (D // H) + d] * k[j, h * (D // H) + d] for d in range(D // H))
    y[t, i] = sum(p[i // (D // H), t, j] * v[j, i] for j in S)

No proof says that ``H`` divides ``D``. But the second statement ends in an error unless it does,
for ``p`` has ``H`` rows: then the function is one of dimensions ``H * (D // H)``, whose arguments
and results get their shapes by ``reshape``, which is that error (even where a sum over nothing asks
for no element). In a function without such a statement the operands of products are
``slice(q, 1, 0, H * (D // H))``, and what is written part by part lies inside zeros. Of what is
even then, :mod:`~loma.passes.canonical.dimensions.channels` makes a dimension for each index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import permutations

from loma.core import builder as b, sizes
from loma.core.axes import ranged
from loma.core.effects import assigned, written
from loma.core.ir import (
    INT, Binary, Builtin, Call, CallStmt, Declare, Expr, Function, Index, IndexAssign, IntConst,
    Module, Return, Stmt, TensorType, Type, Unpack, Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.walk import (
    certain_reads, free_variables, is_element_of, map_blocks, map_children, map_expressions,
    map_sizes, map_tensor_functions, mentioned_names, nodes, reads_of_type, statements,
)  # fmt: skip
from loma.errors.spans import NOWHERE, Span
from loma.passes.canonical.dimensions.channels import extents_of, operands
from loma.passes.canonical.groups import nest, parts_of


def even(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    functions = {function.name: function for function in module.functions}

    def changed(function: Function) -> Function:
        while (new := _Even(function, functions).run()) is not None:
            function = new
        return function

    return map_tensor_functions(module, changed)


@dataclass(frozen=True, slots=True)
class _Parts:
    """``count`` parts of ``length`` elements of a dimension, which may have a rest of no part."""

    dim: Expr
    count: Expr
    length: Expr

    @property
    def whole(self) -> Expr:
        return Binary("*", self.count, self.length, INT)

    def same(self, other: _Parts) -> bool:
        mine, yours = ((p.dim, p.count, p.length) for p in (self, other))
        return sizes.same(mine, yours)


class _Even:
    def __init__(self, function: Function, functions: dict[str, Function]) -> None:
        self._function = function
        self._names = Names(names_of(function))
        ints = {param.name for param in function.params if param.type == INT}
        changing = set(assigned(function.body, functions))
        self._known = (ints | set(sizes.size_variables(function))) - changing
        self._lengths = sizes.lengths(function) & self._known
        self._written = written(function.body)

    def run(self) -> Function | None:
        """The function with whole parts of one dimension; None where there are none to make."""
        for stmt in self._function.body:
            if isinstance(stmt, IndexAssign):
                for quotient, parts in self._quotients(stmt):
                    if isinstance(parts.dim, Var) and self._may_assume(stmt, parts.dim.name):
                        return self._assumed(parts, quotient.span)
        return self._filled() or self._read()

    def _parts(self, dim: Expr, count: Expr, length: Expr) -> _Parts | None:
        """Parts of a dimension, unless they are surely all of it."""
        found = _Parts(dim, count, length)
        if sizes.equal(found.whole, dim) is True or free_variables(found.whole) - self._known:
            return None
        pairs = permutations((count, length))
        fits = any(sizes.equal(a, Binary("//", dim, c, INT)) is True for a, c in pairs)
        return found if fits and free_variables(dim) <= self._known else None

    # ------------------------------------------------------------- dimensions that have even parts

    def _quotients(self, stmt: IndexAssign) -> Iterator[tuple[Expr, _Parts]]:
        """Quotients of which an error says that parts are all of a dimension: what they subscript
        has as many elements."""
        extents = extents_of(stmt)
        for read in certain_reads(stmt.value):
            if not (isinstance(read, Index) and isinstance(read.base.type, TensorType)):
                continue
            for subscript, count in zip(read.subscripts, sizes.dims_of(read.base), strict=True):
                match subscript:
                    case Binary("//", Var(name), length) if name in extents:
                        parts = self._parts(extents[name], count, length)
                        if parts is not None:
                            yield subscript, parts
                    case _:
                        pass

    def _may_assume(self, stmt: IndexAssign, dim: str) -> bool:
        """Whether arguments and results tell that a dimension has other parts, and nothing but
        their elements and operators is asked for."""
        whole = [p for p in self._function.params if dim in reads_of_type(p.type)]
        if any(p.name in self._written for p in whole):
            return False
        body = self._function.body
        if any(isinstance(s, CallStmt | Unpack) for s in statements(body)):
            return False
        if any(isinstance(n, Call) and isinstance(n.type, TensorType) for n in nodes(body)):
            return False
        read = free_variables(stmt.value) & {p.name for p in whole}
        return bool(read) or any(dim in reads_of_type(t) for t in self._function.results)

    def _assumed(self, parts: _Parts, span: Span) -> Function:
        """The function whose dimensions have no rest: its arguments and results get their shapes by
        operators that ask for as many elements."""
        function = self._function
        assert isinstance(parts.dim, Var)
        dim = parts.dim.name

        kept = (parts.count, parts.length)

        def whole(size: Expr) -> Expr:
            if size in kept:
                return size
            return parts.whole if size == parts.dim else map_children(size, whole)

        views: dict[str, Var] = {}
        for param in function.params:
            if dim in reads_of_type(param.type):
                name = self._names.fresh(f"_{param.name}")
                views[param.name] = Var(name, map_sizes(param.type, whole))

        def visit(expr: Expr) -> Expr:
            match expr:
                case Var(name) if name in views:
                    return replace(views[name], span=expr.span)
                case Builtin("int2float"):
                    return expr  # the same, where there is something to compute
                case Var() | Binary() if expr == parts.dim or expr in kept:
                    return whole(expr)
                case _:
                    pass
            new = map_children(expr, visit)
            type_ = map_sizes(new.type, whole)
            return new if type_ == new.type else replace(new, type=type_)  # type: ignore[arg-type]

        def statement(stmt: Stmt) -> Stmt:
            new = map_expressions(stmt, visit)
            if not (isinstance(stmt, Return) and isinstance(new, Return)):
                return new
            pairs = zip(stmt.values, new.values, strict=True)
            return replace(new, values=tuple(
                now if now.type == old.type else _shaped(now, old.type, span) for old, now in pairs
            ))  # fmt: skip

        given = (Var(param.name, param.type) for param in function.params if param.name in views)
        before = (Declare(v := views[a.name], _shaped(a, v.type, span), span) for a in given)
        return replace(function, body=(*before, *map(statement, function.body)))

    # ------------------------------------------------------------------- parts without what is left

    def _read(self) -> Function | None:
        """The function with a view of the parts of a tensor that an operand of a product has."""
        for stmt in statements(self._function.body):
            if isinstance(stmt, IndexAssign):
                for place in operands(stmt):
                    for dim, parts in self._cut(place, extents_of(stmt)):
                        if (new := self._viewed(place.tensor, dim, parts)) is not None:
                            return new
        return None

    def _cut(self, place: Index, extents: Mapping[str, Expr]) -> Iterator[tuple[int, _Parts]]:
        """Dimensions that a place goes through by a part's number and an index into the part."""
        for k, (subscript, dim) in enumerate(
            zip(place.subscripts, sizes.dims_of(place.base), strict=False)  # none of an array
        ):
            if pair := parts_of(subscript, extents):
                count, length = (extent for _, extent in pair)
                parts = self._parts(dim, count, length)
                is_size = self._lengths.__contains__
                if parts and all(sizes.is_nonnegative(n, is_size) for n in (count, length)):
                    yield k, parts

    def _viewed(self, tensor: Var, dim: int, parts: _Parts) -> Function | None:
        """The function with a view of a tensor's parts, behind what writes it last."""
        body = self._function.body
        made = [k for k, s in enumerate(body) if tensor.name in written((s,))]
        first = max(made, default=-1) + 1
        view = self._part_of(tensor, dim, parts)

        def visit(extents: Mapping[str, Expr], expr: Expr) -> Expr:
            new = map_children(expr, partial(visit, extents))
            if not is_element_of(new, tensor.name):
                return new
            own = any(k == dim and p.same(parts) for k, p in self._cut(new, extents))
            return replace(new, base=view) if own else new

        def statement(stmt: Stmt) -> Stmt:
            if isinstance(stmt, IndexAssign):
                return replace(stmt, value=visit(extents_of(stmt), stmt.value))
            return map_blocks(stmt, lambda block: tuple(map(statement, block)))

        after = tuple(map(statement, body[first:]))
        if view.name not in mentioned_names(after):
            return None
        part = b.operator("slice", (tensor,), {"dim": dim, **_bounds(parts)})
        value = _shaped(part, view.type)
        return replace(self._function, body=(*body[:first], Declare(view, value), *after))

    def _filled(self) -> Function | None:
        """The function that writes the parts of a tensor by themselves, and then these into it."""
        body = self._function.body
        for position, stmt in enumerate(body):
            around, inner = nest(stmt)
            if not (isinstance(inner, IndexAssign) and isinstance(inner.target, Index)):
                continue
            whole = replace(inner, axes=(*around, *inner.axes))
            tensor = inner.target.tensor
            before = enumerate(body[:position])
            uses = [k for k, s in before if tensor.name in mentioned_names((s,))]
            later = tensor.name in written(body[position + 1 :]) | free_variables(inner.value)
            if inner.op != "=" or later or len(uses) != 1 or inner.target not in operands(whole):
                continue
            declared = body[uses[0]]
            cut = list(self._cut(inner.target, extents_of(whole)))
            if not isinstance(declared, Declare) or declared.value is not None or len(cut) != 1:
                continue
            made = self._into(tensor, whole, *cut[0])
            if made is not None:
                part, steps = made
                return replace(self._function, body=(
                    *body[: uses[0]], replace(declared, target=part),
                    *body[uses[0] + 1 : position], *steps, *body[position + 1 :],
                ))  # fmt: skip
        return None

    def _into(
        self, tensor: Var, stmt: IndexAssign, dim: int, parts: _Parts
    ) -> tuple[Var, tuple[Stmt, ...]] | None:
        """A tensor with a dimension for the number of a part, what writes it instead of the other
        one, and the other one with it inside."""
        places, dims = list(stmt.element.subscripts), list(sizes.dims_of(tensor))
        pair = parts_of(places[dim], extents_of(stmt))
        places[dim : dim + 1] = [index for index, _ in pair]
        dims[dim : dim + 1] = [parts.count, parts.length]
        assert isinstance(tensor.type, TensorType)
        part = Var(self._names.fresh(f"_{tensor.name}"), replace(tensor.type, dims=tuple(dims)))
        target = replace(stmt.element, base=part, subscripts=tuple(places))
        new, loops = ranged(target, "=", stmt.value, stmt.axes)
        if loops or len(new.axes) != len(stmt.axes):
            return None
        flat = _shaped(part, self._part_of(tensor, dim, parts).type)
        shape = {"shape": sizes.dims_of(tensor), "dim": dim, **_bounds(parts)}
        value = b.operator("slice_into", (flat,), shape, stmt.span)
        return part, (replace(new, span=stmt.span), Declare(tensor, value, stmt.span))

    def _part_of(self, tensor: Var, dim: int, parts: _Parts) -> Var:
        """A tensor with these parts alone."""
        assert isinstance(tensor.type, TensorType)
        dims = list(sizes.dims_of(tensor))
        dims[dim] = parts.whole
        return Var(self._names.fresh(f"_{tensor.name}"), replace(tensor.type, dims=tuple(dims)))


def _bounds(parts: _Parts) -> dict[str, object]:
    return {"start": IntConst(0), "end": parts.whole, "step": IntConst(1)}


def _shaped(tensor: Expr, type_: Type, span: Span = NOWHERE) -> Expr:
    assert isinstance(type_, TensorType)
    return b.operator("reshape", (tensor,), {"shape": type_.dims}, span)
