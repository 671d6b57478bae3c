"""Parts of tensors as targets outside index statements: ``h[t + 1] = tanh(h[t] @ U)``.

An index statement over the part's dimensions; the value is worked out before it, and broadcasts.
Where no tensor of its sizes can be declared, since they change (``y[k:] -= L[k:, :k] @ x[:k]`` in a
loop over k), the statement computes its elements, if arithmetic and products make them.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from loma import errors
from loma.core import builder as b, sizes
from loma.core.axes import index_statement
from loma.core.builtins import BUILTINS
from loma.core.ir import FLOAT, INT, Axis, Expr, Index, IntConst, Reduce, Stmt, TensorType, Var
from loma.core.overlap import apart, reads_of, same_element
from loma.core.printer import print_expr
from loma.core.walk import at, free_variables, substitute
from loma.errors.spans import Span
from loma.frontend.expressions import expression as ex
from loma.frontend.expressions.slices import part
from loma.frontend.scope import Scope, span_of
from loma.frontend.statements.index_statement import Operation
from loma.frontend.syntax.python_syntax import SYMBOLS, elts, is_new_dimension, is_slice

_ZERO = IntConst(0)


def is_slice_target(scope: Scope, node: ast.Subscript) -> bool:
    """Whether the target is a part of a tensor; with an index in it, it is none."""
    symbol = scope.named(node.value)
    if symbol is None or not isinstance(symbol.type, TensorType) or symbol.type.dims is None:
        return False
    nodes = elts(node.slice)
    names = {n.id for item in nodes for n in ast.walk(item) if isinstance(n, ast.Name)}
    return is_slice(nodes, len(symbol.type.dims)) and names <= scope.symbols.keys()


def assign_slice(
    scope: Scope, node: ast.Subscript, op: Operation, value: ast.expr, span: Span
) -> Stmt:
    """``target op value`` on a part of a tensor."""
    assert isinstance(node.value, ast.Name)
    symbol = scope.check_writable(node.value.id, span_of(node))
    assert isinstance(symbol.type, TensorType)
    base = Var(symbol.name, symbol.type, span_of(node.value))
    axes: list[Axis] = []
    subscripts: list[Expr] = []
    for start, step, extent in part(scope, node, symbol.type.dims or ()):
        if extent is None:
            subscripts.append(start)
            continue
        axis = Axis(scope.names.fresh(f"_i{len(axes)}"), extent)
        axes.append(axis)
        place = b.binary("*", step, Var(axis.name, INT))
        subscripts.append(sizes.simplify(b.binary("+", start, place)))
    element = INT if symbol.type.integer else FLOAT
    target = Index(base, tuple(subscripts), element, span_of(node))
    found = _old(scope, target, tuple(axes), _element(scope, value, axes))
    found = ex.convert(found, element, "the value", errors.AssignTypeMismatch)
    if op in ("*=", "/="):
        found = b.binary(op[0], target, found, span)
    elif op == "-=":
        found = b.unary("-", found, span)
    kind = "+=" if op in ("+=", "-=") else "="
    own = [axis.name for axis in axes]  # a part need not fill the dimensions that it lies in
    return at(index_statement(target, kind, found, tuple(axes), own), span)


def _element(scope: Scope, node: ast.expr, axes: list[Axis]) -> Expr:
    """What the value gives for each element of the part."""
    value = ex.expression(scope, node)
    if not isinstance(value.type, TensorType):
        return value
    dims, of_ints = value.type.dims, value.type.integer
    if dims is None:
        raise _unknown(node)
    if len(dims) > len(axes):
        raise errors.RankMismatch(
            f"this part of the tensor has rank {len(axes)}, and the value has rank {len(dims)}",
            span_of(node),
        )
    along = axes[len(axes) - len(dims) :]
    dims = tuple(
        axis.extent if sizes.equal(dim, axis.extent) is None and dim != IntConst(1) else dim
        for dim, axis in zip(dims, along, strict=True)
    )
    type_ = replace(value.type, dims=dims)
    value = scope.once(value, type_=type_)
    if not isinstance(value, Var) or value.type != type_:
        made = None if of_ints else _elements(scope, node)
        single = None if made is None else _broadcast(made, axes)
        if single is not None:
            return single
        for name in sorted({n for dim in dims for n in free_variables(dim)}):
            if not scope.is_size(name):
                raise errors.RankMismatch(
                    f"a size of this value depends on '{name}', which changes in the function",
                    span_of(node),
                    hint="assign its elements with an index statement or a loop over them",
                    var=name,
                )
        raise _unknown(node)
    subscripts: list[Expr] = []
    for dim, axis in zip(dims, along, strict=True):
        if sizes.equal(dim, axis.extent) is False and dim != IntConst(1):
            raise errors.RankMismatch(
                f"this part of the tensor has size {print_expr(axis.extent)}, where the value has "
                f"{print_expr(dim)}",
                span_of(node),
            )
        one = dim == IntConst(1) and sizes.equal(dim, axis.extent) is not True
        subscripts.append(IntConst(0) if one else Var(axis.name, INT))
    return Index(value, tuple(subscripts), INT if of_ints else FLOAT, span_of(node))


def _old(scope: Scope, target: Index, axes: tuple[Axis, ...], value: Expr) -> Expr:
    """The value with what the tensor held before, if elements that it reads may be written before
    others are worked out."""
    reads = reads_of(target.tensor.name, value)
    if all(
        same_element(target, read.place) or apart(target, axes, read, {}, scope.is_size)
        for read in reads
    ):
        return value
    return substitute(value, {target.tensor.name: scope.once(target.tensor, kept=True)})


@dataclass(frozen=True, slots=True)
class _Elements:
    """A value of floats by its sizes, and what it is at positions."""

    dims: tuple[Expr, ...]
    at: Callable[[Sequence[Expr]], Expr]


def _elements(scope: Scope, node: ast.expr) -> _Elements | None:
    """A value that is made of parts of tensors by arithmetic and products of matrices."""
    span = span_of(node)
    match node:
        case ast.BinOp(left=left, op=ast.MatMult(), right=right):
            first, second = _elements(scope, left), _elements(scope, right)
            if first is None or second is None:
                return None
            return _product(scope, first, second, span)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in SYMBOLS:
            first, second = _elements(scope, left), _elements(scope, right)
            if first is None or second is None:
                return None
            symbol = SYMBOLS[type(op)]
            return _joint([first, second], lambda x: b.binary(symbol, x[0], x[1], span))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _elements(scope, operand)
            return None if inner is None else _joint([inner], lambda x: b.unary("-", x[0], span))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if (
            name in BUILTINS and name not in scope.program.functions
        ):
            found = [inner for arg in args if (inner := _elements(scope, arg)) is not None]
            few = name in ("max", "min") or len(args) == BUILTINS[name].arity
            return _joint(found, _call(name, span)) if few and len(found) == len(args) else None
        case ast.Name() | ast.Subscript():
            if (tensor := _part(scope, node)) is not None:
                return tensor
    value = b.as_scalar(ex.expression(scope, node))
    return _Elements((), lambda _: value) if b.is_scalar(value.type) else None


def _call(name: str, span: Span) -> Callable[[list[Expr]], Expr]:
    """Calls of a built-in function; ``max`` and ``min`` take any number of values."""
    if name not in ("max", "min"):
        return lambda values: b.builtin(name, values, span)
    return lambda values: functools.reduce(lambda x, y: b.builtin(name, (x, y), span), values)


def _part(scope: Scope, node: ast.Name | ast.Subscript) -> _Elements | None:
    """A tensor of floats, or a slice of one."""
    whole = node if isinstance(node, ast.Name) else node.value
    symbol, span = scope.named(whole), span_of(node)
    if symbol is None or not isinstance(symbol.type, TensorType) or symbol.type.integer:
        return None
    base, dims = Var(symbol.name, symbol.type, span_of(whole)), symbol.type.dims or ()
    places: list[tuple[Expr, Expr, Expr | None]] = [(_ZERO, IntConst(1), dim) for dim in dims]
    if isinstance(node, ast.Subscript):
        nodes = elts(node.slice)
        if not is_slice(nodes, len(dims)) or any(map(is_new_dimension, nodes)):
            return None
        places = part(scope, node, dims)

    def at(positions: Sequence[Expr]) -> Expr:
        left = iter(positions)
        subscripts = [
            start
            if extent is None
            else sizes.simplify(b.binary("+", start, b.binary("*", step, next(left))))
            for start, step, extent in places
        ]
        return Index(base, tuple(subscripts), FLOAT, span)

    return _Elements(tuple(extent for _, _, extent in places if extent is not None), at)


def _joint(parts: list[_Elements], made: Callable[[list[Expr]], Expr]) -> _Elements | None:
    """Values element by element, which broadcast."""
    longest = max((part.dims for part in parts), key=len)
    dims = list(longest)
    for part_ in parts:
        for k, dim in enumerate(reversed(part_.dims), 1):
            if dims[-k] == IntConst(1):
                dims[-k] = dim
            elif dim != IntConst(1) and sizes.equal(dim, dims[-k]) is not True:
                return None

    def at(positions: Sequence[Expr]) -> Expr:
        return made([part_.at(_own(part_.dims, positions)) for part_ in parts])

    return _Elements(tuple(dims), at)


def _own(dims: tuple[Expr, ...], positions: Sequence[Expr]) -> list[Expr]:
    """The positions of a value in one that it broadcasts to."""
    last = positions[len(positions) - len(dims) :]
    return [_ZERO if dim == IntConst(1) else at for dim, at in zip(dims, last, strict=True)]


def _product(scope: Scope, left: _Elements, right: _Elements, span: Span) -> _Elements | None:
    """A product of matrices and vectors."""
    if not (1 <= len(left.dims) <= 2 and 1 <= len(right.dims) <= 2):
        return None
    rows, columns = left.dims[:-1], right.dims[1:]
    if sizes.equal(left.dims[-1], right.dims[0]) is not True:
        return None
    axis = Axis(scope.names.fresh("_k"), left.dims[-1])
    k = Var(axis.name, INT)

    def at(positions: Sequence[Expr]) -> Expr:
        own, others = list(positions[: len(rows)]), list(positions[len(rows) :])
        product = b.binary("*", left.at([*own, k]), right.at([k, *others]), span)
        return Reduce("sum", product, (axis,), FLOAT, span)

    return _Elements((*rows, *columns), at)


def _broadcast(value: _Elements, axes: list[Axis]) -> Expr | None:
    """The value's element for one of the part that is written; None where its sizes may be
    others."""
    if len(value.dims) > len(axes):
        return None
    for dim, axis in zip(reversed(value.dims), reversed(axes), strict=False):
        if dim != IntConst(1) and sizes.equal(dim, axis.extent) is not True:
            return None
    return value.at(_own(value.dims, [Var(axis.name, INT) for axis in axes]))


def _unknown(node: ast.expr) -> errors.UserError:
    return errors.RankMismatch(
        "the sizes of this value are not known before a call", span_of(node),
        hint="give it a name with a type in a statement of its own: v : Tensor[N] = ...",
    )  # fmt: skip
