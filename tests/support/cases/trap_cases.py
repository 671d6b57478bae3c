"""Programs at which reverse modes go wrong: overwritten values, branches, loops, shared storage."""

from __future__ import annotations

import torch
from index_cases import FLOAT, Case, Ints, Values
from torch import Tensor


def _changed_condition(x: Tensor, a: Tensor) -> Tensor:
    s, y = a, x
    for _ in range(3):
        if s > 0:
            s = s - 1
            y = y * s
        else:
            s = s + 2
            y = y + s
    return y * s


def _varying_trips(x: Tensor) -> Tensor:
    y = torch.zeros((), dtype=x.dtype)
    for i in range(x.shape[0]):
        for j in range(i):
            y = y * 0.5 + x[i] * x[j]
        y = y * y
    return y


def _moving_index(x: Tensor) -> Tensor:
    k, y = 0, torch.zeros_like(x)
    for i in range(x.shape[0]):
        value = x[k] * x[k]
        k = (k + i + 1) % x.shape[0]
        y = y + torch.nn.functional.one_hot(torch.tensor(k), x.shape[0]) * value
        k = k + 1 if k + 1 < x.shape[0] else 0
    return y


def _last_iteration(x: Tensor) -> Tensor:
    t = torch.zeros((), dtype=x.dtype)
    for i in range(x.shape[0]):
        t = x[i] * x[i] + 0.1 * t
    return t * x


def _overwritten(x: Tensor) -> Tensor:
    y = x * x
    z = torch.sin(y)
    y = torch.cos(z) * y
    z = y * z
    return z + y


def _added_operators(x: Tensor, w: Tensor) -> Tensor:
    y = x + torch.exp(x)
    y = y + y / (x * x + 1.5)
    y = y + torch.tanh(y)
    y = y + torch.softmax(y, 1)
    return y + y @ w


def _operators_in_a_loop(x: Tensor, w: Tensor) -> Tensor:
    h = x
    for t in range(3):
        h = torch.tanh(h @ w)
        h = h * h + x if t == 1 else h
    return h


