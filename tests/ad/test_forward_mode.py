"""Forward mode on scalar functions: conventions, derivatives against differences, size of text."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import numpy as np
import pytest
from forward_cases import EXPRESSIONS, POINTS, PROGRAMS, RAY, RAY1
from scalar_oracle import Scalars, check_forward

from loma.ad import differentiate
from loma.core.ir import StructType
from loma.core.printer import print_function
from loma.frontend import parse

REQUESTS = "d_f = fwd_diff(f)\ndd_f = fwd_diff(d_f)\n"


@pytest.mark.parametrize("start", range(0, len(EXPRESSIONS), 8))
def test_operators_and_builtins(start: int) -> None:
    """First and second derivatives of each."""
    chosen = EXPRESSIONS[start : start + 8]
    text = "".join(
        f"def f{k}(x : In[float], y : In[float], n : In[int]) -> float:\n    return {expr}\n"
        f"d_f{k} = fwd_diff(f{k})\ndd_f{k} = fwd_diff(d_f{k})\n"
        for k, expr in enumerate(chosen)
    )
    program = Scalars(text)
    for k in range(len(chosen)):
        for x, y, n in POINTS:
            check_forward(program, f"f{k}", f"d_f{k}", (x, y, n))
            args = ({"val": x, "dval": 0.3}, {"val": y, "dval": -0.8}, n)
            check_forward(program, f"d_f{k}", f"dd_f{k}", args)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    """First and second derivatives, Out arguments' initial values included."""
    text, args = PROGRAMS[name]
    head, _, rest = text.partition("\n        def ")
    program = Scalars(head + textwrap.dedent(f"\n        def {rest}" if rest else "") + REQUESTS)
    check_forward(program, "f", "d_f", args)
    along = iter(np.random.default_rng(3).normal(size=100).tolist())
    pairs = zip(args, program.params("f"), strict=True)
    duals = [program.dual(arg, param.type, along) for arg, param in pairs]
    check_forward(program, "d_f", "dd_f", duals)


@pytest.mark.parametrize(
    ("body", "x", "derivative"),
    [
        ("sqrt(x)", 0.0, 0.0),
        ("sqrt(x * x)", 0.0, 0.0),
        ("abs(x)", 0.0, 0.0),
        ("x ** 0.5", 4.0, 0.25),
        ("pow(x, 2.0)", 0.0, 0.0),
        ("pow(x, 1.0)", 0.0, 1.0),
        ("pow(x, x * 0.0 + 2.0)", 0.0, 0.0),
        ("pow(x * 0.0, 0.0 * x)", 1.0, 0.0),
        ("pow(-1.0 - x, 2)", 0.0, 2.0),
        ("(-1.0 - x) ** 3", 0.0, -3.0),
        ("max(x, 0.0)", 0.0, 1.0),
        ("max(0.0, x)", 0.0, 0.0),
        ("min(x, 2.0 * x)", 0.0, 1.0),
        ("log(x) if x > 0.0 else 3.0 * x", 0.0, 3.0),
        ("x / x if x != 0.0 else x", 0.0, 1.0),
        ("max(2.0, log(x))", 0.0, 0.0),
        ("no_diff(sqrt(x)) + x", 0.0, 1.0),
        ("sqrt(no_diff(x)) * x", 0.0, 0.0),
        ("floor(x)", 2.0, 0.0),
        ("mul_no_nan(1.0 / x, x * x)", 0.0, 0.0),
    ],
)
def test_bad_points(body: str, x: float, derivative: float) -> None:
    """Where a derivative is declared, or NaN must not come out of what does not count."""
    text = f"def f(x : In[float]) -> float:\n    return {body}\nd_f = fwd_diff(f)\n"
    (found,) = Scalars(text).interpreter.call("d_f", {"val": x, "dval": 1.0})
    assert found["dval"] == derivative


def test_no_diff() -> None:
    """What it stops stays stopped in the derivative of the derivative."""
    text = (
        RAY
        + """
def f(r : In[Ray], x : In[float]) -> float:
    s : Ray = no_diff(r)
    return s.origin.x * x + s.at[1] * r.at[1] * no_diff(x) * x
d_f = fwd_diff(f)
dd_f = fwd_diff(d_f)
"""
    )
    program = Scalars(text)
    r, x = RAY1, 0.3
    along = np.random.default_rng(0).normal(size=6)
    _, (slope,) = program.forward("f", "d_f", (r, x), along)
    at1 = r["at"][1]
    expected = r["origin"]["x"] * along[5] + at1 * x * (x * along[3] + at1 * along[5])
    assert slope == pytest.approx(expected)
    duals = [program.dual(r, StructType("Ray"), iter(along)), {"val": x, "dval": along[5]}]
    unit = np.zeros(12)
    unit[10] = 1.0  # in x
    _, (_, second) = program.forward("d_f", "dd_f", duals, unit)
    assert second == pytest.approx(at1 * x * along[3])


