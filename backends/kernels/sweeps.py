"""Sweeps: a row's maximum, the sum of its exponentials and sums weighted by these, in one pass.

Statements that give, for each row t of scores over columns j,

    s[t, j] = any function of sum(q[t, d] * k[j, d] for d in D), t and j
    m[t] = max(s[t, j] for j in S)
    z[t] = sum(exp(s[t, j] - m[t]) for j in S)
    y[t, e] = sum(exp(s[t, j] - m[t]) * v[j, e] for j in S) / z[t]

need no memory for s: while j runs, sums over earlier columns are scaled by exp(old m - new m). So
attention is one kernel. They are found in the canonical form, by what tensors are defined as: how
many statements there are, and which of them divides, does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, replace

from loma.backends.kernels.sharing import mentions
from loma.core import bounds, sizes
from loma.core.effects import assigned, is_blank, written_places
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Builtin, Call, Declare, Expr, FloatConst, Function, If, Index,
    IndexAssign, IntConst, Member, Op, Reduce, Select, Stmt, TensorType, Unary, Var, Zero,
    ZeroPad,
)  # fmt: skip
from loma.core.names import Names
from loma.core.walk import (
    exchanged, free_variables, map_children, mentioned_names, reduced_axes, root, substitute, walk,
    without_no_diff,
)  # fmt: skip

_NO = FloatConst(0.0)


@dataclass(frozen=True, slots=True)
class Scores:
    """``score`` is a function of ``product``, which stands for the sum over ``depth`` of
    ``query * key``, for each ``row``, each ``column`` below ``high``, and all values of ``outer``.
    """

    outer: tuple[Axis, ...]
    row: Axis
    column: Axis
    depth: Axis
    query: Index
    key: Index
    product: Var
    score: Expr
    high: Expr


@dataclass(frozen=True, slots=True)
class Found:
    """What statements compute in one sweep over columns.

    ``share`` stands for exp(score - largest score of the row): ``term`` is what it adds to the
    row's ``total``, ``weight`` what it is worth in the sum of ``values`` over columns, for which
    ``summed`` stands. ``result`` becomes ``written``, a function of ``summed``, ``largest`` and
    ``total``, elements of which the tensors of ``keeps`` are written, too. All is so where the
    host's ``conditions`` hold, and no axis is empty.
    """

    scores: Scores
    width: Axis
    values: Index
    share: Var
    term: Expr
    weight: Expr
    summed: Var
    largest: Index
    total: Index | None
    result: Index
    written: Expr
    keeps: tuple[Var, ...]
    conditions: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A sweep in a block of statements: those ``source`` that it is made of, with the declarations
    of what only they use, the statements ``before`` them, and how far it goes."""

    found: Found
    before: tuple[Stmt, ...]
    source: tuple[Stmt, ...]


def sweeps(function: Function, names: Names) -> tuple[tuple[Place, ...], tuple[Stmt, ...]]:
    """The sweeps in a function's outermost block, in order, and the statements behind the last."""
    rest = function.body
    places: list[Place] = []
    position = 0
    while position < len(rest):
        search = _Search(function, rest, names)
        found = search.at(position)
        if found is None:
            position += 1
            continue
        places.append(found[0])
        rest, position = found[1], 0
    return tuple(places), rest


def mentioned_in(found: Found) -> frozenset[str]:
    """The tensors that a sweep reads but for operands of its products."""
    exprs = (found.scores.score, found.scores.high, found.term, found.weight, found.written)
    nodes = [node for expr in (*exprs, *found.conditions) for node in walk(expr)]
    return frozenset(root(node) for node in nodes if isinstance(node, Index))


class Refused(Exception):
    """The statements are no sweep."""


@dataclass(frozen=True, slots=True)
class _Definition:
    """A tensor's elements at its ``axes``, as its only statement gives them."""

    position: int
    target: Var
    axes: tuple[str, ...]
    value: Expr
    ranges: Mapping[str, Expr]
    condition: Expr | None = None

    def element(self, names: Mapping[str, Expr]) -> Index:
        """An element, at axes of other ``names``."""
        return Index(self.target, tuple(names.get(a, Var(a, INT)) for a in self.axes), FLOAT)


