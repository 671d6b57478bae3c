"""Values that are as cheap to compute where they are read need no tensor.

``c[i, j, d] = a[i, d] - b[j, d]`` goes where every read of c can have the difference in its place:
a read goes over the indices of c and no others, the value is cheap or read once, and what it is
made of is there. A running sum, ``sum(c[q] for q in range(t + 1))``, takes a cheap value once for
all t. A sum goes into a statement that only copies or sums it. A copy may be read at any place,
and one into the middle of zeros, ``z[i + 1] = x[i]``, with ``zero_pad`` around. So may a product
like ``w[t, q] = a[t] * k[q]``, on a triangle or not, as a factor of ``sum(w[t, q] * v[q, d] for q
in Q)``: the sum does without ``w``. Weights ``w[t, q] = e[t, q] / z[t]`` go into it, too, and then
the sum is divided, unless there may be nothing to sum: 0 / 0 would not be 0. A mask, which is made
of indices alone, goes into every read that is no operand of a product of matrices.

What one statement reads for its square alone goes there, which has one adjoint for it.

Behind derivatives, a value without sums goes into a statement that reads it several times, too, if
it is the only one and reads one element in each iteration: ``r[i] = abs(a[i] - b[i])`` into
``s += r[i] * r[i] if r[i] < 1.0 else r[i]``, where C++'s compiler finds what stands there twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Set as AbstractSet
from itertools import combinations

from loma.core import builder as b, sizes
from loma.core.axes import runs_over, unsaid
from loma.core.bounds import exists, is_never_negative, never_fails, stays_inside
from loma.core.distinct import names_once, never_meet, told_apart
from loma.core.effects import blanks, is_blank, written
from loma.core.overlap import apart, reads_of, same_element
from loma.core.ir import (
    FLOAT, INT, Assign, Axis, Binary, Declare, Expr, For, Function, If, Index, IndexAssign,
    IntConst, Module, Op, Reduce, Stmt, TensorType, Var, ZeroPad, replace,
)  # fmt: skip
from loma.core.ops import PREDICATES
from loma.core.sizes import size_variables
from loma.core.walk import (
    depth, exchanged, expressions, free_variables, map_blocks, map_children,
    map_expressions, map_tensor_functions, mentioned_names, nodes, own_names, reduced_axes,
    statements, subscript_variables, substitute, walk,
)  # fmt: skip
from loma.passes.canonical.defined import Definition, is_product
from loma.passes.canonical.recurrences.running import factors, running
from loma.passes.liveness import covers

Extents = Mapping[str, Expr]

LONGEST = 160  # nodes of a statement into which a value goes several times
DEEPEST = 40  # levels of an expression: analyses of deeper ones take long


def temporaries(module: Module, weights: bool = False, every: bool = False) -> Module:
    """The pass on every tensor function of a module; ``weights``: only on what is read by sums of
    products alone, which do without its scale; ``every``: also on what one statement reads several
    times, for which derivatives would have several adjoints."""
    return map_tensor_functions(module, lambda f: without_temporaries(f, weights, every))


def without_temporaries(function: Function, weights: bool = False, every: bool = False) -> Function:
    """The pass on a function."""
    return _Temporaries(function, weights, every).run()


class _Kept(Exception):
    """The temporary stays."""


class _Temporaries:
    def __init__(self, function: Function, weights: bool, every: bool) -> None:
        self._function, self._weights, self._every = function, weights, every
        # What reductions around a read run along, each value once, or lack.
        self._along = frozenset[str]()
        self._is_size = frozenset(size_variables(function)).__contains__
        self._local = set(blanks(function.body))

    def run(self) -> Function:
        return replace(self._function, body=self._block(self._function.body, None))

    def _block(self, body: tuple[Stmt, ...], around: Extents | None) -> tuple[Stmt, ...]:
        """``around``: the ranges of the counters; None for the function's own block."""
        position = 0
        while position < len(body):
            new = self._without(body, position, around)
            if new is None:
                position += 1
                continue
            # What it was made of has other reads now.
            own = mentioned_names((body[position],))
            earlier = (k for k in range(position) if own & written((body[k],)))
            position, body = next(earlier, position), new
        return tuple(self._inside(stmt, around or {}) for stmt in body)

    def _inside(self, stmt: Stmt, around: Extents) -> Stmt:
        inner = {**around, stmt.counter: stmt.extent} if isinstance(stmt, For) else around
        return map_blocks(stmt, lambda block: self._block(block, inner))

    def _without(
        self, body: tuple[Stmt, ...], position: int, around: Extents | None
    ) -> tuple[Stmt, ...] | None:
        """The block without the temporary of the statement at that position, if it may go."""
        found = self._definition(body[position], body[:position], around)
        if found is None or (self._weights and found.scaled is None):
            return None
        if depth(found.value) > DEEPEST:
            return None
        name = found.tensor.name
        end = _end(name, body, position)
        alive = body[position + 1 : end]
        last = end == position + 1 or not _sets(name, body[end - 1])
        if last and around is not None and not self._only_here(name, body, position):
            return None
        reads = sum(_count(name, stmt) for stmt in statements(alive))
        plain = found.copies or reads == 1 or (found.cheap and not found.sums)
        once = self._every or (found.light and _is_squared(found, alive))
        plain = plain or (once and _reads_at_one_place(found, alive))
        plain = plain or _reads_apart(found.tensor, alive, around or {})
        light = found.is_light(frozenset(list(around or ())[-1:]))
        plain = plain or (not found.sums and light and _holds_a_loop(found, body, around))
        again = _old(found.tensor).name in found.inputs
        used = reads or found.whole is not None
        changed = (found.inputs | ({name} if again else set())) & written(alive)
        if not used or not plain:
            return None
        if changed and (again or not _by_last_user(name, changed, alive)):
            return None
        try:
            new = tuple(self._statement(stmt, found, around or {}) for stmt in alive)
        except _Kept:
            return None
        if again:
            back: dict[str, Expr] = {_old(found.tensor).name: found.tensor}
            new = tuple(map_expressions(stmt, lambda e: substitute(e, back)) for stmt in new)
            return (*body[:position], *new, *body[end:])
        if changed and not all(self._is_apart(s, changed, around or {}) for s in new):
            return None
        left = [stmt for stmt in new if name in mentioned_names((stmt,))]
        if left and not (len(left) == 1 and _sets(name, left[0]) and not _count(name, left[0])):
            return None
        return (*body[:position], *new, *body[end:])

    def _is_apart(self, stmt: Stmt, changed: AbstractSet[str], around: Extents) -> bool:
        """Whether a statement reads, of what it writes of some tensors, its own elements alone, and
        writes each once."""
        if not written((stmt,)) & changed or not isinstance(stmt, IndexAssign):
            return True
        target = stmt.element
        reads = reads_of(target.tensor.name, stmt.value)
        own = {axis.name for axis in stmt.axes} <= free_variables(target) and names_once(stmt)
        return all(
            (own and same_element(target, read.place))
            or apart(target, stmt.axes, read, around, self._is_size)
            for read in reads
        )

    def _definition(
        self, stmt: Stmt, before: tuple[Stmt, ...], around: Extents | None
    ) -> Definition | None:
        match stmt:
            case IndexAssign(Index(Var(name) as tensor, subscripts), "=", value, axes) if (
                name in self._local
            ):
                pass
            case _:
                return None
        extents = {**(around or {}), **{axis.name: axis.extent for axis in axes}}
        places = [_shifted_axis(subscript, axes) for subscript in subscripts]
        own = tuple(place[0] for place in places if place is not None)
        offsets = tuple(place[1] for place in places if place is not None)
        if not (len(own) == len(set(own)) == len(places) == len(axes)):
            return None
        whole = covers(stmt) and all(isinstance(s, Var) for s in subscripts)
        if not whole and (around is not None or name in mentioned_names(_undeclared(before))):
            return None
        if isinstance(value, Binary) and value.op in PREDICATES and not _fits(tensor, value):
            value = b.select(value, b.flt(1.0), b.flt(0.0))  # a mask
        found = Definition(tensor, own, offsets, value, not whole, frozenset(around or ()))
        body = value
        if isinstance(value, Reduce) and value.kind == "sum":
            body, extents = value.body, {**extents, **{a.name: a.extent for a in value.axes}}
        fits = _fits(tensor, value) and never_fails(body, extents, self._is_size)
        if name in free_variables(value):  # as ``x[i, j] = x[i, j] / z[i]`` does
            reads = [n for n in walk(value) if isinstance(n, Index) and n.base == tensor]
            here = all(read.subscripts == subscripts for read in reads)
            found = replace(found, value=substitute(value, {name: _old(tensor)}))
            if around is not None or found.scaled is None or not here:
                return None
        return found if fits and (whole or found.copies) else None

    def _only_here(self, name: str, body: tuple[Stmt, ...], position: int) -> bool:
        """Whether no other block, and no other iteration, looks at what this one leaves there."""
        every = sum(
            name in own_names(s) for s in _undeclared(tuple(statements(self._function.body)))
        )
        here = sum(name in own_names(s) for s in statements(body))
        return every == here and name not in mentioned_names(body[:position])

    def _statement(self, stmt: Stmt, found: Definition, around: Extents) -> Stmt:
        name = found.tensor.name
        if name not in mentioned_names((stmt,)):
            return stmt
        match stmt:
            case IndexAssign(target, _, value, axes):
                inner: Extents = {**around, **{axis.name: axis.extent for axis in axes}}
                subscripts = target.subscripts if isinstance(target, Index) else ()
                if any(name in free_variables(s) for s in subscripts):
                    raise _Kept
                places = frozenset().union(*map(free_variables, subscripts))
                summed = inner.keys() - around.keys() - places
                few = found.neighbours and not summed and not any(reduced_axes(value))
                if found.sums and not few and not self._takes_sum(stmt, found, summed):
                    raise _Kept
                value = self._product(value, frozenset(summed), found, inner)
                value = _joined(self._expr(value, found, inner))
                if not free_variables(value) >= {a.name for a in axes} - places:
                    raise _Kept  # the same for all values of an index: it is as often in the sum
                new = replace(stmt, value=value)
                if not self._every and len(unsaid(new)) > len(unsaid(stmt)):
                    raise _Kept  # the tensor's dimension is what an index runs over
                return new
            case Assign(Var(), _, value) | Declare(Var(), value) if (
                value is not None and not found.sums
            ):
                return replace(stmt, value=self._expr(value, found, around))
            case For(_, size) | If(size) if name not in free_variables(size):
                inner = {**around, stmt.counter: stmt.extent} if isinstance(stmt, For) else around
                return map_blocks(
                    stmt, lambda block: tuple(self._statement(s, found, inner) for s in block)
                )
            case _:
                raise _Kept

    def _takes_sum(self, stmt: IndexAssign, found: Definition, summed: AbstractSet[str]) -> bool:
        """Whether the statement is a copy of the tensor as it is, or a sum of it along some of its
        dimensions: a library may fill no other part, and no other order of dimensions."""
        target, read, along = stmt.target, stmt.value, frozenset[str]()
        assert isinstance(found.value, Reduce)
        if isinstance(read, Reduce) and read.kind == found.value.kind == "sum":
            along, read = frozenset(axis.name for axis in read.axes), read.body
        if stmt.op != "=" or not (isinstance(target, Index) and isinstance(read, Index)):
            return False
        left = tuple(s for s in read.subscripts if not (isinstance(s, Var) and s.name in along))
        same = read.base == found.tensor and left == target.subscripts
        once = len(left) + len(along) == len(read.subscripts)
        taken = {axis.name for axis in stmt.axes} | along
        apart = taken.isdisjoint(axis.name for axis in found.value.axes)
        own = {axis.name for axis in found.axes}  # a running sum takes each value once
        ragged = any(own & free_variables(axis.extent) for axis in found.value.axes)
        return same and once and apart and not summed and not (along and ragged)

    def _expr(self, expr: Expr, found: Definition, extents: Extents) -> Expr:
        """With the value for reads of the tensor, in loops over ``extents``."""
        match expr:
            case Index(Var(name)) if name == found.tensor.name:
                return self._read(expr, found, extents)
            case ZeroPad(Index(Var(name)) as read) if name == found.tensor.name:
                if found.padded or any(name in free_variables(s) for s in read.subscripts):
                    raise _Kept
                return _padded(read, found, extents)
            case Op(_, args) if found.whole is not None and found.tensor in args:
                same = (found.whole if arg == found.tensor else arg for arg in args)
                return self._expr(replace(expr, args=tuple(same)), found, extents)
            case Var(name) if name == found.tensor.name:
                raise _Kept
            case Reduce(kind, body, own):
                below = {**extents, **{axis.name: axis.extent for axis in own}}
                if kind == "sum":
                    summed = frozenset(axis.name for axis in own)
                    body = self._product(body, summed, found, below)
                around = self._along
                self._along = around | _along(expr, extents)
                new = replace(expr, body=self._expr(body, found, below))
                self._along = around
                return new
            case _:
                return map_children(expr, lambda child: self._expr(child, found, extents))

    def _product(
        self, body: Expr, summed: frozenset[str], found: Definition, extents: Extents
    ) -> Expr:
        """What is summed, with the value for the tensor as far as :meth:`_factor` has it so; a
        mask stays an operand that a library multiplies by."""
        new, inner = self._factor(body, summed, found, extents), extents.keys() - found.around
        if new is body and summed and found.masks:
            read = (f.value for f in factors(body, False) if isinstance(f.value, Index))
            if any(r.base == found.tensor and not inner <= free_variables(r) for r in read):
                raise _Kept
        return new

    def _factor(
        self, body: Expr, summed: frozenset[str], found: Definition, extents: Extents
    ) -> Expr:
        """What is summed with the parts of the value for the tensor, where it is a factor and each
        of them either leaves the sum or costs no more than the other factors there do."""
        reads: list[Expr] = []
        others = frozenset[str]()
        for factor in factors(body, False):
            match factor.value:
                case Index(Var(name), places) if name == found.tensor.name:
                    reads += [] if factor.divides else [factor.value]
                    names = {axis.name: s for axis, s in zip(found.axes, places, strict=True)}
                case value:
                    others |= free_variables(value)
        if len(reads) != 1 or not found.parts or found.tensor.name in others:
            return body
        (read,) = reads
        assert isinstance(read, Index)
        if not all(isinstance(s, Var) for s in names.values()):
            return body
        parts = [
            frozenset().union(*(free_variables(names[n]) for n in p))
            for p in found.parts
            if p != found.scaled
        ]
        if found.scaled is not None:
            others = frozenset()  # all must leave a sum, which is 0 where it has nothing
            if not summed or not all(self._is_some(name, summed, extents) for name in summed):
                return body
        if not all(part.isdisjoint(summed) or part <= others for part in parts):
            return body
        inner = extents.keys() - found.around
        if inner & found.inputs or not exists(read, extents, self._is_size):
            return body
        return exchanged(body, read, substitute(found.value, names))

    def _is_some(self, name: str, summed: frozenset[str], extents: Extents) -> bool:
        """Whether an index has values wherever those that are not summed over have."""
        last = sizes.arith("-", extents[name], IntConst(1))
        others = {n: extent for n, extent in extents.items() if n not in summed}
        same = any(sizes.equal(extent, extents[name]) is True for extent in others.values())
        return same or is_never_negative(last, others, self._is_size)

    def _read(self, read: Index, found: Definition, extents: Extents) -> Expr:
        inner = extents.keys() - found.around
        itself = any(found.tensor.name in free_variables(s) for s in read.subscripts)
        if itself or inner & found.inputs or not self._fails_alike(read, found, extents):
            raise _Kept
        if self._weights:
            raise _Kept
        if found.padded:
            return _padded(read, found, extents)
        once = inner - self._along if found.cheap and is_product(found.value) else inner
        own = tuple(Axis(name, extents[name]) for name in sorted(once))
        if not found.copies and not found.masks and not told_apart(read.subscripts, own) >= once:
            raise _Kept  # it would be computed for other indices, too
        names = {axis.name for axis in reduced_axes(found.value)}
        if names & (extents.keys() | free_variables(read)):
            raise _Kept
        pairs = zip(found.axes, read.subscripts, strict=True)
        value = substitute(found.value, {axis.name: s for axis, s in pairs})
        return value if exists(read, extents, self._is_size) else _reported_at(value, read)

    def _fails_alike(self, read: Index, found: Definition, extents: Extents) -> bool:
        """Whether a place is in the tensor, or the value reads another one at the same place."""
        return exists(read, extents, self._is_size) or (
            not found.padded
            and all(
                axis.name in found.asked or stays_inside(place, dim, extents, self._is_size)
                for axis, place, dim in zip(
                    found.axes, read.subscripts, sizes.dims_of(found.tensor), strict=True
                )
            )
        )


