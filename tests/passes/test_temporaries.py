"""Temporaries that go: the text, that values and derivatives are the same, and which ones stay."""

from __future__ import annotations

import pytest
from sampled import one_in
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative
from test_loops import program

from loma import passes
from loma.core.printer import print_function
from loma.core.walk import depth, nodes
from loma.frontend import parse
from loma.passes import canonical

X = "x : In[Tensor[N, M]]"
SAME = "a : In[Tensor[N, D]], b : In[Tensor[N, D]]"
TWO = "a : In[Tensor[N, D]], b : In[Tensor[M, D]]"

# name, parameters, result, body, the statements that are left, shapes of the arguments
CASES: tuple[tuple[str, str, str, str, list[str], tuple[tuple[int, ...], ...]], ...] = (
    ("difference", TWO, "N, M", """
c : Tensor[N, M, D]
c[i, j, d] = a[i, d] - b[j, d]
y[i, j] = sum(c[i, j, d] * c[i, j, d] for d in D)
""", ["y[i, j] = sum((a[i, d] - b[j, d]) * (a[i, d] - b[j, d]) for d in D)"], ((3, 2), (4, 2))),
    ("read_once", X, "N, M", """
c : Tensor[N, M]
c[i, j] = tanh(x[i, j])
y[i, j] = c[i, j] * 2.0
""", ["y[i, j] = tanh(x[i, j]) * 2.0"], ((3, 2),)),
    ("running_sum", X + ", k : In[Tensor[N]]", "N, M", """
c : Tensor[N, M]
c[i, j] = k[i] * x[i, j]
y[i, j] = sum(c[q, j] for q in range(i + 1))
""", ["y[i, j] = sum(k[q] * x[q, j] for q in range(i + 1))"], ((3, 2), (3,))),
    ("next_value", X, "N, M", """
y[i, j] = x[i, j] + 1.0
y[i, j] = 2.0 * y[i, j]
""", ["y[i, j] = 2.0 * (x[i, j] + 1.0)"], ((3, 2),)),
    ("copy_read_elsewhere", X, "M, N", """
c : Tensor[M, N]
c[j, i] = x[i, j]
y[j, i] = c[j, i] + zero_pad(c[j - 1, i])
""", ["y[j, i] = x[i, j] + zero_pad(x[i, j - 1])"], ((3, 2),)),
    ("spread", X, "N, M", """
c : Tensor[N, M, 2]
c[i, j, k] = x[i, j]
y[i, j] = sum(c[i, j, k] * (k + 1) for k in range(2))
""", ["y[i, j] = sum(x[i, j] * (k + 1) for k in range(2))"], ((3, 2),)),
    ("padded", "x : In[Tensor[N]], w : In[Tensor[3]]", "N", """
z : Tensor[N + 2]
z[i + 1] = x[i]
y[i] = sum(z[i + p] * w[p] for p in range(3))
""", ["y[i] = sum(zero_pad(x[i + p - 1]) * w[p] for p in range(3))"], ((4,), (3,))),
    ("holds_a_loop", TWO, "N, 2", """
c : Tensor[M, D]
for i in range(N):
    c[j, d] = (a[i, d] - b[j, d]) * b[j, d]
    y[i, 0] += c[j, d] * c[j, d]
    y[i, 1] += abs(c[j, d])
""", [
    "for i in range(N):",
    "y[i, 0] += (a[i, d] - b[j, d]) * b[j, d] * ((a[i, d] - b[j, d]) * b[j, d])",
    "y[i, 1] += abs((a[i, d] - b[j, d]) * b[j, d])",
], ((3, 2), (4, 2))),
    ("holds_a_loop_by_a_quotient", "a : In[Tensor[N]], b : In[Tensor[M]]", "N", """
c : Tensor[M]
for i in range(N):
    c[j] = (a[i] - b[j]) / (1.0 + b[j] * b[j])
    y[i] += exp(c[j] * c[j])
""", [
    "for i in range(N):",
    "y[i] += exp((a[i] - b[j]) / (1.0 + b[j] * b[j]) * ((a[i] - b[j]) / (1.0 + b[j] * b[j])))",
], ((3,), (4,))),
    ("outer_product", "a : In[Tensor[N]], b : In[Tensor[M]], x : In[Tensor[M, D]]", "N, D", """
c : Tensor[N, M]
c[i, j] = a[i] * b[j]
y[i, d] += c[i, j] * x[j, d]
""", ["y[i, d] += a[i] * b[j] * x[j, d]"], ((3,), (4,), (4, 2))),
    ("on_a_triangle", "a : In[Tensor[N]], x : In[Tensor[N, D]]", "N, D", """
c : Tensor[N, N]
c[i, j] = a[i] / a[j] if j <= i else 0.0
y[i, d] = 2.0 * sum(x[j, d] * c[i, j] for j in N)
""", [
        "y[i, d] = 2.0 * sum(x[j, d] * (a[i] / a[j] if j <= i else 0.0) for j in N)",
    ], ((3,), (3, 2))),
    ("copied_sum", TWO, "N, M", """
c : Tensor[N, M]
c[i, j] = sum(a[i, d] * b[j, d] for d in D)
y[r, k] = c[r, k]
""", ["y[r, k] = sum(a[r, d] * b[k, d] for d in D)"], ((3, 2), (4, 2))),
    ("weights_of_a_product", "a : In[Tensor[N, N]], z : In[Tensor[N]], x : In[Tensor[N, D]]",
     "N, D", """
c : Tensor[N, N]
c[i, j] = a[i, j] / (2.0 + z[i] * z[i])
y[i, d] = sum(c[i, j] * x[j, d] for j in N)
""", ["y[i, d] = sum(a[i, j] / (2.0 + z[i] * z[i]) * x[j, d] for j in N)"],
     ((3, 3), (3,), (3, 2))),
    ("overwritten_weights", "a : In[Tensor[N, N]], z : In[Tensor[N]], x : In[Tensor[N, D]]",
     "N, D", """
c : Tensor[N, N]
c[i, j] = exp(a[i, j])
y[i, d] = sum(c[i, j] * c[i, j] for j in N)
c[i, j] = c[i, j] * z[i]
y[i, d] += sum(c[i, j] * x[j, d] for j in range(i + 1))
""", [
        "c[i, j] = exp(a[i, j])", "y[i, d] = sum(c[i, j] * c[i, j] for j in N)",
        "y[i, d] += sum(c[i, j] * z[i] * x[j, d] for j in range(i + 1))",
    ], ((3, 3), (3,), (3, 2))),
    ("mask", "x : In[Tensor[B, N, N]]", "B, N, N", """
c : Tensor[N, N]
c[i, j] = 1.0 if j <= i else 0.0
y[b, i, j] = x[b, i, j] * c[i, j] + c[j, i]
""", [
        "y[b, i, j] = x[b, i, j] * (1.0 if j <= i else 0.0) + (1.0 if i <= j else 0.0)",
    ], ((2, 3, 3),)),
    ("mask_shifted", "x : In[Tensor[B, N]]", "B, N", """
c : Tensor[N + 1]
c[i] = 0.5 * int2float(i)
y[b, i] = x[b, i] + c[i + 1]
""", ["y[b, i] = x[b, i] + 0.5 * int2float(i + 1)"], ((2, 3),)),
    ("in_a_loop", X, "N, M", """
c : Tensor[M]
for i in range(N):
    c[j] = x[i, j] * 2.0
    y[i, j] = c[j] + (y[i - 1, j] if i > 0 else 0.0)
""", [
        "for i in range(N):", "y[i, j] = x[i, j] * 2.0 + (y[i - 1, j] if i > 0 else 0.0)",
    ], ((3, 2),)),
)  # fmt: skip

