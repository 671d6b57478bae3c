"""Loops as index statements: their text, that values and derivatives are the same, and which loops
stay because iterations meet."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes
from loma.backends.interpreter import Interpreter
from loma.core.printer import print_function
from loma.frontend import parse
from loma.passes import canonical


def program(params: str, result: str, text: str) -> str:
    body = "".join(f"    {line}\n" for line in text.strip("\n").split("\n"))
    return f"def f({params}) -> Tensor[{result}]:\n    y : Tensor[{result}]\n{body}    return y\n"


def lines(text: str) -> list[str]:
    """The body of ``f`` behind the pass, without declarations and its return."""
    module = canonical.loops(parse(text))
    printed = print_function(module.function("f"))
    assert parse(printed).functions == module.functions
    assert canonical.loops(module) == module
    body = printed.strip().split("\n")[1:-1]
    return [line[4:] for line in body if " : " not in line]


X = "x : In[Tensor[N, M]]"

# name, parameters, result, body, what becomes of it, shapes of the arguments
INDEPENDENT: tuple[tuple[str, str, str, str, list[str], tuple[tuple[int, ...], ...]], ...] = (
    ("rows", X, "N, M", """
for n in range(N):
    m = sum(x[n, j] for j in M) / M
    c : Tensor[M]
    c[j] += x[n, j] - m
    y[n, j] = c[j] * m
""", [
        "m[n] = sum(x[n, j] for j in M) / M", "zero(c)", "c[n, j] += x[n, j] - m[n]",
        "y[n, j] = c[n, j] * m[n]",
    ], ((3, 4),)),
    ("elements", X, "N, M", """
for n in range(N):
    for j in reversed(range(M)):
        k : int = float2int(x[n, j])
        y[n, j] = y[n, j] + x[n, j] * k
""", [
        "k[n, j] = float2int(x[n, j])", "y[n, j] = y[n, j] + x[n, j] * k[n, j]",
    ], ((3, 4),)),
    ("rounds that may be less than none", X, "N, M", """
for n in range(N):
    for j in range(M - 2):
        a : float = 0.0
        for k in range(3):
            a += x[n, j + k]
        b : float = a / 3.0
        y[n, j] = b * b - a
""", [
        "a[n, j] = 0.0", "a[n, j] += sum(x[n, j + k] for k in range(3))",
        "b[n, j] = a[n, j] / 3.0", "y[n, j + 0] = b[n, j] * b[n, j] - a[n, j]",
    ], ((3, 4),)),
    ("variables of a branch", X, "N, M", """
for n in range(N):
    for j in range(M):
        if x[n, j] > 2.0:
            t : float = log(x[n, j] - 1.0)
            for k in range(2):
                t += x[n, j] * k
            u = t * t
            y[n, j] = u + t
""", [
        "t[n, j] = log(x[n, j] - 1.0) if x[n, j] > 2.0 else 0.0",
        "t[n, j] += sum(x[n, j] * k if x[n, j] > 2.0 else 0.0 for k in range(2))",
        "u[n, j] = t[n, j] * t[n, j] if x[n, j] > 2.0 else 0.0",
        "y[n, j] = u[n, j] + t[n, j] if x[n, j] > 2.0 else y[n, j]",
    ], ((3, 4),)),
    ("variables of branches in branches", X, "N", """
for n in range(N):
    if x[n, 0] > 2.0:
        m = x[n, 0] - x[n, 1]
        if m > 0.0:
            k = m * x[n, 1]
            y[n] += k * m
""", [
        "m[n] = x[n, 0] - x[n, 1] if x[n, 0] > 2.0 else 0.0",
        "k[n] = (m[n] * x[n, 1] if m[n] > 0.0 else 0.0) if x[n, 0] > 2.0 else 0.0",
        "y[n] += (k[n] * m[n] if m[n] > 0.0 else 0.0) if x[n, 0] > 2.0 else 0.0",
    ], ((4, 2),)),
    ("windows", X, "N, M", """
