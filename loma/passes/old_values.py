"""Copies what an index statement reads of its own target and may overwrite.

The right side sees the values from before the statement. Where the elements read are proved to be
others than those written (:mod:`loma.core.overlap`), or each is read where it is written,
statements run in place in any order. What is left is copied first, and of that the part that the
statement can touch: dimensions whose subscripts do not change within the statement are left out,
and of a dimension only the range of an affine subscript.

After this pass no statement depends on the order in which its elements are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from loma.core import sizes
from loma.core.axes import index_statement
from loma.core.bounds import facts, least, stays_inside
from loma.core.distinct import names_once
from loma.core.effects import assigned
from loma.core.ir import (
    INT, Axis, Binary, Declare, Expr, For, Function, If, Index, IndexAssign, IntConst, IntType,
    Module, Stmt, TensorType, Var, is_tensor_function, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.overlap import Read, apart, reads_of, same_element
from loma.core.sizes import IsSize
from loma.core.walk import free_variables, map_blocks, map_children

# Names of copies begin with it, so that whoever prints statements can say what they are.
PREFIX = "_before_"
# For each dimension where the copy begins, and its size; None where it is one element.
Parts: TypeAlias = tuple[tuple[Expr, Expr | None], ...]


def old_values(module: Module) -> Module:
    """The pass on every function of a module."""
    return replace(module, functions=tuple(map(without_overlap, module.functions)))


def without_overlap(function: Function) -> Function:
    """The pass on one function."""
    return _Worker(function).run() if is_tensor_function(function) else function


@dataclass(frozen=True, slots=True)
class Around:
    """What is known where a statement stands: the ranges of the counters around, and int
    expressions that are not negative."""

    extents: Mapping[str, Expr]
    known: tuple[Expr, ...]

    def inside(self, stmt: For, changing: set[str]) -> Around:
        others = {k: v for k, v in self.extents.items() if k != stmt.counter}
        if sizes.keeps_value(stmt.extent, changing):
            others[stmt.counter] = stmt.extent
        return replace(self, extents=others)

    def where(self, cond: Expr, holds: bool, changing: set[str]) -> Around:
        more = tuple(fact for fact in facts(cond, holds) if sizes.keeps_value(fact, changing))
        return replace(self, known=self.known + more)


def in_place(stmt: IndexAssign, around: Around, is_size: IsSize) -> list[Read]:
    """The reads of the statement's own target that it may not make while it writes."""
    target = stmt.target
    if not isinstance(target, Index) or not isinstance(target.base, Var):
        return []
    once = names_once(stmt)
    return [
        read
        for expr in (stmt.value, *target.subscripts)
        for read in reads_of(target.base.name, expr)
        if not (once and same_element(target, read.place))
        and not apart(target, stmt.axes, read, around.extents, is_size, around.known)
    ]


