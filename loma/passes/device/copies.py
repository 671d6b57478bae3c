"""Statements about numbers on the device, each of which is a kernel: without those that only copy,
and early, so that they do not stand between others that could be one kernel."""

from __future__ import annotations

from collections import Counter

from loma.core.effects import effects, is_blank, written
from loma.core.ir import (
    Assign, Call, Declare, Expr, Function, Index, IndexAssign, Reduce, Return, Stmt, TensorType,
    Var, replace,
)  # fmt: skip
from loma.core.ops import may_divide_by_zero
from loma.core.walk import (
    map_blocks, map_expressions, mentioned_names, own_names, root, statements, substitute,
    variable_names, walk,
)  # fmt: skip


def without_copies(function: Function) -> Function:
    """The function without a 0-dim tensor whose only value is that of another one, which does not
    change afterwards."""
    copies = _Copies(function)
    new: dict[str, Expr] = {}
    out: list[Stmt] = []
    for position, stmt in enumerate(function.body):
        stmt = map_expressions(stmt, lambda expr: substitute(expr, new)) if new else stmt
        pair = copies.pair(stmt, position)
        if pair is None:
            out.append(stmt)
        else:
            new[pair[0]] = pair[1]
    kept = (s for s in out if not (isinstance(s, Declare) and s.target.name in new))
    return replace(function, body=tuple(kept)) if new else function


def early(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """A block, and those inside, with declarations of 0-dim tensors, and what computes these of
    others alone, as far ahead as can be."""
    out: list[Stmt] = []
    for old in body:
        stmt = map_blocks(old, early)
        at = len(out)
        if _is_of_numbers(stmt):
            while at and not _depends(stmt, out[at - 1]):
                at -= 1
        out.insert(at, stmt)
    return tuple(out)


def _is_of_numbers(stmt: Stmt) -> bool:
    match stmt:
        case Declare(Var(_, TensorType(())), None):
            return True
        case IndexAssign(Index(Var(), ()), _, value, ()):
            return not any(
                isinstance(node, Reduce | Call)
                or (isinstance(node, Index) and node.subscripts)
                or may_divide_by_zero(node)
                for node in walk(value)
            )
        case _:
            return False


def _depends(stmt: Stmt, before: Stmt) -> bool:
    """Whether a statement has to stay behind another one."""
    if isinstance(stmt, Declare):
        return stmt.target.name in mentioned_names((before,))
    assert isinstance(stmt, IndexAssign)
    target = stmt.element.tensor.name
    return target in mentioned_names((before,)) or not own_names(stmt).isdisjoint(
        written((before,))
    )


class _Copies:
    def __init__(self, function: Function) -> None:
        self._params = {param.name for param in function.params}
        self._writes: Counter[str] = Counter()
        self._last: dict[str, int] = {}  # the statement of the outermost block that writes it last
        self._first: dict[str, int] = {}  # and the one that mentions it first
        self._shared: set[str] = set()  # what may have the storage of other tensors
        self._returned: set[str] = set()
        self._declared: set[str] = set()
        for position, stmt in enumerate(function.body):
            if is_blank(stmt):
                self._declared.add(stmt.target.name)
                continue
            for name in mentioned_names((stmt,)):
                self._first.setdefault(name, position)
            for inner in statements((stmt,)):
                self._look_at(inner, position)

    def _look_at(self, stmt: Stmt, position: int) -> None:
        for place in effects(stmt).writes:
            self._writes[root(place)] += 1
            self._last[root(place)] = position
        match stmt:
            case Declare(target, value) | Assign(target, _, value) if value is not None:
                if isinstance(target.type, TensorType):
                    self._shared |= {root(target), *variable_names(value)}
            case Return(values):
                self._returned.update(*map(variable_names, values))
            case _:
                pass

    def pair(self, stmt: Stmt, position: int) -> tuple[str, Var] | None:
        """The copy that a statement makes, and what it is one of."""
        match stmt:
            case IndexAssign(
                Index(Var(name, type_), ()), "=", Index(Var(other) as value, ()), ()
            ) if value.type == type_ and name in self._declared:
                pass
            case _:
                return None
        changes = self._writes[name] > 1 or self._last.get(other, -1) >= position
        read_before = self._first[name] < position
        if changes or read_before or self._shared & {name, other}:
            return None
        if name in self._returned:  # each result is a tensor of its own
            if other in self._params | self._returned:
                return None
            self._returned.add(other)
        return name, value