KEPT: tuple[tuple[str, str, str, str, tuple[tuple[int, ...], ...]], ...] = (
    ("as_often_as_an_index", X, "N", """
c : Tensor[N, M]
c[i, j] = x[i, 0]
y[i] += c[i, j]
""", ((3, 2),)),
    ("costly_in_a_running_sum", X, "N, M", """
c : Tensor[N, M]
c[i, j] = tanh(x[i, j])
y[i, j] = sum(c[q, j] for q in range(i + 1))
""", ((3, 2),)),
    ("no_running_sum", X, "N, M", """
c : Tensor[N, M]
c[i, j] = x[i, j] * 2.0
y[i, j] = sum(max(c[q, j], x[i, j]) for q in range(i + 1))
""", ((3, 2),)),
    ("costly_twice", X, "N, M", """
c : Tensor[N, M]
c[i, j] = exp(x[i, j])
y[i, j] = c[i, j] / (1.0 + c[i, j])
""", ((3, 2),)),
    ("sum_in_an_expression", TWO, "N, M", """
c : Tensor[N, M]
c[i, j] = sum(a[i, d] * b[j, d] for d in D)
y[i, j] = 2.0 * c[i, j]
""", ((3, 2), (4, 2))),
    ("sum_added", TWO, "N, M", """
c : Tensor[N, M]
c[i, j] = sum(a[i, d] * b[j, d] for d in D)
y[i, j] += c[i, j]
""", ((3, 2), (4, 2))),
    ("sum_turned_around", TWO, "M, N", """
c : Tensor[N, M]
c[i, j] = sum(a[i, d] * b[j, d] for d in D)
y[j, i] = c[i, j]
""", ((3, 2), (4, 2))),
    ("sum_read_twice", TWO, "N, M", """
c : Tensor[N, M]
c[i, j] = sum(a[i, d] * b[j, d] for d in D)
y[i, j] = c[i, j]
y[i, j] += c[i, j] * c[i, j]
""", ((3, 2), (4, 2))),
    ("index_of_the_sum", TWO, "N, M", """
c : Tensor[N, M]
c[i, j] = sum(a[i, d] * b[j, d] for d in D)
y[d, j] = c[d, j]
""", ((3, 2), (4, 2))),
    ("largest", X, "N, 1", """
c : Tensor[N, 1]
c[i, j] = max(x[i, k] for k in M)
y[i, j] = c[i, j]
""", ((3, 2),)),
    ("in_a_product", TWO, "N, M", """
c : Tensor[N, D]
c[i, d] = a[i, d] + 1.0
y[i, j] = sum(c[i, d] * b[j, d] for d in D)
""", ((3, 2), (4, 2))),
    ("product_on_a_band", "a : In[Tensor[N]], x : In[Tensor[N, D]]", "N, D", """
c : Tensor[N, N]
c[i, j] = a[i] * a[j] if j <= i and i <= j + 2 else 0.0
y[i, d] = sum(c[i, j] * x[j, d] for j in N)
""", ((3,), (3, 2))),
    ("mask_in_a_product", "x : In[Tensor[N, D]]", "N, D", """
c : Tensor[N, N]
c[i, j] = 1.0 if j <= i and i <= j + 2 else 0.0
y[i, d] = sum(c[i, j] * x[j, d] for j in N)
""", ((3, 2),)),
    ("costly_mask", "x : In[Tensor[B, N]]", "B, N", """
c : Tensor[N]
c[i] = sin(int2float(i))
y[b, i] = x[b, i] + c[i]
""", ((2, 3),)),
    ("factor_that_costs_more", "a : In[Tensor[N, K]], b : In[Tensor[M, K]], x : In[Tensor[M, D]]",
     "N, D", """
c : Tensor[N, M, K]
c[i, j, k] = a[i, k] * b[j, k]
y[i, d] = sum(c[i, j, k] * x[j, d] for j in M for k in K)
""", ((3, 2), (4, 2), (4, 2))),
    ("scaled_rows", "a : In[Tensor[N, M]], b : In[Tensor[M]], x : In[Tensor[M, D]]", "N, D", """
c : Tensor[N, M]
c[i, j] = a[i, j] * b[j]
y[i, d] = sum(c[i, j] * x[j, d] for j in M)
""", ((3, 4), (4,), (4, 2))),
    ("weights_of_nothing", "a : In[Tensor[N, M]], z : In[Tensor[N]], x : In[Tensor[M, D]]",
     "N, D", """
c : Tensor[N, M]
c[i, j] = a[i, j] / z[i]
y[i, d] = sum(c[i, j] * x[j, d] for j in M)
""", ((3, 0), (3,), (0, 2))),
    ("mirrored", X, "N, N", """
c : Tensor[N, N]
c[i, j] = exp(x[i, 0] * j)
c[i, j] = c[j, i] / 2.0
y[i, j] = c[i, j] + c[0, 0]
""", ((3, 2),)),
    ("overwritten_input", X, "N, M", """
c : Tensor[N, M]
y[i, j] += x[i, j]
c[i, j] = y[i, j] * 2.0
y[i, j] += x[i, j] * x[i, j]
y[i, j] += c[i, j]
""", ((3, 2),)),
    ("read_at_other_places", X, "N, M", """
c : Tensor[N, M]
c[i, j] = x[i, j] * x[i, j]
y[i, j] = zero_pad(c[i - 1, j])
""", ((3, 2),)),
    ("carried", X, "N, M", """
c : Tensor[M]
for i in range(N):
    y[i, j] = c[j]
    c[j] = x[i, j] + 1.0
""", ((3, 2),)),
    ("as_large_as_what_the_loop_reads", "a : In[Tensor[N, M, D]], b : In[Tensor[M, D]]", "N, 2", """
c : Tensor[M, D]
for i in range(N):
    c[j, d] = (a[i, j, d] - b[j, d]) * b[j, d]
    y[i, 0] += c[j, d] * c[j, d]
    y[i, 1] += abs(c[j, d])
""", ((3, 4, 2), (4, 2))),
    ("costly_in_a_loop", TWO, "N, 2", """
c : Tensor[M, D]
for i in range(N):
    c[j, d] = exp(a[i, d] - b[j, d])
    y[i, 0] += c[j, d] * c[j, d]
    y[i, 1] += abs(c[j, d])
""", ((3, 2), (4, 2))),
    ("ends_of_its_own", "x : In[Tensor[N]]", "N, 3", """
c : Tensor[N, 3]
c[i, j] = x[i]
y[i, j] = zero_pad(c[i, j + 1])
""", ((4,),)),
    ("larger_copy", "x : In[Tensor[N]]", "N", """
z : Tensor[N + 2]
z[i + 1] = x[i]
z[0] = 1.0
y[i] = z[i + 0]
""", ((4,),)),
)  # fmt: skip


