"""@simd functions with tensors of a GPU: on its stand-in, and on a GPU with ``--device cuda``."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import shim
import torch
from click.testing import CliRunner
from scalar_oracle import Scalars

import loma
from loma import gpu, pipeline
from loma.backends import scalar
from loma.backends.cuda import images, texts
from loma.runtime_errors import Kind
from loma.tools import cli

Value = Any
There = Callable[[Value], Value]

BLUR = """
@simd
def blur(x : In[Array[float]], n : In[int], sharpness : In[float], y : Out[Array[float]]):
    i : int = thread_id()
    sum : float
    weight : float
    total : float
    for j in range(n):
        weight = exp(-sharpness * (i - j) ** 2)
        sum += weight * x[j]
        total += weight
    y[i] = sum / total

d_blur = rev_diff(blur)
df_blur = fwd_diff(blur)
"""
BALLS = """
class Ball:
    at : Array[float, 2]
    speed : float
    bounces : int

def fall(ball : Out[Ball], g : In[float]):
    ball.speed += g
    ball.at[1] -= ball.speed * 0.1
    if ball.at[1] < 0.0:
        ball.at[1] = -ball.at[1]
        ball.speed = -0.9 * ball.speed
        ball.bounces += 1

def energy(ball : In[Ball], g : In[float]) -> float:
    return 0.5 * ball.speed ** 2 + g * ball.at[1]

@simd
def balls(start : In[Array[Ball]], wind : In[Ball], g : In[float], y : Out[Array[float]],
          end : Out[Array[Ball]], bounces : Out[int], total : Out[float]):
    i : int = thread_id()
    ball : Ball = start[i]
    steps : int
    while (ball.at[1] > 0.1 and steps < 12, max_iter := 12):
        fall(ball, g)
        ball.at[0] += wind.at[0]
        steps += 1
    y[i] = energy(ball, g) * ball.at[0]
    end[i] = ball
    atomic_add(bounces, ball.bounces)
    atomic_add(total, y[i])

@simd
def energies(start : In[Array[Ball]], wind : In[Ball], g : In[float], y : Out[Array[float]]):
    i : int = thread_id()
    ball : Ball = start[i]
    steps : int
    while (ball.at[1] > 0.1 and steps < 12, max_iter := 12):
        fall(ball, g)
        ball.at[0] += wind.at[0]
        steps += 1
    y[i] = energy(ball, g) * ball.at[0] * wind.speed

d_energies = rev_diff(energies)
"""
ROWS = """
class Poly:
    n : int
    c : Array[float]

