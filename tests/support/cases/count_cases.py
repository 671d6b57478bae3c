"""Loops whose counts only running tells, each with the same function in plain PyTorch: inner ranges
that data and changing ints bound, and ``while``."""

from __future__ import annotations

import torch
from index_cases import Case, Indices, Values
from torch import Tensor


def _segments(x: Tensor, p: Tensor) -> Tensor:
    out = [x.new_zeros(())]
    for r in range(1, len(p)):
        s = x.new_zeros(())
        for e in range(int(p[r - 1]), int(p[r])):
            s = torch.tanh(s + x[e])
        out.append(s)
    return torch.stack(out)


def _growing(x: Tensor, w: Tensor) -> Tensor:
    n, y = 0, x
    for i in range(len(w)):
        n = n + 1 if w[i] > 0 else n
        for j in range(n):
            y = torch.sin(y + w[j])
    return y


def _two_levels(x: Tensor, p: Tensor, q: Tensor) -> Tensor:
    s = x.new_tensor(0.5)
    out = []
    for r in range(len(p)):
        for e in range(int(p[r])):
            s = s * x[e]
            for k in range(int(q[e])):
                s = torch.cos(s + x[k])
        out.append(s)
    return torch.stack(out)


def _chosen(x: Tensor, p: Tensor) -> Tensor:
    y = x
    for r in range(len(p)):
        if p[r] > 1:
            for _ in reversed(range(int(p[r]))):
                y = torch.cat([y[:1] * y[-1], y[1:] * y[:-1]])
    return y


def _square_roots(a: Tensor) -> Tensor:
    return torch.sqrt(a * a + 1)


def _power(a: Tensor, start: Tensor) -> tuple[Tensor, int]:
    v, old, count = start, start * 0, 0
    while (v - old).norm() > 1e-3:
        old = v
        v = torch.tanh(a) @ v + start
        v = v / v.norm()
        count += 1
    return v, count


def _conjugate_gradients(a: Tensor, b: Tensor) -> Tensor:
    solution: Tensor = torch.linalg.solve(a @ a.T + torch.eye(len(b), dtype=b.dtype), b)
    return solution


def _collatz(x: Tensor, n: int) -> tuple[Tensor, int]:
    s, steps = x.new_zeros(()), 0
    while n != 1:
        s = torch.sin(s + x[n % len(x)])
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return s, steps


def _recurrence(x: Tensor, limit: Tensor) -> Tensor:
    h = [x[0]]
    while len(h) < len(x) and h[-1] < limit:
        h.append(h[-1] * x[len(h)] + 0.7)
    return torch.stack([*h, *[x[0] * 0] * (len(x) - len(h))])


def _nested(x: Tensor, q: Tensor) -> Tensor:
    out = []
    for r in range(len(q)):
        k, s = int(q[r]), x.new_tensor(0.1)
        if k != 2:
            while k > 0:
                s = torch.tanh(s + x[k])
                k -= 1
                for j in range(k):
                    s = s + torch.sin(s) * x[j]
                j = k
                while j > 1:
                    s, j = s * s + x[j], j - 2
        out.append(s)
    return torch.stack(out)


def _called(x: Tensor, c: Tensor) -> Tensor:
    y = x
    while y.sum() < c:
        y = _step(y * y + 0.1)
    return y * c


def _step(y: Tensor) -> Tensor:
    while y.max() < 3:
        y = y * 1.5
    return y


def _halved(x: Tensor) -> tuple[Tensor, Tensor]:
    s, y = x.new_zeros(()), 2 * x
    while y.abs().max() > 0.5:
        y = torch.sin(y) * x * 0.5
        s = s + (y * y).sum()
    return y, s


def _ragged_means(x: Tensor, w: Tensor, p: Tensor) -> Tensor:
    """With a sum of each row's last elements, and of none where a range is empty."""
    out = []
    for r in range(len(p) - 1):
        begin, end = int(p[r]), max(int(p[r + 1]), int(p[r]))
        rows = torch.sin(x[begin:end] * w).sum(0)
        out.append(rows / max(end - begin, 1))
    return torch.stack(out)


def _ragged_rows(x: Tensor, w: Tensor, p: Tensor) -> Tensor:
    out = []
    for r in range(len(p) - 1):
        h = w
        for e in range(int(p[r]), int(p[r + 1])):
            h = torch.tanh(h * x[e] + w)
        out.append(h)
    return torch.stack(out)


