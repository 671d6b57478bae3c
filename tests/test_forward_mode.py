"""Forward mode on scalar functions: conventions, derivatives against differences, size of text."""

from __future__ import annotations

import math
import textwrap
import time
from typing import Any

import numpy as np
import pytest
from scalar_oracle import Scalars, check_forward

from loma.ad import differentiate
from loma.frontend import parse
from loma.ir import StructType
from loma.printer import print_function

REQUESTS = "d_f = fwd_diff(f)\ndd_f = fwd_diff(d_f)\n"

# The expressions of x, y (floats) and n (an int); all smooth at the points of POINTS.
EXPRESSIONS = [
    "x", "3.0", "n", "-x", "x + y", "x - y", "x * y", "x / y", "x + n", "n * x", "x / n", "n / x",
    "x % 4.0", "x // 4.0", "n / 2 * x", "n // 2 + x", "n % 2 * y", "x ** 2", "x ** 3", "x ** -2",
    "x ** 0", "x ** 1", "x ** y", "x ** 2.5", "x ** n", "2 ** x", "n ** 2 * x", "pow(x, y)",
    "pow(x, 3)", "pow(2.0, y)", "sin(x)", "cos(x)", "tan(x)", "exp(x)", "log(x)", "sqrt(x)",
    "tanh(x)", "abs(x)", "abs(-x)", "abs(n) * x", "min(x, y)", "max(x, y)", "max(y, x)",
    "min(x, 5)", "max(n, x)", "min(n, 7) * x", "floor(x) * y", "int2float(n) * x",
    "float2int(x) * y", "mul_no_nan(x, y)",
    "(x < y) * x", "(x <= y) + (x > y) * y", "(x >= y) * y + (n == 3) * x", "(n != 3) + x",
    "(x > 0.0 and y > 0.0) * x", "(x < 0.0 or y > 0.0) * y", "(not n) + x",
    "x if x > y else y", "x * y if n else 0.0", "0.0 if n else x", "1 if x > y else 0",
    "x if n == 2 else y if n == 3 else x * y", "sin(x if x > y else n) * y",
    "sin(x * y) * cos(x + sin(y * x)) / (1.0 + exp(x * y) ** 2)",
    "(x + y) * (x - y) * (x * y + 1.0) * (x / y - 2.0) * (y / x + 3.0) * (x + 2.0 * y + 1.0)",
]  # fmt: skip
POINTS = [(1.3, 0.7, 3), (0.4, 2.1, 2)]

# Functions ``f`` with arguments for them.
RAY = """
class V:
    x : float
    y : float
class Ray:
    origin : V
    hits : Array[int, 2]
    at : Array[float, 3]
class Scene:
    rays : Array[Ray, 2]
    scale : float
"""
V1, V2 = {"x": 0.3, "y": -0.8}, {"x": 1.1, "y": 0.6}
RAY1 = {"origin": V1, "hits": [1, 0], "at": [0.1, 0.7, -0.4]}
RAY2 = {"origin": V2, "hits": [0, 1], "at": [-0.9, 0.2, 0.5]}
SCENE = {"rays": [RAY1, RAY2], "scale": 1.7}

