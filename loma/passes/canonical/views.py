"""Which element of a tensor an element of a part of it is: of slices, permuted and with
dimensions of size 1 dropped or added, flipped and rolled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeVar

from loma.core import builder as b, sizes
from loma.core.bounds import counted, is_never_negative
from loma.core.effects import is_blank, written
from loma.core.ir import (
    FLOAT, INT, Assign, Binary, Declare, Expr, For, Function, Index, IntConst, Op, Stmt, TensorType,
    Var, replace,
)  # fmt: skip
from loma.core.ops import OPS
from loma.core.sizes import IsSize
from loma.core.walk import (
    map_blocks, map_children, map_expressions, mentioned_names, own_names, statements,
)  # fmt: skip

ONE = IntConst(1)
T = TypeVar("T")


def is_view(value: Expr) -> bool:
    """Whether a value is a variable's in another shape or order of dimensions, or a part of it."""
    if not isinstance(value, Op) or OPS[value.name].work != "view":
        return False
    return isinstance(value.args[0], Var) or is_view(value.args[0])


def read_through(function: Function) -> Function:
    """The function with elements of a tensor for those of parts of it that have names, where
    neither is written while the part is in use."""
    is_size = frozenset(sizes.size_variables(function)).__contains__
    uses = Counter(
        name for stmt in statements(function.body) if not is_blank(stmt) for name in own_names(stmt)
    )

    def block(body: tuple[Stmt, ...], counters: Mapping[str, Expr]) -> tuple[Stmt, ...]:
        out = list(body)
        for position in range(len(out)):
            match stmt := out[position]:
                case Declare(Var(_, TensorType()) as name, Op() as part):
                    pass
                case Assign(Var(_, TensorType()) as name, "=", Op() as part):
                    # Of a variable that this block alone uses, behind the statement.
                    own = (name.name in own_names(s) for s in statements(tuple(out[position:])))
                    if uses[name.name] != sum(own):
                        continue
                case _:
                    continue
            after = tuple(out[position + 1 :])
            if not is_inside(part, is_size, counters, or_empty=True):
                continue
            using = [k for k, s in enumerate(after) if name.name in mentioned_names((s,))]
            during = after[: using[-1] + 1] if using else ()
            if mentioned_names((stmt,)).isdisjoint(written(during)):
                out[position + 1 :] = (_with_part(s, name, part) for s in after)
        return tuple(map_blocks(s, partial(block, counters=inside(s, counters))) for s in out)

    def inside(stmt: Stmt, counters: Mapping[str, Expr]) -> Mapping[str, Expr]:
        return counted(stmt, counters, is_size) if isinstance(stmt, For) else counters

    return replace(function, body=block(function.body, {}))


def is_inside(
    part: Expr,
    is_size: IsSize,
    counters: Mapping[str, Expr] | None = None,
    or_empty: bool = False,
) -> bool:
    """Whether an expression is a variable or a part of one that surely lies inside, or of which all
    elements do (``or_empty``); ``counters`` are the ranges of loops around."""
    match part:
        case Var():
            return True
        case Op("slice", (whole,)):
            there = slice_start(part, is_size, counters, or_empty) is not None
            return there and is_inside(whole, is_size, counters, or_empty)
        case Op("transpose" | "permute", (whole,)):
            return is_inside(whole, is_size, counters, or_empty)
        case Op("reshape", (whole,)):
            return _is_readable(part, whole) and is_inside(whole, is_size, counters, or_empty)
        case _:
            return False


def _is_readable(part: Op, whole: Expr) -> bool:
    return _subscripts(part, whole, [ONE] * len(sizes.dims_of(part))) is not None


def slice_start(
    part: Op,
    is_size: IsSize,
    counters: Mapping[str, Expr] | None = None,
    or_empty: bool = False,
) -> tuple[int, Expr] | None:
    """The dimension of a slice and where it starts; None where it has steps, or may leave the
    tensor. ``or_empty``: it may end before it starts, when it has no elements, as in PyTorch.
    ``counters`` are the ranges of loops around."""
    attrs, whole = dict(part.attrs), part.args[0].type
    dim, step = _constant(attrs["dim"]), _constant(attrs["step"])
    start, end = attrs["start"], attrs["end"]
    if dim is None or step != 1 or not isinstance(whole, TensorType) or whole.dims is None:
        return None
    assert isinstance(start, Expr)
    assert isinstance(end, Expr)
    ends = [start, sizes.arith("-", whole.dims[dim], end)]
    ends += [] if or_empty else [sizes.arith("-", end, start)]
    inside = all(is_never_negative(e, counters or {}, is_size) for e in ends)
    return (dim, start) if inside else None


def cut_place(place: Expr, start: Expr) -> Expr:
    """Where an element of a slice lies. An index that starts where its tensor does is ``i + 0``, as
    one that does not fill the dimension."""
    whole = sizes.simplify(b.binary("+", place, start))
    alone = isinstance(whole, Var) and whole == place
    return Binary("+", whole, IntConst(0), INT, whole.span) if alone else whole


