"""Sweeps as CUDA C++: one pass over columns by the matrix units (``device/matrix/sweep.h``), with
the program's own text for what becomes of a product, and where the host can do without, other
kernels.
"""

from __future__ import annotations


from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.context import CppContext, HostWriter
from loma.backends.cfamily.names import cpp_name
from loma.backends.cfamily.writer import Writer
from loma.backends.cuda import texts
from loma.backends.cuda.passes import PassText, where, write_otherwise
from loma.backends.cuda.start import Start
from loma.backends.kernels.sweeps import Found
from loma.backends.schedule.host import Pass
from loma.core import sizes
from loma.core.ir import FLOAT, Binary, Expr, FloatConst, Index, Var
from loma.core.walk import free_variables, walk

_OPERANDS = ("queries_", "keys_", "values_")


def write_sweep(owner: HostWriter, node: Pass) -> None:
    """Writes the host's choice, the launch, and the kernel."""
    context, writer, found = owner.context, owner.writer, node.sweep.found
    scores = found.scores
    text = SweepText(context, found)
    body = text.kernel(node.narrow)
    extents = [axis.extent for axis in (scores.row, scores.column, scores.depth, found.width)]
    with writer.block(f"if ({where(context, [extents], found.conditions)})"):
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
    write_otherwise(owner, node)


def _makes(node: object, var: Var) -> bool:
    return getattr(node, "var", None) == var


class SweepText(PassText):
    """The kernel of a sweep."""

    def __init__(self, context: CppContext, found: Found) -> None:
        scores = found.scores
        axes = (*scores.outer, scores.row, scores.column, found.width)
        super().__init__(
            context, axes, (scores.product, found.share, found.summed), len(scores.outer)
        )
        self._found = found

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
        factor = self._factor(body, scores.product, scores.score)
        body.line(f"loma::sweep<{'true' if reads else 'false'}>(")
        body.line("    part_,")
        for operand in operands:
            body.line(f"    {operand},")
        kinds = ("int64_t", "real", "real", "real")
        for k, ((params, value), kind) in enumerate(zip(functions, kinds, strict=True)):
            text = (
                f"[&]([[maybe_unused]] {params.replace(', ', ', [[maybe_unused]] ')}) "
                f"-> {kind} {{ return {value}; }}"
            )
            if k == 1:
                text = f"loma::Scored{{{text}}}" if factor is None else f"loma::Scaled{{{factor}}}"
            body.line(f"    {text},")
        self._write_rows(body, names, narrow)
        return body

    def _factor(self, body: Writer, product: Var, score: Expr) -> str | None:
        """Where a score is the product with something that is the same for all rows and columns."""
        match score:
            case Binary("*", Var(product.name), factor) | Binary("*", factor, Var(product.name)):
                pass
            case Binary("/", Var(product.name), bottom):
                factor = Binary("/", FloatConst(1.0), bottom, FLOAT)
            case _:
                return None
        return self.local(self._keep(body, factor)) if self._is_steady(factor) else None

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
