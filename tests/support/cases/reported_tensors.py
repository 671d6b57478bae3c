"""Programs of the tensor layer whose gradients other systems were reported to get wrong."""

from __future__ import annotations

from typing import Any

import torch
from reported import Reported
from torch import Tensor


def floats(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def ints(*values: int) -> Tensor:
    return torch.tensor(values)


def _overwritten(x: Tensor, n: int) -> Tensor:
    y = x
    for _ in range(n):
        y = y * y / 2 + torch.sin(x)
    return y


def _arm(q: Tensor, length: Tensor, bodies: Tensor, joints: Tensor) -> tuple[Tensor, Tensor]:
    x = y = torch.zeros_like(q[:, 0])
    for i in range(*bodies.tolist()):
        angle = q[:, int(joints[int(bodies[0])]) : int(joints[i + 1])].sum(1)
        x = x + length[i] * torch.cos(angle)
        y = y + length[i] * torch.sin(angle) * x
    return x, y


def _steps(x: Tensor, n: Tensor) -> Tensor:
    v = torch.zeros_like(x[0])
    for i in range(int(n[0])):
        v = 1 / (v + x[i])
    return v


def _triangle(x: Tensor) -> Tensor:
    pairs = (x[j] * x[k] for i in range(len(x)) for j in range(i) for k in range(j))
    return sum(pairs, x.new_zeros(()))


def _network(x: Tensor, u: Tensor, v: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.tanh(w @ torch.tanh(v @ torch.tanh(u @ x + b) + b) + b[:3])


def _filter(a: Tensor, radius: int) -> Tensor:
    window = torch.nn.functional.pad(a, (radius, radius)).unfold(0, 2 * radius + 1, 1)
    w = torch.exp(-((window - a[:, None]) ** 2))
    total, weight = (w * window).sum(1), w.sum(1)
    return torch.stack((total / weight, total, weight * a), 1)


def _outside(p: Tensor, size: Tensor) -> Tensor:
    return torch.relu(p.abs() - size / 2).view(-1, 3).mean(1)


def _each_step(x: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    c = torch.ones_like(x)
    for _ in range(n):
        c = torch.sin(c * x)
    return x**n, x**-n, c


def _decay(tau: Tensor, t0: Tensor, duration: Tensor) -> Tensor:
    steps = 10 if duration < 0.1 else 11  # ten steps of 0.01 end just below 0.1
    return (1 - tau) ** steps + 0 * (t0 + duration)


POSITIONS = floats(0.40, -0.20, 0.15, -0.35, 0.50, -0.25, 0.10, 0.05, -0.45)
SIZES = floats(0.60, 0.50, 0.40, 0.70, 0.90, 0.80, 0.20, 0.30, 0.90)
FACES = floats([0.9, -0.4], [1.3, 0.25], [-1.1, 0.6])
ONE_THIRD, ONE_SIXTH = [0.0] * 9, [0.0] * 9
ONE_THIRD[0] = ONE_THIRD[4] = 1 / 3
ONE_SIXTH[0] = ONE_SIXTH[4] = -1 / 6

REPORTED = [
    Reported("warp_174", (floats(0.3, -0.4, 0.1), 20), _overwritten),
    Reported(
        "warp_1293",
        (floats([0.3, -0.5, 0.7, 0.2, -0.4], [0.1, 0.6, -0.2, 0.9, 0.5]), floats(1.0, 0.8, 0.5),
         ints(0, 3), ints(0, 2, 3, 5)),
        _arm,
    ),
    Reported(
        "warp_1294", (floats(1.0, 2.0, 3.0),), lambda x: ((x + 1) ** 2).sum(), [[4.0, 6.0, 8.0]]
    ),
    Reported(
        "warp_947", (floats(1.0, 2.0), floats(10.0, 10.0)), lambda x, b: (x * b, (b + 100) ** 2),
        [[10.0, 10.0], [221.0, 222.0]],
    ),
    Reported(
        "warp_1740", (floats([1.0], [0.5], [2.0]), ints(1)), lambda x, n: 1 / x[:1].sum(0),
        [[[-1.0], [0.0], [0.0]]],
    ),
    Reported(
        "warp_1740", (floats([1.0], [1.2], [1.7]), ints(3)), lambda x, n: 1 / x.sum(0),
        [[[-1 / 3.9**2]] * 3],
    ),
    Reported(
        "warp_1740_steps", (floats([1.0], [0.5], [2.0]), ints(1)), _steps,
        [[[-1.0], [0.0], [0.0]]],
    ),
    Reported("warp_1740_steps", (floats([1.0, 3.0], [0.5, 2.0], [2.0, 0.25]), ints(3)), _steps),
    Reported(
        "pytorch_197887", (floats([1.0, 2.0]), floats([3.0], [4.0])), lambda x, w: x @ w,
        [[[3.0, 4.0]], [[1.0], [2.0]]],
    ),
    Reported(
        "taichi_8356", (floats(0.0, 0.0, 0.0, 0.0, 0.0), floats(1.0, 2.0, 3.0)),
        lambda x, y: x + y.sum(), [[1.0] * 5, [5.0] * 3],
    ),
    Reported("taichi_3003", (floats(0.0, 0.5),), lambda x: 12 * x, [[12.0, 12.0]]),
    Reported(
        "taichi_2505", (floats(1.5, 2.0), floats(0.0, torch.pi / 2)),
        lambda x, theta: torch.cos(theta) * x, [[1.0, 0.0], [0.0, -2.0]],
    ),
    # A pair k < j counts once for each i above j: 3 x0 x1 + 2 (x0 + x1) x2 + (x0 + x1 + x2) x3.
    Reported(
        "taichi_7771", (floats(0.0, 1.0, 2.0, 3.0, 4.0),), _triangle, [[10.0, 7.0, 5.0, 3.0, 0.0]]
    ),
    Reported("taichi_8027", (floats(0.5, -1.5),), lambda x: (x**2).sum(), [[1.0, -3.0]]),
    Reported(
        "slang_13000",
        (floats(0.5, -0.3), *(torch.linspace(-0.5, 0.7, m * n, dtype=torch.float64).view(m, n)
         for m, n in ((4, 2), (4, 4), (3, 4))), floats(0.2, -0.1, 0.05, 0.3)),
        _network,
    ),
    Reported("slangpy_1055", (floats(0.3, 0.5, 0.2, 1.4, 1.1, 1.6, 0.9), 2), _filter),
    # Elements 3, 6 and 8 are at the edge of their box: the maximum has two equal arguments.
    Reported("slang_9267", (POSITIONS, SIZES), _outside, [ONE_THIRD, ONE_SIXTH], True),
    Reported("enzyme_2002", (FACES.flatten(),), lambda x: (x**2).amin(), [[0, 0, 0, 0.5, 0, 0]]),
    Reported("enzyme_2708", (FACES,), lambda x: (x**2).amax(0), [[[0, 0], [2.6, 0], [0, 1.2]]]),
    Reported("swift_933", (floats(3.0, 2.0), 2), lambda x, n: x**n, [[6.0, 4.0]]),
    Reported("swift_78264", (floats(3.0, 2.0), 2), lambda x, n: x**n, [[6.0, 4.0]]),
    Reported("swift_78264", (floats(3.0, 2.0), 0), lambda x, n: x, [[1.0, 1.0]]),
    # x ** n has n x ** (n - 1): 1.0 and 0.75 at 0.5; x ** -n has -8 and -48.
    Reported("nx_1747", (floats(0.5, 0.8), 2), _each_step),
    Reported("nx_1747", (floats(0.5, 0.8), 3), _each_step),
    Reported(
        "zygote_1149", (floats(0.01), floats(0.0)[0], floats(0.1)[0]), _decay,
        [[-11 * 0.99**10], 0.0, 0.0], True,
    ),
    Reported("zygote_1149", (floats(0.01, 0.3), floats(0.0)[0], floats(0.095)[0]), _decay),
    Reported("autograd_jl_75", (floats(5.0, -1.0),), lambda x: 1 * x, [[1.0, 1.0]]),
    Reported("jax_4177", (floats(0.0, 0.0),), lambda x: (x**2).sum(), [[0.0, 0.0]], True),
    Reported(
        "jax_26248", (floats(1.3)[0], floats(0.0, 0.0)), lambda a, x: a * (x**2).sum(),
        [0.0, [0.0, 0.0]], True,
    ),
    Reported("jax_11716", (floats(1.0, 1.0),), lambda x: x.var(), [[0.0, 0.0]], True),
    Reported(
        "pytorch_188084", (floats(1.0, 2.0, 3.0), ints(2, 0, 2, 2)), lambda x, p: x[p] ** 2,
        [[2.0, 0.0, 18.0]],
    ),
    Reported(
        "neon_169", (floats([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]),), lambda x: x @ x.T,
        [[[10.0, 14.0, 18.0]] * 2],
    ),
    Reported("neon_169", (floats([1.0]),), lambda x: x @ x.T, [[[2.0]]]),
]  # fmt: skip