def _with_part(stmt: Stmt, name: Var, part: Op) -> Stmt:
    """The statement with the part for its name, where that is read in an expression."""

    def value(expr: Expr) -> Expr:
        match expr:
            case Index(Var(base), places) if base == name.name:
                places = tuple(map(value, places))
                return element(part, places) or replace(expr, subscripts=places)
            case Op(_, args):
                whole = (part if arg == name else value(arg) for arg in args)
                return replace(expr, args=tuple(whole))
            case _:
                return map_children(expr, value)

    return map_expressions(stmt, value)


def element(part: Expr, subscripts: tuple[Expr, ...]) -> Index | None:
    """None where the part is no such view."""
    match part:
        case Var(_, TensorType(tuple()) as type_):
            return Index(part, subscripts, INT if type_.integer else FLOAT)
        case Op("slice" | "transpose" | "permute" | "reshape", (whole,)):
            own = _subscripts(part, whole, list(subscripts))
            return None if own is None else element(whole, own)
        case _:
            return None


def order_of(value: Op) -> tuple[int, ...] | None:
    """The dimensions of an operand in the order that a permutation gives them."""
    attrs, count = dict(value.attrs), len(sizes.dims_of(value))
    if value.name == "permute":
        dims = _constants(attrs["dims"])
        return None if dims is None else tuple(dim % count for dim in dims)
    ends = _constants((*_several(attrs["dim0"]), *_several(attrs["dim1"])))
    if ends is None:
        return None
    one, other = (end % count for end in ends)
    return tuple({one: other, other: one}.get(k, k) for k in range(count))


def in_order(order: tuple[int, ...], own: Sequence[T]) -> tuple[T, ...]:
    """For each dimension of what is permuted, what belongs to it in the permutation."""
    return tuple(own[order.index(k)] for k in range(len(order)))


def turned(value: Op, places: tuple[Expr, ...]) -> tuple[Expr, ...] | None:
    """Which element of its operand an element of what is flipped or rolled is; None where no
    numbers say how far, or which dimensions, or how many these are."""
    if not isinstance(value.type, TensorType) or value.type.dims is None:
        return None
    attrs, extents, found = dict(value.attrs), sizes.dims_of(value), list(places)
    dims = _constants(attrs["dims"])
    shifts = None if value.name == "flip" else _constants(attrs["shifts"])
    if shifts and dims == [] and len(extents) == 1:
        dims = [0]  # of all elements in a row
    if not dims or (value.name == "roll" and len(shifts or ()) != len(dims)):
        return None
    for k, dim in enumerate(dims):
        place, extent = found[dim], extents[dim]
        if extent == ONE:
            continue
        if shifts is None:
            found[dim] = sizes.simplify(b.binary("-", b.binary("-", extent, ONE), place))
        else:
            moved = sizes.simplify(b.binary("-", place, IntConst(shifts[k])))
            found[dim] = b.binary("%", moved, extent)
    return tuple(found)


def _subscripts(part: Op, whole: Expr, places: list[Expr]) -> tuple[Expr, ...] | None:
    if not isinstance(whole.type, TensorType) or whole.type.dims is None:
        return None
    attrs = dict(part.attrs)
    match part.name:
        case "slice":
            dim, start, step = (_constant(attrs[name]) for name in ("dim", "start", "step"))
            if dim is None or step != 1 or (start is not None and start < 0):
                return None
            first = attrs["start"]
            assert not isinstance(first, tuple)
            places[dim] = cut_place(places[dim], first)
            return tuple(places)
        case "transpose" | "permute":
            order = order_of(part)
            return None if order is None else in_order(order, places)
        case _:
            return _with_units(part, whole.type.dims, places)


def _with_units(part: Op, dims: tuple[Expr, ...], places: list[Expr]) -> tuple[Expr, ...] | None:
    """Subscripts for the dimensions before a change of shape that only moves those of size 1."""
    own = sizes.dims_of(part)
    kept = [(place, dim) for place, dim in zip(places, own, strict=True) if dim != ONE]
    before = [dim for dim in dims if dim != ONE]
    if not sizes.same(tuple(dim for _, dim in kept), tuple(before)):
        return None
    left = iter(kept)
    return tuple(IntConst(0) if dim == ONE else next(left)[0] for dim in dims)


def _several(values: Expr | tuple[Expr, ...]) -> tuple[Expr, ...]:
    return values if isinstance(values, tuple) else (values,)


def _constants(values: Expr | tuple[Expr, ...]) -> list[int] | None:
    found = [_constant(v) for v in _several(values)]
    return None if None in found else [v for v in found if v is not None]


def _constant(value: Expr | tuple[Expr, ...]) -> int | None:
    return None if isinstance(value, tuple) else sizes.constant(value)
