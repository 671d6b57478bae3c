"""Products under a condition that only keeps a read inside: loops test it at the border alone."""

from __future__ import annotations

import oracle
import pytest
import torch
import torch.nn.functional as F
from oracle import Program, check
from torch import Tensor

from loma import pipeline
from loma.backends.registry import CPU
from loma.backends.schedule.host_printer import print_lowered
from loma.backends.torch.codegen import steps_of, tree_of

INSIDE = "0 <= h + p - 1 and h + p - 1 < H and 0 <= w + q - 1 and w + q - 1 < W"
DEPTHWISE = f"""
def depthwise(x : In[Tensor[B, C, H, W]], k : In[Tensor[C, 3, 3]]) -> Tensor[B, C, H, W]:
    y : Tensor[B, C, H, W]
    y[b, c, h, w] += x[b, c, h + p - 1, w + q - 1] * k[c, p, q] if {INSIDE} else 0.0
    return y
"""
# Two reads that have the same room, beside a row of weights.
PAIR = """
def pair(x : In[Tensor[N, M]], z : In[Tensor[N, M]], w : In[Tensor[P]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[n, i] += sin(x[n, i + p - 1]) * w[p] / z[n, i + p - 1] if i + p >= 1 and i + p <= M else 0.0
    return y
"""
# Of the second read the condition says less than that it exists: it is checked where it is read.
SHORTER = """
def shorter(x : In[Tensor[N]], z : In[Tensor[M]], w : In[Tensor[3]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] += x[i + p] * w[p] * z[i + p] if i + p < N else 0.0
    return y
"""


def _depthwise(x: Tensor, k: Tensor) -> Tensor:
    return F.conv2d(x, k.unsqueeze(1), padding=1, groups=k.shape[0])


def _pair(x: Tensor, z: Tensor, w: Tensor) -> Tensor:
    rows, many = x.shape[1], w.shape[0]
    x, z = F.pad(x.sin(), (1, many)), F.pad(z, (1, many), value=1.0)
    terms = [x[:, p : p + rows] * w[p] / z[:, p : p + rows] for p in range(many)]
    return sum(terms, x.new_zeros(x.shape[0], rows))


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


@pytest.fixture(scope="module")
def program() -> Program:
    return Program([DEPTHWISE, PAIR], second=["pair"])


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 3), (5, 40), (3, 17), (0, 4), (4, 0)])
def test_depthwise(program: Program, height: int, width: int) -> None:
    x, k = randn(2, 3, height, width), randn(3, 3, 3)
    if height * width:
        check(program, "depthwise", [x, k], _depthwise, second=False)
    else:
        assert program.compiled("depthwise")(x, k).shape == x.shape


@pytest.mark.parametrize(("length", "taps"), [(1, 1), (1, 4), (3, 2), (37, 3), (5, 0), (0, 2)])
def test_reads_of_the_same_room(program: Program, length: int, taps: int) -> None:
    x, z, w = randn(3, length), 2.0 + torch.rand(3, length).double(), randn(taps)
    check(program, "pair", [x, z, w], _pair, second=length * taps > 0)


@pytest.mark.parametrize("across", [False, True])
def test_gradients(program: Program, across: bool) -> None:
    x, k = randn(2, 2, 4, 4), randn(2, 3, 3).requires_grad_()
    x = (x.transpose(2, 3) if across else x).requires_grad_()
    assert torch.autograd.gradcheck(program.compiled("depthwise"), (x, k))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_is_left_out_is_not_there_beside_infinity(dtype: torch.dtype) -> None:
    """A padded read would make zero times infinity of it."""
    function = oracle.compiled(DEPTHWISE).depthwise
    x, k = torch.ones(1, 1, 3, 20, dtype=dtype), torch.ones(1, 3, 3, dtype=dtype)
    k[0, 0] = torch.inf
    k[0, 1, 0] = torch.nan
    x.requires_grad_()
    k.requires_grad_()
    y = function(x, k)
    assert torch.equal(y[0, 0, 0].isnan(), torch.arange(20) > 0)
    assert y[0, 0, 0, 0] == 4.0
    assert y[0, 0, 1, 0] == torch.inf
    grad_x, grad_k = torch.autograd.grad(y, [x, k], torch.ones_like(y))
    # The last row of x is no neighbour above of any row, and each but the last column a left one.
    assert torch.equal(grad_x[0, 0, 2].isnan(), torch.arange(20) < 19)
    assert grad_x[0, 0, 2, 19] == 4.0
    x, k = x.detach(), k.detach()
    assert torch.equal(
        grad_k[0].float(), torch.tensor([[38, 40, 38], [57, 60, 57], [38, 40, 38.0]])
    )


def test_another_read_is_checked() -> None:
    function = oracle.compiled(SHORTER).shorter
    x, w = torch.randn(40), torch.randn(3)
    z = torch.randn(40)
    expected = sum(F.pad((x * z)[p:], (0, p)) * w[p] for p in range(3))
    torch.testing.assert_close(function(x, z, w), expected)
    with pytest.raises(ValueError, match="z"):
        function(x, z[:39], w)


@pytest.mark.parametrize(("text", "padded"), [(DEPTHWISE, True), (PAIR, True), (SHORTER, False)])
def test_the_loops_have_no_test_but_at_the_border(text: str, padded: bool) -> None:
    module = pipeline.program(text).module
    function = module.functions[0]
    nodes = tree_of(function, steps_of(function, CPU), module, CPU)[1]
    assert ("$whole($inside1)" in print_lowered(function, nodes)) == padded
