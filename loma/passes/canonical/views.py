"""Which element of a tensor an element of a part of it is: of slices, transposed and with
dimensions of size 1 dropped or added."""

from __future__ import annotations

from loma.core import builder as b, sizes
from loma.core.ir import FLOAT, INT, Expr, Index, IntConst, Op, TensorType, Var

ONE = IntConst(1)


def element(part: Expr, subscripts: tuple[Expr, ...]) -> Index | None:
    """None where the part is no such view."""
    match part:
        case Var(_, TensorType(tuple()) as type_):
            return Index(part, subscripts, INT if type_.integer else FLOAT)
        case Op("slice" | "transpose" | "reshape", (whole,)):
            own = _subscripts(part, whole, list(subscripts))
            return None if own is None else element(whole, own)
        case _:
            return None


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
            places[dim] = sizes.simplify(b.binary("+", places[dim], first))
            return tuple(places)
        case "transpose":
            one, other = _constant(attrs["dim0"]), _constant(attrs["dim1"])
            if one is None or other is None:
                return None
            places[one], places[other] = places[other], places[one]
            return tuple(places)
        case _:
            return _with_units(part, whole.type.dims, places)


def _with_units(part: Op, dims: tuple[Expr, ...], places: list[Expr]) -> tuple[Expr, ...] | None:
    """Subscripts for the dimensions before a change of shape that only moves those of size 1."""
    assert isinstance(part.type, TensorType)
    own = part.type.dims or ()
    kept = [(place, dim) for place, dim in zip(places, own, strict=True) if dim != ONE]
    before = [dim for dim in dims if dim != ONE]
    if not sizes.same(tuple(dim for _, dim in kept), tuple(before)):
        return None
    left = iter(kept)
    return tuple(IntConst(0) if dim == ONE else next(left)[0] for dim in dims)


def _constant(value: Expr | tuple[Expr, ...]) -> int | None:
    return None if isinstance(value, tuple) else sizes.constant(value)
