"""What forward parts keep for backward parts: ``save=`` and ``loma show --saved``."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from click.testing import CliRunner

import loma
from loma import pipeline
from loma.ad import differentiate, split_pairs
from loma.core.saving import SAVES, Save
from loma.core.verify import verify
from loma.frontend import parse
from loma.tools.cli import main
from loma.tools.kept import kept

PROGRAM = """
def outer(W : In[Tensor[I, R, O, K]], X : In[Tensor[B, R, K]]) -> Tensor[B, I, O]:
    U : Tensor[B, I, R, O]
    T : Tensor[B, I, O]
    Y : Tensor[B, I, O]
    U[b, i, r, o] = sum(W[i, r, o, k] * X[b, r, k] for k in K)
    T[b, i, o] = sum(exp(U[b, i, r, o]) for r in R)
    Y[b, i, o] = T[b, i, o] * T[b, i, o]
    return Y
"""
SIZES = {"I": 2, "R": 3, "O": 4, "K": 5, "B": 6}


def names(save: Save) -> list[tuple[str, int | None]]:
    stage = pipeline.program(PROGRAM, save=save)
    return [(k.name, k.bytes) for k in kept(stage, "outer", SIZES) if k.kind == "saved"]


def test_what_is_saved() -> None:
    assert names("all") == [("T", 4 * 6 * 2 * 4), ("U", 4 * 6 * 2 * 3 * 4)]
    assert names("auto") == [("T", 4 * 6 * 2 * 4)]  # the outer product is computed again
    assert names("inputs") == []


def test_quick_functions_are_computed_again() -> None:
    text = """
def f(x : In[Tensor[N]], y : In[Tensor[N]]) -> float:
    p : Tensor[N]
    q : Tensor[N]
    p[i] = abs(x[i] - y[i])
    q[i] = exp(x[i] * y[i])
    return sum(p * p * q * q * p)
"""
    stage = pipeline.program(text)
    assert [k.name for k in kept(stage, "f", {"N": 3}) if k.kind == "saved"] == ["q"]


@pytest.mark.full
def test_gradients_are_the_same() -> None:
    """First derivatives, and second ones of what other tests do not differentiate twice."""
    torch.manual_seed(0)
    w = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    x = torch.randn(6, 3, 5, dtype=torch.float64, requires_grad=True)

    def derivatives(value: torch.Tensor, twice: bool) -> list[torch.Tensor]:
        first = torch.autograd.grad(value.sum(), (w, x), create_graph=twice)
        second = torch.autograd.grad(first[0].square().sum(), (w, x)) if twice else ()
        return [value, *first, *second]

    for save in SAVES:
        twice = save == "all"
        found = derivatives(oracle.compiled(PROGRAM, save=save).outer(w, x), twice)
        value = torch.einsum("irok,brk->biro", w, x).exp().sum(2).square()
        for own, other in zip(found, derivatives(value, twice), strict=True):
            torch.testing.assert_close(own, other)


OVERWRITTEN = """
def step(x : Out[Tensor[N]], z : In[Tensor[N]]) -> Tensor[N]:
    h : Tensor[N]
    y : Tensor[N]
    h[i] = 0.5 * z[i] + x[i]
    y[i] = h[i] * h[i]
    x[i] = h[i] / (1.0 + y[i])
    return y
"""


@pytest.mark.parametrize("save", ["all", "auto"])
def test_what_is_overwritten_is_not_read_again(save: Save) -> None:
    """``h`` is cheap, but x is another when the backward part runs."""
    z = torch.randn(5, dtype=torch.float64, requires_grad=True)
    start = torch.randn(5, dtype=torch.float64)
    x = start.clone()
    y = oracle.compiled(OVERWRITTEN, save=save).step(x, z)
    h = 0.5 * z + start
    (mine,) = torch.autograd.grad((x * y).sum(), z)
    (theirs,) = torch.autograd.grad((h / (1.0 + h * h) * h * h).sum(), z)
    torch.testing.assert_close(mine, theirs)


def test_results_of_a_call_are_declared_once() -> None:
    text = """
def product(x : In[Tensor[N]], w : In[Tensor[N]]) -> float:
    return sum(x * w)
d_product = rev_diff(product)
def step(x : In[Tensor[N]], w : In[Tensor[N]], r : In[float]) -> Tensor[N]:
    dx : Tensor[N]
    dw : Tensor[N]
    d_product(x, dx, w, dw, 1.0)
    return w - r * dw
