"""Programs of the scalar layer whose gradients other systems were reported to get wrong.

Arguments are numbers and lists. An ``Out`` argument is a list of zeros, which the reference
ignores: it has the argument's final value as a result. ``known`` gradients are flat.
"""

from __future__ import annotations

from math import cos, sin
from typing import Any

import torch
from reported import Reported
from torch import Tensor


def _overwritten(x: Tensor, n: int) -> Tensor:
    y = x
    for _ in range(n):
        y = y * y / 2 + torch.sin(x)
    return y


def _arm(q: Tensor, length: Tensor, bodies: list[int], joints: list[int]) -> tuple[Tensor, Tensor]:
    x = y = torch.zeros((), dtype=q.dtype)
    for i in range(*bodies):
        angle = q[joints[bodies[0]] : joints[i + 1]].sum()
        x = x + length[i] * torch.cos(angle)
        y = y + length[i] * torch.sin(angle) * x
    return x, y


def _steps(x: Tensor, n: int) -> Tensor:
    v = torch.zeros((), dtype=x.dtype)
    for i in range(n):
        v = 1 / (v + x[i])
    return v


def _triangle(x: Tensor) -> Tensor:
    return sum(
        (x[j] * x[k] for i in range(5) for j in range(i) for k in range(j)),
        torch.zeros((), dtype=x.dtype),
    )


def _network(x: Tensor, u: Tensor, v: Tensor, w: Tensor, b: Tensor, _: Any) -> Tensor:
    h = torch.tanh(u.view(4, 2) @ x + b)
    g = torch.tanh(v.view(4, 4) @ h + b)
    return torch.tanh(w.view(3, 4) @ g + b[:3])


def _filter(a: Tensor, i: int, radius: int) -> tuple[Tensor, Tensor, Tensor]:
    window = a[i - radius : i + radius + 1]
    w = torch.exp(-((window - a[i]) ** 2))
    return (w * window).sum() / w.sum(), (w * window).sum(), w.sum() * a[i]


def _outside(p: Tensor, size: Tensor, point: int) -> Tensor:
    part = slice(3 * point, 3 * point + 3)
    return torch.relu(p[part].abs() - size[part] / 2).mean()


