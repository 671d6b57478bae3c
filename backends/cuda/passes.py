"""What kernels that are passes by the matrix units have in common: their operands, what is kept
before them, and what runs where there are no such units."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext

from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.context import CppContext, HostWriter
from loma.backends.cfamily.loops import LoopText
from loma.backends.cfamily.names import cpp_name
from loma.backends.cfamily.writer import Writer
from loma.backends.schedule.access import strides
from loma.backends.schedule.host import Either, Pass
from loma.core import sizes
from loma.core.ir import FLOAT, INT, Axis, Binary, Expr, FloatConst, Index, IntConst, Var
from loma.core.walk import free_variables, map_children


def where(context: CppContext, passes: Iterable[Sequence[Expr]], conditions: Sequence[Expr]) -> str:
    """The host's test whether passes can run: of each the numbers of rows and columns, and of what
    products sum over and of what is written."""
    assert context.host is not None
    tests = []
    for extents in passes:
        given = c.list_text([c.call("sizeof", c.Token("real")), *map(context.ints, extents)])
        tests.append(f"loma::gpu::sweeps({given})")
    tests += [f"({c.text(context.host.condition(each))})" for each in conditions]
    return " && ".join(tests)


def write_otherwise(owner: HostWriter, node: Pass | Either) -> None:
    """What runs instead, with arguments that came in a narrow dtype in that of computing."""
    context, writer = owner.context, owner.writer
    with writer.block("else"):
        for var in node.alone:
            name = context.variable(var)
            writer.line(f"const loma::Tensor {name}_wide_ = loma::gpu::widened<real>({name});")
        with writer.block() if node.alone else nullcontext():
            for var in node.alone:
                name = context.variable(var)
                writer.line(f"const loma::Tensor& {name} = {name}_wide_;")
            owner.nodes(node.otherwise)


class PassText(LoopText):
    """A kernel over ``axes``, of which the first ``outer`` are the same for all threads of a block,
    with ``given`` values; ``pointers`` and ``params`` as for any tree."""

    def __init__(
        self, context: CppContext, axes: Sequence[Axis], given: Sequence[Var], outer: int
    ) -> None:
        super().__init__(context, ())
        self._before: dict[Expr, Var] = {}  # what is kept before the pass
        self._elements: dict[Index, str] = {}  # what the pass itself gives
        for axis in axes:
            self.local(Var(axis.name, INT))
        for var in given:
            self.local(var)
        self._moving = {axis.name for axis in axes[outer:]} | {var.name for var in given}

    def in_vectors(self) -> bool:
        return False

    def _write_outer(self, body: Writer, outer: Sequence[Axis]) -> None:
        rest = "part_.outer"
        for axis in reversed(outer[1:]):
            name, extent = cpp_name(axis.name), c.item_text(self._int(axis.extent))
            body.line(f"[[maybe_unused]] const int64_t {name} = loma::remainder({rest}, {extent});")
            rest = f"loma::quotient({rest}, {extent})"
        for axis in outer[:1]:
            body.line(f"[[maybe_unused]] const int64_t {cpp_name(axis.name)} = {rest};")

    def index(self, read: Index) -> c.Expression:
        if read in self._elements:
            return c.Token(self._elements[read])
        return super().index(Index(read.base, (self._offset(read),), read.type))

    def _place(self, element: Index) -> c.Expression:
        flat = Index(element.base, (self._offset(element),), element.type)
        return self._element(flat)

    def _offset(self, read: Index) -> Expr:
        """Where an element lies in its tensor."""
        steps = strides(self.context.dims(read.tensor))
        terms = zip(read.subscripts, steps, strict=True)
        return sizes.total(tuple(Binary("*", place, step, INT) for place, step in terms))

    def _matrix(self, name: str, read: Index, own: Axis, inside: Axis) -> str:
        """An operand for the values of the indices around."""
        steps = dict(zip(read.subscripts, strides(self.context.dims(read.tensor)), strict=True))
        outer = tuple(
            Binary("*", place, step, INT)
            for place, step in steps.items()
            if isinstance(place, Var) and place.name not in (own.name, inside.name)
        )
        stride = next(s for p, s in steps.items() if isinstance(p, Var) and p.name == own.name)
        place = c.Binary("+", c.Token(name), self._int(sizes.total(outer)))
        facts = c.list_text([self._int(e) for e in (stride, own.extent, inside.extent)])
        return f"loma::Matrix{{{c.text(place)}, {facts}}}"

    def _plain(self, body: Writer, expr: Expr) -> str:
        """The expression, with what is the same for all rows and columns before the sweep. Of
        quotients by such it is the reciprocal, since quotients take ten times as long."""
        return c.item_text(self.value(self._hoisted(body, expr), FLOAT))

    def _hoisted(self, body: Writer, expr: Expr) -> Expr:
        match expr:
            case FloatConst() | IntConst() | Var():
                return expr
            case Binary("/", top, bottom) if expr.type == FLOAT and self._is_steady(bottom):
                if not self._is_steady(top):
                    one = Binary("/", FloatConst(1.0), bottom, FLOAT)
                    return Binary("*", self._hoisted(body, top), self._keep(body, one), FLOAT)
        if expr.type == FLOAT and self._is_steady(expr):
            return self._keep(body, expr)
        if isinstance(expr, Index):
            return expr
        return map_children(expr, lambda child: self._hoisted(body, child))

    def _is_steady(self, expr: Expr) -> bool:
        return not free_variables(expr) & self._moving

    def _keep(self, body: Writer, expr: Expr) -> Var:
        if expr in self._before:
            return self._before[expr]
        var = self._before[expr] = Var(f"@kept{len(self._before) + 1}_", FLOAT)
        value = c.item_text(self.value(expr, FLOAT))
        body.line(f"const real {self.local(var)} = {value};")
        return var
