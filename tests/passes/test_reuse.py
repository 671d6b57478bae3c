"""Equal values under two names become one, and additions to what they are adjoints of, too."""

from __future__ import annotations

import pytest
from sampled import diagonals, name_of
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative
from test_loops import program

import loma
from loma import passes, pipeline
from loma.core.ir import Function, IndexAssign
from loma.core.printer import print_function
from loma.core.walk import root, statements
from loma.frontend import parse
from loma.passes.reuse import same_values

X = "x : In[Tensor[N, M]]"
MEAN = "m : Tensor[N]\nm[i] = sum(x[i, j] for j in M)\n"

# name, body, whether one tensor goes
CASES: tuple[tuple[str, str, bool], ...] = (
    ("twice", MEAN + """
k : Tensor[N]
k[p] = sum(x[p, q] for q in M)
y[i, j] = (x[i, j] - m[i]) * k[i]
""", True),
    ("with_a_dimension_of_one", MEAN + """
k : Tensor[1, N, 1]
k[0, p, 0] = sum(x[p, q] for q in M)
y[i, j] = (x[i, j] - m[i]) * k[0, i, 0]
""", True),
    ("without_a_dimension_of_one", """
k : Tensor[N, 1]
k[p, 0] = sum(x[p, q] for q in M)
m : Tensor[N]
m[i] = sum(x[i, j] for j in M)
y[i, j] = (x[i, j] - m[i]) * k[i, 0]
""", True),
    ("another_value", MEAN + """
k : Tensor[N]
k[i] = sum(x[i, j] * x[i, j] for j in M)
y[i, j] = (x[i, j] - m[i]) * k[i]
""", False),
    ("another_derivative", MEAN + """
k : Tensor[N]
k[i] = no_diff(sum(x[i, j] for j in M))
y[i, j] = (x[i, j] - m[i]) * k[i]
""", False),
    ("an_input_changes", """
c : Tensor[N, M]
c[i, j] = x[i, j] * 2.0
m : Tensor[N]
m[i] = sum(c[i, j] for j in M)
c[i, j] = c[i, j] * m[i]
k : Tensor[N]
k[i] = sum(c[i, j] for j in M)
y[i, j] = (x[i, j] - m[i]) * k[i]
""", False),
    ("one_changes_later", MEAN + """
k : Tensor[N]
k[i] = sum(x[i, j] for j in M)
m[i] = m[i] * x[i, 0]
y[i, j] = (x[i, j] - m[i]) * k[i]
""", False),
    ("other_changes_later", MEAN + """
k : Tensor[N]
k[i] = sum(x[i, j] for j in M)
k[i] += x[i, 0]
y[i, j] = (x[i, j] - m[i]) * k[i]
""", False),
    ("used_as_a_whole", MEAN + """
k : Tensor[N]
k[i] = sum(x[i, j] for j in M)
y = reshape(k, [N, 1]) * x
y[i, j] = y[i, j] * m[i]
""", False),
    ("only_a_part", MEAN + """
k : Tensor[N, 2]
k[i, 0] = sum(x[i, j] for j in M)
k[i, 1] = x[i, 0]
y[i, j] = m[i] * k[i, 0] + k[i, 1]
""", False),
    ("transposed", """
a : Tensor[N, M]
a[i, j] = exp(x[i, j])
b : Tensor[M, N]
b[j, i] = exp(x[i, j])
y[i, j] = a[i, j] * b[j, i]
""", False),
    ("other_sizes", """
a : Tensor[N, M, M]
a[i, j, k] = exp(x[i, j])
b : Tensor[N, M, N]
b[i, j, k] = exp(x[i, j])
y[i, j] = a[i, j, 0] * b[i, j, 0]
""", False),
    ("in_the_next_round", """
m : Tensor[N]
k : Tensor[N]
k[i] = x[i, 0]
for t in range(M):
    y[i, t] = k[i] * m[i]
    m[i] = sum(x[i, j] * x[i, t] for j in M)
    k[i] = sum(x[i, j] * x[i, t] for j in M)
""", False),
    ("behind_a_loop", """
m : Tensor[N]
k : Tensor[N]
k[i] = x[i, 0]
for t in range(M):
    m[i] = sum(x[i, j] * x[i, t] for j in M)
    k[i] = sum(x[i, j] * x[i, t] for j in M)
y[i, j] = k[i] * m[i]
""", False),
    ("in_a_condition", """
m : Tensor[N]
k : Tensor[N]
for t in range(M):
    m[i] = sum(x[i, j] * x[i, t] for j in M)
    k[i] = sum(x[i, j] * x[i, t] for j in M)
    y[i, t] = k[i] * m[i]
if k[0] > 0.5:
    y[i, j] = y[i, j] * 2.0
""", False),
    ("within_rounds", """
m : Tensor[N]
k : Tensor[N]
for t in range(M):
    m[i] = sum(x[i, j] * x[i, t] for j in M)
    k[i] = sum(x[i, j] * x[i, t] for j in M)
    y[i, t] = k[i] * m[i]
""", True),
)  # fmt: skip


