"""A loop that keeps the largest or smallest value that it sees is a reduction.

``for d in range(D): m = max(m, x[n, d])`` is ``m = max(m, max(x[n, d] for d in D))``, if there is a
value of d. Loops inside each other are one reduction. Where m begins with the first of these
elements, ``m = x[n, 0]``, or with the one in front of them, behind which the loop begins, the
reduction alone says all. ``m = max(x[n, d], m)`` keeps the last of equal elements, so it counts
them from the end, which in inference makes no difference.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from loma.core import builder as b, sizes
from loma.core.effects import written
from loma.core.ir import (
    INT, Assign, Axis, Builtin, Expr, For, Function, If, Index, IndexAssign, IntConst, Module, Op,
    Reduce, ReduceKind, Stmt, TensorType, Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.walk import (
    free_variables, map_blocks, map_tensor_functions, mentioned_names, root, substitute, walk,
)  # fmt: skip


def extremes(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, lambda function: _Extremes(function).run())


def kept_and_new(stmt: Stmt) -> tuple[Assign | IndexAssign, ReduceKind, Expr, bool] | None:
    """A statement that keeps the larger or smaller of what its place has and a new value, and which
    of both it keeps, the new value, and whether that is kept if they are equal."""
    match stmt:
        case Assign(place, "=", Builtin("max" | "min" as name, (left, right))):
            pass
        case IndexAssign(place, "=", Builtin("max" | "min" as name, (left, right))):
            pass
        case _:
            return None
    if place not in (left, right):
        return None
    kind: ReduceKind = "max" if name == "max" else "min"
    return stmt, kind, right if left == place else left, left != place


def guarded(stmt: Stmt, changed: Collection[str]) -> tuple[tuple[Expr, ...], Stmt]:
    """A statement, and the conditions around it, which those variables do not change."""
    match stmt:
        case If(cond, (only,), ()) if sizes.keeps_value(cond, changed):
            conds, inner = guarded(only, changed)
            return (cond, *conds), inner
        case _:
            return (), stmt


def from_the_end(extent: Expr, place: Expr) -> Expr:
    """The place that counts from the end of a range."""
    return b.binary("-", b.binary("-", extent, IntConst(1)), place)


class _Extremes:
    def __init__(self, function: Function) -> None:
        self._function = function
        self._names = Names(names_of(function))

    def run(self) -> Function:
        return replace(self._function, body=self._block(self._function.body))

    def _block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stmt in body:
            stmt = map_blocks(stmt, self._block)
            if isinstance(stmt, For) and (new := self._reduced(stmt, out)) is not None:
                out.append(new)
            else:
                out.append(stmt)
        return tuple(out)

    def _reduced(self, loop: For, before: list[Stmt]) -> Stmt | None:
        """The statement that does what a loop does; its beginning is taken from what is before."""
        if len(loop.body) != 1:
            return None
        conds, inner = guarded(loop.body[0], written((loop,)) | {loop.counter})
        found = kept_and_new(inner)
        if found is None:
            return None
        only, kind, value, last = found
        place, changed = only.target, written((only,)) | {loop.counter}
        if value.type != place.type or loop.counter in free_variables(place):
            return None
        if free_variables(value) & (changed - {loop.counter}) or not _has_elements(value):
            return None
        if not sizes.keeps_value(loop.extent, changed):
            return None

        def over(extent: Expr, ahead: int) -> Reduce:
            axis = Axis(self._names.fresh(loop.counter), extent)
            index: Expr = Var(axis.name, INT)
            index = from_the_end(extent, index) if last != loop.backwards else index
            index = b.binary("-", index, IntConst(ahead)) if ahead else index
            body = _at(value, loop.counter, index)
            if isinstance(body, Reduce) and body.kind == kind and not _is_ragged(body, axis):
                return replace(body, axes=(axis, *body.axes), span=loop.span)
            return Reduce(kind, body, (axis,), value.type, loop.span)

        beginning = self._beginning(only, before, free_variables(value) | free_variables(place))
        nested = isinstance(value, Reduce) and value.kind == kind
        for ahead in (0,) if nested else (0, 1):
            if beginning is None or conds or loop.backwards:
                break
            first = _first(value, kind, {loop.counter: IntConst(-ahead)})
            extent = sizes.simplify(b.binary("+", loop.extent, IntConst(ahead)))
            given = before[beginning]
            assert isinstance(given, Assign | IndexAssign)
            same = sizes.simple_subscripts(given.value) == first
            if same and (
                _is_some(value, kind, extent) or _exists_with(value, loop.counter, extent, ahead)
            ):
                del before[beginning]
                return replace(only, value=over(extent, ahead), span=loop.span)
        new = over(loop.extent, 0)
        both = (new, place) if last else (place, new)
        larger = replace(only, value=Builtin(kind, both, value.type, only.value.span))
        if (sizes.constant(loop.extent) or 0) <= 0:
            conds = (b.binary(">", loop.extent, IntConst(0)), *conds)
        return If(b.every(conds), (larger,), (), loop.span) if conds else larger

    def _beginning(
        self, only: Assign | IndexAssign, before: Sequence[Stmt], inputs: frozenset[str]
    ) -> int | None:
        """Where the statement is that gives the place its value ahead of the loop."""
        for position in reversed(range(len(before))):
            stmt = before[position]
            if isinstance(stmt, Assign | IndexAssign) and stmt.target == only.target:
                axes = [s.axes for s in (stmt, only) if isinstance(s, IndexAssign)]
                return position if stmt.op == "=" and axes[:1] == axes[1:] else None
            if root(only.target) in mentioned_names((stmt,)) or written((stmt,)) & inputs:
                return None
        return None


def _has_elements(value: Expr) -> bool:
    """Whether a value has elements of tensors, and no tensor as a whole."""
    parts = list(walk(value))
    bases = [part.base for part in parts if isinstance(part, Index)]
    whole = [p for p in parts if isinstance(p.type, TensorType) and not any(p is x for x in bases)]
    return bool(bases) and not whole and not any(isinstance(part, Op) for part in parts)


def _at(value: Expr, counter: str, place: Expr) -> Expr:
    return sizes.simple_subscripts(substitute(value, {counter: place}))


def _is_ragged(inner: Reduce, axis: Axis) -> bool:
    """Whether the ranges of a loop inside depend on the counter of that around it."""
    return any(axis.name in free_variables(own.extent) for own in inner.axes)


def _first(value: Expr, kind: str, places: dict[str, Expr]) -> Expr:
    """The first element, of all loops inside."""
    if isinstance(value, Reduce) and value.kind == kind:
        places |= {axis.name: IntConst(0) for axis in value.axes}
        value = value.body
    return sizes.simple_subscripts(substitute(value, places))


def _is_some(value: Expr, kind: str, extent: Expr) -> bool:
    """Whether a loop, and those inside, surely have rounds."""
    inner = value.axes if isinstance(value, Reduce) and value.kind == kind else ()
    every = (extent, *(axis.extent for axis in inner))
    return all((sizes.constant(size) or 0) > 0 for size in every)


def _exists_with(value: Expr, counter: str, extent: Expr, ahead: int) -> bool:
    """Whether the first element exists only where there are ``extent`` of them, at least one."""
    place = b.add(Var(counter, INT), IntConst(ahead)) if ahead else Var(counter, INT)
    return any(
        sizes.equal(subscript, place) is True and sizes.equal(dim, extent) is True
        for part in walk(value)
        if isinstance(part, Index) and isinstance(part.base, Var)
        for subscript, dim in zip(part.subscripts, sizes.dims_of(part.base), strict=True)
    )
