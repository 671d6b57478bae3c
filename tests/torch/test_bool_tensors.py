"""BoolTensors: masks, comparisons, results and Out arguments; narrow ints where IntTensors are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracle import Program, as_tuple, check, plain
from torch import Tensor

from loma import errors
from loma.core.printer import print_module
from loma.frontend import parse

MASKS = """
def near(x : In[Tensor[N]], y : In[Tensor[N]], far : In[float]) -> BoolTensor[N, N]:
    m : BoolTensor[N, N]
    m[i, j] = abs(x[i] - y[j]) < far
    return m

def sums(m : In[BoolTensor[N, M]], k : In[IntTensor[N]]) -> tuple[
    IntTensor[N], BoolTensor[N], IntTensor, BoolTensor[N, M], int
]:
    c : IntTensor[N]
    c[i] += m[i, j] + m[i, j] * k[i]
    some : BoolTensor[N]
    some[i] = max(m[i, j] for j in M)
    moved : BoolTensor[N, M]
    moved[i, j] = m[i, j] + k[i] - 1       # 1 where that is not 0
    n : int = 0
    for i in range(N):
        n = n + some[i] + some[i]
    return c, some, sum(m, [1]) + k, moved, n

def moves(m : In[BoolTensor[N, M]], k : In[IntTensor[N, 1]]) -> tuple[
    BoolTensor[M, N], BoolTensor[2 * N, M], BoolTensor[N, 1], BoolTensor[N], IntTensor[N],
    BoolTensor[N, M]
]:
    wide = cat([m, m], 0)
    return transpose(m, 0, 1), wide, gather(m, 1, k), amax(m, [1]), argmax(m, 1), where(m, m, k)

def mark(x : In[Tensor[N]], seen : Out[BoolTensor[N]], times : Out[IntTensor[N]]):
    seen[i] = 1 if x[i] > 0.5 else seen[i]
    times[i] += seen[i]

def truths(x : In[Tensor[N]]) -> BoolTensor[N]:
    m : BoolTensor[N]
    m[i] = x[i]
    return m

def attend(
    s : In[Tensor[B, N, M]], mask : In[BoolTensor[N, M]], v : In[Tensor[B, M]]
) -> Tensor[B, N]:
    p = softmax(where(mask, s, 0.0 * s - 1000.0), -1)
    y : Tensor[B, N]
    y[b, n] += p[b, n, m] * v[b, m] if mask[n, m] else 0.0
    return y
"""
LOOPS = """
def compare(x : In[Tensor[N]], y : In[Tensor[N]]) -> tuple[
    IntTensor[N], BoolTensor[N], Tensor[N], BoolTensor, IntTensor[N], Tensor[N]
]:
    a = x > y
    b : IntTensor[N] = x <= y
    return a, b, where(a, x, y), a == (x != y), -a, x * a + 1.0

