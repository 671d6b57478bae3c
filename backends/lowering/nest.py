"""Index statements to loop trees: element reads as offsets, nested reductions as inner loops.

Where a value does not change along the innermost loop it is computed in front of that loop; the
:class:`Frame` of a loop collects these nodes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from loma.backends.lowering import quotients
from loma.backends.lowering.frames import Frame, may_throw
from loma.backends.schedule import marks
from loma.backends.schedule.access import ZERO, Access, Subscript, analyse
from loma.backends.schedule.ir import (
    CLAMPED, IN_STRETCH, INSIDE, READ_IF, TESTED, Check, If, Let, Loop, Narrow, Node, Role, Test,
    builtin, element,
)  # fmt: skip
from loma.backends.schedule.marks import mark_of
from loma.backends.schedule.ranges import provably_inside
from loma.core import builder as b, sizes
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Builtin, Expr, FloatConst, FloatType, Index, IntConst, NoDiff,
    Reduce, Select, Type, Unary, Var, ZeroPad,
)  # fmt: skip
from loma.core.walk import children, free_variables, map_children, walk

if TYPE_CHECKING:
    from loma.backends.schedule.context import FunctionContext

Bounds = tuple[Expr, Expr]


class Keeper(ABC):
    """Reads from memory what has been computed before an outer loop; each gives None for what is
    not."""

    @abstractmethod
    def value(self, expr: Expr) -> Expr | None: ...

    @abstractmethod
    def condition(self, expr: Expr) -> Expr | None: ...

    @abstractmethod
    def offset(self, access: Access, make: Callable[[], Expr]) -> Expr | None:
        """What ``make`` gives for the subscripts that are not affine; of a read that may leave the
        tensor -1 where it does."""


class Nest(ABC):
    """The loops of one index statement, from the inside to the outside."""

    def __init__(self, context: FunctionContext, axes: tuple[Axis, ...]) -> None:
        self.context = context
        self.scope: list[Axis] = list(axes)
        self.accesses: dict[tuple[Index, bool], Access] = {}
        self.frames: list[Frame] = [Frame(None)]
        self.checks: list[Check] = []
        self.writable: set[str] = set()
        self.squares: dict[Index, Index] = {}  # where reads are that go across a square
        self.bounds: dict[str, Bounds] = {}  # axis -> the stretch of it that its loop runs
        # What the plan's axes are made of: the statement's axes, and words for their pieces.
        self.parts: dict[str, tuple[str, ...]] = {}
        self.keeper: Keeper | None = None
        self._count = 0
        self._matters = 0  # how many operations stand around to whose operands the last bit matters
        self._inverts = quotients.are_products(context.machine)

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    def fresh(self, stem: str, type_: Type = INT) -> Var:
        self._count += 1
        return Var(f"@{stem}{self._count}_", type_)

    # ------------------------------------------------------------------------------- values

    def value(self, expr: Expr) -> Expr:
        """The expression as it stands in the tree; what has to be computed before it goes to the
        frame."""
        kept = self.keeper.value(expr) if self.keeper is not None else None
        if kept is not None:
            return kept
        match expr:
            case Index(Var()):
                return self._index(expr)
            case ZeroPad():
                return self._zero_pad(expr)
            case Reduce():
                return self.reduce(expr)
            case NoDiff(operand) | Builtin(marks.HELD | marks.CHECKED, (operand,)):
                return self.value(operand)
            case Select():
                return self._select(expr, self.value)
            case Builtin("max" | "min", (FloatConst() as constant, other)) if not isinstance(
                other, FloatConst
            ):
                # Only the second operand is asked whether it is NaN.
                return self.value(replace(expr, args=(other, constant)))
            case Binary("and" | "or" as op, left, right):
                first = self.value(left)
                with self._conditional():
                    return Binary(op, first, self.value(right), expr.type, expr.span)
            case _ if quotients.matters(expr):
                self._matters += 1
                found = map_children(expr, self.value)
                self._matters -= 1
                return found
            case _:
                take = self.operand if quotients.rounds(expr) else self.value
                return map_children(expr, take)

    def _select(self, expr: Select, take: Callable[[Expr], Expr]) -> Expr:
        match expr:
            case Select(Builtin(marks.EXISTS, (ZeroPad() as pad,)), then, other):
                tests = self._exists(pad)
                if not tests:
                    return take(then)
                first = take(then)
                with self._conditional():
                    second = take(other)
                return replace(expr, cond=b.every(tests), then=first, other=second)
            case Select(cond, then, other):
                with self._conditional():
                    first, second = take(then), take(other)
                kept = self.keeper.condition(cond) if self.keeper is not None else None
                test = self.value(cond) if kept is None else kept
                return replace(expr, cond=test, then=first, other=second)

    def operand(self, expr: Expr) -> Expr:
        """A value within larger arithmetic: a quotient by what the loop does not change is a
        product, and one of two such values is kept before the loop."""
        kept = self.keeper.value(expr) if self.keeper is not None else None
        if kept is not None:
            return kept
        inner = self.frame.inner
        match expr:
            case Select(type=FloatType()):
                return self._select(expr, self.operand)
            case Unary("-", child):
                return replace(expr, operand=self.operand(child))
            case Binary("/", top, right, FloatType()) if (
                self._inverts and inner is not None and self._matters == 0
            ):
                value, by = self.operand(top), self.value(right)
                number = self._stays(by, inner) and quotients.is_number(by)
                if number and self._stays(value, inner):
                    return self._keep("quotient", Binary("/", value, by, FLOAT, expr.span))
                if not number:
                    return Binary("/", value, by, FLOAT, expr.span)
                if isinstance(by, FloatConst):
                    return quotients.by_constant(value, by)
                if by.type == INT:
                    inverse = self._keep("inverse", b.binary("/", b.flt(1.0), by))
                    return b.binary("*", value, inverse, expr.span)
                scale = self._keep("scale", quotients.scale(by))
                inverse = self._keep("inverse", quotients.inverse(by, scale))
                return b.binary("*", b.binary("*", value, scale), inverse, expr.span)
            case _:
                return self.value(expr)

    def _stays(self, value: Expr, inner: str) -> bool:
        """Whether a value, with what is kept before the loop, is the same in all of its rounds."""
        names = free_variables(value)
        kept = {var.name for frame in self.frames for var in frame.known.values()}
        own = any(name.startswith("@") and name not in kept for name in names)
        return not (own or self.mentions(names, inner) or any(map(_is_element, walk(value))))

    def access(self, read: Index, padded: bool) -> Access:
        key = (read, padded)
        if key not in self.accesses:
            self.accesses[key] = analyse(self.context, read, self.scope, padded)
        return self.accesses[key]

    def terms(self, coefficients: dict[str, Expr], rest: Expr, skip: str | None) -> Expr:
        """``rest + sum(coefficient * axis)`` without the axis to skip."""
        parts = [
            _times(coefficient, Var(name, INT))
            for name, coefficient in coefficients.items()
            if name != skip and sizes.constant(coefficient) != 0
        ]
        if sizes.constant(rest) != 0 or not parts:
            parts.append(self.value(rest))
        return _total(parts)

    def _keep(self, stem: str, value: Expr) -> Expr:
        """The name of a constant computed in front of the innermost loop."""
        frame = self.frame
        # What would end in an error belongs to the loop's iterations, if it has any.
        frame.loads = frame.loads or may_throw(value, self.context.module)
        if value not in frame.known:
            frame.known[value] = self.fresh(stem, value.type)
            frame.head.append(Let(frame.known[value], value))
        return frame.known[value]

    def place(self, read: Index) -> Index:
        """The element that a statement writes."""
        return element(read.tensor, self.offset(self.access(read, False)), read)

    def offset(self, access: Access, in_place: bool = False, loose: Expr | None = None) -> Expr:
        """The place of an element, what does not change along the innermost loop kept before it;
        ``loose``: what its subscripts add that are not affine, if that is known.

        ``in_place``: nothing that may fail is moved, as the element is computed under a condition.
        """
        inner = self.frame.inner
        rest: Expr = access.rest
        beside: Expr = ZERO
        if inner is not None:
            rest, beside = _split(rest, sizes.constant(access.coefficient(inner)) or 0)
        offset = self.terms(access.coefficients, rest, inner)
        stays = in_place and may_throw(offset, self.context.module)
        if inner is not None and not _is_simple(offset) and not stays:
            offset = self._keep("at", offset)
        parts = [] if offset == ZERO else [offset]
        if inner is not None and sizes.constant(access.coefficient(inner)) != 0:
            parts.append(_times(access.coefficient(inner), Var(inner, INT)))
        parts += [] if beside == ZERO else [beside]
        if loose is None and access.loose and not access.padded and self.keeper is not None:
            make = lambda: _total(self._loose_parts(access, in_place))  # noqa: E731
            loose = self.keeper.offset(access, make)
        found = self._loose_parts(access, in_place) if loose is None else [loose]
        return _total([*parts, *found])

    def _loose_parts(self, access: Access, in_place: bool) -> list[Expr]:
        inner = self.frame.inner
        parts: list[Expr] = []
        for subscript in access.loose:
            found = self._loose(access, subscript)
            moves = inner is None or in_place or access.padded
            if not moves and not self.mentions(free_variables(subscript.expr), inner or ""):
                found = self._keep("at", found)
            parts.append(_times(subscript.stride, found, behind=True))
        return parts

    def _loose(self, access: Access, subscript: Subscript) -> Expr:
        """A subscript that is checked when it is used; one that is padded or stands under a
        condition is tested by its reader."""
        found = self.value(subscript.expr)
        if access.padded or mark_of(subscript.expr) is not None:
            return found
        if provably_inside(subscript, self.scope, self.context):
            return found
        number = self._number_of(access, subscript)
        return builtin(CLAMPED, found, subscript.size, IntConst(number))

    def _number_of(self, access: Access, subscript: Subscript) -> int:
        """The number of a subscript's check."""
        line = self.context.line(subscript.expr.span)
        shown, tensor = self.context.shown(subscript.expr), self.context.show(access.base)
        return self.check(tensor, subscript.dim, subscript.size, shown, line)

    def check(self, tensor: str, dim: int, size: Expr | None, text: str, line: int) -> int:
        new = Check(len(self.checks) + 1, tensor, dim, size, text, line)
        for known in self.checks if size is not None else ():
            if replace(known, number=new.number) == new:
                return known.number
        self.checks.append(new)
        return new.number

    def _index(self, read: Index) -> Expr:
        access = self.access(read, False)
        found = self._load(read, access)
        tests = [
            builtin(TESTED, self.value(s.expr), s.size, IntConst(self._number_of(access, s)))
            for s in access.subscripts
            if mark_of(s.expr) == marks.CHECKED
        ]
        return _read_if(tests, found)

    def _load(self, read: Index, access: Access) -> Expr:
        frame = self.frame
        if read in self.squares:
            return self.squares[read]
        found = element(read.tensor, self.offset(access, in_place=frame.guards > 0), read)
        inner = frame.inner
        varies = inner is None or access.is_loose_in(inner) or inner in access.coefficients
        # In front of the loop nothing has tested yet whether a padded read is inside.
        untested = access.padded and bool(self.may_leave(access))
        # Nor whether the conditions hold that this one stands under.
        marked = {mark_of(subscript.expr) for subscript in access.subscripts}
        untested = untested or marks.CHECKED in marked
        untested = untested or (frame.guards > 0 and marks.HELD in marked)
        if varies or untested or access.loose or read.tensor.name in self.writable:
            return found
        frame.loads = True
        return self._keep("v", found)

    def _zero_pad(self, pad: ZeroPad) -> Expr:
        access = self.access(pad.read, True)
        if self.frame.variant == "inside" and not access.loose:
            return self._load(pad.read, access)
        if stretch := self.frame.mask(access):
            found = element(pad.read.tensor, self.offset(access), pad.read)
            return _read_if([builtin(IN_STRETCH, stretch)], found)

        def tests() -> list[Expr]:
            return [builtin(INSIDE, self.value(s.expr), s.size) for s in self.may_leave(access)]

        def place() -> Expr:
            offset = _total(self._loose_parts(access, in_place=True))
            return Select(b.every(tests()), offset, IntConst(-1), INT)

        kept = self.keeper.offset(access, place) if self.keeper and access.loose else None
        found = element(pad.read.tensor, self.offset(access, True, kept), pad.read)
        return _read_if(tests() if kept is None else [b.binary(">=", kept, ZERO)], found)

    def _exists(self, pad: ZeroPad) -> list[Expr]:
        """The tests of whether a padded read has an element, where the loop at hand needs some."""
        access = self.access(pad.read, True)
        if self.frame.variant == "inside" and not access.loose:
            return []
        if stretch := self.frame.mask(access):
            return [builtin(IN_STRETCH, stretch)]
        return [builtin(INSIDE, self.value(s.expr), s.size) for s in self.may_leave(access)]

    def may_leave(self, access: Access) -> list[Subscript]:
        """The subscripts of a padded read that are not provably inside their dimension."""
        return [s for s in access.subscripts if not provably_inside(s, self.scope, self.context)]

    @contextmanager
    def _conditional(self) -> Iterator[None]:
        frame = self.frame
        frame.guards += 1
        yield
        frame.guards -= 1

    # --------------------------------------------------------------------- the innermost loop

    def innermost(
        self,
        axis: Axis,
        value: Expr,
        make: Callable[[], list[Node]],
        bounds: Bounds | None = None,
        independent: bool = False,
    ) -> list[Node]:
        """The loop over ``axis``, whose body ``make`` gives in terms of ``value``.

        With padded reads the loop runs over the stretch where all of them are inside, which needs
        no tests, and then over what is left on both sides.
        """
        low, high = bounds or (ZERO, self.value(axis.extent))
        counter = Var(axis.name, INT)
        role: Role = "vector" if independent else "inner"
        frame = Frame(axis.name)
        self.frames.append(frame)
        padded = self.splittable(value)
        frame.variant = "inside" if padded else "plain"
        nodes = make()
        body = (*frame.body, *nodes)
        loops: list[Node] = []
        if padded:
            begin, end = self.fresh("begin"), self.fresh("end")
            tests = dict.fromkeys(t for a in padded for t in self.tests(a, axis.name))
            frame.head.append(Narrow(begin, end, low, high, tuple(tests)))
            frame.start_variant("border")
            nodes = make()
            border = (*frame.body, *nodes)
            loops = [Loop(counter, begin, end, body, role),
                     Loop(counter, low, high, border, "inner", (begin, end))]  # fmt: skip
        else:
            loops = [Loop(counter, low, high, body, role)]
        self.frames.pop()
        return some(frame, low, high, (*frame.head, *loops))

    def tests(self, access: Access, axis: str) -> list[Test]:
        """What has to hold of each subscript that may leave its dimension."""
        found: list[Test] = []
        for subscript in self.may_leave(access):
            assert subscript.parts is not None
            coefficients, constant = subscript.parts
            step = coefficients.get(axis, ZERO)
            found.append(Test(step, self.terms(coefficients, constant, axis), subscript.size))
        return found

    def splittable(self, value: Expr) -> list[Access]:
        """The padded reads of a loop body if all are affine; those of inner reductions not."""
        found: list[Access] = []
        for pad in own_pads(value):
            access = self.access(pad.read, True)
            if access.loose:
                return []
            if access not in found:
                found.append(access)
        return [a for a in found if self.may_leave(a)]

    # ------------------------------------------------------------------------------- loops

    @abstractmethod
    def reduce(self, reduce: Reduce) -> Expr:
        """The value of a reduction inside an expression."""

    def mentions(self, names: frozenset[str], inner: str) -> bool:
        return not names.isdisjoint(self.parts.get(inner, (inner,)))

    def position(self, axes: Sequence[Axis], last: Var | None = None) -> Expr:
        """Where an element is among those that a reduction visits, the last axis fastest, which
        may go by another name."""
        names = [Var(axis.name, INT) for axis in axes]
        names[-1] = last or names[-1]
        position: Expr = names[0]
        for axis, name in zip(axes[1:], names[1:], strict=True):
            scaled = Binary("*", position, self.value(axis.extent), INT)
            position = Binary("+", scaled, name, INT)
        return position

    def loops(self, axes: Sequence[Axis], inside: Callable[[], list[Node]]) -> list[Node]:
        """Plain loops around what ``inside`` makes."""
        if not axes:
            return inside()
        counter = Var(axes[0].name, INT)
        low, high = self.bounds.get(axes[0].name) or (ZERO, self.value(axes[0].extent))
        before: list[Node] = []
        if axes[0].name in self.bounds and not isinstance(high, Var):
            end = Var(f"@{counter.name.removeprefix('@')}end_", INT)
            before, high = [Let(end, high)], end
        return [*before, Loop(counter, low, high, tuple(self.loops(axes[1:], inside)))]


