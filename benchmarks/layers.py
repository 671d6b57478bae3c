"""CapsNet's layers and a per-pixel 5x5 convolution: forward and backward, loma against PyTorch.

Float32, the network's own sizes. Prints the median time of each and loma's as a ratio to the two
others (above 1: loma is faster). Repetitions are interleaved.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

import loma
from capsnet_loma import reference
from capsnet_loma.layers import layers
from loma.measure import interleaved_medians

PER_PIXEL = """
def per_pixel(X : In[Tensor[B, C, H, W]], K : In[Tensor[P, Q, B, H, W]]) -> Tensor[B, C, H, W]:
    Z : Tensor[B, C, H, W]
    Z[b, c, h, w] += zero_pad(X[b, c, h + p - 2, w + q - 2]) * K[p, q, b, h, w]
    return Z
"""


def per_pixel(x: Tensor, k: Tensor) -> Tensor:
    """Every pixel has a 5x5 filter of its own. Of the forms tried the fastest in eager PyTorch."""
    padded = torch.nn.functional.pad(x, (2, 2, 2, 2))
    windows = padded.unfold(2, 5, 1).unfold(3, 5, 1)
    return torch.einsum("bchwpq,pqbhw->bchw", windows, k)


def per_pixel_sum(x: Tensor, k: Tensor) -> Tensor:
    """The same as 25 shifted products, which ``torch.compile`` fuses."""
    height, width = x.shape[2:]
    padded = torch.nn.functional.pad(x, (2, 2, 2, 2))
    total = torch.zeros_like(x)
    for p in range(5):
        for q in range(5):
            total = total + padded[:, :, p : p + height, q : q + width] * k[p, q].unsqueeze(1)
    return total


# What torch.compile is given where another form of the layer is its best.
FUSED = {per_pixel: per_pixel_sum}


def step(function: Callable[..., Tensor], args: list[object]) -> Callable[[], None]:
    """One forward and backward pass, gradients started anew."""
    leaves = [a for a in args if isinstance(a, Tensor) and a.requires_grad]

    def run() -> None:
        for leaf in leaves:
            leaf.grad = None
        result = function(*args)
        result.backward(torch.ones_like(result))

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    batch, f = options.batch, layers()

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, requires_grad=True)

    cases: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], list[object]]] = {
        "squash": (f.squash, reference.squash, [leaf(batch, 1152, 8)]),
        "predictions": (
            f.predictions, reference.predictions, [leaf(10, 1152, 16, 8), leaf(batch, 1152, 8)],
        ),
        "routing": (f.routing, reference.routing, [leaf(batch, 10, 1152, 16), 3, 0]),
        "per-pixel": (
            loma.compile(PER_PIXEL).per_pixel, per_pixel,
            [leaf(8, 3, 224, 224), leaf(5, 5, 8, 224, 224)],
        ),
        "lengths": (f.lengths, reference.lengths, [leaf(batch, 10, 16)]),
    }  # fmt: skip
    print(f"forward and backward, batch {batch} (per-pixel: 8), {options.threads} threads, ms")
    print(f"{'layer':12s} {'eager':>8s} {'compile':>8s} {'loma':>8s}  vs eager  vs compile")
    for name, (compiled, eager, args) in cases.items():
        candidates = {
            "eager": step(eager, args),
            "torch.compile": step(torch.compile(FUSED.get(eager, eager)), args),
            "loma": step(compiled, args),
        }
        times = interleaved_medians(candidates, rounds=options.rounds)
        e, c, mine = (1e3 * times.median(k) for k in candidates)
        print(f"{name:12s} {e:8.2f} {c:8.2f} {mine:8.2f}  {e / mine:7.2f}x  {c / mine:9.2f}x")


if __name__ == "__main__":
    main()