def times(x : In[Tensor[N]], k : In[IntTensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = x[i] * k[i]
    return y

def switch(x : In[Tensor[N]], m : In[BoolTensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    on : BoolTensor[N]
    y[i] = x[i]
    on[i] = m[i]
    for t in range(3):
        y[i] = y[i] * y[i] if on[i] else y[i]
        on[i] = not on[i]
        on[0] = t
    return times(y, x > 0.0) + y * on
"""


@pytest.fixture(scope="module")
def program() -> Program:
    made = Program([MASKS, LOOPS], first=[])
    made.parts = ["".join(made.parts)]  # one module
    return made


def real(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


MASK = torch.tensor([[True, False, True, True], [False] * 4, [True] * 4])
K = torch.tensor([1, -1, 3])


def attend(s: Tensor, mask: Tensor, v: Tensor) -> Tensor:
    p = s.masked_fill(~mask, -1000.0).softmax(-1) * mask
    return (p @ v.unsqueeze(-1)).squeeze(-1)


def switch(x: Tensor, m: Tensor) -> Tensor:
    y, on = x, m
    for t in range(3):
        y = torch.where(on, y * y, y)
        on = ~on
        on[0] = t != 0
    return y * (x > 0) + y * on


@pytest.mark.full
@pytest.mark.parametrize("mask", [MASK, MASK.t().contiguous().t(), MASK[:, :0]])
def test_attention(program: Program, mask: Tensor) -> None:
    check(program, "attend", (real(2, 3, mask.shape[1]), mask, real(2, mask.shape[1])), attend)


def test_masks_that_change_in_a_loop(program: Program) -> None:
    check(program, "switch", (real(6), torch.arange(6) % 3 == 0), switch)


VALUES: list[tuple[str, tuple[Any, ...], Callable[..., Any]]] = [
    ("near", (real(5), real(5) + 0.5, 1.0), lambda x, y, far: (x[:, None] - y).abs() < far),
    ("near", (real(0), real(0), 1.0), lambda x, y, far: torch.ones(0, 0, dtype=torch.bool)),
    (
        "sums",
        (MASK, K),
        lambda m, k: (
            m.sum(1) * (1 + k), m.any(1), m.sum(1) + k, (m.long() + k[:, None] - 1) != 0,
            torch.tensor(4),
        ),
    ),
    (
        "moves",
        (MASK, torch.tensor([[1], [0], [3]])),
        lambda m, k: (
            m.t(), torch.cat([m, m]), m.gather(1, k), m.any(1), m.long().argmax(1),
            torch.where(m, m.long(), k) != 0,
        ),
    ),
    (
        "compare",
        (real(4), torch.tensor([1.0, -1.0, 0.0, float("nan")], dtype=torch.float64)),
        lambda x, y: (
            (x > y).long(), x <= y, torch.where(x > y, x, y), (x > y) == (x != y),
            -(x > y).long(), x * (x > y) + 1.0,
        ),
    ),
    (
        "truths",
        (torch.tensor([0.5, 0.0, -0.0, float("nan"), 1e-300, -1.0], dtype=torch.float64),),
        lambda x: x != 0,
    ),
    ("times", (real(3), torch.tensor([True, False, True])), lambda x, k: x * k),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "args", "reference"),
    [pytest.param(*v, marks=pytest.mark.full if k % 2 else ()) for k, v in enumerate(VALUES)],
)
def test_values(
    program: Program, name: str, args: tuple[Any, ...], reference: Callable[..., Any]
) -> None:
    expected = as_tuple(reference(*args))
    if name == "compare":  # `a` is declared to be returned as an IntTensor, `b` the other way
        assert expected[0].dtype == torch.int64
    for found in (program.compiled(name)(*args), program.value(name, args)):
        for value, right in zip(as_tuple(found), expected, strict=True):
            torch.testing.assert_close(torch.as_tensor(value), right, equal_nan=True)


@pytest.mark.parametrize("dtype", ["int32", "int16", "int8", "uint8"])
def test_narrow_ints_are_widened(program: Program, dtype: str) -> None:
    args = (MASK, K.abs().to(getattr(torch, dtype)))
    expected = program.compiled("sums")(MASK, K.abs())
    for found in (program.compiled("sums")(*args), program.value("sums", args)):
        for value, right in zip(found, expected, strict=True):
            torch.testing.assert_close(torch.as_tensor(value), torch.as_tensor(right))


def test_out_arguments(program: Program) -> None:
    x, seen = real(6), torch.tensor([True, False] * 6)[::2][:6].clone()
    times = torch.arange(6)
    expected = seen | (x > 0.5)
    values = program.value("mark", (x, seen, times))
    program.compiled("mark")(x, seen, times)
    assert torch.equal(seen, expected)
    assert torch.equal(times, torch.arange(6) + expected)
    assert all((plain(a) == b).all() for a, b in zip((seen, times), values, strict=True))


X = real(3)
REFUSED: list[tuple[str, tuple[Any, ...], type[Exception], str]] = [
    (
        "mark",
        (X, K, K.clone()),
        TypeError,
        "mark: argument 'seen' must be a bool tensor, got int64$",
    ),
    (
        "mark",
        (X, K > 0, K.int()),
        TypeError,
        "mark: argument 'times' is written, so it must be an int64 tensor, got int32$",
    ),
    ("times", (X, X), TypeError, r"times: argument 'k' must be an int64 tensor \(or .* got float"),
    ("times", (K > 0, K), TypeError, "'x' must be a float32, float64, .* tensor, got bool"),
    ("switch", (X, (K > 0).to("meta")), ValueError, "'m' is on meta, but argument 'x' is on "),
    ("switch", (X, X.half()), TypeError, "'m' must be a bool tensor, got float16; pass m != 0"),
]


@pytest.mark.parametrize(("name", "args", "error", "message"), REFUSED)
def test_what_is_refused(
    program: Program, name: str, args: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        program.compiled(name)(*args)


def test_torch_compile(program: Program) -> None:
    moves, switch, compare = map(program.compiled, ("moves", "switch", "compare"))
    m = torch.arange(6) % 3 == 0
    traced = torch.compile(
        lambda x, k: (switch(x, m), *moves(MASK, k), compare(k.double()[0], k.double()[1])[3]),
        fullgraph=True, backend="aot_eager",
    )  # fmt: skip
    x, k = real(6).requires_grad_(), torch.tensor([[1], [0], [3]], dtype=torch.int32)
    ends = k.double()[0], k.double()[1]
    found, expected = traced(x, k), (switch(x, m), *moves(MASK, k), compare(*ends)[3])
    assert [y.dtype for y in found] == [y.dtype for y in expected]
    assert [y.requires_grad for y in found] == [True] + [False] * 7
    assert all(map(torch.equal, found, expected))
    (mine,) = torch.autograd.grad(found[0].sum(), x)
    (theirs,) = torch.autograd.grad(expected[0].sum(), x)
    assert torch.equal(mine, theirs)


def test_text() -> None:
    module = parse(MASKS + LOOPS)
    assert parse(print_module(module)) == module


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("m[i] += x[i, j] > 0.0", "'+=' adds up, and an element of a BoolTensor is 0 or 1"),
        ("m[i] -= 1", "'-=' adds up"),
        ("m = sum(x, [1])", "must be BoolTensor[N], found Tensor[N]"),
        ("g(m, m)", "argument 'k' of 'g' must be IntTensor[N], found BoolTensor[N]"),
        ("y = softmax(m, 0)", "must be a float tensor, found a BoolTensor"),
        ("y = m / m", "takes float tensors, found two of ints"),
    ],
)
def test_mistakes(line: str, message: str) -> None:
    with pytest.raises(errors.UserError) as caught:
        parse(f"""
def g(m : In[BoolTensor[N]], k : Out[IntTensor[N]]):
    k[i] = m[i]

def f(x : In[Tensor[N, M]]) -> BoolTensor[N]:
    m : BoolTensor[N]
    {line}
    return m
""")
    assert message in caught.value.message
