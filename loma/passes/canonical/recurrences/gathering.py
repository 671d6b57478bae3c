"""What rounds of a loop only add to a large tensor is added behind the loop, in one pass over it.

    for t in range(T):                        for t in range(T):
        c[i, r] = ... L[t, i, r] ...              kept_c[t, i, r] = ... L[t, i, r] ...
        s[i, o] = ...                             kept_s[t, i, o] = ...
        d[i, r, o] += s[i, o] * c[i, r]       d[i, r, o] = sum(kept_s[t, i, o] * kept_c[t, i, r]
                                                               for t in T)

Each round would read and write all of the large tensor. What it adds is made of smaller ones, which
each round keeps instead: no more than a tensor that has a dimension for the counter already, as
the tapes of adjoints have. (Scalar expansion: Allen and Kennedy, Optimizing Compilers for Modern
Architectures, 2001, chapter 5.)
"""

from __future__ import annotations

from collections.abc import Iterator

from loma.core import sizes
from loma.core.effects import written
from loma.core.ir import (
    INT, Assign, Axis, Call, Declare, Expr, For, Function, Index, IndexAssign, Module, Op, Reduce,
    Stmt, TensorType, Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.walk import (
    as_part, expressions, free_variables, map_tensor_functions, mentioned_names,
    statements, subscript_variables, substitute, walk,
)  # fmt: skip
from loma.passes.canonical.loops import mentions, without_loops
from loma.passes.canonical.recurrences.distribution import (
    LeavingLoops, is_elementwise, number_of_loops, with_dimension,
)  # fmt: skip
from loma.passes.first_write import first_writes
from loma.passes.liveness import covers, set_first


def gathering(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, lambda function: _Gathering(function).run())


class _Gathering(LeavingLoops):
    def __init__(self, function: Function) -> None:
        super().__init__(function)
        self._names = Names(names_of(function))
        self._kept: list[Var] = []  # new tensors, of what a round changes later

    def run(self) -> Function:
        body = self._block(self._function.body)
        if not self._wider and not self._kept:
            return self._function
        new = tuple(Declare(var, None) for var in self._kept)
        body = (*new, *map(self._declaration, body))
        found = without_loops(replace(self._function, body=body))
        if number_of_loops(found) > number_of_loops(self._function):
            return self._function
        return replace(found, body=first_writes(found.body))

    def _loops(self, loop: For) -> list[Stmt]:
        """The loop, and what is added behind it."""
        if not sizes.keeps_value(loop.extent, self._changed - {loop.counter}):
            return [loop]
        behind: list[Stmt] = []
        position = 0
        while position < len(loop.body):
            found = self._gathered(loop, position)
            if found is None:
                position += 1
            else:
                loop, alone = found
                behind.append(alone)
        return [loop, *behind]

    def _gathered(self, loop: For, position: int) -> tuple[For, Stmt] | None:
        """The loop without one of its statements, and that one for all rounds."""
        stmt, rest = loop.body[position], list(loop.body)
        if not isinstance(stmt, IndexAssign):
            return None
        stmt = self._with_numbers(stmt, loop, position)
        others = (*rest[:position], *rest[position + 1 :])
        if not _adds_smaller(stmt, loop.counter, others):
            return None
        changing = written(others)
        elements = [node for node in _elements(stmt.value) if node.tensor.name in changing]
        names = dict.fromkeys(node.tensor.name for node in elements)
        names = {name: None for name in names if name not in self._wider}
        later = written(tuple(rest[position + 1 :]))
        plain = free_variables(stmt.value) & (
            changing - names.keys() - (self._wider.keys() - later)
        )
        if plain or not elements or not all(self._is_small(name, loop) for name in names):
            return None
        copies: list[Stmt] = []
        for name in names:
            own = self._mentions[name] == mentions(loop.body)[name]
            whole = set_first(name, loop.body) and is_elementwise(name, loop.body)
            var = self._declared[name]
            if own and whole and name not in later:
                self._wider[name] = wide = self._wide(name, var, loop)
                rest = [with_dimension(one, wide, 0, loop.counter) for one in rest]
                wider = with_dimension(stmt, wide, 0, loop.counter)
                assert isinstance(wider, IndexAssign)
                stmt = wider
            else:
                kept = self._wide(self._names.fresh(f"_kept_{name.lstrip('_')}"), var, loop)
                self._kept.append(kept)
                copies.append(self._copy(kept, var, loop, stmt))
                value = as_part(stmt.value, name, kept, 0, Var(loop.counter, INT))
                stmt = replace(stmt, value=value)
        rest[position : position + 1] = copies
        return replace(loop, body=tuple(rest)), replace(loop, body=(stmt,))

    def _with_numbers(self, stmt: IndexAssign, loop: For, position: int) -> IndexAssign:
        """With what the round's own ints are made of, where these say no more than the counter."""
        given: dict[str, Expr] = {}
        for before in loop.body[:position]:
            match before:
                case Assign(Var(name, type_), "=", value) if (
                    type_ == INT
                    and sum(name in written((one,)) for one in loop.body) == 1
                    and sizes.keeps_value(value, self._changed - {loop.counter})
                ):
                    given[name] = value
                case _:
                    pass
        if not given.keys() & free_variables(stmt.value):
            return stmt
        return replace(stmt, value=substitute(stmt.value, given))

    def _is_small(self, name: str, loop: For) -> bool:
        """Whether a tensor for all rounds is no larger than one that there is."""
        var = self._declared.get(name)
        if var is None or not isinstance(var.type, TensorType):
            return False
        dims = list(sizes.dims_of(var))
        if not all(sizes.keeps_value(dim, self._changed) for dim in dims):
            return False
        for stmt in statements(loop.body):
            for expr in expressions(stmt):
                for node in _elements(expr):
                    if loop.counter not in {n for s in node.subscripts for n in free_variables(s)}:
                        continue
                    left = list(sizes.dims_of(node.tensor))
                    if all(_taken(left, dim) for dim in dims) and left:
                        return True
        return False

    def _wide(self, name: str, var: Var, loop: For) -> Var:
        assert isinstance(var.type, TensorType)
        count = sizes.count(loop.extent, self._is_size)
        return Var(name, replace(var.type, dims=(count, *sizes.dims_of(var))))

    def _copy(self, kept: Var, var: Var, loop: For, like: IndexAssign) -> Stmt:
        """``kept[t, ...] = var[...]``."""
        element = next(node for node in _elements(like.value) if node.tensor.name == var.name)
        dims = sizes.dims_of(var)
        axes = tuple(Axis(self._names.fresh(f"_i{k}"), dim) for k, dim in enumerate(dims))
        places = tuple(Var(axis.name, INT) for axis in axes)
        value = Index(var, places, element.type)
        target = Index(kept, (Var(loop.counter, INT), *places), element.type)
        return IndexAssign(target, "=", value, axes, like.span)


def _adds_smaller(stmt: IndexAssign, counter: str, others: tuple[Stmt, ...]) -> bool:
    """Whether a statement adds to each element of a tensor what elements of smaller ones give, and
    no other one of the loop looks at it."""
    target = stmt.target
    if stmt.op != "+=" or not isinstance(target, Index) or not isinstance(target.base, Var):
        return False
    own = subscript_variables(stmt.element)
    name = target.base.name
    if not covers(stmt) or {axis.name for axis in stmt.axes} != own or counter in own:
        return False
    if name in mentioned_names(others) or name in free_variables(stmt.value):
        return False
    if any(isinstance(node, Reduce | Call | Op) for node in walk(stmt.value)):
        return False
    read = list(_elements(stmt.value))
    return bool(read) and all(own & subscript_variables(node) < own for node in read)


def _elements(expr: Expr) -> Iterator[Index]:
    for node in walk(expr):
        match node:
            case Index(Var(_, TensorType())):
                yield node
            case _:
                pass


def _taken(dims: list[Expr], dim: Expr) -> bool:
    if dim not in dims:
        return False
    dims.remove(dim)
    return True
