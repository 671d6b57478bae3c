"""The kernels of Triton's tutorials and Helion's examples, forward and with backward.

Softmax, layer norm, RMS norm, cross entropy, a product of matrices in groups, sums and means of
items of different lengths, and attention; in loma (tutorial_kernels.loma), where the backward part
follows, against PyTorch's own functions, the same of its operators, and torch.compile. On a GPU
Triton itself is a peer of the kernels of rows, forward (triton_kernels.py).

    python benchmarks/papers/tutorial_kernels.py --json FILE
    python benchmarks/papers/tutorial_kernels.py --device cuda --json FILE
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
from gpu_work.work import Function, Work, attention, attention_by_operators, part_of
from papers import measured
from papers.libraries import length_in, length_of, length_of_named, library
from papers.measured import Entry, Session
from torch import Tensor

import loma

PROGRAM = Path(__file__).with_suffix(".loma")
IN_TRITON = PROGRAM.with_name("triton_kernels.py")
EPS = 1e-5


@cache
def own(name: str) -> Function:
    function: Function = getattr(loma.compile(part_of(PROGRAM, name)), name)
    return function


# ------------------------------------------------------------------------------------- in PyTorch


def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, 1)


def softmax_by_operators(x: Tensor) -> Tensor:
    e = torch.exp(x - x.amax(1, keepdim=True))
    return e / e.sum(1, keepdim=True)


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, w.shape, w, b, EPS)


def layer_norm_by_operators(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(1, keepdim=True) + EPS) * w + b


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, list(w.shape), w, EPS)


def rms_norm_by_operators(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(1, keepdim=True) + EPS) * w


def cross_entropy_by_operators(x: Tensor, label: Tensor) -> Tensor:
    return (torch.logsumexp(x, 1) - x.gather(1, label[:, None])[:, 0]).mean()


def products(x: Tensor, w: Tensor, group: Tensor) -> Tensor:
    """A product of matrices for each group; its rows are one behind the other."""
    counts = torch.bincount(group, minlength=len(w)).tolist()
    return torch.cat([part @ w[g] for g, part in enumerate(x.split(counts))])


def grouped_mm(x: Tensor, w: Tensor, group: Tensor) -> Tensor:
    ends = torch.bincount(group, minlength=len(w)).cumsum(0).int()
    return F.grouped_mm(x, w, offs=ends)


def segment_sum(x: Tensor, start: Tensor) -> Tensor:
    return torch.segment_reduce(x, "sum", offsets=start, axis=0)


def segment_mean(x: Tensor, start: Tensor) -> Tensor:
    return segment_sum(x, start) / start.diff().clamp_min(1)[:, None]


def items(x: Tensor, start: Tensor) -> Tensor:
    """The item that each row belongs to."""
    return torch.repeat_interleave(start.diff(), output_size=len(x))


def added_sum(x: Tensor, start: Tensor) -> Tensor:
    return x.new_zeros(len(start) - 1, x.shape[1]).index_add(0, items(x, start), x)


def added_mean(x: Tensor, start: Tensor) -> Tensor:
    return added_sum(x, start) / start.diff().clamp_min(1)[:, None]


# --------------------------------------------------------------------------------------- inputs

Inputs = Callable[..., tuple[Tensor, ...]]


def normal(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.randn(shape) for shape in shapes)


def one(n: int, d: int) -> tuple[Tensor, ...]:
    return normal((n, d))


def weighted(n: int, d: int) -> tuple[Tensor, ...]:
    return normal((n, d), (d,))


def scaled(n: int, d: int) -> tuple[Tensor, ...]:
    return normal((n, d), (d,), (d,))


def classes(n: int, d: int) -> tuple[Tensor, ...]:
    return torch.randn(n, d), torch.randint(d, (n,))


def groups(m: int, k: int, n: int, g: int) -> tuple[Tensor, ...]:
    x, w = normal((m, k), (g, k, n))
    return x, w / k**0.5, torch.randint(g, (m,)).sort().values


def jagged(b: int, longest: int, d: int) -> tuple[Tensor, ...]:
    start = F.pad(torch.randint(longest + 1, (b,)).cumsum(0), (1, 0))
    return torch.randn(int(start[-1]), d), start


def heads(h: int, t: int, d: int) -> tuple[Tensor, ...]:
    return normal((h, t, d), (h, t, d), (h, t, d))


# ------------------------------------------------------------------------------------- the table


@dataclass(frozen=True, slots=True)
class Kernel:
    """``name`` is that of the function of loma. ``small``, ``cpu``, ``cuda``: sizes. ``triton``:
    the function of triton_kernels.py."""

    name: str
    inputs: Inputs
    peers: dict[str, Function]
    small: tuple[int, ...]
    cpu: tuple[int, ...]
    cuda: tuple[int, ...]
    triton: str = ""
    helpers: tuple[Function, ...] = field(default=())


ROWS = (4096, 4096)
KERNELS = {
    "softmax": Kernel(
        "softmax_rows", one, {"F.softmax": softmax, "operators": softmax_by_operators},
        (3, 5), (4096, 1024), ROWS, "softmax",
    ),
    "layer_norm": Kernel(
        "layer_norm_rows", scaled,
        {"F.layer_norm": layer_norm, "operators": layer_norm_by_operators},
        (3, 5), (4096, 1024), ROWS, "layer_norm",
    ),
    "rms_norm": Kernel(
        "rms_norm_rows", weighted, {"F.rms_norm": rms_norm, "operators": rms_norm_by_operators},
        (3, 5), (4096, 1024), ROWS, "rms_norm",
    ),
    "cross_entropy": Kernel(
        "cross_entropy", classes,
        {"F.cross_entropy": F.cross_entropy, "operators": cross_entropy_by_operators},
        (3, 5), (512, 32_000), (4096, 32_000), "cross_entropy",
    ),
    "grouped_gemm": Kernel(
        "grouped_gemm", groups, {"products": products, "F.grouped_mm": grouped_mm},
        (7, 4, 8, 3), (4096, 256, 256, 16), (16_384, 512, 512, 16),
    ),
    "jagged_sum": Kernel(
        "jagged_sum", jagged, {"segment_reduce": segment_sum, "index_add": added_sum},
        (4, 3, 5), (512, 200, 128), (4096, 200, 128), helpers=(items,),
    ),
    "jagged_mean": Kernel(
        "jagged_mean", jagged, {"segment_reduce": segment_mean, "index_add": added_mean},
        (4, 3, 5), (512, 200, 128), (4096, 200, 128), helpers=(added_sum, items),
    ),
    "attention": Kernel(
        "attention", heads, {"sdpa": attention, "operators": attention_by_operators},
        (2, 5, 3), (8, 1024, 64), (16, 4096, 64),
    ),
}  # fmt: skip


def work(name: str, size: tuple[int, ...], device: str) -> Work:
    kernel = KERNELS[name]

    def inputs(device: str) -> tuple[Tensor, ...]:
        moved = [part.to(device) for part in kernel.inputs(*size)]
        return tuple(part.requires_grad_(part.is_floating_point()) for part in moved)

    def in_triton() -> Function:
        function: Function = getattr(library("papers.triton_kernels"), kernel.triton)
        return function

    text = "x".join(map(str, size))
    others = {"Triton": in_triton} if kernel.triton and device == "cuda" else {}
    return Work(f"{name} {text}", f"{name}, {text}", inputs, kernel.peers,
                lambda: own(kernel.name), "1 time", others=others)  # fmt: skip


def entries(session: Session) -> Iterator[Entry]:
    if session.device == "cpu":
        session.say("Triton and Helion: skipped, they need a GPU")
    for name, kernel in KERNELS.items():
        if not session.wants(name):
            continue
        size = kernel.cuda if session.device == "cuda" else kernel.cpu
        small = work(name, kernel.small, session.device)
        full = small if session.settings.quick else work(name, size, session.device)
        lines = {
            "loma": length_in(PROGRAM, kernel.name),
            "PyTorch": length_of(list(kernel.peers.values())[1], *kernel.helpers),
        }
        if kernel.triton:
            lines["Triton"] = length_of_named(IN_TRITON, f"{kernel.triton}_kernel")
        yield Entry(full, small, lengths=lines)


if __name__ == "__main__":
    measured.main(__doc__ or "", tuple(KERNELS), entries)
