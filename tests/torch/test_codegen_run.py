"""Generated code at work: what the interpreter says, for the points that are easy to get wrong."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import oracle
import pytest
import torch

import loma
from loma.backends.interpreter import Interpreter
from loma.frontend import parse

pytestmark = pytest.mark.filterwarnings("ignore:.*of two ints is a whole number")

PROGRAM = """
def halves(x : In[float], n : In[int]) -> float:
    y : float = x
    i : int = 0
    while (i < n, max_iter := 20):
        if i % 2 == 0:
            y = y / 2.0
        else:
            y -= x ** 2
        i += 1
    return y

def integers(x : In[Tensor[N]], n : In[int]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = halves(x[i], n) + i / 2 - i // 2 + (i - 3) % 4 + x[(i + 1) % N] * ((i - 3) // 2)
    return y

def failing(x : In[Tensor[N, M]], n : In[int]) -> tuple[Tensor[N], float]:
    y : Tensor[N]
    s : float = 0.0
    y[i] = sum(halves(x[i, j], n) for j in M)
    s += x[i, j] * (7 / n)
    return y, s

def nested(x : In[Tensor[N, M]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[i, j] = exp(x[i, j]) / sum(exp(x[i, k]) for k in M) + (sum(x[k, j] for k in N) if x[i, j] > 0.0 else prod(x[k, j] for k in N))
    return y

def extremes(x : In[Tensor[N, M]]) -> tuple[Tensor[M], IntTensor[N], float, float]:
    y : Tensor[M]
    a : IntTensor[N]
    s : float = 0.0
    y[j] = max(x[i, j] for i in N)
    a[i] = argmax(x[i, j] for j in M)
    s += min(x[i, j], 0.5)
    t : float = min(x[i, j] for i in N for j in M)
    return y, a, s, t

def scatter(x : In[Tensor[M, D]], at : In[IntTensor[M]], like : In[Tensor[N]]) -> Tensor[N, D]:
    y : Tensor[N, D]
    y[at[m], d] += x[m, d]
    return y

def spread(x : In[Tensor[N, C, H, W]], f : In[Tensor[C, O, P, Q]]) -> Tensor[N, O, 2*H + P - 2, 2*W + Q - 2]:
    y : Tensor[N, O, 2*H + P - 2, 2*W + Q - 2]
    y[n, o, 2*h + p, 2*w + q] += x[n, c, h, w] * f[c, o, p, q]
    return y

def window(x : In[Tensor[N]], f : In[Tensor[P]], step : In[int]) -> Tensor[N]:
    y : Tensor[N]
    y[i] += zero_pad(x[step*i + p - 2]) * f[p] + zero_pad(x[3 - i])
    return y

def strided(x : In[Tensor[N]], k : In[int]) -> Tensor[N // 2]:
    y : Tensor[N // 2]
    y[i] = x[2*i + k]
    return y

def rows(w : In[Tensor[R, O, K]], x : In[Tensor[B, R, K]]) -> Tensor[B, R, O]:
    u : Tensor[B, R, O]
    u[b, r, o] += w[r, o, k] * x[b, r, k]
    return u

def shared(x : In[Tensor[N, M]]) -> tuple[Tensor[N, M], Tensor[N, M], Tensor[M, N]]:
    y : Tensor[N, M] = x
    z = transpose(y, 0, 1)
    y[i, j] += 1.0
    same = y
    y += x
    z[j, i] = z[j, i] * 2.0
    return y, same, z

def inner(a : In[Tensor[N, K]], b : In[Tensor[K, M]], s : In[float]) -> tuple[Tensor[N, M], float]:
    c : Tensor[N, M]
    c[i, j] += a[i, k] * b[k, j] * s
    return c, sum(c)

def outer(a : In[Tensor[N, K]], b : In[Tensor[P, M]]) -> Tensor[N, M]:
    whole, t = inner(a, b, 2.0)
    c : Tensor[N, M] = whole
    d = reshape(c, [N, M])
    c[i, j] += t
    e : Tensor[N, M] = c
    e[i, j] += d[i, j]
    return e * c

def new(template : In[Tensor[int_, p]], π : In[float], namespace : In[int]) -> Tensor[int_, p]:
    sum_ : Tensor[int_, p]
    real : float = π
    for std in range(namespace):
        if std % 2 == 0:
            sum_[b, this] += template[b, this] * real + std
        else:
            sum_[b, this] = sum_[b, this] * 0.5
    return sum_

def loss(x : In[Tensor[N, M]], y : In[Tensor[N, M]]) -> float:
    s : float = 0.0
    s += (x[i, j] - y[i, j]) ** 2 * exp(x[i, j])
    return s

def places(x : In[Tensor[N, M]], at : In[IntTensor[N]], like : In[Tensor[K]]) -> tuple[Tensor[K], Tensor[K]]:
    y : Tensor[K]
    z : Tensor[K]
    y[0] += x[i, j]
    z[at[i]] += x[i, j]
    return y, z

def first(x : In[Tensor[N]], like : In[Tensor[K]]) -> Tensor[K]:
    y : Tensor[K]
    y[0] = sum(x[i] for i in N)
    return y

def handed_on(x : In[Tensor[N, M]], n : In[int]) -> tuple[Tensor[M, N], Tensor[M, N], Tensor[M, N]]:
    u : Tensor[N, M] = x
    u[i, j] += 1.0
    once = transpose(u, 0, 1)
    once[j, i] = once[j, i] * once[j, i]
    v : Tensor[N, M] = x
    v[i, j] += 2.0
    often : Tensor[M, N]
    for r in range(n):
        often += transpose(v, 0, 1)
        last = transpose(v, 0, 1)
        last[j, i] = last[j, i] * 3.0
    w : Tensor[N, M] = x
    w[i, j] += 3.0
    one : Tensor[M, N]
    if n > 1:
        one = transpose(w, 0, 1)
        one[j, i] += w[i, j]
    else:
        one = transpose(w, 0, 1)
        one[j, i] += 1.0
    return once, often, one
"""  # noqa: E501


@pytest.fixture(scope="module")
def modules() -> SimpleNamespace:
    with pytest.warns(loma.UserWarning, match="is added once for each 'p'"):
        fast = oracle.compiled(PROGRAM)
    return SimpleNamespace(fast=fast, slow=Interpreter(parse(PROGRAM)))


def r(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape)


POSITIONS = np.array([3, 1, 1, 0, 2])
CASES: list[tuple[Any, ...]] = [
    ("integers", r(7), 5),
    ("failing", r(3, 40), 3),
    ("nested", r(4, 5)),
    ("nested", r(4, 0)),
    ("extremes", r(4, 5).round()),
    ("scatter", r(5, 3), POSITIONS, r(6)),
    ("spread", r(2, 3, 4, 5), r(3, 2, 3, 2)),
    ("window", r(9), r(5), 1),
    ("window", r(9), r(5), 2),
    ("window", r(9), r(5), -1),
    ("window", r(3), r(1), 0),
    ("strided", r(9), 1),
    ("rows", r(5, 27, 3), r(6, 5, 3)),
    ("rows", r(5, 7, 70), r(2, 5, 70)),
    ("rows", r(5, 7, 0), r(2, 5, 0)),
    ("shared", r(3, 4)),
    ("handed_on", r(3, 4), 0),
    ("handed_on", r(3, 4), 1),
    ("handed_on", r(3, 4), 3),
    ("outer", r(3, 4), r(4, 2)),
    ("new", r(3, 4), 0.5, 3),
    ("new", r(3, 4), 0.5, 0),
    ("loss", r(300, 41), r(300, 41) + 1.0),
    ("loss", r(0, 41), r(0, 41)),
    ("places", r(3, 2), np.array([1, 0, 1]), r(2)),
    ("places", r(3, 0), np.array([1, 0, 1]), r(2)),
    ("places", r(3, 0), np.array([0, 0, 0]), r(0)),  # nothing to add, and no place to add it to
    ("places", r(0, 0), np.array([], dtype=np.int64), r(0)),
    ("first", r(0), r(2)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
@pytest.mark.parametrize("layout", ["contiguous", "strided"])
def test_against_the_interpreter(
    modules: SimpleNamespace, case: tuple[Any, ...], layout: str
) -> None:
    name, *args = case
    expected = modules.slow.call(name, *args)
    tensors = [torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in args]
    if layout == "strided":
        tensors = [_strided(t) if torch.is_tensor(t) else t for t in tensors]
    found = getattr(modules.fast, name)(*tensors)
    found = found if isinstance(found, tuple) else (found,)
    for have, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-11, atol=1e-12)


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with every second element of a larger tensor, dimensions reversed."""
    wide = torch.empty(*[2 * n for n in reversed(tensor.shape)], dtype=tensor.dtype)
    view = wide[tuple(slice(None, None, 2) for _ in tensor.shape)].permute(
        *reversed(range(tensor.dim()))
    )
    return view.copy_(tensor)


def t(*shape: int) -> torch.Tensor:
    return torch.from_numpy(r(*shape))


ERRORS: list[tuple[Callable[[Any], object], type[Exception], str]] = [
    (
        lambda m: m.scatter(t(5, 3), torch.tensor([3, 1, 1, 0, 2]), t(3)),
        ValueError,
        "scatter: line 42: subscript 'at[m]' of 'y' is 3, outside dimension 0 of size 3",
    ),
    (
        lambda m: m.scatter(t(5, 3), torch.tensor([-1, 1, 1, 0, 2]), t(6)),
        ValueError,
        "scatter: line 42: subscript 'at[m]' of 'y' is -1, outside dimension 0 of size 6",
    ),
    (
        lambda m: m.strided(t(8), 2),
        ValueError,
        "strided: line 57: subscript '2*i + k' of 'x' runs from 2 to 8, outside dimension 0 of "
        "size 8; wrap the read in zero_pad(...) if zero is meant",
    ),
    (
        lambda m: m.strided(t(8), -1),
        ValueError,
        "strided: line 57: subscript '2*i + k' of 'x' runs from -1 to 5, outside dimension 0 of "
        "size 8; wrap the read in zero_pad(...) if zero is meant",
    ),
    (
        lambda m: m.failing(t(3, 40), 30),
        RuntimeError,
        "halves: line 5: the while loop passed its max_iter of 20 iterations",
    ),
    (lambda m: m.failing(t(3, 40), 0), ValueError, "failing: line 22: division of an int by zero"),
    (lambda m: m.extremes(t(0, 3)), ValueError, "extremes: line 34: max of no elements"),
    (
        lambda m: m.outer(t(3, 4), t(5, 2)),
        ValueError,
        "inner: argument 'b' has sizes [5, 2], expected [4, 2]",
    ),
    (
        lambda m: m.first(t(0), t(0)),
        ValueError,
        "first: line 112: subscript '0' of 'y' is 0, outside dimension 0 of size 0",
    ),
]


@pytest.mark.parametrize(("call", "kind", "message"), ERRORS)
def test_errors(
    modules: SimpleNamespace, call: Callable[[Any], object], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        call(modules.fast)
    assert str(caught.value).split("\n")[0] == message


def test_the_number_of_threads_changes_nothing(modules: SimpleNamespace) -> None:
    x, y = torch.randn(700, 513), torch.randn(700, 513)
    w, v = torch.randn(30, 40, 17), torch.randn(50, 30, 17)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append((modules.fast.loss(x, y), modules.fast.rows(w, v)))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
