"""Assignments to elements that subscripts compute: proved distinct, or checked when they run."""

from __future__ import annotations

import torch
from index_cases import FLOAT, Case, Indices, Values
from torch import Tensor


def _put(y: Tensor, *places: Tensor, value: Tensor) -> Tensor:
    return y.index_put(places, value)


def _repeated(y: Tensor, x: Tensor, p: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        y = y.index_put((p,), torch.sin(y[p]) * x + y[: len(p)])
    return y


def _rows(x: Tensor, p: Tensor) -> Tensor:
    y = x.new_zeros(x.shape[0] + 1, 5)
    for t in range(x.shape[0]):
        y = y.index_put((torch.tensor(t + 1), p), torch.tanh(x[t] + y[t][p]))
    return y


def _kept(y: Tensor, x: Tensor, p: Tensor) -> Tensor:
    for t in range(x.shape[0]):
        y = y.index_put((p,), y[p] * x[t])
    return y


def _spun(x: Tensor, steps: int) -> Tensor:
    y = x
    for t in range(steps):
        y = torch.roll(torch.sin(y) * x, t)
    return y


def _over_each_other(x: Tensor, p: Tensor, q: Tensor) -> Tensor:
    y = x.new_zeros(6).index_put((p,), torch.exp(x))
    y = y.index_put((q,), x * y[p])
    return y.index_put((p,), y[q], accumulate=True)


def _mixed(x: Tensor) -> Tensor:
    n = x.shape[0] // 6
    return (x * x).view(n, 2, 3).permute(1, 0, 2).contiguous()


PROVED = (
    Case("rolled", """
def rolled(x : In[Tensor[N]], s : In[int]) -> tuple[Tensor[N], Tensor[N]]:
    y : Tensor[N]
    y[(i - s) % N] = x[i] * x[i]
    z : Tensor[N]
    z[(i + 1) % N] = sin(x[i])
    return y, z
""", lambda x, s: (torch.roll(x * x, -s), torch.roll(torch.sin(x), 1)), ((5,), 7)),
    Case("turned", """
def turned(x : In[Tensor[N, M]], s : In[int]) -> Tensor[M, N]:
    y : Tensor[M, N]
    y[(s - j) % M, (i + j) % N] = x[i, j] * x[i, j]
    return y
""", lambda x, s: torch.stack(
    [torch.roll((x * x)[:, j], j) for j in range(x.shape[1])])[
        [(s - j) % x.shape[1] for j in range(x.shape[1])]], ((3, 4), 6)),
    Case("coprime", """
def coprime(x : In[Tensor[8]]) -> Tensor[8]:
    y : Tensor[8]
    y[(3 * i + 1) % 8] = exp(x[i])
    return y
""", lambda x: _put(torch.zeros_like(x), (3 * torch.arange(8) + 1) % 8, value=torch.exp(x)),
    ((8,),)),
    Case("reshaped", """
def reshaped(x : In[Tensor[6 * N]]) -> tuple[Tensor[N, 2, 3], Tensor[3, 2 * N]]:
    y : Tensor[N, 2, 3]
    y[i // 6, i // 3 % 2, i % 3] = x[i] * x[i]
    z : Tensor[3, 2 * N]
    z[i % 3, i // 3] = x[i] * x[i]
    return y, z
""", lambda x: ((x * x).view(-1, 2, 3), (x * x).view(-1, 3).T.contiguous()), ((12,),)),
    Case("windows", """
def windows(x : In[Tensor[6 * N]]) -> Tensor[2, N, 3]:
    y : Tensor[2, N, 3]
    y[i // 3 % 2, i // 6, (i % 3 + 0) % 3] = x[i] * x[i]
    return y
""", _mixed, ((12,),)),
    Case("over_itself", """
def over_itself(y0 : In[Tensor[N]], x : In[Tensor[N]]) -> Tensor[N]:
    y = 1.0 * y0
    y[(i + 2) % N] = y[i] * x[i] + y[(i + 2) % N]
    return y
""", lambda y, x: torch.roll(y * x, 2) + y, ((5,), (5,))),
    Case("spun", """
def spun(x : In[Tensor[N]], steps : In[int]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = x[i]
    for t in range(steps):
        y[(i + t) % N] = sin(y[i]) * x[i]
    return y
""", _spun, ((5,), 4)),
)  # fmt: skip

PLACES = Indices([4, 0, 3])

CHECKED = (
    Case("permuted", """
def permuted(x : In[Tensor[N]], p : In[IntTensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[p[i]] = exp(x[i])
    return y
""", lambda x, p: _put(torch.zeros_like(x), p, value=torch.exp(x)),
    ((5,), Indices([3, 0, 4, 1, 2]))),
    Case("some_rows", """
def some_rows(y0 : In[Tensor[N, M]], x : In[Tensor[K, M]], p : In[IntTensor[K]]) -> Tensor[N, M]:
    y = 1.0 * y0
    y[p[i], j] = x[i, j] * x[i, j] * y[p[i], j]
    return y
""", lambda y, x, p: _put(y, p, value=x * x * y[p]), ((5, 2), (3, 2), PLACES)),
    Case("by_row", """
def by_row(y0 : In[Tensor[N, M]], x : In[Tensor[N, K]], p : In[IntTensor[N, K]]) -> Tensor[N, M]:
    y = 1.0 * y0
    y[i, p[i, j]] = x[i, j] * y[i, p[i, 0]]
    return y
""", lambda y, x, p: y.scatter(1, p, x * y.gather(1, p[:, :1])),
    ((2, 4), (2, 3), Indices([[3, 1, 0], [1, 2, 3]]))),  # type: ignore[list-item]
    Case("shifted_twice", """
def shifted_twice(x : In[Tensor[K]], p : In[IntTensor[K]], q : In[IntTensor[N]]) -> Tensor[N + 1]:
    y : Tensor[N + 1]
    y[q[p[i]] + 1] = x[i] ** 3
    return y
""", lambda x, p, q: _put(x.new_zeros(6), q[p] + 1, value=x ** 3),
    ((3,), PLACES, Indices([1, 4, 0, 2, 3]))),
    Case("places_of_both", """
def places_of_both(y0 : In[Tensor[N, M]], x : In[Tensor[K]], z : In[Tensor[L]],
                   p : In[IntTensor[K]], q : In[IntTensor[L]]) -> Tensor[N, M]:
    y = 1.0 * y0
    y[p[i], q[j]] = x[i] * z[j]
    return y
""", lambda y, x, z, p, q: _put(y, p[:, None], q, value=x[:, None] * z),
    ((5, 3), (3,), (2,), PLACES, Indices([2, 0]))),
    Case("exchanged", """
def exchanged(y0 : In[Tensor[N]], p : In[IntTensor[N]]) -> Tensor[N]:
    y = 1.0 * y0
    y[p[i]] = y[i] * y[i]
    return y
""", lambda y, p: _put(y, p, value=y * y), ((5,), Indices([3, 0, 4, 1, 2]))),
    Case("in_loops", """
def in_loops(y0 : In[Tensor[N]], x : In[Tensor[K]], p : In[IntTensor[K]],
             steps : In[int]) -> Tensor[N]:
    y = 1.0 * y0
    for t in range(steps):
        y[p[i]] = sin(y[p[i]]) * x[i] + y[i + 0]
    return y
""", _repeated, ((5,), (3,), PLACES, 3)),
    Case("row_by_row", """
def row_by_row(x : In[Tensor[T, K]], p : In[IntTensor[K]]) -> Tensor[T + 1, 5]:
    y : Tensor[T + 1, 5]
    for t in range(T):
        y[t + 1, p[i]] = tanh(x[t, i] + y[t, p[i]])
    return y
""", _rows, ((2, 3), PLACES)),
    Case("kept_in_parts", """
def kept_in_parts(y0 : In[Tensor[N]], x : In[Tensor[T, K]], p : In[IntTensor[K]]) -> Tensor[N]:
    y = 1.0 * y0
    for t in range(T):
        y[p[i]] = y[p[i]] * x[t, i]
    return y
""", _kept, ((5,), (3, 3), PLACES)),
    Case("guarded", """
def guarded(y0 : In[Tensor[N]], x : In[Tensor[K]], p : In[IntTensor[K]], m : In[IntTensor[K]],
            on : In[int]) -> Tensor[N]:
    y = 1.0 * y0
    if on > 0:
        y[p[i]] = x[i] * x[i] if m[i] > 0 else y[p[i]]
    else:
        y[p[i]] = 0.0
    return y
""", lambda y, x, p, m, on: _put(y, p, value=torch.where(m > 0, x * x, y[p])),
    ((5,), (3,), PLACES, Indices([1, 0, 1]), 1)),
    Case("cleared", """
def cleared(y0 : In[Tensor[N]], p : In[IntTensor[K]], c : In[float]) -> Tensor[N]:
    y = c * y0
    y[p[i]] = 2.0
    return y
""", lambda y, p, c: _put(c * y, p, value=y.new_tensor(2.0)),
    ((5,), Indices([4, 0, 4, 0]), FLOAT)),
    Case("sums", """
def sums(y0 : In[Tensor[N, M]], x : In[Tensor[K, L]], z : In[Tensor[L, M]],
         p : In[IntTensor[K]]) -> Tensor[N, M]:
    y = 1.0 * y0
    y[p[i], j] = sum(x[i, k] * z[k, j] for k in L)
    return y
""", lambda y, x, z, p: _put(y, p, value=x @ z), ((5, 2), (3, 4), (4, 2), PLACES)),
    Case("largest", """
def largest(y0 : In[Tensor[N]], x : In[Tensor[K, L]], p : In[IntTensor[K]]) -> Tensor[N]:
    y = 1.0 * y0
    y[p[i]] = max(x[i, k] for k in L) * y[p[i]]
    return y
""", lambda y, x, p: _put(y, p, value=x.amax(1) * y[p]), ((5,), (3, 4), PLACES)),
    Case("product", """
def product(y0 : In[Tensor[N]], x : In[Tensor[K, 3]], p : In[IntTensor[K]]) -> Tensor[N]:
    y = 1.0 * y0
    y[p[i]] = prod(x[i, k] * y[p[i]] for k in range(3))
    return y
""", lambda y, x, p: _put(y, p, value=x.prod(1) * y[p] ** 3), ((5,), (3, 3), PLACES)),
    Case("scaled", """
def scaled(y0 : In[Tensor[N]], x : In[Tensor[K]], p : In[IntTensor[K]]) -> Tensor[N]:
    y = 1.0 * y0
    y[p[i]] *= x[i]
    y[p[i] - p[i] + 2 * i] /= 2.0 + x[i] * x[i]
    return y
""", lambda y, x, p: _put(y, p, value=y[p] * x) / _put(
    torch.ones_like(y), torch.tensor([0, 2, 4]), value=2 + x * x), ((5,), (3,), PLACES)),
    Case("inverse", """
def inverse(x : In[Tensor[N]], p : In[IntTensor[N]]) -> Tensor[N]:
    q : IntTensor[N]
    q[i] = p[i]
    q[q[i]] = i
    y : Tensor[N]
    y[i] = x[q[i]] * x[q[i]]
    return y
""", lambda x, p: (x * x)[torch.argsort(p)], ((5,), Indices([3, 0, 4, 1, 2]))),
    Case("split_radix", """
def split_radix(x : In[Tensor[K, 2]], p : In[IntTensor[K]]) -> Tensor[10]:
    y : Tensor[10]
    y[p[i] * 2 + j] = x[i, j] * x[i, j]
    return y
""", lambda x, p: _put(x.new_zeros(5, 2), p, value=x * x).view(10), ((3, 2), PLACES)),
    Case("neighbours", """
def neighbours(y0 : In[Tensor[N]], x : In[Tensor[K]], p : In[IntTensor[K]]) -> Tensor[N]:
    y = 1.0 * y0
    y[p[i]] = x[i + 1] * x[i] if i < K - 1 else 0.0
    y[p[i] + 0] = zero_pad(x[i - 1]) * y[p[i] + 0] + y[p[i]]
    return y
""", lambda y, x, p: _put(y, p, value=(
    torch.cat([x.new_zeros(1), x[:-1]]) + 1) * torch.cat([x[1:] * x[:-1], x.new_zeros(1)])),
    ((5,), (3,), PLACES)),
    Case("over_each_other", """
def over_each_other(x : In[Tensor[K]], p : In[IntTensor[K]], q : In[IntTensor[K]]) -> Tensor[6]:
    y : Tensor[6]
    y[p[i]] = exp(x[i])
    y[q[i]] = x[i] * y[p[i]]
    y[p[i]] += y[q[i]]
    return y
""", _over_each_other, ((3,), PLACES, Indices([3, 1, 4]))),
    Case("at_sums", """
def at_sums(x : In[Tensor[K]], c : In[IntTensor[K, 2]]) -> Tensor[8]:
    y : Tensor[8]
    y[sum(c[i, k] for k in range(2))] = exp(x[i])
    y[sum(c[i, k] for k in range(2))] += x[i]
    return y
""", lambda x, c: _put(x.new_zeros(8), c.sum(1), value=torch.exp(x) + x),
    ((3,), Indices([[4, 1], [0, 3], [1, 1]]))),  # type: ignore[list-item]
    Case("nothing", """
def nothing(y0 : In[Tensor[N, M]], x : In[Tensor[K, M]], p : In[IntTensor[K]]) -> Tensor[N, M]:
    y = 1.0 * y0
    y[p[i], j] = x[i, j]
    return y
""", lambda y, x, p: y, ((2, 0), (3, 0), Indices([0, 0, 1]))),
    Case("one", """
def one(y0 : In[Tensor[N]], x : In[Tensor[K]], p : In[IntTensor[K]]) -> Tensor[N]:
    y = 1.0 * y0
    y[p[i]] = x[i]
    return y
""", lambda y, x, p: _put(y, p, value=x), ((1,), (1,), Indices([0]))),
    Case("not_a_number", """
def not_a_number(x : In[Tensor[K]], p : In[IntTensor[K]]) -> Tensor[5]:
    y : Tensor[5]
    y[p[i]] = x[i] * x[i]
    y[p[i]] = 1.0
    return y
""", lambda x, p: _put(_put(x.new_zeros(5), p, value=x * x), p, value=torch.ones_like(x)),
    (Values([1.0, float("nan"), 2.0]), PLACES), smooth=False),
)  # fmt: skip

CASES = PROVED + CHECKED