def assigned(function: Function) -> int:
    return sum(isinstance(stmt, IndexAssign) for stmt in statements(function.body))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_which_values_get_one_name(case: tuple[str, str, bool]) -> None:
    _, body, goes = case
    module = passes.zeroing(parse(program(X, "N, M", body)))
    new = same_values(module)
    assert (new == module) != goes
    assert same_values(new) == new
    assert assigned(module.function("f")) - assigned(new.function("f")) == goes


@pytest.mark.parametrize(
    ("shape", "case"), diagonals(4, [(3, 2), (2, 2), (0, 2), (2, 0)], CASES), ids=name_of
)
def test_values_and_derivatives(case: tuple[str, str, bool], shape: tuple[int, int]) -> None:
    name, body, _ = case
    if 0 in shape and "0]" in body:
        pytest.skip("reads an element")
    text = with_derivative(program(X, "N, M", body))
    generator = torch.Generator().manual_seed(5)
    x = 0.5 * torch.randn(*shape, generator=generator, dtype=torch.float64)
    for change in (same_values, passes.canonical_form, passes.optimise):
        compare(Point(f"{name} {shape}", text, "f", (x,)), Changed(text, verified(change)))


def test_the_adjoint_of_a_norm_is_written_once() -> None:
    """Its mean and that of its variance are one value, with one adjoint; what is kept for it has
    dimensions of one element."""
    text = program(
        "x : In[Tensor[B, C, H, W]]",
        "B, C, H, W",
        "m = mean(x, [0, 2, 3], keepdim=True)\n"
        "v = var(x, [0, 2, 3], correction=0, keepdim=True)\n"
        "y = (x - m) * rsqrt(v + 1e-5)",
    )
    module = pipeline.program(text).module
    made = [
        s for s in statements(module.function("f__backward").body) if isinstance(s, IndexAssign)
    ]
    assert [stmt.op for stmt in made if root(stmt.target) == "_d_x"] == ["="]
    shown = print_function(module.function("f__forward"))
    assert shown.count("/ int2float(B * H * W)") == 1


def test_an_adjoint_that_has_one_statement_needs_no_tensor() -> None:
    """Two additions to the adjoint of ``e``, joined, stand where it is read."""
    body = (
        "e : Tensor[N, M]\ne[i, j] = exp(x[i, j])\nz : Tensor[N]\n"
        "z[i] = sum(e[i, j] for j in M)\ny[i, j] = e[i, j] / z[i]"
    )
    module = pipeline.program(program(X, "N, M", body)).module
    assert "_d_e" not in print_function(module.function("f__backward"))


