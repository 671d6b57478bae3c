"""Statements that read other parts of their target: recurrences in loops, old values without."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from index_cases import Case, Indices
from torch import Tensor


def _rnn(x: Tensor, a: Tensor, h: Tensor) -> Tensor:
    rows = [h]
    for row in x:
        rows.append(torch.tanh(row + a @ rows[-1]))
    return torch.stack(rows)


def _batched(x: Tensor, a: Tensor) -> Tensor:
    rows = [torch.zeros_like(x[:, 0])]
    for t in range(x.shape[1]):
        rows.append(torch.tanh(x[:, t] + rows[-1] @ a.T))
    return torch.stack(rows, 1)


def _soft_dtw(c: Tensor) -> Tensor:
    big = c.new_tensor(50.0)
    rows = [[c.new_zeros(())] + [big] * c.shape[1]]
    for i in range(c.shape[0]):
        row = [big]
        for j in range(c.shape[1]):
            near = torch.stack([rows[i][j], rows[i][j + 1], row[j]])
            row.append(c[i, j] - torch.logsumexp(-near, 0))
        rows.append(row)
    return rows[-1][-1]


def _banded(x: Tensor, y: Tensor, width: int) -> Tensor:
    rows = [[x.new_zeros(())] * (len(y) + 1)]
    for i in range(1, len(x) + 1):
        row = [x.new_zeros(())]
        for j in range(1, len(y) + 1):
            new = torch.tanh(x[i - 1] - y[j - 1] + rows[-1][j - 1] + 2 * row[-1])
            row.append(new if abs(i - j) <= width else x.new_zeros(()))
        rows.append(row)
    return torch.stack([torch.stack(row) for row in rows])


def _cholesky(a: Tensor) -> Tensor:
    lower: Tensor = torch.linalg.cholesky(_positive(a))
    return lower


def _positive(a: Tensor) -> Tensor:
    return a @ a.T + 3 * torch.eye(a.shape[0], dtype=a.dtype)


def _solve(a: Tensor, b: Tensor) -> Tensor:
    lower = torch.tril(a, -1) + torch.diag(3 + a.diagonal() ** 2)
    solution: Tensor = torch.linalg.solve_triangular(lower, b[:, None], upper=False)[:, 0]
    return solution


def _wave(start: Tensor, c: Tensor, steps: int) -> Tensor:
    u = [start, start]
    for _ in range(steps):
        left, right = (torch.roll(u[-1], s) for s in (1, -1))
        left = left * (torch.arange(len(start)) > 0)
        right = right * (torch.arange(len(start)) < len(start) - 1)
        u.append(2 * u[-1] - u[-2] + c * (left - 2 * u[-1] + right))
    return torch.stack(u)


def _gauss_seidel(start: Tensor, f: Tensor, sweeps: int) -> Tensor:
    u = list(start)
    for _ in range(sweeps):
        for i in range(1, len(u) - 1):
            u[i] = 0.5 * (u[i - 1] + torch.sin(u[i + 1]) - f[i])
    return torch.stack(u)


def _red_black(start: Tensor, sweeps: int) -> Tensor:
    u = list(start)
    for _ in range(sweeps):
        for first in (1, 2):
            for i in range(first, len(u) - 1, 2):
                u[i] = u[i - 1] * u[i + 1]
    return torch.stack(u)


def _doubled(x: Tensor) -> Tensor:
    y = x * x.flip(0)
    return torch.cat([y[1:], y[:1] * 0 + y[0]])


def _history(x: Tensor, n: Tensor) -> Tensor:
    h = [x[0]]
    for t in range(int(n[0])):
        h.append(h[t] * x[t] + (h[t - 1] if t > 0 else 0))
    h += [x[0] * 0] * (x.shape[0] - len(h))
    return torch.stack(h)


def _jumps(x: Tensor, p: Tensor) -> Tensor:
    h = [x[0]]
    for t in range(1, x.shape[0]):
        h.append(torch.tanh(h[int(p[t])] * x[t] + h[t - 1]))
    return torch.stack(h)


def _backwards(r: Tensor, gamma: Tensor) -> Tensor:
    v = [torch.zeros_like(gamma)]
    for t in reversed(range(r.shape[0])):
        v.insert(0, torch.sqrt(1 + (r[t] + gamma * v[0]) ** 2))
    return torch.stack(v)


def _scatter(x: Tensor, p: Tensor) -> Tensor:
    y = x * 2
    return y.index_add(0, p, y[p] * x[: len(p)])


def _newton(x: Tensor, n: int) -> Tensor:
    y = list(x)
    for _ in range(n):
        for i in range(1, len(y)):
            y[i] = y[i] * y[i - 1]
            y[i - 1] = torch.sin(y[i]) + y[i - 1]
    return torch.stack(y)


def _last(x: Tensor) -> Tensor:
    y = [*x]
    for t in range(1, len(y)):
        y[0] = y[0] * y[t] + y[t - 1]
    return torch.stack(y)


def _blocks(x: Tensor, n: int) -> Tensor:
    y = x
    for _ in range(n):
        y = torch.cat([y[:3].flip(0) * y[:3], y[3:]])
    return y


def _seidel_rows(a: Tensor, b: Tensor, n: int) -> Tensor:
    x = list(torch.zeros_like(b))
    for _ in range(n):
        for i in range(len(x)):
            s = sum(a[i, j] * x[j] for j in range(len(x)) if j != i)
            x[i] = (b[i] - s) / (4 + a[i, i] ** 2)
    return torch.stack(x)


def _moving(x: Tensor) -> Tensor:
    h = [list(row) for row in x]
    for t, row in enumerate(x):
        h[t][1] = torch.sin(h[t][1] * h[t][1]) * row[0]
        h[t][2] = row[1] * row[2]
        h[t][2] = row[0] * h[t][0]
    return torch.stack([torch.stack(row) for row in h])


RECURRENCES = [
    Case("rnn", """
