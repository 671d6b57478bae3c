"""What a round stores of its state is computed where it is stored.

    for t in range(T):                          for t in range(T):
        h[i] = tanh(a[t, i] + p[i])                 y[t, i] = tanh(a[t, i] + p[i])
        y[t, i] = h[i]                              h[i] = y[t, i]

The next round overwrites the state, but not the row: the derivative of ``tanh``, which is made of
its value, reads that there, and the backward part need not compute it again. So is what is computed
for a copy alone, ``h = p`` behind ``p[i] = tanh(...)``, computed there. Where a state has rows for
all rounds, a result that is some of these, ``y[t, i] = h[t + 1, i]``, is a view of them.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from loma.core import builder as b, sizes
from loma.core.effects import is_blank
from loma.core.ir import (
    INT, Assign, Builtin, Declare, Expr, For, Function, Index, IndexAssign, IntConst, Module, Op,
    Return, Stmt, TensorType, Var, replace,
)  # fmt: skip
from loma.core.walk import (
    free_variables, map_blocks, map_tensor_functions, mentioned_names, own_names, statements,
    substitute,
)  # fmt: skip
from loma.passes.liveness import covers

Block = tuple[Stmt, ...]


def stored(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, lambda function: _Stored(function).run())


class _Stored:
    def __init__(self, function: Function) -> None:
        self._function = function
        body = list(statements(function.body))
        own = [s for s in body if not is_blank(s)]
        self._uses = Counter(name for stmt in own for name in own_names(stmt))
        self._local = {s.target.name for s in function.body if isinstance(s, Declare)}

    def run(self) -> Function:
        return replace(self._function, body=_with_views(self._block(self._function.body, None)))

    def _block(self, body: Block, counter: str | None) -> Block:
        """``counter`` is that of the loop whose body this is."""
        out: list[Stmt] = []
        for stmt in body:
            inner = stmt.counter if isinstance(stmt, For) else None
            out.append(map_blocks(stmt, partial(self._block, counter=inner)))
        if counter is None:
            return tuple(out)
        for stmt in tuple(out):
            if isinstance(stmt, Assign):
                self._take_over(out, stmt)
        for stmt in tuple(out):
            if isinstance(stmt, IndexAssign):
                self._store(out, stmt, counter)
        return tuple(out)

    def _take_over(self, body: list[Stmt], copy: Assign) -> None:
        """Computes what is made for a copy where that goes."""
        match copy:
            case Assign(Var(to) as state, "=", Var(made) as old) if {to, made} <= self._local:
                pass
            case _:
                return
        at = body.index(copy)
        first = next((k for k in range(at) if made in mentioned_names((body[k],))), at)
        stmt = body[first]
        if not isinstance(stmt, IndexAssign) or not _sets(stmt, made) or state.type != old.type:
            return
        if self._uses[made] != 2 or to in mentioned_names(tuple(body[first:at])):
            return
        body[first] = replace(stmt, target=replace(stmt.element, base=state))
        del body[at]

    def _store(self, body: list[Stmt], stmt: IndexAssign, counter: str) -> None:
        """Computes a state in the row of another tensor that holds it."""
        if not isinstance(stmt.value, Builtin) or not isinstance(stmt.target, Index):
            return
        state, at = stmt.target.tensor.name, body.index(stmt)
        later = (k for k in range(at + 1, len(body)) if state in mentioned_names((body[k],)))
        to = next(later, at)
        copy = body[to]
        if to == at or state not in self._local or not _sets(stmt, state):
            return
        row = _row(copy, stmt, counter) if isinstance(copy, IndexAssign) else None
        if row is None or row.tensor.name in mentioned_names(tuple(body[at:to])):
            return
        order = [v.name for v in row.subscripts if isinstance(v, Var)]
        axes = tuple(sorted(stmt.axes, key=lambda axis: order.index(axis.name)))
        body[at] = replace(stmt, target=row, axes=axes)
        body[to] = IndexAssign(stmt.target, "=", row, stmt.axes, copy.span)


def _with_views(body: Block) -> Block:
    """With views for results that are rows of a local tensor."""
    for copy in body:
        if not isinstance(copy, IndexAssign) or (part := _rows_of(copy)) is None:
            continue
        to, (state,) = copy.element.tensor, part.args
        assert isinstance(state, Var)
        fresh = [s for s in body if isinstance(s, Declare) and s.target in (to, state)]
        after = body[body.index(copy) + 1 :]
        using = [s for s in body if to.name in mentioned_names((s,)) and s not in (*fresh, copy)]
        if len(fresh) != 2 or any(s.value is not None for s in fresh) or len(using) != 1:
            continue
        match using[0]:
            case Return(values) if values.count(to) == 1 and using[0] in after:
                pass
            case _:
                continue
        if state.name not in mentioned_names(after):
            view = Declare(to, part, copy.span)
            kept = (s for s in body if not (isinstance(s, Declare) and s.target == to))
            body = tuple(view if s is copy else s for s in kept)
    return body


def _rows_of(copy: IndexAssign) -> Op | None:
    """The part of a tensor that a statement copies, where that is some of its rows."""
    match copy:
        case IndexAssign(Index(Var() as to, here), "=", Index(Var() as state, there)) if here:
            pass
        case _:
            return None
    if to.name == state.name or here[1:] != there[1:] or not covers(copy):
        return None
    start = sizes.constant(sizes.arith("-", there[0], here[0])) if len(here) == len(there) else None
    if not start or start < 0 or not all(isinstance(place, Var) for place in here):
        return None
    dims, whole = sizes.dims_of(to), sizes.dims_of(state)
    room = sizes.constant(sizes.arith("-", whole[0], dims[0]))
    if room is None or room < start or not sizes.same(dims[1:], whole[1:]):
        return None
    if _element(to) != _element(state):
        return None
    end = sizes.arith("+", dims[0], IntConst(start))
    attrs = {"dim": 0, "start": IntConst(start), "end": end, "step": 1}
    return b.operator("slice", (state,), attrs, copy.span)


def _sets(stmt: Stmt, name: str) -> bool:
    """Whether a statement gives all of a tensor values that are made of others."""
    match stmt:
        case IndexAssign(Index(Var(target), places), "=", value) if target == name and covers(stmt):
            return name not in free_variables(value) and all(isinstance(p, Var) for p in places)
        case _:
            return False


def _row(copy: IndexAssign, stmt: IndexAssign, counter: str) -> Index | None:
    """The element of a tensor that takes one of a state, with the indices of the statement that
    gives the state its value: a row of its own for each round."""
    match copy:
        case IndexAssign(Index(Var() as to, row), "=", Index(Var() as state, places), axes):
            pass
        case _:
            return None
    names = [p.name for p in places if isinstance(p, Var)]
    extents = {axis.name: axis.extent for axis in axes}
    if sorted(names) != sorted(extents) or len(names) < len(places):
        return None
    here = stmt.element
    own = {axis.name: axis.extent for axis in stmt.axes}
    for name, place in zip(names, here.subscripts, strict=True):
        assert isinstance(place, Var)
        if sizes.equal(extents[name], own[place.name]) is not True:
            return None
    alone = [p for p in row if isinstance(p, Var) and p.name in extents]
    rest = [p for p in row if p not in alone]
    if sorted(p.name for p in alone) != sorted(names) or len(rest) != 1:
        return None
    form = sizes.simplify(sizes.arith("-", rest[0], Var(counter, INT)))
    if sizes.constant(form) is None or counter in own or _element(to) != _element(state):
        return None
    values: dict[str, Expr] = dict(zip(names, here.subscripts, strict=True))
    return replace(copy.element, subscripts=tuple(substitute(p, values) for p in row))


def _element(var: Var) -> str:
    return var.type.element if isinstance(var.type, TensorType) else ""
