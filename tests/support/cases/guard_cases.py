"""Programs whose reads stand under conditions, whose ranges are their own or empty, whose tensors
have no declared rank: each with the same function in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from index_cases import Case, Indices
from torch import Tensor


def _before(x: Tensor) -> Tensor:
    """One place on: y[i] = x[i - 1], and zero at first."""
    return torch.cat([x.new_zeros(1), x[:-1]])


def _each(count: int, element: Callable[[int], Tensor]) -> Tensor:
    return torch.stack([element(i) for i in range(count)])


def _delayed(x: Tensor, d: int) -> Tensor:
    zero = x.new_zeros(())
    return x + _each(len(x), lambda i: x[i - d] ** 2 if i >= d else zero) if len(x) else x


def _by_itself(x: Tensor, n: int, outside: float) -> Tensor:
    y = list(x)
    for t in range(len(x)):
        y[t] = y[t] + torch.sin(y[n - t] if 0 <= n - t < len(x) else x.new_tensor(outside))
    return torch.stack(y)


def _looked_up(x: Tensor, m: Tensor, t: Tensor) -> Tensor:
    def element(i: int) -> Tensor:
        k = int(t[i])
        return x[k - 1] * m[i] if k > 0 and x[k - 1] > 0 else m[i] ** 2

    return _each(len(m), element)


def _unreached(x: Tensor, n: int) -> Tensor:
    s = (x[n] ** 2).sum() if n < len(x) else x.sum()
    for k in range(len(x) - 1):
        s = s + x[k].prod() * (torch.logsumexp(x[k - 1], 0) if k else 1.0)
    return s


def _causal(x: Tensor, w: Tensor) -> Tensor:
    zero = x.new_zeros(())
    return _each(len(x), lambda i: sum((x[i - k] * w[k] for k in range(len(w)) if i >= k), zero))


def _window(x: Tensor, d: int, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    return _each(len(x), lambda i: 2 * reduce(x[i - d : i] * x[i]) if i >= d else x[i])


def _squared_twice(y: Tensor) -> Tensor:
    for _ in range(2):
        y = y + y * y
    return y


def _element(x: Tensor, k: int) -> Tensor:
    s = x[k] ** 2 if k < len(x) else x[0]
    r = x[k] * x[1] if k < len(x) else 0 * x[0]
    return s * r + s


DELAYED = """
def delayed(x : In[Tensor[N]], d : In[int]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = (x[i - d] * x[i - d] if i >= d else 0.0) + x[i]
    return y
"""
ELEMENT = """
def element(x : In[Tensor[N]], k : In[int]) -> float:
    s : float
    s = x[k] * x[k] if k < N else x[0]
    r : float = zero_pad(x[k]) * x[1]
    return s * r + s
"""
PADDED = """
def padded(x : In[Tensor[N]], z : In[Tensor[M]]) -> Tensor[M]:
    y : Tensor[M]
    y[i] = zero_pad(x[i]) * z[i] + zero_pad(x[3]) * z[i] + zero_pad(x[2 * i - 1])
    return y
"""


def _padded(x: Tensor, z: Tensor) -> Tensor:
    def at(k: int) -> Tensor:
        return x[k] if 0 <= k < len(x) else z.new_zeros(())

    return _each(len(z), lambda i: (at(i) + at(3)) * z[i] + at(2 * i - 1))


INDICES = Indices([0, 3, 1, 1, 2])

# ``delayed`` and others stand here once for each kind of argument; the first one is compiled.
CASES = [
    Case("zero_pad_beside_a_gather", """
def zero_pad_beside_a_gather(
    z : In[Tensor[N]], x : In[Tensor[M]], t : In[IntTensor[N]]
) -> Tensor[N]:
    y : Tensor[N]
    y[i] = zero_pad(z[i - 1]) * x[t[i]]
    return y
""", lambda z, x, t: _before(z) * x[t], ((5,), (4,), INDICES)),
    Case("zero_pad_beside_gathers", """
def zero_pad_beside_gathers(
    z : In[Tensor[N]], x : In[Tensor[M, K]], t : In[IntTensor[N]], u : In[IntTensor[N]]
) -> Tensor[N]:
    y : Tensor[N]
    y[i] = max(zero_pad(z[i - 1]) * z[i], x[t[i], u[i]]) * zero_pad(x[t[i] - 1, 0])
    return y
""", lambda z, x, t, u: torch.maximum(_before(z) * z, x[t, u]) * _before(x[:, 0])[t],
         ((5,), (4, 3), INDICES, Indices([0, 2, 1, 1, 2]))),
    Case("a_range_of_its_own", """
def a_range_of_its_own(x : In[Tensor[N]], w : In[Tensor[M]]) -> float:
    return sum(x[i] * w[i] for i in N)
""", lambda x, w: (x * w[: len(x)]).sum(), ((4,), (7,))),
    Case("a_range_shorter_than_all", """
def a_range_shorter_than_all(x : In[Tensor[N]], w : In[Tensor[M, N]], n : In[int]) -> Tensor[M]:
    y : Tensor[M]
    y[j] = sum(x[i] * w[j, i] * x[j] for i in range(n))
    return y
""", lambda x, w, n: (x[:n] * w[:, :n]).sum(1) * x[: len(w)], ((7,), (7, 7), 4)),
    Case("half_as_many", """
def half_as_many(x : In[Tensor[N]], z : In[Tensor[M]]) -> Tensor[M]:
    y : Tensor[M]
    y[s] = (x[s // 2] if s % 2 == 1 else 0.0) * z[s]
    return y
""", lambda x, z: _each(len(z), lambda s: x[s // 2] * z[s] if s % 2 else 0 * z[s]), ((3,), (7,))),
    Case("delayed", DELAYED, _delayed, ((4,), 2)),
    Case("delayed_by_nothing", DELAYED, _delayed, ((4,), 0)),
    Case("delayed_by_more_than_all", DELAYED, _delayed, ((4,), 9)),
    Case("nothing_delayed", DELAYED, _delayed, ((0,), 2)),
    Case("neighbours", """
def neighbours(x : In[Tensor[B, N]], w : In[Tensor[N]]) -> Tensor[B, N]:
    y : Tensor[B, N]
    y[b, i] = x[b, i - 1] * w[i] if i > 0 else x[b, i + 1] if i + 1 < N else 0.0
    return y
""", lambda x, w: torch.cat([x[:, 1:2], x[:, :-1] * w[1:]], 1), ((2, 5), (5,))),
    Case("looked_up_where_it_exists", """
def looked_up_where_it_exists(
    x : In[Tensor[N]], m : In[Tensor[M]], t : In[IntTensor[M]]
) -> Tensor[M]:
    y : Tensor[M]
    y[i] = x[t[i] - 1] * m[i] if t[i] > 0 and x[t[i] - 1] > 0.0 else m[i] * m[i]
    return y
""", _looked_up, ((3,), (5,), Indices([0, 3, -3, 2, 1]))),
    Case("looked_up_in_nothing", """
def looked_up_in_nothing(x : In[Tensor[N]], m : In[Tensor[M]], t : In[IntTensor[M]]) -> Tensor[M]:
    y : Tensor[M]
    y[i] = x[t[i] - 1] * m[i] if t[i] > 0 else m[i] * m[i]
    return y
""", lambda x, m, t: m * m, ((0,), (2,), Indices([0, -3]))),
    Case("its_own_element_under_a_condition", """
def its_own_element_under_a_condition(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[j] = x[j] * x[j]
    for t in range(2):
        y[0] += max(y[0], 0.2 * y[0]) * y[0]
    return y
""", lambda x: torch.cat([_squared_twice(x[:1] ** 2), x[1:] ** 2]), ((3,),)),
    Case("causal", """
def causal(x : In[Tensor[N]], w : In[Tensor[K]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = sum((x[i - k] if i >= k else 0.0) * w[k] for k in K)
    return y
""", _causal, ((5,), (3,))),
    Case("a_sum_under_a_condition", """
def a_sum_under_a_condition(x : In[Tensor[N]], d : In[int]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = 2.0 * sum(x[i - d + k] * x[i] for k in range(d)) if i >= d else x[i]
    return y
""", lambda x, d: _window(x, d, torch.sum), ((6,), 2)),
    Case("operators_that_are_not_reached", """
def operators_that_are_not_reached(x : In[Tensor[T, K]], n : In[int]) -> float:
    k = 0
    s = sum(x[n] * x[n]) if n < T else sum(x)
    while (k + 1 < T and norm(x[k]) > 0.1 and norm(x[k + 1]) > 0.1, max_iter := 100):
        s += x[k, 0] * x[k, 1] * (logsumexp(x[k - 1], 0) if k > 0 else 1.0)
        k += 1
    return s
""", _unreached, ((3, 2), 3)),
    Case("an_empty_sum_of_what_does_not_exist", """
def an_empty_sum_of_what_does_not_exist(x : In[Tensor[N]], n : In[int]) -> Tensor[3]:
    y : Tensor[3]
    for t in range(3):
        y[t] = x[0] + sum(sin(x[n - t]) for k in range(n + 1 - t))
    return y
""", lambda x, n: torch.stack([x[0] + 2 * x[1].sin(), x[0] + x[0].sin(), x[0]]), ((4,), 1)),
    Case("a_maximum_under_a_condition", """
def a_maximum_under_a_condition(x : In[Tensor[N]], d : In[int]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = 2.0 * max(x[i - d + k] * x[i] for k in range(d)) if i >= d else x[i]
    return y
""", lambda x, d: _window(x, d, torch.amax), ((6,), 2)),
    Case("a_maximum_of_nothing_that_is_not_wanted", """
def largest_of(x : In[Tensor[N]]) -> float:
    return max(x[i] for i in N)

def a_maximum_of_nothing_that_is_not_wanted(
    x : In[Tensor[N]], z : In[Tensor[M]], n : In[int]
) -> float:
    s : float
    s = max(x[i] * z[0] for i in range(n)) if n > 0 else z[0] * z[1]
    return s + largest_of(x) if N > 0 else s
""", lambda x, z, n: z[0] * z[1], ((0,), (2,), 0)),
    Case("an_element", ELEMENT, _element, ((4,), 3)),
    Case("an_element_outside", ELEMENT, _element, ((4,), 9)),
    Case("padded_constants", PADDED, _padded, ((3,), (5,))),
    Case("padded_nothing", PADDED, _padded, ((0,), (5,))),
    Case("a_negative_count", """
def a_negative_count(x : In[Tensor[N]], n : In[int]) -> Tensor[N]:
    y : Tensor[N] = x
    for k in range(n):
        y[i] = y[i] * x[i] + 1.0
    return y
""", lambda x, n: x * 1.0, ((4,), -2)),
    Case("one_less_than_nothing", """
def one_less_than_nothing(x : In[Tensor[N]]) -> float:
    s : float = 1.0
    for k in range(N - 1):
        s = s * x[k] * x[k + 1]
    return s
""", lambda x: x.new_ones(()), ((0,),)),
    Case("sums_of_negative_counts", """
def sums_of_negative_counts(x : In[Tensor[N]], n : In[int]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = sum(sum(x[j] * x[i] for j in range(n)) * x[k] for k in range(n)) * x[i] + x[i]
    y[i] += x[i] * sum(x[0] * x[1] for k in range(n)) + sum(x[0] for k in range(n))
    return y
""", lambda x, n: x * 1.0, ((4,), -2)),
    Case("nothing_of_w", """
def nothing_of_w(x : In[Tensor[N]], w : In[Tensor[N]], _need_w : In[int]) -> Tensor[N]:
    y : Tensor[N]
    for t in range(_need_w):
        y[i] = x[i] * w[i] + y[i]
    return y
""", lambda x, w, n: 0.0 * x * w, ((4,), (4,), 0)),
    Case("padded_by_itself", """
def padded_by_itself(x : In[Tensor[N]], n : In[int]) -> Tensor[N]:
    y : Tensor[N] = x
    for t in range(N):
        y[t] += sin(zero_pad(y[n - t]))
    return y
""", lambda x, n: _by_itself(x, n, 0.0), ((4,), 2)),
    Case("guarded_by_itself", """
def guarded_by_itself(x : In[Tensor[N]], n : In[int]) -> Tensor[N]:
    y : Tensor[N] = x
    for t in range(N):
        y[t] += sin(y[n - t] if 0 <= n - t else 0.3) + sum(k * y[n - t] for k in range(n - N - t))
    return y
""", lambda x, n: _by_itself(x, n, 0.3), ((4,), 2)),
    Case("first_of_two_results", """
def squares(u : In[Tensor[N]]) -> tuple[Tensor[N], float]:
    return u * u, sum(u)
def first_of_two_results(x : In[Tensor[N]]) -> Tensor[N]:
    y, s = squares(x)
    y[i] = 0.5 * x[i]
    return y * s
""", lambda x: 0.5 * x * x.sum(), ((4,),)),
    Case("remainder_by_nothing", """
def remainder_by_nothing(x : In[Tensor[N]], z : In[Tensor[N, M]], t : In[int]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = z[i, t % M] if x[i] > 9.0 else x[i] * x[i]
    return y
""", lambda x, z, t: x * x + 0 * z.sum(), ((4,), (4, 0), 3)),
    Case("any_rank", """
def any_rank(x : In[Tensor], y : In[Tensor]) -> Tensor:
    return x * y
""", lambda x, y: x * y, ((4,), (3, 4))),
    Case("any_rank_in_a_branch", """
def any_rank_in_a_branch(x : In[Tensor], y : In[Tensor], n : In[int]) -> Tensor:
    r : Tensor = x * y
    if n > 0:
        r = (r * y) * tanh(x * y)
    return r
""", lambda x, y, n: (x * y * y) * torch.tanh(x * y), ((4,), (3, 4), 1)),
]  # fmt: skip
