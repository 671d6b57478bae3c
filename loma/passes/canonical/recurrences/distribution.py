"""Loop distribution: products of matrices that need no earlier round leave a recurrence, and what
is costly of elements that rounds read one after the other.

    for t in range(T):
        p[n, j] = sum(x[n, t, i] * w[i, j] for i in I)
        q[n, j] = sum(h[n, k] * u[k, j] for k in H)
        h[n, j] = tanh(p[n, j] + q[n, j])

has one product for all rounds in front of it, and p a dimension for the counter. So has ``a[n] =
exp(x[n, t])``, for which lanes then run along ``x[n]``. In the adjoint, a product that a tensor
only gathers, ``d_u[k, j] += sum(tape[t, n, k] * d[n, j] for n in N)``, is one behind the loop,
which keeps d of every round. Both are a matrix of T times as many rows, or sums T times as long,
instead of T small ones. (Loop distribution and scalar expansion: Allen and Kennedy,
Optimizing Compilers for Modern Architectures, 2001, chapter 5.)
"""

from __future__ import annotations

from dataclasses import dataclass

from loma.core import sizes
from loma.core.builtins import BUILTINS
from loma.core.effects import blanks, counters, written
from loma.core.ir import (
    INT, Builtin, Declare, For, Function, Index, IndexAssign, Module, Reduce, Stmt, TensorType, Var,
    replace,
)  # fmt: skip
from loma.core.sizes import size_variables
from loma.core.walk import (
    as_part, free_variables, is_element_of, map_blocks, map_expressions, map_tensor_functions,
    mentioned_names, nodes, statements, subscript_variables, walk,
)  # fmt: skip
from loma.passes.canonical.loops import mentions, without_loops
from loma.passes.canonical.recurrences.running import factors
from loma.passes.liveness import covers, set_first


def distribution(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, lambda function: _Distribution(function).run())


@dataclass(frozen=True, slots=True)
class _Leaving:
    """What a product that may leave its loop needs: the element of a tensor of the loop alone takes
    a dimension for the counter, where ``like`` has it."""

    element: Index
    like: Index


