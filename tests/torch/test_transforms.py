"""torch.func and torch.autograd.forward_ad through tensor functions: vmap, jvp, and what is made of
these, against plain PyTorch and against one sample after the other."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import loma

PROGRAM = """
def scale(x : In[Tensor[N]], w : In[Tensor[N]], a : In[float], k : In[int]) -> Tensor[N]:
    s : Tensor[N]
    s[i] = exp(x[i] * w[i]) / (1.0 + sum(x[j] for j in N) ** 2)
    y : Tensor[N]
    y[i] = a * s[i] * s[i] * k
    return y

def picked(table : In[Tensor[N, D]], ids : In[IntTensor[B]]) -> tuple[Tensor[B, D], IntTensor[B]]:
    y : Tensor[B, D]
    y[b, d] = table[ids[b], d] ** 2
    next : IntTensor[B]
    next[b] = (ids[b] + 1) % N
    return y, next

def recurrence(x : In[Tensor[T]], a : In[float]) -> Tensor[T + 1]:
    h : Tensor[T + 1]
    for t in range(T):
        h[t + 1] = tanh(a * h[t] + x[t])
    return h

def counted(x : In[Tensor[N]], n : In[IntTensor[1]]) -> Tensor[N]:
    y : Tensor[N] = x
    for t in range(n[0]):
        y[i] = y[i] * y[i] + 0.1
    return y

def dense(x : In[Tensor[B, I]], w : In[Tensor[O, I]], b : In[Tensor[O]]) -> Tensor[B, O]:
    return relu(linear(x, w, b))

def image(
    x : In[Tensor[B, C, H, W]], w : In[Tensor[O, C, P, P]]
) -> Tensor[B, O, H - P + 1, W - P + 1]:
    return conv2d(x, w)

def add_to(x : In[Tensor[N]], y : Out[Tensor[N]]):
    y[i] += 2.0 * x[i]

def rectified(x : In[Tensor]) -> Tensor:
    return relu(x) * x

