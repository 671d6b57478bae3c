"""What the columns of rows hold: intervals for those that a mask leaves out of panels of rows
(:mod:`loma.backends.kernels.columns`), and for those that they are compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from loma.backends.kernels.intervals import (
    NOTHING, Known, called, combined, hull, times, total,
)  # fmt: skip
from loma.core import bounds, sizes
from loma.core.effects import written
from loma.core.ir import (
    INT, Axis, Binary, Builtin, Declare, Expr, FloatConst, If, Index, IndexAssign, IntConst, NoDiff,
    Reduce, Select, Stmt, TensorType, Unary, Var, Zero, replace,
)  # fmt: skip
from loma.core.sizes import IsSize
from loma.core.walk import free_variables, substitute, walk

# Columns: the first, those that are taken, all behind a row's diagonal, those that are left out
Region: TypeAlias = Literal["first", "kept", "behind", "left"]
REGIONS: tuple[Region, ...] = ("first", "kept", "behind", "left")


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


class Refused(Exception):
    """Some column that is left out may matter."""


@dataclass
class Search:
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
    whole: dict[IndexAssign, IndexAssign] = field(default_factory=dict)
    row: str | None = None  # what the statement at hand calls the row

    def __post_init__(self) -> None:
        for stmt in self.declared:  # which start at zero
            self.values[stmt.target.name] = dict.fromkeys(REGIONS, NOTHING)

    def moderate(self) -> Moderate:
        return Moderate(
            tuple(self.tensors.values()), tuple(self.divisors.values()),
            tuple(self.scalars.values()), tuple(self.sizes), self.most, self.long,
        )  # fmt: skip

    # ----------------------------------------------------------------------- statements

    def block(self, body: tuple[Stmt, ...]) -> None:
        self.written |= written(body)
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
                        self.values[name] = {r: hull(one.get(r), two.get(r)) for r in REGIONS}
                case Zero(Var(name)):
                    self.values[name] = dict.fromkeys(REGIONS, NOTHING)
                case _:
                    raise Refused

    def _assign(self, stmt: IndexAssign) -> None:
        target, columns = stmt.element, columns_of(stmt, self.dims)
        rows = [axis.name for axis in stmt.axes if axis.extent == self.rows[0]]
        self.row = rows[0] if len(rows) == 1 else None
        name = target.tensor.name
        own = {v.name for v in target.subscripts if isinstance(v, Var)}
        self._require_columns(stmt.axes, columns)
        column = next(iter(own & columns), None)
        summed = [axis for axis in stmt.axes if axis.name not in own]
        over = next((axis.name for axis in summed if axis.name in columns), None)
        if len(own & columns) > 1 or sum(axis.name in columns for axis in summed) > 1:
            raise Refused
        if summed and stmt.op != "+=":
            raise Refused
        if column is not None and over is not None:
            raise Refused
        found: dict[Region, Known] = {}
        for region in REGIONS:
            regions: dict[str, Region] = {} if column is None else {column: region}
            if over is not None:
                if self._value(stmt.value, {over: "left"}, stmt.axes) != NOTHING:
                    raise Refused
                regions[over] = "kept"
            value = self._value(stmt.value, regions, stmt.axes)
            found[region] = self._total(value, summed) if summed else value
        outside = column is not None and name not in self.dims
        if outside and (stmt.op != "+=" or found["left"] != NOTHING):
            raise Refused  # what is left out of a tensor from outside keeps its value
        self._note_whole(stmt, columns)
        before = self.values.get(name, {})
        if stmt.op == "+=":
            found = {r: total(before.get(r), value) for r, value in found.items()}
        elif len(own) < len(target.subscripts) or len(stmt.axes) < len(own):
            found = {r: hull(before.get(r), value) for r, value in found.items()}
        self.values[name] = found

    def _note_whole(self, stmt: IndexAssign, columns: set[str]) -> None:
        """Notes a sum of products over the columns up to the diagonal that may as well have all."""
        match stmt.value:
            case Reduce("sum", Binary("*", Index(), Index()) as body, (axis,)) if self.row:
                ends = sizes.equal(axis.extent, self._end_of_row()) is True
                column = axis.name
                value: Expr = replace(stmt.value, axes=(Axis(column, self.extent),))
            case Select(cond, Binary("*", Index(), Index()) as body, FloatConst(0.0)) if self.row:
                column, value = next(iter(columns), ""), body
                # where the condition does not hold, the column is behind the diagonal
                beyond = bounds.facts(cond, holds=False)
                here = sizes.arith("-", Var(column, INT), self._end_of_row())
                ends = len(columns) == 1 and any(sizes.equal(e, here) is True for e in beyond)
            case _:
                return
        scope = (*stmt.axes, Axis(column, self.extent))
        if ends and column in columns and self._value(body, {column: "behind"}, scope) == NOTHING:
            self.whole[stmt] = replace(stmt, value=value)

    def _require_columns(self, axes: tuple[Axis, ...], columns: set[str]) -> None:
        """Indices of columns go through all of them, or in each row as far as it is taken."""
        ranges = {axis.name: axis.extent for axis in axes}
        end = Binary("+", self.rows[1], self.rows[0], INT)
        for axis in axes:
            if axis.name not in columns or sizes.equal(axis.extent, self.extent) is True:
                continue
            room = sizes.arith("-", end, axis.extent)
            if not bounds.is_never_negative(room, ranges, self._is_size):
                raise Refused

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
                    return hull(left, right)
                return left if decided else right
            case Var(name) if expr.type == INT:
                return self._whole(expr, {axis.name for axis in axes})
            case Var(name):
                if name in self.written:
                    return None
                self.scalars[name] = expr
                return -self.most, self.most
            case Unary("-", operand):
                return times(self._value(operand, regions, axes), (-1.0, -1.0))
            case Unary("not") | Binary("<" | "<=" | ">" | ">=" | "==" | "!=" | "and" | "or"):
                return 0.0, 1.0
            case Binary("/", top, Index(Var(name) as base)) if self._is_outside(base):
                self.divisors[name] = base
                return times(self._value(top, regions, axes), (-self.most, self.most))
            case Binary(op, left_side, right_side):
                one = self._value(left_side, regions, axes)
                return combined(op, one, self._value(right_side, regions, axes))
            case Builtin(name, args):
                return called(name, [self._value(arg, regions, axes) for arg in args])
            case _:
                return None

    def _total(self, value: Known, axes: Sequence[Axis]) -> Known:
        """A sum over axes, of any number of terms that the host lets pass."""
        for axis in axes:
            names = free_variables(axis.extent)
            inside = all(map(self.known_size, names)) and self.rows[0].name not in names
            self.sizes[axis.extent if inside else self.extent] = None
            value = times(value, (0.0, float(self.long)))
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
            region = regions.get(subscript.name, "kept")
            if region == "behind" and not self._is_row(read):
                return None
            return self.values[name][region]
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

    def _is_row(self, read: Index) -> bool:
        """Whether an element is of the row at hand."""
        at = sizes.dims_of(read.tensor).index(self.rows[0])
        subscript = read.subscripts[at]
        return isinstance(subscript, Var) and subscript.name == self.row

    def _reduced(
        self, expr: Reduce, regions: Mapping[str, Region], axes: tuple[Axis, ...]
    ) -> Known:
        columns, scope = columns_of(expr.body, self.dims), (*axes, *expr.axes)
        self._require_columns(scope, {axis.name for axis in expr.axes} & columns)
        over = [axis for axis in expr.axes if axis.name in columns]
        if not over:
            inner = self._value(expr.body, regions, scope)
            if expr.kind == "sum":
                return self._total(inner, expr.axes)
            return inner if expr.kind in ("max", "min") else None
        if len(over) > 1:
            raise Refused
        (axis,) = over
        at = {
            region: self._value(expr.body, {**regions, axis.name: region}, scope)
            for region in REGIONS
        }
        ragged = sizes.equal(axis.extent, self.extent) is not True
        if expr.kind == "sum":
            if not ragged and at["left"] != NOTHING:
                raise Refused
            return self._total(at["kept"], expr.axes)
        if expr.kind != "max":
            raise Refused
        first, kept, left = at["first"], at["kept"], at["left"]
        if not ragged and (first is None or left is None or left[1] >= first[0]):
            raise Refused  # the largest may be one that is left out
        if first is None or kept is None:
            return kept
        return (max(first[0], kept[0]), max(first[1], kept[1]))

    def _end_of_row(self) -> Expr:
        """The first column behind the diagonal of the row at hand."""
        assert self.row is not None
        row = Binary("+", self.rows[1], Var(self.row, INT), INT)
        return Binary("+", row, IntConst(1), INT)

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
                case "behind":
                    if self.row is not None:
                        given[name] = Binary("+", self._end_of_row(), Var(name, INT), INT)
                case "kept":
                    ranges[name] = Binary("+", self.rows[1], self.rows[0], INT)

        def surely(holds: bool) -> bool:
            parts = list(bounds.conjuncts(cond)) if holds else [cond]
            ends = [bounds.facts(part, holds) for part in parts]
            if not all(ends):
                return False
            known = [substitute(end, given) for own in ends for end in own]
            return all(bounds.is_never_negative(e, ranges, self._is_size) for e in known)

        return True if surely(True) else False if surely(False) else None


def reads_of(of: Expr | IndexAssign) -> Iterator[Index]:
    roots = (of.target, of.value) if isinstance(of, IndexAssign) else (of,)
    return (node for root in roots for node in walk(root) if isinstance(node, Index))


def columns_of(of: Expr | IndexAssign, dims: Mapping[str, int]) -> set[str]:
    """The indices of columns of the matrices."""
    found = set()
    for read in reads_of(of):
        if isinstance(read.base, Var) and read.base.name in dims:
            subscript = read.subscripts[dims[read.base.name]]
            if not isinstance(subscript, Var):
                raise Refused
            found.add(subscript.name)
    return found
