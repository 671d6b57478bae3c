"""Derivatives by name of tensor functions that read their ``Out`` arguments: right where these were
written before, refused else."""

from __future__ import annotations

import numpy as np
import pytest

from loma import errors, pipeline
from loma.backends.interpreter import Interpreter
from loma.core.ir import Module

VECTOR = "x : In[Tensor[N]], y : Out[Tensor[N]]"
LONGER = "x : In[Tensor[N]], y : Out[Tensor[N + 1]]"
MATRIX = "x : In[Tensor[N, N]], y : Out[Tensor[N + 1, N + 1]]"
NUMBER = "x : In[Tensor[N]], y : Out[float]"

WRITTEN = {
    "a loop that fills": (VECTOR, "for t in range(N):\n y[t] = x[t] * x[t]\ns = sum(y * y)"),
    "a recurrence": (
        LONGER, "y[0] = 1.0\nfor t in range(N):\n y[t + 1] = tanh(x[t] * y[t])\ns = y[N]",
    ),
    "a range that starts at 1": (
        VECTOR, "y[0] = x[0]\nfor t in range(1, N):\n y[t] = x[t] * y[t - 1]\ns = y[N - 1]",
    ),
    "a guarded read": (
        VECTOR, "for t in range(N):\n y[t] = x[t] * (y[t - 1] if t > 0 else 1.0)\ns = sum(y)",
    ),
    "rows": (MATRIX, "y[0, j] = 0.5\nfor t in range(N):\n"
             " y[t + 1, j] = sin(y[t, j] * (x[t, j + 0] if j < N else 1.0))\ns = sum(y * y)"),
    "slices": (MATRIX, "y[0] = ones([N + 1])\nfor t in range(N):\n"
               " y[t + 1] = sin(sum(x[t]) * y[t])\ns = sum(y * y)"),
    "a grid from its edges": (
        MATRIX, "y[0, 0] = 0.1\nfor i in range(N):\n y[i + 1, 0] = 0.5\nfor j in range(N):\n"
        " y[0, j + 1] = 0.4\nfor i in range(N):\n for j in range(N):\n"
        "  y[i + 1, j + 1] = x[i, j] + sin(y[i, j + 1] * y[i + 1, j] + y[i, j])\ns = y[N, N]",
    ),
    "backwards": (
        LONGER, "y[N] = 1.0\nfor t in reversed(range(N)):\n y[t] = x[t] * y[t + 1]\ns = y[0]",
    ),
    "both branches": (
        VECTOR, "if x[0] > 0.0:\n y[i] = x[i] ** 2\nelse:\n y = -x\ns = sum(y * y)",
    ),
    "zero": (
        VECTOR, "zero(y)\nfor t in range(N // 2):\n y[2 * t] = x[t] ** 2\ns = sum(y * y)",
    ),
    "two halves": (
        "x : In[Tensor[N]], y : Out[Tensor[2 * N]]",
        "y[i + 0] = x[i] ** 2\ny[i + N] = x[i] ** 3\ns = sum(y * y)",
    ),
    "two columns": (
        "x : In[Tensor[N]], y : Out[Tensor[N, 2]]",
        "y[0, 0] = 1.0\ny[0, 1] = x[0]\nfor t in range(1, N):\n"
        " y[t, 0] = y[t - 1, 0] + y[t - 1, 1]\n y[t, 1] = y[t - 1, 1] * x[t] * y[t, 0]\ns = sum(y)",
    ),
    "values that the derivative does not use": (VECTOR, "y[i] += x[i] * x[i]\ns = sum(x)"),
    "a number": (NUMBER, "y = sum(x)\ns = y * y"),
    "a sum into a number": (VECTOR, "y[i] = x[i] ** 2\ns += y[i] * y[i]"),
}  # fmt: skip

