"""Running sums and products by operators, as index statements: ``cumsum(x, 1)`` is
``y[b, t] = sum(x[b, q] for q in range(t + 1))``, which fuses, and has an adjoint of that kind."""

from __future__ import annotations

from loma.core import sizes
from loma.core.bounds import ONE
from loma.core.ir import (
    FLOAT, INT, Assign, Axis, Declare, Expr, Function, Index, IndexAssign, IntConst, Module, Op,
    Reduce, ReduceKind, Return, Stmt, TensorType, Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.sizes import arith
from loma.core.walk import map_children, map_expressions, map_tensor_functions

_KINDS: dict[str, ReduceKind] = {"cumsum": "sum", "cumprod": "prod"}


def cumulative(module: Module) -> Module:
    """The pass on the outermost block of every tensor function of a module."""
    return map_tensor_functions(module, lambda function: _Cumulative(function).run())


class _Cumulative:
    def __init__(self, function: Function) -> None:
        self._function = function
        self._names = Names(names_of(function))

    def run(self) -> Function:
        body = (new for stmt in self._function.body for new in self._statement(stmt))
        return replace(self._function, body=tuple(body))

    def _statement(self, stmt: Stmt) -> list[Stmt]:
        """A statement of whole tensors with index statements for running sums and products."""
        made: list[Stmt] = []

        def visit(expr: Expr) -> Expr:
            expr = map_children(expr, visit)
            dims = expr.type.dims if isinstance(expr.type, TensorType) else None
            match expr:
                case Op("cumsum" | "cumprod" as name, (x,), ((_, IntConst(dim)),)) if dims:
                    return self._running(_KINDS[name], x, dim % len(dims), expr, made)
                case _:
                    return expr

        if not isinstance(stmt, Declare | Assign | Return):
            return [stmt]
        new = map_expressions(stmt, visit)
        last = made[-1] if made else None
        if (
            isinstance(new, Declare)
            and isinstance(last, IndexAssign)
            and (
                new.value == last.element.tensor
                and sizes.same_type(new.target.type, new.value.type)
            )
        ):
            # the result itself
            target = replace(last.element, base=new.target)
            made = [s for s in made if not (isinstance(s, Declare) and s.target == new.value)]
            return [Declare(new.target, None, new.span), *made[:-1], replace(last, target=target)]
        return [*made, new]

    def _running(self, kind: ReduceKind, x: Expr, dim: int, op: Op, made: list[Stmt]) -> Var:
        """A new tensor with reductions of a tensor up to each element, which ``made`` fill."""
        assert isinstance(op.type, TensorType)
        dims = sizes.dims_of(op)
        if not isinstance(x, Var):
            operand = Var(self._names.fresh("_operand"), op.type)
            made.append(Declare(operand, x, op.span))
            x = operand
        axes = tuple(Axis(self._names.fresh(f"_i{k}"), size) for k, size in enumerate(dims))
        own = tuple(Var(axis.name, INT) for axis in axes)
        inner = Var(self._names.fresh("_k"), INT)
        element = INT if op.type.integer else FLOAT
        read = Index(x, (*own[:dim], inner, *own[dim + 1 :]), element, op.span)
        extent = arith("+", own[dim], ONE)
        value = Reduce(kind, read, (Axis(inner.name, extent),), element, op.span)
        result = Var(self._names.fresh(f"_{op.name}"), op.type)
        target = Index(result, own, element, op.span)
        made.append(Declare(result, None, op.span))
        made.append(IndexAssign(target, "=", value, axes, op.span))
        return result
