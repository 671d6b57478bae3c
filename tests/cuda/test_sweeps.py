"""One pass over columns (attention) in bfloat16 and float16, on the shim: values against float64,
which spellings are found, and what is left alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import shim
import shim_device
import torch
from sampled import diagonals

import loma
from loma import pipeline
from loma.backends.cuda import images

ROOT = Path(__file__).resolve().parents[2]
SPELLINGS = ROOT / "benchmarks" / "spellings"

PROGRAM = """
INF : float = 1e400


def plain(
    q : In[Tensor[B, T, D]], k : In[Tensor[B, S, D]], v : In[Tensor[B, S, E]],
) -> Tensor[B, T, E]:
    s : Tensor[B, T, S]
    y : Tensor[B, T, E]
    s[b, t, j] = sum(q[b, t, d] * k[b, j, d] for d in D) / sqrt(D)
    s[b, t, j] = exp(s[b, t, j] - max(s[b, t, i] for i in S))
    y[b, t, e] = sum(s[b, t, j] * v[b, j, e] for j in S) / sum(s[b, t, j] for j in S)
    return y


def cap_and_slope(
    q : In[Tensor[B, T, H, D]], k : In[Tensor[B, S, H, D]], v : In[Tensor[B, S, H, D]],
    slope : In[Tensor[H]], cap : In[float],
) -> Tensor[B, T, H, D]:
    s : Tensor[B, H, T, S]
    y : Tensor[B, T, H, D]
    s[b, h, t, j] = sum(q[b, t, h, d] * k[b, j, h, d] for d in D) / sqrt(D)
    s[b, h, t, j] = cap * tanh(s[b, h, t, j] / cap) - slope[h] * (t - j)
    s[b, h, t, j] = exp(s[b, h, t, j] - max(s[b, h, t, i] for i in S))
    y[b, t, h, e] = sum(s[b, h, t, j] * v[b, j, h, e] for j in S) / sum(s[b, h, t, j] for j in S)
    return y


def shared_keys(
    q : In[Tensor[B, H, T, D]], k : In[Tensor[B, S, D]], v : In[Tensor[B, S, D]],
    bias : In[Tensor[H, T, S]],
) -> Tensor[B, H, T, D]:
    s : Tensor[B, H, T, S]
    p : Tensor[B, H, T, S]
    z : Tensor[B, H, T]
    y : Tensor[B, H, T, D]
    s[b, h, t, j] = sum(q[b, h, t, d] * k[b, j, d] for d in D) * 0.125 + bias[h, t, j]
    p[b, h, t, j] = exp(s[b, h, t, j] - max(s[b, h, t, i] for i in S))
    z[b, h, t] = sum(p[b, h, t, j] for j in S)
    y[b, h, t, e] = sum(p[b, h, t, j] / z[b, h, t] * v[b, j, e] for j in S)
    return y


def window(
    q : In[Tensor[T, D]], k : In[Tensor[T, D]], v : In[Tensor[T, D]], W : In[int],
) -> Tensor[T, D]:
    s : Tensor[T, T]
    s[t, j] = sum(q[t, d] * k[j, d] for d in D) / sqrt(D) if j <= t and j > t - W else -INF
    return softmax(s, 1) @ v


def band(
    q : In[Tensor[B, T, D]], k : In[Tensor[B, T, D]], v : In[Tensor[B, T, D]], W : In[int],
) -> Tensor[B, T, D]:
    s : Tensor[B, T, T]
    m : Tensor[B, T]
    e : Tensor[B, T, T]
    z : Tensor[B, T]
    y : Tensor[B, T, D]
    s[b, t, j] = sum(q[b, t, d] * k[b, j, d] for d in D) / sqrt(D)
    m[b, t] = max(s[b, t, j] for j in range(t + 1))
    e[b, t, j] = exp(s[b, t, j] - m[b, t]) if j <= t and j > t - W else 0.0
    z[b, t] += e[b, t, j]
    y[b, t, d] += e[b, t, j] * v[b, j, d]
    y[b, t, d] = y[b, t, d] / z[b, t]
    return y


