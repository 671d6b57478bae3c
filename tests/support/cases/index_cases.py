"""Index statements of every kind, each with the same function in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Case:
    """``shapes``: one per argument; an int is an In[int], None a float, "int<N": shape of ints."""

    name: str
    text: str
    reference: Callable[..., Any]
    shapes: tuple[Any, ...]
    smooth: bool = True
    second: bool = True

    def arguments(self) -> list[Any]:
        generator = torch.Generator().manual_seed(5)
        args: list[Any] = []
        for shape in self.shapes:
            match shape:
                case int():
                    args.append(shape)
                case Ints(high, dims):
                    args.append(torch.randint(high, dims, generator=generator))
                case Values(values):
                    args.append(torch.tensor(values, dtype=torch.float64))
                case Indices(indices):
                    args.append(torch.tensor(indices))
                case _:
                    args.append(torch.randn(shape, generator=generator, dtype=torch.float64))
        return args


@dataclass(frozen=True, slots=True)
class Ints:
    high: int
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Values:
    values: Any


@dataclass(frozen=True, slots=True)
class Indices:
    indices: list[int]


FLOAT: tuple[int, ...] = ()


def _products_of_parts(x: Tensor, w: Tensor, u: Tensor, p: int) -> tuple[Tensor, Tensor]:
    h = [x[p] @ w[1, :, 1:].T]
    for t in range(len(x)):
        h.append(torch.tanh(x[t] @ w[0, :, :-1].T + h[-1] @ u[:, 1:-1].T))
    return torch.stack(h), F.pad(h[-1] @ u[:, :-2].T, (1, 0))


def _meeting(x: Tensor) -> Tensor:
    rows = [F.pad(x[i], (i, x.shape[0] - i)) for i in range(x.shape[0])]
    return torch.stack(rows).sum(0)


def _reductions_twice(x: Tensor) -> Tensor:
    y = torch.softmax(x, 1)
    z = y.amax(1, keepdim=True) * y.amax(0) + y.amax(1, keepdim=True)
    return (y + z).amax(1, keepdim=True) * z


def _per_pixel(x: Tensor, k: Tensor) -> Tensor:
    h, w = x.shape[2:]
    padded = F.pad(x, (1, 1, 1, 1))
    taps = [
        padded[:, :, p : p + h, q : q + w] * k[p, q][:, None] for p in range(3) for q in range(3)
    ]
    return torch.stack(taps).sum(0)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return torch.softmax(scores, -1) @ v


def _group_norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    n, g, c, h = x.shape
    return F.group_norm(
        x.reshape(n, g * c, h), g, scale.reshape(-1), shift.reshape(-1), 1e-5
    ).reshape(x.shape)


def _recurrence(x: Tensor, a: Tensor) -> Tensor:
    h = x.new_zeros(x.shape[1])
    for t in range(x.shape[0]):
        h = torch.tanh(a * h + x[t])
    return h


def _scan(x: Tensor) -> Tensor:
    return torch.cumsum(x, 0) * torch.cumsum(x, 0)


def _masked(x: Tensor, n: int) -> Tensor:
    keep = (torch.arange(x.shape[0]) < n)[:, None]
    return torch.where(keep, x * x, 0.0).sum(0)


def _piecewise(x: Tensor) -> Tensor:
    return torch.where(x > 0.5, x * x, torch.where(x < -0.5, -x, x**3))


def _routing(u: Tensor, n: int) -> Tensor:
    logits = torch.zeros(u.shape[:3], dtype=u.dtype)
    v = u
    for t in range(n):
        c = torch.softmax(logits, 2)
        s = (c[..., None] * u).sum(1)
        square = (s * s).sum(-1, keepdim=True)
        v = s * torch.sqrt(square) / (1 + square)
        if t < n - 1:
            logits = logits + (u * v[:, None]).sum(-1)
    return v


def _first_of(x: Tensor, kind: str) -> Tensor:
    """max or min over dimension 1, whose gradient goes to the first of equals."""
    place = torch.argmax(x if kind == "max" else -x, 1, keepdim=True)
    return torch.gather(x, 1, place)[:, 0]


CASES = [
    Case("matmul", """