@dataclass(frozen=True, slots=True)
class _Share:
    """An expression as a multiple of exp(score - largest), divided by what rows have."""

    value: Expr
    score: Expr
    largest: Index
    divisors: tuple[Expr, ...]


class _Search:
    """The sweep whose sum of values stands at a position of a block."""

    def __init__(self, function: Function, block: tuple[Stmt, ...], names: Names) -> None:
        self._block, self._names = block, names
        self._sizes = set(sizes.size_variables(function))
        self._mentions = mentions(function.body)
        self._locals = {s.target.name: s for s in block if is_blank(s)}
        writes = Counter(root(place) for place in written_places(function.body))
        self._definitions: dict[str, _Definition] = {}
        for position, stmt in enumerate(block):
            made = _definition(position, stmt)
            if made is not None:
                name, definition, count = made
                if writes[name] == count:
                    self._definitions[name] = definition
        self._used: set[str] = set()  # tensors whose statements become part of the sweep

    def at(self, position: int) -> tuple[Place, tuple[Stmt, ...]] | None:
        stmt = self._block[position]
        if not isinstance(stmt, IndexAssign) or not isinstance(stmt.target, Index):
            return None
        name = root(stmt.target)
        definition = self._definitions.get(name)
        if definition is None or not _sums(definition.value):
            return None
        try:
            found = self._found(name, definition)
            return self._placed(found)
        except Refused:
            return None

    # ------------------------------------------------------------------------- the sums

    def _found(self, name: str, definition: _Definition) -> Found:
        value = definition.value
        assert isinstance(value, Reduce)
        column = value.axes[0]
        outside = set(definition.axes)
        values, other, width = _matrix_and_rest(value.body, column.name, outside)
        share_name = Var(self._names.fresh("share"), FLOAT)
        share = self._share(self._expanded(other, {column.name}), share_name)
        largest = self._definitions[root(share.largest)]
        self._used |= {name, root(share.largest)}
        scores = self._scores(share, largest, definition, column, width)
        weight = self._until(share, column.extent, scores)

        ranges = definition.ranges
        total, term = self._total(share, share_name, scores)
        summed = Var(self._names.fresh("summed"), FLOAT)
        written: Expr = summed
        for divisor in share.divisors:
            written = Binary("/", written, divisor, FLOAT)
        result = definition.element({})
        result, written = self._consumed(name, result, written, definition)
        conditions = tuple(
            d.condition
            for used in sorted(self._used)
            if (d := self._definitions[used]).condition is not None
        )
        found = Found(
            scores, Axis(width, ranges[width]), values, share_name, term, weight, summed,
            share.largest, total, result, written, (), conditions,
        )  # fmt: skip
        self._check_reads(found)
        return found

    def _expanded(self, expr: Expr, moving: set[str]) -> Expr:
        """The expression with tensors that run along ``moving`` replaced by what they are, unless
        that is a reduction."""
        if isinstance(expr, Index) and isinstance(expr.base, Var):
            definition = self._definitions.get(expr.base.name)
            if (
                definition is not None
                and expr.base.name in self._locals
                and not isinstance(definition.value, Reduce)
                and moving & {v for s in expr.subscripts for v in free_variables(s)}
                and all(isinstance(s, Var) for s in expr.subscripts)
            ):
                self._used.add(expr.base.name)
                given = dict(zip(definition.axes, expr.subscripts, strict=True))
                names = {v.name for v in given.values() if isinstance(v, Var)}
                require(not names & bound(definition.value))
                return self._expanded(substitute(definition.value, given), moving)
        return map_children(expr, lambda child: self._expanded(child, moving))

    def _share(self, expr: Expr, share: Var) -> _Share:
        """The expression as a multiple of an exponential less the row's largest score."""
        match expr:
            case Builtin("exp", (Binary("-", score, Index() as largest),)) if self._is_max(largest):
                return _Share(share, score, largest, ())
            case Binary("*", left, right):
                sides = [self._has_share(side) for side in (left, right)]
                require(sides.count(True) == 1)
                inner = self._share(left if sides[0] else right, share)
                rest = right if sides[0] else left
                return replace(inner, value=Binary("*", inner.value, rest, FLOAT))
            case Binary("/", left, right) if self._has_share(left):
                inner = self._share(left, share)
                reads = {root(n) for n in walk(right) if isinstance(n, Index)}
                if any(self._is_sum(name) for name in reads):
                    return replace(inner, divisors=(*inner.divisors, right))
                return replace(inner, value=Binary("/", inner.value, right, FLOAT))
            case Select(cond, then, other) if other == _NO and self._has_share(then):
                inner = self._share(then, share)
                return replace(inner, value=Select(cond, inner.value, _NO, FLOAT))
            case Unary("-", operand):
                inner = self._share(operand, share)
                return replace(inner, value=Unary("-", inner.value, FLOAT))
            case _:
                raise Refused

    def _has_share(self, expr: Expr) -> bool:
        return any(
            isinstance(node, Builtin) and node.name == "exp"
            and any(isinstance(n, Index) and self._is_max(n) for n in walk(node))
            for node in walk(expr)
        )  # fmt: skip

    def _is_max(self, read: Index) -> bool:
        definition = self._definitions.get(root(read))
        return definition is not None and _reduces(definition.value, "max")

    def _is_sum(self, name: str) -> bool:
        definition = self._definitions.get(name)
        return definition is not None and _sums(definition.value)

    # ----------------------------------------------------------------------- the scores

    def _scores(
        self, share: _Share, largest: _Definition, definition: _Definition, column: Axis, width: str
    ) -> Scores:
        """The scores, which are those whose maximum the row's is."""
        maximum = largest.value
        assert isinstance(maximum, Reduce)
        (axis,) = maximum.axes
        require(all(isinstance(s, Var) for s in share.largest.subscripts))
        given: dict[str, Expr] = dict(zip(largest.axes, share.largest.subscripts, strict=True))
        given[axis.name] = Var(column.name, INT)
        whole = self._expanded(substitute(maximum.body, given), {column.name})
        require(whole == share.score)
        high = substitute(axis.extent, given)

        products = {
            node for node in walk(share.score)
            if (isinstance(node, Index) and self._is_product(root(node))) or _is_product(node)
        }  # fmt: skip
        require(len(products) == 1)
        (read,) = products
        given = {}
        reduced: Expr = read
        if isinstance(read, Index):
            made = self._definitions[root(read)]
            self._used.add(root(read))
            require(all(isinstance(s, Var) for s in read.subscripts))
            given = dict(zip(made.axes, read.subscripts, strict=True))
            reduced = made.value
        assert isinstance(reduced, Reduce)
        depth = reduced.axes[0]
        fresh = self._names.fresh(depth.name)
        given[depth.name] = Var(fresh, INT)
        body = substitute(reduced.body, given)
        assert isinstance(body, Binary)
        sides = [side for side in (body.left, body.right) if isinstance(side, Index)]
        keys = [s for s in sides if _is_matrix(s, column.name)]
        require(len(sides) == 2 and len(keys) == 1)
        key = keys[0]
        query = sides[1] if sides[0] is key else sides[0]
        require(variable(key.subscripts[-1]) == fresh == variable(query.subscripts[-1]))
        of_query = {variable(s) for s in query.subscripts}
        of_key = {variable(s) for s in key.subscripts}
        rows = [a for a in definition.axes if a in of_query - of_key and a != width]
        require(bool(rows) and width not in of_query | of_key and column.name not in of_query)
        row = rows[-1]
        ranges = definition.ranges
        outer = tuple(Axis(a, ranges[a]) for a in definition.axes if a not in (row, width))
        product = Var(self._names.fresh("product"), FLOAT)
        score = exchanged(share.score, read, product)
        dims = dict(zip(map(variable, key.subscripts), sizes.dims_of(key.tensor), strict=True))
        columns = dims[column.name]
        if high != columns:
            self._require_end(high, row, columns, {**ranges, column.name: columns})
        return Scores(
            outer, Axis(row, ranges[row]), Axis(column.name, columns), Axis(fresh, depth.extent),
            query, key, product, score, high,
        )  # fmt: skip

    def _is_product(self, name: str) -> bool:
        definition = self._definitions.get(name)
        return definition is not None and _is_product(definition.value)

    def _require_end(self, high: Expr, row: str, columns: Expr, ranges: Mapping[str, Expr]) -> None:
        """A row's number of columns: rises or falls with the row, from 1 to the number of all."""
        form = sizes.affine(high, (Axis(row, ranges[row]),))
        require(form is not None and not any(isinstance(n, Index) for n in walk(high)))
        require(free_variables(high) <= self._sizes | {row})
        least = sizes.arith("-", high, IntConst(1))
        room = sizes.arith("-", columns, high)
        for fact in (least, room):
            require(bounds.is_never_negative(fact, ranges, self._sizes.__contains__))

    def _until(self, share: _Share, extent: Expr, scores: Scores) -> Expr:
        """What a share is worth in a sum over columns up to ``extent``, where those from
        ``scores.high`` on are worth nothing; without conditions that say no more than that."""
        column, high = scores.column.name, scores.high
        limit = sizes.arith("-", sizes.arith("-", high, IntConst(1)), Var(column, INT))
        ended = sizes.equal(high, scores.column.extent) is True or sizes.equal(extent, high) is True

        def plain(expr: Expr) -> Expr:
            nonlocal ended
            if isinstance(expr, Select):
                facts = [bounds.facts(part) for part in bounds.conjuncts(expr.cond)]
                if all(len(f) == 1 and sizes.equal(f[0], limit) for f in facts):
                    ended = True
                    return plain(expr.then)
            return map_children(expr, plain)

        value = plain(share.value)
        require(ended)
        if not (sizes.equal(extent, scores.column.extent) or sizes.equal(extent, high)):
            value = Select(Binary("<", Var(column, INT), extent, INT), value, _NO, FLOAT)
        return value

    def _total(self, share: _Share, share_name: Var, scores: Scores) -> tuple[Index | None, Expr]:
        """The sum of a row's exponentials, if there is one, and what a share adds to it."""
        rows = (*(axis.name for axis in scores.outer), scores.row.name)
        for name, definition in self._definitions.items():
            if not _sums(definition.value) or name in self._used:
                continue
            assert isinstance(definition.value, Reduce)
            order = self._same_rows(definition, share)
            if order is None:
                continue
            (axis,) = definition.value.axes
            given: dict[str, Expr] = {a: Var(b, INT) for a, b in order.items()}
            given[axis.name] = Var(scores.column.name, INT)
            body = substitute(definition.value.body, given)
            before = set(self._used)
            try:
                own = self._share(self._expanded(body, {scores.column.name}), share_name)
                require(own.score == share.score and own.largest == share.largest)
                require(not own.divisors)
                term = self._until(own, substitute(axis.extent, given), scores)
            except Refused:
                self._used = before
                continue
            self._used.add(name)
            require(set(order.values()) == set(rows) and name in self._locals)
            return definition.element(given), term
        require(not share.divisors)
        return None, _NO

    def _same_rows(self, definition: _Definition, share: _Share) -> dict[str, str] | None:
        """The sweep's names of another sum's rows, by the maximum that its exponential reads."""
        largest = self._maximum_in(definition.value)
        if largest is None or root(largest) != root(share.largest):
            return None
        found = {
            variable(own): variable(other)
            for own, other in zip(largest.subscripts, share.largest.subscripts, strict=True)
        }
        return found if set(found) == set(definition.axes) else None

    def _maximum_in(self, value: Expr) -> Index | None:
        """The maximum that an expression's exponential is taken less, tensors written out."""
        before = set(self._used)
        whole = self._expanded(value, bound(value))
        self._used = before
        return next((n for n in walk(whole) if isinstance(n, Index) and self._is_max(n)), None)

    # ------------------------------------------------------------------------ the result

    def _consumed(
        self, name: str, result: Index, written: Expr, definition: _Definition
    ) -> tuple[Index, Expr]:
        """What the sum of values is used for, if that is one statement for each of its elements."""
        uses = [
            (other, d) for other, d in self._definitions.items()
            if other != name and name in {root(n) for n in walk(d.value) if isinstance(n, Index)}
        ]  # fmt: skip
        inside = sum(
            isinstance(n, Index) and root(n) == name for _, d in uses for n in walk(d.value)
        )
        if name not in self._locals or len(uses) != 1 or self._mentions[name] != inside + 2:
            return result, written
        other, made = uses[0]
        reads = {n for n in walk(made.value) if isinstance(n, Index) and root(n) == name}
        more = any(isinstance(n, Reduce | Call | ZeroPad | Op) for n in walk(made.value))
        if len(reads) != 1 or more or made.condition is not None:
            return result, written
        (read,) = reads
        given = {
            variable(s): Var(axis, INT)
            for s, axis in zip(read.subscripts, definition.axes, strict=True)
        }
        if "" in given or set(given) != set(made.axes):
            return result, written
        value = substitute(made.value, dict(given))
        value = exchanged(value, substitute(read, dict(given)), written)
        self._used.add(other)
        return made.element(given), value

    # ------------------------------------------------------------------------ where it is

    def _placed(self, found: Found) -> tuple[Place, tuple[Stmt, ...]]:
        """The statements of the sweep side by side, if those between them do not mind."""
        positions = sorted(self._definitions[name].position for name in self._used)
        source = [self._block[k] for k in positions]
        first, last = positions[0], positions[-1]
        inside = mentions(tuple(source))
        keeps: list[Var] = []
        local: set[str] = set()
        outputs = {root(found.result)}
        of_rows = {root(e) for e in (found.largest, found.total) if e is not None}
        for name in sorted(self._used):
            if name in outputs:
                continue
            require(name in self._locals)
            if self._mentions[name] == inside[name] + 1:
                local.add(name)
            else:
                require(name in of_rows)
                keeps.append(self._locals[name].target)
                outputs.add(name)
        before: list[Stmt] = list(self._block[:first])
        for position in range(first, last + 1):
            stmt = self._block[position]
            if position in positions:
                continue
            earlier = tuple(self._block[k] for k in positions if k < position)
            require(not set(assigned((stmt,))) & set(mentioned_names(earlier)))
            if not isinstance(stmt, Declare):
                moved = {name for s in earlier for name in assigned((s,))}
                require(not mentioned_names((stmt,)) & moved)
            before.append(stmt)
        declares = [s for s in before if isinstance(s, Declare) and s.target.name in local]
        require(len(declares) == len(local))
        zeros = [s for s in before if isinstance(s, Zero) and root(s.target) in local]
        require(not zeros)
        before = [s for s in before if s not in declares]
        found = replace(found, keeps=tuple(keeps))
        return Place(found, tuple(before), (*declares, *source)), self._block[last + 1 :]

    def _check_reads(self, found: Found) -> None:
        """Elements that are read besides are inside of tensors that the sweep does not write."""
        scores = found.scores
        axes = (*scores.outer, scores.row, scores.column, found.width)
        for operand, own in ((scores.query, scores.row), (scores.key, scores.column)):
            check_matrix(operand, own, scores.depth, scores.outer)
        check_matrix(found.values, scores.column, found.width, scores.outer)
        operands = (scores.query, scores.key, found.values)
        require(self._used.isdisjoint(map(root, operands)))
        rows = {e for e in (found.largest, found.total) if e is not None}
        for expr, allowed in (
            (scores.score, set()), (found.term, set()), (found.weight, set()),
            (found.written, rows),
        ):  # fmt: skip
            check_inside(expr, axes, self._sizes, allowed, self._used)


