"""What is costly is computed once: ``exp`` and its like, and calls of scalar functions.

A part of an index statement that lacks one of the indices around it becomes a tensor over its own
ones, and so does what stands in two places:

    y[i, d] = sum(exp(s[i, j]) * v[j, d] for j in S)

has a value of ``exp`` for each ``d``; in the canonical form it is

    _e[i, j] = exp(s[i, j])
    y[i, d] = sum(_e[i, j] * v[j, d] for j in S)

So does a quotient of elements, ``sum(c[i, j] / z[j] * v[j, d] for j in S)``, that a sum has for
each ``d``: what is left is a product of two tensors. Of more elements, of which each lacks ``i`` or
``d``, those that lack the same are one of the two, as in ``sum(x[i, j] ** 2 * v[j, d] ** 2 for j in
S)`` and ``sum((x[i, j] - m[j]) * v[j, d] for j in S)``. An operand whose dimension has parts of one
length, ``q[t, h * C + d]``, is one over both indices, and so is one whose places take a division,
``c[k * n % N]``. So does a choice between values of which
some are costly, and an element at a place that data
say, ``x[n, label[n]]`` beside ``x[n, c]``: what is read there for each ``c`` is read once, and its
adjoint is added there once. What is costly and the same in all rounds of a loop is computed in
front of it. What a condition guards stays where it is, but for what a tensor holds in any case, or
where the same condition holds, as ``e[i, j] = exp(s[i, j]) if j <= i else 0.0`` does, and for
elements that surely exist where it does not hold, as with ``if c != label[n]``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial, reduce

from loma.arithmetic.integers import COMPARISONS
from loma.core import builder as b
from loma.core.axes import shifted_places
from loma.core.bounds import conjuncts, exists, facts
from loma.core.builtins import BUILTINS
from loma.core.effects import counters, written
from loma.core.ir import (
    INT, Axis, Binary, Builtin, Call, Expr, FloatConst, FloatType, For, Function, Index,
    IndexAssign, IntConst, Module, Reduce, Select, Stmt, TensorType, Unary, Var, ZeroPad, replace,
)  # fmt: skip
from loma.core.sizes import constant, equal
from loma.core.walk import (
    blocks, free_variables, map_guarded, map_tensor_functions, reads_elements, substitute,
    variables, walk,
)  # fmt: skip
from loma.passes.canonical.defined import is_divided
from loma.passes.canonical.groups import parts_of
from loma.passes.canonical.hoisting import InBlocks, may_fail
from loma.passes.liveness import covers

Scope = dict[str, Axis]


def costly(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    functions = {function.name: function for function in module.functions}
    return map_tensor_functions(module, lambda f: costly_once(f, functions))


def costly_once(function: Function, functions: dict[str, Function]) -> Function:
    """The pass on a function, which may call those ``functions``."""
    return _Costly(function, functions).run()


@dataclass(frozen=True, slots=True)
class _Part:
    """Equal for parts with the same value, whatever they call their indices.

    ``inputs`` are the variables that it is made of, with how often each was written before.
    """

    value: Expr
    extents: tuple[Expr, ...]
    inputs: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class _Held:
    """A tensor with the value of a part, and which of the part's indices stands where in it."""

    tensor: Var
    order: tuple[int, ...]
    version: int


