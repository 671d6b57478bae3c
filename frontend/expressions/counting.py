"""``range(...)`` as a count: a loop of so many passes, and what its counter stands for in them.

The IR counts from 0 in steps of 1. Other ranges count under a name of their own, and the program's
name stands for ``start + step * k``; ``reversed(range(n))`` is a count that runs backwards.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from loma import errors
from loma.core import builder as b, sizes
from loma.core.ir import (
    INT, ArrayType, Binary, Builtin, Expr, Index, IntConst, TensorType, Unary, Var,
    is_tensor_function,
)  # fmt: skip
from loma.core.printer import print_expr
from loma.core.walk import walk
from loma.errors.spans import Span
from loma.frontend.expressions import expression as ex
from loma.frontend.scope import Kind, Scope, Symbol, span_of, too_long

_ZERO, _ONE = IntConst(0), IntConst(1)


@dataclass(frozen=True, slots=True)
class Count:
    """So many values: ``start``, ``start + step``, ...; from the last to the first if
    ``backwards``."""

    extent: Expr
    start: Expr
    step: Expr
    backwards: bool = False

    def symbols(self, scope: Scope, node: ast.Name, kind: Kind) -> tuple[Symbol, ...]:
        """The name of the count, then that of the program where this is another one."""
        span = span_of(node)
        if self.start == _ZERO and self.step == _ONE:
            return scope.counted(node.id, kind, span, self.extent)
        name = scope.counter(node.id)
        value = self._value(Var(name, INT))
        if too_long(value):
            raise errors.SyntaxNotSupported(
                f"'{node.id}' stands for too long an expression", span,
                hint="give the start of its range a name in a statement of its own before",
            )  # fmt: skip
        hidden = Symbol(name, INT, kind, span, self.extent)
        return hidden, Symbol(node.id, INT, kind, span, value=value)

    def _value(self, counter: Var) -> Expr:
        """``start + step * counter``, as one would write it."""
        step, start = self.step, self.start
        term: Expr = counter
        negative = isinstance(step, IntConst) and step.value < 0
        far = IntConst(abs(step.value)) if isinstance(step, IntConst) else step
        if far != _ONE:
            term = b.binary("*", far, counter)
        if negative:
            return b.unary("-", term) if start == _ZERO else b.binary("-", start, term)
        if not isinstance(start, IntConst):
            return b.binary("+", start, term)
        if start.value < 0:
            return b.binary("-", term, IntConst(-start.value))
        return term if start == _ZERO else b.binary("+", term, start)


def range_of(node: ast.expr) -> tuple[ast.Call, bool] | None:
    """``range(...)``, and whether it stands in ``reversed(...)``; None for anything else."""
    match node:
        case ast.Call(func=ast.Name(id="range")):
            return node, False
        case ast.Call(
            func=ast.Name(id="reversed"),
            args=[ast.Call(func=ast.Name(id="range")) as inner],
            keywords=[],
        ):
            return inner, True
        case _:
            return None


def elements(scope: Scope, node: ast.expr) -> str | None:
    """What to write instead of a loop over the elements of tensors and arrays: a range, and an
    element. None where ``node`` is nothing of the kind."""
    names = [node]
    match node:
        case ast.Call(func=ast.Name(id="enumerate" | "zip"), args=args):
            names = args
    size, found = "n", []
    for name in names:
        symbol = scope.named(name)
        match symbol.type if symbol is not None else None:
            case TensorType(dims=dims) if symbol and dims:
                size = print_expr(dims[0])
                found.append(f"{symbol.name}[{', '.join(['i', *(':' for _ in dims[1:])])}]")
            case ArrayType(size=length) if symbol:
                size = size if length is None else str(length)
                found.append(f"{symbol.name}[i]")
    if not found:
        return None
    return f"for i in range({size}), with {' and '.join(found)}"


def count(scope: Scope, node: ast.expr, what: str, in_order: bool = False) -> Count:
    """The count of a range. Its bounds, each named ``what`` in errors, are evaluated once, before
    the statement. ``in_order``: it has to run from its first value on, in the text's order."""
    found = range_of(node)
    assert found is not None
    call, backwards = found
    bounds = range_bounds(scope, call, what)
    if len(call.args) == 1 and not (backwards and in_order):
        return Count(bounds[1], _ZERO, _ONE, backwards)
    span = span_of(call)
    step = bounds[2].value if isinstance(bounds[2], IntConst) else None
    kept = [1] if step == -1 and not in_order else [0, 2]  # of the bounds that the values need
    start, stop, by = (
        scope.once(bound, kept=True) if k in kept and not _keeps(scope, bound) else bound
        for k, bound in enumerate(bounds)
    )
    extent = length(scope, start, stop, by, span)
    if in_order and backwards:
        last = b.binary("-", extent, _ONE)
        start = b.binary("+", start, b.binary("*", by, last))
        return Count(extent, sizes.simplify(start), sizes.simplify(b.unary("-", by)))
    if step == -1 and not in_order:  # range(n - 1, -1, -1) is reversed(range(n))
        return Count(extent, _sum(stop, 1), _ONE, not backwards)
    return Count(extent, start, by, backwards)