PROGRAMS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "no arguments": ("def f() -> float:\n    return 2.0\n", ()),
    "arguments are copies": (
        """
        def f(x : In[float], n : In[int]) -> float:
            x = x * x
            n += 1
            x += sin(x) * n
            x = n
            x += 0.5
            return x * x
        """,
        (0.7, 2),
    ),
    "conversions": (
        """
        def g(n : In[int], x : In[float]) -> float:
            return n * x

        def f(x : In[float], y : In[float]) -> float:
            n : int = x * 3.0
            z : float = n
            n = y
            z += g(x + 2.5, n) + g(n, 1) * x
            n += y
            return z * y + n * x
        """,
        (1.4, 2.6),
    ),
    "an int result and an int Out argument": (
        """
        def g(x : In[float], n : Out[int]) -> int:
            n = x * 4.0
            return x

        def h(x : In[float]) -> int:
            return x * 3.0

        def f(x : In[float], k : Out[int]) -> float:
            k = h(x) + 1
            return x * k
        """,
        (2.2, 9),
    ),
    "branches": (
        """
        def f(x : In[float], y : In[float], n : In[int]) -> float:
            z : float
            if x > y and n > 1:
                z = x * y
                if n == 3:
                    z = z * z
            elif n:
                z = sin(x)
            else:
                z = y
            return z * x
        """,
        (1.5, 0.5, 3),
    ),
    "a condition that its own branch changes": (
        """
        def f(x : In[float]) -> float:
            y : float = 1.0
            for i in range(4):
                if x > 0.5:
                    x = x - 0.6 * y
                    y = y * x + sin(y)
                else:
                    x = x + 1.1 * y
                    y = y + x * x
            return x * y
        """,
        (0.9,),
    ),
    "loops": (
        """
        def f(x : In[float], n : In[int]) -> float:
            s : float = 0.1
            i : int
            j : int
            while (i < n, max_iter := 10):
                j = 0
                while (j < i and s < 50.0, max_iter := 10):
                    s += sin(s * x) + i * x
                    j += 1
                for k in range(i):
                    for l in range(k + 1):
                        s = s * 0.9 + cos(x * l)
                for k in reversed(range(2)):
                    s = s * (x + k)
                i += 1
            return s
        """,
        (0.8, 4),
    ),
    "an iteration until it has converged": (
        """
        def f(x : In[float]) -> float:
            y : float = x
            while (abs(y * y - x) > 1e-7, max_iter := 50):
                y = 0.5 * (y + x / y)
            return y
        """,
        (3.0,),
    ),
    "overwritten arrays": (
        """
        def f(x : In[Array[float]], n : In[int], y : Out[Array[float, 4]]) -> float:
            a : Array[float, 4]
            b : Array[Array[float, 2], 4]
            c : Array[float, 4]
            k : int
            for i in range(n):
                a[i] = x[i] * x[n - 1 - i]
                b[i][i % 2] = a[i] + y[i]
            c = a
            for i in range(2 * n):
                k = (k * 3 + i + 1) % n
                a[k] = a[k] * a[(k + i) % n] + b[k][0] * b[i % n][1]
                a[k] += c[i % n] * a[k]
                b[k] = b[(k + 1) % n]
            y = a
            zero(a[1])
            zero(b[2])
            y[0] += a[1] + a[2] + b[2][0] + b[3][1]
            return y[1] * c[0]
        """,
        ([0.3, -0.7, 1.1, 0.4], 4, [0.5, 0.6, -0.2, 0.9]),
    ),
    "structs in arrays in structs": (
        RAY
        + """
        def turn(v : In[V], a : In[float]) -> V:
            out : V
            out.x = v.x * cos(a) - v.y * sin(a)
            out.y = v.x * sin(a) + v.y * cos(a)
            return out

        def move(ray : In[Ray], t : In[float], to : Out[Ray]):
            ray.origin.x = ray.origin.x + t * ray.at[0]
            to = ray
            to.origin = turn(ray.origin, t)
            to.at[2] = turn(turn(ray.origin, t * t), 1).y

        def f(scene : In[Scene], t : In[float], out : Out[Scene]) -> V:
            local : Scene = scene
            ray : Ray
            for i in range(2):
                move(local.rays[i], t * (i + 1), ray)
                out.rays[1 - i] = ray
                out.rays[i].at[ray.hits[i]] += ray.at[1] * local.scale
                local.rays[1 - i].origin = ray.origin
            out.scale = out.scale * local.scale
            local.scale = 0.0
            zero(ray.origin)
            out.rays[0].at = out.rays[1].at
            return turn(out.rays[0].origin, ray.origin.x + scene.scale)
        """,
        (SCENE, 0.4, {"rays": [RAY2, RAY1], "scale": 0.6}),
    ),
    "chained and nested calls": (
        """
        def g(x : In[float]) -> float:
            return sin(x) * x

        def h(x : In[float], y : In[float]) -> float:
            return g(x * y) + g(g(y))

        def both(x : In[float], s : Out[float], c : Out[float]):
            s = h(x, 0.5)
            c = c + g(x) * s

        def f(x : In[float], y : Out[float]) -> float:
            a : Array[float, 2]
            both(g(x), a[0], a[1])
            both(a[0], y, a[1])
            both(x, a[1], y)
            return h(g(h(x, y)), a[0]) + h(1, 2)
        """,
        (0.6, 0.9),
    ),
    "calls that are not always made": (
        """
        def root(x : In[Array[float, 2]], n : In[int]) -> float:
            y : float = x[0]
            while (y > 1.0, max_iter := 5):
                y = y * 0.5 * x[1]
            return y + n

        def f(a : In[Array[float, 2]], b : In[Array[float, 2]], x : In[float]) -> float:
            y : float = root(a, 1) if x > 1.0 else x * root(b, 2)
            z : float = (root(a, 1) if x > 1.0 else root(b, 2)) > 0.1
            if x > 1.0 and root(a, 0) > 0.5 or root(b, 0) * x > 0.1:
                y += root(b, 3 if root(b, 0) > 0.0 else 4) * x
            n : int
            while (root(b, n) < 2.9 and n < 4, max_iter := 4):
                n += 1
                b = b if False else b
                y = y * root(b, n)
            return y * z + (sin(x) if n and x < 0.0 else root(b, n) if x < 1.0 else root(a, 0))
        """.replace("b = b if False else b\n", "y = y + 0.0\n"),
        ([1e9, 1.5], [0.7, 0.8], 0.6),
    ),
    "structs whose members are read from a call": (
        RAY
        + """
        def make(x : In[float]) -> V:
            v : V
            v.x = x * x
            v.y = sin(x)
            return v

        def norm(v : In[V]) -> float:
            return sqrt(v.x * v.x + v.y * v.y)

        def f(x : In[float]) -> float:
            return norm(make(x)) + make(x * 2.0).y * norm(make(make(x).x))
        """,
        (0.8,),
    ),
    "several results": (
        """
        def g(x : In[float]) -> tuple[float, int, float]:
            return x * x, x * 3.0, 1

        def f(x : In[float]) -> tuple[float, float]:
            n : float
            k : int
            a, k, n = g(x)
            b, n, k = g(a)
            return a * b + n * x, k * x
        """,
        (1.2,),
    ),
    "nothing but floats and ints are called from conditions": (
        """
        def g(x : In[float], n : In[int]) -> float:
            return x * n

        def f(x : In[float]) -> float:
            i : int
            while (g(x, i) < 2.0, max_iter := 20):
                i += 1
            return g(x, i) if g(x, 2) > 1.0 else x
        """,
        (0.6,),
    ),
    "more than one work item may add": (
        """
        def f(x : In[float], n : Out[int]) -> float:
            s : float = x
            for i in range(3):
                atomic_add(s, s * x)
                atomic_add(s, i)
                atomic_add(n, float2int(x * 2.0))
            return s * n
        """,
        (0.8, 1),
    ),
    "stacks": (
        RAY
        + """
        def f(x : In[float], v : In[V]) -> float:
            s : Stack[float, 10]
            n : Stack[int]
            t : Stack[V, 3]
            u : V
            k : int
            for i in range(5):
                s.push(x * i)
                n.push(float2int(x * i))
            s.push(3.0)
            t.push(v)
            v.x = v.x * x
            t.push(v)
            u = t.pop()
            x = s.pop()
            x = s.pop()
            k = n.pop()
            v.y = s.pop()
            v = t.pop()
            return u.x * v.x + v.y * x * k
        """,
        (0.9, V2),
    ),
}


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
    start = time.perf_counter()
    differentiate(module)
    assert time.perf_counter() - start < 10.0
