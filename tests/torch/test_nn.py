"""Layers from programs: loma.nn.Module."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch._C._distributed_c10d import HashStore

import loma
from loma import compiler

LINEAR = """
class Pair:
    a : Tensor[N]
    b : Tensor[N]

def linear(x : In[Tensor[B, I]], w : In[Tensor[O, I]], b : In[Tensor[O]],
           scale : In[float] = 1.0) -> Tensor[B, O]:
    y : Tensor[B, O]
    y[n, o] = scale * (sum(w[o, i] * x[n, i] for i in I) + b[o])
    return y

def norm(x : In[Tensor[B, I]], weight : In[Tensor[I]], bias : In[Tensor[I]]) -> Tensor[B, I]:
    y : Tensor[B, I]
    y[n, i] = x[n, i] * weight[i] + bias[i]
    return y

def picked(x : In[Tensor[N]], w : In[Tensor[2 * N]], k : In[IntTensor[N]], mask : In[BoolTensor[N]],
           square : In[Tensor[3, 3]], p : In[Pair], y : Out[Tensor[N]], training : In[float],
           gain : In[float] = 2.0, rounds : In[int] = 1):
    for t in range(rounds):
        y[i] = gain * w[2 * i] * p.a[k[i]] if mask[i] else x[i] + training * square[0, 0]
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("programs") / "linear.loma"
    path.write_text(LINEAR)
    return path


@pytest.fixture(scope="module")
def program(file: Path) -> loma.LomaModule:
    return loma.compile(file)


def make(program: Any, *args: Any, **arguments: Any) -> Any:
    """A layer whose parameters type checkers do not know."""
    return loma.nn.Module(program, *args, **arguments)


def saved(value: Any, weights_only: bool) -> Any:
    stream = io.BytesIO()
    torch.save(value, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=weights_only)


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


def test_first_values(program: loma.LomaModule) -> None:
    norm = make(program, "norm", weight=3, bias=3, dtype=torch.float64)
    assert norm.weight.tolist() == [1.0] * 3
    assert norm.bias.tolist() == [0.0] * 3
    assert norm.weight.dtype == torch.float64
    start = torch.ones(2, 3)
    given = make(program, function="linear", w=start, b=2)
    assert torch.equal(given.w, start)
    assert given.w.data_ptr() != start.data_ptr()
    assert given.b.abs().max().item() <= 1 / math.sqrt(3)
    given.reset_parameters()
    assert torch.equal(given.w, start)
    tied = make(program, w=given.w, b=2)
    assert tied.w is given.w
    for shape in ((2, 0), (0, 3)):
        empty = make(program, w=shape, b=shape[0])
        assert empty(torch.ones(3, shape[1])).tolist() == [[0.0] * shape[0]] * 3


def test_numbers_stay_or_are_parameters(program: loma.LomaModule) -> None:
    x = torch.randn(3, 2)
    fixed = make(program, w=(4, 2), b=4, scale=3)
    torch.testing.assert_close(fixed(x), 3 * torch.nn.functional.linear(x, fixed.w, fixed.b))
    assert list(fixed.state_dict()) == ["w", "b"]
    assert repr(fixed) == "Module(linear, w=(4, 2), b=(4,), scale=3.0)"
    fixed.scale = 0.0
    assert fixed(x).abs().sum() == 0
    learned = make(program, w=(4, 2), b=4, scale=())
    assert learned.scale.item() == 1.0
    learned(x).sum().backward()
    torch.testing.assert_close(
        learned.scale.grad, torch.nn.functional.linear(x, learned.w, learned.b).sum()
    )


def test_buffers_and_what_is_passed_in_each_call(program: loma.LomaModule) -> None:
    k = torch.tensor([2, 0, 1])
    mask = torch.tensor([True, False, True])
    layer = make(program, "picked", w=6, k=k, mask=mask, square=(3, 3), rounds=1)
    assert sorted(layer.state_dict()) == ["k", "mask", "square", "w"]
    assert [name for name, _ in layer.named_buffers()] == ["k", "mask"]
    assert make(program, "picked", k=k, dtype=torch.float64).k.dtype == torch.int64
    a, y = torch.tensor([1.0, 2.0, 3.0]), torch.zeros(3)
    with torch.no_grad():
        layer(torch.zeros(3), program.Pair(a, a), y, 1.0, gain=1.0)
    expected = torch.where(mask, layer.w[::2] * a[k], layer.square[0, 0])
    torch.testing.assert_close(y, expected.detach())


@pytest.fixture
def layer(program: loma.LomaModule) -> Any:
    return make(program, w=(2, 3), b=2, scale=0.5)


def test_copies_and_files(layer: Any) -> None:
    x = torch.randn(4, 3)
    pickled: Any = pickle.loads(pickle.dumps(layer))
    others: list[Any] = [copy.deepcopy(layer), pickled, saved(layer, False), saved(layer, True)]
    for other in others:
        kind = type(other)
        assert kind is loma.nn.Module
        assert other.function is layer.function
        assert other.w.data_ptr() != layer.w.data_ptr()
        assert torch.equal(other(x), layer(x))
    other = make(layer.function.__self__, w=(2, 3), b=2, scale=0.5)
    other.load_state_dict(saved(layer.state_dict(), True))
    assert torch.equal(other(x), layer(x))


class Scaled(loma.nn.Module):
    def __init__(self, program: loma.LomaModule) -> None:
        super().__init__(program, w=(2, 3), b=2)
        self.inner = torch.nn.Tanh()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            for value in self.parameters():
                value.fill_(0.25)

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(super().forward(x, scale=2.0))


