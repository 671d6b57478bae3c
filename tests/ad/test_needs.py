"""Backward parts of which not all adjoints are wanted."""

from __future__ import annotations

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

import loma
from loma import passes, pipeline

COUNTED = """
def f(
    x : In[Tensor[A]], w : In[Tensor[A]], counts : In[IntTensor[A]],
) -> tuple[Tensor[A], Tensor[A]]:
    y : Tensor[A]
    y[i] = x[i]
    for t in range(counts[0] + 1):
        y[i] = exp(y[i] * 0.5)
    v : Tensor[A]
    v[i] = w[i] * w[i]
    return y, v
"""


@pytest.mark.parametrize("count", [-1, 0, 3])
def test_tapes_have_their_size_whatever_is_wanted(count: int) -> None:
    """That of the loop over ``counts[0] + 1`` serves ``x`` alone, and so does its size."""
    generator = torch.Generator().manual_seed(2)
    x, w = (torch.rand(3, generator=generator, dtype=torch.float64) for _ in range(2))
    text = with_derivative(COUNTED)
    point = Point("f", text, "f", (x, w, torch.full((3,), count)))
    compare(point, Changed(text, lambda module: module))


SHARED = """
def f(p : In[Tensor[N, M]], q : In[Tensor[N, M]], h : In[Tensor[M]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[i, j] = sigmoid(p[i, j] + q[i, j]) * tanh(p[i, j] * h[j])
    return y
"""


def test_what_several_adjoints_need_is_computed_once() -> None:
    text = pipeline.stage_text(SHARED, "optimised", "f__backward")
    assert text.count("tanh(") == 1
    assert text.count("sigmoid(") == 1


@pytest.mark.parametrize("sizes", [(3, 2), (1, 1), (0, 4)], ids=str)
def test_values_of_what_is_shared(sizes: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(3)
    shapes = (sizes, sizes, sizes[1:])
    args = tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    text = with_derivative(SHARED)
    for change in (lambda module: module, passes.optimise):
        compare(Point("f", text, "f", args), Changed(text, verified(change)))


def test_what_is_filled_where_it_is_wanted_is_not_set_to_zero() -> None:
    text = pipeline.stage_text(SHARED, "schedule", "f__backward")
    assert "allocate _d_p\n" in text
    assert "drop _d_p, if not _need_p\n" in text
    assert "zeros, if it has no memory" not in text


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (True, True, True)])
def test_adjoints_that_are_not_wanted(wanted: tuple[bool, bool, bool]) -> None:
    generator = torch.Generator().manual_seed(4)
    p, q, h = (torch.randn(s, generator=generator) for s in ((5, 300), (5, 300), (300,)))
    args = [x.requires_grad_(need) for x, need in zip((p, q, h), wanted, strict=True)]
    inputs = [x for x in args if x.requires_grad]
    with torch.autograd.set_detect_anomaly(True):  # looks into whatever a backward part gives
        found = torch.autograd.grad(loma.compile(SHARED).f(*args).sum(), inputs)
    result = torch.sigmoid(p.double() + q.double()) * torch.tanh(p.double() * h.double())
    torch.testing.assert_close(found, torch.autograd.grad(result.sum(), inputs))


DIFFERENCE = """
def f(a : In[Tensor[N, M]], b : In[Tensor[N, M]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[n, m] = (a[n, m] - b[n, m]) ** 2 if a[n, m] > b[n, m] else sin(a[n, m] - b[n, m])
    return y
"""


def test_both_sides_of_a_difference_have_one_adjoint() -> None:
    assert "_d_b[n, m] = -_d_a[n, m]" in pipeline.stage_text(DIFFERENCE, "optimised", "f__backward")


@pytest.mark.parametrize("wanted", [(True, False), (False, True), (True, True)])
def test_adjoints_of_a_difference(wanted: tuple[bool, bool]) -> None:
    generator = torch.Generator().manual_seed(5)
    pair = [torch.randn(4, 33, generator=generator, dtype=torch.float64) for _ in range(2)]
    args = [x.requires_grad_(need) for x, need in zip(pair, wanted, strict=True)]
    inputs = [x for x in args if x.requires_grad]
    found = torch.autograd.grad(loma.compile(DIFFERENCE).f(*args).sum(), inputs)
    r = args[0] - args[1]
    result = torch.where(r > 0, r**2, torch.sin(r))
    torch.testing.assert_close(found, torch.autograd.grad(result.sum(), inputs))


RESHAPED = """
def f(x : In[Tensor[3 * N]], w : In[Tensor[3]]) -> Tensor[N, 3]:
    y : Tensor[N, 3]
    y[i // 3, i % 3] = x[i]
    y[n, k] = y[n, k] * w[k]
    return y
"""


def test_what_is_made_of_an_adjoint_is_made_where_that_is_wanted() -> None:
    """The adjoint of x is that of rows in another shape."""
    assert "return _adjoint," in pipeline.stage_text(RESHAPED, "optimised", "f__backward")
    x, w = torch.arange(6.0), torch.ones(3, requires_grad=True)
    (grad,) = torch.autograd.grad(loma.compile(RESHAPED).f(x, w).sum(), w)
    assert torch.equal(grad, x.reshape(2, 3).sum(0))
