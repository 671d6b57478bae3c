"""Sweeps as CUDA C++: one pass over columns by the matrix units (``device/sweep.h``), with the
program's own text for what becomes of a product, and where the host can do without, other kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.context import CppContext, HostWriter
from loma.backends.cfamily.loops import LoopText
from loma.backends.cfamily.names import cpp_name
from loma.backends.cfamily.writer import Writer
from loma.backends.cuda import texts
from loma.backends.cuda.start import Start
from loma.backends.kernels.sweeps import Found
from loma.backends.schedule.access import strides
from loma.backends.schedule.host import Pass
from loma.core import sizes
from loma.core.ir import FLOAT, INT, Axis, Binary, Expr, FloatConst, Index, IntConst, Var
from loma.core.walk import free_variables, map_children, walk

_OPERANDS = ("queries_", "keys_", "values_")


def write_sweep(owner: HostWriter, node: Pass) -> None:
    """Writes the host's choice, the launch, and the kernel."""
    context, writer, found = owner.context, owner.writer, node.sweep.found
    scores = found.scores
    text = SweepText(context, found)
    body = text.kernel(node.narrow)
    extents = [axis.extent for axis in (scores.row, scores.column, scores.depth, found.width)]
    given = c.list_text([c.call("sizeof", c.Token("real")), *map(context.ints, extents)])
    assert context.host is not None
    conditions = [c.text(context.host.condition(each)) for each in found.conditions]
    tests = " && ".join([f"loma::gpu::sweeps({given})", *(f"({each})" for each in conditions)])
    with writer.block(f"if ({tests})"):
        result = found.result.tensor
        owner.nodes([one for one in node.before if not (node.narrow and _makes(one, result))])
        launch = Start(owner, "sweep", node.sweep.source)
        for name, read in zip(_OPERANDS, (scores.query, scores.key, found.values), strict=True):
            launch.operand(name, read.tensor)
        if node.narrow:
            launch.narrow_result(f"{context.variable(result)}_narrow_", result)
        written = {var.name for var in node.results}
        for base, (name, tensor) in text.pointers.items():
            launch.tensor(tensor, name, base in written)
        for name, (type_, argument) in text.params.items():
            launch.number(type_, name, argument)
        outer = sizes.product(tuple(axis.extent for axis in scores.outer))
        sizes_given = [c.item_text(context.ints(e)) for e in (outer, extents[0], *extents[2:])]
        launch.write(body, "sweep", *sizes_given, before=texts.SWEEP)
    with writer.block("else"):
        for var in node.alone:
            name = context.variable(var)
            writer.line(f"const loma::Tensor {name}_wide_ = loma::gpu::widened<real>({name});")
        with writer.block() if node.alone else nullcontext():
            for var in node.alone:
                name = context.variable(var)
                writer.line(f"const loma::Tensor& {name} = {name}_wide_;")
            owner.nodes(node.otherwise)


def _makes(node: object, var: Var) -> bool:
    return getattr(node, "var", None) == var


class SweepText(LoopText):
    """The kernel of a sweep; ``pointers`` and ``params`` as for any tree."""

    def __init__(self, context: CppContext, found: Found) -> None:
        super().__init__(context, ())
        self._found = found
        self._kept = 0
        self._elements: dict[Index, str] = {}  # what the sweep gives
        scores = found.scores
        axes = (*scores.outer, scores.row, scores.column, found.width)
        for name in (axis.name for axis in axes):
            self.local(Var(name, INT))
        for var in (scores.product, found.share, found.summed):
            self.local(var)
        self._moving = {scores.row.name, scores.column.name, found.width.name}
        self._moving |= {var.name for var in (scores.product, found.share, found.summed)}

    def in_vectors(self) -> bool:
        return False

    def kernel(self, narrow: bool) -> Writer:
        """The kernel's body; ``narrow``: the result has the dtype of the operands."""
        found, scores, body = self._found, self._found.scores, Writer(1)
        row, column, width = (a.name for a in (scores.row, scores.column, found.width))
        rows = c.item_text(self._int(scores.row.extent))
        body.line(f"const loma::SweepPart part_(grid_, {rows});")
        self._write_outer(body, scores.outer)
        names = cpp_name(row), cpp_name(column), cpp_name(width)
        functions = [
            (f"const int64_t {names[0]}", c.text(self._int(scores.high))),
            *(
                (f"const real {cpp_name(var.name)}, const int64_t {names[0]}, "
                 f"const int64_t {names[1]}", self._plain(body, expr))
                for var, expr in (
                    (scores.product, scores.score), (found.share, found.term),
                    (found.share, found.weight),
                )
            ),
        ]  # fmt: skip
        inner = [scores.score, found.term, found.weight]
        reads = any(
            isinstance(node, Index) and free_variables(node) & {row, column}
            for expr in inner for node in walk(expr)
        )  # fmt: skip
        operands = [
            self._matrix(name, read, axis, inside)
            for name, read, axis, inside in zip(
                _OPERANDS, (scores.query, scores.key, found.values),
                (scores.row, scores.column, scores.column),
                (scores.depth, scores.depth, found.width), strict=True,
            )
        ]  # fmt: skip
        body.line(f"loma::sweep<{'true' if reads else 'false'}>(")
        body.line("    part_,")
        for operand in operands:
            body.line(f"    {operand},")
        kinds = ("int64_t", "real", "real", "real")
        for (params, value), kind in zip(functions, kinds, strict=True):
            body.line(f"    [&]([[maybe_unused]] {params.replace(', ', ', [[maybe_unused]] ')}) "
                      f"-> {kind} {{ return {value}; }},")  # fmt: skip
        self._write_rows(body, names, narrow)
        return body

    def _write_outer(self, body: Writer, outer: Sequence[Axis]) -> None:
        rest = "part_.outer"
        for axis in reversed(outer[1:]):
            name, extent = cpp_name(axis.name), c.item_text(self._int(axis.extent))
            body.line(f"[[maybe_unused]] const int64_t {name} = loma::remainder({rest}, {extent});")
            rest = f"loma::quotient({rest}, {extent})"
        for axis in outer[:1]:
            body.line(f"[[maybe_unused]] const int64_t {cpp_name(axis.name)} = {rest};")

    def _write_rows(self, body: Writer, names: tuple[str, str, str], narrow: bool) -> None:
        """What takes the results of rows and of their elements."""
        found, rows = self._found, "const real largest_, const real total_, const int64_t "
        keeps = {var.name for var in found.keeps}
        self._elements = {found.largest: "largest_"}
        if found.total is not None:
            self._elements[found.total] = "total_"
        with body.block(f"    [&]({rows}{names[0]})", ","):
            for element, value in self._elements.items():
                if element.tensor.name in keeps:
                    body.line(f"    {c.text(self._place(element))} = {value};")
        summed = f"const real {cpp_name(found.summed.name)}"
        with body.block(f"    [&]({summed}, {rows}{names[0]}, const int64_t {names[2]})", ");"):
            value = c.text(self.value(found.written, FLOAT))
            if narrow:
                place = c.text(self._int(self._offset(found.result)))
                name = f"{self.context.variable(found.result.tensor)}_narrow_"
                body.line(f"    {name}[{place}] = static_cast<loma::Narrow>(")
                body.line(f"        loma::narrowed({value}, real(0)));")
            else:
                body.line(f"    {c.text(self._place(found.result))} = {value};")

    # --------------------------------------------------------------------------- expressions

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
        self._kept += 1
        var = Var(f"@kept{self._kept}_", FLOAT)
        value = c.item_text(self.value(expr, FLOAT))
        body.line(f"const real {self.local(var)} = {value};")
        return var
