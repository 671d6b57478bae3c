"""Optimisers written in loma, beside torch.optim's: the same steps, state, errors and habits."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import os
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import fresh
import pytest
from sampled import diagonals
import torch
from torch import Tensor, nn

import loma
from conftest import ROOT

# (loma's class, torch's class, arguments)
SETTINGS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "sgd": (loma.optim.SGD, torch.optim.SGD, {"lr": 0.02}),
    "sgd decay": (loma.optim.SGD, torch.optim.SGD, {"lr": 0.02, "weight_decay": 0.1}),
    "momentum": (loma.optim.SGD, torch.optim.SGD, {"lr": 0.02, "momentum": 0.9}),
    "dampening": (
        loma.optim.SGD, torch.optim.SGD,
        {"lr": 0.02, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1, "maximize": True},
    ),
    "nesterov": (
        loma.optim.SGD, torch.optim.SGD,
        {"lr": 0.02, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    "adam": (loma.optim.Adam, torch.optim.Adam, {"lr": 0.01}),
    "adam decay": (
        loma.optim.Adam, torch.optim.Adam,
        {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-3, "weight_decay": 0.1, "maximize": True},
    ),
    "amsgrad": (
        loma.optim.Adam, torch.optim.Adam, {"lr": 0.01, "betas": (0.9, 0.9), "amsgrad": True},
    ),
    "adamw": (loma.optim.AdamW, torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "adamw amsgrad": (
        loma.optim.AdamW, torch.optim.AdamW,
        {"lr": 0.01, "betas": (0.9, 0.9), "amsgrad": True, "maximize": True},
    ),
}  # fmt: skip
SHAPES = ((), (1,), (7, 5), (3, 4, 5, 6), (1001,))
STEPS = 100
# A step rounds the new value of a parameter once, and the update fewer than 20 times: as both sides
# do, in another order, this bounds by how many units of the last place they move apart in a step.
ROUNDINGS = 20

every_setting = pytest.mark.parametrize("setting", SETTINGS)
each_kind = pytest.mark.parametrize("setting", ["nesterov", "adam", "adamw"])


def parameters(dtype: torch.dtype = torch.float32, shapes: Any = SHAPES) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in shapes
    ]


def gradients(params: list[Tensor], steps: int, seed: int = 2) -> Iterator[list[Tensor]]:
    """Gradients that do not depend on the parameters, so that differences do not grow."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        yield [
            torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype)
            for p in params
        ]


def take_steps(optimizer: Any, params: list[Tensor], steps: int, seed: int = 2) -> float:
    """The largest change of an element in one step."""
    largest = 0.0
    for grads in gradients(params, steps, seed):
        before = [p.detach().clone() for p in params]
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        optimizer.step()
        largest = max(largest, farthest(before, params))
    return largest


def farthest(a: list[Tensor], b: list[Tensor]) -> float:
    pairs = zip(a, b, strict=True)
    return max((x.detach() - y.detach()).abs().max().item() for x, y in pairs if x.numel())


def make(setting: str, params: Any, which: str = "loma", **more: Any) -> Any:
    mine, torchs, arguments = SETTINGS[setting]
    return (mine if which == "loma" else torchs)(params, **{**arguments, **more})


# ---------------------------------------------------------- steps counted beside the parameters


CAPTURABLE = [name for name in SETTINGS if SETTINGS[name][0] is not loma.optim.SGD]