"""
    module, _ = split_pairs(differentiate(parse(text)), ["step"], save="inputs")
    verify(module)


def test_save_is_one_of_three() -> None:
    with pytest.raises(ValueError, match="save must be one of auto, all, inputs, got 'some'"):
        loma.compile(PROGRAM, save="some")  # type: ignore[arg-type]


def test_show_saved(tmp_path: Path) -> None:
    file = tmp_path / "outer.loma"
    file.write_text(PROGRAM, encoding="utf-8")
    sizes = [word for name, value in SIZES.items() for word in ("--size", f"{name}={value}")]
    run = CliRunner().invoke(main, ["show", "--saved", str(file), "outer", *sizes])
    assert run.exit_code == 0, run.output
    assert "saved     T         192 bytes  Tensor[B, I, O]" in run.output
    assert run.output.endswith("saved beside arguments and results: 192 bytes\n")
    run = CliRunner().invoke(main, ["show", "--saved", "--json", str(file), "outer"])
    assert [row["bytes"] for row in json.loads(run.output)["kept"]] == [None, None, None]
    for words, message in (
        ([str(file)], "--saved needs a FUNCTION"),
        ([str(file), "outer", "--size", "Z=3"], "'outer' has no size 'Z': it has"),
        ([str(file), "outer", "--size", "B=x"], "'B=x' is not name=an integer in the range 0<=x<="),
    ):
        run = CliRunner().invoke(main, ["show", "--saved", *words])
        assert run.exit_code == 2
        assert message in run.output


def test_arguments_in_another_shape_are_not_copied() -> None:
    """A forward part returned a copy: no operator returns a view of what it is given."""
    source = """
def f(x : In[Tensor[B, 4 * C]], w : In[Tensor[4]]) -> Tensor[B, 4, C]:
    z = reshape(x, [B, 4, C])
    y : Tensor[B, 4, C]
    y[b, g, c] = exp(z[b, g, c] * w[g]) * z[b, g, c]
    return y
"""
    stage = pipeline.program(source)
    assert [k.name for k in kept(stage, "f", {}) if k.kind == "saved"] == []
    assert "z" in [k.name for k in kept(pipeline.program(source, save="all"), "f", {})]


VIEWS = """
def f(x : In[Tensor[B, N]], w : In[Tensor[2 * M, N]]) -> Tensor[B, M]:
    u = transpose(w[:M], 0, 1)
    return tanh(x @ u) * (x @ transpose(w[M:], 0, 1))
"""


@pytest.mark.parametrize("sizes", [(3, 4, 2), (1, 1, 1), (0, 2, 3), (2, 0, 1)], ids=str)
def test_transposed_and_cut_arguments_are_not_copied(sizes: tuple[int, int, int]) -> None:
    stage = pipeline.program(VIEWS)
    saved = [k for k in kept(stage, "f", {}) if k.kind == "saved"]
    assert saved
    assert not [k.name for k in saved if "N" in k.type]
    b, n, m = sizes
    x, w = torch.randn(b, n, dtype=torch.float64), torch.randn(n, 2 * m, dtype=torch.float64).T
    x, w = x.requires_grad_(), w.requires_grad_()
    right = torch.tanh(x @ w[:m].T) * (x @ w[m:].T)
    value = _views().f(x, w)
    torch.testing.assert_close(value, right)
    g = torch.randn_like(right)
    for wanted in ((x, w), (x,), (w,)):
        found = torch.autograd.grad(value, wanted, g, retain_graph=True)
        expected = torch.autograd.grad(right, wanted, g, retain_graph=True)
        torch.testing.assert_close(found, expected)


@functools.cache
def _views() -> Any:
    return oracle.compiled(VIEWS)


@pytest.mark.parametrize(
    "lines",
    [
        ["x[b, k] = 2.0 * x[b, k]", "z = reshape(x, [B * K])"],  # of what is no argument
        ["z = reshape(x, [B * K])", "x[b, k] = 2.0 * x[b, k]"],  # which is another one later
    ],
)
def test_views_of_what_is_overwritten(lines: list[str]) -> None:
    body = "".join(f"    {line}\n" for line in lines)
    source = (
        "def f(x : Out[Tensor[B, K]]) -> Tensor[B * K]:\n"
        f"{body}    y : Tensor[B * K]\n    y[i] = exp(z[i]) * z[i]\n    return y\n"
    )
    start = torch.randn(3, 2, dtype=torch.float64)
    leaf = start.clone().requires_grad_()
    grads = []
    for own in (True, False):
        x = leaf * 1.0
        if own:
            y = oracle.compiled(source).f(x)
        else:
            before = x.reshape(-1)
            z = 2.0 * before if lines[0].startswith("x") else before
            y = z.exp() * z
        grads.append(torch.autograd.grad(y.sum(), leaf)[0])
    torch.testing.assert_close(*grads)


STEPS = """
def steps(A : In[Tensor[N, N]], start : In[Tensor[N]], n : In[int]) -> Tensor[N]:
    x : Tensor[N] = start
    y : Tensor[N]
    z : Tensor[N]
    for t in range(n):
        y[i] = sum(A[i, j] * x[j] for j in N)
        z[i] = sum(x[j] * x[j] * y[i] for j in N)
        x[i] = y[i] / (1.0 + y[i] * y[i]) + z[i]
    return x
