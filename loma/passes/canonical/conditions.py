"""Conditions on indices, without what holds anyway.

In ``a if 0 <= i and i + p < N else 0.0`` the first part says nothing. A condition that only keeps
one read inside its tensor is ``zero_pad``: ``x[i + p] if i + p < N else 0.0`` is
``zero_pad(x[i + p])``, which lowering and derivatives know well. Of a product, ``x[i + p] * w[p] if
i + p < N else 0.0``, it stays one: where w is not finite, zero times w is NaN. So does one on loop
counters alone: rounds in which it holds run apart from the others (:mod:`loma.passes.peeling`).

A sum of what has one value of an index is what it has there: ``sum(x[d] if d == p[n] else 0.0 for d
in D)`` is ``x[p[n]] if 0 <= p[n] and p[n] < D else 0.0``. So is one of which only an end of the
range counts, ``d + 1 >= D``.

A condition that a choice around has tested is left out, and one without which an element is zero.
A mask that is compared is the condition that made it: ``(1.0 if j <= i else 0.0) > 0.0``, of which
``where(tril(ones([N, N])) > 0.0, x, y)`` is made, is ``j <= i``. Signs leave even functions and
comparisons: ``abs(-x)`` is ``abs(x)``, and ``-x < 0.0`` is ``x > 0.0``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loma.arithmetic.integers import COMPARISONS
from loma.core import builder as b, sizes
from loma.core.axes import index_statement, without_idle_axes
from loma.core.bounds import (
    conjuncts, counted, exists, facts, is_never_negative, last_places, room_of, unsaid_of,
)  # fmt: skip
from loma.core.builtins import BUILTINS
from loma.core.effects import written
from loma.core.ir import (
    INT, Axis, Binary, Builtin, Call, Expr, FloatConst, For, Function, If, Index, IndexAssign,
    IntConst, Module, Reduce, Select, Stmt, Unary, Var, ZeroPad, replace,
)  # fmt: skip
from loma.core.ops import INFIX, divisor
from loma.core.sizes import IsSize
from loma.core.walk import (
    free_variables, map_blocks, map_guarded, map_tensor_functions, reduced_axes, substitute, walk,
)  # fmt: skip
from loma.passes.liveness import covers


def conditions(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, lambda function: _Conditions(function).run())


Ranges = Mapping[str, Expr]


class _Conditions:
    def __init__(self, function: Function) -> None:
        self._function = function
        self._sizes = frozenset(sizes.size_variables(function))
        self._zero: Mapping[str, Select] = {}  # tensors and, for indices _k, their elements' value

    def run(self) -> Function:
        return replace(self._function, body=self._block(self._function.body, {}))

    def _block(self, body: tuple[Stmt, ...], ranges: Ranges) -> tuple[Stmt, ...]:
        around, out = self._zero, list[Stmt]()
        for stmt in body:
            changed = written((stmt,))
            self._zero = {
                name: where for name, where in self._zero.items()
                if name not in changed and changed.isdisjoint(free_variables(where))
            }  # fmt: skip
            out.append(self._statement(stmt, ranges))
            self._zero |= _zeros(out[-1])
        self._zero = {name: where for name, where in around.items() if name in self._zero}
        return tuple(out)

    def _statement(self, stmt: Stmt, ranges: Ranges) -> Stmt:
        match stmt:
            case IndexAssign(value=value, axes=axes):
                own = {**ranges, **{axis.name: axis.extent for axis in axes}}
                counters = frozenset(ranges) - {axis.name for axis in axes}
                point = _Point(own, counters, self._sizes.__contains__, zero=self._zero)
                new = without_idle_axes(replace(stmt, value=point.value(value)))
                return self._picked(new, point) if isinstance(new, IndexAssign) else new
            case For():
                ranges = counted(stmt, ranges, self._sizes.__contains__)
            case _:
                pass
        return map_blocks(stmt, lambda block: self._block(block, ranges))

    def _picked(self, stmt: IndexAssign, point: _Point) -> Stmt:
        """The statement without an axis that it sums over and of which one value counts."""
        own = free_variables(stmt.target)
        summed = tuple(axis for axis in stmt.axes if axis.name not in own)
        if stmt.op != "+=" or not summed:
            return stmt
        whole = Reduce("sum", stmt.value, summed, stmt.value.type, stmt.value.span)
        value = point.picked(whole)
        if value is None:
            return stmt
        rest: tuple[Axis, ...] = ()
        if isinstance(value, Reduce):
            rest = value.axes
            value = value.body
        axes = (*(axis for axis in stmt.axes if axis.name in own), *rest)
        gone = {a.name: a.extent for a in summed if a.name not in {own.name for own in rest}}
        point = replace(point, ranges={k: v for k, v in point.ranges.items() if k not in gone})
        # Without a value of the index the place need not exist.
        there = isinstance(stmt.target, Var) or exists(stmt.target, point.ranges, point.is_size)
        if not there:
            point = replace(point, known=(*point.known, *last_places(gone)))
        new = index_statement(stmt.target, "+=", point.value(value), axes, is_size=point.is_size)
        if not isinstance(new, IndexAssign):
            return stmt
        made = self._picked(replace(new, span=stmt.span, distinct=stmt.distinct), point)
        some = [b.binary(">", extent, IntConst(0)) for extent in gone.values()]
        return made if there else If(b.every(some), (made,), (), stmt.span)


@dataclass(frozen=True, slots=True)
class _Point:
    """Any point of axes with these ranges, where the expressions ``known`` are not negative and the
    conditions ``tested`` hold; ``counters`` are those of loops around the statement. Elements of
    some tensors are ``zero`` where a choice with the number of each dimension for an index says."""

    ranges: Ranges
    counters: frozenset[str]
    is_size: IsSize
    known: tuple[Expr, ...] = ()
    tested: frozenset[Expr] = frozenset()
    zero: Mapping[str, Select] = field(default_factory=dict)

    def value(self, expr: Expr) -> Expr:
        """The expression with the shortest conditions."""
        match expr:
            case Reduce(kind, body, axes):
                own = {axis.name: axis.extent for axis in axes}
                known = tuple(e for e in self.known if not sizes.mentions(e, own.keys()))
                tested = (e for e in self.tested if free_variables(e).isdisjoint(own))
                inside = replace(
                    self, ranges={**self.ranges, **own}, counters=self.counters - own.keys(),
                    known=known, tested=frozenset(tested),
                )  # fmt: skip
                new = replace(expr, body=inside.value(body))
                one = inside.picked(new) if kind == "sum" else None
                return new if one is None else self.value(one)
            case ZeroPad(read):
                read = replace(read, subscripts=tuple(map(self.value, read.subscripts)))
                return read if self._exists(read) else replace(expr, read=read)
            case Select(cond):
                return self._select(replace(expr, cond=self.value(cond)))
            case _:
                within = map_guarded(expr, lambda child, guard: self._where(guard).value(child))
                return _decided(_without_sign(within))

    def _where(self, guard: Expr | None) -> _Point:
        if guard is None:
            return self
        tested = self.tested.union(conjuncts(guard))
        return replace(self, known=(*self.known, *facts(guard)), tested=tested)

    def _select(self, expr: Select) -> Expr:
        parts = dict.fromkeys(conjuncts(expr.cond))
        left = [part for part in parts if not self._holds(part)]
        then = self._where(expr.cond).value(expr.then)
        if not left:
            return then
        other = self._where(Unary("not", expr.cond, INT)).value(expr.other)
        match then:
            case Select(cond, inner, FloatConst(0.0)) if other == FloatConst(0.0):
                left, then = [*left, *conjuncts(cond)], inner
            case _:
                pass
        if isinstance(then, Index) and other == FloatConst(0.0) and self._exists(then):
            anyway = self._where_not_zero(then)
            left = [part for part in left if part not in anyway]
            if not left:
                return then
        cond = b.every(left)
        if isinstance(then, Index) and other == FloatConst(0.0) and self._is_room(then, cond):
            return ZeroPad(then, expr.span)
        return replace(expr, cond=cond, then=then, other=other)

    def _where_not_zero(self, read: Index) -> list[Expr]:
        """Conditions without any of which an element is zero."""
        found = self.zero.get(read.tensor.name)
        own = {_numbered(k): place for k, place in enumerate(read.subscripts)}
        return [] if found is None else list(conjuncts(substitute(found.cond, own)))

    def picked(self, expr: Reduce) -> Expr | None:
        """A sum of which one value of an index counts, without the index. Its axes are among those
        of the point."""
        body = expr.body
        if not isinstance(body, Select) or not b.is_const(body.other, 0):
            return None
        inner = {axis.name for axis in reduced_axes(body)}
        for axis in expr.axes:
            rest = tuple(a for a in expr.axes if a is not axis)
            if any(axis.name in free_variables(a.extent) for a in rest):
                continue
            for test in conjuncts(body.cond):
                value = _equal_to(axis.name, test) or self._only_place(axis, test)
                if value is None or not inner.isdisjoint(free_variables(value)):
                    continue
                if _may_fail(value) or not all(map(self._is_there, walk(value))):
                    continue
                low = Binary("<=", IntConst(0), value, INT)
                high = Binary("<", value, axis.extent, INT)
                # Those that are left may read at the index.
                tests = [t for t in conjuncts(body.cond) if t is not test]
                chosen: Expr = replace(body, cond=b.every([low, high, *tests]))
                chosen = substitute(chosen, {axis.name: self._place(value, axis)})
                return replace(expr, body=chosen, axes=rest) if rest else chosen
        return None

    def _only_place(self, axis: Axis, test: Expr) -> Expr | None:
        """What an index is where a test holds that only an end of its range passes, as
        ``not i + 1 < N``."""
        ends = facts(test)
        if len(ends) != 1 or _may_fail(test):
            return None
        form = sizes.affine(ends[0], (axis,))
        slope = None if form is None else sizes.constant(form[0].get(axis.name, IntConst(0)))
        if form is None or slope not in (1, -1) or axis.name in free_variables(form[1]):
            return None
        if not self._never_negative(sizes.arith("-", IntConst(0), ends[0])):
            return None
        return sizes.arith("-", IntConst(0), form[1]) if slope == 1 else form[1]

    def _place(self, value: Expr, axis: Axis) -> Expr:
        """What stands for an axis in subscripts: another index alone runs over the dimension."""
        if not isinstance(value, Var):
            return value
        own = self.ranges.get(value.name, IntConst(0))
        whole = sizes.equal(own, axis.extent) is True
        return value if whole else Binary("+", value, IntConst(0), INT)

    def _is_there(self, node: Expr) -> bool:
        """Whether an element surely is one of its tensor, if the node is one."""
        return not isinstance(node, Index) or self._exists(node)

    def _holds(self, condition: Expr) -> bool:
        """Whether it surely does, and may be left out."""
        if condition in self.tested:
            return True
        ends = facts(condition)
        fixed = not _may_fail(condition) and not any(isinstance(n, Index) for n in walk(condition))
        return bool(ends) and fixed and all(map(self._never_negative, ends))

    def _never_negative(self, expr: Expr) -> bool:
        return is_never_negative(expr, self.ranges, self.is_size, self.known)

    def _exists(self, read: Index) -> bool:
        pairs = zip(read.subscripts, sizes.dims_of(read.tensor), strict=True)
        alone = ((self.ranges.get(s.name), dim) for s, dim in pairs if isinstance(s, Var))
        fits = all(own is not None and sizes.equal(own, dim) is True for own, dim in alone)
        return fits and all(map(self._never_negative, room_of(read)))

    def _is_room(self, read: Index, condition: Expr) -> bool:
        """Whether the condition holds where the read's subscripts are inside, and only there."""
        if not (free_variables(condition) & self.ranges.keys()) - self.counters:
            return False  # decided for a whole round, of which the first or last may run apart
        left = None if _may_fail(condition) else unsaid_of(read, condition)
        return left is not None and all(map(self._never_negative, left))