@pytest.mark.parametrize("setting", CAPTURABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_capturable_steps_are_the_same_within_rounding(setting: str, dtype: torch.dtype) -> None:
    """The corrections are computed in the dtype of ``step``, float32, and not in double."""
    plain, counted = parameters(dtype), parameters(dtype)
    take_steps(make(setting, plain), plain, 20)
    optimizer = make(setting, counted, capturable=True)
    change = take_steps(optimizer, counted, 20)
    eps = torch.finfo(torch.bfloat16 if dtype == torch.bfloat16 else torch.float32).eps
    size = max(p.abs().max().item() for p in plain)
    assert farthest(plain, counted) <= 20 * eps * (size + ROUNDINGS * change)
    assert all(state["step"] == 20 for state in optimizer.state.values())


def test_the_first_corrections_do_not_cancel() -> None:
    """1 - 0.999 in float32 has lost four digits; a step of the same sign is lr at first."""
    for beta2 in (0.999, 0.99999, 0.0):
        param = torch.zeros(1).requires_grad_()
        betas = (0.0 if beta2 == 0.0 else 0.9, beta2)
        optimizer = loma.optim.Adam([param], lr=0.5, betas=betas, eps=0.0, capturable=True)
        param.grad = torch.ones(1)
        optimizer.step()
        assert param.item() == pytest.approx(-0.5, rel=1e-6)


def test_a_capturable_learning_rate_may_change() -> None:
    lr = torch.tensor([0.5], dtype=torch.float64)
    params = parameters()
    optimizer = loma.optim.AdamW(params, lr=lr, capturable=True, weight_decay=0.1)
    plain = parameters()
    other = loma.optim.AdamW(plain, lr=0.5, weight_decay=0.1)
    take_steps(optimizer, params, 2)
    take_steps(other, plain, 2)
    lr.fill_(0.01)
    other.param_groups[0]["lr"] = 0.01
    take_steps(optimizer, params, 2)
    take_steps(other, plain, 2)
    torch.testing.assert_close(params, plain, rtol=1e-5, atol=1e-6)


def test_capturable_state_goes_both_ways() -> None:
    counted, plain = parameters(), parameters()
    first = loma.optim.Adam(counted, capturable=True)
    take_steps(first, counted, 3)
    second = loma.optim.Adam(plain)
    second.load_state_dict(first.state_dict())
    assert second.param_groups[0]["capturable"]  # as torch's: options are loaded, too
    copied = copy.deepcopy(first)
    own = copied.param_groups[0]["params"]
    take_steps(copied, own, 2, seed=3)
    take_steps(first, counted, 2, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(own, counted, strict=True))
    assert all(state["step"] == 3 for state in second.state.values())


# ------------------------------------------------------------------------- the same as torch.optim


@pytest.mark.parametrize(
    ("setting", "dtype"), diagonals(2, SETTINGS, [torch.float32, torch.float64]), ids=str
)
def test_a_hundred_steps_are_torchs_within_rounding(setting: str, dtype: torch.dtype) -> None:
    ours, theirs = parameters(dtype), parameters(dtype)
    change = take_steps(make(setting, ours), ours, STEPS)
    take_steps(make(setting, theirs, "torch"), theirs, STEPS)
    size = max(p.abs().max().item() for p in theirs)
    bound = STEPS * torch.finfo(dtype).eps * (size + ROUNDINGS * change)
    assert bound < (1e-3 if dtype == torch.float32 else 1e-12)
    assert farthest(ours, theirs) <= bound


def test_the_bound_tells_settings_apart() -> None:
    results: dict[str, list[Tensor]] = {}
    for setting in SETTINGS:
        results[setting] = parameters()
        take_steps(make(setting, results[setting]), results[setting], STEPS)
    for (a, one), (b, other) in itertools.combinations(results.items(), 2):
        assert farthest(one, other) > 1e-3, (a, b)


@each_kind
@pytest.mark.parametrize(
    "scheduler",
    [
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.95**epoch),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=40),
        lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.001, 0.05, 7, cycle_momentum=True),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 10),
    ],
)
def test_schedulers(setting: str, scheduler: Callable[[Any], Any]) -> None:
    results = []
    for which in ("loma", "torch"):
        params = parameters(torch.float64)
        optimizer = make(setting, params, which)
        schedule = scheduler(optimizer)
        for grads in gradients(params, 40):
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad
            optimizer.step()
            schedule.step()
        results.append((params, [group["lr"] for group in optimizer.param_groups]))
    assert farthest(results[0][0], results[1][0]) < 1e-12
    assert results[0][1] == results[1][1]