# Those that go when derivatives are made, for one statement reads their element several times.
TERMS: tuple[tuple[str, str, str, str, list[str], tuple[tuple[int, ...], ...]], ...] = (
    ("terms_of_a_sum", SAME, "N", """
c : Tensor[N, D]
c[i, d] = a[i, d] - b[i, d]
y[i] = sum(c[i, d] * c[i, d] + abs(c[i, d]) for d in D)
""", ["y[i] = sum((a[i, d] - b[i, d]) * (a[i, d] - b[i, d]) + abs(a[i, d] - b[i, d]) for d in D)"],
     ((3, 2), (3, 2))),
    ("divided", SAME, "N", """
c : Tensor[N, D]
c[i, d] = a[i, d] / b[i, d]
y[i] = sum(c[i, d] * c[i, d] for d in D)
""", ["y[i] = sum(a[i, d] / b[i, d] * (a[i, d] / b[i, d]) for d in D)"], ((3, 2), (3, 2))),
    ("mask_of_values", "x : In[Tensor[N, N]]", "N, N", """
r : Tensor[N, N]
c : Tensor[N, N]
r[i, j] = x[i, j] * x[j, i]
c[i, j] = r[i, j] < 1.0
y[i, j] = c[i, j] * r[i, j]
""", ["y[i, j] = (1.0 if x[i, j] * x[j, i] < 1.0 else 0.0) * (x[i, j] * x[j, i])"], ((3, 3),)),
)  # fmt: skip

