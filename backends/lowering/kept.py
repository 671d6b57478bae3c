"""Values along a row that an axis around it does not change, computed once for a strip of it.

In ``y[b, c, n] = w(b, n) * x[b, c, p[b, n]]`` neither weight nor place depends on ``c``. The loops
run over strips of n, and over c inside of each; before that, a loop along the strip puts weights
and places into small arrays, from which all values of c read them. Of several factors it is their
product that is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce

from loma import config
from loma.backends.lowering.frames import may_throw
from loma.backends.lowering.nest import Bounds, Keeper, Nest
from loma.backends.schedule.access import IN_ORDER, ZERO, Access, Loop, score
from loma.backends.schedule.ir import If, Let, Node, Part, Store
from loma.backends.schedule.marks import mark_of
from loma.core import builder as b, sizes
from loma.core.builtins import BUILTINS
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Builtin, Call, Element, Expr, FloatType, Index, IntConst, Op, Reduce,
    Select, TensorType, Unary, Var,
)  # fmt: skip
from loma.core.walk import children, free_variables, walk

_SHORT = 2**31


def choose(nest: Nest, loops: Sequence[Loop], row: Loop, found: Sequence[Access]) -> Loop | None:
    """The axis of the loops that goes inside of strips of the row, for something costly does not
    depend on it: the place of an element that is not affine."""
    machine = nest.context.machine
    if not machine.lanes or "kept_rows" not in config.optimisations() or row.name in nest.bounds:
        return None
    count = sizes.constant(row.axis.extent)
    names = {loop.name for loop in (*loops, row)}
    ragged = any(sizes.mentions(loop.axis.extent, names) for loop in (*loops, row))
    if ragged or (count is not None and count < machine.lanes):
        return None
    places = [access for access in found if access.is_loose_in(row.name)]
    rest = [loop for loop in loops if loop is not row]
    meeting = [loop for loop in rest if not loop.alone]
    if any(loop.target for loop in meeting):
        return None
    free = [
        loop
        for loop in meeting[-1:] or rest  # a sum that has other sums inside keeps its order
        if any(not access.is_loose_in(loop.name) for access in places)
    ]
    return free[-1] if free else None


def score_of(nest: Nest, loops: Sequence[Loop], row: Loop, found: Sequence[Access]) -> int:
    """How many accesses a loop over the row reads in order, or from what is kept."""
    other = choose(nest, loops, row, found)
    kept = [a for a in found if other is not None and other.name not in a.coefficients]
    kept = [a for a in kept if other is not None and not a.is_loose_in(other.name)]
    found = [a for a in found if a not in kept]
    return IN_ORDER * len(kept) + score(row.name, found) + IN_ORDER * (other is not None)


def rows(
    nest: Nest, row: Axis, other: Axis, bounds: Bounds, inside: Callable[[], list[Node]]
) -> list[Node]:
    """The loop over ``other`` around what ``inside`` makes for the row, a strip within the bounds;
    what is kept for it comes first."""
    start, end = nest.fresh("from"), nest.fresh("to")
    before = nest.bounds.get(row.name)
    nest.bounds[row.name] = start, end
    kept = nest.keeper = _Kept(nest, row, other, start)
    loops = nest.loops([other], inside)
    nest.keeper = None

    def fill() -> list[Node]:
        return [Store(kept.place(part), "set", make()) for part, make in kept.parts.values()]

    nodes: list[Node] = [Let(start, bounds[0]), Let(end, bounds[1])]
    nodes += [Part(part, part.name in kept.short) for part, _ in kept.parts.values()]
    if kept.parts:
        loops = [*nest.innermost(row, ZERO, fill, (start, end), independent=True), *loops]
    if before is None:
        del nest.bounds[row.name]
    else:
        nest.bounds[row.name] = before
    low, high = nest.bounds.get(other.name) or (ZERO, nest.value(other.extent))
    return [*nodes, If(Binary("<", low, high, INT), tuple(loops))]


@dataclass
class _Kept(Keeper):
    """``parts``: by what they hold, the arrays and what computes their elements; ``short``: the
    names of those whose elements 32 bits hold."""

    nest: Nest
    row: Axis
    other: Axis
    start: Var
    parts: dict[object, tuple[Var, Callable[[], Expr]]] = field(default_factory=dict)
    short: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.outside = {axis.name for axis in self.nest.scope}

    def value(self, expr: Expr) -> Expr | None:
        if isinstance(expr, Index) and isinstance(expr.base, Var):
            access = self.nest.access(expr, False)
            in_order = sizes.constant(access.coefficient(self.row.name)) in (0, 1)
            worth_it = not in_order and not access.loose
        else:
            worth_it = isinstance(expr, Binary | Builtin | Select | Unary) and _is_worth_it(expr)
        if not worth_it or not self._stays(expr):
            return self._product(expr)
        dtype: Element = "int" if expr.type == INT else "float"
        return self._read(expr, dtype, lambda: self.nest.value(expr))

    def _product(self, expr: Expr) -> Expr | None:
        """A product with several factors that stay, which are kept as one: ``x * (a * b)`` for
        ``x * a * b``."""
        found = _factors(expr)
        own = [factor for factor in found if self._stays(factor)]
        rest = [factor for factor in found if not self._stays(factor)]
        if len(own) < 2 or not rest:
            return None
        kept = self.value(reduce(b.mul, own))
        return None if kept is None else b.mul(self.nest.value(reduce(b.mul, rest)), kept)

    def condition(self, expr: Expr) -> Expr | None:
        if not self._stays(expr):
            return None
        one, none = IntConst(1), IntConst(0)
        return self._read(expr, "bool", lambda: Select(self.nest.value(expr), one, none, INT))

    def offset(self, access: Access, make: Callable[[], Expr]) -> Expr | None:
        own = self.nest.may_leave(access) if access.padded else access.loose
        made_of = [subscript.expr for subscript in own]
        if not all(map(self._may_move, made_of)) or not any(map(self._moves_along, made_of)):
            return None
        places = tuple((s.expr, s.stride, s.size) for s in own)
        read = self._read((access.padded, places), "int", make)
        behind = sizes.total(tuple(sizes.product((s.size, s.stride)) for s in access.loose))
        checked = access.padded or all(mark_of(s.expr) is None for s in access.loose)
        if checked and (sizes.constant(behind) or _SHORT) < _SHORT:
            self.short.add(read.tensor.name)
        return read

    def place(self, part: Var) -> Index:
        assert isinstance(part.type, TensorType)
        at = Binary("-", Var(self.row.name, INT), self.start, INT)
        return Index(part, (at,), FloatType() if part.type.element == "float" else INT)

    def _read(self, key: object, dtype: Element, make: Callable[[], Expr]) -> Index:
        if key not in self.parts:
            size = IntConst(self.nest.context.machine.strip)
            part = Var(self.nest.fresh("kept").name, TensorType((size,), dtype))
            self.parts[key] = part, make
        return self.place(self.parts[key][0])

    def _stays(self, expr: Expr) -> bool:
        return self._may_move(expr) and self._moves_along(expr)

    def _moves_along(self, expr: Expr) -> bool:
        return self.nest.mentions(free_variables(expr), self.row.name)

    def _may_move(self, expr: Expr) -> bool:
        """Whether the expression has the same value for all values of the other axis, and may be
        computed before, though no condition has been tested that it stands under."""
        nest, names = self.nest, free_variables(expr)
        deeper = {axis.name for axis in nest.scope} - self.outside
        if nest.mentions(names, self.other.name) or names & (deeper | nest.writable):
            return False
        if mark_of(expr) is not None and isinstance(expr, Builtin):
            expr = expr.args[0]
        plain = not any(
            isinstance(node, Reduce | Call | Op) or mark_of(node) is not None for node in walk(expr)
        )
        return plain and not may_throw(expr, nest.context.module)


def _factors(expr: Expr) -> list[Expr]:
    """The factors of a product of numbers that are no ints."""
    match expr:
        case Binary("*", left, right) if expr.type == FLOAT:
            return [*_factors(left), *_factors(right)]
        case _:
            return [expr]


def _is_worth_it(expr: Expr) -> bool:
    """Whether computing a value takes longer than reading it: that of two elements does."""
    return _steps(expr) > 1 or sum(isinstance(node, Index) for node in walk(expr)) > 1


def _steps(expr: Expr) -> int:
    if isinstance(expr, Index):
        return 0
    below = sum(map(_steps, children(expr)))
    match expr:
        case Builtin(name) if name in BUILTINS and BUILTINS[name].costly:
            return 2 + below
        case Binary() | Builtin() | Select() | Unary():
            # an int among them is made a number
            return 1 + below + any(c.type == INT for c in children(expr) if expr.type != INT)
        case _:
            return below
