"""Expressions of C and C++: what is printed means the tree, without a parenthesis too many."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from loma.backends.cfamily import syntax as c
from loma.backends.compilers import find_compiler
from loma.config import CXX, C, Language

a, b, d, p = map(c.Token, "abdp")

CASES: list[tuple[c.Expression, str]] = [
    (c.Binary("-", c.Binary("-", a, b), d), "a - b - d"),
    (c.Binary("-", a, c.Binary("-", b, d)), "a - (b - d)"),
    (c.Binary("*", c.Binary("+", a, b), d), "(a + b) * d"),
    (c.Binary("+", c.Binary("*", a, b), d), "a * b + d"),
    (c.Binary("/", a, c.Binary("*", b, d)), "a / (b * d)"),
    (c.Binary("+", a, c.Binary("+", b, d)), "a + (b + d)"),
    (c.Binary("+", a, c.Binary("*", b, d)), "a + b * d"),
    (c.Binary("*", c.Unary("-", a), c.Binary("/", b, d)), "-a * (b / d)"),
    (c.Binary("/", c.Cast("int", a), c.Unary("-", b)), "(int)a / -b"),
    (c.Binary("||", c.Binary("||", a, b), d), "a || b || d"),
    (c.Binary("||", c.Binary("&&", a, b), d), "(a && b) || d"),
    (c.Binary("&&", a, c.Binary("||", b, d)), "a && (b || d)"),
    (c.Binary("&&", c.Binary("<", a, b), c.Unary("!", d)), "a < b && !d"),
    (c.Binary("<", c.Binary("<", a, b), d), "(a < b) < d"),
    (c.Binary("==", c.Unary("!", a), c.Unary("!", b)), "(!a) == !b"),
    (c.Binary("<", a, c.Binary("+", b, d)), "a < b + d"),
    (c.Binary("<<", c.Binary("+", a, b), d), "(a + b) << d"),
    (c.Binary("<", a, c.Binary("<<", b, d)), "a < b << d"),
    (c.Binary("<<", a, c.Binary("*", b, d)), "a << (b * d)"),
    (c.Binary("&&", c.Binary("|", a, b), c.Binary("&", b, d)), "a | b && b & d"),
    (c.Binary("&", c.Binary("&", a, b), c.Binary("==", a, d)), "a & b & (a == d)"),
    (c.Unary("-", c.Unary("-", a)), "-(-a)"),
    (c.Unary("-", c.number(-2)), "-(-2)"),
    (c.Binary("-", a, c.number(-2)), "a - -2"),
    (c.Unary("-", c.Unary("!", a)), "-!a"),
    (c.plus(c.plus(a, b), c.Unary("-", c.Binary("+", b, d))), "a + b - (b + d)"),
    (c.plus(a, c.number(-(2**40), "LL")), "a - 1099511627776LL"),
    (c.Binary("*", a, c.number(-0.0)), "a * -0.0"),
    (c.chain("-", (a, b, d)), "a - b - d"),
    (c.chain("&&", [c.Conditional(a, b, d)]), "a ? b : d"),
    (c.Unary("-", c.Binary("*", a, b)), "-(a * b)"),
    (c.Unary("*", c.Unary("*", p)), "**p"),
    (c.Unary("sizeof", c.Unary("*", p)), "sizeof *p"),
    (c.Unary("sizeof", c.Cast("int", a)), "sizeof ((int)a)"),
    (c.Cast("int", c.Binary("+", a, b)), "(int)(a + b)"),
    (c.Cast("int", c.Unary("-", a)), "(int)-a"),
    (c.Member(c.Unary("*", p), "x"), "p->x"),
    (c.Member(c.Member(a, "x"), "y"), "a.x.y"),
    (c.Member(c.Unary("*", c.Binary("+", p, a)), "x"), "(p + a)->x"),
    (c.Member(c.Cast("T", a), "x"), "((T)a).x"),
    (c.Subscript(c.Unary("*", p), a), "(*p)[a]"),
    (c.Unary("*", c.Subscript(p, a)), "*p[a]"),
    (c.Subscript(p, c.Postfix("++", a)), "p[a++]"),
    (c.Unary("++", c.Postfix("++", a)), "++a++"),
    (c.Conditional(c.Binary("||", a, b), a, c.Conditional(b, a, d)), "a || b ? a : b ? a : d"),
    (c.Conditional(c.Conditional(a, b, d), c.Conditional(a, b, d), d),
     "(a ? b : d) ? (a ? b : d) : d"),
    (c.Binary("=", a, c.Binary("=", b, c.Conditional(a, b, d))), "a = b = a ? b : d"),
    (c.Binary("+=", c.Unary("*", p), c.Binary("-", a, b)), "*p += a - b"),
    (c.Binary(",", c.Binary(",", a, b), c.Binary("=", a, d)), "a, b, a = d"),
    (c.Unary("*", c.Binary(",", a, p)), "*(a, p)"),
    (c.call("f"), "f()"),
    (c.call("f", c.Binary(",", a, b), c.Binary("=", a, b)), "f((a, b), a = b)"),
    (c.Braces("(T)", (a, c.Binary(",", a, b))), "(T){a, (a, b)}"),
    (c.Member(c.Braces("T", ()), "x"), "T{}.x"),
]  # fmt: skip


@pytest.mark.parametrize(("node", "spelled"), CASES, ids=[spelled for _, spelled in CASES])
def test_text(node: c.Expression, spelled: str) -> None:
    assert c.text(node) == spelled


def test_items_of_lists() -> None:
    assert c.item_text(c.Binary(",", a, b)) == "(a, b)"
    assert c.item_text(c.Conditional(a, b, d)) == "a ? b : d"


def test_addresses() -> None:
    assert c.address_of(c.dereference(p)) == c.dereference(c.address_of(p)) == p
    assert c.address_of(c.Subscript(p, a)) == c.Unary("&", c.Subscript(p, a))


def test_parts() -> None:
    inner = c.Conditional(a, c.Member(b, "x"), c.Cast("int", c.Postfix("++", d)))
    node = c.Call(p, (c.Subscript(a, b), c.Braces("T", (c.Unary("-", d),)), inner))
    names = [part.text for part in c.parts(node) if isinstance(part, c.Token)]
    assert sorted(names) == ["a", "a", "b", "b", "d", "d", "p"]
    assert len(list(c.parts(node))) == len(names) + 8


# ------------------------------------------------------------------------------- trees with values

# What the trees are about, in C and in Python. Every value is an int of 32 bits, which wraps.
DECLARED = """
typedef struct S { int m; int v[4]; } S;
static int x = 5, y = -3, z = 0, array[4] = {2, -7, 1, 1000000007};
static S s = {11, {4, -1, 0, 9}}, *q = &s;
static int twice(int i) { return 2 * i; }
static int apart(int i, int j) { return i - j; }
"""
Place = tuple[list[int], int]
Choices = list[Callable[[], c.Expression]]
PLACES = {"x": [5], "y": [-3], "z": [0], "array": [2, -7, 1, 1000000007]}
MEMBERS = {"m": [11], "v": [4, -1, 0, 9]}
FUNCTIONS: dict[str, Callable[..., int]] = {
    "twice": lambda i: wrapped(2 * i),
    "apart": lambda i, j: wrapped(i - j),
}
OPERATORS: dict[str, Callable[[int, int], int]] = {
    "||": lambda i, j: int(bool(i or j)), "&&": lambda i, j: int(bool(i and j)),
    "|": lambda i, j: i | j, "^": lambda i, j: i ^ j, "&": lambda i, j: i & j,
    "==": lambda i, j: int(i == j), "!=": lambda i, j: int(i != j),
    "<": lambda i, j: int(i < j), "<=": lambda i, j: int(i <= j),
    ">": lambda i, j: int(i > j), ">=": lambda i, j: int(i >= j),
    "<<": lambda i, j: i << below(31, j), ">>": lambda i, j: i >> below(31, j),
    "+": lambda i, j: i + j, "-": lambda i, j: i - j, "*": lambda i, j: i * j,
    "/": lambda i, j: abs(i) // below(2**31, j) * (1 if i >= 0 else -1),
    "%": lambda i, j: abs(i) % below(2**31, j) * (1 if i >= 0 else -1),
    ",": lambda i, j: j,
}  # fmt: skip
SIGNS: dict[str, Callable[[int], int]] = {
    "-": lambda i: -i, "+": lambda i: i, "~": lambda i: ~i, "!": lambda i: int(not i),
}  # fmt: skip


def wrapped(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def below(limit: int, value: int) -> int:
    if not 0 < value < limit:
        raise ArithmeticError  # C gives it no meaning
    return value


class Trees:
    """Random expressions: ints, places, pointers to ints, structs."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self, depth: int) -> c.Expression:
        inner = depth - 1
        kinds: Choices = [
            lambda: c.number(self.random.randint(-9, 9)),
            lambda: self.place(inner),
        ]
        if depth > 0:
            kinds += 5 * [lambda: self.binary(inner)] + [
                lambda: c.Unary(self.random.choice(list(SIGNS)), self.value(inner)),
                lambda: c.Conditional(self.value(inner), self.value(inner), self.value(inner)),
                lambda: c.Cast("signed char", self.value(inner)),
                lambda: c.call("twice", self.value(inner)),
                lambda: c.call("apart", self.value(inner), self.value(inner)),
            ]
        return self.random.choice(kinds)()

    def binary(self, depth: int) -> c.Expression:
        op, right = self.random.choice(list(OPERATORS)), self.value(depth)
        if op in ("<<", ">>", "/", "%"):
            right = c.Binary("|", c.Binary("&", right, c.number(7)), c.number(1))
        return c.Binary(op, self.value(depth), right)

    def place(self, depth: int) -> c.Expression:
        if depth <= 0:
            return c.Token(self.random.choice("xyz"))
        position = c.Binary("&", self.value(depth - 1), c.number(3))
        kinds: Choices = [
            lambda: c.Subscript(c.Token("array"), position),
            lambda: c.Subscript(c.Member(self.struct(depth - 1), "v"), position),
            lambda: c.Unary("*", self.pointer(depth - 1)),
            lambda: c.Subscript(self.pointer(depth - 1), c.number(0)),
            lambda: c.Member(self.struct(depth - 1), "m"),
        ]
        return self.random.choice(kinds)()

    def pointer(self, depth: int) -> c.Expression:
        if depth <= 0:
            return c.Token("array")
        position = c.Binary("&", self.value(depth - 1), c.number(3))
        kinds: Choices = [
            lambda: c.Binary("+", c.Token("array"), position),
            lambda: c.Member(self.struct(depth - 1), "v"),
            lambda: c.Unary("&", self.place(depth - 1)),
            lambda: c.Cast("int *", self.pointer(depth - 1)),
            lambda: c.Conditional(
                self.value(depth - 1), self.pointer(depth - 1), self.pointer(depth - 1)
            ),
        ]
        return self.random.choice(kinds)()

    def struct(self, depth: int) -> c.Expression:
        if depth <= 0:
            return c.Token("s") if self.random.random() < 0.5 else c.Unary("*", c.Token("q"))
        return c.Unary("*", c.Unary("&", self.struct(depth - 1)))


