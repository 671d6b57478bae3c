"""Functions with ``while`` run for many elements at a time."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from sampled import one_in
import torch
from trees import nodes_of, tree_of
from tree_runs import run_program

import loma
from loma import pipeline
from loma.backends.interpreter import Interpreter
from loma.backends.schedule.ir import Rounds

ROOT = """
def root(a : In[float]) -> float:
    s : float = a
    while (abs(s * s - a) > 1e-5 * a, max_iter := 60):
        s = 0.5 * (s + a / s)
    return s
"""
# Branches in rounds, rounds in branches, loops in loops, ints beside floats.
COLLATZ = """
def steps(n : In[int], most : In[int]) -> int:
    k : int = 0
    while (n != 1 and k < most, max_iter := 40):
        if n > 20 or (n < 4 and k > 3):
            n = n - 7
            k += 2
        else:
            n = n + 3 if k < 5 else n - 1
        k += 1
    return k
"""
NESTED = """
def nested(a : In[float], b : In[float]) -> float:
    t : float = 0.25
    total : float = 0.0
    u : float = 0.0
    if a > 0.0:
        while (t < 2.0 + a, max_iter := 30):
            u = b
            while (u < t, max_iter := 40):
                u = u + 0.5 + 0.1 * abs(a)
                for k in range(2):
                    total += sin(u + k) * t
            if u > 1.5 * t:
                t = t + 0.125
            elif b > 0.0 and u < 3.0:
                t = t + 0.5
                for k in reversed(range(3)):
                    total = 0.5 * total + k
            else:
                t += 0.25 * u * u + 0.1
    else:
        total = b * b
        while (total > 0.75, max_iter := 50):
            total *= 0.6
    return total * a
"""
ALONE = "y[i] = 2.0 * root(1.0 + x[i] * x[i]) + x[i]"
# name, functions, statements, whether they run in lanes
CASES: tuple[tuple[str, str, tuple[str, ...], bool], ...] = (
    ("root", ROOT, (ALONE,), True),
    ("nested", NESTED, ("y[i] = nested(x[i], z[i])",), True),
    ("ints", COLLATZ, ("y[i] = x[i] * steps(q[i] + 12, 9 + q[i])",), True),
    ("two_calls", ROOT + NESTED, ("y[i] = root(2.0 + z[i]) * nested(z[i], x[i])",), True),
    ("call_of_a_call", ROOT, ("y[i] = root(1.0 + root(1.0 + abs(x[i])))",), True),
    ("beside_others", ROOT, ("y[i] = x[i] * z[i]", "z[i] = root(1.0 + abs(x[i])) + y[i]",
                             "y[i] = y[i] + z[i]"), True),
    ("in_place", ROOT, ("y[i] = x[i]", "y[i] = root(1.0 + y[i] * y[i])"), True),
    ("rows", ROOT, ("w : Tensor[N, 40]", "w[i, j] = root(1.0 + x[i] * x[i] + j)",
                    "y[i] = sum(w[i, j] for j in range(40))"), True),
    ("short_rows", ROOT, ("w : Tensor[N, 3]", "w[i, j] = root(1.0 + x[i] * x[i] + j + 0.1 * i)",
                          "y[i] = sum(w[i, j] * x[j % N] for j in range(3))"), True),
    ("under_a_condition", ROOT, ("y[i] = root(x[i]) if x[i] > 0.0 else z[i]",), False),
    ("may_divide_by_zero", """
