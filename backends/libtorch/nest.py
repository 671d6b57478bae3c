"""Expressions inside a loop nest: element reads as addresses, nested reductions as inner loops.

A nest becomes a C++ function of its own, whose parameters are raw pointers, sizes and scalars.
Where a value does not change along the innermost loop it is computed in front of that loop; the
:class:`Frame` of a loop collects these lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from loma.backends.libtorch import tiles
from loma.backends.libtorch.access import ZERO, Access, Subscript, analyse, reads, score
from loma.backends.libtorch.expressions import (
    Expressions, loaded, scalar_type, strip, value_type,
)  # fmt: skip
from loma.backends.libtorch.frames import INITIAL, Frame, LooseCheck, update
from loma.backends.libtorch.guards import CHECKED, mark_of
from loma.backends.libtorch.names import cpp_name
from loma.backends.writer import Writer
from loma.core import sizes
from loma.core.ir import (
    FLOAT, INT, OF_NOTHING, POSITIONS, Axis, Call, Expr, Index, Reduce, TensorType, Var, ZeroPad,
)  # fmt: skip
from loma.core.walk import children, free_variables
from loma.errors.spans import Span

if TYPE_CHECKING:
    from loma.backends.libtorch.context import FunctionContext


class Nest(Expressions):
    """The expressions of one index statement, and the parameters that its function needs."""

    def __init__(self, context: FunctionContext, axes: tuple[Axis, ...]) -> None:
        super().__init__(context.module)
        self.context = context
        self.scope: list[Axis] = list(axes)
        self.params: dict[str, tuple[str, str]] = {}  # name -> (C++ type, argument at the call)
        self.pointers: dict[str, str] = {}  # tensor -> pointer name
        self.accesses: dict[tuple[Index, bool], Access] = {}
        self.frames: list[Frame] = [Frame(None)]
        self.checks: list[LooseCheck] = []
        self.writable: set[str] = set()
        self.bounds: dict[str, tuple[str, str]] = {}  # axis -> the stretch of it that its loop runs
        # What the plan's axes are made of: the statement's axes, and words for their pieces.
        self.parts: dict[str, tuple[str, ...]] = {}
        self._count = 0

    def in_vectors(self) -> bool:
        alone = self.context.serial is not None and self.frame.inner is None
        return super().in_vectors() and not alone

    def place(self, span: Span) -> str:
        return self.context.place(self.context.line(span))

    # ------------------------------------------------------------------------------- names

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    def fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}_"

    def axis(self, name: str) -> str:
        """The loop variable of an axis; that of a merged one is made of its parts' names."""
        parts = self.parts.get(name, (name,))
        return cpp_name(name) if len(parts) == 1 else "__".join(map(cpp_name, parts)) + "__"

    def variable(self, var: Var) -> str:
        if any(axis.name == var.name for axis in self.scope):
            return self.axis(var.name)
        name, argument = self.context.parameter(var)
        self.params.setdefault(name, (scalar_type(var.type, var.span), argument))
        return name

    def ints(self, expr: Expr) -> str:
        return self.value(expr, INT)

    def pointer(self, base: Var) -> str:
        name = f"{self.context.variable(base)}_data_"
        self.pointers[base.name] = name
        return name

    # ------------------------------------------------------------------------------- reads

    def access(self, read: Index, padded: bool) -> Access:
        key = (read, padded)
        if key not in self.accesses:
            dims = self.context.dims(read.base)
            self.accesses[key] = analyse(read, dims, self.scope, padded)
        return self.accesses[key]

    def element(self, read: Index) -> str:
        type_ = read.base.type
        assert isinstance(type_, TensorType)
        return value_type(type_)

    def terms(self, coefficients: dict[str, Expr], rest: Expr, skip: str | None) -> str:
        """``rest + sum(coefficient * axis)`` without the axis to skip, as C++."""
        parts = []
        for name, coefficient in coefficients.items():
            if name != skip and sizes.constant(coefficient) != 0:
                factor = self.ints(coefficient)
                axis = self.axis(name)
                parts.append(axis if factor == "1" else f"{factor} * {axis}")
        if sizes.constant(rest) != 0 or not parts:
            parts.append(strip(self.ints(rest)))
        return " + ".join(parts).replace("+ -", "- ")

    def keep(self, stem: str, type_: str, text: str) -> str:
        """The name of a constant computed in front of the innermost loop."""
        frame = self.frame
        if text not in frame.known:
            frame.known[text] = self.fresh(stem)
            frame.head.append(f"const {type_} {frame.known[text]} = {text};")
        return frame.known[text]

    def address(self, access: Access, in_place: bool = False) -> str:
        """The offset of an element, what does not change along the innermost loop kept before it.

        ``in_place``: nothing may be moved, as the element is computed under a condition.
        """
        inner = self.frame.inner
        offset = self.terms(access.coefficients, access.rest, inner)
        simple = offset.isidentifier() or offset.isdigit() or inner is None
        if not simple:
            offset = self.keep("at", "int64_t", offset)
        parts = [] if offset == "0" else [offset]
        if inner is not None and sizes.constant(access.coefficient(inner)) != 0:
            factor = self.ints(access.coefficient(inner))
            parts.append(self.axis(inner) if factor == "1" else f"{factor} * {self.axis(inner)}")
        for subscript in access.loose:
            stride = self.ints(subscript.stride)
            found = self.loose(access, subscript)
            moves = inner is None or in_place or access.padded
            if not moves and not self._mentions(free_variables(subscript.expr), inner or ""):
                found = self.keep("at", "int64_t", found)
            parts.append(found if stride == "1" else f"{found} * {stride}")
        return " + ".join(parts) or "0"

    def loose(self, access: Access, subscript: Subscript) -> str:
        """A subscript that is checked when it is used; one that is padded or stands under a
        condition is tested by its reader."""
        text = strip(self.ints(subscript.expr))
        if access.padded or mark_of(subscript.expr) is not None:
            return f"({text})"
        number = self._number_of(access, subscript)
        return f"outside_.clamp({text}, {strip(self.ints(subscript.size))}, {number})"

    def _number_of(self, access: Access, subscript: Subscript) -> int:
        """The number of a subscript's check."""
        line = self.context.line(subscript.expr.span)
        shown = self.context.shown(subscript.expr)
        number = len(self.checks) + 1
        check = LooseCheck(number, subscript, self.context.show(access.base), shown, line)
        known = next((c for c in self.checks if replace(check, number=c.number) == c), None)
        if known is None:
            self.checks.append(check)
        return (known or check).number

    def index(self, read: Index) -> str:
        if not read.subscripts and not isinstance(read.base, Var):
            raise AssertionError(read)
        access = self.access(read, False)
        text = self._load(read, access)
        tests = [
            f"outside_.inside({strip(self.ints(s.expr))}, {strip(self.ints(s.size))}, "
            f"{self._number_of(access, s)})"
            for s in access.loose
            if mark_of(s.expr) == CHECKED
        ]
        return f"({' && '.join(tests)} ? {text} : {self.element(read)}(0))" if tests else text

    def _load(self, read: Index, access: Access) -> str:
        assert isinstance(read.base, Var)
        frame, pointer = self.frame, self.pointer(read.base)
        text = f"{pointer}[{self.address(access, in_place=frame.guards > 0)}]"
        text = loaded(text, read.base.type)
        inner = frame.inner
        varies = inner is None or access.is_loose_in(inner) or inner in access.coefficients
        # In front of the loop nothing has tested yet whether a padded read is inside.
        untested = access.padded and bool(self.may_leave(access))
        if varies or untested or access.loose or read.base.name in self.writable:
            return text
        frame.loads = True
        return self.keep("v", self.element(read), text)

    def zero_pad(self, pad: ZeroPad) -> str:
        access = self.access(pad.read, True)
        if self.frame.variant == "inside" and not access.loose:
            return self._load(pad.read, access)
        pointer = self.pointer(access.base)
        if stretch := self.frame.mask(access):
            read = loaded(f"{pointer}[{self.address(access)}]", access.base.type)
            return f"({stretch}.has(lane_) ? {read} : {self.element(pad.read)}(0))"
        tests = [
            f"uint64_t({strip(self.ints(s.expr))}) < uint64_t({strip(self.ints(s.size))})"
            for s in self.may_leave(access)
        ]
        read = loaded(f"{pointer}[{self.address(access, in_place=True)}]", access.base.type)
        zero = f"{self.element(pad.read)}(0)"
        return f"({' && '.join(tests)} ? {read} : {zero})" if tests else read

    def may_leave(self, access: Access) -> list[Subscript]:
        """The subscripts of a padded read that are not provably inside their dimension."""
        from loma.backends.libtorch.ranges import provably_inside

        return [s for s in access.subscripts if not provably_inside(s, self.scope, self.context)]

    @contextmanager
    def conditional(self) -> Iterator[None]:
        frame = self.frame
        frame.guards += 1
        yield
        frame.guards -= 1

    def tensor_call(self, call: Call) -> str:
        raise AssertionError("calls of tensor functions are evaluated before the nest")

    # --------------------------------------------------------------------- the innermost loop

    def innermost(
        self,
        writer: Writer,
        axis: Axis,
        value: Expr,
        make: Callable[[], list[str]],
        pragma: str | None = None,
        bounds: tuple[str, str] | None = None,
    ) -> None:
        """Writes the loop over ``axis``, whose body ``make`` gives in terms of ``value``.

        With padded reads the loop runs over the stretch where all of them are inside, which needs
        no tests, and then over what is left on both sides.
        """
        name = self.axis(axis.name)
        low, high = bounds or ("0", strip(self.ints(axis.extent)))
        frame = Frame(axis.name)
        self.frames.append(frame)
        padded = self.splittable(value)
        frame.variant = "inside" if padded else "plain"
        body = make()
        loop = frame.body + body
        begin, end = low, high
        border: list[str] = []
        if padded:
            begin, end = self.fresh("begin"), self.fresh("end")
            frame.head.append(f"int64_t {begin} = {low}, {end} = {high};")
            for test in dict.fromkeys(t for a in padded for t in self.tests(a, axis.name)):
                frame.head.append(f"loma::narrow({begin}, {end}, {test});")
            frame.start_variant("border")
            body = make()
            border = frame.body + body
        self.frames.pop()
        with _guard(writer, f"{low} < {high}" if frame.loads else None):
            writer.extend(frame.head)
            if pragma:
                writer.line(pragma)
            with writer.block(f"for (int64_t {name} = {begin}; {name} < {end}; ++{name})"):
                writer.extend(loop)
            if padded:
                start = f"{begin} == {low} ? {end} : {low}"
                step = f"{name} = {name} + 1 == {begin} ? {end} : {name} + 1"
                with writer.block(f"for (int64_t {name} = {start}; {name} < {high}; {step})"):
                    writer.extend(border)

    def tests(self, access: Access, axis: str) -> list[str]:
        """What ``loma::narrow`` needs to know of each subscript that may leave its dimension."""
        found: list[str] = []
        for subscript in self.may_leave(access):
            assert subscript.parts is not None
            coefficients, constant = subscript.parts
            step = strip(self.ints(coefficients.get(axis, ZERO)))
            rest = self.terms(coefficients, constant, axis)
            found.append(f"{step}, {rest}, {strip(self.ints(subscript.size))}")
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

    # --------------------------------------------------------------------------- reductions

    def reduce(self, reduce: Reduce) -> str:
        for around in self.frames:
            if reduce in around.reductions:
                return around.reductions[reduce]
        frame = self.frame
        element = "int64_t" if reduce.body.type == INT else "real"
        names = free_variables(reduce)
        writer = Writer()
        before = frame.inner is not None and not self._mentions(names, frame.inner)
        accumulator = self.fresh("acc")
        # What the reduction does not change along the loop around it is computed before that loop.
        outer = Frame(None)
        self.frames.append(outer)
        result = self.reduction(writer, reduce.kind, reduce.body, reduce.axes, accumulator, element)
        self.frames.pop()
        lines = outer.head + writer.lines
        if frame.guards:
            type_ = "int64_t" if reduce.type == INT else "real"
            text = "\n".join("  " + line for line in lines)
            return f"[&]() -> {type_} {{\n{text}\n  return {result};\n}}()"
        if before:
            frame.loads = True
            frame.head.extend(lines)
        else:
            frame.body.extend(lines)
        frame.reductions[reduce] = result
        return result

    def _mentions(self, names: set[str], inner: str) -> bool:
        return not names.isdisjoint(self.parts.get(inner, (inner,)))

    def reduction(
        self,
        writer: Writer,
        kind: str,
        body: Expr,
        axes: Sequence[Axis],
        accumulator: str,
        element: str,
    ) -> str:
        """Writes loops that reduce ``body`` over the axes; the text of the result."""
        self.scope.extend(axes)
        inner = self.best(axes, body)
        order = [axis for axis in axes if axis is not inner] + [inner]
        if kind not in OF_NOTHING and self.frame.inner is None and len(self.frames) > 1:
            self._check_elements(writer, kind, axes, body)
        if kind in POSITIONS and tiles.in_lanes(self, body, axes[-1].name):
            result = accumulator
            tiles.write_position(writer, self, kind, body, axes, accumulator, element)
        elif kind in POSITIONS:
            writer.line(f"loma::{kind.capitalize()}<{element}> {accumulator};")
            self.loops(writer, axes[:-1], lambda: self._take(writer, kind, body, axes, axes[-1],
                                                             accumulator, element))  # fmt: skip
            result = f"{accumulator}.position"
        elif tiles.in_lanes(self, body, inner.name):
            result = accumulator
            tiles.write_reduction(writer, self, kind, body, order, accumulator, element)
        else:
            result = accumulator
            writer.line(f"{element} {accumulator} = {INITIAL[kind].format(t=element)};")
            self.loops(writer, order[:-1], lambda: self._take(writer, kind, body, axes, inner,
                                                              accumulator, element))  # fmt: skip
        del self.scope[-len(axes) :]
        return result

    def _take(
        self,
        writer: Writer,
        kind: str,
        body: Expr,
        axes: Sequence[Axis],
        inner: Axis,
        accumulator: str,
        element: str,
    ) -> None:
        type_ = INT if element == "int64_t" else FLOAT

        def make() -> list[str]:
            value = self.value(body, type_)
            if kind in POSITIONS:
                return [f"{accumulator}.take({strip(value)}, {self.position(axes)});"]
            return [update(kind, accumulator, value, element)]

        self.innermost(writer, inner, body, make)

    def position(self, axes: Sequence[Axis], last: str = "") -> str:
        """Where an element is among those that a reduction visits, the last axis fastest, which
        may go by another name."""
        names = [self.axis(axis.name) for axis in axes]
        names[-1] = last or names[-1]
        position = names[0]
        for axis, name in zip(axes[1:], names[1:], strict=True):
            position = f"({position}) * ({strip(self.ints(axis.extent))}) + {name}"
        return position

    def _check_elements(self, writer: Writer, kind: str, axes: Sequence[Axis], body: Expr) -> None:
        number = len(self.checks) + 1
        self.checks.append(LooseCheck(number, None, "", kind, self.context.line(body.span)))
        tests = " || ".join(f"{self.ints(axis.extent)} <= 0" for axis in axes)
        writer.line(f"if ({tests}) outside_.clamp(0, 0, {number});")

    def best(self, axes: Sequence[Axis], body: Expr) -> Axis:
        """The axis whose loop reads the most elements in order; the last of equals."""
        found = [
            self.access(read, padded)
            for read, _, padded in reads(body, ())
            if isinstance(read.base, Var)
        ]
        return max(reversed(axes), key=lambda axis: score(axis.name, found))

    def loops(self, writer: Writer, axes: Sequence[Axis], inside: Callable[[], None]) -> None:
        """Writes plain loops around what ``inside`` writes."""
        if not axes:
            inside()
            return
        name = self.axis(axes[0].name)
        whole = ("0", strip(self.ints(axes[0].extent)))
        low, high = self.bounds.get(axes[0].name) or whole
        if axes[0].name in self.bounds and not high.isidentifier():
            writer.line(f"const int64_t {name}end_ = {high};")
            high = f"{name}end_"
        with writer.block(f"for (int64_t {name} = {low}; {name} < {high}; ++{name})"):
            self.loops(writer, axes[1:], inside)


def own_pads(expr: Expr) -> list[ZeroPad]:
    if isinstance(expr, Reduce):
        return []
    own = [expr] if isinstance(expr, ZeroPad) else []
    return own + [pad for child in children(expr) for pad in own_pads(child)]


def _guard(writer: Writer, condition: str | None) -> AbstractContextManager[None]:
    return writer.block(f"if ({condition})") if condition else nullcontext()
