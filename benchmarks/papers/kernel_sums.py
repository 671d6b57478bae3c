"""Kernel sums, forward and with backward: what KeOps is for, without it, with it, and in loma.

A reduction over N points of a formula in their coordinates and those of each of M others: the
product of a Gaussian kernel's matrix with a vector, the logarithm of a sum of exponentials (half a
step of Sinkhorn's algorithm), the nearest neighbour, and a step of k-means. In PyTorch the matrix
is there, at least once; in KeOps (Charlier et al. 2021) and in loma (kernel_sums.loma) it is not.

    python benchmarks/papers/kernel_sums.py --json FILE
    python benchmarks/papers/kernel_sums.py --device cuda --json FILE
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import torch
from gpu_work.work import BOTH, FORWARD, Function, Work, part_of
from papers import measured
from papers.libraries import length_in, length_of, library
from papers.measured import Entry, Session
from torch import Tensor

import loma

PROGRAM = Path(__file__).with_suffix(".loma")


@cache
def own(name: str) -> Function:
    function: Function = getattr(loma.compile(part_of(PROGRAM, name)), name)
    return function


# ------------------------------------------------------------------------------------- in PyTorch


def squares(x: Tensor, y: Tensor) -> Tensor:
    """Squared distances, [M, N], by differences."""
    return (x[:, None] - y).square().sum(2)


def expanded(x: Tensor, y: Tensor) -> Tensor:
    """Squared distances by a product of matrices, which is faster and cancels."""
    return x.square().sum(1)[:, None] + y.square().sum(1) - 2 * (x @ y.T)


def gaussian(distances: Function, x: Tensor, y: Tensor, b: Tensor) -> Tensor:
    return torch.exp(-distances(x, y)) @ b


def log_sum_exp(distances: Function, x: Tensor, y: Tensor, b: Tensor) -> Tensor:
    return torch.logsumexp(b - distances(x, y), 1)


def nearest_of_all(distances: Function, x: Tensor, y: Tensor) -> Tensor:
    return distances(x, y).amin(1)


def nearest_looked_up(distances: Function, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        at = distances(x, y).argmin(1)
    return (x - y[at]).square().sum(1)


def moved(x: Tensor, y: Tensor, at: Tensor) -> Tensor:
    """Where k-means puts the centres y, for the nearest centre of each point."""
    total = torch.zeros_like(y).index_add_(0, at, x)
    count = torch.bincount(at, minlength=len(y)).to(y.dtype)[:, None]
    return torch.where(count > 0, total / count.clamp_min(1), y)


def k_means(distances: Function, x: Tensor, y: Tensor) -> Tensor:
    return moved(x, y, distances(x, y).argmin(1))


# --------------------------------------------------------------------------------------- in KeOps


def lazy_squares(x: Tensor, y: Tensor) -> Any:
    lazy = library("pykeops.torch").LazyTensor
    return ((lazy(x[:, None]) - lazy(y[None])) ** 2).sum(2)


def lazy_gaussian(x: Tensor, y: Tensor, b: Tensor) -> Tensor:
    a: Tensor = (-lazy_squares(x, y)).exp() @ b
    return a


def lazy_log_sum_exp(x: Tensor, y: Tensor, b: Tensor) -> Tensor:
    weights = library("pykeops.torch").LazyTensor(b[None, :, None])
    found: Tensor = (weights - lazy_squares(x, y)).logsumexp(1)
    return found[:, 0]


def lazy_nearest(x: Tensor, y: Tensor) -> Tensor:
    at = lazy_squares(x, y).argmin(1)[:, 0]
    return (x - y[at]).square().sum(1)


def lazy_k_means(x: Tensor, y: Tensor) -> Tensor:
    return moved(x, y, lazy_squares(x, y).argmin(1)[:, 0])


def keops(function: Function) -> Callable[[], Function]:
    def make() -> Function:
        library("pykeops.torch")
        return function

    return make


# ------------------------------------------------------------------------------------- the table

# By name: forms in PyTorch, of distances, the form in KeOps, and whether there are gradients.
SUMS: dict[str, tuple[dict[str, Function], Function, bool]] = {
    "gaussian": ({"": gaussian}, lazy_gaussian, True),
    "log_sum_exp": ({"": log_sum_exp}, lazy_log_sum_exp, True),
    "nearest": ({"amin, ": nearest_of_all, "argmin, ": nearest_looked_up}, lazy_nearest, True),
    "k_means": ({"": k_means}, lazy_k_means, False),
}
SIZES = {
    "gaussian": (5000, 5000, 3), "log_sum_exp": (5000, 5000, 3), "nearest": (5000, 5000, 3),
    "k_means": (20_000, 500, 16),
}  # fmt: skip


def work(name: str, m: int, n: int, d: int) -> Work:
    forms, lazy, differs = SUMS[name]

    def inputs(device: str) -> tuple[Tensor, ...]:
        x, y = (torch.randn(count, d, device=device).requires_grad_(differs) for count in (m, n))
        if name not in ("gaussian", "log_sum_exp"):
            return x, y
        shape = (n, 1) if name == "gaussian" else (n,)
        return x, y, torch.rand(shape, device=device).requires_grad_()

    peers = {
        f"{form}{distances.__name__}": partial(function, distances)
        for form, function in forms.items()
        for distances in (squares, expanded)
    }
    passes = (FORWARD, BOTH) if differs else (FORWARD,)
    return Work(
        f"{name} {m}x{n}x{d}", f"{name}, {m} and {n} points in {d} dimensions", inputs, peers,
        lambda: own(name), "1 time", passes=passes, others={"KeOps": keops(lazy)},
    )  # fmt: skip


def entries(session: Session) -> Iterator[Entry]:
    for name, (forms, lazy, _) in SUMS.items():
        if not session.wants(name):
            continue
        small = work(name, 7, 5, 3)
        full = small if session.settings.quick else work(name, *SIZES[name])
        shared = (moved,) if name == "k_means" else ()
        lines = {
            "loma": length_in(PROGRAM, name),
            "PyTorch": length_of(next(iter(forms.values())), squares, *shared),
            "KeOps": length_of(lazy, lazy_squares, *shared),
        }
        yield Entry(full, small, lengths=lines)


if __name__ == "__main__":
    measured.main(__doc__ or "", tuple(SUMS), entries)