@each_kind
def test_a_network_learns_the_same(setting: str) -> None:
    torch.manual_seed(3)
    network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    x, y = torch.randn(20, 6).double(), torch.randint(3, (20,))
    results: list[list[Tensor]] = []
    for which in ("loma", "torch"):
        own = copy.deepcopy(network)
        first, *rest = own.parameters()
        groups = [{"params": [first], "lr": 0.003, "weight_decay": 0.2}, {"params": rest}]
        optimizer = make(setting, groups, which)
        for _ in range(30):
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(own(x), y).backward()
            optimizer.step()
        results.append(list(own.parameters()))
    assert farthest(*results) < 1e-11


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("setting", ["momentum", "adam", "amsgrad", "adamw"])
def test_narrow_dtypes_are_rounded_once(setting: str, dtype: torch.dtype) -> None:
    """A step is that of float32, rounded."""
    narrow = parameters(dtype)
    optimizer = make(setting, narrow)
    take_steps(optimizer, narrow, 3)
    wide = [p.detach().float().requires_grad_() for p in narrow]
    other = make(setting, wide)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    take_steps(optimizer, narrow, 1, seed=9)
    for param, own, grad in zip(wide, narrow, next(gradients(narrow, 1, 9)), strict=True):
        param.grad = grad.float()
        assert own.dtype == dtype
    other.step()
    for own, param in zip(narrow, wide, strict=True):
        assert torch.equal(own.detach(), param.detach().to(dtype))
        for name, value in optimizer.state[own].items():
            expected = other.state[param][name]
            assert torch.equal(value, expected.to(value.dtype))


# ---------------------------------------------------------------------------------- state on disk


@every_setting
@pytest.mark.parametrize("way", ["to torch", "from torch"])
def test_state_loads_both_ways(setting: str, way: str) -> None:
    source, target = ("loma", "torch") if way == "to torch" else ("torch", "loma")
    params = parameters(torch.float64)
    optimizer = make(setting, params, source)
    take_steps(optimizer, params, 5)
    moved = [p.detach().clone().requires_grad_() for p in params]
    other = make(setting, moved, target, lr=0.5)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    own_state, other_state = optimizer.state_dict()["state"], other.state_dict()["state"]
    assert own_state.keys() == other_state.keys()
    for number, values in own_state.items():
        for name, value in values.items():
            assert type(other_state[number][name]) is type(value)
    take_steps(optimizer, params, 5, seed=4)
    take_steps(other, moved, 5, seed=4)
    assert farthest(params, moved) < 1e-12


@every_setting
def test_state_has_torchs_names_and_kinds(setting: str) -> None:
    found = []
    for which in ("loma", "torch"):
        params = parameters()
        optimizer = make(setting, params, which)
        take_steps(optimizer, params, 2)
        state = optimizer.state_dict()["state"]
        found.append(
            {
                (number, name): (value.dtype, value.shape, value.device)
                for number, values in state.items()
                for name, value in values.items()
            }
        )
    assert found[0] == found[1]


