"""Parts of tensors as targets outside index statements: ``h[t + 1] = tanh(h[t] @ U)``.

An index statement over the part's dimensions; the value is worked out before it, and broadcasts.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from loma import errors
from loma.core import builder as b, sizes
from loma.core.axes import index_statement
from loma.core.ir import FLOAT, INT, Axis, Expr, Index, IntConst, Stmt, TensorType, Var
from loma.core.printer import print_expr
from loma.core.walk import at, free_variables
from loma.errors.spans import Span
from loma.frontend.expressions import expression as ex
from loma.frontend.expressions.slices import part
from loma.frontend.scope import Scope, span_of
from loma.frontend.statements.index_statement import Operation
from loma.frontend.syntax.python_syntax import elts, is_slice


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
    found = _element(scope, value, axes)
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


def _unknown(node: ast.expr) -> errors.UserError:
    return errors.RankMismatch(
        "the sizes of this value are not known before a call", span_of(node),
        hint="give it a name with a type in a statement of its own: v : Tensor[N] = ...",
    )  # fmt: skip
