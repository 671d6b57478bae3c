"""Powers by numbers that a range goes through, from round to round.

``y[n] = sum(c[k] * x[n] ** (K - 1 - k) for k in K)`` takes a power for each k. Taken by turns,

    y[n] = c[0]
    for k in range(K - 1):
        y[n] = y[n] * x[n] + c[k + 1]

it is a product each. Where the exponent is an index of the result, as in the adjoint of ``c``,
``d[k] = sum(g[n] * x[n] ** (K - 1 - k) for n in N)``, rounds keep the power:

    p[n] = 1.0
    for k in reversed(range(K)):
        d[k] = sum(g[n] * p[n] for n in N)
        p[n] = p[n] * x[n]

Loops of machines with few threads gain from it, when kernels are made: derivatives are made of the
powers, and keep nothing of rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loma.core import builder as b, sizes
from loma.core.axes import target_axes
from loma.core.bounds import ONE, ZERO, is_never_negative, last_places, never_fails
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Builtin, Expr, FloatConst, For, Function, If, Index, IndexAssign,
    IntConst, Module, Reduce, Select, Stmt, TensorType, Var, replace,
)  # fmt: skip
from loma.core.sizes import arith
from loma.core.walk import (
    exchanged, free_variables, map_tensor_functions, reduced_axes, substitute, walk,
)  # fmt: skip
from loma.passes.canonical.recurrences.running import factors
from loma.passes.canonical.steps import Steps


def powers(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, by_rounds)


def by_rounds(function: Function) -> Function:
    """The function with loops for powers that ranges go through."""
    return _Powers(function).run()


@dataclass(frozen=True, slots=True)
class _Power:
    """``base ** (begin + index)`` or, if it ``falls``, ``base ** (begin - index)``."""

    expr: Expr
    base: Expr
    begin: Expr
    falls: bool

    def least(self, extent: Expr) -> Expr:
        """The smallest exponent, of an index below an extent."""
        return arith("-", self.begin, arith("-", extent, ONE)) if self.falls else self.begin


class _Powers(Steps):
    def _steps(self, stmt: IndexAssign) -> list[Stmt]:
        if not isinstance(stmt.target, Index) or not any(map(_is_power, walk(stmt.value))):
            return [stmt]
        summed = tuple(a for a in stmt.axes if a.name not in free_variables(stmt.target))
        total = stmt
        if stmt.op == "+=" and len(summed) == 1 and not isinstance(stmt.value, Reduce):
            value = Reduce("sum", stmt.value, summed, stmt.value.type, stmt.value.span)
            total = replace(stmt, value=value, axes=target_axes(stmt))
        return self._sum(total) or self._kept(stmt) or [stmt]

    # -------------------------------------------------------------------- sums of powers

    def _sum(self, stmt: IndexAssign) -> list[Stmt]:
        """The loop of a statement whose value is a sum of powers of what has all its indices."""
        value, own = stmt.value, stmt.axes
        if not isinstance(value, Reduce) or value.kind != "sum" or len(value.axes) != 1:
            return []
        (axis,) = value.axes
        if not own or not self._is_fixed(axis.extent):
            return []
        found = self._term(value.body, axis, own)
        if found is None:
            return []
        power, rest, moved, extent = found
        names = {a.name for a in own}
        start = power.least(extent)
        if not isinstance(start, IntConst) or start.value < 0:
            return []
        if not free_variables(power.base) >= names or any(reduced_axes(rest)):
            return []
        place = self._place(stmt)
        if place is None:
            return []
        counter = self._names.fresh(axis.name)
        count = arith("-", extent, ONE)
        # The first round has nothing to multiply, which an infinite number would make NaN.
        first, next_ = (ZERO, arith("+", Var(counter, INT), ONE)) if power.falls else (
            count, Var(counter, INT)
        )  # fmt: skip
        again = b.add(b.mul(place, power.base), _at(rest, axis, arith("+", next_, moved)))
        rounds: list[Stmt] = [
            IndexAssign(place, "=", _at(rest, axis, arith("+", first, moved)), own, stmt.span),
            For(counter, count, (IndexAssign(place, "=", again, own, stmt.span),),
                not power.falls, stmt.span),
        ]  # fmt: skip
        nothing = IndexAssign(place, "=", FloatConst(0.0), own, stmt.span)
        many = sizes.constant(extent)
        if many is None:
            some = Binary(">", extent, ZERO, INT)
            made: list[Stmt] = [If(some, tuple(rounds), (nothing,), stmt.span)]
        else:
            made = rounds if many > 0 else [nothing]
        whole: Expr = place
        if start.value:
            whole = b.mul(place, b.binary("**", power.base, start))
        if start.value or place != stmt.target:
            made.append(replace(stmt, value=whole))
        return made

    def _place(self, stmt: IndexAssign) -> Index | None:
        """An element for what rounds add up: the statement's own, or that of a temporary."""
        target, value = stmt.element, stmt.value
        alone = stmt.op == "=" and all(isinstance(s, Var) for s in target.subscripts)
        if alone and target.base == target.tensor and target.tensor not in walk(value):
            return target
        dims = tuple(axis.extent for axis in stmt.axes)
        if not all(map(self._is_fixed, dims)):
            return None
        var = self._temporary("_sum", TensorType(dims), stmt.span)
        return Index(var, tuple(Var(axis.name, INT) for axis in stmt.axes), FLOAT)

    def _term(
        self, body: Expr, axis: Axis, own: tuple[Axis, ...]
    ) -> tuple[_Power, Expr, Expr, Expr] | None:
        """The power in a term of a sum, the other factors, where the index begins, and how many
        values of it there are."""
        begin, extent = ZERO, axis.extent
        match body:
            case Select(Binary("==", left, IntConst(0)), FloatConst(0.0), other):
                form = sizes.affine(left, (axis,))
                slope = None if form is None else sizes.constant(form[0].get(axis.name, ZERO))
                if form is None or slope not in (1, -1):
                    return None
                last = arith("-", extent, ONE)
                if slope == 1 and form[1] == ZERO:
                    begin, extent = ONE, last
                elif slope == -1 and sizes.equal(form[1], last) is True:
                    extent = last
                else:
                    return None
                body = other
            case _:
                pass
        ranges = {a.name: a.extent for a in own} | {axis.name: extent}
        bases: list[_Power] = []
        rest: list[Expr] = []
        for factor in self._factors(body):
            power = None if bases else self._power(factor, axis, begin, ranges)
            if power is None:
                rest.append(factor)
            else:
                bases.append(power)
        if len(bases) != 1:
            return None
        product: Expr = rest[0] if rest else FloatConst(1.0)
        for factor in rest[1:]:
            product = b.mul(product, factor)
        if product.type == INT:
            product = Builtin("int2float", (product,), FLOAT)
        return bases[0], product, begin, extent

    def _factors(self, body: Expr) -> list[Expr]:
        """The factors of a term; a slope is none that is infinite at a number."""
        found: list[Expr] = []
        for factor in factors(body, False):
            match factor.value:
                case Builtin("mul_no_nan", (slope, value)) if not factor.divides:
                    found += [*self._factors(slope), *self._factors(value)]
                case value if factor.divides:
                    found.append(b.binary("/", FloatConst(1.0), value))
                case value:
                    found.append(value)
        return found

    # ------------------------------------------------------------------ powers of an index

    def _kept(self, stmt: IndexAssign) -> list[Stmt]:
        """The loop of a statement over an index of its target, which is the exponent."""
        inner = reduced_axes(stmt.value)
        every = {a.name: a.extent for a in (*stmt.axes, *inner)}
        if len(every) < len(stmt.axes) + len(tuple(reduced_axes(stmt.value))):
            return []
        for axis in stmt.axes:
            if sum(axis.name in free_variables(s) for s in stmt.element.subscripts) != 1:
                continue
            others = {name: extent for name, extent in every.items() if name != axis.name}
            if any(axis.name in free_variables(extent) for extent in others.values()):
                continue
            for node in walk(stmt.value):
                power = self._power(node, axis, ZERO, every)
                used = () if power is None else free_variables(power.base) & others.keys()
                if power is None or not used or not self._is_fixed(axis.extent):
                    continue
                if never_fails(power.base, every, self._is_size):  # a condition may guard it
                    return self._rounds(stmt, power, axis, {n: others[n] for n in sorted(used)})
        return []

    def _rounds(
        self, stmt: IndexAssign, power: _Power, axis: Axis, used: Mapping[str, Expr]
    ) -> list[Stmt]:
        start = power.least(axis.extent)
        if not isinstance(start, IntConst) or not all(map(self._is_fixed, used.values())):
            return []
        kept = self._temporary("_power", TensorType(tuple(used.values())), stmt.span)
        place = Index(kept, tuple(Var(name, INT) for name in used), FLOAT)
        axes = tuple(Axis(name, extent) for name, extent in used.items())
        own = tuple(a for a in stmt.axes if a.name != axis.name)
        first = b.binary("**", power.base, start) if start.value else FloatConst(1.0)
        value = exchanged(stmt.value, power.expr, place)
        counter = self._names.fresh(axis.name)
        here: dict[str, Expr] = {axis.name: Var(counter, INT)}
        target = substitute(stmt.target, here)
        assert isinstance(target, Index)
        body = (
            replace(stmt, target=target, value=substitute(value, here), axes=own),
            IndexAssign(place, "=", b.mul(place, power.base), axes, stmt.span),
        )
        return [
            IndexAssign(place, "=", first, axes, stmt.span),
            For(counter, axis.extent, body, power.falls, stmt.span),
        ]

    def _power(
        self, expr: Expr, axis: Axis, begin: Expr, ranges: Mapping[str, Expr]
    ) -> _Power | None:
        """A power by the index plus or minus a number that never is negative; the index goes on
        from ``begin``."""
        if not _is_power(expr):
            return None
        match expr:
            case Binary("**", base, exponent) | Builtin("pow", (base, exponent)):
                pass
            case _:
                return None
        form = sizes.affine(exponent, (axis,))
        slope = None if form is None else sizes.constant(form[0].get(axis.name, ZERO))
        if form is None or slope not in (1, -1) or axis.name in free_variables(base):
            return None
        if not self._is_fixed(form[1]) or any(isinstance(n, Reduce) for n in walk(base)):
            return None
        moved = arith("+" if slope == 1 else "-", form[1], begin)
        power = _Power(expr, base, moved, slope == -1)
        known = last_places(ranges)
        fits = is_never_negative(power.least(ranges[axis.name]), {}, self._is_size, known)
        return power if fits else None

    def _is_fixed(self, extent: Expr) -> bool:
        return all(map(self._is_size, free_variables(extent)))


def _at(expr: Expr, axis: Axis, place: Expr) -> Expr:
    """An expression at one value of an index."""
    return sizes.simple_subscripts(substitute(expr, {axis.name: place}))


def _is_power(expr: Expr) -> bool:
    """Whether an expression is a power by an int that is no number."""
    match expr:
        case Binary("**", base, exponent) | Builtin("pow", (base, exponent)):
            plain = base.type == FLOAT and exponent.type == INT
            return plain and not isinstance(exponent, IntConst)
        case _:
            return False