@every_setting
def test_resumed_training_goes_on_bit_for_bit(setting: str) -> None:
    params = parameters()
    optimizer = make(setting, params)
    take_steps(optimizer, params, 4)
    file = io.BytesIO()
    torch.save({"params": params, "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = [p.detach().requires_grad_() for p in saved["params"]]
    other = make(setting, resumed)
    other.load_state_dict(saved["optimizer"])
    take_steps(optimizer, params, 4, seed=5)
    take_steps(other, resumed, 4, seed=5)
    assert all(torch.equal(a, b) for a, b in zip(params, resumed, strict=True))


@each_kind
@pytest.mark.parametrize("way", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_an_optimiser_can_be_copied(setting: str, way: Callable[[Any], Any]) -> None:
    params = parameters()
    optimizer = make(setting, params)
    take_steps(optimizer, params, 3)
    other = way(optimizer)
    own = [p for group in other.param_groups for p in group["params"]]
    take_steps(other, own, 3, seed=6)
    take_steps(optimizer, params, 3, seed=6)
    assert all(torch.equal(a, b) and a is not b for a, b in zip(params, own, strict=True))
    assert repr(other) == repr(optimizer)


@each_kind
def test_a_step_may_be_compiled(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile leaves the update as it is, and does not look into it."""
    params, own = parameters(), parameters()
    optimizer = make(setting, params)
    traced: list[bool] = []
    update = type(optimizer).update

    def seen(self: Any, group: dict[str, Any]) -> None:
        traced.append(torch.compiler.is_compiling())
        update(self, group)

    monkeypatch.setattr(type(optimizer), "update", seen)
    compiled = make(setting, own)
    monkeypatch.setattr(compiled, "step", torch.compile(compiled.step, backend="eager"))
    take_steps(compiled, own, 3)
    assert traced == [False] * 3
    take_steps(optimizer, params, 3)
    assert all(torch.equal(a, b) for a, b in zip(params, own, strict=True))
    other = copy.deepcopy(optimizer)
    traced.clear()
    compiled_step: Callable[[], Any] = torch.compile(other.step, backend="eager")
    compiled_step()
    assert traced == [False]


def test_an_optimiser_that_is_dropped_gives_its_state_back() -> None:
    """At once, and not when garbage is collected: its state may be large."""
    params = parameters()
    optimizer = make("adam", params)
    take_steps(optimizer, params, 1)
    left = weakref.ref(optimizer), weakref.ref(optimizer.state[params[0]]["exp_avg"])
    gc.disable()
    try:
        del optimizer
        assert [ref() for ref in left] == [None, None]
    finally:
        gc.enable()


def test_steps_of_old_checkpoints_are_numbers() -> None:
    params = parameters()
    optimizer = make("adam", params)
    take_steps(optimizer, params, 3)
    saved = optimizer.state_dict()
    for state in saved["state"].values():
        state["step"] = int(state["step"])
    other = make("adam", params)
    other.load_state_dict(saved)
    assert all(torch.equal(other.state[p]["step"], torch.tensor(3.0)) for p in params)


# ------------------------------------------------------------------------------------ determinism


@every_setting
def test_an_element_depends_on_no_other(setting: str) -> None:
    """Whole or in pieces that end anywhere, wherever it lies, with any number of threads: the same
    bits, so vectors, tails and shares of threads compute alike."""
    whole = parameters(shapes=[(70_001,)])
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        take_steps(make(setting, whole), whole, 3)
        torch.set_num_threads(1)
        start = parameters(shapes=[(70_001,)])[0].detach()
        ends = [0, 1, 4, 11, 30, 4127, 40_000, 70_001]
        pieces = []
        for number, (begin, end) in enumerate(itertools.pairwise(ends)):
            memory = torch.empty(end - begin + number)  # at another place in a line of the cache
            piece = memory[number:]
            piece.copy_(start[begin:end])
            pieces.append(piece.requires_grad_())
        optimizer = make(setting, pieces)
        for (grad,) in gradients(whole, 3):
            for piece, (begin, end) in zip(pieces, itertools.pairwise(ends), strict=True):
                piece.grad = grad[begin:end]
            optimizer.step()
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.cat([p.detach() for p in pieces]), whole[0].detach())


SPECIALISED = """
import sys, torch
sys.path[:0] = ["tests", "tests/support", "tests/torch"]
import test_optim
from loma import specialise

specialise.use(specialise.Thresholds(calls=1, call_ms=0.0, total_ms=0.0))
print(test_optim.digest_of_steps(), specialise.wait(60), specialise.made())
"""


def digest_of_steps() -> int:
    """A number that depends on all bits of a parameter after some steps."""
    params = parameters(shapes=[(50_001,)])
    take_steps(make("adamw", params), params, 6)
    return int(params[0].detach().view(torch.int32).long().sum())


@pytest.mark.full
@pytest.mark.cpu
def test_no_kernel_for_known_sizes_takes_over() -> None:
    environment = {**os.environ, "LOMA_SPECIALISATIONS": "8"}
    done = fresh.run(["-c", SPECIALISED], cwd=ROOT, env=environment, check=True)
    assert done.stdout.split() == [str(digest_of_steps()), "True", "[]"]


# ------------------------------------------------------------------------------- shapes and layout


def laid_out(kind: str) -> Tensor:
    values = torch.arange(2 * 3 * 4 * 5, dtype=torch.float64).reshape(2, 3, 4, 5) / 100 - 0.5
    match kind:
        case "channels last":
            return values.to(memory_format=torch.channels_last)
        case "transposed":
            return values.transpose(1, 3)
        case "every second":
            return values[:, :, ::2]
        case "shifted":
            return torch.cat([torch.zeros(3).double(), values.flatten()])[3:].view(2, 3, 4, 5)
        case _:
            return values


LAYOUTS = ("contiguous", "channels last", "transposed", "every second", "shifted")


@each_kind
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("of_gradient", ["as the parameter", "contiguous", "expanded", "other"])
def test_any_strides(setting: str, layout: str, of_gradient: str) -> None:
    results = []
    for which in ("loma", "torch"):
        param = laid_out(layout).clone(memory_format=torch.preserve_format)
        if layout == "every second":
            param = laid_out(layout).detach()
        param.requires_grad_()
        optimizer = make(setting, [param], which)
        for k in range(3):
            values = torch.sin(torch.arange(param.numel()).double() + k).view(param.shape)
            grad = torch.empty_like(param, requires_grad=False).copy_(values)
            match of_gradient:
                case "contiguous":
                    grad = values
                case "expanded":
                    grad = values[:1, :1, :1, :1].expand(param.shape)
                case "other":
                    grad = values.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0)
            param.grad = grad
            optimizer.step()
        strides = [value.stride() for value in optimizer.state[param].values()]
        results.append((param.detach(), strides, param.stride()))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-13, atol=1e-13)
    assert results[0][2] == results[1][2]
    if layout != "every second" and of_gradient == "as the parameter":
        assert results[0][1] == results[1][1]


@each_kind
def test_small_and_empty_parameters(setting: str) -> None:
    shapes = [(0,), (3, 0), (), (1,), (1, 1, 1)]
    results = []
    for which in ("loma", "torch"):
        params = parameters(torch.float64, shapes)
        take_steps(make(setting, params, which), params, 4)
        results.append(params)
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


@each_kind
def test_gradients_of_sums_are_expanded(setting: str) -> None:
    results = []
    for which in ("loma", "torch"):
        params = parameters(torch.float64)
        optimizer = make(setting, params, which)
        for _ in range(3):
            optimizer.zero_grad()
            torch.stack([p.sum() for p in params]).sum().backward()
            optimizer.step()
        results.append(params)
    assert farthest(*results) < 1e-13


def test_a_gradient_may_be_the_parameter_itself() -> None:
    results = []
    for which in ("loma", "torch"):
        param = parameters(torch.float64, [(50,)])[0]
        optimizer = make("momentum", [param], which)
        for _ in range(3):
            param.grad = param.detach()
            optimizer.step()
        results.append(param.detach())
    torch.testing.assert_close(*results, rtol=1e-13, atol=1e-13)


def test_infinite_parameters_and_gradients() -> None:
    """Without weight decay a parameter is not multiplied by zero."""
    values = torch.tensor([float("inf"), -float("inf"), float("nan"), 1.0, 2.0])
    grads = torch.tensor([1.0, -1.0, 1.0, float("inf"), float("nan")])
    for setting in ("sgd", "momentum", "adam"):
        results = []
        for which in ("loma", "torch"):
            param = values.clone().requires_grad_()
            optimizer = make(setting, [param], which)
            for _ in range(2):
                param.grad = grads.clone()
                optimizer.step()
            results.append(param.detach())
        torch.testing.assert_close(*results, equal_nan=True)


# ------------------------------------------------------------------------------------ as in torch


@pytest.mark.parametrize("setting", ["sgd", "nesterov", "adam", "amsgrad"])
def test_autograd_knows_that_a_parameter_changed(setting: str) -> None:
    param = torch.ones(5, requires_grad=True)
    optimizer = make(setting, [param])
    loss = (param * param).sum()
    param.grad = torch.ones(5)
    version = param._version
    optimizer.step()
    assert param._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_without_a_gradient_nothing_happens() -> None:
    for setting in SETTINGS:
        params = parameters()
        before = [p.detach().clone() for p in params]
        optimizer = make(setting, params)
        optimizer.step()
        params[2].grad = torch.ones(params[2].shape)
        optimizer.step()
        changed = [not torch.equal(a, b) for a, b in zip(before, params, strict=True)]
        assert changed == [False, False, True, False, False]
        assert set(optimizer.state) <= {params[2]}
        optimizer.zero_grad(set_to_none=True)
        assert params[2].grad is None


def test_parameters_may_be_at_different_steps() -> None:
    results = []
    for which in ("loma", "torch"):
        params = parameters(torch.float64)
        optimizer = make("adamw", params, which)
        for number, grads in enumerate(gradients(params, 6)):
            for k, (param, grad) in enumerate(zip(params, grads, strict=True)):
                param.grad = grad if number % (k + 1) == 0 else None
            optimizer.step()
        results.append(params)
    assert farthest(*results) < 1e-13


def test_closures_and_hooks() -> None:
    param = torch.ones(3, requires_grad=True)
    optimizer = make("sgd", [param])
    heard: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: heard.append("before"))
    optimizer.register_step_post_hook(lambda *_: heard.append("after"))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (param * param).sum()
        loss.backward()
        heard.append("closure")
        return loss

    assert optimizer.step(closure).item() == 3.0
    assert heard == ["before", "closure", "after"]
    torch.testing.assert_close(param.detach(), torch.full((3,), 0.96))


@each_kind
def test_a_learning_rate_may_be_a_tensor(setting: str) -> None:
    a, b = parameters(), parameters()
    rate = torch.tensor(0.03125)
    take_steps(make(setting, a, lr=rate), a, 3)
    take_steps(make(setting, b, lr=0.03125), b, 3)
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_groups_can_be_added_and_parameters_named() -> None:
    first, second = parameters(shapes=[(3,), (4,)])
    optimizer = loma.optim.SGD([("first", first)], lr=0.5)
    optimizer.add_param_group({"params": [("second", second)], "lr": 0.25})
    before = [first.detach().clone(), second.detach().clone()]
    first.grad, second.grad = torch.ones(3), torch.ones(4)
    optimizer.step()
    assert torch.equal(first.detach(), before[0] - 0.5)
    assert torch.equal(second.detach(), before[1] - 0.25)
    assert optimizer.state_dict()["param_groups"][1]["param_names"] == ["second"]


def test_programs_are_compiled_once() -> None:
    from loma.optim.base import program

    assert program("adam") is program("adam")
    assert isinstance(loma.optim.AdamW([torch.ones(1).requires_grad_()]), torch.optim.Optimizer)


# ----------------------------------------------------------------------------------------- errors

BAD = [
    ("SGD", {"lr": -1.0}), ("SGD", {"momentum": -0.5}), ("SGD", {"weight_decay": -1.0}),
    ("SGD", {"nesterov": True}), ("SGD", {"nesterov": True, "momentum": 0.9, "dampening": 0.1}),
    ("SGD", {"lr": torch.ones(2)}), ("Adam", {"lr": -1.0}), ("Adam", {"lr": torch.ones(2)}),
    ("Adam", {"betas": (1.0, 0.9)}), ("AdamW", {"betas": (0.9, -0.1)}), ("Adam", {"eps": -1.0}),
    ("AdamW", {"weight_decay": -0.1}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments"), BAD)
def test_bad_hyperparameters_are_refused_as_by_torch(name: str, arguments: dict[str, Any]) -> None:
    messages = []
    for module in (loma.optim, torch.optim):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            getattr(module, name)(parameters(), **arguments)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_bad_lists_of_parameters_are_refused_as_by_torch() -> None:
    with pytest.raises(ValueError, match="empty parameter list"):
        loma.optim.SGD([])
    with pytest.raises(TypeError, match="iterable of Tensors or dicts"):
        loma.optim.Adam(torch.ones(3).requires_grad_())
    with pytest.raises(ValueError, match="non-leaf"):
        loma.optim.Adam([torch.ones(3).requires_grad_() * 2.0])


@pytest.mark.parametrize(
    ("param", "error", "message"),
    [
        (torch.ones(2, dtype=torch.complex64), TypeError, "is torch.complex64"),
        (torch.ones(2, dtype=torch.int64), TypeError, "is torch.int64"),
        (torch.ones(2, device="meta"), ValueError, "is torch.strided on meta"),
        (torch.ones(2).to_sparse(), ValueError, "is torch.sparse_coo on cpu"),
    ],
)
def test_other_parameters_are_refused(param: Tensor, error: type, message: str) -> None:
    optimizer = loma.optim.Adam(parameters())
    with pytest.raises(error, match=f"Adam: parameter 0 of group 1 {message}"):
        optimizer.add_param_group({"params": [param]})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("setting", ["sgd", "momentum", "adam"])
def test_sparse_gradients_are_refused(setting: str) -> None:
    embedding = nn.Embedding(4, 3, sparse=True)
    optimizer = make(setting, embedding.parameters())
    before = embedding.weight.detach().clone()
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match=r"shape \(4, 3\) is sparse, and loma's optimisers"):
        optimizer.step()
    assert torch.equal(before, embedding.weight)
