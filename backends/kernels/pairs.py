"""Pairs: sums over one side of a matrix of products that nobody stores.

The backward part of attention computes scores again, and what follows from them elementwise, only
to sum it over rows or columns, weighted by the matrices that the scores are products of:

    p[t, j] = sum(q[t, d] * k[j, d] for d in D)
    g[t, j] = sum(dy[t, e] * v[j, e] for e in E)
    dq[t, d] = sum(f(p[t, j], g[t, j], t, j) * k[j, d] for j in S)
    dk[j, d] = sum(f(p[t, j], g[t, j], t, j) * q[t, d] for t in T)

A device may take each such sum in one pass, without memory for p, g and f. They are found by what
tensors are defined as, as sweeps are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from loma.backends.kernels.sharing import mentions
from loma.backends.kernels.sweeps import (
    bound, check_inside, check_matrix, Refused, require, variable,
)  # fmt: skip
from loma.core import sizes
from loma.core.effects import assigned, is_blank
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Declare, Expr, Function, If, Index, IndexAssign, Reduce, Stmt,
    TensorType, Var,
)  # fmt: skip
from loma.core.names import Names
from loma.core.walk import (
    exchanged, free_variables, map_children, mentioned_names, substitute, walk, without_no_diff,
)  # fmt: skip

_INNER = Var("*", INT)  # the index that products sum over, wherever they are compared


@dataclass(frozen=True, slots=True)
class Stream:
    """A matrix with a row for each value of the index that is summed over, ``inner`` its other
    index; ``product`` stands for the sum over that of what it and ``own`` have, if anything."""

    matrix: Index
    inner: Axis
    own: Index | None
    product: Var | None


@dataclass(frozen=True, slots=True)
class Output:
    """``target`` is the sum over columns of ``weight`` times the matrix of a stream."""

    weight: Expr
    stream: int
    target: Index


@dataclass(frozen=True, slots=True)
class Pairs:
    """What one pass over the values of ``column`` gives for each ``row`` and all of ``outer``: at
    most one output for each of one or two streams. ``source``: the statements it stands for."""

    outer: tuple[Axis, ...]
    row: Axis
    column: Axis
    streams: tuple[Stream, ...]
    outputs: tuple[Output, ...]
    source: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """Statements of a block that are passes, with others between them: ``items`` do what ``source``
    does where ``conditions`` hold. ``before`` and ``behind`` are the others of the block."""

    before: tuple[Stmt, ...]
    items: tuple[Stmt | Pairs, ...]
    source: tuple[Stmt, ...]
    conditions: tuple[Expr, ...]
    behind: tuple[Stmt, ...]


def region(function: Function, names: Names) -> Region | None:
    """The passes of a backward part; None where it has none, or they are not all that happens to
    the matrices."""
    if function.half != "backward":
        return None
    try:
        return _Search(function, names).region()
    except Refused:
        return None


@dataclass(slots=True)
class _Definition:
    target: Var
    axes: tuple[str, ...]
    value: Expr
    ranges: Mapping[str, Expr]
    items: list[int]

    def element(self) -> Index:
        return Index(self.target, tuple(Var(axis, INT) for axis in self.axes), FLOAT)


class _Search:
    def __init__(self, function: Function, names: Names) -> None:
        self._function, self._names = function, names
        self._sizes = set(sizes.size_variables(function))
        needs = {param.name for param in function.params[-len(function.results) :]}
        self._flat: list[tuple[int, Stmt, Expr | None]] = []
        for position, stmt in enumerate(function.body):
            if isinstance(stmt, If) and not stmt.other and free_variables(stmt.cond) <= needs:
                self._flat += [(position, inner, stmt.cond) for inner in stmt.then]
            else:
                self._flat.append((position, stmt, None))
        self._declares = {s.target.name: s for _, s, _ in self._flat if is_blank(s)}
        self._definitions: dict[str, _Definition] = {}
        spoilt: set[str] = set()
        for k, (_, stmt, _) in enumerate(self._flat):
            if isinstance(stmt, Declare):
                continue
            for name in assigned((stmt,)):
                if not self._define(k, stmt, name):
                    spoilt.add(name)
        for name in spoilt:
            self._definitions.pop(name, None)
        self._used: set[str] = set()

    def _define(self, k: int, stmt: Stmt, name: str) -> bool:
        """Notes what a statement makes of a tensor; whether that is known."""
        if not isinstance(stmt, IndexAssign) or not isinstance(stmt.target, Index):
            return False
        names = tuple(map(variable, stmt.target.subscripts))
        ranges = {axis.name: axis.extent for axis in stmt.axes}
        if "" in names or len(set(names)) != len(names) or not set(names) <= ranges.keys():
            return False
        own = tuple(ranges[n] for n in names)
        type_ = stmt.target.tensor.type
        if not isinstance(type_, TensorType) or type_.element != "float":
            return False
        if name not in self._declares or not sizes.same(own, type_.dims):
            return False
        value = without_no_diff(stmt.value)
        more = tuple(axis for axis in stmt.axes if axis.name not in names)
        if more:
            value = Reduce("sum", value, more, FLOAT)
        known = self._definitions.get(name)
        if known is None:
            target = stmt.target.tensor
            self._definitions[name] = _Definition(target, names, value, ranges, [k])
            return True
        if stmt.op != "+=" or bound(value) & set(known.axes):
            return False
        given: dict[str, Expr] = {a: Var(b, INT) for a, b in zip(names, known.axes, strict=True)}
        known.value = Binary("+", known.value, substitute(value, given), FLOAT)
        known.items.append(k)
        return True

    # ------------------------------------------------------------------------- one sum

    def region(self) -> Region | None:
        found: list[tuple[str, Pairs]] = []
        for name, definition in self._definitions.items():
            before = set(self._used)
            try:
                found.append((name, self._pass(definition)))
            except Refused:
                self._used = before
        return self._placed(found) if found else None

    def _pass(self, definition: _Definition) -> Pairs:
        value = definition.value
        require(isinstance(value, Reduce) and value.kind == "sum" and len(value.axes) == 1)
        assert isinstance(value, Reduce)
        (column,) = value.axes
        require(isinstance(value.body, Binary) and value.body.op == "*")
        assert isinstance(value.body, Binary)
        for read, rest in (
            (value.body.left, value.body.right), (value.body.right, value.body.left),
        ):  # fmt: skip
            if isinstance(read, Index) and read.subscripts:
                names = [variable(s) for s in read.subscripts]
                width = names[-1]
                rows = [a for a in definition.axes if a not in names]
                fits = column.name in names and width in definition.axes and len(rows) == 1
                if not fits or width in free_variables(rest) or width == column.name:
                    continue
                before = set(self._used)
                try:
                    return self._weighted(definition, column, read, rest, rows[0], width)
                except Refused:
                    self._used = before
        raise Refused

    def _weighted(
        self, definition: _Definition, column: Axis, matrix: Index, rest: Expr, row: str, width: str
    ) -> Pairs:
        weight = self._expanded(rest, row, column.name)
        ranges = dict(definition.ranges) | {column.name: column.extent}
        outer = tuple(Axis(a, ranges[a]) for a in definition.axes if a not in (row, width))
        reduces = list(dict.fromkeys(n for n in walk(weight) if isinstance(n, Reduce)))
        require(0 < len(reduces) <= 2)
        streams: list[Stream] = []
        for reduce in reduces:
            stream = self._stream(reduce, row, column.name)
            assert stream.product is not None
            weight = exchanged(weight, reduce, stream.product)
            streams.append(stream)
        own = _normal(matrix, width)
        place = next((k for k, s in enumerate(streams) if _normal_of(s) == own), len(streams))
        if place == len(streams):
            inner = Axis(self._names.fresh(width), ranges[width])
            last = (*matrix.subscripts[:-1], Var(inner.name, INT))
            streams.append(Stream(replace(matrix, subscripts=last), inner, None, None))
        require(len(streams) <= 2)
        rows, columns = Axis(row, ranges[row]), Axis(column.name, column.extent)
        inside = (*outer, rows, columns)
        check_inside(weight, inside, self._sizes, set())
        for stream in streams:
            for operand, axis in ((stream.matrix, columns), (stream.own, rows)):
                if operand is not None:
                    require(len(operand.subscripts) == len(outer) + 2)
                    check_matrix(operand, axis, stream.inner, outer)
        output = Output(weight, place, definition.element())
        source = tuple(self._flat[k][1] for k in definition.items)
        return Pairs(outer, rows, columns, tuple(streams), (output,), source)

    def _expanded(self, expr: Expr, row: str, column: str, inside: tuple[str, ...] = ()) -> Expr:
        """The expression with tensors of rows and columns replaced by what they are; ``inside``:
        those around it."""
        if isinstance(expr, Index) and isinstance(expr.base, Var):
            definition = self._definitions.get(expr.base.name)
            names = [variable(s) for s in expr.subscripts]
            if definition is not None and {row, column} <= set(names):
                require("" not in names and not set(names) & bound(definition.value))
                require(expr.base.name not in inside)  # made of what it held before
                self._used.add(expr.base.name)
                given = dict(zip(definition.axes, expr.subscripts, strict=True))
                value = substitute(definition.value, given)
                return self._expanded(value, row, column, (*inside, expr.base.name))
        return map_children(expr, lambda child: self._expanded(child, row, column, inside))

    def _stream(self, reduce: Reduce, row: str, column: str) -> Stream:
        require(reduce.kind == "sum" and len(reduce.axes) == 1)
        (axis,) = reduce.axes
        body = reduce.body
        require(isinstance(body, Binary) and body.op == "*")
        assert isinstance(body, Binary)
        sides = [side for side in (body.left, body.right) if isinstance(side, Index)]
        require(len(sides) == 2)
        of_rows = [s for s in sides if row in map(variable, s.subscripts)]
        of_columns = [s for s in sides if column in map(variable, s.subscripts)]
        require(len(of_rows) == 1 and len(of_columns) == 1 and of_rows != of_columns)
        inner = Axis(self._names.fresh(axis.name), axis.extent)
        given: dict[str, Expr] = {axis.name: Var(inner.name, INT)}
        own, matrix = (substitute(side, given) for side in (of_rows[0], of_columns[0]))
        assert isinstance(own, Index)
        assert isinstance(matrix, Index)
        return Stream(matrix, inner, own, Var(self._names.fresh("product"), FLOAT))

    # ------------------------------------------------------------------------ all of them

    def _placed(self, found: list[tuple[str, Pairs]]) -> Region:
        targets = {name for name, _ in found}
        require(not targets & self._used)
        inside = self._used | targets
        own_items = {k for name in inside for k in self._definitions[name].items}
        passes = self._joined(found)
        require(all(len(p.streams) == 2 for group in passes.values() for p in group))
        positions = [self._flat[k][0] for k in own_items]
        low, high = min(positions), max(positions)
        own = tuple(self._flat[k][1] for k in sorted(own_items))
        counted, everywhere = mentions(own), mentions(self._function.body)
        for name in self._used:
            require(everywhere[name] == counted[name] + 1)
        declares: list[Stmt] = []
        out: list[Stmt | Pairs] = []
        conditions: list[Expr] = []
        for k, (position, stmt, cond) in enumerate(self._flat):
            if low <= position <= high:
                if isinstance(stmt, Declare):
                    require(stmt.value is None)
                    declares.append(stmt)
                    continue
                if cond is not None and cond not in conditions:
                    conditions.append(cond)
                if k in own_items:
                    out += passes.get(k, ())
                else:
                    out.append(stmt)
        body = self._function.body
        before = [*body[:low], *declares]
        source = [s for s in body[low : high + 1] if not isinstance(s, Declare)]
        within = mentions(tuple(source))
        local = [
            s
            for s in before
            if isinstance(s, Declare)
            and s.value is None
            and everywhere[s.target.name] == within[s.target.name] + 1
            and s.target.name in within
        ]
        names = {s.target.name for s in local if isinstance(s, Declare)}
        require(self._used <= names)
        rest = tuple(s for s in before if s not in local)
        kept = [s for s in local if isinstance(s, Declare) and s.target.name not in self._used]
        items = (*kept, *out)
        return Region(rest, items, (*local, *source), tuple(conditions), body[high + 1 :])

    def _joined(self, found: list[tuple[str, Pairs]]) -> dict[int, list[Pairs]]:
        """The passes by the statement that they stand at, those over the same rows and columns of
        the same matrices as one."""
        joined: list[tuple[int, Pairs]] = []
        for name, one in found:
            last = self._definitions[name].items[-1]
            for k, (position, other) in enumerate(joined):
                both = _both(other, one)
                if both is not None:
                    joined[k] = max(position, last), both
                    break
            else:
                joined.append((last, one))
        out: dict[int, list[Pairs]] = {}
        for position, one in joined:
            out.setdefault(position, []).append(one)
        return out


def _normal(matrix: Index, inner: str) -> Index:
    value = substitute(matrix, {inner: _INNER})
    assert isinstance(value, Index)
    return value


def _normal_of(stream: Stream) -> Index:
    return _normal(stream.matrix, stream.inner.name)


def _both(first: Pairs, second: Pairs) -> Pairs | None:
    """Two passes as one, if they have the same rows, columns, and two streams at most."""
    axes = [(*one.outer, one.row, one.column) for one in (first, second)]
    if len(axes[0]) != len(axes[1]):
        return None
    if not all(sizes.equal(a.extent, b.extent) for a, b in zip(*axes, strict=True)):
        return None
    if mentioned_names(second.source) & set(assigned(first.source)):
        return None
    given: dict[str, Expr] = {b.name: Var(a.name, INT) for a, b in zip(*axes, strict=True)}
    streams = list(first.streams)
    places: dict[int, int] = {}
    for k, stream in enumerate(second.streams):
        matrix = substitute(stream.matrix, given)
        own = None if stream.own is None else substitute(stream.own, given)
        assert isinstance(matrix, Index)
        assert own is None or isinstance(own, Index)
        new = replace(stream, matrix=matrix, own=own)
        for at, known in enumerate(streams):
            if _normal_of(known) != _normal_of(new):
                continue
            if known.own is not None and new.own is not None:
                mine, other = _normal(known.own, known.inner.name), _normal(new.own, new.inner.name)
                if mine != other:
                    return None
            if known.product is None and new.product is not None:
                streams[at] = new
            elif new.product is not None and known.product is not None:
                given[new.product.name] = known.product
            places[k] = at
            break
        else:
            places[k] = len(streams)
            streams.append(new)
    taken = {output.stream for output in first.outputs}
    outputs = list(first.outputs)
    for output in second.outputs:
        if places[output.stream] in taken:
            return None
        last = variable(output.target.subscripts[-1])
        names = {name: value for name, value in given.items() if name != last}
        target = substitute(output.target, names)
        assert isinstance(target, Index)
        outputs.append(Output(substitute(output.weight, given), places[output.stream], target))
    if len(streams) > 2:
        return None
    source = (*first.source, *second.source)
    return Pairs(first.outer, first.row, first.column, tuple(streams), tuple(outputs), source)