def cube(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = x[i] ** 3
    return y

def cubed(x : In[Tensor[N]]) -> Tensor[N]:
    return x * x * x

@derivative(cube)
def d_of_cube(x : In[Tensor[N]], d_x : Out[Tensor[N]], d_y : In[Tensor[N]]):
    d_x[i] += 3.0 * x[i] * x[i] * d_y[i]
"""


@pytest.fixture(scope="module", autouse=True)
def double() -> Iterator[None]:
    """What is compiled first, and called."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def program(double: None) -> loma.LomaModule:
    return loma.compile(PROGRAM)


def scale(x: Tensor, w: Tensor, a: Tensor | float, k: int) -> Tensor:
    s = torch.exp(x * w) / (1.0 + x.sum() ** 2)
    return a * s * s * k


def recurrence(x: Tensor, a: Tensor) -> Tensor:
    h = [torch.zeros(())]
    for value in x:
        h.append(torch.tanh(a * h[-1] + value))
    return torch.stack(h)


X, V, W, A = torch.randn(4, 3).double(), torch.randn(3).double(), torch.randn(3).double(), 0.7
IDS = torch.tensor([[0, 2], [1, 1], [2, 0], [2, 2]])


def one_by_one(function: Callable[..., Any], in_dims: Any, *args: Any) -> Any:
    """What vmap gives, by a loop."""
    dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(args)
    count = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
    found = [
        function(*(a if d is None else a.select(d, s) for a, d in zip(args, dims, strict=True)))
        for s in range(count)
    ]
    if isinstance(found[0], tuple):
        return tuple(map(torch.stack, zip(*found, strict=True)))
    return torch.stack(found)


def check_vmap(function: Callable[..., Any], in_dims: Any, *args: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as that of a missing batching rule
        found = vmap(function, in_dims)(*args)
    torch.testing.assert_close(found, one_by_one(function, in_dims, *args))


# ------------------------------------------------------------------------------------------- vmap


def test_unbatched_arguments_and_other_dimensions(program: loma.LomaModule) -> None:
    def function(x: Tensor, w: Tensor, a: Tensor) -> Tensor:
        return program.scale(x, w, a, 2)  # type: ignore[no-any-return]

    a = torch.tensor(A)
    check_vmap(function, (0, None, None), X, V, a)
    check_vmap(function, (1, None, None), X.T, V, a)
    check_vmap(function, (None, -1, 0), V, X.T, X[:, 0])
    out = vmap(function, (0, None, None), out_dims=1)(X, V, a)
    torch.testing.assert_close(out, one_by_one(function, (0, None, None), X, V, a).T)
    # keywords, numbers, samples that lie apart in memory
    named = vmap(lambda x: program.scale(x, k=1, a=A, w=V))(X.expand(2, 4, 3)[0])
    torch.testing.assert_close(named, one_by_one(lambda x: scale(x, V, A, 1), 0, X))


@pytest.mark.full
def test_nested(program: loma.LomaModule) -> None:
    def table(f: Callable[..., Tensor]) -> Tensor:
        one = vmap(lambda x, w: f(x, w, A, 2), (None, 0))
        return vmap(one, (0, None))(X, X)

    torch.testing.assert_close(table(program.scale), table(scale))


@pytest.mark.full
def test_gathers_and_several_results(program: loma.LomaModule) -> None:
    table = torch.randn(3, 2)
    check_vmap(program.picked, (None, 0), table, IDS)
    check_vmap(program.picked, (0, 0), torch.randn(4, 3, 2), IDS)
    # what depends on no sample is one tensor
    dims: Any = (0, None)
    _, following = vmap(program.picked, dims, out_dims=dims)(torch.randn(4, 3, 2), IDS[0])
    assert following.tolist() == [1, 0]


def test_recurrences(program: loma.LomaModule) -> None:
    check_vmap(program.recurrence, 0, X, torch.linspace(-1, 1, 4))


def test_loops_that_each_sample_counts(program: loma.LomaModule) -> None:
    check_vmap(program.counted, 0, 0.3 * X, torch.tensor([[0], [3], [1], [2]]))


@pytest.mark.full
def test_library_products(program: loma.LomaModule) -> None:
    x, w, b = torch.randn(4, 5, 2), torch.randn(4, 3, 2), torch.randn(4, 3)
    check_vmap(program.dense, (0, None, None), x, w[0], b[0])
    check_vmap(program.dense, 0, x, w, b)
    images, filters = torch.randn(4, 2, 3, 6, 6), torch.randn(4, 5, 3, 2, 2)
    check_vmap(program.image, (0, None), images, filters[0])
    check_vmap(program.image, 0, images, filters)


def test_any_rank_runs_for_one_sample_after_the_other(program: loma.LomaModule) -> None:
    check_vmap(program.rectified, 0, X)
    check_vmap(program.cube, 0, X)
    found = vmap(grad(lambda x: program.cube(x).sum()))(X)
    torch.testing.assert_close(found, 3 * X**2)
    with pytest.raises(ValueError, match="rectified: vmap over 0 samples"):
        vmap(program.rectified)(X[:0])


@pytest.mark.cpu
def test_written_arguments(program: loma.LomaModule) -> None:
    def add(x: Tensor, y: Tensor) -> Tensor:
        y = y.clone()
        program.add_to(x, y)
        return y

    torch.testing.assert_close(vmap(add)(X, X), 3 * X)
    with pytest.raises(ValueError, match="'y' is written, but is one tensor for all samples"):
        vmap(add, (0, None))(X, V)
    with pytest.raises(ValueError, match="arguments 'x' and 'y' share memory"):
        vmap(lambda x: program.add_to(x, x))(X.clone())


def test_what_is_wrong_about_a_sample(program: loma.LomaModule) -> None:
    with pytest.raises(ValueError, match="'x' must have 1 dimension, got 2"):
        vmap(lambda x: program.cube(x))(torch.ones(2, 3, 4))
    with pytest.raises(ValueError, match="size N is 3 in argument 'x' but 2 in argument 'w'"):
        vmap(lambda x: program.scale(x, torch.ones(2), A, 1))(X)
    with pytest.raises(TypeError, match="'k' must be an int, got Tensor"):
        vmap(lambda x, k: program.scale(x, V, A, k))(X, torch.arange(4))


# ---------------------------------------------------------------------------------------- tangents


@pytest.mark.cpu
def test_tangents(program: loma.LomaModule) -> None:
    a = torch.tensor(A)

    def both(f: Callable[..., Tensor]) -> Any:
        return jvp(lambda x, a: f(x, W, a, 2), (V, a), (W, torch.tensor(0.3)))

    torch.testing.assert_close(both(program.scale), both(scale))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(V, W)
        found = forward_ad.unpack_dual(program.scale(dual, W, a, 2))
        expected = forward_ad.unpack_dual(scale(dual, W, a, 2))
        torch.testing.assert_close(found.primal, expected.primal)
        torch.testing.assert_close(found.tangent, expected.tangent)
        # integer results have none, and what is written has one
        table = forward_ad.make_dual(torch.ones(3, 2), torch.ones(3, 2))
        y, following = program.picked(table, IDS[0])
        assert forward_ad.unpack_dual(y).tangent.tolist() == [[2.0, 2.0], [2.0, 2.0]]
        assert forward_ad.unpack_dual(following).tangent is None
        total = torch.ones(3)
        program.add_to(dual, total)
        torch.testing.assert_close(forward_ad.unpack_dual(total).tangent, 2 * W)


def test_a_derivative_of_ones_own_serves_reverse_mode_only(program: loma.LomaModule) -> None:
    with pytest.warns(loma.UserWarning, match="the tangent of 'cube' .*'d_of_cube'"):
        found = jvp(program.cube, (V,), (W,))
    torch.testing.assert_close(found[1], 3 * V**2 * W)


def test_gradcheck(program: loma.LomaModule) -> None:
    """Forward mode, reverse mode, and both for several directions at once, by torch's own check."""
    x, a = V.clone().requires_grad_(), torch.tensor(A, requires_grad=True)
    assert torch.autograd.gradcheck(
        program.recurrence, (x, a), check_forward_ad=True, check_batched_grad=True,
        check_batched_forward_grad=True,
    )  # fmt: skip


# -------------------------------------------------------------------------------------------- both

COMPOSED: dict[str, Callable[[Callable[..., Tensor]], Any]] = {
    "samples' gradients": lambda f: vmap(grad(f, (0, 1)), (0, None, None))(X, V, torch.tensor(A)),
    "gradient over samples": lambda f: grad(
        lambda x, w: vmap(f, (0, None, None))(x, w, torch.tensor(A)).sum(), (0, 1)
    )(X, V),
    "jacrev": lambda f: jacrev(f, (0, 2))(V, W, torch.tensor(A)),
    "jacfwd": lambda f: jacfwd(f, (0, 2))(V, W, torch.tensor(A)),
    "vjp of jvp": lambda f: grad(
        lambda x: jvp(lambda x: f(x, W, torch.tensor(A)), (x,), (W,))[1].sum()
    )(V),
    "hessian": lambda f: hessian(lambda x: f(x, W, torch.tensor(A)).sum())(V),
    "jacrev of jacrev": lambda f: jacrev(jacrev(lambda x: f(x, W, torch.tensor(A)).sum()))(V),
    "jacfwd of jacfwd": lambda f: jacfwd(jacfwd(lambda x: f(x, W, torch.tensor(A))))(V),
    "samples' hessians": lambda f: vmap(hessian(lambda x: f(x, W, torch.tensor(A)).sum()))(X),
}
EXPENSIVE = ("jacrev of jacrev", "jacfwd of jacfwd", "samples' hessians", "vjp of jvp",
             "gradient over samples", "hessian")  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.full) if n in EXPENSIVE else n for n in COMPOSED],
)
def test_composed(program: loma.LomaModule, name: str) -> None:
    scalar = name in ("samples' gradients",)

    def of(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, w, a: f(x, w, a, 2).sum() if scalar else f(x, w, a, 2)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated")  # by torch
        found = COMPOSED[name](of(program.scale))
    torch.testing.assert_close(found, COMPOSED[name](of(scale)))


def test_a_gradient_of_torch_func_compiles_no_second_derivative(
    program: loma.LomaModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for a graph always, which most programs never look at."""
    monkeypatch.setattr("loma.compiler.load", None)  # what the runtime's request would call
    found = grad(lambda x, a: program.recurrence(x, a).sin().sum(), (0, 1))(V, torch.tensor(A))
    expected = grad(lambda x, a: recurrence(x, a).sin().sum(), (0, 1))(V, torch.tensor(A))
    torch.testing.assert_close(found, expected)


def test_pullbacks_and_batched_gradients(program: loma.LomaModule) -> None:
    """One backward pass for several adjoints at once."""
    pullback = vjp(lambda x: program.recurrence(x, A), V)[1]
    (found,) = vmap(pullback)(torch.eye(4))
    torch.testing.assert_close(found, jacrev(lambda x: recurrence(x, torch.tensor(A)))(V))
    x = V.clone().requires_grad_()
    y = program.recurrence(x, A)
    (again,) = torch.autograd.grad(y, x, torch.eye(4), is_grads_batched=True)
    torch.testing.assert_close(again, found)


@pytest.mark.full
def test_compiled_graphs(program: loma.LomaModule) -> None:
    def gradients(x: Tensor) -> Any:
        return vmap(grad(lambda x: program.scale(x, V, A, 2).sum()))(x)

    found = torch.compile(gradients, backend="aot_eager", fullgraph=True)(X)
    torch.testing.assert_close(found, gradients(X))


@pytest.mark.full
def test_gradient_of_a_tangent_beside_a_derivative_of_ones_own(program: loma.LomaModule) -> None:
    """That derivative is not one of what computes the tangent."""
    x, v = torch.rand(4), torch.rand(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", loma.UserWarning)
        found = grad(lambda x: jvp(program.cube, (x,), (v,))[1].sum())(x)
    torch.testing.assert_close(found, 6.0 * x * v)


def test_no_gradient_loses_its_tangent(program: loma.LomaModule) -> None:
    """Of a dual tensor that needs a gradient: the tangent's own gradient is right behind the level;
    a gradient inside of it, which would have no tangent, is refused."""
    x = torch.rand(4, requires_grad=True)
    with forward_ad.dual_level():
        made = program.cubed(forward_ad.make_dual(x, torch.ones(4)))
        tangent = forward_ad.unpack_dual(made).tangent
        assert tangent is not None
        torch.testing.assert_close(tangent, 3.0 * x * x)
        with pytest.raises(NotImplementedError, match=r"use torch\.func"):
            torch.autograd.grad(made.sum(), x, retain_graph=True)
    (second,) = torch.autograd.grad(tangent.sum(), x, retain_graph=True)
    torch.testing.assert_close(second, 6.0 * x)
    torch.testing.assert_close(torch.autograd.grad(made.sum(), x)[0], 3.0 * x * x)

    def total(x: Tensor) -> Any:
        return program.cubed(x).sum()

    def slope(x: Tensor) -> Any:
        return jvp(total, (x,), (torch.ones(4),))[1]

    third = jvp(grad(slope), (x,), (torch.ones(4),))[1]
    torch.testing.assert_close(third, torch.full((4,), 6.0))
    with pytest.raises(NotImplementedError, match=r"use torch\.func"):
        torch.autograd.functional.hessian(
            total, x.detach(), vectorize=True, outer_jacobian_strategy="forward-mode"
        )