def _calls_in_a_loop(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    y, s = x, a
    for _ in range(3):
        m = y.mean()
        y, s = (y - m) * s, m * s + 1
    return y, s


def _insertion(x: Tensor) -> Tensor:
    """One pass of bubble sort with two smooth results."""
    values = list(x)
    for i in range(len(values) - 1):
        if values[i] > values[i + 1]:
            values[i], values[i + 1] = values[i + 1], values[i] * 2.0
    return torch.stack(values)


TRAPS = [
    Case("changed_condition", """
def changed_condition(x : In[Tensor[N]], a : In[float]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = x[i]
    for t in range(3):
        if a > 0.0:
            a = a - 1.0
            y[i] = y[i] * a
        else:
            a = a + 2.0
            y[i] = y[i] + a
    y[i] *= a
    return y
""", _changed_condition, ((3,), Values(0.4))),
    Case("varying_trips", """
def varying_trips(x : In[Tensor[N]]) -> float:
    y : float
    for i in range(N):
        for j in range(i):
            y = y * 0.5 + x[i] * x[j]
        y = y * y
    return y
""", _varying_trips, ((4,),)),
    Case("moving_index", """
def moving_index(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    k : int
    value : float
    for i in range(N):
        value = x[k] * x[k]
        k = (k + i + 1) % N
        y[k] += value
        k = k + 1 if k + 1 < N else 0
    return y
""", _moving_index, ((4,),)),
    Case("last_iteration", """
def last_iteration(x : In[Tensor[N]]) -> Tensor[N]:
    t : float
    for i in range(N):
        t = x[i] * x[i] + 0.1 * t
    y : Tensor[N]
    y[i] = t * x[i]
    return y
""", _last_iteration, ((4,),)),
    Case("overwritten", """
def overwritten(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = x[i] * x[i]
    z : Tensor[N]
    z[i] = sin(y[i])
    y[i] = cos(z[i]) * y[i]
    z[i] = y[i] * z[i]
    z[i] += y[i]
    return z
""", _overwritten, ((4,),)),
    Case("added_operators", """
def added_operators(x : In[Tensor[N, M]], w : In[Tensor[M, M]]) -> Tensor[N, M]:
    y : Tensor[N, M] = x
    y += exp(x)
    y += y / (x * x + 1.5)
    y += tanh(y)
    y += softmax(y, dim=1)
    y += matmul(y, w)
    return y
""", _added_operators, ((2, 3), (3, 3))),
    Case("operators_in_a_loop", """
def operators_in_a_loop(x : In[Tensor[N, M]], w : In[Tensor[M, M]]) -> Tensor[N, M]:
    h : Tensor[N, M] = x
    for t in range(3):
        h = tanh(matmul(h, w))
        if t == 1:
            h = h * h + x
    return h
""", _operators_in_a_loop, ((3, 2), (2, 2))),
    Case("calls_in_a_loop", """
def step(x : In[Tensor[N]], a : In[float]) -> tuple[Tensor[N], float]:
    m : float
    m += x[i] / N
    y : Tensor[N]
    y[i] = (x[i] - m) * a
    return y, m * a + 1.0

def calls_in_a_loop(x : In[Tensor[N]], a : In[float]) -> tuple[Tensor[N], float]:
    y : Tensor[N] = x
    for t in range(3):
        y, a = step(y, a)
    return y, a
""", _calls_in_a_loop, ((4,), FLOAT)),
    Case("the_same_tensor_twice", """
def pair(x : In[Tensor[N]], y : In[Tensor[N]]) -> Tensor[N]:
    z : Tensor[N]
    z[i] = x[i] * y[i] + y[0] * y[i]
    return z

def the_same_tensor_twice(x : In[Tensor[N]]) -> Tensor[N]:
    y = pair(x, x)
    return pair(y, x) + pair(y, y)
""", lambda x: _pair(_pair(x, x), x) + _pair(_pair(x, x), _pair(x, x)), ((3,),)),
    Case("reassigned_argument", """
def reassigned_argument(x : In[Tensor[N]], a : In[float], n : In[int]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = x[i] * a
    a = a * a
    n = n + 1
    y[i] += x[i] * a * n
    a = 3.0
    y[i] *= a
    return y
""", lambda x, a, n: 3 * (x * a + x * a * a * (n + 1)), ((3,), FLOAT, 2)),
    Case("zeroed_and_reused", """
def zeroed_and_reused(x : In[Tensor[N, M]]) -> Tensor[N]:
    t : Tensor[M]
    y : Tensor[N]
    for i in range(N):
        t[j] = 0.0
        t[j] += x[i, j] * x[i, j]
        y[i] = sum(t[j] for j in M)
        t[j] = 5.0 * y[i]
    y[0] += t[0]
    return y
""", lambda x: (x * x).sum(1) + 5 * torch.nn.functional.one_hot(
        torch.tensor(0), x.shape[0]) * (x[-1] ** 2).sum(), ((3, 2),)),
    Case("swap", """
def swap(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = x[i]
    t : float
    u : float
    for i in range(N - 1):
        if y[i] > y[i + 1]:
            t = y[i]
            u = y[i + 1]
            y[i] = u
            y[i + 1] = t * 2.0
    return y
""", _insertion, ((5,),)),
    Case("truncated_subscript", """
def truncated_subscript(x : In[Tensor[N]]) -> Tensor[2 * N]:
    y : Tensor[2 * N]
    y[i] = x[i / 2] * x[i / 2]
    return y
""", lambda x: torch.repeat_interleave(x * x, 2), ((3,),)),
    Case("reversed_loop", """
def reversed_loop(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    s : float
    for i in reversed(range(N)):
        s = s * x[i] + x[i]
        y[i] = s
    return y
""", lambda x: _backwards(x), ((4,),)),
    Case("unused_and_constant", """
def unused_and_constant(
    x : In[Tensor[N]], y : In[Tensor[M]], a : In[float]
) -> tuple[Tensor[M], float]:
    z : Tensor[M]
    z[i] = 2.0
    unused : Tensor[N]
    unused[i] = log(x[i])
    return z, 1.0
""", lambda x, y, a: (torch.full_like(y, 2.0), torch.tensor(1.0, dtype=y.dtype)),
         ((3,), (2,), FLOAT)),
    Case("argument_returned", """
def argument_returned(x : In[Tensor[N]], a : In[float]) -> tuple[Tensor[N], float, Tensor[N]]:
    y : Tensor[N] = x
    return x, a, y
""", lambda x, a: (x * 1, a * 1, x * 1), ((3,), FLOAT)),
    Case("one_tensor_returned_twice", """
def one_tensor_returned_twice(x : In[Tensor[N]]) -> tuple[Tensor[N], Tensor[N, 1]]:
    y = x * x
    return y, reshape(y, [N, 1])
""", lambda x: (x * x, (x * x)[:, None]), ((3,),)),
    Case("max_in_a_loop", """
def max_in_a_loop(x : In[Tensor[N, M]]) -> Tensor[N]:
    y : Tensor[N]
    z : Tensor[N]
    for t in range(2):
        z[i] = max(x[i, j] * (y[i] + 1.0) for j in M)
        y[i] = z[i] + y[i]
    return y
""", lambda x: _max_loop(x), ((3, 4),)),
    Case("lookup_in_a_loop", """
def lookup_in_a_loop(w : In[Tensor[V, D]], t : In[IntTensor[N]]) -> Tensor[D]:
    h : Tensor[D]
    for n in range(N):
        h[d] = tanh(h[d] * w[t[n], 0] + w[t[n], d])
    return h
""", lambda w, t: _lookups(w, t), ((4, 3), Ints(4, (5,)))),
]  # fmt: skip


def _pair(x: Tensor, y: Tensor) -> Tensor:
    return x * y + y[0] * y


def _backwards(x: Tensor) -> Tensor:
    s, out = torch.zeros((), dtype=x.dtype), []
    for value in reversed(list(x)):
        s = s * value + value
        out.append(s)
    return torch.stack(out[::-1])


def _max_loop(x: Tensor) -> Tensor:
    y = torch.zeros_like(x[:, 0])
    for _ in range(2):
        y = (x * (y + 1)[:, None]).amax(1) + y
    return y


def _lookups(w: Tensor, t: Tensor) -> Tensor:
    h = torch.zeros_like(w[0])
    for n in t.tolist():
        h = torch.tanh(h * w[n, 0] + w[n])
    return h