for n in range(N):
    for j in range(M):
        d : Tensor[3]
        for k in range(3):
            d[k] = zero_pad(x[n, j + k - 1]) - x[n, j]
        y[n, j] = sum(d[k] * d[k] for k in range(3))
""", [
        "zero(d)", "d[n, k, j] = zero_pad(x[n, j + k - 1]) - x[n, j]",
        "y[n, j] = sum(d[n, k, j] * d[n, k, j] for k in range(3))",
    ], ((3, 4),)),
    ("places of the row", X, "N", """
for n in range(N):
    k : int = float2int(x[n, 0]) % M
    y[n] = x[n, k] * 2.0
""", ["k[n] = float2int(x[n, 0]) % M", "y[n] = x[n, k[n]] * 2.0"], ((3, 4),)),
    ("inner elements", X, "N, M - 2", """
for n in range(N):
    for j in range(M - 2):
        t = x[n, j] + x[n, j + 2]
        y[n, j] = t * t
""", ["t[n, j] = x[n, j + 0] + x[n, j + 2]", "y[n, j] = t[n, j] * t[n, j]"], ((3, 4),)),
    ("ranges in ranges", "x : In[Tensor[N]]", "N", """
for i in range(N):
    for j in range(i):
        for k in range(j):
            y[i] += x[j] * x[k]
""", ["y[i] += sum(sum(x[j] * x[k] for k in j) for j in i)"], ((6,),)),
    ("copy", "x : In[Tensor[N, M]], z : In[Tensor[M]]", "N, M", """
for n in range(N):
    p = z
    p[j] += x[n, j]
    y[n, j] = p[j] * p[j]
""", ["p[n, _i0] = z[_i0]", "p[n, j] += x[n, j]", "y[n, j] = p[n, j] * p[n, j]"],
     ((3, 4), (4,))),
    ("product", "x : In[Tensor[N, K]], w : In[Tensor[K, M]]", "N, M", """
for k in range(K):
    y[i, j] += x[i, k] * w[k, j]
""", ["y[i, j] += x[i, k] * w[k, j]"], ((3, 4), (4, 2))),
    ("taps", "x : In[Tensor[N]], w : In[Tensor[3]]", "N", """
for p in range(3):
    y[i] += zero_pad(x[i + p - 1]) * w[p]
""", ["y[i] += zero_pad(x[i + p - 1]) * w[p]"], ((5,), (3,))),
    ("shifted", "x : In[Tensor[N]]", "N", """
for p in range(2):
    y[i] += zero_pad(x[i + 2 * p])
""", ["y[i] += sum(zero_pad(x[i + 2 * p]) for p in range(2))"], ((5,),)),
    ("triangle", "x : In[Tensor[N]]", "N", """
for i in range(N):
    for j in range(i + 1):
        y[i] += x[i] * x[j]
""", ["y[i] += sum(x[i] * x[j] for j in range(i + 1))"], ((4,),)),
    ("number", X, "N", """
s = 1.0
for i in range(N):
    s += x[i, 0] ** 2
y[i] = s
""", ["s += x[i, 0] ** 2", "y[i] = s"], ((3, 2),)),
    ("groups", "x : In[Tensor[2 * C]]", "2 * C", """
for g in range(2):
    m = sum(x[g * C + c] for c in range(C))
    for c in range(C):
        y[g * C + c] = x[g * C + c] / m
""", [
        "m[g] = sum(x[g * C + c] for c in C)", "y[c_1] = x[c_1] / m[c_1 // C]",
    ], ((6,),)),
    ("parts", "x : In[Tensor[N, M, K]]", "N, K, M", """
z : Tensor[K, M]
for n in range(N):
    z = transpose(x[n], 0, 1)
    y[n, k, j] = z[k, j] * z[k, j]
""", ["z[n, _i0, _i1] = x[n, _i1, _i0]", "y[n, k, j] = z[n, k, j] * z[n, k, j]"], ((3, 2, 4),)),
    ("last_of_each", X, "N", """
for n in range(N):
    z = x[n, 1:]
    y[n] = sum(z[j] for j in range(M - 1))
