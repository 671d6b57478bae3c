"""Factors that do not depend on what is summed over leave the sum, those of derivatives, too."""

from __future__ import annotations

import numpy as np
import pytest

from loma import passes
from loma.backends.interpreter import Interpreter
from loma.core.printer import print_function
from loma.frontend import parse

HEAD = "x : In[Tensor[N, D]], g : In[Tensor[N, D]], z : In[Tensor[N]], w : In[Tensor[D]]"
SUM = "sum(x[n, d] * g[n, d] for d in D)"
GUARDED = "sum(mul_no_nan(x[n, d], g[n, d]) for d in D)"


def text(value: str) -> str:
    body = f"    y : Tensor[N]\n    y[n] = sum({value} for d in D)\n    return y\n"
    return f"def f({HEAD}) -> Tensor[N]:\n{body}"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("-(x[n, d] * g[n, d] / z[n])", f"-({SUM} / z[n])"),
        ("x[n, d] * z[n]", "z[n] * sum(x[n, d] for d in D)"),
        ("1.0 * x[n, d] * g[n, d]", "sum(1.0 * x[n, d] * g[n, d] for d in D)"),  # nothing leaves
        ("x[n, d] * g[n, d] + x[n, d] * g[n, d]", f"2.0 * {SUM}"),
        ("x[n, d] * g[n, d] + g[n, d] * x[n, d]", f"2.0 * {SUM}"),
        ("(0.5 * x[n, d] * g[n, d] + g[n, d] * (0.5 * x[n, d])) * z[n]", f"z[n] * {SUM}"),
        ("-x[n, d] * z[n] - 2.0 * z[n] * x[n, d]", "-(3.0 * (z[n] * sum(x[n, d] for d in D)))"),
        ("x[n, d] * g[n, d] - 0.5 * x[n, d] * g[n, d]", None),  # one is taken from the other
        ("x[n, d] / w[d] + x[n, d]", None),
        ("mul_no_nan(1.0 / z[n], -x[n, d])", "-mul_no_nan(1.0 / z[n], sum(x[n, d] for d in D))"),
        ("mul_no_nan(-(x[n, d] / z[n] / z[n]), g[n, d])",
         f"-mul_no_nan(1.0 / z[n], mul_no_nan(1.0 / z[n], {GUARDED}))"),
        ("mul_no_nan(x[n, d] * z[n], g[n, d] / z[n])", f"mul_no_nan(z[n], {GUARDED} / z[n])"),
        # the guard stays with what may be infinite
        ("mul_no_nan(x[n, d], g[n, d])", None),
        ("mul_no_nan(1.0 / w[d], g[n, d])", None),
        ("w[d] + z[n]", None),
    ],
)  # fmt: skip
def test_what_leaves_a_sum(value: str, expected: str | None) -> None:
    before = parse(text(value))
    after = passes.canonical.invariants(before)
    line = f"y[n] = {expected or f'sum({value} for d in D)'}"
    assert line in print_function(after.function("f"))
    rng = np.random.default_rng(0)
    args = rng.normal(size=(3, 4)), rng.normal(size=(3, 4)), rng.normal(size=3), rng.normal(size=4)
    found, right = (Interpreter(module).call("f", *args) for module in (after, before))
    np.testing.assert_allclose(found, right, 1e-12)


def test_a_zero_adjoint_passes_nothing_through_an_infinite_slope() -> None:
    module = passes.canonical.invariants(parse(text("mul_no_nan(x[n, d] / z[n] / z[n], g[n, d])")))
    x, g, z = np.ones((2, 3)), np.zeros((2, 3)), np.array([0.0, 2.0])
    (found,) = Interpreter(module).call("f", x, g, z, np.ones(3))
    assert found.tolist() == [0.0, 0.0]
    g[0], z[0] = 1e-20, 1e-20  # 1 / z / z is no float32
    (found,) = Interpreter(module).call("f", 1e-20 * x, g, z, np.ones(3))
    np.testing.assert_allclose(found, [3.0, 0.0])


def test_sums_of_no_terms_are_zero() -> None:
    values = ("x[n, d] / D", "mul_no_nan(1.0 / D, x[n, d])", "mul_no_nan(x[n, d], g[n, d] / D)")
    for value in values:
        module = passes.canonical.invariants(parse(text(value)))
        args = np.ones((2, 0)), np.ones((2, 0)), np.ones(2), np.ones(0)
        (found,) = Interpreter(module).call("f", *args)
        assert found.tolist() == [0.0, 0.0]