def padded(
    q : In[Tensor[B, T, D]], k : In[Tensor[B, S, D]], v : In[Tensor[B, S, D]],
    seen : In[BoolTensor[B, S]], far : In[float],
) -> Tensor[B, T, D]:
    s : Tensor[B, T, S]
    s[b, t, j] = sum(q[b, t, d] * k[b, j, d] for d in D) / sqrt(D) if seen[b, j] else far
    return softmax(s, 2) @ v


def dropped(
    q : In[Tensor[B, T, D]], k : In[Tensor[B, S, D]], v : In[Tensor[B, S, D]],
    keep : In[Tensor[B, T, S]],
) -> Tensor[B, T, D]:
    return (softmax(q @ transpose(k, 1, 2) / sqrt(int2float(D)), 2) * keep) @ v


def gated(
    x : In[Tensor[T, C]], wq : In[Tensor[C, D]], wk : In[Tensor[C, D]], wv : In[Tensor[C, D]],
    g : In[Tensor[T, D]],
) -> Tensor[T, D]:
    y : Tensor[T, D]
    q = x @ wq
    a = softmax(q @ transpose(x @ wk, 0, 1), 1) @ (x @ wv)
    y[t, d] = a[t, d] * g[t, d] + q[t, d]
    return y


def negative(
    q : In[Tensor[T, D]], k : In[Tensor[S, D]], v : In[Tensor[S, D]],
) -> Tensor[T, D]:
    return softmax(q @ transpose(k, 0, 1) * -0.25, 1) @ v


def statistics(
    q : In[Tensor[T, D]], k : In[Tensor[S, D]], v : In[Tensor[S, D]], y : Out[Tensor[T, D]],
) -> tuple[Tensor[T], Tensor[T]]:
    s : Tensor[T, S]
    m : Tensor[T]
    z : Tensor[T]
    s[t, j] = sum(q[t, d] * k[j, d] for d in D)
    m[t] = max(s[t, j] for j in S)
    z[t] = sum(exp(s[t, j] - m[t]) for j in S)
    y[t, d] = sum(exp(s[t, j] - m[t]) * v[j, d] for j in S)
    return m, z
