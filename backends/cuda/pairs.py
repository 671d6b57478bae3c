"""Passes over pairs as CUDA C++ (``device/matrix/pairs.h``), and how the host chooses between
these and other kernels."""

from __future__ import annotations

from collections.abc import Iterable

from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.context import CppContext, HostWriter
from loma.backends.cfamily.names import cpp_name
from loma.backends.cfamily.writer import Writer
from loma.backends.cuda import texts
from loma.backends.cuda.passes import PassText, where, write_otherwise
from loma.backends.cuda.start import Start
from loma.backends.kernels.ir import as_statement
from loma.backends.kernels.pairs import Output, Pairs
from loma.backends.schedule.host import Either, PairsPass
from loma.core import sizes
from loma.core.bounds import ONE, ZERO, conjuncts
from loma.core.effects import assigned
from loma.core.ir import (
    FLOAT,
    INT,
    Binary,
    Builtin,
    Expr,
    FloatConst,
    Index,
    IntConst,
    Select,
    Var,
    replace,
)
from loma.core.walk import free_variables, map_children, walk

_POWER = "@power_of_two"
_LOG2_E = 1.4426950408889634
_LARGE = 1e4  # whose product with a number is rounded by too much for an exponent


def write_either(owner: HostWriter, node: Either) -> None:
    """Writes both ways, and how the host chooses."""
    extents = [
        [pairs.row.extent, pairs.column.extent, *(s.inner.extent for s in pairs.streams)]
        for pairs in node.chain.passes
    ]
    with owner.writer.block(f"if ({where(owner.context, extents, node.chain.conditions)})"):
        owner.context.narrow_reads = node.read
        owner.context.narrowed = dict.fromkeys(_shared(node), False)
        owner.nodes(node.then)
        owner.context.narrow_reads, owner.context.narrowed = frozenset(), {}
    write_otherwise(owner, node)


def _shared(node: Either) -> list[str]:
    """The tensors that several passes have as operands, and that nothing changes between these."""
    found: dict[str, list[int]] = {}
    for k, item in enumerate(node.chain.items):
        if isinstance(item, Pairs):
            for tensor in {var.name for var in _operands(item)}:
                found.setdefault(tensor, []).append(k)
    arguments = {var.name for var in node.alone}
    return [
        name
        for name, places in found.items()
        if len(places) > 1
        and name not in arguments
        and not any(
            name in assigned((as_statement(item),))
            for item in node.chain.items[places[0] : places[-1]]
        )
    ]


def _operands(pairs: Pairs) -> list[Var]:
    reads = [read for stream in pairs.streams for read in (stream.matrix, stream.own)]
    return [read.tensor for read in reads if read is not None]


def write_pairs(owner: HostWriter, node: PairsPass) -> None:
    """Writes a launch, and the kernel."""
    context, pairs = owner.context, node.pairs
    text = PairsText(context, node)
    body = text.kernel()
    names: dict[str, str] = {}
    for var in _operands(pairs):
        if var.name in context.narrowed:
            names[var.name] = f"{context.variable(var)}_operand_"
            if not context.narrowed[var.name]:
                made = f"loma::gpu::narrowed({context.variable(var)})"
                owner.writer.line(f"const loma::Tensor {names[var.name]} = {made};")
            context.narrowed[var.name] = True
    with owner.writer.block():
        launch = Start(owner, "pairs", pairs.source)
        for k, stream in enumerate(pairs.streams):
            launch.operand(f"streamed{k}_", stream.matrix.tensor, names)
            if stream.own is not None:
                launch.operand(f"own{k}_", stream.own.tensor, names)
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
        launch.write(body, "pairs", *sizes_given, str(text.kept), before=texts.PAIRS)