""", ["z[n, _i0] = x[n, _i0 + 1]", "y[n] = sum(z[n, j] for j in range(M - 1))"], ((3, 4),)),
    ("columns", X, "N, M", """
for t in range(N):
    for j in range(M):
        y[t, j] = x[t, j] + (y[t - 1, j] if t > 0 else 0.0)
""", [
        "for t in range(N):", "    y[t, j] = x[t, j] + (y[t - 1, j] if t > 0 else 0.0)",
    ], ((3, 2),)),
    ("states_of_rows", X, "N, M", """
for n in range(N):
    h : float = 0.0
    for t in range(M):
        a : float = tanh(x[n, t])
        h = a * h + x[n, t]
        y[n, t] = h
""", [
        "h[n] = 0.0", "for t in range(M):", "    a[n] = tanh(x[n, t])",
        "    h[n] = a[n] * h[n] + x[n, t]", "    y[n, t] = h[n]",
    ], ((3, 4),)),
    ("recurrences", X, "N, M", """
for n in range(N):
    for t in range(1, M):
        y[n, t] = y[n, t - 1] * x[n, t] + 1.0
""", [
        "for _t in range(M - 1):", "    y[n, _t + 1] = y[n, _t] * x[n, _t + 1] + 1.0",
    ], ((3, 4),)),
    ("either_adds", X, "N", """
s = 0.0
for n in range(N):
    for j in range(M):
        r = x[n, j] - 2.0
        if abs(r) < 1.0:
            s += r * r
        else:
            s += abs(r)
y[n] = s
""", [
        "r[n, j] = x[n, j] - 2.0",
        "s += r[n, j] * r[n, j] if abs(r[n, j]) < 1.0 else abs(r[n, j])", "y[n] = s",
    ], ((3, 4),)),
    ("one_of_three", "x : In[Tensor[N]]", "N", """
for n in range(N):
    if x[n] > 2.5:
        y[n] = 1.0
    elif x[n] > 1.5:
        y[n] = x[n] ** 2
""", ["y[n] = 1.0 if x[n] > 2.5 else x[n] ** 2 if x[n] > 1.5 else y[n]"], ((6,),)),
    ("kept_by_a_mask", X, "N", """
for n in range(N):
    c = 0.0
    for j in range(M):
        if x[n, j] > 2.0:
            c += 1.0
            y[n] += x[n, j]
    if c > 0.0:
        y[n] = y[n] / c
""", [
        "c[n] = 0.0", "c[n] += 1.0 if x[n, j] > 2.0 else 0.0",
        "y[n] += x[n, j] if x[n, j] > 2.0 else 0.0", "y[n] = y[n] / c[n] if c[n] > 0.0 else y[n]",
    ], ((4, 3),)),
    ("two_that_add", X, "N", """
s = 0.0
for n in range(N):
    if x[n, 0] > 2.0:
        s += x[n, 0]
    if x[n, 1] < 2.0:
        s += x[n, 1] ** 2
y[n] = s
""", [
        "s += x[n, 0] if x[n, 0] > 2.0 else 0.0", "s += x[n, 1] ** 2 if x[n, 1] < 2.0 else 0.0",
        "y[n] = s",
    ], ((4, 2),)),
    ("the_other_branch_reads", X, "N", """
for n in range(N):
    if x[n, 0] > 2.0:
        y[n] = x[n, 1]
    else:
        z = y[n]
        y[n] = z + 1.0
        y[n] += z
""", [
        "y[n] = x[n, 1] if x[n, 0] > 2.0 else y[n]", "z[n] = y[n] if not x[n, 0] > 2.0 else 0.0",
        "y[n] = z[n] + 1.0 if not x[n, 0] > 2.0 else y[n]",
        "y[n] += z[n] if not x[n, 0] > 2.0 else 0.0",
    ], ((4, 2),)),
)  # fmt: skip

# name, parameters, result, body, shapes of the arguments
MEETING: tuple[tuple[str, str, str, str, tuple[tuple[int, ...], ...]], ...] = (
    ("recurrence", "x : In[Tensor[N]]", "N + 1", """
for n in range(N):
    y[n + 1] = tanh(y[n + 0] + x[n])
