"""Loops that run as often as data say, calls as statements, and names that come again."""

from __future__ import annotations

import torch
from index_cases import FLOAT, Case
from torch import Tensor


def _accumulated(x: Tensor, times: int) -> Tensor:
    y = torch.zeros_like(x)
    for _ in range(times):
        y = y * x + x * x
    return y


def _positions(x: Tensor, times: int) -> Tensor:
    y = torch.ones_like(x)
    for _ in range(times):
        y = y * x[[2, 1, 0]]
    return y


def _advanced(x: Tensor) -> Tensor:
    s = torch.ones((), dtype=x.dtype)
    for t in range(x.shape[0]):
        s = s * x[t] + x[0]
    return x * s


def _named_alike(x: Tensor) -> Tensor:
    y = x * (x * x).sum()
    for _ in range(3):
        y = y * y
    return y * 2 * x[0] * 2


CONTROL = [
    Case("out_call_in_a_loop", """
def add_square(x : In[Tensor[N]], y : Out[Tensor[N]]):
    y[i] = y[i] * x[i] + x[i] * x[i]

def out_call_in_a_loop(x : In[Tensor[N]], n : In[int]) -> Tensor[N]:
    y : Tensor[N]
    for t in range(n):
        add_square(x, y)
    if n > 2:
        add_square(x, y)
    return y
""", lambda x, n: _accumulated(x, n + 1), ((3,), 3)),
    Case("out_call_of_ints", """
def backwards(x : In[Tensor[N]], k : Out[IntTensor[N]]):
    k[i] = N - 1 - i

def out_call_of_ints(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    k : IntTensor[N]
    y[i] = 1.0
    backwards(x, k)
    for t in range(3):
        backwards(x, k)
        y[i] = y[i] * x[k[i]]
    return y
""", lambda x: _positions(x, 3), ((3,),)),
    Case("several_outs_in_a_loop", """
def advance(x : In[Tensor[N]], s : Out[float], n : Out[int]):
    s = s * x[n] + x[0]
    n = n + 1

def several_outs_in_a_loop(x : In[Tensor[N]]) -> Tensor[N]:
    s : float = 1.0
    n : int
    for t in range(N - 1):
        advance(x, s, n)
    advance(x, s, n)
    return x * s
""", lambda x: _advanced(x), ((3,),)),
    Case("calls_without_effect", """
def nothing(x : In[Tensor[N]]):
    pass

def no_number(a : In[float], n : In[int]):
    pass

def calls_without_effect(x : In[Tensor[N]], a : In[float]) -> Tensor[N]:
    nothing(x)
    for t in range(2):
        no_number(a, t)
        nothing(x)
    return x * x * a
""", lambda x, a: x * x * a, ((3,), FLOAT)),
    Case("results_into_old_variables", """
def both(x : In[Tensor[N]]) -> tuple[Tensor[N], Tensor[N]]:
    y = x * x
    return y, y * x

def results_into_old_variables(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y, z = both(x)
    z, y = both(z)
    return y * z
""", lambda x: x**15, ((3,),)),
    Case("indices_named_like_variables", """
def pair_of(x : In[Tensor[N]]) -> tuple[Tensor[N], float]:
    k : Tensor[N]
    for t in range(2):
        k[i] = k[i] + x[i]
    t : float = 1.0
    return k, t

def indices_named_like_variables(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[j] = x[j] * sum(x[i] * x[i] for i in N)
    for k in range(3):
        y[t] = y[t] * y[t]
    i : int = 2
    t, k = pair_of(x)
    y[j] = y[j] * t[0] * i * k
    return y
""", lambda x: _named_alike(x), ((3,),)),
]  # fmt: skip
