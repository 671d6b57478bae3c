"""Programs for the tests of reverse mode on the scalar layer.

Each defines a function ``f``; where arguments follow, ``f`` is differentiated there.
"""

from __future__ import annotations

from typing import Any

CASES: dict[str, tuple[str, list[Any]]] = {
    "operators": (
        """
def f(x : In[float], y : In[float]) -> float:
    a : float = x + y - x * y / (1.0 + y * y)
    b : float = (x ** 3 + (x + 2.0) ** y) % 1.7 - x // 0.9
    c : float = -a if not (x > y) else b - a
    return a * b + c * abs(x) - max(x, y) * min(a, 0.3)
""",
        [0.7, 1.3],
    ),
    "functions": (
        """
def f(x : In[float]) -> float:
    a : float = sin(x) + cos(x) * tan(x * 0.3) + exp(-x)
    return log(a + 2.0) + sqrt(x * x + 0.5) + tanh(a) + pow(x, 2.5) + floor(x) + abs(a)
""",
        [0.8],
    ),
    "overwritten scalar": (
        """
def f(x : In[float], y : In[float]) -> float:
    z : float = x * y
    z = sin(z) * z
    z = z * z + x
    z += z * y
    z -= x
    z *= x
    z /= y + 2.0
    return z
""",
        [0.7, 1.3],
    ),
    "argument reassigned": (
        """
def f(x : In[float], y : In[float]) -> float:
    x = x * y
    y = sin(x) + y
    x = x * y
    return x * y
""",
        [0.7, 1.3],
    ),
    "branch on a variable that the branch changes": (
        """
def f(x : In[float]) -> float:
    y : float = x
    if y > 0.5:
        y = -y * y
    elif y > 0.2:
        y = y * 3.0
    else:
        y = sin(y)
    if y < 0.0:
        y = y * x
    return y * y
""",
        [0.8],
    ),
    "nested loops of varying length": (
        """
def f(x : In[float], n : In[int]) -> float:
    s : float = x
    i : int = 0
    j : int
    while (i < n, max_iter := 5):
        j = 0
        while (j <= i, max_iter := 6):
            s = s + sin(s * x) * 0.3
            j = j + 1
        s = s * 1.1
        i += 1
    return s * s
""",
        [0.7, 4],
    ),
    "for loops backwards and of varying length": (
        """
def f(x : In[float], n : In[int]) -> float:
    s : float = x
    for i in range(n):
        for j in reversed(range(i + 1)):
            s = s + sin(s * x) * (i - 0.5 * j)
    return s
""",
        [0.7, 4],
    ),
    "range that the loop changes": (
        """
def f(x : In[float], n : In[int]) -> float:
    s : float = x
    k : int = n
    for t in range(2):
        for i in range(k):
            k = k - 1
            s = s * x + k
        k = k + 2
    return s
""",
        [0.7, 3],
    ),
    "counter changed later": (
        """
def f(x : In[Array[float, 4]], n : In[int]) -> float:
    i : int = n
    y : float = x[i] * x[i]
    i = 2 * i
    y = y * x[i]
    i = i % 3
    return y * x[i]
""",
        [[0.3, 0.7, -0.4, 1.1], 1],
    ),
    "array overwritten": (
        """
def f(x : In[Array[float, 4]]) -> float:
    a : Array[float, 4]
    for t in range(3):
        for i in range(4):
            a[i] = a[(i + 1) % 4] * x[i] + sin(x[(i + t) % 4])
    return a[0] * a[1] + a[2] * a[3]
""",
        [[0.3, 0.7, -0.4, 1.1]],
    ),
    "element that may be itself": (
        """
def f(x : In[Array[float, 3]], i : In[int], j : In[int]) -> float:
    a : Array[float, 3] = x
    a[i] = a[i] * a[j]
    a[j] = sin(a[i]) + a[j]
    a[i] += a[i] * a[j]
    return a[0] * a[1] * a[2]
""",
        [[0.3, 0.7, -0.4], 1, 1],
    ),
    "subscript that the statement changes": (
        """
def f(x : In[float]) -> float:
    k : Array[int, 3]
    a : Array[float, 3]
    k[0] = 0
    for t in range(3):
        k[k[0]] = k[0] + 1
        a[k[0] % 3] = a[k[0] % 3] * x + sin(x) + t
    return a[0] * a[1] + a[2]
""",
        [0.6],
    ),
    "structs in arrays in structs": (
        """
class Point:
    x : float
    n : int
    v : Array[float, 2]

class Cloud:
    points : Array[Point, 3]
    weight : float

def f(c : In[Cloud], p : In[Point]) -> float:
    q : Cloud = c
    r : Point
    for i in range(3):
        r = q.points[i]
        r.v[1] = r.v[0] * r.x + p.v[1]
        q.points[(i + 1) % 3] = r
        q.points[i].x = q.points[i].x * q.weight * p.x
        q.weight = q.weight + r.v[1] * r.v[0]
    c.weight = c.weight * q.weight
    return c.weight + q.points[0].x * q.points[2].v[1]
""",
        [
            {
                "points": [{"x": 0.3 + k, "n": k, "v": [0.5 - k, 0.2]} for k in range(3)],
                "weight": 0.7,
            },
            {"x": 1.2, "n": 1, "v": [0.4, -0.6]},
        ],
    ),
    "struct to itself": (
        """
class Pair:
    a : float
    b : float

def f(p : In[Array[Pair, 2]], i : In[int]) -> float:
    q : Array[Pair, 2] = p
    q[0].a = q[0].a * q[1].b
    q[i] = q[0]
    q[0] = q[i]
    q[1].b = q[0].a * q[0].b
    return q[0].a * q[1].b
""",
        [[{"a": 0.3, "b": 0.8}, {"a": 1.3, "b": -0.8}], 0],
    ),
    "result is a struct": (
        """
class Pair:
    a : float
    n : int
    b : Array[float, 2]

def g(x : In[float], p : In[Pair]) -> Pair:
    p.b[0] = x * p.a
    p.a = p.b[0] * p.b[1]
    return p

def f(x : In[float], p : In[Pair]) -> Pair:
    q : Pair = g(x, p)
    q = g(x * x, q)
    q.a = q.a + g(q.b[0], p).a
    return q
""",
        [0.7, {"a": 0.3, "n": 2, "b": [0.5, 0.9]}],
    ),
    "calls chained and nested": (
        """
def g(x : In[float], y : In[float]) -> float:
    return x * y + sin(x)

def h(x : In[float]) -> float:
    return g(x, x) * g(x + 1.0, 2.0 * x)

def f(x : In[float], y : In[float]) -> float:
    z : float = h(g(x, h(y)))
    z = g(z, z) if z > 100.0 else g(y, z)
    if x > 0.0 and h(x) > -100.0:
        z = z + h(z * 0.1)
    return g(z, x)
""",
        [0.3, 0.4],
    ),
    "several results": (
        """
class Pair:
    a : float
    b : float

def g(x : In[float], y : In[float]) -> tuple[float, Pair, int]:
    p : Pair
    p.a = sin(x) * y
    p.b = x
    return x * y, p, 3

def f(x : In[float]) -> tuple[float, float]:
    a, p, n = g(x, x * 2.0)
    for i in range(n):
        a, p, n = g(p.a, a)
    b : float = p.a
    b, p, n = g(b, b)
    return a * p.b, b * x + n
""",
        [0.7],
    ),
    "results named like the derivative's arguments": (
        """
def g(x : In[float]) -> tuple[int, float]:
    return 3, x * x

def f(x : In[float]) -> float:
    _d_x, _d_result = g(x)
    return _d_x * _d_result
""",
        [0.7],
    ),
    "calls with Out arguments": (
        """
def scale(x : In[float], y : Out[float], a : Out[Array[float, 2]]):
    y = y * x + a[0]
    a[1] = a[0] * y
    a[0] = sin(a[1]) * x

def f(x : In[float], y : Out[float], n : In[int]):
    a : Array[float, 2]
    a[0] = x
    y = x * x
    for i in range(n):
        scale(x + i, y, a)
        scale(a[1] * 0.1, a[0], a) if 0 else 0
    y = y * a[0]
""".replace("        scale(a[1] * 0.1, a[0], a) if 0 else 0\n", ""),
        [0.3, 0.0, 3],
    ),
    "elements passed as Out": (
        """
def step(x : In[float], y : Out[float]):
    y = y * x + x * x

def f(x : In[Array[float, 3]], n : In[int]) -> float:
    a : Array[float, 3] = x
    for i in range(n):
        step(x[i % 3], a[(i + 1) % 3])
        step(a[i % 3], a[(i + 1) % 3])
    return a[0] * a[1] * a[2]
""",
        [[0.3, 0.7, -0.4], 4],
    ),
    "places that only subscripts tell apart": (
        """
def swap(x : Out[float], y : Out[float]):
    t : float = x
    x = y * y
    y = t * 2.0

def scale(x : In[Array[float, 2]], y : Out[Array[float, 2]]):
    y[0] = x[0] * x[1]
    y[1] = y[0] * y[1]

def f(a : In[Array[float, 3]], i : In[int], j : In[int]) -> float:
    q : Array[float, 3] = a
    m : Array[Array[float, 2], 3]
    swap(q[i], q[j])
    swap(q[j], q[(i + 2) % 3])
    for k in range(3):
        m[k][0] = q[k]
        m[k][1] = a[k]
    scale(m[i], m[j])
    scale(m[j], m[2])
    return q[0] * q[1] + q[2] * m[2][1]
""",
        [[0.5, 0.9, -0.4], 0, 1],
    ),
    "array without derivative as an argument": (
        """
def bump(a : Out[float], x : In[float], w : In[Array[float]]):
    a += x * w[0] * w[1]

def f(x : In[float], n : In[int]) -> float:
    a : float
    w : Array[float, 2]
    w[0] = 2.0
    w[1] = n
    bump(a, x, w)
    bump(a, n, w)
    return a * a
""",
        [0.7, 3],
    ),
    "elements of an array for a callee that changes its Out argument": (
        """
def step(x : In[float], y : Out[float]):
    y = y * x + sin(x)

def f(a : In[Array[float]], n : In[int]) -> float:
    s : float = 0.3
    for i in range(n):
        step(a[i], s)
    return s * s
""",
        [[0.3, 0.7, 1.2], 3],
    ),
    "one argument twice": (
        """
def g(x : In[float], y : In[float], a : In[Array[float, 2]], c : In[Array[float, 2]]) -> float:
    return x * sin(y) * a[0] * c[1] + a[1] * c[1]

def f(x : In[float], b : In[Array[float, 2]]) -> float:
    a : Array[float, 2] = b
    x = g(x, x, a, a)
    a[1] = g(a[0], a[0], a, b)
    return x * a[1]
""",
        [0.7, [0.4, 1.4]],
    ),
    "Out array written once in a loop": (
        """
def f(x : In[Array[float]], n : In[int], y : Out[Array[float]]):
    i : int = 0
    while (i < n, max_iter := 10):
        y[i] = x[i] * x[(i + 1) % n]
        i = i + 1
""",
        [[0.3, 0.7, -0.4], 3, [1.0, 2.0, 3.0]],
    ),
    "rows of an image of known width": (
        """
def f(x : In[Array[float]], n : In[int], o : Out[Array[float]]):
    for j in range(n):
        for i in range(2):
            o[2 * j + i] = x[j] * x[i]
""",
        [[0.3, 0.7, 0.2], 3, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]],
    ),
    "rows of an image of any width": (
        """
def f(x : In[Array[float]], n : In[int], w : In[int], o : Out[Array[float]]):
    for j in range(n):
        for i in range(w):
            o[j * w + i] = x[j] * x[i]
""",
        [[0.3, 0.7, 0.2], 3, 2, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]],
    ),
    "Out array written from its end": (
        """
def f(x : In[Array[float]], n : In[int], o : Out[Array[float]]):
    for i in range(n):
        o[n - 1 - i] = x[i] * x[i]
""",
        [[0.3, 0.7, 0.2], 3, [1.0, 1.0, 1.0]],
    ),
    "Out array written from an offset": (
        """
def f(x : In[Array[float]], n : In[int], k : In[int], o : Out[Array[float]]):
    for i in range(n):
        o[i + k] = x[i] * x[i]
""",
        [[0.3, 0.7, 0.2], 3, 2, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]],
    ),
    "Out elements assigned by a callee": (
        """
def h(a : In[float], i : In[int], y : Out[float]):
    y = a * a * i
def f(x : In[Array[float]], n : In[int], o : Out[Array[float]]):
    for i in range(n):
        h(x[i], i, o[i])
""",
        [[0.3, 0.7, 0.2], 3, [1.0, 1.0, 1.0]],
    ),
    "Out array that is summed into": (
        """
def f(A : In[Array[Array[float]]], x : In[Array[float]], n : In[int], y : Out[Array[float]]):
    for i in range(n):
        y[i] = 0.0
        for j in range(n):
            y[i] = y[i] + A[i][j] * sin(x[j])
""",
        [[[0.3, 0.7], [-0.4, 1.2]], [0.6, 0.9], 2, [1.0, 2.0]],
    ),
    "Out array that keeps what it had": (
        """
def f(x : In[float], y : Out[Array[float]], n : In[int]):
    for i in range(n):
        y[i] += x * x * i
        y[0] += x
""",
        [0.3, [1.0, 2.0, 3.0], 3],
    ),
    "Out arrays of unknown length through calls": (
        """
def square(x : In[Array[float]], n : In[int], y : Out[Array[float]]):
    for i in range(n):
        y[i] = x[i] * x[i]

def f(a : In[Array[float]], n : In[int], out : Out[Array[float]]):
    t : Array[float, 10]
    square(a, n, t)
    square(t, n, out)
""",
        [[0.5, 0.9, -0.4], 3, [1.0, 2.0, 3.0]],
    ),
    "rows of an Out array through calls": (
        """
def fill(x : In[Array[float]], n : In[int], y : Out[Array[float]]):
    i : int = 0
    while (i < n, max_iter := 10):
        y[i] = sin(x[i])
        i += 1

def f(a : In[Array[Array[float]]], n : In[int], out : Out[Array[Array[float]]]):
    for k in range(2):
        fill(a[k], n, out[k])
""",
        [[[0.5, 0.9], [0.1, 0.2]], 2, [[1.0, 2.0], [3.0, 4.0]]],
    ),
    "a callee's array that the caller needs again": (
        """
def step(x : In[float], n : In[int], y : Out[Array[float]]):
    for i in range(n):
        y[i] = y[i] * y[(i + 1) % n] + x

def f(x : In[float]) -> float:
    t : Array[float, 3]
    s : float
    t[0] = x
    t[1] = 0.4
    for k in range(3):
        s += t[0] * t[1]
        step(x * k, 3, t)
        s = s * t[2]
    return s
""",
        [0.6],
    ),
    "Out array of known size, read again": (
        """
def f(x : In[float], y : Out[Array[float, 4]]):
    y[0] = x
    for i in range(3):
        y[i + 1] = y[i] * y[i] + x
    y[0] = y[3] * y[1]
""",
        [0.3, [1.0, 2.0, 3.0, 4.0]],
    ),
    "Out scalar read again": (
        """
def f(x : In[float], y : Out[float], z : Out[float]):
    y = x * x
    z = y * y * x
    y = sin(z) * y
""",
        [0.6, 1.0, 2.0],
    ),
    "conversions": (
        """
def f(x : In[float], n : In[int]) -> float:
    k : int = x * 3.0
    y : float = n
    y = y * x + k
    k = y
    y = y * float2int(x) + int2float(k) * x + n / 2
    return y * n
""",
        [1.3, 5],
    ),
    "condition is a float": (
        """
def f(x : In[float]) -> float:
    y : float = x
    if x:
        y = y * x
    if y - y:
        y = 0.0
    return y * (2.0 if y else x)
""",
        [1.3],
    ),
    "stop of the derivative": (
        """
def f(x : In[float]) -> float:
    y : float = no_diff(x * 3.0 - 3.0 * x) * x
    return x * x + y
""",
        [1.3],
    ),
    "locals of the last iteration": (
        """
def f(x : In[float]) -> float:
    last : float
    s : float
    for i in range(4):
        last = x * (i + 1) + s
        s = s + last * last * 0.1
    return last * s
""",
        [0.4],
    ),
    "zeroed": (
        """
class Pair:
    a : float
    b : Array[float, 2]

def f(x : In[float]) -> float:
    p : Pair
    q : Array[Pair, 2]
    s : float
    for i in range(3):
        p.a = p.a + x * (i + 1)
        p.b[i % 2] = p.a * x
        q[i % 2] = p
        s = s + q[0].b[1] * q[1].a + p.b[0]
        zero(q[0])
        zero(p.b)
    return s * q[1].a + q[0].a
""",
        [0.8],
    ),
}