def root(a : In[float]) -> float:
    k : int = 4
    s : float = 0.0
    while (k > 0, max_iter := 60):
        s += a * (12 // k)
        k -= 1
    return s
""", (ALONE,), False),
    ("makes_ints", ROOT.replace("    while", "    k : int = int(a)\n    while")
     .replace("return s", "return s + k"), (ALONE,), False),
)  # fmt: skip


def _text(functions: str, body: tuple[str, ...]) -> str:
    lines = "".join(f"    {line}\n" for line in body)
    head = "def f(x : In[Tensor[N]], z0 : In[Tensor[N]], q : In[IntTensor[N]]) -> Tensor[N]:\n"
    declared = "    z : Tensor[N]\n    y : Tensor[N]\n    z = z0\n"
    return f"{functions}\n{head}{declared}{lines}    return y\n"


@pytest.mark.parametrize("case", one_in(2, CASES), ids=lambda case: case[0])
def test_trees(case: tuple[str, str, tuple[str, ...], bool]) -> None:
    name, functions, body, in_lanes = case
    text = _text(functions, body)
    module = pipeline.program(text, "f").module
    found = [n for n in nodes_of(tree_of(module.function("f"), module)) if isinstance(n, Rounds)]
    assert bool(found) == in_lanes
    assert all(run_program(text, name, tries=2).values())


def _arguments(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(n)
    return numbers.standard_normal(n), numbers.random(n), numbers.integers(0, 20, n)


@pytest.mark.parametrize("case", [CASES[3], CASES[8]], ids=lambda case: case[0])
def test_compiled(case: tuple[str, str, tuple[str, ...], bool]) -> None:
    text = _text(case[1], case[2])
    module = loma.compile(text)
    interpreter = Interpreter(pipeline.program(text, "f").module)
    for n in (0, 1, 31, 32, 33, 200):
        args = _arguments(n)
        x, z, q = map(torch.tensor, args)
        x.requires_grad_(True)
        y = module.f(x, z, q)
        expected = interpreter.call("f", *args)[0]
        np.testing.assert_allclose(y.detach(), expected, rtol=1e-12, atol=1e-12)
        (found,) = torch.autograd.grad(y.sum(), x)
        step = 1e-6
        # Elements are apart from each other but where rows meet.
        if case[0] != "short_rows" and n:
            above, below = (interpreter.call("f", args[0] + s, *args[1:])[0] for s in (step, -step))
            slope = (above - below) / (2 * step)
            smooth = np.abs(slope) < 1e4  # where the number of rounds does not change
            np.testing.assert_allclose(found[smooth], slope[smooth], rtol=1e-5, atol=1e-6)
        single = module.f(x.detach().float(), z.float(), q)
        assert single.dtype == torch.float32
        torch.testing.assert_close(single, y.float(), rtol=1e-3, atol=1e-3)


def test_too_many_rounds_name_the_line_of_any_element() -> None:
    text = _text(ROOT.replace(":= 60", ":= 7"), (ALONE,))
    module = loma.compile(text)
    x = torch.zeros(100)
    zeros, ints = torch.zeros(100), torch.zeros(100, dtype=torch.int64)
    assert torch.equal(module.f(x, zeros, ints), 2.0 * torch.ones(100))
    for k in (0, 50, 99):
        wrong = x.clone()
        wrong[k] = 1e4
        with pytest.raises(
            RuntimeError, match="root: line 4: the while loop passed its max_iter of 7"
        ):
            module.f(wrong, zeros, ints)
    nan = torch.full((100,), torch.nan)  # no comparison holds
    assert module.f(nan, zeros, ints).isnan().all()


class _Random:
    """A random function of two numbers and an int."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._names = 0

    def text(self) -> str:
        body = ["    s : float = a", "    t : float = 0.5 * b", "    k : int = 1"]
        body += self._block(1, 3)
        return "\n".join([
            "def g(a : In[float], b : In[float], n : In[int]) -> float:", *body,
            "    return s + 0.25 * t + k", "",
        ])  # fmt: skip

    def _number(self, depth: int = 0) -> str:
        r = self._rng
        if depth > 2 or r.random() < 0.3:
            return r.choice(["s", "t", "a", "b", "0.75", "k", "n"])
        x, y = self._number(depth + 1), self._number(depth + 1)
        return r.choice([
            f"sin({x})", f"tanh({x})", f"0.5 * ({x} + {y})", f"({x} - 0.5 * {y})", f"min({x}, {y})",
            f"({x} if {self._condition(depth + 1)} else {y})", f"cos({x}) * 0.5",
        ])  # fmt: skip

    def _condition(self, depth: int = 0) -> str:
        r, first = self._rng, self._number(depth + 1)
        found = f"{first} {r.choice(['<', '>', '<=', '!='])} {self._number(depth + 1)}"
        if r.random() < 0.3 and depth < 2:
            other = self._condition(depth + 1)
            return r.choice([f"({found} and {other})", f"({found} or {other})", f"not ({found})"])
        return found

    def _block(self, depth: int, room: int) -> list[str]:
        pad, found = "    " * depth, list[str]()
        for _ in range(self._rng.randint(1, room)):
            kind = self._rng.random()
            if kind < 0.45 or depth > 3:
                target = self._rng.choice(["s", "t"])
                found.append(f"{pad}{target} {self._rng.choice(['=', '+='])} {self._number()}")
            elif kind < 0.55:
                found.append(f"{pad}k = min(k + n, 9) - 1")
            elif kind < 0.75:
                found += [f"{pad}if {self._condition()}:", *self._block(depth + 1, 2)]
                if self._rng.random() < 0.5:
                    found += [f"{pad}else:", *self._block(depth + 1, 2)]
            elif kind < 0.85:
                self._names += 1
                found.append(f"{pad}for j{self._names} in range({self._rng.randint(0, 3)}):")
                found += self._block(depth + 1, 2)
            else:
                found += self._while(depth)
        return found

    def _while(self, depth: int) -> list[str]:
        self._names += 1
        pad, c = "    " * depth, f"c{self._names}"
        bound = self._rng.choice(["3", "n", "2 + k"])
        more = f" and {self._condition()}" if self._rng.random() < 0.5 else ""
        return [
            f"{pad}{c} = 0", f"{pad}while ({c} < {bound}{more}, max_iter := 30):",
            f"{pad}    {c} += 1", *self._block(depth + 1, 2),
        ]  # fmt: skip


def _declared(text: str) -> str:
    """The counts of rounds are declared in front."""
    names = sorted(set(re.findall(r"\bc\d+\b", text)))
    head, rest = text.split("\n", 1)
    return "\n".join([head, *(f"    {name} : int = 0" for name in names), rest])


@pytest.mark.parametrize("seed", range(8))
def test_random_functions(seed: int) -> None:
    text = _declared(_Random(seed).text()) + _text("", ("y[i] = g(x[i], z[i], q[i] % 4)",))
    if "while" not in text:
        return
    module = pipeline.program(text, "f").module
    assert any(isinstance(n, Rounds) for n in nodes_of(tree_of(module.function("f"), module)))
    run_program(text, "f", {"x": _arguments(40)[0], "z0": _arguments(40)[1],
                            "q": _arguments(40)[2]}, tries=1)  # fmt: skip
