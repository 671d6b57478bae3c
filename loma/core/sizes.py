"""Algebra of int expressions: sizes of dimensions and subscripts.

An int expression is brought to a polynomial over *atoms* (variables, and what is not ``+ - *``:
floor divisions, remainders, element reads). Two sizes are provably equal when their polynomials
are, provably different when they differ by a constant, else a call has to check.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeAlias

from loma.core.ir import (
    INT, Axis, Binary, BinaryOp, Builtin, Declare, Expr, Function, Index, IntConst, Param,
    TensorType, Type, Unary, Var, remembered, replace,
)  # fmt: skip
from loma.core.walk import map_children, reads_elements, variable_names, walk
from loma.errors.spans import NOWHERE

IsSize: TypeAlias = Callable[[str], bool]  # tells the variables that are never negative
Monomial: TypeAlias = tuple[Expr, ...]
Polynomial: TypeAlias = Mapping[Monomial, int]


_ONE: Polynomial = {(): 1}


def _key(atom: Expr) -> tuple[int, str]:
    return (0, atom.name) if isinstance(atom, Var) else (1, _text(atom))


@remembered
def _text(atom: Expr) -> str:
    return repr(atom)


def _product(left: Polynomial, right: Polynomial) -> Polynomial:
    if left == _ONE or right == _ONE:  # as most strides and many coefficients are
        return right if left == _ONE else left
    out: dict[Monomial, int] = {}
    for m1, c1 in left.items():
        for m2, c2 in right.items():
            monomial = tuple(sorted(m1 + m2, key=_key)) if m1 and m2 else m1 or m2
            out[monomial] = out.get(monomial, 0) + c1 * c2
    return {m: c for m, c in out.items() if c}


def added(left: Polynomial, right: Polynomial, sign: int = 1) -> Polynomial:
    """``left + sign * right``."""
    out = dict(left)
    for m, c in right.items():
        out[m] = out.get(m, 0) + sign * c
    return {m: c for m, c in out.items() if c}


def constant(expr: Expr) -> int | None:
    """The value of an int expression that is a constant, else None."""
    poly = polynomial(expr)
    if not poly:
        return 0
    return poly[()] if set(poly) == {()} else None


@remembered
def polynomial(expr: Expr) -> Polynomial:
    """The expression as a sum of products of atoms, without zero coefficients."""
    match expr:
        case IntConst(value):
            return {(): value} if value else {}
        case Var(name, type_):  # wherever it stands in the text
            return {(expr if expr.span is NOWHERE else Var(name, type_),): 1}
        case Unary("-", operand):
            return added({}, polynomial(operand), -1)
        case Binary("+", left, right):
            return added(polynomial(left), polynomial(right))
        case Binary("-", left, right):
            return added(polynomial(left), polynomial(right), -1)
        case Binary("*", left, right):
            return _product(polynomial(left), polynomial(right))
        case Binary("//" | "%" as op, left, right):
            return _division(op, left, right)
        case _:
            return {(expr,): 1}


def _division(op: str, left: Expr, right: Expr) -> Polynomial:
    top, bottom = polynomial(left), polynomial(right)
    if set(bottom) == {()}:
        divisor = bottom[()]
        if divisor == 1:
            return top if op == "//" else {}
        rest = top.get((), 0)
        if divisor > 0 and all(c % divisor == 0 for m, c in top.items() if m):
            quotient = {m: c // divisor for m, c in top.items()}
            return _without_zeros(quotient if op == "//" else {(): rest % divisor})
        if not top or set(top) == {()}:
            return _without_zeros({(): rest // divisor if op == "//" else rest % divisor})
    assert op in ("//", "%")
    atom = Binary("//" if op == "//" else "%", from_polynomial(top), from_polynomial(bottom), INT)
    return {(atom,): 1}


def _without_zeros(poly: Polynomial) -> Polynomial:
    return {monomial: c for monomial, c in poly.items() if c}


def from_polynomial(poly: Polynomial) -> Expr:
    """A readable int expression of a polynomial: variables first, constants last."""
    if len(poly) == 1:
        ((monomial, coefficient),) = poly.items()
        if not monomial:
            return IntConst(coefficient)
        if len(monomial) == 1 and coefficient == 1:
            return monomial[0]
    terms = sorted(
        poly.items(),
        key=lambda item: (not item[0], item[1] < 0, -len(item[0]), [_key(a) for a in item[0]]),
    )
    result: Expr | None = None
    for monomial, coefficient in terms:
        size = abs(coefficient)
        term: Expr | None = None if monomial and size == 1 else IntConst(size)
        for atom in monomial:
            term = atom if term is None else Binary("*", term, atom, INT)
        assert term is not None
        if result is None:
            negative = Unary("-", term, INT) if monomial else IntConst(coefficient)
            result = term if coefficient > 0 else negative
        else:
            result = Binary("+" if coefficient > 0 else "-", result, term, INT)
    return IntConst(0) if result is None else result


def simplify(expr: Expr) -> Expr:
    """The int expression in normal form."""
    return from_polynomial(polynomial(expr))


def simple_subscripts(expr: Expr, counter: str | None = None) -> Expr:
    """The expression with subscripts in normal form where they are arithmetic. With a ``counter``
    of a loop, what is left of a sum with it and is another variable alone is ``i + 0``: an index
    alone fills the dimension, of which the sum was a part."""

    def simple(subscript: Expr) -> Expr:
        if not is_arithmetic(subscript):
            return simple_subscripts(subscript, counter)
        plain = simplify(subscript)
        if counter is None or not isinstance(plain, Var) or plain.name == counter:
            return plain
        whole = isinstance(subscript, Var)
        return plain if whole else Binary("+", plain, IntConst(0), INT, subscript.span)

    match expr:
        case Index(_, subscripts):
            return replace(expr, subscripts=tuple(map(simple, subscripts)))
        case _:
            return map_children(expr, lambda child: simple_subscripts(child, counter))


def arith(op: BinaryOp, left: Expr, right: Expr) -> Expr:
    """An operation on ints, in normal form."""
    return simplify(Binary(op, left, right, INT))


def equal(left: Expr, right: Expr) -> bool | None:
    """True or False when provable for all sizes, None when only a call can tell."""
    if left is right or (isinstance(left, Var) and left == right):
        return True
    difference = added(polynomial(left), polynomial(right), -1)
    if not difference:
        return True
    return False if set(difference) == {()} else None


def same(left: tuple[Expr, ...] | None, right: tuple[Expr, ...] | None) -> bool:
    """Whether two lists of sizes are provably equal; of unknown rank (None) they are not."""
    if left is None or right is None:
        return False
    return len(left) == len(right) and all(map(equal, left, right))


def same_type(left: Type, right: Type) -> bool:
    """Whether types are equal, and their sizes provably so."""
    match left, right:
        case TensorType(a, own), TensorType(b, other):
            return own == other and (a is b is None or same(a, b))
        case _:
            return left == right


def differ(left: tuple[Expr, ...] | None, right: tuple[Expr, ...] | None) -> bool:
    """Whether two lists of sizes are known to differ; nothing is known of unknown rank (None)."""
    if left is None or right is None:
        return False
    return len(left) != len(right) or False in map(equal, left, right)


def product(factors: tuple[Expr, ...]) -> Expr:
    """The product of int expressions, in normal form."""
    return from_polynomial(functools.reduce(_product, map(polynomial, factors), {(): 1}))


def total(terms: tuple[Expr, ...]) -> Expr:
    """The sum of int expressions, simplified."""
    return from_polynomial(functools.reduce(added, map(polynomial, terms), {}))


def quotient(top: Expr, bottom: Expr) -> Expr:
    """``top // bottom`` in normal form; exact where a monomial divides every term."""
    divisor = polynomial(bottom)
    if len(divisor) == 1:
        ((factors, coefficient),) = divisor.items()
        out: dict[Monomial, int] = {}
        for monomial, value in polynomial(top).items():
            rest = Counter(monomial)
            if value % coefficient or not rest >= Counter(factors):
                break
            rest.subtract(factors)
            out[tuple(rest.elements())] = value // coefficient
        else:
            return from_polynomial(out)
    return arith("//", top, bottom)


