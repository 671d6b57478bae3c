"""Programs at which derivatives go wrong: ``f``, and arguments for it."""

from __future__ import annotations

import textwrap
from typing import Any

STRUCTS = """
class V:
    x : float
    y : float
class Box:
    v : V
    n : int
    a : Array[float, 3]
    items : Array[V, 2]
"""
BOX = {
    "v": {"x": 0.4, "y": -0.7},
    "n": 1,
    "a": [0.3, -0.2, 0.9],
    "items": [{"x": 1.1, "y": 0.2}, {"x": -0.6, "y": 0.8}],
}

# name: (text with the function ``f``, arguments)
TRAPS: dict[str, tuple[str, tuple[Any, ...]]] = {
    # --------------------------------------------------------------------- branches and loops
    "a branch changes what its condition reads": (
        """
        def f(x : In[float], y : In[float]) -> float:
            for i in range(4):
                if x > 0.5:
                    x = x - 0.6 * y
                    y = y * x + sin(y)
                elif y > 0.9:
                    y = y * y * 0.5
                    x = x + 0.1 * y
                else:
                    x = x + 1.1 * y
            if y > x:
                y = x * y - 5.0
            return x * y
        """,
        (0.9, 0.7),
    ),
    "nested branches in a loop": (
        """
        def f(x : In[float], y : In[float]) -> float:
            for i in range(5):
                if x > 0.4:
                    if y > x:
                        x = x * 0.5
                    elif i % 2 == 0:
                        y = y + x * x
                    else:
                        x = y * 0.9
                elif y < 0.3:
                    y = y + 0.4 * x
                else:
                    if i == 1:
                        x = x + y
                    x = x * 1.1 + 0.1
                x = sin(x * y) + 0.2
            return x * y
        """,
        (0.9, 0.8),
    ),
    "nested loops whose ranges change": (
        """
        def f(x : In[float], n : In[int]) -> float:
            for i in range(n):
                n = n - 1
                for j in range(n):
                    if j % 2:
                        for k in range(n - j):
                            x = sin(x) * 1.3 + x * x * 0.1
                    n = n + (j == 1)
                n = n + 1
            return x * n
        """,
        (0.4, 3),
    ),
    "inner loops with varying trip counts": (
        """
        def f(a : In[Array[float, 5]], n : In[int]) -> float:
            s : float = 0.1
            i : int
            j : int
            while (i < n, max_iter := 5):
                j = 0
                while (j <= i and s < 50.0, max_iter := 5):
                    s = s * a[j] + sin(s) * a[i]
                    j += 1
                for k in range((i * 2) % 3):
                    s = s + a[k] * s * 0.3
                i += 1
            return s * s
        """,
        ([0.9, -0.4, 1.2, 0.3, 0.8], 5),
    ),
    "a loop that is not run": (
        """
        def f(x : In[float], n : In[int]) -> float:
            y : float = x
            while (n > 10, max_iter := 3):
                y = y * y
                n = n - 1
            for i in range(n - 5):
                y = sin(y)
            for i in range(0):
                y = 0.0
            return y * x
        """,
        (0.8, 2),
    ),
    "a counter that is changed after the loop": (
        """
        def f(a : In[Array[float, 4]], n : In[int]) -> float:
            i : int
            s : float = 1.0
            while (i < n, max_iter := 4):
                s = s * a[i]
                i += 1
            i = i - 3
            s = s * a[i] + a[i] * a[i]
            i = 2
            return s * a[i]
        """,
        ([0.9, -0.4, 1.2, 0.3], 4),
    ),
    "a subscript that is changed later": (
        """
        def f(a : In[Array[float, 4]], out : Out[Array[float, 4]]):
            k : int = 1
            at : Array[int, 2]
            zero(out)
            for i in range(6):
                out[k] = out[k] * 0.5 + a[(k + i) % 4] * a[k]
                k = (k * 3 + i) % 4
                at[i % 2] = k
                out[at[i % 2]] += out[at[(i + 1) % 2]] * a[k]
                at[0] = (at[0] + 1) % 4
            k = 0
        """,
        ([0.9, -0.4, 1.2, 0.3], [0.0] * 4),
    ),
    "a subscript that its own statement changes": (
        """
        def f(x : In[float]) -> float:
            n : Array[int, 4]
            a : Array[float, 4]
            n[0] = 1
            n[n[0]] = n[0] + 1
            n[n[1]] = 3
            for i in range(4):
                a[n[i % 3]] += x * i + a[n[2]] * x
                n[n[0]] = n[n[1]] % 4
            return a[0] + a[1] * a[2] + a[3] * x
        """,
        (0.7,),
    ),
    "the last iteration's values after the loop": (
        """
        def f(a : In[Array[float, 4]]) -> float:
            t : float
            u : float
            for i in range(4):
                t = a[i] * a[i] + 0.1 * t
                u = t * a[3 - i]
            return u * t + t * a[0]
        """,
        ([0.9, -0.4, 1.2, 0.3],),
    ),
    "an iteration whose length depends on the values": (
        """
        def f(x : In[float], y : In[float]) -> float:
            n : int
            while (x * x + y * y < 50.0, max_iter := 30):
                x = x * x * 0.9 - y * y * 0.3 + 0.8
                y = 1.5 * x * y + 0.2
                n += 1
            return x * n + y
        """,
        (0.4, 0.6),
    ),
    "loops in loops in loops, with branches": (
        """
        def f(x : In[float], n : In[int]) -> float:
            i : int
            j : int
            while (i < n, max_iter := 3):
                j = i
                while (j < 3 and x < 4.0, max_iter := 4):
                    for k in reversed(range(j)):
                        if k == i:
                            x = x * 1.2 + sin(x)
                        elif x > 1.0:
                            x = x - 0.3 * x * x
                    j += 1 + (x > 1.2)
                i += 1
                x = x * 0.8 + 0.1 * i
            return x
        """,
        (0.9, 3),
    ),
    # -------------------------------------------------------------------- overwritten values
    "values overwritten before they are needed": (
        """
        def f(x : In[float]) -> float:
            y : float = x * x
            z : float = sin(y)
            y = cos(z) * y
            z = y * z
            y = z
            z = z * y + x
            x = 0.0
            return z + y
        """,
        (0.8,),
    ),
    "a target on its own right side": (
        """
        def f(x : In[float], y : In[float]) -> float:
            x = x * x + y
            x += x * y
            x -= sin(x)
            x *= x + y
            x /= 2.0 + x
            y = x
            y += y
            y = y * y * y
            x = x
            return x * y
        """,
        (0.7, 0.4),
    ),
    "elements on their own right side": (
        """
        def f(a : In[Array[float, 3]], k : In[int]) -> float:
            b : Array[float, 3] = a
            b[k] = b[k] * b[k] + b[(k + 1) % 3]
            b[(k + 1) % 3] = b[k] * b[(k + 1) % 3] * b[(k + 2) % 3]
            b[k] += b[k] * b[2 - k]
            b[b[0] > 0.0] = b[1] * b[b[0] > 0.0]
            return b[0] * b[1] + b[2] * b[2]
        """,
        ([0.7, -0.4, 0.9], 1),
    ),
    "values swapped": (
        """
        def f(a : In[Array[float, 4]]) -> float:
            b : Array[float, 4] = a
            t : float
            for i in range(3):
                for j in range(3):
                    if b[j] > b[j + 1]:
                        t = b[j]
                        b[j] = b[j + 1]
                        b[j + 1] = t * 1.1
            return b[0] * b[1] * 2.0 + b[2] * b[3] * b[3]
        """,
        ([0.9, -0.4, 1.2, 0.3],),
    ),
    "whole arrays and structs overwritten": (
        STRUCTS
        + """
        def f(box : In[Box], x : In[float]) -> float:
            other : Box = box
            v : V = box.v
            grid : Array[Array[float, 2], 2]
            for i in range(3):
                v.x = v.x * x + other.a[i]
                other.items[i % 2] = v
                other.v = other.items[(i + 1) % 2]
                grid[i % 2][0] = other.v.x * v.y
                grid[(i + 1) % 2] = grid[i % 2]
                box = other
                box.items[0].x = x
                if i == 1:
                    zero(other.items)
                    other.a = box.a
                    v = other.items[1]
                zero(grid[0])
                other.a[i] = other.a[i] * other.v.y * grid[1][0]
            return box.v.x * other.a[2] + v.y + other.items[0].x * grid[1][0] + box.items[0].x
        """,
        (BOX, 0.6),
    ),
    "an adjoint that is an array, and a value that is not needed again": (
        STRUCTS
        + """
        def g(x : In[float], y : In[float]) -> float:
            return 0.5 + y * x - x

        def f(x : In[float], out : Out[Array[float, 2]]):
            a : Array[float, 2]
            v : V
            s : Stack[float]
            zero(out)
            a[3 % 2] += g(a[1], 0.5)
            v.x += a[0]
            out[1] += v.y
            for i in range(1):
                s.push(x)
                a[1] -= 0.5
            for i in range(1):
                out[i] = s.pop()
                for j in range(1):
                    a[j] = a[3 % 2] * x / 0.5
        """,
        (0.6, [0.0, 0.0]),
    ),
    "values set to zero": (
        STRUCTS
        + """
        def f(box : In[Box], x : In[float]) -> float:
            y : float = x * x
            a : Array[float, 3] = box.a
            zero(x)
            a[1] = a[1] * y
            zero(a[0])
            y = y * a[1] + x + a[0]
            zero(box.v)
            zero(a)
            return y + a[1] + box.v.x * y + box.a[2]
        """,
        (BOX, 0.6),
    ),
    "an argument that is reassigned": (
        STRUCTS
        + """
        def g(v : In[V], x : In[float]) -> V:
            x = x * v.x
            v.x = x * x
            v.y += x
            return v

        def f(box : In[Box], x : In[float]) -> float:
            v : V = g(box.v, x)
            box.v = g(v, x)
            x = x * box.v.x
            box.a[0] = box.a[0] * x
            return box.v.y + v.x * x + box.a[0]
        """,
        (BOX, 0.9),
    ),
    "a value that is recorded and not needed again": (
        """
        def f(x : In[float], a : In[Array[float, 2]]) -> float:
            b : Array[float, 2] = a
            i : int
            b[float2int(b[1])] *= x
            for k in range(2):
                zero(b)
            while (i < 2, max_iter := 3):
                b[i] = x if a[0] > 0.5 else b[i] / x
                b[1 - i] = b[i] * x
                zero(b[i])
                i += 1
            return b[0] * b[1] + b[1]
        """,
        (0.6, [0.2, 0.9]),
    ),
}


def dedented(text: str) -> str:
    """The text without the margin that the programs above have, but for the structs."""
    if text.startswith(STRUCTS):
        return STRUCTS + textwrap.dedent(text.removeprefix(STRUCTS))
    return textwrap.dedent(text)