class LeavingLoops:
    """A function whose loops statements leave, with a dimension for the counter in tensors that are
    the function's own: ``_wider``, by name."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._is_size = frozenset(size_variables(function)).__contains__
        self._changed = written(function.body) | counters(function.body)
        self._mentions = mentions(function.body)
        self._declared = blanks(function.body)
        self._wider: dict[str, Var] = {}

    def _loops(self, loop: For) -> list[Stmt]:
        """What stands for a loop."""
        raise NotImplementedError

    def _declaration(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, Declare) and stmt.target.name in self._wider:
            return replace(stmt, target=self._wider[stmt.target.name])
        return stmt

    def _block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stmt in body:
            stmt = map_blocks(stmt, self._block)
            out += self._loops(stmt) if isinstance(stmt, For) else (stmt,)
        return tuple(out)


class _Distribution(LeavingLoops):
    def run(self) -> Function:
        body = self._block(self._function.body)
        if not self._wider:
            return self._function
        new = without_loops(replace(self._function, body=tuple(map(self._declaration, body))))
        # Not where a loop of a product stays one: for a number of rounds that may be negative, say.
        return new if number_of_loops(new) <= number_of_loops(self._function) else self._function

    def _loops(self, loop: For) -> list[Stmt]:
        """The loop, and those of the products that leave it."""
        if not sizes.keeps_value(loop.extent, self._changed):
            return [loop]
        before, behind, rest, k = list[Stmt](), list[Stmt](), loop.body, 0
        while k < len(rest):
            first = _in_front(rest, k, loop.counter)
            found = first or _behind(rest, k, loop.counter)
            wider = None if found is None else self._widened(found, replace(loop, body=rest))
            if wider is None:
                k += 1
                continue
            var, place = wider
            self._wider[var.name] = var
            new = [with_dimension(s, var, place, loop.counter) for s in rest]
            alone, rest = replace(loop, body=(new[k],)), (*new[:k], *new[k + 1 :])
            (before if first else behind).append(alone)
        return [*before, replace(loop, body=rest), *behind]

    def _widened(self, leaving: _Leaving, loop: For) -> tuple[Var, int] | None:
        """The tensor with a dimension for the counter, and which; None where it may not have it, or
        would take more memory than a tensor that has one already."""
        name, like = leaving.element.tensor.name, leaving.like.subscripts
        var = self._declared.get(name)
        if var is None or not isinstance(var.type, TensorType) or name in self._wider:
            return None
        dims = sizes.dims_of(var)
        fixed = all(sizes.keeps_value(dim, self._changed) for dim in dims)
        own = self._mentions[name] == mentions(loop.body)[name] and set_first(name, loop.body)
        if not (fixed and own and len(dims) < len(like) and is_elementwise(name, loop.body)):
            return None
        # Behind the dimensions that come before it there: both then have rows in the same order.
        at = next(k for k, s in enumerate(like) if loop.counter in free_variables(s))
        rows = frozenset().union(*map(free_variables, like[:at]))
        shared = [bool(free_variables(s) & rows) for s in leaving.element.subscripts]
        place = (*shared, False).index(False)
        count = sizes.count(loop.extent, self._is_size)
        wider = (*dims[:place], count, *dims[place:])
        return replace(var, type=replace(var.type, dims=wider)), place


def number_of_loops(function: Function) -> int:
    """How many loops a function has."""
    return sum(isinstance(stmt, For) for stmt in statements(function.body))


def _in_front(body: tuple[Stmt, ...], position: int, counter: str) -> _Leaving | None:
    """A product of what no round changes, and of which one factor depends on the counter, or what
    is costly, of elements that rounds read one after the other."""
    stmt = body[position]
    if not (isinstance(stmt, IndexAssign) and isinstance(stmt.target, Index)):
        return None
    if stmt.op != "=" or not covers(stmt):
        return None
    name = stmt.element.tensor.name
    alone = sum(name in written((other,)) for other in body) == 1
    factors = _factors(stmt) or _in_a_row(stmt, counter)
    by_round = [factor for factor in factors if counter in subscript_variables(factor)]
    if not alone or len(by_round) != 1 or written(body) & free_variables(stmt.value):
        return None
    return _Leaving(stmt.element, by_round[0])


def _in_a_row(stmt: IndexAssign, counter: str) -> tuple[Index, ...]:
    """One of the elements that something costly is made of, all of which are in rows that the
    counter goes along: lanes run along these, where a loop with rounds has none. Else nothing."""
    parts = list(walk(stmt.value))
    costly = any(isinstance(n, Builtin) and BUILTINS[n.name].costly for n in parts)
    reads = [n for n in parts if isinstance(n, Index) and counter in subscript_variables(n)]
    here = Var(counter, INT)
    rows = all(
        n.subscripts[-1] == here
        and [counter in free_variables(s) for s in n.subscripts].count(True) == 1
        for n in reads
    )
    if not costly or not reads or not rows or any(isinstance(n, Reduce) for n in parts):
        return ()
    return (reads[0],)


def _behind(body: tuple[Stmt, ...], position: int, counter: str) -> _Leaving | None:
    """A product that a tensor gathers, of a tensor of the round and of one with the counter."""
    stmt = body[position]
    factors = _factors(stmt)
    if factors is None or not (isinstance(stmt, IndexAssign) and stmt.op == "+="):
        return None
    after = body[position + 1 :]
    others = (*body[:position], *after)
    changed = written(others)
    own = [factor for factor in factors if factor.tensor.name in changed]
    kept = [factor for factor in factors if counter in subscript_variables(factor)]
    if len(own) != 1 or len(kept) != 1 or own == kept or counter in free_variables(stmt.target):
        return None
    name, target = own[0].tensor.name, stmt.element.tensor.name
    quiet = target not in mentioned_names(others) and name not in written(after)
    if not quiet or changed & (free_variables(stmt.value) - {name}):
        return None
    return _Leaving(own[0], kept[0])


def _factors(stmt: Stmt) -> tuple[Index, Index] | None:
    """The factors of a product of matrices: they share what is summed over, and each has indices of
    the result that the other one lacks."""
    if not isinstance(stmt, IndexAssign) or not isinstance(stmt.target, Index):
        return None
    value = stmt.value
    if isinstance(value, Reduce) and value.kind == "sum":
        value = value.body
    found = [factor.value for factor in factors(value, False)]
    match found:
        case [Index() as left, Index() as right]:
            result = free_variables(stmt.target) & {axis.name for axis in stmt.axes}
            rows, columns = free_variables(left) & result, free_variables(right) & result
            apart = rows and columns and not rows & columns
            return (left, right) if apart else None
        case _:
            return None


def is_elementwise(name: str, body: tuple[Stmt, ...]) -> bool:
    """Whether a tensor is mentioned by its elements alone."""
    reads = sum(isinstance(n, Var) and n.name == name for n in nodes(body))
    elements = sum(is_element_of(n, name) for n in nodes(body))
    return reads == elements


def with_dimension(stmt: Stmt, var: Var, place: int, counter: str) -> Stmt:
    """The statement with the counter as a subscript of a tensor's elements."""
    here = Var(counter, INT)
    return map_expressions(stmt, lambda expr: as_part(expr, var.name, var, place, here))