""", ((4,),)),
    ("carried", X, "N", """
s = 0.0
for n in range(N):
    s += x[n, 0]
    y[n] = s
""", ((4, 1),)),
    ("overwritten", X, "M", """
for n in range(N):
    y[j] = x[n, j]
""", ((2, 3),)),
    ("read_while_added", X, "M", """
for n in range(N):
    y[j] += x[n, j]
    y[j] += y[j] * x[n, 0]
""", ((2, 3),)),
    ("left_over", X, "N", """
m = 0.0
for n in range(N):
    m = x[n, 0]
    y[n] = m
y[n] += m
""", ((3, 2),)),
    ("kept_from_before", X, "N", """
m = 0.0
for n in range(N):
    y[n] = m
    m = x[n, 0]
""", ((3, 2),)),
    ("places_overlap", "x : In[Tensor[N, 3]]", "N + 2", """
for n in range(N):
    for j in range(3):
        y[n + j] = x[n, j]
""", ((3, 3),)),
    ("changes_its_condition", "x : In[Tensor[N]]", "N", """
s = 2.0
for n in range(N):
    if x[n] > s:
        s = x[n] * 0.5
        y[n] = 1.0
""", ((5,),)),
    ("products_in_a_branch", X, "N", """
for n in range(N):
    if x[n, 0] > 2.0:
        y[i] += x[i, j] * x[n, j]
""", ((4, 2),)),
    ("range_of_the_row", "x : In[Tensor[N]], k : In[IntTensor[N]]", "N", """
for n in range(N):
    for j in range(k[n]):
        y[n] = y[n] * x[n] + 1.0
""", ()),
    ("left_over_by_a_branch", X, "N", """
m = 0.0
for n in range(N):
    if x[n, 0] > 2.0:
        m = x[n, 0]
        y[n] = m
    y[n] += m
""", ((3, 2),)),
    ("kept_in_a_branch", X, "N", """
m = 0.0
for n in range(N):
    if x[n, 0] > 2.0:
        y[n] = m
        m = x[n, 0]
""", ((3, 2),)),
    ("added_in_a_branch", X, "N", """
m = 0.0
for n in range(N):
    if x[n, 0] > 2.0:
        m += x[n, 0]
        y[n] = m
""", ((3, 2),)),
)  # fmt: skip


@pytest.mark.parametrize("case", INDEPENDENT, ids=lambda case: case[0])
def test_what_becomes_of_a_loop(case: tuple[str, str, str, str, list[str], object]) -> None:
    _, params, result, body, expected, _ = case
    assert lines(program(params, result, body)) == expected


@pytest.mark.parametrize("case", MEETING, ids=lambda case: case[0])
def test_iterations_that_meet(case: tuple[str, str, str, str, object]) -> None:
    _, params, result, body, _ = case
    assert any(
        line.startswith("for n in range(N):") for line in lines(program(params, result, body))
    )


@pytest.mark.parametrize("case", [*INDEPENDENT, *MEETING], ids=lambda case: case[0])
def test_values_and_derivatives(case: tuple[object, ...]) -> None:
    name, params, result, body, *_, shapes = case
    assert isinstance(shapes, tuple)
    generator = torch.Generator().manual_seed(2)
    args = [torch.randn(s, generator=generator, dtype=torch.float64) + 2.0 for s in shapes]
    if not args:
        args = [torch.randn(3, generator=generator, dtype=torch.float64), torch.tensor([2, 0, 1])]
    text = with_derivative(program(str(params), str(result), str(body)))
    point = Point(str(name), text, "f", tuple(args))
    compare(point, Changed(text, verified(canonical.loops)))
    compare(point, Changed(text, verified(passes.optimise)))


def test_no_rows() -> None:
    text = with_derivative(program(*INDEPENDENT[0][1:4]))
    for shape in ((0, 3), (3, 0), (1, 1)):
        point = Point("rows", text, "f", (torch.ones(shape, dtype=torch.float64),))
        compare(point, Changed(text, verified(passes.optimise)))
    # without a round nothing is looked at, not even one place for all
    text = with_derivative(
        program(
            "x : In[Tensor[N]], m : In[int]",
            "N",
            """
