"""What is multiplied in a sum is a tensor, so that the sum is a product of two."""

from __future__ import annotations

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes
from loma.core.printer import print_function
from loma.frontend import parse

HEAD = "x : In[Tensor[N, M]], z : In[Tensor[M]], w : In[Tensor[M, K]]"

# name, body, what the canonical form has, what it has not
CASES: tuple[tuple[str, str, str, str], ...] = (
    ("quotient", "y[i, k] = sum(x[i, j] / z[j] * w[j, k] for j in M)",
     "_c[i, j] = x[i, j] / z[j]", "x[i, j] / z[j] *"),
    ("added_up", "y[i, k] += w[j, k] * (x[i, j] / z[j])", "_c[i, j] = x[i, j] / z[j]", "* (x"),
    ("for_one_result", "y[i, k] = w[0, k] * sum(x[i, j] / z[j] for j in M)",
     "x[i, j] / z[j]", "_c"),
    ("of_all_indices", "y[i, k] = sum(x[i, j] / w[j, k] for j in M)", "x[i, j] / w[j, k]", "_c"),
    ("outside", "y[i, k] = w[0, k] * (x[i, 0] / z[0])", "x[i, 0] / z[0]", "_c"),
    ("guarded", "y[i, k] = sum(x[i, j] / z[j] * w[j, k] if x[i, j] > 0.0 else 0.0 for j in M)",
     "x[i, j] / z[j] *", "_c"),
    ("squares", "y[i, k] = sum(x[i, j] ** 2 * w[j, k] ** 2 for j in M)",
     "_c[i, j] * _c_1[j, k]", "x[i, j] ** 2 *"),
    ("square_of_a_product", "y[i, k] += (x[i, j] * w[j, k]) ** 2",
     "_c[i, j] * _c_1[j, k]", "x[i, j] * w"),
    ("difference", "y[i, k] = sum((x[i, j] - z[j]) * w[j, k] for j in M)",
     "_c[i, j] = x[i, j] - z[j]", ") * w"),
    ("differences", "y[i, k] += (x[i, j] - 1.0) * (w[j, k] - z[j])",
     "_c[i, j] * _c_1[k, j]", ") * ("),
    ("difference_of_both", "y[i, k] = sum((x[i, j] - w[j, k]) * w[j, k] for j in M)",
     "(x[i, j] - w[j, k]) * w", "_c"),
    ("of_one_side", "y[i, k] = sum(x[i, j] * w[j, k] * x[i, j] for j in M)",
     "_c[i, j] * w[j, k]", "x[i, j] * w"),
    ("of_vectors", "y[i, k] = w[0, k] * sum(x[i, j] * x[i, j] * z[j] for j in M)",
     "x[i, j] * x[i, j] * z[j]", "_c"),
    ("of_neighbours", "y[i, k] = sum(x[i, j] * x[i, j] * w[(j + 1) % M, k] for j in M)",
     "x[i, j] * x[i, j] *", "_c"),
    ("place_with_a_division", "y[i, k] = sum(x[i, j] * z[j * k % M] for j in M)",
     "_c[k, j] = z[j * k % M]", "x[i, j] * z["),
    ("padded", "y[i, k] = sum(x[i, j] * zero_pad(z[j * k % (M + 1)]) * w[j, 0] for j in M)",
     "zero_pad(z[", "= z["),
    ("padded_place", "y[i, k] = w[0, k] * zero_pad(z[float2int(x[0, i % M] * 9.0)])",
     "= zero_pad(z[", "* zero_pad"),
    ("function", "y[i, k] = sum(relu(x[i, j] - z[j]) * w[j, k] for j in M)",
     "_relu[i, j] * w[j, k]", ") * w"),
    ("choice", "y[i, k] = sum((x[i, j] if x[i, j] > 1.0 else z[j]) * w[j, k] for j in M)",
     "_c[i, j] * w[j, k]", ") * w"),
    ("where_data_say", "p : IntTensor[N]\np[n] = n // 2\ny[p[i], k] += x[i, j] * relu(w[j, k])",
     "_r[i, k] = sum(x[i, j] * _relu[j, k] for j in M)", "+= x"),
    ("sum_where_data_say", """p : IntTensor[N]
p[n] = n // 2
y[p[i], k] += sum(x[i, j] * w[j, k] for j in M)""",
     "_r[i, k] = sum(x[i, j] * w[j, k] for j in M)", "+= sum"),
    ("short", "y[i, k] = sum(x[i, j] ** 2 * w[j, k] ** 2 for j in range(3))",
     "x[i, j] ** 2 * w", "_c"),
    ("view_of_an_operator", "y = sum(reshape(softmax(x, 1), [N, M, 1]) * w, [1])",
     "softmax(x, dim=1)", "reshape"),
    ("view_of_a_name", "s = softmax(x, 1)\ny = sum(reshape(s, [N, M, 1]) * w, [1])",
     "softmax(x, dim=1)", "reshape"),
    ("view_in_a_loop", """
for t in range(2):
    y += sum(reshape(softmax(x, 1), [N, M, 1]) * w, [1])
""", "softmax(x, dim=1)", "reshape"),
)  # fmt: skip


