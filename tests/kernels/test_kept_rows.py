"""What an axis around a row does not change is computed once, for a strip of the row."""

from __future__ import annotations

import re
from typing import Any

import oracle
import pytest
import torch
from torch import Tensor
from trees import tree_of

from loma import pipeline
from loma.backends.schedule.host_printer import print_lowered
from schedule_cases import KEPT

READS = """
def plain(x : In[Tensor[B, C, N]], p : In[IntTensor[B, P]]) -> Tensor[B, C, P]:
    y : Tensor[B, C, P]
    y[b, c, i] = x[b, c, p[b, i]]
    return y

def guarded(x : In[Tensor[B, C, N]], p : In[IntTensor[B, P]]) -> Tensor[B, C, P]:
    y : Tensor[B, C, P]
    y[b, c, i] = x[b, c, p[b, i]] if p[b, i] < N else -1.0
    return y

def added(x : In[Tensor[B, C, P]], p : In[IntTensor[B, P]], n : In[int]) -> Tensor[B, C, n]:
    y : Tensor[B, C, n]
    y[b, c, p[b, i]] += x[b, c, i]
    return y
"""
NEAR = """
def near(
    x : In[Tensor[B, C, P]], p : In[IntTensor[B, P]], w : In[Tensor[B, P, 3]]
) -> Tensor[B, C, P + 2]:
    y : Tensor[B, C, P + 2]
    y[b, c, p[b, i] + k] += x[b, c, i] * w[b, i, k]
    return y
"""
BESIDE = """
def beside(
    x : In[Tensor[B, C, N]], z : In[Tensor[B, C, P]], p : In[IntTensor[B, P]]
) -> tuple[Tensor[B, P], Tensor[B, P, 2], Tensor[B, C, P]]:
    r : Tensor[B, P]
    s : Tensor[B, P, 2]
    y : Tensor[B, C, P]
    r[b, i] = sum(z[b, c, i] * z[b, c, i] * zero_pad(x[b, c, p[b, i] + 1]) for c in C)
    s[b, i, k] = sum(z[b, c, i] * zero_pad(x[b, c, p[b, i] + k]) for c in C)
    y[b, c, i] = zero_pad(x[b, c, p[b, i]]) * z[b, c, i] + r[b, i]
    return r, s, y
"""
SIZES = [(2, 3, 7, 4, 5), (1, 9, 40, 35, 31), (2, 1, 5, 1, 513), (0, 2, 3, 4, 5), (2, 0, 3, 4, 5),
         (2, 2, 0, 4, 5), (2, 2, 3, 0, 5)]  # fmt: skip


@pytest.fixture(scope="module")
def program() -> Any:
    return oracle.compiled(KEPT + READS + NEAR + BESIDE)


def _inside(x: Tensor, p: Tensor) -> Tensor:
    """x[b, c, p[b, i, j]], zero outside."""
    padded = torch.cat([x, x.new_zeros(*x.shape[:2], 1)], 2)
    place = torch.where((p >= 0) & (p < x.shape[2]), p, x.shape[2])
    index = place[:, None].expand(-1, x.shape[1], -1, -1).flatten(2)
    return padded.gather(2, index).reshape(*x.shape[:2], *p.shape[1:])


