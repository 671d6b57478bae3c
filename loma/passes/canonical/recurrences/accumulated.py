"""Numbers that the rounds of a loop add up, or multiply, are running reductions.

    for s in range(S):                           before[r, s] = prod(a[r, q] for q in range(s))
        y[r, c] += left[r] * x[r, s, c]          y[r, c] += before[r, s] * x[r, s, c]
        left[r] = left[r] * a[r, s]

What reads the number needs the loop no longer: its sums go through vectors, and derivatives keep no
number of each round on a tape. What the rounds reduce may be made in the loop, of what no round has
left to the next; then that leaves the loop, too. What all rounds multiply by the same is a power.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from loma.core import builder as b, sizes
from loma.core.axes import target_axes
from loma.core.bounds import ONE
from loma.core.effects import written
from loma.core.ir import (
    FLOAT, INT, Assign, Axis, Binary, Builtin, Declare, Expr, FloatConst, For, Function, Index,
    IndexAssign, IntConst, Module, Reduce, ReduceKind, Stmt, TensorType, Unary, Var, Zero,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.sizes import arith
from loma.core.walk import (
    as_part, exchanged, free_variables, map_expressions, map_tensor_functions, mentioned_names,
    nodes, substitute,
)  # fmt: skip
from loma.passes.canonical.loops import mentions, without_loops
from loma.passes.canonical.recurrences.distribution import (
    LeavingLoops, is_elementwise, number_of_loops, with_dimension,
)  # fmt: skip
from loma.passes.liveness import covers, set_first

Block = tuple[Stmt, ...]
_ONE_ELEMENT = TensorType((IntConst(1),), "float")
_EXTREMES: dict[str, ReduceKind] = {"max": "max", "min": "min"}


def accumulated(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, lambda function: _Accumulated(function).run())


@dataclass(frozen=True, slots=True)
class _Update:
    """What a round does with a number: ``new`` is reduced with ``element``, by the statement at
    ``position``."""

    position: int
    stmt: IndexAssign
    new: Expr

    @property
    def element(self) -> Index:
        return self.stmt.element


class _Accumulated(LeavingLoops):
    def __init__(self, function: Function) -> None:
        super().__init__(function)
        self._names = Names(names_of(function))
        self._made: list[Stmt] = []  # declarations
        self._changes = False
        self._before: list[Stmt] = []  # what stands in front of the loop at hand, and behind it
        self._behind: Block = ()

    def run(self) -> Function:
        function = self._function
        for k, stmt in enumerate(function.body):
            self._behind = function.body[k + 1 :]
            self._before += self._loops(stmt) if isinstance(stmt, For) else [stmt]
        if not self._changes:
            return function
        body = tuple(map(self._declaration, (*self._made, *self._before)))
        new = without_loops(replace(function, body=body))
        # Not where something else carries numbers from round to round.
        return new if number_of_loops(new) < number_of_loops(function) else function

    def _loops(self, loop: For) -> list[Stmt]:
        """The loop, and what stands behind it."""
        if not sizes.keeps_value(loop.extent, self._changed):
            return [loop]
        declared, first, whole = len(self._made), len(self._before), loop
        before, loop, behind = self._with_elements(loop)
        self._before += before
        self._behind = (*behind, *self._behind)
        simple = all(
            isinstance(stmt, IndexAssign) and isinstance(stmt.target, Index) for stmt in loop.body
        )
        leaves = False
        while simple and (found := self._found(loop)) is not None:
            leaves = self._changes = True
            made, loop, last = self._apart(loop, *found)
            self._before += made
            behind = [*last, *behind]
        if leaves:
            return [loop, *behind] if loop.body else behind
        del self._made[declared:], self._before[first:]
        return [whole]

    def _with_elements(self, loop: For) -> tuple[list[Stmt], For, list[Stmt]]:
        """The loop with tensors of one element for the numbers that it gives values, what these are
        before it, and what the numbers are behind it."""
        before, behind, body = list[Stmt](), list[Stmt](), loop.body
        changed = [stmt.target for stmt in body if isinstance(stmt, Assign)]
        for number in dict.fromkeys(changed):
            if not isinstance(number, Var) or number.type != FLOAT:
                return [], loop, []
            name = number.name
            tensor = Var(self._names.fresh(f"_{name.lstrip('_')}"), _ONE_ELEMENT)
            element = Index(tensor, (IntConst(0),), FLOAT)
            self._made.append(Declare(tensor, None))
            self._declared[tensor.name] = tensor
            if not set_first(name, body):
                start: Expr = number
                match self._last_before(name):
                    case Declare(_, FloatConst() as value) | Assign(_, "=", FloatConst() as value):
                        start = value
                before.append(IndexAssign(element, "=", start, (), loop.span))
            if name in mentioned_names(self._behind):
                behind.append(Assign(number, "=", element, loop.span))
            body = tuple(_of_element(stmt, number, element) for stmt in body)
            self._mentions[tensor.name] = mentions((*before, *body, *behind))[tensor.name]
        return before, replace(loop, body=body), behind

    # ------------------------------------------------------------------- what can leave

    def _found(self, loop: For) -> tuple[_Update, tuple[int, ...]] | None:
        """A number that rounds reduce, and the statements that make what they reduce."""
        for position, stmt in enumerate(loop.body):
            update = self._update(position, stmt, loop)
            front = None if update is None else self._front(update, loop)
            if update is not None and front is not None:
                return update, front
        return None

    def _update(self, position: int, stmt: Stmt, loop: For) -> _Update | None:
        if not isinstance(stmt, IndexAssign) or stmt.op not in ("=", "+="):
            return None
        name = stmt.element.tensor.name
        others = [other for k, other in enumerate(loop.body) if k != position]
        alone = not any(name in written((other,)) for other in others)
        own = name in self._declared and name not in self._wider
        if not (alone and own and is_elementwise(name, loop.body)):
            return None
        place = stmt.element
        if loop.counter in free_variables(place) or place.type == INT:
            return None
        found = _reduced(stmt)
        if found is None or name in free_variables(found[1]):
            return None
        read = any(name in mentioned_names((other,)) for other in others)
        if not read and found[0] != "prod":  # what becomes of others is known without
            return None
        if found[0] in _EXTREMES:  # of no rounds there is none
            early = any(name in mentioned_names((other,)) for other in loop.body[:position])
            if early or name in mentioned_names(self._behind):
                return None
        target = replace(stmt, value=found[1], op="=", axes=target_axes(stmt))
        fits = not read or _is_power(found, loop) or _takes_no_more(place.tensor, loop)
        return _Update(position, stmt, found[1]) if fits and covers(target) else None

    def _front(self, update: _Update, loop: For) -> tuple[int, ...] | None:
        """The positions of the statements that make what a round reduces; None where these need
        what a round has left to the next."""
        needed = set(free_variables(update.new))
        front: list[int] = []
        changed = True
        while changed:
            changed = False
            for k, stmt in enumerate(loop.body):
                if k not in front and k != update.position and written((stmt,)) & needed:
                    front.append(k)
                    needed |= mentioned_names((stmt,))
                    changed = True
        name = update.element.tensor.name
        if name in needed or any(k > update.position for k in front):
            return None
        for own in written(tuple(loop.body[k] for k in front)):
            if not self._is_of_a_round(own, loop):
                return None
        return tuple(sorted(front))

    def _is_of_a_round(self, name: str, loop: For) -> bool:
        """Whether a tensor may have a dimension for the counter."""
        var = self._declared.get(name)
        if var is None or name in self._wider or not isinstance(var.type, TensorType):
            return False
        fixed = all(sizes.keeps_value(dim, self._changed) for dim in sizes.dims_of(var))
        own = self._mentions[name] == mentions(loop.body)[name] and set_first(name, loop.body)
        return fixed and own and is_elementwise(name, loop.body)

    # ---------------------------------------------------------------------- what leaves

    def _apart(
        self, loop: For, update: _Update, front: tuple[int, ...]
    ) -> tuple[list[Stmt], For, list[Stmt]]:
        """What stands in front of a loop, the loop, and what stands behind it."""
        body, position = list(loop.body), update.position
        for own in sorted(written(tuple(body[k] for k in front))):
            makes = next(body[k] for k in front if own in written((body[k],)))
            var, at = self._with_rounds(self._declared[own], makes, loop)
            self._wider[own] = var
            body = [with_dimension(stmt, var, at, loop.counter) for stmt in body]
        stmt = body[position]
        assert isinstance(stmt, IndexAssign)
        kind, new = _reduced(stmt) or ("sum", stmt.value)
        element, name, here = stmt.element, stmt.element.tensor.name, Var(loop.counter, INT)
        made: list[Stmt] = [replace(loop, body=tuple(body[k] for k in front))] if front else []
        power = _is_power((kind, new), loop)
        if not isinstance(new, Index) and not power:  # computed once, not for each later round
            new, gives = self._of_rounds(f"_{name.lstrip('_')}_new", stmt, new, loop)
            made.append(gives)
        rest: list[Stmt] = []
        for part, includes in ((body[:position], False), (body[position + 1 :], True)):
            part = [other for k, other in enumerate(part, includes * (position + 1))
                    if k not in front]  # fmt: skip
            if power:
                value = self._from_start(kind, element, self._power(new, loop, includes))
                in_place = partial(exchanged, old=element, new=value)
                part = [map_expressions(other, in_place) for other in part]
            elif any(name in mentioned_names((other,)) for other in part):
                value = self._from_start(kind, element, self._range(kind, new, loop, includes))
                place, gives = self._of_rounds(f"_{name.lstrip('_')}_at", stmt, value, loop)
                made.append(gives)
                at = place.subscripts.index(here)
                read = partial(as_part, name=name, whole=place.tensor, dim=at, place=here)
                part = [map_expressions(other, read) for other in part]
            rest += part
        last: list[Stmt] = []
        if name in mentioned_names(self._behind):
            every: Expr = Reduce(kind, new, (Axis(loop.counter, self._count(loop)),), new.type)
            if power:  # which may have nothing to read where there are no rounds
                some = b.binary(">", self._count(loop), IntConst(0))
                every = b.binary("**", new, self._count(loop))
                every = b.select(some, every, FloatConst(1.0))
            value = self._from_start(kind, element, every)
            last = [IndexAssign(element, "=", value, target_axes(stmt), stmt.span)]
        return made, replace(loop, body=tuple(rest)), last

    def _of_rounds(
        self, wish: str, stmt: IndexAssign, value: Expr, loop: For
    ) -> tuple[Index, IndexAssign]:
        """An element of a new tensor that has the elements that a statement writes for all rounds,
        and the statement that gives it a value."""
        element = stmt.element
        var, at = self._with_rounds(element.tensor, stmt, loop)
        var = replace(var, name=self._names.fresh(wish))
        self._made.append(Declare(var, None))
        place = as_part(element, element.tensor.name, var, at, Var(loop.counter, INT))
        assert isinstance(place, Index)
        axes = (*target_axes(stmt), Axis(loop.counter, self._count(loop)))
        return place, IndexAssign(place, "=", value, axes, stmt.span)

    def _from_start(self, kind: ReduceKind, element: Index, found: Expr) -> Expr:
        """What rounds have found, together with what an element was before the loop."""
        name = element.tensor.name
        start: Expr = element
        match self._last_before(name):
            case IndexAssign(Index(Var(own)), "=", FloatConst() as value) as stmt:
                start = value if own == name and covers(stmt) else element
            case Declare(Var(own), None) | Zero(Var(own)) if own == name:
                start = FloatConst(0.0)
            case _:
                pass
        nothing = (kind, b.number(start)) in (("sum", 0.0), ("prod", 1.0))
        return found if nothing else b.combined(kind, start, found)

    def _last_before(self, name: str) -> Stmt | None:
        """The last statement in front of the loop that mentions a variable."""
        found = (stmt for stmt in reversed(self._before) if name in mentioned_names((stmt,)))
        return next(found, None)

    def _with_rounds(self, tensor: Var, stmt: Stmt, loop: For) -> tuple[Var, int]:
        """The tensor with a dimension for the counter, and which: where something that a statement
        reads has it, behind as many of the tensor's."""
        dims = sizes.dims_of(tensor)
        reads = [n for n in nodes((stmt,)) if isinstance(n, Index) and n.subscripts]
        reads.sort(key=lambda n: not _has_rounds(n, loop.counter, dims))  # of the same rows first
        places = (
            next((k for k, s in enumerate(n.subscripts) if loop.counter in free_variables(s)), None)
            for n in reads
        )
        at = min(next((place for place in places if place is not None), len(dims)), len(dims))
        wider = (*dims[:at], self._count(loop), *dims[at:])
        assert isinstance(tensor.type, TensorType)
        return replace(tensor, type=replace(tensor.type, dims=wider)), at

    def _count(self, loop: For) -> Expr:
        return sizes.count(loop.extent, self._is_size)

    def _power(self, base: Expr, loop: For, includes: bool) -> Expr:
        """The power that the rounds before have multiplied, and this one, if it ``includes`` it."""
        here: Expr = Var(loop.counter, INT)
        if loop.backwards:
            here = arith("-", arith("-", loop.extent, ONE), here)
        return b.binary("**", base, arith("+", here, ONE) if includes else here)

    def _range(self, kind: ReduceKind, new: Expr, loop: For, includes: bool) -> Expr:
        """The reduction of what the rounds before have, and this one has, if it ``includes`` it."""
        here = Var(loop.counter, INT)
        axis = self._names.fresh(f"_{loop.counter}_before")
        extent: Expr = arith("+", here, ONE) if includes else here
        place: Expr = Var(axis, INT)
        if loop.backwards:
            first = here if includes else arith("+", here, ONE)
            extent = arith("-", loop.extent, first)
            place = arith("+", first, place)
        body = sizes.simple_subscripts(substitute(new, {loop.counter: place}))
        return Reduce(kind, body, (Axis(axis, extent),), new.type)