def affine(expr: Expr, axes: tuple[Axis, ...]) -> tuple[dict[str, Expr], Expr] | None:
    """``expr`` as (coefficient of each axis that occurs, the rest), or None if it is not affine.

    Coefficients and the rest are int expressions that no axis occurs in.
    """
    if isinstance(expr, Var):  # as most are
        found = any(axis.name == expr.name for axis in axes)
        return ({expr.name: IntConst(1)}, IntConst(0)) if found else ({}, expr)
    names = {axis.name for axis in axes}
    parts: dict[str | None, dict[Monomial, int]] = {None: {}}
    for monomial, value in polynomial(expr).items():
        own = [a for a in monomial if isinstance(a, Var) and a.name in names]
        rest = tuple(a for a in monomial if not (isinstance(a, Var) and a.name in names))
        if len(own) > 1 or any(mentions(atom, names) for atom in rest):
            return None
        name = own[0].name if own and isinstance(own[0], Var) else None
        part = parts.setdefault(name, {})
        part[rest] = part.get(rest, 0) + value
    rest_expr = from_polynomial(parts.pop(None))
    return {str(name): from_polynomial(poly) for name, poly in parts.items()}, rest_expr


def one_by_one(expr: Expr, axes: tuple[Axis, ...]) -> tuple[Axis | None, Expr] | None:
    """The axis whose values ``expr`` has, one after the other, and what it begins with: no axis for
    a number; None for what goes on otherwise."""
    form = affine(expr, axes)
    if form is None or len(form[0]) > 1 or any(step != IntConst(1) for step in form[0].values()):
        return None
    return next((axis for axis in axes if axis.name in form[0]), None), form[1]


