"""Programs at which derivatives of calls and of conversions go wrong; see scalar_trap_cases."""

from __future__ import annotations

from typing import Any

from scalar_trap_cases import BOX, STRUCTS

CALL_TRAPS: dict[str, tuple[str, tuple[Any, ...]]] = {
    # ------------------------------------------------------------------------- accumulation
    "one variable passed twice": (
        """
        def g(x : In[float], y : In[float]) -> float:
            x = x * y
            return x + sin(y)

        def h(x : In[float], a : In[Array[float, 2]], b : In[Array[float, 2]], y : Out[float]):
            y = x * a[0] * b[1] + y

        def f(x : In[float], a : In[Array[float, 2]]) -> float:
            y : float = g(x, x)
            b : Array[float, 2] = a
            b[0] = g(b[0], b[0]) * g(y, y)
            h(b[0], b, b, y)
            h(b[0], a, a, b[1])
            y += y
            return g(y, y) + x * x + b[1]
        """,
        (0.7, [0.4, 0.9]),
    ),
    "one value used many times": (
        """
        def f(x : In[float], a : In[Array[float, 3]], out : Out[Array[float, 6]]):
            zero(out)
            for i in range(6):
                out[i] = x * a[i % 3] + a[0]
                out[i] += out[0] * x
                x = x * 0.9
        """,
        (0.7, [0.4, 0.9, -0.3], [0.0] * 6),
    ),
    "Out arguments of all kinds": (
        STRUCTS
        + """
        def g(x : In[float], y : Out[float], v : Out[V], a : Out[Array[float, 3]], n : Out[int]):
            v.x = x * y
            y = y + x * a[n]
            a[n] = a[n] * v.x
            n = (n + 1) % 3
            v.y += v.x * a[n]

        def f(x : In[float], box : Out[Box], y : Out[float], n : Out[int]) -> float:
            zero(box)
            zero(y)
            n = 0
            box.a[1] = x
            box.v.y = 0.4
            for i in range(4):
                g(x * box.a[1] + 1.0, y, box.items[i % 2], box.a, n)
                g(y, box.v.x, box.items[(i + 1) % 2], box.a, box.n)
                box.a[n] += x
            return y * box.v.x
        """,
        (0.6, BOX, 0.3, 2),
    ),
    "Out arguments that are overwritten, read and left alone": (
        """
        def g(x : In[float], a : Out[float], b : Out[float], c : Out[float]):
            a = x * x
            if x > 0.5:
                b = a * b

        def f(x : In[float]) -> float:
            a : float = x
            b : float = x * 3.0
            c : float = sin(x)
            g(x, a, b, c)
            g(a * x, b, c, a)
            g(c * b, c, a, b)
            return a * b * c
        """,
        (0.9,),
    ),
    "a call whose arguments its own results change": (
        """
        def g(k : In[int], x : In[float], n : Out[int], y : Out[float]):
            n = (n + k) % 3
            y = y * x + n

        def f(x : In[float]) -> float:
            n : int = 1
            a : Array[float, 3]
            a[0] = x
            a[1] = x * x
            for i in range(4):
                g(n + i, a[n] * x, n, a[n])
                g(i, x, n, a[(n + 1) % 3])
            return a[0] + a[1] * a[2]
        """,
        (0.7,),
    ),
    "parts of one variable passed together": (
        STRUCTS
        + """
        def g(x : In[float], y : Out[float], z : Out[float], v : In[V]):
            y = y * x + z
            z = z * y + v.x

        def f(x : In[float], box : In[Box]) -> float:
            a : Array[float, 3] = box.a
            for i in range(3):
                g(a[i], a[(i + 1) % 3], a[(i + 2) % 3], box.items[i % 2])
                g(box.a[0], box.a[1], box.v.y, box.items[1])
                g(x, box.items[0].x, box.items[0].y, box.items[1])
                x = x * a[2]
            return a[0] * box.items[0].x + a[1] * box.a[1] + a[2] * box.v.y
        """,
        (0.6, BOX),
    ),
    "an element counts only on the way out": (
        """
        def put(x : In[float], k : In[int], out : Out[Array[float, 3]]):
            out[k] = x

        def f(x : In[float]) -> float:
            a : Array[float, 3]
            for i in range(5):
                put(x * i, (i * 2) % 3, a)
                x = x + a[1] * a[0]
            return a[0] * a[1] + a[2]
        """,
        (0.4,),
    ),
    # --------------------------------------------------------------------- calls, conversions
    "calls in conditions, subscripts and ranges": (
        """
        def g(x : In[float]) -> float:
            return x * x - 0.3

        def k(x : In[float], n : In[int]) -> int:
            return x * n

        def f(a : In[Array[float, 4]]) -> float:
            x : float = a[1]
            for i in range(k(x, 3)):
                x = x + a[k(a[0], i) % 4] * g(a[i]) if g(x) > 0.1 and g(a[i]) < 0.6 else x * 0.5
            while (g(x) < 3.0, max_iter := 20):
                x = x + g(x * 2.0) * g(g(a[k(x, 1) % 4])) + 0.5
            return g(x)
        """,
        ([0.9, 1.2, -0.4, 0.3],),
    ),
    "long chains of calls": (
        "".join(
            f"""
        def g{k}(x : In[float], y : Out[float]) -> float:
            y = y + x * {k}.1
            return sin(x)
            """
            if k == 0
            else f"""
        def g{k}(x : In[float]) -> float:
            y : float = g{k - 1}(x * 1.1) + 0.1
            return y * g{k - 1}(y)
            """
            for k in range(1, 7)
        ).replace("g0(", "sin(")
        + """
        def f(x : In[float]) -> float:
            return g6(x) * g6(x * 0.5)
        """,
        (0.6,),
    ),
    "items share what a called function calls": (
        """
        def g(x : In[float], y : In[float]) -> float:
            return x * y

        def h(x : In[float], a : In[Array[float, 2]], y : Out[float]) -> float:
            y = y * x + a[1]
            return g(x, a[0])

        @simd
        def f(x : In[float], a : In[Array[float, 2]], y : Out[Array[float, 4]]):
            z : float = x
            h(g(x, a[1]), a, z)
            y[thread_id()] = z * g(z, x)
        """,
        (0.7, [0.4, 1.3], [0.0] * 4),
    ),
    "names that derivatives would choose": (
        """
        def g(x : In[float], _d_x : In[float]) -> float:
            _d_result : float = x * _d_x
            _g : float = _d_result * x
            return _g * _d_result

        def f(x : In[float], y : Out[float]) -> float:
            _d_x : float = x * x
            _d_y : float = g(_d_x, x)
            d_x : float
            _t1 : float = x
            y = _d_y
            for _d_result in range(2):
                d_x = d_x * x + _d_result + y
                if d_x > 0.1:
                    for _count in range(_d_result):
                        y = y * d_x * _t1
            return d_x * _d_x + y
        """,
        (0.7, 0.0),
    ),
    "ints into floats and back": (
        """
        def g(n : In[int], x : In[float]) -> float:
            return n * x

        def f(x : In[float], y : In[float], n : In[int]) -> float:
            k : int = x * 3.0
            z : float = n
            z = z * x + k
            k = z
            k += y
            z += g(x + 2.5, n) + g(n, y) * g(k, x)
            z = z + k / 2 * y + (x > y) * y
            x = k
            return z * y + x * z
        """,
        (1.4, 2.6, 3),
    ),
    "floats returned and passed as ints": (
        """
        def g(n : In[int], x : In[float]) -> tuple[int, float]:
            return n * x, n

        def h(x : In[float], n : In[int]) -> int:
            return x * n

        def f(x : In[float], y : In[float]) -> tuple[float, int]:
            n, z = g(x * 3.0, y)
            z, n = g(y, x)
            return z * x + n * y + h(x * 4.0, y), x * y
        """,
        (1.4, 2.6),
    ),
    "integer division in subscripts": (
        """
        def f(a : In[Array[float, 6]]) -> float:
            s : float
            t : float = 1.0
            for i in range(6):
                s += a[(i - 3) / 2 + 1] * a[(i - 3) // 2 + 2] * a[(i - 4) % 6]
                t = t * 0.7 + a[-(i - 5) / 2] * a[(3 - i) % 3 + 1] * a[(i * i - 7) / 5 + 1]
            return s * t
        """,
        ([0.9, 1.2, -0.4, 0.3, 0.7, -0.8],),
    ),
    "floats modulo floats": (
        """
        def f(x : In[float], y : In[float]) -> float:
            return (x * 3.0) % y + x // y * x + (-x) % (y * y) + floor(x * 2.0) * y
        """,
        (2.3, 0.7),
    ),
    # -------------------------------------------------------- derivatives inside programs
    "a program that uses a forward derivative": (
        """
        def h(x : In[float], a : In[Array[float, 2]]) -> float:
            for i in range(2):
                x = sin(x * a[i]) + x * x
            return x

        d_h = fwd_diff(h)

        def f(x : In[float], a : In[Array[float, 2]]) -> float:
            d : Diff[float]
            b : Array[Diff[float], 2]
            for i in range(2):
                b[i] = make__dfloat(a[i], 0.0)
            b[1].dval = x
            d = d_h(make__dfloat(x, 1.0), b)
            x = d_h(d, b).dval
            return d.val * d.dval + x * b[1].dval
        """,
        (0.4, [1.2, -0.7]),
    ),
    "a program that uses a reverse derivative": (
        """
        def h(x : In[float], a : In[Array[float, 2]], y : Out[float]) -> float:
            y = 0.3
            for i in range(2):
                x = sin(x * a[i]) + x * x
                y = y * x + a[i]
            return x * y

        d_h = rev_diff(h)

        def f(x : In[float], a : In[Array[float, 2]]) -> float:
            d_x : float = 0.1
            d_a : Array[float, 2] = a
            d_h(x, d_x, a, d_a, x * x, 2.0)
            return d_x * d_a[0] + d_a[1]
        """,
        (0.4, [1.2, -0.7]),
    ),
    "a program that minimises with a derivative": (
        """
        def loss(x : In[float], y : In[float], w : In[float]) -> float:
            return (x * x - w) * (x * x - w) + (y - x * w) * (y - x * w)

        d_loss = rev_diff(loss)

        def f(x : In[float], y : In[float], w : In[float]) -> float:
            d_x : float
            d_y : float
            d_w : float
            i : int
            while (i < 5, max_iter := 10):
                d_x = 0.0
                d_y = 0.0
                d_loss(x, d_x, y, d_y, w, d_w, 1.0)
                x -= 0.05 * d_x
                y -= 0.05 * d_y
                i += 1
            return loss(x, y, w) + d_w
        """,
        (0.4, 0.9, 0.7),
    ),
    "a stack": (
        """
        def f(x : In[float], n : In[int]) -> float:
            s : Stack[float, 20]
            t : Stack[int]
            y : float
            k : int
            for i in range(n):
                for j in range(i + 1):
                    s.push(x * j + y)
                    y = y + sin(x) * j
                t.push(i)
                if i % 2:
                    x = s.pop()
                    s.push(x * y)
            for i in range(n):
                k = t.pop()
                for j in range(k + 1):
                    y = s.pop()
                    x = x * 0.9 + y * k
            return x * y
        """,
        (0.4, 4),
    ),
    # -------------------------------------------------------------------- softmax, norms
    "softmax and log-sum-exp": (
        """
        def f(a : In[Array[float, 3]], p : Out[Array[float, 3]]) -> float:
            m : float = a[0]
            s : float
            zero(p)
            for i in range(3):
                m = max(m, a[i])
            for i in range(3):
                p[i] = exp(a[i] - m)
                s += p[i]
            for i in range(3):
                p[i] = p[i] / s
            return log(s) + m
        """,
        ([1000.0, 1001.5, 999.2], [0.0] * 3),
    ),
    "items add to what they share": (
        STRUCTS
        + """
        def g(x : In[float], v : In[V]) -> float:
            v.x = v.x * x
            return v.x * v.y

        @simd
        def f(x : In[float], a : In[Array[float, 4]], box : In[Box], y : Out[Array[float, 4]],
              total : Out[float], count : Out[int], sums : Out[Array[V, 2]]):
            i : int = thread_id()
            t : float = a[i] * x
            k : int
            while (k < i, max_iter := 4):
                t = t * box.a[k % 3] + sin(t) * x
                k += 1
            x = x * t
            box.v.x = box.v.x * a[3 - i]
            y[i] = x * g(t, box.v) + t
            atomic_add(total, y[i] * a[(i + 1) % 4])
            atomic_add(sums[i % 2].y, x * box.items[i % 2].x)
            atomic_add(count, i)
        """,
        (0.7, [0.4, -0.9, 1.2, 0.3], BOX, [0.0] * 4, 0.0, 0, [{"x": 0.0, "y": 0.0}] * 2),
    ),
}