def pairs(seed: int) -> Iterator[c.Expression]:
    """Each operator in each place of each other one, with operands of which C knows the result."""
    shapes: list[tuple[int, Callable[..., c.Expression]]] = [
        *((2, partial(c.Binary, op)) for op in OPERATORS),
        *((1, partial(c.Unary, op)) for op in SIGNS),
        (1, partial(c.Cast, "signed char")),
        (1, partial(c.call, "twice")),
        (3, c.Conditional),
    ]
    chosen = random.Random(seed)
    for outer_count, outer in shapes:
        for inner_count, inner in shapes:
            for place in range(outer_count):
                for _ in range(100):
                    leaf: list[c.Expression] = [c.Token(chosen.choice("xyz27")) for _ in range(6)]
                    operands = leaf[:outer_count]
                    operands[place] = inner(*leaf[3 : 3 + inner_count])
                    with suppress(ArithmeticError):
                        value_of(node := outer(*operands))
                        yield node
                        break


def value_of(node: c.Expression) -> int:
    match node:
        case c.Token(text) if text.isdigit():
            return int(text)
        case c.Unary(op, operand) if op in SIGNS:
            return wrapped(SIGNS[op](value_of(operand)))
        case c.Binary(op, left, right):
            return wrapped(OPERATORS[op](value_of(left), value_of(right)))
        case c.Conditional(condition, then, other):
            return value_of(then if value_of(condition) else other)
        case c.Cast(_, operand):
            return (value_of(operand) + 128) % 256 - 128
        case c.Call(c.Token(name), args):
            return FUNCTIONS[name](*map(value_of, args))
        case _:
            values, position = place_of(node)
            return values[position]


