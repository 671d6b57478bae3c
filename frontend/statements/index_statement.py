"""Index statements: which names are indices, what they range over, and what must not be.

A name in a subscript that is no variable, argument or size is an index. It ranges over the
dimension where it stands alone as a subscript: in the target, else in the first read from the left,
else in the first read under ``zero_pad``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from loma import errors
from loma.core import builder as b, sizes
from loma.core.distinct import surely_repeats, told_apart
from loma.core.ir import INT, Assign, Axis, Expr, Index, IndexAssign, Reduce, TensorType, Var
from loma.core.printer import print_expr
from loma.core.walk import variables, walk
from loma.errors.spans import Span
from loma.frontend.expressions import expression as ex
from loma.frontend.scope import Scope, span_of
from loma.frontend.statements.doubts import doubtful, no_recurrence
from loma.frontend.syntax.python_syntax import elts


@dataclass(frozen=True, slots=True)
class _Read:
    """A subscripted tensor or array in the text; ``bound`` are the reductions' indices there."""

    node: ast.Subscript
    bound: frozenset[str]
    padded: bool


@dataclass(frozen=True, slots=True)
class _Range:
    """A dimension in which an index stands alone."""

    size: Expr
    span: Span
    place: str


def _reads(node: ast.AST, bound: frozenset[str] = frozenset(), padded: bool = False
           ) -> Iterator[_Read]:  # fmt: skip
    """The subscripted places in an expression, left to right, outer ones first."""
    match node:
        case ast.GeneratorExp(elt=elt, generators=generators):
            for loop in generators:
                yield from _reads(loop.iter, bound, padded)
                if isinstance(loop.target, ast.Name):
                    bound |= {loop.target.id}
            yield from _reads(elt, bound, padded)
        case ast.Call(func=ast.Name(id="zero_pad"), args=[ast.Subscript() as inner]):
            yield _Read(inner, bound, True)
            yield from _reads(inner.slice, bound, padded)
        case ast.Subscript():
            yield _Read(node, bound, padded)
            yield from _reads(node.value, bound, padded)
            yield from _reads(node.slice, bound, padded)
        case ast.IfExp(test=test, body=body, orelse=other):
            for part in (body, test, other):
                yield from _reads(part, bound, padded)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _reads(child, bound, padded)


def _names(node: ast.AST) -> Iterator[ast.Name]:
    """The names in a subscript; of a reduction or read inside it, its own ones are left out."""
    match node:
        case ast.Name():
            yield node
        case ast.Call(args=args):
            for arg in args:
                yield from _names(arg)
        case ast.Subscript(slice=inner):
            yield from _names(inner)
        case ast.GeneratorExp():
            return
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _names(child)


def free_indices(scope: Scope, *nodes: ast.expr) -> list[ast.Name]:
    """The indices of an index statement, each at its first place."""
    found: dict[str, ast.Name] = {}
    for node in nodes:
        for read in _reads(node):
            for name in _names(read.node.slice):
                if name.id not in scope.symbols and name.id not in read.bound:
                    found.setdefault(name.id, name)
    return list(found.values())


def _ranges(scope: Scope, nodes: list[ast.expr], name: str) -> tuple[list[_Range], list[_Range]]:
    """Where an index stands alone: outside ``zero_pad``, and under it."""
    plain: list[_Range] = []
    padded: list[_Range] = []
    for node in nodes:
        for read in _reads(node):
            tensor = scope.named(read.node.value)
            if tensor is None or not isinstance(tensor.type, TensorType) or name in read.bound:
                continue
            if all(found.id != name for found in _names(read.node.slice)):
                continue
            dims = ex.check_rank(read.node, tensor.type)
            for k, item in enumerate(elts(read.node.slice)):
                if isinstance(item, ast.Name) and item.id == name:
                    found = _Range(dims[k], span_of(item), f"dimension {k} of '{tensor.name}'")
                    (padded if read.padded else plain).append(found)
    return plain, padded


