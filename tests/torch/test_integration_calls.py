"""How compiled functions are called, and what a wrong call gets, before anything runs."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import loma

PROGRAM = '''
def shift(x : In[Tensor[N, M]], w : In[Tensor[M]], a : In[float], k : In[int]) -> Tensor[N, M]:
    """Adds a multiple of w to each row."""
    y : Tensor[N, M]
    y[i, j] = x[i, j] + a * k * w[j]
    return y

d_shift = rev_diff(shift)

def double(x : In[Tensor[N]], y : Out[Tensor[N]]):
    y[i] = 2.0 * x[i]

def pairs(x : In[Tensor[N, 2]], picked : In[IntTensor[N]]) -> tuple[Tensor[N], float]:
    y : Tensor[N]
    y[i] = x[i, 0] * x[i, 1] + picked[i]
    total : float
    total += y[i]
    return y, total

def single(x : In[TorchTensorFloat]) -> Tensor:
    return relu(x)

def halve(x : In[float]) -> float:
    return x / 2.0
'''


@pytest.fixture(scope="module")
def program() -> loma.LomaModule:
    return loma.compile(PROGRAM)


X, W = torch.ones(2, 3), torch.ones(3)


def test_names_and_positions(program: loma.LomaModule) -> None:
    expected = X + 2.0 * W
    for y in (
        program.shift(X, W, 1.0, 2),
        program.shift(X, W, k=2, a=1),
        program.shift(a=torch.tensor(1.0), k=2, w=W, x=X),
    ):
        torch.testing.assert_close(y, expected)


def test_several_results(program: loma.LomaModule) -> None:
    y, total = program.pairs(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0, 5]))
    assert y.tolist() == [2.0, 17.0]
    assert (total.item(), total.shape) == (19.0, ())


def test_an_out_argument_is_written(program: loma.LomaModule) -> None:
    y = torch.zeros(3, 2)
    assert program.double(torch.ones(3), y[:, 1]) is None
    assert y.tolist() == [[0.0, 2.0]] * 3


def test_gradients_flow_through_an_out_argument(program: loma.LomaModule) -> None:
    x, y = torch.ones(3, requires_grad=True), torch.zeros(3)
    program.double(x, y)
    (g,) = torch.autograd.grad(y.sum(), x)
    assert g.tolist() == [2.0] * 3


def test_adjoints_come_back_as_a_tuple(program: loma.LomaModule) -> None:
    adjoints = program.d_shift(X, W, 0.5, 2, torch.ones(2, 3))
    assert isinstance(adjoints, tuple)
    dx, dw, da = (value for value in adjoints if value.is_floating_point())
    torch.testing.assert_close(dx, torch.ones(2, 3))
    torch.testing.assert_close(dw, torch.full((3,), 2.0))
    assert da.item() == 12.0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.shift(X, W, 1.0), TypeError, "shift() misses argument 'k'"),
        (lambda m: m.shift(X, W, 1.0, 2, 3), TypeError, "shift() takes 4 arguments (x, w, a, k)"),
        (lambda m: m.shift(X, W, 1.0, j=2), TypeError, "shift() has no argument 'j'"),
        (lambda m: m.shift(X, W, 1.0, 2, x=X), TypeError, "shift() got argument 'x' twice"),
        (lambda m: m.shift(X, 3, 1.0, 2), TypeError, "shift: argument 'w' must be a tensor, got"),
        (lambda m: m.shift(X, W, 1.0, 2.5), TypeError, "'k' must be an int, got float"),
        (lambda m: m.shift(X, W, 1.0, W[0]), TypeError, "'k' must be an int, got Tensor"),
        (lambda m: m.shift(X, W, 1.0, 2**70), ValueError, "'k' does not fit in 64 bits"),
        (lambda m: m.shift(X, W, "1", 2), TypeError, "'a' must be a number or a 0-dim"),
        (lambda m: m.shift(X, W, W, 2), ValueError, "'a' must be a number or a 0-dimensional"),
        (lambda m: m.shift(X, W, torch.tensor(1), 2), TypeError, "'a' must be a floating-point"),
        (lambda m: m.shift(X, W[:2], 1.0, 2), ValueError, "shift: size M is 3 in argument 'x' but "
         "2 in argument 'w' (dimension 0)"),
        (lambda m: m.shift(W, W, 1.0, 2), ValueError, "'x' must have 2 dimensions, got 1"),
        (lambda m: m.shift(X, W.double(), 1.0, 2), TypeError, "'w' is float64, but the call's "
         "dtype is float32"),
        (lambda m: m.shift(X.long(), W, 1.0, 2), TypeError, "'x' must be a float32, float64, "
         "bfloat16 or float16 tensor, got int64"),
        (lambda m: m.shift(X.to_sparse(), W, 1.0, 2), ValueError, "'x' must be a dense tensor"),
        (lambda m: m.shift(X.to("meta"), W, 1.0, 2), ValueError, "'w' is on cpu, but argument 'x' "
         "is on meta"),
        (lambda m: m.pairs(torch.ones(2, 3), torch.arange(2)), ValueError, "pairs: argument 'x' "
         "has size 3 in dimension 1, expected 2"),
        (lambda m: m.pairs(torch.ones(2, 2), W), TypeError, "'picked' must be an int64 tensor"),
        (lambda m: m.single(W.double()), TypeError, "'x' must be a float32 tensor, got float64"),
        (lambda m: m.double(W, W), ValueError, "double: arguments 'x' and 'y' share memory"),
        (lambda m: m.halve("1"), TypeError, "halve: argument 'x' must be a number, got str"),
        (lambda m: m.shfit, AttributeError, "has no function 'shfit': did you mean 'shift'?"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("grad", [False, True])
def test_wrong_calls(
    program: loma.LomaModule,
    call: Callable[[Any], object],
    error: type[Exception],
    message: str,
    grad: bool,
) -> None:
    X.requires_grad_(grad)
    try:
        with pytest.raises(error) as caught:
            call(program)
    finally:
        X.requires_grad_(False)
    assert message in str(caught.value)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (1, 1)])
def test_empty_and_single(program: loma.LomaModule, shape: tuple[int, ...]) -> None:
    x = torch.ones(shape, requires_grad=True)
    y = program.shift(x, torch.ones(shape[1]), 1.0, 1)
    assert y.shape == shape
    (g,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(g, torch.ones(shape))


def test_a_tensor_subclass_goes_through_torch_function(program: loma.LomaModule) -> None:
    class Logged(torch.Tensor):
        calls: tuple[str, ...] = ()

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            cls.calls += (str(func),)
            kwargs = kwargs or {}
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]

    y = program.shift(X.as_subclass(Logged), W, 1.0, 2)
    assert isinstance(y, Logged)
    assert any("shift" in call for call in Logged.calls)


def test_the_module_describes_itself(program: loma.LomaModule) -> None:
    assert {"shift", "d_shift", "double", "pairs", "halve", "show"} <= set(dir(program))
    assert not any("__forward" in name for name in dir(program))
    assert "shift" in repr(program)
    assert str(inspect.signature(program.shift)) == "(x, w, a, k)"
    assert program.shift.__name__ == "shift"
    assert program.shift.__doc__.endswith("Adds a multiple of w to each row.")
    assert "def shift(" in program.show("parsed", "shift")
    with pytest.raises(ValueError, match="has no function 'shfit': did you mean 'shift'"):
        program.show("parsed", "shfit")


def test_the_same_text_is_the_same_module(program: loma.LomaModule) -> None:
    assert loma.compile(PROGRAM) is program
    assert pickle.loads(pickle.dumps(program)) is program