@dataclass(frozen=True, slots=True)
class Binding:
    """Where a call reads a size variable: a dimension that is ``scale * variable + offset``."""

    param: int
    dim: int
    scale: int = 1
    offset: int = 0

    def value(self, size: Expr) -> Expr:
        """The size variable, when the dimension has that size."""
        if self.scale == 1 and self.offset == 0:
            return size
        return quotient(Binary("-", size, IntConst(self.offset), INT), IntConst(self.scale))


def dims_of(value: Param | Expr) -> tuple[Expr, ...]:
    """The sizes in a value's or argument's type; none where it is no tensor, or of unknown rank."""
    return dims_in(value.type)


def dims_in(type_: Type) -> tuple[Expr, ...]:
    """The sizes in a type."""
    return type_.dims or () if isinstance(type_, TensorType) else ()


def bindings(params: Sequence[Param], known: Iterable[int] | None = None) -> dict[str, Binding]:
    """The size variables of the arguments' types, each with the dimension that binds it: the first
    in which it stands alone, else the first that is ``c * D + d`` with constants, c above 0.

    Only the positions ``known`` are looked at, if given.
    """
    names = {param.name for param in params}
    alone: dict[str, Binding] = {}
    scaled: dict[str, Binding] = {}
    for k in range(len(params)) if known is None else known:
        for d, dim in enumerate(dims_of(params[k])):
            if isinstance(dim, Var):
                if dim.name not in alone:
                    alone[dim.name] = Binding(k, d)
            elif (parts := scaled_size(dim)) is not None:
                name, scale, offset = parts
                scaled.setdefault(name, Binding(k, d, scale, offset))
    found = alone | {name: at for name, at in scaled.items() if name not in alone}
    return {name: at for name, at in found.items() if name not in names}


