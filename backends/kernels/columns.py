"""Columns that a mask leaves out of a few rows of a matrix, as of causal attention.

Rows t of ``first <= t < first + count`` go through panels together. Where the columns from
``first + count`` on are worth nothing to any of them, statements need not compute these:

    e[t, j] = exp(s[t, j] - m[t]) if j <= t else 0.0
    y[t, d] += e[t, j] * v[j, d]

But zero times a v that is not finite is NaN, and of a mask that is a large negative number,
``exp(s[t, j] - 1e30 - m[t])``, only the values of s and m say that it is zero. So the host asks
whether all numbers that come from outside are moderate, and takes all columns where they are not.
That the columns are worth exactly zero, if so, is found here: by intervals, of what the first
column holds, what the columns hold that are taken, and what those that are left out would hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from loma.core import bounds, sizes
from loma.core.ir import (
    INT, Axis, Binary, Builtin, Declare, Expr, FloatConst, If, Index, IndexAssign, IntConst, NoDiff,
    Reduce, Select, Stmt, TensorType, Unary, Var, Zero, replace,
)  # fmt: skip
from loma.core.sizes import IsSize
from loma.core.walk import expressions, free_variables, map_expressions, map_children, walk

Region: TypeAlias = Literal["first", "kept", "left"]
REGIONS: tuple[Region, ...] = ("first", "kept", "left")
Interval: TypeAlias = tuple[float, float]
Known: TypeAlias = Interval | None  # None: anything, NaN among it

_NOTHING: Interval = (0.0, 0.0)
_HUGE = 1e37  # beyond it float32 may overflow
_EXP_IS_ZERO, _EXP_IS_LARGE = -800.0, 80.0


@dataclass(frozen=True, slots=True)
class Moderate:
    """What the host asks: no element of ``tensors`` nor of ``scalars`` is larger than ``most``,
    none of ``divisors`` smaller than its inverse or larger, all ``sizes`` are from 1 to ``long``.
    """

    tensors: tuple[Var, ...]
    divisors: tuple[Var, ...]
    scalars: tuple[Var, ...]
    sizes: tuple[Expr, ...]
    most: float
    long: int


# Of wide ranges less can be proved: a mask of -1e30 is far from all scores, one of -1e9 is not.
_RANGES = ((2.0**20, 2**31), (2.0**8, 2**12))


class _Refused(Exception):
    """Some column that is left out may matter."""


@dataclass(frozen=True, slots=True)
class Narrow:
    """Statements in terms of ``count`` columns, as are the dimensions in ``views`` of tensors that
    come from outside."""

    statements: tuple[Stmt, ...]
    declared: tuple[Declare, ...]
    views: tuple[tuple[str, int], ...]
    moderate: Moderate


def narrowed(
    declared: tuple[Declare, ...],
    body: tuple[Stmt, ...],
    rows: tuple[Var, Var],
    extent: Expr,
    count: Var,
    is_size: IsSize,
) -> Narrow | None:
    """Statements about ``rows`` (how many, and the first) of so many as there are columns, with
    ``count`` columns instead of ``extent``; None where others may matter. ``declared``: the tensors
    that exist for these rows."""
    dims = {
        stmt.target.name: dim
        for stmt in declared
        if (dim := _column(stmt.target, rows[0], extent)) is not None
    }
    if not dims:
        return None
    try:
        places = _places(body, dims, extent)
        for most, long in _RANGES:
            search = _Search(declared, dims, rows, extent, is_size, most, long)
            try:
                search.block(body)
            except _Refused:
                continue
            break
        else:
            return None
    except _Refused:
        return None
    sized = dims | places

    def own(var: Var) -> Var:
        return _cut(var, sized[var.name], count) if var.name in sized else var

    def cut(expr: Expr) -> Expr:
        if isinstance(expr, Var):
            return own(expr)
        inner = map_children(expr, cut)
        if isinstance(inner, Reduce):
            return replace(inner, axes=_cut_axes(inner.axes, expr, dims, extent, count))
        return inner

    def statement(stmt: Stmt) -> Stmt:
        if isinstance(stmt, If):
            then, other = (tuple(map(statement, block)) for block in (stmt.then, stmt.other))
            return replace(stmt, then=then, other=other)
        if isinstance(stmt, IndexAssign):
            axes = _cut_axes(stmt.axes, stmt, dims, extent, count)
            return map_expressions(replace(stmt, axes=axes), cut)
        return map_expressions(stmt, cut)

    return Narrow(
        tuple(map(statement, body)),
        tuple(replace(stmt, target=own(stmt.target)) for stmt in declared),
        tuple(sorted(places.items())),
        search.moderate(),
    )


def _column(var: Var, rows: Var, extent: Expr) -> int | None:
    """The only dimension of a tensor with rows that has so many columns."""
    assert isinstance(var.type, TensorType)
    own = var.type.dims or ()
    found = [k for k, dim in enumerate(own) if sizes.equal(dim, extent) is True]
    return found[0] if rows in own and len(found) == 1 and not var.type.integer else None


def _cut(var: Var, dim: int, count: Var) -> Var:
    assert isinstance(var.type, TensorType)
    own = var.type.dims or ()
    return replace(var, type=replace(var.type, dims=(*own[:dim], count, *own[dim + 1 :])))


def _cut_axes(
    axes: tuple[Axis, ...],
    of: Expr | IndexAssign,
    dims: Mapping[str, int],
    extent: Expr,
    count: Var,
) -> tuple[Axis, ...]:
    names = _columns(of, dims)
    return tuple(
        Axis(axis.name, count)
        if axis.name in names and sizes.equal(axis.extent, extent) is True
        else axis
        for axis in axes
    )


def _reads(of: Expr | IndexAssign) -> Iterator[Index]:
    roots = (of.target, of.value) if isinstance(of, IndexAssign) else (of,)
    return (node for root in roots for node in walk(root) if isinstance(node, Index))


def _columns(of: Expr | IndexAssign, dims: Mapping[str, int]) -> set[str]:
    """The indices of columns of the matrices."""
    found = set()
    for read in _reads(of):
        if isinstance(read.base, Var) and read.base.name in dims:
            subscript = read.subscripts[dims[read.base.name]]
            if not isinstance(subscript, Var):
                raise _Refused
            found.add(subscript.name)
    return found


def _places(body: tuple[Stmt, ...], dims: Mapping[str, int], extent: Expr) -> dict[str, int]:
    """The dimensions of other tensors that run along columns, wherever these tensors stand."""
    found: dict[str, int] = {}
    seen: dict[str, set[int | None]] = {}
    for stmt in _flat(body):
        match stmt:
            case IndexAssign(target=Index()):
                names = _columns(stmt, dims)
            case Zero(Var()) | If():
                continue
            case _:
                raise _Refused
        if any(isinstance(node, Index) for axis in _axes(stmt) for node in walk(axis.extent)):
            raise _Refused
        bases = 0
        for read in _reads(stmt):
            if not isinstance(read.base, Var) or not isinstance(read.base.type, TensorType):
                raise _Refused
            bases += 1
            own = read.base.type.dims or ()
            at: set[int | None] = set()
            for k, subscript in enumerate(read.subscripts):
                if not free_variables(subscript) & names:
                    continue
                if not isinstance(subscript, Var) or sizes.equal(own[k], extent) is not True:
                    raise _Refused
                at.add(k)
            if len(at) > 1:
                raise _Refused
            seen.setdefault(read.base.name, set()).update(at or {None})
        whole = sum(
            isinstance(node, Var) and isinstance(node.type, TensorType)
            for root in expressions(stmt)
            for node in walk(root)
        )
        if whole != bases:
            raise _Refused  # an operator on a whole tensor
    for name, at in seen.items():
        if name in dims:
            continue
        if len(at) > 1:
            raise _Refused
        (dim,) = at
        if dim is not None:
            found[name] = dim
    cleared = {
        s.target.name for s in _flat(body) if isinstance(s, Zero) and isinstance(s.target, Var)
    }
    if cleared & found.keys():
        raise _Refused  # a part is not all of it
    return found


def _axes(stmt: IndexAssign) -> Iterator[Axis]:
    yield from stmt.axes
    for node in walk(stmt.value):
        if isinstance(node, Reduce):
            yield from node.axes


def _flat(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    for stmt in body:
        yield stmt
        if isinstance(stmt, If):
            yield from _flat((*stmt.then, *stmt.other))


@dataclass
class _Search:
    """Goes through statements in order. ``values`` are those that tensors have by now: of matrices
    for each region of columns, of others the same for all."""

    declared: tuple[Declare, ...]
    dims: Mapping[str, int]
    rows: tuple[Var, Var]
    extent: Expr
    known_size: IsSize
    most: float
    long: int
    values: dict[str, dict[Region, Known]] = field(default_factory=dict)
    tensors: dict[str, Var] = field(default_factory=dict)
    divisors: dict[str, Var] = field(default_factory=dict)
    scalars: dict[str, Var] = field(default_factory=dict)
    sizes: dict[Expr, None] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for stmt in self.declared:  # which start at zero
            self.values[stmt.target.name] = dict.fromkeys(REGIONS, _NOTHING)

    def moderate(self) -> Moderate:
        return Moderate(
            tuple(self.tensors.values()), tuple(self.divisors.values()),
            tuple(self.scalars.values()), tuple(self.sizes), self.most, self.long,
        )  # fmt: skip

    # ----------------------------------------------------------------------- statements

    def block(self, body: tuple[Stmt, ...]) -> None:
        self.written |= {
            s.element.tensor.name
            for s in _flat(body)
            if isinstance(s, IndexAssign) and isinstance(s.target, Index)
        }
        self.written |= {
            s.target.name for s in _flat(body) if isinstance(s, Zero) and isinstance(s.target, Var)
        }
        for stmt in body:
            match stmt:
                case IndexAssign():
                    self._assign(stmt)
                case If(_, then, other):
                    before = {name: dict(value) for name, value in self.values.items()}
                    self.block(then)
                    after, self.values = self.values, before
                    self.block(other)
                    for name in after.keys() | self.values.keys():
                        one, two = after.get(name, {}), self.values.get(name, {})
                        self.values[name] = {r: _hull(one.get(r), two.get(r)) for r in REGIONS}
                case Zero(Var(name)):
                    self.values[name] = dict.fromkeys(REGIONS, _NOTHING)
                case _:
                    raise _Refused

    def _assign(self, stmt: IndexAssign) -> None:
        target, columns = stmt.element, _columns(stmt, self.dims)
        name = target.tensor.name
        own = {v.name for v in target.subscripts if isinstance(v, Var)}
        self._require_columns(stmt.axes, columns)
        column = next(iter(own & columns), None)
        summed = [axis for axis in stmt.axes if axis.name not in own]
        over = next((axis.name for axis in summed if axis.name in columns), None)
        if len(own & columns) > 1 or sum(axis.name in columns for axis in summed) > 1:
            raise _Refused
        if summed and stmt.op != "+=":
            raise _Refused
        if column is not None and over is not None:
            raise _Refused
        found: dict[Region, Known] = {}
        for region in REGIONS:
            regions: dict[str, Region] = {} if column is None else {column: region}
            if over is not None:
                if self._value(stmt.value, {over: "left"}, stmt.axes) != _NOTHING:
                    raise _Refused
                regions[over] = "kept"
            value = self._value(stmt.value, regions, stmt.axes)
            found[region] = self._total(value, summed) if summed else value
        outside = column is not None and name not in self.dims
        if outside and (stmt.op != "+=" or found["left"] != _NOTHING):
            raise _Refused  # what is left out of a tensor from outside keeps its value
        before = self.values.get(name, {})
        if stmt.op == "+=":
            found = {r: _sum(before.get(r), value) for r, value in found.items()}
        elif len(own) < len(target.subscripts) or len(stmt.axes) < len(own):
            found = {r: _hull(before.get(r), value) for r, value in found.items()}
        self.values[name] = found

    def _require_columns(self, axes: tuple[Axis, ...], columns: set[str]) -> None:
        """Indices of columns go through all of them, or in each row as far as it is taken."""
        ranges = {axis.name: axis.extent for axis in axes}
        end = Binary("+", self.rows[1], self.rows[0], INT)
        for axis in axes:
            if axis.name not in columns or sizes.equal(axis.extent, self.extent) is True:
                continue
            room = sizes.arith("-", end, axis.extent)
            if not bounds.is_never_negative(room, ranges, self._is_size):
                raise _Refused

    def _is_size(self, name: str) -> bool:
        return self.known_size(name) or name in {var.name for var in self.rows}

    # ----------------------------------------------------------------------- expressions

    def _value(self, expr: Expr, regions: Mapping[str, Region], axes: tuple[Axis, ...]) -> Known:
        match expr:
            case FloatConst(value):
                return value, value
            case IntConst(number):
                return float(number), float(number)
            case Index(Var(name)):
                return self._element(expr, name, regions)
            case NoDiff(operand):
                return self._value(operand, regions, axes)
            case Reduce():
                return self._reduced(expr, regions, axes)
            case Select(cond, then, other):
                decided = self._holds(cond, regions, axes)
                left = None if decided is False else self._value(then, regions, axes)
                right = None if decided is True else self._value(other, regions, axes)
                if decided is None:
                    return _hull(left, right)
                return left if decided else right
            case Var(name) if expr.type == INT:
                return self._whole(expr, {axis.name for axis in axes})
            case Var(name):
                if name in self.written:
                    return None
                self.scalars[name] = expr
                return -self.most, self.most
            case Unary("-", operand):
                return _times(self._value(operand, regions, axes), (-1.0, -1.0))
            case Unary("not") | Binary("<" | "<=" | ">" | ">=" | "==" | "!=" | "and" | "or"):
                return 0.0, 1.0
            case Binary("/", top, Index(Var(name) as base)) if self._is_outside(base):
                self.divisors[name] = base
                return _times(self._value(top, regions, axes), (-self.most, self.most))
            case Binary(op, left_side, right_side):
                one = self._value(left_side, regions, axes)
                return _combined(op, one, self._value(right_side, regions, axes))
            case Builtin(called, args):
                return _called(called, [self._value(arg, regions, axes) for arg in args])
            case _:
                return None

    def _total(self, value: Known, axes: Sequence[Axis]) -> Known:
        """A sum over axes, of any number of terms that the host lets pass."""
        for axis in axes:
            names = free_variables(axis.extent)
            inside = all(map(self.known_size, names)) and self.rows[0].name not in names
            self.sizes[axis.extent if inside else self.extent] = None
            value = _times(value, (0.0, float(self.long)))
        return value

    def _whole(self, var: Var, names: set[str]) -> Known:
        if var.name not in names and self.known_size(var.name):
            self.sizes[var] = None
            return 1.0, float(self.long)
        if var.name in names or self._is_size(var.name):
            return 0.0, float(2**31)
        return None

    def _element(self, read: Index, name: str, regions: Mapping[str, Region]) -> Known:
        base = read.base
        assert isinstance(base, Var)
        if name in self.dims:
            subscript = read.subscripts[self.dims[name]]
            assert isinstance(subscript, Var)
            return self.values[name][regions.get(subscript.name, "kept")]
        if name in self.values:
            return self.values[name]["kept"]
        if not self._is_outside(base):
            return None
        self.tensors[name] = base
        return -self.most, self.most

    def _is_outside(self, base: Var) -> bool:
        """Whether a tensor of numbers is what it was before the rows."""
        name = base.name
        inside = name in self.values or name in self.written
        return not inside and isinstance(base.type, TensorType) and not base.type.integer

    def _reduced(
        self, expr: Reduce, regions: Mapping[str, Region], axes: tuple[Axis, ...]
    ) -> Known:
        columns, scope = _columns(expr.body, self.dims), (*axes, *expr.axes)
        self._require_columns(scope, {axis.name for axis in expr.axes} & columns)
        over = [axis for axis in expr.axes if axis.name in columns]
        if not over:
            inner = self._value(expr.body, regions, scope)
            if expr.kind == "sum":
                return self._total(inner, expr.axes)
            return inner if expr.kind in ("max", "min") else None
        if len(over) > 1:
            raise _Refused
        (axis,) = over
        at = {
            region: self._value(expr.body, {**regions, axis.name: region}, scope)
            for region in REGIONS
        }
        ragged = sizes.equal(axis.extent, self.extent) is not True
        if expr.kind == "sum":
            if not ragged and at["left"] != _NOTHING:
                raise _Refused
            return self._total(at["kept"], expr.axes)
        if expr.kind != "max":
            raise _Refused
        first, kept, left = (at[region] for region in REGIONS)
        if not ragged and (first is None or left is None or left[1] >= first[0]):
            raise _Refused  # the largest may be one that is left out
        if first is None or kept is None:
            return kept
        return (max(first[0], kept[0]), max(first[1], kept[1]))

    def _holds(
        self, cond: Expr, regions: Mapping[str, Region], axes: tuple[Axis, ...]
    ) -> bool | None:
        """What a condition is in these regions of columns, in each row."""
        ranges = {axis.name: axis.extent for axis in axes}
        given: dict[str, Expr] = {}
        for name, region in regions.items():
            match region:
                case "first":
                    given[name] = IntConst(0)
                case "left":
                    end = Binary("+", self.rows[1], self.rows[0], INT)
                    given[name] = Binary("+", end, Var(name, INT), INT)
                case "kept":
                    ranges[name] = Binary("+", self.rows[1], self.rows[0], INT)

        def surely(holds: bool) -> bool:
            parts = list(bounds.conjuncts(cond)) if holds else [cond]
            ends = [bounds.facts(part, holds) for part in parts]
            if not all(ends):
                return False
            known = [_put(end, given) for own in ends for end in own]
            return all(bounds.is_never_negative(e, ranges, self._is_size) for e in known)

        return True if surely(True) else False if surely(False) else None


def _put(expr: Expr, given: Mapping[str, Expr]) -> Expr:
    if isinstance(expr, Var) and expr.name in given:
        return given[expr.name]
    return map_children(expr, lambda child: _put(child, given))


# ------------------------------------------------------------------------------- intervals


def _clamped(low: float, high: float) -> Known:
    """With room for rounding; None where float32 may have no number for it."""
    if math.isnan(low) or math.isnan(high):
        return None
    low, high = (low * 1.01 if low < 0 else low / 1.01), (high * 1.01 if high > 0 else high / 1.01)
    return None if max(-low, high) > _HUGE else (low, high)


def _hull(one: Known, two: Known) -> Known:
    return None if one is None or two is None else (min(one[0], two[0]), max(one[1], two[1]))


def _sum(one: Known, two: Known) -> Known:
    return None if one is None or two is None else _clamped(one[0] + two[0], one[1] + two[1])


def _times(one: Known, two: Known) -> Known:
    if one is None or two is None:
        return None
    ends = [x * y for x in one for y in two]
    return _clamped(min(ends), max(ends))


def _combined(op: str, one: Known, two: Known) -> Known:
    if one is None or two is None:
        return None
    match op:
        case "+":
            return _sum(one, two)
        case "-":
            return _sum(one, (-two[1], -two[0]))
        case "*":
            return _times(one, two)
        case "/" if two[0] > 0:
            return _times(one, (1.0 / two[1], 1.0 / two[0]))
        case _:
            return None


def _called(name: str, args: list[Known]) -> Known:
    known = [arg for arg in args if arg is not None]
    if name == "mul_no_nan" and args[1] == _NOTHING:
        return _NOTHING
    if len(known) < len(args) or not args:
        return None
    low, high = known[0]
    match name:
        case "exp" if high < _EXP_IS_ZERO:
            return _NOTHING
        case "exp" if high < _EXP_IS_LARGE:
            return _clamped(0.0, math.exp(high))
        case "int2float":
            return low, high
        case "sqrt" if low > 0:
            return _clamped(math.sqrt(low), math.sqrt(high))
        case "rsqrt" if low > 0:
            return _clamped(1 / math.sqrt(high), 1 / math.sqrt(low))
        case "abs":
            return (0.0, max(-low, high)) if low < 0 else (low, high)
        case "mul_no_nan":
            return _times(known[0], known[1])
        case "max" if len(known) == 2:
            return max(low, known[1][0]), max(high, known[1][1])
        case "min" if len(known) == 2:
            return min(low, known[1][0]), min(high, known[1][1])
        case "tanh" | "sin" | "cos" | "erf":
            return -1.0, 1.0
        case "sigmoid":
            return 0.0, 1.0
        case _:
            return None
