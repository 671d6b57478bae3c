"""Layers from programs: loma.nn.Module."""

from __future__ import annotations

import copy
import io
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import loma

LINEAR = """
def linear(x : In[Tensor[B, I]], w : In[Tensor[O, I]], b : In[Tensor[O]],
           scale : In[float] = 1.0) -> Tensor[B, O]:
    y : Tensor[B, O]
    y[n, o] = scale * (sum(w[o, i] * x[n, i] for i in I) + b[o])
    return y

def norm(x : In[Tensor[B, I]], weight : In[Tensor[I]], bias : In[Tensor[I]]) -> Tensor[B, I]:
    y : Tensor[B, I]
    y[n, i] = x[n, i] * weight[i] + bias[i]
    return y
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("programs") / "linear.loma"
    path.write_text(LINEAR)
    return path


def test_one_line_is_torchs_layer(file: Path) -> None:
    """The same values from the same seed, outputs and gradients."""
    torch.manual_seed(3)
    theirs = torch.nn.Linear(4, 8)
    torch.manual_seed(3)
    ours = loma.nn.Module(file, w=(8, 4), b=8)
    assert list(ours.state_dict()) == ["w", "b"]
    torch.testing.assert_close(list(ours.parameters()), list(theirs.parameters()))
    x = torch.randn(5, 4)
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours(x=x, scale=2.0), 2.0 * theirs(x))
    for layer in (ours, theirs):
        layer(x).square().sum().backward()
    torch.testing.assert_close(
        [p.grad for p in ours.parameters()], [p.grad for p in theirs.parameters()]
    )


def test_it_trains(file: Path) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        loma.nn.Module(file, w=(16, 2), b=16), torch.nn.Tanh(), loma.nn.Module(file, w=(1, 16), b=1)
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    x = torch.randn(64, 2)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = (net(x) - x.prod(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_first_values(file: Path) -> None:
    m = loma.compile(file)
    norm = loma.nn.Module(m, "norm", weight=3, bias=3, dtype=torch.float64)
    assert norm.weight.tolist() == [1.0] * 3
    assert norm.bias.tolist() == [0.0] * 3
    assert norm.weight.dtype == torch.float64
    start = torch.ones(2, 3)
    given = loma.nn.Module(m, "linear", w=start, b=2)
    assert torch.equal(given.w, start)
    assert given.w.data_ptr() != start.data_ptr()
    assert given.b.abs().max().item() <= 1 / math.sqrt(3)
    given.reset_parameters()
    assert torch.equal(given.w, start)
    empty = loma.nn.Module(m, "linear", w=(2, 0), b=2)
    assert empty(torch.ones(3, 0)).tolist() == [[0.0, 0.0]] * 3


def test_copies_and_files(file: Path) -> None:
    layer = loma.nn.Module(file, w=(2, 3), b=2)
    x = torch.randn(4, 3)
    stream = io.BytesIO()
    torch.save(layer, stream)
    stream.seek(0)
    for other in (copy.deepcopy(layer), torch.load(stream, weights_only=False)):
        assert torch.equal(other(x), layer(x))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))
    assert repr(layer) == "Module(linear, w=(2, 3), b=(2,))"


@pytest.mark.parametrize(
    ("args", "parameters", "error", "message"),
    [
        (("linear",), {"ww": 3}, TypeError, "linear.. has no argument 'ww': did you mean 'w'"),
        (("linaer",), {}, ValueError, "no tensor function 'linaer': did you mean 'linear'"),
    ],
)
def test_mistakes(
    file: Path, args: Any, parameters: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        loma.nn.Module(file, *args, **parameters)


def test_a_function_has_to_be_named_where_several_may_be_meant(file: Path) -> None:
    with pytest.raises(ValueError, match="say which tensor function of 'module' the layer runs"):
        loma.nn.Module(LINEAR)
    layer = loma.nn.Module(file, w=(2, 3), b=2)
    with pytest.raises(TypeError, match="this layer takes x, scale beside its parameters, got 3"):
        layer(1, 2, 3)
