"""Functions of structs with tensors: their members are arguments, one by one."""

from __future__ import annotations

import torch
from index_cases import FLOAT, Case
from torch import Tensor


def _dense(x: Tensor, w: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    return scale * (x @ w.T + b)


def _mlp(x: Tensor, *net: Tensor) -> Tensor:
    h = torch.tanh(torch.tanh(_dense(x, *net[:3])))
    return _dense(h, *net[3:6])


def _descend(w: Tensor, b: Tensor, s: Tensor, gw: Tensor, gb: Tensor, gs: Tensor, x: Tensor
             ) -> tuple[Tensor, ...]:  # fmt: skip
    for rate in (0.5, 0.25):
        w, b, s = w - rate * gw * w, b - rate * gb, s * s - rate * gs
    return (_dense(x, w, b, s), *(w, b, s))


def _filled(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    total = x.sum(0)
    return w * total * 2.0 + total, 2.0 * torch.ones_like(b) * b, 3.0 + 0.0 * b.sum()


LAYER = """
class Layer:
    w : Tensor[O, K]
    b : Tensor[O]
    scale : float

class Net:
    first : Layer[H, D]
    second : Layer[C, H]
    n : int

def dense(x : In[Tensor[B, K]], l : In[Layer]) -> Tensor[B, O]:
    y : Tensor[B, O]
    y[n, o] = l.scale * (l.b[o] + sum(l.w[o, k] * x[n, k] for k in K))
    return y

def step(l : In[Layer], g : In[Layer], rate : In[float] = 0.25) -> tuple[float, Layer]:
    r = l
    r.w[i, j] -= rate * g.w[i, j] * l.w[i, j]
    r.b = l.b - rate * g.b
    r.scale *= l.scale
    r.scale -= rate * g.scale
    return rate, r

def fill(l : Out[Layer], x : In[Tensor[B, K]]):
    l.w[o, k] += sum(x[b, k] for b in B)
    l.scale = 3.0
"""

STRUCTS = [
    Case("mlp", LAYER + """
def mlp(x : In[Tensor[B, D]], net : In[Net]) -> Tensor[B, C]:
    h = dense(x, net.first)
    for i in range(net.n):
        h = tanh(h)
    return dense(l=net.second, x=h)
""", _mlp, ((2, 3), (4, 3), (4,), FLOAT, (2, 4), (2,), FLOAT, 2)),
    Case("descend", """
def descend(l : In[Layer], g : In[Layer], x : In[Tensor[B, K]]) -> tuple[Tensor[B, O], Layer]:
    rate, a = step(l, g, rate=0.5)
    if rate > 0.0:
        rate, a = step(a, g)
    return dense(x, a), a
""", _descend, ((2, 3), (2,), FLOAT, (2, 3), (2,), FLOAT, (4, 3))),
    Case("filled", """
class Holder:
    inner : Layer[M, N]

def filled(x : In[Tensor[B, N]], w : In[Tensor[M, N]], b : In[Tensor[M]]) -> Layer[M, N]:
    h : Holder
    spare : Layer[M, N]
    spare.b = 2.0 * b
    h.inner = spare
    fill(h.inner, x)
    own = h.inner
    zero(spare)
    spare.w = w
    own.w[i, j] += 2.0 * spare.w[i, j] * sum(x[n, j] for n in B)
    own.b[i] *= 1.0 + spare.b[i]
    return own
""", _filled, ((2, 3), (4, 3), (4,))),
]  # fmt: skip