def rnn(x : In[Tensor[T, N]], A : In[Tensor[N, N]], h0 : In[Tensor[N]]) -> Tensor[T + 1, N]:
    h : Tensor[T + 1, N]
    h[0, i] = h0[i]
    for t in range(T):
        h[t + 1, i] = tanh(x[t, i] + sum(A[i, j] * h[t, j] for j in N))
    return h
""", _rnn, ((4, 3), (3, 3), (3,))),
    Case("rnn_batched", """
def rnn_batched(x : In[Tensor[B, T, N]], A : In[Tensor[N, N]]) -> Tensor[B, T + 1, N]:
    h : Tensor[B, T + 1, N]
    for t in range(T):
        s : Tensor[B, N]
        s[b, i] = sum(A[i, j] * h[b, t, j] for j in N)
        h[b, t + 1, i] = tanh(x[b, t, i] + s[b, i])
    return h
""".replace("    for t in range(T):\n        s : Tensor[B, N]\n",
            "    s : Tensor[B, N]\n    for t in range(T):\n"), _batched, ((2, 3, 2), (2, 2))),
    Case("soft_dtw", """
def soft_dtw(c : In[Tensor[M, N]]) -> float:
    R : Tensor[M + 1, N + 1]
    for i in range(M):
        R[i + 1, 0] = 50.0
    for j in range(N):
        R[0, j + 1] = 50.0
    for i in range(M):
        for j in range(N):
            R[i + 1, j + 1] = c[i, j] - log(exp(-R[i, j]) + exp(-R[i, j + 1]) + exp(-R[i + 1, j]))
    return R[M, N]
""", _soft_dtw, ((4, 3),)),
    Case("banded", """
def banded(x : In[Tensor[M]], y : In[Tensor[N]], width : In[int]) -> Tensor[M + 1, N + 1]:
    R : Tensor[M + 1, N + 1]
    for i in range(1, M + 1):
        for j in range(max(1, i - width), min(N, i + width) + 1):
            R[i, j] = tanh(x[i - 1] - y[j - 1] + R[i - 1, j - 1] + 2.0 * R[i, j - 1])
    return R
""", _banded, ((4,), (5,), 1)),
    Case("cholesky", """
def cholesky(B : In[Tensor[N, N]]) -> Tensor[N, N]:
    A : Tensor[N, N]
    A[i, j] = sum(B[i, k] * B[j, k] for k in N) + (3.0 if i == j else 0.0)
    L : Tensor[N, N]
    for i in range(N):
        for j in range(i):
            L[i, j] = (A[i, j] - sum(L[i, k] * L[j, k] for k in range(j))) / L[j, j]
        L[i, i] = sqrt(A[i, i] - sum(L[i, k] * L[i, k] for k in range(i)))
    return L
""", _cholesky, ((4, 4),)),
    Case("solve", """
def solve(A : In[Tensor[N, N]], b : In[Tensor[N]]) -> Tensor[N]:
    x : Tensor[N]
    for i in range(N):
        x[i] = (b[i] - sum(A[i, k] * x[k] for k in range(i))) / (3.0 + A[i, i] * A[i, i])
    return x
""", _solve, ((4, 4), (4,))),
    Case("wave", """
def wave(u0 : In[Tensor[N]], c : In[float], steps : In[int]) -> Tensor[steps + 2, N]:
    u : Tensor[steps + 2, N]
    u[0, i] = u0[i]
    u[1, i] = u0[i]
    for t in range(steps):
        u[t + 2, i] = 2.0 * u[t + 1, i] - u[t, i] + c * (
            zero_pad(u[t + 1, i - 1]) - 2.0 * u[t + 1, i] + zero_pad(u[t + 1, i + 1])
        )
    return u
""", _wave, ((4,), (), 3)),
    Case("gauss_seidel", """
def gauss_seidel(u0 : In[Tensor[N]], f : In[Tensor[N]], sweeps : In[int]) -> Tensor[N]:
    u : Tensor[N] = u0
    for k in range(sweeps):
        for i in range(N - 2):
            u[i + 1] = 0.5 * (u[i] + sin(u[i + 2]) - f[i + 1])
    return u