def _is_power(found: tuple[ReduceKind, Expr], loop: For) -> bool:
    """Whether each round multiplies by the same: no tensor has to keep what rounds find."""
    kind, factor = found
    fixed = written(loop.body) | {loop.counter}
    return kind == "prod" and fixed.isdisjoint(free_variables(factor))


def _takes_no_more(tensor: Var, loop: For) -> bool:
    """Whether a tensor for all rounds has no more elements than one that the loop reads or writes:
    that of a state which is an outer product would have, and the loop keeps one at a time."""
    dims = [dim for dim in sizes.dims_of(tensor) if dim != IntConst(1)]
    reads = (
        node
        for node in nodes(loop.body)
        if isinstance(node, Index) and isinstance(node.base, Var)
        if isinstance(node.base.type, TensorType)
    )
    return any(_has_rounds(read, loop.counter, dims) for read in reads)


def _has_rounds(read: Index, counter: str, dims: Sequence[Expr]) -> bool:
    """Whether a tensor has those dimensions beside one that the counter goes along."""
    places = zip(read.subscripts, sizes.dims_of(read.tensor), strict=True)
    left = [dim for subscript, dim in places if counter not in free_variables(subscript)]
    if len(left) == len(read.subscripts):
        return False
    for dim in dims:
        same = next((k for k, other in enumerate(left) if sizes.equal(dim, other)), None)
        if same is None:
            return False
        del left[same]
    return True


def _of_element(stmt: Stmt, number: Var, element: Index) -> Stmt:
    """The statement with an element for a number."""
    if isinstance(stmt, Assign) and stmt.target == number:
        stmt = IndexAssign(element, stmt.op, stmt.value, (), stmt.span)
    return map_expressions(stmt, lambda expr: substitute(expr, {number.name: element}))


def _reduced(stmt: IndexAssign) -> tuple[ReduceKind, Expr] | None:
    """The reduction of an element and others that a statement assigns to it, and these others."""
    summed = tuple(axis for axis in stmt.axes if axis not in target_axes(stmt))
    element, value = stmt.element, stmt.value
    if stmt.op == "+=":
        return "sum", Reduce("sum", value, summed, value.type) if summed else value
    if summed:
        return None
    match value:
        case Binary("+" | "*" as op, left, right) if element in (left, right):
            return "sum" if op == "+" else "prod", right if left == element else left
        case Binary("-", left, right) if left == element:
            return "sum", Unary("-", right, right.type)
        case Builtin("max" | "min" as name, (left, right)) if element in (left, right):
            return _EXTREMES[name], right if left == element else left
        case _:
            return None
