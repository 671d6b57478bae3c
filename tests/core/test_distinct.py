"""What is proved of random subscripts, against all their values."""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Callable

import pytest

from loma.core.distinct import fills, surely_repeats, told_apart
from loma.core.ir import INT, Axis, Binary, BinaryOp, Expr, Index, IntConst, TensorType, Unary, Var

SIZES = ("N", "M")
OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul,
    "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip


def _random(rng: random.Random, names: list[str], depth: int) -> Expr:
    """A subscript as somebody might write it: terms with factors, quotients and remainders."""
    if depth == 0 or rng.random() < 0.25:
        some = (
            Var(rng.choice(names), INT),
            Var(rng.choice(SIZES), INT),
            IntConst(rng.randint(-1, 4)),
        )
        return rng.choices(some, (6, 1, 2))[0]
    op: BinaryOp = rng.choice(("+", "+", "-", "*", "//", "%", "%"))
    if op in ("+", "-"):
        return Binary(op, _random(rng, names, depth - 1), _random(rng, names, depth - 1), INT)
    sizes: tuple[Expr, ...] = tuple(Var(name, INT) for name in SIZES)
    other = rng.choice((*sizes, *map(IntConst, (2, 3, 4, 5, 6))))
    if rng.random() < 0.2:
        other = Binary("*", other, rng.choice(sizes), INT)
    return Binary(op, _random(rng, names, depth - 1), other, INT)


def _pair(rng: random.Random, names: list[str]) -> tuple[Expr, ...]:
    """Subscripts that share what they divide, or do not."""
    whole = _random(rng, names, 1)
    by = rng.choice((Var("N", INT), IntConst(2), IntConst(3)))
    found: list[Expr] = [Binary("//", whole, by, INT), Binary("%", whole, by, INT)]
    if rng.random() < 0.5:
        more = rng.choice((Var("M", INT), IntConst(3)))
        found = [Binary(rng.choice(("//", "%")), found[0], more, INT), found[1]]
        outer = Binary("//", whole, Binary("*", by, more, INT), INT)
        found.append(rng.choice((outer, Binary("%", Binary("//", whole, by, INT), more, INT))))
    rng.shuffle(found)
    return tuple(found)


def _value(expr: Expr, at: dict[str, int]) -> int:
    match expr:
        case IntConst(value):
            return value
        case Var(name):
            return at[name]
        case Unary(_, operand):
            return -_value(operand, at)
        case Binary(op, left, right):
            return OPERATORS[op](_value(left, at), _value(right, at))
        case _:
            raise AssertionError(expr)


def _drawn(seed: int) -> tuple[tuple[Expr, ...], tuple[Axis, ...]]:
    rng = random.Random(seed)
    names = ["i", "j", "k"][: rng.randint(1, 3)]
    extents: tuple[Expr, ...] = (*(Var(name, INT) for name in SIZES), *map(IntConst, (1, 2, 3, 5)))
    axes = tuple(Axis(name, rng.choice(extents)) for name in names)
    if rng.random() < 0.3:
        return _pair(rng, names), axes
    return tuple(_random(rng, names, 2) for _ in range(rng.randint(1, 3))), axes


def _elements(
    subscripts: tuple[Expr, ...], axes: tuple[Axis, ...], sizes: dict[str, int]
) -> dict[tuple[int, ...], tuple[int, ...]] | None:
    """The element of each point; None where a division fails."""
    names = [axis.name for axis in axes]
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    for point in itertools.product(*(range(_value(axis.extent, sizes)) for axis in axes)):
        at = sizes | dict(zip(names, point, strict=True))
        try:
            found[point] = tuple(_value(s, at) for s in subscripts)
        except ZeroDivisionError:
            return None
    return found


def _check(seed: int) -> int:
    subscripts, axes = _drawn(seed)
    told = told_apart(subscripts, axes)
    repeats = surely_repeats(subscripts, axes)
    for n, m in itertools.product((1, 2, 3, 4, -2, -3), (1, 2, 5, -3)):
        found = _elements(subscripts, axes, {"N": n, "M": m})
        if not found:
            continue
        for k, axis in enumerate(axes):
            if axis.name in told:
                seen: dict[tuple[int, ...], int] = {}
                assert all(seen.setdefault(e, p[k]) == p[k] for p, e in found.items()), seed
        if repeats and all(_value(axis.extent, {"N": n, "M": m}) > 1 for axis in axes):
            assert len(set(found.values())) < len(found), seed
    return len(told)


@pytest.mark.parametrize("first", range(0, 500, 250))
def test_what_is_told_apart(first: int) -> None:
    proved = sum(_check(seed) for seed in range(first, first + 250))
    assert proved > 50


@pytest.mark.full
def test_more_of_it() -> None:
    for seed in range(500, 8000):
        _check(seed)


def test_a_tensor_is_filled() -> None:
    i, n = Var("i", INT), Var("N", INT)
    y = Var("y", TensorType((n,)))
    moved = Binary("%", Binary("+", i, IntConst(1), INT), n, INT)
    assert fills(Index(y, (moved,), INT), (Axis("i", n),))
    assert not fills(Index(y, (moved,), INT), (Axis("i", IntConst(2)),))