# Those that stay then, too.
HELD: tuple[tuple[str, str, str, str, tuple[tuple[int, ...], ...]], ...] = (
    ("two_statements", SAME, "N, D", """
c : Tensor[N, D]
c[i, d] = a[i, d] - b[i, d]
y[i, d] = c[i, d] * c[i, d]
y[i, d] += c[i, d] * b[i, d]
""", ((3, 2), (3, 2))),
    ("two_places", "x : In[Tensor[N, N]]", "N, N", """
c : Tensor[N, N]
c[i, j] = x[i, j] * x[j, i] + x[i, i]
y[i, j] = c[i, j] * c[j, i]
""", ((3, 3),)),
    ("terms_of_two_sums", SAME, "N", """
c : Tensor[N, D]
c[i, d] = a[i, d] - b[i, d]
y[i] = sum(c[i, d] for d in D) + max(c[i, d] for d in D)
""", ((3, 2), (3, 2))),
    ("long", SAME, "N", f"""
c : Tensor[N, D]
c[i, d] = a[i, d] - b[i, d]
y[i] = sum({" + ".join(["c[i, d] * c[i, d]"] * 20)} for d in D)
""", ((3, 2), (3, 2))),
)  # fmt: skip


def left(text: str, every: bool = False) -> list[str]:
    module = canonical.temporaries(parse(text), every=every)
    assert canonical.temporaries(module, every=every) == module
    printed = print_function(module.function("f")).strip().split("\n")[1:-1]
    return [line.strip() for line in printed if " : " not in line]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_what_is_left(case: tuple[str, str, str, str, list[str], object]) -> None:
    _, params, result, body, expected, _ = case
    assert left(program(params, result, body)) == expected


@pytest.mark.parametrize("case", KEPT, ids=lambda case: case[0])
def test_what_stays(case: tuple[str, str, str, str, object]) -> None:
    _, params, result, body, _ = case
    assert any(line.startswith(("c[", "z[")) for line in left(program(params, result, body)))