# What an Out argument holds on entry is not passed to its reverse derivative. Here nothing of it is
# needed, because the function has written it before.
WRITTEN_FIRST: dict[str, tuple[str, list[Any]]] = {
    "member by member": (
        """
class S:
    x : float
    y : float
def f(x : In[float], o : Out[S]):
    o.x = x * x
    o.y = o.x * o.x
""",
        [0.7, {"x": 3.0, "y": 4.0}],
    ),
    "by induction": (
        """
def f(x : In[float], y : Out[Array[float, 4]]):
    y[0] = x
    for i in range(3):
        y[i + 1] = y[i] * y[i] + x
    y[0] = y[3] * y[1]
""",
        [0.7, [3.0, 4.0, 5.0, 6.0]],
    ),
    "by induction in a while loop": (
        """
def f(x : In[float], n : In[int], y : Out[Array[float, 9]]):
    y[0] = x
    i : int = 1
    while (i < n, max_iter := 8):
        y[i] = y[i - 1] * y[i - 1] + x
        i = i + 1
""",
        [0.7, 4, [3.0] * 9],
    ),
    "array member filled by a loop": (
        """
class S:
    a : Array[float, 3]
def f(x : In[float], o : Out[S], z : Out[float]):
    for i in range(3):
        o.a[i] = x * i
    z = o.a[0] * o.a[1] * o.a[2]
""",
        [0.7, {"a": [3.0, 4.0, 5.0]}, 2.0],
    ),
    "nested loops over all elements": (
        """
def f(x : In[float], o : Out[Array[Array[float, 2], 3]], k : In[int]):
    for i in range(3):
        for j in range(2):
            o[i][j] = x * i * j
    o[0][0] = o[k][k] * o[1][k]
""",
        [0.7, [[3.0, 4.0], [5.0, 6.0], [7.0, 8.0]], 1],
    ),
    "zeroed first": (
        """
def f(x : In[float], o : Out[Array[float, 3]], k : In[int]):
    zero(o)
    o[k] = x
    o[0] = o[k] * o[1]
""",
        [0.7, [3.0, 4.0, 5.0], 1],
    ),
    "in the same pass": (
        """
def f(x : In[float], o : Out[Array[float, 3]], n : In[int]):
    for i in range(n):
        o[i] = x * i
        o[i] = o[i] * o[i]
""",
        [0.7, [3.0, 4.0, 5.0], 3],
    ),
    "only added to": (
        """
def f(x : In[float], o : Out[Array[float, 3]], n : In[int]):
    for i in range(n):
        o[i] = o[i] + x * i
""",
        [0.7, [3.0, 4.0, 5.0], 3],
    ),
    "by a callee": (
        """
def g(x : In[float], y : Out[float]):
    y = x * x
def f(x : In[float], o : Out[Array[float, 3]]):
    g(x, o[0])
    o[1] = o[0] * o[0]
""",
        [0.7, [3.0, 4.0, 5.0]],
    ),
}

