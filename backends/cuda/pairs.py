"""Passes over pairs as CUDA C++ (``device/pairs.h``), and how the host chooses between these and
other kernels."""

from __future__ import annotations

from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.context import CppContext, HostWriter
from loma.backends.cfamily.names import cpp_name
from loma.backends.cfamily.writer import Writer
from loma.backends.cuda import texts
from loma.backends.cuda.passes import PassText, where, write_otherwise
from loma.backends.cuda.start import Start
from loma.backends.kernels.pairs import Output, Pairs
from loma.backends.schedule.host import Either, PairsPass
from loma.core import sizes
from loma.core.ir import FLOAT, Builtin, Var


def write_either(owner: HostWriter, node: Either) -> None:
    """Writes both ways, and how the host chooses."""
    extents = [
        [pairs.row.extent, pairs.column.extent, *(s.inner.extent for s in pairs.streams)]
        for pairs in node.chain.passes
    ]
    with owner.writer.block(f"if ({where(owner.context, extents, node.chain.conditions)})"):
        owner.nodes(node.then)
    write_otherwise(owner, node)


def write_pairs(owner: HostWriter, node: PairsPass) -> None:
    """Writes a launch, and the kernel."""
    context, pairs = owner.context, node.pairs
    text = PairsText(context, node)
    body = text.kernel()
    with owner.writer.block():
        launch = Start(owner, "pairs", pairs.source)
        for k, stream in enumerate(pairs.streams):
            launch.operand(f"streamed{k}_", stream.matrix.tensor)
            if stream.own is not None:
                launch.operand(f"own{k}_", stream.own.tensor)
        written = {output.target.tensor.name for output in pairs.outputs}
        for output in pairs.outputs:
            var = output.target.tensor
            if var.name in node.narrow:
                launch.narrow_result(f"{context.variable(var)}_narrow_", var)
        for base, (name, tensor) in text.pointers.items():
            launch.tensor(tensor, name, base in written)
        for name, (type_, argument) in text.params.items():
            launch.number(type_, name, argument)
        outer = sizes.product(tuple(axis.extent for axis in pairs.outer))
        given = (outer, pairs.row.extent, *(stream.inner.extent for stream in pairs.streams))
        sizes_given = [c.item_text(context.ints(each)) for each in given]
        launch.write(body, "pairs", *sizes_given, before=texts.PAIRS)


class PairsText(PassText):
    """The kernel of a pass over pairs."""

    def __init__(self, context: CppContext, node: PairsPass) -> None:
        pairs = node.pairs
        axes = (*pairs.outer, pairs.row, pairs.column)
        products = [stream.product for stream in pairs.streams if stream.product is not None]
        super().__init__(context, axes, products, len(pairs.outer))
        self._pass = node

    def _builtin(self, expr: Builtin) -> c.Expression:
        # Weights are rounded to 16 bits.
        if expr.name == "exp":
            return c.call("loma::exponential", self.value(expr.args[0], FLOAT))
        return super()._builtin(expr)

    def kernel(self) -> Writer:
        pairs, body = self._pass.pairs, Writer(1)
        rows = c.item_text(self._int(pairs.row.extent))
        body.line(f"const loma::PairPart part_(grid_, {rows});")
        self._write_outer(body, pairs.outer)
        operands: list[str] = []
        for k, stream in enumerate(pairs.streams):
            own = f"loma::Matrix{{nullptr, 0, {rows}, 0}}"
            if stream.own is not None:
                own = self._matrix(f"own{k}_", stream.own, pairs.row, stream.inner)
            operands.append(own)
            operands.append(
                self._matrix(f"streamed{k}_", stream.matrix, pairs.column, stream.inner)
            )
        sums = [self._sum(body, pairs, k) for k in range(2)]
        has = ", ".join("false" if s.product is None else "true" for s in pairs.streams)
        body.line(f"loma::pairs<{has}>(")
        body.line("    part_,")
        for operand in operands:
            body.line(f"    {operand},")
        for text, end in zip(sums, (",", ");"), strict=True):
            body.line(f"    {text}{end}")
        return body

    def _sum(self, body: Writer, pairs: Pairs, stream: int) -> str:
        """What becomes of the products, for the rows of a stream."""
        found = [output for output in pairs.outputs if output.stream == stream]
        if not found:
            return "loma::Nothing{}"
        (output,) = found
        names = [
            f"unused{k}_" if s.product is None else cpp_name(s.product.name)
            for k, s in enumerate(pairs.streams)
        ]
        row, column = cpp_name(pairs.row.name), cpp_name(pairs.column.name)
        given = ", ".join(
            [*(f"[[maybe_unused]] const real {name}" for name in names),
             f"[[maybe_unused]] const int64_t {row}", f"[[maybe_unused]] const int64_t {column}"]
        )  # fmt: skip
        weight = self._plain(body, output.weight)
        return (
            f"loma::Weighted{{[&]({given}) -> real {{ return {weight}; }},\n"
            f"        {self._write(output, row)}}}"
        )

    def _write(self, output: Output, row: str) -> str:
        last = output.target.subscripts[-1]
        assert isinstance(last, Var)
        name = self.local(last)
        head = f"[&](const real sum_, const int64_t {row}, const int64_t {name})"
        var = output.target.tensor
        place = c.text(self._int(self._offset(output.target)))
        if var.name in self._pass.narrow:
            target = f"{self.context.variable(var)}_narrow_[{place}]"
            value = "static_cast<loma::Narrow>(loma::narrowed(sum_, real(0)))"
            return f"{head} {{ {target} = {value}; }}"
        return f"{head} {{ {c.text(self._place(output.target))} = sum_; }}"
