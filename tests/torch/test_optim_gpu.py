"""Optimisers written in loma on GPUs: the same bits as on the CPU, and nothing waited for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_optim import CAPTURABLE, SETTINGS, gradients, make, parameters
from torch import Tensor

import loma

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def steps(optimizer: Any, params: list[Tensor], count: int, seed: int = 2) -> None:
    for grads in gradients(params, count, seed):
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad.to(param.device)
        optimizer.step()


def on_gpu(params: list[Tensor]) -> list[Tensor]:
    return [p.detach().cuda().requires_grad_() for p in params]


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.detach().cpu(), b.detach().cpu())


@needs_gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_bits_are_those_of_the_cpu(setting: str, dtype: torch.dtype) -> None:
    """Every operation is rounded by itself; on one device as on the other."""
    own = parameters(dtype)
    there = on_gpu(own)
    steps(make(setting, own), own, 10)
    steps(make(setting, there), there, 10)
    assert_same(there, own)


@needs_gpu
@pytest.mark.parametrize("setting", ["nesterov", "adam", "adamw amsgrad"])
def test_state_goes_from_one_device_to_the_other(setting: str) -> None:
    own = parameters()
    first = make(setting, own)
    steps(first, own, 3)
    there = on_gpu(own)
    second = make(setting, there)
    second.load_state_dict(first.state_dict())
    steps(first, own, 3, seed=5)
    steps(second, there, 3, seed=5)
    assert_same(there, own)
    back = [p.detach().cpu().requires_grad_() for p in there]
    third = make(setting, back)
    third.load_state_dict(second.state_dict())
    steps(first, own, 3, seed=6)
    steps(third, back, 3, seed=6)
    assert_same(back, own)


@needs_gpu
def test_lists_may_be_of_several_devices_and_layouts() -> None:
    """One group has parameters of the CPU and of the GPU, of which one has other strides."""
    own = parameters(torch.float64)
    mixed = [p.detach().clone() if k % 2 else p.detach().cuda() for k, p in enumerate(own)]
    mixed[3] = mixed[3].permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0)
    mixed = [p.requires_grad_() for p in mixed]
    steps(make("adam", own), own, 4)
    steps(make("adam", mixed), mixed, 4)
    assert_same(mixed, own)


@needs_gpu
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_step_waits_for_nothing(setting: str) -> None:
    params = on_gpu(parameters())
    optimizer = make(setting, params)
    steps(optimizer, params, 4)  # kernels are compiled
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_gpu
@pytest.mark.parametrize("setting", CAPTURABLE)
def test_a_graph_of_a_step_takes_the_next_one_each_time(setting: str) -> None:
    """Beside steps that are not captured; the learning rate, which lies on the GPU, changes."""
    own, plain = on_gpu(parameters()), on_gpu(parameters())
    rates = [torch.tensor(0.01, device="cuda") for _ in range(2)]
    captured = make(setting, own, capturable=True, lr=rates[0])
    other = make(setting, plain, capturable=True, lr=rates[1])
    steps(captured, own, 2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.step()
    steps(other, plain, 2)
    for k, grads in enumerate(gradients(own, 5, seed=4)):
        for param, twin, grad in zip(own, plain, grads, strict=True):
            assert param.grad is not None
            param.grad.copy_(grad)
            twin.grad = grad.cuda()
        for rate in rates:
            rate.fill_(0.01 * (k + 1))
        graph.replay()
        other.step()
    assert all(state["step"] == 7 for state in captured.state.values())
    assert_same(own, plain)


@needs_gpu
@pytest.mark.parametrize("setting", ["adam", "adamw"])
def test_a_step_whose_number_is_the_hosts_is_not_captured(setting: str) -> None:
    params = on_gpu(parameters())
    optimizer = make(setting, params)
    steps(optimizer, params, 1)
    refused = pytest.raises(RuntimeError, match="make the optimiser with capturable=True")
    with refused, torch.cuda.graph(torch.cuda.CUDAGraph()):
        optimizer.step()
    assert all(state["step"] == 1 for state in optimizer.state.values())


@needs_gpu
@pytest.mark.parametrize("capturable", [False, True])
def test_a_launch_steps_many_parameters(capturable: bool) -> None:
    shapes = [(1001,)] * 12
    params = on_gpu(parameters(shapes=shapes))
    optimizer = loma.optim.Adam(params, capturable=capturable)
    for param in params:
        param.grad = torch.randn_like(param)
    for _ in range(2):
        optimizer.step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        optimizer.step()
        torch.cuda.synchronize()
    names = [event.name for event in profile.events() if "__lists" in event.name]
    assert len(names) == (2 if capturable else 1), names


@needs_gpu
def test_a_scaler_may_skip_a_step() -> None:
    params = on_gpu(parameters())
    optimizer = make("adam", params)
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    before = [p.detach().clone() for p in params]
    for value in (float("inf"), 1.0):
        for param in params:
            param.grad = torch.full_like(param, 4.0 * value)
        scaler.scale(torch.ones((), device="cuda"))  # the scaler is made with its first loss
        scaler.step(optimizer)
        scaler.update()
        same = all(torch.equal(a, b) for a, b in zip(params, before, strict=True))
        assert same == (value == float("inf"))


def test_a_gpus_count_of_steps_is_taken_to_the_host() -> None:
    """torch's fused and capturable Adam count on the GPU; loma's counts where nobody waits."""
    params = parameters()
    optimizer = loma.optim.Adam(params)
    steps(optimizer, params, 1)
    state = optimizer.state_dict()
    for own in state["state"].values():
        own["step"] = own["step"].clone()
    state["param_groups"][0]["fused"] = True  # as torch's says, so that loading moves the step
    if torch.cuda.is_available():
        params = on_gpu(params)
    other = loma.optim.Adam(params)
    other.load_state_dict(state)
    assert all(own["step"].is_cpu for own in other.state.values())
    steps(other, params, 1)
    assert all(own["step"].item() == 2 for own in other.state.values())