def _zeros(stmt: Stmt) -> dict[str, Select]:
    """A tensor of which a statement makes those elements zero for which a condition does not hold,
    with that choice."""
    match stmt:
        case IndexAssign(Index(Var(name), places), "=", Select(other=other) as value) if (
            covers(stmt) and b.is_const(other, 0) and name not in free_variables(value)
        ):
            own = {
                s.name: Var(_numbered(k), INT) for k, s in enumerate(places) if isinstance(s, Var)
            }
            chosen = substitute(value, dict(own))
            alone = len(own) == len(places) == len(stmt.axes)
            return {name: chosen} if alone and isinstance(chosen, Select) else {}
        case _:
            return {}


def _numbered(dimension: int) -> str:
    return f"${dimension}"


def _without_sign(expr: Expr) -> Expr:
    """An even function of a negative as that of what is negative, and a comparison of one, or of
    what is cut off at 0, with a number."""
    match expr:
        case Builtin(name, (Unary("-", operand),)) if BUILTINS[name].even:
            return replace(expr, args=(operand,))
        case Binary(
            "<=" | ">",
            Builtin("relu", (cut,)) | Builtin("max", (cut, FloatConst(0.0))),
            FloatConst(0.0),
        ):
            return _without_sign(replace(expr, left=cut))
        case Binary(op, Unary("-", left), FloatConst(number)) if mirrored := INFIX[op].mirrored:
            return replace(expr, op=mirrored, left=left, right=b.flt(-number or 0.0))
        case _:
            return expr


