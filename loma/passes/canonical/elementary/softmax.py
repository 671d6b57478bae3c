"""The logarithm of a softmax is ``log_softmax``, also of its elements:

    p = softmax(x, 1)
    each[n] = -log(p[n, label[n]])

is finite where a probability is too small for a number other than 0, and its adjoint, too.
"""

from __future__ import annotations

from loma.core.effects import written
from loma.core.ir import (
    Assign, Builtin, Declare, Expr, Function, Index, Module, Op, Stmt, Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.walk import (
    free_variables, map_blocks, map_children, map_expressions, map_tensor_functions, nodes,
)  # fmt: skip


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
        for stmt in self._block(self._function.body):
            out.append(stmt)
            if isinstance(stmt, Declare) and stmt.value is None:
                out += self._declared.get(stmt.target.name, [])
        return replace(self._function, body=tuple(out))

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
        return (*before, replace(stmt, value=op), logs, *new, *rest[end:])

    def _variable(self, stmt: Stmt, p: Var, wish: str, value: Expr) -> tuple[Var, Stmt]:
        """A variable as large as the softmax, and the statement that sets it, of the kind that the
        softmax has."""
        self._names = self._names or Names(names_of(self._function))
        var = replace(p, name=self._names.fresh(wish))
        if isinstance(stmt, Declare):
            return var, Declare(var, value, stmt.span)
        self._declared.setdefault(p.name, []).append(Declare(var, None, stmt.span))
        return var, Assign(var, "=", value, stmt.span)


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
