"""Loops that run as often as data say, calls as statements, and names that come again."""

from __future__ import annotations

import torch
from index_cases import FLOAT, Case, Indices, Values
from torch import Tensor


def _squared(x: Tensor, times: int) -> Tensor:
    y = x
    for _ in range(times):
        y = y * y + x
    return y


def _summed(x: Tensor, times: int) -> Tensor:
    s = torch.zeros((), dtype=x.dtype)
    for t in range(times):
        s = s * s + x[t]
    return x * s


def _triangle(x: Tensor, n: Tensor) -> Tensor:
    rows = [(x[: int(k)] ** 2).sum() for k in n]
    return x * torch.stack(rows)


def _nested(x: Tensor, k: int) -> Tensor:
    y = x
    for _ in range(2):
        for _ in range(k):
            y = y * y * 0.5 + x
    return y


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


def _sums(x: Tensor, n: Tensor, m: int) -> Tensor:
    y = x * x[: n[1]].sum()
    for _ in range(int(n[0])):
        y = y + y * x[: m // 2].sum()
    return y * (x[: n[0] + 1].amax() + x)


def _total(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    s = x[: n[0]].sum() * x[: n[1]].sum() + x[: n[1]].amax()
    return s, x * s


def _advanced(x: Tensor) -> Tensor:
    s = torch.ones((), dtype=x.dtype)
    for t in range(x.shape[0]):
        s = s * x[t] + x[0]
    return x * s


def _terms(x: Tensor, a: Tensor, n: int) -> Tensor:
    points = ((i, j, k) for i in range(n) for j in range(i) for k in range(i))
    return sum((x[i] + a[k, k] + x[j] for i, j, k in points), x.new_zeros(()))


def _powers(x: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    each = torch.stack([x**k for k in range(len(c))], 1)
    other = torch.stack([x.sin() ** (k + 2) for k in range(len(c))], 1)
    y = each.flip(1) @ c - x + other @ (c / (2 + c * c))
    return y, each * c


def _chain(x: Tensor, n: int) -> Tensor:
    points = ((i, j, k) for i in range(n) for j in range(i) for k in range(j))
    return sum((x[k] * x[j] + x[k] * n for _, j, k in points), x.new_zeros(()))


def _columns(x: Tensor, a: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for i in range(len(x)):
        for j in range(i):
            for k in range(i):
                y = y + a[k, j] * x[i] * torch.nn.functional.one_hot(torch.tensor(j), len(x))
    return y


def _named_alike(x: Tensor) -> Tensor:
    y = x * (x * x).sum()
    for _ in range(3):
        y = y * y
    return y * 2 * x[0] * 2


CONTROL = [
    Case("count_from_data", """
def count_from_data(x : In[Tensor[N]], n : In[IntTensor[K]]) -> Tensor[N]:
    y : Tensor[N] = x
    for t in range(n[1]):
        y[i] = y[i] * y[i] + x[i]
    return y
""", lambda x, n: _squared(x, int(n[1])), ((3,), Indices([7, 3]))),
    Case("count_in_a_variable", """
def count_in_a_variable(x : In[Tensor[N]], n : In[IntTensor[K]]) -> Tensor[N]:
    y : Tensor[N] = x
    k : int = n[0] + n[1]
    k = k // 2
    for t in range(k):
        k = k - 1
        y = y * y + x
    return y
""", lambda x, n: _squared(x, int(n[0] + n[1]) // 2), ((3,), Indices([4, 3]))),
    Case("count_from_a_float", """
def count_from_a_float(x : In[Tensor[N]]) -> Tensor[N]:
    s : float
    for t in range(float2int(x[0])):
        s = s * s + x[t]
    return x * s
""", lambda x: _summed(x, int(x[0])), (Values([3.5, 0.5, -0.25, 2.0]),), smooth=False),
    Case("count_from_a_function", """
def twice(n : In[int]) -> int:
    return 2 * n

def count_from_a_function(x : In[Tensor[N]], n : In[int]) -> Tensor[N]:
    y : Tensor[N] = x
    for t in range(twice(n)):
        y = y * y + x
    return y
""", lambda x, n: _squared(x, 2 * n), ((3,), 2)),
    Case("count_from_a_built_in", """
def count_from_a_built_in(x : In[Tensor[N]], n : In[int]) -> Tensor[N]:
    y : Tensor[N] = x
    for t in range(abs(n)):
        y = y * y + x
    return y
""", lambda x, n: _squared(x, abs(n)), ((3,), -2)),
    Case("count_below_zero", """
def count_below_zero(x : In[Tensor[N]], n : In[IntTensor[1]], m : In[int]) -> Tensor[N]:
    y : Tensor[N] = x
    for t in range(n[0]):
        y = y * y + x
    for u in range(m - 5):
        y = y * y + x
    return y
""", lambda x, n, m: x * 1, ((3,), Indices([-2]), 2)),
    Case("count_of_an_inner_loop", """
def count_of_an_inner_loop(x : In[Tensor[N]], n : In[IntTensor[1]]) -> Tensor[N]:
    y : Tensor[N] = x
    k : int = n[0]
    for t in range(2):
        for u in range(k):
            y = y * y * 0.5 + x
    return y
""", lambda x, n: _nested(x, int(n[0])), ((3,), Indices([3]))),
    Case("reduction_counted_by_data", """
def reduction_counted_by_data(x : In[Tensor[N]], n : In[IntTensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = x[i] * sum(x[k] * x[k] for k in range(n[i]))
    return y
""", _triangle, ((4,), Indices([2, 0, 4, 1]))),
    Case("sum_counted_by_data", """
def half(n : In[int]) -> int:
    return n // 2

def sum_counted_by_data(x : In[Tensor[N]], n : In[IntTensor[K]], m : In[int]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = sum(x[i] * x[k] for k in range(n[1]))
    for t in range(n[0]):
        y[i] += sum(y[i] * x[k] for k in range(half(m)))
    y[i] = y[i] * max(x[k] + x[i] for k in range(n[0] + 1))
    return y
""", lambda x, n, m: _sums(x, n, m), ((4,), Indices([2, 3]), 5)),
    Case("total_counted_by_data", """
def total_counted_by_data(x : In[Tensor[N]], n : In[IntTensor[K]]) -> tuple[float, Tensor[N]]:
    s : float = sum(x[i] * x[k] for i in range(n[0]) for k in range(n[1]))
    s += max(x[i] for i in range(n[1]))
    return s, x * s
""", lambda x, n: _total(x, n), ((4,), Indices([2, 3]))),
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
    z = y * x
    return y, z

def results_into_old_variables(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y, z = both(x)
    z, y = both(z)
    return y * z
""", lambda x: x**15, ((3,),)),
    Case("sums_that_broadcast", """
def sums_that_broadcast(x : In[Tensor[N, M]], w : In[Tensor[M]], u : In[Tensor]) -> Tensor:
    y = x * x
    y += 1.0
    y = y + w
    z = u * u
    z = z + y * w
    z += 2.0
    return z * z
""", lambda x, w, u: (u * u + (x * x + 1 + w) * w + 2) ** 2, ((2, 3), (3,), (3,))),
    Case("an_adjoint_cleared_between_others", """
def an_adjoint_cleared_between_others(x : In[Tensor[N]]) -> Tensor[N]:
    z : Tensor[N] = x * x
    a : Tensor[N] = z * z
    b : Tensor[N] = a * z
    z = a
    return b * z
""", lambda x: x**10, ((3,),)),
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
    Case("terms_without_the_counters_of_ranges", """
def terms_without_the_counters_of_ranges(x : In[Tensor[N]], a : In[Tensor[N, N]]) -> float:
    s : float
    for i in range(N):
        for j in range(i):
            for k in range(i):
                s += x[i] + a[k, k] + x[j]
    return s
""", lambda x, a: _terms(x, a, len(x)), ((5,), (5, 5))),
    Case("the_same_up_to_a_number", """
def the_same_up_to_a_number(x : In[Tensor[N]], a : In[Tensor[N, N]], n : In[int]) -> float:
    s : float
    for i in range(n):
        for j in range(i):
            for k in range(i):
                s += x[i] + a[k, k] + x[j]
    return s
""", _terms, ((5,), (5, 5), 4)),
    Case("a_chain_of_ranges", """
def a_chain_of_ranges(x : In[Tensor[N]]) -> float:
    s : float
    for i in range(N):
        for j in range(i):
            for k in range(j):
                s += x[k] * x[j] + x[k] * N
    return s
""", lambda x: _chain(x, len(x)), ((5,),)),
    Case("two_ranges_of_one_counter", """
def two_ranges_of_one_counter(x : In[Tensor[N]], a : In[Tensor[N, N]]) -> Tensor[N]:
    y : Tensor[N]
    for i in range(N):
        for j in range(i):
            for k in range(i):
                y[j] += a[k, j] * x[i]
    return y
""", _columns, ((5,), (5, 5))),
    Case("powers_of_a_range", """
def powers_of_a_range(x : In[Tensor[N]], c : In[Tensor[K]]) -> tuple[Tensor[N], Tensor[N, K]]:
    y : Tensor[N]
    z : Tensor[N, K]
    y[n] = sum(c[k] * x[n] ** (K - 1 - k) for k in K) - x[n]
    y[n] += c[k] / (2.0 + c[k] * c[k]) * sin(x[n]) ** (k + 2)
    z[n, k] = c[k] * x[n] ** k
    return y, z
""", _powers, ((5,), (4,))),
]  # fmt: skip