class PairsText(PassText):
    """The kernel of a pass over pairs. ``kept``: how many numbers it keeps of each column."""

    def __init__(self, context: CppContext, node: PairsPass) -> None:
        pairs = node.pairs
        axes = (*pairs.outer, pairs.row, pairs.column)
        products = [stream.product for stream in pairs.streams if stream.product is not None]
        super().__init__(context, axes, products, len(pairs.outer))
        self._pass = node
        self._products = {var.name for var in products}
        self._weighs = False  # whether what is written is a weight
        self._of_rows: dict[Expr, tuple[Var, Expr]] = {}  # and what it is before the pass
        self._of_columns: dict[Expr, tuple[Var, Expr]] = {}

    @property
    def kept(self) -> int:
        return len(self._of_columns)

    def _builtin(self, expr: Builtin) -> c.Expression:
        # Weights are rounded to 16 bits.
        if expr.name in (_POWER, "exp"):
            name = "power_of_two" if expr.name == _POWER else "exponential"
            return c.call(f"loma::{name}", self.value(expr.args[0], FLOAT))
        match expr:
            case Builtin("mul_no_nan", (slope, _)) if self._weighs and _is_exponential(slope):
                return c.call("products_.product", *(self.value(arg, FLOAT) for arg in expr.args))
        return super()._builtin(expr)

    def kernel(self) -> Writer:
        pairs, body = self._pass.pairs, Writer(1)
        rows = c.item_text(self._int(pairs.row.extent))
        columns = self._columns(pairs)
        back = "" if columns is None or not _grows(columns, pairs) else ", /*back=*/true"
        body.line(f"const loma::PairPart part_(grid_, {rows}{back});")
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
        row, column = (
            f"[[maybe_unused]] const int64_t {cpp_name(axis.name)}"
            for axis in (pairs.row, pairs.column)
        )
        body.line(
            f"    [&]({row}) {{ return {self._values(e for _, e in self._of_rows.values())}; }},"
        )
        reads: dict[Expr, Var] = {}
        values = [self._reading(expr, reads) for _, expr in self._of_columns.values()]
        body.line(f"    loma::OfColumns{{[&]({column}) {{ return {self._values(reads)}; }},")
        body.line(f"        [&]([[maybe_unused]] const auto& read_, {column}) "
                  f"{{ return {self._values(values)}; }}}},")  # fmt: skip
        ends = (",", ");") if columns is None else (",", ",")
        for text, end in zip(sums, ends, strict=True):
            body.line(f"    {text}{end}")
        if columns is not None:
            name = cpp_name(pairs.row.name)
            low, high = (
                f"[&]([[maybe_unused]] const int64_t {name}) -> int64_t {{ return {place}; }}"
                for place in (c.item_text(self._int(each)) for each in columns)
            )
            body.line(f"    loma::Between{{{low}, {high}}});")
        return body

    def _columns(self, pairs: Pairs) -> tuple[Expr, Expr] | None:
        """From which column on, and below which one, weights of a row are not zero, if any sum says
        so."""
        first, *others = [_ends(_unscaled(o.weight)[1], pairs) for o in pairs.outputs]
        if first == _all_columns(pairs) or any(other != first for other in others):
            return None
        return first

    def _values(self, values: Iterable[Expr]) -> str:
        texts = [c.item_text(self.value(each, FLOAT)) for each in values]
        held = f"{{{{{', '.join(texts)}}}}}" if texts else "{}"
        return f"loma::Kept<{len(texts)}>{held}"

    def _reading(self, expr: Expr, reads: dict[Expr, Var]) -> Expr:
        """The expression with what it reads of tensors from ``reads``, where choices read nothing
        that they do not choose."""
        if isinstance(expr, Index) and not self._is_steady(expr):
            if expr not in reads:
                reads[expr] = Var(f"@read{len(reads)}", FLOAT)
                self._locals[reads[expr].name] = f"read_[{len(reads) - 1}]"
            return reads[expr]
        if isinstance(expr, Select) or expr.type != FLOAT:
            return expr
        return map_children(expr, lambda child: self._reading(child, reads))

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
            f"[[maybe_unused]] {each}"
            for each in (
                *(f"const real {name}" for name in names), f"const int64_t {row}",
                f"const int64_t {column}", "const auto& row_", "const auto& column_",
                "auto& products_",
            )
        )  # fmt: skip
        factor, weight = self._divided(body, output.weight)
        weight = self._read(body, self._exponents(weight))
        self._weighs = True
        text = c.item_text(self.value(weight, FLOAT))
        self._weighs = False
        return (
            f"loma::Weighted{{[&]({given}) -> real {{ return {text}; }},\n"
            f"        {self._write(output, row, factor)}}}"
        )

    def _divided(self, body: Writer, weight: Expr) -> tuple[str | None, Expr]:
        """Factors that follow from sizes alone, which the sum is multiplied with, and the rest."""
        factor, rest = _unscaled(weight)
        return None if factor is None else self.local(self._keep(body, factor)), rest

    def _exponents(self, expr: Expr) -> Expr:
        """Exponentials as powers of two, where what is subtracted can be kept in that form. No
        multiple of the rest may be infinite where the rest is not."""
        match expr:
            case Builtin("exp", (Binary("+" | "-" as op, left, right),)):
                for one, other in ((left, right), (right, left)):
                    if self._is_moderate(one) and self._is_kept(other):
                        sides = (self._in_twos(left), self._in_twos(right))
                        return Builtin(_POWER, (Binary(op, *sides, FLOAT),), FLOAT)
            case Builtin("exp", (argument,)) if self._is_moderate(argument):
                return Builtin(_POWER, (self._in_twos(argument),), FLOAT)
        return map_children(expr, self._exponents)

    def _is_moderate(self, expr: Expr) -> bool:
        match expr:
            case Var(name):
                return name in self._products
            case FloatConst(value):
                return abs(value) < _LARGE
            case Binary("+" | "-", left, right):
                return self._is_moderate(left) and self._is_moderate(right)
            case Binary("*", left, right):
                return any(
                    self._is_moderate(one) and (self._is_steady(other) or other.type == INT)
                    for one, other in ((left, right), (right, left))
                )
            case Binary("/", left, right):
                return self._is_moderate(left) and self._is_steady(right)
        return False

    def _in_twos(self, expr: Expr) -> Expr:
        """The expression times the logarithm of e to base 2."""
        match expr:
            case Binary("+" | "-" as op, left, right):
                return Binary(op, self._in_twos(left), self._in_twos(right), FLOAT)
            case Binary("*", left, right) if self._is_steady(left):
                return Binary("*", self._in_twos(left), right, FLOAT)
            case Binary("*", left, right) if self._is_steady(right):
                return Binary("*", left, self._in_twos(right), FLOAT)
            case Binary("/", left, right) if self._is_steady(right):
                factor = Binary("/", FloatConst(_LOG2_E), right, FLOAT)
                return Binary("*", left, factor, FLOAT)
        return Binary("*", expr, FloatConst(_LOG2_E), FLOAT)

    def _read(self, body: Writer, expr: Expr) -> Expr:
        """The expression with what follows from the row or from the column alone read from what is
        kept of these; choices keep what they choose from, where that may not exist elsewhere."""
        is_plain = isinstance(expr, Var | FloatConst | IntConst) or self._is_steady(expr)
        if expr.type == FLOAT and self._is_kept(expr) and not is_plain:
            return self._value_of(body, expr)
        if isinstance(expr, Select) and all(map(self._exists, (expr.then, expr.other))):
            # Both weights of a pair take the same exponential then, as no branch is around it.
            then, other = self._read(body, expr.then), self._read(body, expr.other)
            return replace(expr, then=then, other=other, eager=True)
        if isinstance(expr, Select | Index):
            return self._hoisted(body, expr)
        if expr.type != FLOAT or self._is_steady(expr):
            return self._hoisted(body, expr)
        return map_children(expr, lambda child: self._read(body, child))

    def _exists(self, expr: Expr) -> bool:
        """Whether all that is read exists for all rows and columns."""
        pairs = self._pass.pairs
        extents = {axis.name: axis.extent for axis in (*pairs.outer, pairs.row, pairs.column)}

        def inside(read: Index) -> bool:
            places = zip(read.subscripts, sizes.dims_of(read.tensor), strict=True)
            return all(
                isinstance(place, Var)
                and place.name in extents
                and sizes.equal(extents[place.name], dim) is True
                for place, dim in places
            )

        return all(inside(node) for node in walk(expr) if isinstance(node, Index))

    def _is_kept(self, expr: Expr) -> bool:
        """Whether it follows from one of the row and the column at most."""
        return len(free_variables(expr) & self._moving) <= 1 and not (
            free_variables(expr) & self._products
        )

    def _value_of(self, body: Writer, expr: Expr) -> Var:
        of_row = self._pass.pairs.row.name in free_variables(expr)
        values = self._of_rows if of_row else self._of_columns
        if expr not in values:
            kind, place = "row" if of_row else "column", len(values)
            values[expr] = Var(f"@{kind}{place}", FLOAT), self._hoisted(body, expr)
            self._locals[f"@{kind}{place}"] = f"{kind}_[{place}]"
        return values[expr][0]

    def _write(self, output: Output, row: str, factor: str | None) -> str:
        last = output.target.subscripts[-1]
        assert isinstance(last, Var)
        name = self.local(last)
        head = f"[&](const real sum_, const int64_t {row}, const int64_t {name})"
        var = output.target.tensor
        place = c.text(self._int(self._offset(output.target)))
        found = "sum_" if factor is None else f"sum_ * {factor}"
        if var.name in self._pass.narrow:
            target = f"{self.context.variable(var)}_narrow_[{place}]"
            value = f"static_cast<loma::Narrow>(loma::narrowed({found}, real(0)))"
            return f"{head} {{ {target} = {value}; }}"
        return f"{head} {{ {c.text(self._place(output.target))} = {found}; }}"


