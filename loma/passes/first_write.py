"""A variable that starts at zero and is first added to is assigned instead.

``x : T`` followed by ``x += e`` becomes ``x : T = e``, and an index statement that adds to every
element of a fresh tensor becomes an assignment (with an explicit ``sum`` over the indices that only
the right side has), so that no tensor is filled with zeros only to be read again. So does one that
adds to what ``x[i] = 0.0`` or another number has filled, as loops over elements do with a variable.
The first statement that gives elements a value, such as ``x[i] = e if c else x[i]``, finds zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

from loma.core import builder as b, sizes
from loma.core.axes import runs_over, target_axes
from loma.core.distinct import fill_together
from loma.core.effects import written
from loma.core.ir import (
    Assign, Axis, Declare, Expr, FloatConst, FloatType, For, Index, IndexAssign, IntConst, Module,
    Op, Reduce, Stmt, TensorType, Var, Zero, ZeroPad, replace,
)  # fmt: skip
from loma.core.ops import OPS
from loma.core.walk import (
    children, exchanged, free_variables, map_blocks, mentioned_names, root,
)  # fmt: skip
from loma.passes.liveness import covers, filling


def first_write(module: Module) -> Module:
    """The pass on every function of a module."""
    functions = (replace(f, body=first_writes(f.body)) for f in module.functions)
    return replace(module, functions=tuple(functions))


def first_writes(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The pass on one function's body."""
    body = _whole_first(_filled(body))
    out: list[Stmt | None] = list(body)
    places = _mentions(body)
    for position, stmt in enumerate(body):
        if not isinstance(stmt, Declare) or not is_zero(stmt.value):
            continue
        name = stmt.target.name
        later = next((place for place in places[name] if place > position), None)
        if later is None:
            continue
        use = out[later]
        match use:
            case Assign(Var() as target, "+=", value) if (
                target.name == name
                and name not in free_variables(value)
                and _same_type(target, value)
            ):
                out[position] = None
                out[later] = Declare(target, value, use.span)
            case Zero():
                out[later] = None
            case IndexAssign(target, "+=") if covers(use) and name not in free_variables(use.value):
                out[later] = assigned(use)
            case IndexAssign(Index(type=FloatType()) as target, "=", value) if root(
                target
            ) == name and name in free_variables(value):
                out[later] = replace(use, value=exchanged(value, target, FloatConst(0.0)))
            case For():
                own = (s for s in filling(use) if root(s.target) == name and s.op == "+=")
                new = {s: assigned(s) for s in own}  # sums may be added up panel by panel
                new = {s: n for s, n in new.items() if not isinstance(n.value, Reduce)}
                out[later] = _replaced(use, new)
            case _:
                pass
    return tuple(stmt for stmt in out if stmt is not None)


def _replaced(stmt: Stmt, new: Mapping[IndexAssign, IndexAssign]) -> Stmt:
    """A loop with others for statements in it."""
    if isinstance(stmt, IndexAssign):
        return new.get(stmt, stmt)
    return map_blocks(stmt, lambda body: tuple(_replaced(s, new) for s in body)) if new else stmt


