"""Automatic mixed precision: functions of loma among layers of torch under torch.autocast."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import devices
import pytest
import torch
from torch import Tensor, nn

import loma
from capsnet_loma import CapsNet, capsule_loss, reference
from capsnet_loma.layers import layers
from capsnet_loma.parameters import CapsNetParameters
from capsnet_loma.profiling.cases import SMALL_NETWORK as SMALL

PROGRAM = """
def scale(x : In[Tensor[N, M]], w : In[Tensor[M]], a : In[float], k : In[int]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[i, j] = a * x[i, j] * x[i, j] * w[j] * k
    return y

d_scale = rev_diff(scale)

def add_to(x : In[Tensor[N]], y : Out[Tensor[N]]):
    y[i] += 2.0 * x[i]

def total(x : In[Tensor[N]], y : In[Tensor[N]], order : In[IntTensor[N]]) -> float:
    s : float = sum(x[i] * y[i] * order[i] for i in range(N))
    return s

def single(x : In[TorchTensorFloat], a : In[float]) -> Tensor:
    return x * a
"""
BFLOAT16, FLOAT16, FLOAT32, FLOAT64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


@pytest.fixture(scope="module")
def program() -> loma.LomaModule:
    return loma.compile(PROGRAM)


@pytest.fixture
def mixed() -> tuple[Tensor, Tensor, Tensor]:
    """Arguments of ``scale``: bfloat16 from a layer before, float32 parameters."""
    x = torch.randn(3, 4, dtype=BFLOAT16, requires_grad=True)
    w = torch.randn(4, requires_grad=True)
    a = torch.tensor(0.7, requires_grad=True)
    return x, w, a


@contextlib.contextmanager
def autocast(enabled: bool = True, dtype: torch.dtype = BFLOAT16) -> Iterator[None]:
    """Of torch's layers on the CPU, and of calls where they run."""
    with contextlib.ExitStack() as stack:
        for kind in {"cpu", devices.autocast}:
            stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
        yield


# ---------------------------------------------------------------------------------- functions


def test_arguments_are_cast_to_the_widest_dtype(
    program: loma.LomaModule, mixed: tuple[Tensor, Tensor, Tensor]
) -> None:
    x, w, a = mixed
    with autocast():
        y = program.scale(x, w, a, 3)
    wide = [value.detach().float().requires_grad_() for value in mixed]
    expected = program.scale(*wide, 3)
    assert torch.equal(y, expected)
    seed = torch.randn(3, 4)
    gradients = torch.autograd.grad(y, mixed, seed)
    assert [g.dtype for g in gradients] == [BFLOAT16, FLOAT32, FLOAT32]
    for gradient, g in zip(gradients, torch.autograd.grad(expected, wide, seed), strict=True):
        assert torch.equal(gradient, g.to(gradient.dtype))


@pytest.mark.parametrize(
    ("dtypes", "widest"),
    [
        ((BFLOAT16, FLOAT32), FLOAT32),
        ((FLOAT32, BFLOAT16), FLOAT32),
        ((BFLOAT16, FLOAT64), FLOAT64),
        ((FLOAT64, FLOAT32), FLOAT64),
        ((BFLOAT16, BFLOAT16), BFLOAT16),
        ((FLOAT32, FLOAT32), FLOAT32),
        ((FLOAT16, FLOAT32), FLOAT32),
        ((FLOAT16, BFLOAT16), FLOAT32),
        ((FLOAT64, FLOAT16), FLOAT64),
        ((FLOAT16, FLOAT16), FLOAT16),
    ],
)
def test_one_dtype_is_kept_and_several_become_the_widest(
    program: loma.LomaModule, dtypes: tuple[torch.dtype, torch.dtype], widest: torch.dtype
) -> None:
    x, w = (torch.randn(shape).to(d) for shape, d in zip(((3, 4), (4,)), dtypes, strict=True))
    expected = program.scale(x.to(widest), w.to(widest), 0.1, 1)
    operator = program.scale.operator
    with autocast(dtype=FLOAT16 if FLOAT16 in dtypes else BFLOAT16):
        for y in (program.scale(x, w, 0.1, 1), operator(x, w, torch.tensor(0.1, dtype=FLOAT64), 1)):
            assert y.dtype == widest
            assert torch.equal(y, expected)


def test_numbers_are_not_rounded_to_the_narrow_dtype(program: loma.LomaModule) -> None:
    x, w = torch.ones(1, 1, dtype=BFLOAT16), torch.ones(1)
    traced = torch.compile(program.scale, fullgraph=True, backend="aot_eager")
    with autocast():
        for function in (program.scale, traced):
            assert function(x, w, 0.1, 1).item() == torch.tensor(0.1).item()
            given = function(x, w, torch.tensor(0.1, dtype=FLOAT64), 1)
            assert given.item() == torch.tensor(0.1).item()


def test_integer_tensors_and_scalar_results(program: loma.LomaModule) -> None:
    x, y, order = torch.randn(5).bfloat16(), torch.randn(5), torch.arange(5)
    with autocast():
        s = program.total(x, y, order)
    assert s.dtype == FLOAT32
    torch.testing.assert_close(s, (x.float() * y * order).sum())


def test_a_function_of_float32_only_gets_float32(program: loma.LomaModule) -> None:
    x = torch.randn(5)
    narrow, wide = x.bfloat16(), x.double()
    traced = torch.compile(program.single, fullgraph=True, backend="aot_eager")
    with autocast():
        for function in (program.single, traced):
            assert torch.equal(function(narrow, 0.1), narrow.float() * 0.1)
        with pytest.raises(TypeError, match="single: argument 'x' must be a float32 tensor"):
            program.single(wide, 0.1)
    with pytest.raises(TypeError, match="must be a float32 tensor, got bfloat16"):
        program.single(narrow, 0.1)


@pytest.mark.full
def test_explicit_derivatives(
    program: loma.LomaModule, mixed: tuple[Tensor, Tensor, Tensor]
) -> None:
    x, w, a = (value.detach() for value in mixed)
    seed = torch.randn(3, 4, dtype=BFLOAT16)
    with autocast():
        given = program.d_scale(x, w, a, 2, seed)
    expected = program.d_scale(x.float(), w, a, 2, seed.float())
    assert [g.dtype for g in given] == [g.dtype for g in expected]
    assert all(map(torch.equal, given, expected))


@pytest.mark.full
def test_second_derivatives_and_backward_inside(
    program: loma.LomaModule, mixed: tuple[Tensor, Tensor, Tensor]
) -> None:
    x, w, a = mixed
    with autocast():
        y = program.scale(x, w, a, 1)
        first = torch.autograd.grad(y.sum(), [x, w], create_graph=True)
        (second,) = torch.autograd.grad(first[1].sum(), x)
    assert second.dtype == BFLOAT16
    torch.testing.assert_close(second, (2.0 * a * x).bfloat16(), rtol=0.02, atol=0.0)


def test_out_tensors_are_widened_for_but_never_cast(program: loma.LomaModule) -> None:
    narrow, single = torch.ones(3, dtype=BFLOAT16), torch.zeros(3)
    place = single.data_ptr()
    with autocast():
        program.add_to(narrow, single)
        program.add_to(torch.ones(3), single)
        assert torch.equal(single, torch.full((3,), 4.0))
        assert single.data_ptr() == place
        with pytest.raises(
            TypeError, match="argument 'y' is bfloat16, but the call's dtype is flo"
        ):
            program.add_to(torch.ones(3), narrow)
    assert torch.equal(narrow, torch.ones(3, dtype=BFLOAT16))


def test_without_autocast_dtypes_must_agree(
    program: loma.LomaModule, mixed: tuple[Tensor, Tensor, Tensor]
) -> None:
    message = "scale: argument 'w' is float32, but the call's dtype is bfloat16"
    x, w, a = mixed
    with pytest.raises(TypeError, match=message):
        program.scale(x, w, a, 1)
    with autocast():
        with autocast(enabled=False), pytest.raises(TypeError, match=message):
            program.scale(x, w, a, 1)
        assert program.scale(x, w, a, 1).dtype == FLOAT32


@pytest.mark.parametrize(("first", "second"), [("int64", "float32"), ("float32", "complex64")])
def test_other_dtypes_are_refused(program: loma.LomaModule, first: str, second: str) -> None:
    name, got = ("x", first) if first == "int64" else ("w", second)
    x = torch.ones(3, 4, dtype=getattr(torch, first))
    w = torch.ones(4, dtype=getattr(torch, second))
    message = (
        f"scale: argument '{name}' must be a float32, float64, bfloat16 or float16 tensor, got "
    )
    with autocast(), pytest.raises(TypeError, match=message + got):
        program.scale(x, w, 1.0, 1)


def test_sums_of_float16_are_computed_in_float32(program: loma.LomaModule) -> None:
    x, y = torch.full((1000,), 300.0, dtype=FLOAT16), torch.full((1000,), 0.5, dtype=FLOAT16)
    order = torch.ones(1000, dtype=torch.int64)
    order[500:] = -1  # half of the sum is beyond what float16 holds
    assert program.total(x, y, order) == 0.0
    assert program.total(x, y, order).dtype == FLOAT16
    assert program.total(x, y, order.abs()).isinf()  # 150000, rounded once


# ----------------------------------------------------------------------------------- networks


class Mixed(CapsNetParameters):
    """A CapsNet of torch's convolutions and linear layers, with the capsules in loma."""

    def forward(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        f, c = layers(), self.config
        grid = self.primary(self.conv(images).relu())
        assert grid.dtype == (BFLOAT16 if torch.is_autocast_enabled("cpu") else FLOAT32)
        inputs = f.squash(reference.grid_to_capsules(grid, c.primary_dim))
        capsules = f.digit_capsules(self.digit_weight, inputs, c.routing_iterations, 0)
        masked = (capsules * targets.unsqueeze(-1)).flatten(1)
        hidden = self.fc2(self.fc1(masked).relu()).relu()
        return capsules, self.fc3(hidden).sigmoid()


def loss_of(net: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    return capsule_loss(images, targets, *net(images, targets))


def batch() -> tuple[Tensor, Tensor]:
    images = torch.rand(4, SMALL.image_channels, SMALL.image_size, SMALL.image_size)
    return images, torch.eye(SMALL.classes)


def gradients_of(loss: Tensor, net: nn.Module) -> dict[str, Tensor]:
    names, parameters = zip(*net.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def assert_near(given: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Of parameters' dtype, and apart by what bfloat16's 8 bits make of some layers."""
    for name, value in expected.items():
        assert given[name].dtype == FLOAT32
        assert (given[name] - value).norm() < 0.05 * value.norm(), name


def test_a_network_of_both_trains() -> None:
    net, data = Mixed(SMALL), batch()
    expected = loss_of(net, *data)
    with autocast():
        loss = loss_of(net, *data)
    assert loss.dtype == FLOAT32
    assert not torch.equal(loss, expected)
    torch.testing.assert_close(loss, expected, rtol=0.01, atol=0.0)
    assert_near(gradients_of(loss, net), gradients_of(expected, net))


@pytest.mark.cpu
def test_a_compiled_network_of_both_trains() -> None:
    torch.compiler.reset()
    net, data = Mixed(SMALL), batch()
    compiled = torch.compile(loss_of, fullgraph=True, backend="aot_eager")

    def inside(net: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=BFLOAT16):
            return loss_of(net, images, targets)

    expected = inside(net, *data)
    with autocast():
        loss = compiled(net, *data)
    torch.testing.assert_close(loss, expected)
    assert_near(gradients_of(loss, net), gradients_of(expected, net))
    loss = torch.compile(inside, fullgraph=True, backend="aot_eager")(net, *data)
    torch.testing.assert_close(loss, expected)
    # The same function outside: traced again, in float32.
    assert torch.equal(compiled(net, *data), loss_of(net, *data))


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_the_capsnet_takes_a_training_step(dtype: torch.dtype) -> None:
    """Its functions compute in its parameters' float32, whatever the dtype of the images."""
    net, (images, targets) = CapsNet(SMALL), batch()
    images = images.to(dtype)
    expected = loss_of(net, images.float(), targets)
    with autocast():
        loss = loss_of(net, images, targets)
        capsules, reconstruction = net(images)
    assert (capsules.dtype, reconstruction.dtype) == (FLOAT32, FLOAT32)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    before = [value.detach().clone() for value in net.parameters()]
    for (name, value), wanted in zip(
        net.named_parameters(), gradients_of(expected, net).values(), strict=True
    ):
        torch.testing.assert_close(value.grad, wanted, msg=name)
    torch.optim.SGD(net.parameters(), lr=1.0).step()
    assert not any(map(torch.equal, before, net.parameters()))