class _Costly(InBlocks):
    """``_written`` says how often each variable was written in the block at hand, ``_places``
    where its parts stand, ``_held`` which of them tensors hold."""

    def __init__(self, function: Function, functions: dict[str, Function]) -> None:
        super().__init__(function, functions)
        self._written = Counter[str]()
        self._places: dict[_Part, set[tuple[int, tuple[str, ...]]]] = {}
        self._held: dict[_Part, _Held] = {}
        self._held_where: dict[_Part, tuple[_Held, Expr]] = {}  # under a condition on its indices
        self._summed = frozenset[str]()  # the indices of the sums around
        self._rank = 0  # how many indices an element of the statement has at most
        self._operands: set[Expr] = set()  # products of elements that are one operand of a sum
        self._beside: dict[Expr, Index] = {}  # what operands are multiplied by
        self._changed: frozenset[str] | None = None  # in the outermost loop; None where none is

    def _block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        around = self._written, self._places, self._held, self._held_where
        self._written, self._places, self._held, self._held_where = Counter(), {}, {}, {}
        for position, stmt in enumerate(body):
            if isinstance(stmt, IndexAssign):
                for expr, scope in _found(stmt.value, _axes(stmt.axes)):
                    part, names = self._part(expr, scope)
                    self._places.setdefault(part, set()).add((position, names))
            self._written.update(written((stmt,)))
        self._written = Counter()
        out = super()._block(body)
        self._written, self._places, self._held, self._held_where = around
        return out

    def _statement(self, stmt: Stmt) -> Stmt:
        around = self._changed
        if isinstance(stmt, For) and self._depth == 0:
            own = written(stmt.body) | counters(stmt.body) | {stmt.counter}
            self._changed = frozenset(own)
        elif blocks(stmt) and not isinstance(stmt, For):
            self._changed = None  # what no condition asks for is not computed
        new = super()._statement(stmt)
        self._changed = around
        self._written.update(written((stmt,)))
        if isinstance(stmt, IndexAssign) and stmt.value == getattr(new, "value", None):
            self._hold(stmt)
        return new

    def _index_assign(self, stmt: IndexAssign) -> IndexAssign:
        whole = _is_costly(stmt.value) and covers(stmt) and stmt.op == "="
        take = self._inside if whole else self._read
        scope = _axes(stmt.axes)
        self._summed = frozenset(scope) - free_variables(stmt.target)
        places = [stmt.target, *(n for n in walk(stmt.value) if isinstance(n, Index))]
        ranks = (len(free_variables(p) & scope.keys()) for p in places if not _is_told(p))
        self._rank = max(ranks, default=0)
        value = self._of_two(stmt.value, scope) if self._summed else stmt.value
        return replace(stmt, value=take(value, scope))

    def _inside(self, expr: Expr, scope: Scope) -> Expr:
        """The expression itself stays, its parts may be read from temporaries; but not what may be
        missing, without what stands for it then."""
        if isinstance(expr, ZeroPad):
            return expr
        if isinstance(expr, Reduce):
            around = self._summed
            if expr.kind == "sum":
                self._summed |= _axes(expr.axes).keys()
            scope = scope | _axes(expr.axes)
            body = self._of_two(expr.body, scope) if expr.kind == "sum" else expr.body
            body = self._read(body, scope)
            self._summed = around
            return replace(expr, body=body)
        return self._map_children(expr, lambda child: self._read(child, scope))

    def _room(self, axis: Axis, expr: Expr, scope: Scope) -> Expr | None:
        # Of rows whose lengths data say, each would have room for all their elements.
        return None if reads_elements(axis.extent) else super()._room(axis, expr, scope)

    def _is_operand(self, expr: Expr, scope: Scope) -> bool:
        """Whether an expression is a quotient of elements that is summed, for several results, or
        an element whose place takes a division for each, or what was found to be an operand."""
        match expr:
            case Binary("/", Index(), Index(), FloatType()):
                pass
            case Index(Var(), subscripts, FloatType()):
                if not any(is_divided(place, scope.keys()) for place in subscripts):
                    return expr in self._operands
            case _:
                return expr in self._operands
        own = free_variables(expr)
        return bool(own & self._summed) and bool(scope.keys() - self._summed - own)

    def _is_far(self, expr: Expr, scope: Scope) -> bool:
        """Whether an expression is an element at a place that data say, which is the same for many
        values of an index, and may be read wherever the statement has anything to do."""
        match expr:
            case Index(Var(), subscripts, FloatType()) | ZeroPad(
                Index(Var(), subscripts, FloatType())
            ):
                told = any(map(reads_elements, subscripts))
            case _:
                return False
        own = free_variables(expr)
        many = any(not 0 < (constant(scope[name].extent) or 0) < 8 for name in scope.keys() - own)
        if not told or not many or len(own & scope.keys()) > self._rank:
            return False
        if self._guard is None or isinstance(expr, ZeroPad):
            return True
        extents = {name: axis.extent for name, axis in scope.items()}
        return exists(expr, extents, self._sizes.__contains__, facts(self._guard, False))

    def _of_two(self, product: Expr, scope: Scope) -> Expr:
        """What is summed as a product of two, if it is one of more elements and each of the two has
        an index that the other lacks."""
        groups: dict[frozenset[str], list[Expr]] = {}
        for factor in factors(product):
            if not (_is_of_elements(factor) or _has_parts(factor, scope, frozenset(scope))):
                return product
            groups.setdefault(free_variables(factor) & frozenset(scope), []).append(factor)
        groups = self._by_results(groups) if len(groups) > 2 else groups
        if len(groups) != 2 or all(map(_is_one_element, groups.values())):
            return product
        own, other = groups
        if not (own - other and other - own and own & other & self._summed):
            return product
        short = any(0 < (constant(scope[name].extent) or 0) < 8 for name in own | other)
        if short or (own ^ other) & self._summed:
            return product  # no work to save, or another order of sums
        first, second = (reduce(partial(b.binary, "*"), group) for group in groups.values())
        for part, beside in ((first, second), (second, first)):
            if isinstance(beside, Index):
                self._beside[part] = beside
        both = own & other - self._summed
        self._operands |= {
            part for part in (first, second)
            if not isinstance(part, Index) or _has_parts(part, scope, both)
        }  # fmt: skip
        return b.binary("*", first, second)

    def _by_results(
        self, groups: dict[frozenset[str], list[Expr]]
    ) -> dict[frozenset[str], list[Expr]]:
        """The factors of which the same results' indices are part together, if no product of them
        has more indices than one of them has: a library multiplies by that."""
        found: dict[frozenset[str], tuple[frozenset[str], list[Expr]]] = {}
        for names, factors in groups.items():
            own, before = found.get(names - self._summed, (frozenset[str](), []))
            found[names - self._summed] = names | own, [*before, *factors]
        few = all(len(names) <= max(map(len, groups)) for names, _ in found.values())
        return dict(found.values()) if few else groups

    def _read(self, expr: Expr, scope: Scope) -> Expr:
        """The expression, read from a temporary where that is worth it."""
        far = self._is_far(expr, scope)
        wanted = far or _is_costly(expr) or self._is_operand(expr, scope) or _is_choice(expr)
        if not wanted or (self._guard is not None and not far):
            held_here = self._where_held(expr, scope) if wanted else None
            return held_here or self._inside(expr, scope)
        part, names = self._part(expr, scope)
        held = self._held.get(part)
        if held is None or held.version != self._written[held.tensor.name]:
            axes = _along_memory(expr, [axis for axis in scope.values() if axis.name in names])
            if expr in self._beside:
                axes = _as_in(self._beside[expr], axes)
            lacks = any(
                constant(axis.extent) != 1 for axis in scope.values() if axis.name not in names
            )
            again = len(self._places.get(part, ())) > 1
            dims = [self._room(axis, expr, scope) for axis in axes]
            sized = [dim for dim in dims if dim is not None]
            whole = tuple(Axis(axis.name, dim) for axis, dim in zip(axes, sized, strict=False))
            told = all(free_variables(a.extent) & scope.keys() <= set(names) for a in axes)
            fits = len(sized) == len(axes) > 0 and told and self._takes(expr, scope, whole, sized)
            leaves = not far and self._is_the_same_in_all_rounds(expr, scope, whole)
            if not (lacks or leaves or (again and not far)) or not fits:
                return self._inside(expr, scope)
            around, self._guard = self._guard, None
            out, changed = self._out, self._changed
            if leaves:  # its parts do with it
                self._out, self._changed = self._hoisted, None
            held = self._held[part] = self._made(expr, scope, axes, whole, names)
            self._guard, self._out, self._changed = around, out, changed
        return _element(held, names, expr)

    def _is_the_same_in_all_rounds(self, expr: Expr, scope: Scope, whole: tuple[Axis, ...]) -> bool:
        """Whether a part may be computed in front of the outermost loop, for all its rounds, in a
        tensor with no more indices than one that is there has."""
        if self._changed is None or len(whole) > self._rank:
            return False
        if may_fail(expr, scope, self._sizes.__contains__):
            return False
        used = free_variables(expr).union(*(free_variables(axis.extent) for axis in whole))
        return self._changed.isdisjoint(used)

    def _made(
        self,
        expr: Expr,
        scope: Scope,
        axes: tuple[Axis, ...],
        whole: tuple[Axis, ...],
        names: tuple[str, ...],
    ) -> _Held:
        """A tensor with the part for all of ``whole``: of the axes, as long as they ever are."""
        extents = {axis.name: every.extent for axis, every in zip(axes, whole, strict=True)}
        value = shifted_places(self._inside(expr, _axes(axes)), extents)
        ends = [
            b.binary("<", Var(axis.name, INT), axis.extent)
            for axis, every in zip(axes, whole, strict=True)
            if free_variables(axis.extent) & scope.keys() or self._count(axis) != every.extent
        ]
        if ends:
            value = b.select(b.every(ends), value, b.flt(0.0))
        wish = f"_{expr.name}" if isinstance(expr, Builtin) else "_c"
        var = self._temporary(TensorType(tuple(axis.extent for axis in whole)), wish, None)
        place = Index(var, tuple(Var(axis.name, INT) for axis in axes), expr.type)
        made = IndexAssign(place, "=", value, whole, self._span)
        self._out.append(self._where_used(made, expr, scope, whole))
        return _Held(var, tuple(names.index(axis.name) for axis in axes), 0)

    def _where_held(self, expr: Expr, scope: Scope) -> Expr | None:
        """A read of the tensor that holds a part, always or where the condition around it holds."""
        part, names = self._part(expr, scope)
        whole = self._held.get(part)
        if whole is not None and whole.version == self._written[whole.tensor.name]:
            return _element(whole, names, expr)
        held, cond = self._held_where.get(part, (None, None))
        if held is None or cond is None or held.version != self._written[held.tensor.name]:
            return None
        own: dict[str, Expr] = {f"${k}": Var(name, INT) for k, name in enumerate(names)}
        known = [] if self._guard is None else _facts(self._guard)
        wanted = _facts(substitute(cond, own))
        if not all(any(equal(fact, other) is True for other in known) for fact in wanted):
            return None
        return _element(held, names, expr)

    def _hold(self, stmt: IndexAssign) -> None:
        """Remembers what a statement has written for good."""
        match stmt.value:
            case Select(condition, inner):
                cond: Expr | None = condition
                value: Expr = inner
            case _:
                cond, value = None, stmt.value
        if not (_is_costly(value) and covers(stmt) and stmt.op == "="):
            return
        target = stmt.element
        subscripts = [s.name for s in target.subscripts if isinstance(s, Var)]
        part, names = self._part(value, _axes(stmt.axes))
        if set(subscripts) != set(names) or len(subscripts) != len(target.subscripts):
            return
        order = tuple(names.index(s) for s in subscripts)
        held = _Held(target.tensor, order, self._written[target.tensor.name])
        if cond is None:
            self._held.setdefault(part, held)
        elif _facts(cond) and not free_variables(cond) & self._assigned:
            numbers: dict[str, Expr] = {name: Var(f"${k}", INT) for k, name in enumerate(names)}
            self._held_where.setdefault(part, (held, substitute(cond, numbers)))

    def _part(self, expr: Expr, scope: Scope) -> tuple[_Part, tuple[str, ...]]:
        """What is computed, and the indices that it has, in order of occurrence."""
        names = tuple(dict.fromkeys(name for name in variables(expr) if name in scope))
        numbers: dict[str, Expr] = {name: Var(f"${k}", INT) for k, name in enumerate(names)}
        inputs = sorted(free_variables(expr) - set(names))
        versions = tuple((name, self._written[name]) for name in inputs)
        extents = tuple(scope[name].extent for name in names)
        return _Part(substitute(expr, numbers), extents, versions), names