def _is_element(expr: Expr) -> bool:
    return isinstance(expr, Index)


def own_pads(expr: Expr) -> list[ZeroPad]:
    if isinstance(expr, Reduce):
        return []
    own = [expr] if isinstance(expr, ZeroPad) else []
    return own + [pad for child in children(expr) for pad in own_pads(child)]


def some(frame: Frame, low: Expr, high: Expr, nodes: Sequence[Node]) -> list[Node]:
    """The nodes of a loop, only if it has an iteration where its head reads elements."""
    first, end = sizes.constant(low), sizes.constant(high)
    if not frame.loads or (first is not None and end is not None and first < end):
        return list(nodes)
    return [If(Binary("<", low, high, INT), tuple(nodes))]


def _split(rest: Expr, step: int) -> tuple[Expr, Expr]:
    """What elements along a row that lie a few apart are from one of them: where the row begins,
    and how far behind that. Compilers see neighbours in places that differ by a number alone."""
    beside = IntConst(sizes.polynomial(rest).get((), 0) % step if step > 1 else 0)
    return (rest if beside == ZERO else sizes.arith("-", rest, beside)), beside


def _times(factor: Expr, value: Expr, behind: bool = False) -> Expr:
    if factor == IntConst(1):
        return value
    return Binary("*", value, factor, INT) if behind else Binary("*", factor, value, INT)


def _total(terms: Sequence[Expr]) -> Expr:
    total: Expr = terms[0] if terms else ZERO
    for term in terms[1:]:
        total = Binary("+", total, term, INT)
    return total


def _is_simple(offset: Expr) -> bool:
    return isinstance(offset, Var) or (isinstance(offset, IntConst) and offset.value >= 0)


def _read_if(tests: Sequence[Expr], found: Expr) -> Expr:
    if not tests:
        return found
    return Builtin(READ_IF, (b.every(tests), found), found.type)