def test_a_class_of_ones_own(program: loma.LomaModule) -> None:
    own = Scaled(program)
    x = torch.ones(1, 3)
    torch.testing.assert_close(own(x), torch.full((1, 2), 2.0).tanh())
    for other in (copy.deepcopy(own), saved(own, False)):
        assert type(other) is Scaled
        assert torch.equal(other(x), own(x))


def test_dtypes_devices_and_torch_compile(layer: Any) -> None:
    x = torch.randn(4, 3)
    net = torch.nn.Sequential(layer, torch.nn.Tanh(), make(layer.function.__self__, w=(1, 2), b=1))
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), net(x))
    torch.testing.assert_close(copy.deepcopy(net).double()(x.double()).float(), net(x))
    half = copy.deepcopy(net).to(torch.bfloat16)
    assert half(x.bfloat16()).dtype == torch.bfloat16
    meta = make(layer.function.__self__, w=(2, 3), b=2, device="meta")
    assert meta(torch.empty(5, 3, device="meta")).shape == (5, 2)


def test_distributed_data_parallel(layer: Any) -> None:
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        parallel = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(layer))
        x = torch.randn(4, 3)
        parallel(x).sum().backward()
        layer(x).sum().backward()
        torch.testing.assert_close(parallel.module.w.grad, layer.w.grad)
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("function", "arguments", "error", "message"),
    [
        ("linear", {"ww": 3}, TypeError, r"linear\(\) has no argument 'ww': did you mean 'w'"),
        ("linaer", {}, ValueError, "no tensor function 'linaer': did you mean 'linear'"),
        (3, {}, TypeError, "'function' of a layer is no argument of its function, got 3"),
        ("linear", {"dtype": 8}, TypeError, "'dtype' of a layer is no argument"),
        ("linear", {"w": 8}, ValueError, "'w' has 2 dimensions, but the given shape has 1: .8."),
        ("linear", {"w": (8, 4), "b": 9}, ValueError, "O is 8 by dimension 0 of 'w', but 9 by"),
        ("linear", {"w": (8, -4)}, TypeError, r"give a shape, or a tensor .*, got \(8, -4\)"),
        ("linear", {"w": (8, 4.0)}, TypeError, r"give a shape, .* got \(8, 4.0\)"),
        ("linear", {"w": True}, TypeError, "give a shape, .* got True"),
        ("linear", {"w": "(8, 4)"}, TypeError, "give a shape"),
        ("linear", {"b": torch.ones(2).long()}, TypeError, "tensor of floats, got .* torch.int64"),
        ("linear", {"scale": (2,)}, TypeError, r"a number, which stays, or \(\) for a parameter"),
        ("linear", {"scale": torch.ones(2)}, ValueError, "'scale' is a number, got .2."),
        ("picked", {"w": 7}, ValueError, r"'w' is Tensor\[2 \* N\], .*dimension 0 cannot be 7"),
        ("picked", {"square": (3, 4)}, ValueError, "its dimension 1 is 3, not 4"),
        ("picked", {"rounds": 2.5}, TypeError, "give an int, which stays, got 2.5"),
        ("picked", {"k": 3}, TypeError, "'k' is In.IntTensor.N..: give its values"),
        ("picked", {"mask": torch.ones(3)}, TypeError, "give a tensor of bools, got .*float32"),
        ("picked", {"y": 3}, TypeError, "'y' is Out.Tensor.N.., which is written"),
        ("picked", {"p": 3}, TypeError, "'p' is In.Pair., a struct, .*pass it in each call"),
        ("picked", {"training": 1.0}, TypeError, "'training' is an attribute of every layer"),
    ],
)  # fmt: skip
def test_mistakes(
    program: loma.LomaModule,
    function: Any,
    arguments: Any,
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        loma.nn.Module(program, function, **arguments)


def test_mistakes_of_calls(layer: Any) -> None:
    with pytest.raises(TypeError, match="this layer takes x beside its own, got 2"):
        layer(1, 2)
    with pytest.raises(TypeError, match="this layer has 'w' itself"):
        layer(torch.ones(1, 3), w=torch.ones(2, 3))


def test_a_function_in_place_of_its_program(program: loma.LomaModule) -> None:
    """What a notebook's cell gives."""
    layer, named = make(program.norm, weight=3, bias=3), make(program, "norm", weight=3, bias=3)
    x = torch.randn(2, 3)
    torch.testing.assert_close(layer(x), named(x))
    assert str(make(program.norm, "norm", weight=3, bias=3)) == str(named)
    assert str(saved(layer, True)) == str(named)
    with pytest.raises(ValueError, match=r"one function, got <loma function norm> and 'linear'"):
        make(program.norm, "linear", w=(3, 3), b=3)


def test_a_function_has_to_be_named_where_several_may_be_meant() -> None:
    with pytest.raises(ValueError, match="say which tensor function of 'module' the layer runs"):
        loma.nn.Module(LINEAR)


def test_a_layer_comes_out_of_a_file_before_its_program_is_compiled(
    layer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, file = torch.randn(4, 3), io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for kept in ("_known", "_loaded", "_loaded_scalars"):
        monkeypatch.setattr(compiler, kept, {})
    fill: Callable[..., None] = compiler._fill
    monkeypatch.setattr(compiler, "_fill", pytest.fail)
    other = torch.load(file)
    monkeypatch.setattr(compiler, "_fill", fill)
    torch.testing.assert_close(other(x), layer(x))