def _sampled(x: Tensor, p: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = _inside(x, p) * w[:, None, ..., 0] + _inside(x, p + 1) * w[:, None, ..., 1]
    s = _inside(x, 2 * p).sum(1)
    value = torch.where(p[:, None] > 1, y * s.exp()[:, None], 0.0).flatten(2)
    place = p.clamp(0).clamp(max=x.shape[2])[:, None].expand(-1, x.shape[1], -1, -1).flatten(2)
    zeros = x.new_zeros(*x.shape[:2], x.shape[2] + 3)
    return y, s, zeros.scatter_add(2, place, value)


def _arguments(b: int, c: int, n: int, p: int, q: int) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(b, c, n, dtype=torch.float64, requires_grad=True)
    w = torch.randn(b, p, q, 2, dtype=torch.float64, requires_grad=True)
    return x, torch.randint(-3, n + 3, (b, p, q)), w


@pytest.mark.parametrize("sizes", SIZES)
def test_values_and_gradients(program: Any, sizes: tuple[int, int, int, int, int]) -> None:
    x, p, w = _arguments(*sizes)
    ours, expected = program.sampled(x, p, w), _sampled(x, p, w)
    torch.testing.assert_close(ours, expected)
    weights = [torch.randn_like(value) for value in expected]
    found, wanted = (torch.autograd.grad(made, (x, w), weights) for made in (ours, expected))
    torch.testing.assert_close(found, wanted)


def test_what_is_outside_is_zero_whatever_stands_there(program: Any) -> None:
    x, p, w = torch.full((1, 2, 3), torch.nan), torch.full((1, 5, 6), -7), torch.ones(1, 5, 6, 2)
    y, s, _ = program.sampled(x, p, w)
    assert not y.any()
    assert not s.any()


def test_a_place_outside_is_told_once_for_all_channels(program: Any) -> None:
    p = torch.zeros(2, 600, dtype=torch.long)
    p[1, 555] = 4
    for rows in (1, 3):
        x = torch.randn(2, rows, 4)
        with pytest.raises(ValueError, match=r"'p\[b, i\]' of 'x'.* 4"):
            program.plain(x, p)
        with pytest.raises(ValueError, match=r"'p\[b, i\]' of 'y'.* 4"):
            program.added(torch.randn(2, rows, 600), p, 4)
        assert torch.equal(program.guarded(x, p)[1, :, 555], -torch.ones(rows))
    # nothing is read where there are no channels
    assert program.plain(torch.randn(2, 0, 4), p).shape == (2, 0, 600)
    assert program.added(torch.randn(2, 0, 600), p, 4).shape == (2, 0, 4)


@pytest.mark.parametrize(
    "sizes", [(2, 3, 4), (1, 9, 600), (2, 1, 1), (0, 2, 3), (2, 0, 3), (2, 2, 0)]
)
def test_additions_around_a_place(program: Any, sizes: tuple[int, int, int]) -> None:
    b, c, count = sizes
    x = torch.randn(sizes, dtype=torch.float64, requires_grad=True)
    w = torch.randn(b, count, 3, dtype=torch.float64, requires_grad=True)
    p = torch.randint(0, max(count, 1), (b, count))
    place = (p[:, None, :, None] + torch.arange(3)).expand(-1, c, -1, -1).flatten(2)
    value = (x[..., None] * w[:, None]).flatten(2)
    expected = x.new_zeros(b, c, count + 2).scatter_add(2, place, value)
    found = program.near(x, p, w)
    torch.testing.assert_close(found, expected)
    grads = (
        torch.autograd.grad(y, (x, w), torch.cos(expected.detach())) for y in (found, expected)
    )
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize(
    "sizes", [(2, 3, 7, 4), (1, 9, 40, 600), (2, 1, 5, 1), (2, 0, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0)]
)
def test_sums_of_the_same_places(program: Any, sizes: tuple[int, int, int, int]) -> None:
    b, c, n, count = sizes
    x = torch.randn(b, c, n, dtype=torch.float64, requires_grad=True)
    z = torch.randn(b, c, count, dtype=torch.float64, requires_grad=True)
    p = torch.randint(-2, n + 2, (b, count))
    here, there = (_inside(x, (p + k)[..., None]) for k in range(2))
    here, there = (read.flatten(2) * z for read in (here, there))
    r = (there * z).sum(1)
    expected = r, torch.stack([here.sum(1), there.sum(1)], 2), here + r[:, None]
    found = program.beside(x, z, p)
    torch.testing.assert_close(found, expected)
    weights = [torch.randn_like(value) for value in expected]
    grads = (torch.autograd.grad(made, (x, z), weights) for made in (found, expected))
    torch.testing.assert_close(*grads)


def test_sums_of_the_same_places_run_together() -> None:
    module = pipeline.program(BESIDE, "beside").module
    tree = print_lowered(module.function("beside"), tree_of(module.function("beside"), module))
    assert tree.count("parallel for") == 2  # y reads r
    assert "writes r, s" in tree
    assert tree[: tree.index("allocate y")].count(" : IntTensor[512]") == 2  # p and p + 1


def test_places_of_a_tensor_of_known_size_have_32_bits() -> None:
    text = """
def f(x : In[Tensor[B, C, N]], p : In[IntTensor[B, P]]) -> Tensor[B, C, P]:
    y : Tensor[B, C, P]
    y[b, c, i] = zero_pad(x[b, c, p[b, i]])
    return y
"""
    module = pipeline.program(text, "f").module

    def tree(n: int) -> str:
        known = pipeline.known_sizes(module, "f", {"B": 4, "C": 3, "N": n, "P": 999})
        return print_lowered(known.function("f"), tree_of(known.function("f"), known))

    assert "IntTensor[512] of 32 bits" in tree(2**31 - 1)
    assert "IntTensor[512]\n" in tree(2**31)
    assert tree(100).count("IntTensor[512]") == 1  # four images are no neighbours of each other


def test_a_neighbour_outside_has_its_message(program: Any) -> None:
    p = torch.tensor([[0, 1, 3]])
    with pytest.raises(ValueError, match=r"'p\[b, i\] \+ k' of 'y'.* 5"):
        program.near(torch.ones(1, 2, 3), p, torch.ones(1, 3, 3))


def _tree(body: str, head: str = "x : In[Tensor[B, C, N]], p : In[IntTensor[B, N]]") -> str:
    text = f"def f({head}) -> Tensor[B, C, N]:\n    y : Tensor[B, C, N]\n    {body}\n    return y\n"
    module = pipeline.program(text, "f").module
    return print_lowered(module.function("f"), tree_of(module.function("f"), module))


def test_what_is_kept() -> None:
    tree = _tree("y[b, c, i] = x[b, c, p[b, i]] * (2.0 - x[b, 0, i] * x[b, 0, i]) * x[b, c, i]")
    assert tree.count(" : Tensor[512]") == 1  # the weight
    assert tree.count(" : IntTensor[512]") == 1  # the place
    assert tree.index("2.0 -") < tree.index("for c in range(C)") < tree.index("y[$")


def test_factors_are_kept_as_one() -> None:
    head = "x : In[Tensor[B, C, N]], p : In[IntTensor[B, N]], u : In[Tensor[B, N]]"
    tree = _tree("y[b, c, i] = u[b, i] * x[b, c, p[b, i]] * (1.0 - u[b, i]) * x[b, c, i]", head)
    assert tree.count(" : Tensor[512]") == 1
    assert re.search(r"\$kept.*\] = u\[(\S+) \+ i\] \* \(1\.0 - u\[\1 \+ i\]\)\n", tree), tree
    alone = _tree("y[b, c, i] = u[b, i] * x[b, c, p[b, i]]", head)
    assert " : Tensor[512]" not in alone  # it is read as fast where it is


@pytest.mark.parametrize(
    ("condition", "tested"),
    [
        ("< 8", False),
        pytest.param("<= 7", False, marks=pytest.mark.full),
        pytest.param("< 9", True, marks=pytest.mark.full),
    ],
)
def test_a_place_that_a_condition_chooses_is_not_tested(condition: str, tested: bool) -> None:
    text = f"""
def f(x : In[Tensor[B, C, P]], p : In[IntTensor[B, P]], z : In[Tensor[N]]) -> Tensor[B, C, N]:
    y : Tensor[B, C, N]
    y[b, c, p[b, i] if 0 <= p[b, i] and p[b, i] {condition} else 0] += x[b, c, i]
    return y
"""
    module = pipeline.program(text, "f").module

    def tree(n: int) -> str:
        known = pipeline.known_sizes(module, "f", {"N": n})
        return print_lowered(known.function("f"), tree_of(known.function("f"), known))

    assert ("$clamped" in tree(8)) is tested
    assert ("check 1" in tree(8)) is tested
    assert "$clamped" in tree(0)  # there is no element 0
    x, p = torch.randn(2, 3, 40, dtype=torch.float64), torch.randint(-9, 20, (2, 40))
    place = torch.where((p >= 0) & (p < 8), p, 0)[:, None].expand(-1, 3, -1)
    expected = x.new_zeros(2, 3, 8).scatter_add(2, place, x)
    if not tested:
        torch.testing.assert_close(oracle.compiled(text).f(x, p, x.new_zeros(8)), expected)


@pytest.mark.parametrize(
    "body",
    [
        "y[b, c, i] = x[b, c, i] * exp(x[b, 0, i])",  # all places are affine
        "y[b, c, i] = x[b, c, p[(b + c) % B, i]]",  # the place depends on all that is around
        "y[b, c, i] = x[b, c, p[b, 0]]",  # the place is that of a whole row
    ],
)
def test_what_is_left_alone(body: str) -> None:
    assert "[512]" not in _tree(body)