@pytest.mark.parametrize("case", TERMS, ids=lambda case: case[0])
def test_what_one_statement_reads_goes_behind_derivatives(
    case: tuple[str, str, str, str, list[str], object],
) -> None:
    _, params, result, body, expected, _ = case
    text = program(params, result, body)
    assert left(text, every=True) == expected
    assert any(line.startswith(("c[", "r[")) for line in left(text))


@pytest.mark.parametrize("case", HELD, ids=lambda case: case[0])
def test_what_more_reads_stays(case: tuple[str, str, str, str, object]) -> None:
    _, params, result, body, _ = case
    assert left(program(params, result, body), every=True)[0].startswith("c[")


@pytest.mark.parametrize("case", one_in(3, [*CASES, *KEPT, *TERMS, *HELD]), ids=lambda c: c[0])
def test_values_and_derivatives(case: tuple[object, ...]) -> None:
    name, params, result, body, *_, shapes = case
    assert isinstance(shapes, tuple)
    generator = torch.Generator().manual_seed(2)
    args = tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    text = with_derivative(program(str(params), str(result), str(body)))
    point = Point(str(name), text, "f", args)
    compare(point, Changed(text, verified(canonical.temporaries)))
    compare(point, Changed(text, verified(passes.optimise)))


@pytest.mark.parametrize(
    ("value", "goes"),
    [
        ("c[i, d] * c[i, d] for d in D", True),
        ("2.0 * (c[i, d] * c[i, d]) + b[i, d] for d in D", True),
        ("c[i, d] * c[i, d] * c[i, d] for d in D", False),
        ("c[i, d] * c[i, d] + c[i, d] for d in D", False),
    ],
)
def test_what_is_read_for_its_square(value: str, goes: bool) -> None:
    body = f"c : Tensor[N, D]\nc[i, d] = a[i, d] - b[i, d]\ny[i] = sum({value})"
    text = program(SAME, "N", body)
    assert any(line.startswith("c[") for line in left(text)) != goes
    generator = torch.Generator().manual_seed(2)
    args = tuple(torch.randn(3, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    text = with_derivative(text)
    compare(Point(value, text, "f", args), Changed(text, verified(canonical.temporaries)))


def test_ints_stay_ints() -> None:
    text = "def f(x : In[Tensor[N]]) -> Tensor[N]:\n    c : Tensor[N]\n    c[i] = i\n"
    text += "    y : Tensor[N]\n    y[i] = x[i] * (c[i] / 2)\n    return y\n"
    assert left(text)[0] == "c[i] = i"


def test_long_chains_stay_within_a_depth() -> None:
    chain = "    y[i] = sin(y[i])\n" * 100
    text = "def f(x : In[Tensor[N]]) -> Tensor[N]:\n    y : Tensor[N]\n    y[i] = x[i]\n"
    module = canonical.temporaries(parse(f"{text}{chain}    return y\n"))
    assert 30 < max(map(depth, nodes(module.function("f").body))) < 50


# name, what a round gives a temporary, and what it writes of the tensor that this was made of
STATES: tuple[tuple[str, str, str, bool], ...] = (
    ("the_next", "zero_pad(w[t, i - 1])", "w[t + 1, i] = w[t, i] + 0.5 * l[i]", True),
    ("neighbours", "zero_pad(w[t, i - 1])", "w[t, i] = w[t, i] + 0.5 * l[i]", False),
    ("written_before", "zero_pad(w[t, i - 1])",
     "w[t, i] = 2.0 * w[t, i]\n        w[t + 1, i] = w[t, i] + 0.5 * l[i]", False),
)  # fmt: skip


@pytest.mark.parametrize("case", STATES, ids=lambda case: case[0])
def test_what_is_made_of_the_tensor_that_is_written(case: tuple[str, str, str, bool]) -> None:
    _, value, written, goes = case
    program = with_derivative(
        "def f(x : In[Tensor[N]]) -> Tensor[4, N]:\n    w : Tensor[4, N]\n    w[0, i] = x[i]\n"
        f"    for t in range(3):\n        l : Tensor[N]\n        l[i] = {value}\n"
        f"        {written}\n    return w\n"
    )
    shown = print_function(passes.canonical_form(parse(program)).function("f"))
    assert (" l[" not in shown) == goes
    x = torch.randn(5, dtype=torch.float64)
    for change in (passes.canonical_form, passes.optimise):
        compare(Point("f", program, "f", (x,)), Changed(program, verified(change)))
