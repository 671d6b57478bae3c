"""Recurrences written as loops over elements and steps, forward alone and forward with backward.

An RNN with its history, a wave equation with all time steps, soft dynamic time warping and
Gauss-Seidel sweeps: against eager PyTorch (each written as one would write it there: soft-DTW goes
along anti-diagonals, the RNN also as ``torch.nn.RNN``, of which the faster counts) and
torch.compile; the last two against plain C with the same loops. Float32; the numbers are loma's
speed as a ratio to each peer's (above 1: loma is faster), medians of interleaved runs.

Then the time of one step while the number of steps doubles, and the memory that warm calls took
from the system.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import torch
from calls import both, inference, prepare, side_by_side, warm
from forms import COMPILE, EAGER, LOMA
from harness import settings_of, settings_parser
from torch import Tensor

import loma
from loma import memory

C = "plain C"

PROGRAM = """
def rnn(x : In[Tensor[T, N]], A : In[Tensor[N, N]], h0 : In[Tensor[N]]) -> Tensor[T + 1, N]:
    h : Tensor[T + 1, N]
    h[0, i] = h0[i]
    for t in range(T):
        h[t + 1, i] = tanh(x[t, i] + sum(A[i, j] * h[t, j] for j in N))
    return h


def wave(start : In[Tensor[N]], c : In[float], steps : In[int]) -> Tensor[steps + 2, N]:
    u : Tensor[steps + 2, N]
    u[0, i] = start[i]
    u[1, i] = start[i]
    for t in range(steps):
        u[t + 2, i] = 2.0 * u[t + 1, i] - u[t, i] + c * (
            zero_pad(u[t + 1, i - 1]) - 2.0 * u[t + 1, i] + zero_pad(u[t + 1, i + 1])
        )
    return u


def soft_dtw(c : In[Tensor[M, N]]) -> float:
    R : Tensor[M + 1, N + 1]
    for i in range(M):
        R[i + 1, 0] = 1000.0
    for j in range(N):
        R[0, j + 1] = 1000.0
    for i in range(M):
        for j in range(N):
            m : float = min(min(R[i, j], R[i, j + 1]), R[i + 1, j])
            R[i + 1, j + 1] = c[i, j] + m - log(
                exp(m - R[i, j]) + exp(m - R[i, j + 1]) + exp(m - R[i + 1, j])
            )
    return R[M, N]


def gauss_seidel(start : In[Tensor[N]], f : In[Tensor[N]], sweeps : In[int]) -> Tensor[N]:
    u : Tensor[N] = start
    for k in range(sweeps):
        for i in range(N - 2):
            u[i + 1] = 0.5 * (u[i] + u[i + 2] - f[i + 1])
    return u
""".replace("            m : float = min(min", "            m = min(min").replace(
    "    for i in range(M):\n        for j", "    m : float\n    for i in range(M):\n        for j"
)

C_PROGRAM = r"""
#include <math.h>
#include <stdlib.h>

float soft_dtw(const float *c, long M, long N) {
  float *R = calloc((M + 1) * (N + 1), sizeof(float));
  for (long i = 0; i < M; i++) R[(i + 1) * (N + 1)] = 1000.0f;
  for (long j = 0; j < N; j++) R[j + 1] = 1000.0f;
  for (long i = 0; i < M; i++)
    for (long j = 0; j < N; j++) {
      const float a = R[i * (N + 1) + j], b = R[i * (N + 1) + j + 1], d = R[(i + 1) * (N + 1) + j];
      const float ab = b < a ? b : a, m = d < ab ? d : ab;
      const float s = expf(m - a) + expf(m - b) + expf(m - d);
      R[(i + 1) * (N + 1) + j + 1] = c[i * N + j] + m - logf(s);
    }
  const float result = R[M * (N + 1) + N];
  free(R);
  return result;
}