def test_a_zero_tangent_stays_zero_where_the_slope_is_infinite() -> None:
    text = (
        "def f(x : In[float], y : In[float]) -> float:\n    return log(x) + x / y + 1.0 / x\n"
        "d_f = fwd_diff(f)\n"
    )
    zero = {"val": 0.0, "dval": 0.0}
    (found,) = Scalars(text).interpreter.call("d_f", zero, zero)
    assert found["dval"] == 0.0
    assert math.isnan(found["val"])


def test_convention(golden: Any) -> None:
    """Names, types and statements of the derivative of each kind of statement."""
    text = (
        RAY
        + """
def g(x : In[float], n : In[int]) -> float:
    return x * n

@simd
def f(x : In[float], n : In[int], a : In[Array[float]], m : In[Array[Ray, 2]],
      count : Out[int], out : Out[Array[Ray]], y : Out[float]):
    i : int = thread_id()
    z : float
    ray : Ray = m[i % 2]
    t : Stack[float, 3]
    if x > a[i] and n > 0:
        z = x * a[i] + n
        t.push(z)
        out[i] = ray
    else:
        ray.origin.x = 3
        out[i].at[1] += sin(x) * z
    while (g(z, i) < 2.0, max_iter := 10):
        z = t.pop()
        count += 1
    for k in range(n):
        z = g(z, k) if z > 0.0 else z
    zero(ray.at)
    atomic_add(y, z * x)
    atomic_add(count, 1)

def h(x : In[float], n : In[int], v : In[V]) -> V:
    v.x = v.x * x
    return v

d_f = fwd_diff(f)
d_h = fwd_diff(h)
dd_h = fwd_diff(d_h)
"""
    )
    module = differentiate(parse(text))
    shown = [print_function(module.function(name)) for name in ("d_f", "d_h", "dd_h")]
    golden("forward_mode.txt", "\n\n\n".join(shown))


def test_names_do_not_clash() -> None:
    text = """
def _d_fwd_g(x : In[float]) -> float:
    return x + 1.0

def g(x : In[float]) -> float:
    return x * _d_fwd_g(x)

def f(_t1 : In[float], x : In[float]) -> float:
    y : float = g(x) * sin(g(_t1) * g(x) * _t1)
    _t2 : float = y * g(y)
    return _t2
d_f = fwd_diff(f)
"""
    check_forward(Scalars(text), "f", "d_f", (0.3, 0.8))


@pytest.mark.parametrize(
    "build",
    [
        lambda n: "sin(" * n + "x" + ")" * n,
        lambda n: " * ".join(f"(x + {k})" for k in range(n)),
        lambda n: "x" + "".join(f" / ({k} + y" for k in range(n)) + ")" * n,
        lambda n: " + ".join(f"x * {k} * y" for k in range(n)),
        lambda n: "x" + "".join(f" if x > {k} else (y * x" for k in range(n)) + ")" * n,
        lambda n: "tan(" * n + "x * y" + ")" * n,
        lambda n: "pow(" * n + "x" + ", y)" * n,
    ],
)
def test_text_grows_with_the_program(build: Any) -> None:
    """Also for deep expressions, and for derivatives of derivatives."""

    def lengths(n: int) -> list[int]:
        text = f"def f(x : In[float], y : In[float]) -> float:\n    return {build(n)}\n"
        module = differentiate(parse(text + REQUESTS))
        return [len(print_function(module.function(name))) for name in ("d_f", "dd_f")]

    for short, long in zip(lengths(20), lengths(60), strict=True):
        assert long < 3.5 * short


def test_a_thousand_statements() -> None:
    lines = [
        f"    v{k} : float = sin(v{k - 1} * v{k // 2}) + tanh(v{k // 3}) / (1.0 + v{k - 1} * x)\n"
        for k in range(1, 1001)
    ]
    text = "def f(x : In[float]) -> float:\n    v0 : float = x\n" + "".join(lines)
    module = parse(text + "    return v1000\nd_f = fwd_diff(f)\n")
    derivative = differentiate(module).function("d_f")
    assert len(print_function(derivative).split("\n")) < 9000