def matmul_(x : In[Tensor[N, K]], w : In[Tensor[K, M]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[i, j] += x[i, k] * w[k, j]
    return y
""", torch.matmul, ((3, 5), (5, 4))),
    Case("matmul_sum", """
def matmul_sum(x : In[Tensor[N, K]], w : In[Tensor[M, K]]) -> Tensor[M, N]:
    y : Tensor[M, N]
    y[j, i] = sum(x[i, k] * w[j, k] for k in K)
    return y
""", lambda x, w: w @ x.T, ((3, 5), (4, 5))),
    Case("products_of_parts", """
def products_of_parts(
    x : In[Tensor[T, N, M]], w : In[Tensor[2, K, M + 1]], u : In[Tensor[K, K + 2]], p : In[int]
) -> tuple[Tensor[T + 1, N, K], Tensor[N, K + 1]]:
    h : Tensor[T + 1, N, K]
    h[0, n, k] = sum(x[p, n, m] * w[1, k, m + 1] for m in M)
    for t in range(T):
        h[t + 1, n, k] = tanh(
            sum(x[t, n, m] * w[0, k, m + 0] for m in M) + sum(h[t, n, j] * u[k, j + 1] for j in K)
        )
    y : Tensor[N, K + 1]
    y[n, k + 1] += h[T, n, j] * u[k, j + 0]
    return h, y
""", _products_of_parts, ((4, 3, 5), (2, 6, 6), (6, 8), 2)),
    Case("batched_einsum", """
def batched_einsum(w : In[Tensor[I, R, O, K]], x : In[Tensor[B, R, K]]) -> Tensor[B, I, R, O]:
    u : Tensor[B, I, R, O]
    u[b, i, r, o] += w[i, r, o, k] * x[b, r, k]
    return u
""", lambda w, x: torch.einsum("irok,brk->biro", w, x), ((2, 3, 4, 5), (3, 3, 5))),
    Case("three_factors", """
def three_factors(a : In[Tensor[N, K]], b : In[Tensor[K, L]], c : In[Tensor[L, M]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[i, j] += a[i, k] * b[k, l] * c[l, j]
    return y
""", lambda a, b, c: a @ b @ c, ((2, 3), (3, 4), (4, 5))),
    Case("outer_and_trace", """
def outer_and_trace(
    x : In[Tensor[N]], y : In[Tensor[M]], z : In[Tensor[N, N]]
) -> tuple[Tensor[N, M], float]:
    o : Tensor[N, M]
    o[i, j] = x[i] * y[j]
    t : float = 0.0
    t += z[i, i]
    return o, t
""", lambda x, y, z: (x[:, None] * y, z.trace()), ((5,), (4,), (5, 5))),
    Case("strided_convolution", """
def strided_convolution(
    x : In[Tensor[N, C, H, W]], f : In[Tensor[O, C, P, Q]]
) -> Tensor[N, O, (H - P) // 2 + 1, (W - Q) // 2 + 1]:
    y : Tensor[N, O, (H - P) // 2 + 1, (W - Q) // 2 + 1]
    y[n, o, h, w] += x[n, c, 2*h + p, 2*w + q] * f[o, c, p, q]
    return y
""", lambda x, f: F.conv2d(x, f, stride=2), ((2, 2, 7, 8), (3, 2, 3, 2))),
    Case("dilated_convolution", """
def dilated_convolution(
    x : In[Tensor[N, C, H]], f : In[Tensor[O, C, P]]
) -> Tensor[N, O, H - 3 * (P - 1)]:
    y : Tensor[N, O, H - 3 * (P - 1)]
    y[n, o, h] += x[n, c, h + 3*p] * f[o, c, p]
    return y
""", lambda x, f: F.conv1d(x, f, dilation=3), ((2, 2, 9), (3, 2, 3))),
    Case("dilated_inside_zeros", """
def dilated_inside_zeros(
    x : In[Tensor[N, C, H]], f : In[Tensor[O, C, 3]], d : In[int]
) -> Tensor[N, O, H]:
    y : Tensor[N, O, H]
    y[n, o, h] += zero_pad(x[n, c, h + d * (p - 1)]) * f[o, c, p]
    return y
""", lambda x, f, d: F.conv1d(x, f, dilation=d, padding=d), ((2, 2, 7), (3, 2, 3), 2)),
    Case("per_pixel_convolution", """
def per_pixel_convolution(
    x : In[Tensor[B, C, H, W]], k : In[Tensor[3, 3, B, H, W]]
) -> Tensor[B, C, H, W]:
    z : Tensor[B, C, H, W]
    z[b, c, h, w] += zero_pad(x[b, c, h + p - 1, w + q - 1]) * k[p, q, b, h, w]
    return z
""", _per_pixel, ((2, 2, 4, 5), (3, 3, 2, 4, 5))),
    Case("softmax", """
def softmax_(x : In[Tensor[N, M]]) -> Tensor[N, M]:
    m : Tensor[N]
    m[i] = max(x[i, j] for j in M)
    e : Tensor[N, M]
    e[i, j] = exp(x[i, j] - m[i])
    s : Tensor[N]
    s[i] += e[i, j]
    y : Tensor[N, M]
    y[i, j] = e[i, j] / s[i]
    return y
""", lambda x: torch.softmax(x, 1), ((3, 4),)),
    Case("reductions_twice", """
def reductions_twice(x : In[Tensor[N, M]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[i, j] = exp(x[i, j] - max(x[i, k] for k in M)) / sum(
        exp(x[i, l] - max(x[i, k] for k in M)) for l in M)
    z : Tensor[N, M]
    z[i, j] = max(y[i, k] for k in M) * max(y[k, j] for k in N) + max(y[i, l] for l in M)
    y[i, j] += z[i, j]
    z[i, j] = max(y[i, k] for k in M) * z[i, j]
    return z
""", _reductions_twice, ((3, 4),)),
    Case("log_sum_exp", """
def log_sum_exp(x : In[Tensor[N, M]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = max(x[i, j] for j in M) + log(sum(exp(x[i, k] - max(x[i, j] for j in M)) for k in M))
    return y
""", lambda x: torch.logsumexp(x, 1), ((3, 4),)),
    Case("attention", """
def attention(
    q : In[Tensor[B, T, D]], k : In[Tensor[B, S, D]], v : In[Tensor[B, S, E]]
) -> Tensor[B, T, E]:
    a : Tensor[B, T, S]
    a[b, t, s] += q[b, t, d] * k[b, s, d] / sqrt(int2float(D))
    m : Tensor[B, T]
    m[b, t] = max(a[b, t, s] for s in S)
    a[b, t, s] = exp(a[b, t, s] - m[b, t])
    z : Tensor[B, T]
    z[b, t] += a[b, t, s]
    y : Tensor[B, T, E]
    y[b, t, e] += a[b, t, s] / z[b, t] * v[b, s, e]
    return y
""", _attention, ((2, 3, 4), (2, 5, 4), (2, 5, 2))),
    Case("group_norm", """
def group_norm(
    x : In[Tensor[N, G, C, H]], scale : In[Tensor[G, C]], shift : In[Tensor[G, C]]
) -> Tensor[N, G, C, H]:
    count : float = int2float(C * H)
    mean : Tensor[N, G]
    mean[n, g] += x[n, g, c, h] / count
    var : Tensor[N, G]
    var[n, g] += (x[n, g, c, h] - mean[n, g]) ** 2 / count
    y : Tensor[N, G, C, H]
    y[n, g, c, h] = ((x[n, g, c, h] - mean[n, g]) / sqrt(var[n, g] + 1e-05) * scale[g, c]
        + shift[g, c])
    return y
""", _group_norm, ((2, 3, 2, 4), (3, 2), (3, 2))),
    Case("kronecker", """
def kronecker(x : In[Tensor[N, M]], y : In[Tensor[P, Q]]) -> Tensor[N * P, M * Q]:
    z : Tensor[N * P, M * Q]
    z[i*P + p, j*Q + q] = x[i, j] * y[p, q]
    return z
""", torch.kron, ((2, 3), (3, 2))),
    Case("digits_summed", """
def digits_summed(x : In[Tensor[N, P, K]]) -> Tensor[P * N]:
    z : Tensor[P * N]
    z[p*N + i] += x[i, p, k] * x[i, p, k]
    z[p*N + i] += z[p*N + i] * x[i, p, 0]
    return z
""", lambda x: ((x * x).sum(2) * (1 + x[:, :, 0])).t().flatten(), ((3, 4, 2),)),
    Case("digits_with_gaps", """
def digits_with_gaps(x : In[Tensor[N, 2]]) -> Tensor[3 * N]:
    z : Tensor[3 * N]
    z[2*i + p] = x[i, p]
    return z
""", lambda x: F.pad(x.flatten(), (0, x.shape[0])), ((3, 2),)),
    Case("meeting", """
def meeting(x : In[Tensor[N, P]]) -> Tensor[N + P]:
    z : Tensor[N + P]
    z[i + p] += x[i, p]
    return z
""", _meeting, ((4, 3),)),
    Case("masked_sum", """
def masked_sum(x : In[Tensor[N, M]], n : In[int]) -> Tensor[M]:
    y : Tensor[M]
    y[j] += x[i, j] * x[i, j] if i < n else 0.0
    return y
""", _masked, ((5, 3), 3)),
    Case("masked_log", """
def masked_log(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = log(x[i]) if x[i] > 0.0 else sqrt(x[i] * x[i]) if x[i] < -1.0 else 0.0
    return y
""", lambda x: torch.where(
        x > 0, torch.log(x.clamp(min=1e-9)), torch.where(x < -1, x.abs(), 0.0)
    ), ((8,),)),
    Case("in_place", """
def in_place(x : In[Tensor[N]], a : In[float]) -> tuple[Tensor[N], Tensor[N]]:
    y : Tensor[N]
    y[i] = x[i] * x[i]
    before : Tensor[N]
    before[i] = y[i] * a
    y[i] = y[i] * y[i] + a
    y[i] += x[i] * y[i]
    y[i] *= 0.5
    after : Tensor[N]
    after[i] = y[i] * before[i]
    return after, y
""", lambda x, a: ((x**4 + a) * (1 + x) * 0.5 * x**2 * a, (x**4 + a) * (1 + x) * 0.5),
         ((4,), FLOAT)),
    Case("sum_into_read_target", """
def sum_into_read_target(x : In[Tensor[N, M]], y : In[Tensor[N]]) -> Tensor[N]:
    z : Tensor[N]
    z[i] = y[i] * y[i]
    z[i] += x[i, j] * y[i]
    z[i] -= y[i] / 3.0
    return z
""", lambda x, y: y * y + x.sum(1) * y - y / 3, ((3, 4), (3,))),
    Case("scalar_calls", """
def cube(v : In[float]) -> float:
    return v * v * v

def pieces(v : In[float]) -> float:
    r : float = 0.0
    if v > 0.5:
        r = v * v
    elif v < -0.5:
        r = -v
    else:
        r = cube(v)
    return r

def scalar_calls(x : In[Tensor[N, M]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[i, j] = pieces(x[i, j]) + cube(pieces(x[i, j]))
    return y
""", lambda x: _piecewise(x) + _piecewise(x) ** 3, ((3, 4),)),
    Case("scalar_loop_call", """
def newton_root(v : In[float]) -> float:
    r : float = 1.0
    for t in range(4):
        r = 0.5 * (r + (1.0 + v * v) / r)
    return r

def scalar_loop_call(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = newton_root(x[i])
    return y
""", lambda x: _newton(x), ((4,),)),
    Case("several_results", """
def moments(x : In[Tensor[N]]) -> tuple[float, Tensor[N]]:
    m : float = 0.0
    m += x[i] / int2float(N)
    c : Tensor[N]
    c[i] = x[i] - m
    return m, c

def several_results(x : In[Tensor[N]], a : In[float]) -> tuple[float, Tensor[N], int]:
    m, c = moments(x)
    v : float = 0.0
    v += c[i] * c[i] * a
    y : Tensor[N]
    y[i] = c[i] * v + m
    return v * m, y, N + 1
""", lambda x, a: (
        ((x - x.mean()) ** 2).sum() * a * x.mean(),
        (x - x.mean()) * ((x - x.mean()) ** 2).sum() * a + x.mean(),
        x.shape[0] + 1,
    ), ((5,), FLOAT)),
    Case("reductions", """
def reductions(x : In[Tensor[N, M]]) -> tuple[Tensor[N], Tensor[N], Tensor[N], Tensor[N]]:
    a : Tensor[N]
    a[i] = max(x[i, j] for j in M)
    b : Tensor[N]
    b[i] = min(x[i, j] * x[i, j] for j in M)
    c : Tensor[N]
    c[i] = prod(x[i, j] for j in M)
    d : Tensor[N]
    d[i] = sum(x[i, j] * j for j in range(M - 1))
    return a, b, c, d
""", lambda x: (
        x.amax(1), (x * x).amin(1), x.prod(1),
        (x * torch.arange(x.shape[1]))[:, :-1].sum(1),
    ), ((3, 4),)),
    Case("two_axes", """
def two_axes(x : In[Tensor[N, D, W]]) -> tuple[Tensor[N], Tensor[N]]:
    a : Tensor[N]
    a[n] = sum(x[n, d, w] ** 2 for d in D for w in W)
    b : Tensor[N]
    b[n] = max(x[n, d, w] for d in D for w in W)
    return a, b
""", lambda x: ((x**2).sum((1, 2)), x.amax((1, 2))), ((3, 2, 4),)),
    Case("triangle", """
def triangle(x : In[Tensor[N, N]], w : In[Tensor[M]]) -> tuple[Tensor[N], Tensor[M], float]:
    a : Tensor[N]
    a[i] = sum(x[i, k] * x[k, l] for k in N for l in range(k))
    b : Tensor[M]
    b[m] = prod(w[m] + x[k, l] for k in N for l in range(k + 1))
    c : float
    c += sum(x[k, l] * w[m] for k in N for m in M for l in range(k))
    return a, b, c
""", lambda x, w: (
        x @ x.tril(-1).sum(1),
        torch.stack([(v + x)[torch.ones_like(x).tril() > 0].prod() for v in w]),
        x.tril(-1).sum() * w.sum(),
    ), ((4, 4), (3,))),
    Case("ties", """
def ties(x : In[Tensor[N, M]]) -> tuple[Tensor[N], Tensor[N], Tensor[N]]:
    a : Tensor[N]
    a[i] = max(x[i, j] for j in M)
    b : Tensor[N]
    b[i] = min(x[i, j] for j in M)
    c : Tensor[N]
    c[i] = max(max(x[i, 0], x[i, 1]), min(x[i, 2], x[i, 1]))
    return a, b, c
""", lambda x: (_first_of(x, "max"), _first_of(x, "min"), _nested(x)),
         (Values([[1.0, 1.0, 1.0], [2.0, 3.0, 3.0], [0.0, 0.0, -1.0]]),), smooth=False),
    Case("prod_with_zeros", """
def prod_with_zeros(x : In[Tensor[N, M]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = prod(x[i, j] for j in M)
    return y
""", lambda x: x[:, 0] * x[:, 1] * x[:, 2],
         (Values([[0.0, 2.0, 3.0], [0.0, 0.0, 5.0], [2.0, 3.0, 4.0], [0.0, 0.0, 0.0]]),)),
    Case("products", """
def products(x : In[Tensor[N, M]], n : In[int]) -> tuple[Tensor[N], float, Tensor[N]]:
    a : Tensor[N]
    a[i] = prod(1.0 + x[i, j] * x[i, j] for j in range(M - 1))
    b : float = 0.5 + prod(x[i, j] for i in N for j in M)
    c : Tensor[N]
    for t in range(N):
        c[t] = c[t] + x[t, 0] * prod(x[t, j] if j < n else 1.0 for j in range(M))
    return a, b, c
""", lambda x, n: (
        (1.0 + x[:, :-1] ** 2).prod(1), 0.5 + x.prod(), x[:, 0] * x[:, :n].prod(1),
    ), (Values([[0.5, 0.0, -2.0], [1.5, 2.0, 0.25]]), 2)),
    Case("transposed_squares", """
def transposed_squares(
    x : In[Tensor[N, M]], z : In[Tensor[B, M, N]],
) -> tuple[Tensor[M, N], Tensor[B, N, M], Tensor[N, (M + 3) // 4]]:
    y : Tensor[M, N]
    y[j, i] = x[i, j] * 2.0
    w : Tensor[B, N, M]
    w[b, i, j] = z[b, j, i] * x[i, j]
    s : Tensor[N, (M + 3) // 4]
    s[i, j // 4] += x[i, j] * x[i, j]
    return y, w, s
""", lambda x, z: (
        x.t() * 2.0, z.mT * x, torch.nn.functional.pad(x**2, (0, -x.shape[1] % 4)).unflatten(
            1, (-1, 4)
        ).sum(2),
    ), ((18, 21), (2, 21, 18))),
    Case("embedding", """
def embedding(w : In[Tensor[V, D]], t : In[IntTensor[N]]) -> Tensor[N, D]:
    y : Tensor[N, D]
    y[n, d] = w[t[n], d] * w[t[n], d]
    return y
""", lambda w, t: w[t] ** 2, ((4, 3), Ints(4, (6,)))),
    Case("scatter", """
def scatter(x : In[Tensor[N, D]], t : In[IntTensor[N]], n : In[int]) -> Tensor[n, D]:
    y : Tensor[n, D]
    y[t[i], d] += x[i, d] * x[i, d]
    return y
""", lambda x, t, n: torch.zeros(n, x.shape[1], dtype=x.dtype).index_add(0, t, x * x),
         ((6, 2), Ints(4, (6,)), 4)),
    Case("histogram_of_windows", """
def histogram_of_windows(x : In[Tensor[N]]) -> Tensor[(N + 2) // 3]:
    y : Tensor[(N + 2) // 3]
    y[i // 3] += x[i] ** 2
    return y
""", lambda x: F.pad(x**2, (0, -x.shape[0] % 3)).reshape(-1, 3).sum(1), ((7,),)),
    Case("transposed_convolution", """
def transposed_convolution(x : In[Tensor[N]], k : In[Tensor[P]]) -> Tensor[2 * N + P - 2]:
    y : Tensor[2 * N + P - 2]
    y[2*i + p] += x[i] * k[p]
    return y
""", lambda x, k: F.conv_transpose1d(x[None, None], k[None, None], stride=2)[0, 0],
         ((4,), (3,))),
    Case("reversed_and_shifted", """
def reversed_and_shifted(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = x[N - 1 - i] * zero_pad(x[i + 1]) - zero_pad(x[i - 2])
    return y
""", lambda x: x.flip(0) * F.pad(x[1:], (0, 1)) - F.pad(x, (2, 0))[: x.shape[0]], ((5,),)),
    Case("recurrence", """
def recurrence(x : In[Tensor[T, N]], a : In[float]) -> Tensor[N]:
    h : Tensor[N]
    for t in range(T):
        h[i] = tanh(a * h[i] + x[t, i])
    return h
""", _recurrence, ((4, 3), FLOAT)),
    Case("running_sums", """
def running_sums(x : In[Tensor[N, M]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    s : Tensor[M]
    for i in range(N):
        s[j] += x[i, j]
        y[i, j] = s[j] * s[j]
    return y
""", _scan, ((4, 3),)),
    Case("scalar_accumulator", """
def scalar_accumulator(x : In[Tensor[N]]) -> float:
    p : float = 1.0
    for i in range(N):
        p = p * (1.0 + x[i] * x[i])
    q : float = p
    if p > 1.0:
        q = log(p)
    return q
""", lambda x: torch.log1p(x * x).sum(), ((4,),)),
    Case("loop_with_branch", """
def loop_with_branch(x : In[Tensor[N, M]], n : In[int]) -> Tensor[M]:
    y : Tensor[M]
    for i in range(N):
        if i % 2 == 0 and i < n:
            y[j] = y[j] * 0.5 + x[i, j]
        else:
            y[j] += x[i, j] * y[j]
    return y
""", lambda x, n: _branching(x, n), ((5, 3), 4)),
    Case("routing", """
def routing(u : In[Tensor[B, R, I, O]], n : In[int]) -> Tensor[B, I, O]:
    l : Tensor[B, R, I]
    c : Tensor[B, R, I]
    s : Tensor[B, I, O]
    q : Tensor[B, I]
    v : Tensor[B, I, O]
    for t in range(n):
        c = softmax(l, 2)
        s[b, i, o] = sum(c[b, r, i] * u[b, r, i, o] for r in R)
        q[b, i] = sum(s[b, i, o] ** 2 for o in O)
        v[b, i, o] = s[b, i, o] * sqrt(q[b, i]) / (1.0 + q[b, i])
        if t < n - 1:
            l[b, r, i] += u[b, r, i, o] * v[b, i, o]
    return v
""", _routing, ((2, 3, 2, 4), 3)),
    Case("triangular", """
def triangular(x : In[Tensor[N, M]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] += x[i, j] * x[i, j] if j <= i else 0.0
    return y
""", lambda x: torch.tril(x * x).sum(1), ((4, 4),)),
    Case("index_values", """
def index_values(x : In[Tensor[N, M]], a : In[float]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[i, j] = x[i, j] * (i // 2 + j % 3) / (a * a + 1) + max(x[i, j], a) * abs(x[i, j])
    return y
""", lambda x, a: x * (torch.arange(4)[:, None] // 2 + torch.arange(5) % 3) / (a * a + 1)
         + torch.maximum(x, a) * x.abs(), ((4, 5), FLOAT)),
    Case("functions", """
def functions(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = (sin(x[i]) * cos(x[i]) + tan(x[i]) * tanh(x[i]) + pow(x[i] * x[i] + 1.0, x[i])
        + x[i] ** 3 + floor(x[i]) + (x[i] * x[i]) ** 1.5)
    return y
""", lambda x: torch.sin(x) * torch.cos(x) + torch.tan(x) * torch.tanh(x) + (x * x + 1) ** x
         + x**3 + torch.floor(x) + (x * x) ** 1.5, ((5,),)),
    Case("mixed_with_operators", """
def mixed_with_operators(x : In[Tensor[B, N]], w : In[Tensor[M, N]]) -> Tensor[B]:
    h = relu(linear(x, w))
    s : Tensor[B]
    s[b] += h[b, m] * h[b, m]
    h = h * 2.0
    s[b] += h[b, 0]
    return sqrt(s + 1.0)
""", lambda x, w: torch.sqrt((F.relu(x @ w.T) ** 2).sum(1) + 2 * F.relu(x @ w.T)[:, 0] + 1),
         ((3, 4), (5, 4))),
    Case("tensor_calls", """
def scaled(x : In[Tensor[N, M]], a : In[float]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[i, j] = a * x[i, j] * x[i, j]
    return y

def tensor_calls(x : In[Tensor[N, M]], a : In[float]) -> Tensor[M, N]:
    y = scaled(x, a)
    z = scaled(transpose(y, 0, 1), a * a)
    return z + transpose(scaled(x, 2.0), 0, 1)
""", lambda x, a: (a * a * (a * x * x) ** 2 + 2 * x * x).T, ((3, 4), FLOAT)),
    Case("no_diff", """
def no_diff_(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = x[i] * no_diff(x[i] * x[i])
    return y
""", lambda x: x * (x * x).detach(), ((4,),), smooth=False),
    Case("diagonal", """
def diagonal(x : In[Tensor[N]], s : In[Tensor[N, N]]) -> tuple[Tensor[N, N], Tensor[N]]:
    y : Tensor[N, N]
    y[i, i] += x[i] * x[i]
    d : Tensor[N]
    d[i] = s[i, i] * x[i]
    return y, d
""", lambda x, s: (torch.diag(x * x), s.diag() * x), ((4,), (4, 4))),
    Case("constants", """
def constants(x : In[Tensor[N, 3]]) -> Tensor[N, 2]:
    y : Tensor[N, 2]
    y[i, 0] = x[i, 0] * x[i, 2]
    y[i, 1] = x[i, 1] ** 2
    y[0, 1] += x[0, 0]
    return y
""", lambda x: torch.stack([
        x[:, 0] * x[:, 2], x[:, 1] ** 2 + F.one_hot(torch.tensor(0), x.shape[0]) * x[0, 0]
    ], 1), ((4, 3),)),
    Case("argmax", """
def argmax_(x : In[Tensor[N, M]]) -> tuple[IntTensor[N], Tensor[N]]:
    k : IntTensor[N]
    k[i] = argmax(x[i, j] for j in M)
    y : Tensor[N]
    y[i] = x[i, k[i]] * x[i, k[i]]
    return k, y
""", lambda x: (x.argmax(1), torch.gather(x, 1, x.argmax(1, keepdim=True))[:, 0] ** 2), ((3, 4),)),
]  # fmt: skip


def _newton(x: Tensor) -> Tensor:
    r = torch.ones_like(x)
    for _ in range(4):
        r = 0.5 * (r + (1 + x * x) / r)
    return r


def _nested(x: Tensor) -> Tensor:
    """max(max(a, b), min(c, b)) with the first of equals."""

    def larger(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(a >= b, a, b)

    def smaller(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(a <= b, a, b)

    a, b, c = x.unbind(1)
    return larger(larger(a, b), smaller(c, b))


def _branching(x: Tensor, n: int) -> Tensor:
    y = torch.zeros_like(x[0])
    for i in range(x.shape[0]):
        y = y * 0.5 + x[i] if i % 2 == 0 and i < n else y + x[i] * y
    return y