@simd
def rows(a : In[Array[Array[float]]], b : In[Array[Array[float, 3]]], p : In[Poly], k : In[int],
         y : Out[Array[float]]):
    i : int = thread_id()
    s : float
    x : float
    old : Array[float, 3000]
    for j in range(k):
        old[j] = s
        s += a[i][j] * b[i][j % 3]
        s = s * s * 0.1 + a[i][j]
    for j in range(p.n):
        x = x * s + p.c[j]
    y[i] = x + old[k // 2]

d_rows = rev_diff(rows)
"""
TURNS = """
@simd
def turns(x : In[Array[float]], n : In[int], y : Out[Array[float]]):
    i : int = thread_id()
    s : float = x[i % 5]
    for j in range(n):
        s = s * s * 0.5 + x[(i + j) % 5]
    y[i] = s

d_turns = rev_diff(turns)
"""
HASH = """
@simd
def hash(bins : Out[Array[int]], seed : In[int]):
    h : int = seed + thread_id()
    for _ in range(3):
        h = h * 1103515245 + 12345
        h = -(h - 77)
    atomic_add(bins[h % 7], h)
"""
FAILS = """
def swap(a : Out[Array[float, 2]], b : Out[Array[float, 2]], at : In[int]):
    a[at] += b[1]
    b[0] += a[1]

@simd
def fails(kind : In[int], x : In[Array[float]], y : Out[Array[float]]):
    i : int = thread_id()
    n : int
    rows : Array[Array[float, 2], 2]
    if kind == 0:
        y[i] = x[i + 1]
    elif kind == 1:
        y[i] = int2float(i // n)
    elif kind == 2:
        while (n < 100, max_iter := 10):
            n += 1
    elif kind == 3:
        for k in range(0, 10, n):
            y[i] += 1.0
    elif kind == 4:
        for k in range(-2000000000, 2000000000 - n):
            y[i] += 1.0
    elif kind == 5:
        swap(rows[n], rows[kind - 5], n)
    y[i] += x[i]
"""


@pytest.fixture(scope="module")
def there(request: pytest.FixtureRequest) -> Iterator[There]:
    """Takes tensors, also in lists, to the GPU."""
    if request.config.getoption("--device") == "cuda":
        yield lambda value: _moved(value, "cuda")
        return
    former, host, extension = images.use(shim.image), gpu.host(), scalar.extension()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOMA_CUDA_DRIVER", str(shim.driver()))
        patch.delenv("LOMA_CHECK", raising=False)
        host.serve_cpu_by_gpu(True)
        extension.serve_cpu_by_gpu(True)
        yield lambda value: value
        host.serve_cpu_by_gpu(False)
        extension.serve_cpu_by_gpu(False)
    images.use(former)


def _moved(value: Value, device: str) -> Value:
    if isinstance(value, list):
        return [_moved(item, device) for item in value]
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _plain(value: Value) -> Value:
    """Numbers, arrays and structs as lists of floats, wherever they are."""
    if isinstance(value, torch.Tensor | np.ndarray):
        value = value.cpu() if isinstance(value, torch.Tensor) else value
        if isinstance(value, np.ndarray) and value.dtype.names:
            return value.tolist() if value.ndim == 0 else [_plain(v.item()) for v in value.ravel()]
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__slots__"):
        return [_plain(getattr(value, name)) for name in value.__slots__]
    return value


def _same(found: Value, wanted: Value, rtol: float = 2e-5, atol: float = 2e-6) -> None:
    found, wanted = _flat(_plain(found)), _flat(_plain(wanted))
    assert np.isfinite(wanted).all()
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)


def _flat(value: Value) -> list[float]:
    if isinstance(value, list | tuple):
        return [number for item in value for number in _flat(item)]
    return [float(value)]


# ------------------------------------------------------------------------------------------ values


@pytest.mark.parametrize("n", [0, 1, 6, 300])
def test_values_and_derivatives_are_the_cpus(there: There, n: int) -> None:
    m = loma.compile(BLUR)
    x, g = torch.randn(n), torch.randn(n)
    y, wanted = there(torch.zeros(n)), np.zeros(n, np.float32)
    assert m.blur(there(x), n, 0.7, y, n) is None
    m.blur(x.numpy(), n, 0.7, wanted, n)
    _same(y, wanted)

    found = m.d_blur(there(x), n, 0.7, there(g), n)
    assert [type(part) for part in found] == [torch.Tensor, int, torch.Tensor]
    assert found[0].device == y.device
    assert found[0].shape == (n,)
    assert found[2].shape == ()
    _same(found, m.d_blur(x.numpy(), n, 0.7, g.numpy(), n))

    # forward mode has a value and its tangent in each element
    dual = torch.randn(n, 2)
    out = there(torch.zeros(n, 2))
    sharpness = m._dfloat(0.7, 1.0)
    m.df_blur(there(dual), n, sharpness, out, n)
    of_cpu = np.zeros(n, m._dfloat.dtype)
    m.df_blur(dual.numpy().view(m._dfloat.dtype).reshape(n), n, sharpness, of_cpu, n)
    _same(out, np.ascontiguousarray(of_cpu).view(np.float32).reshape(n, 2))


def test_the_adjoint_is_that_of_central_differences(there: There) -> None:
    m, oracle, n = loma.compile(BLUR), Scalars(BLUR, items=5), 5
    x, g = torch.randn(n), torch.randn(n)
    d_x, _, d_sharpness = m.d_blur(there(x), n, 0.7, there(g), n)
    along = np.random.default_rng(1).standard_normal(2 * n + 1)
    along[n + 1 :] = 0.0  # what y was before does not matter
    change = oracle.difference("blur", [x.tolist(), n, 0.7, [0.0] * n], along)
    found = np.dot(_flat(_plain(d_x)), along[:n]) + float(d_sharpness) * along[n]
    assert found == pytest.approx(np.dot(g.numpy(), change), rel=1e-4)


def test_more_items_than_threads(there: There) -> None:
    """Where functions allocate, as for a tape that grows, threads take items in turns."""
    m, items = loma.compile(TURNS), 70_000
    x, g = torch.rand(5) / 2, torch.rand(items)
    d_x, _ = m.d_turns(there(x), 3, there(g), items)
    of_cpu, _ = m.d_turns(x.numpy(), 3, g.numpy(), items)
    assert np.isfinite(of_cpu).all()
    _same(d_x, of_cpu, rtol=1e-3)


def _balls(m: loma.LomaModule, n: int) -> tuple[np.ndarray[Any, Any], torch.Tensor]:
    """The same balls for the CPU and for a GPU, as rows of their numbers."""
    rng = np.random.default_rng(0)
    balls = np.zeros(n, m.Ball.dtype)
    balls["at"] = rng.uniform(0.2, 1.0, (n, 2))
    balls["speed"] = rng.uniform(0.0, 1.0, n)
    return balls, torch.from_numpy(balls.view(np.int32).reshape(n, 4).copy())


def test_structs(there: There) -> None:
    m, n = loma.compile(BALLS), 40
    balls, words = _balls(m, n)
    wind = m.Ball(at=[0.03, 0.0], speed=0.5)
    y, end, total = np.zeros(n, np.float32), np.zeros(n, m.Ball.dtype), np.zeros(1, np.float32)
    bounces = np.zeros(1, np.int32)
    m.balls(balls, wind, 0.3, y, end, bounces, total, n)
    outs = there([torch.zeros(n), torch.zeros(n, 4), torch.zeros(1, dtype=torch.int32),
                  torch.zeros(())])  # fmt: skip
    m.balls(there(words), wind, 0.3, *outs, n)
    _same(outs[0], y)
    _same(outs[1].view(torch.int32)[:, 3], end["bounces"])
    _same(outs[1][:, :3], np.column_stack([end["at"], end["speed"]]))
    assert int(outs[2]) == bounces[0] > 0
    _same(outs[3], total[0], rtol=1e-4)


def test_adjoints_of_structs(there: There) -> None:
    m, n = loma.compile(BALLS), 40
    balls, words = _balls(m, n)
    wind, g = m.Ball(at=[0.03, 0.0], speed=0.5), torch.randn(n)
    d_balls, d_wind, d_g = m.d_energies(there(words), wind, there(torch.tensor(0.3)), there(g), n)
    of_cpu = m.d_energies(balls, wind, 0.3, g.numpy(), n)
    assert d_balls.shape == (n, 4)
    wanted = np.ascontiguousarray(of_cpu[0]).view(np.float32).reshape(n, 4)
    _same(d_balls.view(torch.float32), wanted)
    assert isinstance(d_wind, m.Ball)
    assert isinstance(d_wind.speed, torch.Tensor)
    _same([d_wind, d_g], [*of_cpu[1:]], rtol=1e-4)
    # a list of objects is read by the host
    objects = [m.Ball(*row.tolist()) for row in balls]
    again, _, _ = m.d_energies(objects, wind, 0.3, there(g), n)
    _same(again.view(torch.float32), wanted)


@pytest.mark.parametrize("n", [1, 7])
def test_arrays_of_arrays(there: There, n: int) -> None:
    m, k = loma.compile(ROWS), 5
    a, b, c = torch.randn(n, k), torch.randn(n, 3), torch.randn(4)
    p = m.Poly(n=4, c=c.numpy())
    y, found = np.zeros(n, np.float32), there(torch.zeros(n))
    m.rows(a.numpy(), b.numpy(), p, k, y, n)
    q = m.Poly(n=4, c=there(c))
    m.rows(there(a), there(b), q, k, found, n)
    _same(found, y)
    m.rows([there(row) for row in a], there(b), q, k, found.zero_(), n)
    _same(found, y)

    g = torch.randn(n)
    wanted = m.d_rows(a.numpy(), b.numpy(), p, k, g.numpy(), n)
    adjoints = m.d_rows(there(a), there(b), q, k, there(g), n)
    assert isinstance(adjoints[2].c, torch.Tensor)
    _same(adjoints, wanted, rtol=1e-4, atol=1e-5)
    rows = m.d_rows([there(row) for row in a], there(b), q, k, there(g), n)[0]
    assert isinstance(rows, list)
    _same(rows, wanted[0], rtol=1e-4, atol=1e-5)


def test_ints_wrap_around_and_are_added_atomically(there: There) -> None:
    m = loma.compile(HASH)
    bins, found = np.zeros(7, np.int32), there(torch.zeros(7, dtype=torch.int32))
    m.hash(bins, 12345, 5000)
    seed = there(torch.tensor(12345))  # an int64, as torch makes it
    m.hash(found, seed, 5000)
    assert found.tolist() == bins.tolist()
    m.hash(found, 1, 0)  # no item
    assert found.tolist() == bins.tolist()


def test_a_python_call_with_names_and_lists_of_numbers(there: There) -> None:
    m = loma.compile(BLUR)
    x, y = [1.0, 2.0, 4.0], there(torch.zeros(3))
    m.blur(y=y, x=x, sharpness=1, n=3, items=3)
    wanted = np.zeros(3, np.float32)
    m.blur(x, 3, 1.0, wanted, 3)
    _same(y, wanted)


# ---------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("kind", range(6))
def test_failures_are_the_cpus(there: There, kind: int) -> None:
    m = loma.compile(FAILS)
    x, y = torch.ones(4), torch.zeros(4)
    with pytest.raises(Exception, match=r"line \d+: ") as of_cpu:
        m.fails(kind, x.numpy(), y.numpy(), 4)
    m.fails(kind, there(x), there(y), 4)
    with pytest.raises(type(of_cpu.value), match=re.escape(str(of_cpu.value))):
        loma.check_device()
    out = there(torch.zeros(4))
    m.fails(-1, there(x), out, 4)  # what failed was told once
    loma.check_device()
    assert out.tolist() == [1.0] * 4


def test_a_failed_item_ends_alone_and_writes_nothing_outside(there: There) -> None:
    m = loma.compile(FAILS)
    memory = there(torch.zeros(300 + 8))
    x = there(torch.ones(300))
    m.fails(-1, x, memory[4:-4][:250], 300)
    with pytest.raises(IndexError, match=r"subscript \d+ is outside an array of 250 elements"):
        loma.check_device()
    assert memory[4:254].tolist() == [1.0] * 250
    assert not memory[:4].any()
    assert not memory[254:].any()


def test_a_failure_is_told_by_the_next_call(there: There) -> None:
    m = loma.compile(FAILS)
    x, y = there(torch.ones(4)), there(torch.zeros(4))
    m.fails(0, x, y, 4)
    if y.is_cuda:
        torch.cuda.synchronize()
    with pytest.raises(IndexError, match="outside an array of 4 elements"):
        m.fails(-1, x, y, 4)


def test_a_failure_is_told_by_a_function_of_tensors(there: There) -> None:
    program = "def twice(x : In[Tensor[N]]) -> Tensor[N]:\n    return x + x\n"
    m = loma.compile(FAILS)
    x, y = there(torch.ones(4)), there(torch.zeros(4))
    with (
        contextlib.nullcontext(loma.compile(program)) if y.is_cuda else shim.compiled(program) as t
    ):
        t.twice(x)
        m.fails(0, x, y, 4)
        if y.is_cuda:
            torch.cuda.synchronize()
        with pytest.raises(IndexError, match=r"fails: line \d+: subscript 4 is outside an array"):
            t.twice(x)


def test_kinds_of_failures() -> None:
    kinds = dict(re.findall(r"loma_(full_stack|no_memory) = (\d)", texts.headers()["items.h"]))
    assert kinds == {"full_stack": str(int(Kind.FULL_STACK)), "no_memory": str(int(Kind.MEMORY))}


def test_sync(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOMA_CHECK", "sync")
    m = loma.compile(FAILS)
    with pytest.raises(IndexError, match="outside an array of 4 elements"):
        m.fails(0, there(torch.ones(4)), there(torch.zeros(4)), 4)


# -------------------------------------------------------------------------------------- arguments


BAD: dict[str, tuple[Callable[[There], list[Value]], type[Exception], str]] = {
    "dtype": (lambda t: [t(torch.ones(3).double()), 3, 1.0, t(torch.zeros(3))], TypeError,
              "argument 'x' must be float32, got a tensor of torch.float64 and shape (3,)"),
    "strides": (lambda t: [t(torch.ones(6))[::2], 3, 1.0, t(torch.zeros(3))], ValueError,
                "argument 'x' must be contiguous, got strides"),
    "shape": (lambda t: [t(torch.ones(3, 1)), 3, 1.0, t(torch.zeros(3))], ValueError,
              "argument 'x' must be Array[float], got a tensor of shape (3, 1)"),
    "grad": (lambda t: [t(torch.ones(3)).requires_grad_(), 3, 1.0, t(torch.zeros(3))], TypeError,
             "argument 'x' requires grad, but a scalar function takes no part in autograd"),
    "array": (lambda t: [np.ones(3, np.float32), 3, 1.0, t(torch.zeros(3))], TypeError,
              "argument 'x' must be Array[float], a tensor or a list on "),
    "written list": (lambda t: [t(torch.ones(3)), 3, 1.0, [0.0] * 3], TypeError,
                     "argument 'y' must be Array[float], a tensor on "),
    "number": (lambda t: [t(torch.ones(3)), 3, "1", t(torch.zeros(3))], TypeError,
               "argument 'sharpness' must be a number, got str"),
    "int": (lambda t: [t(torch.ones(3)), 3.5, 1.0, t(torch.zeros(3))], TypeError,
            "argument 'n' must be an int, got float"),
    "large": (lambda t: [t(torch.ones(3)), 2**31, 1.0, t(torch.zeros(3))], ValueError,
              "argument 'n' does not fit in 32 bits"),
    "a float tensor": (lambda t: [t(torch.ones(3)), t(torch.tensor(3.0)), 1.0, t(torch.zeros(3))],
                       TypeError, "argument 'n' must be an int, got a tensor of torch.float32"),
    "rank": (lambda t: [t(torch.ones(3)), 3, t(torch.ones(1)), t(torch.zeros(3))], ValueError,
             "argument 'sharpness' must be a number or a 0-dimensional tensor"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_wrong_arguments(there: There, name: str) -> None:
    m = loma.compile(BLUR)
    arguments, error, message = BAD[name]
    with pytest.raises(error, match=re.escape(f"blur: {message}")):
        m.blur(*arguments(there), 3)


def test_wrong_numbers_of_items_and_shared_memory(there: There) -> None:
    m = loma.compile(BLUR)
    x, y = there(torch.ones(3)), there(torch.zeros(3))
    with pytest.raises(ValueError, match="'items' is the number of work items"):
        m.blur(x, 3, 1.0, y, -1)
    with pytest.raises(ValueError, match="'x' and 'y' share memory, and 'y' is written"):
        m.blur(x, 3, 1.0, x, 3)
    with pytest.raises(TypeError, match="misses argument 'y'"):
        m.blur(x, 3, 1.0)


def test_wrong_structs(there: There) -> None:
    m = loma.compile(BALLS)
    _, words = _balls(m, 3)
    wind, y = m.Ball(), there(torch.zeros(3))
    with pytest.raises(ValueError, match=r"'start' must be Array\[Ball\] as rows of 4 numbers"):
        m.energies(there(words[:, :3].contiguous()), wind, 0.1, y, 3)
    with pytest.raises(TypeError, match=r"'start' must be float32 or int32"):
        m.energies(there(words.long()), wind, 0.1, y, 3)
    with pytest.raises(TypeError, match="'wind' must be an object with the attributes at, speed"):
        m.energies(there(words), 1.0, 0.1, y, 3)


# ------------------------------------------------------------------------------------------- texts


def test_text(golden: Callable[[str, str], None]) -> None:
    golden("cuda/items.cu", pipeline.stage_text(BLUR, "source", "d_blur", device="cuda"))


def test_stages_that_it_has_not() -> None:
    with pytest.raises(ValueError, match="a @simd function is one kernel"):
        pipeline.stage_text(BLUR, "schedule", "blur", device="cuda")
    with pytest.raises(ValueError, match="'fall' is a scalar function"):
        pipeline.stage_text(BALLS, "source", "fall", device="cuda")
    with pytest.raises(ValueError, match="no function of tensors and no @simd function"):
        pipeline.stage_text("def f(x : In[float]) -> float:\n    return x\n", "source",
                            device="cuda")  # fmt: skip
    every = pipeline.stage_text(BLUR, "source", device="cuda")
    assert every.count("LOMA_KERNEL") == 3


HOSTILE = """
class float4:
    min : float
    dim3 : int

def max4(atomicAdd : In[float], real : Out[float4]):
    real.min += atomicAdd
    real.dim3 += 1

def fmaxf(atomicAdd : In[float]) -> float:
    return atomicAdd

def rsqrtf(threadIdx : In[float]) -> float:
    return threadIdx * 2.0

@simd
def dim3(loma : In[Array[float]], std : In[int], NULL : Out[Array[float]]):
    blockIdx : int = thread_id()
    grid_ : float4
    printf : float = fmaxf(loma[blockIdx])
    max4(printf, grid_)
    NULL[blockIdx] = rsqrtf(printf + grid_.min) + int2float(grid_.dim3 + std)
"""


def test_names_of_a_program_mean_nothing_else(there: There) -> None:
    m = loma.compile(HOSTILE)
    out = there(torch.zeros(3))
    m.dim3(there(torch.tensor([1.0, 2.0, 3.0])), 4, out, 3)
    assert out.tolist() == [9.0, 13.0, 17.0]


def test_kernels_are_compiled_ahead(tmp_path: Any) -> None:
    nvrtc = pytest.importorskip("loma.backends.cuda.nvrtc")
    try:
        nvrtc.find()
    except loma.errors.ToolchainError as error:
        pytest.skip(str(error))
    names = ("blur", "balls", "rows", "hash", "fails", "hostile")
    for name, text in zip(names, (BLUR, BALLS, ROWS, HASH, FAILS, HOSTILE), strict=True):
        (tmp_path / f"{name}.loma").write_text(text)
    files = [str(tmp_path / f"{name}.loma") for name in names]
    command = ["build", "--device", "cuda", "--arch", "sm_80", "--arch", "sm_90", *files]
    found = CliRunner().invoke(cli.main, command)
    assert found.exit_code == 0, found.output
    assert "d_energies__items, line " in found.output


# ---------------------------------------------------------------------------------------- on a GPU


@pytest.fixture
def on_gpu(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--device") != "cuda":
        pytest.skip("needs a GPU: pytest --device cuda")


@pytest.mark.usefixtures("on_gpu")
def test_the_current_stream_and_nothing_is_waited_for() -> None:
    m, n = loma.compile(BLUR), 1000
    x, g, y = (torch.randn(n, device="cuda") for _ in range(3))
    sharpness = torch.tensor(0.7, device="cuda")
    m.blur(x, n, sharpness, y, n)
    wanted = [y.clone(), *m.d_blur(x, n, sharpness, g, n)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            y.zero_()
            m.blur(x, n, sharpness, y, n)
            found = m.d_blur(x, n, sharpness, g, n)
            assert not stream.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    stream.synchronize()
    _same([y, *found], wanted, rtol=1e-4)
    loma.check_device()


@pytest.mark.usefixtures("on_gpu")
def test_a_graph() -> None:
    m, n = loma.compile(BLUR), 1000
    x, y = torch.randn(n, device="cuda"), torch.zeros(n, device="cuda")
    m.blur(x, n, 0.7, y, n)
    wanted, graph = y.clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        m.blur(x, n, 0.7, y, n)
    y.zero_()
    graph.replay()
    assert torch.equal(y, wanted)


@pytest.mark.usefixtures("on_gpu")
def test_tensors_of_different_devices() -> None:
    m = loma.compile(BLUR)
    x, y = torch.ones(3), torch.zeros(3, device="cuda")
    with pytest.raises(ValueError, match="'x' is on cpu, but other arguments are on cuda:0"):
        m.blur(x, 3, 1.0, y, 3)
    if torch.cuda.device_count() > 1:
        x, y = (torch.ones(3, device="cuda:1") for _ in range(2))
        m.blur(x, 3, 1.0, y, 3)
        torch.testing.assert_close(y, torch.ones_like(y))
        with pytest.raises(ValueError, match="'y' is on cuda:0, but other arguments are on"):
            m.blur(x, 3, 1.0, torch.ones(3, device="cuda:0"), 3)