def _all_columns(pairs: Pairs) -> tuple[Expr, Expr]:
    """All columns."""
    return ZERO, pairs.column.extent


def _ends(weight: Expr, pairs: Pairs) -> tuple[Expr, Expr]:
    """The first column whose weight is not zero for a row, and behind the last one: what conditions
    say that compare these."""
    low, high = _all_columns(pairs)
    while isinstance(weight, Select) and weight.other == FloatConst(0.0):
        for condition in conjuncts(weight.cond):
            match condition:
                case Binary("<=" | "<" as op, left, right) if left.type == INT:
                    pass
                case Binary(">=" | ">" as op, right, left) if left.type == INT:
                    pass
                case _:
                    continue
            room = sizes.arith("-", right, left)  # not negative where it holds, or positive
            form = sizes.affine(room, (pairs.row, pairs.column))
            step = None if form is None else form[0].get(pairs.column.name)
            if form is None or step is None or not _sized(room):
                continue
            way = sizes.constant(step)
            rest = sizes.arith("-", room, sizes.product((step, Var(pairs.column.name, INT))))
            strict = ONE if op in ("<", ">") else ZERO
            if way == -1 and high == pairs.column.extent:
                high = sizes.arith("+", sizes.arith("-", rest, strict), ONE)
            elif way == 1 and low == ZERO:
                low = sizes.arith("-", strict, rest)
        weight = weight.then
    return low, high