def _extent(scope: Scope, nodes: list[ast.expr], name: ast.Name) -> Expr:
    plain, padded = _ranges(scope, nodes, name.id)
    if not plain and not padded:
        raise errors.IndexRangeUnknown(
            f"the range of index '{name.id}' is not known: it stands alone in no subscript",
            span_of(name),
            hint=f"give its range: sum(... for {name.id} in range(n)), or "
            f"'for {name.id} in range(n):' around the statement",
        )
    first, *others = plain or padded[:1]
    for other in others:
        if sizes.equal(first.size, other.size) is False:
            a, c = print_expr(first.size), print_expr(other.size)
            raise errors.IndexRangeMismatch(
                f"index '{name.id}' ranges over {other.place}, of size {c}, and over "
                f"{first.place}, of size {a}",
                other.span,
                hint=f"where '{name.id}' need not fill the dimension write '{name.id} + 0', or "
                f"give it a range of its own: for {name.id} in range(...)",
                related=((first.span, f"size {a} here"),),
            )
    return first.size


def declaration(scope: Scope, target: ast.Subscript, value: ast.expr) -> str | None:
    """The type to declare for a target that is not declared, as far as the statement tells; None
    where it is no element of a tensor that lacks a declaration."""
    if not isinstance(target.value, ast.Name) or target.value.id in scope.symbols:
        return None
    if not scope.has_tensors():
        return None
    found = [_dimension(scope, item, value) for item in elts(target.slice)]
    if all(size is None for size in found):
        return "Tensor[...]"
    return f"Tensor[{', '.join('...' if size is None else size for size in found)}]"


def _dimension(scope: Scope, subscript: ast.expr, value: ast.expr) -> str | None:
    """The size of a dimension that an index or a counter goes through."""
    if not isinstance(subscript, ast.Name):
        return None
    symbol = scope.symbols.get(subscript.id)
    if symbol is not None:
        if symbol.extent is None or symbol.value is not None:
            return None
        return print_expr(symbol.extent)
    try:
        plain, padded = _ranges(scope, [value], subscript.id)
    except errors.UserError:  # of the value, which is read when the target is right
        return None
    return next((print_expr(found.size) for found in [*plain, *padded]), None)


Operation = Literal["=", "+=", "-=", "*=", "/="]


def index_statement(
    scope: Scope, target: ast.Subscript | ast.Name, op: Operation, value: ast.expr, span: Span,
    read: Callable[[Scope, ast.expr], Expr] = ex.scalar,
) -> Assign | IndexAssign:  # fmt: skip
    """``target op value`` on elements of a tensor, or a sum into a float variable. ``read`` makes
    an expression of the value."""
    if isinstance(target, ast.Subscript):
        _check_target(scope, target)
    nodes: list[ast.expr] = [target, value]
    indices = free_indices(scope, *nodes)
    own = {name.id for name in free_indices(scope, target)}
    if op not in ("+=", "-="):
        _check_bound(indices, own, op)
    # the target's indices first, then those that are summed over
    indices.sort(key=lambda name: name.id not in own)
    extents = [_extent(scope, nodes, name) for name in indices]
    symbols = [
        scope.counted(name.id, "index", span_of(name), extent)
        for name, extent in zip(indices, extents, strict=True)
    ]
    axes = tuple(Axis(s[0].name, extent) for s, extent in zip(symbols, extents, strict=True))
    named = sum(name.id in own for name in indices)
    with scope.with_symbols(*chain.from_iterable(symbols)):
        with scope.having(elementwise=True):
            place = _place(scope, target)
            expr = read(scope, value)
        if _is_truth(place) and op in ("+=", "-="):
            raise errors.AssignTypeMismatch(
                f"'{op}' adds up, and an element of a BoolTensor is 0 or 1", span,
                hint=_instead_of_adding(ast.unparse(target), [name.id for name in indices[named:]]),
            )  # fmt: skip
        if op in ("*=", "/="):
            expr = b.binary(op[0], place, expr, span)
        elif op == "-=":
            expr = b.unary("-", expr, expr.span)
        if axes[named:]:
            scope.program.warnings += doubtful(expr, axes[named:], indices[:named], indices, value)
        if _is_truth(place):
            expr = b.truth(expr)
        kind: Literal["=", "+="] = "+=" if op in ("+=", "-=") else "="
        return _checked(scope, place, kind, expr, axes, named, span, ast.unparse(target))


