"""The logarithm of a softmax is ``log_softmax``, also of its elements:

    p = softmax(x, 1)
    each[n] = -log(p[n, label[n]])

is finite where a probability is too small for a number other than 0, and its adjoint, too. Where a
program has both of one tensor, the softmax is the exponential of the other, which
:mod:`.exponentials` divides by the sum that both have then.
"""

from __future__ import annotations

from functools import partial

from loma.core.effects import is_blank, written
from loma.core.ir import (
    Assign, Builtin, Declare, Expr, Function, Index, Module, Op, Stmt, Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.walk import (
    all_exchanged, blocks, free_variables, map_blocks, map_children, map_expressions,
    map_tensor_functions, mentioned_names, nodes,
)  # fmt: skip

_OTHER = {"softmax": "log_softmax", "log_softmax": "softmax"}


def softmax(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, lambda function: _Softmax(function).run())


class _Softmax:
    """``_declared``: what is declared behind the declaration of a softmax."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._names: Names | None = None
        self._declared: dict[str, list[Stmt]] = {}

    def run(self) -> Function:
        out: list[Stmt] = []
        for stmt in self._together(self._block(self._function.body)):
            out.append(stmt)
            if is_blank(stmt):
                out += self._declared.get(stmt.target.name, [])
        return replace(self._function, body=tuple(out))

    def _together(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """The function's own block with variables for logarithms that stand beside a softmax."""
        while (found := _pair(body)) is not None:
            first, last, log = found
            self._names = self._names or Names(names_of(self._function))
            var = Var(self._names.fresh("_log_softmax"), log.type)
            values: dict[Expr, Expr] = {log: var}
            values[replace(log, name="softmax")] = _exponential(var)
            read = partial(all_exchanged, values=values)
            here = (map_expressions(stmt, read) for stmt in body[first : last + 1])
            made = Declare(var, log, body[first].span)
            body = (*body[:first], made, *here, *body[last + 1 :])
        return body

    def _block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        body = tuple(map_blocks(map_expressions(stmt, _of_operators), self._block) for stmt in body)
        position = 0
        while position < len(body):
            match body[position]:
                case (
                    Declare(Var() as p, Op("softmax", (x,)) as op)
                    | Assign(Var() as p, "=", Op("softmax", (x,)) as op)
                ) as stmt:
                    body = (
                        *body[:position],
                        *self._with_logarithms(stmt, p, op, x, body[position + 1 :]),
                    )
                case _:
                    pass
            position += 1
        return body

    def _with_logarithms(
        self, stmt: Declare | Assign, p: Var, op: Op, x: Expr, rest: tuple[Stmt, ...]
    ) -> tuple[Stmt, ...]:
        """The softmax and what follows it, where its logarithms are those of a log_softmax."""
        sources = free_variables(op) | {p.name}
        ends = (k for k, later in enumerate(rest) if sources & written((later,)))
        end = next(ends, len(rest))
        if not any(_is_logarithm(node, p) for node in nodes(rest[:end])):
            return (stmt, *rest)
        before: tuple[Stmt, ...] = ()
        if not isinstance(x, Var):
            of, made = self._variable(stmt, p, "_x", x)
            before, op = (made,), replace(op, args=(of,))
        log, logs = self._variable(stmt, p, "_log_softmax", replace(op, name="log_softmax"))
        new = (map_expressions(later, lambda e: _read(e, p, log)) for later in rest[:end])
        after = (*new, *rest[end:])
        if isinstance(stmt, Declare) and p.name not in mentioned_names(after):
            return (*before, logs, *after)  # it is nothing but its logarithms
        return (*before, logs, replace(stmt, value=_exponential(log)), *after)

    def _variable(self, stmt: Stmt, p: Var, wish: str, value: Expr) -> tuple[Var, Stmt]:
        """A variable as large as the softmax, and the statement that sets it, of the kind that the
        softmax has."""
        self._names = self._names or Names(names_of(self._function))
        var = replace(p, name=self._names.fresh(wish))
        if isinstance(stmt, Declare):
            return var, Declare(var, value, stmt.span)
        self._declared.setdefault(p.name, []).append(Declare(var, None, stmt.span))
        return var, Assign(var, "=", value, stmt.span)


def _exponential(log: Var) -> Op:
    return Op("exp", (log,), (), log.type)


def _pair(body: tuple[Stmt, ...]) -> tuple[int, int, Op] | None:
    """The statements from the first to the last that have a softmax and its logarithm, while what
    it is made of stays, and the logarithm."""
    seen: dict[Op, int] = {}  # under its logarithm's name: where
    for position, stmt in enumerate(body):
        if not blocks(stmt):
            for node in nodes((stmt,)):
                if not isinstance(node, Op) or node.name not in ("softmax", "log_softmax"):
                    continue
                log = replace(node, name="log_softmax")
                other = replace(node, name=_OTHER[node.name])
                if log not in seen:
                    seen[log] = position
                elif any(other == n for s in body[seen[log] : position + 1] for n in nodes((s,))):
                    return seen[log], position, log
        changed = written((stmt,))
        seen = {log: at for log, at in seen.items() if free_variables(log).isdisjoint(changed)}
    return None


def _of_operators(expr: Expr) -> Expr:
    expr = map_children(expr, _of_operators)
    match expr:
        case Op("log", (Op("softmax") as op,)):
            return replace(op, name="log_softmax")
        case _:
            return expr


def _is_logarithm(expr: object, p: Var) -> bool:
    match expr:
        case Builtin("log", (Index(Var(name)),)) | Op("log", (Var(name),)):
            return name == p.name
        case _:
            return False


def _read(expr: Expr, p: Var, log: Var) -> Expr:
    expr = map_children(expr, lambda child: _read(child, p, log))
    match expr:
        case Builtin("log", (Index() as element,)) if _is_logarithm(expr, p):
            return replace(element, base=log)
        case Op("log") if _is_logarithm(expr, p):
            return log
        case _:
            return expr