def _joined(value: Expr) -> Expr:
    """One sum for a sum of sums."""
    match value:
        case Reduce("sum", Reduce("sum", body, inner), outer):
            return replace(value, body=body, axes=(*outer, *inner))
        case _:
            return value


def _old(tensor: Var) -> Var:
    """What a tensor holds before a statement that overwrites it."""
    return replace(tensor, name=f"${tensor.name}")  # no name of a program


def _reported_at(value: Expr, read: Index) -> Expr:
    """With what may lie outside of a tensor where the program has the read."""
    if isinstance(value, Index):
        return replace(value, span=read.span)
    return map_children(value, lambda child: _reported_at(child, read))


def _along(reduce: Reduce, extents: Extents) -> frozenset[str]:
    """The index along which a reduction runs, and so takes one value for each of its own, and those
    that it lacks: it is computed once for all of them, as a statement of its own."""
    scan = running(reduce, {name: Axis(name, extent) for name, extent in extents.items()})
    own = {axis.name for axis in reduce.axes}
    idle = extents.keys() - free_variables(reduce) - own
    return frozenset(idle if scan is None or scan.shared else idle | {scan.along.name})


def _padded(read: Index, found: Definition, extents: Extents) -> ZeroPad:
    """``zero_pad`` of what the tensor is a copy of, which has its ends where the copy has them."""
    source, by_name = found.value, {axis.name: axis for axis in found.axes}
    if not isinstance(source, Index) or not found.copies:
        raise _Kept
    for subscript, dim in zip(source.subscripts, sizes.dims_of(source.tensor), strict=True):
        if not runs_over(subscript, dim, by_name):
            raise _Kept
    if not free_variables(source) >= by_name.keys():
        raise _Kept
    triples = zip(found.axes, read.subscripts, found.offsets, strict=True)
    # In the order in which they are written, which decides what their adjoint sums over.
    places = {axis.name: _minus(s, offset) for axis, s, offset in triples}
    new = substitute(source, places)
    assert isinstance(new, Index)
    pairs = zip(new.subscripts, sizes.dims_of(new.tensor), strict=True)
    new = replace(new, subscripts=tuple(_alone(s, dim, extents) for s, dim in pairs))
    return ZeroPad(new, read.span)