class _Worker:
    def __init__(self, function: Function) -> None:
        self._function = function
        self._names = Names(names_of(function))
        self._changing = set(assigned(function.body))
        self._sizes = set(sizes.size_variables(function))
        self._ints = self._sizes | {
            p.name for p in function.params if isinstance(p.type, IntType)
        } - self._changing  # fmt: skip
        self._declared: list[Stmt] = []

    def run(self) -> Function:
        out: list[Stmt] = []
        for stmt in self._function.body:
            self._declared = []
            made = self._block((stmt,), Around({}, ()))
            out += [*self._declared, *made]
        return replace(self._function, body=tuple(out))

    def _block(self, body: tuple[Stmt, ...], around: Around) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stmt in body:
            match stmt:
                case For():
                    inside = around.inside(stmt, self._changing)
                    out.append(replace(stmt, body=self._block(stmt.body, inside)))
                case If(cond, then, other):
                    yes, no = (around.where(cond, holds, self._changing) for holds in (True, False))
                    then, other = self._block(then, yes), self._block(other, no)
                    out.append(replace(stmt, then=then, other=other))
                case IndexAssign():
                    out += self._statement(stmt, around)
                case _:
                    out.append(map_blocks(stmt, lambda b: self._block(b, around)))
        return tuple(out)

    def _statement(self, stmt: IndexAssign, around: Around) -> list[Stmt]:
        found = in_place(stmt, around, self._sizes.__contains__)
        if not found:
            return [stmt]
        copies: dict[Parts, Var] = {}
        out: list[Stmt] = []
        places: dict[Index, Index] = {}
        for read in found:
            if read.place in places:
                continue
            parts = self._parts(stmt, read, around)
            if parts not in copies:
                copies[parts], made = self._copy(read.place, parts, stmt)
                out.append(made)
            places[read.place] = _moved(read.place, parts, copies[parts])
        # A read that stands in the subscript of another one is the other's business, too.
        assert isinstance(stmt.target, Index)
        subscripts = tuple(_replaced(s, places) for s in stmt.target.subscripts)
        target = replace(stmt.target, subscripts=subscripts)
        return [*out, replace(stmt, target=target, value=_replaced(stmt.value, places))]

    def _parts(self, stmt: IndexAssign, read: Read, around: Around) -> Parts:
        own = {axis.name: axis.extent for axis in stmt.axes} | dict(read.extents)
        extents = {**around.extents, **own}
        found: list[tuple[Expr, Expr | None]] = []
        is_size = self._sizes.__contains__
        dims = sizes.dims_of(read.place.base)
        for subscript, dim in zip(read.place.subscripts, dims, strict=True):
            inside = stays_inside(subscript, dim, extents, is_size, around.known)
            if not sizes.mentions(subscript, set(own)):
                # what may be left out is no reason to fail
                one = inside or not _may_be_left_out(read, is_size)
                found.append((subscript, None) if one else (IntConst(0), dim))
                continue
            low = least(subscript, own, is_size)
            high = least(Binary("-", IntConst(0), subscript, INT), own, is_size)
            if low is not None and high is not None:
                size = sizes.simplify(Binary("-", IntConst(1), Binary("+", high, low, INT), INT))
                known = free_variables(size) <= self._ints and not sizes.mentions(low, set(own))
                # whatever conditions hold at the read: the copy looks at all of the range
                if known and inside and sizes.is_nonnegative(size, is_size):
                    found.append((low, size))
                    continue
            found.append((IntConst(0), dim))
        return tuple(found)

    def _copy(self, place: Index, parts: Parts, stmt: IndexAssign) -> tuple[Var, Stmt]:
        assert isinstance(place.base, Var)
        assert isinstance(place.base.type, TensorType)
        dims = tuple(size for _, size in parts if size is not None)
        type_ = replace(place.base.type, dims=dims)
        copy = Var(self._names.fresh(f"{PREFIX}{place.base.name.lstrip('_')}"), type_)
        self._declared.append(Declare(copy, None, stmt.span))
        axes: list[Axis] = []
        source: list[Expr] = []
        for start, size in parts:
            if size is None:
                source.append(start)
                continue
            axis = Axis(self._names.fresh(f"_i{len(axes)}"), size)
            axes.append(axis)
            source.append(sizes.simplify(Binary("+", start, Var(axis.name, INT), INT)))
        counters = tuple(Var(axis.name, INT) for axis in axes)
        made = index_statement(
            Index(copy, counters, place.type), "=", replace(place, subscripts=tuple(source)),
            tuple(axes),
        )  # fmt: skip
        return copy, replace(made, span=stmt.span)


def _may_be_left_out(read: Read, is_size: IsSize) -> bool:
    """Whether the read may leave its tensor, or not be made at all, where the statement runs."""
    counts = read.extents.values()
    some = all(all(map(is_size, free_variables(e))) and sizes.constant(e) != 0 for e in counts)
    return read.padded or read.guarded or not some


def _moved(place: Index, parts: Parts, copy: Var) -> Index:
    """The read from the copy."""
    subscripts = [
        s if start == IntConst(0) else sizes.simplify(Binary("-", s, start, INT))
        for s, (start, size) in zip(place.subscripts, parts, strict=True)
        if size is not None
    ]
    return replace(place, base=replace(copy, span=place.base.span), subscripts=tuple(subscripts))


def _replaced(expr: Expr, places: Mapping[Index, Index]) -> Expr:
    if isinstance(expr, Index) and expr in places:
        expr = places[expr]
    return map_children(expr, lambda child: _replaced(child, places))