def text(case: tuple[str, str, str, str]) -> str:
    lines = "".join(f"    {line}\n" for line in case[1].strip("\n").split("\n"))
    declared = "    y : Tensor[N, K]\n" if "y =" not in case[1] else ""
    return f"def f({HEAD}) -> Tensor[N, K]:\n{declared}{lines}    return y\n"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_what_is_a_tensor(case: tuple[str, str, str, str]) -> None:
    shown = print_function(passes.canonical_form(parse(text(case))).function("f"))
    assert case[2] in shown
    assert case[3] not in shown


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_values_and_derivatives(case: tuple[str, str, str, str]) -> None:
    whole = with_derivative(text(case))
    generator = torch.Generator().manual_seed(4)
    x, z, w = (torch.rand(s, generator=generator, dtype=torch.float64) + 0.5
               for s in ((3, 4), (4,), (4, 2)))  # fmt: skip
    for change in (passes.canonical_form, passes.optimise):
        compare(Point(case[0], whole, "f", (x, z, w)), Changed(whole, verified(change)))


@pytest.mark.parametrize("shape", [(3, 4, 5, 2), (1, 1, 1, 1), (2, 0, 3, 1), (0, 2, 2, 2)])
def test_three_factors_are_two(shape: tuple[int, int, int, int]) -> None:
    """Those that lack the result's other index are one operand, in the order of the other one."""
    whole = with_derivative("""
def f(x : In[Tensor[N, I]], v : In[Tensor[O, I, J]], y : In[Tensor[N, J]]) -> Tensor[N, O]:
    z : Tensor[N, O]
    z[n, o] = 2.0 + sum(y[n, j] * (v[o, i, j] * x[n, i]) for j in J for i in I)
    return z
""")
    shown = print_function(passes.canonical_form(parse(whole)).function("f"))
    assert "[n, i, j] = y[n, j] * x[n, i]" in shown
    rows, first, second, columns = shape
    sizes = ((rows, first), (columns, first, second), (rows, second))
    args = tuple(torch.randn(size, dtype=torch.float64) for size in sizes)
    for change in (passes.canonical_form, passes.optimise):
        compare(Point("f", whole, "f", args), Changed(whole, verified(change)))


# What has an index with a range of its own, which need not fill the dimensions where it stands.
PARTS = {
    "costly": "sum(exp(a[n, k] + a[n, k + 2]) * w[k, m] for k in range(2))",
    "products": "prod(a[n, k] - w[k + 1, m] for k in range(3))",
    "many factors": "prod(a[n, k] - w[k + 1, m] + j for k in range(3) for j in range(2))",
    "quotients": "sum(a[n, k] / a[0, k] * w[k, m] for k in range(3))",
    "sums": "sum(a[n, k] / sum(a[i, k] for i in N) for k in range(2)) * w[0, m]",
    "extremes": "w[0, m] * sum(a[n, k] * max(a[n, j] * w[k, j] for j in range(2))"
    " for k in range(3))",
    "steps": "sum(a[n, k] * w[k, j] * a[n, j] * w[j, m] for k in range(3) for j in range(2))",
    "running": "sum(sum(exp(a[n, q]) * a[n, q + 1] for q in range(k + 1)) * w[k, m]"
    " for k in range(3))",
}  # fmt: skip


@pytest.mark.parametrize("value", PARTS.values(), ids=PARTS)
def test_an_index_need_not_fill_a_dimension(value: str) -> None:
    whole = with_derivative(f"""
def f(a : In[Tensor[N, 4]], w : In[Tensor[4, M]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[n, m] = {value}
    return y
""")
    args = tuple(torch.rand(s, dtype=torch.float64) + 0.5 for s in ((3, 4), (4, 2)))
    for change in (passes.canonical_form, passes.optimise):
        compare(Point("f", whole, "f", args), Changed(whole, verified(change)))


# name, loop, whether what is costly leaves it
ROUNDS: tuple[tuple[str, str, bool], ...] = (
    ("same", "for t in range(3):\n    y[i, k] = y[i, k] * exp(-exp(w[i, k])) + x[i, t]", True),
    ("in_two_loops", """
for t in range(3):
    for s in range(2):
        y[i, k] = y[i, k] * exp(w[i, k]) + x[i, t] * s
""", True),
    ("another_in_each", "for t in range(3):\n    y[i, k] = y[i, k] * exp(x[i, t]) + w[i, k]",
     False),
    ("changed", "for t in range(3):\n    y[i, k] = y[i, k] * 0.5 + exp(y[i, k])", False),
    ("guarded", """
for t in range(3):
    if t > 1:
        y[i, k] = y[i, k] * exp(w[i, k]) + x[i, t]
""", False),
    ("larger", """
for t in range(3):
    y[0, t] = y[0, t] + sum(exp(z[j] * z[k]) * y[0, t] for j in M for k in M)
""", False),
    ("may_fail", "for t in range(M - 3):\n    y[i, k] = y[i, k] * exp(w[i + 3, k]) + x[i, t]",
     False),
)  # fmt: skip


@pytest.mark.parametrize("case", ROUNDS, ids=lambda case: case[0])
def test_what_is_the_same_in_all_rounds(case: tuple[str, str, bool]) -> None:
    lines = "".join(f"    {line}\n" for line in case[1].strip("\n").split("\n"))
    source = with_derivative(
        f"def f({HEAD.replace('[M, K]', '[N, K]')}) -> Tensor[N, K]:\n    y : Tensor[N, K]\n"
        f"    y[i, k] = x[i, 0] + w[i, k]\n{lines}    return y\n"
    )
    shown = print_function(passes.canonical_form(parse(source)).function("f"))
    before = shown.split("for t in", 1)[0]
    assert ("exp(" in before) == case[2]
    assert ("exp(" in shown[len(before) :]) != case[2]
    if case[0] == "may_fail":
        return  # for these sizes
    args = tuple(torch.randn(s, dtype=torch.float64) * 0.5 for s in ((2, 3), (3,), (2, 4)))
    for change in (passes.canonical_form, passes.optimise):
        compare(Point(case[0], source, "f", args), Changed(source, verified(change)))