def _element(held: _Held, names: tuple[str, ...], part: Expr) -> Expr:
    """What a tensor holds of a part that has these indices."""
    subscripts = tuple(Var(names[k], INT) for k in held.order)
    return Index(held.tensor, subscripts, part.type, part.span)


def factors(product: Expr) -> list[Expr]:
    match product:
        case Binary("*", left, right, FloatType()):
            return factors(left) + factors(right)
        case Binary("**", base, IntConst(2)):
            return factors(base) * 2
        case _:
            return [product]


def _has_parts(read: Expr, scope: Scope, outer: frozenset[str]) -> bool:
    """Whether a dimension has parts of one length, ``x[t, h * C + d]`` for d in range(C), which one
    of these indices counts: no library multiplies it so."""
    subscripts = read.subscripts if isinstance(read, Index) else ()
    extents = {name: axis.extent for name, axis in scope.items()}
    pairs = filter(None, (parts_of(subscript, extents) for subscript in subscripts))
    return any(free_variables(pair[0][0]) <= outer for pair in pairs)


def _is_one_element(factors: list[Expr]) -> bool:
    return len(factors) == 1 and _is_element(factors[0])


def _is_of_elements(expr: Expr) -> bool:
    """Whether it is an element, what elements and numbers add up to, or a value of a function of
    these, or one of several that they choose."""
    match expr:
        case Builtin(_, args, FloatType()):
            return all(map(_is_of_elements, args))
        case Select(cond, then, other, FloatType()):
            return _is_test(cond) and _is_of_elements(then) and _is_of_elements(other)
        case Binary("+" | "-", left, right, FloatType()):
            return _is_of_elements(left) and _is_of_elements(right)
        case FloatConst() | Var(_, FloatType()):
            return True
        case Unary("-", operand, FloatType()):
            return _is_of_elements(operand)
        case _:
            return _is_element(expr)