UNKNOWN = {
    "a factor": (VECTOR, "y[i] = y[i] * x[i]\ns = sum(x)", 4),
    "added to": (VECTOR, "y[i] += x[i]\ns = sum(y * y)", 4),
    "no first element": (
        LONGER, "for t in range(N):\n y[t + 1] = tanh(x[t] * y[t])\ns = y[N]", 5,
    ),
    "a gap": (
        "x : In[Tensor[N]], y : Out[Tensor[N + 2]]",
        "y[0] = 1.0\nfor t in range(N):\n y[t + 2] = x[t] * y[t]\ns = y[N]", 6,
    ),
    "one branch": (VECTOR, "if x[0] > 0.0:\n y[i] = x[i] ** 2\ns = sum(y * y)", 6),
    "every other element": (
        "x : In[Tensor[N]], y : Out[Tensor[2 * N]]",
        "for t in range(N):\n y[2 * t] = x[t] ** 2\ns = sum(y * y)", 6,
    ),
    "a loop that may not run": (
        "x : In[Tensor[N]], y : Out[Tensor[N]], n : In[int]",
        "for t in range(n):\n y[i] = x[i]\ns = sum(y * y)", 6,
    ),
    "the wrong way round": (
        LONGER, "y[0] = 1.0\nfor t in reversed(range(N)):\n y[t + 1] = x[t] * y[t]\ns = y[0]", 6,
    ),
    "a slice": (LONGER, "for t in range(N):\n y[t + 1] = y[t] * x[t] + sum(y[:2])\ns = y[N]", 5),
    "a number": (NUMBER, "y = y * sum(x)\ns = sum(x)", 4),
    "a sum into a number": (VECTOR, "s += y[i] * y[i] * x[i]", 4),
}  # fmt: skip


def _module(head: str, body: str) -> Module:
    lines = ["s = 0.0", *body.split("\n"), "return s"]
    text = f"\ndef f({head}) -> float:\n" + "".join(f"    {line}\n" for line in lines)
    return pipeline.adjoint(pipeline.parsed(text + "\nd_f = rev_diff(f)\n"))


@pytest.mark.parametrize("name", WRITTEN)
def test_it_is_right_where_they_were_written_before(name: str) -> None:
    """What they hold on entry changes nothing."""
    head, body = WRITTEN[name]
    program = Interpreter(_module(head, body))
    generator = np.random.default_rng(3)
    x = 0.5 + generator.random((3, 3) if head == MATRIX else 3)
    found_s, y = program.call("f", x, _filled(program, x, 0.5))
    seeds = generator.random(y.shape) if isinstance(y, np.ndarray) else 0.7
    (found,) = program.call("d_f", x, 0 * x, seeds, 1.0)
    other = program.call("f", x, _filled(program, x, 0.7))
    if "+=" not in body:
        assert np.array_equal(other[0], found_s)
        assert np.array_equal(other[1], y)
    numeric = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        ends = []
        for step in (1e-6, -1e-6):
            moved = x.copy()
            moved[at] += step
            s, out = program.call("f", moved, _filled(program, x, 0.5))
            ends.append(s + np.sum(out * seeds))
        numeric[at] = (ends[0] - ends[1]) / 2e-6
    np.testing.assert_allclose(found, numeric, rtol=1e-6, atol=1e-8)


def _filled(program: Interpreter, x: np.ndarray, value: float) -> np.ndarray | float:
    """An ``Out`` argument of the right shape."""
    for shape in ((), (3,), (4,), (6,), (3, 2), (4, 4)):
        y = np.full(shape, value) if shape else value
        try:
            program.call("f", x, y)
        except (TypeError, ValueError):
            continue
        return y
    raise AssertionError("no shape fits")


@pytest.mark.parametrize("name", UNKNOWN)
def test_it_is_refused_where_they_may_be_read(name: str) -> None:
    head, body, line = UNKNOWN[name]
    with pytest.raises(errors.NotDifferentiable) as caught:
        _module(head, body)
    assert caught.value.message == (
        "the reverse derivative of 'f' needs the value that its Out argument 'y' has on entry, "
        "and rev_diff passes none"
    )
    assert caught.value.span.line == line


def test_autograd_has_them() -> None:
    """The halves that autograd runs are given what the argument holds: nothing is refused."""
    head, body, _ = UNKNOWN["a factor"]
    text = (
        f"def f({head}) -> float:\n    s = 0.0\n    {body[: body.index(chr(10))]}\n    return s\n"
    )
    (pair,) = pipeline.program(text).pairs
    assert 1 in pair.differentiable