def scaled_size(dim: Expr) -> tuple[str, int, int] | None:
    """D, c and d, where the size is ``c * D + d``."""
    poly = dict(polynomial(dim))
    offset = poly.pop((), 0)
    match list(poly.items()):
        case [((Var(name),), scale)] if scale > 0:
            return name, scale, offset
        case _:
            return None


def bound_sizes(params: Sequence[Param], args: Sequence[Expr]) -> dict[str, Expr]:
    """The size variables in a call with these arguments, as far as their sizes are known."""
    sizes = [a.type.dims if isinstance(a.type, TensorType) else None for a in args]

    def fits(k: int) -> bool:
        type_, found = params[k].type, sizes[k]
        return isinstance(type_, TensorType) and found is not None and (
            len(type_.dims or ()) == len(found)
        )  # fmt: skip

    values: dict[str, Expr] = {}
    for name, at in bindings(params, filter(fits, range(len(params)))).items():
        dims = sizes[at.param]
        assert dims is not None
        values[name] = at.value(dims[at.dim])
    return values


@remembered
def size_variables(function: Function) -> tuple[str, ...]:
    """The size variables that the arguments' types bind."""
    return tuple(bindings(function.params))


def lengths(function: Function) -> frozenset[str]:
    """Size variables, and other ints that are lengths of tensors which the function makes in any
    case: where it ends in no error, they are not negative."""
    made = (s.target for s in function.body if isinstance(s, Declare))
    alone = (dim.name for tensor in made for dim in dims_of(tensor) if isinstance(dim, Var))
    return frozenset((*size_variables(function), *alone))


def is_arithmetic(expr: Expr) -> bool:
    """Whether an int expression is made as the sizes in types are."""
    match expr:
        case Var() | IntConst():
            return True
        case Unary("-", operand):
            return is_arithmetic(operand)
        case Binary("+" | "-" | "*" | "//" | "%", left, right) | Builtin(
            "max" | "min", (left, right)
        ):
            return is_arithmetic(left) and is_arithmetic(right)
        case _:
            return False


def is_nonnegative(expr: Expr, is_size: IsSize) -> bool:
    """Whether an int expression is provably not negative, as sizes are not."""

    def atom(expr: Expr) -> bool:
        match expr:
            case Var(name):
                return is_size(name)
            case Builtin("max", args):
                return any(is_nonnegative(arg, is_size) for arg in args)
            case Binary("//", top, bottom):  # by zero is an error
                return is_nonnegative(top, is_size) and is_nonnegative(bottom, is_size)
            case _:
                return False

    return all(
        coefficient >= 0 and all(map(atom, atoms))
        for atoms, coefficient in polynomial(expr).items()
    )


def count(extent: Expr, is_size: IsSize) -> Expr:
    """How many values ``range(extent)`` has: a size, also where the extent may be negative."""
    if is_nonnegative(extent, is_size):
        return extent
    return Builtin("max", (simplify(extent), IntConst(0)), INT)


def uncounted(extent: Expr) -> Expr:
    """The range of which an expression is the :func:`count`."""
    match extent:
        case Builtin("max", (inner, IntConst(0)) | (IntConst(0), inner)):
            return inner
        case _:
            return extent


def mentions(expr: Expr, names: AbstractSet[str]) -> bool:
    """Whether a variable of one of these names occurs in the expression."""
    return not variable_names(expr).isdisjoint(names)


def keeps_value(expr: Expr, changing: Collection[str]) -> bool:
    """Whether an int expression has the same value at any time while those variables change: it
    mentions none of them, and reads no element of a tensor."""
    return not any(
        isinstance(node, Index) or (isinstance(node, Var) and node.name in changing)
        for node in walk(expr)
    )


def varies(extent: Expr, names: set[str]) -> bool:
    """Whether a range may differ from place to place: it mentions one of the variables, or it reads
    an element of a tensor, which is looked at where the range begins."""
    return mentions(extent, names) or reads_elements(extent)
