"""Operators that are written out as others, and slices, with the same in plain PyTorch."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from operator_cases import Case
from torch import Tensor


def _elu(x: Tensor, s: Tensor) -> Tensor:
    return F.elu(x) * torch.where(x > 0, x, s * (torch.exp(x) - 1))


def _sorted(result: Any) -> Tensor:
    values, indices = result
    return values * values + indices  # type: ignore[no-any-return]


def _loop(x: Tensor) -> Tensor:
    total = torch.zeros((), dtype=x.dtype)
    for t in range(len(x)):
        total = total + (x[t] * x[t, 0, 1]).sum() * x[t, :, 1][2]
    return total


def _most(*values: Tensor) -> Tensor:
    return functools.reduce(torch.maximum, values)


def _staircase(x: Tensor) -> Tensor:
    rows = [[*row] for row in x]
    for t in range(1, len(x)):
        for s in range(1, len(x[0])):
            up, left = rows[t - 1][s], rows[t - 1][s - 1]
            rows[t][s] = torch.logaddexp(up, left) + x[t, s] * left.clamp(min=0.0)
    return torch.stack([torch.stack(row) for row in rows])


CASES = [
    Case("prod_all", "x: N, M", "Tensor[1, 1]", "prod(x, keepdim=True)",
         lambda x: x.prod().reshape(1, 1)),
    Case("cumsum_unknown", "x: *3", "Tensor", "cumsum(x * x, -1)", lambda x: (x * x).cumsum(2)),
    Case("roll_all", "x: N, M", "Tensor[N, M]", "roll(x * x, 3)", lambda x: (x * x).roll(3)),
    # elementwise
    Case("silu", "x: N, M", "Tensor[N, M]", "silu(x * x)", lambda x: F.silu(x * x)),
    Case("gelu", "x: N, M", "Tensor[N, M]", "gelu(x) + gelu(x, approximate='tanh')",
         lambda x: F.gelu(x) + F.gelu(x, approximate="tanh")),
    Case("elu", "x: N, M; s: float", "Tensor[N, M]", "elu(x) * elu(x, s)", _elu),
    Case("leaky_relu", "x: *2", "Tensor", "leaky_relu(x, 0.2) * leaky_relu(x)",
         lambda x: F.leaky_relu(x, 0.2) * F.leaky_relu(x)),
    # reductions
    Case("logsumexp", "x: N, M, K", "Tensor[N, K]", "logsumexp(x, dim=1)",
         lambda x: x.logsumexp(1)),
    Case("logsumexp_unknown", "x: *2", "Tensor", "x * logsumexp(x, [0, -1], keepdim=True)",
         lambda x: x * x.logsumexp((0, 1), keepdim=True)),
    Case("var", "x: N, M, K", "Tensor[M]", "var(x, [0, 2], unbiased=False)",
         lambda x: x.var((0, 2), unbiased=False)),
    Case("var_all", "x: N, M", "float", "var(x)", lambda x: x.var()),
    Case("var_unknown", "x: *2", "Tensor", "var(x, 1, correction=2, keepdim=True)",
         lambda x: x.var(1, correction=2, keepdim=True)),
    Case("std", "x: N, M, K", "Tensor[N, 1, K]", "std(x, 1, keepdim=True)",
         lambda x: x.std(1, keepdim=True)),
    Case("norm", "x: N, M, K", "Tensor[N, K]", "norm(x, [1])", lambda x: x.norm(dim=1)),
    Case("norm_unknown", "x: *2", "Tensor[()]", "norm(x)", lambda x: x.norm()),
    Case("layer_norm", "x: B, N, M; w: N, M; b: N, M", "Tensor[B, N, M]",
         "layer_norm(x, [N, M], w, b, 1e-3)",
         lambda x, w, b: F.layer_norm(x, (3, 4), w, b, 1e-3)),
    Case("layer_norm_checked", "x: N, M", "Tensor[N, 4]", "layer_norm(x, [4])",
         lambda x: F.layer_norm(x, (4,))),
    Case("layer_norm_unknown", "x: *3; w: K", "Tensor", "layer_norm(x, [K], w)",
         lambda x, w: F.layer_norm(x, (5,), w)),
    # products
    Case("matmul", "x: N, M; y: M, K", "Tensor[N, K]", "matmul(x, y) * (x @ y)",
         lambda x, y: (x @ y) ** 2),
    Case("matmul_vectors", "x: N; m: N, M; y: M", "float", "(x @ m) @ y + x @ (m @ y)",
         lambda x, m, y: 2 * (x @ m @ y)),
    Case("matmul_batches", "x: M; m: N, M, K; y: K", "Tensor[N]", "x @ m @ y",
         lambda x, m, y: x @ m @ y),
    # shape and convolutions
    Case("stack", "x: N, M; y: N, M", "Tensor[N, 3, M]", "stack([x, y * y, x], 1)",
         lambda x, y: torch.stack([x, y * y, x], 1)),
    Case("stack_last", "x: N; y: N", "Tensor[N, 2]", "stack([x, y * y], dim=-1)",
         lambda x, y: torch.stack([x, y * y], -1)),
    Case("conv1d", "x: B, C, H; w: O, 2, P; b: O",
         "Tensor[B, O, (H + 2 * 2 - 2 * (P - 1) - 1) // 3 + 1]", "conv1d(x, w, b, 3, 2, 2, 2)",
         lambda x, w, b: F.conv1d(x, w, b, 3, 2, 2, 2)),
    Case("stack_numbers", "x: N; s: float", "Tensor[3]", "stack([x[0] * s, 2.0, s])",
         lambda x, s: torch.stack([x[0] * s, torch.full_like(s, 2.0), s])),
    # of numbers, and of whole tensors among elements
    Case("on_numbers", "x: N, M; s: float", "Tensor[N, M]", """
         y : Tensor[N, M]
         y[i, j] = silu(x[i, j] * s) + gelu(x[i, j]) * elu(x[i, j], s) + leaky_relu(x[i, j])
         return y""",
         lambda x, s: F.silu(x * s) + F.gelu(x) * torch.where(x > 0, x, s * x.expm1())
         + F.leaky_relu(x)),
    Case("among_elements", "x: N, M; w: M", "Tensor[N]", """
         y : Tensor[N]
         for t in range(N):
             y[t] = logsumexp(x[t], 0) + x[t] @ w * exp(mean(w))
         y[i] *= sum(w * w)
         return y""",
         lambda x, w: (x.logsumexp(1) + x @ w * w.mean().exp()) * (w * w).sum()),
    Case("among_elements_of_numbers", "x: N, M", "Tensor[N, M]", """
         y : Tensor[N, M] = x
         for t in range(1, N):
             for s in range(1, M):
                 one = y[t - 1, s - 1]
                 y[t, s] = logsumexp(stack([y[t - 1, s], one], 0), 0)
                 y[t, s] += x[t, s] * amax(stack([one, 0.0]), [0])
         return y""",
         _staircase),
    Case("extremes_of_several", "x: N; y: N; s: float", "Tensor[N]", """
         z : Tensor[N] = max(x, y, s) - min(x, 1, s, y)
         z[i] += max(x[i], y[i], x[0], s) * min(x[i], y[i] + x[i], 0.5)
         return z""",
         lambda x, y, s: _most(x, y, s) + _most(-x, -y, -s, -torch.ones_like(s))
         - _most(x, y, x[0], s) * _most(-x, -y - x, torch.full_like(s, -0.5))),
    # several results
    Case("unbind", "x: N, 3, K", "Tensor[N, K]", """
         a, b, c = unbind(x * x, 1)
         return a * b + c""",
         lambda x: (x * x)[:, 0] * (x * x)[:, 1] + (x * x)[:, 2]),
    Case("sort", "x: N, M, K", "Tensor[N, M, K]", """
         v, i = sort(x * x, 1, descending=True)
         return v * v + i""",
         lambda x: _sorted((x * x).sort(1, descending=True))),
    Case("topk", "x: N, M", "Tensor[N, 2]", """
         v, i = topk(x, 2)
         return v * v + i""",
         lambda x: _sorted(x.topk(2))),
    Case("topk_smallest", "x: N, M", "Tensor[2, M]", """
         v, i = topk(x, N - 1, dim=0, largest=False)
         return v * v + i""",
         lambda x: _sorted(x.topk(2, 0, largest=False))),
    # slices
    Case("rows", "x: N, M", "Tensor[M]", "x[0] * x[-1]", lambda x: x[0] * x[-1]),
    Case("columns", "x: N, K", "Tensor[N, 2]", "x[:, 1:3] * x[:, -3:-1]",
         lambda x: x[:, 1:3] * x[:, -3:-1]),
    Case("ellipsis", "x: N, M, K", "Tensor[N, M]", "x[..., -1] * x[..., 0]",
         lambda x: x[..., -1] * x[..., 0]),
    Case("steps", "x: N, K", "Tensor[N - 1, (K + 1) // 2]", "(x * x)[1:, ::2]",
         lambda x: (x * x)[1:, ::2]),
    Case("slices_in_a_loop", "x: N, M, K", "float", """
         s : float = 0.0
         for t in range(N):
             s = s + sum(x[t] * x[t, 0, 1]) * x[t, :, 1][2]
         return s""", _loop),
    Case("slice_at_a_variable", "x: N, M", "Tensor[M]", """
         n : int = N // 2
         return x[n] * x[n:N, :][0] * x[...][n][:]""", lambda x: x[1] * x[1] * x[1]),
    Case("slice_of_ints", "i: int[N, M] < 9", "IntTensor[M]", "i[1]", lambda i: i[1]),
    Case("in_a_branch", "x: N, M; s: float", "Tensor[N]", """
         y : Tensor[N]
         if s > -1000.0:
             y = logsumexp(x * s, 1) + norm(x * x, [1])
         return y""",
         lambda x, s: (x * s).logsumexp(1) + (x * x).norm(dim=1)),
]  # fmt: skip