def _is_test(cond: Expr) -> bool:
    """Whether a condition compares elements and numbers."""
    match cond:
        case Unary("not", operand):
            return _is_test(operand)
        case Binary("and" | "or", left, right):
            return _is_test(left) and _is_test(right)
        case Binary(op, left, right) if op in COMPARISONS:
            return _is_of_elements(left) and _is_of_elements(right)
        case _:
            return False


def _is_element(expr: Expr) -> bool:
    """Whether it is an element of a tensor of floats at indices."""
    match expr:
        case Index(Var(), subscripts, FloatType()):
            return all(isinstance(s, Var) for s in subscripts)
        case _:
            return False


def _is_told(place: Expr) -> bool:
    """Whether data say where an element is."""
    subscripts = place.subscripts if isinstance(place, Index) else ()
    return any(map(reads_elements, subscripts))


def _axes(axes: tuple[Axis, ...]) -> Scope:
    return {axis.name: axis for axis in axes}


def _along_memory(expr: Expr, axes: list[Axis]) -> tuple[Axis, ...]:
    """The axes in the order of their loops, but last the one that is last in all that is read along
    any of them: the loops around other places that read the tensor may have another order, and what
    goes through their operands along memory goes so through the tensor."""
    names = {axis.name for axis in axes}
    if any(free_variables(axis.extent) & names for axis in axes):
        return tuple(axes)
    reads = (node for node in walk(expr) if isinstance(node, Index))
    ends = {node.subscripts[-1] for node in reads if free_variables(node) & names}
    last = [axis for axis in axes if ends == {Var(axis.name, INT)}]
    return (*(axis for axis in axes if axis not in last), *last)