def _instead_of_adding(target: str, summed: list[str]) -> str:
    """What to write for ``+=`` to an element of a BoolTensor."""
    counts = "an IntTensor counts"
    if summed:
        return f"write max(... for {summed[0]} in range(n)) for 'any', min(...) for 'all'; {counts}"
    again = "in a 'for' statement where an element is named more than once"
    return f"write {target} = {target} or ..., {again}; {counts}"


def _check_target(scope: Scope, target: ast.Subscript) -> None:
    """Refuses a target that is an element of an element, or of a tensor that is read only."""
    if not isinstance(target.value, ast.Name):
        raise errors.RankMismatch(
            "a tensor takes all its subscripts at once", span_of(target),
            hint="write X[i, j] instead of X[i][j]",
        )  # fmt: skip
    symbol = scope.check_writable(target.value.id, span_of(target))
    assert isinstance(symbol.type, TensorType)
    ex.check_rank(target, symbol.type)


def _is_truth(place: Index | Var) -> bool:
    tensor = place.base.type if isinstance(place, Index) else place.type
    return isinstance(tensor, TensorType) and tensor.element == "bool"


def _check_bound(indices: list[ast.Name], own: set[str], op: str) -> None:
    for name in indices:
        if name.id not in own:
            raise errors.UnboundIndex(
                f"index '{name.id}' is on the right of '{op}' only",
                span_of(name),
                hint=f"sum over it with '+=', or bind it: sum(... for {name.id} in range(n))",
            )


def _place(scope: Scope, target: ast.Subscript | ast.Name) -> Index | Var:
    if isinstance(target, ast.Subscript):
        found = ex.subscript(scope, target, target=True)
    else:
        found = b.as_scalar(scope.lookup(target))  # a rank-0 tensor is one element
    assert isinstance(found, Index | Var)
    return found


def _checked(
    scope: Scope, place: Index | Var, op: Literal["=", "+="], value: Expr, axes: tuple[Axis, ...],
    named: int, span: Span, text: str,
) -> Assign | IndexAssign:  # fmt: skip
    """The statement, whose target has the first ``named`` axes and is the ``text``."""
    target_axes, summed = axes[:named], axes[named:]
    subscripts = place.subscripts if isinstance(place, Index) else ()
    name = place.base.name if isinstance(place, Index) and isinstance(place.base, Var) else ""
    once = told_apart(subscripts, target_axes) >= {axis.name for axis in target_axes}
    if op == "=" and not once and surely_repeats(subscripts, target_axes):
        raise errors.TargetNotInjective(
            f"'{text}' is assigned twice: different indices give the same element",
            place.span,
            hint="use '+=', which adds up what falls on one element",
        )
    if isinstance(place, Var):
        reads_itself = place.name in variables(value)
    else:
        reads_itself = any(isinstance(n, Var) and n.name == name for n in walk(value))
        scope.program.warnings += no_recurrence(place, name, value, target_axes)
    if summed and (reads_itself or (isinstance(place, Var) and place.type == INT)):
        # The reads mean the value before the statement, so the sum is worked out first.
        value = Reduce("sum", value, summed, value.type, value.span)
        axes = target_axes
        if isinstance(place, Var):
            return Assign(place, op, value, span)
    return IndexAssign(place, op, value, axes, span)