"""


class Recorded:
    """Compiles kernels, and knows the functions whose sweeps are among them."""

    def __init__(self) -> None:
        self.sweeps: set[str] = set()
        self.pairs: set[str] = set()  # functions whose backward parts are passes
        self.make: images.Make = shim.image

    def __call__(self, name: str, text: str, options: Sequence[str], architecture: str) -> bytes:
        if "__sweep" in name:
            self.sweeps.add(name.rpartition("__sweep")[0])
        if "__backward__pairs" in name:
            self.pairs.add(name.rpartition("__backward__pairs")[0])
        return self.make(name, text, options, architecture)


@pytest.fixture(scope="module")
def recorded(request: pytest.FixtureRequest) -> Iterator[Recorded]:
    record = Recorded()
    former = images.use(record)
    if request.config.getoption("--device") == "cuda":
        record.make = images._by_nvrtc
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("--device") == "cpu":
            patch.setenv("LOMA_CUDA_DRIVER", str(shim.driver()))
            patch.setenv("LOMA_DEVICE", "shim")
            patch.setenv("LOMA_CHECK", "sync")
        yield record
    images.use(former)


@pytest.fixture(scope="module")
def module(recorded: Recorded) -> loma.LomaModule:
    return loma.compile(PROGRAM)


def narrow(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape) * scale).to(dtype)


def wide(value: Any) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if is_float else value


def check(recorded: Recorded, module: loma.LomaModule, name: str, *given: Any) -> torch.Tensor:
    """The call in the dtype of the tensors against that in float64, where no sweep runs."""
    function = getattr(module, name)
    found = function(*given)
    expected = function(*map(wide, given))
    dtype = next(x.dtype for x in given if isinstance(x, torch.Tensor))
    assert found.dtype == dtype
    error = (found.double() - expected).norm() / expected.norm()
    assert error < (6e-3 if dtype == torch.bfloat16 else 1e-3)
    assert torch.equal(found, function(*given)), "other bits"
    assert name in recorded.sweeps
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    diagonals(
        5,
        [(1, 1, 1, 32, 32), (2, 130, 65, 32, 64), (1, 20, 200, 40, 24), (1, 129, 64, 128, 128),
         (3, 16, 17, 96, 16)],
        [torch.bfloat16, torch.float16],
    ),
    ids=str,
)  # fmt: skip
def test_sizes(
    recorded: Recorded, module: loma.LomaModule, sizes: tuple[int, ...], dtype: torch.dtype
) -> None:
    b, t, s, d, e = sizes
    q, k, v = (
        narrow(b, t, d, dtype=dtype),
        narrow(b, s, d, dtype=dtype),
        narrow(b, s, e, dtype=dtype),
    )
    check(recorded, module, "plain", q, k, v)


def test_cases(recorded: Recorded, module: loma.LomaModule) -> None:
    q, k, v = narrow(2, 70, 3, 32), narrow(2, 66, 3, 32), narrow(2, 66, 3, 32)
    check(recorded, module, "cap_and_slope", q, k, v, narrow(3, scale=0.1), 2.5)
    q, k, v = (narrow(2, 33, 32) for _ in range(3))
    check(recorded, module, "dropped", q, k, v, torch.rand(2, 33, 33).round().to(q.dtype))


@pytest.mark.full
def test_more_cases(recorded: Recorded, module: loma.LomaModule) -> None:
    q, k, v = narrow(2, 3, 70, 48), narrow(2, 66, 48), narrow(2, 66, 48)
    check(recorded, module, "shared_keys", q, k, v, narrow(3, 70, 66))
    q, k, v = (narrow(140, 32) for _ in range(3))
    for width in (1, 70, 1000):
        check(recorded, module, "window", q, k, v, width)
    weights = [narrow(24, 32, scale=0.2) for _ in range(3)]
    check(recorded, module, "gated", narrow(70, 24), *weights, narrow(70, 32))


def test_factors(recorded: Recorded, module: loma.LomaModule) -> None:
    """Of all scores: below zero, and so large that exponents need all digits of a score."""
    q, k, v = (narrow(40, 32) for _ in range(3))
    check(recorded, module, "negative", q, k, v)
    q, k, v = (narrow(1, 40, 32) for _ in range(3))
    check(recorded, module, "plain", 400.0 * q, k, v)


def test_units_of_warps(
    recorded: Recorded, module: loma.LomaModule, request: pytest.FixtureRequest
) -> None:
    """What runs where four warps have no matrix units together."""
    if request.config.getoption("--device") == "cuda":
        pytest.skip("of the shim")
    with shim_device.architecture(8):
        q, k, v = narrow(1, 70, 32), narrow(1, 65, 32), narrow(1, 65, 48)
        check(recorded, module, "plain", q, k, v)
        check_gradients(module, "plain", q, k, v)
        q, k, v = (narrow(1, 40, 2, 32) for _ in range(3))
        check_gradients(module, "cap_and_slope", q, k, v, narrow(2, scale=0.1), 2.5)


def test_masked_rows(recorded: Recorded, module: loma.LomaModule) -> None:
    q, k, v = (narrow(2, 70, 32) for _ in range(3))
    seen = torch.rand(2, 70) < 0.2
    seen[0] = False
    y = check(recorded, module, "padded", q, k, v, seen, -1e30)  # all alike: the mean
    torch.testing.assert_close(
        y[0].double(), v[0].double().mean(0).expand(70, 32), rtol=1e-2, atol=1e-2
    )
    y = module.padded(q, k, v, seen, float("-inf"))
    assert y[0].isnan().all()
    expected = module.padded(*map(wide, (q, k, v, seen)), float("-inf"))[1]
    torch.testing.assert_close(y[1].double(), expected, rtol=2e-2, atol=2e-2)


def test_no_elements(module: loma.LomaModule) -> None:
    assert module.plain(narrow(0, 3, 32), narrow(0, 4, 32), narrow(0, 4, 32)).shape == (0, 3, 32)
    assert module.plain(narrow(2, 0, 32), narrow(2, 4, 32), narrow(2, 4, 32)).shape == (2, 0, 32)
    nothing = narrow(2, 3, 32), narrow(2, 0, 32), narrow(2, 0, 32)
    assert module.plain(*nothing).isnan().all()
    assert module.plain(*map(wide, nothing)).isnan().all()
    y = narrow(3, 32)
    with pytest.raises(ValueError, match="of no elements"):
        module.statistics(narrow(3, 32), narrow(0, 32), narrow(0, 32), y)
    y = module.dropped(narrow(1, 3, 32), narrow(1, 0, 32), narrow(1, 0, 32), narrow(1, 3, 0))
    assert torch.equal(y, torch.zeros_like(y))


def test_not_finite(module: loma.LomaModule) -> None:
    q, k, v = (narrow(1, 70, 32) for _ in range(3))
    q[0, 3, 5] = float("nan")
    y = module.plain(q, k, v)
    assert y[0, 3].isnan().all()
    assert y[0, :3].isfinite().all()
    assert y[0, 4:].isfinite().all()
    q[0, 3, 5] = float("inf")
    assert module.plain(q, k, v)[0, 3].isnan().all()


def test_layouts(module: loma.LomaModule) -> None:
    """Operands that are views, one tensor as all three, and one that is not aligned."""
    x = narrow(66, 2, 32)
    q = x.transpose(0, 1)
    assert torch.equal(module.plain(q, q, q), module.plain(*[q.contiguous()] * 3))
    row = narrow(2 * 66 * 32 + 1)[1:].view(2, 66, 32)
    assert torch.equal(module.plain(row, row, row), module.plain(*[row.clone()] * 3))


@pytest.mark.full
def test_out_arguments(module: loma.LomaModule) -> None:
    q, k, v = narrow(40, 32, scale=0.3), narrow(70, 32), narrow(70, 32)
    y = torch.full((40, 32), float("nan")).to(q.dtype)
    m, z = module.statistics(q, k, v, y)
    own = torch.full((40, 32), float("nan")).double()
    expected = module.statistics(q.double(), k.double(), v.double(), own)
    for found, wanted in zip((m, z, y), (*expected, own), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=2e-2, atol=5e-2)


@pytest.mark.full
@pytest.mark.parametrize("file", ["attention", "causal_attention"])
def test_every_spelling(recorded: Recorded, file: str) -> None:
    """All spellings of attention are one sweep, as test_sweeps_found.py has it of statements."""
    module = loma.compile(SPELLINGS / f"{file}.loma")
    text = (SPELLINGS / f"{file}.loma").read_text("utf-8")
    names = re.findall(r"^def ([a-z]\w*)", text, re.MULTILINE)
    assert len(names) >= 6
    q, k, v = (narrow(2, 70, 32) for _ in range(3))
    for name in names:
        check(recorded, module, name, q, k, v)


def test_order_of_threads(module: loma.LomaModule, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--device") == "cuda":
        pytest.skip("of the shim")
    q, k, v = (narrow(1, 150, 32) for _ in range(3))
    y = module.plain(q, k, v)
    try:
        for seed in (0, 5):
            shim_device.seed(seed)
            assert torch.equal(module.plain(q, k, v), y)
    finally:
        shim_device.seed(1)


def gradients(function: Any, given: Sequence[Any], weight: torch.Tensor) -> list[torch.Tensor]:
    """Of all floating tensors, with ``weight`` for the result's."""
    own = [
        x.detach().clone().requires_grad_()
        if isinstance(x, torch.Tensor) and x.is_floating_point()
        else x
        for x in given
    ]
    floats = [x for x in own if isinstance(x, torch.Tensor) and x.requires_grad]
    y = function(*own)
    return list(torch.autograd.grad(y, floats, weight.to(y.dtype)))


