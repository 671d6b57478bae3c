"""What forward mode is tested on: expressions, and programs with arguments for them."""

from __future__ import annotations

from typing import Any

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
RAY1: dict[str, Any] = {"origin": V1, "hits": [1, 0], "at": [0.1, 0.7, -0.4]}
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
                y = y * root(b, n)
            return y * z + (sin(x) if n and x < 0.0 else root(b, n) if x < 1.0 else root(a, 0))
        """,
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
