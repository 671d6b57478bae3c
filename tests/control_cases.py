"""Loops that run as often as data say, calls as statements, and names that come again."""

from __future__ import annotations

from index_cases import Case
from torch import Tensor


def _named_alike(x: Tensor) -> Tensor:
    y = x * (x * x).sum()
    for _ in range(3):
        y = y * y
    return y * 2 * x[0] * 2


CONTROL = [
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