"""


# The loop's tensors are declared in it, and added to.
ADDED_UP = """
def steps(A : In[Tensor[N, N]], start : In[Tensor[N]], n : In[int]) -> Tensor[N]:
    x : Tensor[N] = start
    for t in range(n):
        y : Tensor[N]
        z : Tensor[N]
        y[i] += A[i, j] * x[j]
        z[i] += x[j] * x[j] * y[i]
        x[i] = y[i] / (1.0 + y[i] * y[i]) + z[i]
    return x
"""


def test_a_maximum_in_a_statement_of_a_loop_is_on_no_tape() -> None:
    """It is taken where the statement has elements only, and nothing is left of an iteration
    before where it has none."""
    text = """
def shares(start : In[Tensor[B, I]], n : In[int]) -> Tensor[B, I]:
    x : Tensor[B, I] = start
    for t in range(n):
        x[b, i] = exp(x[b, i] - max(x[b, k] for k in I))
    return x
"""
    saved = [k.name for k in kept(pipeline.program(text), "shares", {"B": 2, "I": 3, "n": 4})]
    assert [name for name in saved if "tape" in name] == ["_tape_x"]
    own = oracle.compiled(text)
    for shape in ((2, 3), (0, 3), (2, 0), (1, 1)):
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x: own.shares(x, 3), (x,))


@pytest.mark.parametrize("text", [STEPS, ADDED_UP], ids=["sums", "added_up"])
def test_sums_over_what_a_loop_does_not_change_are_on_a_tape(
    pytestconfig: pytest.Config, text: str
) -> None:
    """Of a matrix, which would be read again; not of vectors, which are the state's size."""
    stage = pipeline.program(text)
    saved = [k.name for k in kept(stage, "steps", {"N": 3, "n": 4}) if k.kind == "saved"]
    assert sorted(name for name in saved if "tape" in name) == ["_tape_x", "_tape_y"]
    backward = pipeline.stage_text(text, "optimised", "steps__backward")
    assert "A[i, j] * x" not in backward.replace("_tape_", "")

    a = (0.3 * torch.randn(3, 3, dtype=torch.float64)).requires_grad_()
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    full = pytestconfig.getoption("--full")
    for save in ("auto", "inputs") if full else ("auto",):
        own = oracle.compiled(text, save=save)
        assert torch.autograd.gradcheck(lambda a, x, own=own: own.steps(a, x, 3), (a, x))
    if full:
        assert torch.autograd.gradgradcheck(lambda a, x: own.steps(a, x, 2), (a, x))
    for n in (0, 1):
        assert torch.autograd.gradcheck(lambda a, x, n=n: own.steps(a, x, n), (a, x))


@pytest.mark.full
def test_sums_in_loops_inside_of_loops_and_branches() -> None:
    text = """
def nested(A : In[Tensor[N, N]], start : In[Tensor[N]], n : In[int]) -> Tensor[N]:
    x : Tensor[N] = start
    y : Tensor[N]
    for s in range(2):
        for t in range(n):
            y[i] = sum(A[i, j] * x[j] for j in N)
            x[i] = sin(y[i])
        if s > 0:
            y[i] = sum(A[i, j] * cos(x[j]) for j in N)
        x[i] = x[i] * y[i]
    return x
"""
    a = (0.3 * torch.randn(3, 3, dtype=torch.float64)).requires_grad_()
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    own = oracle.compiled(text)
    for n in (0, 1, 3):
        assert torch.autograd.gradcheck(lambda a, x, n=n: own.nested(a, x, n), (a, x))
