"""Where rounds of a kernel's loops begin: statements that end one may as well begin the next.

    for t in range(n):                 for t in range(n):
        y = f(x)                           if t > 0:
        if t + 1 < n:                          x = x + y
            x = x + y                      y = f(x)

The same statements run one after the other. What is best is up to who asks for it.
"""

from __future__ import annotations

from collections.abc import Callable

from loma.backends.kernels.sharing import reads_tensors
from loma.core import sizes
from loma.core.bounds import ONE, ZERO
from loma.core.effects import written
from loma.core.ir import (
    INT, Assign, Binary, Builtin, Expr, For, If, IndexAssign, IntConst, Stmt, Var, Zero, replace,
)  # fmt: skip
from loma.core.walk import (
    expressions, free_variables, map_blocks, mentioned_names, statements, substitute,
    variable_names, variables,
)  # fmt: skip


def forms(body: tuple[Stmt, ...]) -> list[tuple[Stmt, ...]]:
    """A kernel's body as it is, with rounds that begin with what ended others, and with rounds that
    end with what began others."""
    turns: tuple[Callable[[For], For], ...] = (_ends_begin, _begins_end)
    turned = (
        tuple(turn(stmt) if isinstance(stmt, For) else stmt for stmt in body) for turn in turns
    )
    return list(dict.fromkeys((body, *turned, _with_last_rounds(body))))


def _with_last_rounds(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """With loops and the last round behind each, which is less, as one loop whose rounds begin with
    what the last one lacks."""
    out: list[Stmt] = []
    for stmt in body:
        before = out[-1] if out else None
        whole = _whole(before, stmt) if isinstance(before, For) and isinstance(stmt, For) else None
        out[len(out) - (whole is not None) :] = [stmt if whole is None else whole]
    return tuple(out)


def _whole(loop: For, last: For) -> For | None:
    rounds = Binary("+", loop.extent, ONE, INT)
    match last.extent:
        case Builtin("min", (extent, IntConst(1))) if sizes.equal(extent, rounds) is True:
            pass
        case _:
            return None
    count = len(last.body)
    every, rest = loop.body[:count], loop.body[count:]
    fixed = free_variables(extent).isdisjoint(written(loop.body))
    used = mentioned_names((*loop.body, *last.body))
    plain = all(isinstance(stmt, IndexAssign | If | Zero) for stmt in statements(rest))
    if every != last.body or not fixed or not plain or {loop.counter, last.counter} & used:
        return None
    first, _ = _bounds(replace(loop, backwards=False))
    begin = If(first, rest, (), loop.span)
    return replace(loop, extent=extent, body=(begin, *every), backwards=False)


def written_out(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """With conditions in place of ints that stand for them, those decided that a branch decides."""
    out = _with_conditions(body, {}, ())
    uses = [
        name for stmt in statements(out) for expr in expressions(stmt) for name in variables(expr)
    ]
    return _without(out, frozenset(name for name in uses if uses.count(name) == 1))


def _without(body: tuple[Stmt, ...], unread: frozenset[str]) -> tuple[Stmt, ...]:
    """Without values for ints that nothing reads."""
    return tuple(
        map_blocks(stmt, lambda block: _without(block, unread))
        for stmt in body
        if not (_is_int(stmt) and written((stmt,)) <= unread)
    )


def _is_int(stmt: Stmt) -> bool:
    match stmt:
        case Assign(Var(type=type_), "=", value):
            return type_ == INT and not reads_tensors(value)
        case _:
            return False


def _with_conditions(
    body: tuple[Stmt, ...], known: dict[str, Expr], holds: tuple[Expr, ...]
) -> tuple[Stmt, ...]:
    known = dict(known)
    out: list[Stmt] = []
    for stmt in body:
        match stmt:
            case Assign(Var(name), _, value) if _is_int(stmt):
                value = substitute(value, known)
                known = {n: e for n, e in known.items() if name not in variable_names(e)}
                known.pop(name, None)
                if name not in variable_names(value):
                    known[name] = value
                out.append(stmt)
            case If(cond, then, other):
                cond = substitute(cond, known)
                changed = written((stmt,))
                if cond in holds:
                    out += _with_conditions(then, known, holds)
                else:
                    mine = (*holds, cond) if variable_names(cond).isdisjoint(changed) else holds
                    yes = _with_conditions(then, known, mine)
                    out.append(
                        replace(
                            stmt, cond=cond, then=yes, other=_with_conditions(other, known, holds)
                        )
                    )
                known = {n: e for n, e in known.items() if not changed & {n, *variable_names(e)}}
                holds = tuple(c for c in holds if variable_names(c).isdisjoint(changed))
            case _:
                changed = written((stmt,))
                out.append(map_blocks(stmt, lambda block: _with_conditions(block, {}, ())))
                known = {n: e for n, e in known.items() if not changed & {n, *variable_names(e)}}
                holds = tuple(c for c in holds if variable_names(c).isdisjoint(changed))
    return tuple(out)


def _bounds(loop: For) -> tuple[Expr, Expr]:
    """Conditions for all rounds but the first, and but the last."""
    counter = Var(loop.counter, INT)
    up = Binary("<", Binary("+", counter, ONE, INT), loop.extent, INT)
    down = Binary(">", counter, ZERO, INT)
    return (up, down) if loop.backwards else (down, up)


def _ends_begin(loop: For) -> For:
    """With what ends all rounds but the last at the beginning of all but the first."""
    first, last = _bounds(loop)
    match loop.body:
        case (*body, If(cond, then, ()) as end) if body and cond == last and _moves(loop, then):
            return replace(loop, body=(replace(end, cond=first, then=then), *body))
        case _:
            return loop


def _begins_end(loop: For) -> For:
    """With what all rounds but the first begin with, or could, at the end of all but the last."""
    first, last = _bounds(loop)
    for k, stmt in enumerate(loop.body):
        before = loop.body[:k]
        if not (isinstance(stmt, If) and stmt.cond == first and not stmt.other):
            continue
        changes, used = written((stmt,)), mentioned_names((stmt,))
        if (
            not _moves(loop, stmt.then)
            or changes & mentioned_names(before)
            or used & written(before)
        ):
            continue
        rest = (*before, *loop.body[k + 1 :])
        match rest:
            case (*body, If(cond, then, ()) as end) if cond == last:
                return replace(loop, body=(*body, replace(end, then=(*then, *stmt.then))))
            case _:
                return replace(loop, body=(*rest, replace(stmt, cond=last)))
    return loop


def _moves(loop: For, body: tuple[Stmt, ...]) -> bool:
    """Whether statements are the same in each round."""
    fixed = free_variables(loop.extent).isdisjoint(written(loop.body))
    plain = all(isinstance(stmt, IndexAssign | If) for stmt in statements(body))
    return fixed and plain and loop.counter not in mentioned_names(body)
