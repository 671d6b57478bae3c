"""How compiled functions are called, and what a wrong call gets, before anything runs."""

from __future__ import annotations

import errno
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

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


def _fake(device: str) -> torch.Tensor:
    """A tensor of a device that need not be there."""
    with FakeTensorMode():
        return torch.empty(2, 2, device=device)


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
        (lambda m: m.shift(X, W, torch.tensor(1), 2), TypeError, "'a' must be a floating-point "
         "number, got a tensor of dtype Long; pass a.item() or a.float()"),
        (lambda m: m.shift([[1.0]], W, 1.0, 2), TypeError, "'x' must be a tensor, got list; pass "
         "torch.as_tensor(x)"),
        (lambda m: m.shift(X.detach().numpy(), W, 1.0, 2), TypeError, "'x' must be a tensor, got "
         "numpy.ndarray; pass torch.as_tensor(x)"),
        (lambda m: m.shift(X, W[:2], 1.0, 2), ValueError, "shift: size M is 3 in argument 'x' but "
         "2 in argument 'w' (dimension 0)"),
        (lambda m: m.shift(W, W, 1.0, 2), ValueError, "'x' must have 2 dimensions, got 1"),
        (lambda m: m.shift(X, W.double(), 1.0, 2), TypeError, "'w' is float64, but the call's "
         "dtype is float32"),
        (lambda m: m.shift(X.long(), W, 1.0, 2), TypeError, "'x' must be a float32, float64, "
         "bfloat16 or float16 tensor, got int64; pass x.float()"),
        (lambda m: m.shift(X.int(), W, 1.0, 2), TypeError, "tensor, got int32; pass x.float()"),
        (lambda m: m.shift(X.to(torch.complex64), W, 1.0, 2), TypeError, "tensor, got complex64; "
         "loma computes with real numbers: pass x.real and x.imag as two arguments"),
        (lambda m: m.shift(X.to_sparse(), W, 1.0, 2), ValueError, "'x' must be a dense tensor, "
         "got layout Sparse; pass x.to_dense()"),
        (lambda m: m.shift(X.to("meta"), W, 1.0, 2), ValueError, "'w' is on cpu, but argument 'x' "
         "is on meta"),
        (lambda m: m.pairs(torch.ones(2, 3), torch.arange(2)), ValueError, "pairs: argument 'x' "
         "has size 3 in dimension 1, expected 2"),
        (lambda m: m.pairs(torch.ones(2, 2), W), TypeError, "'picked' must be an int64 tensor "
         "(or int32, int16, int8, uint8 or bool, which are widened), got float32; pass "
         "picked.long()"),
        (lambda m: m.single(W.double()), TypeError, "'x' must be a float32 tensor, got float64; "
         "pass x.float()"),
        (lambda m: m.double(W, W), ValueError, "double: arguments 'x' and 'y' share memory"),
        (lambda m: m.halve("1"), TypeError, "halve: argument 'x' must be a number, got str"),
        (lambda m: m.shfit, AttributeError, "has no function 'shfit': did you mean 'shift'?"),
        (lambda m: m.d_pairs, AttributeError, "has no function 'd_pairs': ask for it in the "
         "program: d_pairs = rev_diff(pairs)"),
        (lambda m: m.pairs_jvp, AttributeError, "ask for it in the program: pairs_jvp = "
         "fwd_diff(pairs)"),
        (lambda m: m.pairs(_fake("cuda"), _fake("cuda")), ValueError, "pairs: argument 'x' is on "
         "cuda:0, but this PyTorch is built without CUDA or finds no GPU; pass x.cpu()"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.cpu
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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("squash.lm", "did you mean 'squash.loma'?"),
        ("squash", "did you mean 'squash.loma'?"),
        ("sqaush.loma", "did you mean 'squash.loma'?"),
        ("routing.loma", "is squash.loma"),
        ("layers/squash.loma", "layers is no program"),
    ],
)
def test_a_file_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "squash.loma").write_text("def f(x : In[float]) -> float:\n    return x\n")
    for program in (name, Path(name)):
        with pytest.raises(FileNotFoundError) as caught:
            loma.compile(program)
        assert message in str(caught.value)
        assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, name)


def test_what_is_no_program(tmp_path: Path) -> None:
    latin = tmp_path / "latin.loma"
    latin.write_bytes(b"# caf\xe9\n")
    with pytest.raises(ValueError, match=r"latin\.loma is not UTF-8 text: .* at byte 5"):
        loma.compile(latin)
    with pytest.raises(IsADirectoryError):
        loma.compile(str(tmp_path))
    for program in (None, b"def"):
        with pytest.raises(TypeError, match=r"a program is the name of a \.loma file, a pathlib"):
            loma.compile(program)  # type: ignore[arg-type]
