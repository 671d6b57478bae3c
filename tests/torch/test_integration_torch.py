"""Compiled functions as PyTorch sees them: dispatcher, autograd, tracing, threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import oracle
import pytest
from sampled import one_in
import torch
from torch import Tensor

import loma
from loma.tensor_functions import operator_of

PROGRAM = """
def scale(x : In[Tensor[N, M]], w : In[Tensor[M]], a : In[float], k : In[int]) -> Tensor[N, M]:
    s : Tensor[N, M]
    s[i, j] = exp(x[i, j] * w[j])
    y : Tensor[N, M]
    y[i, j] = a * s[i, j] * s[i, j] * k
    return y

d_scale = rev_diff(scale)

def add_to(x : In[Tensor[N]], y : Out[Tensor[N]]):
    y[i] += 2.0 * x[i]

def rectified(x : In[Tensor]) -> Tensor:
    return relu(x)

def shifted(x : In[Tensor], a : In[float]) -> Tensor:
    return relu(x + a)

def picked(x : In[Tensor], i : In[IntTensor]) -> Tensor:
    return gather(x * x, 0, i) + sum(one_hot(argmax(x, 1), 4), 0)

def halves(x : In[Tensor[N]], order : In[IntTensor[N]]) -> tuple[Tensor[N // 2], IntTensor[N]]:
    y : Tensor[N // 2]
    y[i] = x[2 * i] * x[2 * i + 1]
    z : IntTensor[N]
    z[i] = order[i] + 1
    return y, z
"""


Function = Callable[..., Tensor]
Arguments = tuple[Tensor, Tensor, Tensor]


@pytest.fixture(scope="module")
def program() -> loma.LomaModule:
    return oracle.compiled(PROGRAM)


@pytest.fixture
def arguments() -> Arguments:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, dtype=torch.float64, requires_grad=True)
    a = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    return x, w, a


def scale(x: Tensor, w: Tensor, a: Tensor | float, k: int) -> Tensor:
    return a * torch.exp(x * w) ** 2 * k


def test_first_derivatives(program: loma.LomaModule, arguments: Arguments) -> None:
    assert torch.autograd.gradcheck(lambda *args: program.scale(*args, 3), arguments)


@pytest.mark.full
def test_second_derivatives_through_saved_values(
    program: loma.LomaModule, arguments: Arguments
) -> None:
    assert torch.autograd.gradgradcheck(lambda *args: program.scale(*args, 3), arguments)


@pytest.mark.full
def test_the_explicit_derivative_is_differentiable(
    program: loma.LomaModule, arguments: Arguments
) -> None:
    x, w, a = arguments
    seed = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    given = program.d_scale(x, w, a, 3, seed)
    expected = torch.autograd.grad(scale(x, w, a, 3), arguments, seed, create_graph=True)
    weights = [torch.randn_like(value) for value in expected]
    given = [value for value in given if value.is_floating_point()]
    torch.testing.assert_close(given, list(expected))
    first = torch.autograd.grad(given, [x, w, a, seed], weights)
    second = torch.autograd.grad(expected, [x, w, a, seed], weights)
    torch.testing.assert_close(first, second)


@pytest.mark.full
def test_third_derivative() -> None:
    m = loma.compile(
        "def square(x : In[Tensor[N]]) -> Tensor[N]:\n"
        "    y : Tensor[N]\n    y[i] = x[i] * x[i]\n    return y\n"
    )
    x = torch.tensor([0.3, -2.0], dtype=torch.float64, requires_grad=True)
    y = m.square(x) * x * x
    for _ in range(3):
        (y,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
    torch.testing.assert_close(y, 24.0 * x)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2)])
def test_gradients_of_some_arguments_only(
    program: loma.LomaModule, arguments: Arguments, wanted: tuple[int, ...]
) -> None:
    x, w, a = (v if k in wanted else v.detach() for k, v in enumerate(arguments))
    chosen = [(x, w, a)[k] for k in wanted]
    given = torch.autograd.grad(program.scale(x, w, a, 2).sum(), chosen)
    torch.testing.assert_close(given, torch.autograd.grad(scale(x, w, a, 2).sum(), chosen))


def test_opcheck(program: loma.LomaModule, arguments: Arguments) -> None:
    x, w, a = arguments
    plain = [value.detach() for value in arguments]
    native = program.__native__
    assert native is not None
    calls = [
        (program.scale.operator, (x, w, a, 2)),
        (program.d_scale.operator, (*plain, 2, torch.randn(3, 4, dtype=torch.float64))),
        (program.rectified.operator, (torch.randn(2, 3),)),
        (program.add_to.operator, (torch.randn(3), torch.randn(3))),
        (program.halves.operator, (torch.randn(6, requires_grad=True), torch.arange(6))),
        (operator_of(native, "scale__forward"), (*plain, 2)),
    ]
    for operator, args in calls:
        torch.library.opcheck(operator, args)


def test_a_fake_tensor_gets_the_real_shape(program: loma.LomaModule) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        y, z = program.halves(torch.empty(7), torch.empty(7, dtype=torch.int64))
        assert y.shape == (3,)
        assert z.dtype == torch.int64
        with pytest.raises(ValueError, match="size N is 7 in argument 'x' but 6"):
            program.halves(torch.empty(7), torch.empty(6, dtype=torch.int64))


@pytest.mark.parametrize("dynamic", one_in(2, [False, True]))
def test_torch_compile_without_graph_breaks(program: loma.LomaModule, dynamic: bool) -> None:
    def function(x: Tensor, w: Tensor, a: Tensor) -> Any:
        y = program.scale(x, w, a=a, k=2) + program.scale(x, w, 0.5, 1)
        return program.rectified(y.detach()) + y

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (2, 3, 5):
        leaves = [torch.randn(rows, 4), torch.randn(4), torch.tensor(0.3)]
        leaves = [leaf.requires_grad_() for leaf in leaves]
        given = torch.autograd.grad(compiled(*leaves).sum(), leaves)
        torch.testing.assert_close(given, torch.autograd.grad(function(*leaves).sum(), leaves))


def test_torch_compile_of_any_rank_with_a_number(program: loma.LomaModule) -> None:
    compiled: Function = torch.compile(program.shifted, fullgraph=True, backend="aot_eager")
    for shape in ((3,), (2, 4)):
        x, a = torch.randn(shape), torch.tensor(0.3, requires_grad=True)
        assert torch.equal(compiled(x, 0.5), torch.relu(x + 0.5))
        (given,) = torch.autograd.grad(compiled(x, a).sum(), a)
        torch.testing.assert_close(given, (x > -0.3).sum().float())


@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_of_positions_in_tensors_of_any_rank(
    program: loma.LomaModule, dynamic: bool
) -> None:
    compiled: Function = torch.compile(
        program.picked, fullgraph=True, backend="aot_eager", dynamic=dynamic
    )
    x, i = torch.randn(3, 4, requires_grad=True), torch.tensor([[2, 0, 1, 1], [0, 0, 2, 1]])
    expected = (x * x).gather(0, i) + torch.nn.functional.one_hot(x.argmax(1), 4).sum(0)
    y = compiled(x, i)
    torch.testing.assert_close(y, expected)
    given, wanted = (torch.autograd.grad(value.sum(), x) for value in (y, expected))
    torch.testing.assert_close(given, wanted)


def test_torch_compile_writes_out_arguments(program: loma.LomaModule) -> None:
    compiled = torch.compile(lambda x, y: program.add_to(x, y), fullgraph=True, backend="aot_eager")
    y = torch.ones(3)
    assert compiled(torch.ones(3), y) is None
    torch.testing.assert_close(y, torch.full((3,), 3.0))


def test_torch_export(program: loma.LomaModule) -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            y: Tensor = program.scale(x, w, 1.5, 2)
            return y

    rows = torch.export.Dim("rows", min=2)
    args = (torch.randn(5, 4), torch.randn(4))
    exported = torch.export.export(Layer(), args, dynamic_shapes={"x": {0: rows}, "w": {}})
    x, w = torch.randn(7, 4), torch.randn(4)
    torch.testing.assert_close(exported.module()(x, w), scale(x, w, 1.5, 2))


def test_calls_from_many_threads(program: loma.LomaModule) -> None:
    """Also: the derivative of a derivative is compiled once, whoever asks first."""
    failures = []

    def work(seed: int) -> None:
        try:
            generator = torch.Generator().manual_seed(seed)
            x = torch.randn(3, 4, dtype=torch.float64, generator=generator, requires_grad=True)
            w = torch.ones(4, dtype=torch.float64)
            for _ in range(50):
                (g,) = torch.autograd.grad(program.scale(x, w, 1.0, 1).sum(), x, create_graph=True)
                (h,) = torch.autograd.grad(g.sum(), x)
                torch.testing.assert_close(h, 4.0 * torch.exp(2.0 * x.detach()))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes_are_rounded_once(program: loma.LomaModule, dtype: torch.dtype) -> None:
    x, w = torch.randn(3, 4, dtype=dtype, requires_grad=True), torch.randn(4, dtype=dtype)
    y = program.scale(x, w, 1.0, 1)
    expected = scale(x.detach().float(), w.float(), 1.0, 1)
    assert torch.equal(y, expected.to(dtype))
    (g,) = torch.autograd.grad(y.sum(), x)
    assert g.dtype == dtype
    torch.testing.assert_close(g.float(), 2 * w.float() * expected, rtol=0.03, atol=0.03)


def test_expanded_gradients_and_views(program: loma.LomaModule, arguments: Arguments) -> None:
    _, w, a = arguments
    wide = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    view = wide.t()[::2]
    given = torch.autograd.grad(program.scale(view, w, a, 1).sum(), [wide, w])
    torch.testing.assert_close(given, torch.autograd.grad(scale(view, w, a, 1).sum(), [wide, w]))


def test_inputs_are_left_alone_and_results_are_new(program: loma.LomaModule) -> None:
    x = torch.randn(3).abs()
    before = x.clone()
    y = program.rectified(x)
    y += 1.0
    assert torch.equal(x, before)
    assert y.is_contiguous()


@pytest.mark.cpu
def test_saved_arguments_that_change_are_noticed(
    program: loma.LomaModule, arguments: Arguments
) -> None:
    x, w, a = arguments
    values = w.detach().clone()
    y = program.scale(x, values, a, 1)
    values += 1.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