def range_bounds(scope: Scope, call: ast.Call, what: str) -> tuple[Expr, Expr, Expr]:
    """Start, stop and step of ``range(...)``."""
    if call.keywords or not 0 < len(call.args) <= 3:
        raise errors.SyntaxNotSupported(
            f"a range has one to three bounds, found {len(call.args)}"
            if not call.keywords else "a range takes its bounds by position",
            span_of(call), hint="range(stop), range(start, stop) or range(start, stop, step)",
        )  # fmt: skip
    found = [_folded(ex.int_expression(scope, arg, what)) for arg in call.args]
    if len(found) == 1:
        return _ZERO, found[0], _ONE
    start, stop, step = found if len(found) == 3 else (*found, _ONE)
    if step == _ZERO:
        raise errors.SyntaxNotSupported(
            "the step of a range is 0, so it would never end", span_of(call.args[2]),
            hint="a step is positive, or negative for a range that goes down",
        )  # fmt: skip
    return start, stop, step


def _folded(expr: Expr) -> Expr:
    """Constants as one, where no part of them overflows."""
    values = [sizes.constant(node) for node in walk(expr)]
    if any(value is None or abs(value) >= 2**31 for value in values):
        return expr
    return IntConst(values[0] or 0, expr.span)


def length(scope: Scope, start: Expr, stop: Expr, step: Expr, span: Span) -> Expr:
    """How many values a range has; below 0, or 0, where it has none.

    It is arithmetic where the step is known and that cannot overflow: for tensors, whose ints are
    wide, and where the bounds differ by a constant or a variable. Else ``len(range(...))`` counts.
    """
    by = step.value if isinstance(step, IntConst) else None
    if start == _ZERO and by == 1:
        return stop
    tensors = is_tensor_function(scope.header)
    exact = tensors or not (_divides(start) or _divides(stop))
    if by is not None and exact:
        room = sizes.simplify(b.binary("-", stop, start) if by > 0 else b.binary("-", start, stop))
        if isinstance(room, IntConst):
            values = max(-(-room.value // abs(by)), 0)
            if values >= 2 ** (63 if tensors else 31):
                raise errors.SyntaxNotSupported(
                    f"a range of {values} values is too long to count", span
                )
            return IntConst(values, span)
        if tensors:
            whole = b.binary("//", b.binary("+", room, IntConst(abs(by) - 1)), IntConst(abs(by)))
            return sizes.simplify(whole)
        if isinstance(room, Var) and abs(by) == 1:
            return room
    return Builtin("len", (start, stop, step), INT, span)


def _sum(expr: Expr, number: int) -> Expr:
    """With a constant added; n - 1 + 1 is n."""
    whole = b.binary("+", expr, IntConst(number), expr.span)
    return whole if _divides(expr) else sizes.simplify(whole)


def _divides(expr: Expr) -> bool:
    """Whether it has a quotient: what is multiplied before may have overflowed."""
    return any(isinstance(node, Binary) and node.op in ("//", "%") for node in walk(expr))


def _keeps(scope: Scope, expr: Expr) -> bool:
    """Whether a short int expression has one value as long as its variables exist."""
    match expr:
        case IntConst():
            return True
        case Var(name):
            return scope.symbols[name].kind in ("size", "counter", "index") or (
                name not in scope.reassigned
            )
        case Unary("-", operand):
            return _keeps(scope, operand)
        case Binary("+" | "-" | "*", left, right):
            short = sum(1 for _ in walk(expr)) <= _SHORT
            return short and _keeps(scope, left) and _keeps(scope, right)
        case Binary("//" | "%", left, IntConst(value)) if value:
            return _keeps(scope, left)
        case Index(Var(name, TensorType()), subscripts):
            given = scope.symbols[name].kind == "In"  # which nothing writes
            return given and all(_keeps(scope, subscript) for subscript in subscripts)
        case _:
            return False


_SHORT = 9  # nodes; longer bounds are worked out once