for k in range(m):
    y[m - 1] += x[k]
""",
        )
    )
    for rounds in (0, 2):
        point = Point("place", text, "f", (torch.ones(3, dtype=torch.float64), rounds))
        compare(point, Changed(text, verified(passes.optimise)))


def test_a_call_in_a_branch_keeps_its_sizes_to_itself() -> None:
    """What a callee declares is declared outside of the branch, where a size may be negative."""
    late = "def late(x : In[Tensor[N]], n : In[int]) -> Tensor[N]:\n    z : Tensor[N - n]\n"
    late += "    z[i] = x[i + n]\n    y : Tensor[N]\n    y[i] = z[0] * x[i]\n    return y\n"
    text = program("x : In[Tensor[N]], n : In[int]", "N", "if n < N:\n    y = late(x, n)")
    found = Interpreter(passes.canonical_form(parse(f"{late}\n{text}")))
    assert found.call("f", np.arange(1.0, 4.0), 1)[0].tolist() == [2.0, 4.0, 6.0]
    assert found.call("f", np.arange(1.0, 4.0), 5)[0].tolist() == [0.0, 0.0, 0.0]


def test_a_call_in_a_loop_is_inlined() -> None:
    twice = (
        "def twice(x : In[Tensor[M]]) -> Tensor[M]:\n    y : Tensor[M]\n    y[i] += 2.0 * x[i]\n"
    )
    twice += "    return y\n"
    body = """
z : Tensor[M]
for n in range(N):
    z[j] = x[n, j]
    z = twice(z)
    y[n, j] = z[j]
"""
    text = with_derivative(f"{twice}\n{program(X, 'N, M', body)}")
    point = Point("call", text, "f", (torch.randn(3, 2, dtype=torch.float64),))
    compare(point, Changed(text, verified(passes.canonical_form)))
    inlined = print_function(canonical.inline(parse(text)).function("f"))
    assert "twice" not in inlined


NUMBERS = {
    "an element": "for n in range(N):\n    y[n] = scaled(x[n], x[n, 0])",
    "a constant": "for n in range(N):\n    y[n] = scaled(x[n], 0.5)",
    "one that changes": """
a : float = 0.5
for n in range(N):
    y[n] = scaled(x[n], a)
    a += x[n, 0]
""",
    "one that has changed": """
a : float = 0.5
a += sum(x[n, 0] for n in N)
z = scaled(reshape(x, [N * M]), a)
a = a * a
y[n, j] = a * z[n * M + j]
""",
}


@pytest.mark.parametrize("case", NUMBERS)
def test_calls_with_numbers_are_inlined(case: str) -> None:
    scaled = "def scaled(x : In[Tensor[M]], a : In[float]) -> Tensor[M]:\n    b : float = a * a\n"
    scaled += "    y : Tensor[M]\n    y[i] = b * x[i] + a\n    return y\n"
    text = with_derivative(f"{scaled}\n{program(X, 'N, M', NUMBERS[case])}")
    assert "scaled" not in print_function(canonical.inline(parse(text)).function("f"))
    point = Point("call", text, "f", (torch.randn(3, 2, dtype=torch.float64),))
    for change in (canonical.inline, passes.canonical_form, passes.optimise):
        compare(point, Changed(text, verified(change)))


def test_a_callee_may_have_an_index_of_the_name_of_a_counter() -> None:
    twice = "def twice(x : In[Tensor[N]]) -> Tensor[N]:\n    y : Tensor[N]\n    y[i] = 2.0 * x[i]\n"
    twice += "    return y\n"
    body = "y[j] = x[j]\nfor i in range(3):\n    y = twice(y)"
    text = with_derivative(f"{twice}\n{program('x : In[Tensor[N]]', 'N', body)}")
    point = Point("call", text, "f", (torch.randn(4, dtype=torch.float64),))
    for change in (canonical.inline, passes.canonical_form, passes.optimise):
        compare(point, Changed(text, verified(change)))