def _as_in(beside: Index, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The axes, those of an element that has several of them in its order: a library copies no
    operand then."""
    order = [place.name for place in beside.subscripts if isinstance(place, Var)]
    shared = sorted((a for a in axes if a.name in order), key=lambda a: order.index(a.name))
    ways = iter(shared)
    return tuple(next(ways) if axis.name in order else axis for axis in axes)


def _facts(condition: Expr) -> list[Expr]:
    """What is not negative where a condition holds, and only there; nothing if that is not all."""
    parts = [facts(part) for part in conjuncts(condition)]
    return [fact for own in parts for fact in own] if all(parts) else []


def _is_costly(expr: Expr) -> bool:
    match expr:
        case Builtin("pow", (_, IntConst() | FloatConst() as power)) if power.value == 2:
            return False
        case Builtin(name):
            return BUILTINS[name].costly and isinstance(expr.type, FloatType)
        case Call():
            return isinstance(expr.type, FloatType)
        case _:
            return False


def _is_choice(expr: Expr) -> bool:
    """Whether an expression is one of values of which some are costly."""
    if not isinstance(expr, Select) or not isinstance(expr.type, FloatType):
        return False
    return any(_is_costly(node) for side in (expr.then, expr.other) for node in walk(side))


def _found(expr: Expr, scope: Scope) -> Iterator[tuple[Expr, Scope]]:
    """The costly parts that no condition guards, with the indices around them."""
    if _is_costly(expr):
        yield expr, scope
    inner = scope | _axes(expr.axes) if isinstance(expr, Reduce) else scope
    below: list[Expr] = []

    def under(child: Expr, guard: Expr | None) -> Expr:
        below.extend([] if guard is not None else [child])
        return child

    map_guarded(expr, under)
    for child in below:
        yield from _found(child, inner)
