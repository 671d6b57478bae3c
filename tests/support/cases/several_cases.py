"""Calls of scalar functions with several results for elements of tensors."""

from __future__ import annotations

import torch
from index_cases import FLOAT, Case, Ints
from torch import Tensor


def _swapped(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    for _ in range(2):
        a, b = a * b, b + torch.sin(a)
    return a, b


def _turned(x: Tensor) -> Tensor:
    first = x * x.flip(0)
    # the second result goes where the first one went, too
    return (x + x.flip(0)).flip(0) + 0 * first


def _lstm(x: Tensor) -> tuple[Tensor, Tensor]:
    h, c = [torch.zeros_like(x[0])], [torch.ones_like(x[0])]
    for row in x:
        gate = torch.sigmoid(row + h[-1])
        new = c[-1] * gate + torch.tanh(row * h[-1])
        h.append(gate * torch.tanh(new))
        c.append(new)
    return torch.stack(h), torch.stack(c)


def _running(x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    out = []
    for value in x:
        if value > 0:
            out.append(s * value)
            s = torch.sin(s) + value
        else:
            out.append(torch.zeros_like(value))
    return torch.stack(out), s


def _stats(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    s, q = (x * y).sum(1), (x * x).sum(1)
    return torch.stack([s * q, s + q], 1).sum(1), torch.cos(s) * q


def _powers(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
    last = torch.stack([v ** int(k) for v, k in zip(x, n, strict=True)])
    before = [sum(v**j for j in range(int(k))) for v, k in zip(x, n, strict=True)]
    return last, torch.stack([x.new_zeros(()) + v for v in before]), (n > 1).to(x.dtype) + 0 * x, n


SEVERAL = [
    Case("polar", """
def polar_of(x : In[float], y : In[float]) -> tuple[float, float]:
    r : float = sqrt(x * x + y * y)
    a : float = atan2(y, x)
    return r, a + 0.1 * r

def polar(x : In[Tensor[N, M]], y : In[Tensor[M]]) -> tuple[Tensor[N, M], Tensor[M, N]]:
    r : Tensor[N, M]
    t : Tensor[M, N]
    r[i, j], t[j, i] = polar_of(x[i, j] + 1.0, y[j])
    return r, t
""", lambda x, y: (torch.hypot(x + 1, y),
                   (torch.atan2(y + 0 * x, x + 1) + 0.1 * torch.hypot(x + 1, y)).T),
         ((3, 2), (2,))),
    Case("swapped", """
def swap(a : In[float], b : In[float]) -> tuple[float, float]:
    return a * b, b + sin(a)

def swapped(x : In[Tensor[N]], y : In[Tensor[N]]) -> tuple[Tensor[N], Tensor[N]]:
    a : Tensor[N] = x
    b : Tensor[N] = y
    a[i], b[i] = swap(a[i], b[i])
    for t in range(1):
        b[i], a[i] = swap_back(a[i], b[i])
    return a, b
""".replace("def swapped", """def swap_back(a : In[float], b : In[float]) -> tuple[float, float]:
    u, v = swap(a, b)
    return v, u

def swapped"""), _swapped, ((3,), (3,))),
    Case("turned", """
def both(a : In[float], b : In[float]) -> tuple[float, float]:
    return a * b, a + b

def turned(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N] = x
    y[i], y[N - 1 - i] = both(y[i], y[N - 1 - i])
    return y
""", _turned, ((4,),)),
    Case("lstm", """
def cell(x : In[float], h : In[float], c : In[float]) -> tuple[float, float]:
    gate : float = sigmoid(x + h)
    new : float = c * gate + tanh(x * h)
    return gate * tanh(new), new

def lstm(x : In[Tensor[T, N]]) -> tuple[Tensor[T + 1, N], Tensor[T + 1, N]]:
    h : Tensor[T + 1, N]
    c : Tensor[T + 1, N]
    c[0, i] = 1.0
    for t in range(T):
        h[t + 1, i], c[t + 1, i] = cell(x[t, i], h[t, i], c[t, i])
    return h, c
""", _lstm, ((4, 2),)),
    Case("running", """
def advance(s : In[float], x : In[float]) -> tuple[float, float]:
    return s * x, sin(s) + x

def running(x : In[Tensor[N]], s : In[float]) -> tuple[Tensor[N], float]:
    y : Tensor[N]
    for i in range(N):
        if x[i] > 0.0:
            y[i], now = advance(s, x[i])
            s = now
    return y, s
""", _running, ((5,), FLOAT)),
    Case("stats", """
class Sums:
    parts : Array[float, 2]

def combined(s : In[float], q : In[float]) -> tuple[float, float]:
    sums : Sums
    sums.parts[0] = s * q
    sums.parts[1] = s + q
    t : float
    for k in range(2):
        t += sums.parts[k]
    return t, cos(s) * q

def stats(x : In[Tensor[N, K]], y : In[Tensor[K]]) -> tuple[Tensor[N], Tensor[N]]:
    m : Tensor[N]
    v : Tensor[N]
    m[i], v[i] = combined(sum(x[i, k] * y[k] for k in K), sum(x[i, k] * x[i, k] for k in K))
    return m, v
""", _stats, ((3, 2), (2,))),
    Case("powers", """
def power(x : In[float], n : In[int]) -> tuple[float, float, int, int]:
    y : float = 1.0
    s : float
    k : int
    while (k < n, max_iter := 5):
        s += y
        y *= x
        k += 1
    return y, s, k > 1, k

def powers(x : In[Tensor[N]], n : In[IntTensor[N]]) -> tuple[
    Tensor[N], Tensor[N], Tensor[N], IntTensor[N]]:
    y : Tensor[N]
    s : Tensor[N]
    big : Tensor[N]
    k : IntTensor[N]
    y[i], s[i], big[i], k[i] = power(x[i], n[i])
    return y, s, big, k
""", _powers, ((4,), Ints(4, (4,)))),
]  # fmt: skip