COUNTS = [
    Case("ragged_means", """
def ragged_means(x : In[Tensor[L, D]], w : In[Tensor[D]], p : In[IntTensor[B + 1]]) -> Tensor[B, D]:
    y : Tensor[B, D]
    y[b, d] = (sum(sin(x[l, d] * w[d]) for l in range(p[b + 0], p[b + 1]))
               / max(p[b + 1] - p[b + 0], 1))
    return y
""", _ragged_means, ((6, 3), (3,), Indices([0, 2, 2, 6, 5, 6]))),
    Case("ragged_rows", """
def ragged_rows(x : In[Tensor[L, D]], w : In[Tensor[D]], p : In[IntTensor[B + 1]]) -> Tensor[B, D]:
    y : Tensor[B, D]
    for b in range(B):
        y[b, d] = w[d]
        for l in range(p[b], p[b + 1]):
            y[b, d] = tanh(y[b, d] * x[l, d] + w[d])
    return y
""", _ragged_rows, ((6, 3), (3,), Indices([0, 2, 2, 6, 5, 6]))),
    Case("segments", """
def segments(x : In[Tensor[N]], p : In[IntTensor[M]]) -> Tensor[M]:
    y : Tensor[M]
    s : float
    for r in range(1, M):
        s = 0.0
        for e in range(p[r - 1], p[r]):
            s = tanh(s + x[e])
        y[r] = s
    return y
""", _segments, (Values([0.3, -1.0, 0.5, 2.0, -0.4, 0.9]), Indices([0, 2, 1, 2, 6]))),
    Case("growing", """
def growing(x : In[Tensor[N]], w : In[Tensor[M]]) -> Tensor[N]:
    y = x
    n : int = 0
    for i in range(M):
        if w[i] > 0.0:
            n = n + 1
        for j in range(n):
            y = sin(y + w[j])
    return y
""", _growing, ((3,), Values([0.5, -0.4, 1.3, 0.2, -1.0]))),
    Case("two_levels", """
def two_levels(x : In[Tensor[N]], p : In[IntTensor[M]], q : In[IntTensor[N]]) -> Tensor[M]:
    y : Tensor[M]
    s : float = 0.5
    for r in range(M):
        for e in range(p[r]):
            s = s * x[e]
            for k in range(q[e]):
                s = cos(s + x[k])
        y[r] = s
    return y
""", _two_levels, ((4,), Indices([2, 0, 4]), Indices([1, 3, 0, 2]))),
    Case("chosen", """
def chosen(x : In[Tensor[N]], p : In[IntTensor[M]]) -> Tensor[N]:
    y : Tensor[N]
    z : Tensor[N]
    y[i] = x[i]
    for r in range(M):
        n : int = p[r]
        if n > 1:
            for t in reversed(range(n)):
                z[i] = y[i] * (y[i - 1] if i > 0 else y[N - 1])
                y[i] = z[i]
    return y
""", _chosen, ((4,), Indices([2, 1, 0, 3]))),
    Case("square_roots", """
def square_roots(a : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    err : float = 1.0
    y[i] = a[i] * a[i] + 1.0
    while (err > 1e-10, max_iter := 50):
        y[i] = 0.5 * (y[i] + (a[i] * a[i] + 1.0) / y[i])
        err = max(abs(y[i] * y[i] - a[i] * a[i] - 1.0) for i in N)
    return y
""", _square_roots, ((4,),)),
    Case("power", """
def power(a : In[Tensor[N, N]], start : In[Tensor[N]]) -> tuple[Tensor[N], int]:
    v = start
    old : Tensor[N]
    w : Tensor[N]
    count : int
    while (norm(v - old) > 0.001, max_iter := 500):
        old = v
        w[i] = start[i] + sum(tanh(a[i, j]) * v[j] for j in N)
        v = w / norm(w)
        count += 1
    return v, count
""", _power, ((3, 3), (3,))),
    Case("conjugate_gradients", """
def conjugate_gradients(a : In[Tensor[N, N]], b : In[Tensor[N]]) -> Tensor[N]:
    x : Tensor[N]
    r = b
    p = b
    rs : float = sum(r * r)
    while (rs > 1e-24, max_iter := 20):
        q : Tensor[N]
        q[i] = p[i] + sum(a[i, k] * a[j, k] * p[j] for j in N for k in N)
        alpha : float = rs / sum(p * q)
        x = x + alpha * p
        r = r - alpha * q
        new : float = sum(r * r)
        p = r + (new / rs) * p
        rs = new
    return x
""", _conjugate_gradients, ((3, 3), (3,))),
    Case("collatz", """
def collatz(x : In[Tensor[N]], n : In[int]) -> tuple[float, int]:
    s : float
    steps : int
    while (n != 1, max_iter := 1000):
        s = sin(s + x[n % N])
        if n % 2 == 0:
            n = n / 2
        else:
            n = 3 * n + 1
        steps += 1
    return s, steps
""", _collatz, ((5,), 7)),
    Case("stopped", """
def stopped(x : In[Tensor[N]], limit : In[float]) -> Tensor[N]:
    h : Tensor[N]
    t : int = 1
    h[0] = x[0]
    while (t < N and h[t - 1] < limit, max_iter := 100):
        h[t] = h[t - 1] * x[t] + 0.7
        t += 1
    return h
""", _recurrence, (Values([0.3, 0.9, 0.5, 2.0, 1.4, 0.9]), Values(2.5))),
    Case("nested_whiles", """
def nested_whiles(x : In[Tensor[N]], q : In[IntTensor[M]]) -> Tensor[M]:
    y : Tensor[M]
    for r in range(M):
        k : int = q[r]
        s : float = 0.1
        if k != 2:
            while (k > 0, max_iter := 9):
                s = tanh(s + x[k])
                k -= 1
                for j in range(k):
                    s = s + sin(s) * x[j]
                l : int = k
                while (l > 1, max_iter := 9):
                    s = s * s + x[l]
                    l -= 2
        y[r] = s
    return y
""", _nested, ((6,), Indices([3, 0, 5, 2, 1]))),
    Case("called_whiles", """
def step(x : In[Tensor[N]]) -> Tensor[N]:
    y = x
    while (amax(y) < 3.0, max_iter := 30):
        y = y * 1.5
    return y


def called_whiles(x : In[Tensor[N]], c : In[float]) -> Tensor[N]:
    y = x
    while (sum(y) < c, max_iter := 30):
        y = step(y * y + 0.1)
    return y * c
""", _called, ((3,), Values(60.0))),
    Case("in_place_while", """
def in_place_while(x : In[Tensor[N]]) -> tuple[Tensor[N], float]:
    y : Tensor[N]
    s : float
    y[i] = 2.0 * x[i]
    while (max(abs(y[i]) for i in N) > 0.5, max_iter := 30):
        y[i] = sin(y[i]) * x[i] * 0.5
        s += sum(y[i] * y[i] for i in N)
    return y, s
""", _halved, (Values([1.5, -2.0, 0.7]),)),
]  # fmt: skip