def _grows(columns: tuple[Expr, Expr], pairs: Pairs) -> bool:
    """Whether later rows have more columns."""
    form = sizes.affine(sizes.arith("-", columns[1], columns[0]), (pairs.row,))
    step = None if form is None else form[0].get(pairs.row.name)
    return step is not None and (sizes.constant(step) or 0) > 0


def _unscaled(weight: Expr) -> tuple[Expr | None, Expr]:
    """Factors that follow from sizes alone, and the rest."""
    factor: Expr | None = None
    while True:
        match weight:
            case Builtin("mul_no_nan", (one, rest)) | Binary("*", one, rest) if _sized(one):
                pass
            case Binary("*", rest, one) if _sized(one):
                pass
            case Binary("/", rest, bottom) if _sized(bottom):
                one = Binary("/", FloatConst(1.0), bottom, FLOAT)
            case _:
                return factor, weight
        factor = one if factor is None else Binary("*", factor, one, FLOAT)
        weight = rest


def _is_exponential(expr: Expr) -> bool:
    """Whether a number is an exponential, or zero."""
    match expr:
        case Builtin("exp" | "@power_of_two"):
            return True
        case Select(_, then, FloatConst(0.0)):
            return _is_exponential(then)
        case _:
            return False


def _sized(expr: Expr) -> bool:
    """Whether a number follows from sizes and constants alone."""
    return not any(
        isinstance(node, Index) or (isinstance(node, Var) and node.type != INT)
        for node in walk(expr)
    )