""", _gauss_seidel, ((5,), (5,), 2)),
    Case("red_black", """
def red_black(u0 : In[Tensor[N]], sweeps : In[int]) -> Tensor[N]:
    u : Tensor[N] = u0
    for k in range(sweeps):
        for i in range((N - 1) // 2):
            u[2 * i + 1] = u[2 * i] * u[2 * i + 2]
        for i in range((N - 2) // 2):
            u[2 * i + 2] = u[2 * i + 1] * u[2 * i + 3]
    return u
""", _red_black, ((6,), 2)),
    Case("flipped", """
def flipped(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N] = x
    y[i] = y[i] * y[N - 1 - i]
    y[i] = y[i + 1] if i + 1 < N else y[0]
    return y
""", _doubled, ((5,),)),
    Case("transposed", """
def transposed(x : In[Tensor[N, N]]) -> Tensor[N, N]:
    y : Tensor[N, N] = x
    y[i, j] += y[j, i] * y[i, j]
    return y
""", lambda x: x + x.T * x, ((3, 3),)),
    Case("history", """
def history(x : In[Tensor[N]], n : In[IntTensor[K]]) -> Tensor[N]:
    h : Tensor[N]
    h[0] = x[0]
    for t in range(n[0]):
        h[t + 1] = h[t] * x[t] + (h[t - 1] if t > 0 else 0.0)
    return h
""", _history, ((6,), Indices([4]))),
    Case("jumps", """
def jumps(x : In[Tensor[N]], p : In[IntTensor[N]]) -> Tensor[N]:
    h : Tensor[N]
    h[0] = x[0]
    for t in range(N - 1):
        h[t + 1] = tanh(h[p[t + 1]] * x[t + 1] + h[t])
    return h
""", _jumps, ((5,), Indices([0, 0, 1, 0, 2]))),
    Case("backwards", """
def backwards(r : In[Tensor[T]], gamma : In[float]) -> Tensor[T + 1]:
    v : Tensor[T + 1]
    for t in reversed(range(T)):
        v[t] = sqrt(1.0 + (r[t] + gamma * v[t + 1]) ** 2)
    return v
""", _backwards, ((4,), ())),
    Case("scattered", """
def scattered(x : In[Tensor[N]], p : In[IntTensor[K]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = 2.0 * x[i]
    y[p[k]] += y[p[k]] * x[k + 0]
    return y
""", _scatter, ((5,), Indices([1, 3, 1]))),
    Case("two_writes", """
def two_writes(x : In[Tensor[N]], n : In[int]) -> Tensor[N]:
    y : Tensor[N] = x
    for t in range(n):
        for i in range(N - 1):
            y[i + 1] = y[i + 1] * y[i]
            y[i] = sin(y[i + 1]) + y[i]
    return y
""", _newton, ((4,), 2)),
    Case("one_place", """
def one_place(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N] = x
    for t in range(N - 1):
        y[0] = y[0] * y[t + 1] + y[t]
    return y
""", _last, ((4,),)),
    Case("part_of_a_block", """
def part_of_a_block(x : In[Tensor[N]], n : In[int]) -> Tensor[N]:
    y : Tensor[N] = x
    t : Tensor[3]
    for k in range(n):
        for o in range(1):
            t[i] = y[i + 0] * y[2 - i]
            y[i + o] = t[i] * 1.0
    return y
""", _blocks, ((5,), 3)),
    Case("seidel_rows", """
def seidel_rows(A : In[Tensor[N, N]], b : In[Tensor[N]], n : In[int]) -> Tensor[N]:
    x : Tensor[N]
    for k in range(n):
        for i in range(N):
            x[i] = (b[i] - sum(A[i, j] * x[j] if j != i else 0.0 for j in N)) / (
                4.0 + A[i, i] * A[i, i]
            )
    return x
""", _seidel_rows, ((3, 3), (3,), 3)),
    Case("moving", """
def moving(x : In[Tensor[T, 3]]) -> Tensor[T, 3]:
    h : Tensor[T, 3] = x
    p : int
    s : float
    for t in range(T):
        p = 0
        s = h[t, p + 1] * h[t, p + 1]
        p += 1
        h[t, p] = sin(s) * x[t, 0]
        h[t, p + 1] = x[t, 1] * x[t, 2]
        p += 1
        h[t, p] = x[t, 0] * h[t, 0]
    return h
""", _moving, ((3, 3),)),
    Case("moving_writes", """
def moving_writes(x : In[Tensor[T, 3]]) -> Tensor[T, 3]:
    h : Tensor[T, 3]
    p : int
    for t in range(T):
        p = 0
        h[t, p + 1] = x[t, 1] * x[t, 2]
        p += 1
        h[t, p] = x[t, 0] * x[t, 2]
    return h
""", lambda x: F.pad((x[:, 0] * x[:, 2])[:, None], (1, 1)), ((3, 3),)),
]  # fmt: skip
