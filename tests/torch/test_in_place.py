"""Elementwise functions: Out arguments written where they lie, calls over lists of tensors, and
statements in one loop."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import loma
from loma import pipeline

PROGRAM = """
def decay(x : Out[Tensor[N]], rate : In[float]):
    x[i] = rate * x[i]

def mix(x : Out[Tensor[N]], y : Out[Tensor[N]], z : In[Tensor[N]], a : In[float]):
    h : Tensor[N]
    h[i] = a * z[i] + x[i]
    y[j] = y[j] + h[j] * h[j]
    h[i] += 1.0
    x[k] = h[k] / (1.0 + y[k] * y[k])

def total(x : Out[Tensor[N]], y : In[Tensor[N, M]]):
    x[i] += y[i, j]

def scaled(x : Out[Tensor[N]], a : In[float]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = a * x[i]
    x[i] = 0.0
    return y
"""


@pytest.fixture(scope="module")
def program() -> Any:
    return loma.compile(PROGRAM)


def mixed(x: Tensor, y: Tensor, z: Tensor, a: float) -> tuple[Tensor, Tensor]:
    h = a * z + x
    y = y + h * h
    return (h + 1.0) / (1.0 + y * y), y


# ------------------------------------------------------------------------------------- in place


def test_nothing_is_allocated(program: Any) -> None:
    x, y, z = torch.randn(3, 200_000)
    expected = mixed(x, y, z, 0.5)
    program.mix(x, y, z, 0.5)
    torch.testing.assert_close((x, y), expected)
    before = loma.memory.stats()
    loma.memory.release()
    for _ in range(3):
        program.mix(x, y, z, 0.5)
    assert loma.memory.stats().peak - before.in_use < 100_000  # one tensor has 800,000 bytes


def test_autograd_is_told(program: Any) -> None:
    x = torch.ones(4)
    weight = torch.ones(4, requires_grad=True)
    loss = (weight * x).sum()
    version = x._version
    program.decay(x, 0.5)
    assert x._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_gradients_pass_where_they_are_asked_for(program: Any) -> None:
    """Then the call works on copies, as any other."""
    z = torch.randn(5, dtype=torch.float64, requires_grad=True)
    start = torch.randn(2, 5, dtype=torch.float64)
    x, y = start[0].clone(), start[1].clone()
    program.mix(x, y, z, 0.5)
    expected = mixed(start[0], start[1], z, 0.5)
    torch.testing.assert_close((x, y), expected)
    (mine,) = torch.autograd.grad((x * y).sum(), z)
    (theirs,) = torch.autograd.grad((expected[0] * expected[1]).sum(), z)
    torch.testing.assert_close(mine, theirs)


def test_other_layouts_and_dtypes(program: Any) -> None:
    for x in (
        torch.ones(6, 2)[:, 0],
        torch.ones(6).bfloat16(),
        torch.ones(6).half(),
        torch.ones(0),
        torch.ones(1),
    ):
        program.decay(x, 0.5)
        assert torch.equal(x, torch.full_like(x, 0.5))


def test_results_beside_out_arguments(program: Any) -> None:
    x = torch.arange(5.0)
    y = program.scaled(x, 2.0)
    assert y.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert x.tolist() == [0.0] * 5


@pytest.mark.cpu
def test_an_out_argument_shares_memory_with_no_other(program: Any) -> None:
    x = torch.ones(8)
    with pytest.raises(ValueError, match="share memory, and 'x' is written"):
        program.mix(x[:4], torch.ones(4), x[2:6], 1.0)
    assert x.tolist() == [1.0] * 8


def test_inference_tensors_are_written_in_inference_mode_only(program: Any) -> None:
    with torch.inference_mode():
        x = torch.ones(3)
        program.decay(x, 0.5)
        assert x.tolist() == [0.5] * 3
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        program.decay(x, 0.5)


def test_torch_compile_sees_the_operator(program: Any) -> None:
    def twice(x: Tensor) -> Tensor:
        y = x * 1.0
        program.decay(y, 0.5)
        return y

    assert (
        torch.compile(twice, fullgraph=True, backend="eager")(torch.ones(3)).tolist() == [0.5] * 3
    )


# ----------------------------------------------------------------------------------------- lists


def test_lists_of_any_shapes(program: Any) -> None:
    shapes = [(3,), (), (0,), (2, 3, 4), (1, 5), (7, 1)]
    for dtype in (torch.float32, torch.float64):
        xs, ys, zs = ([torch.randn(s, dtype=dtype) for s in shapes] for _ in range(3))
        expected = [mixed(*each, 0.5) for each in zip(xs, ys, zs, strict=True)]
        versions = [x._version for x in xs]
        assert program.mix.each(xs, tuple(ys), zs, a=0.5) is None
        torch.testing.assert_close(list(zip(xs, ys, strict=True)), expected)
        changed = [x._version > v for x, v in zip(xs, versions, strict=True)]
        assert changed == [bool(x.numel()) for x in xs]


def layouts(values: Tensor) -> list[Tensor]:
    """The same values, lying in different ways."""
    order = values.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    wide = torch.zeros(2, 6, 4, dtype=values.dtype)
    wide[:, ::2] = values
    return [
        values.clone(),
        order,
        wide[:, ::2],
        values.clone().transpose(0, 1).clone().transpose(0, 1),
    ]


def test_elements_lie_in_any_order(program: Any) -> None:
    x, y, z = torch.randn(3, 2, 3, 4, dtype=torch.float64)
    expected = mixed(x, y, z, 0.5)
    for one, two, three in itertools.product(*map(layouts, (x, y, z))):
        own = [one.clone(memory_format=torch.preserve_format), two.clone(), three]
        program.mix.each([own[0]], [own[1]], [own[2]], 0.5)
        torch.testing.assert_close(tuple(own[:2]), expected)
    wide = torch.zeros(2, 6, 4, dtype=torch.float64)
    program.mix.each([wide[:, ::2]], [y.clone()], [z], 0.5)
    assert wide[:, 1::2].abs().max() == 0.0
    expanded = torch.ones((), dtype=torch.float64).expand(2, 3, 4)
    first, second = x.clone(), y.clone()
    program.mix.each([first], [second], [expanded], 0.5)
    torch.testing.assert_close((first, second), mixed(x, y, expanded, 0.5))


def test_lists_of_several_dtypes(program: Any) -> None:
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
    xs = [torch.ones(3, dtype=dtype) for dtype in dtypes]
    program.decay.each(xs, 0.1)
    assert [x.dtype for x in xs] == dtypes
    assert xs[1][0] == 0.1
    assert xs[2][0] == torch.tensor(0.1).bfloat16()
    assert xs[3][0] == torch.tensor(0.1).half()


def test_what_is_read_may_be_what_is_written(program: Any) -> None:
    x, y = torch.randn(2, 6)
    expected = mixed(x, y, x, 0.5)
    program.mix.each([x], [y], [x], 0.5)
    torch.testing.assert_close((x, y), expected)


def test_which_functions_take_lists(program: Any) -> None:
    assert hasattr(program.decay, "each")
    assert hasattr(program.mix, "each")
    assert not hasattr(program.total, "each")
    assert not hasattr(program.scaled, "each")


ONES = [torch.ones(3)]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((ONES[0], ONES, ONES, 1.0), TypeError, "argument 'x' must be a list or tuple of tensors"),
        (([1.0], ONES, ONES, 1.0), TypeError, r"'x'\[0\] must be a tensor, got float"),
        ((ONES, ONES, ONES), TypeError, r"mix\(\) misses argument 'a'"),
        ((ONES, ONES, ONES, "1"), TypeError, "argument 'a' must be a number, or a list"),
        ((ONES, ONES * 2, ONES, 1.0), ValueError, "'y' has 2 tensors, but 'x' has 1"),
        ((ONES, [torch.ones(2)], ONES, 1.0), ValueError, r"'y'\[0\] has shape \[2\], but 'x'"),
        ((ONES, [torch.ones(3).double()], ONES, 1.0), TypeError, r"'y'\[0\] is Double, but 'x'"),
        (([torch.ones(3).int()], ONES, ONES, 1.0), TypeError, "bfloat16 or float16 tensor, got"),
        (([torch.ones(3, device="meta")], ONES, ONES, 1.0), ValueError, "dense tensor on cpu"),
        (([torch.ones(3).to_sparse()], ONES, ONES, 1.0), ValueError, "dense tensor on cpu"),
        ((ONES, ONES, ONES, 1.0), ValueError, r"'x'\[0\] and 'y'\[0\] share memory, and both"),
        (
            ([torch.ones(3, requires_grad=True)], [torch.zeros(3)], ONES, 1.0),
            ValueError, "requires a gradient, which no call over lists passes on",
        ),
    ],
)  # fmt: skip
def test_wrong_lists(program: Any, arguments: tuple[Any, ...], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        program.mix.each(*arguments)
    assert ONES[0].tolist() == [1.0] * 3


def test_nothing_runs_before_all_is_checked(program: Any) -> None:
    xs = [torch.ones(3), torch.ones(3)]
    with pytest.raises(ValueError, match=r"'y'\[1\] has shape"):
        program.mix.each(xs, [torch.ones(3), torch.ones(4)], [torch.ones(3)] * 2, 1.0)
    assert all(x.tolist() == [1.0] * 3 for x in xs)


def test_lists_under_transformations_are_refused(program: Any) -> None:
    with pytest.raises(TypeError, match="an ordinary tensor"):
        torch.func.vmap(lambda x: program.decay.each([x], 0.5))(torch.ones(2, 3))


# -------------------------------------------------------------------------------------- one loop

JOINED = """
def chain(x : In[Tensor[N]], n : In[int]) -> tuple[Tensor[N], Tensor[N]]:
    a : Tensor[N]
    b : Tensor[N]
    c : Tensor[N]
    y : Tensor[N]
    z : Tensor[N]
    a[i] = x[i] * x[i]
    b[j] = a[j] + 1.0
    c[i] += a[i] * b[i]
    if n > 0:
        c[i] = c[i] - 0.5 * b[i]
        y[k] = exp(0.0 - a[k]) if x[k] > 0.0 else c[k]
    for t in range(n):
        a[i] = 0.5 * a[i]
        y[i] += a[i] * x[i]
    z[i] = y[i] + c[i] * max(x[i], 0.0)
    return y, z
"""


def chained(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    a = x * x
    b = a + 1.0
    c = a * b
    y = torch.zeros_like(x)
    if n > 0:
        c = c - 0.5 * b
        y = torch.where(x > 0, torch.exp(-a), c)
    for _ in range(n):
        a = 0.5 * a
        y = y + a * x
    return y, y + c * x.clamp(min=0.0)


def test_statements_of_a_block_run_in_one_loop() -> None:
    module = loma.compile(JOINED)
    for size, n in itertools.product((1, 7, 5000), (0, 3)):
        x = torch.randn(size, dtype=torch.float64)
        torch.testing.assert_close(module.chain(x, n), chained(x, n))


def test_the_loop_has_private_tensors_in_registers() -> None:
    text = pipeline.stage_text(PROGRAM, "cpp", "mix")
    assert text.count("for (int64_t i = i_begin_; i < i_end_; ++i)") == 1
    assert "real h_ = " in text
    assert "workspace_.add" not in text


def test_gradients_of_joined_statements() -> None:
    loma.check_gradients(loma.compile(JOINED).chain, (torch.rand(5) + 0.1, 2))


# --------------------------------------------------------------------------------------- rounding

CONTRACTED = """
def both(x : In[Tensor[N]], y : In[Tensor[N]], z : In[Tensor[N]]) -> Tensor[N]:
    u : Tensor[N]
    u[i] = x[i] * y[i] + z[i]
    return u
"""


def test_products_and_sums_round_by_themselves() -> None:
    x, y = torch.randn(2, 1003)
    z = -(x * y)
    separate = loma.compile(CONTRACTED, contract=False)
    assert torch.equal(separate.both(x, y, z), torch.zeros(1003))
    assert separate is loma.compile(CONTRACTED, contract=False)
    folder = separate.__folder__
    assert any("rounded by itself" in file.read_text("utf-8") for file in folder.glob("*.cpp"))


def test_kernels_for_known_sizes_round_so_too() -> None:
    stage = pipeline.program(CONTRACTED)
    assert pipeline.generated(stage).name != pipeline.generated(stage, contract=False).name
    kept = pipeline.specialised(stage, "both", {"N": 5}, "space", contract=False)
    assert kept.flags == ("-ffp-contract=off",)
    assert pipeline.specialised(stage, "both", {"N": 5}, "space").flags == ()
