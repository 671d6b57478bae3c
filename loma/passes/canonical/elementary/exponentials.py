"""A normalised exponential, ``exp(x - log(sum(exp(x))))``, is the exponential over its sum.

``exp(x[n, d] - (m[n] + log(z[n])))``, where ``z[n]`` is ``sum(exp(x[n, k] - m[n]) for k in D)`` and
``m[n]`` the maximum of ``x[n, k]``, is ``exp(x[n, d] - m[n]) / z[n]`` in the canonical form, the
softmax that it is, without a second exponential. So is the exponential times ``1 / z[n]``. The
maximum makes ``z`` a number from 1 to the size of D, or NaN, and so is all of that row then in each
form. The logarithm of such a share is ``x[n, d] - m[n] - log(z[n])``, which is finite also where
the share is too small for a number other than 0; so is ``log(sigmoid(x))``, which is
``-softplus(-x)``, and ``log(exp(x))``, which is ``x``. ``logsumexp`` takes 0 for a maximum that is
not finite; in a row with an infinity, whose own value is NaN, a number whose exponential is
infinite becomes NaN, too, instead of 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from loma.core import builder as b
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Builtin, Expr, FloatConst, FloatType, Function, If, Index,
    IndexAssign, Module, NoDiff, Reduce, Select, Stmt, TensorType, Unary, Var, Zero, replace,
)  # fmt: skip
from loma.core.effects import written
from loma.core.walk import (
    blocks, free_variables, map_blocks, map_children, map_tensor_functions, substitute, walk,
)  # fmt: skip
from loma.passes.canonical.elementary.activations import added
from loma.passes.liveness import covers

NAMES = 4  # of values that are made of each other, at most
Terms = Counter[tuple[bool, Expr]]  # what is added (True) or taken away, how often


def exponentials(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, _changed)


def _changed(function: Function) -> Function:
    return replace(function, body=_block(Values(), function.body))


def _block(around: Values, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    values, out = around.without(set()), []
    for stmt in body:
        if isinstance(stmt, IndexAssign):
            scope = {axis.name: axis for axis in stmt.axes}
            stmt = replace(stmt, value=_expr(stmt.value, scope, values))
        elif blocks(stmt):
            stmt = map_blocks(stmt, partial(_block, values.without(written((stmt,)))))
        values.statement(stmt)
        out.append(stmt)
    return tuple(out)


def _expr(expr: Expr, scope: dict[str, Axis], values: Values) -> Expr:
    if isinstance(expr, Reduce):
        scope = scope | {axis.name: axis for axis in expr.axes}
    expr = map_children(expr, lambda child: _expr(child, scope, values))
    match expr:
        case Builtin("exp", (power,)):
            for names in range(NAMES + 1):  # as few as show it: the sum may have the same ones
                terms = values.terms(power, names=names)
                for sign, term in terms:
                    total = None if sign else _logarithm(term)
                    rest = terms - Counter({(sign, term): 1})
                    if total is None or not rest:
                        continue
                    left = added(sorted(rest.elements(), key=lambda term: not term[0]))
                    if values.is_normaliser(total, values.terms(left), scope):
                        return Binary("/", Builtin("exp", (left,), FLOAT), total, FLOAT)
        case Binary("*", left, right):
            for factor, other in ((left, right), (right, left)):
                own, total = values.exponent(factor), values.inverse(other)
                if own is None or total is None:
                    continue
                if values.is_normaliser(total, values.terms(own), scope):
                    return Binary("/", factor, total, FLOAT)
        case Builtin("log", (share,)):
            if (own := values.exponent(share)) is not None:
                return own
            if (parts := values.share(share, scope)) is not None:
                power, total = parts
                return b.binary("-", power, Builtin("log", (total,), FLOAT))
            if (x := values.logit(share)) is not None:
                return b.neg(Builtin("softplus", (b.neg(x),), FLOAT))
        case _:
            pass
    return expr


def _logarithm(term: Expr) -> Index | None:
    """The element whose logarithm a term is."""
    match term:
        case Builtin("log", (Index() as element,)):
            return element
        # ``logsumexp`` guards the derivative of log(0)
        case Builtin("log", (Select(Binary("!=", cond), Index() as element, other),)) if (
            cond == element and b.is_const(other, 0)
        ):
            return element
        case _:
            return None


@dataclass(frozen=True, slots=True)
class _Definition:
    """``tensor[subscripts] = value``, of every element."""

    tensor: Var
    subscripts: tuple[Expr, ...]
    axes: tuple[Axis, ...]
    value: Expr
    inputs: frozenset[str]


class Values:
    """What the elements of tensors are, as far as statements of a block have just said so."""

    def __init__(self, known: dict[str, _Definition] | None = None) -> None:
        self._known = known or {}

    def without(self, changed: set[str]) -> Values:
        """What is still known where those variables have other values."""
        return Values(
            {
                name: found
                for name, found in self._known.items()
                if name not in changed and found.inputs.isdisjoint(changed)
            }
        )

    def statement(self, stmt: Stmt) -> None:
        self._known = self.without(written((stmt,)))._known
        match stmt:
            case If(_, (inner,), other) if all(isinstance(s, Zero) for s in other):
                stmt = inner  # where there is anything to take a maximum of
            case _:
                pass
        match stmt:
            case IndexAssign(Index(Var(name) as tensor, subscripts), "=", value) if covers(stmt):
                axes = {axis.name for axis in stmt.axes}
                inputs = free_variables(value) - axes
                names = [s.name for s in subscripts if isinstance(s, Var)]
                if name not in inputs and axes == set(names) and len(axes) == len(names):
                    self._known[name] = _Definition(tensor, subscripts, stmt.axes, value, inputs)
            case _:
                pass

    def of(self, expr: Expr) -> Expr | None:
        """The value of an element."""
        match expr:
            case Index(Var(name), places) if name in self._known:
                found = self._known[name]
                pairs = zip(found.subscripts, places, strict=True)
                return substitute(found.value, {s.name: p for s, p in pairs if isinstance(s, Var)})
            case _:
                return None

    def terms(self, expr: Expr, sign: bool = True, names: int = NAMES) -> Terms:
        """What is added up in a value, also in elements that it is made of, by so many names."""
        match expr:
            case Binary("+" | "-" as op, left, right, FloatType()):
                return self.terms(left, sign, names) + self.terms(right, sign == (op == "+"), names)
            case Unary("-", operand, FloatType()):
                return self.terms(operand, not sign, names)
            case Index() if names > 0:
                match self.of(expr):
                    case Index() | Unary("-") | Binary("+" | "-") | Builtin("log") as value:
                        return self.terms(value, sign, names - 1)
                    case _:
                        pass
            case _:
                pass
        return Counter({(sign, expr): 1})

    def exponent(self, expr: Expr | None) -> Expr | None:
        """Of what a value is the exponential."""
        match self.of(expr) if isinstance(expr, Index) else expr:
            case Builtin("exp", (power,)):
                return power
            case _:
                return None

    def logit(self, expr: Expr) -> Expr | None:
        """x of ``sigmoid(x)``, which ``1 - sigmoid(-x)`` is."""
        match self.of(expr) if isinstance(expr, Index) else expr:
            case Builtin("sigmoid", (x,)):
                return x
            case Binary("-", one, other) if b.is_const(one, 1):
                mirrored = self.logit(other)
                return None if mirrored is None else b.neg(mirrored)
            case _:
                return None

    def inverse(self, expr: Expr) -> Index | None:
        """The element of which a value is the reciprocal."""
        match self.of(expr) if isinstance(expr, Index) else expr:
            case Binary("/", one, Index() as element) if b.is_const(one, 1):
                return element
            case _:
                return None

    def normalised(self) -> Iterator[tuple[Index, Expr, Index]]:
        """Elements that are an exponential over the sum of such, of what, and the sums."""
        for found in self._known.values():
            parts = self._share(found.value, {axis.name: axis for axis in found.axes})
            if parts is not None:
                yield Index(found.tensor, found.subscripts, FLOAT), *parts

    def share(self, expr: Expr, scope: dict[str, Axis]) -> tuple[Expr, Index] | None:
        """Of what a value is the exponential, and the sum of such that it is divided by."""
        match expr:
            case Index(Var(name), places) if name in self._known:
                found = self._known[name]
                parts = self._share(found.value, {axis.name: axis for axis in found.axes})
                if parts is None:
                    return None
                pairs = zip(found.subscripts, places, strict=True)
                here = {s.name: p for s, p in pairs if isinstance(s, Var)}
                power, total = (substitute(part, here) for part in parts)
                assert isinstance(total, Index)
                return power, total
            case _:
                return self._share(expr, scope)

    def _share(self, value: Expr, scope: dict[str, Axis]) -> tuple[Expr, Index] | None:
        match value:
            case Binary("/", top, Index() as total):
                power = self.exponent(top)
                if power is not None and self.is_normaliser(total, self.terms(power), scope):
                    return power, total
            case _:
                pass
        return None

    def is_normaliser(self, total: Index, power: Terms, scope: dict[str, Axis]) -> bool:
        """Whether an element is the sum of exponentials of which that with these terms is one, and
        none is greater than 1."""
        value = self.of(total)
        while isinstance(value, Index):
            value = self.of(value)
        match value:
            case Reduce("sum", body, (axis,)):
                pass
            case _:
                return False
        own = self.exponent(body)
        if own is None:
            return False
        terms = self.terms(own)
        places: list[Expr] = [
            Var(name, INT) for name, other in scope.items() if other.extent == axis.extent
        ]
        places += dict.fromkeys(
            place
            for _, term in power
            for read in walk(term)
            if isinstance(read, Index) and isinstance(read.base.type, TensorType)
            for place, size in zip(read.subscripts, read.base.type.dims or (), strict=False)
            if size == axis.extent and place not in places
        )
        return any(
            _renamed(terms, axis.name, place) == power
            and any(self._is_largest(m, power, axis, place) for sign, m in power if not sign)
            for place in places
        )

    def _is_largest(self, shift: Expr, power: Terms, axis: Axis, place: Expr) -> bool:
        """Whether the shift is the maximum, over such an axis instead of that place, of the
        other terms: the maximum itself, or where that is not finite 0; or the maximum times a
        number above 0, of terms that are multiplied by it."""
        rest = power - Counter({(False, shift): 1})
        value: Expr | None = shift
        scale: tuple[str, float] | None = None
        while True:
            match value:
                case NoDiff(operand):
                    value = operand
                case Reduce("max", body, (own,)) if own.extent == axis.extent:
                    if scale is None:
                        return _renamed(self.terms(body), own.name, place) == rest
                    part = substitute(body, {own.name: place})
                    return [(s, _scaled(t)) for s, t in rest.elements()] == [(True, (scale, part))]
                case Binary("*" | "/") if scale is None and (found := _scaled(value)) is not None:
                    scale, value = found
                case Select(Binary("==", Binary("-", one, two), zero), top, other) if (
                    one == two == top and b.is_const(zero, 0) and b.is_const(other, 0)
                ):
                    value = top
                case Index():
                    value = self.of(value)
                case _:
                    return False


def _scaled(expr: Expr) -> tuple[tuple[str, float], Expr] | None:
    """The number above 0 by which a value is multiplied or divided, and the value."""
    match expr:
        case Binary("*" | "/" as op, operand, FloatConst(number)) if number > 0:
            return (op, number), operand
        case Binary("*", FloatConst(number), operand) if number > 0:
            return ("*", number), operand
        case _:
            return None


def _renamed(terms: Terms, old: str, new: Expr) -> Terms:
    return Counter((sign, substitute(term, {old: new})) for sign, term in terms.elements())