def _each_step(x: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    c = torch.ones((), dtype=x.dtype)
    for _ in range(n):
        c = torch.sin(c * x)
    return x**n, x**-n, c


def _decay(t0: Tensor, tau: Tensor, duration: Tensor) -> Tensor:
    steps = 10 if duration < 0.1 else 11  # ten steps of 0.01 end just below 0.1
    return (1 - tau) ** steps + 0 * (t0 + duration)


def _at(values: dict[int, float], size: int) -> list[float]:
    return [values.get(k, 0.0) for k in range(size)]


POSITIONS = [0.40, -0.20, 0.15, -0.35, 0.50, -0.25, 0.10, 0.05, -0.45]
SIZES = [0.60, 0.50, 0.40, 0.70, 0.90, 0.80, 0.20, 0.30, 0.90]
PARABOLAS = [0.9, -0.4, 1.3, 0.25, -1.1, 0.6]  # whose squares have their least at 0.25
ARM = ([0.3, -0.5, 0.7, 0.2, -0.4], [1.0, 0.8, 0.5], [0, 3], [0, 2, 3, 5])
NETWORK = (
    [0.5, -0.3],
    [0.1 * k - 0.35 for k in range(8)],
    [0.4 - 0.05 * k for k in range(16)],
    [0.06 * k - 0.3 for k in range(12)],
    [0.2, -0.1, 0.05, 0.3],
    [0.0] * 3,
)

REPORTED = [
    Reported("warp_174", (0.3, 20), _overwritten),
    Reported("warp_1293", ARM, _arm),
    Reported("warp_1294", ([1.0, 2.0, 3.0],), lambda x: ((x + 1) ** 2).sum(), [4.0, 6.0, 8.0]),
    # The product has 10, as b was then; the second result has 2 (b + 100).
    Reported("warp_947", (1.0, 10.0), lambda x, b: (x * b, (b + 100) ** 2), [10.0, 221.0]),
    Reported("warp_1740", ([1.0, 0.0, 0.0], 1), lambda x, n: 1 / x[:n].sum(), [-1.0, 0.0, 0.0]),
    Reported("warp_1740", ([1.0, 1.2, 1.7], 3), lambda x, n: 1 / x.sum(), [-1 / 3.9**2] * 3),
    Reported("warp_1740_steps", ([1.0, 0.5, 2.0], 1), _steps, [-1.0, 0.0, 0.0]),
    Reported("warp_1740_steps", ([1.0, 0.5, 2.0], 3), _steps),
    Reported(
        "taichi_8356", ([0.0] * 5, [1.0, 2.0, 3.0], [0.0] * 5), lambda x, y, _: x + y.sum(),
        [1.0] * 5 + [5.0] * 3,
    ),
    Reported("taichi_3003", (0.5,), lambda x: 12 * x, [12.0]),
    Reported("taichi_2505", (1.5, 0.4), lambda x, t: torch.cos(t) * x, [cos(0.4), -1.5 * sin(0.4)]),
    # A pair k < j counts once for each i above j: 3 x0 x1 + 2 (x0 + x1) x2 + (x0 + x1 + x2) x3.
    Reported("taichi_7771", ([0.0, 1.0, 2.0, 3.0, 4.0],), _triangle, [10.0, 7.0, 5.0, 3.0, 0.0]),
    Reported("taichi_8027", ([0.5, -1.5],), lambda x: (x**2).sum(), [1.0, -3.0]),
    Reported("slang_13000", NETWORK, _network),
    Reported("slangpy_1055", ([0.3, 0.5, 0.2, 1.4, 1.1, 1.6, 0.9], 3, 2), _filter),
    # Each point has elements at the edge of the box, where the maximum has two equal arguments.
    Reported("slang_9267", (POSITIONS, SIZES, 0), _outside, _at({0: 1 / 3, 9: -1 / 6}, 18), True),
    Reported("slang_9267", (POSITIONS, SIZES, 1), _outside, _at({4: 1 / 3, 13: -1 / 6}, 18), True),
    Reported("slang_9267", (POSITIONS, SIZES, 2), _outside, [0.0] * 18, True),
    Reported("enzyme_2002", (PARABOLAS,), lambda x: (x**2).amin(), [0, 0, 0, 0.5, 0, 0]),
    Reported(
        "enzyme_2708", (PARABOLAS, [0.0] * 2), lambda x, _: (x**2).view(3, 2).amax(0),
        [0, 0, 2.6, 0, 0, 1.2],
    ),
    Reported("swift_933", (3.0, 2), lambda x, n: x**n, [6.0]),
    Reported("swift_78264", (3.0, 2), lambda x, n: x**n, [6.0]),
    Reported("swift_78264", (3.0, 0), lambda x, n: x, [1.0]),
    Reported("nx_1747", (0.5, 2), _each_step),
    Reported("nx_1747", (0.5, 3), _each_step),
    Reported("zygote_1149", (0.0, 0.01, 0.1), _decay, [0.0, -11 * 0.99**10, 0.0], True),
    Reported("zygote_1149", (0.0, 0.01, 0.095), _decay, [0.0, -10 * 0.99**9, 0.0]),
    Reported("autograd_jl_75", (5.0,), lambda x: x, [1.0]),
    Reported("jax_4177", ([0.0, 0.0],), lambda x: (x**2).sum(), [0.0, 0.0], True),
    Reported("jax_26248", (1.3, [0.0, 0.0]), lambda a, x: a * (x**2).sum(), [0.0] * 3, True),
    Reported("jax_11716", ([1.0, 1.0],), lambda x: x.var(), [0.0, 0.0], True),
    Reported(
        "pytorch_188084", ([1.0, 2.0, 3.0], [2, 0, 2, 2], [0.0] * 4), lambda x, p, _: x[p] ** 2,
        [2.0, 0.0, 18.0],
    ),
    Reported(
        "neon_169", ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0.0] * 4),
        lambda x, _: (x.view(2, 3) @ x.view(2, 3).T).flatten(), [10.0, 14.0, 18.0] * 2,
    ),
]  # fmt: skip