def test_a_statement_reads_no_other_elements_of_what_it_writes() -> None:
    """The second product is the transposed first one, which is being written then."""
    body = (
        "y[i, j] = sum(x[i, k] * w[j, k] for k in K)\ny[i, j] += sum(x[j, k] * w[i, k] for k in K)"
    )
    text = program("x : In[Tensor[N, K]], w : In[Tensor[N, K]]", "N, N", body)
    module = verified(passes.reuse)(parse(text))
    assert print_function(module.function("f")).count("sum(") == 2
    x, w = torch.randn(2, 40, 3)
    expected = x @ w.T + w @ x.T
    torch.testing.assert_close(loma.compile(text).f(x, w), expected, rtol=1e-4, atol=1e-4)


def test_a_statement_may_read_the_element_that_it_writes() -> None:
    body = "y[i, j] = exp(x[i, j])\ny[i, j] += exp(x[i, j]) * x[i, j]"
    module = verified(passes.reuse)(parse(program(X, "N, M", body)))
    assert print_function(module.function("f")).count("exp(") == 1


NORM = """
def f(x : In[Tensor[N, M]], w : In[Tensor[M]], b : In[Tensor[M]]) -> Tensor[N, M]:
    m : Tensor[M]
    v : Tensor[M]
    y : Tensor[N, M]
    m[c] = sum(x[i, c] for i in N) / N
    v[c] = sum((x[i, c] - m[c]) ** 2 for i in N) / N
    y[i, c] = (x[i, c] - m[c]) / sqrt(v[c] + 1e-5) * w[c] + b[c]
    return y
"""
INSTANCES = """
def f(x : In[Tensor[N, M, L]], w : In[Tensor[M]], b : In[Tensor[M]]) -> Tensor[N, M, L]:
    m : Tensor[N, M]
    v : Tensor[N, M]
    y : Tensor[N, M, L]
    m[i, c] = sum(x[i, c, l] for l in L) / L
    v[i, c] = sum((x[i, c, l] - m[i, c]) ** 2 for l in L) / L
    y[i, c, l] = (x[i, c, l] - m[i, c]) / sqrt(v[i, c] + 1e-5) * w[c] + b[c]
    return y
"""


def test_sums_of_several_adjoints_are_made_once() -> None:
    """The gradients of ``w`` and ``b`` are sums that the gradient of ``x`` is made of."""
    module = pipeline.program(NORM).module
    text = print_function(module.function("f__backward"))
    assert text.count("sum(") == 3
    assert text.count("sum(_d_result[i, c] for i in N)") == 1
    without = pipeline.program(NORM.replace("* w[c] + b[c]", "* w[c]")).module
    text = print_function(without.function("f__backward"))
    assert text.count("sum(") == 3
    assert "if _need_x or _need_w:" in text
    instances = pipeline.program(INSTANCES).module  # sums over samples, and over all but these
    text = print_function(instances.function("f__backward"))
    assert text.count("sum(_d_result[i, c, l] for l in L)") == 1
    assert text.count("for l in L)") == 3
    assert "for i in N for l in L" not in text


@pytest.mark.parametrize("wanted", [(0, 1, 2), (0,), (1,), (2,), (0, 2), (1, 2)], ids=str)
@pytest.mark.parametrize("instances", [False, True])
def test_sums_of_those_adjoints_that_are_wanted(wanted: tuple[int, ...], instances: bool) -> None:
    function = loma.compile(INSTANCES if instances else NORM).f
    shape = (7, 5, 3) if instances else (7, 5)
    x, w, b = args = torch.randn(shape), torch.randn(5), torch.randn(5)
    for k in wanted:
        args[k].requires_grad_()
    inputs = [args[k] for k in wanted]
    if instances:
        expected = torch.nn.functional.instance_norm(x, weight=w, bias=b)
    else:
        expected = torch.nn.functional.batch_norm(x, None, None, w, b, training=True)
    weight = torch.randn(shape)
    found = torch.autograd.grad(function(*args), inputs, weight)
    torch.testing.assert_close(found, torch.autograd.grad(expected, inputs, weight))