def check_gradients(module: loma.LomaModule, name: str, *given: Any) -> None:
    function = getattr(module, name)
    weight = torch.randn(function(*given).shape).to(given[0].dtype)
    found = gradients(function, given, weight)
    expected = gradients(function, list(map(wide, given)), weight)
    again = gradients(function, given, weight)
    for own, other, same in zip(found, expected, again, strict=True):
        assert own.dtype == given[0].dtype
        assert (own.double() - other).norm() / other.norm() < 1.5e-2
        assert torch.equal(own, same), "other bits"


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        ((2, 130, 65, 32, 32), torch.bfloat16),
        pytest.param((1, 20, 70, 40, 24), torch.float16, marks=pytest.mark.full),
        pytest.param((1, 65, 33, 128, 128), torch.bfloat16, marks=pytest.mark.full),
    ],
    ids=str,
)
def test_gradients(
    recorded: Recorded, module: loma.LomaModule, sizes: tuple[int, ...], dtype: torch.dtype
) -> None:
    b, t, s, d, e = sizes
    shapes = ((b, t, d), (b, s, d), (b, s, e))
    check_gradients(module, "plain", *(narrow(*shape, dtype=dtype) for shape in shapes))
    assert "plain" in recorded.pairs


def test_gradients_of_a_band(recorded: Recorded, module: loma.LomaModule) -> None:
    """Tiles of columns that a mask leaves out on either side are none of a pass."""
    check_gradients(module, "band", *(narrow(1, 150, 32) for _ in range(3)), 40)
    assert "band" in recorded.pairs
    text = pipeline.stage_text(PROGRAM, "source", "band__backward", device="cuda")
    of_queries, of_keys = (line for line in text.splitlines() if "loma::Between{" in line)
    assert re.findall("return (.*?);", of_queries) == ["t - W + 1", "t + 1"]
    assert re.findall("return (.*?);", of_keys) == ["j", "W + j"]
    assert "/*back=*/true" not in text  # all rows have as many
    causal = PROGRAM.replace(" and j > t - W else 0.0", " else 0.0")
    text = pipeline.stage_text(causal, "source", "band__backward", device="cuda")
    assert (
        text.count("part_(grid_, T, /*back=*/true)") == 1
    )  # of queries, of which the last have most
    weights = [line for line in text.splitlines() if "loma::Weighted{" in line]
    assert len(weights) == 3
    assert not any("_data_[" in line for line in weights)  # kept of rows and columns