def place_of(node: c.Expression) -> Place:
    """A place, or the first one that a pointer points to."""
    match node:
        case c.Token(name):
            return PLACES[name], 0
        case c.Member(_, name):
            return MEMBERS[name], 0
        case c.Subscript(base, position):
            values, start = place_of(base)
            return values, start + value_of(position)
        case c.Binary("+", base, position):
            return PLACES["array"], value_of(position)
        case c.Unary(_, inner) | c.Cast(_, inner):
            return place_of(inner)
        case c.Conditional(condition, then, other):
            return place_of(then if value_of(condition) else other)
        case _:
            raise AssertionError(node)


@pytest.mark.parametrize(("language", "suffix"), [(C, "c"), (CXX, "cpp")], ids=["C", "C++"])
def test_trees(language: Language, suffix: str, tmp_path: Path) -> None:
    """A compiler computes what the trees say, and asks for no further parentheses."""
    trees = Trees(1)
    nodes = [trees.value(depth) for depth in range(7) for _ in range(80)]
    nodes += [node for seed in range(2) for node in pairs(seed)]
    listed = ",\n".join(map(c.item_text, nodes))
    source, program = tmp_path / f"trees.{suffix}", tmp_path / "program"
    source.write_text(
        f"#include <stdio.h>\n{DECLARED}\nint main(void) {{\n  int found[] = {{\n{listed}\n}};\n"
        f'  for (int k = 0; k < {len(nodes)}; ++k) printf("%d\\n", found[k]);\n}}\n'
    )
    warnings = ("-Werror=parentheses", "-Werror=logical-not-parentheses")
    command = [*find_compiler(language), "-fwrapv", *warnings, str(source), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    wrong = [
        (c.text(node), found)
        for node, found in zip(nodes, map(int, printed.split()), strict=True)
        if found != value_of(node)
    ]
    assert not wrong