def _definition(position: int, stmt: Stmt) -> tuple[str, _Definition, int] | None:
    """The tensor that a statement gives all its elements, and how many statements in it write to
    it; one under a condition, which counts as true."""
    match stmt:
        case IndexAssign(Index(Var(name) as base, subscripts), "=", value, axes):
            names = tuple(map(variable, subscripts))
            ranges = {axis.name: axis.extent for axis in axes}
            whole = len(names) == len(ranges) and set(names) == ranges.keys()
            whole = whole and sizes.same(tuple(ranges[n] for n in names), sizes.dims_of(base))
            one = not isinstance(value, Reduce) or len(value.axes) == 1
            floats = isinstance(base.type, TensorType) and base.type.element == "float"
            if whole and one and floats:
                return name, _Definition(position, base, names, without_no_diff(value), ranges), 1
        case If(cond, (IndexAssign() as inner,), other) if len(other) <= 1:
            made = _definition(position, inner)
            if made is not None and all(_zeros(s, made[0]) for s in other):
                name, definition, count = made
                return name, replace(definition, condition=cond), count + len(other)
    return None


def _zeros(stmt: Stmt, name: str) -> bool:
    match stmt:
        case Zero(Var(own)):
            return own == name
        case IndexAssign(Index(Var(own)), "=", value):
            return own == name and value == _NO
        case _:
            return False