def _alone(subscript: Expr, dim: Expr, extents: Extents) -> Expr:
    """An index that runs over the dimension, if the subscript is as much."""
    made = sizes.simplify(subscript)
    axes = {name: Axis(name, extent) for name, extent in extents.items()}
    return made if runs_over(made, dim, axes) else subscript


def _minus(subscript: Expr, offset: Expr) -> Expr:
    return subscript if sizes.constant(offset) == 0 else b.binary("-", subscript, offset)


def _shifted_axis(subscript: Expr, axes: tuple[Axis, ...]) -> tuple[Axis, Expr] | None:
    """The axis and the rest of a subscript like ``i + 1``."""
    parts = sizes.affine(subscript, axes)
    if parts is None or [sizes.constant(step) for step in parts[0].values()] != [1]:
        return None
    (name,) = parts[0]
    return next(axis for axis in axes if axis.name == name), parts[1]


def _end(name: str, body: tuple[Stmt, ...], position: int) -> int:
    """Behind the last statement that looks at the value: that which gives the tensor its next one
    may do so, too."""
    last = position + 1
    for k in range(position + 1, len(body)):
        if _sets(name, body[k]):
            return k + 1
        last = k + 1 if name in mentioned_names((body[k],)) else last
    return last


def _by_last_user(name: str, changed: AbstractSet[str], block: tuple[Stmt, ...]) -> bool:
    """Whether nothing writes some tensors before the last statement that looks at another one,
    which may write elements of them itself."""
    users = [k for k, stmt in enumerate(block) if name in mentioned_names((stmt,))]
    if not users or written(block[: users[-1]]) & changed:
        return False
    last = block[users[-1]]
    plain = isinstance(last, IndexAssign) and isinstance(last.target, Index)
    return plain or not written((last,)) & changed


