"""``loma show --stage kernels``: what fusion makes of programs, as golden files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from index_cases import CASES as INDEX_CASES
from schedule_cases import ATTENTION

from loma import pipeline
from loma.backends import torch as libtorch
from loma.backends.kernels import panels
from loma.backends.registry import CPU
from loma.backends.torch import codegen
from loma.core.ir import Stmt, is_tensor_function

CAPSNET = Path(__file__).resolve().parents[2] / "capsnet_loma"
# The shared index is the last dimension of every tensor, so iterations are blocks of its values.
BLOCKED = """
def blocked(x : In[Tensor[N]], n : In[int]) -> Tensor[N]:
    h : Tensor[N]
    y : Tensor[N]
    for t in range(n):
        h[i] = tanh(0.5 * h[i] + x[i])
        y[i] += h[i] * h[i]
    return y
"""
# Statements that share nothing: loops of their own, calls of the library, loops on one thread.
ALONE = """
def step(y : In[Tensor[N, M]]) -> Tensor[N, M]:
    z : Tensor[N, M]
    z[i, j] = sum(y[k, j] for k in range(i))
    return z

def alone(
    x : In[Tensor[N, M]], w : In[Tensor[M, M]], s : In[Tensor[B, C, H, W]],
    k : In[Tensor[O, C, P, Q]], at : In[IntTensor[N]], n : In[int],
) -> tuple[Tensor[N, M], Tensor[B, O, H - P + 1, W - Q + 1], Tensor[N], float]:
    y : Tensor[N, M]
    z : Tensor[B, O, H - P + 1, W - Q + 1]
    r : Tensor[N]
    if n > 0:
        y[i, j] += x[i, l] * w[l, j]
    elif n < 0:
        z[b, o, h, v] += s[b, c, h + p, v + q] * k[o, c, p, q]
    else:
        y[i, j] = x[i, j]
    for t in range(n):
        y = step(y)
        r[at[i]] += y[i, t]
    for t in range(1, N):
        r[t] = r[t - 1] * x[t, 0]
    return y, z, r, sum(r[i] * r[i] for i in N)
"""
CASES = {
    "squash": ("squash", (CAPSNET / "squash.loma").read_text(encoding="utf-8")),
    "routing": ("routing", (CAPSNET / "digit_capsules.loma").read_text(encoding="utf-8")),
    "panels": (
        "digit_capsules__backward",
        (CAPSNET / "digit_capsules.loma").read_text(encoding="utf-8"),
    ),
    "blocked": ("blocked", BLOCKED),
    "attention": ("attention__backward", ATTENTION),
    "alone": ("alone", ALONE),
}
WORDS = {
    "squash": "parallel ",
    "routing": "private ",
    "panels": "panels of ",
    "blocked": "private h : Tensor[i_count",
    "alone": "# parallel over ",
    "attention": "panels of i_count values of i in range(T), from i_first:",
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.full) if n == "panels" else n for n in CASES]
)
def test_kernels(name: str, golden: Callable[[str, str], None]) -> None:
    function, text = CASES[name]
    shown = pipeline.stage_text(text, "kernels", function)
    assert WORDS[name] in shown
    golden(f"kernels_{name}.loma", shown)


def test_the_code_shares_among_threads_what_is_said_to_be_shared(
    pytestconfig: pytest.Config,
) -> None:
    every = pytestconfig.getoption("--full")
    for case in INDEX_CASES if every else INDEX_CASES[::3]:
        if case.name == "transposed_squares":  # what a division leaves has a loop of its own
            continue
        module = pipeline.program(case.text).module
        for function in filter(is_tensor_function, module.functions):
            shown = libtorch.kernels_text(function, module, CPU)
            code = codegen.lower_function(function, module, CPU).text
            counts = re.findall(r"loma::parallel\((?:.* \? )?(.*?)(?: : 0)?, ", code)
            assert shown.count("# parallel over ") == len([c for c in counts if c != "1"]), shown


def test_a_run_that_is_one_kernel_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it is; each look goes through all of it."""
    looks: list[int] = []
    make = panels._panels

    def counted(group: tuple[Stmt, ...], *rest: Any) -> object:
        looks.append(len(group))
        return make(group, *rest)

    monkeypatch.setattr(panels, "_panels", counted)
    step = "    y = tanh(y) + x\n    y[n, i] += y[n, i] * x[n, i]\n"
    head = "def f(x : In[Tensor[N, I]]) -> Tensor[N, I]:\n    y : Tensor[N, I]\n"
    pipeline.stage_text(f"{head}{step * 5}    return y\n", "kernels", "f")
    assert looks == [10]


# The sum reads a row that the first statement writes: the run of all before it is one kernel, but
# without the first one it goes on.
LATER = """
def later(x : In[Tensor[B, I]]) -> tuple[Tensor[B, I], Tensor[I]]:
    a : Tensor[B, I]
    u : Tensor[B, I]
    v : Tensor[B, I]
    r : Tensor[I]
    a[b, i] = 2.0 * x[b, i]
    u[b, i] = sum(a[b, k] for k in I) + a[b, i]
    v[b, i] = sum(u[b, k] for k in I) * u[b, i]
    r[i] += v[b, i] * a[0, i]
    return a, r
"""


def test_a_later_start_is_tried_where_a_run_could_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOMA_OPT", "-temporaries")  # u and v stay
    assert "panels of b" in pipeline.stage_text(LATER, "kernels", "later")


GATED = """
def gated(x : In[Tensor[N, 2 * D]], g : In[Tensor[N, D]]) -> Tensor[N, 2 * D]:
    y : Tensor[N, 2 * D]
    e : Tensor[N, D]
    e[n, d] = exp(x[n, D + d])
    y[n, d + 0] = g[n, d] * e[n, d]
    y[n, d + D] = g[n, d] * e[n, d] * x[n, d + 0]
    return y
"""


def test_parts_of_rows_are_written_in_one_kernel() -> None:
    shown = pipeline.stage_text(GATED, "kernels", "gated")
    assert shown.count("parallel n") == 1
    assert "private e : Tensor[D]" in shown
    scattered = GATED.replace("y[n, d + D]", "y[n, 2 * d]").replace("d + 0] =", "d + D] =")
    assert "parallel n" in pipeline.stage_text(scattered, "kernels", "gated")
    assert "private e" not in pipeline.stage_text(scattered, "kernels", "gated")
