"""The largest of a few neighbours: all spellings have one form, and the first of equals counts."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

import loma
from loma import passes, pipeline
from loma.backends.interpreter import Interpreter
from loma.core.printer import print_function
from loma.frontend import parse

HEAD = "def f(x : In[Tensor[N, 2 * H, 2 * W]]) -> Tensor[N, H, W]:\n    y : Tensor[N, H, W]\n"
BODIES = {
    "operator": """z = max_pool2d(reshape(x, [N, 1, 2 * H, 2 * W]), [2, 2])
    y = reshape(z, [N, H, W])""",
    "reduction": "y[n, h, w] = max(x[n, 2 * h + p, 2 * w + q] for p in range(2) for q in range(2))",
    "nested": """y[n, h, w] = max(
        max(x[n, 2 * h, 2 * w], x[n, 2 * h, 2 * w + 1]),
        max(x[n, 2 * h + 1, 2 * w], x[n, 2 * h + 1, 2 * w + 1]))""",
    "two_steps": """r : Tensor[N, 2 * H, W]
    r[n, h, w] = max(x[n, h, 2 * w], x[n, h, 2 * w + 1])
    y[n, h, w] = max(r[n, 2 * h, w], r[n, 2 * h + 1, w])""",
    "running": """y[n, h, w] = x[n, 2 * h, 2 * w]
    for p in range(2):
        for q in range(2):
            y[n, h, w] = max(y[n, h, w], x[n, 2 * h + p, 2 * w + q])""",
    "number": """for n in range(N):
        for h in range(H):
            for w in range(W):
                m = x[n, 2 * h, 2 * w]
                for p in range(2):
                    for q in range(2):
                        m = max(m, x[n, 2 * h + p, 2 * w + q])
                y[n, h, w] = m""",
}
NAMES = sorted(BODIES)


def _text(body: str) -> str:
    return f"{HEAD}    {body}\n    return y\n"


def _changed(body: str) -> str:
    head = "def f(x : In[Tensor[N, M]]) -> Tensor[N, M]:"
    text = f"{head}\n    y : Tensor[N, M]\n    {body}\n    return y"
    return print_function(passes.canonical.windows(parse(text)).function("f"))


@pytest.mark.parametrize("name", NAMES)
def test_one_form(name: str) -> None:
    """One reduction without a beginning, and one statement for its adjoint."""
    text = _text(BODIES[name])
    forward = print_function(passes.canonical_form(parse(text)).function("f"))
    assert forward.count("range(2)") == 2
    assert forward.count("x[") == 1
    backward = print_function(pipeline.program(text, "text").module.function("f__backward"))
    assert backward.count("_d_x[") == 1
    assert "argmax" not in backward


@pytest.mark.parametrize("name", NAMES)
def test_equals_and_what_is_no_number(name: str) -> None:
    f = loma.compile(_text(BODIES[name])).f
    x = torch.randint(0, 2, (3, 8, 38), generator=torch.Generator().manual_seed(3)).double()
    x[0, 0, :2] = torch.tensor([0.0, -0.0])
    x[1, :2, :2] = -math.inf
    x[2, 2, 3] = x[2, 3, 2] = math.nan
    x.requires_grad_()
    weight = torch.randn(3, 4, 19, dtype=torch.float64)
    (found,) = torch.autograd.grad(f(x), x, weight)
    wanted = torch.zeros_like(x)
    for n, h, w in itertools.product(range(3), range(4), range(19)):
        window = x[n, 2 * h : 2 * h + 2, 2 * w : 2 * w + 2].detach().flatten()
        first = next((k for k in range(4) if window[k].isnan()), int(window.argmax()))
        wanted[n, 2 * h + first // 2, 2 * w + first % 2] = weight[n, h, w]
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    torch.testing.assert_close(f(x), F.max_pool2d(x, 2), rtol=0, atol=0, equal_nan=True)


def test_other_grids() -> None:
    assert "min(x[n, _k + 4 * m] for _k in range(4))" in _changed(
        "y[n, m] = min(min(min(x[n, 4 * m], x[n, 4 * m + 1]), x[n, 4 * m + 2]), x[n, 4 * m + 3])"
    )
    assert "max(max(x[n, _k + 2 * m] for _k in range(2)), 0.0)" in _changed(
        "y[n, m] = max(max(x[n, 2 * m], x[n, 2 * m + 1]), 0.0)"
    )
    # the order in which they stand says which of equals it is
    down = "y[n, m] = max(max(x[2 * n, 2 * m], x[2 * n + 1, 2 * m]), {})"
    rest = "max(x[2 * n, 2 * m + 1], x[2 * n + 1, 2 * m + 1])"
    assert "x[_k_1 + 2 * n, _k + 2 * m] for _k in range(2) for _k_1 in range(2)" in _changed(
        down.format(rest)
    )


@pytest.mark.parametrize(
    "value",
    [
        "max(max(x[n, m], x[n, 2 * m]), x[n, 0])",  # no steps
        "max(max(x[n, 2 * m], x[n, 2 * m + 1]), x[n, 2 * m + 2])",  # elements that two windows have
        "max(max(x[n, 4 * m], x[n, 4 * m + 1]), x[n, 4 * m + 3])",  # one is missing
        "max(x[n, 2 * m], min(x[n, 2 * m + 1], 0.0))",
        "max(y[n, 2 * m], y[n, 2 * m + 1])",  # it would be copied
    ],
)
def test_what_stays(value: str) -> None:
    assert "for _k" not in _changed(f"y[n, m] = {value}")


def test_a_loop_that_begins_behind_the_first() -> None:
    """Of a row the first element counts alone: it is none of a window's first column."""
    text = (
        HEAD
        + """    y[n, h, w] = x[n, 2 * h, 2 * w]
    for p in range(1, 2):
        for q in range(2):
            y[n, h, w] = max(y[n, h, w], x[n, 2 * h + p, 2 * w + q])
    return y
"""
    )
    x = torch.tensor([[[1.0, 9.0], [2.0, 3.0]]], dtype=torch.float64)
    (found,) = Interpreter(passes.optimise(parse(text))).call("f", x.numpy())
    assert found.tolist() == [[[3.0]]]


def test_values_that_are_computed_are_looked_up() -> None:
    """They may be rounded in another way when they are computed again."""
    body = BODIES["reduction"].replace("x[n, 2", "exp(x[n, 2", 1).replace("+ q] for", "+ q]) for")
    module = pipeline.program(_text(body), "text").module
    assert "argmax" in print_function(module.function("f__forward"))