def _decided(expr: Expr) -> Expr:
    """A comparison that only asks which of two constants a condition has chosen, as that."""
    match expr:
        case Binary("!=" | "==" as op, test, IntConst(0)) if _is_test(test):
            return test if op == "!=" else _negated(test)
        case Binary(op, Select(cond, then, other), right) if op in COMPARISONS and _is_test(cond):
            pairs = ((then, right), (other, right))
        case Binary(op, left, Select(cond, then, other)) if op in COMPARISONS and _is_test(cond):
            pairs = ((left, then), (left, other))
        case _:
            return expr
    numbers = [tuple(map(b.number, pair)) for pair in pairs]
    if any(number is None for pair in numbers for number in pair):
        return expr
    first, second = (COMPARISONS[op](*pair) for pair in numbers)
    return expr if first == second else cond if first else _negated(cond)


def _is_test(expr: Expr) -> bool:
    """Whether the value is 0 or 1."""
    match expr:
        case Unary("not") | Binary("and" | "or"):
            return True
        case Binary(op):
            return op in COMPARISONS
        case _:
            return False


def _negated(test: Expr) -> Expr:
    match test:
        case Unary("not", operand) if _is_test(operand):
            return operand
        case Binary(op, left, right) if left.type == right.type == INT:
            opposite = INFIX[op].opposite
            if opposite is not None:
                return replace(test, op=opposite)
    return Unary("not", test, INT, test.span)


def _equal_to(index: str, test: Expr) -> Expr | None:
    """What an index is where a test holds, made of other things."""
    match test:
        case Binary("==", Var(name), value) | Binary("==", value, Var(name)) if name == index:
            alone = value.type == INT and index not in free_variables(value)
            return value if alone else None
        case _:
            return None


def _may_fail(condition: Expr) -> bool:
    return any(isinstance(n, Call) or divisor(n) is not None for n in walk(condition))
