"""Additions to the same elements taken together, so that a tensor is read and written only once.

Reverse mode adds to an adjoint for every use of a variable. ``T[i] += a`` is dropped, and a later
``T[i] += b`` becomes ``T[i] += a + b``, when nothing in between looks at ``T`` or changes what
``a`` is made of. A first one under a condition becomes ``a if condition else 0``. Its operands must
not have to be kept for it in full size: each is smaller than ``T``, an argument or a view of one,
or needed later anyway.

Before derivatives are made, what is assigned and then added to all elements is taken together; in
rounds of loops sums are, too: of ``s[i, n] = b[n]``, ``s[i, n] += x[t, i, k] * w[k, n]`` and
``s[i, n] += h[i, m] * u[m, n]`` each product then has a place of its own, the first one outside of
the loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from loma.core import sizes
from loma.core.axes import runs_over
from loma.core.bounds import ONE, is_never_negative
from loma.core.distinct import never_meet
from loma.core.effects import written
from loma.core.ir import (
    INT, Axis, Binary, Call, Declare, Expr, FloatConst, For, Function, If, Index, IndexAssign,
    IntConst, Module, Op, Reduce, Select, Stmt, TensorType, Var, While, replace,
)  # fmt: skip
from loma.core.ops import OPS
from loma.core.sizes import IsSize, arith
from loma.core.walk import (
    free_variables, map_blocks, map_tensor_functions, mentioned_names, reduced_axes, root,
    substitute, walk,
)  # fmt: skip
from loma.passes.first_write import assigned
from loma.passes.liveness import covers


def additions(module: Module) -> Module:
    """The pass on every tensor function of a module."""

    def joined(function: Function) -> Function:
        kept = {param.name for param in function.params}
        for stmt in function.body:
            match stmt:
                case Declare(Var(name), Op(operator, (Var(whole), *_))) if (
                    whole in kept and OPS[operator].shares
                ):
                    kept.add(name)
                case _:
                    pass
        is_size = frozenset(sizes.size_variables(function)).__contains__
        return replace(function, body=_block(function.body, kept, is_size))

    return map_tensor_functions(module, joined)


def totals(module: Module) -> Module:
    """Takes additions together with the assignments that they follow, sums in loops only."""
    return map_tensor_functions(module, lambda f: replace(f, body=_totals(f.body, False)))


def _totals(body: tuple[Stmt, ...], rounds: bool) -> tuple[Stmt, ...]:
    """``rounds``: of a block inside of a loop."""
    out: list[Stmt | None] = [
        map_blocks(stmt, partial(_totals, rounds=rounds or isinstance(stmt, For | While)))
        for stmt in body
    ]
    for position, first in enumerate(out):
        if not isinstance(first, IndexAssign) or first.op != "=" or not covers(first):
            continue
        name, between = root(first.target), set[str]()
        for later in range(position + 1, len(out)):
            other = out[later]
            if other is None:
                continue
            if name not in mentioned_names((other,)):
                between |= written((other,))
                continue
            quiet = between.isdisjoint(free_variables(first.value))
            new = _total(first, other) if quiet else None
            if new is not None and (rounds or not _has_sums(new)):
                out[position], out[later] = None, new
            break
    return tuple(stmt for stmt in out if stmt is not None)


def _has_sums(stmt: IndexAssign) -> bool:
    """Whether a statement reduces anything: outside of loops each sum has one of its own."""
    return any(isinstance(node, Reduce | Op) for node in walk(stmt.value))


def _total(first: IndexAssign, later: Stmt) -> IndexAssign | None:
    """The later statement with what the first one assigns, if it adds to all of that."""
    if not isinstance(later, IndexAssign) or later.op != "+=" or not covers(later):
        return None
    here, new = first.element, assigned(later)
    there, names = new.element, {axis.name for axis in new.axes}
    known = free_variables(first.value) - {axis.name for axis in first.axes}
    if new.op != "=" or here.tensor.name in known | free_variables(new.value):
        return None
    own = [s.name for s in here.subscripts if isinstance(s, Var)]
    alone = all(isinstance(s, Var) for s in there.subscripts)
    inner = {axis.name for axis in reduced_axes(first.value)}
    if not alone or len(own) != len(here.subscripts) or names & (known | inner):
        return None
    value = substitute(first.value, dict(zip(own, there.subscripts, strict=True)))
    return replace(new, value=Binary("+", value, new.value, there.type))


@dataclass(frozen=True, slots=True)
class _Addition:
    """``tensor[axes] += value`` or ``=``, under a condition or not, that a statement of a block
    makes. ``places``: of each subscript its axis, if it has one, and what is added to that, or the
    number."""

    stmt: IndexAssign
    tensor: Var
    places: tuple[tuple[Axis | None, Expr], ...]
    condition: Expr | None = None
    rest: Stmt | None = None  # what stays of the statement of the block

    @property
    def axes(self) -> list[Axis]:
        return [axis for axis, _ in self.places if axis is not None]

    @property
    def begins(self) -> frozenset[str]:
        """What says where its elements begin."""
        return frozenset[str]().union(*(free_variables(begin) for _, begin in self.places))

    @property
    def inputs(self) -> frozenset[str]:
        found = free_variables(self.stmt.value) - {axis.name for axis in self.axes} | self.begins
        return found if self.condition is None else found | free_variables(self.condition)

    @property
    def ranges(self) -> Iterator[tuple[Expr, Expr]]:
        """Where its elements begin and end, in each dimension."""
        for axis, begin in self.places:
            yield begin, arith("+", begin, ONE if axis is None else axis.extent)


def _block(body: tuple[Stmt, ...], kept: set[str], is_size: IsSize) -> tuple[Stmt, ...]:
    inside = partial(_block, kept=kept, is_size=is_size)
    out: list[Stmt | None] = [map_blocks(stmt, inside) for stmt in body]
    for position in range(len(out)):
        while (found := _moved(out, position, kept, is_size)) is not None:
            rest, later, joined = found
            out[position], out[later] = rest, joined
    return tuple(stmt for stmt in out if stmt is not None)


def _moved(
    block: list[Stmt | None], position: int, kept: set[str], is_size: IsSize
) -> tuple[Stmt | None, int, IndexAssign] | None:
    """What is left of a statement, and which later one makes its addition as well."""
    stmt = block[position]
    for addition in [] if stmt is None else _additions(stmt):
        inputs, between = addition.inputs, set[str]()
        for later in range(position + 1, len(block)):
            other = block[later]
            if other is None:
                continue
            same = addition.tensor.name in mentioned_names((other,))
            if not same or (not addition.begins & between and _elsewhere(addition, other, is_size)):
                between |= written((other,))
                continue
            joined = _joined(addition, other)
            after = tuple(s for s in block[later:] if s is not None)
            there = kept | mentioned_names(after)
            if joined is not None and not inputs & between and _fits(addition, there):
                return addition.rest, later, joined
            break
    return None


def _additions(stmt: Stmt) -> list[_Addition]:
    """The additions of a statement that may be made after it as well."""
    if (plain := _plain(stmt)) is not None:
        return [plain]
    if not isinstance(stmt, If) or stmt.other or not isinstance(stmt.cond, Var):
        return []
    found: list[_Addition] = []
    for k, step in enumerate(stmt.then):
        inner = _plain(step)
        if inner is None or inner.stmt.op != "+=" or not _reads_whole(inner.stmt):
            continue
        others = stmt.then[:k] + stmt.then[k + 1 :]
        addition = replace(inner, condition=stmt.cond, rest=replace(stmt, then=others))
        quiet = addition.inputs.isdisjoint(written(stmt.then[k:]))
        if quiet and addition.tensor.name not in mentioned_names(others):
            found.append(addition)
    return found


def _plain(stmt: Stmt) -> _Addition | None:
    """The statement, if it gives each element of a tensor a value or adds one, without loops or
    calls and without looking at the tensor."""
    match stmt:
        case IndexAssign(Index(Var() as tensor, subscripts), "=" | "+=", value):
            forms = [sizes.one_by_one(subscript, stmt.axes) for subscript in subscripts]
            addition = _Addition(stmt, tensor, tuple(form for form in forms if form is not None))
            axes = addition.axes
            plain = (
                len(addition.places) == len(forms)
                and len(set(axes)) == len(axes) == len(stmt.axes)
                and tensor.name not in free_variables(value)
                and not any(isinstance(node, Reduce | Call | Op) for node in walk(value))
            )
            return addition if plain else None
        case _:
            return None


def _elsewhere(addition: _Addition, stmt: Stmt, is_size: IsSize) -> bool:
    """Whether a statement only gives other elements of the tensor values."""
    other = _plain(stmt)
    if other is None or other.tensor != addition.tensor:
        return False
    places = addition.stmt.element, other.stmt.element
    if never_meet(*places, addition.stmt.axes, other.stmt.axes):
        return True
    names = {axis.name for axis in (*addition.axes, *other.axes)}
    for (begin, end), (first, last) in zip(addition.ranges, other.ranges, strict=True):
        for gap in arith("-", first, end), arith("-", begin, last):
            if not free_variables(gap) & names and is_never_negative(gap, {}, is_size):
                return True
    return False


def _joined(first: _Addition, later: Stmt) -> IndexAssign | None:
    """The later statement with the addition, if it adds to the same elements."""
    other = _plain(later)
    if other is None or other.stmt.op != "+=" or other.tensor != first.tensor:
        return None
    for (own, begin), (new, there) in zip(first.places, other.places, strict=True):
        if (own is None) != (new is None) or sizes.equal(begin, there) is not True:
            return None
    pairs = list(zip(first.axes, other.axes, strict=True))
    if not all(sizes.equal(own.extent, new.extent) for own, new in pairs):
        return None
    if first.inputs & {axis.name for axis in other.axes}:
        return None
    value = substitute(first.stmt.value, {own.name: Var(new.name, INT) for own, new in pairs})
    if first.condition is not None:
        zero = IntConst(0) if value.type == INT else FloatConst(0.0)
        value = Select(first.condition, value, zero, value.type)
    both = Binary("+", value, other.stmt.value, other.stmt.target.type)
    return replace(other.stmt, op=first.stmt.op, value=both)


def _fits(addition: _Addition, there: set[str]) -> bool:
    """Whether the operands are there anyway, or smaller than the tensor."""
    return all(
        node.name in there or _long_dimensions(node.type) < len(addition.axes)
        for node in walk(addition.stmt.value)
        if isinstance(node, Var) and isinstance(node.type, TensorType)
    )


def _long_dimensions(kind: TensorType) -> int:
    """How many dimensions of a type have more than one element, as far as it tells."""
    return sum(not isinstance(dim, IntConst) or dim.value > 1 for dim in kind.dims or ())


def _reads_whole(stmt: IndexAssign) -> bool:
    """Whether every element that is read surely exists, so that a condition needs not guard it."""
    axes = {axis.name: axis for axis in stmt.axes}
    for node in walk(stmt.value):
        if isinstance(node, Index):
            pairs = zip(node.subscripts, sizes.dims_of(node.base), strict=True)
            if not all(runs_over(subscript, dim, axes) for subscript, dim in pairs):
                return False
    return True