def test_dtypes_of_backward_parts() -> None:
    """Kernels beside the passes read what comes in 16 bits as it is, and what passes share is
    converted once."""
    text = pipeline.stage_text(PROGRAM, "source", "plain__backward", device="cuda")
    host = text[text.index("host_begin.h") :]
    then = host[: host.index("else {\n    const loma::Tensor")]
    assert {"launch_.halves(y);", "launch_.halves(_d_result);"} <= set(then.split())
    assert then.count("loma::gpu::narrowed(") == 1
    assert "widened" not in then


@pytest.mark.full
def test_gradients_of_some(module: loma.LomaModule) -> None:
    """Where not all are wanted other kernels run."""
    q, k, v = (narrow(1, 40, 32) for _ in range(3))
    wanted = gradients(module.plain, (q, k, v), torch.ones(1, 40, 32))
    for place in range(3):
        own = [q, k, v]
        own[place] = own[place].clone().requires_grad_()
        (found,) = torch.autograd.grad(module.plain(*own).sum(), own[place])
        torch.testing.assert_close(found, wanted[place], rtol=3e-2, atol=3e-2)


def test_gradients_of_masked_rows(module: loma.LomaModule) -> None:
    """Zero where nothing asks for them, though exponentials are NaN."""
    q, k, v = (narrow(2, 40, 32) for _ in range(3))
    seen = torch.rand(2, 40) < 0.5
    seen[0] = False
    weight = torch.randn(2, 40, 32)
    weight[0] = 0
    given = (q, k, v, seen, float("-inf"))
    found = gradients(module.padded, given, weight)
    expected = gradients(module.padded, list(map(wide, given)), weight)
    for own, other in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(own.double(), other, rtol=3e-2, atol=3e-2, equal_nan=True)


@pytest.mark.full
def test_gradients_of_cases(module: loma.LomaModule) -> None:
    q, k, v = narrow(2, 70, 3, 32), narrow(2, 66, 3, 32), narrow(2, 66, 3, 32)
    check_gradients(module, "cap_and_slope", q, k, v, narrow(3, scale=0.1), 2.5)
    q, k, v = (narrow(140, 32) for _ in range(3))
    check_gradients(module, "window", q, k, v, 70)


@pytest.mark.full
@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("attention", {"statements", "added_up", "one_expression"}),
        ("causal_attention", {"statements", "masked", "queries"}),
    ],
)
def test_gradients_of_every_spelling(recorded: Recorded, file: str, found: set[str]) -> None:
    module = loma.compile(SPELLINGS / f"{file}.loma")
    text = (SPELLINGS / f"{file}.loma").read_text("utf-8")
    recorded.pairs.clear()
    q, k, v = (narrow(2, 70, 32) for _ in range(3))
    for name in re.findall(r"^def ([a-z]\w*)", text, re.MULTILINE):
        check_gradients(module, name, q, k, v)
    assert recorded.pairs >= found