# Here it is.
NEEDED_ON_ENTRY = {
    "element multiplied by itself": """
def f(x : In[float], o : Out[Array[float, 2]]):
    o[0] = o[0] * x
    o[1] = x * x
""",
    "element in a condition": """
def f(x : In[float], o : Out[Array[float, 2]]):
    if o[1] > 0.0:
        o[0] = x * x
    else:
        o[0] = x
""",
    "element of an int array as a subscript": """
def f(x : In[float], k : In[Array[float]], o : Out[Array[int, 2]], y : Out[float]):
    y = k[o[1]] * x
""",
    "element that a callee reads": """
def g(x : In[float], o : Out[Array[float]]):
    o[0] = o[0] * x
def f(x : In[float], o : Out[Array[float, 2]]):
    g(x, o)
""",
    "element that a loop writes later": """
def f(x : In[float], o : Out[Array[float, 4]]):
    o[0] = x
    for i in range(3):
        o[i] = o[i + 1] * o[i]
""",
}

# (program with its rev_diff, part of the message, the argument that is named)
REFUSED = {
    "entry value of an Out scalar": (
        "def f(x : In[float], y : Out[float]):\n    y = y * y * x\nd_f = rev_diff(f)\n",
        "needs the value that its Out argument 'y' has on entry",
        "y",
    ),
    "values of an Out array of unknown length": (
        "def f(x : In[float], y : Out[Array[float]], n : In[int]):\n"
        "    for i in range(n):\n        y[i + 1] = y[i] * y[i] * x\nd_f = rev_diff(f)\n",
        "needs values of its Out argument 'y', an array of unknown length",
        "y",
    ),
}