void gauss_seidel(const float *start, const float *f, float *u, long N, long sweeps) {
  for (long i = 0; i < N; i++) u[i] = start[i];
  for (long k = 0; k < sweeps; k++)
    for (long i = 0; i < N - 2; i++) u[i + 1] = 0.5f * (u[i] + u[i + 2] - f[i + 1]);
}
"""


def rnn(x: Tensor, a: Tensor, h0: Tensor) -> Tensor:
    rows = [h0]
    for t in range(x.shape[0]):
        rows.append(torch.tanh(x[t] + a @ rows[-1]))
    return torch.stack(rows)


def library_rnn(x: Tensor, a: Tensor, h0: Tensor) -> Tensor:
    eye = torch.eye(a.shape[0])
    found, _ = torch.rnn_tanh(
        x[:, None], h0[None, None], [eye, a], False, 1, 0.0, torch.is_grad_enabled(), False, False
    )
    return torch.cat([h0[None], found[:, 0]])


def wave(start: Tensor, c: float, steps: int) -> Tensor:
    u = [start, start]
    for _ in range(steps):
        padded = torch.nn.functional.pad(u[-1], (1, 1))
        u.append(2 * u[-1] - u[-2] + c * (padded[:-2] - 2 * u[-1] + padded[2:]))
    return torch.stack(u)


def soft_dtw(c: Tensor) -> Tensor:
    """Along anti-diagonals: the elements of one depend on the two before."""
    rows, columns = c.shape
    big = torch.full((1,), 1000.0)
    # diagonals hold R[i, k - i] for i from max(0, k - columns) on
    before, last = torch.zeros(1), torch.cat([big, big])
    flipped = c.flip(1)
    for k in range(2, rows + columns + 1):
        low, high = max(1, k - columns), min(rows, k - 1)
        first = max(0, k - 1 - columns)
        up, left = last[low - 1 - first : high - first], last[low - first : high + 1 - first]
        start = max(0, k - 2 - columns)
        corner = before[low - 1 - start : high - start]
        near = torch.stack([corner, up, left])
        cost = torch.diagonal(flipped, columns + 1 - k)
        new = cost - torch.logsumexp(-near, 0)
        if low == 1 and k <= columns:
            new = torch.cat([big, new])
        if high == k - 1:
            new = torch.cat([new, big])
        before, last = last, new
    return last[-1]


def gauss_seidel(start: Tensor, f: Tensor, sweeps: int) -> Tensor:
    u = list(start.unbind())
    g = f.unbind()
    for _ in range(sweeps):
        for i in range(1, len(u) - 1):
            u[i] = 0.5 * (u[i - 1] + u[i + 1] - g[i])
    return torch.stack(u)


@dataclass(frozen=True, slots=True)
class Recurrence:
    """``make(steps)`` gives arguments; ``peers`` the ways to write it in PyTorch."""

    name: str
    peers: tuple[Callable[..., Tensor], ...]
    make: Callable[[int], tuple[Any, ...]]
    steps: int
    compiled: bool = True


def leaf(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape) * scale).requires_grad_()


RECURRENCES = (
    Recurrence(
        "rnn", (rnn, library_rnn), lambda n: (leaf(n, 64), leaf(64, 64, scale=0.1), leaf(64)), 128
    ),
    Recurrence("wave", (wave,), lambda n: (leaf(1024), 0.2, n), 128),
    Recurrence("soft_dtw", (soft_dtw,), lambda n: (leaf(n, 64),), 64),
    Recurrence(
        "gauss_seidel", (gauss_seidel,), lambda n: (leaf(64), leaf(64), n), 8, compiled=False
    ),
)


def plain_c(folder: Path) -> dict[str, Callable[..., object]]:
    """The C functions, for tensors without gradients."""
    source, library = folder / "loops.c", folder / "loops.so"
    source.write_text(C_PROGRAM, encoding="utf-8")
    command = ["gcc", "-O3", "-march=native", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run([*command, "-lm"], check=True)
    found = ctypes.CDLL(str(library))
    found.soft_dtw.restype = ctypes.c_float

    def pointer(tensor: Tensor) -> ctypes.c_void_p:
        return ctypes.c_void_p(tensor.data_ptr())

    def dtw(c: Tensor) -> object:
        return found.soft_dtw(pointer(c), *map(ctypes.c_long, c.shape))

    def seidel(start: Tensor, f: Tensor, sweeps: int) -> object:
        u = torch.empty_like(start)
        sizes = ctypes.c_long(len(u)), ctypes.c_long(sweeps)
        found.gauss_seidel(pointer(start), pointer(f), pointer(u), *sizes)
        return u

    return {"soft_dtw": dtw, "gauss_seidel": seidel}


def main() -> None:
    parser = settings_parser(__doc__ or "")
    parser.add_argument("--eager-only", action="store_true", help="without torch.compile")
    options = parser.parse_args()
    settings = settings_of(options)
    prepare(options.threads)
    module = loma.compile(PROGRAM)
    with tempfile.TemporaryDirectory() as folder:
        in_c = plain_c(Path(folder))
        print(f"{'':44s} {'loma ms':>9s} {EAGER:>14s} {COMPILE:>14s} {C:>8s}")
        for one in RECURRENCES:
            function = getattr(module, one.name)
            args = one.make(4 if options.quick else one.steps)
            for peer in one.peers:
                torch.testing.assert_close(
                    function(*args), peer(*args), rtol=1e-3, atol=1e-3, check_stride=False
                )
            for what, make in (("forward", inference), ("forward + backward", both)):
                calls = {LOMA: make(function, args)}
                calls |= {f"{EAGER} {k}": make(peer, args) for k, peer in enumerate(one.peers)}
                if one.compiled and not (options.eager_only or options.quick):
                    torch.compiler.reset()
                    calls[COMPILE] = make(torch.compile(one.peers[0]), args)
                if what == "forward" and one.name in in_c:
                    calls[C] = make(in_c[one.name], args)
                times = side_by_side(calls, [LOMA], settings)
                eager = min(times.ratio(name, LOMA) for name in calls if name.startswith(EAGER))
                cells = [f"{eager:.2f}x"]
                cells += [
                    f"{times.ratio(n, LOMA):.2f}x" if n in calls else "-" for n in (COMPILE, C)
                ]
                size = f"{one.name}, {one.steps} steps, {what}"
                print(f"{size:44s} {1e3 * times.median(LOMA):9.3f} {cells[0]:>14s} {cells[1]:>14s} "
                      f"{cells[2]:>8s}", flush=True)  # fmt: skip
    print("\nmicroseconds a step, forward + backward, and memory from the system in warm calls")
    for one in RECURRENCES:
        function = getattr(module, one.name)
        counts = [2**k * (2 if options.quick else 4 * one.steps) for k in range(4)]
        calls = {str(n): both(function, one.make(n)) for n in counts}
        warm(calls.values())
        start = memory.stats().obtained
        times = side_by_side(calls, [], settings)
        taken = memory.stats().obtained - start
        line = "".join(f"  {n}: {1e6 * times.median(str(n)) / n:.2f}" for n in counts)
        print(f"{one.name:14s}{line}   {taken} bytes", flush=True)


if __name__ == "__main__":
    main()
