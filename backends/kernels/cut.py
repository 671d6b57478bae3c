"""Statements for a part of an index's values: their axis runs over a count, and so do types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from loma.backends.kernels.sharing import opened, subscripts_of
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Expr, FloatConst, Index, IndexAssign, IntConst, Stmt, TensorType, Var,
    Zero, replace,
)  # fmt: skip
from loma.core.names import Names
from loma.core.walk import map_blocks, map_children, map_expressions
from loma.errors.spans import Span


@dataclass(slots=True)
class Cut:
    """Rewrites statements that share an index.

    ``called`` is what the index statements, in order, call the index; ``dims`` gives the dimension
    of each tensor that goes with it. ``first`` is the part's first value: what computes with the
    index adds it. With ``names``, zeros of tensors other than ``private`` ones
    become index statements.
    """

    count: Var
    first: Var
    called: Iterator[str]
    dims: dict[str, int]
    names: Names | None = None
    private: frozenset[str] = frozenset()

    def statement(self, stmt: Stmt) -> Stmt:
        match stmt:
            case IndexAssign():
                own = next(self.called)
                if own not in subscripts_of(stmt):  # a sum over the parts
                    stmt = opened(stmt)
                axes = tuple(
                    Axis(own, self.count) if axis.name == own else axis for axis in stmt.axes
                )
                return map_expressions(replace(stmt, axes=axes), lambda e: self._expr(e, own))
            case Zero(Var(name) as target):
                if self.names is None or name in self.private:
                    return map_expressions(stmt, self._expr)
                part = Var(name, self.type(name, target.type))
                return zeros(part, self.names, stmt.span)
            case _:
                return map_blocks(stmt, lambda block: tuple(map(self.statement, block)))

    def type(self, name: str, type_: object) -> TensorType:
        """The type of a tensor's part."""
        assert isinstance(type_, TensorType)
        assert type_.dims is not None
        dim = self.dims[name]
        return replace(type_, dims=(*type_.dims[:dim], self.count, *type_.dims[dim + 1 :]))

    def _expr(self, expr: Expr, own: str = "") -> Expr:
        match expr:
            case Var(name) if name in self.dims:
                return replace(expr, type=self.type(name, expr.type))
            case Var(name) if name == own:
                return Binary("+", self.first, expr, INT, expr.span)
            case Index(base, subscripts):  # no other subscript has the index
                inside = tuple(
                    s if isinstance(s, Var) and s.name == own else self._expr(s, own)
                    for s in subscripts
                )
                return replace(expr, base=self._expr(base, own), subscripts=inside)
            case _:
                return map_children(expr, lambda child: self._expr(child, own))


def zeros(target: Var, names: Names, span: Span, fixed: Mapping[int, Var] | None = None) -> Stmt:
    """Zeros in a tensor as an index statement; ``fixed``: only where these dimensions have these
    values."""
    assert isinstance(target.type, TensorType)
    fixed = fixed or {}
    axes = {
        dim: Axis(names.fresh(f"_i{dim}"), size)
        for dim, size in enumerate(target.type.dims or ())
        if dim not in fixed
    }
    own = {dim: Var(axis.name, INT) for dim, axis in axes.items()}
    subscripts = tuple(var for _, var in sorted({**own, **fixed}.items()))
    integer = target.type.integer
    element = Index(target, subscripts, INT if integer else FLOAT)
    zero = IntConst(0) if integer else FloatConst(0.0)
    return IndexAssign(element, "=", zero, tuple(axes.values()), span)