def _reduces(value: Expr, kind: str) -> bool:
    return isinstance(value, Reduce) and value.kind == kind and len(value.axes) == 1


def _sums(value: Expr) -> bool:
    return _reduces(value, "sum")


def _is_product(value: Expr) -> bool:
    """Whether it is a sum of products over one axis."""
    product = value.body if isinstance(value, Reduce) and _sums(value) else None
    return isinstance(product, Binary) and product.op == "*"


def bound(value: Expr) -> set[str]:
    """The names of the axes of reductions in an expression."""
    return {axis.name for axis in reduced_axes(value)}


def _matrix_and_rest(body: Expr, column: str, outside: set[str]) -> tuple[Index, Expr, str]:
    """The factors of a product: an element for each column and each value of an axis of the sum's
    that the other one lacks, the last; the other one; that axis."""
    if isinstance(body, Binary) and body.op == "*":
        for read, rest in ((body.left, body.right), (body.right, body.left)):
            if isinstance(read, Index) and _is_matrix(read, column):
                last = variable(read.subscripts[-1])
                if last in outside and last not in free_variables(rest):
                    return read, rest, last
    raise Refused


def check_inside(
    expr: Expr,
    axes: Sequence[Axis],
    known: AbstractSet[str],
    allowed: AbstractSet[Index],
    written: AbstractSet[str] = frozenset(),
) -> None:
    """Refuses an expression of the axes that may fail, or reads what is not ``allowed``: elements
    that may be outside of tensors, or of those that are ``written``. ``known`` are the sizes."""
    ranges = {axis.name: axis.extent for axis in axes}
    for node in walk(expr):
        require(not isinstance(node, Call | Reduce | ZeroPad | Op | Member))
        match node:
            case Binary("//" | "%", _, right):
                value = sizes.constant(right) if right.type == INT else None
                require(value is not None and value > 0)
            case Binary("/" | "**", _, _) if node.type == INT:
                raise Refused
            case Index() if node not in allowed:
                require(isinstance(node.base, Var) and root(node) not in written)
                require(bounds.exists(node, ranges, known.__contains__))


def check_matrix(operand: Index, own: Axis, inner: Axis, outer: Sequence[Axis]) -> None:
    """Refuses an operand that does not have each subscript at most once, with ``inner`` last, or
    does not go through whole dimensions."""
    ranges = {axis.name: axis.extent for axis in (*outer, own, inner)}
    found = [variable(s) for s in operand.subscripts]
    require(len(set(found)) == len(found) and set(found) <= ranges.keys())
    require({own.name, inner.name} <= set(found) and found[-1] == inner.name)
    require(sizes.same(tuple(ranges[n] for n in found), sizes.dims_of(operand.tensor)))
    type_ = operand.tensor.type
    require(isinstance(type_, TensorType) and type_.element == "float")


def _is_matrix(read: Index, column: str) -> bool:
    """Whether a factor of a sum over columns has elements for each column."""
    return column in {variable(s) for s in read.subscripts}


def variable(expr: Expr) -> str:
    """The name of an index that stands alone, else nothing."""
    return expr.name if isinstance(expr, Var) else ""


def require(holds: bool) -> None:
    if not holds:
        raise Refused