def _filled(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """A block, and those inside; what is added to a number in every element is assigned there."""
    out: list[Stmt | None] = [map_blocks(stmt, _filled) for stmt in body]
    for position, stmt in enumerate(out):
        match stmt:
            case IndexAssign(Index(Var(name)), "=", IntConst() | FloatConst() as number) if covers(
                stmt
            ):
                pass
            case _:
                continue
        behind = enumerate(out[position + 1 :], position + 1)
        uses = ((k, s) for k, s in behind if s is not None and name in mentioned_names((s,)))
        match next(uses, None):
            case (at, IndexAssign(Index(Var(target)), "+=", value) as use) if target == name:
                new = assigned(use)
                if covers(use) and name not in free_variables(value) and new.op == "=":
                    out[position], out[at] = None, replace(new, value=b.add(number, new.value))
            case _:
                pass
    return tuple(stmt for stmt in out if stmt is not None)


def _whole_first(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """With the first addition to all elements of a fresh tensor in front of those to some of them:
    it may assign. Additions to parts that make up the tensor assign, too; what gives a value to
    all parts of it needs no zeros."""
    out = [map_blocks(stmt, _whole_first) for stmt in body]
    for stmt in tuple(out):
        match stmt:
            case Declare(Var(name), value) if is_zero(value):
                pass
            case Zero(Var(name)):
                pass
            case _:
                continue
        behind = range(out.index(stmt) + 1, len(out))
        named = [k for k in behind if name in mentioned_names((out[k],))]
        added = list(takewhile(lambda k: _adds(out[k], name), named))
        whole = next((k for k in added if _covers(out[k])), None)
        if whole is None:
            parts = named[: fill_together([out[k] for k in named], name)]
            for k in parts:
                part = out[k]
                assert isinstance(part, IndexAssign)
                out[k] = replace(part, op="=")
            if parts and isinstance(stmt, Zero):
                out.remove(stmt)
        if whole is None or whole == added[0]:
            continue
        between = written(tuple(out[added[0] : whole])) - {name}
        if between.isdisjoint(mentioned_names((out[whole],))):
            out.insert(added[0], out.pop(whole))
    return tuple(out)


def _adds(stmt: Stmt, name: str) -> bool:
    """Whether a statement does nothing to a tensor but add to its elements."""
    match stmt:
        case IndexAssign(Index(Var(target), subscripts), "+=", value) if target == name:
            return not any(name in free_variables(part) for part in (*subscripts, value))
        case _:
            return False


def _covers(stmt: Stmt) -> bool:
    return isinstance(stmt, IndexAssign) and covers(stmt) and assigned(stmt).op == "="


def is_zero(value: Expr | None) -> bool:
    """Whether a declaration with that value gives a variable zeros."""
    return value is None or (isinstance(value, Op) and OPS[value.name].fill == 0)


def _mentions(body: tuple[Stmt, ...]) -> dict[str, list[int]]:
    """Where in the body each variable occurs, nested blocks included."""
    found: dict[str, list[int]] = {}
    for position, stmt in enumerate(body):
        for name in mentioned_names((stmt,)):
            found.setdefault(name, []).append(position)
    return found


def _same_type(target: Var, value: Expr) -> bool:
    if not isinstance(target.type, TensorType):
        return target.type == value.type
    own, other = target.type.dims, getattr(value.type, "dims", None)
    if own is None or other is None:
        return own is None and isinstance(value, Op | Var)
    return sizes.same(own, other)


def assigned(stmt: IndexAssign) -> IndexAssign:
    """``T[l] += e`` into zeros as ``T[l] = sum(e for ...)``; as it is where a check would be lost,
    that all dimensions in which an index of the statement stands alone have the same size."""
    kept, value = target_axes(stmt), stmt.value
    summed = tuple(axis for axis in stmt.axes if axis not in kept)
    if summed and (isinstance(value, Reduce) or not _agrees(value, summed)):
        return stmt
    if summed:
        value = Reduce("sum", value, summed, value.type)
    return replace(stmt, op="=", value=value, axes=kept)


def _agrees(value: Expr, axes: tuple[Axis, ...]) -> bool:
    """Whether the sizes surely are the same wherever one of the axes stands alone."""
    if isinstance(value, ZeroPad):
        return True
    if isinstance(value, Index) and isinstance(value.base.type, TensorType):
        named = {axis.name: axis for axis in axes}
        for subscript, dim in zip(value.subscripts, value.base.type.dims or (), strict=False):
            alone = isinstance(subscript, Var) and subscript.name in named
            if alone and not runs_over(subscript, dim, named):
                return False
    return all(_agrees(child, axes) for child in children(value))