def _sets(name: str, stmt: Stmt) -> bool:
    """Whether a statement gives all of a tensor new values."""
    match stmt:
        case IndexAssign(Index(Var(target)), "="):
            return target == name and covers(stmt)
        case _:
            return False


def _reads_apart(tensor: Var, block: tuple[Stmt, ...], around: Extents) -> bool:
    """Whether one statement reads some elements of a tensor, each of them once."""
    users = [stmt for stmt in block if tensor.name in mentioned_names((stmt,))]
    match users:
        case [IndexAssign(_, _, value, axes)] if not isinstance(value, Reduce):
            pass
        case _:
            return False
    every = (*axes, *(Axis(name, extent) for name, extent in around.items()))
    reads = [node for node in walk(value) if isinstance(node, Index) and node.base == tensor]
    inside = sum(tensor.name in free_variables(s) for read in reads for s in read.subscripts)
    names = {axis.name for axis in every}
    return (
        _count(tensor.name, users[0]) == len(reads) + inside == len(reads)
        and all(told_apart(read.subscripts, every) == names for read in reads)
        and all(never_meet(a, b, every) for a, b in combinations(reads, 2))
    )


def _undeclared(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    return tuple(s for s in body if not is_blank(s))


def _holds_a_loop(found: Definition, block: tuple[Stmt, ...], around: Extents | None) -> bool:
    """Whether a temporary of each round would have more dimensions, were the loop around the block
    index statements, than all that has one for the counter: such a loop would stay."""
    counter = list(around)[-1] if around else None
    if counter is None or counter not in found.inputs:
        return False
    told = [
        len(node.subscripts)
        for node in nodes(block)
        if isinstance(node, Index) and counter in subscript_variables(node)
    ]
    return len(found.axes) >= max(told, default=0)


def _reads_at_one_place(found: Definition, body: tuple[Stmt, ...]) -> bool:
    """Whether one statement is all that reads a tensor, and one element of it in each of its
    iterations: a loop computes the value once, however often it stands there."""
    readers = [stmt for stmt in statements(body) if _count(found.tensor.name, stmt)]
    if len(readers) != 1 or not isinstance(readers[0], IndexAssign) or found.sums:
        return False
    value = readers[0].value
    value = value.body if isinstance(value, Reduce) else value
    nodes = list(walk(value))
    reads = [node for node in nodes if isinstance(node, Index) and node.base == found.tensor]
    length = len(nodes) + len(reads) * sum(1 for _ in walk(found.value))
    inside = any(isinstance(node, Reduce) for node in nodes)
    return not inside and len(set(reads)) == 1 and length <= LONGEST


def _is_squared(found: Definition, body: tuple[Stmt, ...]) -> bool:
    """Whether all that is read of a tensor is multiplied by itself, once."""
    name = found.tensor.name
    values = [s.value for s in statements(body) if isinstance(s, IndexAssign) and _count(name, s)]
    squares = [
        node
        for value in values
        for node in walk(value)
        if isinstance(node, Binary)
        and node.op == "*"
        and node.left == node.right
        and isinstance(node.left, Index)
        and node.left.base == found.tensor
    ]
    return len(squares) == 1 and sum(_count(name, s) for s in statements(body)) == 2


def _fits(tensor: Var, value: Expr) -> bool:
    """Whether an element is the value, unconverted."""
    match tensor.type:
        case TensorType(_, "float"):
            return value.type == FLOAT
        case TensorType(_, "int"):
            return value.type == INT
        case _:
            return False


def _count(name: str, stmt: Stmt) -> int:
    """How often the statement itself reads elements of a tensor."""
    target = stmt.target if isinstance(stmt, IndexAssign) else None
    parts = [e for e in expressions(stmt) if e is not target]
    parts += target.subscripts if isinstance(target, Index) else ()
    found = (node for e in parts for node in walk(e) if isinstance(node, Index))
    return sum(isinstance(node.base, Var) and node.base.name == name for node in found)