def test_a_sum_that_a_tensor_holds_is_read() -> None:
    body = text("x[n, d]").split("\n")[1:3]
    lines = [*body, "    z2 : Tensor[N]", "    z2[k] = 2.0 * sum(x[k, e] for e in D) + z[k]"]
    program = "\n".join(
        [f"def f({HEAD}) -> tuple[Tensor[N], Tensor[N]]:", *lines, "    return y, z2"]
    )
    shown = print_function(passes.optimise(parse(f"{program}\n")).function("f"))
    assert shown.count("sum(") == 1


CHOSEN = "sum(x[n, d] if x[n, d] > 0.5 else 0.0 for d in D)"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2.0 * x[n, d] / D if x[n, d] > 0.5 else 0.0", f"2.0 * {CHOSEN} / max(D, 1)"),
        ("-x[n, d] if x[n, d] > 0.5 else 0.0", f"-{CHOSEN}"),
        ("z[n] * x[n, d] if x[n, d] > 0.5 else z[n] * w[d]",
         f"z[n] * {CHOSEN.replace('else 0.0', 'else w[d]')}"),
        ("0.5 if x[n, d] > 0.5 else 0.0", f"0.5 * {CHOSEN.replace('(x[n, d]', '(1.0')}"),
        # the condition may guard it
        ("x[n, d] / z[n] if x[n, d] > 0.5 else 0.0", None),
        ("2.0 * x[n, d] if x[n, d] > 0.5 else w[d]", None),
    ],
)  # fmt: skip
def test_what_leaves_a_choice(value: str, expected: str | None) -> None:
    test_what_leaves_a_sum(value, expected)


def test_factors_leave_a_sum_into_a_number() -> None:
    lines = (
        "    loss : float",
        "    loss += 0.5 * x[n, d] * g[n, d] / N if x[n, d] > 0.0 else 0.0",
        "    loss += w[d] / z[0] if N > 0 else 0.0",
        "    return loss",
    )
    source = f"def f({HEAD}) -> float:\n" + "\n".join(lines) + "\n"
    before = parse(source)
    after = passes.canonical.invariants(before)
    shown = print_function(after.function("f"))
    assert "_r += x[n, d] * g[n, d] if x[n, d] > 0.0 else 0.0" in shown
    assert "loss += 0.5 * _r / max(N, 1)" in shown
    assert "loss += w[d] / z[0] if N > 0 else 0.0" in shown
    rng = np.random.default_rng(0)
    for n in (0, 3):
        args = rng.normal(size=(n, 4)), rng.normal(size=(n, 4)), rng.normal(size=n), np.ones(4)
        found, right = (Interpreter(module).call("f", *args) for module in (after, before))
        np.testing.assert_allclose(found, right, 1e-12)


LACKING = (
    ("y[n, d] = sum(x[m, n] for m in M)", True),
    ("y[n, d] += x[m, n]", True),
    ("y[n, d] = max(x[m, n] for m in M)", True),
    ("y[n, d] += x[m, n] * x[m, d]", False),
    ("y[n, d] = sum(x[m, n] for m in range(d))", False),
    ("y[0, d] += x[m, 0]", False),  # there is no row of its own
    ("y[n, d] += x[m, n]\n    y[n, d] += x[n, m]", True),
)


@pytest.mark.parametrize(("body", "once"), LACKING)
@pytest.mark.parametrize("size", [(3, 3), (1, 1), (0, 0)])
def test_a_sum_without_an_index_is_worked_out_once(
    body: str, once: bool, size: tuple[int, int]
) -> None:
    if size[0] == 0 and ("max" in body or "y[0" in body):
        size = (2, 2)
    source = (
        "def f(x : In[Tensor[M, M]]) -> Tensor[M, M]:\n"
        f"    y : Tensor[M, M]\n    {body}\n    return y\n"
    )
    before = parse(source)
    after = passes.canonical.reductions(passes.first_write(before))
    shown = print_function(after.function("f"))
    assert ("_r[n] = " in shown) == once, shown
    x = np.random.default_rng(1).normal(size=size)
    (found,), (right,) = (Interpreter(module).call("f", x) for module in (after, before))
    np.testing.assert_allclose(found, right, 1e-12)
